//! The rules of `x-kubernetes-validations`.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use cel::objects::{Key, Map};
use cel::{Context, Env, Program, Value as Cel};
use serde_json::Value;

use super::schema::{Schema, join};
use super::status::FieldError;

/// The functions that rules may use; they have no state.
pub static LIBRARY: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut library = Env::stdlib();
    for extension in [cel::extensions::strings, cel::extensions::lists] {
        library.add_extension(extension).expect("the extensions of the cel crate fit its standard library");
    }
    Arc::new(library)
});

/// One compiled rule.
pub struct Rule {
    text: String,
    program: Program,
    message: Option<String>,
    message_expression: Option<Program>,
    reason: &'static str,
    field: String,
    /// It compares with what was before, and so has no say about what is new.
    transition: bool,
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Rule").field(&self.text).finish()
    }
}

impl Rule {
    /// Compiles the rule at `path` of a CRD.
    ///
    /// # Errors
    /// What is wrong with its expression.
    pub fn compile(rule: &Value, path: &str) -> Result<Self, FieldError> {
        let text = |name: &str| rule[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let compile = |source: &str, name: &str| {
            let refuse = |e| FieldError::invalid(format!("{path}.{name}"), format!("{source:?}"), format!("{e}"));
            LIBRARY.compile(source).map_err(refuse)
        };
        let source = text("rule").ok_or_else(|| FieldError::required(format!("{path}.rule")))?;
        let program = compile(&source, "rule")?;
        let message_expression = text("messageExpression");
        Ok(Self {
            transition: program.references().has_variable("oldSelf"),
            program,
            message: text("message"),
            message_expression: message_expression.map(|m| compile(&m, "messageExpression")).transpose()?,
            reason: match rule["reason"].as_str() {
                Some("FieldValueForbidden") => "FieldValueForbidden",
                Some("FieldValueRequired") => "FieldValueRequired",
                Some("FieldValueDuplicate") => "FieldValueDuplicate",
                _ => "FieldValueInvalid",
            },
            field: text("fieldPath").unwrap_or_default().trim_start_matches('.').to_owned(),
            text: source,
        })
    }

    /// Asks the rule about a value that fits `schema`.
    pub fn check(&self, schema: &Schema, value: &Value, old: Option<&Value>, path: &str) -> Option<FieldError> {
        if self.transition && old.is_none() {
            return None;
        }
        let mut context = Context::with_env(LIBRARY.clone());
        context.add_variable_from_value("self", to_cel(schema, value));
        if let Some(old) = old {
            context.add_variable_from_value("oldSelf", to_cel(schema, old));
        }
        let refuse = |detail: String| {
            let at = if self.field.is_empty() { path.to_owned() } else { join(path, &self.field) };
            let shown = match value {
                Value::Object(_) => "\"object\"".to_owned(),
                Value::Array(_) => "\"array\"".to_owned(),
                other => other.to_string(),
            };
            let message = match self.reason {
                "FieldValueForbidden" => format!("Forbidden: {detail}"),
                "FieldValueRequired" => format!("Required value: {detail}"),
                "FieldValueDuplicate" => format!("Duplicate value: {shown}: {detail}"),
                _ => format!("Invalid value: {shown}: {detail}"),
            };
            Some(FieldError { path: at, message, reason: self.reason })
        };
        match self.program.execute(&context) {
            Ok(Cel::Bool(true)) => None,
            Ok(Cel::Bool(false)) => {
                let made = self.message_expression.as_ref().and_then(|program| match program.execute(&context) {
                    Ok(Cel::String(text)) => Some(text.to_string()),
                    _ => None,
                });
                let rule = || format!("failed rule: {}", self.text);
                refuse(made.or_else(|| self.message.clone()).unwrap_or_else(rule))
            }
            Ok(_) => refuse(format!("rule {:?} does not give a boolean", self.text)),
            Err(e) => refuse(format!("rule {:?} cannot be evaluated: {e}", self.text)),
        }
    }
}

/// A value as it is, without a schema.
pub fn plain(value: &Value) -> Cel {
    to_cel(&Schema::default(), value)
}

/// A value as rules see it. The schema decides between integers and floating-point numbers, and which keys are
/// names of fields.
fn to_cel(schema: &Schema, value: &Value) -> Cel {
    static ANY: LazyLock<Schema> = LazyLock::new(Schema::default);
    match value {
        Value::Null => Cel::Null,
        Value::Bool(value) => Cel::Bool(*value),
        Value::String(text) => Cel::String(Arc::new(text.clone())),
        Value::Number(number) if schema.type_name == "number" => Cel::Float(number.as_f64().unwrap_or_default()),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => Cel::Int(whole),
            (None, Some(real)) if schema.type_name == "integer" => Cel::Int(real as i64),
            (None, real) => Cel::Float(real.unwrap_or_default()),
        },
        Value::Array(list) => {
            let items = schema.items.as_deref().unwrap_or(&ANY);
            Cel::List(Arc::new(list.iter().map(|value| to_cel(items, value)).collect()))
        }
        Value::Object(map) => {
            let entries = map.iter().map(|(name, value)| {
                let field = schema.properties.get(name);
                let below = field.or(schema.additional.as_deref()).unwrap_or(&ANY);
                let name = if field.is_some() { escape(name) } else { name.clone() };
                (Key::String(Arc::new(name)), to_cel(below, value))
            });
            Cel::Map(Map { map: Arc::new(entries.collect::<HashMap<_, _>>()) })
        }
    }
}

/// The name under which a rule finds a field whose own name is no identifier.
fn escape(name: &str) -> String {
    const RESERVED: &[&str] = &[
        "true",
        "false",
        "null",
        "in",
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ];
    if RESERVED.contains(&name) {
        return format!("__{name}__");
    }
    name.replace("__", "__underscores__").replace('.', "__dot__").replace('-', "__dash__").replace('/', "__slash__")
}
