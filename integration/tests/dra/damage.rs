//! Every byte of every file that the agent keeps: flipped, and cut off. Many claims at once, each with another damage.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use heddle_core::claim::Grant;
use heddle_core::names;
use heddle_proto::dra::v1::Claim;
use serde_json::{Value, json};

use crate::bed::{Agent, Bed, run};

/// Claims of one node in a round: as many damages are tried by one start of the agent.
const CLAIMS: usize = 64;

/// What is done to a file of so many bytes: each byte gets another of a few patterns, each length is cut to.
fn damages(length: usize) -> impl Iterator<Item = Damage> {
    let patterns = [0x01, 0x02, 0x10, 0x80, 0xff, 0x20, 0x08];
    let flips = (0..length).map(move |at| Damage::Flip(at, patterns[at % patterns.len()]));
    flips.chain((0..length).map(Damage::Cut))
}

#[derive(Clone, Copy, Debug)]
enum Damage {
    Flip(usize, u8),
    Cut(usize),
}

impl Damage {
    fn on(self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        match self {
            Self::Flip(at, pattern) => bytes[at] ^= pattern,
            Self::Cut(at) => bytes.truncate(at),
        }
        bytes
    }
}

/// A node with prepared claims of two ComputeDomains.
struct Node {
    bed: Bed,
    claims: Vec<(Claim, u32)>,
}

impl Node {
    async fn new() -> (Self, Agent) {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let mut domains = Vec::new();
        for (name, channel) in [("green", 7), ("azure", 8)] {
            let uid = bed.compute_domain("team", name, json!({})).await;
            let grant = Grant::Channel { channel, domain: "shared-0".into(), channel_count: 2048 };
            bed.stub.borrow_mut().grants.insert(uid.clone(), grant);
            domains.push((uid, channel));
        }
        bed.enter(&[(&domains[0].0, 7), (&domains[1].0, 8)]).await;
        let mut claims = Vec::new();
        for (number, (domain, channel)) in (0..CLAIMS).zip(domains.iter().cycle()) {
            let claim = bed.claim(&format!("c{number:02}"), domain).await;
            agent.prepare_one(&claim).await.unwrap();
            claims.push((claim, *channel));
        }
        (Self { bed, claims }, agent)
    }

    fn checkpoint(&self, claim: &Claim) -> PathBuf {
        self.bed.paths.state().join("claims").join(names::DRIVER).join(format!("{}.json", claim.uid))
    }

    fn cdi(&self, claim: &Claim) -> PathBuf {
        let mut names = self.bed.cdi_files().into_keys().filter(|name| name.contains(&claim.uid));
        self.bed.paths.cdi().join(names.next().unwrap())
    }

    /// Starts an agent over damaged files and waits until it knows what its claims hold.
    async fn start(&self) -> (Agent, BTreeMap<String, u32>) {
        self.bed.stub.borrow_mut().restored = None;
        let agent = self.bed.start().await;
        agent.until(|| self.bed.stub.borrow().restored.is_some()).await;
        let restored = self.bed.stub.borrow_mut().restored.take().unwrap();
        (agent, restored.into_iter().map(|held| (held.claim_uid, held.channel)).collect())
    }

    fn channels(&self) -> BTreeMap<String, u32> {
        self.claims.iter().map(|(claim, channel)| (claim.uid.clone(), *channel)).collect()
    }

    fn quarantine(&self) -> Vec<PathBuf> {
        let folder = std::fs::read_dir(self.bed.paths.state().join("quarantine")).unwrap();
        folder.map(|entry| entry.unwrap().path()).collect()
    }
}

fn damage(path: &Path, damage: Damage) -> Vec<u8> {
    let whole = std::fs::read(path).unwrap();
    std::fs::write(path, damage.on(&whole)).unwrap();
    whole
}

/// All damages of a file of at most so many bytes, in rounds.
fn rounds(length: usize) -> Vec<Vec<Damage>> {
    damages(length).collect::<Vec<_>>().chunks(CLAIMS).map(<[_]>::to_vec).collect()
}

