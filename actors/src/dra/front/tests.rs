//! The front as the kubelet sees it, and as an enemy would.

use std::pin::pin;

use futures::StreamExt;
use heddle_proto::registration::registration_server::{Registration, RegistrationServer};
use heddle_proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use loona_hpack::{Decoder, Encoder};
use prost::Message;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::frame::{
    ACK, CONTINUATION, END_HEADERS, END_STREAM, HEADER, HEADERS, Head, PADDED, PREFACE, PRIORITY, SETTINGS,
};

/// What grpc-go makes of the path that the kubelet dials.
const AUTHORITY: &[u8] = b"%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fcompute-domain.nvidia.com-reg.sock";
const DATA: u8 = 0x0;
const RST_STREAM: u8 = 0x3;
const GOAWAY: u8 = 0x7;
const PROTOCOL_ERROR: [u8; 4] = [0, 0, 0, 1];

struct Plugin;

#[tonic::async_trait]
impl Registration for Plugin {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo { name: "compute-domain.nvidia.com".into(), ..PluginInfo::default() }))
    }

    async fn notify_registration_status(
        &self,
        _: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

fn listen() -> (TempDir, UnixListener) {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("reg.sock")).unwrap();
    (dir, listener)
}

async fn fronted() -> TempDir {
    let (dir, listener) = listen();
    let server = Server::builder().add_service(RegistrationServer::new(Plugin));
    tokio::spawn(server.serve_with_incoming(super::incoming(listener)));
    dir
}

/// A client that writes its frames by hand.
struct Client {
    stream: UnixStream,
    encoder: Encoder<'static>,
    decoder: Decoder<'static>,
    next: u32,
}

/// How a call ended.
#[derive(Debug, PartialEq)]
enum Outcome {
    Answer { plugin: String, status: Vec<u8> },
    Reset([u8; 4]),
    Closed,
}

impl Client {
    async fn connect(dir: &TempDir) -> Self {
        let mut stream = UnixStream::connect(dir.path().join("reg.sock")).await.unwrap();
        let mut hello = PREFACE.to_vec();
        Head { length: 0, kind: SETTINGS, flags: 0, stream: 0 }.write(&mut hello);
        stream.write_all(&hello).await.unwrap();
        Self { stream, encoder: Encoder::new(), decoder: Decoder::new(), next: 1 }
    }

    /// The header block of a GetInfo call, as grpc-go orders it.
    fn block(&mut self) -> Vec<u8> {
        self.encoder.encode([
            (&b":method"[..], &b"POST"[..]),
            (b":scheme", b"http"),
            (b":path", b"/pluginregistration.Registration/GetInfo"),
            (b":authority", AUTHORITY),
            (b"content-type", b"application/grpc"),
            (b"user-agent", b"grpc-go/1.82.1"),
            (b"te", b"trailers"),
        ])
    }

    /// Calls GetInfo; `frames` cuts its header block into frames.
    async fn get_info(&mut self, frames: impl FnOnce(u32, &[u8], &mut Vec<u8>)) -> Outcome {
        let stream = self.next;
        self.next += 2;
        let block = self.block();
        let mut call = Vec::new();
        frames(stream, &block, &mut call);
        // An empty message: not compressed, no octets.
        Head { length: 5, kind: DATA, flags: END_STREAM, stream }.write(&mut call);
        call.extend([0; 5]);
        self.stream.write_all(&call).await.unwrap();
        self.outcome(stream).await
    }

    async fn outcome(&mut self, stream: u32) -> Outcome {
        let mut plugin = String::new();
        loop {
            let mut head = [0; HEADER];
            if self.stream.read_exact(&mut head).await.is_err() {
                return Outcome::Closed;
            }
            let head = Head::parse(&head);
            let mut payload = vec![0; head.length];
            if self.stream.read_exact(&mut payload).await.is_err() {
                return Outcome::Closed;
            }
            match head.kind {
                SETTINGS if !head.has(ACK) => {
                    let mut ack = Vec::new();
                    Head { length: 0, kind: SETTINGS, flags: ACK, stream: 0 }.write(&mut ack);
                    if self.stream.write_all(&ack).await.is_err() {
                        return Outcome::Closed;
                    }
                }
                HEADERS => {
                    let headers = self.decoder.decode(&payload).unwrap();
                    if head.stream == stream && head.has(END_STREAM) {
                        let status = headers.into_iter().find(|(name, _)| name == b"grpc-status").unwrap().1;
                        return Outcome::Answer { plugin, status };
                    }
                }
                DATA if head.stream == stream && payload.len() > 5 => {
                    plugin = PluginInfo::decode(&payload[5..]).unwrap().name;
                }
                RST_STREAM if head.stream == stream => return Outcome::Reset(payload.try_into().unwrap()),
                GOAWAY => return Outcome::Closed,
                _ => {}
            }
        }
    }
}

