//! Authentication between daemons: whom they take for a member of their domain.

use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustix::process::Signal;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::rack::{Daemon, Node, PATIENCE, Rack, code, imported};

/// The name that all certificates of the domain bear.
const DOMAIN: &str = "green.peer.imex.heddle.dev";

struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A key and its certificate, in PEM.
struct Identity {
    key: String,
    certificate: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        // All authorities have one name: only the key tells them apart.
        params.distinguished_name.push(DnType::CommonName, "authority of a test");
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn identity(&self, name: &str) -> Identity {
        self.issue(name, 2100)
    }

    fn expired(&self, name: &str) -> Identity {
        self.issue(name, 2001)
    }

    fn issue(&self, name: &str, last_year: i32) -> Identity {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(last_year, 12, 31);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap().pem();
        Identity { key: key.serialize_pem(), certificate }
    }
}

/// Where a node keeps the identity it shows in one direction.
struct Files(PathBuf);

impl Files {
    fn of(node: &Node, side: &str) -> Self {
        Self(node.os.join(side))
    }

    fn write(&self, authority: &Authority, identity: &Identity) {
        std::fs::create_dir_all(&self.0).unwrap();
        let texts = [("ca.crt", &authority.0.pem()), ("tls.key", &identity.key), ("tls.crt", &identity.certificate)];
        for (name, text) in texts {
            std::fs::write(self.0.join(name), text).unwrap();
        }
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

/// Starts a daemon with TLS, where `DOMAIN` is the name to be expected, unless `more` says otherwise.
fn start(node: &Node, more: &[(&str, &str)]) -> Daemon {
    let (server, client) = (Files::of(node, "server"), Files::of(node, "client"));
    let value = |files: &Files| ["tls.key", "tls.crt", "ca.crt"].map(|name| files.path(name));
    let (server, client) = (value(&server), value(&client));
    let mut settings = vec![
        ("IMEX_ENABLE_AUTH_ENCRYPTION", "1"),
        ("IMEX_AUTH_ENCRYPTION_MODE", "SSL_TLS"),
        ("IMEX_AUTH_SOURCE", "FILE"),
        ("IMEX_SERVER_KEY", &server[0]),
        ("IMEX_SERVER_CERT", &server[1]),
        ("IMEX_SERVER_CERT_AUTH", &server[2]),
        ("IMEX_CLIENT_KEY", &client[0]),
        ("IMEX_CLIENT_CERT", &client[1]),
        ("IMEX_CLIENT_CERT_AUTH", &client[2]),
        ("IMEX_SECURITY_TARGET_OVERRIDE", DOMAIN),
    ];
    settings.extend(more);
    node.start_with(&settings)
}

/// Gives a node one identity for both directions.
fn give(node: &Node, authority: &Authority, identity: &Identity) {
    for side in ["server", "client"] {
        Files::of(node, side).write(authority, identity);
    }
}

/// Two nodes of one domain, of which the second has this identity.
fn pair(rack: &Rack, authority: &Authority, second: (&Authority, &Identity)) -> (Node, Node) {
    let (zero, one) = (rack.node(0), rack.node(1));
    give(&zero, authority, &authority.identity(DOMAIN));
    give(&one, second.0, second.1);
    (zero, one)
}

async fn both_connect(zero: &mut Daemon, one: &mut Daemon) {
    zero.says("Connected to node 1").await;
    one.says("Connected to node 0").await;
    zero.ready().await;
    one.ready().await;
}

/// The certificate that a node shows to one who connects.
async fn shown(node: &Node, authority: &Authority) -> CertificateDer<'static> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.0.der().clone()).unwrap();
    let Identity { key, certificate } = authority.identity(DOMAIN);
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_client_auth_cert(chain, key).unwrap();
    let stream = TcpStream::connect((node.address.as_str(), node.port)).await.unwrap();
    let stream =
        TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(DOMAIN).unwrap(), stream).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

fn der(identity: &Identity) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap()
}

#[tokio::test]
async fn members_of_one_authority_connect_and_import() {
    let (rack, authority) = (Rack::new(), Authority::new());
    let (zero, one) = pair(&rack, &authority, (&authority, &authority.identity(DOMAIN)));
    let (mut zero_daemon, mut one_daemon) = (start(&zero, &[]), start(&one, &[]));
    both_connect(&mut zero_daemon, &mut one_daemon).await;
    zero_daemon.says("IMEX state is now STARTING_AUTH_SERVER").await;
    zero_daemon.says("Authentication and Encryption enabled = 1").await;
    assert_eq!(zero.row(0).await, ["CONNECTED", "CONNECTED", "NEVER_CONNECTED"]);
    let mut exporter = zero.process(1);
    let handle = exporter.export().await.unwrap();
    one.process(1).import(&handle).await.unwrap();
    assert_eq!(code(one.process(2).import(&handle)).await, 800);
}

