//! Whether the admission policies that tie agents to their nodes are in force.

use std::time::Duration;

use futures::future::{try_join, try_join_all};
use heddle_core::fault::Fault;
use heddle_core::names;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::{Api, Client};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::cause;
use crate::runtime::{self, Actor, Cx, Overflow};

/// One look.
const LIMIT: Duration = Duration::from_secs(10);
/// Policies come and go with an install.
const PAUSE: Duration = Duration::from_secs(10 * 60);

/// Names of those that are not there, fail open, or deny nothing.
///
/// # Errors
/// The API server cannot be asked, or refuses.
pub async fn missing(client: &Client) -> kube::Result<Vec<String>> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let each = names::POLICIES.map(|name| {
        let (policies, bindings) = (&policies, &bindings);
        async move {
            let (policy, binding) = try_join(policies.get_opt(name), bindings.get_opt(name)).await?;
            Ok::<_, kube::Error>((name, in_force(policy, binding)))
        }
    });
    let found = try_join_all(each).await?;
    Ok(found.into_iter().filter(|(_, in_force)| !in_force).map(|(name, _)| name.to_owned()).collect())
}

fn in_force(policy: Option<ValidatingAdmissionPolicy>, binding: Option<ValidatingAdmissionPolicyBinding>) -> bool {
    let (policy, binding) = (policy.and_then(|policy| policy.spec), binding.and_then(|binding| binding.spec));
    let closed = policy.is_some_and(|spec| spec.failure_policy.is_none_or(|failure| failure == "Fail"));
    closed && binding.is_some_and(|spec| spec.validation_actions.into_iter().flatten().any(|action| action == "Deny"))
}

/// What the controller's look has found.
#[derive(Clone, Debug, Default)]
pub struct PolicyMetrics {
    missing: Gauge,
}

impl PolicyMetrics {
    /// Adds it to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let help = "Admission policies that tie agents to their nodes and are not in force";
        registry.register("admission_policies_missing", help, metrics.missing.clone());
        metrics
    }
}

/// What [`PolicyWatch`] is told.
#[derive(Debug)]
pub enum Message {
    /// It is time to look.
    Look,
    /// What was found, or why nothing was.
    Looked(Result<Vec<String>, String>),
}

impl runtime::Message for Message {
    fn kind(&self) -> &'static str {
        match self {
            Self::Look => "Look",
            Self::Looked(_) => "Looked",
        }
    }

    fn overflow(&self) -> Overflow {
        Overflow::Reject
    }
}

/// Looks at the controller's start and every so often.
pub struct PolicyWatch {
    client: Client,
    metrics: PolicyMetrics,
    told: Vec<String>,
}

impl PolicyWatch {
    /// One that has not looked yet.
    pub fn new(client: Client, metrics: PolicyMetrics) -> Self {
        Self { client, metrics, told: Vec::new() }
    }
}

impl Actor for PolicyWatch {
    const KIND: &'static str = "PolicyWatch";
    type Message = Message;

    fn started(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        self.handle(Message::Look, cx)
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        match message {
            Message::Look => {
                let client = self.client.clone();
                let look = async move {
                    match tokio::time::timeout(LIMIT, missing(&client)).await {
                        Ok(found) => found.map_err(|error| cause::told(&error)),
                        Err(_) => Err(format!("no answer for {} s", LIMIT.as_secs())),
                    }
                };
                cx.spawn_then("look", look, Message::Looked);
                return Ok(());
            }
            Message::Looked(Ok(missing)) => {
                self.metrics.missing.set(i64::try_from(missing.len()).unwrap_or(i64::MAX));
                if !missing.is_empty() && missing != self.told {
                    tracing::warn!(
                        policies = missing.join(", "),
                        "an agent's token is good for other nodes' objects, as these ValidatingAdmissionPolicies are not in force; \
                         install them with the Helm chart (admissionPolicies.enabled)"
                    );
                }
                self.told = missing;
            }
            Message::Looked(Err(why)) => tracing::info!("the admission policies cannot be looked at: {why}"),
        }
        cx.after(PAUSE, Message::Look);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_policy_is_in_force_when_it_fails_closed_and_its_binding_denies() {
        let policy = |failure: &str| {
            Some(serde_json::from_value(json!({"metadata": {}, "spec": {"failurePolicy": failure}})).unwrap())
        };
        let binding = |action: &str| {
            Some(serde_json::from_value(json!({"metadata": {}, "spec": {"validationActions": [action]}})).unwrap())
        };
        assert!(in_force(policy("Fail"), binding("Deny")));
        assert!(!in_force(policy("Ignore"), binding("Deny")));
        assert!(!in_force(policy("Fail"), binding("Audit")));
        assert!(!in_force(None, binding("Deny")));
        assert!(!in_force(policy("Fail"), None));
    }
}
