//! The node's own object: watches it and the IMEX domain that it names, and is the only writer of its status.

mod message;
mod watch;
mod write;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use heddle_core::api::{IMEXDomain, IMEXNode};
use heddle_core::fault::Fault;
use heddle_core::imex::{Answer, Report, Wishes, decide};
use heddle_core::inventory::Fabric;
use heddle_core::names;
use kube::{Api, Client, ResourceExt};

pub use message::{DomainView, Message, NodeFacts};
use write::Written;

use crate::agent::Tell;
use crate::runtime::{Actor, Cx, Reply, Task};

/// The longest pause between two attempts to write the status.
const RETRY_MAX: Duration = Duration::from_secs(10);
/// The shortest.
const RETRY_MIN: Duration = Duration::from_millis(100);

/// What a [`NodeLink`] is built from.
#[derive(Clone)]
pub struct Settings {
    /// The API.
    pub client: Client,
    /// Name of the node and of its IMEXNode.
    pub node_name: String,
    /// Boot id, channel count and addresses, read anew with every inventory.
    pub facts: Rc<dyn Fn() -> NodeFacts>,
    /// Who hears of every change of the two objects.
    pub view: Tell<DomainView>,
}

/// Owns the agent's copies of the node's IMEXNode and IMEXDomain.
pub struct NodeLink {
    settings: Settings,
    /// Newest copies known: from the watches and from our own writes.
    node: Option<Arc<IMEXNode>>,
    domain: Option<Arc<IMEXDomain>>,
    /// The domain watch, with the domain's name.
    watched: Option<(String, Task)>,
    report: Report,
    wishes: Wishes,
    entering: BTreeMap<String, Vec<Reply<Answer>>>,
    keeping: BTreeMap<String, Vec<Reply<Answer>>>,
    /// A write is on its way, or the pause before the next: one at a time, so that writes never contend with each
    /// other and what comes meanwhile travels together.
    busy: bool,
    failures: u32,
    /// A write whose fate is not known may still arrive: one of ours that failed, or one of the agent of before.
    strays: bool,
}

impl NodeLink {
    /// A link that knows nothing yet.
    pub fn new(settings: Settings) -> Self {
        let report = Report { agent_version: env!("CARGO_PKG_VERSION").into(), ..Default::default() };
        let mut link = Self {
            settings,
            node: None,
            domain: None,
            watched: None,
            report,
            wishes: Wishes::default(),
            entering: BTreeMap::new(),
            keeping: BTreeMap::new(),
            busy: false,
            failures: 0,
            strays: true,
        };
        link.read_facts();
        link
    }

    fn read_facts(&mut self) {
        let facts = (self.settings.facts)();
        self.report.addresses = facts.addresses;
        // What cannot be read now stays as it was reported.
        self.report.boot_id = facts.boot_id.or(self.report.boot_id.take());
        self.report.channel_count = facts.channel_count.or(self.report.channel_count);
    }

    fn nodes(&self) -> Api<IMEXNode> {
        Api::all(self.settings.client.clone())
    }

    /// Takes a copy of the own object unless a newer one is known.
    fn see_node(&mut self, node: IMEXNode, cx: &mut Cx<'_, Self>) {
        if self.node.as_ref().is_some_and(|known| watch::is_newer(&**known, &node)) {
            return;
        }
        self.node = Some(Arc::new(node));
        self.aim(cx);
        self.say();
    }

    fn see_domain(&mut self, domain: Option<Arc<IMEXDomain>>) {
        let newer = match (&self.domain, &domain) {
            (Some(known), Some(seen)) => !watch::is_newer(&**known, &**seen),
            (None, None) => false,
            _ => true,
        };
        if newer {
            self.domain = domain;
            self.say();
        }
    }

    /// Watches the domain that the own object names, and no other.
    fn aim(&mut self, cx: &mut Cx<'_, Self>) {
        let wanted = self.node.as_ref().and_then(|node| node.spec.domain.clone());
        if self.watched.as_ref().map(|(name, _)| name) == wanted.as_ref() {
            return;
        }
        if let Some((_, task)) = self.watched.take() {
            task.cancel();
        }
        self.domain = None;
        if let Some(name) = wanted {
            let (address, of) = (cx.address(), name.clone());
            let task = cx.spawn(
                "watch IMEXDomain",
                watch::object(self.settings.client.clone(), name.clone(), move |domain: Option<IMEXDomain>| {
                    address.tell(Message::DomainSeen { name: of.clone(), domain: domain.map(Arc::new) });
                }),
            );
            self.watched = Some((name, task));
        }
    }

    fn say(&self) {
        if let Some(node) = &self.node {
            (self.settings.view)(DomainView { node: node.clone(), domain: self.domain.clone() });
        }
    }

    /// Answers what can be answered, and writes what is to be written.
    fn settle(&mut self, cx: &mut Cx<'_, Self>) {
        self.forget_askers_that_went_away();
        let Some(node) = self.node.clone().filter(|_| !self.busy) else { return };
        let now = jiff::Timestamp::now().to_string();
        let decision = decide(&node, self.domain.as_deref(), &self.report, &self.wishes, self.strays, &now);
        for (uid, answer) in decision.enters {
            self.wishes.enters.remove(&uid);
            answer_all(&mut self.entering, &uid, &answer);
        }
        for (uid, answer) in decision.keeps {
            self.wishes.keeps.remove(&uid);
            answer_all(&mut self.keeping, &uid, &answer);
        }
        let listed = |uid: &String| node.status.as_ref().is_some_and(|status| status.channels.contains_key(uid));
        self.wishes.leaves.retain(listed);
        if let Some(status) = decision.status {
            self.busy = true;
            let next = IMEXNode { status: Some(status), ..(*node).clone() };
            cx.spawn_then("write IMEXNode status", write::status(self.nodes(), next), Message::Written);
        }
    }