fn whole(stream: u32, block: &[u8], out: &mut Vec<u8>) {
    Head { length: block.len(), kind: HEADERS, flags: END_HEADERS, stream }.write(out);
    out.extend_from_slice(block);
}

/// Padding, priority and two CONTINUATIONs, one of them empty.
fn cut(stream: u32, block: &[u8], out: &mut Vec<u8>) {
    let (first, second) = block.split_at(block.len() / 2);
    Head { length: 1 + 5 + first.len() + 3, kind: HEADERS, flags: PADDED | PRIORITY, stream }.write(out);
    out.push(3);
    out.extend([0, 0, 0, 0, 16]);
    out.extend_from_slice(first);
    out.extend([0; 3]);
    Head { length: 0, kind: CONTINUATION, flags: 0, stream }.write(out);
    Head { length: second.len(), kind: CONTINUATION, flags: END_HEADERS, stream }.write(out);
    out.extend_from_slice(second);
}

fn answer() -> Outcome {
    Outcome::Answer { plugin: "compute-domain.nvidia.com".into(), status: b"0".to_vec() }
}

/// Why there is a front. When this test fails, h2 takes such an authority, and the front can go.
#[tokio::test]
async fn without_the_front_the_kubelets_call_is_reset() {
    let (dir, listener) = listen();
    let server = Server::builder().add_service(RegistrationServer::new(Plugin));
    tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
    let mut kubelet = Client::connect(&dir).await;
    assert_eq!(kubelet.get_info(whole).await, Outcome::Reset(PROTOCOL_ERROR));
}

#[tokio::test]
async fn the_kubelets_call_is_answered() {
    let dir = fronted().await;
    let mut kubelet = Client::connect(&dir).await;
    assert_eq!(kubelet.get_info(whole).await, answer());
    // The second block refers to the table that the first one filled, the third comes in pieces.
    assert_eq!(kubelet.get_info(whole).await, answer());
    assert_eq!(kubelet.get_info(cut).await, answer());
    assert_eq!(kubelet.get_info(whole).await, answer());
}

#[tokio::test]
async fn a_malformed_connection_is_closed_and_others_go_on() {
    let dir = fronted().await;
    let mut before = Client::connect(&dir).await;
    assert_eq!(before.get_info(whole).await, answer());
    let mut broken = Client::connect(&dir).await;
    let undecodable = |stream, _: &[u8], out: &mut Vec<u8>| whole(stream, &[0xff; 40], out);
    assert_eq!(broken.get_info(undecodable).await, Outcome::Closed);
    let mut http1 = UnixStream::connect(dir.path().join("reg.sock")).await.unwrap();
    http1.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut rest = Vec::new();
    // Closed, with or without a last frame of the server's.
    let _ = http1.read_to_end(&mut rest).await;
    assert_eq!(before.get_info(whole).await, answer());
    assert_eq!(Client::connect(&dir).await.get_info(whole).await, answer());
}

#[tokio::test]
async fn one_connection_more_than_the_bound_waits() {
    let (dir, listener) = listen();
    let mut incoming = pin!(super::incoming(listener));
    let mut clients = Vec::new();
    for _ in 0..=super::CONNECTIONS {
        clients.push(UnixStream::connect(dir.path().join("reg.sock")).await.unwrap());
    }
    let mut accepted = Vec::new();
    for _ in 0..super::CONNECTIONS {
        accepted.push(incoming.next().await.unwrap().unwrap());
    }
    assert!(futures::poll!(incoming.next()).is_pending());
    accepted.pop();
    assert!(incoming.next().await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn silent_connections_make_room_after_a_while() {
    let dir = fronted().await;
    let mut silent = Vec::new();
    for _ in 0..super::CONNECTIONS {
        silent.push(UnixStream::connect(dir.path().join("reg.sock")).await.unwrap());
    }
    let mut kubelet = Client::connect(&dir).await;
    assert_eq!(kubelet.get_info(whole).await, answer());
    // One that went silent after a call ends too.
    assert_eq!(kubelet.outcome(u32::MAX).await, Outcome::Closed);
}
