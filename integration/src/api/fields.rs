//! Which fields somebody applied: the `fieldsV1` of managed fields.

use serde_json::{Map, Value, json};

use super::resource::Resource;
use super::schema::{ListType, Schema};

/// What is known of a place in an object, for merging.
#[derive(Clone, Copy)]
pub struct Guide<'a> {
    schema: Option<&'a Schema>,
    builtin: bool,
    name: &'a str,
}

impl<'a> Guide<'a> {
    /// The top of an object.
    pub fn of(resource: &'a Resource) -> Self {
        let schema = resource.custom.as_ref().map(|custom| &custom.schema);
        Self { schema, builtin: schema.is_none(), name: "" }
    }

    fn field(self, name: &'a str) -> Self {
        // Metadata is the same for all kinds, whatever a CRD's schema says.
        let builtin = self.builtin || (self.name.is_empty() && name == "metadata");
        let schema = self.schema.and_then(|schema| schema.properties.get(name).or(schema.additional.as_deref()));
        Self { schema, builtin, name }
    }

    fn entry(self) -> Self {
        Self { schema: self.schema.and_then(|schema| schema.items.as_deref()), ..self }
    }

    fn list(self) -> ListType {
        match (self.builtin, self.schema) {
            (true, _) => builtin_list(self.name),
            (false, Some(schema)) => schema.list.clone(),
            (false, None) => ListType::Atomic,
        }
    }

    /// Whether an object at this place is one value.
    fn is_atomic(self) -> bool {
        match (self.builtin, self.schema) {
            (true, _) => matches!(
                self.name,
                "selector"
                    | "nodeSelector"
                    | "parameters"
                    | "secretRef"
                    | "configMapKeyRef"
                    | "secretKeyRef"
                    | "fieldRef"
                    | "resourceFieldRef"
                    | "nodeSelectorTerms"
            ),
            (false, Some(schema)) => schema.atomic,
            (false, None) => false,
        }
    }
}

/// How the lists of built-in kinds are merged.
fn builtin_list(name: &str) -> ListType {
    match builtin_keys(name) {
        Some(keys) => ListType::Map(keys.iter().map(|key| (*key).to_owned()).collect()),
        None if name == "finalizers" => ListType::Set,
        None => ListType::Atomic,
    }
}

/// The fields by whose values the entries of a built-in kind's list are told apart; none where they are not.
pub(super) fn builtin_keys(list: &str) -> Option<&'static [&'static str]> {
    Some(match list {
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "env"
        | "imagePullSecrets"
        | "resourceClaims"
        | "resourceClaimStatuses"
        | "claims" => &["name"],
        "ports" => &["containerPort"],
        "volumeMounts" => &["mountPath"],
        "volumeDevices" => &["devicePath"],
        "conditions" => &["type"],
        "ownerReferences" | "reservedFor" => &["uid"],
        "hostAliases" | "podIPs" => &["ip"],
        "topologySpreadConstraints" => &["topologyKey", "whenUnsatisfiable"],
        // `status.devices` of a ResourceClaim; `spec.devices` is an object and never gets here.
        "devices" => &["driver", "device", "pool", "shareID"],
        _ => return None,
    })
}

/// An entry's key as managed fields spell it.
fn key_of(entry: &Value, keys: &[String]) -> String {
    let map = keys.iter().filter_map(|key| Some((key.clone(), entry.get(key)?.clone()))).collect::<Map<_, _>>();
    format!("k:{}", Value::Object(map))
}

/// The fields that an applied object has.
pub fn fields(guide: Guide<'_>, value: &Value) -> Value {
    match value {
        Value::Object(map) if !guide.is_atomic() => {
            map.iter().map(|(name, value)| (format!("f:{name}"), fields(guide.field(name), value))).collect()
        }
        Value::Array(list) => match guide.list() {
            ListType::Atomic => json!({}),
            ListType::Set => list.iter().map(|entry| (format!("v:{entry}"), json!({}))).collect(),
            ListType::Map(keys) => list
                .iter()
                .map(|entry| {
                    let mut below = fields(guide.entry(), entry);
                    below["."] = json!({});
                    (key_of(entry, &keys), below)
                })
                .collect(),
        },
        _ => json!({}),
    }
}

