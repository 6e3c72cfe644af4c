//! curl, the command, with the complete response: the bytes of heads and trailers included.

use std::process::Command;

use super::process::run;

/// curl's report about a transfer.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// curl's own exit code.
    pub exit: i32,
    pub status: u16,
    /// "1" (which is 1.0), "1.1" or "2".
    pub version: String,
    /// All heads as they came, interim responses and trailers included.
    pub heads: String,
    pub body: Vec<u8>,
    /// Connections that were made, for all URLs.
    pub connects: u64,
    /// Bytes of the request's body that were sent.
    pub sent: u64,
    /// Bytes of the response's body that were received.
    pub received: u64,
    pub err: String,
}

impl Transfer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// A field's value in the final head or in the trailers.
    pub fn field(&self, name: &str) -> Option<&str> {
        let lines = self.heads.lines().rev();
        lines
            .filter_map(|line| line.split_once(':'))
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
    }

    /// The status of each head that came: `[100, 200]` if the server asked for the body first.
    pub fn statuses(&self) -> Vec<u16> {
        let lines = self.heads.lines().filter(|line| line.starts_with("HTTP/"));
        lines.filter_map(|line| line.split(' ').nth(1)?.parse().ok()).collect()
    }
}

/// Runs curl. The transfer may fail; see `exit`.
pub fn try_curl(arguments: &[&str]) -> Transfer {
    transfer(arguments, true)
}

/// The same for a body that is too large to keep.
pub fn try_curl_to_nowhere(arguments: &[&str]) -> Transfer {
    transfer(arguments, false)
}

fn transfer(arguments: &[&str], keep: bool) -> Transfer {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (heads, body) = (folder.path().join("heads"), folder.path().join("body"));
    let mut command = Command::new("curl");
    // Without a ~/.curlrc and without a proxy of the machine; the time limit is that of a test.
    command.args(["--disable", "--noproxy", "*", "--silent", "--show-error", "--max-time", "60"]);
    command.arg("--dump-header").arg(&heads).arg("--output").arg(if keep {
        body.as_os_str()
    } else {
        "/dev/null".as_ref()
    });
    command.args(["--write-out", "%{json}"]).args(arguments);
    let finished = run(&mut command);
    // There is one object for each URL. The last one is used.
    let told = serde_json::Deserializer::from_str(&finished.out)
        .into_iter::<serde_json::Value>()
        .map_while(Result::ok);
    let told: Vec<serde_json::Value> = told.collect();
    let connects = told.iter().filter_map(|told| told["num_connects"].as_u64()).sum();
    let told = told.last().unwrap_or_else(|| {
        panic!("curl {arguments:?}: {finished:?} (`make setup` installs a curl that is new enough)")
    });
    let number = |name: &str| told[name].as_u64().unwrap_or(0);
    Transfer {
        exit: finished.code,
        status: number("response_code") as u16,
        version: told["http_version"].as_str().unwrap_or_default().to_owned(),
        heads: std::fs::read_to_string(&heads).unwrap_or_default(),
        body: std::fs::read(&body).unwrap_or_default(),
        connects,
        sent: number("size_upload"),
        received: number("size_download"),
        err: finished.err,
    }
}

/// Runs curl for a transfer that must succeed.
pub fn curl(arguments: &[&str]) -> Transfer {
    let done = try_curl(arguments);
    assert_eq!(done.exit, 0, "curl {arguments:?}: {}{}", done.err, done.heads);
    done
}
