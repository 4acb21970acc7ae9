//! The byte stream between two peers: the one place that knows whether it is encrypted.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use rustix::net::netdevice::name_to_index;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::config::Config;
use super::security::{Security, Tls, server_name};

/// How long a connection attempt may take before it counts as failed.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the other side may take to prove who it is.
const AUTHENTICATION: Duration = Duration::from_secs(3);

/// A stream to a peer, whose identity has been checked as far as the configuration asks for it.
pub trait Stream: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Stream for T {}

/// Connects to the first of a peer's addresses that answers.
pub async fn connect(to: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "no address");
    for address in to {
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await.map_err(io::Error::from).flatten() {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Where an address is reached. Only a link-local one needs to be told the interface.
pub fn at(address: IpAddr, port: u16, interface: Option<&str>) -> io::Result<SocketAddr> {
    match (address, interface) {
        (IpAddr::V6(address), Some(interface)) if address.is_unicast_link_local() => {
            let any = std::net::UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
            let index = name_to_index(&any, interface)
                .map_err(|error| io::Error::other(format!("NETWORK_INTERFACE {interface}: {error}")))?;
            Ok(SocketAddrV6::new(address, port, 0, index).into())
        }
        _ => Ok(SocketAddr::new(address, port)),
    }
}

/// Takes the next connection of a peer.
pub async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, from) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, from))
}

/// What a daemon makes of a TCP connection: nothing, or mutually authenticated TLS.
pub struct Transport(Option<Secure>);

struct Secure {
    security: Security,
    /// As of the last reading that worked.
    tls: RefCell<Rc<Tls>>,
}

impl Transport {
    /// By the configuration, whose files are read.
    pub fn open(config: &Config) -> Result<Self> {
        if !config.encryption {
            return Ok(Self(None));
        }
        let security = config.security.clone();
        let tls = RefCell::new(Rc::new(security.load()?));
        Ok(Self(Some(Secure { security, tls })))
    }

    /// Reads keys and certificates again. They are used by connections that are made from now on; after an error those
    /// read before are.
    pub fn renew(&self) -> Result<()> {
        if let Some(Secure { security, tls }) = &self.0 {
            let renewed = security.load()?;
            *tls.borrow_mut() = Rc::new(renewed);
        }
        Ok(())
    }

    /// Shows the peer who we are and checks that it is the one of this entry of the node map. That the peer took us for
    /// one of its own is only known once it has answered something.
    pub async fn introduce(&self, stream: TcpStream, entry: &str) -> io::Result<Box<dyn Stream>> {
        let Some(secure) = &self.0 else { return Ok(Box::new(stream)) };
        let tls = Rc::clone(&secure.tls.borrow());
        let name = match &tls.target {
            Some(target) => target.clone(),
            None => server_name(entry).map_err(io::Error::other)?,
        };
        let connecting = TlsConnector::from(Arc::clone(&tls.client)).connect(name, stream);
        Ok(Box::new(in_time(connecting).await?))
    }

    /// Shows a peer that has connected who we are, and checks that it is of our authority.
    pub async fn greet(&self, stream: TcpStream) -> io::Result<Box<dyn Stream>> {
        let Some(secure) = &self.0 else { return Ok(Box::new(stream)) };
        let tls = Rc::clone(&secure.tls.borrow());
        let accepting = TlsAcceptor::from(Arc::clone(&tls.server)).accept(stream);
        Ok(Box::new(in_time(accepting).await?))
    }
}

async fn in_time<S>(handshake: impl Future<Output = io::Result<S>>) -> io::Result<S> {
    let done = timeout(AUTHENTICATION, handshake).await.map_err(io::Error::from).flatten();
    done.map_err(|error| io::Error::other(NotAuthenticated(error)))
}

#[derive(Debug, thiserror::Error)]
#[error("authentication failed: {0}")]
struct NotAuthenticated(io::Error);

/// Whether an error of a stream says that one side does not take the other for what it should be. A client hears of it
/// only after its own part of the handshake is over.
pub fn is_about_identity(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<NotAuthenticated>() || inner.is::<rustls::Error>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_local_address_is_of_an_interface() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        // Every Linux has this one, as its first.
        assert_eq!(at(address("fe80::1"), 50000, Some("lo")).unwrap().to_string(), "[fe80::1%1]:50000");
        assert!(at(address("fe80::1"), 50000, Some("none0")).unwrap_err().to_string().contains("none0"));
        for other in ["fd00::1", "127.0.0.1"] {
            assert_eq!(at(address(other), 1, Some("none0")).unwrap(), SocketAddr::new(address(other), 1));
        }
    }
}
