//! `set_real_ip_from`: the proxies that are believed when they name a client. In nginx each server
//! has its own and chooses the field; Weir has one list, and believes X-Forwarded-For and the PROXY
//! protocol.

use ipnet::IpNet;

use super::Notes;
use super::servers::Server;
use crate::cli::import::directives::Directive;
use crate::cli::written::string;

const NETWORKS: &str = "set_real_ip_from";
const FIELD: &str = "real_ip_header";
const RECURSIVE: &str = "real_ip_recursive";

/// What a server says of proxies, by itself or as it inherits it.
struct Belief<'a> {
    networks: Vec<&'a Directive>,
    field: Option<&'a Directive>,
    is_recursive: bool,
    /// The server, if the networks are its own.
    of_one: Option<&'a Directive>,
    has_proxy_protocol: bool,
}

/// The proxies that are believed, by all servers.
pub(super) fn trusted(
    http: &[Directive],
    servers: &[Server<'_>],
    notes: &mut Notes,
) -> Vec<String> {
    let mut proxies: Vec<String> = Vec::new();
    for server in servers {
        let belief = Belief::of(server, http);
        for directive in &belief.networks {
            let Some(network) = network(directive, notes) else { continue };
            let network = string(&network);
            if belief.trusts(directive, &network, notes) && !proxies.contains(&network) {
                proxies.push(network);
            }
        }
        note_inner(server.directive.block(), notes);
    }
    for server in servers.iter().filter(|server| server.has_proxy_protocol()) {
        if proxies.is_empty() {
            notes.add(
                server.directive,
                "`weir check` refuses its `proxy_protocol` until `server.trusted_proxies` has the addresses of the balancers that send such headers: nginx takes them from anybody",
            );
        }
    }
    proxies
}

impl<'a> Belief<'a> {
    fn of(server: &Server<'a>, http: &'a [Directive]) -> Self {
        let block = server.directive.block();
        let all = |place: &'a [Directive], name: &str| -> Vec<&'a Directive> {
            place.iter().filter(|one| one.name == name).collect()
        };
        let nearest = |name: &str| {
            let own = all(block, name);
            if own.is_empty() { all(http, name) } else { own }
        };
        Self {
            networks: nearest(NETWORKS),
            field: nearest(FIELD).first().copied(),
            is_recursive: nearest(RECURSIVE).first().is_some_and(|one| one.word(0) == "on"),
            of_one: (!all(block, NETWORKS).is_empty()).then_some(server.directive),
            has_proxy_protocol: server.has_proxy_protocol(),
        }
    }

    /// Whether a network is written. What differs from nginx then is noted, and why it is not
    /// written otherwise.
    fn trusts(&self, directive: &Directive, network: &str, notes: &mut Notes) -> bool {
        let field = self.field.map_or_else(String::new, |one| one.word(0).to_ascii_lowercase());
        let is_list = field == "x-forwarded-for";
        if !is_list && field != "proxy_protocol" {
            let what = "LEFT OUT: Weir believes X-Forwarded-For and the PROXY protocol alone";
            match self.field {
                Some(field) => notes.add(field, what),
                None => notes.add(
                    directive,
                    &format!("{what}, and without a real_ip_header nginx believes X-Real-IP"),
                ),
            }
        }
        if !is_list && !self.has_proxy_protocol {
            return false;
        }
        if network.ends_with("/0\"") && (!self.is_recursive || !is_list) {
            notes.add(
                directive,
                "LEFT OUT: Weir would take any client for a proxy, and believe whatever address it names; write the addresses of the proxies",
            );
            return false;
        }
        let what = match (is_list, self.is_recursive) {
            (false, _) => {
                "Weir also believes X-Forwarded-For from these addresses: a balancer there has to remove the field from what clients send"
            }
            (true, false) => {
                "nginx takes the last address of X-Forwarded-For, and Weir the last one that is not in these networks: they may have no clients in them"
            }
            (true, true) if network.ends_with("/0\"") => {
                "any client can name the address that it is counted by, as in nginx"
            }
            (true, true) => "",
        };
        if !what.is_empty() {
            notes.add(directive, what);
        }
        if self.of_one.is_some() {
            notes.add(directive, "it holds for all servers in Weir");
        }
        true
    }
}

/// What is in locations holds for them alone in nginx, and can't in Weir.
fn note_inner(block: &[Directive], notes: &mut Notes) {
    for location in block.iter().filter(|one| one.name == "location") {
        let ours = location.block().iter();
        for one in ours.filter(|one| [NETWORKS, FIELD, RECURSIVE].contains(&one.name.as_str())) {
            notes.add(
                one,
                "LEFT OUT: Weir believes a proxy on all routes or on none; its clients have the address of the connection",
            );
        }
        note_inner(location.block(), notes);
    }
}

/// The network as Weir writes it: without the bits of a host, which nginx ignores.
fn network(directive: &Directive, notes: &mut Notes) -> Option<String> {
    let text = directive.word(0);
    if let Ok(network) = text.parse::<IpNet>() {
        return Some(network.trunc().to_string());
    }
    if text.parse::<std::net::IpAddr>().is_ok() {
        return Some(text.to_owned());
    }
    notes.add(directive, "LEFT OUT: expected an address or a network");
    None
}
