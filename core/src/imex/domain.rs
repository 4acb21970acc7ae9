use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{hosts, node_map, node_map_hash, short_hash};
use crate::api::{IMEXDomain, IMEXNode};
use crate::clique::CliqueId;

/// Name of the IMEXDomain that all ComputeDomains of a clique share.
pub fn shared_domain_name(clique: &CliqueId) -> String {
    format!("shared-{}", short_hash(&clique.to_string(), 12))
}

/// Name of the IMEXDomain that one ComputeDomain has to itself in a clique.
pub fn exclusive_domain_name(clique: &CliqueId, cd_uid: &str) -> String {
    format!("exclusive-{}", short_hash(&format!("{clique}/{cd_uid}"), 12))
}

/// Whether an IMEXDomain of this name is one that a ComputeDomain has to itself.
pub fn is_exclusive(domain: &str) -> bool {
    domain.starts_with("exclusive-")
}

/// All that a node's daemon needs to serve one IMEX domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DomainConfig {
    /// Name of the IMEXDomain.
    pub domain: String,
    /// The node map, byte for byte.
    pub node_map: String,
    /// This node's line in it, from 0.
    pub index: u32,
    /// Address and name of every line of the node map.
    pub hosts: Vec<(String, String)>,
    /// Keys of the daemon's configuration that are this domain's or this node's.
    pub settings: BTreeMap<String, String>,
}

impl DomainConfig {
    /// SHA-256 of the node map, in hex.
    pub fn node_map_hash(&self) -> String {
        node_map_hash(&self.node_map)
    }

    /// Whether a daemon that runs with `other` can go over to this configuration without a restart: all but the
    /// hosts is read once, at its start. The address at which it listens is too; whether that takes a restart is another
    /// question, see [`Self::is_reached_at`].
    pub fn needs_no_restart(&self, other: &Self) -> bool {
        let settings = |config: &Self| {
            let others = config.settings.iter().filter(|(key, _)| *key != BIND);
            others.map(|(key, value)| (key.clone(), value.clone())).collect::<BTreeMap<_, _>>()
        };
        (&self.domain, &self.node_map, self.index, settings(self))
            == (&other.domain, &other.node_map, other.index, settings(other))
    }

    /// The settings that the daemon gets beside the operator's, whose word on where it listens counts.
    pub fn settings_beside(&self, operator: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut settings = self.settings.clone();
        if operator.get(BIND).is_some_and(|bind| !bind.is_empty()) {
            settings.remove(BIND);
        }
        settings
    }

    /// The one address at which a daemon with this configuration listens; none where the operator has set it.
    pub fn listens_at(&self, operator: &BTreeMap<String, String>) -> Option<IpAddr> {
        self.settings_beside(operator).get(BIND)?.parse().ok()
    }

    /// The address at which peers look for this node's daemon.
    pub fn own_address(&self) -> Option<IpAddr> {
        self.settings.get(BIND)?.parse().ok()
    }

    /// Whether peers find a daemon that listens at this address alone; one of which nothing is known they do.
    pub fn is_reached_at(&self, listens_at: Option<IpAddr>) -> bool {
        let (Some(at), Some(own)) = (listens_at, self.own_address()) else { return true };
        at.is_unspecified() || at == own
    }
}

/// The daemon's setting for the address at which it listens.
pub const BIND: &str = "BIND_INTERFACE_IP";

