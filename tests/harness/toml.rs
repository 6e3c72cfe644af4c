//! Builds the configurations of tests. A test contains only what it is about; the rest is here:
//! free ports, JSON logs, no access log.

use std::fmt::Write as _;
use std::net::SocketAddr;

/// A configuration under construction.
#[derive(Clone, Debug)]
pub struct Toml {
    pub listener: String,
    pub server: String,
    pub limits: String,
    pub timeouts: String,
    pub store: String,
    pub rest: String,
}

impl Toml {
    /// Listens on free ports, logs JSON, counts in memory.
    pub fn new() -> Self {
        Self {
            listener: String::new(),
            server: String::new(),
            limits: String::new(),
            timeouts: String::new(),
            store: String::new(),
            rest: String::new(),
        }
    }

    /// A line of the one `[[listeners]]`.
    pub fn listener(mut self, line: &str) -> Self {
        let _ = writeln!(self.listener, "{line}");
        self
    }

    /// Serves TLS with `NAME.pem` and `NAME.key`, which
    /// [`Builder::identity`](super::weir::Builder::identity) writes.
    pub fn secured(self, names: &[&str]) -> Self {
        let all: Vec<String> = names
            .iter()
            .map(|name| format!("{{ certificate = \"{name}.pem\", key = \"{name}.key\" }}"))
            .collect();
        self.listener(&format!("certificates = [{}]", all.join(", ")))
    }

    /// A line of `[server]`.
    pub fn server(mut self, line: &str) -> Self {
        let _ = writeln!(self.server, "{line}");
        self
    }

    /// A line of `[server.limits]`.
    pub fn limit(mut self, line: &str) -> Self {
        let _ = writeln!(self.limits, "{line}");
        self
    }

    /// A line of `[server.timeouts]`.
    pub fn timeout(mut self, line: &str) -> Self {
        let _ = writeln!(self.timeouts, "{line}");
        self
    }

    /// Counts on Redis, with a deadline that is not reached on a busy machine: these tests are
    /// about counts, not about time.
    pub fn redis(self, mode: &str, nodes: &[SocketAddr]) -> Self {
        self.redis_within(mode, nodes, "deny", "10s")
    }

    pub fn redis_within(
        mut self,
        mode: &str,
        nodes: &[SocketAddr],
        on_store_error: &str,
        deadline: &str,
    ) -> Self {
        let nodes: Vec<String> = nodes.iter().map(|node| format!("\"{node}\"")).collect();
        self.store = format!(
            "[store]\nengine = \"redis\"\non_store_error = \"{on_store_error}\"\ndeadline = \"{deadline}\"\nremember_refusals = \"0s\"\n\n[store.redis]\nmode = \"{mode}\"\nnodes = [{}]\n",
            nodes.join(", ")
        );
        self
    }

    /// What this proxy counts of each limit with `on_store_error = "local"`.
    pub fn share(mut self, share: &str) -> Self {
        let store = format!("[store]\nlocal_share = \"{share}\"\n");
        self.store = self.store.replacen("[store]\n", &store, 1);
        self
    }

    /// `[upstreams.NAME]` at `url`; `more` are further lines.
    pub fn upstream(mut self, name: &str, url: &str, more: &str) -> Self {
        let _ = writeln!(self.rest, "\n[upstreams.{name}]\nendpoints = [\"{url}\"]\n{more}");
        self
    }

    /// A `client-ip` policy. Each limit is the content of an inline table:
    /// `name = "a", algorithm = "gcra", quota = 1, period = "1s"`.
    pub fn policy(mut self, name: &str, limits: &[&str]) -> Self {
        let limits: Vec<String> =
            limits.iter().map(|limit| format!("    {{ {limit} }},\n")).collect();
        let _ = writeln!(
            self.rest,
            "\n[policies.{name}]\nuse = \"client-ip\"\n[policies.{name}.config]\nlimits = [\n{}]",
            limits.concat()
        );
        self
    }

    /// A `[[routes]]` with these lines.
    pub fn route(mut self, lines: &str) -> Self {
        let _ = writeln!(self.rest, "\n[[routes]]\n{lines}");
        self
    }

    /// Anything else, verbatim.
    pub fn more(mut self, text: &str) -> Self {
        let _ = writeln!(self.rest, "\n{text}");
        self
    }

    pub fn text(&self) -> String {
        let table = |name: &str, lines: &str| {
            if lines.is_empty() { String::new() } else { format!("\n[{name}]\n{lines}") }
        };
        format!(
            "[[listeners]]\naddress = \"127.0.0.1:0\"\n{}\n[admin]\naddress = \"127.0.0.1:0\"\n\n[log]\nlevel = \"info\"\nformat = \"json\"\naccess = \"off\"\n{}{}{}\n{}{}",
            self.listener,
            table("server", &self.server),
            table("server.limits", &self.limits),
            table("server.timeouts", &self.timeouts),
            self.store,
            self.rest
        )
    }
}

/// The most common configuration: every path goes to `url`, with these limits.
pub fn simple(url: &str, limits: &[&str]) -> Toml {
    Toml::new()
        .upstream("api", url, "")
        .policy("public", limits)
        .route("name = \"api\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"public\"")
}
