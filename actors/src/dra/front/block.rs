//! Header blocks: decoded as the client's HPACK encoder meant them, encoded so that the server's decoder needs no memory.

use loona_hpack::Decoder;

/// The header whose value is replaced.
const AUTHORITY: &[u8] = b":authority";
/// What stands there for every other gRPC client of a unix socket.
const LOCALHOST: &[u8] = b"localhost";
/// HPACK: dynamic table size update to 0. It comes first in each block, whatever size the server's settings have:
/// smaller than any, it is always allowed, and it is the acknowledgement that a lowered setting asks for.
const EMPTY_TABLE: u8 = 0x20;
/// HPACK: a literal that is never indexed, with a literal name. The decoder does not tell which headers the client
/// marked so; marking them all keeps the client's wish in every case, and the server's table out of it.
const NEVER_INDEXED: u8 = 0x10;
/// Entries count this much more than their octets (RFC 7541, section 4.1).
const ENTRY: usize = 32;

/// Decodes `block` and puts it to `out` with `localhost` as its authority. A block whose headers take more than `limit`
/// octets is refused: one octet on the wire can stand for a header of kilobytes.
pub(super) fn repair(
    decoder: &mut Decoder<'static>,
    block: &[u8],
    limit: usize,
    out: &mut Vec<u8>,
) -> Result<(), Unfit> {
    out.push(EMPTY_TABLE);
    let mut size = 0_usize;
    let decoded = decoder.decode_with_cb(block, |name, value| {
        size = size.saturating_add(name.len() + value.len() + ENTRY);
        if size <= limit {
            out.push(NEVER_INDEXED);
            string(&name, out);
            string(if *name == *AUTHORITY { LOCALHOST } else { &value }, out);
        }
    });
    decoded.map_err(|_| Unfit::Undecodable)?;
    if size > limit {
        return Err(Unfit::TooLarge);
    }
    Ok(())
}

/// Why a block cannot be passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    Undecodable,
    TooLarge,
}

/// A string literal, not Huffman-coded.
fn string(text: &[u8], out: &mut Vec<u8>) {
    // A 7-bit prefix integer (RFC 7541, section 5.1).
    let mut length = text.len();
    if length < 0x7f {
        out.push(length as u8);
    } else {
        out.push(0x7f);
        length -= 0x7f;
        while length >= 0x80 {
            out.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        out.push(length as u8);
    }
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use loona_hpack::Encoder;

    use super::*;

    #[test]
    fn only_the_authority_changes() {
        let long = vec![b'x'; 300];
        let headers: Vec<(&[u8], &[u8])> = vec![
            (b":method", b"POST"),
            (b":authority", b"%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fx.sock"),
            (b"x-empty", b""),
            (b"x-long", &long),
            (b"x-long", &long),
        ];
        let mut encoder = Encoder::new();
        let mut decoder = Decoder::new();
        // Twice, so that the second block refers to the table that the first one filled.
        for _ in 0..2 {
            let mut out = Vec::new();
            repair(&mut decoder, &encoder.encode(headers.iter().copied()), 65_536, &mut out).unwrap();
            let repaired = Decoder::new().decode(&out).unwrap();
            let mut expected: Vec<_> = headers.iter().map(|(n, v)| (n.to_vec(), v.to_vec())).collect();
            expected[1].1 = b"localhost".to_vec();
            assert_eq!(repaired, expected);
        }
    }

    #[test]
    fn a_small_block_that_stands_for_much_is_refused() {
        let mut encoder = Encoder::new();
        let mut decoder = Decoder::new();
        let big = vec![b'x'; 3000];
        let mut out = Vec::new();
        repair(&mut decoder, &encoder.encode([(&b"a"[..], &big[..])]), 65_536, &mut out).unwrap();
        out.clear();
        // 62 is the first entry of the dynamic table.
        let bomb = [0x80 | 62; 1000];
        assert_eq!(repair(&mut decoder, &bomb, 65_536, &mut out), Err(Unfit::TooLarge));
        assert!(out.len() <= 65_536 + 1000, "{}", out.len());
    }
}
