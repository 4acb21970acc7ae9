use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use heddle_core::fault::Fault;
use heddle_core::imex::{Identity, patience};
use heddle_proto::runner::runner_client::RunnerClient;
use heddle_proto::runner::{self, ApplyRequest, DomainConfig, Host, RenewRequest, State, StopRequest, WatchRequest};
use inotify::{Inotify, WatchMask};
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use super::message::{Message, Stepped};
use crate::cause::innermost;
use crate::channel_allocator;
use crate::runtime::Addr;

/// Pauses between attempts to reach a runner whose socket does not appear.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How long a runner may take for its first word.
const FIRST_WORD: Duration = Duration::from_secs(5);
/// How long it may take for what it is asked: to end a daemon, above all.
const ANSWER: Duration = Duration::from_secs(30);

/// Reaches the runner, tells what it says, and begins anew when it is gone, for ever.
pub(super) async fn run(socket: PathBuf, address: Addr<Message>) -> Result<(), Fault> {
    let (mut pause, mut silent) = (RETRY_MIN, None);
    loop {
        // Before the attempt, so that a socket that appears in between is not missed.
        let appears = folder_changes(&socket);
        let lost = match connect(&socket).await {
            Ok(client) => {
                let (met, lost) = follow(client, &address, &mut silent).await;
                if met {
                    pause = RETRY_MIN;
                }
                lost
            }
            Err(error) => error,
        };
        address.tell(Message::Lost(format!("the IMEX runner cannot be reached at {}: {lost}", socket.display())));
        match appears {
            Some(mut changes) => {
                let _ = tokio::time::timeout(pause, changes.next()).await;
            }
            None => tokio::time::sleep(pause).await,
        }
        pause = (pause * 2).min(RETRY_MAX);
    }
}

async fn connect(socket: &Path) -> Result<RunnerClient<Channel>, String> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).map_err(|error| error.to_string())?;
    // The transport's own text says little ("transport error"); what is under it says what is wrong.
    let channel = endpoint.connect().await.map_err(|error| innermost(&error))?;
    Ok(RunnerClient::new(channel))
}

/// Tells every state until the stream ends or what is at its other end falls silent; whether it was heard at all, and why no
/// more. One that hangs takes connections and says its last state: `silent` is its beat, after which it must come to another.
async fn follow(
    mut client: RunnerClient<Channel>,
    address: &Addr<Message>,
    silent: &mut Option<u64>,
) -> (bool, String) {
    let mut met = false;
    let mut states = match tokio::time::timeout(FIRST_WORD, client.watch(WatchRequest {})).await {
        Ok(Ok(response)) => response.into_inner(),
        Ok(Err(status)) => return (met, status.message().to_owned()),
        Err(_) => return (met, nothing_for(FIRST_WORD)),
    };
    let (mut limit, mut beats) = (Some(FIRST_WORD), *silent);
    loop {
        let told = match limit {
            Some(limit) => tokio::time::timeout(limit, states.message()).await,
            None => Ok(states.message().await),
        };
        match told {
            Ok(Ok(Some(state))) => {
                (limit, beats) = (patience(state.beat_ms), Some(state.beats));
                if silent.is_some() && *silent == beats {
                    continue;
                }
                *silent = None;
                if !met {
                    address.tell(Message::Connected(client.clone()));
                    met = true;
                }
                address.tell(Message::State(Box::new(state)));
            }
            Ok(Ok(None)) => return (met, "it has ended".into()),
            Ok(Err(status)) => return (met, status.message().to_owned()),
            Err(_) => {
                *silent = beats;
                return (met, nothing_for(limit.unwrap_or_default()));
            }
        }
    }
}

fn nothing_for(limit: Duration) -> String {
    format!("it is there and has said nothing for {limit:?}")
}

/// What the runner answers, within its limit.
async fn answer(asked: impl Future<Output = Result<Response<State>, Status>>) -> Result<State, Status> {
    let late = |_| Status::deadline_exceeded(format!("the IMEX runner has not answered within {ANSWER:?}"));
    tokio::time::timeout(ANSWER, asked).await.map_err(late)?.map(Response::into_inner)
}

/// What happens in the socket's folder, if that can be watched.
fn folder_changes(socket: &Path) -> Option<inotify::EventStream<[u8; 1024]>> {
    let inotify = Inotify::init().ok()?;
    inotify.watches().add(socket.parent()?, WatchMask::CREATE | WatchMask::MOVED_TO).ok()?;
    inotify.into_event_stream([0; 1024]).ok()
}

/// What to give the runner.
pub(super) enum Order {
    /// A domain, and the identity to show in it.
    Serve(heddle_core::imex::DomainConfig, Option<Arc<Identity>>),
    /// Nothing to serve.
    Stop,
}

/// Gives the runner a configuration, or ends the daemon. If a daemon may end by it, the allocator must agree first,
/// and grants nothing until it hears of the daemon again.
pub(super) async fn apply(
    mut client: RunnerClient<Channel>,
    allocator: Addr<channel_allocator::Message>,
    order: Order,
    disruptive: bool,
) -> Stepped {
    if disruptive {
        match allocator.ask(|reply| channel_allocator::Message::Suspend { reply }).await {
            Ok(Ok(())) => {}
            Ok(Err(why)) => return Stepped::Held(why),
            Err(error) => return Stepped::Failed(error.to_string()),
        }
    }
    let (answered, config) = match order {
        Order::Serve(config, identity) => {
            let identity = identity.map(|identity| shown(&identity, &config.domain));
            let request = ApplyRequest { config: Some(to_proto(&config)), no_claims_prepared: disruptive, identity };
            (answer(client.apply(request)).await, Some(config))
        }
        Order::Stop => (answer(client.stop(StopRequest { no_claims_prepared: disruptive })).await, None),
    };
    match (answered, config) {
        (Ok(state), config) => Stepped::Applied(config.map(Box::new), Box::new(state)),
        (Err(status), Some(config)) if status.code() == tonic::Code::FailedPrecondition && !disruptive => {
            Stepped::Refused(Box::new(config))
        }
        (Err(status), _) => Stepped::Failed(status.message().to_owned()),
    }
}

/// Gives the daemon of `domain` another certificate.
pub(super) async fn renew(mut client: RunnerClient<Channel>, domain: String, identity: Arc<Identity>) -> Stepped {
    let identity = Some(shown(&identity, &domain));
    match answer(client.renew(RenewRequest { identity })).await {
        Ok(state) => Stepped::Renewed(Box::new(state)),
        Err(status) => Stepped::Failed(status.message().to_owned()),
    }
}

fn shown(identity: &Identity, domain: &str) -> runner::Identity {
    runner::Identity {
        domain: domain.to_owned(),
        certificate_pem: identity.certificate_pem.clone(),
        key_pem: identity.key_pem.clone(),
        ca_pem: identity.authority_pem.clone(),
        name: identity.name.clone(),
        not_after_unix: identity.not_after,
    }
}

fn to_proto(config: &heddle_core::imex::DomainConfig) -> DomainConfig {
    let host = |(address, name): &(String, String)| Host { address: address.clone(), name: name.clone() };
    DomainConfig {
        domain: config.domain.clone(),
        node_map: config.node_map.clone(),
        index: config.index,
        hosts: config.hosts.iter().map(host).collect(),
        settings: config.settings.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
    }
}
