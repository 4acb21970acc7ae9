//! Merge patch, JSON Patch and strategic merge patch.

use serde_json::{Map, Value};

use super::fields::builtin_keys;
use super::resource::Resource;
use super::status::{self, Outcome, bad_request};

/// The kinds of patches, by their content types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    /// RFC 7386.
    Merge,
    /// RFC 6902.
    Json,
    /// Kubernetes' own: lists are merged by keys.
    Strategic,
    /// Server-side apply.
    Apply,
}

impl PatchKind {
    /// Reads a content type.
    pub fn parse(content_type: &str) -> Outcome<Self> {
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/json-patch+json" => Ok(Self::Json),
            "application/strategic-merge-patch+json" => Ok(Self::Strategic),
            "application/apply-patch+yaml" | "application/apply-patch+json" => Ok(Self::Apply),
            other => Err(status::unsupported_media(format!(
                "the body of the request was in an unknown format {other:?} - accepted media types include: \
                 application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, \
                 application/apply-patch+yaml"
            ))),
        }
    }
}

/// The object that a patch other than apply makes of another.
pub fn patched(resource: &Resource, kind: PatchKind, object: &Value, patch: &Value) -> Outcome<Value> {
    let mut next = object.clone();
    match kind {
        PatchKind::Json => {
            let patch = serde_json::from_value::<json_patch::Patch>(patch.clone())
                .map_err(|e| bad_request(format!("the JSON Patch cannot be read: {e}")))?;
            json_patch::patch(&mut next, &patch)
                .map_err(|e| status::failure(422, "Invalid", format!("the JSON Patch cannot be applied: {e}")))?;
        }
        PatchKind::Strategic if resource.custom.is_none() => strategic_merge(&mut next, patch)?,
        PatchKind::Strategic => {
            return Err(status::unsupported_media(format!(
                "strategic merge patch does not work for {}, a kind that a CRD defines: use a merge patch",
                resource.kind
            )));
        }
        PatchKind::Merge | PatchKind::Apply => {
            if !patch.is_object() {
                return Err(bad_request("a merge patch is an object"));
            }
            json_patch::merge(&mut next, patch);
        }
    }
    Ok(next)
}

/// The field by whose values a strategic merge patch tells the entries of a list apart. The types' patch strategies are
/// older than the list types of server-side apply, and differ in a few.
fn merge_key(list: &str) -> Option<&'static str> {
    match list {
        "secrets" => Some("name"),
        "addresses" => Some("type"),
        "claims" | "devices" => None,
        _ => builtin_keys(list)?.first().copied(),
    }
}

fn strategic_merge(target: &mut Value, patch: &Value) -> Outcome<()> {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return Ok(());
    };
    match patch.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            *target = Value::Object(without_directives(patch));
            return Ok(());
        }
        Some("delete") => {
            *target = Value::Null;
            return Ok(());
        }
        Some("merge") | None => {}
        Some(other) => return Err(bad_request(format!("unknown patch directive {other:?}"))),
    }
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(map) = target.as_object_mut() else { return Ok(()) };
    if let Some(retained) = patch.get("$retainKeys").and_then(Value::as_array) {
        map.retain(|key, _| retained.iter().any(|kept| kept == key));
    }
    for (key, value) in patch {
        if let Some(field) = key.strip_prefix("$deleteFromPrimitiveList/") {
            let gone = value.as_array().map(Vec::as_slice).unwrap_or_default();
            if let Some(list) = map.get_mut(field).and_then(Value::as_array_mut) {
                list.retain(|entry| !gone.contains(entry));
            }
        } else if key.starts_with('$') {
            // `$setElementOrder` only orders what is merged below.
        } else if value.is_null() {
            map.remove(key);
        } else if let Some(entries) = value.as_array() {
            let order = patch.get(&format!("$setElementOrder/{key}")).and_then(Value::as_array);
            let list = map.entry(key.clone()).or_insert_with(|| Value::Array(Vec::new()));
            merge_list(key, list, entries)?;
            if let (Some(order), Some(list)) = (order, list.as_array_mut()) {
                sort_by_order(key, list, order);
            }
        } else {
            let entry = map.entry(key.clone()).or_insert(Value::Null);
            strategic_merge(entry, value)?;
            if entry.is_null() {
                map.remove(key);
            }
        }
    }
    Ok(())
}