#[tokio::test]
async fn without_an_override_the_certificate_names_the_entry_of_the_map() {
    let (rack, authority) = (Rack::new(), Authority::new());
    let (zero, one) = (rack.node(0), rack.node(1));
    give(&zero, &authority, &authority.identity("rack-00"));
    // An address is an entry like any other.
    give(&one, &authority, &authority.identity(&one.address));
    for node in [&zero, &one] {
        node.map(&format!("rack-00\n{}\n", one.address));
    }
    let settings = [("IMEX_SECURITY_TARGET_OVERRIDE", "")];
    let (mut zero_daemon, mut one_daemon) = (start(&zero, &settings), start(&one, &settings));
    both_connect(&mut zero_daemon, &mut one_daemon).await;
}

#[tokio::test]
async fn keys_come_from_variables_too() {
    let (rack, authority) = (Rack::new(), Authority::new());
    let (zero, one) = pair(&rack, &authority, (&authority, &authority.identity(DOMAIN)));
    let files = Files::of(&zero, "server");
    let names = [("KEY", "tls.key"), ("CERT", "tls.crt"), ("CERT_AUTH", "ca.crt")];
    let texts = names.map(|(_, name)| std::fs::read_to_string(files.path(name)).unwrap());
    let paths = names.map(|(_, name)| files.path(name));
    let settings = |source| {
        let keys =
            ["SERVER", "CLIENT"].into_iter().flat_map(|side| names.map(|(key, _)| (format!("IMEX_{side}_{key}"), key)));
        let mut all = vec![
            ("IMEX_ENABLE_AUTH_ENCRYPTION".to_owned(), "1"),
            ("IMEX_AUTH_SOURCE".to_owned(), source),
            ("IMEX_SECURITY_TARGET_OVERRIDE".to_owned(), DOMAIN),
        ];
        all.extend(keys);
        all
    };
    let start = |node: &Node, source, values: &[String; 3]| {
        let settings = settings(source);
        let settings: Vec<_> = settings.iter().map(|(key, value)| (key.as_str(), *value)).collect();
        let variables: Vec<_> = names.iter().zip(values).map(|((key, _), value)| (*key, value.as_str())).collect();
        node.start_as(&[], &settings, &variables)
    };
    let (mut zero_daemon, mut one_daemon) = (start(&zero, "ENV_PATH", &paths), start(&one, "ENV_VAL", &texts));
    both_connect(&mut zero_daemon, &mut one_daemon).await;
}

/// Node 0 is a good member; the other one must be refused both ways, and node 0 goes on.
async fn is_refused(rack: &Rack, authority: &Authority, other: (&Authority, &Identity), why: [&str; 2]) {
    let (zero, one) = pair(rack, authority, other);
    let (mut zero_daemon, mut one_daemon) = (start(&zero, &[]), start(&one, &[]));
    zero_daemon.says("Authentication with node 1 failed").await;
    zero_daemon.says(why[0]).await;
    one_daemon.says("Authentication with node 0 failed").await;
    one_daemon.says(why[1]).await;
    zero_daemon.ready().await;
    let mut exporter = zero.process(1);
    let handle = exporter.export().await.unwrap();
    one_daemon.ready().await;
    assert_eq!(code(one.process(1).import(&handle)).await, 400);
    for log in [zero_daemon.log(), one_daemon.log()] {
        assert!(!log.contains("Connected to node"), "{log}");
    }

    // With a good identity the same node is welcome: at node 0 nothing has been broken.
    one_daemon.signal(Signal::TERM);
    assert_eq!(one_daemon.exit().await, Some(0));
    give(&one, authority, &authority.identity(DOMAIN));
    let mut one_daemon = start(&one, &[]);
    both_connect(&mut zero_daemon, &mut one_daemon).await;
    one.process(1).import(&handle).await.unwrap();
}

#[tokio::test]
async fn a_member_of_another_domain_is_refused() {
    let (rack, authority, other) = (Rack::new(), Authority::new(), Authority::new());
    is_refused(
        &rack,
        &authority,
        (&other, &other.identity(DOMAIN)),
        ["BadSignature", "received fatal alert: DecryptError"],
    )
    .await;
}

#[tokio::test]
async fn an_expired_certificate_is_refused() {
    let (rack, authority) = (Rack::new(), Authority::new());
    let why = ["certificate expired", "received fatal alert: CertificateExpired"];
    is_refused(&rack, &authority, (&authority, &authority.expired(DOMAIN)), why).await;
}

