//! The permanent connection to a plugin's DRA endpoint.

use std::{
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use hyper::{body::Incoming, client::conn::http2::SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::UnixStream, sync::watch, time};
use tonic::{Status, body::Body};

/// What the kubelet's `unix:` target becomes as `:authority`.
const ORIGIN: &str = "http://localhost";

/// The permanent connection to a plugin's DRA endpoint.
#[derive(Clone)]
pub struct Link {
    state: watch::Receiver<State>,
}

#[derive(Clone)]
enum State {
    Connecting,
    Ready(SendRequest<Body>),
    /// Calls fail at once until a later attempt succeeds, as with grpc-go's default.
    Failed(String),
}

impl Link {
    /// A link to `endpoint` and the future that keeps it up; `changed` is told when it comes and goes.
    pub fn new(
        endpoint: PathBuf,
        retry: (Duration, Duration),
        changed: impl Fn(bool) + Send,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (sender, state) = watch::channel(State::Connecting);
        (Self { state }, keep(endpoint, retry, sender, changed))
    }

    /// Whether it stands.
    pub fn is_up(&self) -> bool {
        matches!(*self.state.borrow(), State::Ready(_))
    }

    /// A gRPC client on it: waits for the first attempt to connect, and fails if the last one did.
    pub async fn client(&self) -> Result<tonic::client::Grpc<Stub>, Status> {
        let mut state = self.state.clone();
        loop {
            match &*state.borrow_and_update() {
                State::Ready(sender) => {
                    return Ok(tonic::client::Grpc::with_origin(Stub(sender.clone()), http::Uri::from_static(ORIGIN)));
                }
                State::Failed(why) => return Err(Status::unavailable(format!("connection error: desc = {why:?}"))),
                State::Connecting => {}
            }
            state.changed().await.map_err(|_| Status::cancelled("grpc: the client connection is closing"))?;
        }
    }
}

/// Connects, for ever: at once after a connection was lost, with growing pauses while it is refused.
async fn keep(
    endpoint: PathBuf,
    (first, most): (Duration, Duration),
    state: watch::Sender<State>,
    changed: impl Fn(bool) + Send,
) {
    let mut pause = first;
    loop {
        match connect(&endpoint).await {
            Ok((sender, connection)) => {
                pause = first;
                state.send_replace(State::Ready(sender));
                changed(true);
                let _ = connection.await;
                state.send_replace(State::Connecting);
                changed(false);
            }
            Err(err) => {
                let why = format!("transport: Error while dialing: dial unix {}: {err}", endpoint.display());
                state.send_replace(State::Failed(why));
                time::sleep(pause).await;
                pause = (pause * 8 / 5).min(most);
            }
        }
    }
}

async fn connect(
    endpoint: &Path,
) -> Result<
    (SendRequest<Body>, hyper::client::conn::http2::Connection<TokioIo<UnixStream>, Body, TokioExecutor>),
    Box<dyn std::error::Error + Send + Sync>,
> {
    let stream = TokioIo::new(UnixStream::connect(endpoint).await?);
    Ok(hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await?)
}

/// What tonic sends requests through.
pub struct Stub(SendRequest<Body>);

impl tower::Service<http::Request<Body>> for Stub {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
