//! `server { }`: where it listens, which hosts it has, and who gets the rest.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::expressions::escaped;
use super::{Notes, is_silent};
use crate::cli::import::directives::Directive;
use crate::cli::written::{plain, string, unique};

/// A `server { }` that listens somewhere.
#[derive(Debug)]
pub(super) struct Server<'a> {
    pub(super) directive: &'a Directive,
    listens: Vec<Listen>,
    /// It only sends clients to HTTPS.
    pub(super) redirects: bool,
    hosts: Vec<Host>,
    /// Each with its key.
    certificates: Vec<(&'a str, &'a str)>,
}

/// A name that can be written.
#[derive(Debug)]
struct Host {
    name: String,
    /// Where no server before has it.
    addresses: Vec<SocketAddr>,
}

/// Where a server gets requests from.
#[derive(Debug)]
pub(super) struct Places<'s> {
    /// The names of the listeners on which it gets the requests for unknown hosts.
    pub(super) default: Vec<String>,
    /// Its hosts that need routes of their own, each with the names of their listeners.
    pub(super) hosts: Vec<(&'s str, Vec<String>)>,
    /// Requests for unknown hosts are refused: they may be for names that can't be written.
    pub(super) closes: bool,
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
        if redirects {
            note_redirected(block, notes);
        } else {
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
        let nearest = |name: &str| -> Vec<&'a str> {
            let own = named(block, name);
            let all = if own.is_empty() { named(http, name) } else { own };
            all.into_iter().map(|one| one.word(0)).collect()
        };
        let keys = nearest("ssl_certificate_key");
        let certificates = nearest("ssl_certificate").into_iter().zip(keys).collect();
        let hosts = Vec::new();
        Some(Self { directive, listens, redirects, hosts, certificates })
    }

    /// Takes the names that no server before it has at the same address: nginx ignores the others,
    /// and names that it writes twice. `taken` are those so far.
    fn take_hosts(&mut self, taken: &mut HashSet<(SocketAddr, String)>, notes: &mut Notes) {
        for names in self.directive.block().iter().filter(|one| one.name == "server_name") {
            for name in names.words.iter().filter(|name| !["", "_"].contains(&name.as_str())) {
                if is_unwritable(name) {
                    let what = "as a host is a name, or begins with `*.`";
                    notes.add(names, &format!("LEFT OUT: {name}, {what}"));
                    continue;
                }
                let lower = name.to_ascii_lowercase();
                let both = match lower.strip_prefix('.') {
                    Some(domain) => vec![domain.to_owned(), format!("*.{domain}")],
                    None => vec![lower],
                };
                for name in both {
                    if !is_host(&name) {
                        let what = "no request has such a host";
                        notes.add(names, &format!("left out: {name}, as {what}"));
                        continue;
                    }
                    let listens = self.listens.iter().map(|listen| listen.address);
                    let (free, others): (Vec<_>, Vec<_>) =
                        listens.partition(|address| taken.insert((*address, name.clone())));
                    for address in others {
                        notes.add(
                            names,
                            &format!("LEFT OUT: {name} on {address}, as nginx uses the first that has this name"),
                        );
                    }
                    if !free.is_empty() {
                        self.hosts.push(Host { name, addresses: free });
                    }
                }
            }
        }
    }

    /// Whether it has requests whose hosts can't be written.
    pub(super) fn has_unwritable_hosts(&self) -> bool {
        let names = self.directive.block().iter().filter(|one| one.name == "server_name");
        names.flat_map(|names| &names.words).any(|name| is_unwritable(name))
    }

    /// Conditions for the hosts of other servers that can't be written as names. This one must not
    /// get them as the default server.
    pub(super) fn unwritable_hosts_of_others(
        &self,
        servers: &[Server<'_>],
        notes: &mut Notes,
    ) -> Vec<String> {
        let mut all = Vec::new();
        let others = servers.iter().filter(|one| !std::ptr::eq(one.directive, self.directive));
        for names in others.flat_map(|one| one.directive.block()) {
            let words = names.words.iter().filter(|_| names.name == "server_name");
            for name in words.filter(|name| is_unwritable(name)) {
                match (name.strip_prefix('~'), name.strip_suffix('*')) {
                    (Some(expression), _) => all.push(format!("~(?si).*(?:{expression}).*")),
                    (None, Some(beginning)) => {
                        all.push(format!("~(?si){}.*", escaped(beginning)));
                    }
                    (None, None) => notes.add(
                        self.directive,
                        &format!("LEFT OUT: it also gets the requests for {name}"),
                    ),
                }
            }
        }
        all
    }

    /// Its first name, which is nginx's `$server_name`.
    pub(super) fn name(&self) -> String {
        let names = self.directive.block().iter().find(|one| one.name == "server_name");
        let name = names.map_or("", |names| names.word(0));
        name.strip_prefix('.').unwrap_or(name).to_ascii_lowercase()
    }

    pub(super) fn has_proxy_protocol(&self) -> bool {
        self.listens.iter().any(|listen| listen.has_proxy_protocol)
    }

    fn is_on(&self, address: SocketAddr) -> bool {
        self.listens.iter().any(|listen| listen.address == address)
    }

    /// Whether it has a name with a star for this host of another server.
    fn covers(&self, host: &str, address: SocketAddr) -> bool {
        self.hosts.iter().filter(|one| one.addresses.contains(&address)).any(|one| {
            let domain = one.name.strip_prefix('*');
            domain.is_some_and(|domain| one.name != host && host.ends_with(domain))
        })
    }

    /// Where it gets requests from. Listeners that only redirect have no routes.
    pub(super) fn places(&self, servers: &[Server<'_>], listeners: &[Listener]) -> Places<'_> {
        let mut default = Vec::new();
        let mut hosts: Vec<(&str, Vec<String>)> =
            self.hosts.iter().map(|host| (host.name.as_str(), Vec::new())).collect();
        let is_this = |server: &Server<'_>| std::ptr::eq(server.directive, self.directive);
        let has_unwritable = servers.iter().any(Server::has_unwritable_hosts);
        let mut closes = false;
        for listener in listeners.iter().filter(|listener| !listener.redirects) {
            let address = listener.address;
            if !self.is_on(address) {
                continue;
            }
            let is_default = default_of(servers, address).is_some_and(is_this);
            let is_closed = is_default && has_unwritable && !self.hosts.is_empty();
            closes |= is_closed;
            if is_default {
                default.push(listener.name.clone());
            }
            for (host, (_, places)) in self.hosts.iter().zip(&mut hosts) {
                // Its routes for unknown hosts have its own names, too, unless another server has a
                // name with a star for them. Redirects are for hosts that are known.
                let others = || servers.iter().filter(|server| !is_this(server));
                let is_needed = !is_default
                    || is_closed
                    || self.redirects
                    || others().any(|server| server.covers(&host.name, address));
                if is_needed && host.addresses.contains(&address) {
                    places.push(listener.name.clone());
                }
            }
        }
        hosts.retain(|(_, places)| !places.is_empty());
        Places { default, hosts, closes }
    }
}

/// All servers that listen somewhere, with the names that nginx uses.
pub(super) fn servers<'a>(http: &'a [Directive], notes: &mut Notes) -> Vec<Server<'a>> {
    let blocks = http.iter().filter(|directive| directive.name == "server");
    let mut all: Vec<Server<'_>> =
        blocks.filter_map(|block| Server::read(block, http, notes)).collect();
    let mut taken = HashSet::new();
    all.iter_mut().for_each(|server| server.take_hosts(&mut taken, notes));
    all
}

