//! The embedded cluster of the demo: an API server and simulated nodes in this process, Heddle's own processes beside
//! it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use heddle_core::api::crds;
use heddle_core::clique::CliqueId;
use heddle_core::names;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use tempfile::TempDir;
use tokio::sync::watch;
use uuid::Uuid;

use super::Options;
use super::picture::NodeRow;
use super::process::{Process, Start};
use super::provision::{Binary, Node, provision};
use super::scenes::LIMIT;
use super::snapshot::{PodView, Snapshot};
use super::stage::Stage;
use crate::api::{ApiServer, Listening, User};
use crate::chart;
use crate::control::{self, Control};
use crate::kubelet::{Container, Kubelet, KubeletOptions, Limits};
use crate::node::NodePaths;

/// What of the chart the cluster has too: the agents live under the very policies that tie them to their nodes.
const INSTALLED: [&str; 3] = ["DeviceClass", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];
/// Heddle's own namespace.
const NAMESPACE: &str = "heddle";
/// Port of the IMEX daemons among each other (their default).
const PEER_PORT: u16 = 50000;
/// One leads, the other stands by.
const CONTROLLERS: [&str; 2] = ["controller-1", "controller-2"];
/// What one node's start may take, on top of a fixed time for all.
const START_LIMIT_PER_NODE: Duration = Duration::from_secs(2);

/// A running cluster.
pub struct Cluster {
    folder: TempDir,
    client: Client,
    api: ApiServer,
    _listening: Listening,
    _control: Control,
    kubeconfig: PathBuf,
    nodes: Vec<Node>,
    kubelets: Vec<Kubelet>,
    controllers: Vec<Process>,
    runners: Vec<Process>,
    agents: Vec<Process>,
    cliques: Vec<CliqueId>,
}

impl Cluster {
    /// Starts everything.
    ///
    /// # Errors
    /// One sentence that says what could not be started.
    pub async fn start(options: &Options, stage: &Stage) -> anyhow::Result<Self> {
        stage.say(&format!(
            "starting an embedded cluster: {} × {} in {}",
            counted(options.nodes, "node"),
            counted(options.gpus_per_node, "GPU"),
            if options.cliques == 1 { "one clique".into() } else { format!("{} cliques", options.cliques) }
        ));
        let binary = Binary::own(options.launcher.clone())?;
        if let Err(why) = binary.may_isolate() {
            stage.say(&format!("daemons run in this machine's own root, not in one made of the driver root: {why}"));
        }
        let folder = folder()?;
        let api = ApiServer::new(Default::default());
        let client = api.client();
        let listening =
            api.listen("127.0.0.1:0".parse()?).await.context("the API server could not listen on loopback")?;
        let kubeconfig = folder.path().join("kubeconfig");
        let config = serde_saphyr::to_string(&api.kubeconfig(&listening))?;
        std::fs::write(&kubeconfig, config).context("the kubeconfig could not be written")?;
        install(&client).await?;

        let control = control::start(client.clone());
        let cliques: Vec<_> = (0..options.cliques)
            .map(|index| CliqueId {
                cluster: Uuid::from_u128(0x4865_6464_6c65_4000_8000_0000_0000_0000 + u128::from(index)),
                id: 1 + index,
            })
            .collect();
        let nodes = layout(options, &cliques, folder.path())?;
        let logs = folder.path().join("logs");
        std::fs::create_dir_all(&logs)?;
        let start = |name: String, words: Vec<OsString>, environment: Vec<(&'static str, OsString)>| {
            let log = logs.join(format!("{name}.log"));
            Process::start(Start { name, command: binary.command(words), environment, log })
        };
        let controllers: Vec<_> = CONTROLLERS
            .iter()
            .map(|name| start((*name).into(), controller_command(name, &kubeconfig), Vec::new()))
            .collect::<anyhow::Result<_>>()?;
        let (mut kubelets, mut runners, mut agents) = (Vec::new(), Vec::new(), Vec::new());
        for (index, node) in nodes.iter().enumerate() {
            // Majors are the kernel's choice and differ from node to node.
            provision(node, options.gpus_per_node, 234 + u32::try_from(index % 20)?, &binary)?;
            let kubelet = KubeletOptions::new(client.clone(), &node.name, node.paths.clone(), node.address.to_string());
            kubelets.push(Kubelet::start(kubelet.with_limits(Limits::brisk()).with_labels(labels(node))));
            runners.push(start(format!("runner-{}", node.name), runner_command(node), environment(node))?);
            // Its token is bound to the node: by that the controller knows who asks for a certificate.
            let user = User::service_account(NAMESPACE, names::AGENT, Some(&node.name));
            let own = node.paths.root.join("kubeconfig");
            std::fs::write(&own, serde_saphyr::to_string(&api.kubeconfig_of(&listening, user))?)?;
            agents.push(start(format!("agent-{}", node.name), agent_command(node, &own), environment(node))?);
        }
        Ok(Self {
            folder,
            client,
            api,
            _listening: listening,
            _control: control,
            kubeconfig,
            nodes,
            kubelets,
            controllers,
            runners,
            agents,
            cliques,
        })
    }

