//! The server on a socket.

use std::net::SocketAddr;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use kube::config::Kubeconfig;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::http;
use super::server::ApiServer;
use super::user::User;

/// A server on a socket; dropping it closes the socket and every connection.
pub struct Listening {
    /// Where it listens.
    pub addr: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ApiServer {
    /// Serves HTTP/1.1 and HTTP/2 without TLS at `addr`; port 0 takes a free one.
    ///
    /// # Errors
    /// When the address cannot be had.
    pub async fn listen(&self, addr: SocketAddr) -> std::io::Result<Listening> {
        let listener = TcpListener::bind(addr).await?;
        let addr = listener.local_addr()?;
        let task = tokio::spawn(accept(self.clone(), listener));
        Ok(Listening { addr, task })
    }

    /// What `kubectl` and [`kube::Client`] need to reach a [`Listening`].
    pub fn kubeconfig(&self, listening: &Listening) -> Kubeconfig {
        kubeconfig(listening, json!({}))
    }

    /// The same, for one user.
    pub fn kubeconfig_of(&self, listening: &Listening, user: User) -> Kubeconfig {
        kubeconfig(listening, json!({"token": self.token(user)}))
    }
}

fn kubeconfig(listening: &Listening, credential: serde_json::Value) -> Kubeconfig {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "heddle", "cluster": {"server": format!("http://{}", listening.addr)}}],
        "users": [{"name": "heddle", "user": credential}],
        "contexts": [{
            "name": "heddle",
            "context": {"cluster": "heddle", "user": "heddle", "namespace": "default"},
        }],
        "current-context": "heddle",
    });
    serde_json::from_value(config).expect("a kubeconfig of constants is readable")
}

async fn accept(server: ApiServer, listener: TcpListener) {
    // Ends the connections together with the task.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(server.clone(), stream));
                }
                // Out of file descriptors: what is connected goes on, and may end and free some.
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(server: ApiServer, stream: TcpStream) {
    // Watch events are small and must not wait for one another.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let answer = http::answer(server.clone(), request);
        async move { Ok::<_, std::convert::Infallible>(answer.await) }
    });
    let connection = auto::Builder::new(TokioExecutor::new());
    if let Err(error) = connection.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a connection ended");
    }
}
