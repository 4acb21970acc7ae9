use super::names::{domain_of, identity_name};

/// What was read from a certificate, its authority's behind it, and the key that it is to be used with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Common names and DNS names of the certificate, each once.
    pub names: Vec<String>,
    /// Whether the certificate is of the key.
    pub of_key: bool,
    /// Whether the authority's certificate has signed it.
    pub signed_by_authority: bool,
    /// Whether it may be used as server and as client.
    pub both_sides: bool,
    /// Valid from, Unix seconds.
    pub not_before: i64,
    /// Valid until, Unix seconds.
    pub not_after: i64,
    /// The IMEXDomain object that the authority was made for, by UID; empty for an authority that is not ours.
    pub authority_of: String,
}

impl Chain {
    /// The name that peers are to expect in the certificate: of one that is not ours, its first.
    pub fn name(&self) -> Option<&str> {
        self.names.first().map(String::as_str)
    }
}

/// Whether a certificate can be used for the domain at `now` (Unix seconds).
///
/// # Errors
/// Why not, in words.
pub fn usable(chain: &Chain, domain: &str, now: i64) -> Result<(), String> {
    let wanted = identity_name(domain);
    if !chain.of_key {
        return Err("it is of another key".into());
    }
    if chain.names != [wanted.as_str()] {
        let is = chain.names.join(", ");
        let whose = chain.name().and_then(domain_of).map_or(String::new(), |other| format!(" of IMEX domain {other}"));
        return Err(format!("it is for {is:?}{whose}, not for {wanted}"));
    }
    if !chain.signed_by_authority {
        return Err("the authority that came with it has not signed it".into());
    }
    if !chain.both_sides {
        return Err("it is not for server and client".into());
    }
    if now < chain.not_before {
        let ahead = chain.not_before - now;
        return Err(format!("it is valid in {ahead} s only; is the clock of this node or of the controller's wrong?"));
    }
    if now >= chain.not_after {
        return Err(format!("it has expired {} s ago", now - chain.not_after));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain() -> Chain {
        Chain {
            names: vec!["d.peer.imex.heddle.dev".into()],
            of_key: true,
            signed_by_authority: true,
            both_sides: true,
            not_before: 100,
            not_after: 200,
            authority_of: "uid".into(),
        }
    }

    #[test]
    fn what_is_not_exactly_ours_is_not_used() {
        assert_eq!(usable(&chain(), "d", 150), Ok(()));
        let other = |name: &str| vec![name.to_owned()];
        for (bad, now, says) in [
            (Chain { of_key: false, ..chain() }, 150, "another key"),
            (Chain { names: other("e.peer.imex.heddle.dev"), ..chain() }, 150, "of IMEX domain e"),
            (Chain { names: vec![], ..chain() }, 150, "not for d.peer"),
            (Chain { names: [chain().names, other("x")].concat(), ..chain() }, 150, "not for d.peer"),
            (Chain { signed_by_authority: false, ..chain() }, 150, "has not signed"),
            (Chain { both_sides: false, ..chain() }, 150, "server and client"),
            (chain(), 99, "valid in 1 s"),
            (chain(), 200, "expired 0 s ago"),
        ] {
            let why = usable(&bad, "d", now).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
    }
}
