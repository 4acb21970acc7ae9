use heddle_core::identity::identity_name;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};

/// A key for one node in one IMEX domain, PKCS #8 in PEM.
///
/// # Errors
/// In words: the system has no randomness.
pub fn new_key() -> Result<String, String> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|error| error.to_string())?;
    Ok(key.serialize_pem())
}

/// The PKCS #10 request, in PEM, for the identity of a domain.
///
/// # Errors
/// In words: the key is none of ours.
pub fn request(domain: &str, key_pem: &str) -> Result<String, String> {
    let made = || -> Result<String, rcgen::Error> {
        let key = KeyPair::from_pem(key_pem)?;
        named(domain)?.serialize_request(&key)?.pem()
    };
    made().map_err(|error| error.to_string())
}

/// A certificate with the identity's name and nothing else.
pub(super) fn named(domain: &str) -> Result<CertificateParams, rcgen::Error> {
    let name = identity_name(domain);
    let mut params = CertificateParams::new(vec![name.clone()])?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}
