//! What kinds of objects are served, and under which paths.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::crd::Custom;

/// Names a collection of objects whatever the version they are read in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupResource {
    /// API group, empty for core.
    pub group: String,
    /// Plural name, as in paths.
    pub plural: String,
}

impl GroupResource {
    /// The collection `plural` of `group`.
    pub fn new(group: &str, plural: &str) -> Self {
        Self { group: group.to_owned(), plural: plural.to_owned() }
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.group.as_str() {
            "" => write!(f, "{}", self.plural),
            group => write!(f, "{}.{group}", self.plural),
        }
    }
}

/// One kind of object in one version.
#[derive(Debug)]
pub struct Resource {
    /// Group and plural name of the paths.
    pub id: GroupResource,
    /// Where the objects are kept: differs from `id` for a second view of the same objects.
    pub storage: GroupResource,
    /// API version, without the group.
    pub version: String,
    /// Singular name.
    pub singular: String,
    /// Kind.
    pub kind: String,
    /// Names for people's fingers.
    pub short_names: Vec<String>,
    /// Names of groups of kinds that it is listed in, such as `all`.
    pub categories: Vec<String>,
    /// Whether the objects live in namespaces.
    pub namespaced: bool,
    /// Whether `/status` is written apart from the rest.
    pub has_status: bool,
    /// Fields that field selectors may name, beside `metadata.name` and `metadata.namespace`.
    pub selectable: Vec<String>,
    /// Schema and columns, of kinds that a CRD defines.
    pub custom: Option<Custom>,
}

impl Resource {
    /// `group/version`, or the version alone in the core group.
    pub fn api_version(&self) -> String {
        match self.id.group.as_str() {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// Whether this is the built-in kind `plural` of `group`.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.storage.group == group && self.storage.plural == plural
    }
}

/// All kinds that are served, by group, version and plural.
#[derive(Debug, Default)]
pub struct Catalog {
    served: BTreeMap<(String, String, String), Arc<Resource>>,
}

impl Catalog {
    /// The built-in kinds.
    pub fn builtin() -> Self {
        let mut catalog = Self::default();
        for line in BUILTIN.lines().map(str::trim).filter(|line| !line.is_empty()) {
            catalog.add(parse(line));
        }
        catalog
    }

    /// Serves one more kind, or another shape of it.
    pub fn add(&mut self, resource: Resource) {
        let key = (resource.id.group.clone(), resource.version.clone(), resource.id.plural.clone());
        self.served.insert(key, Arc::new(resource));
    }

    /// Stops serving every version of a kind.
    pub fn remove(&mut self, id: &GroupResource) {
        self.served.retain(|_, resource| resource.id != *id);
    }

    /// Finds a kind by its path.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        self.served.get(&(group.to_owned(), version.to_owned(), plural.to_owned())).cloned()
    }

    /// Every kind, ordered by group, version and plural.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.served.values()
    }
}

