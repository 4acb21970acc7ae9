use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use heddle_actors::identity::{self, Authority};
use heddle_actors::node_link::DomainView;
use heddle_actors::peer_identity::{CONDITION, Identities, Message, PeerIdentity, Settings};
use heddle_actors::runtime::{Addr, Runtime, Scope, Spec};
use heddle_core::api::{IMEXDomain, IMEXNode, IMEXNodeSpec};
use heddle_core::condition::Draft;
use heddle_core::identity::SIGNER;
use heddle_integration::api::Verb;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use tokio::sync::watch;

use crate::bed::{Bed, test};

/// A node's PeerIdentity, and what it says.
struct Node {
    name: String,
    scope: Scope,
    actor: Addr<Message>,
    identities: watch::Receiver<Identities>,
    condition: watch::Receiver<Option<Draft>>,
    certificates: watch::Receiver<BTreeMap<String, String>>,
}

impl Node {
    fn start(bed: &Bed, runtime: &Runtime, name: &str, state_dir: &Path) -> Self {
        let scope = runtime.root().child(name);
        let (say_identities, identities) = watch::channel(Identities::default());
        let (say_condition, condition) = watch::channel(None);
        let (say_certificates, certificates) = watch::channel(BTreeMap::new());
        let settings = Settings {
            client: bed.agent(name),
            node_name: name.into(),
            state_dir: state_dir.to_owned(),
            seconds: 3600,
            identities: Rc::new(move |said| drop(say_identities.send(said))),
            condition: Rc::new(move |said| drop(say_condition.send(Some(said)))),
            certificates: Rc::new(move |said| drop(say_certificates.send(said))),
        };
        let actor = scope.supervise(Spec::default(), move || PeerIdentity::new(settings.clone()));
        Self { name: name.into(), scope, actor, identities, condition, certificates }
    }

    fn see(&self, domain: &IMEXDomain, next: Option<&str>) {
        let spec =
            IMEXNodeSpec { domain: domain.metadata.name.clone(), next: next.map(Into::into), ..Default::default() };
        let node = Arc::new(IMEXNode::new(&self.name, spec));
        self.actor.tell(Message::View(DomainView { node, domain: Some(Arc::new(domain.clone())) }));
    }

    async fn until(&mut self, fits: impl Fn(&Identities) -> bool) -> Identities {
        self.identities.wait_for(|said| fits(said)).await.unwrap().clone()
    }

    async fn has(&mut self, domain: &str) -> Arc<heddle_core::imex::Identity> {
        self.until(|said| said.of(domain).is_ok()).await.of(domain).unwrap().clone()
    }

    async fn lacks(&mut self, domain: &str, says: &str) {
        self.until(|said| said.of(domain).is_err_and(|why| why.contains(says))).await;
    }
}

fn requests(bed: &Bed) -> Api<CertificateSigningRequest> {
    Api::all(bed.client.clone())
}

async fn count(bed: &Bed) -> usize {
    let all = requests(bed).list(&ListParams::default().fields(&format!("spec.signerName={SIGNER}"))).await.unwrap();
    all.items.len()
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

#[test]
fn a_node_gets_its_identity_keeps_it_and_needs_no_signer_for_it() {
    test(async |bed| {
        let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::new());
        let d = bed.domain("d", &["n1"]).await;
        let mut node = Node::start(bed, &runtime, "n1", dir.path());
        node.see(&d, None);
        node.lacks("d", "waits for the controller").await;
        let said = node.condition.wait_for(|said| said.is_some()).await.unwrap().clone().unwrap();
        assert_eq!((said.type_, said.status, said.reason.as_str()), (CONDITION, "False", "PeerIdentityMissing"));
        let controller = bed.controller();
        let first = node.has("d").await;
        assert_eq!(first.name, "d.peer.imex.heddle.dev");
        node.condition.wait_for(|said| said.as_ref().is_some_and(|said| said.status == "True")).await.unwrap();
        let until = node.certificates.wait_for(|said| said.contains_key("d")).await.unwrap()["d"].clone();
        assert_eq!(until.parse::<jiff::Timestamp>().unwrap().as_second(), first.not_after);
        let csr = requests(bed).list(&ListParams::default()).await.unwrap().items.remove(0);
        assert!(csr.name_any().starts_with("heddle-peer-n1-"));

        // The next agent has it from the disk, without a signer and without an API.
        drop(controller);
        node.scope.stop();
        bed.server.fail_requests(|_| Some(kube::core::Status::failure("away", "Away").with_code(503)));
        let mut node = Node::start(bed, &runtime, "n1", dir.path());
        assert_eq!(*node.has("d").await, *first);
        bed.server.heal();
        node.see(&d, None);
        node.certificates.wait_for(|said| said.contains_key("d")).await.unwrap();
        assert_eq!(count(bed).await, 1, "nothing was asked for anew");
    });
}

