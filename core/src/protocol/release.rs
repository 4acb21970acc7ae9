use std::collections::BTreeMap;

use super::name;
use crate::api::{IMEXNode, IMEXNodeStatus, NodeChannel};
use crate::fault::{Fault, reason};

/// For how long the kubelet's lease says that the kubelet lives, in seconds, where the lease itself does not say.
/// The kubelet's default of `nodeLeaseDurationSeconds`.
pub const LEASE_SECONDS: u64 = 40;

/// What the cluster knows of a node's life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// The status of the Node's Ready condition: `True`, `False` or `Unknown`. None if there is no such Node.
    pub ready: Option<String>,
    /// Since when the Node's Ready condition has its status, RFC 3339.
    pub since: Option<String>,
    /// Age in seconds of the last renewal of the kubelet's lease, and for how long it counts. None without one.
    pub lease: Option<(u64, u64)>,
}

impl Life {
    /// Why the node may still run containers, in words that follow the node's name. None if it is lost: nobody has
    /// heard of it for as long as Kubernetes itself gives it.
    pub fn sign(&self) -> Option<String> {
        if let Some((age, valid)) = self.lease.filter(|(age, valid)| age < valid) {
            return Some(format!("has renewed its lease {age} s ago (it counts for {valid} s)"));
        }
        match self.ready.as_deref() {
            None | Some("Unknown") => None,
            // Its kubelet says so itself, and containers may run.
            Some("False") => Some("is NotReady, and its kubelet says so itself".into()),
            Some(_) => Some("is Ready".into()),
        }
    }

    /// How the node was lost, in words that follow its name.
    pub fn lost(&self) -> Option<String> {
        if self.sign().is_some() {
            return None;
        }
        let since = self.since.as_ref().map(|since| format!(" since {since}")).unwrap_or_default();
        Some(match self.ready {
            None => "has no Node any more".into(),
            Some(_) => format!("has lost contact with the cluster{since}"),
        })
    }
}

/// Channels taken off a node that will not use them again.
#[derive(Clone, Debug, PartialEq)]
pub struct Release {
    /// What is taken off, by ComputeDomain UID.
    pub channels: BTreeMap<String, NodeChannel>,
    /// The whole new status of the IMEXNode.
    pub status: IMEXNodeStatus,
}

/// Takes what a node lists off its IMEXNode, all of it or that of one ComputeDomain, because a person says that the
/// node is off for good and that nothing on it uses a channel any more. The number is then freed as after a leave.
///
/// Guard of the write: the resourceVersion of `node`, so that an enter of an agent that lives after all either comes
/// first, and this write fails, or fails itself.
///
/// # Errors
/// A permanent fault if the node seems to live and nobody has `vouched` that it is off, or if it lists no such channel.
pub fn release(node: &IMEXNode, cd_uid: Option<&str>, life: &Life, vouched: bool) -> Result<Release, Fault> {
    let node_name = name(node);
    if let Some(sign) = life.sign().filter(|_| !vouched) {
        let text = format!(
            "node {node_name} {sign}: its pods may be using the channels; drain it, or make sure that it is powered off"
        );
        return Err(Fault::permanent(reason::NODE_ALIVE, text));
    }
    let mut status = node.status.clone().unwrap_or_default();
    let all = std::mem::take(&mut status.channels);
    let (channels, kept) = all.into_iter().partition(|(uid, _)| cd_uid.is_none_or(|wanted| wanted == uid));
    status.channels = kept;
    let release = Release { channels, status };
    if release.channels.is_empty() {
        let which = cd_uid.map(|uid| format!(" of ComputeDomain {uid}")).unwrap_or_default();
        let text = format!("node {node_name} lists no channel{which}: there is nothing to release");
        return Err(Fault::permanent(reason::NOTHING_TO_RELEASE, text));
    }
    Ok(release)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{drain, fences, free, samples::*};

    fn life(ready: Option<&str>, lease: Option<(u64, u64)>) -> Life {
        Life { ready: ready.map(String::from), since: None, lease }
    }

    #[test]
    fn a_node_that_may_run_containers_is_not_released() {
        let node = listing("d", "green", 7);
        for (life, words) in [
            (life(Some("True"), None), "is Ready"),
            (life(Some("False"), None), "is NotReady"),
            (life(Some("Unknown"), Some((12, 40))), "12 s ago"),
            (life(None, Some((3, 40))), "3 s ago"),
        ] {
            let fault = release(&node, None, &life, false).unwrap_err();
            assert!(fault.reason == reason::NODE_ALIVE && fault.message.contains(words), "{fault}");
            assert!(life.lost().is_none());
            assert!(release(&node, None, &life, true).is_ok(), "somebody has looked");
        }
        for life in [life(None, None), life(Some("Unknown"), Some((41, 40))), life(None, Some((40, 40)))] {
            assert!(release(&node, None, &life, false).is_ok(), "{life:?}");
            assert!(life.lost().is_some());
        }
    }

    #[test]
    fn all_or_one_compute_domain_is_released_and_the_rest_of_the_status_kept() {
        let mut node = listing("d", "green", 7);
        node.status.as_mut().unwrap().channels.extend(listing("x", "blue", 2).status.unwrap().channels);
        node.status.as_mut().unwrap().boot_id = "boot".into();
        let one = release(&node, Some("green"), &Life::default(), false).unwrap();
        assert_eq!((one.channels["green"].channel, one.channels.len(), one.status.channels.len()), (7, 1, 1));
        assert_eq!(one.status.boot_id, "boot");
        let all = release(&node, None, &Life::default(), false).unwrap();
        assert!(all.channels.len() == 2 && all.status.channels.is_empty());
        for nothing in [release(&node, Some("pink"), &Life::default(), false), {
            node.status = None;
            release(&node, None, &Life::default(), false)
        }] {
            assert_eq!(nothing.unwrap_err().reason, reason::NOTHING_TO_RELEASE);
        }
    }

    #[test]
    fn a_released_number_is_freed_only_behind_a_fence() {
        let mut domain = with_channel(shared("d"), "green", 7);
        domain.status = drain(&domain, &["green".to_string()].into());
        let mut node = listing("d", "green", 7);
        assert_eq!(free(&domain, &[node.clone()]), None, "in quarantine");
        node.status = Some(release(&node, None, &Life::default(), false).unwrap().status);
        assert_eq!(free(&domain, &[node.clone()]), None, "its agent may wake with a view from before the drain");
        node.spec.fence = fences(&domain, &[node.clone()]).pop().map(|(_, mark)| mark);
        assert!(free(&domain, &[node]).is_some());
    }
}
