//! The client's side of a connection, bytes in and bytes out: every header block gets `localhost` as its authority, all
//! else passes as it is.

use loona_hpack::Decoder;

use super::block::{self, Unfit};
use super::frame::{
    CONTINUATION, END_HEADERS, END_STREAM, HEADERS, Head, HeadReader, MAX_PAYLOAD, PADDED, PREFACE, PRIORITY,
};

/// Octets of a header block, on the wire and of its headers. grpc-go's own limit for what it takes is as large.
const BLOCK: usize = 64 * 1024;
/// Frames of a header block: 64 KiB need five.
const BLOCK_FRAMES: usize = 16;
/// Output after which [`Repair::feed`] stops, so that small input which stands for much is taken in portions.
const PORTION: usize = 16 * 1024;

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The first bytes are not HTTP/2's.
    #[error("the peer does not speak HTTP/2")]
    Preface,
    /// Padding or priority do not fit into their frame.
    #[error("a HEADERS frame is shorter than its flags say")]
    Length,
    /// A header block is interrupted by another frame, or goes on without having begun.
    #[error("a header block is interrupted by a frame of another kind")]
    Interrupted,
    /// A header block is larger than the front takes.
    #[error("a header block is larger than 64 KiB, or cut into too many frames")]
    TooLarge,
    /// A header block is not HPACK.
    #[error("a header block cannot be decoded")]
    Undecodable,
}

/// The repair of one connection.
pub struct Repair {
    /// As old as the connection, like the client's encoder that it mirrors.
    decoder: Decoder<'static>,
    table_size: u32,
    head: HeadReader,
    at: At,
    block: Option<Block>,
}

/// Where in the stream the next byte belongs.
#[derive(Clone, Copy, Debug)]
enum At {
    /// So many octets of the preface have come.
    Preface(usize),
    Head,
    /// A payload that passes; so many octets are left.
    Passing(usize),
    /// A payload that is collected; so many octets are left.
    Collecting(usize),
}

/// A header block that is not whole yet.
struct Block {
    stream: u32,
    end_stream: bool,
    frames: usize,
    /// The frame at hand.
    head: Head,
    payload: Vec<u8>,
    /// The fragments of the frames before.
    fragments: Vec<u8>,
}

impl std::fmt::Debug for Repair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Repair").field("at", &self.at).finish_non_exhaustive()
    }
}

impl Default for Repair {
    fn default() -> Self {
        // SETTINGS_HEADER_TABLE_SIZE begins with 4096; the decoder must be told, or it takes any size.
        let table_size = 4096;
        let mut decoder = Decoder::new();
        decoder.set_max_allowed_table_size(table_size as usize);
        Self { decoder, table_size, head: HeadReader::default(), at: At::Preface(0), block: None }
    }
}