#[test]
fn one_that_is_due_is_renewed_with_the_same_key() {
    test(async |bed| {
        let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::new());
        let _controller = bed.controller();
        let d = bed.domain("d", &["n1"]).await;
        let mut node = Node::start(bed, &runtime, "n1", dir.path());
        node.see(&d, None);
        let first = node.has("d").await;
        node.scope.stop();
        // The same key with a certificate of the same authority, at five sixths of its life.
        let name = heddle_core::identity::authority_secret("d");
        let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(bed.client.clone(), "heddle");
        let data = secrets.get(&name).await.unwrap().data.unwrap();
        let text = |key: &str| String::from_utf8(data[key].0.clone()).unwrap();
        let authority = Authority::read("d", &text("tls.crt"), &text("tls.key"), now()).unwrap();
        let old = authority.sign(&identity::request("d", &first.key_pem).unwrap(), 6000, now() - 5000).unwrap();
        std::fs::write(dir.path().join("identity/d.pem"), first.key_pem.clone() + &old).unwrap();

        let mut node = Node::start(bed, &runtime, "n1", dir.path());
        let due = node.has("d").await;
        assert!(old.starts_with(&due.certificate_pem), "it is valid, and used until the next is there");
        node.see(&d, None);
        let renewed = node.until(|said| said.of("d").is_ok_and(|now| now.not_after > due.not_after)).await;
        assert_eq!(renewed.of("d").unwrap().key_pem, first.key_pem);
        assert_eq!(renewed.of("d").unwrap().authority_pem, first.authority_pem);
    });
}

#[test]
fn what_is_expired_foreign_or_of_an_earlier_domain_is_not_used() {
    test(async |bed| {
        let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::new());
        let d = bed.domain("d", &["n1"]).await;
        let put = |authority: &Authority, domain: &str, made: i64| {
            let key = identity::new_key().unwrap();
            let signed = authority.sign(&identity::request(domain, &key).unwrap(), 3600, made).unwrap();
            std::fs::create_dir_all(dir.path().join("identity")).unwrap();
            std::fs::write(dir.path().join("identity/d.pem"), key + &signed).unwrap();
        };
        let uid = d.uid().unwrap();
        for (authority, made, says) in [
            (Authority::new("d", &uid, now() - 9000).unwrap(), now() - 7200, "expired"),
            (Authority::new("e", &uid, now()).unwrap(), now(), "of IMEX domain e"),
            (Authority::new("d", "another", now()).unwrap(), now(), "an earlier IMEXDomain d"),
        ] {
            put(&authority, "d", made);
            let mut node = Node::start(bed, &runtime, "n1", dir.path());
            node.see(&d, None);
            node.lacks("d", says).await;
            let asked = requests(bed).list(&ListParams::default()).await.unwrap().items;
            node.scope.stop();
            for csr in asked {
                requests(bed).delete(&csr.name_any(), &DeleteParams::default()).await.unwrap();
            }
        }
        let mut node = Node::start(bed, &runtime, "n1", dir.path());
        let _controller = bed.controller();
        node.see(&d, None);
        let anew = node.has("d").await;
        assert!(anew.not_after > now());
    });
}

#[test]
fn the_next_domain_has_its_identity_before_the_move_and_the_last_exclusive_one_is_forgotten() {
    test(async |bed| {
        let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::new());
        let _controller = bed.controller();
        let home = bed.domain("shared-1", &["n1"]).await;
        let own = bed.domain("exclusive-1", &["n1"]).await;
        let mut node = Node::start(bed, &runtime, "n1", dir.path());
        node.see(&home, None);
        node.has("shared-1").await;
        node.see(&home, Some("exclusive-1"));
        node.certificates.wait_for(|said| said.len() == 2).await.unwrap();
        node.see(&own, None);
        let kept = node.until(|said| said.of_domains.len() == 2).await;
        assert!(kept.of("shared-1").is_ok(), "the shared domain's is kept while the node is away");
        node.see(&home, None);
        node.until(|said| said.of("exclusive-1").is_err() && said.of("shared-1").is_ok()).await;
        node.certificates.wait_for(|said| said.len() == 1).await.unwrap();
        assert!(!dir.path().join("identity/exclusive-1.pem").exists());
        assert_eq!(count(bed).await, 2);
    });
}

#[test]
fn a_denial_is_said_in_its_own_words_and_an_api_that_is_away_is_waited_for() {
    test(async |bed| {
        let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::new());
        let _controller = bed.controller();
        let d = bed.domain("d", &["n2"]).await;
        bed.server.fail_requests(|request| {
            let asks = request.plural == "certificatesigningrequests" && request.verb == Verb::Create;
            asks.then(|| kube::core::Status::failure("not now", "Away").with_code(503))
        });
        let stranger = IMEXDomain { spec: d.spec.clone(), ..d.clone() };
        let mut node = Node::start(bed, &runtime, "n1", dir.path());
        node.see(&stranger, None);
        node.lacks("d", "cannot be asked for").await;
        bed.server.heal();
        node.lacks("d", "Denied: node n1 is no member of IMEX domain d").await;
    });
}
