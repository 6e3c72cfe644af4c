//! `[[listeners]]`: certificates from files and from an authority, and redirects.

use super::*;
use crate::listen::Certificate;

#[test]
fn a_listeners_certificates_are_read_and_watched() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["api.pem", "api.key", "ca.pem"] {
        std::fs::write(folder.path().join(name), name).unwrap();
    }
    let load = |listener: &str| {
        let text = format!("[[listeners]]\naddress = \"127.0.0.1:8443\"\n{listener}\n{}", MINIMAL);
        Config::parse(&text, &folder.path().join("proxy.toml"))
    };
    const ONE: &str = "certificates = [{ certificate = \"api.pem\", key = \"api.key\" }]";
    let config =
        load(&format!("{ONE}\nclient_ca = \"ca.pem\"\nclient_certificates = \"optional\""))
            .unwrap_or_else(|found| panic!("{found}"));
    let listener = &config.listeners[0];
    let Certificate::Files(identity) = &listener.certificates[0] else { panic!("{listener:?}") };
    assert_eq!(
        (&*identity.certificate.bytes, &*identity.key.bytes),
        (&b"api.pem"[..], &b"api.key"[..])
    );
    assert!(
        listener
            .clients
            .as_ref()
            .is_some_and(|clients| !clients.required && &*clients.ca.bytes == b"ca.pem")
    );
    assert_eq!(config.watched.len(), 4);
    assert!(
        load(&format!("{ONE}\nclient_ca = \"ca.pem\"")).unwrap().listeners[0]
            .clients
            .as_ref()
            .unwrap()
            .required
    );
    let wrong = |listener: &str, expected: &str| {
        let found = load(listener).unwrap_err().text;
        assert!(found.contains(expected), "{listener}: {found}");
    };
    wrong("certificates = []", "no certificate");
    wrong("certificates = [{ certificate = \"api.pem\" }]", "listeners[0].certificates[0].key");
    wrong("certificates = [{ certificate = \"absent\", key = \"api.key\" }]", "No such file");
    wrong("client_ca = \"ca.pem\"", "a listener with `certificates`");
    wrong(&format!("{ONE}\nclient_certificates = \"required\""), "no `client_ca` with it");
    wrong(
        &format!("{ONE}\nclient_ca = \"ca.pem\"\nclient_certificates = \"maybe\""),
        "\"required\" or \"optional\"",
    );
}

