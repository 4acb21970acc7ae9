use std::collections::BTreeSet;

use heddle_actors::identity;
use heddle_core::api::IMEXNodeSpec;
use heddle_core::identity::{authority_secret, usable};
use heddle_integration::api::User;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestStatus};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use serde_json::json;

use crate::bed::{AGENT, Bed, NAMESPACE, asking, condition, test};

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// The certificate and the authority's behind it.
fn certificates(status: &CertificateSigningRequestStatus) -> (String, String) {
    let text = String::from_utf8(status.certificate.clone().unwrap().0).unwrap();
    let at = text.rfind("-----BEGIN").unwrap();
    (text[..at].to_owned(), text[at..].to_owned())
}

fn secrets(bed: &Bed) -> Api<Secret> {
    Api::namespaced(bed.client.clone(), NAMESPACE)
}

#[test]
fn a_member_gets_the_identity_of_its_domain_and_of_no_other() {
    test(async |bed| {
        let _controller = bed.controller();
        let (d, e) = (bed.domain("d", &["n1"]).await, bed.domain("e", &["n2"]).await);
        let key = identity::new_key().unwrap();
        let status = bed.ask(bed.agent("n1"), asking("n1", "d", &key)).await;
        assert_eq!(condition(&status).0, "Approved");
        let (own, authority) = certificates(&status);
        let chain = identity::chain(&own, &authority, &key).unwrap();
        assert_eq!(usable(&chain, "d", now()), Ok(()));
        assert_eq!(Some(chain.authority_of), d.uid());
        assert!(chain.not_after <= now() + 3600 + 60, "the life that was asked for");

        // A stolen token of n2's agent, whichever node it says that it is.
        let stolen = || bed.agent("n2");
        let (kind, reason, message) = condition(&bed.ask(stolen(), asking("n2", "d", &key)).await);
        assert_eq!((kind.as_str(), reason.as_str()), ("Denied", "NotAMember"));
        assert!(message.contains("n2") && message.contains("domain d"), "{message}");
        let (_, reason, message) = condition(&bed.ask(stolen(), asking("n1", "d", &key)).await);
        assert_eq!(reason, "RequestNotExact", "{message}");

        // Two domains have two authorities.
        let other_key = identity::new_key().unwrap();
        let (other, other_authority) = certificates(&bed.ask(stolen(), asking("n2", "e", &other_key)).await);
        assert!(!identity::chain(&other, &authority, &other_key).unwrap().signed_by_authority);
        assert_eq!(Some(identity::chain(&other, &other_authority, &other_key).unwrap().authority_of), e.uid());
    });
}

#[test]
fn who_is_no_agent_of_a_node_gets_nothing() {
    test(async |bed| {
        let _controller = bed.controller();
        bed.domain("d", &["n1"]).await;
        let key = identity::new_key().unwrap();
        for user in [
            User::default(),
            User::service_account(NAMESPACE, AGENT, None),
            User::service_account("team", AGENT, Some("n1")),
            User::service_account(NAMESPACE, "heddle-controller", Some("n1")),
        ] {
            // What the object says of its maker is not what counts.
            let mut csr = asking("n1", "d", &key);
            csr.spec.username = Some(format!("system:serviceaccount:{NAMESPACE}:{AGENT}"));
            csr.spec.extra = Some([("authentication.kubernetes.io/node-name".into(), vec!["n1".into()])].into());
            let status = bed.ask(bed.server.client_of(user), csr).await;
            assert_eq!(condition(&status).1, "NotAnAgent");
            assert!(status.certificate.is_none());
        }
        assert!(secrets(bed).get_opt(&authority_secret("d")).await.unwrap().is_none(), "nothing was made for them");
    });
}

#[test]
fn what_asks_for_more_gets_nothing_whoever_approves_it() {
    test(async |bed| {
        bed.domain("d", &["n1"]).await;
        let key = identity::new_key().unwrap();
        let mut csr = asking("n1", "d", &key);
        csr.spec.usages.as_mut().unwrap().push("cert sign".into());
        let api = Api::<CertificateSigningRequest>::all(bed.agent("n1"));
        let made = api.create(&PostParams::default(), &csr).await.unwrap();
        let approval = json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "ByHand"}]}});
        api.patch_approval(&made.name_any(), &PatchParams::default(), &Patch::Merge(approval)).await.unwrap();
        let _controller = bed.controller();
        let status = bed.answer(&made.name_any()).await;
        assert!(status.certificate.is_none());
        let failed = status.conditions.unwrap().into_iter().find(|condition| condition.type_ == "Failed").unwrap();
        assert_eq!(failed.reason.as_deref(), Some("RequestNotExact"));
    });
}

