//! The invariants, checked on what is really there: the API's objects, the agents' checkpoints, the runners' daemons.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use heddle_core::claim::Prepared;
use heddle_core::claim::checkpoint::Checkpoint;
use heddle_core::invariants::{Report, RunningDaemon, World};
use heddle_core::names;
use heddle_proto::runner::GetRequest;
use heddle_proto::runner::runner_client::RunnerClient;
use kube::ResourceExt;
use tonic::transport::Endpoint;

use super::provision::Node;
use super::snapshot::Snapshot;

/// Follows the daemons, so that one that was replaced under a prepared claim is noticed (S4).
#[derive(Debug, Default)]
pub struct Audit {
    seen: BTreeMap<String, Look>,
    stopped: BTreeMap<String, u32>,
}

/// One node at one moment.
#[derive(Clone, Debug, Default)]
struct Look {
    pid: u32,
    domain: Option<String>,
    prepared: Vec<Prepared>,
}

impl Audit {
    /// Looks at every node: a claim that is prepared in two looks must see the same daemon in both.
    ///
    /// # Errors
    /// When a runner does not answer or a checkpoint cannot be read.
    pub async fn look(&mut self, nodes: &[Node]) -> anyhow::Result<()> {
        for node in nodes {
            let look = Look::at(node).await?;
            let before = self.seen.insert(node.name.clone(), look.clone()).unwrap_or_default();
            let claims =
                |look: &Look| look.prepared.iter().map(|claim| claim.claim_uid.clone()).collect::<BTreeSet<_>>();
            let held_on = !claims(&before).is_disjoint(&claims(&look));
            if held_on && before.pid != look.pid {
                *self.stopped.entry(node.name.clone()).or_default() += 1;
            }
        }
        Ok(())
    }

    /// The invariants over the last look and these objects.
    pub fn report(&self, snapshot: &Snapshot) -> Report {
        let daemon = |name: &str, look: &Look| RunningDaemon {
            domain: look.domain.clone(),
            stopped_under_claims: self.stopped.get(name).copied().unwrap_or_default(),
        };
        Report::of(&World {
            domains: snapshot.domains.iter().map(|domain| (domain.name_any(), domain.clone())).collect(),
            nodes: snapshot.nodes.iter().map(|node| (node.name_any(), node.clone())).collect(),
            prepared: self.seen.iter().map(|(name, look)| (name.clone(), look.prepared.clone())).collect(),
            daemons: self.seen.iter().map(|(name, look)| (name.clone(), daemon(name, look))).collect(),
        })
    }
}

impl Look {
    async fn at(node: &Node) -> anyhow::Result<Self> {
        let target = format!("unix:{}", node.paths.runner_socket().display());
        let channel = Endpoint::try_from(target)?.connect().await;
        let channel = channel.with_context(|| format!("the runner of {} does not answer", node.name))?;
        let state = RunnerClient::new(channel).get(GetRequest {}).await?.into_inner();
        let mut prepared = Vec::new();
        let folder = node.paths.state().join("claims").join(names::DRIVER);
        let entries = std::fs::read_dir(&folder).with_context(|| format!("{} has no checkpoints", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                // It may be undone just now; what is left must be readable.
                let Ok(bytes) = std::fs::read(&path) else { continue };
                let checkpoint = Checkpoint::decode(&bytes).with_context(|| format!("{} is broken", path.display()))?;
                prepared.extend(checkpoint.held());
            }
        }
        Ok(Self { pid: state.daemon_pid, domain: Some(state.domain).filter(|domain| !domain.is_empty()), prepared })
    }
}
