use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::rc::Rc;

use futures::StreamExt;
use heddle_core::api::{ComputeDomain, IMEXDomain, IMEXNode};
use heddle_core::controller::{Cd, Kind, LabelledClaim, NodeState, View, template_key};
use heddle_core::fault::Fault;
use heddle_core::names;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::DeserializeGuard;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::domain_controller::Message;
use super::metrics::ControllerMetrics;
use crate::cause;
use crate::runtime::{Addr, progress};

/// The view, shared by the watches and effects of one incarnation, all on one thread. Objects go into it straight from
/// the wire: a list of ten thousand would not fit a mailbox. The mailbox carries the news that there are some.
pub type Shared = Rc<RefCell<View>>;

/// The ComputeDomain's type as the API serves it, with no wish about its fields.
pub fn compute_domain_resource() -> ApiResource {
    ApiResource::erase::<ComputeDomain>(&())
}

/// An object as a watch brings it.
pub trait Watched: Resource + Clone + DeserializeOwned + Debug + Send + 'static {
    /// Which of the view's kinds it is.
    const KIND: Kind;

    /// The key under which the view drops it. Of one that cannot be read no more is known.
    fn key_of(metadata: &ObjectMeta) -> Option<String> {
        metadata.name.clone()
    }

    /// Puts it into the view.
    fn put(self, view: &mut View);

    /// Whether the view has this very object, not another of its name.
    fn is_known(&self, view: &View) -> bool;
}

impl Watched for DynamicObject {
    const KIND: Kind = Kind::Cd;

    fn key_of(metadata: &ObjectMeta) -> Option<String> {
        metadata.uid.clone()
    }

    fn put(self, view: &mut View) {
        if let Some(cd) = Cd::read(&self) {
            view.put_cd(cd);
        }
    }

    fn is_known(&self, _: &View) -> bool {
        true
    }
}

impl Watched for ResourceClaim {
    const KIND: Kind = Kind::Claim;

    fn key_of(metadata: &ObjectMeta) -> Option<String> {
        metadata.uid.clone()
    }

    fn put(self, view: &mut View) {
        match LabelledClaim::read(&self) {
            Some(claim) => view.put_claim(claim),
            None => view.drop_claim(self.uid().as_deref().unwrap_or_default()),
        }
    }

    fn is_known(&self, _: &View) -> bool {
        true
    }
}

impl Watched for ResourceClaimTemplate {
    const KIND: Kind = Kind::Template;

    fn key_of(metadata: &ObjectMeta) -> Option<String> {
        template_key(metadata).map(|(namespace, name)| format!("{namespace}/{name}"))
    }

    fn put(self, view: &mut View) {
        view.put_template(self);
    }

    fn is_known(&self, view: &View) -> bool {
        let known = template_key(&self.metadata).and_then(|key| view.template(&key).map(|known| known.uid()));
        known.is_none_or(|known| known == self.uid())
    }
}

impl Watched for Node {
    const KIND: Kind = Kind::Node;

    fn put(self, view: &mut View) {
        // The node controller of Kubernetes says Unknown when the kubelet has been silent for too long.
        let conditions = self.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let lost = conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "Unknown");
        view.put_node(&self.name_any(), NodeState { lost });
    }

    fn is_known(&self, _: &View) -> bool {
        true
    }
}

impl Watched for IMEXNode {
    const KIND: Kind = Kind::ImexNode;

    fn put(self, view: &mut View) {
        view.put_imex_node(self);
    }

    fn is_known(&self, view: &View) -> bool {
        view.imex_node(&self.name_any()).is_none_or(|known| known.uid() == self.uid())
    }
}

impl Watched for IMEXDomain {
    const KIND: Kind = Kind::Domain;

    fn put(self, view: &mut View) {
        view.put_domain(self);
    }

    fn is_known(&self, view: &View) -> bool {
        view.domain(&self.name_any()).is_none_or(|known| known.uid() == self.uid())
    }
}

/// What a watch brings into the view. One object that cannot be read must not hide all others of its kind.
struct Intake<K> {
    view: Shared,
    metrics: ControllerMetrics,
    listed: BTreeSet<String>,
    kind: PhantomData<K>,
}

