//! `--peer-authentication files` and `gss` from the agent's actors down to daemons that speak TLS.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use heddle_actors::channel_allocator::{self, Ready};
use heddle_actors::identity::{Authority, new_key, request};
use heddle_actors::imex_supervisor::{self, HostImex, ImexSupervisor};
use heddle_actors::node_link::DomainView;
use heddle_actors::peer_identity::{FilesSettings, PeerFiles};
use heddle_actors::runtime::{Actor, Addr, Cx, Runtime, Scope, Spec, block_on};
use heddle_core::api::{DaemonStatus, IMEXDomain, IMEXDomainSpec, IMEXNode, IMEXNodeSpec, ImexMode, Member};
use heddle_core::condition::Draft;
use heddle_core::fault::Fault;
use heddle_core::identity::Authentication;
use heddle_core::imex::Standing;
use heddle_core::inventory::{Fabric, Inventory};
use heddle_core::runtime_guard::Guard;
use tokio::sync::watch;

use crate::rack::{PATIENCE, Rack, imported};
use crate::runner::Member as Runner;

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// A folder as the kubelet makes it of a Secret: all files change at once, by a link.
struct Secret {
    folder: PathBuf,
    version: u32,
}

impl Secret {
    fn mount(folder: PathBuf) -> Self {
        fs::create_dir_all(&folder).unwrap();
        for name in ["tls.crt", "tls.key", "ca.crt"] {
            symlink(Path::new("..data").join(name), folder.join(name)).unwrap();
        }
        Self { folder, version: 0 }
    }

    fn put(&mut self, files: &[(&str, &str)]) {
        self.version += 1;
        let name = format!("..2026_11_30.{}", self.version);
        fs::create_dir(self.folder.join(&name)).unwrap();
        for (file, text) in files {
            fs::write(self.folder.join(&name).join(file), text).unwrap();
        }
        symlink(&name, self.folder.join("..data_tmp")).unwrap();
        fs::rename(self.folder.join("..data_tmp"), self.folder.join("..data")).unwrap();
        let before = self.folder.join(format!("..2026_11_30.{}", self.version - 1));
        if before.exists() {
            fs::remove_dir_all(before).unwrap();
        }
    }

    /// What cert-manager writes: a leaf with the authority in a file of its own.
    fn issue(&mut self, authority: &Authority, seconds: u32, made: i64) -> i64 {
        let key = new_key().unwrap();
        let chain = authority.sign(&request("rack", &key).unwrap(), seconds, made).unwrap();
        self.put(&[("tls.crt", &chain), ("tls.key", &key), ("ca.crt", authority.certificate_pem())]);
        made + i64::from(seconds)
    }
}

/// Lets every daemon be ended.
struct Allocator;

impl Actor for Allocator {
    const KIND: &'static str = "Allocator";
    type Message = channel_allocator::Message;

    fn handle(&mut self, message: Self::Message, _: &mut Cx<'_, Self>) -> Result<(), Fault> {
        if let channel_allocator::Message::Suspend { reply } = message {
            reply.send(Ok(()));
        }
        Ok(())
    }
}

/// The part of a node's agent that deals with its daemon, and a runner with a daemon.
struct Node {
    runner: Runner,
    secret: Secret,
    supervisor: Addr<imex_supervisor::Message>,
    ready: watch::Receiver<Option<Ready>>,
    status: watch::Receiver<DaemonStatus>,
    condition: watch::Receiver<Option<Draft>>,
    _scope: Scope,
}

