//! The agent's process is cut off before every call to the disk and every write to the API, and started again: with the
//! real ChannelAllocator, NodeLink and DraServer, the API server in the parent.
//!
//! A cut is that of a process, and all that it has told the kernel stays. A power cut is followed by another boot, in which
//! nothing of the claim runs; what it may leave of files is what `damage.rs` tries.

mod agent;
mod process;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use heddle_actors::dra::DraSettings;
use heddle_core::clique::CliqueId;
use heddle_core::imex::shared_domain_name;
use heddle_integration::api::{Listening, Verb};
use heddle_integration::node::NodePaths;
use heddle_proto::dra::v1::Claim;
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::json;

use crate::bed::{Bed, NODE, settings_of};
use process::Process;

/// One durable write of a file.
const DURABLE: [&str; 5] = ["create", "write", "fsync-file", "rename", "fsync-dir"];
/// One write of a file that need not outlive the boot, or only as it was before.
const THIS_BOOT: [&str; 3] = ["create", "write", "rename"];

thread_local! {
    static DOMAIN: String = shared_domain_name(&clique());
}

fn clique() -> CliqueId {
    "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.7".parse().unwrap()
}

fn settings(paths: &NodePaths) -> DraSettings {
    DraSettings { gpus: false, ..settings_of(paths) }
}

/// Does nothing unless a parent starts it as the agent.
#[test]
fn the_agent_s_own_process() {
    if std::env::var_os(agent::ROOT).is_some() {
        agent::live();
    }
}

/// The calls of a Prepare: checkpoint `Preparing`, CDI file, checkpoint `Prepared`.
fn prepare_calls() -> Vec<&'static str> {
    [&DURABLE[..], &THIS_BOOT, &THIS_BOOT].concat()
}

/// The calls of an Unprepare: tombstone, CDI file away, checkpoint away.
fn unprepare_calls() -> Vec<&'static str> {
    [&THIS_BOOT[..], &["unlink"], &["unlink"]].concat()
}

/// A node, the claim that is cut off, and one of another ComputeDomain beside it that must feel nothing.
struct Node {
    bed: Bed,
    api: String,
    _listening: Listening,
    /// The agent that lives.
    pid: Arc<AtomicI32>,
    green: String,
    claim: Claim,
    beside: Claim,
    /// The CDI file and the checkpoint of the claim beside, once it is prepared.
    kept: BTreeMap<std::path::PathBuf, Vec<u8>>,
}

impl Node {
    async fn new() -> (Self, Process) {
        let bed = Bed::new().await;
        let listening = bed.server.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let domain = DOMAIN.with(Clone::clone);
        let members = json!({NODE: {"index": 0, "address": "127.10.0.1"}});
        let object = json!({"apiVersion": "imex.heddle.dev/v1alpha1", "kind": "IMEXDomain", "metadata": {"name": domain},
            "spec": {"clique": clique().to_string(), "kind": "Shared", "maxMembers": 18, "members": members}});
        bed.create("imex.heddle.dev/v1alpha1", "imexdomains", object).await;
        let node = json!({"apiVersion": "imex.heddle.dev/v1alpha1", "kind": "IMEXNode", "metadata": {"name": NODE},
            "spec": {"domain": domain}});
        bed.create("imex.heddle.dev/v1alpha1", "imexnodes", node).await;
        let green = bed.compute_domain("team", "green", json!({})).await;
        let azure = bed.compute_domain("team", "azure", json!({})).await;
        let (claim, beside) = (bed.claim("c", &green).await, bed.claim("beside", &azure).await);
        let api = format!("http://{}", listening.addr);
        let (pid, kept) = (Arc::default(), BTreeMap::new());
        let mut node = Self { bed, api, _listening: listening, pid, green, claim, beside, kept };
        let agent = node.start().await;
        agent.prepare(&node.beside).await.unwrap();
        // It is written beside the answer, and would be taken for a write of the other claim.
        node.until(|node| node.shows(&node.beside)).await;
        node.kept = node.files();
        assert_eq!(node.kept.len(), 2);
        (node, agent)
    }

    async fn start(&self) -> Process {
        Process::start(self, None).await.expect("nothing cuts it off")
    }

    /// Everything in the CDI directory and beside the checkpoints, however it is named.
    fn files(&self) -> BTreeMap<std::path::PathBuf, Vec<u8>> {
        crate::files::below(vec![self.bed.paths.cdi(), self.bed.paths.state().join("claims")])
    }

