//! Objects for tests.

use crate::api::{
    ChannelEntry, ChannelState, ComputeDomainRef, DomainKind, IMEXDomain, IMEXDomainSpec, IMEXNode, IMEXNodeSpec,
    NodeChannel,
};

pub fn cd(uid: &str) -> ComputeDomainRef {
    ComputeDomainRef { namespace: "team".into(), name: uid.into(), uid: uid.into() }
}

pub fn shared(name: &str) -> IMEXDomain {
    IMEXDomain::new(name, IMEXDomainSpec { max_members: 18, ..Default::default() })
}

pub fn exclusive(name: &str, owner: &str) -> IMEXDomain {
    let spec = IMEXDomainSpec {
        kind: DomainKind::Exclusive,
        compute_domain: Some(cd(owner)),
        max_members: 18,
        ..Default::default()
    };
    IMEXDomain::new(name, spec)
}

pub fn with_channel(mut domain: IMEXDomain, uid: &str, channel: u32) -> IMEXDomain {
    let status = domain.status.get_or_insert_default();
    status.epoch += 1;
    status.last_channel = channel;
    let entry = ChannelEntry {
        channel,
        state: ChannelState::Active,
        epoch: status.epoch,
        compute_domain: format!("team/{uid}"),
    };
    status.channels.insert(uid.into(), entry);
    domain
}

pub fn member_of(name: &str, domain: &str) -> IMEXNode {
    IMEXNode::new(name, IMEXNodeSpec { domain: Some(domain.into()), ..Default::default() })
}

/// Node `n1` in `domain`, listing one channel.
pub fn listing(domain: &str, uid: &str, channel: u32) -> IMEXNode {
    let mut node = member_of("n1", domain);
    let entry = NodeChannel { channel, domain: domain.into(), since: String::new() };
    node.status.get_or_insert_default().channels.insert(uid.into(), entry);
    node
}
