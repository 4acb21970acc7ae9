//! The runtime guard on a host of its own, whose files come, change and go.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use heddle_actors::host_root::HostRoot;
use heddle_actors::runtime::{Runtime, Spec, block_on};
use heddle_actors::runtime_guard::{GuardMetrics, Places, RuntimeGuard, Settings};
use heddle_core::runtime_guard::{Guard, Mode, Verdict};
use tokio::sync::watch;

const PACKAGED: &str = "etc/nvidia-container-runtime/config.toml";
const OPERATOR: &str = "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml";
const CONTAINERD: &str = "etc/containerd/config.toml";
const SET: &str = "[features]\nignore-imex-channel-requests = true\n";

struct Rig {
    host: tempfile::TempDir,
    runtime: Runtime,
    guard: watch::Receiver<Option<Guard>>,
}

impl Rig {
    fn new(host: tempfile::TempDir, mode: Mode) -> Self {
        let runtime = Runtime::new();
        let (tell, guard) = watch::channel(None);
        let settings = Settings {
            mode,
            host: HostRoot::new(host.path()),
            places: Places::default(),
            guard: Rc::new(move |guard| drop(tell.send(Some(guard)))),
            metrics: runtime.metrics().register(GuardMetrics::register),
        };
        runtime.root().supervise(Spec::default(), move || Ok(RuntimeGuard::new(settings.clone())));
        Self { host, runtime, guard }
    }

    fn write(&self, path: &str, text: &str) {
        write(self.host.path(), path, text);
    }

    async fn until(&mut self, label: &str) -> Verdict {
        let is = |guard: &Option<Guard>| match guard {
            Some(Guard::On { verdict: Some(verdict), .. }) => verdict.label() == label,
            _ => false,
        };
        match self.guard.wait_for(is).await.unwrap().clone() {
            Some(Guard::On { verdict: Some(verdict), .. }) => verdict,
            _ => unreachable!(),
        }
    }
}

/// As a package or an operator does it: whole, by rename.
fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

fn nvidia(program: &str) -> String {
    format!(
        "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia.options]\nBinaryName = \"{program}\"\n"
    )
}

fn run(test: impl Future<Output = ()>) {
    block_on(async { tokio::time::timeout(Duration::from_secs(30), test).await.expect("the test hangs") });
}

#[test]
fn nvidia_toolkit_pr_943_the_door_is_seen_and_so_is_its_closing() {
    run(async {
        let mut rig = Rig::new(tempfile::tempdir().unwrap(), Mode::Warn);
        rig.until("unknown").await;
        // Not even the folders are there yet.
        rig.write(CONTAINERD, "version = 2\n");
        rig.until("not-nvidia").await;
        rig.write(CONTAINERD, &nvidia("/usr/bin/nvidia-container-runtime"));
        let open = rig.until("open").await;
        assert!(
            matches!(&open, Verdict::Open { set, .. } if set.contains("/etc/nvidia-container-runtime/config.toml"))
        );
        rig.write(PACKAGED, SET);
        rig.until("closed").await;
        rig.write(PACKAGED, "");
        rig.until("open").await;
        rig.write(PACKAGED, SET);
        rig.until("closed").await;
        fs::remove_dir_all(rig.host.path().join("etc/nvidia-container-runtime")).unwrap();
        rig.until("open").await;
        rig.write(PACKAGED, SET);
        rig.until("closed").await;
        let metrics = rig.runtime.metrics().encode().unwrap();
        assert!(metrics.contains("heddle_runtime_guard{state=\"closed\"} 1"), "{metrics}");
        assert!(metrics.contains("heddle_runtime_guard{state=\"open\"} 0"), "{metrics}");
    });
}

#[test]
fn the_operators_wrapper_leads_to_its_file_and_an_old_program_is_seen() {
    run(async {
        let host = tempfile::tempdir().unwrap();
        let folder = "/usr/local/nvidia/toolkit";
        let wrapper = format!(
            "#! /bin/sh\nXDG_CONFIG_HOME={folder}/.config \\\n\t{folder}/nvidia-container-runtime.real \"$@\"\n"
        );
        write(host.path(), "usr/local/nvidia/toolkit/nvidia-container-runtime", &wrapper);
        write(host.path(), "usr/local/nvidia/toolkit/nvidia-container-runtime.real", "\x7fELF of long ago");
        write(host.path(), CONTAINERD, "version = 2\nimports = [\"conf.d/*.toml\"]\n");
        write(
            host.path(),
            "etc/containerd/conf.d/99-nvidia.toml",
            &nvidia(&format!("{folder}/nvidia-container-runtime")),
        );
        write(host.path(), OPERATOR, SET);
        write(host.path(), PACKAGED, "");
        let mut rig = Rig::new(host, Mode::Require);
        let open = rig.until("open").await;
        assert!(matches!(&open, Verdict::Open { set, .. } if set.contains("update it to 1.17.5")), "{open:?}");
        let newer = "\x7fELF with toml:\"ignore-imex-channel-requests,omitempty\" in it";
        rig.write("usr/local/nvidia/toolkit/nvidia-container-runtime.real", newer);
        rig.until("closed").await;
        rig.write("var/run/cdi/management.nvidia.com-gpu.yaml", "path: /dev/nvidia-caps-imex-channels/channel7\n");
        let open = rig.until("open").await;
        assert!(
            matches!(&open, Verdict::Open { why, .. } if why.contains("management.nvidia.com-gpu.yaml")),
            "{open:?}"
        );
    });
}

#[test]
fn a_hook_of_cri_o_is_a_door() {
    run(async {
        let host = tempfile::tempdir().unwrap();
        write(host.path(), "etc/crio/crio.conf.d/10-crun.conf", "[crio.runtime]\ndefault_runtime = 'crun'\n");
        let mut rig = Rig::new(host, Mode::Warn);
        rig.until("not-nvidia").await;
        rig.write(
            "usr/share/containers/oci/hooks.d/oci-nvidia-hook.json",
            "{\"version\": \"1.0.0\", \"hook\": {\"path\": \"/usr/bin/nvidia-container-runtime-hook\", \"args\": [\"x\", \"prestart\"]}}",
        );
        rig.until("open").await;
    });
}

#[test]
fn a_link_to_another_folder_is_followed_within_the_host() {
    run(async {
        let host = tempfile::tempdir().unwrap();
        write(host.path(), "opt/containerd.toml", &nvidia("nvidia-container-runtime"));
        fs::create_dir_all(host.path().join("etc/containerd")).unwrap();
        symlink("/opt/containerd.toml", host.path().join(CONTAINERD)).unwrap();
        Rig::new(host, Mode::Warn).until("open").await;
    });
}

#[test]
fn off_looks_at_nothing_and_says_so() {
    run(async {
        let host = tempfile::tempdir().unwrap();
        write(host.path(), CONTAINERD, &nvidia("nvidia-container-runtime"));
        let mut rig = Rig::new(host, Mode::Off);
        let said = rig.guard.wait_for(Option::is_some).await.unwrap().clone();
        assert_eq!(said, Some(Guard::Off));
    });
}
