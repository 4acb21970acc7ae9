//! Unary gRPC calls over a Unix socket, with the socket's path as `:authority`.
//!
//! The kubelet gives grpc-go a bare path as target for registration, and grpc-go sends that path, percent-encoded, as
//! `:authority` (facts §0). Rust's HTTP/2 crates neither send nor accept such a header, so this double speaks the
//! protocol itself: anything else would hide the very failure that it exists to show.

mod frame;
mod hpack;

use std::{path::Path, time::Duration};

use frame::Frame;
use prost::Message;
use tokio::{io::AsyncWriteExt, net::UnixStream, time};
use tonic::{Code, Status};

/// Version that the kubelet's grpc-go gives.
const USER_AGENT: &str = "grpc-go/1.72.2";
/// Both sides' windows before anybody changes them.
const WINDOW: i64 = 65_535;
/// The largest answer that grpc-go takes.
const MAX_MESSAGE: usize = 4 << 20;

/// A connection to a registration socket.
pub struct Connection {
    stream: UnixStream,
    authority: String,
    encoder: hpack::Encoder,
    decoder: loona_hpack::Decoder<'static>,
    next_stream: u32,
    max_frame: usize,
    initial_window: i64,
    window: i64,
    stream_window: i64,
}

impl Connection {
    /// Connects and waits until the server has sent its settings. As a blocking dial of grpc-go does, it tries again
    /// after `pause` while there is time: a socket's file is there a moment before anybody listens.
    pub async fn dial(socket: &Path, limit: Duration, pause: Duration) -> Result<Self, Status> {
        let mut last = deadline();
        let dialled = time::timeout(limit, async {
            loop {
                match Self::handshake(socket).await {
                    Ok(connection) => return connection,
                    Err(err) => last = err,
                }
                time::sleep(pause).await;
            }
        });
        let dialled = dialled.await;
        dialled.map_err(|_| {
            Status::deadline_exceeded(format!("failed to dial socket {}: {}", socket.display(), last.message()))
        })
    }

    async fn handshake(socket: &Path) -> Result<Self, Status> {
        let mut stream = UnixStream::connect(socket).await.map_err(unavailable)?;
        let mut hello = frame::PREFACE.to_vec();
        hello.extend(Frame::encode(frame::SETTINGS, 0, 0, &[]));
        stream.write_all(&hello).await.map_err(unavailable)?;
        let mut connection = Self {
            stream,
            authority: percent_encode(&socket.to_string_lossy()),
            encoder: hpack::Encoder::new(),
            decoder: loona_hpack::Decoder::new(),
            next_stream: 1,
            max_frame: frame::MAX_PAYLOAD,
            initial_window: WINDOW,
            window: WINDOW,
            stream_window: WINDOW,
        };
        loop {
            let frame = Frame::read(&mut connection.stream).await.map_err(unavailable)?;
            let first_settings = frame.kind == frame::SETTINGS && !frame.has(frame::ACK);
            connection.attend(&frame).await?;
            if first_settings {
                return Ok(connection);
            }
        }
    }

    /// Calls a method and waits for its answer.
    pub async fn unary<Q: Message, R: Message + Default>(
        &mut self,
        method: &str,
        request: &Q,
        limit: Duration,
    ) -> Result<R, Status> {
        time::timeout(limit, self.call(method, request, limit)).await.unwrap_or_else(|_| Err(deadline()))
    }

    async fn call<Q: Message, R: Message + Default>(
        &mut self,
        method: &str,
        request: &Q,
        limit: Duration,
    ) -> Result<R, Status> {
        let id = self.next_stream;
        self.next_stream += 2;
        self.stream_window = self.initial_window;
        self.send_headers(id, method, limit).await?;
        let mut message = vec![0];
        message.extend((request.encoded_len() as u32).to_be_bytes());
        message.extend(request.encode_to_vec());
        let mut answer = Answer::default();
        self.send_message(id, &message, &mut answer).await?;
        while !answer.complete {
            self.receive(id, &mut answer).await?;
        }
        answer.decode()
    }

