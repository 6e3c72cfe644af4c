//! `server { }`: where it listens, which hosts it has, and who gets the rest.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use super::Notes;
use crate::cli::import::directives::Directive;
use crate::cli::written::{plain, string, unique};

/// A `server { }` that listens somewhere.
#[derive(Debug)]
pub(super) struct Server<'a> {
    pub(super) directive: &'a Directive,
    listens: Vec<Listen>,
    /// It only sends clients to HTTPS.
    pub(super) redirects: bool,
    /// Each with its key.
    certificates: Vec<(&'a str, &'a str)>,
}

#[derive(Clone, Debug)]
struct Listen {
    address: SocketAddr,
    is_tls: bool,
    is_default: bool,
    has_proxy_protocol: bool,
}

impl<'a> Server<'a> {
    pub(super) fn read(
        directive: &'a Directive,
        http: &'a [Directive],
        notes: &mut Notes,
    ) -> Option<Self> {
        let block = directive.block();
        let named = |place: &'a [Directive], name: &str| -> Vec<&'a Directive> {
            place.iter().filter(|one| one.name == name).collect()
        };
        let redirects = redirects(block);
        if !redirects {
            block.iter().for_each(|inner| notes.left_out(inner));
        }
        let written = named(block, "listen");
        let mut listens = Vec::new();
        for inner in &written {
            match listen(inner) {
                Some(listen) => listens.push(listen),
                None => notes.add(inner, "left out: expected an address and a port, for TCP"),
            }
        }
        if written.is_empty() {
            let address = SocketAddr::from(([0, 0, 0, 0], HTTP));
            let (is_tls, is_default, has_proxy_protocol) = (false, false, false);
            listens.push(Listen { address, is_tls, is_default, has_proxy_protocol });
        }
        if listens.is_empty() {
            notes.add(directive, "left out: it listens nowhere where Weir can");
            return None;
        }
        let pairs = |place: &'a [Directive]| -> Vec<(&'a str, &'a str)> {
            let words = |name| named(place, name).into_iter().map(|one| one.word(0));
            words("ssl_certificate").zip(words("ssl_certificate_key")).collect()
        };
        let own = pairs(block);
        let certificates = if own.is_empty() { pairs(http) } else { own };
        Some(Self { directive, listens, redirects, certificates })
    }

    /// The hosts that its routes name.
    pub(super) fn hosts(&self, notes: &mut Notes) -> Vec<String> {
        let mut hosts = Vec::new();
        for names in self.directive.block().iter().filter(|one| one.name == "server_name") {
            for name in names.words.iter().filter(|name| !["", "_"].contains(&name.as_str())) {
                match name.strip_prefix('.') {
                    _ if is_unwritable(name) => notes.add(
                        names,
                        &format!("LEFT OUT: {name}, as a host is a name, or begins with `*.`"),
                    ),
                    Some(domain) => hosts.extend([domain.to_owned(), format!("*.{domain}")]),
                    None => hosts.push(name.clone()),
                }
            }
        }
        hosts
    }

    /// Whether it has requests whose hosts can't be written.
    pub(super) fn has_unwritable_hosts(&self) -> bool {
        let names = self.directive.block().iter().filter(|one| one.name == "server_name");
        names.flat_map(|names| &names.words).any(|name| is_unwritable(name))
    }

    /// Its first name, which is nginx's `$server_name`.
    pub(super) fn name(&self) -> &'a str {
        let names = self.directive.block().iter().find(|one| one.name == "server_name");
        names.map_or("", |names| names.word(0))
    }

    /// The names of the listeners on which it gets the requests for unknown hosts, and of the
    /// others. Listeners that only redirect have no routes.
    pub(super) fn places(
        &self,
        servers: &[Server<'_>],
        listeners: &[Listener],
    ) -> (Vec<String>, Vec<String>) {
        let (mut default, mut named) = (Vec::new(), Vec::new());
        for listener in listeners.iter().filter(|listener| !listener.redirects) {
            let on = |server: &&Server<'_>| {
                server.listens.iter().any(|listen| listen.address == listener.address)
            };
            if !on(&self) {
                continue;
            }
            let first = servers.iter().filter(on).find(|server| {
                let here = |one: &&Listen| one.address == listener.address;
                server.listens.iter().filter(here).any(|one| one.is_default)
            });
            let first = first.or_else(|| servers.iter().find(on));
            let is_mine = first.is_some_and(|first| std::ptr::eq(first.directive, self.directive));
            if is_mine { &mut default } else { &mut named }.push(listener.name.clone());
        }
        (default, named)
    }
}

/// The port of `listen` without one.
const HTTP: u16 = 80;

