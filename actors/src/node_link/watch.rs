use std::fmt::Debug;
use std::pin::pin;

use futures::StreamExt;
use heddle_core::fault::{Fault, reason};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::cause;

/// Tells of every change of one object for ever; `None` when it does not exist. A watch that breaks is resumed, an API
/// server that is away is waited for.
pub(super) async fn object<K>(api: Api<K>, name: String, tell: impl Fn(Option<K>)) -> Result<(), Fault>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut changes = pin!(watcher::watch_object(api, &name).default_backoff());
    while let Some(change) = changes.next().await {
        match change {
            Ok(object) => tell(object),
            Err(error) => {
                let why = cause::told(&error);
                tracing::warn!(object = %name, "the watch is interrupted and will be resumed: {why}");
            }
        }
    }
    Err(Fault::retryable(reason::API_UNAVAILABLE, format!("the watch of {name} has ended")))
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
    fn an_old_copy_never_takes_the_place_of_a_newer_one() {
        assert!(is_newer(&copy("a", "10"), &copy("a", "9")));
        assert!(!is_newer(&copy("a", "9"), &copy("a", "10")));
        assert!(!is_newer(&copy("a", "10"), &copy("a", "10")));
        assert!(!is_newer(&copy("a", "10"), &copy("b", "9")), "another object of the same name");
        assert!(!is_newer(&copy("a", "x"), &copy("a", "w")));
        assert!(!is_newer(&copy("a", "10"), &copy("a", "w")));
    }
}
