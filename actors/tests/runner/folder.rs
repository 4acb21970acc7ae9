//! The runner's folder and socket, and what becomes of them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use heddle_actors::runner::{self, Isolation};
use heddle_core::fault::Class;
use heddle_proto::runner::runner_client::RunnerClient;
use heddle_proto::runner::{GetRequest, StopRequest};
use tonic::Code;
use tonic::transport::Endpoint;

use crate::rig::{Rig, apply, apply_as, config, identity, obstruct};
use crate::stand_in::{alive, root, settings};

#[tokio::test]
async fn one_runner_serves_a_folder() {
    let rig = Rig::start(root()).await;
    let fault = runner::run(settings(rig.root.path()), std::future::pending()).await.unwrap_err();
    assert_eq!(fault.class, Class::Fatal);
    assert!(fault.message.contains("another IMEX runner"), "{fault}");
    let mode = fs::metadata(rig.root.path().join("run/runner.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    rig.end().await;
}

#[tokio::test]
async fn a_socket_on_which_somebody_answers_is_left_to_him() {
    let rig = Rig::start(root()).await;
    let mut other = settings(rig.root.path());
    other.dir = rig.root.path().join("other");
    let fault = runner::run(other, std::future::pending()).await.unwrap_err();
    assert!(fault.class == Class::Fatal && fault.message.contains("somebody answers"), "{fault}");
    let endpoint = format!("unix://{}", rig.root.path().join("run/runner.sock").display());
    let channel = Endpoint::from_shared(endpoint).unwrap().connect().await.unwrap();
    assert!(RunnerClient::new(channel).get(GetRequest {}).await.is_ok(), "the first is where it was");
    rig.end().await;
}

#[tokio::test]
async fn a_socket_that_was_replaced_is_made_again() {
    let mut rig = Rig::start(root()).await;
    let socket = rig.root.path().join("run/runner.sock");
    let replacements: [fn(&Path); 4] = [
        |_| {},
        |socket| fs::write(socket, "").unwrap(),
        |socket| fs::create_dir(socket).unwrap(),
        |socket| drop(std::os::unix::net::UnixListener::bind(socket).unwrap()),
    ];
    for (number, replace) in replacements.into_iter().enumerate() {
        fs::remove_file(&socket).unwrap();
        replace(&socket);
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
        let found = tokio::time::timeout(Duration::from_secs(20), async {
            loop {
                match endpoint.connect().await {
                    Ok(channel) => break channel,
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        });
        let channel = found.await.unwrap_or_else(|_| panic!("never again after replacement {number}"));
        RunnerClient::new(channel).get(GetRequest {}).await.unwrap();
    }
    rig.client.get(GetRequest {}).await.unwrap();
    let _root = rig.end().await;
    assert!(!socket.exists());
}

#[tokio::test]
async fn an_unusable_folder_or_setting_ends_the_runner_at_once() {
    let root = root();
    fs::write(root.path().join("run"), "a file").unwrap();
    let fault = runner::run(settings(root.path()), std::future::pending()).await.unwrap_err();
    assert_eq!(fault.class, Class::Fatal);
    assert!(fault.message.contains("cannot be used"), "{fault}");
    fs::remove_file(root.path().join("run")).unwrap();
    let mut mistyped = settings(root.path());
    mistyped.settings.insert("IMEX_NODE_DISCONNECT_GRACE_TIME".into(), "60".into());
    let fault = runner::run(mistyped, std::future::pending()).await.unwrap_err();
    assert!(fault.message.contains("IMEX_NODE_DISCONNECTED_GRACE_TIME"), "{fault}");
}

#[tokio::test]
async fn a_hosts_file_that_cannot_be_written_is_said_and_ends_no_daemon() {
    let root = root();
    let folder = root.path().join("etc");
    let hosts = folder.join("hosts");
    let mut rig = Rig::start_with(root, |settings| {
        if let Isolation::None { hosts_file, .. } = &mut settings.isolation {
            hosts_file.clone_from(&hosts);
        }
    })
    .await;
    rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap();
    let down = rig.until("a word", |state| state.message.contains("cannot be written")).await;
    assert!(down.daemon_state == "DOWN" && down.message.contains(&hosts.display().to_string()), "{down:?}");
    fs::create_dir(&folder).unwrap();
    let ready = rig.until_ready().await;

    // Under a daemon that runs the agent is told, tries again, and nobody is disturbed.
    fs::remove_dir_all(&folder).unwrap();
    let refused = rig.client.apply(apply(config("d", "10.0.0.9"), false)).await.unwrap_err();
    assert!(refused.code() == Code::Internal && refused.message().contains("cannot be written"), "{refused}");
    assert!(alive(ready.daemon_pid));
    fs::create_dir(&folder).unwrap();
    let state = rig.client.apply(apply(config("d", "10.0.0.9"), false)).await.unwrap().into_inner();
    assert_eq!((state.daemon_pid, state.starts), (ready.daemon_pid, 1));
    assert!(fs::read_to_string(&hosts).unwrap().contains("10.0.0.9"));
    rig.end().await;
}

#[tokio::test]
async fn a_stop_is_whole_whatever_has_become_of_the_files() {
    let mut rig = Rig::start(root()).await;
    let run = rig.root.path().join("run");
    let damages: [fn(&Path); 2] = [|run| fs::remove_dir_all(run.join("daemon")).unwrap(), obstruct];
    for damage in damages {
        rig.client.apply(apply_as(config("d", "10.0.0.1"), identity("d", 1), false)).await.unwrap();
        let ready = rig.until_ready().await;
        damage(&run);
        let stopped = rig.client.stop(StopRequest { no_claims_prepared: true }).await.unwrap().into_inner();
        assert_eq!((stopped.domain.as_str(), stopped.identity.as_str()), ("", ""));
        assert!(!alive(ready.daemon_pid));
        let _ = fs::remove_file(run.join("daemon"));
    }
    rig.end().await;
}

#[tokio::test]
async fn a_file_that_was_lost_or_damaged_is_put_right_and_the_daemon_reads_it_again() {
    let mut rig = Rig::start(root()).await;
    rig.client.apply(apply_as(config("d", "10.0.0.9"), identity("d", 1), false)).await.unwrap();
    let ready = rig.until_ready().await;
    let run = rig.root.path().join("run");
    let files = ["hosts", "daemon/nodes.cfg", "daemon/config.cfg", "daemon/identity/tls.key", "daemon/identity/ca.crt"];
    let mut signals = 0;
    for file in files.map(|file| run.join(file)) {
        let before = fs::read_to_string(&file).unwrap();
        let damages: [fn(&Path); 2] = [|file| fs::remove_file(file).unwrap(), |file| fs::write(file, "x").unwrap()];
        for damage in damages {
            damage(&file);
            let is_right = || fs::read_to_string(&file).is_ok_and(|text| text == before);
            rig.until_calls("put right", |_| is_right()).await;
            rig.until_calls("signalled", |calls| calls.matches("usr1 1").count() > signals).await;
            signals = rig.calls().matches("usr1 1").count();
        }
    }
    // Not by the next look: at once, where the agent says the same again.
    fs::remove_file(run.join("hosts")).unwrap();
    rig.client.apply(apply_as(config("d", "10.0.0.9"), identity("d", 1), false)).await.unwrap();
    assert!(run.join("hosts").exists());
    let state = rig.client.get(GetRequest {}).await.unwrap().into_inner();
    assert_eq!((state.daemon_pid, state.starts), (ready.daemon_pid, 1));
    rig.end().await;
}