#[test]
fn a_certificate_that_is_ordered_is_read_once_it_is_there_and_watched_before() {
    let folder = tempfile::tempdir().unwrap();
    let load = |certificates: &str, more: &str| {
        let listener = format!("address = \"127.0.0.1:8443\"\ncertificates = [{certificates}]");
        let text = format!("[[listeners]]\n{listener}\n{more}\n{MINIMAL}");
        Config::parse(&text, &folder.path().join("proxy.toml"))
    };
    const ONE: &str = "{ acme = true, names = [\"API.example.com.\", \"www.example.com\"] }";
    const ACME: &str = "[acme]\naccept_terms_of_service = true\nfolder = \"acme\"\n";
    let read = || {
        let config = load(ONE, ACME).unwrap_or_else(|found| panic!("{found}"));
        let authority = config.acme.clone().unwrap();
        assert_eq!(authority.directory, weir_acme::LETS_ENCRYPT);
        let Certificate::Ordered(ordered) = config.listeners[0].certificates[0].clone() else {
            panic!("{config:?}")
        };
        assert!(config.watched.iter().any(|watch| watch.path() == ordered.file));
        ordered
    };
    let ordered = read();
    assert_eq!(ordered.names, ["api.example.com", "www.example.com"]);
    assert!(ordered.file.starts_with(folder.path().join("acme")) && ordered.identity.is_none());
    std::fs::create_dir(folder.path().join("acme")).unwrap();
    std::fs::write(&ordered.file, "half a file").unwrap();
    assert!(read().identity.is_none());
    let made = rcgen::generate_simple_self_signed(ordered.names.clone()).unwrap();
    std::fs::write(&ordered.file, made.signing_key.serialize_pem() + &made.cert.pem()).unwrap();
    assert!(read().identity.is_some());
    // What can't be seen may be there.
    let kept = folder.path().join("kept");
    std::fs::rename(folder.path().join("acme"), &kept).unwrap();
    assert!(read().identity.is_none());
    std::fs::write(folder.path().join("acme"), "no folder").unwrap();
    let found = load(ONE, ACME).unwrap_err().text;
    assert!(found.contains("(Not a directory)") && found.contains("that Weir may read"), "{found}");
    std::fs::remove_file(folder.path().join("acme")).unwrap();

    let wrong = |certificates: &str, more: &str, expected: &str| {
        let found = load(certificates, more).unwrap_err().text;
        assert!(found.contains(expected), "{certificates} {more}: {found}");
    };
    wrong(ONE, "", "`acme = true`, and no `[acme]`");
    wrong(ONE, "[acme]\nfolder = \"acme\"", "that nobody has agreed to");
    wrong(ONE, "[acme]\naccept_terms_of_service = true", "acme.folder");
    for (name, expected) in [
        ("*.example.com", "dns-01"),
        ("10.0.0.1", "a host name"),
        ("localhost", "a host name"),
        ("a_b.example.com", "a host name"),
        ("-a.example.com", "a host name"),
    ] {
        wrong(&format!("{{ acme = true, names = [\"{name}\"] }}"), ACME, expected);
    }
    wrong("{ acme = true, names = [] }", ACME, "no name");
    wrong("{ acme = true }", ACME, "names");
    wrong("{ acme = true, names = [\"a.b\", \"A.b\"] }", ACME, "does not have yet");
    wrong("{ acme = true, names = [\"a.b\"], key = \"k\" }", ACME, "one of the two");
    wrong("{ names = [\"a.b\"], certificate = \"k\", key = \"k\" }", "", "`acme = true` with it");
    for (line, expected) in [
        ("directory = \"http://localhost/dir\"", "https:// URL"),
        ("challenges = [\"dns-01\"]", "\"tls-alpn-01\" or \"http-01\""),
        ("challenges = [\"http-01\", \"http-01\"]", "does not have yet"),
        ("contact = [\"ops\"]", "for mail `mailto:`"),
        ("external_account = \"a\"", "acme.external_account_key_file"),
    ] {
        wrong(ONE, &format!("{ACME}{line}"), expected);
    }
}

#[test]
fn an_authority_is_asked_for_no_certificate_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ca.pem"), "x").unwrap();
    let load = |challenges: &str| {
        let listener = "[[listeners]]\naddress = \"127.0.0.1:8443\"\nclient_ca = \"ca.pem\"\n\
             certificates = [{ acme = true, names = [\"a.example.com\"] }]";
        let acme = "[acme]\naccept_terms_of_service = true\nfolder = \"acme\"";
        let text = format!("{listener}\n{acme}\n{challenges}\n{MINIMAL}");
        Config::parse(&text, &folder.path().join("proxy.toml"))
    };
    assert!(load("").unwrap_err().text.contains("challenges = [\"http-01\"]"));
    assert!(load("challenges = [\"http-01\"]").is_ok());
}

#[test]
fn a_redirect_to_https_is_for_a_plain_listener() {
    let load = |line: &str| {
        let text = format!("[[listeners]]\naddress = \"127.0.0.1:80\"\n{line}\n{MINIMAL}");
        Config::parse(&text, std::path::Path::new("proxy.toml"))
    };
    assert_eq!(load("redirect_to_https = 443").unwrap().listeners[0].redirect_to_https, Some(443));
    assert_eq!(load("redirect_to_https = \"off\"").unwrap().listeners[0].redirect_to_https, None);
    for wrong in ["true", "0", "70000", "\"on\""] {
        let found = load(&format!("redirect_to_https = {wrong}")).unwrap_err().text;
        assert!(found.contains("\"off\" or a whole number from 1 to 65535"), "{found}");
    }
    let secured = "redirect_to_https = 443\ncertificates = [{ certificate = \"a\", key = \"b\" }]";
    assert!(load(secured).unwrap_err().text.contains("a listener without `certificates`"));
}
