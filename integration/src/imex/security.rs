//! Authentication and encryption between peers: what the configuration asks for, and the TLS settings made of it.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// The keys of the configuration file that begin with `IMEX_AUTH`, `IMEX_SERVER`, `IMEX_CLIENT` and `IMEX_SECURITY`, as
/// they stand there. They are looked at only if `IMEX_ENABLE_AUTH_ENCRYPTION` is 1.
#[derive(Clone, Debug, Default)]
pub struct Security {
    /// `IMEX_AUTH_ENCRYPTION_MODE`.
    pub mode: String,
    /// `IMEX_AUTH_SOURCE`.
    pub source: String,
    /// `IMEX_SERVER_KEY`, `_CERT` and `_CERT_AUTH`.
    pub server: Credentials,
    /// `IMEX_CLIENT_KEY`, `_CERT` and `_CERT_AUTH`.
    pub client: Credentials,
    /// `IMEX_SECURITY_TARGET_OVERRIDE`; empty expects the entry of the node map.
    pub target: String,
}

/// One side's own key and certificates, and the authority that the other side's certificate must be of. Which of the two
/// `_CERT_AUTH` checks whom is not documented; a domain with one authority cannot tell.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    pub key: String,
    pub certificate: String,
    pub authority: String,
}

/// Where the values of the keys are.
#[derive(Clone, Copy)]
enum Source {
    File,
    EnvironmentPath,
    EnvironmentValue,
}

/// What both directions of a connection are made with.
pub struct Tls {
    pub server: Arc<ServerConfig>,
    pub client: Arc<ClientConfig>,
    /// The name that every peer's certificate must bear.
    pub target: Option<ServerName<'static>>,
}

impl Security {
    /// Takes a key of the configuration file if it is one of these.
    pub fn set(&mut self, key: &str, value: &str) -> bool {
        let place = match key {
            "IMEX_AUTH_ENCRYPTION_MODE" => &mut self.mode,
            "IMEX_AUTH_SOURCE" => &mut self.source,
            "IMEX_SERVER_KEY" => &mut self.server.key,
            "IMEX_SERVER_CERT" => &mut self.server.certificate,
            "IMEX_SERVER_CERT_AUTH" => &mut self.server.authority,
            "IMEX_CLIENT_KEY" => &mut self.client.key,
            "IMEX_CLIENT_CERT" => &mut self.client.certificate,
            "IMEX_CLIENT_CERT_AUTH" => &mut self.client.authority,
            "IMEX_SECURITY_TARGET_OVERRIDE" => &mut self.target,
            _ => return false,
        };
        value.clone_into(place);
        true
    }

    /// Reads what the keys name, as at the start and at every renewal.
    pub fn load(&self) -> Result<Tls> {
        match self.mode.as_str() {
            "SSL_TLS" => {}
            "GSS_AUTH_ENCRYPT" | "GSS_AUTH_ONLY" => bail!(
                "IMEX_AUTH_ENCRYPTION_MODE is {}, and this fake has no GSS (Kerberos): use SSL_TLS or a real nvidia-imex",
                self.mode
            ),
            other => bail!(
                "IMEX_AUTH_ENCRYPTION_MODE is {other:?}, expected SSL_TLS, GSS_AUTH_ENCRYPT or GSS_AUTH_ONLY while \
                 IMEX_ENABLE_AUTH_ENCRYPTION is 1"
            ),
        }
        let source = match self.source.as_str() {
            "FILE" => Source::File,
            "ENV_PATH" => Source::EnvironmentPath,
            "ENV_VAL" => Source::EnvironmentValue,
            other => bail!("IMEX_AUTH_SOURCE is {other:?}, expected FILE, ENV_PATH or ENV_VAL with SSL_TLS"),
        };
        let target = match self.target.as_str() {
            "" => None,
            name => Some(server_name(name).context("IMEX_SECURITY_TARGET_OVERRIDE")?),
        };
        let provider = Arc::new(ring::default_provider());
        let server = self.server.load("IMEX_SERVER", source)?;
        let client = self.client.load("IMEX_CLIENT", source)?;
        Ok(Tls { server: server.listen(&provider)?, client: client.dial(&provider)?, target })
    }
}

/// A name or an address as a certificate bears it.
pub fn server_name(name: &str) -> Result<ServerName<'static>> {
    ServerName::try_from(name.to_owned()).with_context(|| format!("{name:?} is neither a host name nor an address"))
}

/// [`Credentials`] that have been read.
struct Loaded {
    side: &'static str,
    key: PrivateKeyDer<'static>,
    chain: Vec<CertificateDer<'static>>,
    authority: Arc<RootCertStore>,
}

impl Credentials {
    fn load(&self, side: &'static str, source: Source) -> Result<Loaded> {
        let key = read(&format!("{side}_KEY"), &self.key, source)?;
        let key = PrivateKeyDer::from_pem_slice(&key).with_context(|| format!("{side}_KEY has no private key"))?;
        let chain = certificates(&format!("{side}_CERT"), &self.certificate, source)?;
        let mut authority = RootCertStore::empty();
        for root in certificates(&format!("{side}_CERT_AUTH"), &self.authority, source)? {
            authority.add(root).with_context(|| format!("{side}_CERT_AUTH is no certificate authority"))?;
        }
        Ok(Loaded { side, key, chain, authority: Arc::new(authority) })
    }
}

impl Loaded {
    fn listen(self, provider: &Arc<CryptoProvider>) -> Result<Arc<ServerConfig>> {
        let peers = WebPkiClientVerifier::builder_with_provider(self.authority, Arc::clone(provider)).build()?;
        let mut config = ServerConfig::builder_with_provider(Arc::clone(provider))
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(peers)
            .with_single_cert(self.chain, self.key)
            .with_context(|| format!("{}_KEY and {0}_CERT", self.side))?;
        // A resumed session would show neither the renewed certificate nor that the peer's has expired.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    fn dial(self, provider: &Arc<CryptoProvider>) -> Result<Arc<ClientConfig>> {
        let mut config = ClientConfig::builder_with_provider(Arc::clone(provider))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(self.authority)
            .with_client_auth_cert(self.chain, self.key)
            .with_context(|| format!("{}_KEY and {0}_CERT", self.side))?;
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }
}

fn certificates(key: &str, value: &str, source: Source) -> Result<Vec<CertificateDer<'static>>> {
    let pem = read(key, value, source)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let found = found.with_context(|| format!("{key} is not PEM"))?;
    if found.is_empty() {
        bail!("{key} has no certificate");
    }
    Ok(found)
}

/// The PEM text behind a key of the configuration file.
fn read(key: &str, value: &str, source: Source) -> Result<Vec<u8>> {
    if value.is_empty() {
        bail!("{key} is empty");
    }
    let from_environment = || std::env::var_os(value).with_context(|| format!("{key}: variable {value} is not set"));
    let path = match source {
        Source::File => PathBuf::from(value),
        Source::EnvironmentPath => from_environment()?.into(),
        Source::EnvironmentValue => return Ok(from_environment()?.into_encoded_bytes()),
    };
    std::fs::read(&path).with_context(|| format!("{key}: cannot read {}", path.display()))
}