impl Node {
    async fn start(runtime: &Runtime, rack: &Rack, index: u8, authentication: Authentication) -> Self {
        let runner = Runner::start(rack, index).await;
        let os = &runner.node.os;
        let secret = Secret::mount(os.join("secret"));
        let scope = runtime.root().child(&format!("n{index}"));
        let (say_ready, ready) = watch::channel(None);
        let (say_status, status) = watch::channel(DaemonStatus::default());
        let (say_condition, condition) = watch::channel(None);
        let allocator = scope.supervise(Spec::default(), || Ok(Allocator));
        let settings = imex_supervisor::Settings {
            socket: os.join("runner/runner.sock"),
            host: HostImex::at(os),
            standing: Some(Standing::settled(ImexMode::DriverManaged)),
            allocator,
            authentication,
            status: Rc::new(move |status| drop(say_status.send(status))),
            ready: Rc::new(move |ready| drop(say_ready.send(Some(ready)))),
            usable: Rc::new(|_| {}),
            running: Rc::new(|_| {}),
        };
        let supervisor = scope.supervise(Spec::default(), move || Ok(ImexSupervisor::new(settings.clone())));
        if authentication == Authentication::Files {
            let to = supervisor.clone();
            let files = FilesSettings {
                folder: secret.folder.clone(),
                identities: Rc::new(move |said| to.tell(imex_supervisor::Message::Identities(said))),
                condition: Rc::new(move |said| drop(say_condition.send(Some(said)))),
            };
            scope.supervise(Spec::default(), move || Ok(PeerFiles::new(files.clone())));
        }
        supervisor.tell(imex_supervisor::Message::Guard(Guard::Off));
        let clique = "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.7".parse().unwrap();
        let inventory = Inventory { fabric: Fabric::Ready(clique), ..Default::default() };
        supervisor.tell(imex_supervisor::Message::Inventory(inventory));
        supervisor.tell(imex_supervisor::Message::MaySwitch(Ok(())));
        supervisor.tell(imex_supervisor::Message::View(view(rack, index)));
        Self { runner, secret, supervisor, ready, status, condition, _scope: scope }
    }

    async fn ready(&mut self) {
        let fits = |ready: &Option<Ready>| ready.as_ref().is_some_and(Result::is_ok);
        let waited = tokio::time::timeout(PATIENCE, self.ready.wait_for(fits)).await.map(|found| found.is_ok());
        assert_eq!(waited.ok(), Some(true), "never READY: {:?}", *self.ready.borrow());
    }

    async fn not_ready(&mut self, says: &str) {
        let fits = |ready: &Option<Ready>| matches!(ready, Some(Err(why)) if why.contains(says));
        let waited = tokio::time::timeout(PATIENCE, self.ready.wait_for(fits)).await.map(|found| found.is_ok());
        assert_eq!(waited.ok(), Some(true), "never {says:?}: {:?}", *self.ready.borrow());
    }

    async fn condition(&mut self, status: &str, says: &str) {
        let fits = |said: &Option<Draft>| said.as_ref().is_some_and(|s| s.status == status && s.message.contains(says));
        let waited = tokio::time::timeout(PATIENCE, self.condition.wait_for(fits)).await.map(|found| found.is_ok());
        assert_eq!(waited.ok(), Some(true), "never {says:?}: {:?}", *self.condition.borrow());
    }

    /// Waits until the daemon shows a certificate that is valid until then.
    async fn shows_until(&mut self, seconds: i64) {
        let until = jiff::Timestamp::from_second(seconds).unwrap().to_string();
        let fits = |s: &DaemonStatus| s.certificate_not_after.as_ref() == Some(&until);
        let waited = tokio::time::timeout(PATIENCE, self.status.wait_for(fits)).await.map(|found| found.is_ok());
        assert_eq!(waited.ok(), Some(true), "never until {until}: {:?}", *self.status.borrow());
    }
}

/// Both nodes of the rack in the domain `d`.
fn view(rack: &Rack, index: u8) -> DomainView {
    let member = |index: u8| Member { index: index.into(), address: rack.address(index), away: false };
    let members: BTreeMap<String, Member> = (0..2).map(|index| (format!("n{index}"), member(index))).collect();
    let spec = IMEXDomainSpec { clique: "c".into(), max_members: 2, members, ..Default::default() };
    let node = IMEXNodeSpec { domain: Some("d".into()), ..Default::default() };
    DomainView {
        node: Arc::new(IMEXNode::new(&format!("n{index}"), node)),
        domain: Some(Arc::new(IMEXDomain::new("d", spec))),
    }
}

fn run(test: impl Future<Output = ()>) {
    block_on(async { tokio::time::timeout(PATIENCE * 3, test).await.expect("the test hangs") });
}

