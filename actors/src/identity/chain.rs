use heddle_core::identity::Chain;
use rcgen::{KeyPair, PublicKeyData};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use super::parts;

/// What a certificate says, with its authority's and with the key that it is to be used with. All in PEM.
///
/// # Errors
/// In words: one of them cannot be read.
pub fn chain(certificate_pem: &str, authority_pem: &str, key_pem: &str) -> Result<Chain, String> {
    let (own, authority) = (parts(certificate_pem, "CERTIFICATE")?, parts(authority_pem, "CERTIFICATE")?);
    let own = own[0].parse_x509().map_err(|error| format!("the certificate cannot be read: {error}"))?;
    let mut chain = Chain {
        names: names(&own),
        of_key: is_of_key(&own, key_pem)?,
        both_sides: own
            .extended_key_usage()
            .ok()
            .flatten()
            .is_none_or(|usage| usage.value.any || (usage.value.server_auth && usage.value.client_auth)),
        not_before: own.validity().not_before.timestamp(),
        not_after: own.validity().not_after.timestamp(),
        ..Chain::default()
    };
    for part in &authority {
        let authority = part.parse_x509().map_err(|error| format!("the authority cannot be read: {error}"))?;
        let signs = authority.is_ca()
            && authority.subject().as_raw() == own.issuer().as_raw()
            && own.verify_signature(Some(authority.public_key())).is_ok();
        if signs {
            chain.signed_by_authority = true;
            chain.not_after = chain.not_after.min(authority.validity().not_after.timestamp());
            let unit = authority.subject().iter_organizational_unit().next();
            chain.authority_of = unit.and_then(|unit| unit.as_str().ok()).unwrap_or_default().into();
        }
    }
    Ok(chain)
}

/// Whether the certificate is of the key. Keys that are not in PKCS #8, as others make them, are left to the daemon.
fn is_of_key(certificate: &X509Certificate<'_>, key_pem: &str) -> Result<bool, String> {
    if ["RSA PRIVATE KEY", "EC PRIVATE KEY"].iter().any(|label| key_pem.contains(label)) {
        return Ok(true);
    }
    let key = KeyPair::from_pem(key_pem).map_err(|error| format!("the key cannot be read: {error}"))?;
    Ok(certificate.public_key().raw == key.subject_public_key_info())
}

/// DNS names first, for those are what is compared; a common name that is none of them behind.
fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    if let Ok(Some(alternative)) = certificate.subject_alternative_name() {
        names.extend(alternative.value.general_names.iter().map(|name| match name {
            GeneralName::DNSName(name) => (*name).to_owned(),
            other => other.to_string(),
        }));
    }
    let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    for name in common {
        if !names.iter().any(|known| known == name) {
            names.push(name.into());
        }
    }
    names
}
