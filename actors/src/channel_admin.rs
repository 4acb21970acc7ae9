//! `heddle channel`: what a person asks of the channel maps, and does to them.

use std::collections::BTreeMap;

use heddle_core::api::{ComputeDomain, IMEXDomain, IMEXNode, NodeChannel};
use heddle_core::channels::{self, Channel, World};
use heddle_core::fault::{Fault, plain, reason};
use heddle_core::names;
use heddle_core::protocol::{self, LEASE_SECONDS, Life, Release};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, PostParams};
use kube::runtime::events::{Event, EventType};
use kube::{Client, ResourceExt};

use crate::events::Recorder;
use crate::{cause, reference};

/// Where kubelets renew their leases.
const LEASES: &str = "kube-node-lease";
/// Field manager of what a person writes by this command.
const MANAGER: &str = "heddle-channel";

/// All channels of the cluster, or of one clique.
///
/// # Errors
/// A retryable fault with what the API server said.
pub async fn list(client: &Client, clique: Option<&str>) -> Result<Vec<Channel>, Fault> {
    let all = ListParams::default();
    let domains = Api::<IMEXDomain>::all(client.clone()).list(&all).await.map_err(api("IMEXDomains"))?.items;
    let nodes = Api::<IMEXNode>::all(client.clone()).list(&all).await.map_err(api("IMEXNodes"))?.items;
    let cds: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::erase::<ComputeDomain>(&()));
    let cds = cds.list(&all).await.map_err(api("ComputeDomains"))?.items;
    let alive = cds.into_iter().filter(|cd| cd.metadata.deletion_timestamp.is_none()).filter_map(|cd| cd.uid());
    let known = Api::<Node>::all(client.clone()).list(&all).await.map_err(api("Nodes"))?.items;
    let known: BTreeMap<String, Node> = known.into_iter().map(|node| (node.name_any(), node)).collect();
    let mut lives = BTreeMap::new();
    let holds = |node: &&IMEXNode| node.status.as_ref().is_some_and(|status| !status.channels.is_empty());
    for node in nodes.iter().filter(holds) {
        let name = node.name_any();
        let mut life = node_life(known.get(&name));
        // Only of one that seems lost it matters whether its kubelet has written meanwhile.
        if life.sign().is_none() {
            life.lease = lease(client, &name).await?;
        }
        lives.insert(name, life);
    }
    Ok(channels::channels(&World { domains, nodes, lives, alive: alive.collect() }, clique))
}

/// What is to be released.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Name of the node.
    pub node: String,
    /// UID or `namespace/name` of a ComputeDomain; all that the node lists without it.
    pub compute_domain: Option<String>,
    /// Somebody has made sure that the node is off, whatever the cluster believes.
    pub vouched: bool,
    /// Nothing is written.
    pub dry_run: bool,
}

/// What was, or would be, released.
#[derive(Clone, Debug)]
pub struct Released {
    /// What the node listed, by ComputeDomain UID.
    pub channels: BTreeMap<String, NodeChannel>,
    /// `namespace/name` of those ComputeDomains that a channel map knows.
    names: BTreeMap<String, String>,
}

/// Takes channels off a node that is off for good.
///
/// # Errors
/// A permanent fault if the node seems to live or lists nothing such, a retryable one if its agent has written meanwhile or
/// the API server could not be asked.
pub async fn release(client: &Client, wanted: &Wanted) -> Result<Released, Fault> {
    let nodes = Api::<IMEXNode>::all(client.clone());
    let what = format!("IMEXNode {}", wanted.node);
    if !names::is_object_name(&wanted.node) {
        let text = format!("{:?} is no name of a node; `heddle channel list` has them", wanted.node);
        return Err(Fault::permanent(reason::NOTHING_TO_RELEASE, text));
    }
    let Some(node) = nodes.get_opt(&wanted.node).await.map_err(api(&what))? else {
        let text = format!("there is no {what}: nothing is in quarantine for it");
        return Err(Fault::permanent(reason::NOTHING_TO_RELEASE, text));
    };
    // After the copy that guards the write: an agent that begins to enter since then makes the write fail.
    let known = Api::<Node>::all(client.clone()).get_opt(&wanted.node).await;
    let mut life = node_life(known.map_err(api(&format!("Node {}", wanted.node)))?.as_ref());
    life.lease = lease(client, &wanted.node).await?;
    let names = names(client, &node).await?;
    let uid = wanted.compute_domain.as_deref().map(|named| resolve(&node, &names, named)).transpose()?;
    let Release { channels, status } = protocol::release(&node, uid.as_deref(), &life, wanted.vouched)?;
    let released = Released { channels, names };
    if wanted.dry_run {
        return Ok(released);
    }
    let next = IMEXNode { status: Some(status), ..node.clone() };
    let params = PostParams { field_manager: Some(MANAGER.into()), dry_run: false };
    match nodes.replace_status(&wanted.node, &params, &next).await {
        Ok(_) => {
            tell(client, &wanted.node, &released).await;
            Ok(released)
        }
        Err(kube::Error::Api(status)) if status.is_conflict() || status.is_not_found() => {
            let text = format!(
                "{what} has just been written by somebody else, its agent maybe: nothing was released; look again"
            );
            Err(Fault::retryable(reason::NODE_ALIVE, text))
        }
        Err(error) => Err(api(&what)(error)),
    }
}

