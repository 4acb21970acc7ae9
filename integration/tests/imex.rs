//! Daemons as processes on nodes of their own: who finds whom, and who may import what.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use heddle_integration::imex::cuda::{Cuda, CudaError};
use heddle_integration::imex::os::OS_ENV;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fake-nvidia-imex");
const MAJOR: u32 = 506;
/// The address of names without a node: nobody listens there.
const SENTINEL: &str = "127.255.255.254";
/// Only a test that fails waits for so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Nodes with one port and an address each, so that tests and runs do not meet.
struct Rack {
    folder: TempDir,
    network: String,
    port: u16,
}

impl Rack {
    fn new() -> Self {
        static LAST: AtomicU8 = AtomicU8::new(1);
        let network = format!("127.{}.{}", 100 + std::process::id() % 100, LAST.fetch_add(1, Ordering::Relaxed));
        let port = TcpListener::bind((format!("{network}.1"), 0)).unwrap().local_addr().unwrap().port();
        Self { folder: TempDir::with_prefix("imex").unwrap(), network, port }
    }

    fn address(&self, node: u8) -> String {
        format!("{}.{}", self.network, node + 1)
    }

    /// A simulated OS with a map of three names, of which the last has no node.
    fn node(&self, node: u8) -> Node {
        let os = self.folder.path().join(format!("n{node}"));
        for folder in ["etc", "net", "proc", "run", "imex"] {
            std::fs::create_dir_all(os.join(folder)).unwrap();
        }
        let devices = format!("Character devices:\n{MAJOR} nvidia-caps-imex-channels\n");
        std::fs::write(os.join("proc/devices"), devices).unwrap();
        std::fs::write(os.join("net/addresses"), self.address(node)).unwrap();
        let node = Node { address: self.address(node), port: self.port, os };
        node.hosts(&[(&self.address(0), "rack-00"), (&self.address(1), "rack-01"), (SENTINEL, "rack-02")]);
        node.map("rack-00\nrack-01\nrack-02\n");
        node
    }
}

struct Node {
    address: String,
    port: u16,
    os: PathBuf,
}

impl Node {
    fn hosts(&self, entries: &[(&str, &str)]) {
        let text: String = entries.iter().map(|(address, name)| format!("{address}\t{name}\n")).collect();
        std::fs::write(self.os.join("etc/hosts"), text).unwrap();
    }

    fn map(&self, text: &str) {
        std::fs::write(self.os.join("nodes.cfg"), text).unwrap();
    }

    fn socket(&self) -> String {
        self.os.join("run/imex.sock").display().to_string()
    }

    fn config(&self) -> String {
        self.os.join("imexd.cfg").display().to_string()
    }

    fn start(&self) -> Daemon {
        self.start_with(&[])
    }

    fn start_with(&self, settings: &[(&str, &str)]) -> Daemon {
        let (map, port, socket) = (self.os.join("nodes.cfg"), self.port.to_string(), self.socket());
        let mut all = BTreeMap::from([
            ("DAEMONIZE", "0"),
            ("LOG_FILE_NAME", ""),
            ("SERVER_PORT", &*port),
            ("IMEX_NODE_CONFIG_FILE", map.to_str().unwrap()),
            ("IMEX_CMD_UNIX_DOMAIN_PATH", &*socket),
            ("IMEX_NODE_DISCONNECTED_GRACE_TIME", "30"),
        ]);
        all.extend(settings.iter().copied());
        let text: String = all.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
        std::fs::write(self.config(), text).unwrap();
        let mut child = Command::new(PROGRAM)
            .args(["nvidia-imex", "-c", &self.config()])
            .env(OS_ENV, &self.os)
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log = watch::Sender::new(String::new());
        let said = log.subscribe();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                log.send_modify(|log| *log += &(line + "\n"));
            }
        });
        Daemon { child, said }
    }

    async fn ctl(&self, args: &[&str]) -> Output {
        Command::new(PROGRAM).arg("nvidia-imex-ctl").args(args).env(OS_ENV, &self.os).output().await.unwrap()
    }

    async fn query(&self) -> String {
        let output = self.ctl(&["-q", "-u", &self.socket()]).await;
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What the node says of its connections, in the order of the map.
    async fn row(&self, own: usize) -> Vec<String> {
        let output = self.ctl(&["-N", "-j", "-c", &self.config()]).await;
        let domain: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let connections = domain["nodes"][own.to_string()]["connections"].as_object().unwrap();
        (0..connections.len()).map(|id| connections[&id.to_string()]["status"].as_str().unwrap().to_owned()).collect()
    }

    /// A container with this channel.
    fn process(&self, channel: u32) -> Cuda {
        Cuda::open(&self.os, (MAJOR, channel)).unwrap()
    }
}