    fn forget_askers_that_went_away(&mut self) {
        for (asked, wished) in [(&mut self.entering, true), (&mut self.keeping, false)] {
            asked.retain(|uid, replies| {
                replies.retain(|reply| !reply.is_closed());
                let stays = !replies.is_empty();
                if !stays && wished {
                    self.wishes.enters.remove(uid);
                }
                stays
            });
        }
    }

    fn written(&mut self, written: Written, cx: &mut Cx<'_, Self>) {
        self.busy = false;
        match written {
            Written::Done(node) => {
                (self.failures, self.strays) = (0, false);
                self.see_node(*node, cx);
            }
            Written::Unchanged => {
                self.failures += 1;
                tracing::warn!(
                    "the API server keeps less of the IMEXNode than is written; is its CRD older than the agent?"
                );
                self.pause(cx);
            }
            // The object changed under us: what was decided may be wrong now, so it is decided anew on what is there.
            Written::Conflict(node) => {
                tracing::debug!("the IMEXNode changed meanwhile, deciding anew");
                self.see_node(*node, cx);
            }
            Written::Gone => self.recreate(cx),
            Written::Failed(fault) => {
                self.failures += 1;
                self.strays = true;
                tracing::warn!(attempt = self.failures, "the IMEXNode could not be written: {fault}");
                self.pause(cx);
            }
        }
    }

    fn pause(&mut self, cx: &mut Cx<'_, Self>) {
        self.busy = true;
        let pause = RETRY_MIN.saturating_mul(1 << self.failures.min(7)).min(RETRY_MAX);
        cx.after(pause.mul_f64(0.5 + fastrand::f64() / 2.0), Message::Retry);
    }

    fn recreate(&mut self, cx: &mut Cx<'_, Self>) {
        self.busy = true;
        self.node = None;
        let name = self.settings.node_name.clone();
        cx.spawn_then("create IMEXNode", write::create(self.nodes(), name), Message::Written);
    }
}

fn answer_all(asked: &mut BTreeMap<String, Vec<Reply<Answer>>>, uid: &str, answer: &Answer) {
    for reply in asked.remove(uid).into_iter().flatten() {
        reply.send(answer.clone());
    }
}

impl Actor for NodeLink {
    const KIND: &'static str = "NodeLink";
    type Message = Message;

    fn started(&mut self, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        let address = cx.address();
        let (client, name) = (self.settings.client.clone(), self.settings.node_name.clone());
        let watch = watch::object(client, name, move |node: Option<IMEXNode>| {
            address.tell(Message::NodeSeen(node.map(Box::new)));
        });
        cx.spawn("watch IMEXNode", watch);
        Ok(())
    }

    fn handle(&mut self, message: Message, cx: &mut Cx<'_, Self>) -> Result<(), Fault> {
        match message {
            Message::NodeSeen(Some(node)) => {
                debug_assert_eq!(node.name_any(), self.settings.node_name);
                self.see_node(*node, cx);
                cx.ready();
            }
            Message::NodeSeen(None) if !self.busy => self.recreate(cx),
            // The write on its way finds out by itself.
            Message::NodeSeen(None) => self.node = None,
            Message::DomainSeen { name, domain } => {
                if self.watched.as_ref().is_some_and(|(watched, _)| *watched == name) {
                    self.see_domain(domain);
                }
            }
            Message::Inventory(inventory) => {
                self.read_facts();
                // While NVML cannot be read the driver is what it was.
                if !inventory.driver_version.is_empty() {
                    self.report.driver_version = Some(inventory.driver_version);
                }
                self.report.clique = match inventory.fabric {
                    Fabric::Ready(clique) => Some(Some(clique.to_string())),
                    Fabric::None => Some(None),
                    // A fabric that is not well is no change of clique: the node keeps its membership.
                    Fabric::Pending(_) | Fabric::Unhealthy(_) => self.report.clique.take(),
                };
            }
            Message::Daemon(daemon) => self.report.daemon = Some(daemon),
            Message::Standing(standing) => self.report.imex_mode = Some(standing.acts),
            Message::Authentication(authentication) => self.report.peer_authentication = Some(authentication),
            Message::Certificates(certificates) => self.report.certificates = Some(certificates),
            Message::Condition(draft) => {
                self.report.conditions.retain(|known| known.type_ != draft.type_);
                self.report.conditions.push(draft);
            }
            Message::Enter { cd, mode, reply } => {
                self.wishes.leaves.remove(&cd.uid);
                self.entering.entry(cd.uid.clone()).or_default().push(reply);
                self.wishes.enters.insert(cd.uid.clone(), (cd, mode));
            }
            Message::Leave { cd_uids } => {
                let entering = &self.wishes.enters;
                self.wishes.leaves.extend(cd_uids.into_iter().filter(|uid| !entering.contains_key(uid)));
            }
            Message::Keep { cd_uid, entry, reply } => {
                self.wishes.leaves.remove(&cd_uid);
                self.keeping.entry(cd_uid.clone()).or_default().push(reply);
                self.wishes.keeps.insert(cd_uid, entry);
            }
            Message::Written(written) => self.written(written, cx),
            Message::Retry => self.busy = false,
        }
        self.settle(cx);
        Ok(())
    }
}

/// Field manager of our writes.
fn params() -> kube::api::PostParams {
    kube::api::PostParams { field_manager: Some(names::AGENT.into()), dry_run: false }
}
