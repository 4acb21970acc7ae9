use std::pin::pin;

use futures::StreamExt;
use heddle_core::fault::{Fault, reason};
use heddle_core::identity::{SIGNER, USAGES, request_name};
use heddle_core::names;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use kube::api::{ObjectMeta, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};

use super::held::Held;
use crate::{cause, identity};

/// One request for a certificate.
pub(super) struct Ask {
    pub(super) client: Client,
    pub(super) node: String,
    pub(super) domain: String,
    /// The key that there is already: it stays, so that a renewal changes one file of the daemon's.
    pub(super) key_pem: Option<String>,
    /// The life to ask for.
    pub(super) seconds: u32,
}

impl Ask {
    /// Asks, and waits for the answer as long as it takes; `waiting` hears the request's name. A signer that is away
    /// finds one request then, not many.
    pub(super) async fn run(self, waiting: impl FnOnce(String)) -> Result<Held, Fault> {
        let unusable = |why: String| {
            Fault::retryable(
                reason::NO_PEER_IDENTITY,
                format!("no request for IMEX domain {} can be made: {why}", self.domain),
            )
        };
        let key_pem = self.key_pem.clone().map_or_else(identity::new_key, Ok).map_err(unusable)?;
        let pem = identity::request(&self.domain, &key_pem).map_err(unusable)?;
        let name = request_name(&self.node, fastrand::u64(..));
        let api: Api<CertificateSigningRequest> = Api::all(self.client.clone());
        let params = PostParams { field_manager: Some(names::AGENT.into()), ..Default::default() };
        api.create(&params, &self.object(&name, pem)).await.map_err(|error| {
            let text =
                format!("a certificate for IMEX domain {} cannot be asked for: {}", self.domain, cause::told(&error));
            Fault::retryable(reason::API_UNAVAILABLE, text)
        })?;
        waiting(name.clone());
        let signed = self.answer(api, &name).await?;
        let [certificate_pem, authority_pem] = identity::sections(&signed)[..] else {
            return Err(self.refuse(&name, "it is not a certificate and its authority's"));
        };
        let chain =
            identity::chain(certificate_pem, authority_pem, &key_pem).map_err(|why| self.refuse(&name, &why))?;
        let held = Held::new(key_pem, certificate_pem.to_owned(), authority_pem.to_owned(), chain);
        let now = jiff::Timestamp::now().as_second();
        held.usable(&self.domain, None, now).map_err(|why| self.refuse(&name, &why))?;
        Ok(held)
    }

    fn object(&self, name: &str, pem: String) -> CertificateSigningRequest {
        CertificateSigningRequest {
            metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
            spec: CertificateSigningRequestSpec {
                request: ByteString(pem.into_bytes()),
                signer_name: SIGNER.into(),
                usages: Some(USAGES.map(String::from).into()),
                expiration_seconds: i32::try_from(self.seconds).ok(),
                ..Default::default()
            },
            status: None,
        }
    }

    async fn answer(&self, api: Api<CertificateSigningRequest>, name: &str) -> Result<String, Fault> {
        let mut changes = pin!(watcher::watch_object(api, name).default_backoff());
        while let Some(change) = changes.next().await {
            let request = match change {
                Ok(Some(request)) => request,
                Ok(None) => return Err(self.refuse(name, "it was removed without an answer")),
                Err(error) => {
                    tracing::warn!("the watch of {name} is interrupted and will be resumed: {}", cause::told(&error));
                    continue;
                }
            };
            let Some(status) = request.status else { continue };
            if let Some(certificate) = status.certificate {
                return String::from_utf8(certificate.0).map_err(|_| self.refuse(name, "it is no text"));
            }
            let no = |type_: &str| matches!(type_, "Denied" | "Failed");
            if let Some(no) = status.conditions.into_iter().flatten().find(|condition| no(&condition.type_)) {
                let why = no.message.or(no.reason).unwrap_or_default();
                return Err(self.refuse(name, &format!("{}: {why}", no.type_)));
            }
        }
        Err(self.refuse(name, "its watch has ended"))
    }

    fn refuse(&self, request: &str, why: &str) -> Fault {
        let text = format!("request {request} for IMEX domain {} has given no certificate: {why}", self.domain);
        Fault::retryable(reason::NO_PEER_IDENTITY, text)
    }
}
