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
