//! Tables, as `kubectl get` asks for them.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::columns::{self, Cell};
use super::jsonpath::find;
use super::resource::Resource;

/// How much of an object goes with its row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Include {
    /// Nothing.
    None,
    /// Its metadata.
    #[default]
    Metadata,
    /// All of it.
    Object,
}

impl Include {
    /// Reads the parameter `includeObject`.
    pub fn parse(text: Option<&str>) -> Self {
        match text {
            Some("None") => Self::None,
            Some("Object") => Self::Object,
            _ => Self::Metadata,
        }
    }
}

/// The headings of a kind's table.
pub fn headings(resource: &Resource) -> Value {
    let heading = |name: &str, type_name: &str, format: &str, priority: i64| json!({"name": name, "type": type_name, "format": format, "description": "", "priority": priority});
    let mut list = vec![heading("Name", "string", "name", 0)];
    match &resource.custom {
        Some(custom) if !custom.columns.is_empty() => {
            list.extend(custom.columns.iter().map(|c| heading(&c.name, &c.type_name, "", c.priority)));
        }
        Some(_) => list.push(heading("Age", "date", "", 0)),
        None => {
            let columns = columns::of(&resource.storage.group, &resource.storage.plural);
            list.extend(columns.iter().map(|column| heading(column.name, "string", "", column.priority)));
        }
    }
    list.into()
}

/// One object's row; `object` is in the version that is shown.
pub fn row(resource: &Resource, object: &Value, now: Timestamp, include: Include) -> Value {
    let mut cells = vec![object["metadata"]["name"].clone()];
    match &resource.custom {
        Some(custom) if !custom.columns.is_empty() => {
            cells.extend(custom.columns.iter().map(|column| custom_cell(column, object, now)));
        }
        Some(_) => cells.push(age(&object["metadata"]["creationTimestamp"], now).into()),
        None => {
            let columns = columns::of(&resource.storage.group, &resource.storage.plural);
            cells.extend(columns.iter().map(|column| match column.cell {
                Cell::Age(path) => age(object.pointer(path).unwrap_or(&Value::Null), now).into(),
                Cell::Text(text) => text(object).into(),
            }));
        }
    }
    let mut row = json!({"cells": cells});
    match include {
        Include::None => {}
        Include::Metadata => {
            row["object"] = json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"],
            });
        }
        Include::Object => row["object"] = object.clone(),
    }
    row
}

fn custom_cell(column: &super::crd::Column, object: &Value, now: Timestamp) -> Value {
    let found = find(object, &column.path);
    match (found.as_slice(), column.type_name.as_str()) {
        ([], _) => Value::Null,
        ([first, ..], "date") => age(first, now).into(),
        ([one], _) if !one.is_object() && !one.is_array() => (*one).clone(),
        (several, _) => {
            let text = |value: &&Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            several.iter().map(text).collect::<Vec<_>>().join(" ").into()
        }
    }
}

/// How long ago something was, in the rounding of `kubectl`.
pub fn age(then: &Value, now: Timestamp) -> String {
    let Some(then) = then.as_str().and_then(|text| text.parse::<Timestamp>().ok()) else {
        return "<unknown>".to_owned();
    };
    duration(now.duration_since(then).as_secs().max(0))
}

/// A number of seconds in at most two units.
pub fn duration(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |big: i64, unit: &str, small: i64, below: &str| match small {
        0 => format!("{big}{unit}"),
        _ => format!("{big}{unit}{small}{below}"),
    };
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => two(days, "d", hours % 24, "h"),
        () if days < 730 => format!("{days}d"),
        () => two(days / 365, "y", days % 365, "d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_rounded_as_kubectl_does() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (660, "11m"),
            (3 * 3600, "3h"),
            (3 * 3600 + 120, "3h2m"),
            (30 * 3600, "30h"),
            (3 * 86_400 + 7200, "3d2h"),
            (100 * 86_400, "100d"),
            (800 * 86_400, "2y70d"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }
}
