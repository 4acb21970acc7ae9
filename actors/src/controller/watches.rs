use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::rc::Rc;

use futures::StreamExt;
use heddle_core::api::{ComputeDomain, IMEXDomain, IMEXNode};
use heddle_core::controller::{Cd, Kind, LabelledClaim, NodeState, View, template_key};
use heddle_core::fault::Fault;
use heddle_core::names;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::domain_controller::Message;
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

    /// The key under which the view drops it.
    fn key(&self) -> Option<String> {
        self.meta().name.clone()
    }

    /// Puts it into the view.
    fn put(self, view: &mut View);

    /// Whether the view has this very object, not another of its name.
    fn is_known(&self, view: &View) -> bool;
}

impl Watched for DynamicObject {
    const KIND: Kind = Kind::Cd;

    fn key(&self) -> Option<String> {
        self.uid()
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

    fn key(&self) -> Option<String> {
        self.uid()
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

    fn key(&self) -> Option<String> {
        template_key(&self.metadata).map(|(namespace, name)| format!("{namespace}/{name}"))
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

/// Follows one kind for ever.
async fn follow<K: Watched>(
    api: Api<K>,
    config: watcher::Config,
    view: Shared,
    address: Addr<Message>,
) -> Result<(), Fault> {
    let stream = watcher(api, config).modify(|object| object.managed_fields_mut().clear());
    let mut stream = std::pin::pin!(stream.default_backoff());
    let mut listed = BTreeSet::new();
    while let Some(event) = stream.next().await {
        progress();
        match event {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(object)) => {
                listed.extend(object.key());
                object.put(&mut view.borrow_mut());
            }
            Ok(watcher::Event::InitDone) => {
                let mut view = view.borrow_mut();
                let gone: Vec<_> = view.keys(K::KIND).difference(&listed).cloned().collect();
                gone.iter().for_each(|key| view.drop(K::KIND, key));
                listed.clear();
                address.tell(Message::Synced(K::KIND));
            }
            Ok(watcher::Event::Apply(object)) => {
                object.put(&mut view.borrow_mut());
                address.tell(Message::Changed);
            }
            Ok(watcher::Event::Delete(object)) => {
                let mut view = view.borrow_mut();
                if let Some(key) = object.key().filter(|_| object.is_known(&view)) {
                    view.drop(K::KIND, &key);
                }
                address.tell(Message::Changed);
            }
            Err(error) => {
                let unknown = matches!(&error, watcher::Error::InitialListFailed(kube::Error::Api(s)) if s.code == 404);
                let hint = if unknown { "; are the CRDs applied? `heddle crds` prints them" } else { "" };
                tracing::warn!(kind = ?K::KIND, "watching is interrupted and tried again: {}{hint}", cause::told(&error));
            }
        }
    }
    Ok(())
}

/// A watch that never ends, as an effect of the controller.
pub type Watch = std::pin::Pin<Box<dyn Future<Output = Result<(), Fault>>>>;

/// That of ComputeDomains.
pub fn watch_compute_domains(client: &Client, view: &Shared, address: &Addr<Message>) -> Watch {
    let cds: Api<DynamicObject> = Api::all_with(client.clone(), &compute_domain_resource());
    Box::pin(follow(cds, watcher::Config::default(), view.clone(), address.clone()))
}

/// All others, by name.
pub fn watches(client: &Client, view: &Shared, address: &Addr<Message>) -> Vec<(&'static str, Watch)> {
    let all = watcher::Config::default;
    let labelled = || watcher::Config::default().labels(names::COMPUTE_DOMAIN_LABEL);
    vec![
        (
            "watch-claims",
            Box::pin(follow::<ResourceClaim>(Api::all(client.clone()), labelled(), view.clone(), address.clone())),
        ),
        (
            "watch-templates",
            Box::pin(follow::<ResourceClaimTemplate>(
                Api::all(client.clone()),
                labelled(),
                view.clone(),
                address.clone(),
            )),
        ),
        ("watch-nodes", Box::pin(follow::<Node>(Api::all(client.clone()), all(), view.clone(), address.clone()))),
        (
            "watch-imexnodes",
            Box::pin(follow::<IMEXNode>(Api::all(client.clone()), all(), view.clone(), address.clone())),
        ),
        (
            "watch-imexdomains",
            Box::pin(follow::<IMEXDomain>(Api::all(client.clone()), all(), view.clone(), address.clone())),
        ),
    ]
}