#[tokio::test]
async fn a_certificate_of_another_name_is_refused_where_it_is_dialled() {
    let (rack, authority) = (Rack::new(), Authority::new());
    let (zero, one) = pair(&rack, &authority, (&authority, &authority.identity("blue.peer.imex.heddle.dev")));
    let (mut zero_daemon, mut one_daemon) = (start(&zero, &[]), start(&one, &[]));
    zero_daemon.says("Authentication with node 1 failed").await;
    zero_daemon.says("not valid for name").await;
    // A server checks the authority alone, as with gRPC: one authority for two domains would not keep them apart.
    one_daemon.says("Connected to node 0").await;
    zero_daemon.ready().await;
    one_daemon.ready().await;
    let handle = one.process(1).export().await.unwrap();
    assert_eq!(code(zero.process(1).import(&handle)).await, 400);
}

#[tokio::test]
async fn each_direction_is_checked_by_itself() {
    let (rack, authority, other) = (Rack::new(), Authority::new(), Authority::new());
    let (zero, one) = pair(&rack, &authority, (&authority, &authority.identity(DOMAIN)));
    // What node 1 shows as a client is of another authority; whom it takes for a server is right.
    Files::of(&one, "client").write(&authority, &other.identity(DOMAIN));
    let (mut zero_daemon, mut one_daemon) = (start(&zero, &[]), start(&one, &[]));
    zero_daemon.says("Connected to node 1").await;
    zero_daemon.says("authentication failed").await;
    one_daemon.says("Authentication with node 0 failed").await;
    zero_daemon.ready().await;
    one_daemon.ready().await;
    let mut exporter = zero.process(1);
    let handle = exporter.export().await.unwrap();
    assert_eq!(code(one.process(1).import(&handle)).await, 400);
    let mut exporter = one.process(1);
    let handle = exporter.export().await.unwrap();
    zero.process(1).import(&handle).await.unwrap();
}

#[tokio::test]
async fn who_speaks_no_tls_is_refused() {
    let (rack, authority) = (Rack::new(), Authority::new());
    let (zero, one) = pair(&rack, &authority, (&authority, &authority.identity(DOMAIN)));
    let mut zero_daemon = start(&zero, &[]);
    zero_daemon.ready().await;
    // Frames of the peers' own protocol, without TLS, and nonsense.
    let hello = br#"{"protocol":1,"node":1,"target":0,"instance":1,"map":1}"#;
    let hello = [&u32::try_from(hello.len()).unwrap().to_be_bytes(), &hello[..]].concat();
    for said in [hello.as_slice(), b"GET / HTTP/1.1\r\n\r\n", &[0xFF; 4096], &[0; 70_000]] {
        let mut stream = TcpStream::connect((zero.address.as_str(), zero.port)).await.unwrap();
        // The daemon may have closed the connection before all of it is written.
        let _ = stream.write_all(said).await;
        let mut answer = Vec::new();
        let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap();
        // At most a TLS alert, type 21.
        assert!(read.is_err() || answer.is_empty() || answer[0] == 21, "{answer:?}");
    }
    zero_daemon.says("authentication failed").await;

    let mut plain = one.start();
    zero_daemon.says("Authentication with node 1 failed").await;
    plain.ready().await;
    assert!(!plain.log().contains("Connected to node 0"), "{}", plain.log());
    plain.signal(Signal::TERM);
    plain.exit().await;

    let mut one_daemon = start(&one, &[]);
    both_connect(&mut zero_daemon, &mut one_daemon).await;
}

#[tokio::test]
async fn a_renewal_keeps_what_is_imported_and_is_used_from_then_on() {
    let (rack, authority) = (Rack::new(), Authority::new());
    let (zero, one) = pair(&rack, &authority, (&authority, &authority.identity(DOMAIN)));
    let (mut zero_daemon, mut one_daemon) = (start(&zero, &[]), start(&one, &[]));
    both_connect(&mut zero_daemon, &mut one_daemon).await;
    let mut exporters = [zero.process(1), one.process(1)];
    let handles = [exporters[0].export().await.unwrap(), exporters[1].export().await.unwrap()];
    let mut importers = [one.process(1), zero.process(1)];
    for (importer, handle) in importers.iter_mut().zip(&handles) {
        importer.import(handle).await.unwrap();
    }

    let renewed = authority.identity(DOMAIN);
    assert_ne!(shown(&one, &authority).await, der(&renewed));
    give(&one, &authority, &renewed);
    one_daemon.signal(Signal::USR1);
    one_daemon.says("Restarting all outgoing connections").await;
    assert_eq!(shown(&one, &authority).await, der(&renewed));
    for (importer, handle) in importers.iter_mut().zip(&handles) {
        importer.holds(handle).await.unwrap();
        importer.import(handle).await.unwrap();
    }
    for daemon in [&zero_daemon, &one_daemon] {
        assert!(!daemon.log().contains("imports from node"), "{}", daemon.log());
    }
}

