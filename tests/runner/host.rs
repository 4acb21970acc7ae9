//! A daemon that the host runs, asked by an agent whose container has another C library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use heddle_actors::channel_allocator;
use heddle_actors::imex_supervisor::{self, HostImex, HostTiming, ImexSupervisor, Message};
use heddle_actors::runtime::{Actor, Cx, Runtime, Scope, Spec, block_on};
use heddle_core::api::{DaemonStatus, ImexMode};
use heddle_core::fault::Fault;
use heddle_core::identity::Authentication;
use heddle_core::imex::Standing;
use heddle_core::inventory::{Fabric, Inventory};
use heddle_core::runtime_guard::Guard;
use heddle_integration::driver_root::share;
use heddle_integration::imex::os::OS_ENV;
use heddle_integration::imex::scenario::{Ctl, Scenario};
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::sync::watch;

use crate::rig::{DRIVER_ROOT, HEDDLE, MAJOR, kill, may_isolate};

/// Only a test that fails waits for so long.
const PATIENCE: Duration = Duration::from_secs(60);
const CONFIG: &str = "/etc/nvidia-imex/config.cfg";
const SOCKET: &str = "/etc/nvidia-imex/imex_ctrl.sock";

/// A host with its driver, its C library and its daemon in a root of its own; the agent's is another.
struct Host {
    folder: TempDir,
    address: String,
    daemon: Option<Child>,
}

impl Host {
    /// Two of one clique.
    fn pair() -> [Self; 2] {
        static LAST: AtomicU8 = AtomicU8::new(1);
        let network = format!("127.{}.{}", 5 + std::process::id() % 40, LAST.fetch_add(1, Ordering::Relaxed));
        let port = std::net::TcpListener::bind((format!("{network}.1"), 0)).unwrap().local_addr().unwrap().port();
        [1, 2].map(|last| Self::new(&network, last, port))
    }

