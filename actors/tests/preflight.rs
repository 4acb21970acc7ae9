//! The agent's checks of its node, made again and again.

use std::fs;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use heddle_actors::host_root::HostRoot;
use heddle_actors::preflight::{ActorSettings, Preflight, Settings};
use heddle_actors::runtime::{Runtime, Spec, block_on};
use heddle_actors::runtime_guard::Places;
use heddle_core::api::ImexMode;
use heddle_core::condition::Draft;
use heddle_core::inventory::Access;
use heddle_core::runtime_guard::Mode;
use tokio::sync::watch;

fn settings(root: &Path) -> Settings {
    for folder in ["driver", "plugins", "registry", "var/run/cdi", "state", "run", "proc/1"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    let files = [
        ("devices", "Character devices:\n506 nvidia-caps-imex-channels\n\n"),
        ("driver/nvidia/params", "ImexChannelCount: 2048\n"),
        ("driver/nvidia/capabilities/fabric-imex-mgmt", "DeviceFileMinor: 4323\n"),
    ];
    for (file, text) in files {
        let path = root.join("proc").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    Settings {
        client: None,
        node_name: None,
        pod_uid: Some("7f2c1b7e-9d14-4c0b-9a76-0d6b0a5e4f11".into()),
        driver_root: root.join("driver"),
        proc_root: root.join("proc"),
        access: Access::default(),
        plugins_dir: root.join("plugins"),
        registry_dir: root.join("registry"),
        cdi_dir: root.join("var/run/cdi"),
        state_dir: root.join("state"),
        runner_socket: root.join("run/runner.sock"),
        imex_mode: ImexMode::DriverManaged,
        slots: 16,
        host: HostRoot::new(root),
        places: Places::default(),
        runtime_guard: Mode::Off,
        container_runtime_version: Some("2.3.2".into()),
    }
}

fn process(root: &Path, pid: u32, command: &str) {
    let folder = root.join("proc").join(pid.to_string());
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("cmdline"), command.replace(' ', "\0")).unwrap();
    fs::write(folder.join("status"), "PPid:\t1\n").unwrap();
}

#[test]
fn issue_524_and_aicr_2520_a_foreign_daemon_is_told_until_it_is_gone() {
    block_on(async {
        let root = tempfile::tempdir().unwrap();
        let places = settings(root.path());
        let ours = root.path().join("run/daemon/config.cfg");
        process(root.path(), 70, &format!("/usr/bin/nvidia-imex -c {}", ours.display()));
        process(root.path(), 71, "/usr/bin/nvidia-imex -c /etc/nvidia-imex/config.cfg");
        let (tell, mut told) = watch::channel::<Option<Draft>>(None);
        let often = Duration::from_millis(2);
        let settings = ActorSettings {
            places,
            while_failing: often,
            otherwise: often,
            condition: Rc::new(move |draft| drop(tell.send(Some(draft)))),
        };
        let runtime = Runtime::new();
        runtime.root().supervise(Spec::default(), move || Ok(Preflight::new(settings.clone())));
        let mut until = async |named: bool| {
            let says = |draft: &Option<Draft>| {
                draft.as_ref().is_some_and(|draft| draft.message.contains("foreign-imex: ") == named)
            };
            let waited = tokio::time::timeout(Duration::from_secs(30), told.wait_for(says)).await;
            waited.expect("the test hangs").unwrap().clone().unwrap()
        };
        let draft = until(true).await;
        assert_eq!((draft.status, draft.reason.as_str()), ("False", "ChecksFailed"));
        let message = draft.message;
        assert!(message.contains("process 71 (/usr/bin/nvidia-imex -c /etc/nvidia-imex/config.cfg)"), "{message}");
        assert!(message.contains("nvml: no libnvidia-ml.so.1") && !message.contains("process 70"), "{message}");
        fs::remove_dir_all(root.path().join("proc/71")).unwrap();
        until(false).await;
    });
}
