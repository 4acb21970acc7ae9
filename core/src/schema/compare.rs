use serde_json::{Value, json};

/// How closely two schemas are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Whether values are kept: fields, types, the values of enums.
    Fields,
    /// Also whether all is accepted that we write, and guarded as we guard it: bounds, defaults, rules.
    Everything,
}

/// What one schema lacks of another, collected on a walk over both.
pub(super) struct Comparison {
    look: Look,
    found: Vec<String>,
}

/// Bounds that a value must not exceed, and bounds that it must reach.
const UPPER: [&str; 4] = ["maximum", "maxLength", "maxItems", "maxProperties"];
const LOWER: [&str; 4] = ["minimum", "minLength", "minItems", "minProperties"];

impl Comparison {
    pub(super) fn new(look: Look) -> Self {
        Self { look, found: Vec::new() }
    }

    /// What `theirs` lacks of `ours`, by path.
    pub(super) fn of(mut self, ours: &Value, theirs: &Value) -> Vec<String> {
        self.walk(ours, theirs, "");
        self.found
    }

    fn walk(&mut self, ours: &Value, theirs: &Value, path: &str) {
        let (wanted, found) = (text(ours, "type"), text(theirs, "type"));
        let either = theirs["x-kubernetes-int-or-string"] == true && ["integer", "string"].contains(&wanted);
        let takes = found.is_empty() || found == wanted || either || (wanted, found) == ("integer", "number");
        if !takes {
            self.found.push(format!("{} is of type {found}, not {wanted}", shown(path)));
            return;
        }
        self.values(ours, theirs, path);
        if self.look == Look::Everything {
            self.bounds(ours, theirs, path);
            self.rules(ours, theirs, path);
            self.demands(ours, theirs, path);
        }
        for (name, property) in ours["properties"].as_object().into_iter().flatten() {
            // The envelope is no CRD's to describe.
            if path.is_empty() && ["apiVersion", "kind", "metadata"].contains(&name.as_str()) {
                continue;
            }
            let at = join(path, name);
            match field(theirs, name) {
                Some(theirs) => self.walk(property, theirs, &at),
                None if !keeps_all(theirs) => self.found.push(format!("{at} is missing")),
                // What is kept unseen is not checked either.
                None => self.walk(property, &anything(), &at),
            }
        }
        if ours["additionalProperties"].is_object() {
            match &theirs["additionalProperties"] {
                map @ Value::Object(_) => self.walk(&ours["additionalProperties"], map, &join(path, "*")),
                _ if keeps_all(theirs) => self.walk(&ours["additionalProperties"], &anything(), &join(path, "*")),
                _ => self.found.push(format!("{} is missing", join(path, "*"))),
            }
        }
        if ours["items"].is_object() && theirs["items"].is_object() {
            self.walk(&ours["items"], &theirs["items"], &format!("{path}[]"));
        }
    }

    fn values(&mut self, ours: &Value, theirs: &Value, path: &str) {
        let list = |schema: &Value| schema["enum"].as_array().cloned().unwrap_or_default();
        let (ours_values, theirs_values) = (list(ours), list(theirs));
        if !theirs_values.is_empty() {
            let lacking = ours_values.iter().filter(|value| !value.is_null() && !theirs_values.contains(value));
            self.found.extend(lacking.map(|value| format!("{} may not be {value}", shown(path))));
        }
        self.default(ours, theirs, path);
    }

    /// The default of an enum is what its absence means, and by its absence a reader sees that the schema is another's.
    fn default(&mut self, ours: &Value, theirs: &Value, path: &str) {
        let matters = self.look == Look::Everything && ours["enum"].is_array();
        if matters && !ours["default"].is_null() && ours["default"] != theirs["default"] {
            self.found.push(format!("{} does not default to {}", shown(path), ours["default"]));
        }
    }

    fn bounds(&mut self, ours: &Value, theirs: &Value, path: &str) {
        let number = |schema: &Value, name: &str| schema[name].as_f64();
        let upper = UPPER.iter().map(|name| (name, f64::INFINITY, 1.0));
        // We never write a number below zero.
        let lower = LOWER.iter().map(|name| (name, 0.0, -1.0));
        for (name, none, sign) in upper.chain(lower) {
            let Some(bound) = number(theirs, name) else { continue };
            if bound * sign < number(ours, name).unwrap_or(none) * sign {
                self.found.push(format!("{} has the {name} {bound}", shown(path)));
            }
        }
        // What is larger than ours cannot be read. A number that is not named at all is not looked at.
        if ["integer", "number"].contains(&text(theirs, "type"))
            && let Some(most) = number(ours, "maximum")
            && number(theirs, "maximum").is_none_or(|bound| bound > most)
        {
            self.found.push(format!("{} may be larger than {most}", shown(path)));
        }
    }

    fn rules(&mut self, ours: &Value, theirs: &Value, path: &str) {
        let all = |schema: &Value| {
            let rules = schema["x-kubernetes-validations"].as_array().cloned().unwrap_or_default();
            rules.iter().map(|rule| text(rule, "rule").trim().to_owned()).collect::<Vec<_>>()
        };
        let known = all(theirs);
        for rule in all(ours).into_iter().filter(|rule| !known.contains(rule)) {
            self.found.push(format!("{} has no rule `{rule}`", shown(path)));
        }
    }

    /// A field that we do not know is one that we never write. An object without its spec is one that nobody can read.
    fn demands(&mut self, ours: &Value, theirs: &Value, path: &str) {
        let names = |schema: &Value| schema["required"].as_array().cloned().unwrap_or_default();
        let known = names(theirs);
        for name in names(ours).iter().filter(|name| path.is_empty() && !known.contains(name)).filter_map(Value::as_str)
        {
            self.found.push(format!("{} is not required", join(path, name)));
        }
        for name in theirs["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let envelope = path.is_empty() && ["apiVersion", "kind", "metadata"].contains(&name);
            if ours["properties"].get(name).is_none() && !ours["additionalProperties"].is_object() && !envelope {
                self.found.push(format!("{} is required", join(path, name)));
            }
        }
    }
}

fn field<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    schema["properties"].get(name).or_else(|| schema.get("additionalProperties").filter(|value| value.is_object()))
}

/// Fields that the schema does not name are not dropped.
fn keeps_all(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true || schema["additionalProperties"] == true
}

/// The schema of what is kept without a look at it.
fn anything() -> Value {
    json!({"x-kubernetes-preserve-unknown-fields": true})
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn shown(path: &str) -> &str {
    if path.is_empty() { "the object" } else { path }
}
