//! Which decisions a change asks for.

use std::collections::BTreeSet;

use super::{TemplateKey, View, template_owner};
use crate::api::{ChannelState, IMEXNode};
use crate::controller::LabelledClaim;
use crate::controller::relations::{cds_of, clique_of, domains_of, users_of};
use crate::protocol::exhausted;

impl View {
    /// Marks the ComputeDomains that ask for so many nodes: the cluster has just got, or lost, as many.
    pub(super) fn touch_cds_of_size(&mut self, nodes: usize) {
        let size = i32::try_from(nodes).unwrap_or(i32::MAX);
        self.dirty.cds.extend(self.cds_by_size.get(&size).into_iter().flatten().cloned());
    }

    /// Marks everything, after the first sync.
    pub fn touch_all(&mut self) {
        self.dirty.cds.extend(self.cds.keys().chain(self.templates_by_cd.keys()).cloned());
        self.touch_cliques();
        self.dirty.nodes.extend(self.imex_nodes.keys().cloned());
    }

    pub(super) fn touch_cliques(&mut self) {
        self.dirty.cliques.extend(self.nodes_by_clique.keys().chain(self.domains_by_clique.keys()).map(String::from));
    }

    pub(super) fn touch_cd(&mut self, uid: &str, turned: bool) {
        self.dirty.cds.insert(uid.into());
        if !turned {
            return;
        }
        let domains = self.domains_by_cd.get(uid).filter_map(|domain| self.domains.get(domain));
        self.dirty.cliques.extend(domains.map(|domain| domain.spec.clique.clone()));
        let nodes: Vec<String> = self.claims_of(uid).flat_map(|claim| &claim.nodes).cloned().collect();
        let cliques = nodes.iter().filter_map(|node| clique_of(self.imex_nodes.get(node)?));
        self.dirty.cliques.extend(cliques.map(String::from));
        // Others may wait for this one's template.
        let templates = self.templates_by_cd.get(uid).into_iter().flatten().cloned().collect::<Vec<_>>();
        templates.iter().for_each(|key| self.touch_template(key));
    }

    pub(super) fn touch_claim(&mut self, claim: &LabelledClaim) {
        self.dirty.cds.insert(claim.cd_uid.clone());
        let moves = self.cds.get(&claim.cd_uid).is_none_or(|cd| self.exclusive(cd));
        let nodes = claim.nodes.iter().filter_map(|node| self.imex_nodes.get(node));
        let concerned = nodes.filter(|node| moves || self.lacks_a_number(node, &claim.cd_uid));
        let cliques: Vec<_> = concerned.filter_map(clique_of).map(String::from).collect();
        self.dirty.cliques.extend(cliques);
    }

    /// A claim of the ComputeDomain on this node finds its channel draining, or none to be had.
    fn lacks_a_number(&self, node: &IMEXNode, cd_uid: &str) -> bool {
        let domain = node.spec.domain.as_ref().and_then(|domain| self.domains.get(domain));
        let Some(domain) = domain else { return false };
        let entry = domain.status.as_ref().and_then(|status| status.channels.get(cd_uid));
        let count = node.status.as_ref().map_or(0, |status| status.channel_count);
        entry.map_or_else(|| exhausted(domain, count), |entry| entry.state == ChannelState::Draining)
    }

    /// Marks the ComputeDomains that want this template.
    pub fn touch_template(&mut self, key: &TemplateKey) {
        if let Some(uid) = self.templates.get(key).and_then(template_owner) {
            self.dirty.cds.insert(uid.into());
        }
        let name = format!("{}/{}", key.0, key.1);
        let waiting = self.cds_by_template.get(&name);
        self.dirty.cds.extend(waiting.map(String::from));
    }

    pub(super) fn touch_node(&mut self, node: &str) {
        self.dirty.nodes.insert(node.into());
        if let Some(object) = self.imex_nodes.get(node) {
            self.dirty.cliques.extend(clique_of(object).map(String::from));
            let domains = domains_of(object).filter_map(|domain| self.domains.get(domain));
            self.dirty.cliques.extend(domains.map(|domain| domain.spec.clique.clone()));
            self.dirty.cds.extend(cds_of(object).map(String::from));
            self.dirty.cds.extend(self.owners_of_what_it_lists(object));
        }
        self.touch_cds_on(node);
    }

    /// The ComputeDomains whose numbers the node uses for others.
    fn owners_of_what_it_lists(&self, node: &IMEXNode) -> BTreeSet<String> {
        let listed = node.status.iter().flat_map(|status| &status.channels);
        let owners = listed.filter_map(|(uid, entry)| {
            let channels = &self.domains.get(&entry.domain)?.status.as_ref()?.channels;
            let same = channels.get(uid).is_some_and(|known| known.channel == entry.channel);
            let owner = || channels.iter().find(|(_, known)| known.channel == entry.channel);
            if same { None } else { owner().map(|(uid, _)| uid.clone()) }
        });
        owners.collect()
    }

    pub(super) fn touch_cds_on(&mut self, node: &str) {
        let claims = self.claims_by_node.get(node).filter_map(|claim| self.claims.get(claim));
        self.dirty.cds.extend(claims.map(|claim| claim.cd_uid.clone()));
    }

    pub(super) fn touch_domain(&mut self, domain: &str) {
        let Some(object) = self.domains.get(domain) else { return };
        self.dirty.cliques.insert(object.spec.clique.clone());
        self.dirty.cds.extend(users_of(object).map(String::from));
        let members: Vec<String> = object.spec.members.keys().cloned().collect();
        members.iter().for_each(|node| self.touch_cds_on(node));
    }
}
