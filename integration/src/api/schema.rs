//! Structural schemas: pruning, defaults and validation.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;
use serde_json::{Map, Value};

use super::bounds::{Bounds, shorthand};
use super::cel::Rule;
use super::status::FieldError;

/// A compiled OpenAPI v3 schema as CRDs use it.
#[derive(Debug, Default)]
pub struct Schema {
    /// `object`, `array`, `string`, `integer`, `number`, `boolean`, or nothing for any.
    pub(super) type_name: String,
    pub(super) properties: BTreeMap<String, Schema>,
    pub(super) additional: Option<Box<Schema>>,
    pub(super) items: Option<Box<Schema>>,
    pub(super) int_or_string: bool,
    pub(super) list: ListType,
    pub(super) atomic: bool,
    any_additional: bool,
    preserve: bool,
    embedded: bool,
    nullable: bool,
    required: Vec<String>,
    default: Option<Value>,
    allowed: Vec<Value>,
    bounds: Bounds,
    pattern: Option<Regex>,
    all_of: Vec<Schema>,
    any_of: Vec<Schema>,
    one_of: Vec<Schema>,
    not: Option<Box<Schema>>,
    rules: Vec<Rule>,
}

/// How the entries of a list are told apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListType {
    /// Not at all.
    #[default]
    Atomic,
    /// By their values.
    Set,
    /// By the values of these fields.
    Map(Vec<String>),
}

