use std::collections::BTreeMap;
use std::fmt;

use super::{DaemonState, sha256};

/// What a daemon shows its peers, all in PEM, and what it believes them by.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// The name in its certificate and in every peer's.
    pub name: String,
    /// Its certificate.
    pub certificate_pem: String,
    /// The key of that.
    pub key_pem: String,
    /// The authorities that peers are believed by.
    pub authority_pem: String,
    /// Until when, Unix seconds.
    pub not_after: i64,
}

impl fmt::Debug for Identity {
    /// Without the key: this gets into logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("name", &self.name).field("not_after", &self.not_after).finish_non_exhaustive()
    }
}

/// Longest PEM text that a runner takes: a Secret's.
const LONGEST: usize = 1 << 20;

impl Identity {
    /// Tells it from every other.
    pub fn hash(&self) -> String {
        sha256(&[self.certificate_pem.as_str(), &self.key_pem, &self.authority_pem].join("\0"))
    }

    /// Whether it can be written to files and to the daemon's configuration.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn validate(&self) -> Result<(), String> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._*".contains(&b);
        if self.name.is_empty() || self.name.len() > 253 || !self.name.bytes().all(plain) {
            return Err(format!("{:.80?} is no name that a certificate could have", self.name));
        }
        for (what, text) in
            [("certificate", &self.certificate_pem), ("key", &self.key_pem), ("authority", &self.authority_pem)]
        {
            if text.len() > LONGEST || !text.contains("-----BEGIN ") {
                return Err(format!("the {what} is no PEM of at most {LONGEST} bytes"));
            }
        }
        Ok(())
    }
}

/// Where an identity is, for the daemon.
#[derive(Clone, Debug, Default)]
pub struct IdentityFiles {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
    /// The authorities.
    pub authority: String,
}

