//! One clique: nodes with runners and agents, a controller, and an API server whose writes are followed.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use heddle_core::clique::CliqueId;
use heddle_core::names;
use heddle_proto::runner::runner_client::RunnerClient;
use heddle_proto::runner::{GetRequest, State};
use kube::Client;
use tempfile::TempDir;
use tonic::transport::Endpoint;
use uuid::Uuid;

use super::daemons::Place;
use super::embedded::{Embedded, NAMESPACE};
use super::journal::Journal;
use super::{Shared, bed, scrape};
use crate::demo::cluster::{agent_command, environment, free_network, runner_command, words};
use crate::demo::process::{Process, Start};
use crate::demo::provision::{Binary, Node, provision};
use crate::node::NodePaths;

/// What anything here may take before it counts as broken, on a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// After this long without a write all is told: what people alone look at may wait for 5 s.
pub const TOLD: Duration = Duration::from_secs(6);
/// How often files and probes are looked at while something is waited for.
const LOOK: Duration = Duration::from_millis(5);
/// GPUs of a node.
const GPUS: u32 = 4;

/// The clique and its processes.
pub struct Rack {
    /// The API server.
    pub api: Embedded,
    /// All that was written to it.
    pub journal: Journal,
    /// A client for it.
    pub client: Client,
    /// The nodes, whether they are up or not.
    pub nodes: Vec<Node>,
    up: Vec<(Process, Process)>,
    controller: Process,
    binary: Binary,
    roles: Binary,
    insecure: bool,
    clique: CliqueId,
    network: u8,
    folder: TempDir,
}

impl Rack {
    /// Starts API server and controller, and makes so many nodes that are not up yet.
    ///
    /// # Errors
    /// One sentence that says what could not be started.
    pub async fn start(shared: &Shared, nodes: u32) -> anyhow::Result<Self> {
        let (binary, roles) = shared.binaries()?;
        let folder = bed::volatile_folder()?;
        let api = Embedded::start(Default::default())?;
        let journal = Journal::start(&api.server)?;
        let kubeconfig = folder.path().join("kubeconfig");
        api.kubeconfig(&kubeconfig)?;
        let client = bed::client(&kubeconfig).await?;
        bed::install_crds(&client).await?;
        bed::create_namespace(&client, NAMESPACE).await?;
        // Freed at once, for the controller to take: nothing else on this machine asks for this very port meanwhile.
        let metrics = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let command: Vec<OsString> = words(["controller", "--metrics-address", &metrics.to_string(), "--kubeconfig"])
            .chain([kubeconfig.into()])
            .collect();
        let controller = Process::start(Start {
            name: "controller".into(),
            command: roles.command(command),
            environment: bed::peers(shared.insecure_peers),
            log: folder.path().join("controller.log"),
        })?;
        let clique = CliqueId { cluster: Uuid::from_u128(fastrand::u128(..)), id: 1 };
        let mut rack = Self {
            api,
            journal,
            client,
            nodes: Vec::new(),
            up: Vec::new(),
            controller,
            binary,
            roles,
            insecure: shared.insecure_peers,
            clique,
            network: free_network()?,
            folder,
        };
        rack.until_ready(metrics).await?;
        for _ in 0..nodes {
            rack.add().await?;
        }
        Ok(rack)
    }

