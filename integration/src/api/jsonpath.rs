//! As much JSONPath as printer columns use: fields, indices, `[*]` and `[?(@.field=="value")]`.

use serde_json::Value;

/// The values at a path; none if the path cannot be read.
pub fn find<'a>(object: &'a Value, path: &str) -> Vec<&'a Value> {
    let mut found = vec![object];
    let mut rest = path.trim();
    while !rest.is_empty() && !found.is_empty() {
        let (step, after) = match rest.strip_prefix('[') {
            Some(inner) => {
                let Some(end) = inner.find(']') else { return Vec::new() };
                (Step::bracket(&inner[..end]), &inner[end + 1..])
            }
            None => {
                let (name, after) = field(rest.strip_prefix('.').unwrap_or(rest));
                (Step::Field(name), after)
            }
        };
        found = found.into_iter().flat_map(|value| step.apply(value)).filter(|value| !value.is_null()).collect();
        rest = after;
    }
    found
}

/// A field's name up to the next step; `\.` is a dot within it.
fn field(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '.' | '[' => return (name, &text[at..]),
            '\\' => name.extend(chars.next().map(|(_, c)| c)),
            _ => name.push(c),
        }
    }
    (name, "")
}

enum Step {
    Field(String),
    Index(usize),
    All,
    Where(String, String),
    Unreadable,
}

impl Step {
    fn bracket(text: &str) -> Self {
        let unquoted = |text: &str| text.trim().trim_matches(['"', '\'']).to_owned();
        if text == "*" {
            return Self::All;
        }
        if let Ok(index) = text.parse() {
            return Self::Index(index);
        }
        if let Some(test) = text.strip_prefix("?(").and_then(|test| test.strip_suffix(')')) {
            let Some((path, value)) = test.split_once("==") else { return Self::Unreadable };
            let path = path.trim().trim_start_matches('@').to_owned();
            return Self::Where(path, unquoted(value));
        }
        Self::Field(unquoted(text))
    }

    fn apply<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match self {
            Self::Field(name) => value.get(name).into_iter().collect(),
            Self::Index(at) => value.get(*at).into_iter().collect(),
            Self::All => match value {
                Value::Array(list) => list.iter().collect(),
                Value::Object(map) => map.values().collect(),
                _ => Vec::new(),
            },
            Self::Where(path, wanted) => {
                let fits = |entry: &&Value| find(entry, path).iter().any(|found| found.as_str() == Some(wanted));
                value.as_array().into_iter().flatten().filter(fits).collect()
            }
            Self::Unreadable => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_of_printer_columns() {
        let object = json!({
            "metadata": {"labels": {"a.b/c": "x"}},
            "status": {"list": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}]},
        });
        for (path, wanted) in [
            (".status.list[0].type", vec![json!("Ready")]),
            (".status.list[?(@.type==\"Other\")].status", vec![json!("False")]),
            (".status.list[*].status", vec![json!("True"), json!("False")]),
            (".metadata.labels.a\\.b/c", vec![json!("x")]),
            (".metadata.labels['a.b/c']", vec![json!("x")]),
            (".status.absent.deeper", vec![]),
            (".status.list[", vec![]),
        ] {
            assert_eq!(find(&object, path), wanted.iter().collect::<Vec<_>>(), "{path}");
        }
    }
}
