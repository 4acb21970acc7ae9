use std::fmt::Debug;
use std::pin::pin;

use futures::StreamExt;
use heddle_core::fault::{Fault, reason};
use kube::core::DeserializeGuard;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::cause;

/// Tells of every change of one object for ever; `None` when it does not exist. A watch that breaks is resumed, an API
/// server that is away is waited for. Of a change that cannot be read nothing is told but in the log: the object counts
/// for what it was before.
pub(super) async fn object<K>(client: Client, name: String, tell: impl Fn(Option<K>)) -> Result<(), Fault>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut changes = pin!(watcher::watch_object(Api::all(client), &name).default_backoff());
    while let Some(change) = changes.next().await {
        match change {
            Ok(change) => match read(change) {
                Ok(object) => tell(object),
                Err(why) => tracing::error!("{why}"),
            },
            Err(error) => {
                let why = cause::told(&error);
                tracing::warn!(object = %name, "the watch is interrupted and will be resumed: {why}");
            }
        }
    }
    Err(Fault::retryable(reason::API_UNAVAILABLE, format!("the watch of {name} has ended")))
}

/// What there is now, or why nobody can read it.
fn read<K: Resource<DynamicType = ()>>(change: Option<DeserializeGuard<K>>) -> Result<Option<K>, String> {
    let Some(guard) = change else { return Ok(None) };
    guard.0.map(Some).map_err(|invalid| {
        let (kind, name, why) = (K::kind(&()), invalid.metadata.name.unwrap_or_default(), invalid.error);
        format!("{kind} {name} cannot be read and is taken for what it was before; correct or delete it: {why}")
    })
}

/// Whether `known` is a newer copy of the same object than `seen`. Resource versions of one object are ordered numbers
/// (Kubernetes KEP-5504); where they are none, what was seen last counts.
pub(super) fn is_newer<K: Resource>(known: &K, seen: &K) -> bool {
    let version = |object: &K| object.resource_version().and_then(|version| version.parse::<u64>().ok());
    known.meta().uid == seen.meta().uid && version(known) > version(seen) && version(seen).is_some()
}

#[cfg(test)]
mod tests {
    use heddle_core::api::{IMEXNode, IMEXNodeSpec};

    use super::*;

    fn copy(uid: &str, version: &str) -> IMEXNode {
        let mut node = IMEXNode::new("n", IMEXNodeSpec::default());
        node.metadata.uid = Some(uid.into());
        node.metadata.resource_version = Some(version.into());
        node
    }

    #[test]
    fn an_object_that_cannot_be_read_is_named_with_what_is_wrong_in_it() {
        let seen = |status: serde_json::Value| {
            let object = serde_json::json!({"apiVersion": "imex.heddle.dev/v1alpha1", "kind": "IMEXNode",
                "metadata": {"name": "n7"}, "spec": {}, "status": status});
            read::<IMEXNode>(Some(serde_json::from_value(object).unwrap()))
        };
        assert_eq!(seen(serde_json::json!({"channelCount": 5})).unwrap().unwrap().status.unwrap().channel_count, 5);
        let why = seen(serde_json::json!({"channelCount": 1_u64 << 32})).unwrap_err();
        assert!(why.starts_with("IMEXNode n7 cannot be read") && why.contains("4294967296"), "{why}");
        assert!(read::<IMEXNode>(None).unwrap().is_none());
    }

    #[test]
    fn an_old_copy_never_takes_the_place_of_a_newer_one() {
        assert!(is_newer(&copy("a", "10"), &copy("a", "9")));
        assert!(!is_newer(&copy("a", "9"), &copy("a", "10")));
        assert!(!is_newer(&copy("a", "10"), &copy("a", "10")));
        assert!(!is_newer(&copy("a", "10"), &copy("b", "9")), "another object of the same name");
        assert!(!is_newer(&copy("a", "x"), &copy("a", "w")));
        assert!(!is_newer(&copy("a", "10"), &copy("a", "w")));
    }
}
