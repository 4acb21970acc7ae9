//! Counters of the agent, by its own `/metrics`.

use std::net::SocketAddr;

use anyhow::{Context, bail};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;

/// What the agent has counted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests to the API server that read.
    pub reads: u64,
    /// Requests to the API server that wrote.
    pub writes: u64,
    /// Waits for the disk.
    pub syncs: u64,
}

impl Counters {
    /// What was counted since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
            syncs: self.syncs - earlier.syncs,
        }
    }
}

/// Reads them.
///
/// # Errors
/// When the agent does not answer.
pub async fn counters(address: SocketAddr) -> anyhow::Result<Counters> {
    let text = get(address, "/metrics").await.with_context(|| format!("the agent's metrics at {address}"))?;
    Ok(parse(&text))
}

/// Whether a process says at `/readyz` that it is ready.
pub async fn is_ready(address: SocketAddr) -> bool {
    get(address, "/readyz").await.is_ok()
}

async fn get(address: SocketAddr, path: &str) -> anyhow::Result<String> {
    let stream = tokio::net::TcpStream::connect(address).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = http::Request::get(path).header("host", address.to_string()).body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await?;
    if !answer.status().is_success() {
        bail!("{path} answers {}", answer.status());
    }
    let body = answer.into_body().collect().await?.to_bytes();
    connection.abort();
    Ok(String::from_utf8_lossy(&body).into_owned())
}

fn parse(text: &str) -> Counters {
    let mut counters = Counters::default();
    for line in text.lines() {
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        let value = value.parse::<u64>().unwrap_or_default();
        if series.starts_with("heddle_api_requests_total{") {
            let read = ["get", "watch"].iter().any(|verb| series.contains(&format!("verb=\"{verb}\"")));
            *if read { &mut counters.reads } else { &mut counters.writes } += value;
        } else if series == "heddle_disk_syncs_total" {
            counters.syncs = value;
        }
    }
    counters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_writes_and_syncs_are_told_apart() {
        let text = concat!(
            "# TYPE heddle_api_requests counter\n",
            "heddle_api_requests_total{verb=\"get\",resource=\"resourceclaims\",code=\"200\"} 7\n",
            "heddle_api_requests_total{verb=\"watch\",resource=\"imexnodes\",code=\"200\"} 2\n",
            "heddle_api_requests_total{verb=\"patch\",resource=\"resourceclaims/status\",code=\"200\"} 5\n",
            "heddle_disk_syncs_total 12\n",
            "# EOF\n"
        );
        let counters = parse(text);
        assert_eq!(counters, Counters { reads: 9, writes: 5, syncs: 12 });
        assert_eq!(
            counters.since(Counters { reads: 1, writes: 1, syncs: 1 }),
            Counters { reads: 8, writes: 4, syncs: 11 }
        );
    }
}
