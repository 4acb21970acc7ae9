//! The whole agent in process against the embedded API, on a node without NVLink fabric.

mod own_process;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use heddle_actors::agent::{self, Settings};
use heddle_actors::runtime::block_on;
use heddle_core::api::{IMEXNode, crds};
use heddle_core::fault::{Class, Fault};
use heddle_core::inventory::Access;
use heddle_core::names;
use heddle_fake_nvml::{Scenario, install};
use heddle_integration::api::{ApiServer, Options};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::ResourceSlice;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
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
        node_address: "127.10.0.1".parse().unwrap(),
        client,
        requests: Default::default(),
        driver_root: root.join("driver"),
        proc_root: root.join("proc"),
        sys_root: root.join("sys"),
        plugins_dir: root.join("plugins"),
        registry_dir: root.join("registry"),
        cdi_dir: root.join("cdi"),
        state_dir: root.join("state"),
        runner_socket: root.join("run/runner.sock"),
        slots: 4,
        gpus: false,
        fabric_access: Access::default(),
        ignored_xids: Vec::new(),
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
