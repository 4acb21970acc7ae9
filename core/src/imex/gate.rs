use super::{exclusive_domain_name, refusal, shared_domain_name};
use crate::api::{ComputeDomainRef, IMEXNode, IsolationMode};
use crate::fault::{Fault, reason};
use crate::inventory::Fabric;

/// Whether a claim may enter its ComputeDomain's channel now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    /// The node has no NVLink fabric: no channel, no wait.
    NoFabric,
    /// In this IMEX domain.
    Open {
        /// Its name.
        domain: String,
    },
    /// Not before something changes.
    Wait(Fault),
    /// The fabric must not be used.
    Refuse(Fault),
}

/// Decides from the fabric, the node's own object and `ready`: the domain in which the daemon is READY, or why it is
/// in none. What is not known yet is `None`. `withheld`: why the node gives no channel whatever its fabric is.
pub fn gate(
    cd: &ComputeDomainRef,
    mode: IsolationMode,
    fabric: Option<&Fabric>,
    node: Option<&IMEXNode>,
    ready: &Result<String, String>,
    withheld: Option<&Fault>,
) -> Gate {
    let wait = |reason, text: String| Gate::Wait(Fault::retryable(reason, text));
    let has_fabric = fabric.is_some_and(|fabric| *fabric != Fabric::None);
    if let Some(fault) = withheld.filter(|_| has_fabric) {
        return Gate::Refuse(fault.clone());
    }
    let clique = match fabric {
        Some(Fabric::None) => return Gate::NoFabric,
        Some(Fabric::Unhealthy(why)) => {
            let text = format!("the NVLink fabric of this node is not healthy: {why}");
            return Gate::Refuse(Fault::retryable(reason::FABRIC_UNHEALTHY, text));
        }
        Some(Fabric::Pending(what)) => {
            return wait(reason::FABRIC_UNHEALTHY, format!("the NVLink fabric of this node is coming up: {what}"));
        }
        None => return wait(reason::NVML, "the GPUs of this node have not been read yet".into()),
        Some(Fabric::Ready(clique)) => clique,
    };
    let Some(node) = node else {
        return wait(reason::API_UNAVAILABLE, "this node's IMEXNode has not been read yet".into());
    };
    if let Some(fault) = refusal(node) {
        return Gate::Refuse(fault);
    }
    let needed = match mode {
        IsolationMode::Channel => shared_domain_name(clique),
        IsolationMode::Domain => exclusive_domain_name(clique, &cd.uid),
    };
    let kind = match mode {
        IsolationMode::Channel => "the shared IMEX domain of its clique",
        IsolationMode::Domain => "an IMEX domain of its own",
    };
    let who = format!("ComputeDomain {}/{} needs {kind} ({needed})", cd.namespace, cd.name);
    match node.spec.domain.as_deref() {
        Some(assigned) if assigned == needed => {}
        Some(other) => return wait(reason::DOMAIN_PENDING, format!("{who}, this node still belongs to {other}")),
        None => {
            return wait(reason::DOMAIN_PENDING, format!("{who}, the controller has not assigned this node to it yet"));
        }
    }
    match ready {
        Ok(domain) if *domain == needed => {}
        Ok(other) => {
            return wait(reason::DAEMON_NOT_READY, format!("{who}, the IMEX daemon of this node serves {other}"));
        }
        Err(why) => return wait(reason::DAEMON_NOT_READY, why.clone()),
    }
    // Channel 0 is never given away.
    let count = node.status.as_ref().map_or(0, |status| status.channel_count);
    if count < 2 {
        return wait(
            reason::NO_CHANNELS,
            format!(
                "this node has {count} IMEX channels (ImexChannelCount in /proc/driver/nvidia/params) or their number has \
                 not been read yet; load the NVIDIA kernel module with NVreg_ImexChannelCount of 2 or more, the same on all \
                 nodes of the clique"
            ),
        );
    }
    Gate::Open { domain: needed }
}

#[cfg(test)]
mod tests {
    use super::super::domain::tests::{clique, node};
    use super::*;
    use crate::api::IMEXNodeStatus;

    fn cd() -> ComputeDomainRef {
        ComputeDomainRef { namespace: "ns".into(), name: "green".into(), uid: "u".into() }
    }

    fn member(domain: &str) -> IMEXNode {
        let mut node = node("n0", domain);
        node.status = Some(IMEXNodeStatus { channel_count: 2048, ..Default::default() });
        node
    }