    async fn send_headers(&mut self, id: u32, method: &str, limit: Duration) -> Result<(), Status> {
        let timeout = format!("{}u", limit.as_micros().min(99_999_999));
        let authority = self.authority.clone();
        let block = self.encoder.encode(&[
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", &authority),
            ("content-type", "application/grpc"),
            ("user-agent", USER_AGENT),
            ("te", "trailers"),
            ("grpc-timeout", &timeout),
        ]);
        self.write(frame::HEADERS, frame::END_HEADERS, id, &block).await
    }

    /// Sends the message in pieces that fit the peer's frames and windows.
    async fn send_message(&mut self, id: u32, mut rest: &[u8], answer: &mut Answer) -> Result<(), Status> {
        while !rest.is_empty() && !answer.complete {
            let room = self.window.min(self.stream_window).max(0) as usize;
            let piece = rest.len().min(room).min(self.max_frame);
            if piece == 0 {
                self.receive(id, answer).await?;
                continue;
            }
            let (now, later) = rest.split_at(piece);
            let flags = if later.is_empty() { frame::END_STREAM } else { 0 };
            self.write(frame::DATA, flags, id, now).await?;
            self.window -= piece as i64;
            self.stream_window -= piece as i64;
            rest = later;
        }
        Ok(())
    }

    /// Takes the next frame, of our stream or of the connection.
    async fn receive(&mut self, id: u32, answer: &mut Answer) -> Result<(), Status> {
        let mut frame = Frame::read(&mut self.stream).await.map_err(unavailable)?;
        if frame.stream != id {
            if frame.kind == frame::GOAWAY && frame.number() & 0x7fff_ffff < id {
                return Err(Status::unavailable("the connection is draining"));
            }
            return self.attend(&frame).await;
        }
        match frame.kind {
            frame::DATA => {
                answer.body.extend(frame.content().ok_or_else(malformed)?);
                if answer.body.len() > MAX_MESSAGE {
                    return Err(Status::resource_exhausted("grpc: received message larger than max"));
                }
                if !frame.payload.is_empty() {
                    let more = (frame.payload.len() as u32).to_be_bytes();
                    self.write(frame::WINDOW_UPDATE, 0, 0, &more).await?;
                    if !frame.has(frame::END_STREAM) {
                        self.write(frame::WINDOW_UPDATE, 0, id, &more).await?;
                    }
                }
            }
            frame::HEADERS => {
                let mut block = frame.content().ok_or_else(malformed)?.to_vec();
                let end_stream = frame.flags & frame::END_STREAM;
                while !frame.has(frame::END_HEADERS) {
                    frame = Frame::read(&mut self.stream).await.map_err(unavailable)?;
                    if frame.kind != frame::CONTINUATION || frame.stream != id {
                        return Err(malformed());
                    }
                    block.extend(&frame.payload);
                }
                frame.flags |= end_stream;
                answer.take(self.decoder.decode(&block).map_err(|_| malformed())?);
            }
            frame::RST_STREAM => {
                let name = error_name(frame.number());
                let text = format!("stream terminated by RST_STREAM with error code: {name}");
                return Err(Status::internal(text));
            }
            frame::WINDOW_UPDATE => self.stream_window += i64::from(frame.number()),
            _ => {}
        }
        answer.complete =
            matches!(frame.kind, frame::DATA | frame::HEADERS | frame::CONTINUATION) && frame.has(frame::END_STREAM);
        Ok(())
    }