impl Repair {
    /// Takes bytes from the client and appends what the server is to read instead. Takes fewer bytes than it is given
    /// once it has put out a portion; says how many it took.
    pub fn feed(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, Malformed> {
        let mut rest = input;
        let full = out.len() + PORTION;
        while !rest.is_empty() && out.len() < full {
            match self.at {
                At::Preface(seen) => {
                    let want = &PREFACE[seen..];
                    let (have, after) = rest.split_at(rest.len().min(want.len()));
                    if !want.starts_with(have) {
                        return Err(Malformed::Preface);
                    }
                    out.extend_from_slice(have);
                    rest = after;
                    let seen = seen + have.len();
                    self.at = if seen == PREFACE.len() { At::Head } else { At::Preface(seen) };
                }
                At::Head => {
                    if let Some(head) = self.head.read(&mut rest) {
                        self.begin(head, out)?;
                    }
                }
                At::Passing(left) => {
                    let (passing, after) = rest.split_at(rest.len().min(left));
                    out.extend_from_slice(passing);
                    rest = after;
                    self.at = if passing.len() == left { At::Head } else { At::Passing(left - passing.len()) };
                }
                At::Collecting(left) => {
                    let (collected, after) = rest.split_at(rest.len().min(left));
                    rest = after;
                    if let Some(block) = &mut self.block {
                        block.payload.extend_from_slice(collected);
                    }
                    self.at = At::Collecting(left - collected.len());
                    if collected.len() == left {
                        self.at = At::Head;
                        self.collected(out)?;
                    }
                }
            }
        }
        Ok(input.len() - rest.len())
    }

    /// The server allows the client a table of this size from now on. What was allowed before stays so: when the client
    /// has heard of a smaller size is its own business, and the server never sees its table.
    pub fn allow_table_size(&mut self, size: u32) {
        if size > self.table_size {
            self.table_size = size;
            self.decoder.set_max_allowed_table_size(size as usize);
        }
    }

    fn begin(&mut self, head: Head, out: &mut Vec<u8>) -> Result<(), Malformed> {
        match (&mut self.block, head.kind) {
            (None, HEADERS) => {
                self.block = Some(Block {
                    stream: head.stream,
                    end_stream: head.has(END_STREAM),
                    frames: 1,
                    head,
                    payload: Vec::new(),
                    fragments: Vec::new(),
                });
            }
            (Some(block), CONTINUATION) if block.stream == head.stream => {
                block.frames += 1;
                block.head = head;
            }
            (Some(_), _) | (None, CONTINUATION) => return Err(Malformed::Interrupted),
            (None, _) => {
                head.write(out);
                self.at = if head.length == 0 { At::Head } else { At::Passing(head.length) };
                return Ok(());
            }
        }
        let block = self.block.as_ref().ok_or(Malformed::Interrupted)?;
        if block.frames > BLOCK_FRAMES || block.fragments.len() + head.length > BLOCK {
            return Err(Malformed::TooLarge);
        }
        self.at = At::Collecting(head.length);
        if head.length == 0 {
            self.at = At::Head;
            self.collected(out)?;
        }
        Ok(())
    }

    /// A HEADERS or CONTINUATION frame is whole.
    fn collected(&mut self, out: &mut Vec<u8>) -> Result<(), Malformed> {
        let Some(mut block) = self.block.take() else { return Err(Malformed::Interrupted) };
        let payload = std::mem::take(&mut block.payload);
        block.fragments.extend_from_slice(fragment(block.head, &payload)?);
        if !block.head.has(END_HEADERS) {
            self.block = Some(block);
            return Ok(());
        }
        let mut repaired = Vec::with_capacity(block.fragments.len() + 128);
        block::repair(&mut self.decoder, &block.fragments, BLOCK, &mut repaired).map_err(|unfit| match unfit {
            Unfit::Undecodable => Malformed::Undecodable,
            Unfit::TooLarge => Malformed::TooLarge,
        })?;
        write_block(block.stream, block.end_stream, &repaired, out);
        Ok(())
    }
}

/// The piece of a header block in a frame, without padding and priority. (Priority is advice that HTTP/2 has given up;
/// it is not passed on.)
fn fragment(head: Head, payload: &[u8]) -> Result<&[u8], Malformed> {
    if head.kind != HEADERS {
        return Ok(payload);
    }
    let mut fragment = payload;
    let mut padding = 0;
    if head.has(PADDED) {
        let (length, rest) = fragment.split_first().ok_or(Malformed::Length)?;
        padding = usize::from(*length);
        fragment = rest;
    }
    if head.has(PRIORITY) {
        fragment = fragment.get(5..).ok_or(Malformed::Length)?;
    }
    let length = fragment.len().checked_sub(padding).ok_or(Malformed::Length)?;
    Ok(&fragment[..length])
}

/// A block as one HEADERS frame, followed by CONTINUATIONs if it is too large for one.
fn write_block(stream: u32, end_stream: bool, block: &[u8], out: &mut Vec<u8>) {
    let mut kind = HEADERS;
    let mut flags = if end_stream { END_STREAM } else { 0 };
    let mut pieces = block.chunks(MAX_PAYLOAD).peekable();
    while let Some(piece) = pieces.next() {
        if pieces.peek().is_none() {
            flags |= END_HEADERS;
        }
        Head { length: piece.len(), kind, flags, stream }.write(out);
        out.extend_from_slice(piece);
        kind = CONTINUATION;
        flags = 0;
    }
}

#[cfg(test)]
mod tests {
    use loona_hpack::Encoder;
    use proptest::prelude::*;

    use super::super::frame::{HEADER, SETTINGS};
    use super::*;

    const DATA: u8 = 0x0;

