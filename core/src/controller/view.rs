//! What the controller knows; what a change of it asks for is in `touch`.

mod touch;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;

use super::index::Index;
use super::relations::{cds_of, clique_of, domains_of, is_old_news, known, older, users_of, wanted_template};
use super::taken_back::TakenBack;
use super::template::{asks_all, configured, ours};
use super::{Cd, Dirty, DriverMatch, LabelledClaim, Origin};
use crate::api::{IMEXDomain, IMEXNode, ImexMode};
use crate::fault::Fault;
use crate::names;
use crate::protocol::name;
use crate::schema;

/// What the controller knows of the cluster, with the relations that its decisions follow, and which decisions a
/// change asks for. One event costs what the changed object touches, whatever the size of the cluster.
#[derive(Clone, Debug, Default)]
pub struct View {
    cds: BTreeMap<String, Cd>,
    claims: BTreeMap<String, LabelledClaim>,
    templates: BTreeMap<TemplateKey, ResourceClaimTemplate>,
    nodes: BTreeMap<String, NodeState>,
    imex_nodes: BTreeMap<String, IMEXNode>,
    domains: BTreeMap<String, IMEXDomain>,
    problems: BTreeMap<String, BTreeMap<String, Fault>>,
    /// Why the API server takes no template of a ComputeDomain, by UID.
    refusals: BTreeMap<String, String>,
    taken_back: TakenBack,
    /// IMEXNodes that cannot be read. What was known of them before stays.
    unreadable_nodes: BTreeSet<String>,
    /// The same of IMEXDomains.
    unreadable_domains: BTreeSet<String>,
    claims_by_cd: Index,
    claims_by_node: Index,
    nodes_by_clique: Index,
    nodes_by_domain: Index,
    nodes_by_cd: Index,
    domains_by_clique: Index,
    domains_by_cd: Index,
    templates_by_cd: BTreeMap<String, BTreeSet<TemplateKey>>,
    cds_by_template: Index,
    /// The CRDs that do not fit, by name, and why.
    misfits: BTreeMap<String, Fault>,
    /// Nodes with NVLink fabric, by who runs their daemon: the driver, the host.
    daemons: [usize; 2],
    /// ComputeDomains by their numNodes.
    cds_by_size: BTreeMap<i32, BTreeSet<String>>,
    /// Whether daemons show certificates of their domain, which a node gets before it moves.
    pub(super) peer_certificates: bool,
    /// Which drivers may meet.
    pub(super) driver_match: DriverMatch,
    /// What is to be decided anew.
    pub dirty: Dirty,
}

/// What a ComputeDomain lacks that was read through another's schema, before that is known.
const MISSING: &str = "spec.isolationMode is missing";

/// Namespace and name.
pub type TemplateKey = (String, String);

/// What matters of a Node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeState {
    /// The cluster has lost contact with it: nobody there can be waited for.
    pub lost: bool,
}

impl View {
    /// Nothing is known yet. With `peer_certificates` daemons show certificates of their domain: nodes get them before they
    /// move.
    pub fn new(peer_certificates: bool) -> Self {
        Self { peer_certificates, ..Self::default() }
    }

    /// The same with another rule of which drivers may meet in an IMEX domain.
    #[must_use]
    pub fn with_driver_match(self, driver_match: DriverMatch) -> Self {
        Self { driver_match, ..self }
    }

    /// A CRD was looked at: why it does not fit, if it does not. One that nobody has looked at fits.
    pub fn put_crd(&mut self, crd: &str, misfit: Option<Fault>) {
        if self.misfits.get(crd) == misfit.as_ref() {
            return;
        }
        match misfit {
            Some(fault) => drop(self.misfits.insert(crd.into(), fault)),
            None => drop(self.misfits.remove(crd)),
        }
        self.touch_all();
    }

    /// Why no new ComputeDomain is served, if it is for a CRD.
    pub fn misfit(&self) -> Option<&Fault> {
        self.misfits.values().next()
    }