fn without_directives(patch: &Map<String, Value>) -> Map<String, Value> {
    patch.iter().filter(|(key, _)| !key.starts_with('$')).map(|(k, v)| (k.clone(), v.clone())).collect()
}

fn merge_list(field: &str, target: &mut Value, entries: &[Value]) -> Outcome<()> {
    let replaces = entries.iter().any(|entry| entry["$patch"] == "replace");
    let key = merge_key(field).filter(|key| entries.iter().all(|e| e.get("$patch").is_some() || e.get(*key).is_some()));
    let strings = field == "finalizers";
    let Some(list) = target.as_array_mut() else {
        *target = Value::Array(Vec::new());
        return merge_list(field, target, entries);
    };
    if strings {
        let new = entries.iter().filter(|entry| !list.contains(entry)).cloned().collect::<Vec<_>>();
        list.extend(new);
        return Ok(());
    }
    let Some(key) = key.filter(|_| !replaces) else {
        *list = entries.iter().filter(|entry| entry.get("$patch").is_none()).cloned().collect();
        return Ok(());
    };
    for entry in entries {
        let at = list.iter().position(|old| old.get(key) == entry.get(key));
        match (at, entry["$patch"].as_str()) {
            (Some(at), Some("delete")) => {
                list.remove(at);
            }
            (None, Some("delete")) => {}
            (Some(at), _) => strategic_merge(&mut list[at], entry)?,
            (None, _) => {
                let mut new = Value::Null;
                strategic_merge(&mut new, entry)?;
                list.push(new);
            }
        }
    }
    Ok(())
}

fn sort_by_order(field: &str, list: &mut [Value], order: &[Value]) {
    let position = |entry: &Value| match merge_key(field) {
        Some(key) => order.iter().position(|o| o.get(key) == entry.get(key)),
        None => order.iter().position(|o| o == entry),
    };
    // Entries that the client does not know of stay behind those that it orders.
    list.sort_by_key(|entry| position(entry).unwrap_or(usize::MAX));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::resource::Catalog;
    use super::*;

    fn pods() -> std::sync::Arc<Resource> {
        Catalog::builtin().find("", "v1", "pods").unwrap()
    }

    #[test]
    fn json_patch_with_a_failing_test_changes_nothing() {
        let object = json!({"a": 1});
        let patch = json!([{"op": "test", "path": "/a", "value": 2}, {"op": "remove", "path": "/a"}]);
        assert_eq!(patched(&pods(), PatchKind::Json, &object, &patch).unwrap_err().code, 422);
        let patch = json!([{"op": "test", "path": "/a", "value": 1}, {"op": "add", "path": "/b", "value": 2}]);
        assert_eq!(patched(&pods(), PatchKind::Json, &object, &patch).unwrap(), json!({"a": 1, "b": 2}));
    }

    #[test]
    fn strategic_merge_knows_lists_by_their_keys() {
        let object = json!({"spec": {
            "containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b"}],
            "tolerations": [{"key": "k"}],
        }});
        let patch = json!({"spec": {
            "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
            "containers": [
                {"name": "a", "image": "2", "env": [{"name": "Y", "value": "2"}]},
                {"name": "b", "$patch": "delete"},
                {"name": "c"},
            ],
            "tolerations": [{"key": "other"}],
        }});
        assert_eq!(
            patched(&pods(), PatchKind::Strategic, &object, &patch).unwrap(),
            json!({"spec": {
                "containers": [
                    {"name": "c"},
                    {"name": "a", "image": "2", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]},
                ],
                "tolerations": [{"key": "other"}],
            }})
        );
    }

    #[test]
    fn strategic_merge_of_finalizers_adds_and_takes() {
        let object = json!({"metadata": {"finalizers": ["a", "b"]}});
        let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["c"]}});
        let mut list =
            patched(&pods(), PatchKind::Strategic, &object, &patch).unwrap()["metadata"]["finalizers"].take();
        list.as_array_mut().unwrap().sort_by_key(ToString::to_string);
        assert_eq!(list, json!(["b", "c"]));
    }
}
