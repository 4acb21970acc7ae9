use std::collections::BTreeMap;

use heddle_core::api::IMEXDomain;
use heddle_core::fault::{Fault, reason};
use heddle_core::identity::{AUTHORITY_LABEL, authority_secret};
use heddle_core::names;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ObjectMeta, PostParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt};

use super::sign::unavailable;
use crate::identity::Authority;

/// Keys of a Secret of type `kubernetes.io/tls`.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// Somebody who makes or removes the Secret at the same moment is given way to this often.
const TRIES: usize = 4;

/// The authority of an IMEX domain, from its Secret. The first that needs it makes it; it goes with the domain, by its
/// owner reference.
///
/// # Errors
/// Retryable: the API cannot be asked, or the Secret holds no authority.
pub(super) async fn authority(
    client: &Client,
    namespace: &str,
    domain: &IMEXDomain,
    now: i64,
) -> Result<Authority, Fault> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let (domain_name, uid) = (domain.name_any(), domain.uid().unwrap_or_default());
    let name = authority_secret(&domain_name);
    for _ in 0..TRIES {
        match api.get_opt(&name).await.map_err(unavailable)? {
            Some(secret) if is_of(&secret, &uid) => return read(&secret, &domain_name, namespace, now),
            Some(of_an_earlier_one) => remove(&api, &name, &of_an_earlier_one).await?,
            None => {
                let made = Authority::new(&domain_name, &uid, now).map_err(|why| broken(&name, namespace, &why))?;
                match api.create(&post(), &secret(domain, &name, &made)).await {
                    Ok(_) => return Ok(made),
                    Err(kube::Error::Api(status)) if status.is_already_exists() => {}
                    Err(error) => return Err(unavailable(error)),
                }
            }
        }
    }
    Err(Fault::retryable(reason::API_UNAVAILABLE, format!("Secret {namespace}/{name} comes and goes")))
}

fn is_of(secret: &Secret, uid: &str) -> bool {
    secret.owner_references().iter().any(|owner| owner.uid == uid)
}

fn read(secret: &Secret, domain: &str, namespace: &str, now: i64) -> Result<Authority, Fault> {
    let text = |key: &str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.as_slice());
        String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned()
    };
    Authority::read(domain, &text(CERTIFICATE), &text(KEY), now)
        .map_err(|why| broken(&authority_secret(domain), namespace, &why))
}

fn broken(name: &str, namespace: &str, why: &str) -> Fault {
    let text = format!(
        "the authority in Secret {namespace}/{name} cannot be used: {why}; delete the Secret and the nodes' certificates \
         are made anew"
    );
    Fault::retryable(reason::NO_PEER_IDENTITY, text)
}

fn secret(domain: &IMEXDomain, name: &str, authority: &Authority) -> Secret {
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(BTreeMap::from([(AUTHORITY_LABEL.to_owned(), domain.name_any())])),
            owner_references: domain.owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        type_: Some("kubernetes.io/tls".into()),
        immutable: Some(true),
        data: Some(BTreeMap::from([
            (CERTIFICATE.to_owned(), bytes(authority.certificate_pem())),
            (KEY.to_owned(), bytes(authority.key_pem())),
        ])),
        ..Secret::default()
    }
}

async fn remove(api: &Api<Secret>, name: &str, secret: &Secret) -> Result<(), Fault> {
    let preconditions = Preconditions { uid: secret.uid(), resource_version: None };
    let params = DeleteParams { preconditions: Some(preconditions), ..Default::default() };
    match api.delete(name, &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(()),
        Err(error) => Err(unavailable(error)),
    }
}

fn post() -> PostParams {
    PostParams { field_manager: Some(names::CONTROLLER.into()), ..Default::default() }
}
