//! Request headers as grpc-go encodes them: Huffman where shorter, every field put into the dynamic table and named
//! by its index the next time. A server that only handles literals would pass a test and fail a kubelet.

use std::collections::VecDeque;

/// Entries of the static table that gRPC requests use (RFC 7541, appendix A).
const STATIC: &[(usize, &str, &str)] = &[
    (1, ":authority", ""),
    (3, ":method", "POST"),
    (4, ":path", "/"),
    (6, ":scheme", "http"),
    (31, "content-type", ""),
    (58, "user-agent", ""),
];

/// Number of entries in the static table.
const STATIC_LEN: usize = 61;

/// Huffman codes of the printable ASCII characters from space on: code and length in bits (RFC 7541, appendix B).
#[rustfmt::skip]
const HUFFMAN: [(u32, u8); 95] = [
    (0x14, 6), (0x3f8, 10), (0x3f9, 10), (0xffa, 12), (0x1ff9, 13), (0x15, 6), (0xf8, 8), (0x7fa, 11),
    (0x3fa, 10), (0x3fb, 10), (0xf9, 8), (0x7fb, 11), (0xfa, 8), (0x16, 6), (0x17, 6), (0x18, 6), (0x0, 5),
    (0x1, 5), (0x2, 5), (0x19, 6), (0x1a, 6), (0x1b, 6), (0x1c, 6), (0x1d, 6), (0x1e, 6), (0x1f, 6), (0x5c, 7),
    (0xfb, 8), (0x7ffc, 15), (0x20, 6), (0xffb, 12), (0x3fc, 10), (0x1ffa, 13), (0x21, 6), (0x5d, 7),
    (0x5e, 7), (0x5f, 7), (0x60, 7), (0x61, 7), (0x62, 7), (0x63, 7), (0x64, 7), (0x65, 7), (0x66, 7),
    (0x67, 7), (0x68, 7), (0x69, 7), (0x6a, 7), (0x6b, 7), (0x6c, 7), (0x6d, 7), (0x6e, 7), (0x6f, 7),
    (0x70, 7), (0x71, 7), (0x72, 7), (0xfc, 8), (0x73, 7), (0xfd, 8), (0x1ffb, 13), (0x7fff0, 19),
    (0x1ffc, 13), (0x3ffc, 14), (0x22, 6), (0x7ffd, 15), (0x3, 5), (0x23, 6), (0x4, 5), (0x24, 6), (0x5, 5),
    (0x25, 6), (0x26, 6), (0x27, 6), (0x6, 5), (0x74, 7), (0x75, 7), (0x28, 6), (0x29, 6), (0x2a, 6), (0x7, 5),
    (0x2b, 6), (0x76, 7), (0x2c, 6), (0x8, 5), (0x9, 5), (0x2d, 6), (0x77, 7), (0x78, 7), (0x79, 7), (0x7a, 7),
    (0x7b, 7), (0x7ffe, 15), (0x7fc, 11), (0x3ffd, 14), (0x1ffd, 13),
];

/// Encodes the header blocks of one connection.
pub(super) struct Encoder {
    dynamic: VecDeque<(String, String)>,
    limit: usize,
    announce: bool,
}

impl Encoder {
    pub(super) fn new() -> Self {
        Self { dynamic: VecDeque::new(), limit: 4096, announce: false }
    }

    /// The peer keeps no more than `size` octets of dynamic table.
    pub(super) fn limit(&mut self, size: usize) {
        if size < self.limit {
            self.limit = size;
            self.announce = true;
            self.evict();
        }
    }

    /// Encodes one header block.
    pub(super) fn encode(&mut self, fields: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Vec::new();
        if std::mem::take(&mut self.announce) {
            integer(&mut block, 0x20, 5, self.limit);
        }
        for (name, value) in fields {
            self.field(&mut block, name, value);
        }
        block
    }

    fn field(&mut self, block: &mut Vec<u8>, name: &str, value: &str) {
        let (index, whole) = self.find(name, value);
        if whole {
            return integer(block, 0x80, 7, index);
        }
        let fits = size(name, value) <= self.limit;
        if fits {
            integer(block, 0x40, 6, index);
        } else {
            integer(block, 0x00, 4, index);
        }
        if index == 0 {
            string(block, name);
        }
        string(block, value);
        if fits {
            self.dynamic.push_front((name.to_owned(), value.to_owned()));
            self.evict();
        }
    }