struct Daemon {
    child: Child,
    said: watch::Receiver<String>,
}

impl Daemon {
    /// Waits until the log has this text.
    async fn says(&mut self, text: &str) {
        let waited = tokio::time::timeout(PATIENCE, self.said.wait_for(|log| log.contains(text))).await;
        let found = waited.is_ok_and(|found| found.is_ok());
        assert!(found, "{text:?} is not in the log:\n{}", *self.said.borrow());
    }

    async fn ready(&mut self) {
        self.says("IMEX state is now READY").await;
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id().unwrap().cast_signed()).unwrap(), signal).unwrap();
    }

    async fn exit(&mut self) -> Option<i32> {
        tokio::time::timeout(PATIENCE, self.child.wait()).await.unwrap().unwrap().code()
    }
}

/// The code of a call that must fail.
async fn code<T: std::fmt::Debug>(call: impl Future<Output = Result<T, CudaError>>) -> u32 {
    call.await.unwrap_err().code
}

async fn connected_pair(rack: &Rack) -> (Node, Node, Daemon, Daemon) {
    let (zero, one) = (rack.node(0), rack.node(1));
    let (mut zero_daemon, mut one_daemon) = (zero.start(), one.start());
    zero_daemon.says("Connected to node 1").await;
    one_daemon.says("Connected to node 0").await;
    zero_daemon.ready().await;
    one_daemon.ready().await;
    (zero, one, zero_daemon, one_daemon)
}

#[tokio::test]
async fn a_node_finds_its_index_and_says_ready() {
    let rack = Rack::new();
    let node = rack.node(1);
    let mut daemon = node.start();
    daemon.says("Treating node config entry 'rack-02' as a host name.").await;
    daemon.says("Identified this node as ID 1").await;
    daemon.ready().await;
    assert_eq!(node.query().await, "READY\n");
}

#[tokio::test]
async fn a_node_that_is_not_in_the_map_ends_with_an_error() {
    let rack = Rack::new();
    let node = rack.node(0);
    node.map("rack-01\nrack-02\n");
    let mut daemon = node.start();
    daemon.says("[ERROR]").await;
    daemon.says("No matching network interface found for any IP addresses").await;
    assert_eq!(daemon.exit().await, Some(1));
    let output = node.ctl(&["-q", "-u", &node.socket()]).await;
    assert!(!output.status.success() && output.stdout.is_empty() && !output.stderr.is_empty());
}

#[tokio::test]
async fn what_the_fake_cannot_do_it_refuses() {
    let rack = Rack::new();
    let mut daemon = rack.node(0).start_with(&[("DAEMONIZE", "1")]);
    daemon.says("set DAEMONIZE=0").await;
    assert_eq!(daemon.exit().await, Some(1));
}

#[tokio::test]
async fn an_import_needs_the_same_channel() {
    let rack = Rack::new();
    let (zero, one, _zero_daemon, _one_daemon) = connected_pair(&rack).await;
    let mut exporter = zero.process(1);
    let handle = exporter.export().await.unwrap();

    let (mut same, mut other) = (one.process(1), one.process(2));
    same.import(&handle).await.unwrap();
    same.holds(&handle).await.unwrap();
    assert_eq!(code(other.import(&handle)).await, 800);
    let (mut near, mut other) = (zero.process(1), zero.process(2));
    near.import(&handle).await.unwrap();
    assert_eq!(code(other.import(&handle)).await, 800);
    assert_eq!(code(Cuda::open(&one.os, None).unwrap().import(&handle)).await, 800);

    // The exporting process ends; its daemon hears of it on another connection than ours.
    drop(exporter);
    while near.holds(&handle).await.is_ok() {}
    assert_eq!(code(one.process(1).import(&handle)).await, 400);
    while same.holds(&handle).await.is_ok() {}
}