#[tokio::test]
async fn a_renewed_certificate_is_used_both_ways() {
    let (rack, authority) = (Rack::new(), Authority::new());
    let (zero, one) = pair(&rack, &authority, (&authority, &authority.expired(DOMAIN)));
    let (mut zero_daemon, mut one_daemon) = (start(&zero, &[]), start(&one, &[]));
    zero_daemon.says("Authentication with node 1 failed").await;
    one_daemon.says("Authentication with node 0 failed").await;
    give(&one, &authority, &authority.identity(DOMAIN));
    one_daemon.signal(Signal::USR1);
    both_connect(&mut zero_daemon, &mut one_daemon).await;
}

#[tokio::test]
async fn a_renewal_with_a_broken_file_changes_nothing() {
    let (rack, authority) = (Rack::new(), Authority::new());
    let first = authority.identity(DOMAIN);
    let (zero, one) = pair(&rack, &authority, (&authority, &first));
    let (mut zero_daemon, mut one_daemon) = (start(&zero, &[]), start(&one, &[]));
    both_connect(&mut zero_daemon, &mut one_daemon).await;
    let (_exporter, handle, mut importer) = imported(&zero, &one).await;

    // Of two files only one is written: the certificate is not the key's.
    std::fs::write(Files::of(&one, "server").path("tls.crt"), authority.identity(DOMAIN).certificate).unwrap();
    one_daemon.signal(Signal::USR1);
    one_daemon.says("Failed to read the TLS files again, those read before stay").await;
    one_daemon.says("IMEX_SERVER_KEY").await;
    assert!(!one_daemon.log().contains("Restarting all outgoing connections"));
    assert_eq!(shown(&one, &authority).await, der(&first));
    importer.holds(&handle).await.unwrap();
    importer.import(&handle).await.unwrap();
    assert_eq!(one.query().await, "READY\n");
}

#[tokio::test]
async fn what_cannot_be_authenticated_does_not_start() {
    let (rack, authority) = (Rack::new(), Authority::new());
    let node = rack.node(0);
    give(&node, &authority, &authority.identity(DOMAIN));
    let elsewhere = rack.folder.path().join("nothing").display().to_string();
    let key = Files::of(&node, "server").path("tls.key");
    let cases = [
        ("IMEX_AUTH_ENCRYPTION_MODE", "", "IMEX_AUTH_ENCRYPTION_MODE is \"\""),
        ("IMEX_AUTH_ENCRYPTION_MODE", "TLS", "IMEX_AUTH_ENCRYPTION_MODE is \"TLS\""),
        ("IMEX_AUTH_ENCRYPTION_MODE", "GSS_AUTH_ENCRYPT", "this fake has no GSS"),
        ("IMEX_AUTH_ENCRYPTION_MODE", "GSS_AUTH_ONLY", "this fake has no GSS"),
        ("IMEX_AUTH_SOURCE", "", "IMEX_AUTH_SOURCE is \"\""),
        ("IMEX_AUTH_SOURCE", "SECRET", "IMEX_AUTH_SOURCE is \"SECRET\""),
        ("IMEX_AUTH_SOURCE", "ENV_VAL", "is not set"),
        ("IMEX_CLIENT_CERT", "", "IMEX_CLIENT_CERT is empty"),
        ("IMEX_SERVER_CERT_AUTH", &elsewhere, "IMEX_SERVER_CERT_AUTH: cannot read"),
        ("IMEX_CLIENT_CERT_AUTH", &key, "IMEX_CLIENT_CERT_AUTH has no certificate"),
        ("IMEX_SECURITY_TARGET_OVERRIDE", "no name", "neither a host name nor an address"),
    ];
    for (setting, value, why) in cases {
        let mut daemon = start(&node, &[(setting, value)]);
        daemon.says(why).await;
        assert_eq!(daemon.exit().await, Some(1));
    }
    // Without IMEX_ENABLE_AUTH_ENCRYPTION nobody looks at them.
    let mut daemon = start(&node, &[("IMEX_ENABLE_AUTH_ENCRYPTION", "0"), ("IMEX_AUTH_SOURCE", "")]);
    daemon.ready().await;
}

#[tokio::test]
async fn a_peer_that_shows_no_certificate_is_authenticating() {
    let (rack, authority) = (Rack::new(), Authority::new());
    let (zero, one) = (rack.node(0), rack.node(1));
    give(&zero, &authority, &authority.identity(DOMAIN));
    // Takes connections and says nothing on them.
    let silent = tokio::net::TcpListener::bind((one.address.as_str(), one.port)).await.unwrap();
    let mut zero_daemon = start(&zero, &[]);
    zero_daemon.ready().await;
    let (_held, _) = tokio::time::timeout(PATIENCE, silent.accept()).await.unwrap().unwrap();
    zero.sees(0, 1, "AUTHENTICATING").await;
}
