//! One object seen through several API versions.

use serde_json::Value;

use super::resource::Resource;

/// Fields of a core Event and their names in `events.k8s.io`: (stored, shown).
const EVENT_FIELDS: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

fn is_event_view(resource: &Resource) -> bool {
    resource.id != resource.storage
}

/// The `apiVersion` under which objects of a kind are stored.
fn stored_version(resource: &Resource) -> String {
    match &resource.custom {
        Some(custom) => format!("{}/{}", resource.id.group, custom.storage_version),
        None if is_event_view(resource) => "v1".to_owned(),
        None => resource.api_version(),
    }
}

/// Whether objects are shown as they are stored.
pub fn is_identity(resource: &Resource) -> bool {
    !is_event_view(resource) && resource.custom.as_ref().is_none_or(|custom| custom.storage_version == resource.version)
}

/// From the version of a request to the one that is stored.
pub fn to_stored(resource: &Resource, mut object: Value) -> Value {
    if is_event_view(resource) {
        rename(&mut object, EVENT_FIELDS.iter().map(|(stored, shown)| (*shown, *stored)));
    }
    object["apiVersion"] = stored_version(resource).into();
    object["kind"] = resource.kind.clone().into();
    object
}

/// From the stored version to that of a request.
pub fn to_shown(resource: &Resource, object: &Value) -> Value {
    let mut object = object.clone();
    if !is_identity(resource) {
        if is_event_view(resource) {
            rename(&mut object, EVENT_FIELDS.iter().copied());
        }
        object["apiVersion"] = resource.api_version().into();
    }
    object
}

/// A field of the version of a request, as it is stored.
pub fn stored_field(resource: &Resource, field: &str) -> String {
    if is_event_view(resource) {
        let (head, rest) = field.split_once('.').map_or((field, None), |(head, rest)| (head, Some(rest)));
        if let Some((stored, _)) = EVENT_FIELDS.iter().find(|(_, shown)| *shown == head) {
            return rest.map_or_else(|| (*stored).to_owned(), |rest| format!("{stored}.{rest}"));
        }
    }
    field.to_owned()
}

fn rename<'a>(object: &mut Value, names: impl Iterator<Item = (&'a str, &'a str)>) {
    if let Some(map) = object.as_object_mut() {
        for (from, to) in names {
            if let Some(value) = map.remove(from) {
                map.insert(to.to_owned(), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::resource::Catalog;
    use super::*;

    #[test]
    fn an_event_is_one_object_in_both_groups() {
        let view = Catalog::builtin().find("events.k8s.io", "v1", "events").unwrap();
        let shown = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "note": "n", "regarding": {"name": "x"}});
        let stored = to_stored(&view, shown.clone());
        assert_eq!(
            stored,
            json!({"apiVersion": "v1", "kind": "Event", "message": "n", "involvedObject": {"name": "x"}})
        );
        assert_eq!(to_shown(&view, &stored), shown);
        assert_eq!(stored_field(&view, "regarding.name"), "involvedObject.name");
        assert_eq!(stored_field(&view, "reason"), "reason");
    }
}
