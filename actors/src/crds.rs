//! Our CustomResourceDefinitions in a cluster: applied, and compared with what it serves.

use std::time::Duration;

use heddle_core::condition::enumerate;
use heddle_core::fault::{Fault, reason};
use heddle_core::{api, names, schema};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::runtime::wait::{Condition, conditions};
use kube::{Api, Client, ResourceExt};

use crate::cause;

/// What the API server may take until it serves a new CRD: so many looks, with this pause.
const LOOKS: u32 = 300;
const LOOK: Duration = Duration::from_millis(200);

/// What was done about one CRD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// There was none.
    Created,
    /// It was as it should be.
    Unchanged,
    /// It was ours.
    Updated,
    /// It was applied by these, who lost its fields by it.
    TakenOver(Vec<String>),
}

/// What may be done about a CRD that others have applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// Nothing.
    Refuse,
    /// It is taken over, if ours keeps all that theirs does.
    TakeOver,
    /// It is taken over, and objects may lose fields by it.
    Force,
}

/// Applies all CRDs by server-side apply and waits until they are served.
///
/// # Errors
/// Whose it is, what would be lost, or why the API refuses.
pub async fn apply(client: &Client, foreign: Foreign) -> Result<Vec<(String, Applied)>, Fault> {
    let api = Api::all(client.clone());
    let mut done = Vec::new();
    for ours in api::crds() {
        done.push((ours.name_any(), apply_one(&api, &ours, foreign).await?));
    }
    Ok(done)
}

/// Compares what is served with what this release needs.
///
/// # Errors
/// When the API cannot be asked.
pub async fn check(client: &Client) -> Result<Vec<(String, Option<Fault>)>, Fault> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut found = Vec::new();
    for ours in api::crds() {
        let name = ours.name_any();
        let misfit = match api.get_opt(&name).await.map_err(|error| refused(&name, &error))? {
            None => Some(schema::outdated(&name, &["it does not exist".into()], &[])),
            Some(served) => misfit(&ours, &served),
        };
        found.push((name, misfit));
    }
    Ok(found)
}

/// Why a CRD does not fit, if so.
pub(crate) fn misfit(ours: &CustomResourceDefinition, served: &CustomResourceDefinition) -> Option<Fault> {
    let missing = schema::fits(ours, served).err()?;
    Some(schema::outdated(&ours.name_any(), &missing, &schema::other_managers(served)))
}

async fn apply_one(
    api: &Api<CustomResourceDefinition>,
    ours: &CustomResourceDefinition,
    foreign: Foreign,
) -> Result<Applied, Fault> {
    let name = ours.name_any();
    let before = api.get_opt(&name).await.map_err(|error| refused(&name, &error))?;
    let mut wanted = ours.clone();
    let mut others = Vec::new();
    if let Some(served) = &before {
        wanted.spec.versions.extend(schema::stored_elsewhere(ours, served));
        others = schema::other_managers(served);
        let lost = schema::loses(served, &wanted);
        if !lost.is_empty() && foreign != Foreign::Force {
            return Err(would_lose(&name, &lost, &others));
        }
    }
    let params = PatchParams::apply(names::CRD_MANAGER);
    let mut applied = api.patch(&name, &params, &Patch::Apply(&wanted)).await;
    let mut taken = false;
    if matches!(&applied, Err(kube::Error::Api(status)) if status.code == 409) {
        if foreign == Foreign::Refuse {
            return Err(belongs(&name, &others));
        }
        taken = true;
        applied = api.patch(&name, &params.force(), &Patch::Apply(&wanted)).await;
    }
    let after = applied.map_err(|error| refused(&name, &error))?;
    established(api, &name).await?;
    Ok(match before {
        None => Applied::Created,
        Some(before) if before.resource_version() == after.resource_version() => Applied::Unchanged,
        Some(_) if taken => Applied::TakenOver(others),
        Some(_) => Applied::Updated,
    })
}

/// Waits until a CRD is served. By reading it: the right to watch is more than this needs.
async fn established(api: &Api<CustomResourceDefinition>, name: &str) -> Result<(), Fault> {
    let mut looks = 0;
    while looks < LOOKS {
        let found = api.get_opt(name).await.map_err(|error| refused(name, &error))?;
        if conditions::is_crd_established().matches_object(found.as_ref()) {
            return Ok(());
        }
        looks += 1;
        tokio::time::sleep(LOOK).await;
    }
    let text = format!(
        "the API server has accepted {name} and does not serve it after {} s: look at its conditions (kubectl describe crd \
         {name})",
        (LOOK * LOOKS).as_secs()
    );
    Err(Fault::retryable(reason::CRD_OUTDATED, text))
}

fn belongs(name: &str, others: &[String]) -> Fault {
    let whose = match others {
        [] => "another field manager".into(),
        others => enumerate(others.iter().cloned()),
    };
    let text = format!(
        "the CustomResourceDefinition {name} was applied by {whose}, and is not this release's; ours keeps all that it has: run \
         `heddle crds apply --take-over`, and tell {whose} to leave it alone, or its next upgrade puts its own in place again"
    );
    Fault::permanent(reason::CRD_OUTDATED, text)
}

fn would_lose(name: &str, lost: &[String], others: &[String]) -> Fault {
    let by = match others {
        [] => String::new(),
        others => format!(" (written by {})", enumerate(others.iter().cloned())),
    };
    let text = format!(
        "the CustomResourceDefinition {name}{by} has more than this release's, and objects would lose it: in ours {}; apply a \
         newer release's, or, if nobody needs it, run `heddle crds apply --force`",
        enumerate(lost.iter().cloned())
    );
    Fault::permanent(reason::CRD_OUTDATED, text)
}

fn refused(name: &str, error: &kube::Error) -> Fault {
    Fault::retryable(reason::API_UNAVAILABLE, format!("the API does not take {name}: {}", cause::told(error)))
}
