use heddle_core::identity::{Asked, P256};
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::oid_registry::{OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY, OID_X509_COMMON_NAME};
use x509_parser::prelude::{FromDer, SubjectPublicKeyInfo, X509CertificationRequest};

use super::parts;

/// What a PKCS #10 request in PEM asks for, all of it.
///
/// # Errors
/// In words: it cannot be read as one request and nothing else.
pub fn read(request_pem: &str) -> Result<Asked, String> {
    let parts = parts(request_pem, "CERTIFICATE REQUEST")?;
    let [part] = parts.as_slice() else { return Err(format!("it holds {} requests", parts.len())) };
    let (rest, request) = X509CertificationRequest::from_der(&part.contents).map_err(|error| error.to_string())?;
    if !rest.is_empty() {
        return Err("it goes on behind its end".into());
    }
    let info = &request.certification_request_info;
    let mut asked =
        Asked { key: kind(&info.subject_pki), signed: request.verify_signature().is_ok(), ..Asked::default() };
    for attribute in info.subject.iter_attributes() {
        match attribute.as_str() {
            Ok(text) if *attribute.attr_type() == OID_X509_COMMON_NAME => asked.common_names.push(text.into()),
            text => asked.other_subject.push(format!("{}={}", attribute.attr_type(), text.unwrap_or("?"))),
        }
    }
    for attribute in info.attributes() {
        match attribute.parsed_attribute() {
            ParsedCriAttribute::ExtensionRequest(wanted) => {
                wanted.extensions.iter().for_each(|extension| match extension.parsed_extension() {
                    ParsedExtension::SubjectAlternativeName(names) => names_of(&names.general_names, &mut asked),
                    ParsedExtension::BasicConstraints(basic) => {
                        asked.others.push(format!("basicConstraints CA:{}", basic.ca));
                    }
                    _ => asked.others.push(format!("extension {}", extension.oid)),
                });
            }
            _ => asked.others.push(format!("attribute {}", attribute.oid)),
        }
    }
    Ok(asked)
}

fn names_of(names: &[GeneralName<'_>], asked: &mut Asked) {
    for name in names {
        match name {
            GeneralName::DNSName(name) => asked.dns_names.push((*name).into()),
            other => asked.other_names.push(other.to_string()),
        }
    }
}

fn kind(key: &SubjectPublicKeyInfo<'_>) -> String {
    let curve = key.algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
    match curve {
        Some(curve) if key.algorithm.algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY && curve == OID_EC_P256 => P256.into(),
        Some(curve) => format!("{} on {curve}", key.algorithm.algorithm),
        None => key.algorithm.algorithm.to_string(),
    }
}