    /// A ComputeDomain has come or changed.
    pub fn put_cd(&mut self, mut cd: Cd) {
        let before = self.cds.get(cd.uid());
        if before.is_some_and(|before| older(cd.resource_version.as_deref(), before.resource_version.as_deref())) {
            return;
        }
        // A spec never changes, but what is read of it does when another's CRD is served.
        if let Some(before) = before.filter(|before| cd.origin.pruned && !before.origin.pruned) {
            cd.spec = before.spec.clone();
            cd.origin = Origin { marked: cd.origin.marked, ..before.origin.clone() };
        }
        if known((&cd, cd.resource_version.as_deref()), before) {
            return;
        }
        let uid = cd.uid().to_string();
        let turned = before.is_none_or(|before| before.deleting != cd.deleting || before.spec != cd.spec);
        if let Some(before) = self.cds.remove(&uid) {
            self.forget_wishes(&before);
        }
        self.cds_by_template.add(wanted_template(&cd), &uid);
        if let Ok(spec) = &cd.spec {
            self.cds_by_size.entry(spec.num_nodes).or_default().insert(uid.clone());
        }
        self.cds.insert(uid.clone(), cd);
        self.touch_cd(&uid, turned);
    }

    /// A ComputeDomain is gone.
    pub fn drop_cd(&mut self, uid: &str) {
        if let Some(cd) = self.cds.remove(uid) {
            self.forget_wishes(&cd);
            self.refusals.remove(uid);
            self.taken_back.forget(uid);
            self.touch_cd(uid, true);
        }
    }

    fn forget_wishes(&mut self, cd: &Cd) {
        self.cds_by_template.remove(wanted_template(cd), cd.uid());
        let Ok(spec) = &cd.spec else { return };
        if let Some(uids) = self.cds_by_size.get_mut(&spec.num_nodes) {
            uids.remove(cd.uid());
            if uids.is_empty() {
                self.cds_by_size.remove(&spec.num_nodes);
            }
        }
    }

    /// A claim has come or changed.
    pub fn put_claim(&mut self, claim: LabelledClaim) {
        let uid = claim.key.uid.clone();
        if self.claims.get(&uid) != Some(&claim) {
            self.drop_claim(&uid);
            self.claims_by_cd.add([&claim.cd_uid], &uid);
            self.claims_by_node.add(&claim.nodes, &uid);
            self.touch_claim(&claim);
            self.claims.insert(uid, claim);
        }
    }

    /// A claim is gone, or has lost its label.
    pub fn drop_claim(&mut self, uid: &str) {
        if let Some(claim) = self.claims.remove(uid) {
            self.claims_by_cd.remove([&claim.cd_uid], uid);
            self.claims_by_node.remove(&claim.nodes, uid);
            self.touch_claim(&claim);
        }
    }

    /// A ResourceClaimTemplate has come or changed.
    pub fn put_template(&mut self, template: ResourceClaimTemplate) {
        let Some(key) = template_key(&template.metadata) else { return };
        if is_old_news(&template, self.templates.get(&key)) {
            return;
        }
        self.drop_template(&key);
        if let Some(uid) = template_owner(&template) {
            self.templates_by_cd.entry(uid.into()).or_default().insert(key.clone());
        }
        self.templates.insert(key.clone(), template);
        self.touch_template(&key);
    }

