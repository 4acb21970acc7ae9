use std::time::Duration;

use heddle_core::api::{IMEXNode, IMEXNodeSpec};
use heddle_core::fault::{Fault, reason};
use kube::{Api, Error, ResourceExt};

use super::params;
use crate::cause;

/// A write takes milliseconds. After this long it is decided anew; that it may still arrive is reckoned with.
const LIMIT: Duration = Duration::from_secs(10);

/// How a write of the own object ended.
#[derive(Debug)]
pub enum Written {
    /// This is there now, and no earlier write of ours can arrive any more: it would name a version that is gone.
    Done(Box<IMEXNode>),
    /// The API server found nothing to change, and gave no new version.
    Unchanged,
    /// Somebody else wrote first; this is there.
    Conflict(Box<IMEXNode>),
    /// The object does not exist.
    Gone,
    /// The API did not say that it was written. It may be written yet.
    Failed(Fault),
}

/// Writes the status, guarded by the resourceVersion of the copy that it was decided on.
pub(super) async fn status(api: Api<IMEXNode>, node: IMEXNode) -> Written {
    within(replace(api, node)).await
}

async fn replace(api: Api<IMEXNode>, node: IMEXNode) -> Written {
    let name = node.name_any();
    match api.replace_status(&name, &params(), &node).await {
        Ok(written) if written.resource_version() == node.resource_version() => Written::Unchanged,
        Ok(node) => Written::Done(Box::new(node)),
        Err(Error::Api(status)) if status.is_conflict() => match api.get_opt(&name).await {
            Ok(Some(node)) => Written::Conflict(Box::new(node)),
            Ok(None) => Written::Gone,
            Err(error) => failed(&error),
        },
        Err(Error::Api(status)) if status.is_not_found() => Written::Gone,
        Err(error) => failed(&error),
    }
}

/// Makes the own object, empty: the controller fills its spec.
pub(super) async fn create(api: Api<IMEXNode>, name: String) -> Written {
    within(post(api, name)).await
}

async fn post(api: Api<IMEXNode>, name: String) -> Written {
    let node = IMEXNode::new(&name, IMEXNodeSpec::default());
    match api.create(&params(), &node).await {
        Ok(node) => Written::Done(Box::new(node)),
        Err(Error::Api(status)) if status.is_already_exists() => match api.get_opt(&name).await {
            Ok(Some(node)) => Written::Conflict(Box::new(node)),
            Ok(None) => Written::Failed(Fault::retryable(reason::API_UNAVAILABLE, "it comes and goes")),
            Err(error) => failed(&error),
        },
        Err(error) => failed(&error),
    }
}

async fn within(write: impl Future<Output = Written>) -> Written {
    let late = |_| {
        let text = format!("no answer for {} s", LIMIT.as_secs());
        Written::Failed(Fault::retryable(reason::API_UNAVAILABLE, text))
    };
    tokio::time::timeout(LIMIT, write).await.unwrap_or_else(late)
}

fn failed(error: &Error) -> Written {
    Written::Failed(Fault::retryable(reason::API_UNAVAILABLE, cause::told(error)))
}
