//! Formats a certificate's subject (RFC 4514), to show policies who the client is. Knows nothing
//! about the connection.

use std::fmt::Write as _;

use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

/// Attribute types with a short name (RFC 4514, section 3).
const SHORT: [(&str, &str); 9] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.6", "C"),
    ("2.5.4.9", "STREET"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
];

/// `CN=alice,O=Example`: the most specific part first, like nginx's `$ssl_client_s_dn`. `None` if
/// `certificate` can't be parsed.
pub(super) fn of(certificate: &[u8]) -> Option<Box<str>> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    Some(text(certificate.subject()).into_boxed_str())
}

/// When `certificate` expires, in Unix seconds. `None` if it can't be parsed.
pub(super) fn expires_s(certificate: &[u8]) -> Option<i64> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    Some(certificate.validity().not_after.timestamp())
}

fn text(name: &X509Name<'_>) -> String {
    let mut text = String::new();
    let parts: Vec<_> = name.iter_rdn().collect();
    for (index, part) in parts.into_iter().rev().enumerate() {
        if index > 0 {
            text.push(',');
        }
        for (index, attribute) in part.iter().enumerate() {
            if index > 0 {
                text.push('+');
            }
            write(&mut text, attribute);
        }
    }
    text
}

fn write(text: &mut String, attribute: &AttributeTypeAndValue<'_>) {
    let id = attribute.attr_type().to_id_string();
    let short = SHORT.iter().find(|(known, _)| *known == id).map(|(_, short)| *short);
    match (short, attribute.as_str()) {
        (Some(short), Ok(value)) => {
            text.push_str(short);
            text.push('=');
            escape(text, value);
        }
        // For a type without a short name, or a value that is not a plain string, the bytes in
        // hexadecimal: no two subjects look alike.
        (short, _) => {
            text.push_str(short.unwrap_or(&id));
            text.push_str("=#");
            for byte in attribute.as_slice() {
                let _ = write!(text, "{byte:02x}");
            }
        }
    }
}

fn escape(text: &mut String, value: &str) {
    let last = value.chars().count().saturating_sub(1);
    for (index, character) in value.chars().enumerate() {
        match character {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' => text.extend(['\\', character]),
            ' ' if index == 0 || index == last => text.push_str("\\ "),
            '#' if index == 0 => text.push_str("\\#"),
            character if character.is_control() => {
                let mut bytes = [0; 4];
                for byte in character.encode_utf8(&mut bytes).bytes() {
                    let _ = write!(text, "\\{byte:02x}");
                }
            }
            character => text.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    #[test]
    fn a_subject_is_written_most_specific_first_and_escaped() {
        let mut params = CertificateParams::default();
        let name = &mut params.distinguished_name;
        *name = rcgen::DistinguishedName::new();
        name.push(DnType::CountryName, "AT");
        name.push(DnType::OrganizationName, "Smith, Jones + Co");
        name.push(DnType::CustomDnType(vec![1, 2, 840, 113_549, 1, 9, 1]), "a");
        name.push(DnType::CommonName, "#alice ");
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let text = of(certificate.der()).unwrap();
        assert_eq!(&*text, "CN=\\#alice\\ ,1.2.840.113549.1.9.1=#61,O=Smith\\, Jones \\+ Co,C=AT");
        assert_eq!(of(b"no certificate"), None);
    }
}
