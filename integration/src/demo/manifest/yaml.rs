//! YAML that remembers where each field stands.

use std::collections::BTreeMap;

use saphyr::{LoadableYamlNode, MarkedYaml, Scalar, YamlData};
use serde_json::Value;

/// Line of each field of a document, by path (`spec.containers[0].name`).
#[derive(Clone, Debug, Default)]
pub(super) struct Lines(BTreeMap<String, usize>);

impl Lines {
    /// The line of a field, or of its nearest parent that the document has.
    pub(super) fn nearest(&self, path: &str) -> usize {
        let mut path = path;
        loop {
            if let Some(line) = self.0.get(path) {
                return *line;
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = &path[..end],
                None => return self.0.get("").copied().unwrap_or(1),
            }
        }
    }

    /// The lines of a part, as if it were a document.
    pub(super) fn below(&self, path: &str) -> Self {
        let part = self.0.iter().filter_map(|(field, line)| {
            let rest = field.strip_prefix(path)?;
            Some((rest.strip_prefix('.').unwrap_or(rest).to_owned(), *line))
        });
        Self(part.collect())
    }
}

/// The documents of a text; empty ones are left out.
///
/// # Errors
/// The line and what is wrong there.
pub(super) fn parse(text: &str) -> Result<Vec<(Value, Lines)>, (usize, String)> {
    let documents =
        MarkedYaml::load_from_str(text).map_err(|error| (error.marker().line(), error.info().to_owned()))?;
    let mut parsed = Vec::new();
    for document in &documents {
        let mut lines = BTreeMap::new();
        let value = convert(document, "", &mut lines)?;
        if !value.is_null() {
            parsed.push((value, Lines(lines)));
        }
    }
    Ok(parsed)
}

fn convert(node: &MarkedYaml<'_>, path: &str, lines: &mut BTreeMap<String, usize>) -> Result<Value, (usize, String)> {
    let line = node.span.start.line();
    // A mapping's key has set the line already: it is where people look for the field.
    lines.entry(path.to_owned()).or_insert(line);
    Ok(match &node.data {
        YamlData::Value(scalar) => match scalar {
            Scalar::Null => Value::Null,
            Scalar::Boolean(value) => Value::Bool(*value),
            Scalar::Integer(value) => Value::from(*value),
            Scalar::FloatingPoint(value) => Value::from(**value),
            Scalar::String(value) => Value::String(value.to_string()),
        },
        YamlData::Sequence(items) => {
            let items: Result<Vec<_>, _> = items
                .iter()
                .enumerate()
                .map(|(index, item)| convert(item, &format!("{path}[{index}]"), lines))
                .collect();
            Value::Array(items?)
        }
        YamlData::Mapping(entries) => {
            let mut object = serde_json::Map::new();
            let mut merged = serde_json::Map::new();
            for (key, value) in entries {
                let line = key.span.start.line();
                let name = match &key.data {
                    YamlData::Value(Scalar::String(name)) => name.to_string(),
                    // Labels may look like numbers or booleans.
                    YamlData::Value(Scalar::Boolean(name)) => name.to_string(),
                    YamlData::Value(Scalar::Integer(name)) => name.to_string(),
                    _ => return Err((line, "a field's name must be text".into())),
                };
                if name == "<<" {
                    merge(convert(value, path, lines)?, &mut merged).ok_or((line, MERGE.to_owned()))?;
                    continue;
                }
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                lines.insert(path.clone(), line);
                object.insert(name, convert(value, &path, lines)?);
            }
            // What stands there itself counts more than what is merged into it.
            merged.append(&mut object);
            Value::Object(merged)
        }
        YamlData::Tagged(_, inner) => convert(inner, path, lines)?,
        YamlData::Representation(..) | YamlData::Alias(_) | YamlData::BadValue => {
            return Err((line, "this value cannot be read".into()));
        }
    })
}

const MERGE: &str = "a merge key (<<) takes a mapping or a list of mappings";

/// YAML's merge key, as kubectl understands it; the first of several mappings counts most.
fn merge(value: Value, into: &mut serde_json::Map<String, Value>) -> Option<()> {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                into.entry(name).or_insert(value);
            }
        }
        Value::Array(items) => items.into_iter().try_for_each(|item| match item {
            Value::Object(_) => merge(item, into),
            _ => None,
        })?,
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_know_their_lines() {
        let parsed = parse("# a\na:\n  b: 1\n  c:\n  - d: x\n---\n---\ne: 2\n").unwrap();
        let (value, lines) = &parsed[0];
        assert_eq!(*value, serde_json::json!({"a": {"b": 1, "c": [{"d": "x"}]}}));
        assert_eq!((lines.nearest("a.b"), lines.nearest("a.c[0].d"), lines.nearest("a.c[0].missing.deep")), (3, 5, 5));
        assert_eq!((parsed.len(), parsed[1].1.nearest("e")), (2, 8));
    }

    #[test]
    fn a_fault_has_a_line() {
        assert_eq!(parse("a: 1\nb: [1, 2\n").unwrap_err().0, 3);
    }

    #[test]
    fn mappings_are_merged() {
        let parsed = parse("a: &a {x: 1, y: 1}\nb: {<<: *a, y: 2}\nc:\n  <<: [*a, {y: 3, z: 3}]\n").unwrap();
        let wanted = serde_json::json!({"a": {"x": 1, "y": 1}, "b": {"x": 1, "y": 2}, "c": {"x": 1, "y": 1, "z": 3}});
        assert_eq!(parsed[0].0, wanted);
        assert_eq!(parse("a: 1\nb:\n  <<: 7\n").unwrap_err().0, 3);
    }

    #[test]
    fn a_part_has_its_own_lines() {
        let parsed = parse("items:\n- a: 1\n- a: 2\n").unwrap();
        assert_eq!(parsed[0].1.below("items[1]").nearest("a"), 3);
    }
}
