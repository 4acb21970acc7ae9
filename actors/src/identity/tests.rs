use heddle_core::identity::{Asked, Chain, P256, identity_name, usable};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, SanType,
};

use super::*;

const NOW: i64 = 1_796_000_000;
const DAY: u32 = 24 * 3600;

fn authority_of(certificate: &str) -> &str {
    let at = certificate.rfind("-----BEGIN").unwrap();
    &certificate[at..]
}

#[test]
fn a_request_says_all_that_it_asks_for() {
    let key = new_key().unwrap();
    let name = identity_name("d");
    let exact = Asked {
        common_names: vec![name.clone()],
        dns_names: vec![name],
        key: P256.into(),
        signed: true,
        ..Asked::default()
    };
    assert_eq!(read(&request("d", &key).unwrap()).unwrap(), exact);
}

#[test]
fn an_attack_is_seen_in_what_was_read() {
    let request = |key: &KeyPair, change: fn(&mut CertificateParams)| {
        let mut params = key::named("d").unwrap();
        change(&mut params);
        read(&params.serialize_request(key).unwrap().pem().unwrap()).unwrap()
    };
    let key = KeyPair::from_pem(&new_key().unwrap()).unwrap();
    let second = request(&key, |p| p.subject_alt_names.push(SanType::DnsName("e.x".try_into().unwrap())));
    assert_eq!(second.dns_names, [identity_name("d"), "e.x".into()]);
    let address = request(&key, |p| p.subject_alt_names.push(SanType::IpAddress("10.0.0.1".parse().unwrap())));
    assert_eq!(address.other_names.len(), 1);
    let ca = request(&key, |p| p.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));
    assert_eq!(ca.others, ["basicConstraints CA:true"]);
    let usages = request(&key, |p| p.key_usages = vec![KeyUsagePurpose::KeyCertSign]);
    assert_eq!(usages.others.len(), 1);
    let extended = request(&key, |p| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning]);
    assert_eq!(extended.others.len(), 1);
    let masters = request(&key, |p| p.distinguished_name.push(DnType::OrganizationName, "system:masters"));
    assert_eq!(masters.other_subject, ["2.5.4.10=system:masters"]);
    let nobody = request(&key, |p| p.distinguished_name = DistinguishedName::new());
    assert!(nobody.common_names.is_empty());
    for other in [&PKCS_ED25519, &PKCS_ECDSA_P384_SHA384] {
        assert_ne!(request(&KeyPair::generate_for(other).unwrap(), |_| {}).key, P256);
    }
}

#[test]
fn what_is_no_request_is_said() {
    let good = request("d", &new_key().unwrap()).unwrap();
    let other = request("d", &new_key().unwrap()).unwrap();
    let key = new_key().unwrap();
    for (bad, says) in [
        (String::new(), "no CERTIFICATE REQUEST"),
        (key, "no CERTIFICATE REQUEST"),
        (good.clone() + &other, "2 requests"),
        ("x".repeat(1 << 20), "more than"),
        ("-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n".into(), ""),
    ] {
        let why = read(&bad).unwrap_err();
        assert!(why.contains(says), "{why}");
    }
    // The body of one, the signature of another: the request is well-formed, and is not signed with its key.
    let der = |pem: &str| parts(pem, "CERTIFICATE REQUEST").unwrap()[0].contents.clone();
    let (mut forged, donor) = (der(&good), der(&other));
    if forged.len() == donor.len() {
        let at = forged.len() - 20;
        forged[at..].copy_from_slice(&donor[at..]);
    } else {
        let last = forged.len() - 1;
        forged[last] ^= 1;
    }
    let forged = pem_of(&forged);
    assert!(!read(&forged).unwrap().signed);
}

fn pem_of(der: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in der.chunks(3) {
        let bits = chunk.iter().chain([0; 2].iter()).take(3).fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        for at in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    let lines: Vec<&str> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n", lines.join("\n"))
}

#[test]
fn a_signed_certificate_is_usable_for_its_domain_and_life() {
    let authority = Authority::new("d", "uid-of-d", NOW).unwrap();
    let authority = Authority::read("d", authority.certificate_pem(), authority.key_pem(), NOW + 1).unwrap();
    let key = new_key().unwrap();
    let signed = authority.sign(&request("d", &key).unwrap(), DAY, NOW).unwrap();
    let read = chain(&signed, authority_of(&signed), &key).unwrap();
    let expected = Chain {
        names: vec![identity_name("d")],
        of_key: true,
        signed_by_authority: true,
        both_sides: true,
        not_before: NOW - 300,
        not_after: NOW + i64::from(DAY),
        authority_of: "uid-of-d".into(),
    };
    assert_eq!(read, expected);
    assert_eq!(usable(&read, "d", NOW), Ok(()));
    assert!(usable(&read, "e", NOW).unwrap_err().contains("IMEX domain d"));
    assert!(usable(&read, "d", NOW + i64::from(DAY)).is_err());
}

#[test]
fn what_does_not_belong_together_is_seen() {
    let (d, other) = (Authority::new("d", "1", NOW).unwrap(), Authority::new("d", "1", NOW).unwrap());
    let (key, other_key) = (new_key().unwrap(), new_key().unwrap());
    let signed = d.sign(&request("d", &key).unwrap(), DAY, NOW).unwrap();
    assert!(!chain(&signed, d.certificate_pem(), &other_key).unwrap().of_key);
    assert!(!chain(&signed, other.certificate_pem(), &key).unwrap().signed_by_authority);
    // Itself is no authority.
    assert!(!chain(&signed, &signed[..signed.len() - d.certificate_pem().len()], &key).unwrap().signed_by_authority);
    assert!(Authority::read("d", d.certificate_pem(), other.key_pem(), NOW).unwrap_err().contains("belong together"));
    assert!(
        Authority::read("d", d.certificate_pem(), d.key_pem(), NOW + AUTHORITY_LIFE).unwrap_err().contains("expired")
    );
}

#[test]
fn only_the_key_of_a_request_is_signed() {
    let authority = Authority::new("d", "1", NOW).unwrap();
    let key = new_key().unwrap();
    let mut params = CertificateParams::new(vec!["kubernetes.default".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let asks = params.serialize_request(&KeyPair::from_pem(&key).unwrap()).unwrap().pem().unwrap();
    let signed = authority.sign(&asks, DAY, NOW).unwrap();
    assert_eq!(chain(&signed, authority_of(&signed), &key).unwrap().names, [identity_name("d")]);
    let parts = parts(&signed, "CERTIFICATE").unwrap();
    assert!(!parts[0].parse_x509().unwrap().is_ca());
}

#[test]
fn no_certificate_outlives_its_authority_and_two_have_two_numbers() {
    let authority = Authority::new("d", "1", NOW).unwrap();
    let (key, late) = (new_key().unwrap(), NOW + AUTHORITY_LIFE - 60);
    let asks = request("d", &key).unwrap();
    let signed = authority.sign(&asks, DAY, late).unwrap();
    assert_eq!(chain(&signed, authority_of(&signed), &key).unwrap().not_after, NOW + AUTHORITY_LIFE);
    let serial = |pem: &str| parts(pem, "CERTIFICATE").unwrap()[0].parse_x509().unwrap().raw_serial_as_string();
    assert_ne!(serial(&signed), serial(&authority.sign(&asks, DAY, late + 1).unwrap()));
}
