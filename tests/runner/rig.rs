//! A node with a runner.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use heddle_integration::driver_root;
use heddle_integration::imex::os::{OS_ENV, Os};
use heddle_integration::imex::scenario::Scenario;
use heddle_proto::runner::runner_client::RunnerClient;
use heddle_proto::runner::{ApplyRequest, DomainConfig, GetRequest, Host, Identity, State, StopRequest};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

pub const HEDDLE: &str = env!("CARGO_BIN_EXE_heddle");
/// Major number of the nodes' channels.
pub const MAJOR: u32 = 506;
/// Only a test that fails waits for so long.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// The driver root that all tests share; nobody writes to it.
pub static DRIVER_ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("driver-root");
    let _ = fs::remove_dir_all(&root);
    driver_root::make(Path::new(HEDDLE), &root).unwrap();
    fs::write(root.join("etc/driver-release"), "of the driver root\n").unwrap();
    root
});

/// Whether this machine lets a test make mount namespaces. Continuous integration does.
pub fn may_isolate() -> bool {
    let may = driver_root::may_isolate(Path::new(HEDDLE));
    if let Err(why) = &may {
        eprintln!("not tested: {why}");
    }
    may.is_ok()
}

/// A driver root whose programs start here, and in their own root too.
pub fn programs_of_either_root() -> TempDir {
    let folder = TempDir::new_in(DRIVER_ROOT.parent().unwrap()).unwrap();
    driver_root::share(&DRIVER_ROOT, folder.path()).unwrap();
    let libraries = folder.path().join(driver_root::LIBRARIES);
    let mut names = fs::read_dir(&libraries).unwrap().map(|entry| entry.unwrap().file_name());
    let loader = names.find(|name| name.to_string_lossy().starts_with("fake-loader")).unwrap();
    let usual = if cfg!(target_arch = "x86_64") { "ld-linux-x86-64.so.2" } else { "ld-linux-aarch64.so.1" };
    symlink(loader, libraries.join(usual)).unwrap();
    for name in ["usr/bin/nvidia-imex", "usr/bin/nvidia-imex-ctl"] {
        fs::remove_file(folder.path().join(name)).unwrap();
        fs::hard_link(HEDDLE, folder.path().join(name)).unwrap();
    }
    folder
}

/// A node's files, and its runner while one runs.
pub struct Node {
    pub folder: TempDir,
    pub driver_root: PathBuf,
    network: String,
    index: u8,
    port: u16,
    runner: Option<Child>,
}

impl Node {
    pub fn new() -> Self {
        Self::pair().0
    }

    /// Two of one domain.
    pub fn pair() -> (Self, Self) {
        static LAST: AtomicU8 = AtomicU8::new(1);
        let network = format!("127.{}.{}", 50 + std::process::id() % 50, LAST.fetch_add(1, Ordering::Relaxed));
        let port = std::net::TcpListener::bind((format!("{network}.1"), 0)).unwrap().local_addr().unwrap().port();
        let node = |index| Self::make(network.clone(), index, port);
        (node(0), node(1))
    }

    fn make(network: String, index: u8, port: u16) -> Self {
        let folder = TempDir::with_prefix("node").unwrap();
        let driver_root = DRIVER_ROOT.clone();
        let node = Self { folder, driver_root, network, index, port, runner: None };
        for name in ["etc", "net", "proc", "run", "imex"] {
            fs::create_dir_all(node.os().join(name)).unwrap();
        }
        fs::write(node.os().join("proc/devices"), format!("Character devices:\n{MAJOR} nvidia-caps-imex-channels\n"))
            .unwrap();
        fs::write(node.os().join("net/addresses"), node.address(index)).unwrap();
        symlink("/etc/hosts", node.os().join("etc/hosts")).unwrap();
        symlink("/run/nvidia-imex", node.os().join("run/nvidia-imex")).unwrap();
        node
    }

    pub fn os(&self) -> PathBuf {
        self.folder.path().join("os")
    }

