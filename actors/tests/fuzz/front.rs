use heddle_actors::dra::front::{Malformed, Repair};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame, valid or not.
#[derive(Clone, Debug, bolero::TypeGenerator)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u8,
    payload: Vec<u8>,
    /// The length that it claims, where that is another.
    length: Option<u16>,
}

impl Frame {
    fn bytes(&self) -> Vec<u8> {
        let length = self.length.map_or(self.payload.len(), usize::from);
        let mut bytes = length.to_be_bytes()[5..].to_vec();
        // HEADERS and CONTINUATION more often than the other 254 kinds together.
        let kind = if self.kind < 100 {
            1
        } else if self.kind < 150 {
            9
        } else {
            self.kind
        };
        bytes.extend([kind, self.flags, 0, 0, 0, self.stream]);
        bytes.extend(&self.payload);
        bytes
    }
}

fn feed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<u8>, Result<(), Malformed>) {
    let (mut repair, mut out) = (Repair::default(), Vec::new());
    for mut piece in pieces {
        while !piece.is_empty() {
            match repair.feed(piece, &mut out) {
                Ok(0) => panic!("it takes nothing and says nothing"),
                Ok(taken) => piece = &piece[taken..],
                Err(malformed) => return (out, Err(malformed)),
            }
        }
    }
    (out, Ok(()))
}

/// However the network cuts a connection into pieces, and whatever is said in it: the server reads the same, and a broken
/// connection breaks for the same reason.
#[test]
fn pieces_make_no_difference_to_any_stream() {
    bolero::check!().with_type::<(Vec<Frame>, Vec<u8>)>().with_iterations(10_000).for_each(|(frames, cuts)| {
        let stream: Vec<u8> = PREFACE.iter().copied().chain(frames.iter().flat_map(Frame::bytes)).collect();
        let whole = feed([&stream[..]]);
        let mut pieces = Vec::new();
        let mut rest = &stream[..];
        for cut in cuts {
            let (piece, after) = rest.split_at(rest.len().min(*cut as usize));
            pieces.push(piece);
            rest = after;
        }
        pieces.push(rest);
        let cut = feed(pieces);
        assert_eq!(cut.1, whole.1);
        assert_eq!(cut.0, whole.0);
        assert!(whole.0.len() <= 4 * stream.len() + 1024, "{} bytes of {}", whole.0.len(), stream.len());
    });
}

#[test]
fn what_does_not_begin_as_http2_is_refused() {
    bolero::check!().with_iterations(10_000).for_each(|bytes: &[u8]| {
        let (out, end) = feed([bytes]);
        let common = bytes.iter().zip(PREFACE).take_while(|(one, other)| one == other).count();
        if common < bytes.len().min(PREFACE.len()) {
            assert_eq!(end, Err(Malformed::Preface));
            assert!(PREFACE.starts_with(&out));
        }
    });
}
