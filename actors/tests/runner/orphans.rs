//! Daemons whose runner was killed.

use std::fs;
use std::path::Path;

use heddle_proto::runner::{GetRequest, StopRequest};
use tonic::Code;

use crate::rig::{Rig, apply, apply_as, config, identity};
use crate::stand_in::{alive, root};

#[tokio::test]
async fn a_daemon_whose_runner_was_killed_is_served_on_with() {
    let mut rig = Rig::start(root()).await;
    rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap();
    let before = rig.until_ready().await.daemon_pid;
    let mut rig = Rig::start(rig.kill().await).await;
    let after = rig.until_ready().await;
    assert_eq!((after.daemon_pid, after.domain.as_str()), (before, "d"), "{}", rig.calls());
    let refused = rig.client.apply(apply(config("e", "10.0.0.1"), false)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "it is protected like any other");
    rig.client.apply(apply(config("d", "10.0.0.9"), false)).await.unwrap();
    rig.until_calls("signalled", |calls| calls.contains("usr1 1")).await;
    assert_eq!(rig.calls().matches("start").count(), 1);

    rig.client.apply(apply(config("e", "10.0.0.1"), true)).await.unwrap();
    let second = rig.until_ready_again(before).await;
    assert!(second.domain == "e" && !alive(before));

    // Ended by itself it is started again, and one whose domain nobody remembers is ended on the word only.
    let mut rig = Rig::start(rig.kill().await).await;
    let adopted = rig.until_ready().await;
    assert_eq!(adopted.daemon_pid, second.daemon_pid);
    let pid = rustix::process::Pid::from_raw(i32::try_from(adopted.daemon_pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let third = rig.until_ready_again(adopted.daemon_pid).await;
    for lost in [|file: &Path| fs::write(file, "{").unwrap(), |file: &Path| fs::remove_file(file).unwrap()] {
        let root = rig.kill().await;
        lost(&root.path().join("run/domain.json"));
        rig = Rig::start(root).await;
        assert_eq!(rig.until_ready().await.daemon_pid, third.daemon_pid);
    }
    assert_eq!(
        rig.client.stop(StopRequest { no_claims_prepared: false }).await.unwrap_err().code(),
        Code::FailedPrecondition
    );
    rig.client.stop(StopRequest { no_claims_prepared: true }).await.unwrap();
    assert!(!alive(third.daemon_pid));
    rig.end().await;
}

#[tokio::test]
async fn a_daemon_is_taken_back_whatever_has_become_of_its_record() {
    let mut rig = Rig::start(root()).await;
    let given = || apply_as(config("d", "10.0.0.9"), identity("d", 1), false);
    rig.client.apply(given()).await.unwrap();
    let ready = rig.until_ready().await;
    let losses: [fn(&Path); 6] = [
        // No room was left when its index was to be noted.
        |run| {
            let text = fs::read_to_string(run.join("daemon.json")).unwrap();
            fs::write(
                run.join("daemon.json"),
                text.replace("\"index\":1,\"isolation\"", "\"index\":null,\"isolation\""),
            )
            .unwrap();
        },
        |run| fs::write(run.join("daemon.json"), "").unwrap(),
        |run| fs::write(run.join("daemon.json"), "{").unwrap(),
        // That of one before.
        |run| {
            let text = fs::read_to_string(run.join("daemon.json")).unwrap();
            fs::write(run.join("daemon.json"), text.replace("\"pid\":", "\"pid\":1")).unwrap();
        },
        |run| fs::remove_file(run.join("daemon.json")).unwrap(),
        |run| {
            fs::remove_file(run.join("daemon.json")).unwrap();
            fs::remove_file(run.join("domain.json")).unwrap();
        },
    ];
    for (number, lose) in losses.into_iter().enumerate() {
        let root = rig.kill().await;
        lose(&root.path().join("run"));
        rig = Rig::start(root).await;
        let adopted = rig.until_ready().await;
        assert_eq!((adopted.daemon_pid, adopted.domain.as_str()), (ready.daemon_pid, "d"), "loss {number}");
        let state = rig.client.apply(given()).await.unwrap().into_inner();
        assert_eq!((state.daemon_pid, state.starts, state.identity.as_str()), (ready.daemon_pid, 1, "d.x"));
        let hosts = fs::read_to_string(rig.root.path().join("run/hosts")).unwrap();
        assert!(hosts.contains("10.0.0.9 heddle-x-00"), "{hosts}");
    }
    // Neither is that of another folder taken.
    let other = Rig::start(crate::stand_in::root()).await;
    assert_eq!(other.client.clone().get(GetRequest {}).await.unwrap().into_inner().domain, "");
    other.end().await;
    assert!(alive(ready.daemon_pid));
    rig.end().await;
}

#[tokio::test]
async fn a_daemon_whose_index_nobody_knows_any_more_is_not_ended_for_it() {
    let mut rig = Rig::start(root()).await;
    rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap();
    let ready = rig.until_ready().await;
    let root = rig.kill().await;
    // Neither its log, which is emptied when it is long, nor its record has it.
    let log = fs::OpenOptions::new().write(true).open(format!("/proc/{}/fd/2", ready.daemon_pid)).unwrap();
    log.set_len(0).unwrap();
    fs::remove_file(root.path().join("run/daemon.json")).unwrap();
    let mut rig = Rig::start(root).await;
    let adopted = rig.until("READY", |state| state.daemon_state == "READY").await;
    assert_eq!((adopted.daemon_pid, adopted.daemon_index), (ready.daemon_pid, None));
    rig.client.apply(apply(config("d", "10.0.0.9"), false)).await.unwrap();
    rig.until_calls("signalled", |calls| calls.contains("usr1 1")).await;
    assert!(alive(ready.daemon_pid));
    rig.end().await;
}

#[tokio::test]
async fn where_a_daemon_listens_is_known_to_the_next_runner_though_peers_look_elsewhere() {
    let mut rig = Rig::start(root()).await;
    rig.client.apply(apply(config("d", "10.0.0.1"), false)).await.unwrap();
    let ready = rig.until_ready().await;
    let mut moved = config("d", "10.0.0.9");
    moved.settings.insert("BIND_INTERFACE_IP".into(), "127.0.0.2".into());
    let state = rig.client.apply(apply(moved, false)).await.unwrap().into_inner();
    assert_eq!((state.daemon_pid, state.listens_at.as_str()), (ready.daemon_pid, "127.0.0.1"));
    let record = rig.root.path().join("run/daemon.json");
    fs::remove_file(&record).unwrap();
    rig.until_calls("recorded again", |_| record.exists()).await;
    let mut rig = Rig::start(rig.kill().await).await;
    let adopted = rig.until_ready().await;
    assert_eq!((adopted.daemon_pid, adopted.listens_at.as_str()), (ready.daemon_pid, "127.0.0.1"));
    rig.end().await;
}