#[tokio::test]
async fn another_node_map_is_refused() {
    let rack = Rack::new();
    let (zero, one) = (rack.node(0), rack.node(1));
    one.map("rack-00\nrack-01\n");
    let (mut zero_daemon, mut one_daemon) = (zero.start(), one.start());
    zero_daemon.says("Connection to node 1 is refused: !M!").await;
    one_daemon.says("Connection to node 0 is refused: !M!").await;
    zero_daemon.ready().await;
    one_daemon.ready().await;
    assert_eq!(zero.row(0).await[..2], ["CONNECTED", "MAP_MISMATCH"]);
    let mut exporter = zero.process(1);
    let handle = exporter.export().await.unwrap();
    assert_eq!(code(one.process(1).import(&handle)).await, 400);

    // A new instance with the right map is welcome.
    one_daemon.signal(Signal::TERM);
    assert_eq!(one_daemon.exit().await, Some(0));
    one.map("rack-00\nrack-01\nrack-02\n");
    let mut one_daemon = one.start();
    one_daemon.ready().await;
    zero_daemon.says("Connected to node 1").await;
    one.process(1).import(&handle).await.unwrap();
}

#[tokio::test]
async fn one_daemon_per_os() {
    let rack = Rack::new();
    let node = rack.node(0);
    let mut first = node.start();
    first.ready().await;
    let port = (node.port ^ 1).to_string();
    let mut second = node.start_with(&[("SERVER_PORT", &*port), ("IMEX_CMD_UNIX_DOMAIN_PATH", "")]);
    second.says("Failed to allocate Imex session: NV_ERR_IN_USE").await;
    assert_eq!(second.exit().await, Some(1));
    assert_eq!(node.query().await, "READY\n");
    node.process(1).export().await.unwrap();
}

#[tokio::test]
async fn the_end_of_a_daemon_ends_what_it_exported() {
    let rack = Rack::new();
    let (zero, one, mut zero_daemon, mut one_daemon) = connected_pair(&rack).await;
    let mut exporter = zero.process(1);
    let handle = exporter.export().await.unwrap();
    let mut importer = one.process(1);
    importer.import(&handle).await.unwrap();

    zero_daemon.signal(Signal::TERM);
    assert_eq!(zero_daemon.exit().await, Some(0));
    one_daemon.says("Node 0 is shutting down").await;
    assert_eq!(code(importer.holds(&handle)).await, 400);
    // The session's processes are disabled with it, and new ones find none.
    assert_eq!(code(exporter.export()).await, 801);
    assert_eq!(code(zero.process(1).export()).await, 801);

    let mut again = zero.start();
    again.ready().await;
    assert_eq!(code(importer.import(&handle)).await, 400);
    let mut exporter = zero.process(1);
    let handle = exporter.export().await.unwrap();
    importer.import(&handle).await.unwrap();
}

