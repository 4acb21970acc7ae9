//! Sockets, registration and health.

use heddle_actors::dra::{DeviceHealth, Driver};
use heddle_core::names;
use heddle_proto::SUPPORTED_VERSIONS;
use heddle_proto::health::{v1, v1alpha1};
use heddle_proto::registration::registration_client::RegistrationClient;
use heddle_proto::registration::{InfoRequest, RegistrationStatus};
use serde_json::json;

use crate::bed::{Bed, POD, dial, run};

#[test]
fn case_2_the_sockets_of_a_dead_agent_are_replaced() {
    run(|| async {
        let bed = Bed::new().await;
        let first = bed.start().await;
        bed.kill(first).await;
        let mut settings = bed.settings();
        settings.pod_uid = "another".into();
        let second = bed.start_with(settings).await;
        let names: Vec<_> =
            second.registrations().iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
        assert_eq!(names, ["compute-domain.nvidia.com-another-reg.sock", "gpu.nvidia.com-another-reg.sock"]);
        let domain = bed.compute_domain("team", "green", json!({})).await;
        let claim = bed.claim("c", &domain).await;
        second.prepare_one(&claim).await.unwrap();
    });
}

#[test]
fn case_40_two_agents_overlap_and_both_answer() {
    run(|| async {
        let bed = Bed::new().await;
        let old = bed.start().await;
        let domain = bed.compute_domain("team", "green", json!({})).await;
        let claim = bed.claim("c", &domain).await;
        let ids = old.prepare_one(&claim).await.unwrap();
        let mut settings = bed.settings();
        settings.pod_uid = "another".into();
        let new = bed.start_with(settings).await;
        assert_eq!(new.registrations().len(), 4);
        assert_eq!(new.prepare_one(&claim).await.unwrap(), ids);
        assert_eq!(old.prepare_one(&claim).await.unwrap(), ids);
        bed.kill(old).await;
        new.unprepare(&claim).await.unwrap();
        assert!(bed.cdi_files().is_empty());
    });
}

#[test]
fn a_graceful_end_takes_the_sockets_away_and_leaves_the_claims() {
    run(|| async {
        let mut bed = Bed::new().await;
        let (agent, _, claim) = bed.start_with_claim().await;
        agent.prepare_one(&claim).await.unwrap();
        let runtime = std::mem::take(&mut bed.runtime);
        runtime.run(std::future::ready(())).await.unwrap();
        assert!(agent.registrations().is_empty() && !agent.service(names::DRIVER).exists());
        assert_eq!((bed.cdi_files().len(), bed.checkpoints().len()), (1, 1));
    });
}

#[test]
fn issue_816_256_pods_at_once_are_all_answered() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let domain = bed.compute_domain("team", "green", json!({})).await;
        let mut claims = Vec::new();
        for i in 0..256 {
            claims.push(bed.claim(&format!("c{i}"), &domain).await);
        }
        let answers = agent.prepare(&claims.iter().collect::<Vec<_>>()).await;
        let errors: Vec<_> = answers.values().map(|answer| answer.error.as_str()).filter(|e| !e.is_empty()).collect();
        assert_eq!(errors, Vec::<&str>::new());
        assert_eq!(bed.cdi_files().len(), 256);
    });
}

#[test]
fn the_registration_names_the_service_socket_and_what_it_speaks() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let mut kubelet = RegistrationClient::new(dial(agent.registrations()[0].clone()).await);
        let info = kubelet.get_info(InfoRequest {}).await.unwrap().into_inner();
        assert_eq!((info.r#type.as_str(), info.name.as_str()), ("DRAPlugin", names::DRIVER));
        assert_eq!(info.endpoint, agent.service(names::DRIVER).to_string_lossy());
        assert!(info.endpoint.ends_with(&format!("dra-{POD}.sock")));
        assert_eq!(info.supported_versions, SUPPORTED_VERSIONS);
        let status = RegistrationStatus { plugin_registered: true, error: String::new() };
        kubelet.notify_registration_status(status).await.unwrap();
    });
}

#[test]
fn a_socket_or_folder_that_vanishes_is_put_back() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let registration = agent.registrations()[0].clone();
        std::fs::remove_file(&registration).unwrap();
        agent.until(|| registration.exists()).await;
        std::fs::remove_dir_all(bed.paths.plugins()).unwrap();
        agent.until(|| agent.service(names::DRIVER).exists() && agent.service(names::GPU_DRIVER).exists()).await;
        std::fs::remove_dir_all(bed.paths.registry()).unwrap();
        std::fs::create_dir(bed.paths.registry()).unwrap();
        agent.until(|| agent.registrations().len() == 2).await;
        let mut kubelet = RegistrationClient::new(dial(registration).await);
        kubelet.get_info(InfoRequest {}).await.unwrap();
        let domain = bed.compute_domain("team", "green", json!({})).await;
        let claim = bed.claim("c", &domain).await;
        agent.prepare_one(&claim).await.unwrap();
    });
}

#[test]
fn case_45_both_health_services_follow_the_board() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let show = |healthy: bool| {
            let message = if healthy { "" } else { "the daemon is down" };
            let slot = DeviceHealth { device: "slot-0".into(), healthy, message: message.into() };
            agent.health.show(Driver::ComputeDomain, vec![slot]);
        };
        show(true);
        let channel = dial(agent.service(names::DRIVER)).await;
        let mut new = v1::dra_resource_health_client::DraResourceHealthClient::new(channel.clone());
        let mut old = v1alpha1::dra_resource_health_client::DraResourceHealthClient::new(channel);
        let mut new = new.node_watch_resources(v1::NodeWatchResourcesRequest {}).await.unwrap().into_inner();
        let mut old = old.node_watch_resources(v1alpha1::NodeWatchResourcesRequest {}).await.unwrap().into_inner();
        let first = new.message().await.unwrap().unwrap().devices.remove(0);
        assert_eq!(
            (first.health(), first.device.as_ref().unwrap().pool_name.as_str()),
            (v1::HealthStatus::Healthy, "n1")
        );
        assert_eq!(old.message().await.unwrap().unwrap().devices[0].health(), v1alpha1::HealthStatus::Healthy);
        show(false);
        let second = new.message().await.unwrap().unwrap().devices.remove(0);
        assert_eq!((second.health(), second.message.as_str()), (v1::HealthStatus::Unhealthy, "the daemon is down"));
        assert_eq!(old.message().await.unwrap().unwrap().devices[0].health(), v1alpha1::HealthStatus::Unhealthy);
    });
}