    /// A ResourceClaimTemplate is gone, or what is remembered of a foreign one is too old.
    pub fn drop_template(&mut self, key: &TemplateKey) {
        self.touch_template(key);
        if let Some(template) = self.templates.remove(key)
            && let Some(uid) = template_owner(&template)
            && let Some(keys) = self.templates_by_cd.get_mut(uid)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.templates_by_cd.remove(uid);
            }
        }
    }

    /// A Node has come or changed.
    pub fn put_node(&mut self, node: &str, state: NodeState) {
        if self.nodes.insert(node.into(), state) != Some(state) {
            self.touch_node(node);
        }
    }

    /// A Node is gone.
    pub fn drop_node(&mut self, node: &str) {
        if self.nodes.remove(node).is_some() {
            self.touch_node(node);
        }
    }

    /// An IMEXNode has come or changed.
    pub fn put_imex_node(&mut self, node: IMEXNode) {
        let node_name = name(&node).to_string();
        if is_old_news(&node, self.imex_nodes.get(&node_name)) {
            return;
        }
        if !self.take_imex_node(&node_name) {
            self.touch_cds_of_size(self.imex_nodes.len() + 1);
        }
        self.nodes_by_clique.add(clique_of(&node), &node_name);
        self.nodes_by_domain.add(domains_of(&node), &node_name);
        self.nodes_by_cd.add(cds_of(&node), &node_name);
        self.count_daemon(&node, |count| count + 1);
        self.imex_nodes.insert(node_name.clone(), node);
        self.touch_node(&node_name);
    }

    /// An IMEXNode is gone.
    pub fn drop_imex_node(&mut self, node_name: &str) {
        if self.take_imex_node(node_name) {
            self.touch_cds_of_size(self.imex_nodes.len() + 1);
        }
    }

    fn take_imex_node(&mut self, node_name: &str) -> bool {
        self.touch_node(node_name);
        let Some(node) = self.imex_nodes.remove(node_name) else { return false };
        self.nodes_by_clique.remove(clique_of(&node), node_name);
        self.nodes_by_domain.remove(domains_of(&node), node_name);
        self.nodes_by_cd.remove(cds_of(&node), node_name);
        self.count_daemon(&node, |count| count - 1);
        true
    }

    /// Where the last node goes on which an exclusive ComputeDomain could have a domain of its own, or the first comes, all of
    /// them are told.
    fn count_daemon(&mut self, node: &IMEXNode, change: impl Fn(usize) -> usize) {
        let Some(status) = node.status.as_ref().filter(|status| status.clique.is_some()) else { return };
        let before = self.only_hosts_run_daemons();
        let count = &mut self.daemons[usize::from(status.imex_mode == ImexMode::HostManaged)];
        *count = change(*count);
        if before != self.only_hosts_run_daemons() {
            let exclusive = self.cds.values().filter(|cd| self.exclusive(cd)).map(|cd| cd.uid().to_owned());
            self.dirty.cds.extend(exclusive.collect::<Vec<_>>());
        }
    }

    /// Every node with NVLink fabric has a daemon that its host runs.
    pub(super) fn only_hosts_run_daemons(&self) -> bool {
        self.daemons[0] == 0 && self.daemons[1] > 0
    }

    /// How many nodes have an agent.
    pub fn node_count(&self) -> usize {
        self.imex_nodes.len()
    }

    /// An IMEXDomain has come or changed.
    pub fn put_domain(&mut self, domain: IMEXDomain) {
        let domain_name = name(&domain).to_string();
        let before = self.domains.get(&domain_name);
        if is_old_news(&domain, before) {
            return;
        }
        self.taken_back.see(before, &domain, |uid| self.cds.get(uid).is_some_and(Cd::alive));
        self.drop_domain(&domain_name);
        self.domains_by_clique.add([&domain.spec.clique], &domain_name);
        self.domains_by_cd.add(users_of(&domain), &domain_name);
        self.domains.insert(domain_name.clone(), domain);
        self.touch_domain(&domain_name);
    }

    /// An IMEXDomain is gone.
    pub fn drop_domain(&mut self, domain_name: &str) {
        self.touch_domain(domain_name);
        if let Some(domain) = self.domains.remove(domain_name) {
            self.domains_by_clique.remove([&domain.spec.clique], domain_name);
            self.domains_by_cd.remove(users_of(&domain), domain_name);
        }
    }

    /// What is wrong with nodes of a clique, as its last decision found; returns what is new.
    pub fn set_problems(&mut self, clique: &str, problems: BTreeMap<String, Fault>) -> Vec<(String, Fault)> {
        let before = self.problems.remove(clique).unwrap_or_default();
        for node in before.keys().chain(problems.keys()) {
            if before.get(node) != problems.get(node) {
                self.touch_cds_on(node);
            }
        }
        let new = problems.iter().filter(|(node, fault)| before.get(*node) != Some(fault));
        let new = new.map(|(node, fault)| (node.clone(), fault.clone())).collect();
        if !problems.is_empty() {
            self.problems.insert(clique.into(), problems);
        }
        new
    }

    /// Why the API server has taken no template of the ComputeDomain; none when it has.
    pub fn set_refusal(&mut self, cd_uid: &str, why: Option<String>) {
        let before = match why.clone() {
            Some(why) => self.refusals.insert(cd_uid.into(), why),
            None => self.refusals.remove(cd_uid),
        };
        if before != why {
            self.dirty.cds.insert(cd_uid.into());
        }
    }

    /// The ComputeDomain lives, and the channel that it had last was taken back because nobody used it.
    pub fn taken_back(&self, cd_uid: &str) -> bool {
        self.taken_back.has(cd_uid)
    }

    /// Why the API server takes no template of the ComputeDomain.
    pub fn refusal(&self, cd_uid: &str) -> Option<&str> {
        self.refusals.get(cd_uid).map(String::as_str)
    }

    /// The ComputeDomain of this UID.
    pub fn cd(&self, uid: &str) -> Option<&Cd> {
        self.cds.get(uid)
    }

    /// All ComputeDomains.
    pub fn cds(&self) -> impl Iterator<Item = &Cd> {
        self.cds.values()
    }

    /// The claims labelled with this UID, of whatever namespace.
    fn claims_of(&self, uid: &str) -> impl Iterator<Item = &LabelledClaim> {
        self.claims_by_cd.get(uid).filter_map(|claim| self.claims.get(claim))
    }

    /// The claims of a ComputeDomain: labelled so, in its own namespace.
    pub fn claims(&self, cd: &Cd) -> impl Iterator<Item = &LabelledClaim> {
        self.claims_of(cd.uid()).filter(|claim| claim.key.namespace == cd.reference.namespace)
    }

    /// The ComputeDomains whose claims are allocated on the node.
    pub fn cds_on(&self, node: &str) -> BTreeMap<&str, &Cd> {
        let claims = self.claims_by_node.get(node).filter_map(|claim| self.claims.get(claim));
        let cds = claims
            .filter_map(|claim| self.cds.get(&claim.cd_uid).filter(|cd| cd.reference.namespace == claim.key.namespace));
        cds.map(|cd| (cd.uid(), cd)).collect()
    }

    /// The template of this namespace and name, foreign ones only as far as they stand in the way.
    pub fn template(&self, key: &TemplateKey) -> Option<&ResourceClaimTemplate> {
        self.templates.get(key)
    }

    /// The templates of the ComputeDomain with this UID, as [`template_owner`] says.
    pub fn templates_of(&self, uid: &str) -> impl Iterator<Item = &ResourceClaimTemplate> {
        self.templates_by_cd.get(uid).into_iter().flatten().filter_map(|key| self.templates.get(key))
    }

    /// The template by which the ComputeDomain is served.
    pub fn served_by(&self, cd: &Cd) -> Option<&ResourceClaimTemplate> {
        let beside =
            |template: &&ResourceClaimTemplate| template.metadata.namespace.as_ref() == Some(&cd.reference.namespace);
        self.templates_of(cd.uid()).filter(beside).find(|template| ours(template))
    }

    /// Whether the ComputeDomain wants IMEX domains and nodes of its own. While another's schema is served its spec does not
    /// say so, and never again if it was written meanwhile: its template tells.
    pub fn exclusive(&self, cd: &Cd) -> bool {
        cd.exclusive() || self.served_by(cd).is_some_and(asks_all)
    }

    /// Why the ComputeDomain must not begin to be served. One that is served already goes on.
    pub fn obstacle(&self, cd: &Cd) -> Option<Fault> {
        if self.served_by(cd).is_some() {
            return None;
        }
        let unread = || cd.origin.pruned.then(|| schema::outdated(names::COMPUTE_DOMAIN_CRD, &[MISSING.into()], &[]));
        cd.doubt().or_else(|| self.misfit().cloned()).or_else(unread)
    }

    /// What was decided for it under our schema stands: now its spec is read through another's.
    pub fn stands(&self, cd: &Cd) -> bool {
        self.misfit().is_some() || cd.origin.pruned
    }

    /// The Node, if it exists.
    pub fn node(&self, node: &str) -> Option<NodeState> {
        self.nodes.get(node).copied()
    }

    /// Nobody on the node can be waited for: it is gone, or contact with it is lost.
    pub fn lost(&self, node: &str) -> bool {
        self.node(node).is_none_or(|state| state.lost)
    }

    /// The IMEXNode of this name.
    pub fn imex_node(&self, node: &str) -> Option<&IMEXNode> {
        self.imex_nodes.get(node)
    }

    /// The IMEXNodes that name the domain or that the domain names: all that may have entered it or yet can.
    pub fn nodes_of(&self, domain: &IMEXDomain) -> Vec<IMEXNode> {
        let mut names: BTreeSet<&str> = self.nodes_by_domain.get(name(domain)).collect();
        names.extend(domain.spec.members.keys().map(String::as_str));
        names.into_iter().filter_map(|node| self.imex_nodes.get(node).cloned()).collect()
    }

    /// The nodes that name the domain, as the one they are to serve, serve, or have entered.
    pub fn nodes_in(&self, domain: &str) -> impl Iterator<Item = &IMEXNode> {
        self.nodes_by_domain.get(domain).filter_map(|node| self.imex_nodes.get(node))
    }

    /// The nodes that report this clique, and those that are in one of its domains.
    pub fn nodes_of_clique(&self, clique: &str) -> BTreeSet<&str> {
        let mut nodes: BTreeSet<&str> = self.nodes_by_clique.get(clique).collect();
        for domain in self.domains_of_clique(clique) {
            nodes.extend(self.nodes_by_domain.get(name(domain)));
            nodes.extend(domain.spec.members.keys().map(String::as_str));
        }
        nodes
    }

    /// The nodes that have entered a channel of the ComputeDomain.
    pub fn nodes_with(&self, cd_uid: &str) -> impl Iterator<Item = &IMEXNode> {
        self.nodes_by_cd.get(cd_uid).filter_map(|node| self.imex_nodes.get(node))
    }

    /// The IMEXDomain of this name.
    pub fn domain(&self, domain: &str) -> Option<&IMEXDomain> {
        self.domains.get(domain)
    }

    /// The IMEXDomains of a clique.
    pub fn domains_of_clique(&self, clique: &str) -> impl Iterator<Item = &IMEXDomain> {
        self.domains_by_clique.get(clique).filter_map(|domain| self.domains.get(domain))
    }

    /// The IMEXDomains in which the ComputeDomain has a channel, and those that are its own.
    pub fn domains_with(&self, cd_uid: &str) -> impl Iterator<Item = &IMEXDomain> {
        self.domains_by_cd.get(cd_uid).filter_map(|domain| self.domains.get(domain))
    }

    /// What is wrong with the node.
    pub fn problem(&self, node: &str) -> Option<&Fault> {
        let clique = clique_of(self.imex_nodes.get(node)?)?;
        self.problems.get(clique)?.get(node)
    }

    /// An object cannot be read, or can be again. Of kinds that are not Heddle's own what was known before is all that is
    /// needed.
    pub fn set_unreadable(&mut self, kind: Kind, key: &str, unreadable: bool) {
        let known = match kind {
            Kind::ImexNode => &mut self.unreadable_nodes,
            Kind::Domain => &mut self.unreadable_domains,
            _ => return,
        };
        let changed = if unreadable { known.insert(key.into()) } else { known.remove(key) };
        if changed && kind == Kind::ImexNode {
            let domains = self.domains.values().filter(|domain| domain.spec.members.contains_key(key));
            self.dirty.cliques.extend(domains.map(|domain| domain.spec.clique.clone()));
        } else if changed {
            // Which clique it is of may never have been known.
            self.touch_cliques();
        }
    }

    /// Whether there is an IMEXDomain of this name of which nothing is known, as nobody could ever read it.
    pub fn is_unknown_domain(&self, domain: &str) -> bool {
        self.unreadable_domains.contains(domain) && !self.domains.contains_key(domain)
    }

    /// The IMEXNodes that exist and that nobody can read: whether they use a channel is not known.
    pub fn unreadable_nodes(&self) -> &BTreeSet<String> {
        &self.unreadable_nodes
    }

    /// Everything of one kind that the view knows to exist, by the key under which it is dropped.
    pub fn keys(&self, kind: Kind) -> BTreeSet<String> {
        match kind {
            Kind::Cd => self.cds.keys().cloned().collect(),
            Kind::Claim => self.claims.keys().cloned().collect(),
            Kind::Template => self.templates.keys().map(|(namespace, name)| format!("{namespace}/{name}")).collect(),
            Kind::Node => self.nodes.keys().cloned().collect(),
            Kind::ImexNode => self.imex_nodes.keys().chain(&self.unreadable_nodes).cloned().collect(),
            Kind::Domain => self.domains.keys().chain(&self.unreadable_domains).cloned().collect(),
        }
    }

    /// Drops one object.
    pub fn drop(&mut self, kind: Kind, key: &str) {
        self.set_unreadable(kind, key, false);
        match kind {
            Kind::Cd => self.drop_cd(key),
            Kind::Claim => self.drop_claim(key),
            Kind::Template => {
                if let Some((namespace, name)) = key.split_once('/') {
                    self.drop_template(&(namespace.into(), name.into()));
                }
            }
            Kind::Node => self.drop_node(key),
            Kind::ImexNode => self.drop_imex_node(key),
            Kind::Domain => self.drop_domain(key),
        }
    }
}

