//! `ValidatingAdmissionPolicy`: those that a binding puts in force, without parameters and selectors of namespaces.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cel::objects::{Key as CelKey, Map};
use cel::{Context, Program, Value as Cel};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;
use serde_json::{Value, json};

use super::cel::{LIBRARY, plain};
use super::convert;
use super::resource::{GroupResource, Resource};
use super::selector::Filter;
use super::status::{self, Outcome};
use super::store::{Key, Store};
use super::user::User;
use crate::labels::selector_matches;

/// Compiled policies, by their names; each with the resourceVersion that it was compiled of.
#[derive(Default)]
pub struct Policies(HashMap<String, (String, Arc<Policy>)>);

/// A write that policies are asked about.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// `CREATE`, `UPDATE` or `DELETE`.
    pub operation: &'static str,
    /// The kind.
    pub resource: &'a Resource,
    /// The part of the object that is written, if not the whole.
    pub subresource: Option<&'a str>,
    /// Who writes.
    pub user: &'a User,
    /// The object as it would be; none in a deletion.
    pub object: Option<&'a Value>,
    /// The object as it is; none in a creation.
    pub old: Option<&'a Value>,
}

struct Expression {
    text: String,
    program: Program,
}

struct Policy {
    fails: bool,
    rules: Vec<Value>,
    /// What the object is, before or after.
    selector: LabelSelector,
    conditions: Vec<Expression>,
    variables: Vec<(String, Expression)>,
    validations: Vec<(Expression, Option<String>, Option<Expression>)>,
}

impl Store {
    /// Asks every policy that is in force.
    ///
    /// # Errors
    /// What the first that denies the write says of it.
    pub fn review(&mut self, asked: Asked<'_>) -> Outcome<()> {
        let group = |plural: &str| GroupResource::new("admissionregistration.k8s.io", plural);
        let bindings = self.list(&group("validatingadmissionpolicybindings"), &Filter::default(), None, 0).items;
        for binding in bindings {
            let spec = &binding.value["spec"];
            let denies = spec["validationActions"].as_array().is_some_and(|actions| actions.contains(&json!("Deny")));
            let name = spec["policyName"].as_str().unwrap_or_default().to_owned();
            let found =
                self.get(&group("validatingadmissionpolicies"), &Key { namespace: String::new(), name: name.clone() });
            let Some(found) = found.filter(|_| denies) else { continue };
            let version = found.value["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
            let policy = match self.policies.0.get(&name) {
                Some((known, policy)) if *known == version => policy.clone(),
                _ => {
                    let policy = Arc::new(Policy::compile(&found.value).map_err(status::bad_request)?);
                    self.policies.0.insert(name.clone(), (version, policy.clone()));
                    policy
                }
            };
            if let Err(why) = policy.judge(asked) {
                let object = asked.object.or(asked.old).unwrap_or(&Value::Null);
                let (of, binding) = (&object["metadata"]["name"], &binding.value["metadata"]["name"]);
                let id = &asked.resource.id;
                let message = format!(
                    "{}.{} {of} is forbidden: ValidatingAdmissionPolicy '{name}' with binding {binding} denied request: {why}",
                    id.plural, id.group
                );
                return Err(status::failure(422, "Invalid", message));
            }
        }
        Ok(())
    }
}

impl Policy {
    /// Compiles a policy.
    ///
    /// # Errors
    /// The expression that is wrong, and how.
    fn compile(object: &Value) -> Result<Self, String> {
        let spec = &object["spec"];
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let condition = |condition: &Value| Expression::compile(&condition["expression"]);
        let named = |variable: &Value| {
            let name = variable["name"].as_str().unwrap_or_default().to_owned();
            Ok((name, Expression::compile(&variable["expression"])?))
        };
        let validation = |validation: &Value| {
            let message = validation["message"].as_str().map(str::to_owned);
            let made = &validation["messageExpression"];
            let made = if made.is_null() { None } else { Some(Expression::compile(made)?) };
            Ok((Expression::compile(&validation["expression"])?, message, made))
        };
        Ok(Self {
            fails: spec["failurePolicy"] != "Ignore",
            rules: list(&spec["matchConstraints"]["resourceRules"]),
            selector: Option::deserialize(&spec["matchConstraints"]["objectSelector"])
                .map_err(|error| format!("the objectSelector cannot be read: {error}"))?
                .unwrap_or_default(),
            conditions: list(&spec["matchConditions"]).iter().map(condition).collect::<Result<_, String>>()?,
            variables: list(&spec["variables"]).iter().map(named).collect::<Result<_, String>>()?,
            validations: list(&spec["validations"]).iter().map(validation).collect::<Result<_, String>>()?,
        })
    }

