//! The agent's kubelet side under a kubelet that behaves like the real one, and containers that hold what it gives.

use std::time::Duration;

use heddle_integration::kubelet::{Container, Errno, Kubelet, KubeletOptions, Limits};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use serde_json::json;

use crate::bed::{Bed, NODE, run};

const CHANNEL: &str = "/dev/nvidia-caps-imex-channels/channel7";

pub fn kubelet(bed: &Bed) -> Kubelet {
    let options = KubeletOptions::new(bed.client.clone(), NODE, bed.paths.clone(), "127.10.0.1");
    Kubelet::start(options.with_limits(Limits::brisk()))
}

pub async fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(found) = look() {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub async fn running(kubelet: &Kubelet, pod: &str) -> Container {
    until(|| kubelet.containers().into_iter().find(|container| container.pod == pod)).await
}

pub async fn delete(bed: &Bed, pod: &str) {
    let pods = kube::Api::<Pod>::namespaced(bed.client.clone(), "team");
    pods.delete(pod, &DeleteParams::default()).await.unwrap();
}

#[test]
fn case_7_a_real_dial_registers_and_the_container_can_open_its_channel_and_no_other() {
    run(|| async {
        let bed = Bed::new().await;
        let kubelet = kubelet(&bed);
        let _agent = bed.start().await;
        bed.pod_with_claim("p").await;
        let container = running(&kubelet, "p").await;
        assert_eq!(container.open(CHANNEL).unwrap().major, 234);
        assert_eq!(container.channels().len(), 1);
        assert_eq!(container.open_made_node(234, 8), Err(Errno::PERM));
        delete(&bed, "p").await;
        until(|| (bed.cdi_files().is_empty() && bed.checkpoints().is_empty()).then_some(())).await;
    });
}

#[test]
fn cases_1_18_and_21_a_restarted_kubelet_finds_the_driver_and_a_second_pod_shares_the_channel() {
    run(|| async {
        let bed = Bed::new().await;
        let kubelet = kubelet(&bed);
        let _agent = bed.start().await;
        bed.pod_with_claim("p1").await;
        let first = running(&kubelet, "p1").await;
        kubelet.restart().await;
        bed.pod("p2", "c").await;
        let second = running(&kubelet, "p2").await;
        assert_eq!(first.devices, second.devices);
        delete(&bed, "p1").await;
        until(|| (kubelet.containers().len() == 1).then_some(())).await;
        assert_eq!(bed.cdi_files().len(), 1);
        delete(&bed, "p2").await;
        until(|| bed.cdi_files().is_empty().then_some(())).await;
    });
}

#[test]
fn case_12_a_prepare_that_fails_and_then_succeeds_lets_the_pod_run() {
    run(|| async {
        let bed = Bed::new().await;
        let kubelet = kubelet(&bed);
        let _agent = bed.start().await;
        let domain = bed.compute_domain("team", "green", json!({})).await;
        let refused =
            heddle_core::fault::Fault::retryable("ChannelsExhausted", "no free IMEX channel in domain shared-0");
        let granted = std::mem::replace(&mut bed.stub.borrow_mut().grant, Err(refused));
        bed.claim("c", &domain).await;
        bed.pod("p", "c").await;
        until(|| (bed.stub.borrow().enters >= 2).then_some(())).await;
        bed.stub.borrow_mut().grant = granted;
        assert_eq!(running(&kubelet, "p").await.channels().len(), 1);
        let events = bed.server.objects("", "events");
        assert!(events.iter().any(|event| event.to_string().contains("no free IMEX channel in domain shared-0")));
    });
}

#[test]
fn case_19_and_issue_951_after_a_reboot_the_pod_has_the_same_channel_and_the_new_major() {
    run(|| async {
        let bed = Bed::new().await;
        let kubelet = kubelet(&bed);
        let agent = bed.start().await;
        bed.pod_with_claim("p").await;
        running(&kubelet, "p").await;
        bed.kill(agent).await;
        bed.boot("boot-2", 511);
        kubelet.reboot().await;
        let _agent = bed.start().await;
        let container = until(|| {
            let containers = kubelet.containers().into_iter();
            containers.filter(|container| container.pod == "p").find_map(|container| container.open(CHANNEL).ok())
        })
        .await;
        assert_eq!(container.major, 511);
    });
}

#[test]
fn case_20_a_container_that_crashes_after_its_file_was_wiped_starts_again_while_the_agent_is_new() {
    run(|| async {
        let bed = Bed::new().await;
        let kubelet = kubelet(&bed);
        let agent = bed.start().await;
        bed.pod_with_claim("p").await;
        let before = running(&kubelet, "p").await;
        bed.kill(agent).await;
        for name in bed.cdi_files().keys() {
            std::fs::remove_file(bed.paths.cdi().join(name)).unwrap();
        }
        let _agent = bed.start().await;
        assert!(kubelet.crash("team", "p", "main", 1));
        until(|| kubelet.containers().is_empty().then_some(())).await;
        assert_eq!(running(&kubelet, "p").await.devices, before.devices);
    });
}

#[test]
fn a_plugin_registry_that_is_removed_and_made_again_has_the_driver_again() {
    run(|| async {
        let bed = Bed::new().await;
        let kubelet = kubelet(&bed);
        let agent = bed.start().await;
        bed.pod_with_claim("p1").await;
        running(&kubelet, "p1").await;
        for folder in [bed.paths.registry(), bed.paths.plugins().join(heddle_core::names::DRIVER)] {
            let before = kubelet.counts().registrations;
            let sockets = agent.registrations();
            std::fs::remove_dir_all(&folder).unwrap();
            std::fs::create_dir(&folder).unwrap();
            until(|| (agent.registrations() == sockets).then_some(())).await;
            until(|| agent.service(heddle_core::names::DRIVER).exists().then_some(())).await;
            // The service socket alone is connected to again; registration sockets are called anew.
            until(|| (folder != bed.paths.registry() || kubelet.counts().registrations >= before + 2).then_some(()))
                .await;
        }
        bed.pod("p2", "c").await;
        running(&kubelet, "p2").await;
        let domain = bed.compute_domain("team", "blue", json!({})).await;
        bed.claim("c3", &domain).await;
        bed.pod("p3", "c3").await;
        running(&kubelet, "p3").await;
    });
}