/// What the node's daemon must serve, from the two objects that say so.
///
/// # Errors
/// The reason in words while they don't say it: not assigned yet, domain not read yet, no member yet, no address yet.
pub fn desired(node: &IMEXNode, domain: Option<&IMEXDomain>) -> Result<DomainConfig, String> {
    let node_name = node.metadata.name.as_deref().unwrap_or_default();
    let wanted = node.spec.domain.as_deref().ok_or_else(|| {
        format!("the controller has not assigned node {node_name} to an IMEX domain yet (IMEXNode spec.domain)")
    })?;
    let domain = domain
        .filter(|domain| domain.metadata.name.as_deref() == Some(wanted))
        .ok_or_else(|| format!("IMEXDomain {wanted}, which node {node_name} must serve, has not been read yet"))?;
    let member = domain
        .spec
        .members
        .get(node_name)
        .filter(|member| !member.away)
        .ok_or_else(|| format!("IMEXDomain {wanted} does not list node {node_name} as a member yet"))?;
    if member.address.is_empty() {
        return Err(format!("IMEXDomain {wanted} does not know the address of node {node_name} yet"));
    }
    Ok(DomainConfig {
        domain: wanted.to_owned(),
        node_map: node_map(wanted, domain.spec.max_members),
        index: member.index,
        hosts: hosts(domain),
        settings: BTreeMap::from([(BIND.to_owned(), member.address.clone())]),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::api::{IMEXDomainSpec, IMEXNodeSpec, Member};

    pub fn clique() -> CliqueId {
        "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.7".parse().unwrap()
    }

    /// Nodes `n0`, `n1`, … with the addresses `127.10.0.1`, `127.10.0.2`, …
    pub fn domain(name: &str, members: u32) -> IMEXDomain {
        let members = (0..members)
            .map(|index| {
                (format!("n{index}"), Member { index, address: format!("127.10.0.{}", index + 1), away: false })
            })
            .collect();
        IMEXDomain::new(
            name,
            IMEXDomainSpec { clique: clique().to_string(), max_members: 4, members, ..Default::default() },
        )
    }

    pub fn node(name: &str, domain: &str) -> IMEXNode {
        IMEXNode::new(name, IMEXNodeSpec { domain: Some(domain.into()), ..Default::default() })
    }

    #[test]
    fn names_of_domains_are_valid_and_differ_by_clique_and_compute_domain() {
        let other = CliqueId { id: 8, ..clique() };
        let names = [
            shared_domain_name(&clique()),
            shared_domain_name(&other),
            exclusive_domain_name(&clique(), "a"),
            exclusive_domain_name(&clique(), "b"),
            exclusive_domain_name(&other, "a"),
        ];
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        for name in &names {
            assert!(
                name.len() <= 63 && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            );
        }
        assert_eq!(names[0].len(), "shared-".len() + 12);
        assert_eq!(names.each_ref().map(|name| is_exclusive(name)), [false, false, true, true, true]);
    }

    #[test]
    fn what_to_serve_is_said_only_by_a_complete_view() {
        let domain = domain("d", 2);
        let config = desired(&node("n1", "d"), Some(&domain)).unwrap();
        assert_eq!((config.domain.as_str(), config.index), ("d", 1));
        assert_eq!(config.settings["BIND_INTERFACE_IP"], "127.10.0.2");
        assert_eq!(config.hosts.len(), 4);

        let mut unassigned = node("n1", "d");
        unassigned.spec.domain = None;
        assert!(desired(&unassigned, Some(&domain)).unwrap_err().contains("not assigned"));
        assert!(desired(&node("n1", "e"), Some(&domain)).unwrap_err().contains("IMEXDomain e"));
        assert!(desired(&node("n1", "d"), None).unwrap_err().contains("not been read"));
        assert!(desired(&node("n9", "d"), Some(&domain)).unwrap_err().contains("member"));

        let mut away = domain.clone();
        away.spec.members.get_mut("n1").unwrap().away = true;
        assert!(desired(&node("n1", "d"), Some(&away)).unwrap_err().contains("member"));
        let mut nowhere = domain.clone();
        nowhere.spec.members.get_mut("n1").unwrap().address.clear();
        assert!(desired(&node("n1", "d"), Some(&nowhere)).unwrap_err().contains("address"));
    }

    #[test]
    fn only_hosts_change_without_a_restart() {
        let config = desired(&node("n0", "d"), Some(&domain("d", 2))).unwrap();
        let joined = desired(&node("n0", "d"), Some(&domain("d", 3))).unwrap();
        assert_ne!(config, joined);
        assert!(joined.needs_no_restart(&config));
        let moved = desired(&node("n0", "e"), Some(&domain("e", 2))).unwrap();
        assert!(!moved.needs_no_restart(&config));
        let renumbered = DomainConfig { index: 3, ..config.clone() };
        assert!(!renumbered.needs_no_restart(&config));
    }

    #[test]
    fn issues_1443_and_1245_a_changed_address_is_no_restart_by_itself() {
        let config = desired(&node("n0", "d"), Some(&domain("d", 2))).unwrap();
        let mut moved = domain("d", 2);
        moved.spec.members.get_mut("n0").unwrap().address = "fd00::1".into();
        let moved = desired(&node("n0", "d"), Some(&moved)).unwrap();
        assert_ne!(config, moved);
        assert!(moved.needs_no_restart(&config));
        let at = |text: &str| Some(text.parse().unwrap());
        for (listens_at, reached) in
            [(at("127.10.0.1"), false), (at("fd00:0::1"), true), (at("0.0.0.0"), true), (at("::"), true), (None, true)]
        {
            assert_eq!(moved.is_reached_at(listens_at), reached, "{listens_at:?}");
        }
        let operator = BTreeMap::from([("BIND_INTERFACE_IP".to_owned(), "::".to_owned())]);
        assert_eq!((moved.listens_at(&BTreeMap::new()), moved.listens_at(&operator)), (at("fd00::1"), None));
        assert!(moved.settings_beside(&operator).is_empty());
    }
}
