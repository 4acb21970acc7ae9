/// `spec.signerName` of the requests for peer certificates.
pub const SIGNER: &str = "imex.heddle.dev/peer";
/// `spec.usages` of such a request: exactly these. A daemon is its peers' server and their client.
pub const USAGES: [&str; 3] = ["client auth", "digital signature", "server auth"];
/// Label of the Secrets that hold the keys of the authorities; its value is the name of the IMEXDomain.
pub const AUTHORITY_LABEL: &str = "imex.heddle.dev/peer-ca";

/// Behind the name of the IMEXDomain: a name that no DNS answers for.
const SUFFIX: &str = ".peer.imex.heddle.dev";
/// An object's name has at most 253 characters, and the rest of a request's name takes some.
const NODE_IN_NAME: usize = 200;

/// The name in the certificates of an IMEX domain's daemons: one for all of them.
pub fn identity_name(domain: &str) -> String {
    format!("{domain}{SUFFIX}")
}

/// The IMEXDomain of an identity name.
pub(super) fn domain_of(name: &str) -> Option<&str> {
    name.strip_suffix(SUFFIX).filter(|domain| is_domain_name(domain))
}

/// Whether it can be the name of an IMEXDomain, and so of a folder: lower-case letters, digits and dashes, at most 63.
pub fn is_domain_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty() && text.len() <= 63 && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// The Secret with the authority of an IMEX domain.
pub fn authority_secret(domain: &str) -> String {
    format!("heddle-peer-ca-{domain}")
}

/// How the names of a node's requests begin.
pub fn request_prefix(node: &str) -> String {
    let cut: String = node.chars().take(NODE_IN_NAME).collect();
    format!("heddle-peer-{}-", cut.trim_end_matches(['.', '-']))
}

/// The name of one request of a node.
pub fn request_name(node: &str, random: u64) -> String {
    format!("{}{random:016x}", request_prefix(node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_its_domain_and_no_other() {
        assert_eq!(identity_name("shared-0a1b2c3d4e5f"), "shared-0a1b2c3d4e5f.peer.imex.heddle.dev");
        assert_eq!(domain_of("shared-0a.peer.imex.heddle.dev"), Some("shared-0a"));
        for odd in
            ["", "peer.imex.heddle.dev", ".peer.imex.heddle.dev", "a.b.peer.imex.heddle.dev", "*.peer.imex.heddle.dev"]
        {
            assert_eq!(domain_of(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn a_domains_name_is_a_folders_name() {
        for bad in ["", ".", "..", "a/b", "A", "-a", "a-", &"a".repeat(64)] {
            assert!(!is_domain_name(bad), "{bad:?}");
        }
        assert!(is_domain_name("exclusive-0123456789ab"));
    }

    #[test]
    fn a_requests_name_is_an_objects_name() {
        let name = request_name(&"n.".repeat(126), u64::MAX);
        assert!(name.len() <= 253 && !name.contains(".-"), "{name}");
        assert!(request_name("n1", 7).starts_with(&request_prefix("n1")));
        assert_eq!(request_name("n1", 7), "heddle-peer-n1-0000000000000007");
    }
}
