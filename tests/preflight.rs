//! `heddle preflight` itself, on the files of a node.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};

use heddle_fake_nvml::{SCENARIO_ENV, Scenario, install};
use heddle_integration::node::NodePaths;

const CLIQUE: &str = "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11";

/// A node on which everything is as it should be.
fn node(root: &Path) -> NodePaths {
    let paths = NodePaths::new(root);
    for folder in [paths.plugins(), paths.registry(), paths.cdi(), paths.state()] {
        fs::create_dir_all(folder).unwrap();
    }
    install(&paths.driver_root()).unwrap();
    Scenario::gb200("n0", 4, Some((CLIQUE, 7))).write(&paths.nvml_scenario()).unwrap();
    for program in ["nvidia-imex", "nvidia-imex-ctl"] {
        let path = paths.driver_root().join("usr/bin").join(program);
        write(&path, "#!/bin/sh\n");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let os = paths.os();
    let devices = "Character devices:\n505 nvidia-caps\n506 nvidia-caps-imex-channels\n\nBlock devices:\n";
    write(&os.join("proc/devices"), devices);
    write(&os.join("proc/driver/nvidia/params"), "ImexChannelCount: 2048\n");
    write(&os.join("proc/driver/nvidia/capabilities/fabric-imex-mgmt"), "DeviceFileMinor: 4323\nDeviceFileMode: 256\n");
    write(&os.join("proc/sys/kernel/random/boot_id"), "3f1c\n");
    process(&paths, 1, &["/sbin/init"], 0);
    let containerd = format!(
        "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\ncdi_spec_dirs = [{:?}]\n\
         [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]\n\
         BinaryName = '/usr/bin/nvidia-container-runtime'\n",
        paths.cdi()
    );
    write(&os.join("etc/containerd/config.toml"), &containerd);
    let toolkit = "[features]\nignore-imex-channel-requests = true\n";
    write(&os.join("etc/nvidia-container-runtime/config.toml"), toolkit);
    paths
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn process(paths: &NodePaths, pid: u32, command: &[&str], parent: u32) {
    let folder = paths.os().join("proc").join(pid.to_string());
    write(&folder.join("cmdline"), &format!("{}\0", command.join("\0")));
    write(&folder.join("status"), &format!("Name:\tx\nPPid:\t{parent}\n"));
}

fn preflight(paths: &NodePaths, more: &[&str]) -> Output {
    let argument = |flag: &str, path: std::path::PathBuf| [flag.into(), path.into_os_string()];
    Command::new(env!("CARGO_BIN_EXE_heddle"))
        .env_clear()
        .env(SCENARIO_ENV, paths.nvml_scenario())
        .arg("preflight")
        .args(argument("--driver-root", paths.driver_root()))
        .args(argument("--proc-root", paths.os().join("proc")))
        .args(argument("--kubelet-plugins-dir", paths.plugins()))
        .args(argument("--kubelet-registry-dir", paths.registry()))
        .args(argument("--cdi-dir", paths.cdi()))
        .args(argument("--state-dir", paths.state()))
        .args(argument("--runner-socket", paths.runner_socket()))
        .args(argument("--host-root", paths.os()))
        .args(more)
        .output()
        .unwrap()
}

/// What was printed, without what differs from machine to machine.
fn printed(output: &Output, root: &Path) -> String {
    let text = String::from_utf8(output.stdout.clone()).unwrap().replace(root.to_str().unwrap(), "ROOT");
    // The file system of the folder for temporary files.
    text.lines().filter(|line| !line.contains("  state-folder  ")).map(|line| format!("{line}\n")).collect()
}

fn folder() -> tempfile::TempDir {
    // Short: a Unix socket's path has at most 107 bytes.
    tempfile::Builder::new().prefix("h").tempdir_in("/tmp").unwrap()
}

#[test]
fn a_node_that_is_well_is_said_to_be() {
    let root = folder();
    let paths = node(root.path());
    process(&paths, 70, &["heddle", "imex-runner"], 1);
    process(&paths, 71, &["/usr/bin/nvidia-imex", "-c", "/run/heddle/config.cfg"], 70);
    let output = preflight(&paths, &["--containerd-version", "2.3.2"]);
    assert_eq!(printed(&output, root.path()), include_str!("preflight/well.txt"));
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_node_on_which_nothing_is_right_is_told_what_to_do() {
    let root = folder();
    let paths = node(root.path());
    let os = paths.os();
    fs::remove_file(paths.driver_root().join("usr/bin/nvidia-imex")).unwrap();
    write(&os.join("proc/driver/nvidia/params"), "ImexChannelCount: 0\n");
    write(&os.join("proc/devices"), "Character devices:\n505 nvidia-caps\n\nBlock devices:\n");
    fs::remove_dir_all(os.join("proc/driver/nvidia/capabilities")).unwrap();
    process(&paths, 812, &["/usr/bin/nvidia-imex", "-c", "/etc/nvidia-imex/config.cfg"], 1);
    fs::create_dir_all(os.join("proc/812/fd")).unwrap();
    symlink("/dev/nvidia-caps/nvidia-cap4323", os.join("proc/812/fd/7")).unwrap();
    let containerd = "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.nvidia.options]\n\
                      BinaryName = '/usr/bin/nvidia-container-runtime'\n";
    write(&os.join("etc/containerd/config.toml"), containerd);
    write(&os.join("etc/nvidia-container-runtime/config.toml"), "");
    let _rival = UnixListener::bind(paths.registry().join("compute-domain.nvidia.com-reg.sock")).unwrap();
    fs::remove_dir_all(paths.plugins()).unwrap();
    let output = preflight(&paths, &["--containerd-version", "1.7.28", "--runtime-guard", "require"]);
    assert_eq!(printed(&output, root.path()), include_str!("preflight/broken.txt"));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn issue_524_and_aicr_2520_who_holds_the_session_is_named() {
    let root = folder();
    let paths = node(root.path());
    process(&paths, 812, &["/opt/other-imex"], 1);
    fs::create_dir_all(paths.os().join("proc/812/fd")).unwrap();
    symlink("/dev/nvidia-caps/nvidia-cap4323", paths.os().join("proc/812/fd/7")).unwrap();
    let output = preflight(&paths, &["--containerd-version", "2.3.2"]);
    let text = printed(&output, root.path());
    assert!(text.contains("process 812 (/opt/other-imex, holds the kernel's IMEX session)"), "{text}");
}

#[test]
fn json_says_the_same() {
    let root = folder();
    let paths = node(root.path());
    fs::remove_file(paths.driver_root().join("usr/bin/nvidia-imex-ctl")).unwrap();
    let output = preflight(&paths, &["--containerd-version", "2.3.2", "--json"]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["worst"], "FAIL");
    let checks = document["checks"].as_array().unwrap();
    let line = checks.iter().find(|line| line["check"] == "imex-programs").unwrap();
    assert!(line["found"].as_str().unwrap().starts_with("no nvidia-imex-ctl in "), "{line}");
    assert_eq!((line["grade"].as_str(), output.status.code()), (Some("FAIL"), Some(1)));
}

#[test]
fn a_wrong_flag_is_another_exit_code() {
    let root = folder();
    assert_eq!(preflight(&node(root.path()), &["--colour"]).status.code(), Some(2));
}