    /// Does what a frame of the connection asks for.
    async fn attend(&mut self, frame: &Frame) -> Result<(), Status> {
        match frame.kind {
            frame::SETTINGS if !frame.has(frame::ACK) => {
                for (key, value) in frame.settings() {
                    match key {
                        frame::SETTINGS_HEADER_TABLE_SIZE => self.encoder.limit(value as usize),
                        frame::SETTINGS_MAX_FRAME_SIZE => self.max_frame = value as usize,
                        frame::SETTINGS_INITIAL_WINDOW_SIZE => {
                            self.stream_window += i64::from(value) - self.initial_window;
                            self.initial_window = i64::from(value);
                        }
                        _ => {}
                    }
                }
                self.write(frame::SETTINGS, frame::ACK, 0, &[]).await
            }
            frame::PING if !frame.has(frame::ACK) => self.write(frame::PING, frame::ACK, 0, &frame.payload).await,
            frame::WINDOW_UPDATE if frame.stream == 0 => {
                self.window += i64::from(frame.number());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    async fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<(), Status> {
        self.stream.write_all(&Frame::encode(kind, flags, stream, payload)).await.map_err(unavailable)
    }
}

/// An answer as it comes in.
#[derive(Default)]
struct Answer {
    http_status: Option<String>,
    grpc_status: Option<i32>,
    message: String,
    body: Vec<u8>,
    complete: bool,
}

impl Answer {
    fn take(&mut self, fields: Vec<(Vec<u8>, Vec<u8>)>) {
        for (name, value) in fields {
            let value = String::from_utf8_lossy(&value).into_owned();
            match &name[..] {
                b":status" => self.http_status = Some(value),
                b"grpc-status" => self.grpc_status = value.parse().ok(),
                b"grpc-message" => self.message = percent_decode(&value),
                _ => {}
            }
        }
    }

    fn decode<R: Message + Default>(self) -> Result<R, Status> {
        match self.grpc_status {
            Some(0) => {}
            Some(code) => return Err(Status::new(Code::from_i32(code), self.message)),
            None => {
                let status = self.http_status.unwrap_or_else(|| "none".into());
                return Err(Status::unknown(format!("no gRPC status; HTTP status {status}")));
            }
        }
        let (prefix, message) = self.body.split_first_chunk::<5>().ok_or_else(malformed)?;
        let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
        if prefix[0] != 0 || message.len() != length {
            return Err(malformed());
        }
        R::decode(message).map_err(|err| Status::internal(format!("failed to unmarshal the received message: {err}")))
    }
}

/// As grpc-go encodes a target into an authority.
fn percent_encode(target: &str) -> String {
    let mut encoded = String::with_capacity(target.len() * 3);
    for byte in target.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]@".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

fn percent_decode(text: &str) -> String {
    let mut octets = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let code = tail.first_chunk::<2>().and_then(|hex| std::str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(octet) if first == b'%' => {
                octets.push(octet);
                rest = &tail[2..];
            }
            _ => {
                octets.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&octets).into_owned()
}

fn error_name(code: u32) -> String {
    let names = ["NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT"];
    let more = ["STREAM_CLOSED", "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR"];
    names.iter().chain(&more).nth(code as usize).map_or_else(|| code.to_string(), |name| (*name).to_owned())
}

fn unavailable(err: std::io::Error) -> Status {
    Status::unavailable(err.to_string())
}

fn malformed() -> Status {
    Status::internal("malformed answer")
}

fn deadline() -> Status {
    Status::deadline_exceeded("context deadline exceeded")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_encoded_as_grpc_go_does() {
        assert_eq!(percent_encode("/var/lib/a-b_c.sock"), "%2Fvar%2Flib%2Fa-b_c.sock");
        assert_eq!(percent_decode("100%25 of it, 5% more"), "100% of it, 5% more");
    }

    #[tokio::test]
    async fn rusts_own_server_refuses_such_an_authority() {
        // The reason for the registration front: if this test fails one day, the front can go.
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("reg.sock");
        let incoming =
            tokio_stream::wrappers::UnixListenerStream::new(tokio::net::UnixListener::bind(&socket).unwrap());
        let server = tonic::service::Routes::default();
        let serving =
            tokio::spawn(tonic::transport::Server::builder().add_routes(server).serve_with_incoming(incoming));
        let limit = Duration::from_secs(5);
        let mut connection = Connection::dial(&socket, limit, limit).await.unwrap();
        let answer: Result<(), _> = connection.unary("/pluginregistration.Registration/GetInfo", &(), limit).await;
        let status = answer.unwrap_err();
        assert!(status.message().contains("PROTOCOL_ERROR"), "{status}");
        connection.authority = "localhost".into();
        let answer: Result<(), _> = connection.unary("/pluginregistration.Registration/GetInfo", &(), limit).await;
        assert_eq!(answer.unwrap_err().code(), Code::Unimplemented);
        serving.abort();
    }
}