    fn new(network: &str, last: u8, port: u16) -> Self {
        // Beside the driver root, whose files it shares.
        let folder = TempDir::with_prefix_in("host", DRIVER_ROOT.parent().unwrap()).unwrap();
        let host = Self { folder, address: format!("{network}.{last}"), daemon: None };
        let root = host.root();
        share(&DRIVER_ROOT, root).unwrap();
        for name in ["etc/nvidia-imex", "net", "proc", "run", "imex", "opt"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        let devices = format!("Character devices:\n{MAJOR} nvidia-caps-imex-channels\n");
        fs::write(root.join("proc/devices"), devices).unwrap();
        fs::write(root.join("net/addresses"), &host.address).unwrap();
        fs::write(root.join("etc/hosts"), format!("{network}.1 one\n{network}.2 two\n")).unwrap();
        fs::write(root.join("etc/nvidia-imex/nodes.cfg"), "one\ntwo\n").unwrap();
        let settings = [
            "DAEMONIZE=0",
            "LOG_FILE_NAME=",
            &format!("SERVER_PORT={port}"),
            "IMEX_NODE_CONFIG_FILE=/etc/nvidia-imex/nodes.cfg",
            "IMEX_CMD_ENABLED=1",
            &format!("IMEX_CMD_UNIX_DOMAIN_PATH={SOCKET}"),
            "IMEX_NODE_DISCONNECTED_GRACE_TIME=30\n",
        ];
        // A link that leads to a file of the host's, and to none of the agent's.
        fs::write(root.join("opt/imex.cfg"), settings.join("\n")).unwrap();
        std::os::unix::fs::symlink("/opt/imex.cfg", root.join(&CONFIG[1..])).unwrap();
        host
    }

    fn root(&self) -> &Path {
        self.folder.path()
    }

    fn start(&mut self) {
        let daemon = Command::new("chroot")
            .arg(self.root())
            .args(["/usr/bin/nvidia-imex", "-c", CONFIG])
            .env(OS_ENV, "/")
            .stderr(Stdio::null())
            .spawn();
        self.daemon = Some(daemon.unwrap());
    }

    fn stop(&mut self) {
        let Some(mut daemon) = self.daemon.take() else { return };
        kill(daemon.id(), Signal::TERM);
        daemon.wait().unwrap();
    }

    /// An agent that starts programs of this driver root by way of this command.
    fn asked(&self, driver_root: PathBuf, command: &[&str]) -> HostImex {
        let often = Duration::from_millis(20);
        let mut imex = HostImex::at(self.root());
        let fake = format!("{OS_ENV}=/");
        let words = command.iter().copied().chain(["env", &fake, HEDDLE, "imex-enter"]);
        imex.enter = words.map(str::to_owned).collect();
        imex.build = self.root().join("run");
        imex.driver_root = driver_root;
        imex.addresses = vec![self.address.parse().unwrap()];
        imex.timing = HostTiming { limit: Duration::from_secs(5), not_ready: often, ready: often, files: often };
        imex
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Is never asked: nothing of a host's is ended.
struct Allocator;

impl Actor for Allocator {
    const KIND: &'static str = "Allocator";
    type Message = channel_allocator::Message;

    fn handle(&mut self, message: Self::Message, _: &mut Cx<'_, Self>) -> Result<(), Fault> {
        panic!("{message:?}");
    }
}

/// The part of an agent that asks its host's daemon.
struct Agent {
    status: watch::Receiver<DaemonStatus>,
    _scope: Scope,
}

impl Agent {
    fn start(runtime: &Runtime, host: HostImex) -> Self {
        let scope = runtime.root().child(&host.addresses[0].to_string());
        let (say_status, status) = watch::channel(DaemonStatus::default());
        let settings = imex_supervisor::Settings {
            socket: "/none".into(),
            host,
            standing: Some(Standing::settled(ImexMode::HostManaged)),
            allocator: scope.supervise(Spec::default(), || Ok(Allocator)),
            authentication: Authentication::Insecure,
            status: Rc::new(move |status| drop(say_status.send(status))),
            ready: Rc::new(|_| {}),
            usable: Rc::new(|_| {}),
            running: Rc::new(|_| {}),
        };
        let supervisor = scope.supervise(Spec::default(), move || Ok(ImexSupervisor::new(settings.clone())));
        supervisor.tell(Message::Guard(Guard::Off));
        let clique = "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.7".parse().unwrap();
        supervisor.tell(Message::Inventory(Inventory { fabric: Fabric::Ready(clique), ..Default::default() }));
        Self { status, _scope: scope }
    }

    async fn until(&mut self, what: &str, fits: impl Fn(&DaemonStatus) -> bool) -> DaemonStatus {
        let waited = tokio::time::timeout(PATIENCE, self.status.wait_for(fits)).await.map(|found| found.is_ok());
        assert_eq!(waited.ok(), Some(true), "never {what}: {:?}", *self.status.borrow());
        self.status.borrow().clone()
    }
}

fn mounts() -> usize {
    fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count()
}

#[test]
fn a_hosts_daemon_is_asked_with_the_libraries_of_its_host() {
    if !may_isolate() {
        return;
    }
    block_on(async {
        let runtime = Runtime::new();
        let before = mounts();
        let [mut one, mut two] = Host::pair();
        one.start();
        two.start();
        // As much as an agent has in the chart where it is not privileged.
        let few = ["setpriv", "--no-new-privs", "--bounding-set=-all,+sys_admin,+sys_chroot", "--inh-caps=-all"];
        let mut agent = Agent::start(&runtime, one.asked(one.root().into(), &few));
        let told = agent.until("connected", |status| status.peers_connected == 1).await;
        assert_eq!((told.state.as_str(), told.index, told.message), ("READY", Some(0), None));
        assert!(told.node_map_hash.is_some());
        assert_eq!(told.version, heddle_integration::imex::VERSION);

        two.stop();
        agent.until("alone", |status| status.state == "READY" && status.peers_connected == 0).await;
        one.stop();
        let gone = agent.until("gone", |status| status.state == "UNAVAILABLE").await;
        assert!(gone.message.unwrap().contains("has no control socket at"));
        assert_eq!(mounts(), before);
    });
}

#[test]
fn a_driver_root_beside_the_host_has_the_tool_and_is_not_written_to() {
    if !may_isolate() {
        return;
    }
    block_on(async {
        let runtime = Runtime::new();
        let [mut one, mut two] = Host::pair();
        let folder = TempDir::with_prefix_in("driver", DRIVER_ROOT.parent().unwrap()).unwrap();
        let driver = folder.path().join("driver");
        share(one.root(), &driver).unwrap();
        fs::remove_dir_all(driver.join("etc/nvidia-imex")).unwrap();
        // The host's own must not be what is started.
        fs::remove_file(one.root().join("usr/bin/nvidia-imex-ctl")).unwrap();
        one.start();
        two.start();
        let mut agent = Agent::start(&runtime, one.asked(driver.clone(), &[]));
        agent.until("connected", |status| status.state == "READY" && status.peers_connected == 1).await;
        assert!(!driver.join("etc/nvidia-imex").exists());

        // Its own folder of that name does not hide the host's.
        fs::create_dir(driver.join("etc/nvidia-imex")).unwrap();
        two.stop();
        agent.until("alone", |status| status.state == "READY" && status.peers_connected == 0).await;
        assert_eq!(fs::read_dir(driver.join("etc/nvidia-imex")).unwrap().count(), 0);
    });
}

#[test]
fn an_agent_without_the_right_to_mount_is_told_and_so_is_one_whose_tool_hangs() {
    if !may_isolate() {
        return;
    }
    block_on(async {
        let runtime = Runtime::new();
        let [mut one, two] = Host::pair();
        one.start();
        let without = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all"];
        let mut agent = Agent::start(&runtime, one.asked(one.root().into(), &without));
        let told = agent.until("a word", |status| status.state == "UNAVAILABLE" && status.message.is_some()).await;
        let message = told.message.unwrap();
        assert!(message.contains("does not answer") && message.contains("capabilities SYS_ADMIN"), "{message}");

        let hangs = Scenario { ctl: Ctl { hang: ['q'].into(), ..Ctl::default() }, ..Scenario::default() };
        hangs.write(&heddle_integration::imex::os::Os::at(one.root())).unwrap();
        let mut imex = one.asked(one.root().into(), &[]);
        imex.addresses = vec![two.address.parse().unwrap()];
        imex.timing.limit = Duration::from_millis(500);
        let mut agent = Agent::start(&runtime, imex);
        agent.until("cut off", |s| s.message.as_ref().is_some_and(|m| m.contains("has not answered within"))).await;
        assert!(one.daemon.as_mut().unwrap().try_wait().unwrap().is_none(), "its daemon is left alone");
    });
}
