//! Label and field selectors.

use serde_json::Value;

use super::resource::Resource;
use super::status::{Outcome, bad_request};

/// Which objects of a collection are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only those of this namespace.
    pub namespace: Option<String>,
    labels: Vec<Requirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    Greater(i64),
    Less(i64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldRequirement {
    field: String,
    value: String,
    equal: bool,
}

impl Filter {
    /// Reads the selectors of a request for `resource`.
    pub fn parse(
        resource: &Resource,
        namespace: Option<&str>,
        labels: Option<&str>,
        fields: Option<&str>,
    ) -> Outcome<Self> {
        let labels = parse_labels(labels.unwrap_or_default())
            .map_err(|why| bad_request(format!("unable to parse requirement: {why}")))?;
        let mut fields = parse_fields(fields.unwrap_or_default()).map_err(bad_request)?;
        for requirement in &mut fields {
            let field = &requirement.field;
            let known = matches!(field.as_str(), "metadata.name" | "metadata.namespace")
                || resource.selectable.iter().any(|known| known == field);
            if !known {
                let (version, kind) = (resource.api_version(), &resource.kind);
                return Err(bad_request(format!(
                    "Unable to find {version:?} {kind:?} that match field selector: field label not supported: {field}"
                )));
            }
            requirement.field = super::convert::stored_field(resource, field);
        }
        Ok(Self { namespace: namespace.map(str::to_owned), labels, fields })
    }

    /// Only the object of this name.
    pub fn named(mut self, name: &str) -> Self {
        self.fields.push(FieldRequirement { field: "metadata.name".to_owned(), value: name.to_owned(), equal: true });
        self
    }

    /// Whether an object is meant.
    pub fn matches(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        self.namespace.as_deref().is_none_or(|namespace| metadata["namespace"] == namespace)
            && self.labels.iter().all(|requirement| requirement.matches(&metadata["labels"]))
            && self.fields.iter().all(|r| (field_text(object, &r.field) == r.value) == r.equal)
    }

    /// A field and the one value it must have: what watchers are indexed by.
    pub fn index(&self) -> Option<(&str, &str)> {
        let by = |name: &str| self.fields.iter().find(|r| r.equal && r.field == name);
        let found = by("metadata.name").or_else(|| self.fields.iter().find(|r| r.equal && !r.value.is_empty()))?;
        Some((&found.field, &found.value))
    }

    /// The name of the only object that can match, if the fields say so.
    pub fn name(&self) -> Option<&str> {
        self.fields.iter().find(|r| r.equal && r.field == "metadata.name").map(|r| r.value.as_str())
    }
}

impl Requirement {
    fn matches(&self, labels: &Value) -> bool {
        let value = labels.get(&self.key).and_then(Value::as_str);
        let number = || value.and_then(|text| text.parse::<i64>().ok());
        match &self.test {
            Test::In(values) => value.is_some_and(|value| values.iter().any(|v| v == value)),
            Test::NotIn(values) => value.is_none_or(|value| values.iter().all(|v| v != value)),
            Test::Exists => value.is_some(),
            Test::Absent => value.is_none(),
            Test::Greater(than) => number().is_some_and(|n| n > *than),
            Test::Less(than) => number().is_some_and(|n| n < *than),
        }
    }
}

/// A field as selectors compare it: absent is empty.
pub fn field_text(object: &Value, path: &str) -> String {
    let found = path.split('.').try_fold(object, |value, part| value.get(part));
    match found {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        // `source` of an Event selects by its component.
        Some(Value::Object(map)) => map.get("component").and_then(Value::as_str).unwrap_or_default().to_owned(),
        Some(other) => other.to_string(),
    }
}

fn parse_labels(text: &str) -> Result<Vec<Requirement>, String> {
    let mut requirements = Vec::new();
    for part in split_outside_parentheses(text) {
        let part = part.trim();
        if !part.is_empty() {
            requirements.push(parse_label(part)?);
        }
    }
    Ok(requirements)
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_u32, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn parse_label(part: &str) -> Result<Requirement, String> {
    let requirement = |key: &str, test| {
        let key = key.trim();
        if key.is_empty() || key.contains(|c: char| c.is_whitespace() || "()=!<>".contains(c)) {
            return Err(format!("{part:?}: {key:?} is not a label key"));
        }
        Ok(Requirement { key: key.to_owned(), test })
    };
    let one = |value: &str| vec![value.trim().to_owned()];
    let number = |value: &str| value.trim().parse::<i64>().map_err(|_| format!("{part:?}: expected a number"));
    if let Some((key, value)) = part.split_once("!=") {
        return requirement(key, Test::NotIn(one(value)));
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return requirement(key, Test::In(one(value)));
    }
    if let Some((key, value)) = part.split_once('>') {
        return requirement(key, Test::Greater(number(value)?));
    }
    if let Some((key, value)) = part.split_once('<') {
        return requirement(key, Test::Less(number(value)?));
    }
    if let Some((head, values)) = part.split_once('(') {
        let values = values.strip_suffix(')').ok_or_else(|| format!("{part:?}: a closing parenthesis is missing"))?;
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        return match head.trim().rsplit_once(char::is_whitespace) {
            Some((key, "in")) => requirement(key, Test::In(values)),
            Some((key, "notin")) => requirement(key, Test::NotIn(values)),
            _ => Err(format!("{part:?}: expected `in` or `notin`")),
        };
    }
    match part.strip_prefix('!') {
        Some(key) => requirement(key, Test::Absent),
        None => requirement(part, Test::Exists),
    }
}

fn parse_fields(text: &str) -> Result<Vec<FieldRequirement>, String> {
    let mut requirements = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (field, value, equal) = if let Some((field, value)) = part.split_once("!=") {
            (field, value, false)
        } else if let Some((field, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
            (field, value, true)
        } else {
            return Err(format!("invalid selector: {part:?}; can't understand it"));
        };
        let (field, value) = (field.trim().to_owned(), value.trim().to_owned());
        requirements.push(FieldRequirement { field, value, equal });
    }
    Ok(requirements)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::resource::Catalog;
    use super::*;

    fn pods(labels: &str, fields: &str) -> Outcome<Filter> {
        let resource = Catalog::builtin().find("", "v1", "pods").unwrap();
        Filter::parse(&resource, None, Some(labels), Some(fields))
    }

    #[test]
    fn label_selectors_of_all_forms() {
        let object = json!({"metadata": {"labels": {"app": "a", "tier": "web", "rank": "7"}}});
        for selector in [
            "",
            "app",
            "!other",
            "app=a",
            "app==a",
            "app!=b",
            "other!=b",
            "app in (a, b)",
            "app notin (c)",
            "rank>6",
            "rank<8",
            "app=a,tier in (web,db),!x",
            "other notin (c)",
        ] {
            assert!(pods(selector, "").unwrap().matches(&object), "{selector}");
        }
        for selector in ["!app", "other", "app=b", "app!=a", "app in (b)", "app notin (a,b)", "rank>7", "app=a,tier=db"]
        {
            assert!(!pods(selector, "").unwrap().matches(&object), "{selector}");
        }
        for selector in ["app in a", "app in (a", "a b", "app>x", "=a"] {
            assert!(pods(selector, "").is_err(), "{selector}");
        }
    }

    #[test]
    fn field_selectors() {
        let object = json!({"metadata": {"name": "p", "namespace": "d"}, "spec": {"nodeName": "n"}});
        for selector in ["metadata.name=p", "spec.nodeName==n,status.phase!=Running", "status.phase="] {
            assert!(pods("", selector).unwrap().matches(&object), "{selector}");
        }
        assert!(!pods("", "spec.nodeName!=n").unwrap().matches(&object));
        assert_eq!(pods("", "spec.made-up=x").unwrap_err().code, 400);
        assert_eq!(pods("", "status.phase!=A,spec.nodeName=n").unwrap().index(), Some(("spec.nodeName", "n")));
    }
}
