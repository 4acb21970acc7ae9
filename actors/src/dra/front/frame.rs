//! HTTP/2 frames, as far as the front must know them (RFC 9113, section 4 and 6).

/// Octets of a frame's header.
pub(super) const HEADER: usize = 9;
/// What a client says first.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// A payload that every peer takes: the smallest value of SETTINGS_MAX_FRAME_SIZE.
pub(super) const MAX_PAYLOAD: usize = 16_384;

pub(super) const HEADERS: u8 = 0x1;
pub(super) const SETTINGS: u8 = 0x4;
pub(super) const CONTINUATION: u8 = 0x9;

pub(super) const END_STREAM: u8 = 0x1;
pub(super) const ACK: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
pub(super) const PADDED: u8 = 0x8;
pub(super) const PRIORITY: u8 = 0x20;

pub(super) const SETTINGS_HEADER_TABLE_SIZE: u16 = 0x1;

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl Head {
    pub(super) fn parse(octets: &[u8; HEADER]) -> Self {
        let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = *octets;
        Self {
            length: u32::from_be_bytes([0, l0, l1, l2]) as usize,
            kind,
            flags,
            // The highest bit is reserved and means nothing.
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & 0x7fff_ffff,
        }
    }

    pub(super) fn write(self, out: &mut Vec<u8>) {
        let length = u32::try_from(self.length).expect("payloads are cut to the frame size").to_be_bytes();
        out.extend_from_slice(&length[1..]);
        out.extend_from_slice(&[self.kind, self.flags]);
        out.extend_from_slice(&self.stream.to_be_bytes());
    }

    pub(super) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Reads frame headers out of a stream of bytes that comes in any pieces.
#[derive(Debug, Default)]
pub(super) struct HeadReader {
    octets: [u8; HEADER],
    have: usize,
}

impl HeadReader {
    /// Takes what it needs off the front of `input`; the header, once it is whole.
    pub(super) fn read(&mut self, input: &mut &[u8]) -> Option<Head> {
        let take = input.len().min(HEADER - self.have);
        let (taken, rest) = input.split_at(take);
        self.octets[self.have..self.have + take].copy_from_slice(taken);
        self.have += take;
        *input = rest;
        if self.have < HEADER {
            return None;
        }
        self.have = 0;
        Some(Head::parse(&self.octets))
    }
}

/// Listens to what the server says about the size of the client encoder's table: it is the server's setting that
/// governs what the client may send, and so what the front's decoder must accept.
#[derive(Debug, Default)]
pub(super) struct ServerSettings {
    head: HeadReader,
    /// Octets left of the frame at hand, and whether it is a SETTINGS frame with content.
    left: usize,
    settings: bool,
    entry: [u8; 6],
    have: usize,
}

impl ServerSettings {
    /// Sees bytes on their way to the client; the largest table size announced in them.
    pub(super) fn see(&mut self, mut bytes: &[u8]) -> Option<u32> {
        let mut announced = None;
        while !bytes.is_empty() {
            if self.left == 0 {
                if let Some(head) = self.head.read(&mut bytes) {
                    self.left = head.length;
                    self.settings = head.kind == SETTINGS && !head.has(ACK);
                    self.have = 0;
                }
                continue;
            }
            let (payload, rest) = bytes.split_at(bytes.len().min(self.left));
            bytes = rest;
            self.left -= payload.len();
            if self.settings {
                for octet in payload {
                    self.entry[self.have] = *octet;
                    self.have += 1;
                    if self.have == self.entry.len() {
                        self.have = 0;
                        let [i0, i1, v0, v1, v2, v3] = self.entry;
                        if u16::from_be_bytes([i0, i1]) == SETTINGS_HEADER_TABLE_SIZE {
                            announced = announced.max(Some(u32::from_be_bytes([v0, v1, v2, v3])));
                        }
                    }
                }
            }
        }
        announced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_reads_as_written() {
        let head = Head { length: 0x01_02_03, kind: HEADERS, flags: END_HEADERS, stream: 7 };
        let mut octets = Vec::new();
        head.write(&mut octets);
        assert_eq!(octets, [1, 2, 3, 1, 4, 0, 0, 0, 7]);
        assert_eq!(HeadReader::default().read(&mut octets.as_slice()), Some(head));
    }

    #[test]
    fn the_servers_table_size_is_heard_in_any_pieces() {
        let mut stream = Vec::new();
        Head { length: 12, kind: SETTINGS, flags: 0, stream: 0 }.write(&mut stream);
        stream.extend([0, 3, 0, 0, 0, 9, 0, 1, 0, 0, 0x20, 0]);
        Head { length: 0, kind: SETTINGS, flags: ACK, stream: 0 }.write(&mut stream);
        Head { length: 6, kind: 0, flags: 0, stream: 1 }.write(&mut stream);
        stream.extend([0, 1, 0, 0, 0xff, 0xff]);
        for piece in 1..stream.len() {
            let mut settings = ServerSettings::default();
            let heard: Vec<_> = stream.chunks(piece).filter_map(|bytes| settings.see(bytes)).collect();
            assert_eq!(heard, [0x2000], "in pieces of {piece}");
        }
    }
}
