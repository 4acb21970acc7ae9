use std::time::Duration;

use heddle_core::api::{IMEXDomain, IMEXNode};
use heddle_core::fault::{Fault, reason};
use heddle_core::identity::{Request, Verdict, member};
use heddle_core::names;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::authority::authority;
use crate::{cause, identity};

/// One request with all that it takes. Without it a lost connection would hold it up for ever.
const LIMIT: Duration = Duration::from_secs(15);
/// Reason of the condition `Approved`.
const APPROVED: &str = "PeerIdentity";

/// How a request was answered.
#[derive(Debug)]
pub enum Ended {
    /// It has its certificate.
    Signed {
        /// Whose.
        node: String,
        /// Of which IMEX domain.
        domain: String,
    },
    /// It gets none.
    Denied(Fault),
    /// It could not be answered, and is tried again.
    Failed(Fault),
}

/// What a request says of itself, and the signing request in it.
pub(super) fn facts(csr: &CertificateSigningRequest) -> (Request, String) {
    let pem = String::from_utf8_lossy(&csr.spec.request.0).into_owned();
    let request = Request {
        name: csr.name_any(),
        username: csr.spec.username.clone().unwrap_or_default(),
        extra: csr.spec.extra.clone().unwrap_or_default(),
        usages: csr.spec.usages.clone().unwrap_or_default(),
        expiration_seconds: csr.spec.expiration_seconds,
        asked: identity::read(&pem),
    };
    (request, pem)
}

/// What it takes to answer.
pub(super) struct Signing {
    pub(super) client: Client,
    pub(super) namespace: String,
}

impl Signing {
    /// Answers one request, on which this was decided without looking at the cluster.
    pub(super) async fn answer(
        &self,
        csr: CertificateSigningRequest,
        pem: &str,
        decision: Result<Verdict, Fault>,
    ) -> Ended {
        match tokio::time::timeout(LIMIT, self.tried(&csr, pem, decision)).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(fault)) => Ended::Failed(fault),
            Err(_) => Ended::Failed(Fault::retryable(
                reason::API_UNAVAILABLE,
                format!("{} could not be answered within {} s", csr.name_any(), LIMIT.as_secs()),
            )),
        }
    }

    async fn tried(
        &self,
        csr: &CertificateSigningRequest,
        pem: &str,
        decision: Result<Verdict, Fault>,
    ) -> Result<Ended, Fault> {
        let verdict = match decision {
            Ok(verdict) => verdict,
            Err(fault) => return self.deny(csr, fault).await,
        };
        // Read now: the agent has seen its membership, so this sees it too, and what has changed since counts.
        let domain = self.get::<IMEXDomain>(&verdict.domain).await?;
        let node = self.get::<IMEXNode>(&verdict.node).await?;
        if let Err(fault) = member(&verdict, node.as_ref(), domain.as_ref()) {
            return self.deny(csr, fault).await;
        }
        let Some(domain) = domain else { return self.deny(csr, gone(&verdict.domain)).await };
        let now = jiff::Timestamp::now().as_second();
        let authority = authority(&self.client, &self.namespace, &domain, now).await?;
        let certificate = authority
            .sign(pem, verdict.seconds, now)
            .map_err(|why| Fault::retryable(reason::NO_PEER_IDENTITY, format!("it cannot be signed: {why}")))?;
        let text = format!("node {} is a member of IMEX domain {}", verdict.node, verdict.domain);
        let approved = self.condition(csr, "Approved", APPROVED, &text).await?;
        let body = json!({
            "metadata": {"resourceVersion": approved.resource_version()},
            "status": {"certificate": ByteString(certificate.into_bytes())},
        });
        let answer = self.requests().patch_status(&csr.name_any(), &params(), &Patch::Merge(body)).await;
        answer.map_err(unavailable)?;
        Ok(Ended::Signed { node: verdict.node, domain: verdict.domain })
    }

    async fn deny(&self, csr: &CertificateSigningRequest, fault: Fault) -> Result<Ended, Fault> {
        self.condition(csr, "Denied", fault.reason, &fault.message).await?;
        Ok(Ended::Denied(fault))
    }

    /// Adds the condition, unless it is there.
    async fn condition(
        &self,
        csr: &CertificateSigningRequest,
        type_: &str,
        why: &str,
        message: &str,
    ) -> Result<CertificateSigningRequest, Fault> {
        let conditions = csr.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let known: Vec<&str> = conditions.map(|condition| condition.type_.as_str()).collect();
        if known.contains(&type_) {
            return Ok(csr.clone());
        }
        let (api, name, params) = (self.requests(), csr.name_any(), params());
        // Somebody has approved what must not be signed; a request is either, so the signing fails.
        if type_ == "Denied" && known.contains(&"Approved") {
            let failed = Patch::Merge(with_condition(csr, "Failed", why, message));
            return api.patch_status(&name, &params, &failed).await.map_err(unavailable);
        }
        let judged = Patch::Merge(with_condition(csr, type_, why, message));
        api.patch_approval(&name, &params, &judged).await.map_err(unavailable)
    }

    async fn get<K>(&self, name: &str) -> Result<Option<K>, Fault>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned,
    {
        Api::<K>::all(self.client.clone()).get_opt(name).await.map_err(unavailable)
    }

    fn requests(&self) -> Api<CertificateSigningRequest> {
        Api::all(self.client.clone())
    }
}

/// What gives the request one more condition, if it is as it was read.
fn with_condition(csr: &CertificateSigningRequest, type_: &str, why: &str, message: &str) -> serde_json::Value {
    let known = csr.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions: Vec<serde_json::Value> =
        known.into_iter().flatten().map(|condition| json!(condition)).collect();
    conditions.push(json!({"type": type_, "status": "True", "reason": why, "message": message}));
    json!({"metadata": {"resourceVersion": csr.resource_version()}, "status": {"conditions": conditions}})
}

fn gone(domain: &str) -> Fault {
    Fault::permanent(reason::NOT_A_MEMBER, format!("there is no IMEXDomain {domain}"))
}

fn params() -> PatchParams {
    PatchParams { field_manager: Some(names::CONTROLLER.into()), ..Default::default() }
}

pub(super) fn unavailable(error: kube::Error) -> Fault {
    Fault::retryable(reason::API_UNAVAILABLE, cause::told(&error))
}
