use std::pin::Pin;

use futures::{Stream, StreamExt as _};
use heddle_proto::runner::runner_server::Runner;
use heddle_proto::runner::{self, ApplyRequest, GetRequest, RenewRequest, State, StopRequest, WatchRequest};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status};

use heddle_core::imex::{DomainConfig, Identity};

/// What the keeper is asked to do.
pub(super) enum Wish {
    /// Serve a domain, with an identity or without.
    Serve(DomainConfig, Option<Identity>),
    /// Show another certificate in the domain of this name.
    Renew(String, Identity),
    /// End the daemon.
    Stop,
}

pub(super) struct Order {
    pub(super) wish: Wish,
    pub(super) no_claims_prepared: bool,
    pub(super) done: oneshot::Sender<Result<State, Status>>,
}

/// The runner's contract, over the keeper.
pub(super) struct Service {
    pub(super) orders: mpsc::Sender<Order>,
    pub(super) state: watch::Receiver<State>,
}

impl Service {
    async fn order(&self, wish: Wish, no_claims_prepared: bool) -> Result<Response<State>, Status> {
        let (done, answer) = oneshot::channel();
        let ending = || Status::unavailable("the runner is ending");
        self.orders.send(Order { wish, no_claims_prepared, done }).await.map_err(|_| ending())?;
        answer.await.map_err(|_| ending())?.map(Response::new)
    }
}

#[tonic::async_trait]
impl Runner for Service {
    async fn get(&self, _: Request<GetRequest>) -> Result<Response<State>, Status> {
        Ok(Response::new(self.state.borrow().clone()))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<State, Status>> + Send>>;

    async fn watch(&self, _: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(Box::pin(WatchStream::new(self.state.clone()).map(Ok))))
    }

    async fn apply(&self, request: Request<ApplyRequest>) -> Result<Response<State>, Status> {
        let request = request.into_inner();
        let given = request.config.ok_or_else(|| Status::invalid_argument("no configuration is given"))?;
        let config = DomainConfig {
            domain: given.domain,
            node_map: given.node_map,
            index: given.index,
            hosts: given.hosts.into_iter().map(|host| (host.address, host.name)).collect(),
            settings: given.settings.into_iter().collect(),
        };
        heddle_core::imex::validate(&config).map_err(Status::invalid_argument)?;
        let identity = request.identity.map(|identity| read(identity, &config.domain)).transpose()?;
        self.order(Wish::Serve(config, identity), request.no_claims_prepared).await
    }

    async fn renew(&self, request: Request<RenewRequest>) -> Result<Response<State>, Status> {
        let given = request.into_inner().identity.ok_or_else(|| Status::invalid_argument("no identity is given"))?;
        let domain = given.domain.clone();
        let identity = read(given, &domain)?;
        self.order(Wish::Renew(domain, identity), false).await
    }

    async fn stop(&self, request: Request<StopRequest>) -> Result<Response<State>, Status> {
        self.order(Wish::Stop, request.into_inner().no_claims_prepared).await
    }
}

fn read(given: runner::Identity, domain: &str) -> Result<Identity, Status> {
    if given.domain != domain {
        let text = format!("the identity is of IMEX domain {:.80}, not of {domain:.80}", given.domain);
        return Err(Status::invalid_argument(text));
    }
    let identity = Identity {
        name: given.name,
        certificate_pem: given.certificate_pem,
        key_pem: given.key_pem,
        authority_pem: given.ca_pem,
        not_after: given.not_after_unix,
    };
    identity.validate().map_err(Status::invalid_argument)?;
    Ok(identity)
}
