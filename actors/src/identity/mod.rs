//! The X.509 of peer identities: authorities, requests, certificates. Nothing here does I/O, and nothing reads a clock.

mod authority;
mod chain;
mod key;
mod request;

pub use authority::{AUTHORITY_LIFE, Authority};
pub use chain::chain;
pub use key::{new_key, request};
pub use request::read;

use x509_parser::pem::Pem;

/// Longer texts than this are no certificate or request of a peer.
const LONGEST: usize = 16 << 10;

/// A PEM text, cut before each part.
pub fn sections(text: &str) -> Vec<&str> {
    const BEGIN: &str = "-----BEGIN ";
    let starts: Vec<usize> = text.match_indices(BEGIN).map(|(at, _)| at).collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts.iter().zip(ends).map(|(start, end)| &text[*start..end]).collect()
}

/// The parts of a PEM file that have this label, or why it has none.
fn parts(text: &str, label: &str) -> Result<Vec<Pem>, String> {
    if text.len() > LONGEST {
        return Err(format!("it has more than {LONGEST} bytes"));
    }
    let all: Vec<Pem> = Pem::iter_from_buffer(text.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| format!("it is no PEM: {error}"))?;
    let parts: Vec<Pem> = all.into_iter().filter(|part| part.label == label).collect();
    if parts.is_empty() { Err(format!("it holds no {label}")) } else { Ok(parts) }
}

#[cfg(test)]
mod tests;
