//! Daemons that the host runs: as the agent asks them, and as they stand in the way of a runner's.

use std::net::TcpListener;
use std::rc::Rc;
use std::time::Duration;

use heddle_actors::channel_allocator::{self, Ready};
use heddle_actors::host_root::HostRoot;
use heddle_actors::imex_supervisor::{self, HostImex, HostTiming, ImexSupervisor};
use heddle_actors::runtime::{Actor, Cx, Runtime, Scope, Spec, block_on};
use heddle_core::api::{DaemonStatus, ImexMode};
use heddle_core::fault::Fault;
use heddle_core::identity::Authentication;
use heddle_core::imex::{Standing, shared_domain_name};
use heddle_core::inventory::{Fabric, Inventory};
use heddle_core::runtime_guard::Guard;
use rustix::process::Signal;
use tokio::sync::watch;

use crate::rack::{Node, PATIENCE, Rack};
use crate::runner::{Member, install};

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
struct Asking {
    ready: watch::Receiver<Option<Ready>>,
    status: watch::Receiver<DaemonStatus>,
    _scope: Scope,
}

fn clique() -> heddle_core::clique::CliqueId {
    "0b6fbb2e-7b1a-4a5c-9a53-6f3f5dfb2a11.7".parse().unwrap()
}

impl Asking {
    fn start(runtime: &Runtime, node: &Node) -> Self {
        install(node);
        let scope = runtime.root().child(&node.address);
        let (say_ready, ready) = watch::channel(None);
        let (say_status, status) = watch::channel(DaemonStatus::default());
        let allocator = scope.supervise(Spec::default(), || Ok(Allocator));
        let often = Duration::from_millis(20);
        let host = HostImex {
            driver_root: node.os.join("driver"),
            enter: Vec::new(),
            build: node.os.join("none"),
            control_socket: node.socket().into(),
            // The fake's configuration names its files by their whole paths.
            host: HostRoot::new("/"),
            config: node.config(),
            addresses: vec![node.address.parse().unwrap()],
            runner_socket: node.os.join("none"),
            timing: HostTiming { limit: PATIENCE, not_ready: often, ready: often, files: often },
        };
        let settings = imex_supervisor::Settings {
            socket: node.os.join("none"),
            host,
            standing: Some(Standing::settled(ImexMode::HostManaged)),
            allocator,
            authentication: Authentication::DomainCa,
            status: Rc::new(move |status| drop(say_status.send(status))),
            ready: Rc::new(move |ready| drop(say_ready.send(Some(ready)))),
            usable: Rc::new(|_| {}),
            running: Rc::new(|_| {}),
        };
        let supervisor = scope.supervise(Spec::default(), move || Ok(ImexSupervisor::new(settings.clone())));
        supervisor.tell(imex_supervisor::Message::Guard(Guard::Off));
        let inventory = Inventory { fabric: Fabric::Ready(clique()), ..Default::default() };
        supervisor.tell(imex_supervisor::Message::Inventory(inventory));
        Self { ready, status, _scope: scope }
    }

    async fn until(&mut self, what: &str, fits: impl Fn(&DaemonStatus) -> bool) -> DaemonStatus {
        let waited = tokio::time::timeout(PATIENCE, self.status.wait_for(fits)).await.map(|found| found.is_ok());
        assert_eq!(waited.ok(), Some(true), "never {what}: {:?}", *self.status.borrow());
        self.status.borrow().clone()
    }
}

#[test]
fn daemons_of_their_hosts_are_asked_by_their_sockets_and_their_maps_compared() {
    block_on(async {
        let (rack, runtime) = (Rack::new(), Runtime::new());
        let (zero, one) = (rack.node(0), rack.node(1));
        for node in [&zero, &one] {
            node.map(&format!("{}\n{}\n", rack.address(0), rack.address(1)));
        }
        let (mut daemon, mut other) = (zero.start(), one.start());
        daemon.ready().await;
        other.ready().await;
        let (mut first, mut second) = (Asking::start(&runtime, &zero), Asking::start(&runtime, &one));
        let told = first.until("connected", |status| status.peers_connected == 1).await;
        assert_eq!((told.state.as_str(), told.index, told.message), ("READY", Some(0), None));
        assert_eq!(told.domain, Some(shared_domain_name(&clique())));
        assert_eq!(told.version, heddle_integration::imex::VERSION);
        let same = second.until("connected", |status| status.peers_connected == 1).await;
        assert_eq!((same.index, &same.node_map_hash), (Some(1), &told.node_map_hash));
        assert!(told.node_map_hash.is_some());
        let ready = first.ready.wait_for(Option::is_some).await.unwrap().clone().unwrap();
        assert_eq!(ready, Ok(shared_domain_name(&clique())));

        daemon.signal(Signal::TERM);
        assert_eq!(daemon.exit().await, Some(0));
        let gone = first.until("gone", |status| status.state == "UNAVAILABLE").await;
        assert!(gone.message.unwrap().contains("has no control socket at"));
        second.until("alone", |status| status.state == "READY" && status.peers_connected == 0).await;
        let _daemon = zero.start();
        first.until("back", |status| status.state == "READY" && status.peers_connected == 1).await;
    });
}

#[tokio::test]
async fn issue_524_and_aicr_2520_a_runner_beside_a_hosts_daemon_waits_until_that_has_ended() {
    let rack = Rack::new();
    let host = rack.node(0);
    let free = TcpListener::bind((host.address.as_str(), 0)).unwrap().local_addr().unwrap().port().to_string();
    let socket = host.os.join("run/host.sock").display().to_string();
    let mut daemon = host.start_with(&[("SERVER_PORT", &free), ("IMEX_CMD_UNIX_DOMAIN_PATH", &socket)]);
    daemon.ready().await;
    std::fs::remove_file(host.config()).unwrap();

    let mut member = Member::start(&rack, 0).await;
    member.serve_with(None).await;
    let state = member.until("in use", |state| state.message.contains("NV_ERR_IN_USE")).await;
    assert_eq!(state.daemon_state, "DOWN");
    let seen = host.ctl(&["-q", "-u", &socket]).await;
    assert_eq!(
        String::from_utf8_lossy(&seen.stdout),
        "READY\n",
        "the host's own is left alone, and not taken for ours"
    );
    daemon.signal(Signal::TERM);
    daemon.exit().await;
    member.ready().await;
    member.stop().await;
}
