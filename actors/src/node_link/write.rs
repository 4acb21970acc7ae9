use heddle_core::api::{IMEXNode, IMEXNodeSpec};
use heddle_core::fault::{Fault, reason};
use kube::{Api, Error, ResourceExt};

use super::params;

/// How a write of the own object ended.
#[derive(Debug)]
pub enum Written {
    /// This is there now.
    Done(Box<IMEXNode>),
    /// Somebody else wrote first; this is there.
    Conflict(Box<IMEXNode>),
    /// The object does not exist.
    Gone,
    /// The API could not be asked, or refused.
    Failed(Fault),
}

/// Writes the status, guarded by the resourceVersion of the copy that it was decided on.
pub(super) async fn status(api: Api<IMEXNode>, node: IMEXNode) -> Written {
    let name = node.name_any();
    match api.replace_status(&name, &params(), &node).await {
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

fn failed(error: &Error) -> Written {
    Written::Failed(Fault::retryable(reason::API_UNAVAILABLE, error))
}