    async fn until_ready(&self, controller: SocketAddr) -> anyhow::Result<()> {
        let began = Instant::now();
        while !scrape::is_ready(controller).await {
            self.check()?;
            if began.elapsed() > PATIENCE {
                bail!("the controller is not ready after {} s", PATIENCE.as_secs());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// One more node, not up yet.
    async fn add(&mut self) -> anyhow::Result<()> {
        let number = self.nodes.len() + 1;
        let node = Node {
            name: format!("node-{number}"),
            address: Ipv4Addr::new(127, self.network, 0, u8::try_from(number)?),
            clique: self.clique,
            paths: NodePaths::new(self.folder.path().join(format!("n{number}"))),
        };
        provision(&node, GPUS, 234, &self.binary)?;
        self.api.agent_kubeconfig(&node.paths.root.join("kubeconfig"), &node.name)?;
        bed::create_node(&self.client, &node.name).await?;
        self.nodes.push(node);
        Ok(())
    }

    /// Starts runner and agent on the next so many nodes that are not up.
    ///
    /// # Errors
    /// When one cannot be started.
    pub fn power_on(&mut self, count: usize) -> anyhow::Result<()> {
        for node in self.nodes.iter().skip(self.up.len()).take(count) {
            let start = |role: &str, words: Vec<OsString>| {
                let name = format!("{role}-{}", node.name);
                let log = node.paths.root.join(format!("{role}.log"));
                let environment = [environment(node), bed::peers(self.insecure)].concat();
                Process::start(Start { name, command: self.roles.command(words), environment, log })
            };
            let runner = start("runner", runner_command(node))?;
            let agent = start("agent", agent_command(node, &node.paths.root.join("kubeconfig")))?;
            self.up.push((runner, agent));
        }
        Ok(())
    }

    /// Whether every process still runs.
    ///
    /// # Errors
    /// What is broken, with its last words.
    pub fn check(&self) -> anyhow::Result<()> {
        let nodes = self.up.iter().flat_map(|(runner, agent)| [runner, agent]);
        match nodes.chain([&self.controller]).find_map(Process::broken) {
            Some(broken) => bail!("{broken}"),
            None => Ok(()),
        }
    }

    /// Waits until nothing but Leases has been written for a while.
    ///
    /// # Errors
    /// When a process is broken, or it never comes to rest.
    pub async fn quiet_for(&self, rest: Duration) -> anyhow::Result<()> {
        let (began, mut place, mut since) = (Instant::now(), self.journal.now(), Instant::now());
        while since.elapsed() < rest {
            tokio::time::sleep(LOOK).await;
            self.check()?;
            let written = self.journal.since(place);
            place += written.len();
            if let Some(last) = written.iter().rfind(|entry| entry.kind() != "Lease") {
                since = last.at;
            }
            if began.elapsed() > PATIENCE {
                bail!("the cluster has not come to rest within {} s", PATIENCE.as_secs());
            }
        }
        Ok(())
    }

    /// What the runner of a node says.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn runner_state(&self, node: &Node) -> anyhow::Result<State> {
        let target = format!("unix:{}", node.paths.runner_socket().display());
        let channel = Endpoint::try_from(target)?.connect().await;
        let channel = channel.with_context(|| format!("the runner of {} does not answer", node.name))?;
        Ok(RunnerClient::new(channel).get(GetRequest {}).await?.into_inner())
    }

    /// The service socket of a node's agent, once it is there.
    ///
    /// # Errors
    /// When that takes too long.
    pub async fn service_socket(&self, node: &Node) -> anyhow::Result<PathBuf> {
        let folder = node.paths.plugins().join(names::DRIVER);
        let began = Instant::now();
        loop {
            let names = std::fs::read_dir(&folder).into_iter().flatten().flatten();
            let ours = |path: &PathBuf| {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                name.ends_with(".sock") && !name.starts_with('.')
            };
            if let Some(found) = names.map(|entry| entry.path()).find(ours) {
                return Ok(found);
            }
            if began.elapsed() > PATIENCE {
                bail!("the agent of {} has no socket in {}", node.name, folder.display());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The daemons of the nodes that are up.
    pub fn daemons(&self) -> Vec<Place> {
        self.nodes.iter().take(self.up.len()).map(|node| Place::Runner(node.paths.imex())).collect()
    }

    /// A folder that goes with the rack.
    pub fn folder(&self) -> PathBuf {
        self.folder.path().join("bench")
    }

    /// Ends everything.
    pub async fn stop(self) {
        let (runners, agents): (Vec<_>, Vec<_>) = self.up.into_iter().unzip();
        futures::future::join_all(agents.into_iter().map(Process::stop)).await;
        let rest = runners.into_iter().chain([self.controller]);
        futures::future::join_all(rest.map(Process::stop)).await;
    }
}
