//! What its daemon shows its peers.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::StreamExt;
use heddle_actors::imex_supervisor::Message;
use heddle_actors::peer_identity::Identities;
use heddle_core::identity::Authentication;
use heddle_core::imex::Identity;
use heddle_proto::runner::runner_server::{self, RunnerServer};
use heddle_proto::runner::{ApplyRequest, GetRequest, RenewRequest, State, StopRequest, WatchRequest};

use crate::rig::{Rig, run, view};

fn identity(domain: &str, serial: u32, not_after: i64) -> Identities {
    let pem = format!("-----BEGIN {serial}-----\n");
    let identity = Identity {
        name: format!("{domain}.peer.imex.heddle.dev"),
        certificate_pem: pem.clone(),
        key_pem: pem.clone(),
        authority_pem: pem,
        not_after,
    };
    Identities { of_domains: [(domain.to_owned(), Arc::new(identity))].into(), ..Identities::default() }
}

fn missing(domain: &str, why: &str) -> Identities {
    Identities { missing: [(domain.to_owned(), why.to_owned())].into(), ..Identities::default() }
}

const FUTURE: i64 = 4_000_000_000;

#[test]
fn a_daemon_waits_for_its_identity_and_is_told_of_another_without_a_restart() {
    run(async {
        let mut rig = Rig::with(Authentication::DomainCa);
        let runner = rig.start_runner();
        rig.see(view("d", 1, 0));
        rig.supervisor.tell(Message::Identities(missing("d", "request r waits for the controller to sign it")));
        rig.until_not_ready("request r waits for the controller").await;
        assert_eq!(rig.starts(), 0, "no daemon runs without one");
        rig.supervisor.tell(Message::Identities(identity("d", 1, FUTURE)));
        rig.until_ready_in("d").await;
        let before = rig.runner_state().await;
        let until = rig.status.wait_for(|status| status.certificate_not_after.is_some()).await.unwrap().clone();
        assert_eq!(until.certificate_not_after.as_deref(), Some("2096-10-02T07:06:40Z"));

        rig.may_switch(Err("1 claims are prepared on this node"));
        rig.supervisor.tell(Message::Identities(identity("d", 2, FUTURE + 1)));
        let renewed = loop {
            let state = rig.runner_state().await;
            if state.identity_not_after_unix == FUTURE + 1 {
                break state;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        assert_eq!((renewed.daemon_pid, renewed.starts), (before.daemon_pid, 1));

        // The signer away is nobody's end: what the daemon shows is valid, also for an agent that has lost its own copy.
        rig.restart_agent();
        rig.may_switch(Err("1 claims are prepared on this node"));
        rig.see(view("d", 1, 0));
        rig.supervisor.tell(Message::Identities(missing("d", "the signer is away")));
        rig.until_ready_in("d").await;
        runner.stop().await;
    });
}

#[test]
fn a_certificate_that_has_expired_is_said_and_a_clock_that_jumps_stops_no_daemon() {
    run(async {
        let mut rig = Rig::with(Authentication::DomainCa);
        let runner = rig.start_runner();
        rig.see(view("d", 1, 0));
        // As after a jump of the clock beyond its end.
        rig.supervisor.tell(Message::Identities(identity("d", 1, 1_000_000_000)));
        rig.until_ready_in("d").await;
        let before = rig.runner_state().await;
        rig.may_switch(Err("1 claims are prepared on this node"));
        rig.supervisor.tell(Message::Identities(missing("d", "the signer is away")));
        rig.until_not_ready("has expired: the signer is away").await;
        // And back, or with a certificate that is valid after it.
        rig.supervisor.tell(Message::Identities(identity("d", 2, FUTURE)));
        rig.until_ready_in("d").await;
        let after = rig.runner_state().await;
        assert_eq!((after.daemon_pid, after.starts), (before.daemon_pid, 1));
        runner.stop().await;
    });
}

#[test]
fn going_over_to_authenticated_peers_waits_for_the_claims() {
    run(async {
        let (mut rig, runner) = Rig::serving().await;
        let before = rig.runner_state().await;
        rig.authentication = Authentication::DomainCa;
        rig.restart_agent();
        rig.may_switch(Err("1 claims are prepared on this node"));
        rig.see(view("d", 1, 0));
        rig.supervisor.tell(Message::Identities(identity("d", 1, FUTURE)));
        rig.until_not_ready("takes peers without a certificate").await;
        assert_eq!(rig.runner_state().await.daemon_pid, before.daemon_pid);
        rig.may_switch(Ok(()));
        rig.until_ready_in("d").await;
        let after = rig.runner_state().await;
        assert_eq!((after.starts, after.identity.as_str()), (2, "d.peer.imex.heddle.dev"));
        runner.stop().await;
    });
}

/// A runner of before: it serves a domain, and knows of no identities.
struct OldRunner(Arc<AtomicU32>);

impl OldRunner {
    fn state() -> State {
        State {
            contract: 1,
            domain: "d".into(),
            daemon_state: "READY".into(),
            daemon_index: Some(1),
            ..State::default()
        }
    }
}

#[tonic::async_trait]
impl runner_server::Runner for OldRunner {
    async fn get(&self, _: tonic::Request<GetRequest>) -> Result<tonic::Response<State>, tonic::Status> {
        Ok(tonic::Response::new(Self::state()))
    }

    type WatchStream = futures::stream::BoxStream<'static, Result<State, tonic::Status>>;

    async fn watch(
        &self,
        _: tonic::Request<WatchRequest>,
    ) -> Result<tonic::Response<Self::WatchStream>, tonic::Status> {
        let once = futures::stream::iter([Ok(Self::state())]);
        Ok(tonic::Response::new(once.chain(futures::stream::pending()).boxed()))
    }

    async fn apply(&self, _: tonic::Request<ApplyRequest>) -> Result<tonic::Response<State>, tonic::Status> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(tonic::Response::new(Self::state()))
    }

    async fn renew(&self, _: tonic::Request<RenewRequest>) -> Result<tonic::Response<State>, tonic::Status> {
        Err(tonic::Status::unimplemented("Renew"))
    }

    async fn stop(&self, _: tonic::Request<StopRequest>) -> Result<tonic::Response<State>, tonic::Status> {
        Err(tonic::Status::failed_precondition("no"))
    }
}

#[test]
fn a_runner_that_is_too_old_is_left_alone_and_said() {
    run(async {
        let mut rig = Rig::with(Authentication::DomainCa);
        fs::create_dir_all(rig.root.path().join("run")).unwrap();
        let applied = Arc::default();
        let listener = tokio::net::UnixListener::bind(rig.root.path().join("run/runner.sock")).unwrap();
        let connections = tokio_stream::wrappers::UnixListenerStream::new(listener);
        let server =
            tonic::transport::Server::builder().add_service(RunnerServer::new(OldRunner(Arc::clone(&applied))));
        let server = tokio::spawn(server.serve_with_incoming(connections));
        rig.see(view("d", 1, 0));
        rig.supervisor.tell(Message::Identities(identity("d", 1, FUTURE)));
        rig.until_not_ready("update the imex-runner DaemonSet").await;
        assert_eq!(applied.load(Ordering::Relaxed), 0, "its daemon is not touched");
        // Where peers are not authenticated it serves as before.
        rig.authentication = Authentication::Insecure;
        rig.restart_agent();
        rig.see(view("d", 1, 0));
        rig.until_not_ready("another node map").await;
        while applied.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        server.abort();
    });
}

#[test]
fn a_certificate_of_another_name_waits_for_the_claims_and_then_restarts_the_daemon() {
    run(async {
        let mut rig = Rig::with(Authentication::Files);
        let runner = rig.start_runner();
        rig.see(view("d", 1, 0));
        let named = |name: &str, serial: u32| {
            let identity = identity("d", serial, FUTURE).of("d").unwrap().clone();
            let identity = Identity { name: name.into(), ..(*identity).clone() };
            Message::Identities(Identities { of_all: Some(Arc::new(identity)), ..Identities::default() })
        };
        rig.supervisor.tell(named("one.example", 1));
        rig.until_ready_in("d").await;
        rig.may_switch(Err("1 claims are prepared on this node"));
        rig.supervisor.tell(named("two.example", 2));
        rig.until_not_ready("shows its peers the name one.example, not two.example").await;
        assert_eq!(rig.starts(), 1);
        rig.may_switch(Ok(()));
        rig.until_ready_in("d").await;
        assert_eq!((rig.starts(), rig.runner_state().await.identity.as_str()), (2, "two.example"));
        runner.stop().await;
    });
}