impl<K: Watched> Intake<K> {
    fn put(&mut self, object: DeserializeGuard<K>) {
        let mut view = self.view.borrow_mut();
        if let Some(key) = K::key_of(object.meta()) {
            view.set_unreadable(K::KIND, &key, object.0.is_err());
        }
        match object.0 {
            Ok(object) => object.put(&mut view),
            Err(invalid) => {
                let (namespace, name) = (invalid.metadata.namespace.as_deref(), invalid.metadata.name.as_deref());
                tracing::error!(
                    kind = K::KIND.name(),
                    namespace,
                    name,
                    "an object cannot be read and is taken for what it was before; correct or delete it: {}",
                    invalid.error
                );
                self.metrics.unreadable(K::KIND);
            }
        }
    }

    fn hear(&mut self, event: watcher::Event<DeserializeGuard<K>>, address: &Addr<Message>) {
        match event {
            watcher::Event::Init => self.listed.clear(),
            watcher::Event::InitApply(object) => {
                self.listed.extend(K::key_of(object.meta()));
                self.put(object);
            }
            watcher::Event::InitDone => {
                let mut view = self.view.borrow_mut();
                let gone: Vec<_> = view.keys(K::KIND).difference(&self.listed).cloned().collect();
                gone.iter().for_each(|key| view.drop(K::KIND, key));
                self.listed.clear();
                address.tell(Message::Synced(K::KIND));
            }
            watcher::Event::Apply(object) => {
                self.put(object);
                address.tell(Message::Changed);
            }
            watcher::Event::Delete(object) => {
                let mut view = self.view.borrow_mut();
                let known = object.0.as_ref().map_or(true, |object| object.is_known(&view));
                if let Some(key) = K::key_of(object.meta()).filter(|_| known) {
                    view.drop(K::KIND, &key);
                }
                address.tell(Message::Changed);
            }
        }
    }
}

/// Follows one kind for ever.
async fn follow<K: Watched>(
    api: Api<DeserializeGuard<K>>,
    config: watcher::Config,
    view: Shared,
    metrics: ControllerMetrics,
    address: Addr<Message>,
) -> Result<(), Fault> {
    let stream = watcher(api, config).modify(|object| object.managed_fields_mut().clear());
    let mut stream = std::pin::pin!(stream.default_backoff());
    let mut intake = Intake::<K> { view, metrics, listed: BTreeSet::new(), kind: PhantomData };
    while let Some(event) = stream.next().await {
        progress();
        match event {
            Ok(event) => intake.hear(event, &address),
            Err(error) => {
                let unknown = matches!(&error, watcher::Error::InitialListFailed(kube::Error::Api(s)) if s.code == 404);
                let hint = if unknown { "; are the CRDs applied? `heddle crds` prints them" } else { "" };
                tracing::warn!(
                    kind = K::KIND.name(),
                    "watching is interrupted and tried again: {}{hint}",
                    cause::told(&error)
                );
            }
        }
    }
    Ok(())
}

/// A watch that never ends, as an effect of the controller.
pub type Watch = std::pin::Pin<Box<dyn Future<Output = Result<(), Fault>>>>;

/// Makes the watches of one controller.
pub struct Watches<'a> {
    /// The API.
    pub client: &'a Client,
    /// What they bring their objects to.
    pub view: &'a Shared,
    /// Counts what cannot be read.
    pub metrics: &'a ControllerMetrics,
    /// Who is told.
    pub address: Addr<Message>,
}

impl Watches<'_> {
    fn of<K: Watched>(&self, api: Api<DeserializeGuard<K>>, config: watcher::Config) -> Watch {
        Box::pin(follow(api, config, self.view.clone(), self.metrics.clone(), self.address.clone()))
    }

    fn all<K>(&self, config: watcher::Config) -> Watch
    where
        K: Watched<DynamicType = ()>,
    {
        self.of::<K>(Api::all(self.client.clone()), config)
    }

    /// That of ComputeDomains.
    pub fn compute_domains(&self) -> Watch {
        let api = Api::all_with(self.client.clone(), &compute_domain_resource());
        self.of::<DynamicObject>(api, watcher::Config::default())
    }

    /// All others, by name.
    pub fn others(&self) -> Vec<(&'static str, Watch)> {
        let all = watcher::Config::default;
        let labelled = || watcher::Config::default().labels(names::COMPUTE_DOMAIN_LABEL);
        vec![
            ("watch-claims", self.all::<ResourceClaim>(labelled())),
            ("watch-templates", self.all::<ResourceClaimTemplate>(labelled())),
            ("watch-nodes", self.all::<Node>(all())),
            ("watch-imexnodes", self.all::<IMEXNode>(all())),
            ("watch-imexdomains", self.all::<IMEXDomain>(all())),
        ]
    }
}
