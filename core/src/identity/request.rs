use std::collections::BTreeMap;

use super::names::domain_of;

/// The only kind of key that is signed.
pub const P256: &str = "EC P-256";

/// A CertificateSigningRequest of our signer. Who asks is filled in by the API server, from the credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its name.
    pub name: String,
    /// `spec.username`.
    pub username: String,
    /// `spec.extra`.
    pub extra: BTreeMap<String, Vec<String>>,
    /// `spec.usages`.
    pub usages: Vec<String>,
    /// `spec.expirationSeconds`.
    pub expiration_seconds: Option<i32>,
    /// What the signing request in it asks for, or why it cannot be read.
    pub asked: Result<Asked, String>,
}

/// What a PKCS #10 signing request asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// The subject's common names.
    pub common_names: Vec<String>,
    /// What else is in the subject, in words.
    pub other_subject: Vec<String>,
    /// Alternative names that are DNS names.
    pub dns_names: Vec<String>,
    /// Alternative names of other kinds, in words.
    pub other_names: Vec<String>,
    /// Extensions besides the alternative names, and attributes besides extensions, in words.
    pub others: Vec<String>,
    /// The kind of its key; [`P256`] is the one that is signed.
    pub key: String,
    /// Whether it is signed with that key.
    pub signed: bool,
}

impl Asked {
    /// The IMEXDomain whose identity is asked for.
    pub(super) fn domain(&self) -> Option<&str> {
        match self.dns_names.as_slice() {
            [name] => domain_of(name),
            _ => None,
        }
    }
}