    /// The files of the claim, whole or not.
    fn of_claim(&self) -> Vec<String> {
        let files = self.files();
        for (path, bytes) in &self.kept {
            assert_eq!(files.get(path), Some(bytes), "the claim beside has lost something");
        }
        let added = files.keys().filter(|path| !self.kept.contains_key(*path));
        added.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    }

    /// The channels that the node lists, by ComputeDomain.
    fn listed(&self) -> BTreeMap<String, u64> {
        let nodes = self.bed.server.objects("imex.heddle.dev", "imexnodes");
        let channels = nodes[0]["status"]["channels"].as_object().cloned().unwrap_or_default();
        channels.into_iter().map(|(cd, entry)| (cd, entry["channel"].as_u64().unwrap())).collect()
    }

    /// The numbers that were allocated in the IMEX domain.
    fn allocated(&self) -> BTreeMap<String, u64> {
        let domains = self.bed.server.objects("imex.heddle.dev", "imexdomains");
        let channels = domains[0]["status"]["channels"].as_object().cloned().unwrap_or_default();
        channels.into_iter().map(|(cd, entry)| (cd, entry["channel"].as_u64().unwrap())).collect()
    }

    async fn until(&self, holds: impl Fn(&Self) -> bool) {
        while !holds(self) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// After whatever happened, a Prepare and an Unprepare do what they must.
    async fn converges(&self, agent: &Process) {
        let ids = agent.prepare(&self.claim).await.unwrap();
        self.is_prepared(&ids);
        assert_eq!(agent.prepare(&self.claim).await.unwrap(), ids, "a repeated Prepare answers the same");
        self.is_prepared(&ids);
        agent.unprepare(&self.claim).await.unwrap();
        self.is_gone().await;
    }

    fn is_prepared(&self, ids: &[String]) {
        let (green, listed) = (&self.green, self.listed());
        let channel = listed[green];
        let node = (format!("/dev/nvidia-caps-imex-channels/channel{channel}"), 234, channel);
        assert_eq!(self.bed.inject(ids), [node]);
        let files = self.of_claim();
        let cdi = files.iter().filter(|name| name.contains("-claim_")).count();
        assert_eq!((files.len(), cdi), (2, 1), "{files:?}");
        assert_eq!((listed.len(), self.allocated()), (2, listed), "each ComputeDomain has one number, listed here");
    }

    /// Nothing is left of the claim, on disk or in the node's object, and the claim beside holds what it held.
    async fn is_gone(&self) {
        assert_eq!(self.of_claim(), Vec::<String>::new());
        self.until(|node| !node.listed().contains_key(&node.green)).await;
        assert_eq!(self.listed().len(), 1);
    }

    /// Cuts the agent off before its `write`-th write to the API from now on, which is not carried out.
    fn cut_before_write(&self, write: usize) {
        let (pid, seen) = (self.pid.clone(), AtomicUsize::new(0));
        self.bed.server.fail_requests(move |request| {
            let writes = !matches!(request.verb, Verb::Get | Verb::List | Verb::Watch) && request.plural != "events";
            (writes && seen.fetch_add(1, Ordering::SeqCst) == write).then(|| {
                let pid = rustix::process::Pid::from_raw(pid.load(Ordering::SeqCst)).unwrap();
                // It may have been cut off in another way before.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                kube::core::Status::failure("cut off", "ServiceUnavailable").with_code(503)
            })
        });
    }

    /// Lets the API answer, starts an agent, and sees that all is well.
    async fn heal(&self) -> Process {
        let agent = self.start_healed().await;
        self.converges(&agent).await;
        agent
    }

    async fn start_healed(&self) -> Process {
        self.bed.heal();
        self.start().await
    }

    fn kill_now(&self) {
        let pid = rustix::process::Pid::from_raw(self.pid.load(Ordering::SeqCst)).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    /// The claim's status names its channel.
    fn is_shown(&self) -> bool {
        self.shows(&self.claim)
    }

    fn shows(&self, claim: &Claim) -> bool {
        let claims = self.bed.server.objects("resource.k8s.io", "resourceclaims");
        let claim = claims.iter().find(|found| found["metadata"]["uid"] == claim.uid.as_str()).unwrap();
        claim["status"]["devices"].is_array()
    }

    /// Takes the channel out of the claim's status: what stands there is not written again.
    async fn hide(&self) {
        let claims: kube::Api<ResourceClaim> = kube::Api::namespaced(self.bed.client.clone(), "team");
        let patch = kube::api::Patch::Merge(json!({"status": {"devices": null}}));
        claims.patch_status(&self.claim.name, &kube::api::PatchParams::default(), &patch).await.unwrap();
        assert!(!self.is_shown());
    }

    /// Leaves the claim as a cut or damage does, with no agent.
    async fn bring_to(&self, found: Found) {
        for path in std::fs::read_dir(self.bed.paths.state().join("quarantine")).unwrap() {
            std::fs::remove_file(path.unwrap().path()).unwrap();
        }
        let mut agent = self.start().await;
        let cut_off = match found {
            Found::HalfCheckpoint => Some(3),
            Found::HalfCdi => Some(DURABLE.len() + 2),
            _ => None,
        };
        if let Some(call) = cut_off {
            agent.tell(&format!("cut {call}")).await;
            agent.prepare(&self.claim).await.unwrap_err();
            return agent.died().await;
        }
        if found != Found::Nothing {
            agent.prepare(&self.claim).await.unwrap();
        }
        if found == Found::Tombstone {
            agent.tell(&format!("cut {}", THIS_BOOT.len())).await;
            agent.unprepare(&self.claim).await.unwrap_err();
            return agent.died().await;
        }
        agent.kill().await;
        for name in self.of_claim() {
            let is_checkpoint = self.checkpoint().ends_with(&name);
            let path = if is_checkpoint { self.checkpoint() } else { self.bed.paths.cdi().join(name) };
            if is_checkpoint || found == Found::CorruptBoth {
                let bytes = std::fs::read(&path).unwrap();
                std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
            }
        }
    }

    fn checkpoint(&self) -> std::path::PathBuf {
        let folder = self.bed.paths.state().join("claims").join(heddle_core::names::DRIVER);
        folder.join(format!("{}.json", self.claim.uid))
    }

    /// Waits until what a start sets going has come to its end; none if that was cut off.
    async fn settles(&self, found: Found, mut agent: Process) -> Option<Process> {
        let settled = || match found {
            Found::CorruptCheckpoint | Found::CorruptBoth => {
                let whole = |name: &String| {
                    std::fs::read(self.bed.paths.cdi().join(name)).is_ok_and(|bytes| bytes.ends_with(b"}\n"))
                };
                self.checkpoint().exists() && self.of_claim().iter().filter(|name| name.contains("-claim_")).all(whole)
            }
            Found::Tombstone => self.of_claim().is_empty(),
            Found::Nothing | Found::HalfCheckpoint | Found::HalfCdi => true,
        };
        while !settled() {
            if agent.is_dead() {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // What shows need not be the last: these are answered after it.
        let done = match found {
            Found::Tombstone => agent.unprepare(&self.claim).await.is_ok(),
            _ => agent.prepare(&self.beside).await.is_ok(),
        };
        if done && agent.disarm().await { Some(agent) } else { None }
    }

    /// Notes the writes to the API.
    fn note_writes(&self) -> Arc<Mutex<Vec<String>>> {
        let noted = Arc::<Mutex<Vec<String>>>::default();
        let to = noted.clone();
        self.bed.server.fail_requests(move |request| {
            if !matches!(request.verb, Verb::Get | Verb::List | Verb::Watch) && request.plural != "events" {
                to.lock().unwrap().push(request.plural.clone());
            }
            None
        });
        noted
    }
}

/// What there is of the claim when an agent starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    Nothing,
    HalfCheckpoint,
    HalfCdi,
    CorruptCheckpoint,
    CorruptBoth,
    Tombstone,
}

impl Found {
    const ALL: [Self; 6] = [
        Self::Nothing,
        Self::HalfCheckpoint,
        Self::HalfCdi,
        Self::CorruptCheckpoint,
        Self::CorruptBoth,
        Self::Tombstone,
    ];
}

fn run<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    heddle_actors::runtime::block_on(async {
        tokio::time::timeout(Duration::from_secs(300), test()).await.expect("the test hangs");
    });
}

/// Without this the other tests could cut nothing and pass.
#[test]
fn the_calls_to_the_disk_are_those_that_are_cut() {
    run(|| async {
        let (node, mut agent) = Node::new().await;
        let writes = node.note_writes();
        agent.tell("watch").await;
        agent.prepare(&node.claim).await.unwrap();
        node.until(Node::is_shown).await;
        let prepare = agent.tell("watch").await;
        assert_eq!(prepare, prepare_calls());
        agent.unprepare(&node.claim).await.unwrap();
        let unprepare = agent.tell("watch").await;
        assert_eq!(unprepare, unprepare_calls());
        for kind in ["write", "fsync-file", "rename", "fsync-dir", "unlink"] {
            assert!(prepare.iter().chain(&unprepare).any(|call| call == kind), "{kind}");
        }
        node.is_gone().await;
        node.until(|_| writes.lock().unwrap().len() >= 4).await;
        let expected = ["imexdomains", "imexnodes", "resourceclaims", "imexnodes"];
        assert_eq!(*writes.lock().unwrap(), expected, "allocate, enter, status, leave");
    });
}

#[test]
fn a_prepare_cut_off_at_every_call_to_the_disk() {
    run(|| async {
        let (node, mut agent) = Node::new().await;
        let mut met = Vec::new();
        for cut in 0..prepare_calls().len() {
            for again in [true, false] {
                agent.tell(&format!("cut {cut}")).await;
                agent.prepare(&node.claim).await.unwrap_err();
                agent.died().await;
                assert!(node.listed().contains_key(&node.green), "enter comes before every effect");
                let files = node.of_claim();
                met.push((cut, files.len()));
                agent = node.start().await;
                if !again {
                    // The pod is gone: nobody prepares the claim any more.
                    agent.unprepare(&node.claim).await.unwrap();
                    node.is_gone().await;
                }
                node.converges(&agent).await;
            }
        }
        assert_eq!(met.first(), Some(&(0, 0)), "after the enter and before everything else");
        assert!(met.iter().any(|(_, files)| *files == 2));
        agent.kill().await;
    });
}

#[test]
fn an_unprepare_cut_off_at_every_call_to_the_disk() {
    run(|| async {
        let (node, mut agent) = Node::new().await;
        for cut in 0..unprepare_calls().len() {
            for again in [true, false] {
                agent.prepare(&node.claim).await.unwrap();
                agent.tell(&format!("cut {cut}")).await;
                agent.unprepare(&node.claim).await.unwrap_err();
                agent.died().await;
                assert!(node.listed().contains_key(&node.green), "leave comes after everything else");
                agent = node.start().await;
                if again {
                    agent.unprepare(&node.claim).await.unwrap();
                    node.is_gone().await;
                }
                node.converges(&agent).await;
            }
        }
        agent.kill().await;
    });
}

#[test]
fn a_claim_cut_off_before_every_write_to_the_api() {
    run(|| async {
        let (node, agent) = Node::new().await;
        // Allocate, once in the life of the ComputeDomain.
        node.cut_before_write(0);
        agent.prepare(&node.claim).await.unwrap_err();
        agent.died().await;
        assert_eq!((node.allocated().len(), node.listed().len()), (1, 1), "before the allocate there is no number");
        let agent = node.heal().await;
        // Enter.
        node.cut_before_write(0);
        agent.prepare(&node.claim).await.unwrap_err();
        agent.died().await;
        assert_eq!((node.of_claim().len(), node.allocated().len(), node.listed().len()), (0, 2, 1));
        let agent = node.heal().await;
        // Status: written beside the answer, so the kubelet may have that.
        node.hide().await;
        node.cut_before_write(1);
        let _ = agent.prepare(&node.claim).await;
        agent.died().await;
        assert_eq!((node.of_claim().len(), node.listed().len()), (2, 2));
        let agent = node.heal().await;
        // Leave, after the answer.
        agent.prepare(&node.claim).await.unwrap();
        node.until(Node::is_shown).await;
        node.cut_before_write(0);
        let _ = agent.unprepare(&node.claim).await;
        agent.died().await;
        assert_eq!((node.of_claim().len(), node.listed().len()), (0, 2), "only the leave was missing");
        let agent = node.start_healed().await;
        node.is_gone().await;
        node.converges(&agent).await;
        agent.kill().await;
    });
}

#[test]
fn a_claim_cut_off_when_a_write_to_the_api_is_seen_there() {
    run(|| async {
        let (node, agent) = Node::new().await;
        let seen: [&dyn Fn(&Node) -> bool; 3] =
            [&|node| node.allocated().len() == 2, &|node| node.listed().len() == 2, &|node| node.is_shown()];
        let mut agent = agent;
        for seen in seen {
            node.hide().await;
            // Whether the agent has heard of it is anybody's guess, and must not matter.
            tokio::join!(agent.prepare(&node.claim), async {
                node.until(seen).await;
                node.kill_now()
            })
            .0
            .ok();
            agent.died().await;
            agent = node.start().await;
            node.converges(&agent).await;
        }
        agent.prepare(&node.claim).await.unwrap();
        let left = |node: &Node| node.listed().len() == 1;
        tokio::join!(agent.unprepare(&node.claim), async {
            node.until(left).await;
            node.kill_now()
        })
        .0
        .ok();
        agent.died().await;
        agent = node.start().await;
        node.converges(&agent).await;
        agent.kill().await;
    });
}

/// A failing disk, at each call: the error says what, nothing half done is left, and the next attempt is a success.
#[test]
fn every_call_to_the_disk_fails_once() {
    const ERRORS: [(i32, &str); 2] = [(28, "No space left on device"), (5, "Input/output error")];
    run(|| async {
        let (node, mut agent) = Node::new().await;
        for (calls, unprepare) in [(prepare_calls(), false), (unprepare_calls(), true)] {
            for (at, kind) in calls.iter().enumerate() {
                for (errno, says) in ERRORS {
                    for again in [true, false] {
                        if unprepare {
                            agent.prepare(&node.claim).await.unwrap();
                        }
                        let earlier = calls[..at].iter().filter(|earlier| *earlier == kind).count();
                        agent.tell(&format!("fail {kind} {earlier} {errno}")).await;
                        let error = match unprepare {
                            true => agent.unprepare(&node.claim).await.unwrap_err(),
                            false => agent.prepare(&node.claim).await.unwrap_err(),
                        };
                        assert!(error.contains(says) && error.contains(&node.claim.uid), "{kind} {at}: {error}");
                        let half = node.of_claim().into_iter().filter(|name| name.ends_with(".tmp"));
                        assert_eq!(half.collect::<Vec<_>>(), Vec::<String>::new(), "{kind} {at}");
                        for path in node.bed.cdi_files().into_keys().filter(|name| name.contains(&node.claim.uid)) {
                            assert!(node.bed.cdi_files()[&path]["devices"].is_array(), "a whole file or none");
                        }
                        if !again {
                            // The kubelet may give the pod up, or the process end, before the next attempt.
                            agent.unprepare(&node.claim).await.unwrap();
                            node.is_gone().await;
                            agent.kill().await;
                            agent = node.start().await;
                        }
                        node.converges(&agent).await;
                    }
                }
            }
        }
        agent.kill().await;
    });
}

/// What a start finds: each of these is cut off at each call of the start itself, and of what the start sets going.
#[test]
fn a_start_cut_off_at_every_call_to_the_disk() {
    run(|| async {
        let (node, agent) = Node::new().await;
        agent.kill().await;
        let mut cuts = BTreeMap::new();
        for state in Found::ALL {
            for cut in 0.. {
                node.bring_to(state).await;
                let lived = match Process::start(&node, Some(cut)).await {
                    Some(agent) => node.settles(state, agent).await,
                    None => None,
                };
                let last = lived.is_some();
                let agent = match lived {
                    Some(agent) => agent,
                    None => node.start().await,
                };
                node.converges(&agent).await;
                agent.kill().await;
                if last {
                    cuts.insert(state, cut);
                    break;
                }
            }
        }
        // Three folders are tried with a file each. The rest is what is found: nothing, a temporary file, a move to
        // quarantine with a checkpoint and a CDI file made anew, an undo.
        let probes = 3 * (THIS_BOOT.len() + 1);
        let quarantine = ["rename", "fsync-dir", "fsync-dir"].len();
        let expected = [
            (Found::Nothing, probes),
            (Found::HalfCheckpoint, probes + 1),
            (Found::HalfCdi, probes + 1),
            (Found::CorruptCheckpoint, probes + quarantine + DURABLE.len() + THIS_BOOT.len()),
            (Found::CorruptBoth, probes + quarantine + DURABLE.len() + THIS_BOOT.len()),
            (Found::Tombstone, probes + unprepare_calls().len() - THIS_BOOT.len()),
        ];
        assert_eq!(cuts, expected.into());
    });
}
