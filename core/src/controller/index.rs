use std::collections::{BTreeMap, BTreeSet};

/// Names by key. A key without names takes no room.
#[derive(Clone, Debug, Default)]
pub(super) struct Index(BTreeMap<String, BTreeSet<String>>);

impl Index {
    pub fn get(&self, key: &str) -> impl Iterator<Item = &str> {
        self.0.get(key).into_iter().flatten().map(String::as_str)
    }

    pub fn add(&mut self, keys: impl IntoIterator<Item = impl Into<String>>, name: &str) {
        for key in keys {
            self.0.entry(key.into()).or_default().insert(name.into());
        }
    }

    pub fn remove(&mut self, keys: impl IntoIterator<Item = impl AsRef<str>>, name: &str) {
        for key in keys {
            if let Some(names) = self.0.get_mut(key.as_ref()) {
                names.remove(name);
                if names.is_empty() {
                    self.0.remove(key.as_ref());
                }
            }
        }
    }

    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}