    /// Whether the write may be.
    ///
    /// # Errors
    /// Why not.
    fn judge(&self, asked: Asked<'_>) -> Result<(), String> {
        let selected = |object: &Value| selector_matches(&self.selector, labels(object).as_ref());
        let is_meant = self.rules.iter().any(|rule| matches(rule, asked));
        if !is_meant || !asked.object.into_iter().chain(asked.old).any(selected) {
            return Ok(());
        }
        let mut context = Context::with_env(LIBRARY.clone());
        context.add_variable_from_value("request", plain(&request(asked)));
        let shown =
            |object: Option<&Value>| object.map_or(Value::Null, |object| convert::to_shown(asked.resource, object));
        context.add_variable_from_value("object", plain(&shown(asked.object)));
        context.add_variable_from_value("oldObject", plain(&shown(asked.old)));
        for condition in &self.conditions {
            match condition.is_true(&context) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(_) if !self.fails => return Ok(()),
                Err(why) => return Err(why),
            }
        }
        let mut variables = HashMap::new();
        let given = |variables: &HashMap<CelKey, Cel>| Cel::Map(Map { map: Arc::new(variables.clone()) });
        context.add_variable_from_value("variables", given(&variables));
        for (name, expression) in &self.variables {
            // One that cannot be had is missed where it is used, as by the lazy evaluation of the real server.
            if let Ok(value) = expression.program.execute(&context) {
                variables.insert(CelKey::String(Arc::new(name.clone())), value);
                context.add_variable_from_value("variables", given(&variables));
            }
        }
        for (expression, message, made) in &self.validations {
            match expression.is_true(&context) {
                Ok(true) => {}
                Err(_) if !self.fails => {}
                Err(why) => return Err(why),
                Ok(false) => {
                    let made = made.as_ref().and_then(|made| match made.program.execute(&context) {
                        Ok(Cel::String(text)) => Some(text.to_string()),
                        _ => None,
                    });
                    let failed = || format!("failed expression: {}", expression.text);
                    return Err(made.or_else(|| message.clone()).unwrap_or_else(failed));
                }
            }
        }
        Ok(())
    }
}

impl Expression {
    fn compile(text: &Value) -> Result<Self, String> {
        let text = text.as_str().ok_or("an expression is missing")?.trim().to_owned();
        let program = LIBRARY.compile(&text).map_err(|error| format!("expression {text:?}: {error}"))?;
        Ok(Self { text, program })
    }

    fn is_true(&self, context: &Context<'_, '_>) -> Result<bool, String> {
        match self.program.execute(context) {
            Ok(Cel::Bool(value)) => Ok(value),
            Ok(_) => Err(format!("expression {:?} does not give a boolean", self.text)),
            Err(error) => Err(format!("expression {:?} resulted in error: {error}", self.text)),
        }
    }
}

fn request(asked: Asked<'_>) -> Value {
    let object = asked.object.or(asked.old).unwrap_or(&Value::Null);
    let mut user = json!({"username": asked.user.username, "uid": asked.user.uid, "groups": asked.user.groups});
    if !asked.user.extra.is_empty() {
        user["extra"] = json!(asked.user.extra);
    }
    let id = &asked.resource.id;
    json!({
        "operation": asked.operation,
        "name": object["metadata"]["name"],
        "namespace": object["metadata"]["namespace"],
        "resource": {"group": id.group, "version": asked.resource.version, "resource": id.plural},
        "subResource": asked.subresource.unwrap_or_default(),
        "userInfo": user,
    })
}

fn labels(object: &Value) -> Option<BTreeMap<String, String>> {
    Option::deserialize(&object["metadata"]["labels"]).ok().flatten()
}

fn matches(rule: &Value, asked: Asked<'_>) -> bool {
    let has = |field: &str, wanted: &str| {
        rule[field].as_array().is_some_and(|list| list.iter().any(|word| word == "*" || word == wanted))
    };
    let id = &asked.resource.id;
    let path = asked.subresource.map_or_else(|| id.plural.clone(), |part| format!("{}/{part}", id.plural));
    has("apiGroups", &id.group)
        && has("apiVersions", &asked.resource.version)
        && has("operations", asked.operation)
        && has("resources", &path)
}
