//! Sockets, registration and health.

use std::os::unix::fs::MetadataExt as _;

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
fn while_one_socket_cannot_be_put_back_the_other_is_left_alone() {
    run(|| async {
        let bed = Bed::new().await;
        let agent = bed.start().await;
        let (registration, service) = (agent.registrations()[0].clone(), agent.service(names::DRIVER));
        // With its time: the number of a removed file is soon another's.
        let which = || {
            std::fs::symlink_metadata(&service).map(|found| (found.ino(), found.ctime(), found.ctime_nsec())).unwrap()
        };
        let before = which();
        // Nothing can be put in place of a folder with something in it.
        std::fs::remove_file(&registration).unwrap();
        std::fs::create_dir_all(registration.join("in the way")).unwrap();
        // A change that is seen after this one shows that it was tried.
        let other = agent.service(names::GPU_DRIVER);
        std::fs::remove_file(&other).unwrap();
        agent.until(|| other.exists()).await;
        assert_eq!(which(), before, "each attempt would be a change that asks for the next attempt");
        let left: Vec<_> =
            std::fs::read_dir(bed.paths.registry()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");
        std::fs::remove_dir_all(&registration).unwrap();
        agent.until(|| registration.exists()).await;
        assert_eq!(which(), before);
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

#[test]
fn a_probe_says_whether_the_kubelet_would_be_served() {
    use heddle_actors::dra::HealthProbe;
    use heddle_actors::runtime::Spec;
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_check_response::ServingStatus::{self, NotServing, Serving};
    use tonic_health::pb::health_client::HealthClient;

    run(|| async {
        let bed = Bed::new().await;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        // It looks for the registration sockets where this test can break one while the agent lives.
        let registry = bed.paths.os().join("looked-at");
        std::fs::create_dir_all(&registry).unwrap();
        let settings = heddle_actors::dra::DraSettings { registry_dir: registry.clone(), ..bed.settings() };
        bed.runtime
            .root()
            .supervise(Spec::default(), move || Ok(HealthProbe::new(listener.try_clone().unwrap(), &settings)));
        let endpoint = tonic::transport::Endpoint::from_shared(address).unwrap();
        let channel = endpoint.connect().await.unwrap();
        let check = async || -> ServingStatus {
            let request = HealthCheckRequest::default();
            HealthClient::new(channel.clone()).check(request).await.unwrap().into_inner().status()
        };
        assert_eq!(check().await, NotServing, "nobody listens");
        let agent = bed.start().await;
        let mut seen = Vec::new();
        for socket in agent.registrations() {
            assert_eq!(check().await, NotServing, "a socket is missing");
            seen.push(registry.join(socket.file_name().unwrap()));
            std::os::unix::fs::symlink(&socket, seen.last().unwrap()).unwrap();
        }
        assert_eq!(check().await, Serving);
        let request = HealthCheckRequest { service: "another".into() };
        let refused = HealthClient::new(channel.clone()).check(request).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::NotFound);

        std::fs::remove_file(&seen[0]).unwrap();
        let hung = std::os::unix::net::UnixListener::bind(&seen[0]).unwrap();
        assert_eq!(check().await, NotServing, "accepted and never answered");
        drop(hung);
        std::fs::remove_file(&seen[0]).unwrap();
        std::os::unix::fs::symlink(&agent.registrations()[0], &seen[0]).unwrap();
        assert_eq!(check().await, Serving);
        bed.kill(agent).await;
        assert_eq!(check().await, NotServing, "nobody listens any more");
    });
}