/// The daemon's settings for TLS with its peers. The name stands in for the peers' addresses: a certificate of another
/// domain fails the handshake on either side.
pub fn identity_settings(files: &IdentityFiles, name: &str) -> BTreeMap<String, String> {
    let settings = [
        ("IMEX_ENABLE_AUTH_ENCRYPTION", "1"),
        ("IMEX_AUTH_ENCRYPTION_MODE", "SSL_TLS"),
        ("IMEX_AUTH_SOURCE", "FILE"),
        ("IMEX_SERVER_KEY", &files.key),
        ("IMEX_SERVER_CERT", &files.certificate),
        ("IMEX_SERVER_CERT_AUTH", &files.authority),
        ("IMEX_CLIENT_KEY", &files.key),
        ("IMEX_CLIENT_CERT", &files.certificate),
        ("IMEX_CLIENT_CERT_AUTH", &files.authority),
        (OVERRIDE, name),
    ];
    settings.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

const OVERRIDE: &str = "IMEX_SECURITY_TARGET_OVERRIDE";

/// The daemon's settings for Kerberos; the rest of it is the operator's.
pub fn gss_settings() -> BTreeMap<String, String> {
    [("IMEX_ENABLE_AUTH_ENCRYPTION", "1"), ("IMEX_AUTH_ENCRYPTION_MODE", "GSS_AUTH_ENCRYPT")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// The name that a daemon with these settings shows its peers; none if it takes any.
pub fn shown_name(settings: &BTreeMap<String, String>) -> Option<&str> {
    let on = settings.get("IMEX_ENABLE_AUTH_ENCRYPTION").is_some_and(|value| value == "1");
    settings.get(OVERRIDE).filter(|_| on).map(String::as_str)
}

/// What a node's daemon shows its peers, by its runner's word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Revision of the contract that the runner speaks.
    pub contract: u32,
    /// The name; empty while the daemon takes any peer.
    pub name: String,
    /// [`Identity::hash`] of what it was given.
    pub hash: String,
    /// Until when it is valid, Unix seconds.
    pub not_after: i64,
}

/// The first revision of the contract that knows of identities.
pub const IDENTITY_CONTRACT: u32 = 2;

impl Shown {
    /// Whether the daemon of `domain` can meet authenticated peers at `now`; `has` is the identity to show there, or why
    /// there is none.
    ///
    /// # Errors
    /// The reason in words.
    pub fn meets(&self, domain: &str, has: Result<&Identity, String>, now: i64) -> Result<(), String> {
        if self.contract < IDENTITY_CONTRACT {
            return Err(format!(
                "the IMEX runner of this node is too old to authenticate peers (contract {}, needed {IDENTITY_CONTRACT}): \
                 update the imex-runner DaemonSet",
                self.contract
            ));
        }
        if self.name.is_empty() {
            return Err(format!(
                "the IMEX daemon of domain {domain} takes peers without a certificate; it is restarted with one once no \
                 claim is prepared on this node"
            ));
        }
        match has {
            Ok(identity) if identity.name != self.name => Err(format!(
                "the IMEX daemon of domain {domain} shows its peers the name {}, not {}",
                self.name, identity.name
            )),
            Err(why) if now >= self.not_after => {
                Err(format!("the certificate of the IMEX daemon of domain {domain} has expired: {why}"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the daemon, which serves the identity's domain, is to be given this one in place of the one it has.
    pub fn renews(&self, identity: &Identity, state: &DaemonState) -> bool {
        self.contract >= IDENTITY_CONTRACT
            && self.name == identity.name
            && self.hash != identity.hash()
            && *state != DaemonState::ShuttingDown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        let pem = |what: &str| format!("-----BEGIN {what}-----\n");
        Identity {
            name: "d.peer.imex.heddle.dev".into(),
            certificate_pem: pem("CERTIFICATE"),
            key_pem: pem("PRIVATE KEY"),
            authority_pem: pem("CERTIFICATE"),
            not_after: 100,
        }
    }

    fn shown() -> Shown {
        Shown { contract: 2, name: identity().name, hash: identity().hash(), not_after: 100 }
    }

    #[test]
    fn a_daemon_meets_peers_as_long_as_what_it_shows_is_valid() {
        let missing = || Err("the signer is away".to_owned());
        assert_eq!(shown().meets("d", Ok(&identity()), 99), Ok(()));
        assert_eq!(shown().meets("d", missing(), 99), Ok(()), "what it has is valid");
        for (shown, has, says) in [
            (shown(), missing(), "expired: the signer is away"),
            (Shown { contract: 1, ..Shown::default() }, Ok(&identity()), "update the imex-runner"),
            (Shown { name: String::new(), ..shown() }, Ok(&identity()), "without a certificate"),
            (Shown { name: "e.x".into(), ..shown() }, Ok(&identity()), "the name e.x"),
        ] {
            let why = shown.meets("d", has, 100).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
    }

    #[test]
    fn only_another_certificate_of_the_same_name_is_a_renewal() {
        let other = Identity { certificate_pem: "-----BEGIN CERTIFICATE-----\nx".into(), ..identity() };
        assert!(shown().renews(&other, &DaemonState::Ready));
        assert!(!shown().renews(&identity(), &DaemonState::Ready));
        assert!(!shown().renews(&Identity { name: "e.x".into(), ..other.clone() }, &DaemonState::Ready));
        assert!(!Shown { contract: 1, ..shown() }.renews(&other, &DaemonState::Ready));
        assert!(!Shown { name: String::new(), ..shown() }.renews(&other, &DaemonState::Ready), "that takes a restart");
    }

    #[test]
    fn the_settings_say_whom_the_daemon_is_shown_as() {
        let files = IdentityFiles { certificate: "/i/c".into(), key: "/i/k".into(), authority: "/i/a".into() };
        let settings = identity_settings(&files, "d.x");
        assert_eq!(shown_name(&settings), Some("d.x"));
        assert_eq!(
            (settings["IMEX_CLIENT_KEY"].as_str(), settings["IMEX_SERVER_CERT_AUTH"].as_str()),
            ("/i/k", "/i/a")
        );
        assert!(settings.keys().chain(gss_settings().keys()).all(|key| super::super::setting_of(key).is_ok()));
        assert_eq!(shown_name(&gss_settings()), None);
    }

    #[test]
    fn what_would_break_a_file_is_refused() {
        assert_eq!(identity().validate(), Ok(()));
        for bad in [
            Identity { name: String::new(), ..identity() },
            Identity { name: "d\nSERVER_PORT=1".into(), ..identity() },
            Identity { key_pem: String::new(), ..identity() },
            Identity { certificate_pem: "-----BEGIN ".repeat(LONGEST), ..identity() },
        ] {
            assert!(bad.validate().is_err());
        }
        assert!(!format!("{:?}", identity()).contains("PRIVATE"));
    }
}
