//! The whole agent in process against the embedded API.

#[path = "dra/bed.rs"]
#[allow(dead_code)] // the tests of claims use all of it
mod bed;
mod own_process;
#[path = "../../actors/tests/stand_in/mod.rs"]
#[allow(dead_code)] // the actors' own tests use all of it
mod stand_in;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use heddle_actors::agent::{self, Settings};
use heddle_actors::host_root::HostRoot;
use heddle_actors::runner;
use heddle_actors::runtime::block_on;
use heddle_actors::runtime_guard::Places;
use heddle_core::api::{IMEXDomain, IMEXDomainSpec, IMEXNode, ImexMode, Member, crds};
use heddle_core::fault::{Class, Fault};
use heddle_core::identity::Authentication;
use heddle_core::imex::shared_domain_name;
use heddle_core::inventory::Access;
use heddle_core::names;
use heddle_core::preflight::PREFLIGHT;
use heddle_core::runtime_guard::{Mode, RUNTIME_GUARDED};
use heddle_fake_nvml::{Scenario, install};
use heddle_integration::api::{ApiServer, Options};
use heddle_proto::dra::v1::dra_plugin_client::DraPluginClient;
use heddle_proto::dra::v1::{Claim, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::ResourceSlice;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};

use futures::{StreamExt as _, pin_mut};
use own_process::in_own_process;
use tokio::sync::oneshot;

async fn cluster() -> Client {
    let client = ApiServer::new(Options { seed: Some(1), ..Options::default() }).client();
    for crd in crds() {
        let api = Api::<CustomResourceDefinition>::all(client.clone());
        api.create(&PostParams::default(), &crd).await.unwrap();
    }
    let node = serde_json::from_value(serde_json::json!({"metadata": {"name": "n0"}})).unwrap();
    Api::<Node>::all(client.clone()).create(&PostParams::default(), &node).await.unwrap();
    client
}

