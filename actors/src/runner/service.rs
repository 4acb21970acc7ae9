use std::pin::Pin;

use futures::{Stream, StreamExt as _};
use heddle_proto::runner::runner_server::Runner;
use heddle_proto::runner::{ApplyRequest, GetRequest, State, StopRequest, WatchRequest};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status};

use heddle_core::imex::DomainConfig;

/// What the keeper is asked to do.
pub(super) struct Order {
    /// The domain to serve; none ends the daemon.
    pub(super) config: Option<DomainConfig>,
    pub(super) no_claims_prepared: bool,
    pub(super) done: oneshot::Sender<Result<State, Status>>,
}

/// The runner's contract, over the keeper.
pub(super) struct Service {
    pub(super) orders: mpsc::Sender<Order>,
    pub(super) state: watch::Receiver<State>,
}

impl Service {
    async fn order(&self, config: Option<DomainConfig>, no_claims_prepared: bool) -> Result<Response<State>, Status> {
        let (done, answer) = oneshot::channel();
        let ending = || Status::unavailable("the runner is ending");
        self.orders.send(Order { config, no_claims_prepared, done }).await.map_err(|_| ending())?;
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
        self.order(Some(config), request.no_claims_prepared).await
    }

    async fn stop(&self, request: Request<StopRequest>) -> Result<Response<State>, Status> {
        self.order(None, request.into_inner().no_claims_prepared).await
    }
}