    /// Waits until every node serves its IMEX domain and offers its slots.
    ///
    /// # Errors
    /// One sentence that says what is missing.
    pub async fn ready(&self, stage: &mut Stage) -> anyhow::Result<()> {
        let began = stage.began();
        let limit = LIMIT + START_LIMIT_PER_NODE * u32::try_from(self.nodes.len())?;
        self.until("every node serves its IMEX domain and offers slots", limit, |snapshot| {
            let offering = self.nodes.iter().filter(|node| offers_slots(snapshot, &node.name)).count();
            if offering == self.nodes.len() { Ok(()) } else { Err(format!("{offering} of {} do", self.nodes.len())) }
        })
        .await
        .context("the cluster did not start")?;
        stage.time("clusterReadyMs", began);
        stage.say(&match self.nodes.len() {
            1 => "the node serves its IMEX domain and offers slots".into(),
            nodes => format!("all {nodes} nodes serve their IMEX domain and offer slots"),
        });
        Ok(())
    }

    /// A client for its API.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The kubeconfig for its API.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Its nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Its nodes for the picture.
    pub fn rows(&self) -> Vec<NodeRow> {
        let row = |node: &Node| NodeRow { name: node.name.clone(), clique: self.clique_index(node) + 1 };
        self.nodes.iter().map(row).collect()
    }

    fn clique_index(&self, node: &Node) -> usize {
        self.cliques.iter().position(|clique| *clique == node.clique).unwrap_or_default()
    }

    /// What the fake hardware of a node takes for `/`, and the index of its clique.
    pub fn hardware_of(&self, node: &str) -> Option<(PathBuf, usize)> {
        let node = self.nodes.iter().find(|candidate| candidate.name == node)?;
        Some((node.paths.os(), self.clique_index(node)))
    }

    /// The container of a pod that has a device node; where none has, any.
    pub fn container_of(&self, pod: &PodView, path: &str) -> Option<Container> {
        let of_pod = |container: &Container| container.namespace == pod.namespace && container.pod == pod.name;
        let containers: Vec<_> = self.kubelets.iter().flat_map(Kubelet::containers).filter(of_pod).collect();
        let holder = containers.iter().find(|container| container.open(path).is_ok());
        holder.or(containers.first()).cloned()
    }

    /// The channels that containers can open, by pod UID.
    pub fn channels(&self) -> BTreeMap<String, Vec<u32>> {
        let mut channels: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for container in self.kubelets.iter().flat_map(Kubelet::containers) {
            let numbers = container
                .devices
                .iter()
                .filter_map(|device| device.path.strip_prefix(names::CHANNEL_DEVICE_DIR).map(|_| device.minor));
            let open = channels.entry(container.pod_uid.clone()).or_default();
            for number in numbers {
                if !open.contains(&number) {
                    open.push(number);
                }
            }
        }
        channels
    }

    /// Kills the agent of a node without warning.
    pub fn kill_agent(&self, node: &str) {
        if let Some(index) = self.nodes.iter().position(|candidate| candidate.name == node) {
            self.agents[index].kill();
        }
    }

