//! HTTP/2 frames (RFC 9113 §4, §6), as much as unary calls need.

use tokio::io::{AsyncRead, AsyncReadExt};

/// What a client says first.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The largest payload that a peer may send unless told otherwise.
pub(super) const MAX_PAYLOAD: usize = 16_384;

pub(super) const DATA: u8 = 0x0;
pub(super) const HEADERS: u8 = 0x1;
pub(super) const RST_STREAM: u8 = 0x3;
pub(super) const SETTINGS: u8 = 0x4;
pub(super) const PING: u8 = 0x6;
pub(super) const GOAWAY: u8 = 0x7;
pub(super) const WINDOW_UPDATE: u8 = 0x8;
pub(super) const CONTINUATION: u8 = 0x9;

pub(super) const ACK: u8 = 0x1;
pub(super) const END_STREAM: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

pub(super) const SETTINGS_HEADER_TABLE_SIZE: u16 = 0x1;
pub(super) const SETTINGS_INITIAL_WINDOW_SIZE: u16 = 0x4;
pub(super) const SETTINGS_MAX_FRAME_SIZE: u16 = 0x5;

/// One frame.
#[derive(Debug)]
pub(super) struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl Frame {
    /// Its octets on the wire.
    pub(super) fn encode(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut octets = Vec::with_capacity(9 + payload.len());
        octets.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
        octets.extend([kind, flags]);
        octets.extend(stream.to_be_bytes());
        octets.extend(payload);
        octets
    }

    /// Reads the next one.
    pub(super) async fn read(from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Self> {
        let mut head = [0; 9];
        from.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        if length > MAX_PAYLOAD {
            return Err(std::io::Error::other("frame larger than allowed"));
        }
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
        let mut payload = vec![0; length];
        from.read_exact(&mut payload).await?;
        Ok(Self { kind: head[3], flags: head[4], stream, payload })
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// What is left of DATA and HEADERS without padding and priority.
    pub(super) fn content(&self) -> Option<&[u8]> {
        let mut content = &self.payload[..];
        if self.has(PADDED) {
            let (&padding, rest) = content.split_first()?;
            content = rest.get(..rest.len().checked_sub(usize::from(padding))?)?;
        }
        if self.kind == HEADERS && self.has(PRIORITY) {
            content = content.get(5..)?;
        }
        Some(content)
    }

    /// The payload's first number.
    pub(super) fn number(&self) -> u32 {
        self.payload.first_chunk().map_or(0, |octets| u32::from_be_bytes(*octets))
    }

    /// The entries of a SETTINGS frame.
    pub(super) fn settings(&self) -> impl Iterator<Item = (u16, u32)> + '_ {
        self.payload.as_chunks::<6>().0.iter().map(|entry| {
            let [a, b, value @ ..] = *entry;
            (u16::from_be_bytes([a, b]), u32::from_be_bytes(value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_come_back_as_they_went() {
        let octets = Frame::encode(HEADERS, END_HEADERS | PADDED | PRIORITY, 3, &[2, 0, 0, 0, 0, 16, 7, 8, 0, 0]);
        let frame = Frame::read(&mut &octets[..]).await.unwrap();
        assert_eq!((frame.kind, frame.stream), (HEADERS, 3));
        assert_eq!(frame.content(), Some(&[7, 8][..]));
    }

    #[tokio::test]
    async fn a_frame_beyond_the_limit_is_refused() {
        let octets = [0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1];
        assert!(Frame::read(&mut &octets[..]).await.is_err());
    }
}
