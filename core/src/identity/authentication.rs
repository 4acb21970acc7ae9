use std::fmt;
use std::str::FromStr;

/// How the daemons of an IMEX domain know that a peer is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Authentication {
    /// TLS with an authority for each IMEX domain, in the controller.
    #[default]
    DomainCa,
    /// TLS with certificates that somebody else puts into a folder of each node.
    Files,
    /// Kerberos, by GSS.
    Gss,
    /// Not at all: whoever reaches the port is a peer.
    Insecure,
}

impl Authentication {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::DomainCa, Self::Files, Self::Gss, Self::Insecure];
}

impl fmt::Display for Authentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DomainCa => "domain-ca",
            Self::Files => "files",
            Self::Gss => "gss",
            Self::Insecure => "insecure",
        })
    }
}

impl FromStr for Authentication {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|known| known.to_string() == text);
        found.ok_or_else(|| format!("expected one of {}", Self::ALL.map(|known| known.to_string()).join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_read_as_it_is_written() {
        for known in Authentication::ALL {
            assert_eq!(known.to_string().parse(), Ok(known));
        }
        assert!("none".parse::<Authentication>().unwrap_err().contains("insecure"));
    }
}