fn listen(directive: &Directive) -> Option<Listen> {
    let text = directive.word(0);
    if directive.has("quic") {
        return None;
    }
    let text =
        text.strip_prefix("localhost").map_or(text.to_owned(), |rest| format!("127.0.0.1{rest}"));
    let text = text.strip_prefix('*').map_or(text.clone(), |rest| format!("0.0.0.0{rest}"));
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(&text);
    let address = if let Ok(port) = text.parse::<u16>() {
        SocketAddr::from(([0, 0, 0, 0], port))
    } else if let Ok(address) = bare.parse::<IpAddr>() {
        SocketAddr::new(address, HTTP)
    } else {
        text.parse().ok()?
    };
    Some(Listen {
        address,
        is_tls: directive.has("ssl"),
        is_default: directive.has("default_server") || directive.has("default"),
        has_proxy_protocol: directive.has("proxy_protocol"),
    })
}

fn is_unwritable(name: &str) -> bool {
    name.starts_with('~') || name.ends_with(".*")
}

/// Whether a server only sends its clients to HTTPS: by itself, in its `location /`, or as certbot
/// writes it, by an `if` for each host. What else it has, such as a folder for challenges of ACME,
/// is not needed where everything is sent on.
fn redirects(block: &[Directive]) -> bool {
    let has_redirect = |block: &[Directive]| {
        block.iter().any(|one| one.name == "return" && is_redirect_to_https(one))
    };
    let first = block.iter().find(|one| one.name == "return");
    let of_locations = || {
        let everything = |one: &&Directive| {
            one.name == "location" && one.words.last().is_some_and(|at| at == "/")
        };
        block.iter().filter(everything).any(|one| has_redirect(one.block()))
    };
    let of_ifs = || block.iter().any(|one| one.name == "if" && has_redirect(one.block()));
    !proxies(block)
        && (first.is_some_and(is_redirect_to_https)
            || first.is_none_or(|first| first.word(0) == "404") && (of_locations() || of_ifs()))
}

fn proxies(block: &[Directive]) -> bool {
    block.iter().any(|one| one.name.ends_with("_pass") || proxies(one.block()))
}

/// `return 301 https://$host$request_uri;`
pub(super) fn is_redirect_to_https(directive: &Directive) -> bool {
    let (code, to) = (directive.word(0), directive.word(1));
    let hosts = ["https://$host", "https://$server_name", "https://$http_host"];
    ["301", "302", "307", "308"].contains(&code)
        && hosts.iter().any(|host| {
            to.strip_prefix(host).is_some_and(|rest| rest == "$request_uri" || rest == "$uri")
        })
}

#[derive(Debug)]
pub(super) struct Listener {
    name: String,
    address: SocketAddr,
    /// All its servers only send clients to HTTPS.
    pub(super) redirects: bool,
    is_tls: bool,
    has_proxy_protocol: bool,
    certificates: Vec<String>,
}

/// The addresses of all servers, each once. What one server says of an address holds for all of
/// them, as in nginx.
pub(super) fn listeners(servers: &[Server<'_>], notes: &mut Notes) -> Vec<Listener> {
    let mut all: Vec<Listener> = Vec::new();
    let mut names = HashSet::new();
    for listen in servers.iter().flat_map(|server| &server.listens) {
        let address = listen.address;
        if all.iter().any(|listener| listener.address == address) {
            continue;
        }
        let here = || {
            let on = move |one: &&Listen| one.address == address;
            servers.iter().filter(move |server| server.listens.iter().any(|one| on(&one)))
        };
        let says = |what: fn(&Listen) -> bool| {
            here().flat_map(|server| &server.listens).any(|one| one.address == address && what(one))
        };
        let mut certificates: Vec<String> = Vec::new();
        for (certificate, key) in here().flat_map(|server| &server.certificates) {
            let (certificate, key) = (string(certificate), string(key));
            let pair = format!("{{ certificate = {certificate}, key = {key} }}");
            if !certificates.contains(&pair) {
                certificates.push(pair);
            }
        }
        let (is_tls, has_proxy_protocol) =
            (says(|one| one.is_tls), says(|one| one.has_proxy_protocol));
        all.push(Listener {
            name: unique(&plain(&format!("port-{}", address.port()), "port"), &mut names),
            address,
            redirects: !is_tls && here().all(|server| server.redirects),
            is_tls,
            has_proxy_protocol,
            certificates,
        });
    }
    for listener in &all {
        let wider = all.iter().any(|other| {
            other.address.port() == listener.address.port()
                && other.address.ip().is_unspecified()
                && other.address.is_ipv4() == listener.address.is_ipv4()
                && other.address != listener.address
        });
        if wider {
            notes.line(&format!(
                "listen {}: Weir can't listen on it and on all addresses of that port: leave out one",
                listener.address
            ));
        }
    }
    all
}

impl Listener {
    pub(super) fn write(&self, out: &mut String) {
        let address = string(&self.address.to_string());
        let _ =
            write!(out, "\n[[listeners]]\nname = {}\naddress = {address}\n", string(&self.name));
        if self.redirects {
            out.push_str("redirect_to_https = 443\n");
        }
        if self.is_tls {
            let _ = writeln!(out, "certificates = [{}]", self.certificates.join(", "));
        }
        if self.has_proxy_protocol {
            out.push_str("proxy_protocol = true\n");
        }
    }
}
