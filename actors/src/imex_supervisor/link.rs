use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use heddle_core::fault::Fault;
use heddle_core::imex::Identity;
use heddle_proto::runner::runner_client::RunnerClient;
use heddle_proto::runner::{self, ApplyRequest, DomainConfig, Host, RenewRequest, StopRequest, WatchRequest};
use inotify::{Inotify, WatchMask};
use tonic::transport::{Channel, Endpoint};

use super::message::{Message, Stepped};
use crate::cause::innermost;
use crate::channel_allocator;
use crate::runtime::Addr;

/// Pauses between attempts to reach a runner whose socket does not appear.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Reaches the runner, tells what it says, and begins anew when it is gone, for ever.
pub(super) async fn run(socket: PathBuf, address: Addr<Message>) -> Result<(), Fault> {
    let mut pause = RETRY_MIN;
    loop {
        // Before the attempt, so that a socket that appears in between is not missed.
        let appears = folder_changes(&socket);
        let lost = match connect(&socket).await {
            Ok(client) => {
                pause = RETRY_MIN;
                address.tell(Message::Connected(client.clone()));
                follow(client, &address).await
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

/// Tells every state until the stream ends; why it did.
async fn follow(mut client: RunnerClient<Channel>, address: &Addr<Message>) -> String {
    let mut states = match client.watch(WatchRequest {}).await {
        Ok(response) => response.into_inner(),
        Err(status) => return status.message().to_owned(),
    };
    loop {
        match states.message().await {
            Ok(Some(state)) => address.tell(Message::State(Box::new(state))),
            Ok(None) => return "it has ended".into(),
            Err(status) => return status.message().to_owned(),
        }
    }
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
    let (answer, config) = match order {
        Order::Serve(config, identity) => {
            let identity = identity.map(|identity| shown(&identity, &config.domain));
            let request = ApplyRequest { config: Some(to_proto(&config)), no_claims_prepared: disruptive, identity };
            (client.apply(request).await, Some(config))
        }
        Order::Stop => (client.stop(StopRequest { no_claims_prepared: disruptive }).await, None),
    };
    match (answer, config) {
        (Ok(state), config) => Stepped::Applied(config.map(Box::new), Box::new(state.into_inner())),
        (Err(status), Some(config)) if status.code() == tonic::Code::FailedPrecondition && !disruptive => {
            Stepped::Refused(Box::new(config))
        }
        (Err(status), _) => Stepped::Failed(status.message().to_owned()),
    }
}

/// Gives the daemon of `domain` another certificate.
pub(super) async fn renew(mut client: RunnerClient<Channel>, domain: String, identity: Arc<Identity>) -> Stepped {
    let identity = Some(shown(&identity, &domain));
    match client.renew(RenewRequest { identity }).await {
        Ok(state) => Stepped::Renewed(Box::new(state.into_inner())),
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
