//! `curl` as a client: what most people try a proxy with. Knows no test.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

/// The result of a curl run.
#[derive(Debug)]
pub struct Curl {
    /// 0 if it got a response, whatever its status.
    pub exit: i32,
    pub status: u16,
    /// `1.1` or `2`.
    pub version: String,
    /// All heads, and the body.
    pub text: String,
    pub errors: String,
}

/// `curl ARGUMENTS URL`, with `api.example` resolved to `address`. The caller chooses the scheme:
/// `https://api.example/path`.
pub async fn curl(address: SocketAddr, url: &str, arguments: &[&str]) -> Curl {
    let port = address.port();
    let url = url.replacen("api.example", &format!("api.example:{port}"), 1);
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--include", "--max-time", "30", "--noproxy", "*"]);
    command.args(["--resolve", &format!("api.example:{port}:{}", address.ip())]);
    command.args(["--write-out", "\n%{http_code} %{http_version}"]).args(arguments).arg(url);
    command.stdin(Stdio::null());
    // On a thread of its own: the test's upstream may run on this one.
    let output = tokio::task::spawn_blocking(move || command.output().expect("curl is installed"))
        .await
        .expect("no panic");
    let all = String::from_utf8_lossy(&output.stdout).into_owned();
    let (text, last) = all.rsplit_once('\n').unwrap_or(("", &all));
    let (status, version) = last.split_once(' ').unwrap_or(("0", ""));
    Curl {
        exit: output.status.code().unwrap_or(-1),
        status: status.parse().unwrap_or(0),
        version: version.to_owned(),
        text: text.to_owned(),
        errors: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
