//! `tls` sections of servers that Weir connects to.

use super::reader::{Item, Table};
use super::settings::upstreams::{PEM, tls};
use weir_tls::{ClientTls, Identity, Pin};

/// Reads one such section.
pub(super) fn client(mut table: Table<'_>) -> ClientTls {
    let ca = table.item(&tls::CA).and_then(|item| item.pem(PEM));
    let (certificate, key) = (table.item(&tls::CERTIFICATE), table.item(&tls::KEY));
    match (&certificate, &key) {
        (Some(_), None) => table.missing(tls::KEY.key, "the certificate's key"),
        (None, Some(_)) => table.missing(tls::CERTIFICATE.key, "the key's certificate"),
        _ => {}
    }
    let identity =
        certificate.and_then(|item| item.pem(PEM)).zip(key.and_then(|item| item.pem(PEM)));
    let identity = identity.map(|(certificate, key)| Identity { certificate, key });
    let server_name = table.read_if_any(&tls::SERVER_NAME);
    let pins = table.item(&tls::PINS).map_or_else(Vec::new, |item| pins(&item));
    table.finish();
    ClientTls { ca, identity, server_name, pins }
}

/// The public keys that a server may have.
fn pins(written: &Item<'_>) -> Vec<Pin> {
    let items = written.list(tls::PINS.kind.max);
    if items.is_empty() && written.value.is_array() {
        written.found("no pin", "one or more, or no `pins`", None);
    }
    let pin = |item: &Item<'_>| item.parsed("\"sha256/\" and 44 characters of base64", Pin::parse);
    items.iter().filter_map(pin).collect()
}
