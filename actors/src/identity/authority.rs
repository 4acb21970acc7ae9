use heddle_core::identity::identity_name;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SerialNumber, SubjectPublicKeyInfo,
};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509CertificationRequest};

use super::key::named;
use super::{new_key, parts};

/// Life of an authority's own certificate, in seconds: ten years.
pub const AUTHORITY_LIFE: i64 = 10 * 365 * 24 * 3600;
/// Certificates are valid from a little before they are made: clocks differ.
const BACKDATED: i64 = 300;

/// What certificates of one IMEX domain are signed with.
pub struct Authority {
    domain: String,
    certificate_pem: String,
    key_pem: String,
    not_after: i64,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("domain", &self.domain).finish_non_exhaustive()
    }
}

impl Authority {
    /// A new authority for the IMEXDomain of this name and UID, from `now` on (Unix seconds). The UID is in its
    /// certificate, so that agents see when the domain has been made anew.
    ///
    /// # Errors
    /// In words: the system has no randomness.
    pub fn new(domain: &str, uid: &str, now: i64) -> Result<Self, String> {
        let key_pem = new_key()?;
        let made = || -> Result<String, rcgen::Error> {
            let key = KeyPair::from_pem(&key_pem)?;
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, format!("peers of {}", identity_name(domain)));
            params.distinguished_name.push(DnType::OrganizationalUnitName, uid);
            params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
            (params.not_before, params.not_after) = (time(now - BACKDATED)?, time(now + AUTHORITY_LIFE)?);
            params.serial_number = Some(serial(key.public_key_pem().as_bytes(), now));
            Ok(params.self_signed(&key)?.pem())
        };
        let certificate_pem = made().map_err(|error| error.to_string())?;
        Ok(Self { domain: domain.into(), certificate_pem, key_pem, not_after: now + AUTHORITY_LIFE })
    }

    /// One that was kept.
    ///
    /// # Errors
    /// In words: it cannot be read, or is over.
    pub fn read(domain: &str, certificate_pem: &str, key_pem: &str, now: i64) -> Result<Self, String> {
        let parts = parts(certificate_pem, "CERTIFICATE")?;
        let certificate = parts[0].parse_x509().map_err(|error| error.to_string())?;
        let not_after = certificate.validity().not_after.timestamp();
        if now >= not_after {
            return Err("its certificate has expired".into());
        }
        let key = KeyPair::from_pem(key_pem).map_err(|error| error.to_string())?;
        if certificate.public_key().raw != rcgen::PublicKeyData::subject_public_key_info(&key) {
            return Err("its key and its certificate do not belong together".into());
        }
        Ok(Self { domain: domain.into(), certificate_pem: certificate_pem.into(), key_pem: key_pem.into(), not_after })
    }

    /// Its certificate.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// Its key: whoever has it can be any peer of the domain.
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// A certificate for the key in the request, valid for `seconds` from `now` on, and this authority's behind it, in
    /// PEM. Of the request nothing but the key is used.
    ///
    /// # Errors
    /// In words: the request cannot be read.
    pub fn sign(&self, request_pem: &str, seconds: u32, now: i64) -> Result<String, String> {
        let parts = parts(request_pem, "CERTIFICATE REQUEST")?;
        let (_, request) = X509CertificationRequest::from_der(&parts[0].contents).map_err(|error| error.to_string())?;
        let spki = request.certification_request_info.subject_pki.raw;
        let made = || -> Result<String, rcgen::Error> {
            let key = SubjectPublicKeyInfo::from_der(spki)?;
            let issuer = Issuer::from_ca_cert_pem(&self.certificate_pem, KeyPair::from_pem(&self.key_pem)?)?;
            let mut params = named(&self.domain)?;
            params.is_ca = IsCa::ExplicitNoCa;
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            params.use_authority_key_identifier_extension = true;
            params.not_before = time(now - BACKDATED)?;
            params.not_after = time((now + i64::from(seconds)).min(self.not_after))?;
            params.serial_number = Some(serial(spki, now));
            Ok(params.signed_by(&key, &issuer)?.pem())
        };
        let certificate = made().map_err(|error| error.to_string())?;
        Ok(certificate + &self.certificate_pem)
    }
}

fn time(seconds: i64) -> Result<time::OffsetDateTime, rcgen::Error> {
    time::OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| rcgen::Error::Time)
}

/// Another for each certificate of a key. Nobody has to be kept from guessing it: what is signed is not a tenant's choice.
fn serial(key: &[u8], now: i64) -> SerialNumber {
    let digest = Sha256::new().chain_update(key).chain_update(now.to_be_bytes()).finalize();
    let mut bytes = digest[..16].to_vec();
    // A serial number is positive.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    SerialNumber::from(bytes)
}
