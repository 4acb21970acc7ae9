//! What the daemon sees of the node.

use std::fs;
use std::path::Path;

use crate::rig::{DRIVER_ROOT, Node, is_alive, may_isolate};

fn mounts() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap()
}

/// Upstream 1465: no name is looked for anywhere else.
#[tokio::test]
async fn the_daemon_runs_in_the_driver_root_with_names_of_our_own() {
    if !may_isolate() {
        return;
    }
    let host = fs::read("/etc/hosts").unwrap();
    let mut node = Node::new();
    let mut client = node.start().await;
    client.apply(node.domain(None), false).await.unwrap();
    let state = client.ready().await;
    let pid = state.daemon_pid;

    // Its own loader and libraries, which no other root has.
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    assert!(maps.contains("/usr/lib/libc.so.6") && maps.contains("/usr/lib/fake-loader"), "{maps}");
    let root = Path::new("/proc").join(pid.to_string()).join("root");
    assert_eq!(node.seen(pid, "/etc/driver-release"), "of the driver root\n");
    assert!(node.seen(pid, "/etc/hosts").contains("heddle-x-01"));
    assert!(node.seen(pid, "/etc/nsswitch.conf").contains("\nhosts: files\n"));
    let resolver = node.seen(pid, "/etc/resolv.conf");
    assert!(resolver.contains("options") && !resolver.contains("search") && !resolver.contains("nameserver"));
    assert!(node.seen(pid, "/run/heddle/config.cfg").contains("IMEX_NODE_CONFIG_FILE=/run/heddle/nodes.cfg\n"));

    // What it has no reason to write it cannot, and of the rest of the node it sees nothing.
    for path in ["usr/new", "etc.driver/new", "run/heddle/new"] {
        let error = fs::write(root.join(path), "").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{path}");
    }
    fs::write(root.join("tmp/new"), "").unwrap();
    assert!(!Path::new("/tmp/new").exists());
    for path in ["home", "run/heddle/runner.sock", "run/heddle/domain.json", "run/systemd"] {
        assert!(!root.join(path).exists(), "{path}");
    }
    assert!(node.dir().join("persist/persist.dat").exists(), "its state is the runner's folder's");

    // Nothing of it is seen here, and nothing is left.
    let folder = node.folder.path().display().to_string();
    assert!(!mounts().contains(&folder));
    node.stop_runner();
    assert!(!is_alive(pid));
    assert!(fs::read_dir(node.dir().join("root")).unwrap().next().is_none());
    assert_eq!(fs::read("/etc/hosts").unwrap(), host);
    assert!(!DRIVER_ROOT.join("etc/hosts").exists(), "nothing is written to the driver root");
}

/// Upstream 1443, 1245.
#[tokio::test]
async fn changed_hosts_reach_a_daemon_that_runs() {
    if !may_isolate() {
        return;
    }
    let mut node = Node::new();
    let mut client = node.start().await;
    client.apply(node.domain(None), false).await.unwrap();
    let before = client.ready().await;
    let after = client.apply(node.domain(Some("127.0.0.99")), false).await.unwrap();
    assert_eq!((after.daemon_pid, after.starts), (before.daemon_pid, 1));
    assert!(node.seen(before.daemon_pid, "/etc/hosts").contains("127.0.0.99"));
    node.says("Restarting all outgoing connections", 1).await;
}

#[tokio::test]
async fn a_library_that_is_missing_is_said_and_found_when_it_is_there() {
    if !may_isolate() {
        return;
    }
    let mut node = Node::new();
    let own = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    node.driver_root = own.path().join("driver");
    heddle_integration::driver_root::share(&DRIVER_ROOT, &node.driver_root).unwrap();
    let libraries = node.driver_root.join(heddle_integration::driver_root::LIBRARIES);
    let (library, away) = (libraries.join("libc.so.6"), libraries.join("away"));
    fs::rename(&library, &away).unwrap();
    let mut client = node.start().await;
    client.apply(node.domain(None), false).await.unwrap();
    let is_down = |state: &heddle_proto::runner::State| state.daemon_state == "DOWN" && state.domain == "d";
    let down = client.until("a word", |state| is_down(state) && state.message.contains("libc.so.6")).await;
    assert!(down.message.contains("cannot be loaded in the driver root"), "{down:?}");
    assert_eq!(down.daemon_pid, 0);
    fs::rename(&away, &library).unwrap();
    client.ready().await;

    // Nor is there a word to guess at when it is the loader.
    node.stop_runner();
    let is_loader =
        |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("fake-loader"));
    let files = fs::read_dir(&libraries).unwrap().map(|entry| entry.unwrap().path());
    let loader = files.into_iter().find(|path| is_loader(path)).unwrap();
    fs::remove_file(loader).unwrap();
    let mut client = node.start().await;
    let down = client.until("a word", |state| is_down(state) && state.message.contains("loader")).await;
    assert!(down.message.contains("C library of its own system"), "{down:?}");
}

#[tokio::test]
async fn a_container_without_the_right_to_mount_is_told_what_it_needs() {
    if !may_isolate() {
        return;
    }
    let mut node = Node::new();
    let without = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all"];
    let mut client = node.start_by(&without, &node.arguments()).await;
    client.apply(node.domain(None), false).await.unwrap();
    let down = client.until("a word", |state| state.message.contains("SYS_ADMIN")).await;
    assert!(down.daemon_state == "DOWN" && down.message.contains("no mount namespace can be made"), "{down:?}");
    node.says("no mount namespace can be made", 1).await;
}

#[tokio::test]
async fn two_capabilities_are_enough_and_each_is_needed() {
    if !may_isolate() {
        return;
    }
    let mut node = Node::new();
    let arguments = node.arguments();
    let mut client = node
        .start_by(
            &["setpriv", "--no-new-privs", "--bounding-set=-all,+sys_admin,+sys_chroot", "--inh-caps=-all"],
            &arguments,
        )
        .await;
    client.apply(node.domain(None), false).await.unwrap();
    client.ready().await;
    node.stop_runner();

    let mut client = node.start_by(&["setpriv", "--bounding-set=-all,+sys_admin", "--inh-caps=-all"], &arguments).await;
    let deaf = client.until("a word", |state| state.message.contains("SYS_CHROOT")).await;
    assert!(deaf.message.contains("nvidia-imex-ctl cannot be asked"), "{deaf:?}");
}