fn settings(root: &Path, client: Client) -> Settings {
    for folder in ["plugins", "registry", "cdi", "state", "run"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    Settings {
        node_name: "n0".into(),
        node_addresses: vec!["127.10.0.1".parse().unwrap()],
        client,
        requests: Default::default(),
        driver_root: root.join("driver"),
        enter: Vec::new(),
        proc_root: root.join("proc"),
        sys_root: root.join("sys"),
        plugins_dir: root.join("plugins"),
        registry_dir: root.join("registry"),
        cdi_dir: root.join("cdi"),
        cdi_static_dir: root.join("cdi-etc"),
        state_dir: root.join("state"),
        runner_socket: root.join("run/runner.sock"),
        imex_mode: ImexMode::DriverManaged,
        control_socket: root.join("run/host.sock"),
        host_imex_config: "/etc/nvidia-imex/config.cfg".into(),
        authentication: Authentication::Insecure,
        certificate_seconds: 3600,
        certificates_dir: Default::default(),
        slots: 4,
        gpus: false,
        fabric_access: Access::default(),
        ignored_xids: Vec::new(),
        host: HostRoot::new(root.join("host")),
        places: Places::default(),
        runtime_guard: Mode::Warn,
        container_runtime_version: None,
        pod_uid: String::new(),
        metrics: None,
        health: None,
    }
}

/// Waits until the node's slots are published.
async fn slots(client: &Client) -> usize {
    let slices = watcher(Api::<ResourceSlice>::all(client.clone()), watcher::Config::default());
    pin_mut!(slices);
    loop {
        if let watcher::Event::Apply(slice) | watcher::Event::InitApply(slice) = slices.next().await.unwrap().unwrap()
            && slice.spec.driver == names::DRIVER
        {
            return slice.spec.devices.unwrap_or_default().len();
        }
    }
}

/// The node's slices, with their versions.
async fn slices(client: &Client) -> Vec<ResourceSlice> {
    Api::<ResourceSlice>::all(client.clone()).list(&Default::default()).await.unwrap().items
}

/// Waits until the agent has written what it knows of its node.
async fn described(client: &Client) -> IMEXNode {
    let described = |node: Option<&IMEXNode>| {
        node.and_then(|node| node.status.as_ref()).is_some_and(|s| s.addresses == ["127.10.0.1"] && s.clique.is_none())
    };
    await_condition(Api::<IMEXNode>::all(client.clone()), "n0", described).await.unwrap().unwrap()
}

/// A driver whose GPUs have no fabric, in a process of its own.
fn without_fabric<F: Future<Output = ()>>(test: &str, body: impl FnOnce(PathBuf) -> F) {
    in_own_process(test, |root, scenario| {
        install(&root.join("driver")).unwrap();
        Scenario::gb200("n0", 2, None).write(scenario).unwrap();
        run(body(root.to_owned()));
    });
}

fn run<T>(test: impl Future<Output = T>) -> T {
    block_on(async { tokio::time::timeout(Duration::from_secs(30), test).await.expect("the test hangs") })
}

#[test]
fn an_agent_comes_up_makes_its_object_offers_slots_and_ends() {
    without_fabric("an_agent_comes_up_makes_its_object_offers_slots_and_ends", async |root| {
        let client = cluster().await;
        let (end, ends) = oneshot::channel::<()>();
        let agent = tokio::task::spawn_local(agent::run(settings(&root, client.clone()), async {
            let _ = ends.await;
        }));
        described(&client).await;
        assert_eq!(slots(&client).await, 4, "a node without fabric offers slots too");
        end.send(()).unwrap();
        agent.await.unwrap().unwrap();
    });
}

#[test]
fn an_agent_without_a_driver_comes_up_and_offers_nothing() {
    run(async {
        let (root, client) = (tempfile::tempdir().unwrap(), cluster().await);
        let (end, ends) = oneshot::channel::<()>();
        let agent = tokio::task::spawn_local(agent::run(settings(root.path(), client.clone()), async {
            let _ = ends.await;
        }));
        // Whether there is a fabric is not known: a slot offered now could be a claim without its channel.
        described(&client).await;
        let message = said(&client, PREFLIGHT, "False").await;
        assert!(message.starts_with("driver-root: ") && message.contains("nvml: no libnvidia-ml.so.1"), "{message}");
        end.send(()).unwrap();
        agent.await.unwrap().unwrap();
        let slices = Api::<ResourceSlice>::all(client).list(&Default::default()).await.unwrap();
        let offered = slices.items.iter().filter(|slice| slice.spec.driver == names::DRIVER);
        assert_eq!(offered.flat_map(|slice| slice.spec.devices.iter().flatten()).count(), 0);
    });
}

#[test]
fn a_folder_that_cannot_be_used_ends_the_agent_with_one_sentence() {
    for (missing, says) in [("state", "--state-dir"), ("cdi", "CDI"), ("registry", "--kubelet-registry-dir")] {
        let fault: Fault = run(async {
            let (root, client) = (tempfile::tempdir().unwrap(), cluster().await);
            let settings = settings(root.path(), client);
            fs::remove_dir_all(root.path().join(missing)).unwrap();
            fs::write(root.path().join(missing), "a file").unwrap();
            agent::run(settings, std::future::pending()).await.unwrap_err()
        });
        assert_eq!(fault.class, Class::Fatal, "{fault}");
        assert!(fault.message.contains(says), "{missing}: {fault}");
        assert_eq!(fault.message.lines().count(), 1, "{fault}");
    }
}

#[test]
fn case_40_the_new_agent_registers_at_once_and_takes_over_without_a_write_to_slices() {
    without_fabric("case_40_the_new_agent_registers_at_once_and_takes_over_without_a_write_to_slices", async |root| {
        let client = cluster().await;
        let of = |pod: &str| Settings { pod_uid: pod.into(), ..settings(&root, client.clone()) };
        let (end, ends) = oneshot::channel::<()>();
        let first = tokio::task::spawn_local(agent::run(of("first"), async { drop(ends.await) }));
        assert_eq!(slots(&client).await, 4);
        described(&client).await;
        let before = slices(&client).await;

        let (end_second, second_ends) = oneshot::channel::<()>();
        let second = tokio::task::spawn_local(agent::run(of("second"), async { drop(second_ends.await) }));
        let registration = root.join("registry").join(format!("{}-second-reg.sock", names::DRIVER));
        while std::os::unix::net::UnixStream::connect(&registration).is_err() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(root.join("registry").join(format!("{}-first-reg.sock", names::DRIVER)).exists());
        let patch = kube::api::Patch::Merge(serde_json::json!({"metadata": {"annotations": {"t": "1"}}}));
        let nodes = Api::<IMEXNode>::all(client.clone());

        end.send(()).unwrap();
        first.await.unwrap().unwrap();
        // What the new agent writes when its turn has come: its own view of the node, put right where it is not.
        nodes.patch("n0", &Default::default(), &patch).await.unwrap();
        let wrong = serde_json::json!({"status": {"addresses": ["127.10.0.9"]}});
        nodes.patch_status("n0", &Default::default(), &kube::api::Patch::Merge(wrong)).await.unwrap();
        described(&client).await;
        assert_eq!(slices(&client).await, before);
        end_second.send(()).unwrap();
        second.await.unwrap().unwrap();
    });
}

#[test]
fn case_41_a_new_agent_that_ends_while_it_stands_by_leaves_the_old_one_as_it_is() {
    without_fabric("case_41_a_new_agent_that_ends_while_it_stands_by_leaves_the_old_one_as_it_is", async |root| {
        let client = cluster().await;
        let of = |pod: &str| Settings { pod_uid: pod.into(), ..settings(&root, client.clone()) };
        let (end, ends) = oneshot::channel::<()>();
        let first = tokio::task::spawn_local(agent::run(of("first"), async { drop(ends.await) }));
        assert_eq!(slots(&client).await, 4);
        let before = slices(&client).await;
        agent::run(of("second"), std::future::ready(())).await.unwrap();
        assert_eq!(slices(&client).await, before);
        let left: Vec<_> = fs::read_dir(root.join("registry")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, [format!("{}-first-reg.sock", names::DRIVER).as_str()]);
        end.send(()).unwrap();
        first.await.unwrap().unwrap();
    });
}

/// Waits until the node's object has that condition; its message.
async fn said(client: &Client, type_: &str, status: &str) -> String {
    let condition = |node: &IMEXNode| {
        let conditions = &node.status.as_ref()?.conditions;
        conditions.iter().find(|condition| condition.type_ == type_ && condition.status == status).cloned()
    };
    let fits = |node: Option<&IMEXNode>| node.is_some_and(|node| condition(node).is_some());
    let node = await_condition(Api::<IMEXNode>::all(client.clone()), "n0", fits).await.unwrap().unwrap();
    condition(&node).unwrap().message
}

/// Waits until slots are offered, or are not.
async fn until_offered(client: &Client, wanted: bool) {
    let slices = Api::<ResourceSlice>::all(client.clone());
    loop {
        let found = slices.list(&Default::default()).await.unwrap().items;
        let slots = found.iter().filter(|slice| slice.spec.driver == names::DRIVER);
        let mut slots = slots.flat_map(|slice| slice.spec.devices.iter().flatten());
        if slots.any(|slot| slot.taints.as_ref().is_none_or(Vec::is_empty)) == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn nvidia_toolkit_pr_943_require_withholds_the_slots_until_the_file_is_set() {
    let test = "nvidia_toolkit_pr_943_require_withholds_the_slots_until_the_file_is_set";
    in_own_process(test, |root, scenario| {
        install(&root.join("driver")).unwrap();
        let clique: heddle_core::clique::CliqueId = "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.7".parse().unwrap();
        Scenario::gb200("n0", 2, Some((&clique.cluster.to_string(), clique.id))).write(scenario).unwrap();
        stand_in::script(root, "nvidia-imex", stand_in::DAEMON);
        stand_in::script(root, "nvidia-imex-ctl", stand_in::CTL);
        fs::write(root.join("word"), "READY\n").unwrap();
        let host = |path: &str, text: &str| {
            let path = root.join("host").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let toolkit = "etc/nvidia-container-runtime/config.toml";
        let nvidia = "[crio.runtime.runtimes.nvidia]\nruntime_path = '/usr/bin/nvidia-container-runtime'\n";
        host("etc/crio/crio.conf.d/99-nvidia.toml", nvidia);
        host(toolkit, "");
        run(async {
            let client = cluster().await;
            let settings = Settings { runtime_guard: Mode::Require, ..settings(root, client.clone()) };
            let (end, ends) = oneshot::channel::<()>();
            let agent = tokio::task::spawn_local(agent::run(settings, async { drop(ends.await) }));
            let (end_runner, ends) = oneshot::channel::<()>();
            let runner = tokio::spawn(runner::run(stand_in::settings(root), async { drop(ends.await) }));

            let member = Member { index: 1, address: "127.10.0.1".into(), away: false };
            let members = [("n0".to_owned(), member)].into();
            let spec = IMEXDomainSpec { clique: clique.to_string(), max_members: 18, members, ..Default::default() };
            let domain = IMEXDomain::new(&shared_domain_name(&clique), spec);
            Api::all(client.clone()).create(&PostParams::default(), &domain).await.unwrap();
            let nodes = Api::<IMEXNode>::all(client.clone());
            let status = |node: Option<&IMEXNode>| node.and_then(|node| node.status.clone()).unwrap_or_default();
            await_condition(nodes.clone(), "n0", |node: Option<&IMEXNode>| status(node).clique.is_some())
                .await
                .unwrap();
            let assigned = Patch::Merge(serde_json::json!({"spec": {"domain": shared_domain_name(&clique)}}));
            nodes.patch("n0", &PatchParams::default(), &assigned).await.unwrap();
            let ready = |node: Option<&IMEXNode>| status(node).daemon.state == "READY";
            await_condition(nodes, "n0", ready).await.unwrap();

            let message = said(&client, RUNTIME_GUARDED, "False").await;
            assert!(
                message.contains("ignore-imex-channel-requests = true in /etc/nvidia-container-runtime"),
                "{message}"
            );
            until_offered(&client, false).await;
            host(toolkit, "[features]\nignore-imex-channel-requests = true\n");
            until_offered(&client, true).await;
            said(&client, RUNTIME_GUARDED, "True").await;
            host(toolkit, "");
            until_offered(&client, false).await;

            end.send(()).unwrap();
            agent.await.unwrap().unwrap();
            end_runner.send(()).unwrap();
            runner.await.unwrap().unwrap();
        });
    });
}

/// A node of a clique whose host runs the IMEX daemon, which is READY; in a process of its own.
fn on_a_host<F: Future<Output = ()>>(test: &str, body: impl FnOnce(PathBuf, bed::Bed) -> F) {
    in_own_process(test, |root, scenario| {
        install(&root.join("driver")).unwrap();
        let clique = clique();
        Scenario::gb200(bed::NODE, 2, Some((&clique.cluster.to_string(), clique.id))).write(scenario).unwrap();
        stand_in::script(root, "nvidia-imex", stand_in::DAEMON);
        stand_in::script(root, "nvidia-imex-ctl", stand_in::CTL);
        fs::write(root.join("word"), "READY\n").unwrap();
        let folder = root.join("host/etc/nvidia-imex");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("config.cfg"), "LOG_LEVEL=4\n").unwrap();
        fs::write(folder.join("nodes_config.cfg"), "127.10.0.9\n127.10.0.1\n").unwrap();
        fs::create_dir_all(root.join("run")).unwrap();
        fs::write(root.join("run/host.sock"), "").unwrap();
        run(async {
            let bed = bed::Bed::new().await;
            body(root.to_owned(), bed).await;
        });
    });
}

fn clique() -> heddle_core::clique::CliqueId {
    "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.7".parse().unwrap()
}

/// The whole agent of the bed's node, set to this mode.
struct Whole {
    end: oneshot::Sender<()>,
    run: tokio::task::JoinHandle<Result<(), Fault>>,
    socket: PathBuf,
}

impl Whole {
    async fn start(root: &Path, bed: &bed::Bed, imex_mode: ImexMode) -> Self {
        let proc_root = bed.paths.os().join("proc");
        fs::create_dir_all(proc_root.join("driver/nvidia")).unwrap();
        fs::write(proc_root.join("driver/nvidia/params"), "ImexChannelCount: 2048\n").unwrap();
        let settings = Settings {
            node_name: bed::NODE.into(),
            imex_mode,
            proc_root,
            pod_uid: bed::POD.into(),
            ..settings(root, bed.client.clone())
        };
        let socket = settings.plugins_dir.join(names::DRIVER).join(format!("dra-{}.sock", bed::POD));
        let (end, ends) = oneshot::channel::<()>();
        let run = tokio::task::spawn_local(agent::run(settings, async { drop(ends.await) }));
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Self { end, run, socket }
    }

    async fn prepare(&self, claim: &Claim) -> Result<usize, String> {
        let mut plugin = DraPluginClient::new(bed::dial(self.socket.clone()).await);
        let request = NodePrepareResourcesRequest { claims: vec![claim.clone()] };
        let answer =
            plugin.node_prepare_resources(request).await.unwrap().into_inner().claims.remove(&claim.uid).unwrap();
        if answer.error.is_empty() { Ok(answer.devices.len()) } else { Err(answer.error) }
    }

    async fn unprepare(&self, claim: &Claim) {
        let mut plugin = DraPluginClient::new(bed::dial(self.socket.clone()).await);
        let request = NodeUnprepareResourcesRequest { claims: vec![claim.clone()] };
        let answer = plugin.node_unprepare_resources(request).await.unwrap().into_inner().claims.remove(&claim.uid);
        assert_eq!(answer.unwrap().error, "");
    }

    async fn stop(self) {
        self.end.send(()).unwrap();
        self.run.await.unwrap().unwrap();
    }
}

/// Waits until the node's status is so; it.
async fn until_status(client: &Client, fits: impl Fn(&heddle_core::api::IMEXNodeStatus) -> bool) -> IMEXNode {
    let fits = |node: Option<&IMEXNode>| node.and_then(|node| node.status.as_ref()).is_some_and(&fits);
    await_condition(Api::<IMEXNode>::all(client.clone()), bed::NODE, fits).await.unwrap().unwrap()
}

/// What the controller would do: the node is a member of its clique's shared domain, and serves it.
async fn assign(client: &Client) {
    let member = Member { index: 0, address: "127.10.0.1".into(), away: false };
    let members = [(bed::NODE.to_owned(), member)].into();
    let spec = IMEXDomainSpec { clique: clique().to_string(), max_members: 18, members, ..Default::default() };
    let domain = IMEXDomain::new(&shared_domain_name(&clique()), spec);
    Api::all(client.clone()).create(&PostParams::default(), &domain).await.unwrap();
    until_status(client, |status| status.clique.is_some()).await;
    let assigned = Patch::Merge(serde_json::json!({"spec": {"domain": shared_domain_name(&clique())}}));
    Api::<IMEXNode>::all(client.clone()).patch(bed::NODE, &PatchParams::default(), &assigned).await.unwrap();
}

async fn mode_says(client: &Client, status: &'static str, reason: &'static str) -> String {
    let is = |c: &heddle_core::condition::Condition| {
        c.type_ == heddle_core::imex::IMEX_MODE && c.status == status && c.reason == reason
    };
    let node = until_status(client, |status| status.conditions.iter().any(is)).await;
    node.status.unwrap().conditions.iter().find(|c| is(c)).unwrap().message.clone()
}

#[test]
fn issue_1163_a_host_managed_node_gives_channels_refuses_exclusive_domains_and_changes_its_mode_when_it_is_empty() {
    let test =
        "issue_1163_a_host_managed_node_gives_channels_refuses_exclusive_domains_and_changes_its_mode_when_it_is_empty";
    on_a_host(test, async |root, bed| {
        let client = bed.client.clone();
        let agent = Whole::start(&root, &bed, ImexMode::HostManaged).await;
        assign(&client).await;
        let node =
            until_status(&client, |status| status.daemon.state == "READY" && status.daemon.version == "595.1").await;
        let status = node.status.unwrap();
        assert_eq!((status.imex_mode, status.daemon.index), (ImexMode::HostManaged, Some(1)));
        assert_eq!(status.daemon.domain, Some(shared_domain_name(&clique())));
        assert!(status.daemon.node_map_hash.is_some());
        mode_says(&client, "True", "HostManagedImex").await;
        until_offered(&client, true).await;
        let marked = slices(&client).await.into_iter().filter(|slice| slice.spec.driver == names::DRIVER);
        let mut marked = marked.flat_map(|slice| slice.spec.devices.unwrap_or_default());
        assert!(marked.all(|slot| slot.attributes.unwrap().contains_key(names::HOST_MANAGED)));

        let green = bed.compute_domain("team", "green", serde_json::json!({})).await;
        let claim = bed.claim("g", &green).await;
        assert_eq!(agent.prepare(&claim).await, Ok(1));
        let red = bed.compute_domain("team", "red", serde_json::json!({"isolationMode": "Domain"})).await;
        let exclusive = bed.claim("r", &red).await;
        let error = agent.prepare(&exclusive).await.unwrap_err();
        assert!(error.contains("team/red asks for an IMEX domain of its own") && error.contains("node n1"), "{error}");
        agent.stop().await;

        // Another mode while a claim is prepared.
        let agent = Whole::start(&root, &bed, ImexMode::DriverManaged).await;
        let message = mode_says(&client, "False", "ImexModePending").await;
        assert!(message.contains("set to driver-managed IMEX") && message.contains("one claim"), "{message}");
        until_offered(&client, false).await;
        assert_eq!(agent.prepare(&claim).await, Ok(1), "what is prepared is answered");
        let second = bed.claim("s", &green).await;
        let error = agent.prepare(&second).await.unwrap_err();
        assert!(error.contains("set to driver-managed IMEX"), "{error}");
        let files = || fs::read_dir(root.join("cdi")).unwrap().count();
        assert_eq!(files(), 1);
        assert_eq!(until_status(&client, |_| true).await.status.unwrap().imex_mode, ImexMode::HostManaged);

        agent.unprepare(&claim).await;
        assert_eq!(files(), 0);
        mode_says(&client, "True", "DriverManaged").await;
        let node = until_status(&client, |status| status.imex_mode == ImexMode::DriverManaged).await;
        assert!(node.status.unwrap().channels.is_empty());
        // Its runner's daemon is the node's from here on.
        let (end_runner, ends) = oneshot::channel::<()>();
        let runner = tokio::spawn(runner::run(stand_in::settings(&root), async { drop(ends.await) }));
        until_status(&client, |status| {
            status.daemon.message.as_ref().is_some_and(|m| m.contains("says it is member 1"))
        })
        .await;
        agent.stop().await;
        end_runner.send(()).unwrap();
        runner.await.unwrap().unwrap();
    });
}