/// The names of the ComputeDomains that the node lists. Of one that is gone only the channel map knows it.
async fn names(client: &Client, node: &IMEXNode) -> Result<BTreeMap<String, String>, Fault> {
    let listed = node.status.iter().flat_map(|status| &status.channels);
    let mut maps = BTreeMap::new();
    let mut names = BTreeMap::new();
    for (uid, entry) in listed {
        if !maps.contains_key(&entry.domain) {
            let what = format!("IMEXDomain {}", entry.domain);
            let domain = Api::<IMEXDomain>::all(client.clone()).get_opt(&entry.domain).await.map_err(api(&what))?;
            let map = domain.and_then(|domain| domain.status).unwrap_or_default().channels;
            maps.insert(entry.domain.clone(), map);
        }
        let known = maps[&entry.domain].get(uid).filter(|known| !known.compute_domain.is_empty());
        names.extend(known.map(|known| (uid.clone(), known.compute_domain.clone())));
    }
    Ok(names)
}

/// The UID of the ComputeDomain among those that the node lists.
fn resolve(node: &IMEXNode, names: &BTreeMap<String, String>, named: &str) -> Result<String, Fault> {
    if !named.contains('/') {
        return Ok(named.to_owned());
    }
    let found: Vec<String> = names.iter().filter(|(_, name)| *name == named).map(|(uid, _)| uid.clone()).collect();
    match &found[..] {
        [uid] => Ok(uid.clone()),
        [] => Err(Fault::permanent(
            reason::NOTHING_TO_RELEASE,
            format!(
                "node {} lists no channel of a ComputeDomain {named}; heddle channel list has the UIDs",
                node.name_any()
            ),
        )),
        _ => Err(Fault::permanent(
            reason::NOTHING_TO_RELEASE,
            format!("several ComputeDomains were called {named}: say which one by its UID, {}", found.join(" or ")),
        )),
    }
}

fn node_life(node: Option<&Node>) -> Life {
    let Some(node) = node else { return Life::default() };
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    // A Node that has said nothing yet has just come.
    let status = ready.map_or_else(|| "True".into(), |ready| ready.status.clone());
    let since = ready.and_then(|ready| ready.last_transition_time.as_ref()).map(|time| time.0.to_string());
    Life { ready: Some(status), since, lease: None }
}

/// Age of the last renewal of the kubelet's lease, and for how long it counts, in seconds.
async fn lease(client: &Client, node: &str) -> Result<Option<(u64, u64)>, Fault> {
    let what = format!("Lease {LEASES}/{node}");
    let lease = Api::<Lease>::namespaced(client.clone(), LEASES).get_opt(node).await.map_err(api(&what))?;
    let Some(spec) = lease.and_then(|lease| lease.spec) else { return Ok(None) };
    let valid = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(LEASE_SECONDS);
    let Some(renewed) = spec.renew_time else { return Ok(None) };
    let age = jiff::Timestamp::now().as_second() - renewed.0.as_second();
    Ok(Some((u64::try_from(age).unwrap_or_default(), valid)))
}

/// An Event of the Node, for those who look later. That it cannot be written is no reason to fail.
async fn tell(client: &Client, node: &str, released: &Released) {
    let recorder = Recorder::new(client.clone(), MANAGER, None);
    let channels = released.channels.iter().map(|(uid, entry)| {
        format!("channel {} of IMEX domain {} ({})", entry.channel, entry.domain, released.whose(uid))
    });
    let event = Event {
        type_: EventType::Warning,
        reason: reason::CHANNEL_RELEASED.into(),
        note: Some(format!(
            "released by hand, as the node is said to be off for good: {}",
            heddle_core::condition::enumerate(channels)
        )),
        action: "Release".into(),
        secondary: None,
    };
    if let Err(error) = recorder.publish(&event, &reference::node(node)).await {
        tracing::warn!(node, "the Event of the release could not be written: {}", cause::told(&error));
    }
}

fn api(what: &str) -> impl Fn(kube::Error) -> Fault {
    let what = what.to_owned();
    move |error| {
        let text = format!("the API server could not be asked for {what}: {}", cause::told(&error));
        Fault::retryable(reason::API_UNAVAILABLE, text)
    }
}

impl Released {
    /// A line each, for people.
    pub fn told(&self, wanted: &Wanted) -> String {
        let verb = if wanted.dry_run { "would release" } else { "released" };
        let lines = self.channels.iter().map(|(uid, entry)| {
            let (channel, domain, whose) = (entry.channel, &entry.domain, self.whose(uid));
            format!("{verb} channel {channel} of IMEX domain {domain} from node {} for {whose}\n", wanted.node)
        });
        lines.collect()
    }

    fn whose(&self, uid: &str) -> String {
        match self.names.get(uid) {
            Some(name) => format!("ComputeDomain {}, UID {uid}", plain(name).collect::<String>()),
            None => format!("ComputeDomain with UID {uid}"),
        }
    }
}