    fn decide(mode: IsolationMode, fabric: Option<Fabric>, node: Option<IMEXNode>, ready: Result<&str, &str>) -> Gate {
        let ready = ready.map(Into::into).map_err(Into::into);
        gate(&cd(), mode, fabric.as_ref(), node.as_ref(), &ready, None)
    }

    #[test]
    fn each_mode_enters_its_own_kind_of_domain() {
        for (mode, domain) in [
            (IsolationMode::Channel, shared_domain_name(&clique())),
            (IsolationMode::Domain, exclusive_domain_name(&clique(), "u")),
        ] {
            let open = decide(mode, Some(Fabric::Ready(clique())), Some(member(&domain)), Ok(&domain));
            assert_eq!(open, Gate::Open { domain });
        }
    }

    #[test]
    fn a_node_without_fabric_needs_nothing_else() {
        assert_eq!(decide(IsolationMode::Channel, Some(Fabric::None), None, Err("")), Gate::NoFabric);
    }

    #[test]
    fn what_is_missing_is_named() {
        let shared = shared_domain_name(&clique());
        let fabric = || Some(Fabric::Ready(clique()));
        let mut uncounted = member(&shared);
        uncounted.status = None;
        let mut only_channel_0 = member(&shared);
        only_channel_0.status.as_mut().unwrap().channel_count = 1;
        let mut unassigned = member(&shared);
        unassigned.spec.domain = None;
        for (fabric, node, ready, expected) in [
            (None, None, Ok("x"), reason::NVML),
            (Some(Fabric::Pending("probing".into())), None, Ok("x"), reason::FABRIC_UNHEALTHY),
            (fabric(), None, Ok("x"), reason::API_UNAVAILABLE),
            (fabric(), Some(unassigned), Ok("x"), reason::DOMAIN_PENDING),
            (fabric(), Some(member("exclusive-x")), Ok("x"), reason::DOMAIN_PENDING),
            (fabric(), Some(member(&shared)), Ok("exclusive-x"), reason::DAEMON_NOT_READY),
            (fabric(), Some(member(&shared)), Err("INIT_GPU"), reason::DAEMON_NOT_READY),
            (fabric(), Some(uncounted), Ok(shared.as_str()), reason::NO_CHANNELS),
            (fabric(), Some(only_channel_0), Ok(shared.as_str()), reason::NO_CHANNELS),
        ] {
            match decide(IsolationMode::Channel, fabric, node, ready) {
                Gate::Wait(fault) => assert_eq!(fault.reason, expected, "{fault}"),
                other => panic!("{expected}: {other:?}"),
            }
        }
    }

    #[test]
    fn what_is_withheld_is_refused_where_there_is_a_fabric() {
        let shared = shared_domain_name(&clique());
        let fault = Fault::retryable(reason::RUNTIME_GUARD_OPEN, "set x in /y");
        let decide = |fabric: Option<Fabric>| {
            let node = member(&shared);
            gate(&cd(), IsolationMode::Channel, fabric.as_ref(), Some(&node), &Ok(shared.clone()), Some(&fault))
        };
        assert_eq!(decide(Some(Fabric::Ready(clique()))), Gate::Refuse(fault.clone()));
        assert_eq!(decide(Some(Fabric::None)), Gate::NoFabric, "nothing to reach");
        assert!(matches!(decide(None), Gate::Wait(_)), "it may yet be none");
    }

    #[test]
    fn a_node_that_the_controller_refuses_says_why_where_it_matters() {
        let shared = shared_domain_name(&clique());
        let mut node = member(&shared);
        let text = "node n0 has 1024 IMEX channels";
        node.spec.refused = Some(crate::api::Refusal { reason: "MemberMismatch".into(), message: text.into() });
        let gate = decide(IsolationMode::Channel, Some(Fabric::Ready(clique())), Some(node.clone()), Ok(&shared));
        assert_eq!(gate, Gate::Refuse(Fault::retryable(reason::MEMBER_MISMATCH, text)));
        assert_eq!(decide(IsolationMode::Channel, Some(Fabric::None), Some(node), Err("")), Gate::NoFabric);
    }

    #[test]
    fn an_unhealthy_fabric_is_said_at_once() {
        let gate = decide(IsolationMode::Channel, Some(Fabric::Unhealthy("route recovery".into())), None, Err(""));
        assert!(matches!(gate, Gate::Refuse(fault) if fault.message.contains("route recovery")));
    }
}
