//! The whole agent in process against the embedded API, on a node without a driver.

use std::fs;
use std::path::Path;
use std::time::Duration;

use heddle_actors::agent::{self, Settings};
use heddle_actors::runtime::block_on;
use heddle_core::api::{IMEXNode, crds};
use heddle_core::fault::{Class, Fault};
use heddle_core::names;
use heddle_integration::api::{ApiServer, Options};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::ResourceSlice;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::runtime::wait::await_condition;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};

use futures::{StreamExt as _, pin_mut};
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
        driver_root: root.join("driver"),
        proc_root: root.join("proc"),
        plugins_dir: root.join("plugins"),
        registry_dir: root.join("registry"),
        cdi_dir: root.join("cdi"),
        state_dir: root.join("state"),
        runner_socket: root.join("run/runner.sock"),
        slots: 4,
        gpus: false,
        pod_uid: String::new(),
        metrics: None,
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

fn run<T>(test: impl Future<Output = T>) -> T {
    block_on(async { tokio::time::timeout(Duration::from_secs(30), test).await.expect("the test hangs") })
}

#[test]
fn an_agent_comes_up_makes_its_object_offers_slots_and_ends() {
    run(async {
        let (root, client) = (tempfile::tempdir().unwrap(), cluster().await);
        let (end, ends) = oneshot::channel::<()>();
        let agent = tokio::task::spawn_local(agent::run(settings(root.path(), client.clone()), async {
            let _ = ends.await;
        }));
        let described = |node: Option<&IMEXNode>| {
            node.and_then(|node| node.status.as_ref())
                .is_some_and(|s| s.addresses == ["127.10.0.1"] && s.clique.is_none())
        };
        await_condition(Api::<IMEXNode>::all(client.clone()), "n0", described).await.unwrap();
        assert_eq!(slots(&client).await, 4, "a node without fabric offers slots too");
        end.send(()).unwrap();
        agent.await.unwrap().unwrap();
    });
}

#[test]
fn a_folder_that_cannot_be_used_ends_the_agent_with_one_sentence() {
    for (missing, says) in [("state", "--state-dir"), ("cdi", "CDI"), ("registry", "--registry-dir")] {
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
fn the_second_agent_of_a_node_waits_and_can_be_ended_while_it_does() {
    run(async {
        let (root, client) = (tempfile::tempdir().unwrap(), cluster().await);
        let first = tokio::task::spawn_local(agent::run(settings(root.path(), client.clone()), std::future::pending()));
        await_condition(Api::<IMEXNode>::all(client.clone()), "n0", |node: Option<&IMEXNode>| node.is_some())
            .await
            .unwrap();
        agent::run(settings(root.path(), client.clone()), std::future::ready(())).await.unwrap();
        first.abort();
        // The first one's lock went with it.
        let (end, ends) = oneshot::channel::<()>();
        let second = agent::run(settings(root.path(), client.clone()), async {
            let _ = ends.await;
        });
        let offers = async {
            slots(&client).await;
            end.send(()).unwrap();
        };
        futures::join!(second, offers).0.unwrap();
    });
}