    /// Kills the controller that leads, without warning; its name.
    ///
    /// # Errors
    /// When none leads.
    pub async fn kill_leader(&self) -> anyhow::Result<&'static str> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), NAMESPACE);
        let lease = leases.get(names::CONTROLLER).await.context("no controller has ever led")?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        let index = CONTROLLERS.iter().position(|name| holder.starts_with(name)).context("no controller leads")?;
        self.controllers[index].kill();
        Ok(CONTROLLERS[index])
    }

    /// Waits until the cluster's objects are as wanted; `look` says what is still missing.
    ///
    /// # Errors
    /// What was missing when the time was over, or a process that is broken.
    pub async fn until(
        &self,
        what: &str,
        limit: Duration,
        mut look: impl FnMut(&Snapshot) -> Result<(), String>,
    ) -> anyhow::Result<Snapshot> {
        let deadline = Instant::now() + limit;
        let mut changes = self.api.changes();
        loop {
            changes.borrow_and_update();
            let snapshot = Snapshot::take(&self.client).await?;
            let missing = match look(&snapshot) {
                Ok(()) => return Ok(snapshot),
                Err(missing) => missing,
            };
            if let Some(broken) = self.processes().find_map(Process::broken) {
                bail!("{broken}");
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("after {} s it was still not so that {what}: {missing}", limit.as_secs());
            }
            // Containers change without an object's change in between; those are caught up with on the next tick.
            let _ = tokio::time::timeout(left.min(Duration::from_millis(200)), changes.changed()).await;
            // Many changes come at once; one look serves them all.
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
    }

    /// Tells that some object has changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.api.changes()
    }

    fn processes(&self) -> impl Iterator<Item = &Process> {
        self.controllers.iter().chain(&self.runners).chain(&self.agents)
    }

    /// Ends every process in order. The answer is the folder of its files, if they are kept.
    pub async fn stop(mut self, keep: bool) -> Option<PathBuf> {
        for kubelet in self.kubelets.drain(..) {
            kubelet.stop().await;
        }
        futures::future::join_all(self.agents.drain(..).map(Process::stop)).await;
        let rest = self.runners.drain(..).chain(self.controllers.drain(..));
        futures::future::join_all(rest.map(Process::stop)).await;
        keep.then(|| self.folder.keep())
    }
}

/// A folder with a path so short that the sockets below it have names that a kernel takes.
pub(crate) fn folder() -> anyhow::Result<TempDir> {
    let usual = std::env::temp_dir();
    let short = if usual.as_os_str().len() <= 20 { usual } else { PathBuf::from("/tmp") };
    tempfile::Builder::new()
        .prefix("heddle-")
        .tempdir_in(&short)
        .with_context(|| format!("no folder could be made in {}; set TMPDIR to a short path", short.display()))
}

/// Spreads nodes over cliques in equal parts, and gives each a loopback address on which the daemons' port is free.
fn layout(options: &Options, cliques: &[CliqueId], folder: &Path) -> anyhow::Result<Vec<Node>> {
    let network = free_network()?;
    (0..options.nodes)
        .map(|index| {
            let clique = cliques[(index * options.cliques / options.nodes) as usize];
            let number = index + 1;
            Ok(Node {
                name: format!("node-{number}"),
                address: Ipv4Addr::new(127, network, 0, u8::try_from(number)?),
                clique,
                paths: NodePaths::new(folder.join(format!("n{number}"))),
            })
        })
        .collect()
}

/// The second number of loopback addresses on which the daemons' port is free.
pub(crate) fn free_network() -> anyhow::Result<u8> {
    (0..20)
        .map(|_| fastrand::u8(16..250))
        .find(|second| TcpListener::bind((Ipv4Addr::new(127, *second, 0, 1), PEER_PORT)).is_ok())
        .with_context(|| format!("port {PEER_PORT} is taken on every loopback address tried; end what uses it"))
}

/// `1 node`, `2 nodes`.
fn counted(number: u32, what: &str) -> String {
    if number == 1 { format!("one {what}") } else { format!("{number} {what}s") }
}

/// What GPU feature discovery puts on a node with a GPU, as far as existing manifests select nodes by it.
fn labels(node: &Node) -> BTreeMap<String, String> {
    BTreeMap::from([
        ("nvidia.com/gpu.present".into(), "true".into()),
        ("nvidia.com/gpu.clique".into(), node.clique.to_string()),
    ])
}