#[test]
fn a_node_that_is_about_to_join_gets_its_identity_before() {
    test(async |bed| {
        let _controller = bed.controller();
        bed.domain("d", &[]).await;
        bed.node("n1", IMEXNodeSpec { domain: Some("e".into()), next: Some("d".into()), ..Default::default() }).await;
        bed.node("n2", IMEXNodeSpec { domain: Some("e".into()), ..Default::default() }).await;
        let key = identity::new_key().unwrap();
        assert_eq!(condition(&bed.ask(bed.agent("n1"), asking("n1", "d", &key)).await).0, "Approved");
        assert_eq!(condition(&bed.ask(bed.agent("n2"), asking("n2", "d", &key)).await).1, "NotAMember");
    });
}

#[test]
fn a_flood_of_one_node_holds_up_no_other() {
    test(async |bed| {
        bed.domain("d", &["n1", "n2"]).await;
        let key = identity::new_key().unwrap();
        let flood = Api::<CertificateSigningRequest>::all(bed.agent("n1"));
        let mut names = Vec::new();
        for _ in 0..60 {
            names.push(flood.create(&PostParams::default(), &asking("n1", "d", &key)).await.unwrap().name_any());
        }
        let _controller = bed.controller();
        assert_eq!(condition(&bed.ask(bed.agent("n2"), asking("n2", "d", &key)).await).0, "Approved");
        let mut reasons = BTreeSet::new();
        let mut signed = 0;
        for name in &names {
            let (kind, reason, _) = condition(&bed.answer(name).await);
            signed += usize::from(kind == "Approved");
            reasons.insert(reason);
        }
        assert!(signed <= 12, "{signed} were signed");
        assert!(reasons.contains("TooManyRequests"), "{reasons:?}");
    });
}

#[test]
fn an_authority_is_made_once_and_goes_with_its_domain() {
    test(async |bed| {
        let (_one, _two) = (bed.controller(), bed.controller());
        bed.domain("d", &["n1", "n2", "n3"]).await;
        let asked = ["n1", "n2", "n3"].map(|node| {
            let key = identity::new_key().unwrap();
            async move { certificates(&bed.ask(bed.agent(node), asking(node, "d", &key)).await).1 }
        });
        let authorities: BTreeSet<String> = futures::future::join_all(asked).await.into_iter().collect();
        assert_eq!(authorities.len(), 1, "two controllers at once use one authority");
        let name = authority_secret("d");
        let secret = secrets(bed).get(&name).await.unwrap();
        assert_eq!((secret.type_.as_deref(), secret.immutable), (Some("kubernetes.io/tls"), Some(true)));

        bed.domains().delete("d", &DeleteParams::default()).await.unwrap();
        await_condition(secrets(bed), &name, |secret: Option<&Secret>| secret.is_none()).await.unwrap();
        bed.domain("d", &["n1"]).await;
        let key = identity::new_key().unwrap();
        let (_, anew) = certificates(&bed.ask(bed.agent("n1"), asking("n1", "d", &key)).await);
        assert!(!authorities.contains(&anew), "a domain of the same name is another");
    });
}

#[test]
fn an_authority_of_an_earlier_domain_is_not_used() {
    test(async |bed| {
        let first = bed.domain("d", &["n1"]).await;
        let _controller = bed.controller();
        let key = identity::new_key().unwrap();
        bed.ask(bed.agent("n1"), asking("n1", "d", &key)).await;
        // As a backup of Secrets alone would bring it back: the owner is of before.
        let mut old = secrets(bed).get(&authority_secret("d")).await.unwrap();
        bed.domains().delete("d", &DeleteParams::default()).await.unwrap();
        let second = bed.domain("d", &["n1"]).await;
        assert_ne!(first.uid(), second.uid());
        old.metadata.resource_version = None;
        old.metadata.owner_references = None;
        secrets(bed).create(&PostParams::default(), &old).await.unwrap();
        let (own, authority) = certificates(&bed.ask(bed.agent("n1"), asking("n1", "d", &key)).await);
        assert_eq!(Some(identity::chain(&own, &authority, &key).unwrap().authority_of), second.uid());
    });
}