/// One line a kind: group, version, plural, kind, scope, `status` if it has the subresource; then short names after
/// `~`, categories after `+`, selectable fields after `?`, and the collection that it is a view of after `=`.
const BUILTIN: &str = "
    - v1 namespaces Namespace cluster status ~ns ?status.phase
    - v1 nodes Node cluster status ~no ?spec.unschedulable
    - v1 pods Pod namespaced status +all ~po ?spec.nodeName ?spec.restartPolicy ?spec.schedulerName ?spec.serviceAccountName ?spec.hostNetwork ?status.phase ?status.podIP ?status.nominatedNodeName
    - v1 events Event namespaced - ~ev ?involvedObject.kind ?involvedObject.namespace ?involvedObject.name ?involvedObject.uid ?involvedObject.apiVersion ?involvedObject.resourceVersion ?involvedObject.fieldPath ?reason ?reportingComponent ?source ?type
    - v1 secrets Secret namespaced - ?type
    - v1 configmaps ConfigMap namespaced - ~cm
    - v1 serviceaccounts ServiceAccount namespaced - ~sa
    - v1 services Service namespaced status +all ~svc ?spec.clusterIP ?spec.type
    apps v1 deployments Deployment namespaced status +all ~deploy
    apps v1 replicasets ReplicaSet namespaced status +all ~rs ?status.replicas
    apps v1 daemonsets DaemonSet namespaced status +all ~ds
    apps v1 statefulsets StatefulSet namespaced status +all ~sts
    batch v1 jobs Job namespaced status +all ?status.successful
    certificates.k8s.io v1 certificatesigningrequests CertificateSigningRequest cluster status ~csr ?spec.signerName
    coordination.k8s.io v1 leases Lease namespaced -
    events.k8s.io v1 events Event namespaced - ~ev ?regarding.kind ?regarding.namespace ?regarding.name ?regarding.uid ?reason ?reportingController ?type =-/events
    resource.k8s.io v1 deviceclasses DeviceClass cluster -
    resource.k8s.io v1 resourceslices ResourceSlice cluster - ?spec.nodeName ?spec.driver
    resource.k8s.io v1 resourceclaims ResourceClaim namespaced status
    resource.k8s.io v1 resourceclaimtemplates ResourceClaimTemplate namespaced -
    apiextensions.k8s.io v1 customresourcedefinitions CustomResourceDefinition cluster status ~crd ~crds
    rbac.authorization.k8s.io v1 roles Role namespaced -
    rbac.authorization.k8s.io v1 rolebindings RoleBinding namespaced -
    rbac.authorization.k8s.io v1 clusterroles ClusterRole cluster -
    rbac.authorization.k8s.io v1 clusterrolebindings ClusterRoleBinding cluster -
    admissionregistration.k8s.io v1 validatingadmissionpolicies ValidatingAdmissionPolicy cluster status
    admissionregistration.k8s.io v1 validatingadmissionpolicybindings ValidatingAdmissionPolicyBinding cluster -
    admissionregistration.k8s.io v1 validatingwebhookconfigurations ValidatingWebhookConfiguration cluster -
    admissionregistration.k8s.io v1 mutatingwebhookconfigurations MutatingWebhookConfiguration cluster -
    scheduling.k8s.io v1 priorityclasses PriorityClass cluster - ~pc
    policy v1 poddisruptionbudgets PodDisruptionBudget namespaced status ~pdb
    networking.k8s.io v1 networkpolicies NetworkPolicy namespaced - ~netpol
";

fn parse(line: &str) -> Resource {
    let mut words = line.split_whitespace();
    let mut next = || words.next().expect("a line of the built-in table has six words");
    let group = |word: &str| if word == "-" { String::new() } else { word.to_owned() };
    let id = GroupResource { group: group(next()), plural: String::new() };
    let version = next().to_owned();
    let id = GroupResource { plural: next().to_owned(), ..id };
    let kind = next().to_owned();
    let (namespaced, has_status) = (next() == "namespaced", next() == "status");
    let mut resource = Resource {
        storage: id.clone(),
        id,
        version,
        singular: kind.to_lowercase(),
        kind,
        short_names: Vec::new(),
        categories: Vec::new(),
        namespaced,
        has_status,
        selectable: Vec::new(),
        custom: None,
    };
    for word in words {
        let (mark, rest) = word.split_at(1);
        match (mark, rest.split_once('/')) {
            ("~", _) => resource.short_names.push(rest.to_owned()),
            ("+", _) => resource.categories.push(rest.to_owned()),
            ("?", _) => resource.selectable.push(rest.to_owned()),
            ("=", Some((g, plural))) => resource.storage = GroupResource { group: group(g), plural: plural.to_owned() },
            _ => panic!("unreadable word {word:?} in the built-in table"),
        }
    }
    resource
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_readable() {
        let catalog = Catalog::builtin();
        let pods = catalog.find("", "v1", "pods").unwrap();
        assert_eq!((pods.kind.as_str(), pods.namespaced, pods.has_status), ("Pod", true, true));
        assert!(pods.selectable.contains(&"spec.nodeName".to_owned()));
        assert_eq!(pods.short_names, ["po"]);
        assert_eq!(pods.categories, ["all"]);
        let events = catalog.find("events.k8s.io", "v1", "events").unwrap();
        assert!(events.is("", "events"));
        assert_eq!(catalog.find("apps", "v1", "deployments").unwrap().api_version(), "apps/v1");
    }
}
