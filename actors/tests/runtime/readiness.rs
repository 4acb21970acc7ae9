//! Readiness, metrics and the endpoint that shows them.

use std::net::SocketAddr;
use std::time::Duration;

use heddle_actors::runtime::{Backoff, Restart, Runtime, Spec, Turn, block_on};
use prometheus_client::metrics::gauge::Gauge;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::probe::{Log, act, alone, count, fails, panics, paused, start};

fn gating() -> Spec {
    Spec { gates_readiness: true, ..Spec::default() }
}

#[test]
fn the_process_is_ready_when_all_who_gate_it_have_said_so() {
    paused(async {
        let runtime = Runtime::new();
        let log = Log::default();
        let readiness = runtime.readiness();
        assert!(readiness.is_ready(), "nobody gates it");
        let api = readiness.handle("api");
        let one = start(&runtime.root(), "one", &log, Spec { name: "a".into(), ..gating() });
        let two = start(&runtime.root(), "two", &log, gating());
        assert_eq!(readiness.waiting(), ["Probe", "Probe/a", "api"]);
        api.ready();
        two.tell(act(|_, cx| cx.ready()));
        two.ask(count).await.unwrap();
        assert_eq!(readiness.waiting(), ["Probe/a"]);
        one.tell(act(|_, cx| cx.ready()));
        one.ask(count).await.unwrap();
        assert!(readiness.is_ready());
        one.tell(panics());
        one.ask(count).await.unwrap();
        assert!(readiness.is_ready(), "a restart is not the end of being ready");
    });
}

#[test]
fn case_40_who_waits_for_its_turn_is_not_built_and_does_not_hold_up_readiness() {
    paused(async {
        let (runtime, log, turn) = (Runtime::new(), Log::default(), Turn::default());
        let readiness = runtime.readiness();
        let late = start(&runtime.root(), "late", &log, Spec { after: Some(turn.clone()), ..gating() });
        late.tell(act(|_, cx| cx.ready()));
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(readiness.is_ready() && log.lines().is_empty());
        turn.begin();
        late.ask(count).await.unwrap();
        assert_eq!((log.lines(), readiness.is_ready()), (vec!["late started".to_owned()], true));

        let never = start(&runtime.root(), "never", &log, Spec { after: Some(Turn::default()), ..gating() });
        runtime.run(std::future::ready(())).await.unwrap();
        assert!(never.is_stopped(), "the end of the process does not wait for a turn");
    });
}

#[test]
fn who_ends_on_purpose_is_not_waited_for_and_who_gives_up_is() {
    paused(async {
        let runtime = Runtime::new();
        let log = Log::default();
        let readiness = runtime.readiness();
        let done = start(&runtime.root(), "done", &log, Spec { name: "done".into(), ..gating() });
        let scope = runtime.root().child("scope");
        let restart = Restart { max: 0, within: Duration::from_secs(1), backoff: Backoff::default() };
        let weak = start(&scope, "weak", &log, Spec { name: "weak".into(), restart, ..gating() });
        done.tell(act(|_, cx| cx.stop()));
        weak.tell(fails());
        while !(done.is_stopped() && weak.is_stopped()) {
            tokio::task::yield_now().await;
        }
        tokio::task::yield_now().await;
        assert_eq!(readiness.waiting(), ["Probe/weak"]);
    });
}