/// Puts an applied object over a present one.
pub fn merge(guide: Guide<'_>, live: &mut Value, applied: &Value) {
    match (live, applied) {
        (Value::Object(live), Value::Object(applied)) if !guide.is_atomic() => {
            for (name, value) in applied {
                match live.get_mut(name) {
                    Some(present) => merge(guide.field(name), present, value),
                    None => {
                        live.insert(name.clone(), value.clone());
                    }
                }
            }
        }
        (Value::Array(live), Value::Array(applied)) => match guide.list() {
            ListType::Atomic => live.clone_from(applied),
            ListType::Set => {
                let new = applied.iter().filter(|entry| !live.contains(entry)).cloned().collect::<Vec<_>>();
                live.extend(new);
            }
            ListType::Map(keys) => {
                for entry in applied {
                    match live.iter_mut().find(|present| keys.iter().all(|k| present.get(k) == entry.get(k))) {
                        Some(present) => merge(guide.entry(), present, entry),
                        None => live.push(entry.clone()),
                    }
                }
            }
        },
        (live, applied) => live.clone_from(applied),
    }
}

/// The fields in which two sets meet and `live` differs from `applied`, as paths.
pub fn conflicts(guide: Guide<'_>, live: &Value, applied: &Value, theirs: &Value) -> Vec<String> {
    let mut found = Vec::new();
    meet(guide, live, applied, theirs, "", &mut found);
    found
}

fn meet(guide: Guide<'_>, live: &Value, applied: &Value, theirs: &Value, path: &str, found: &mut Vec<String>) {
    let Some(owned) = theirs.as_object() else { return };
    match applied {
        Value::Object(map) if !guide.is_atomic() => {
            for (name, value) in map {
                if let Some(theirs) = owned.get(&format!("f:{name}")) {
                    let live = live.get(name).unwrap_or(&Value::Null);
                    meet(guide.field(name), live, value, theirs, &format!("{path}.{name}"), found);
                }
            }
        }
        Value::Array(list) if guide.list() != ListType::Atomic => {
            let ListType::Map(keys) = guide.list() else { return };
            for entry in list {
                let key = key_of(entry, &keys);
                if let Some(theirs) = owned.get(&key) {
                    let same = |other: &&Value| keys.iter().all(|k| other.get(k) == entry.get(k));
                    let live = live.as_array().and_then(|live| live.iter().find(same)).unwrap_or(&Value::Null);
                    meet(guide.entry(), live, entry, theirs, &format!("{path}[{}]", &key[2..]), found);
                }
            }
        }
        _ if live != applied => found.push(path.to_owned()),
        _ => {}
    }
}

/// Takes the fields out of an object that were `mine` before, are not in `now`, and that nobody in `others` has.
pub fn withdraw(guide: Guide<'_>, live: &mut Value, mine: &Value, now: &Value, others: &[&Value]) {
    let Some(mine) = mine.as_object() else { return };
    for (step, below) in mine.iter().filter(|(step, _)| *step != ".") {
        let now = now.get(step);
        let others = others.iter().filter_map(|other| other.get(step)).collect::<Vec<_>>();
        let leaf = below.as_object().is_none_or(|map| map.keys().all(|key| key == "."));
        let goes = now.is_none() && others.is_empty();
        if let Some(name) = step.strip_prefix("f:") {
            let Some(map) = live.as_object_mut() else { continue };
            let Some(value) = map.get_mut(name) else { continue };
            if !leaf {
                withdraw(guide.field(name), value, below, now.unwrap_or(&Value::Null), &others);
            }
            let empty = value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty);
            if goes && (leaf || empty) {
                map.remove(name);
            }
        } else if let Some(list) = live.as_array_mut() {
            if !goes && let Some(at) = position(list, step) {
                withdraw(guide.entry(), &mut list[at], below, now.unwrap_or(&Value::Null), &others);
            } else if goes && let Some(at) = position(list, step) {
                list.remove(at);
            }
        }
    }
}

fn position(list: &[Value], step: &str) -> Option<usize> {
    let (mark, text) = step.split_at_checked(2)?;
    let wanted = serde_json::from_str::<Value>(text).ok()?;
    let fits = |entry: &Value| match (mark, wanted.as_object()) {
        ("k:", Some(keys)) => keys.iter().all(|(key, value)| entry.get(key) == Some(value)),
        _ => *entry == wanted,
    };
    list.iter().position(fits)
}
