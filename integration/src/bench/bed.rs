//! One node with its runner and agent, and a controller, on an API server: Heddle's processes are the real ones.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use heddle_core::api::{ComputeDomain, IMEXDomain, IMEXNode, crds};
use heddle_core::{clique::CliqueId, names};
use k8s_openapi::api::core::v1::{Namespace, Node as KubernetesNode};
use k8s_openapi::api::resource::v1::ResourceSlice;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use rustix::process::Pid;
use serde_json::json;
use tempfile::TempDir;
use uuid::Uuid;

use super::Shared;
use super::claims::{Claims, PodRef};
use super::embedded::{Embedded, NAMESPACE};
use crate::demo::cluster::{agent_command, environment, folder, free_network, runner_command, words};
use crate::demo::process::{Process, Start};
use crate::demo::provision::{Node, provision};
use crate::node::NodePaths;

/// What a start may take: a daemon's own start is in it.
const START: Duration = Duration::from_secs(30);
/// How often a start is looked at. Figures of a start are that coarse.
const LOOK: Duration = Duration::from_millis(2);

/// The node and its processes.
pub struct Bed {
    /// Its objects.
    pub claims: Claims,
    /// Where it is.
    pub node: Node,
    /// Where the agent serves metrics.
    pub metrics: SocketAddr,
    agent: Option<Process>,
    others: Vec<Process>,
    start: Start,
    state: TempDir,
    _folder: TempDir,
    _api: Option<Embedded>,
}

impl Bed {
    /// Starts everything, against the cluster of `kubeconfig` or an embedded API server.
    ///
    /// # Errors
    /// One sentence that says what could not be started.
    pub async fn start(kubeconfig: Option<&Path>, shared: &Shared) -> anyhow::Result<Self> {
        let (binary, roles) = shared.binaries()?;
        let (folder, state) = (volatile_folder()?, folder()?);
        let (api, kubeconfig) = match kubeconfig {
            Some(path) => (None, path.to_owned()),
            None => {
                let path = folder.path().join("kubeconfig");
                let api = Embedded::start(Default::default())?;
                api.kubeconfig(&path)?;
                (Some(api), path)
            }
        };
        let client = client(&kubeconfig).await?;
        let unique = Uuid::from_u128(fastrand::u128(..)).simple().to_string();
        let (node, namespace) = (format!("heddle-bench-{}", &unique[..8]), format!("heddle-bench-{}", &unique[..8]));
        if api.is_some() {
            create_namespace(&client, NAMESPACE).await?;
        }
        install(&client, &node, &namespace).await?;
        let pod = PodRef::create(client.clone(), &namespace).await?;
        let address = Ipv4Addr::new(127, free_network()?, 0, 1);
        let clique = CliqueId { cluster: Uuid::from_u128(fastrand::u128(..)), id: 1 };
        let paths = NodePaths::new(folder.path().join("n"));
        let node = Node { name: node, address, clique, paths };
        provision(&node, 4, 234, &binary)?;

        let start = |name: &str, words: Vec<OsString>, environment| {
            let log = folder.path().join(format!("{name}.log"));
            // Agents of a cluster that is not ours have no token that is bound to this node.
            let environment = [environment, peers(shared.insecure_peers || api.is_none())].concat();
            Start { name: name.into(), command: roles.command(words), environment, log }
        };
        let controller = words(["controller", "--kubeconfig"]).chain([kubeconfig.clone().into()]).collect();
        let others = vec![
            // Its Lease goes with the bench's own namespace.
            Process::start(start("controller", controller, vec![("POD_NAMESPACE", namespace.clone().into())]))?,
            Process::start(start("runner", runner_command(&node), environment(&node)))?,
        ];
        // Freed at once, for the agent to take: nothing else on this machine asks for this very port meanwhile.
        let metrics = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let agents = match &api {
            None => kubeconfig,
            Some(api) => {
                let path = folder.path().join("agent-kubeconfig");
                api.agent_kubeconfig(&path, &node.name)?;
                path
            }
        };
        let mut command = agent_command(&node, &agents);
        // Checkpoints are on a disk on a real node, the rest of its folders on a tmpfs.
        if let Some(path) = command.iter_mut().skip_while(|word| *word != "--state-dir").nth(1) {
            *path = state.path().into();
        }
        command.extend(words(["--metrics-address", &metrics.to_string()]));
        let start = start("agent", command, environment(&node));
        let claims = Claims { client, namespace, node: node.name.clone(), pod };
        let agent = Some(Process::start(start.clone())?);
        Ok(Self { claims, node, metrics, agent, others, start, state, _folder: folder, _api: api })
    }