    /// The runner's folder.
    pub fn dir(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    pub fn socket(&self) -> PathBuf {
        self.dir().join("runner.sock")
    }

    fn address(&self, index: u8) -> String {
        format!("{}.{}", self.network, index + 1)
    }

    pub fn own_address(&self) -> String {
        self.address(self.index)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn scenario(&self, scenario: &Scenario) {
        scenario.write(&Os::at(self.os())).unwrap();
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// What all runners of the node and their daemons have said.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_file()).unwrap_or_default()).into_owned()
    }

    pub fn arguments(&self) -> Vec<String> {
        let words = [
            ("--dir", self.dir()),
            ("--driver-root", self.driver_root.clone()),
            ("--daemon-sees", self.os()),
            ("--socket", self.socket()),
        ];
        let words = words.into_iter().flat_map(|(flag, path)| [flag.to_owned(), path.display().to_string()]);
        ["imex-runner".to_owned()]
            .into_iter()
            .chain(words)
            .chain(["--peer-port".into(), self.port.to_string()])
            .collect()
    }

    /// The same for a runner on the node itself.
    pub fn plain_arguments(&self) -> Vec<String> {
        let words = ["--isolation", "none", "--hosts-file"].map(str::to_owned);
        let hosts = self.os().join("etc/hosts").display().to_string();
        let mut arguments = self.arguments();
        let sees = arguments.iter().position(|word| word == "--daemon-sees").unwrap();
        arguments.drain(sees..sees + 2);
        arguments.into_iter().chain(words).chain([hosts]).collect()
    }

    /// Starts a runner, by way of another command where one is given.
    pub async fn start_by(&mut self, command: &[&str], arguments: &[String]) -> Client {
        let socket = self.socket();
        self.start_at(command, arguments, &socket).await
    }

    /// The same for a socket of another place.
    pub async fn start_at(&mut self, command: &[&str], arguments: &[String], socket: &Path) -> Client {
        let log = File::options().create(true).append(true).open(self.log_file()).unwrap();
        self.spawn(command, arguments, log.into());
        Client::connect(socket).await
    }

    /// Starts a runner whose log goes there.
    pub fn spawn(&mut self, command: &[&str], arguments: &[String], log: Stdio) {
        let words: Vec<_> = command.iter().copied().chain([HEDDLE]).collect();
        let runner = Command::new(words[0])
            .args(&words[1..])
            .args(arguments)
            .env(OS_ENV, self.os())
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.runner = Some(runner);
    }

    pub async fn start(&mut self) -> Client {
        self.start_by(&[], &self.arguments()).await
    }

    /// How the runner has ended; none while it has not.
    pub fn runner_ended(&mut self) -> Option<ExitStatus> {
        self.runner.as_mut().unwrap().try_wait().unwrap()
    }

    pub fn runner_pid(&self) -> u32 {
        self.runner.as_ref().unwrap().id()
    }

    /// Ends the runner without warning.
    pub fn kill_runner(&mut self) {
        let mut runner = self.runner.take().unwrap();
        runner.kill().unwrap();
        runner.wait().unwrap();
    }

    /// Ends it in good order, and the daemon with it.
    pub fn stop_runner(&mut self) {
        let mut runner = self.runner.take().unwrap();
        kill(runner.id(), Signal::TERM);
        runner.wait().unwrap();
    }

    /// The domain of the pair; the other node is at `peer`, which is where it is if nothing is given.
    pub fn domain(&self, peer: Option<&str>) -> DomainConfig {
        let other = peer.map_or_else(|| self.address(1 - self.index), str::to_owned);
        let host = |index: u8| Host {
            address: if index == self.index { self.own_address() } else { other.clone() },
            name: format!("heddle-x-0{index}"),
        };
        DomainConfig {
            domain: "d".into(),
            node_map: "heddle-x-00\nheddle-x-01\n".into(),
            index: self.index.into(),
            hosts: vec![host(0), host(1)],
            settings: [("BIND_INTERFACE_IP".to_owned(), self.own_address())].into(),
        }
    }

    /// Waits until the log has a text so often.
    pub async fn says(&self, text: &str, times: usize) {
        until(&format!("{text:?} {times} times"), || self.log().matches(text).count() >= times, || self.log()).await;
    }

    /// A file as the daemon sees it.
    pub fn seen(&self, pid: u32, path: &str) -> String {
        fs::read_to_string(format!("/proc/{pid}/root{path}")).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let Some(mut runner) = self.runner.take() else { return };
        // The daemon ends with it.
        let _ = kill_process(Pid::from_child(&runner), Signal::TERM);
        let _ = runner.wait();
    }
}

/// The agent's side.
pub struct Client(RunnerClient<Channel>);

impl Client {
    pub async fn connect(socket: &Path) -> Self {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
        let begun = Instant::now();
        loop {
            // One that answers: a socket may be left over.
            if let Ok(channel) = endpoint.connect().await {
                let mut client = RunnerClient::new(channel);
                if client.get(GetRequest {}).await.is_ok() {
                    return Self(client);
                }
            }
            assert!(begun.elapsed() < PATIENCE, "no runner at {}", socket.display());
            tokio::time::sleep(PAUSE).await;
        }
    }

    pub async fn apply(&mut self, config: DomainConfig, no_claims_prepared: bool) -> Result<State, Status> {
        let request = ApplyRequest { config: Some(config), no_claims_prepared, identity: None };
        self.0.apply(request).await.map(tonic::Response::into_inner)
    }

    pub async fn apply_as(&mut self, config: DomainConfig, identity: Identity, no_claims_prepared: bool) -> State {
        let request = ApplyRequest { config: Some(config), no_claims_prepared, identity: Some(identity) };
        self.0.apply(request).await.unwrap().into_inner()
    }

    pub async fn state(&mut self) -> State {
        self.0.get(GetRequest {}).await.unwrap().into_inner()
    }

    pub async fn until(&mut self, what: &str, fits: impl Fn(&State) -> bool) -> State {
        let begun = Instant::now();
        loop {
            let state = self.state().await;
            if fits(&state) {
                return state;
            }
            assert!(begun.elapsed() < PATIENCE, "never {what}: {state:?}");
            tokio::time::sleep(PAUSE).await;
        }
    }

    pub async fn ready(&mut self) -> State {
        self.until("READY", |state| state.daemon_state == "READY" && state.daemon_index.is_some()).await
    }

    /// The word that nothing may be ended is kept: a claim is prepared, or there is no agent to say that none is.
    pub async fn refuses_to_end(&mut self, node: &Node) {
        let stop = self.0.stop(StopRequest { no_claims_prepared: false }).await.unwrap_err();
        assert_eq!(stop.code(), Code::FailedPrecondition);
        let other = DomainConfig { domain: "e".into(), ..node.domain(None) };
        assert_eq!(self.apply(other, false).await.unwrap_err().code(), Code::FailedPrecondition);
    }
}

pub fn kill(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

pub fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

pub async fn until(what: &str, fits: impl Fn() -> bool, else_say: impl Fn() -> String) {
    let begun = Instant::now();
    while !fits() {
        assert!(begun.elapsed() < PATIENCE, "never {what}: {}", else_say());
        tokio::time::sleep(PAUSE).await;
    }
}