/// The server that gets the requests for unknown hosts.
fn default_of<'s, 'a>(servers: &'s [Server<'a>], address: SocketAddr) -> Option<&'s Server<'a>> {
    let is_default = |server: &&Server<'_>| {
        server.listens.iter().any(|one| one.address == address && one.is_default)
    };
    let first = || servers.iter().find(|server| server.is_on(address));
    servers.iter().find(is_default).or_else(first)
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

/// Whether a name is a pattern that no host of Weir has, or a variable.
fn is_unwritable(name: &str) -> bool {
    name.starts_with('~') || name.ends_with(".*") || name.contains('$')
}

/// Whether it can be the host of a route. `name` is in lower case.
fn is_host(name: &str) -> bool {
    let inner = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    if let Some(address) = inner.and_then(|inner| inner.parse::<Ipv6Addr>().ok()) {
        return inner == Some(address.to_string().as_str());
    }
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let name = name.strip_prefix("*.").unwrap_or(name);
    name.split('.').all(|label| !label.is_empty() && label.bytes().all(is_part))
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

/// What such a server has besides: its requests are redirected before they come to it.
fn note_redirected(block: &[Directive], notes: &mut Notes) {
    let is_redirect = |one: &Directive| {
        let is_all = one.name == "location" && one.words.last().is_some_and(|at| at == "/");
        is_all || ["if", "return"].contains(&one.name.as_str())
    };
    for one in block.iter().filter(|one| !is_redirect(one)) {
        if one.name == "location" || !is_silent(&one.name) {
            notes.add(one, "left out: all requests of this server are redirected to HTTPS");
        }
    }
}

fn proxies(block: &[Directive]) -> bool {
    block.iter().any(|one| one.name.ends_with("_pass") || proxies(one.block()))
}

/// `return 301 https://$host$request_uri;`
pub(super) fn is_redirect_to_https(directive: &Directive) -> bool {
    let (code, to) = (directive.word(0), directive.word(1));
    // `$server_name` is the first name of a server, whatever host was asked for.
    let hosts = ["https://$host", "https://$http_host"];
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
        // A client that names no host, or an unknown one, gets the first certificate.
        let default = default_of(servers, address).into_iter();
        let says = |what: fn(&Listen) -> bool| {
            here().flat_map(|server| &server.listens).any(|one| one.address == address && what(one))
        };
        let mut certificates: Vec<String> = Vec::new();
        for (certificate, key) in default.chain(here()).flat_map(|server| &server.certificates) {
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
