//! A host that runs the daemon itself.

use std::fs;
use std::path::Path;

use heddle_actors::imex_supervisor::Message;
use heddle_actors::slice_publisher::Usable;
use heddle_core::api::{DaemonStatus, ImexMode};
use heddle_core::imex::{Standing, shared_domain_name};

use crate::rig::{Rig, clique, run};
use crate::stand_in::alive;

/// The files and the socket of a host that runs the daemon itself.
fn host_files(root: &Path, map: &str) {
    let folder = root.join("host/etc/nvidia-imex");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("config.cfg"), "IMEX_NODE_CONFIG_FILE=/etc/nvidia-imex/map\nIMEX_CMD_UNIX_DOMAIN_PATH=/x\n")
        .unwrap();
    fs::write(folder.join("map"), map).unwrap();
    fs::write(root.join("host.sock"), "").unwrap();
}

fn host_managed() -> Message {
    Message::Standing(Standing::settled(ImexMode::HostManaged))
}

#[test]
fn a_daemon_of_the_host_is_asked_and_nothing_is_started() {
    run(async {
        let mut rig = Rig::new();
        let root = rig.root.path().to_owned();
        host_files(&root, "10.0.0.1\n10.0.0.2\n");
        fs::write(root.join("word"), "WAITING_FOR_PEERS\n").unwrap();
        rig.supervisor.tell(host_managed());
        rig.until_not_ready("the host's IMEX daemon is WAITING_FOR_PEERS, not READY").await;
        fs::write(root.join("word"), "READY\n").unwrap();
        rig.until_ready_in(&shared_domain_name(&clique())).await;
        let status = rig.status.wait_for(|s| s.state == "READY" && s.peers_connected == 1).await.unwrap().clone();
        assert_eq!((status.domain, status.index, status.message), (Some(shared_domain_name(&clique())), Some(1), None));
        assert_eq!(status.version, "595.1");
        let hash = status.node_map_hash.unwrap();
        let usable = rig.usable.wait_for(|u| u.as_ref().is_some_and(|u| u.usable)).await.unwrap().clone().unwrap();
        assert!(usable.host_managed);

        // Another map, a daemon that hangs, and none.
        host_files(&root, "10.0.0.1\n10.0.0.3\n");
        let other = |s: &DaemonStatus| s.index.is_none() && s.node_map_hash.as_ref().is_some_and(|now| *now != hash);
        let message = rig.status.wait_for(other).await.unwrap().message.clone().unwrap();
        assert!(message.contains("none of the 2 entries"), "{message}");
        fs::remove_dir_all(root.join("host")).unwrap();
        let unread = |s: &DaemonStatus| s.message.as_ref().is_some_and(|why| why.contains("could not be checked"));
        rig.status.wait_for(unread).await.unwrap();
        assert!(rig.ready.borrow().as_ref().unwrap().is_ok(), "as far as the files can be read");
        fs::write(root.join("hangs"), "").unwrap();
        rig.until_not_ready("has not answered within").await;
        fs::remove_file(root.join("host.sock")).unwrap();
        rig.until_not_ready("has no control socket at").await;
        rig.status.wait_for(|status| status.state == "UNAVAILABLE").await.unwrap();
        fs::create_dir_all(root.join("run")).unwrap();
        fs::write(root.join("run/runner.sock"), "").unwrap();
        rig.until_not_ready("Heddle's own imex-runner is on this node too: remove its DaemonSet").await;
        host_files(&root, "10.0.0.1\n10.0.0.2\n");
        fs::remove_file(root.join("hangs")).unwrap();
        rig.until_ready_in(&shared_domain_name(&clique())).await;
        assert_eq!((rig.starts(), rig.asked.get()), (0, 0), "nothing is started, ended or asked for");
    });
}

#[test]
fn issue_1163_a_node_goes_from_one_mode_to_the_other_and_back() {
    run(async {
        let (mut rig, runner) = Rig::serving().await;
        let pid = rig.runner_state().await.daemon_pid;
        // While it waits for its claims nothing is offered, and the daemon of before is served on with.
        let held = Standing { acts: ImexMode::DriverManaged, wanted: ImexMode::HostManaged, holding: 1 };
        rig.supervisor.tell(Message::Standing(held));
        let withheld = |usable: &Option<Usable>| usable.as_ref().is_some_and(|u| u.withheld == Some("ImexModePending"));
        rig.usable.wait_for(withheld).await.unwrap();
        assert_eq!(rig.ready.borrow().as_ref().unwrap().as_deref(), Ok("d"));
        rig.supervisor.tell(host_managed());
        rig.until_ready_in(&shared_domain_name(&clique())).await;
        assert!(alive(pid), "it is not the agent's any more to end");
        rig.supervisor.tell(Message::Standing(Standing::settled(ImexMode::DriverManaged)));
        rig.until_ready_in("d").await;
        assert_eq!((rig.starts(), rig.runner_state().await.daemon_pid), (1, pid));
        runner.stop().await;
    });
}
