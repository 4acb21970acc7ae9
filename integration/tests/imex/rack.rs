//! Nodes that daemons run on, each a folder with an address of the loopback network.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use heddle_integration::imex::cuda::{Cuda, CudaError, Handle};
use heddle_integration::imex::os::{OS_ENV, Os};
use heddle_integration::imex::scenario::Scenario;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_fake-nvidia-imex");
const MAJOR: u32 = 506;
/// The address of names without a node: nobody listens there.
pub const SENTINEL: &str = "127.255.255.254";
/// Only a test that fails waits for so long.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Nodes with one port and an address each, so that tests and runs do not meet.
pub struct Rack {
    pub folder: TempDir,
    network: String,
    pub port: u16,
}

impl Rack {
    pub fn new() -> Self {
        static LAST: AtomicU8 = AtomicU8::new(1);
        let network = format!("127.{}.{}", 100 + std::process::id() % 100, LAST.fetch_add(1, Ordering::Relaxed));
        let port = TcpListener::bind((format!("{network}.1"), 0)).unwrap().local_addr().unwrap().port();
        Self { folder: TempDir::with_prefix("imex").unwrap(), network, port }
    }

    pub fn address(&self, node: u8) -> String {
        format!("{}.{}", self.network, node + 1)
    }

    /// A simulated OS with a map of three names, of which the last has no node.
    pub fn node(&self, node: u8) -> Node {
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

pub struct Node {
    pub address: String,
    pub port: u16,
    pub os: PathBuf,
}

impl Node {
    pub fn hosts(&self, entries: &[(&str, &str)]) {
        let text: String = entries.iter().map(|(address, name)| format!("{address}\t{name}\n")).collect();
        std::fs::write(self.os.join("etc/hosts"), text).unwrap();
    }

    pub fn map(&self, text: &str) {
        std::fs::write(self.os.join("nodes.cfg"), text).unwrap();
    }

    pub fn socket(&self) -> String {
        self.os.join("run/imex.sock").display().to_string()
    }

    pub fn config(&self) -> String {
        self.os.join("imexd.cfg").display().to_string()
    }

    pub fn start(&self) -> Daemon {
        self.start_with(&[])
    }

    pub fn start_with(&self, settings: &[(&str, &str)]) -> Daemon {
        self.start_as(&[], settings, &[])
    }

    /// With arguments, with settings beside the usual ones, and with variables in the environment.
    pub fn start_as(&self, arguments: &[&str], settings: &[(&str, &str)], environment: &[(&str, &str)]) -> Daemon {
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
            .args(arguments)
            .env(OS_ENV, &self.os)
            .envs(environment.iter().copied())
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

    pub async fn ctl(&self, args: &[&str]) -> Output {
        Command::new(PROGRAM).arg("nvidia-imex-ctl").args(args).env(OS_ENV, &self.os).output().await.unwrap()
    }

    pub async fn query(&self) -> String {
        let output = self.ctl(&["-q", "-u", &self.socket()]).await;
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// What the node says of its connections, in the order of the map.
    pub async fn row(&self, own: usize) -> Vec<String> {
        let output = self.ctl(&["-N", "-j", "-c", &self.config()]).await;
        let domain: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let connections = domain["nodes"][own.to_string()]["connections"].as_object().unwrap();
        (0..connections.len()).map(|id| connections[&id.to_string()]["status"].as_str().unwrap().to_owned()).collect()
    }

    /// What is to go wrong from now on, or at the next start.
    pub fn scenario(&self, scenario: &Scenario) {
        scenario.write(&Os::at(&self.os)).unwrap();
    }

    /// A look at a connection, again and again until it stands like this.
    pub async fn sees(&self, own: usize, peer: usize, state: &str) {
        let seen = async { while self.row(own).await[peer] != state {} };
        let waited = tokio::time::timeout(PATIENCE, seen).await;
        assert!(waited.is_ok(), "{:?}", self.row(own).await);
    }

    /// A container with this channel.
    pub fn process(&self, channel: u32) -> Cuda {
        Cuda::open(&self.os, (MAJOR, channel)).unwrap()
    }
}

pub struct Daemon {
    pub child: Child,
    said: watch::Receiver<String>,
}

impl Daemon {
    /// Waits until the log has this text.
    pub async fn says(&mut self, text: &str) {
        let waited = tokio::time::timeout(PATIENCE, self.said.wait_for(|log| log.contains(text))).await;
        let found = waited.is_ok_and(|found| found.is_ok());
        assert!(found, "{text:?} is not in the log:\n{}", *self.said.borrow());
    }

    pub async fn ready(&mut self) {
        self.says("IMEX state is now READY").await;
    }

    /// All that has been said until now.
    pub fn log(&self) -> String {
        self.said.borrow().clone()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id().unwrap().cast_signed()).unwrap(), signal).unwrap();
    }

    pub async fn exit(&mut self) -> Option<i32> {
        tokio::time::timeout(PATIENCE, self.child.wait()).await.unwrap().unwrap().code()
    }
}

/// The code of a call that must fail.
pub async fn code<T: std::fmt::Debug>(call: impl Future<Output = Result<T, CudaError>>) -> u32 {
    call.await.unwrap_err().code
}

/// A process of each node; what the first one's exports, by its handle, the second one's has imported.
pub async fn imported(from: &Node, by: &Node) -> (Cuda, Handle, Cuda) {
    let (mut exporter, mut importer) = (from.process(1), by.process(1));
    let handle = exporter.export().await.unwrap();
    importer.import(&handle).await.unwrap();
    (exporter, handle, importer)
}

pub async fn connected_pair(rack: &Rack) -> (Node, Node, Daemon, Daemon) {
    connected_pair_with(rack, &[]).await
}

pub async fn connected_pair_with(rack: &Rack, settings: &[(&str, &str)]) -> (Node, Node, Daemon, Daemon) {
    let (zero, one) = (rack.node(0), rack.node(1));
    let (mut zero_daemon, mut one_daemon) = (zero.start_with(settings), one.start_with(settings));
    zero_daemon.says("Connected to node 1").await;
    one_daemon.says("Connected to node 0").await;
    zero_daemon.ready().await;
    one_daemon.ready().await;
    (zero, one, zero_daemon, one_daemon)
}