    /// Index of the field, or of its name, or 0; and whether the value is the same.
    fn find(&self, name: &str, value: &str) -> (usize, bool) {
        let fixed = STATIC.iter().find(|(_, n, _)| *n == name);
        if let Some((index, ..)) = fixed.filter(|(_, _, v)| *v == value) {
            return (*index, true);
        }
        let whole = self.dynamic.iter().position(|(n, v)| n == name && v == value);
        if let Some(position) = whole {
            return (STATIC_LEN + 1 + position, true);
        }
        if let Some((index, ..)) = fixed {
            return (*index, false);
        }
        let named = self.dynamic.iter().position(|(n, _)| n == name);
        (named.map_or(0, |position| STATIC_LEN + 1 + position), false)
    }

    fn evict(&mut self) {
        while self.dynamic.iter().map(|(name, value)| size(name, value)).sum::<usize>() > self.limit {
            self.dynamic.pop_back();
        }
    }
}

fn size(name: &str, value: &str) -> usize {
    name.len() + value.len() + 32
}

fn integer(block: &mut Vec<u8>, pattern: u8, prefix: u32, value: usize) {
    let most = (1_usize << prefix) - 1;
    if value < most {
        block.push(pattern | value as u8);
        return;
    }
    block.push(pattern | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        block.push((rest as u8 & 0x7f) | 0x80);
        rest >>= 7;
    }
    block.push(rest as u8);
}

fn string(block: &mut Vec<u8>, text: &str) {
    match huffman(text).filter(|coded| coded.len() < text.len()) {
        Some(coded) => {
            integer(block, 0x80, 7, coded.len());
            block.extend(coded);
        }
        None => {
            integer(block, 0x00, 7, text.len());
            block.extend(text.as_bytes());
        }
    }
}

/// `None` if it holds anything but printable ASCII.
fn huffman(text: &str) -> Option<Vec<u8>> {
    let mut coded = Vec::with_capacity(text.len());
    let (mut bits, mut count) = (0_u64, 0_u8);
    for byte in text.bytes() {
        let (code, length) = *HUFFMAN.get(usize::from(byte.checked_sub(0x20)?))?;
        bits = bits << length | u64::from(code);
        count += length;
        while count >= 8 {
            count -= 8;
            coded.push((bits >> count) as u8);
        }
    }
    if count > 0 {
        // The end is padded with the most significant bits of end-of-string, which are ones.
        coded.push((bits << (8 - count)) as u8 | (0xff >> count));
    }
    Some(coded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(decoder: &mut loona_hpack::Decoder<'_>, block: &[u8]) -> Vec<(String, String)> {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        decoder.decode(block).unwrap().into_iter().map(|(name, value)| (text(name), text(value))).collect()
    }

    #[test]
    fn a_decoder_reads_what_was_meant() {
        let printable: String = (0x20..0x7f_u8).map(char::from).collect();
        let first = [(":method", "POST"), (":authority", "%2Fvar%2Flib"), ("te", "trailers"), ("all", &printable)];
        let second = [(":authority", "%2Fvar%2Flib"), ("te", "other"), ("grpc-timeout", "1S")];
        let (mut encoder, mut decoder) = (Encoder::new(), loona_hpack::Decoder::new());
        for fields in [&first[..], &second[..], &first[..]] {
            let block = encoder.encode(fields);
            let expected: Vec<_> = fields.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
            assert_eq!(decode(&mut decoder, &block), expected);
        }
    }

    #[test]
    fn the_authority_is_huffman_coded_first_and_an_index_then() {
        let mut encoder = Encoder::new();
        let fields = [(":authority", "%2Fvar%2Flib%2Fkubelet")];
        let block = encoder.encode(&fields);
        assert_eq!(block[0], 0x41);
        assert_eq!(block[1] & 0x80, 0x80);
        assert_eq!(encoder.encode(&fields), [0x80 | 62]);
    }

    #[test]
    fn a_smaller_table_is_announced_and_kept() {
        let (mut encoder, mut decoder) = (Encoder::new(), loona_hpack::Decoder::new());
        let fields = [("name", "value")];
        decode(&mut decoder, &encoder.encode(&fields));
        encoder.limit(0);
        let block = encoder.encode(&fields);
        assert_eq!(block[0], 0x20);
        assert_eq!(decode(&mut decoder, &block), [("name".to_owned(), "value".to_owned())]);
    }
}
