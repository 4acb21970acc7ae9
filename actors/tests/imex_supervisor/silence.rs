//! A runner that is there and does not do what it should, in the words of a fake one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use heddle_core::imex::node_map_hash;
use heddle_proto::runner::runner_server::{Runner, RunnerServer};
use heddle_proto::runner::{ApplyRequest, GetRequest, RenewRequest, State, StopRequest, WatchRequest};
use tokio::sync::watch;
use tokio_stream::wrappers::{UnixListenerStream, WatchStream};
use tonic::{Request, Response, Status};

use crate::rig::{Rig, run, view};

/// Says what the test says, whatever it is told.
struct Fake {
    state: watch::Receiver<State>,
    applied: Arc<AtomicU32>,
}

impl Fake {
    fn start(rig: &Rig, state: State) -> (watch::Sender<State>, Arc<AtomicU32>) {
        let (says, heard) = watch::channel(state);
        let applied = Arc::<AtomicU32>::default();
        let fake = Self { state: heard, applied: applied.clone() };
        std::fs::create_dir_all(rig.root.path().join("run")).unwrap();
        let listener = tokio::net::UnixListener::bind(rig.root.path().join("run/runner.sock")).unwrap();
        let server = tonic::transport::Server::builder().add_service(RunnerServer::new(fake));
        tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
        (says, applied)
    }

    fn now(&self) -> Result<Response<State>, Status> {
        Ok(Response::new(self.state.borrow().clone()))
    }
}

#[tonic::async_trait]
impl Runner for Fake {
    async fn get(&self, _: Request<GetRequest>) -> Result<Response<State>, Status> {
        self.now()
    }

    type WatchStream = futures::stream::BoxStream<'static, Result<State, Status>>;

    async fn watch(&self, _: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(WatchStream::new(self.state.clone()).map(Ok).boxed()))
    }

    async fn apply(&self, _: Request<ApplyRequest>) -> Result<Response<State>, Status> {
        self.applied.fetch_add(1, Ordering::Relaxed);
        self.now()
    }

    async fn renew(&self, _: Request<RenewRequest>) -> Result<Response<State>, Status> {
        self.now()
    }

    async fn stop(&self, _: Request<StopRequest>) -> Result<Response<State>, Status> {
        self.now()
    }
}

/// READY in domain `d`, as [`view`] has it.
fn ready() -> State {
    let domain = view("d", 1, 0);
    let wanted = heddle_core::imex::desired(&domain.node, domain.domain.as_deref()).unwrap();
    State {
        contract: 4,
        domain: "d".into(),
        daemon_state: "READY".into(),
        daemon_index: Some(1),
        daemon_pid: 1,
        node_map_sha256: node_map_hash(&wanted.node_map),
        starts: 1,
        ..State::default()
    }
}

/// Its beats are so far apart that a test never misses one.
const NEVER: u32 = 3_600_000;

#[test]
fn a_runner_that_hangs_is_not_ready_and_is_again_when_it_is_heard_again() {
    run(async {
        let mut rig = Rig::new();
        rig.see(view("d", 1, 0));
        let (says, _) = Fake::start(&rig, State { beat_ms: NEVER, beats: 1, ..ready() });
        rig.until_ready_in("d").await;
        rig.usable.wait_for(|usable| usable.as_ref().is_some_and(|usable| usable.usable)).await.unwrap();

        // It takes connections, and tells its last state to whoever comes.
        says.send_replace(State { beat_ms: 20, beats: 2, ..ready() });
        let why = rig.until_not_ready("has said nothing for").await;
        assert!(why.contains("runner.sock"), "{why}");
        rig.status.wait_for(|status| status.state == "UNAVAILABLE").await.unwrap();
        rig.usable.wait_for(|usable| usable.as_ref().is_some_and(|usable| !usable.usable)).await.unwrap();
        assert_eq!(rig.asked.get(), 0, "nobody is to end anything for it");

        says.send_replace(State { beat_ms: NEVER, beats: 3, ..ready() });
        rig.until_ready_in("d").await;
        rig.status.wait_for(|status| status.state == "READY").await.unwrap();
    });
}

#[test]
fn a_runner_of_before_may_be_silent() {
    run(async {
        let mut rig = Rig::new();
        rig.see(view("d", 1, 0));
        let (says, _) = Fake::start(&rig, State { contract: 3, ..ready() });
        rig.until_ready_in("d").await;
        says.send_replace(State { contract: 3, daemon_state: "UNAVAILABLE".into(), ..ready() });
        rig.until_not_ready("UNAVAILABLE").await;
    });
}

#[test]
fn a_runner_that_says_yes_and_does_nothing_is_told_again_after_a_pause() {
    run(async {
        let rig = Rig::new();
        let begun = Instant::now();
        rig.see(view("d", 1, 0));
        let (_says, applied) =
            Fake::start(&rig, State { contract: 4, daemon_state: "DOWN".into(), ..State::default() });
        while applied.load(Ordering::Relaxed) < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(begun.elapsed() >= Duration::from_secs(1), "two pauses are between three orders");
    });
}