#[test]
fn every_byte_of_a_checkpoint() {
    run(|| async {
        let (node, mut agent) = Node::new().await;
        let length = std::fs::metadata(node.checkpoint(&node.claims[0].0)).unwrap().len() as usize;
        let files = node.bed.cdi_files();
        let whole: Vec<Vec<u8>> =
            node.claims.iter().map(|(claim, _)| std::fs::read(node.checkpoint(claim)).unwrap()).collect();
        let mut tried = 0;
        for round in rounds(length) {
            node.bed.kill(agent).await;
            for ((claim, _), whole) in node.claims.iter().zip(&whole) {
                std::fs::write(node.checkpoint(claim), whole).unwrap();
            }
            for (done, (claim, _)) in round.iter().zip(&node.claims) {
                damage(&node.checkpoint(claim), *done);
                tried += 1;
            }
            let held;
            (agent, held) = node.start().await;
            assert_eq!(held, node.channels(), "{round:?}");
            assert_eq!(node.bed.cdi_files(), files, "{round:?}");
            let mut quarantined = node.quarantine();
            quarantined.sort();
            let mut expected: Vec<PathBuf> = round
                .iter()
                .zip(&node.claims)
                .map(|(_, (claim, _))| node.bed.paths.state().join("quarantine").join(format!("{}.json", claim.uid)))
                .collect();
            expected.sort();
            assert_eq!(quarantined, expected, "{round:?}");
            for path in quarantined {
                std::fs::remove_file(path).unwrap();
            }
        }
        assert_eq!(tried, 2 * length);
        let told = |events: Vec<Value>| events.iter().any(|event| event["reason"] == "CheckpointCorrupt");
        agent.until(|| told(node.bed.server.objects("", "events"))).await;
        all_work(&node, &agent).await;
    });
}

#[test]
fn every_byte_of_a_cdi_file() {
    run(|| async {
        let (node, mut agent) = Node::new().await;
        let files = node.bed.cdi_files();
        let paths: Vec<PathBuf> = node.claims.iter().map(|(claim, _)| node.cdi(claim)).collect();
        let length = std::fs::metadata(&paths[0]).unwrap().len() as usize;
        for round in rounds(length) {
            node.bed.kill(agent).await;
            let whole: Vec<Vec<u8>> = round.iter().zip(&paths).map(|(done, path)| damage(path, *done)).collect();
            let held;
            (agent, held) = node.start().await;
            assert_eq!(held, node.channels(), "{round:?}");
            for (whole, path) in whole.iter().zip(&paths) {
                assert_eq!(&std::fs::read(path).unwrap(), whole, "{round:?}");
            }
        }
        assert_eq!(node.bed.cdi_files(), files);
        all_work(&node, &agent).await;
    });
}

/// Nothing but the API tells then.
#[test]
fn every_byte_of_both_files_at_once() {
    run(|| async {
        let (node, mut agent) = Node::new().await;
        let paths: Vec<PathBuf> = node.claims.iter().map(|(claim, _)| node.cdi(claim)).collect();
        let whole: Vec<Vec<u8>> = paths.iter().map(|path| std::fs::read(path).unwrap()).collect();
        for round in rounds(whole[0].len()) {
            node.bed.kill(agent).await;
            for ((done, (claim, _)), path) in round.iter().zip(&node.claims).zip(&paths) {
                damage(path, *done);
                std::fs::write(node.checkpoint(claim), "{}").unwrap();
            }
            let held;
            (agent, held) = node.start().await;
            assert_eq!(held, node.channels(), "{round:?}");
            for (whole, path) in whole.iter().zip(&paths) {
                assert_eq!(&std::fs::read(path).unwrap(), whole, "{round:?}");
            }
        }
        all_work(&node, &agent).await;
    });
}

/// What is in quarantine, or beside the checkpoints, is read by nobody.
#[test]
fn rubbish_beside_the_files_is_left_alone() {
    run(|| async {
        let (node, agent) = Node::new().await;
        node.bed.kill(agent).await;
        let state = node.bed.paths.state();
        for rubbish in ["agent.lock", "quarantine/x.json", "claims/other-driver", "x"] {
            std::fs::write(state.join(rubbish), [0xff; 300]).unwrap();
        }
        let (agent, held) = node.start().await;
        assert_eq!(held, node.channels());
        all_work(&node, &agent).await;
    });
}

/// Each claim gets its own channel, once, and can be undone.
async fn all_work(node: &Node, agent: &Agent) {
    for (claim, channel) in &node.claims {
        let ids = agent.prepare_one(claim).await.unwrap();
        let path = format!("/dev/nvidia-caps-imex-channels/channel{channel}");
        assert_eq!(node.bed.inject(&ids), [(path, 234, u64::from(*channel))]);
    }
    assert_eq!(node.bed.cdi_files().len(), CLAIMS);
    for (claim, _) in &node.claims {
        agent.unprepare(claim).await.unwrap();
    }
    assert!(node.bed.cdi_files().is_empty() && node.bed.checkpoints().is_empty());
    assert!(node.bed.stub.borrow().held.is_empty());
}