    /// Feeds the pieces one after the other, each until it is taken.
    fn feed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<u8>, Result<(), Malformed>) {
        let mut repair = Repair::default();
        let mut out = Vec::new();
        for mut piece in pieces {
            while !piece.is_empty() {
                match repair.feed(piece, &mut out) {
                    Ok(taken) => piece = &piece[taken..],
                    Err(malformed) => return (out, Err(malformed)),
                }
            }
        }
        (out, Ok(()))
    }

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        Head { length: payload.len(), kind, flags, stream }.write(&mut frame);
        frame.extend_from_slice(payload);
        frame
    }

    fn opened(frames: &[Vec<u8>]) -> Vec<u8> {
        [PREFACE, &frames.concat()].concat()
    }

    fn frames(mut stream: &[u8]) -> Vec<(Head, Vec<u8>)> {
        let mut frames = Vec::new();
        stream = stream.strip_prefix(PREFACE).expect("the preface passes");
        while let Some((head, rest)) = stream.split_first_chunk::<HEADER>() {
            let head = Head::parse(head);
            let (payload, rest) = rest.split_at(head.length);
            frames.push((head, payload.to_vec()));
            stream = rest;
        }
        assert!(stream.is_empty());
        frames
    }

    fn block(headers: &[(&[u8], &[u8])]) -> Vec<u8> {
        Encoder::new().encode(headers.iter().copied())
    }

    #[test]
    fn what_is_no_header_block_passes_as_it_is() {
        let stream = opened(&[
            frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff]),
            frame(DATA, 1, 1, b"hello"),
            frame(0x42, 0xff, 0x7fff_ffff, &[]),
            frame(DATA, 0, 1, &[7; 40_000]),
        ]);
        assert_eq!(feed([&stream[..]]), (stream, Ok(())));
    }

    #[test]
    fn a_block_becomes_one_frame_of_the_same_stream() {
        let block = block(&[(b":authority", b"%2Frun"), (b"te", b"trailers")]);
        let mut padded = vec![2, 0x80, 0, 0, 3, 9];
        padded.extend(&block);
        padded.extend([0, 0]);
        let (out, end) =
            feed([&opened(&[frame(HEADERS, END_STREAM | END_HEADERS | PADDED | PRIORITY, 5, &padded)])[..]]);
        assert_eq!(end, Ok(()));
        let [(head, payload)] = &frames(&out)[..] else { panic!("more than one frame") };
        assert_eq!((head.kind, head.flags, head.stream), (HEADERS, END_STREAM | END_HEADERS, 5));
        let headers = Decoder::new().decode(payload).unwrap();
        let expected = [(&b":authority"[..], &b"localhost"[..]), (b"te", b"trailers")];
        assert_eq!(headers, expected.map(|(name, value)| (name.to_vec(), value.to_vec())));
    }

    #[test]
    fn a_block_that_outgrows_a_frame_goes_on_in_continuations() {
        // Huffman makes it small on the way in.
        let long = vec![b'a'; 40_000];
        let block = block(&[(b":authority", b"x"), (b"long", &long)]);
        let pieces: Vec<_> = block.chunks(10_000).collect();
        let mut stream = vec![frame(HEADERS, END_STREAM, 1, pieces[0])];
        for (at, piece) in pieces.iter().enumerate().skip(1) {
            stream.push(frame(CONTINUATION, if at + 1 == pieces.len() { END_HEADERS } else { 0 }, 1, piece));
        }
        let (out, end) = feed([&opened(&stream)[..]]);
        assert_eq!(end, Ok(()));
        let frames = frames(&out);
        let shape: Vec<_> = frames.iter().map(|(head, _)| (head.kind, head.flags)).collect();
        assert_eq!(shape, [(HEADERS, END_STREAM), (CONTINUATION, 0), (CONTINUATION, END_HEADERS)]);
        assert!(frames.iter().all(|(head, _)| head.length <= MAX_PAYLOAD && head.stream == 1));
        let joined: Vec<u8> = frames.into_iter().flat_map(|(_, payload)| payload).collect();
        assert_eq!(Decoder::new().decode(&joined).unwrap()[1].1, long);
    }

    #[test]
    fn the_table_is_as_large_as_the_server_allows() {
        // A dynamic table size update to 8192, and a header so that it is not the block's last word.
        let update = [0x3f, 0xe1, 0x3f, 0x82];
        let stream = opened(&[frame(HEADERS, END_HEADERS, 1, &update)]);
        let mut repair = Repair::default();
        assert_eq!(repair.feed(&stream, &mut Vec::new()), Err(Malformed::Undecodable));
        let mut repair = Repair::default();
        repair.allow_table_size(8192);
        repair.allow_table_size(100);
        assert_eq!(repair.feed(&stream, &mut Vec::new()), Ok(stream.len()));
    }

    #[test]
    fn what_is_malformed_is_told() {
        let block = block(&[(b"te", b"trailers")]);
        let cases: &[(Vec<u8>, Malformed)] = &[
            (b"PRI * HTTP/1.1".to_vec(), Malformed::Preface),
            (opened(&[frame(HEADERS, PADDED | END_HEADERS, 1, &[])]), Malformed::Length),
            (opened(&[frame(HEADERS, PADDED | END_HEADERS, 1, &[9, 0x82])]), Malformed::Length),
            (opened(&[frame(HEADERS, PRIORITY | END_HEADERS, 1, &[0; 4])]), Malformed::Length),
            (opened(&[frame(HEADERS, 0, 1, &block), frame(DATA, 0, 1, &[])]), Malformed::Interrupted),
            (opened(&[frame(HEADERS, 0, 1, &block), frame(HEADERS, 0, 1, &block)]), Malformed::Interrupted),
            (opened(&[frame(HEADERS, 0, 1, &block), frame(CONTINUATION, 0, 3, &block)]), Malformed::Interrupted),
            (opened(&[frame(CONTINUATION, END_HEADERS, 1, &block)]), Malformed::Interrupted),
            (opened(&[frame(HEADERS, END_HEADERS, 1, &[0x80])]), Malformed::Undecodable),
            (opened(&[frame(HEADERS, 0, 1, &[0; 65_537])]), Malformed::TooLarge),
            (
                opened(&[vec![frame(HEADERS, 0, 1, &[])], vec![frame(CONTINUATION, 0, 1, &[]); 16]].concat()),
                Malformed::TooLarge,
            ),
        ];
        for (stream, malformed) in cases {
            assert_eq!(feed([&stream[..]]).1, Err(*malformed));
        }
    }

    #[test]
    fn output_comes_in_portions() {
        let big = vec![b'x'; 3000];
        let mut stream = opened(&[frame(HEADERS, END_HEADERS, 1, &block(&[(b"big", &big)]))]);
        for _ in 0..1000 {
            // Each asks for the first entry of the table again.
            stream.extend(frame(HEADERS, END_HEADERS, 3, &[0xbe; 10]));
        }
        let mut repair = Repair::default();
        let mut out = Vec::new();
        let taken = repair.feed(&stream, &mut out).unwrap();
        assert!(taken < stream.len());
        assert!(out.len() <= PORTION + BLOCK + 1024, "{}", out.len());
    }

    type Headers = Vec<(Vec<u8>, Vec<u8>)>;

    /// A stream of frames with good header blocks, encoded by one encoder, and the headers in it.
    fn streams() -> impl Strategy<Value = (Vec<u8>, Vec<Headers>)> {
        let name =
            prop_oneof![Just(b":authority".to_vec()), Just(b"te".to_vec()), "[a-z]{1,12}".prop_map(String::into_bytes)];
        let headers = prop::collection::vec((name, prop::collection::vec(any::<u8>(), 0..40)), 1..8);
        let other = prop::collection::vec(any::<u8>(), 0..200);
        prop::collection::vec((headers, other, 1..5_usize, any::<bool>()), 1..6).prop_map(|parts| {
            let mut encoder = Encoder::new();
            let mut stream = PREFACE.to_vec();
            let mut all = Vec::new();
            for (headers, other, cuts, padded) in parts {
                stream.extend(frame(DATA, 0, 1, &other));
                let block = encoder.encode(headers.iter().map(|(name, value)| (&name[..], &value[..])));
                let pieces: Vec<_> = block.chunks(block.len().div_ceil(cuts)).collect();
                for (at, piece) in pieces.iter().enumerate() {
                    let end = if at + 1 == pieces.len() { END_HEADERS } else { 0 };
                    match (at, padded) {
                        (0, true) => stream.extend(frame(HEADERS, end | PADDED, 1, &[&[3], *piece, &[0; 3]].concat())),
                        (0, false) => stream.extend(frame(HEADERS, end, 1, piece)),
                        _ => stream.extend(frame(CONTINUATION, end, 1, piece)),
                    }
                }
                all.push(headers);
            }
            (stream, all)
        })
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference((stream, headers) in streams(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20)) {
            let (out, end) = feed([&stream[..]]);
            prop_assert_eq!(end, Ok(()));
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len())).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]]);
            prop_assert_eq!(&feed(pieces), &(out.clone(), Ok(())));
            // One decoder for the whole connection, as the server has it.
            let mut decoder = Decoder::new();
            let repaired: Vec<_> = frames(&out)
                .iter()
                .filter(|(head, _)| head.kind == HEADERS)
                .map(|(_, payload)| decoder.decode(payload).unwrap())
                .collect();
            let expected: Vec<Headers> = headers
                .into_iter()
                .map(|block| {
                    let local = |(name, value)| if name == b":authority" { (name, b"localhost".to_vec()) } else { (name, value) };
                    block.into_iter().map(local).collect()
                })
                .collect();
            prop_assert_eq!(repaired, expected);
        }

        #[test]
        fn nothing_that_a_peer_says_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = feed([&bytes[..]]);
            let _ = feed([PREFACE, &bytes]);
            let _ = feed([&opened(&[frame(HEADERS, END_HEADERS, 1, &bytes), frame(HEADERS, END_HEADERS, 1, &bytes)])[..]]);
            let _ = feed([&opened(&[frame(HEADERS, END_HEADERS | PADDED | PRIORITY, 1, &bytes)])[..]]);
        }
    }
}
