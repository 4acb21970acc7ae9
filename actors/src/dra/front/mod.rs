//! The front of the kubelet's registration socket.
//!
//! The kubelet dials that socket with its bare path as gRPC target, and grpc-go makes a percent-encoded path its
//! `:authority` (`%2Fvar%2Flib%2Fkubelet%2F…`; kubelet `pluginmanager/operationexecutor/operation_generator.go`, 1.34 to
//! 1.37). The `h2` crate under tonic resets such a stream before any handler sees it (hyperium/h2 PR 487 is open). So the
//! bytes that tonic reads pass through [`Repair`], which puts `localhost` in its place, as the kubelet's other dials have it.
//!
//! ```no_run
//! # async fn register(listener: tokio::net::UnixListener) -> Result<(), tonic::transport::Error> {
//! # let service = tonic::service::Routes::default();
//! use heddle_actors::dra::front;
//! tonic::transport::Server::builder().add_routes(service).serve_with_incoming(front::incoming(listener)).await
//! # }
//! ```

mod block;
mod connection;
mod frame;
mod repair;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;

pub use connection::Connection;
pub use repair::{Malformed, Repair};

/// Connections at a time. The kubelet opens one for GetInfo and one for NotifyRegistrationStatus, one after the other.
const CONNECTIONS: usize = 16;

/// The connections that arrive at a registration socket, repaired, for tonic's `serve_with_incoming`. Never ends; one
/// connection more than the bound waits until another has gone.
pub fn incoming(listener: UnixListener) -> impl Stream<Item = io::Result<Connection>> + Send + 'static {
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    futures::stream::unfold((listener, free), async |(listener, free)| {
        // The semaphore is never closed.
        let permit = free.clone().acquire_owned().await.ok()?;
        loop {
            match listener.accept().await {
                Ok((stream, _)) => return Some((Ok(Connection::new(stream, permit)), (listener, free))),
                Err(error) => {
                    // Out of file descriptors, mostly: that passes, and an error would only end the server.
                    tracing::warn!("registration socket: cannot accept: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    })
}
