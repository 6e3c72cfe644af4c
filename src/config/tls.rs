//! `tls` sections of servers that Weir connects to.

use super::reader::Table;
use weir_tls::{ClientTls, Identity};

/// A file that is expected.
const PEM: &str = "a PEM file";

/// Reads one such section.
pub(super) fn client(mut table: Table<'_>) -> ClientTls {
    let ca = table.take("ca").and_then(|item| item.pem(PEM));
    let (certificate, key) = (table.take("certificate"), table.take("key"));
    match (&certificate, &key) {
        (Some(_), None) => table.missing("key", "the certificate's key"),
        (None, Some(_)) => table.missing("certificate", "the key's certificate"),
        _ => {}
    }
    let identity =
        certificate.and_then(|item| item.pem(PEM)).zip(key.and_then(|item| item.pem(PEM)));
    let identity = identity.map(|(certificate, key)| Identity { certificate, key });
    let server_name =
        table.take("server_name").and_then(|item| item.text("a host name")).map(ToOwned::to_owned);
    table.finish();
    ClientTls { ca, identity, server_name }
}