/// The kinds of objects that the controller watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// ComputeDomains, by UID.
    Cd,
    /// Labelled ResourceClaims, by UID.
    Claim,
    /// Labelled ResourceClaimTemplates, by `namespace/name`.
    Template,
    /// Nodes, by name.
    Node,
    /// IMEXNodes, by name.
    ImexNode,
    /// IMEXDomains, by name.
    Domain,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Cd, Self::Claim, Self::Template, Self::Node, Self::ImexNode, Self::Domain];

    /// The kind of its objects in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cd => "ComputeDomain",
            Self::Claim => "ResourceClaim",
            Self::Template => "ResourceClaimTemplate",
            Self::Node => "Node",
            Self::ImexNode => "IMEXNode",
            Self::Domain => "IMEXDomain",
        }
    }
}

/// Namespace and name of a template.
pub fn template_key(metadata: &ObjectMeta) -> Option<TemplateKey> {
    Some((metadata.namespace.clone()?, metadata.name.clone()?))
}

/// The UID of the ComputeDomain that a template is of: for one of ours the UID in its config, which nobody can change,
/// whatever was done to its labels; else that on its label.
pub fn template_owner(template: &ResourceClaimTemplate) -> Option<&str> {
    let of_config = || configured(template).filter(|_| ours(template));
    of_config().or_else(|| template_label(template))
}

/// The UID on a template's label. Without it no watch tells of the template.
pub(super) fn template_label(template: &ResourceClaimTemplate) -> Option<&str> {
    Some(template.meta().labels.as_ref()?.get(names::COMPUTE_DOMAIN_LABEL)?.as_str())
}
