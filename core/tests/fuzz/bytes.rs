//! Changes of a good file: random bytes alone never get past the first brace.

/// One change.
#[derive(Clone, Debug, bolero::TypeGenerator)]
pub enum Edit {
    /// Another byte there.
    Replace(u16, u8),
    /// One more byte there.
    Insert(u16, u8),
    /// As many bytes less from there.
    Remove(u16, u8),
    /// The bytes from there once more, at the second place.
    Copy(u16, u16, u8),
    /// Nothing from there on.
    Cut(u16),
}

/// `good` with all changes done, in their order.
pub fn changed(good: &[u8], edits: &[Edit]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    for edit in edits {
        let within = |at: u16| at as usize % (bytes.len() + 1);
        match *edit {
            Edit::Replace(at, byte) if within(at) < bytes.len() => {
                let at = within(at);
                bytes[at] = byte;
            }
            Edit::Replace(..) => {}
            Edit::Insert(at, byte) => bytes.insert(within(at), byte),
            Edit::Remove(at, count) => {
                let from = within(at);
                bytes.drain(from..bytes.len().min(from + count as usize));
            }
            Edit::Copy(from, to, count) => {
                let (from, to) = (within(from), within(to));
                let piece = bytes[from..bytes.len().min(from + count as usize)].to_vec();
                bytes.splice(to..to, piece);
            }
            Edit::Cut(at) => bytes.truncate(within(at)),
        }
    }
    bytes
}