impl Schema {
    /// Compiles the schema at `path` of a CRD.
    ///
    /// # Errors
    /// Rules and patterns that cannot be compiled.
    pub fn compile(schema: &Value, path: &str) -> Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        let compiled = Self::build(schema, path, &mut errors);
        if errors.is_empty() { Ok(compiled) } else { Err(errors) }
    }

    fn build(schema: &Value, path: &str, errors: &mut Vec<FieldError>) -> Self {
        let child = |name: &str, value: &Value, errors: &mut Vec<FieldError>| {
            Self::build(value, &format!("{path}.{name}"), errors)
        };
        let text = |name: &str| schema[name].as_str().unwrap_or_default().to_owned();
        let texts = |name: &str| {
            let list = schema[name].as_array().into_iter().flatten();
            list.filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
        };
        let flag = |name: &str| schema[name] == true;
        let many = |name: &str, errors: &mut Vec<FieldError>| {
            let list = schema[name].as_array().into_iter().flatten();
            list.enumerate().map(|(at, value)| child(&format!("{name}[{at}]"), value, errors)).collect::<Vec<_>>()
        };
        let (all_of, any_of) = (many("allOf", errors), many("anyOf", errors));
        let one_of = many("oneOf", errors);
        let not = schema.get("not").map(|value| Box::new(child("not", value, errors)));
        let properties = schema["properties"].as_object().into_iter().flatten();
        let properties = properties
            .map(|(name, value)| (name.clone(), child(&format!("properties[{name}]"), value, errors)))
            .collect();
        let additional = schema.get("additionalProperties").filter(|value| value.is_object());
        let additional = additional.map(|value| Box::new(child("additionalProperties", value, errors)));
        let items = schema.get("items").map(|value| Box::new(child("items", value, errors)));
        let pattern = schema["pattern"].as_str().and_then(|pattern| {
            Regex::new(pattern)
                .map_err(|e| errors.push(FieldError::invalid(format!("{path}.pattern"), format!("{pattern:?}"), e)))
                .ok()
        });
        let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten().enumerate();
        let rules = rules
            .filter_map(|(at, rule)| {
                let at = format!("{path}.x-kubernetes-validations[{at}]");
                Rule::compile(rule, &at).map_err(|e| errors.push(e)).ok()
            })
            .collect();
        Self {
            type_name: text("type"),
            properties,
            additional,
            items,
            int_or_string: flag("x-kubernetes-int-or-string"),
            list: match text("x-kubernetes-list-type").as_str() {
                "set" => ListType::Set,
                "map" => ListType::Map(texts("x-kubernetes-list-map-keys")),
                _ => ListType::Atomic,
            },
            atomic: text("x-kubernetes-map-type") == "atomic",
            any_additional: schema["additionalProperties"] == true,
            preserve: flag("x-kubernetes-preserve-unknown-fields"),
            embedded: flag("x-kubernetes-embedded-resource"),
            nullable: flag("nullable"),
            required: texts("required"),
            default: schema.get("default").cloned(),
            allowed: schema["enum"].as_array().cloned().unwrap_or_default(),
            bounds: Bounds::read(schema),
            pattern,
            all_of,
            any_of,
            one_of,
            not,
            rules,
        }
    }

    /// Takes out what the schema does not know and tells where it was.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        let mut unknown = Vec::new();
        // The envelope is known whatever the schema says, and its metadata is not the CRD's to describe.
        let envelope = ["apiVersion", "kind", "metadata"];
        let kept = envelope.map(|field| object.as_object_mut().and_then(|map| map.remove(field)));
        self.prune_below(object, "", &mut unknown);
        for (field, value) in envelope.iter().zip(kept) {
            if let (Some(map), Some(value)) = (object.as_object_mut(), value) {
                map.insert((*field).to_owned(), value);
            }
        }
        unknown
    }

    fn prune_below(&self, value: &mut Value, path: &str, unknown: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                map.retain(|name, value| {
                    let at = join(path, name);
                    if let Some(schema) = self.properties.get(name).or(self.additional.as_deref()) {
                        schema.prune_below(value, &at, unknown);
                        return true;
                    }
                    let envelope = self.embedded && matches!(name.as_str(), "apiVersion" | "kind" | "metadata");
                    let kept = self.preserve || self.any_additional || envelope;
                    if !kept {
                        unknown.push(at);
                    }
                    kept
                });
            }
            Value::Array(list) => {
                if let Some(items) = &self.items {
                    for (at, value) in list.iter_mut().enumerate() {
                        items.prune_below(value, &format!("{path}[{at}]"), unknown);
                    }
                }
            }
            _ => {}
        }
    }

    /// Fills in defaults. A null that may not be null counts as absent where there is a default.
    pub fn apply_defaults(&self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                for (name, schema) in &self.properties {
                    if let Some(default) = &schema.default
                        && map.get(name).is_none_or(|value| value.is_null() && !schema.nullable)
                    {
                        map.insert(name.clone(), default.clone());
                    }
                    if let Some(value) = map.get_mut(name) {
                        schema.apply_defaults(value);
                    }
                }
                if let Some(additional) = &self.additional {
                    let others = map.iter_mut().filter(|(name, _)| !self.properties.contains_key(*name));
                    others.for_each(|(_, value)| additional.apply_defaults(value));
                }
            }
            Value::Array(list) => {
                if let Some(items) = &self.items {
                    list.iter_mut().for_each(|value| items.apply_defaults(value));
                }
            }
            _ => {}
        }
    }

    /// Validates an object, with `old` as what it replaces. Rules are only asked about objects of the right shape.
    pub fn check(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = Vec::new();
        self.check_shape(object, "", &mut errors);
        if errors.is_empty() {
            self.check_rules(object, old, "", &mut errors);
        }
        errors
    }

    fn check_shape(&self, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
        if value.is_null() && self.nullable {
            return;
        }
        if !self.has_type(value) {
            let expected = if self.int_or_string { "integer or string" } else { &self.type_name };
            errors.push(FieldError::wrong_type(path, type_of(value), expected));
            return;
        }
        if !self.allowed.is_empty() && !self.allowed.contains(value) {
            let supported = self.allowed.iter().map(ToString::to_string).collect::<Vec<_>>();
            errors.push(FieldError::unsupported(path, value, &supported));
        }
        self.bounds.check(value, path, errors);
        match value {
            Value::String(text) => {
                if let Some(pattern) = self.pattern.as_ref().filter(|pattern| !pattern.is_match(text)) {
                    let detail = format!("{path} in body should match '{pattern}'");
                    errors.push(FieldError::invalid(path, value, detail));
                }
            }
            Value::Object(map) => self.check_object(map, path, errors),
            Value::Array(list) => self.check_list(list, path, errors),
            _ => {}
        }
        self.check_junctors(value, path, errors);
    }

    fn has_type(&self, value: &Value) -> bool {
        if self.int_or_string {
            return value.is_string() || is_integer(value);
        }
        match self.type_name.as_str() {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => is_integer(value),
            "number" => value.is_number(),
            _ => true,
        }
    }

    fn check_object(&self, map: &Map<String, Value>, path: &str, errors: &mut Vec<FieldError>) {
        for name in self.required.iter().filter(|name| !map.contains_key(*name)) {
            errors.push(FieldError::required(join(path, name)));
        }
        for (name, value) in map {
            let at = || if self.properties.contains_key(name) { join(path, name) } else { format!("{path}[{name}]") };
            if let Some(schema) = self.properties.get(name).or(self.additional.as_deref()) {
                schema.check_shape(value, &at(), errors);
            }
        }
    }

    fn check_list(&self, list: &[Value], path: &str, errors: &mut Vec<FieldError>) {
        if let Some(items) = &self.items {
            for (at, value) in list.iter().enumerate() {
                items.check_shape(value, &format!("{path}[{at}]"), errors);
            }
        }
        let mut seen = BTreeSet::new();
        for (at, value) in list.iter().enumerate() {
            let identity = match &self.list {
                ListType::Atomic => return,
                ListType::Set => value.clone(),
                ListType::Map(keys) => keys.iter().map(|k| (k.clone(), value[k].clone())).collect::<Map<_, _>>().into(),
            };
            if !seen.insert(identity.to_string()) {
                errors.push(FieldError::duplicate(format!("{path}[{at}]"), identity));
            }
        }
    }

    fn check_junctors(&self, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
        let fits = |schema: &Self| {
            let mut found = Vec::new();
            schema.check_shape(value, path, &mut found);
            found.is_empty()
        };
        for schema in &self.all_of {
            schema.check_shape(value, path, errors);
        }
        if !self.any_of.is_empty() && !self.any_of.iter().any(fits) {
            let detail = format!("{path} in body must validate at least one schema (anyOf)");
            errors.push(FieldError::invalid(path, shorthand(value), detail));
        }
        if !self.one_of.is_empty() && self.one_of.iter().filter(|schema| fits(schema)).count() != 1 {
            let detail = format!("{path} in body must validate one and only one schema (oneOf)");
            errors.push(FieldError::invalid(path, shorthand(value), detail));
        }
        if self.not.as_deref().is_some_and(fits) {
            let detail = format!("{path} in body must not validate the schema (not)");
            errors.push(FieldError::invalid(path, shorthand(value), detail));
        }
    }

    fn check_rules(&self, value: &Value, old: Option<&Value>, path: &str, errors: &mut Vec<FieldError>) {
        for rule in &self.rules {
            errors.extend(rule.check(self, value, old, path));
        }
        match value {
            Value::Object(map) => {
                for (name, value) in map {
                    if let Some(schema) = self.properties.get(name).or(self.additional.as_deref()) {
                        let old = old.and_then(|old| old.get(name));
                        schema.check_rules(value, old, &join(path, name), errors);
                    }
                }
            }
            Value::Array(list) => {
                let Some(items) = &self.items else { return };
                for (at, value) in list.iter().enumerate() {
                    items.check_rules(value, self.same_entry(value, old), &format!("{path}[{at}]"), errors);
                }
            }
            _ => {}
        }
    }

    /// The entry of the old list that a new one replaces: only map lists have such.
    fn same_entry<'a>(&self, entry: &Value, old: Option<&'a Value>) -> Option<&'a Value> {
        let ListType::Map(keys) = &self.list else { return None };
        old?.as_array()?.iter().find(|old| keys.iter().all(|key| old.get(key) == entry.get(key)))
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) if is_integer(value) => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_integer(value: &Value) -> bool {
    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
}