#[test]
fn a_secret_is_shown_and_its_rotation_taken_up_without_a_lost_connection() {
    run(async {
        let (rack, runtime) = (Rack::new(), Runtime::new());
        let authority = Authority::new("rack", "", now()).unwrap();
        let mut zero = Node::start(&runtime, &rack, 0, Authentication::Files).await;
        let mut one = Node::start(&runtime, &rack, 1, Authentication::Files).await;
        zero.condition("False", "tls.crt cannot be read").await;
        zero.not_ready("tls.crt cannot be read").await;
        assert_eq!(zero.runner.log("IMEX Log initializing"), 0, "no daemon runs that would take anybody");
        // Mounted after the agents have come.
        for node in [&mut zero, &mut one] {
            let until = node.secret.issue(&authority, 3600, now());
            node.ready().await;
            node.shows_until(until).await;
            node.condition("True", "rack.peer.imex.heddle.dev until").await;
        }
        zero.runner.connected().await;
        one.runner.connected().await;
        let (_exporter, handle, mut importer) = imported(&zero.runner.node, &one.runner.node).await;

        for node in [&mut zero, &mut one] {
            let until = node.secret.issue(&authority, 7200, now());
            node.shows_until(until).await;
            node.runner.says("Restarting all outgoing connections", 1).await;
        }
        importer.holds(&handle).await.unwrap();
        zero.runner.node.sees(0, 1, "CONNECTED").await;
        one.runner.node.sees(1, 0, "CONNECTED").await;
        importer.import(&handle).await.unwrap();
        for node in [zero, one] {
            assert_eq!(node.runner.log("IMEX Log initializing"), 1, "it has not been restarted");
            node.runner.stop().await;
        }
    });
}

#[test]
fn files_that_cannot_be_used_are_told_and_the_daemon_goes_on() {
    run(async {
        let (rack, runtime) = (Rack::new(), Runtime::new());
        let authority = Authority::new("rack", "", now() - 9000).unwrap();
        let mut zero = Node::start(&runtime, &rack, 0, Authentication::Files).await;
        let until = zero.secret.issue(&authority, 3600, now());
        zero.ready().await;
        zero.shows_until(until).await;

        let good = || {
            let key = new_key().unwrap();
            (authority.sign(&request("rack", &key).unwrap(), 3600, now()).unwrap(), key)
        };
        let (chain, key) = good();
        let ca = authority.certificate_pem();
        let stranger = Authority::new("rack", "", now()).unwrap();
        let cases: [(&[(&str, &str)], &str); 5] = [
            (&[("tls.crt", "garbage"), ("tls.key", &key), ("ca.crt", ca)], "cannot be used"),
            (&[("tls.crt", &chain), ("tls.key", &good().1), ("ca.crt", ca)], "of another key"),
            (&[("tls.crt", &chain), ("tls.key", &key), ("ca.crt", stranger.certificate_pem())], "has signed"),
            (&[("tls.crt", &chain), ("ca.crt", ca)], "tls.key cannot be read"),
            (&[("tls.crt", "\u{0}\u{1}"), ("tls.key", ""), ("ca.crt", "")], "cannot be used"),
        ];
        for (files, says) in cases {
            zero.secret.put(files);
            zero.condition("False", says).await;
        }
        zero.secret.issue(&authority, 3600, now() - 7200);
        zero.condition("False", "it is valid from").await;
        assert!(zero.ready.borrow().as_ref().unwrap().is_ok(), "what the daemon has is valid");
        assert_eq!(zero.runner.log("Restarting all outgoing connections"), 0, "it was not told to read them");
        let again = zero.secret.issue(&authority, 7200, now());
        zero.shows_until(again).await;
        zero.condition("True", "until").await;
        assert_eq!(zero.runner.log("IMEX Log initializing"), 1);
        zero.runner.stop().await;
    });
}

#[test]
fn kerberos_is_asked_for_and_what_this_fake_says_of_it_is_told() {
    run(async {
        let (rack, runtime) = (Rack::new(), Runtime::new());
        let mut zero = Node::start(&runtime, &rack, 0, Authentication::Gss).await;
        // The fake has no Kerberos, and says so as a daemon that cannot authenticate: by ending.
        zero.not_ready("this fake has no GSS").await;
        let config = fs::read_to_string(zero.runner.node.config()).unwrap();
        for line in [
            "IMEX_ENABLE_AUTH_ENCRYPTION=1",
            "IMEX_AUTH_ENCRYPTION_MODE=GSS_AUTH_ENCRYPT",
            "IMEX_GSS_SHUTDOWN_ON_FAILURE=0",
            "IMEX_GSS_TIMEOUT_SEC=30",
        ] {
            assert!(config.lines().any(|found| found == line), "{line} in {config}");
        }
        assert!(!config.contains("IMEX_SERVER_KEY"), "{config}");
        zero.supervisor.tell(imex_supervisor::Message::MaySwitch(Ok(())));
        zero.runner.stop().await;
    });
}
