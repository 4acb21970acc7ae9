//! Controllers as processes of their own, and the record of what they ask of the API.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use heddle_actors::{controller, lease, runtime};
use heddle_core::identity::Agents;
use heddle_core::lease::Terms;
use heddle_core::names;
use heddle_integration::api::{ApiServer, Listening, User, Verb};
use k8s_openapi::api::coordination::v1::Lease;
use kube::config::Kubeconfig;
use kube::core::Status;
use kube::{Api, Client, Config};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use crate::cluster::Cluster;

const API: &str = "HEDDLE_TEST_KUBECONFIG";
const NAME: &str = "HEDDLE_TEST_NAME";
const METRICS: &str = "HEDDLE_TEST_METRICS";
const DURATION: &str = "HEDDLE_TEST_LEASE_SECONDS";

/// What [`Replica::start`] starts; a test of nothing otherwise.
#[test]
fn a_controller_s_own_process() {
    let Some(kubeconfig) = std::env::var_os(API) else { return };
    let text = |name: &str| std::env::var(name).unwrap();
    let (name, metrics) = (text(NAME), text(METRICS).parse().unwrap());
    let duration: u32 = text(DURATION).parse().unwrap();
    runtime::block_on(async move {
        let config = Kubeconfig::read_from(kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
        let signer = controller::Signer {
            namespace: "heddle".into(),
            agents: Agents { namespace: "heddle".into(), service_account: "heddle-agent".into() },
            longest: 3600,
        };
        let election = controller::Election {
            namespace: "heddle".into(),
            identity: lease::identity(&name),
            terms: Terms::new(duration, duration / 3).unwrap(),
        };
        let settings = controller::Settings {
            client: Client::try_from(config).unwrap(),
            requests: Default::default(),
            metrics: Some(metrics),
            driver_match: Default::default(),
            signer: Some(signer),
            election: Some(election),
        };
        controller::run(settings, runtime::signals()).await.unwrap();
    });
}

/// A place for controllers: the API on a socket, and a look at all that they send.
pub struct Replicas {
    server: ApiServer,
    client: Client,
    listening: Listening,
    folder: tempfile::TempDir,
    duration: u32,
    sent: Arc<Mutex<Vec<Sent>>>,
    denied: Arc<Mutex<BTreeSet<(String, String)>>>,
}

/// A write as it arrived.
#[derive(Clone, Debug)]
struct Sent {
    at: Instant,
    /// The last version then.
    version: u64,
    who: String,
    what: String,
}

const LEASES: &str = "leases";

impl Sent {
    fn is_of_lease(&self) -> bool {
        self.what.starts_with(LEASES)
    }
}

/// One controller.
pub struct Replica {
    pub name: String,
    child: Child,
    metrics: SocketAddr,
}

impl Replicas {
    /// With leases of so many seconds.
    pub async fn new(cluster: &Cluster, duration: u32) -> Self {
        let (server, client) = (cluster.server.clone(), cluster.client.clone());
        let listening = server.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let (sent, denied) = (Arc::<Mutex<Vec<Sent>>>::default(), Arc::<Mutex<BTreeSet<(String, String)>>>::default());
        let (log, deny, at) = (sent.clone(), denied.clone(), server.clone());
        server.fail_requests(move |request| {
            let who = request.user.username.strip_prefix("system:serviceaccount:heddle:")?.to_owned();
            if who == names::AGENT {
                return None;
            }
            let refused = |plural: &str| deny.lock().unwrap().contains(&(who.clone(), plural.to_owned()));
            let refused = refused(&request.plural) || refused("");
            if !matches!(request.verb, Verb::Get | Verb::List | Verb::Watch) {
                let what = format!("{} {:?} {:?}", request.plural, request.verb, request.name);
                let sent = Sent { at: Instant::now(), version: at.resource_version(), who, what };
                log.lock().unwrap().push(sent);
            }
            refused.then(|| Status::failure("away", "ServiceUnavailable").with_code(503))
        });
        Self { server, client, listening, folder: tempfile::tempdir().unwrap(), duration, sent, denied }
    }

    pub async fn start(&self, name: &str) -> Replica {
        let path = self.folder.path().join(format!("{name}.json"));
        let user = User::service_account("heddle", name, None);
        let config = self.server.kubeconfig_of(&self.listening, user);
        std::fs::write(&path, serde_json::to_string(&config).unwrap()).unwrap();
        // Freed at once, for the process to take.
        let metrics = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let log = std::fs::File::create(self.folder.path().join(format!("{name}.log"))).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "replica::a_controller_s_own_process", "--nocapture"])
            .env(API, path)
            .env(NAME, name)
            .env(METRICS, metrics.to_string())
            .env(DURATION, self.duration.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Replica { name: name.into(), child, metrics }
    }

    /// Lets writes of a controller to this kind of object fail, or, with nothing named, all that it asks.
    pub fn deny(&self, replica: &Replica, plural: &str) {
        self.denied.lock().unwrap().insert((replica.name.clone(), plural.into()));
    }

    pub fn allow_all(&self) {
        self.denied.lock().unwrap().clear();
    }

    /// The name of who holds the Lease now.
    pub async fn holder(&self) -> Option<String> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), "heddle");
        let holder = api.get_opt("heddle-controller").await.unwrap()?.spec?.holder_identity?;
        holder.split_once('_').map(|(name, _)| name.to_owned())
    }

    /// Known failure 851. Every write came from whom the Lease named at that moment, within its time.
    pub fn check(&self) {
        let mut holders: Vec<(u64, String)> = Vec::new();
        let mut history = self.server.history();
        while let Some(change) = history.try_next().unwrap() {
            if change.kind() == "Lease" {
                let holder = change.object()["spec"]["holderIdentity"].as_str().unwrap_or_default();
                let name = holder.split_once('_').map_or(holder, |(name, _)| name);
                holders.push((change.resource_version, name.to_owned()));
            }
        }
        let sent = self.sent.lock().unwrap();
        let duration = Duration::from_secs(self.duration.into());
        for (at, write) in sent.iter().enumerate().filter(|(_, write)| !write.is_of_lease()) {
            let last = holders.iter().rev().find(|(version, _)| *version <= write.version);
            let Some((renewal, holder)) = last else { panic!("nobody leads yet: {write:?}") };
            assert_eq!(*holder, write.who, "{write:?}");
            let renewed =
                sent[..at].iter().rev().find(|s| s.is_of_lease() && s.who == write.who && s.version < *renewal);
            let age = write.at.duration_since(renewed.unwrap().at);
            assert!(age <= duration, "{age:?} after the last renewal: {write:?}");
        }
        let writers: BTreeSet<_> = sent.iter().filter(|sent| !sent.is_of_lease()).map(|sent| &sent.who).collect();
        assert!(!writers.is_empty(), "there was nothing to look at");
    }

    /// Who has written anything but the Lease.
    pub fn writers(&self) -> BTreeSet<String> {
        let sent = self.sent.lock().unwrap();
        sent.iter().filter(|sent| !sent.is_of_lease()).map(|sent| sent.who.clone()).collect()
    }
}

impl Replica {
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().unwrap().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Ends it as the kubelet does.
    pub async fn stop(mut self) {
        self.signal(Signal::TERM);
        assert!(self.child.wait().await.unwrap().success());
    }

    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// What it answers at a path of its metrics' address; nothing before it listens.
    pub async fn get(&self, path: &str) -> Option<String> {
        let mut stream = tokio::net::TcpStream::connect(self.metrics).await.ok()?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        Some(answer)
    }
}
