//! An agent of the first release with a runner of today: its requests have fewer fields, and it knows of fewer answers.

use heddle_proto::runner::first::runner_client::RunnerClient;
use heddle_proto::runner::first::{ApplyRequest, DomainConfig, GetRequest, Host, State, StopRequest, WatchRequest};
use tonic::Code;
use tonic::transport::Endpoint;

use crate::rig::{Node, is_alive, may_isolate};

fn first(config: heddle_proto::runner::DomainConfig) -> DomainConfig {
    let host = |host: heddle_proto::runner::Host| Host { address: host.address, name: host.name };
    DomainConfig {
        domain: config.domain,
        node_map: config.node_map,
        index: config.index,
        hosts: config.hosts.into_iter().map(host).collect(),
        settings: config.settings,
    }
}

async fn until_ready(client: &mut RunnerClient<tonic::transport::Channel>) -> State {
    let mut states = client.watch(WatchRequest {}).await.unwrap().into_inner();
    loop {
        let state = states.message().await.unwrap().expect("the watch goes on");
        if state.daemon_state == "READY" && state.daemon_index.is_some() {
            return state;
        }
    }
}

#[tokio::test]
async fn an_agent_of_the_first_release_is_served() {
    if !may_isolate() {
        return;
    }
    let mut node = Node::new();
    let mut today = node.start().await;
    let endpoint = Endpoint::from_shared(format!("unix://{}", node.socket().display())).unwrap();
    let mut client = RunnerClient::new(endpoint.connect().await.unwrap());

    let config = first(node.domain(None));
    let apply =
        |config: &DomainConfig, no_claims_prepared| ApplyRequest { config: Some(config.clone()), no_claims_prepared };
    client.apply(apply(&config, false)).await.unwrap();
    let ready = until_ready(&mut client).await;
    assert_eq!((ready.domain.as_str(), ready.daemon_index, ready.starts), ("d", Some(0), 1));
    assert_eq!(ready.node_map_sha256, heddle_core::imex::node_map_hash(&config.node_map));

    // What it says again, or with other hosts, disturbs nobody.
    let mut elsewhere = config.clone();
    elsewhere.hosts[1].address = "127.0.0.99".into();
    let state = client.apply(apply(&elsewhere, false)).await.unwrap().into_inner();
    assert_eq!((state.daemon_pid, state.starts), (ready.daemon_pid, 1));
    // It vouches for nothing, so nothing ends.
    let other = DomainConfig { domain: "e".into(), ..config };
    assert_eq!(client.apply(apply(&other, false)).await.unwrap_err().code(), Code::FailedPrecondition);
    let stop = client.stop(StopRequest { no_claims_prepared: false }).await.unwrap_err();
    assert_eq!(stop.code(), Code::FailedPrecondition);

    // The agent is updated: the daemon runs on, and the new one knows what it is.
    let state = today.state().await;
    assert_eq!((state.daemon_pid, state.domain.as_str(), state.identity.as_str()), (ready.daemon_pid, "d", ""));

    client.stop(StopRequest { no_claims_prepared: true }).await.unwrap();
    assert_eq!(client.get(GetRequest {}).await.unwrap().into_inner().daemon_state, "DOWN");
    assert!(!is_alive(ready.daemon_pid));
}