#[tokio::test]
async fn a_signal_resolves_names_again_and_disturbs_nobody() {
    let rack = Rack::new();
    let (zero, one) = (rack.node(0), rack.node(1));
    // Node 0 does not know yet where node 1 is.
    zero.hosts(&[(&zero.address, "rack-00"), (SENTINEL, "rack-01"), (SENTINEL, "rack-02")]);
    let (mut zero_daemon, mut one_daemon) = (zero.start(), one.start());
    one_daemon.says("Connected to node 0").await;
    zero_daemon.ready().await;
    one_daemon.ready().await;
    let mut exporter = zero.process(1);
    let handle = exporter.export().await.unwrap();
    let mut importer = one.process(1);
    importer.import(&handle).await.unwrap();
    let mut back = one.process(1);
    let back = back.export().await.unwrap();
    assert_eq!(code(zero.process(1).import(&back)).await, 400);

    zero.hosts(&[(&zero.address, "rack-00"), (&one.address, "rack-01"), (SENTINEL, "rack-02")]);
    zero_daemon.signal(Signal::USR1);
    zero_daemon.says("Connected to node 1").await;
    importer.holds(&handle).await.unwrap();

    one_daemon.signal(Signal::USR1);
    one_daemon.says("Restarting all outgoing connections").await;
    importer.holds(&handle).await.unwrap();
    importer.import(&handle).await.unwrap();
    one_daemon.signal(Signal::USR1);
    one_daemon.says("the signal is dropped").await;
}

#[tokio::test]
async fn after_an_unclean_end_a_daemon_waits_for_its_importers() {
    let rack = Rack::new();
    let (zero, one, mut zero_daemon, mut one_daemon) = connected_pair(&rack).await;
    let mut exporter = zero.process(1);
    let handle = exporter.export().await.unwrap();
    let mut importer = one.process(1);
    importer.import(&handle).await.unwrap();

    zero_daemon.signal(Signal::KILL);
    zero_daemon.exit().await;
    one_daemon.signal(Signal::TERM);
    one_daemon.exit().await;
    let mut again = zero.start();
    again.says("Waiting for node 1, which held imports from this node").await;
    assert_eq!(zero.query().await, "WAITING_FOR_RECOVERY\n");
    assert_eq!(code(zero.process(1).export()).await, 801);
    let mut one_again = one.start();
    one_again.ready().await;
    again.ready().await;
}

#[tokio::test]
async fn the_tool_reports_states_and_the_domain() {
    let rack = Rack::new();
    let (zero, one) = (rack.node(0), rack.node(1));
    for node in [&zero, &one] {
        node.map("rack-00\nrack-01\n");
    }
    let port = TcpListener::bind((zero.address.as_str(), 0)).unwrap().local_addr().unwrap().port().to_string();
    let settings = [("IMEX_CMD_PORT", &*port)];
    let (mut zero_daemon, mut one_daemon) = (zero.start_with(&settings), one.start_with(&settings));
    zero_daemon.says("Connected to node 1").await;
    one_daemon.says("Connected to node 0").await;
    zero_daemon.ready().await;
    one_daemon.ready().await;

    let json = String::from_utf8(zero.ctl(&["-N", "-j", "-c", &zero.config()]).await.stdout).unwrap();
    assert!(json.ends_with("\"status\":\"UP\"}\n"), "{json}");
    let table = String::from_utf8(zero.ctl(&["-N", "-c", &zero.config()]).await.stdout).unwrap();
    assert!(table.contains("Domain State: UP"), "{table}");
    assert_eq!(zero.ctl(&["-q", "-i", &one.address, &port]).await.stdout, b"READY\n");

    // What a supervisor is told until the daemon's end.
    let mut follow = Command::new(PROGRAM)
        .args(["nvidia-imex-ctl", "-s", &format!("--u={}", one.socket())])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("READY"));
    one_daemon.signal(Signal::TERM);
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("SHUTTING_DOWN"));
    assert_eq!(lines.next_line().await.unwrap(), None);
    assert!(follow.wait().await.unwrap().success());

    one_daemon.exit().await;
    let json = String::from_utf8(zero.ctl(&["-N", "-j", "-c", &zero.config()]).await.stdout).unwrap();
    assert!(json.contains(r#""1":{"status":"UNAVAILABLE""#), "{json}");
    assert!(json.ends_with("\"status\":\"DEGRADED\"}\n"), "{json}");
    std::fs::remove_file(zero.os.join("nodes.cfg")).unwrap();
    let missing = zero.ctl(&["-N", "-c", &zero.config()]).await;
    assert!(String::from_utf8_lossy(&missing.stderr).contains("Failed to read node configuration file"));
}
