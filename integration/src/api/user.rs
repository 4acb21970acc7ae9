//! Who a client is, from the credential that it shows.

use std::collections::BTreeMap;

/// A client, as authentication tells of it. Nothing is refused to anybody: there is no authorization here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its name.
    pub username: String,
    /// Its UID; empty if it has none.
    pub uid: String,
    /// Its groups.
    pub groups: Vec<String>,
    /// What else the credential says.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Default for User {
    /// Who shows no credential: everything in this process, and `kubectl` with the server's kubeconfig.
    fn default() -> Self {
        let groups = vec!["system:masters".into(), "system:authenticated".into()];
        Self { username: "system:admin".into(), uid: String::new(), groups, extra: BTreeMap::new() }
    }
}

impl User {
    /// A ServiceAccount; with `node`, by a token that the kubelet of this node has asked for, for a pod there.
    pub fn service_account(namespace: &str, name: &str, node: Option<&str>) -> Self {
        let mut extra = BTreeMap::new();
        if let Some(node) = node {
            extra.insert("authentication.kubernetes.io/node-name".into(), vec![node.to_owned()]);
            extra.insert("authentication.kubernetes.io/pod-name".into(), vec![format!("{name}-{node}")]);
        }
        Self {
            username: format!("system:serviceaccount:{namespace}:{name}"),
            uid: format!("{namespace}-{name}"),
            groups: vec![
                "system:serviceaccounts".into(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".into(),
            ],
            extra,
        }
    }
}