    /// Waits until the node offers slots: its daemon is READY in a domain then.
    ///
    /// # Errors
    /// When that takes too long, or a process is broken.
    pub async fn offers_slots(&self) -> anyhow::Result<()> {
        let began = Instant::now();
        while !self.slots_are_there().await? {
            if let Some(broken) = self.agent.iter().chain(&self.others).find_map(Process::broken) {
                bail!("{broken}");
            }
            if began.elapsed() > START {
                bail!("the node has not offered slots within {} s", START.as_secs());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Removes the node's slices, as a kubelet does when it starts.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub async fn wipe_slices(&self) -> anyhow::Result<()> {
        let of_node = ListParams::default().fields(&format!("spec.nodeName={}", self.node.name));
        let slices = Api::<ResourceSlice>::all(self.claims.client.clone());
        slices.delete_collection(&DeleteParams::default(), &of_node).await.context("the slices were not removed")?;
        Ok(())
    }

    async fn slots_are_there(&self) -> anyhow::Result<bool> {
        let slices = Api::<ResourceSlice>::all(self.claims.client.clone()).list(&ListParams::default()).await?;
        let ours = |slice: &&ResourceSlice| {
            slice.spec.driver == names::DRIVER && slice.spec.node_name.as_deref() == Some(&self.node.name)
        };
        Ok(slices.items.iter().find(ours).is_some_and(|slice| slice.spec.devices.iter().flatten().next().is_some()))
    }

    /// The agent's service socket, once it is there.
    ///
    /// # Errors
    /// When that takes too long.
    pub async fn service_socket(&self) -> anyhow::Result<PathBuf> {
        self.socket(&self.node.paths.plugins().join(names::DRIVER), ".sock").await
    }

    /// The agent's registration socket, once it is there.
    ///
    /// # Errors
    /// When that takes too long.
    pub async fn registration_socket(&self) -> anyhow::Result<PathBuf> {
        self.socket(&self.node.paths.registry(), "-reg.sock").await
    }

    async fn socket(&self, folder: &Path, suffix: &str) -> anyhow::Result<PathBuf> {
        let began = Instant::now();
        loop {
            let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let ours = |path: &PathBuf| {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                name.ends_with(suffix) && !name.starts_with('.') && !name.starts_with(names::GPU_DRIVER)
            };
            if let Some(found) = names.map(|entry| entry.path()).find(ours) {
                return Ok(found);
            }
            if began.elapsed() > START {
                bail!("the agent has no socket in {}", folder.display());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The folder of the agent's checkpoints.
    pub fn state(&self) -> &Path {
        self.state.path()
    }

    /// The agent's process.
    ///
    /// # Errors
    /// When it does not run.
    pub fn agent(&self) -> anyhow::Result<Pid> {
        self.agent.as_ref().and_then(Process::pid).context("the agent does not run")
    }

    /// Ends the agent in order.
    pub async fn stop_agent(&mut self) {
        if let Some(agent) = self.agent.take() {
            agent.stop().await;
        }
    }

    /// Starts it again.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_agent(&mut self) -> anyhow::Result<()> {
        self.agent = Some(Process::start(self.start.clone())?);
        Ok(())
    }

    /// Removes what was made in the cluster, and ends everything. Best effort: the figures are known by now.
    pub async fn stop(mut self) {
        let Claims { client, namespace, .. } = self.claims.clone();
        let (delete, all) = (DeleteParams::default(), ListParams::default());
        let domains = Api::<ComputeDomain>::namespaced(client.clone(), &namespace);
        self.claims.remove().await;
        let _ = domains.delete_collection(&delete, &all).await;
        let began = Instant::now();
        while domains.list(&all).await.is_ok_and(|left| !left.items.is_empty()) && began.elapsed() < START {
            tokio::time::sleep(LOOK).await;
        }
        self.stop_agent().await;
        let _ = Api::<KubernetesNode>::all(client.clone()).delete(&self.node.name, &delete).await;
        let _ = Api::<IMEXNode>::all(client.clone()).delete(&self.node.name, &delete).await;
        let _ = self.wipe_slices().await;
        for process in self.others.drain(..) {
            process.stop().await;
        }
        let shared = heddle_core::imex::shared_domain_name(&self.node.clique);
        let _ = Api::<IMEXDomain>::all(client.clone()).delete(&shared, &delete).await;
        let _ = Api::<Namespace>::all(client).delete(&namespace, &delete).await;
    }
}

/// A folder in memory where there is one, as `/run` is on a node, with a path as short as sockets need it.
pub fn volatile_folder() -> anyhow::Result<TempDir> {
    tempfile::Builder::new().prefix("heddle-").tempdir_in("/dev/shm").or_else(|_| folder())
}

/// How daemons know each other, for a process of ours. A variable and not a flag: a binary of before passes over it.
pub fn peers(insecure: bool) -> Vec<(&'static str, OsString)> {
    let mode = if insecure { "insecure" } else { "domain-ca" };
    vec![("HEDDLE_PEER_AUTHENTICATION", mode.into())]
}

/// A client by this kubeconfig.
pub async fn client(kubeconfig: &Path) -> anyhow::Result<Client> {
    let shown = kubeconfig.display();
    let read = Kubeconfig::read_from(kubeconfig).with_context(|| format!("{shown} is no usable kubeconfig"))?;
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    Client::try_from(config).with_context(|| format!("no client could be made from {shown}"))
}

/// The definitions, where they are missing, and objects of our own names.
async fn install(client: &Client, node: &str, namespace: &str) -> anyhow::Result<()> {
    install_crds(client).await?;
    create_namespace(client, namespace).await?;
    create_node(client, node).await
}

/// The definitions, where they are missing.
pub async fn install_crds(client: &Client) -> anyhow::Result<()> {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    for crd in crds() {
        let apply = PatchParams::apply(names::AGENT).force();
        api.patch(&crd.name_any(), &apply, &Patch::Apply(&crd)).await.context("a CRD was refused")?;
    }
    Ok(())
}

/// A namespace, if there is none.
pub async fn create_namespace(client: &Client, name: &str) -> anyhow::Result<()> {
    let made: Namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    match Api::all(client.clone()).create(&PostParams::default(), &made).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        made => made.map(drop).with_context(|| format!("namespace {name} was refused")),
    }
}

/// A Node.
pub async fn create_node(client: &Client, name: &str) -> anyhow::Result<()> {
    let made: KubernetesNode = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    let made = Api::all(client.clone()).create(&PostParams::default(), &made).await;
    made.map(drop).with_context(|| format!("Node {name} was refused"))
}