/// A field below a path.
pub fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn compiled(schema: Value) -> Schema {
        Schema::compile(&json!({"type": "object", "properties": {"spec": schema}}), "schema").unwrap()
    }

    fn messages(schema: &Schema, spec: Value, old: Option<Value>) -> Vec<String> {
        let old = old.map(|old| json!({"spec": old}));
        schema.check(&json!({"spec": spec}), old.as_ref()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn shapes_are_refused_in_the_words_of_the_api_server() {
        let schema = compiled(json!({
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "maxLength": 3, "pattern": "^a"},
                "count": {"type": "integer", "minimum": 1, "maximum": 4},
                "mode": {"type": "string", "enum": ["A", "B"]},
                "ports": {"type": "array", "items": {"x-kubernetes-int-or-string": true}},
                "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
                "any": {"type": "object", "additionalProperties": {"type": "boolean"}},
            },
        }));
        assert_eq!(messages(&schema, json!({"name": "abc", "ports": [1, "http"], "any": {"x": true}}), None), [""; 0]);
        assert_eq!(
            messages(
                &schema,
                json!({"count": 9, "mode": "C", "ports": [1.5], "set": ["x", "x"], "any": {"x": 1}}),
                None
            ),
            [
                "spec.name: Required value",
                "spec.any[x]: Invalid value: \"integer\": spec.any[x] in body must be of type boolean: \"integer\"",
                "spec.count: Invalid value: 9: spec.count in body should be less than or equal to 4",
                "spec.mode: Unsupported value: \"C\": supported values: \"A\", \"B\"",
                "spec.ports[0]: Invalid value: \"number\": spec.ports[0] in body must be of type integer or string: \
                 \"number\"",
                "spec.set[1]: Duplicate value: \"x\"",
            ]
        );
        assert_eq!(
            messages(&schema, json!({"name": "bcde"}), None),
            [
                "spec.name: Too long: may not be more than 3 chars long",
                "spec.name: Invalid value: \"bcde\": spec.name in body should match '^a'",
            ]
        );
    }

    #[test]
    fn unknown_fields_go_and_defaults_come_also_into_defaults() {
        let schema = compiled(json!({
            "type": "object",
            "properties": {
                "inner": {
                    "type": "object",
                    "default": {},
                    "properties": {"a": {"type": "integer", "default": 1}, "b": {"type": "string"}},
                },
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            },
        }));
        let mut object = json!({"kind": "K", "metadata": {"x": 1}, "spec": {"odd": 1, "free": {"y": 2}}});
        assert_eq!(schema.prune(&mut object), ["spec.odd"]);
        schema.apply_defaults(&mut object);
        assert_eq!(object, json!({"kind": "K", "metadata": {"x": 1}, "spec": {"inner": {"a": 1}, "free": {"y": 2}}}));
    }

    #[test]
    fn rules_see_what_is_and_what_was() {
        let schema = compiled(json!({
            "type": "object",
            "properties": {
                "size": {"type": "integer", "x-kubernetes-validations": [
                    {"rule": "self >= oldSelf", "messageExpression": "'must not fall below ' + string(oldSelf)"},
                ]},
                "list": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["id"],
                    "items": {"type": "object", "properties": {"id": {"type": "string"}, "v": {"type": "number"}},
                        "x-kubernetes-validations": [{"rule": "self.v == oldSelf.v", "message": "fixed",
                            "reason": "FieldValueForbidden", "fieldPath": ".v"}]},
                },
                "my-field": {"type": "string"},
            },
            "x-kubernetes-validations": [
                {"rule": "!has(self.my__dash__field) || self.my__dash__field.startsWith('x')"},
                {"rule": "!has(self.list) || self.list.all(e, e.v < 2.5)"},
            ],
        }));
        let was = json!({"size": 3, "list": [{"id": "a", "v": 1}]});
        assert_eq!(messages(&schema, was.clone(), None), [""; 0]);
        assert_eq!(messages(&schema, was.clone(), Some(was.clone())), [""; 0]);
        let now = json!({"size": 2, "list": [{"id": "b", "v": 9}, {"id": "a", "v": 2}], "my-field": "y"});
        assert_eq!(
            messages(&schema, now, Some(was)),
            [
                "spec: Invalid value: \"object\": failed rule: \
                 !has(self.my__dash__field) || self.my__dash__field.startsWith('x')",
                "spec: Invalid value: \"object\": failed rule: !has(self.list) || self.list.all(e, e.v < 2.5)",
                "spec.list[1].v: Forbidden: fixed",
                "spec.size: Invalid value: 2: must not fall below 3",
            ]
        );
    }

    #[test]
    fn a_rule_that_cannot_be_read_is_an_error_of_the_crd() {
        let schema = json!({"type": "object", "x-kubernetes-validations": [{"rule": "self."}]});
        let errors = Schema::compile(&schema, "schema").unwrap_err();
        assert_eq!(errors[0].path, "schema.x-kubernetes-validations[0].rule");
    }
}
