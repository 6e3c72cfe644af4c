//! `tls` sections of servers that Weir connects to.

use super::reader::Table;
use super::settings::upstreams::{PEM, tls};
use weir_tls::{ClientTls, Identity};

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
    table.finish();
    ClientTls { ca, identity, server_name }
}