#[test]
fn every_actor_shows_its_metrics_without_a_line_of_its_own() {
    paused(async {
        let (runtime, probe, _) = alone();
        probe.tell(panics());
        probe.ask(count).await.unwrap();
        let gauge = Gauge::<i64>::default();
        runtime.metrics().register(|registry| registry.register("slots", "Slots on offer", gauge.clone()));
        gauge.set(16);
        let text = runtime.metrics().encode().unwrap();
        for series in [
            "heddle_build_info{version=\"",
            "heddle_actor_message_seconds_count{actor=\"Probe\",message=\"Do\"} 2\n",
            "heddle_actor_message_seconds_bucket{le=\"0.001\",actor=\"Probe\",message=\"Do\"}",
            "heddle_actor_queue_seconds_count{actor=\"Probe\",message=\"Do\"} 2\n",
            "heddle_actor_restarts_total{actor=\"Probe\",cause=\"panic\"} 1\n",
            "heddle_actor_restarts_total{actor=\"Probe\",cause=\"error\"} 0\n",
            "heddle_actor_restarts_total{actor=\"Probe\",cause=\"stall\"} 0\n",
            "heddle_actor_restarts_total{actor=\"Probe\",cause=\"effect\"} 0\n",
            "heddle_actor_mailbox_depth{actor=\"Probe\"} 0\n",
            "heddle_actor_last_progress_age_seconds{actor=\"Probe\"} 0.0\n",
            "heddle_slots 16\n",
        ] {
            assert!(text.contains(series), "{series} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    });
}

#[test]
fn an_actor_that_does_not_get_to_its_messages_shows_their_age() {
    paused(async {
        let runtime = Runtime::new();
        let log = Log::default();
        let backoff = Backoff { min: Duration::from_secs(100), max: Duration::from_secs(100) };
        let restart = Restart { max: 5, within: Duration::from_secs(1000), backoff };
        let probe = start(&runtime.root(), "probe", &log, Spec { restart, ..Spec::default() });
        probe.tell(fails());
        probe.tell(act(|_, _| ()));
        tokio::time::sleep(Duration::from_secs(20)).await;
        let name = "heddle_actor_last_progress_age_seconds{actor=\"Probe\"}";
        let age = crate::probe::series(&runtime, name).unwrap();
        assert!((20.0..21.0).contains(&age), "{age}");
    });
}

async fn get(addr: SocketAddr, path: &str) -> (u16, String) {
    get_as(addr, path, "*/*").await
}

async fn get_as(addr: SocketAddr, path: &str, accept: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    let status = response.split(' ').nth(1).unwrap().parse().unwrap();
    (status, response.split_once("\r\n\r\n").unwrap().1.to_owned())
}

#[test]
fn the_endpoint_tells_what_is_missing() {
    block_on(async {
        let runtime = Runtime::new();
        let log = Log::default();
        let addr = runtime.serve(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let probe = start(&runtime.root(), "probe", &log, gating());
        assert_eq!(get(addr, "/readyz").await, (503, "not ready: Probe\n".into()));
        assert_eq!(get(addr, "/livez").await, (200, "alive\n".into()));
        probe.tell(act(|_, cx| cx.ready()));
        probe.ask(count).await.unwrap();
        assert_eq!(get(addr, "/readyz").await, (200, "ready\n".into()));
        let (status, text) = get(addr, "/metrics").await;
        assert_eq!(status, 200);
        assert!(text.contains("heddle_actor_mailbox_depth{actor=\"Probe\"} 0"), "{text}");
        assert!(text.contains("# TYPE heddle_actor_restarts_total counter"), "the older format: {text}");
        assert!(!text.contains("# EOF") && text.contains("# TYPE heddle_build_info gauge"), "{text}");
        // As Prometheus asks.
        let accept = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5";
        let (_, text) = get_as(addr, "/metrics", accept).await;
        assert!(text.ends_with("# EOF\n") && text.contains("# TYPE heddle_build info"), "{text}");
        runtime.readiness().drain();
        assert_eq!(get(addr, "/readyz").await, (503, "not ready: shutting down\n".into()));
        probe.tell(crate::probe::attempt(|_, _| Err(heddle_core::fault::Fault::fatal("Broken", "it is broken"))));
        runtime.root().ended().await;
        assert_eq!(get(addr, "/livez").await, (503, "not alive: it is broken\n".into()));
        runtime.run(std::future::pending()).await.unwrap_err();
        assert!(TcpStream::connect(addr).await.is_err(), "the endpoint ends with the runtime");
    });
}