async fn install(client: &Client) -> anyhow::Result<()> {
    let namespace: Namespace = serde_json::from_value(serde_json::json!({"metadata": {"name": NAMESPACE}}))?;
    Api::all(client.clone()).create(&PostParams::default(), &namespace).await.context("the namespace was refused")?;
    for crd in crds() {
        Api::all(client.clone()).create(&PostParams::default(), &crd).await.context("a CRD was refused")?;
    }
    for object in chart::objects()?.into_iter().filter(|object| chart::is_one_of(object, &INSTALLED)) {
        let object: DynamicObject = serde_json::from_value(object)?;
        let kind = object.types.clone().unwrap_or_default();
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(&kind)?);
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        api.create(&PostParams::default(), &object).await.with_context(|| format!("a {} was refused", kind.kind))?;
    }
    Ok(())
}

fn offers_slots(snapshot: &Snapshot, node: &str) -> bool {
    let offered = snapshot.slices.iter().filter(|slice| slice.spec.node_name.as_deref() == Some(node));
    let devices = |driver: &'static str| {
        offered
            .clone()
            .filter(move |slice| slice.spec.driver == driver)
            .any(|slice| slice.spec.devices.iter().flatten().next().is_some())
    };
    devices(names::DRIVER) && devices(names::GPU_DRIVER)
}

pub(crate) fn words<const N: usize>(words: [&str; N]) -> impl Iterator<Item = OsString> {
    words.map(OsString::from).into_iter()
}

pub(crate) fn environment(node: &Node) -> Vec<(&'static str, OsString)> {
    vec![("HEDDLE_FAKE_OS", node.paths.os().into()), ("HEDDLE_FAKE_NVML", node.paths.nvml_scenario().into())]
}

/// A lease is shorter than that of a real cluster: nobody wants to watch it run out.
fn controller_command(name: &str, kubeconfig: &Path) -> Vec<OsString> {
    words(["controller", "--pod-name", name, "--lease-duration-seconds", "4", "--lease-renew-seconds", "1"])
        .chain(["--kubeconfig".into(), kubeconfig.into()])
        .collect()
}

pub(crate) fn runner_command(node: &Node) -> Vec<OsString> {
    let paths = &node.paths;
    let hosts = paths.os().join("etc/hosts");
    // A link into the daemon's own root.
    let isolation: [OsString; 4] = match hosts.is_symlink() {
        true => ["--isolation".into(), "mount-namespace".into(), "--daemon-sees".into(), paths.os().into()],
        false => ["--isolation".into(), "none".into(), "--hosts-file".into(), hosts.into()],
    };
    words(["imex-runner", "--dir"])
        .chain([paths.imex().into(), "--driver-root".into(), paths.driver_root().into()])
        .chain(isolation)
        .chain(["--socket".into(), paths.runner_socket().into()])
        .collect()
}

pub(crate) fn agent_command(node: &Node, kubeconfig: &Path) -> Vec<OsString> {
    let paths = &node.paths;
    words(["agent", "--gpus", "--node-name", &node.name, "--node-address", &node.address.to_string()])
        .chain(words(["--pod-uid", &Uuid::from_u128(fastrand::u128(..)).hyphenated().to_string()]))
        .chain(["--kubeconfig".into(), kubeconfig.into()])
        .chain(["--driver-root".into(), paths.driver_root().into()])
        .chain(["--proc-root".into(), paths.os().join("proc").into()])
        .chain(["--sys-root".into(), paths.os().join("sys").into()])
        .chain(["--host-root".into(), paths.os().into()])
        .chain(["--kubelet-plugins-dir".into(), paths.plugins().into()])
        .chain(["--kubelet-registry-dir".into(), paths.registry().into()])
        .chain(["--cdi-dir".into(), paths.cdi().into(), "--cdi-static-dir".into(), paths.cdi_static().into()])
        .chain(["--state-dir".into(), paths.state().into()])
        .chain(["--runner-socket".into(), paths.runner_socket().into()])
        .collect()
}
