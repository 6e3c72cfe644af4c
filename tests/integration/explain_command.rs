//! `weir explain`: what it prints of a key is what `weir key` takes.

use std::process::Command;

use serde_json::json;

use crate::harness::client::Client;
use crate::harness::process::run;
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::{Weir, binary};

/// What a client may send as its key: blanks, quotes, backslashes, what a shell acts on, letters of
/// other scripts, and characters that nobody sees.
const KEYS: &[&str] = &[
    "abc",
    "two words",
    "it's \"quoted\"",
    "back\\slash\\'",
    "$HOME `id` !! *",
    "caf\u{e9} \u{6f22}\u{5b57}",
    "red \u{1b}[31m\u{7}",
    "line\nbreak",
    "gpj.\u{202e}exe",
    "-k",
];

#[tokio::test]
async fn a_key_that_is_printed_can_be_pasted_into_weir_key() {
    let upstream = Upstream::start();
    let config = Toml::new()
        .upstream("api", &upstream.url(), "")
        .more(
            "[policies.public]\nuse = \"keyed\"\nconfig.key = \"{body:/key}\"\n\
             config.limits = [{ name = \"day\", algorithm = \"fixed_window\", quota = 9, period = \"1d\" }]",
        )
        .route(
            "name = \"api\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"public\"\ninspect_bytes = \"4KiB\"",
        );
    let weir = Weir::start(&config.text());
    let path = weir.folder().join("proxy.toml");
    let (path, admin) = (path.to_str().unwrap(), weir.admin.unwrap().to_string());
    let mut client = Client::connect(weir.http).await.unwrap();
    for (number, key) in (1..).zip(KEYS) {
        let body = json!({ "key": key }).to_string();
        // Each key as often as its number, so that one is not taken for another.
        for _ in 0..number.min(9) {
            let fields = [("content-type", "application/json")];
            let reply = client.send("POST", "/", &fields, body.clone().into()).await.unwrap();
            assert_eq!(reply.status, 200, "{key:?}: {reply:?}");
        }
        let asked = "POST / content-type: application/json";
        let explained =
            run(Command::new(binary()).args(["explain", asked, "--config", path, "--body", &body]));
        assert_eq!(explained.code, 0, "{}", explained.err);
        let limit = explained.out.lines().find_map(|line| line.split_once(" 1 d) key "));
        let (_, limit) = limit.unwrap_or_else(|| panic!("{key:?}: {}", explained.out));
        let word = limit.rsplit_once(": had ").unwrap().0;
        let line = format!(
            "{} key show --policy public --limit day --key {word} --config {path} --admin {admin}",
            binary()
        );
        let shown = run(Command::new("bash").args(["-c", &line]));
        assert_eq!(shown.code, 0, "{line}: {}{}", shown.out, shown.err);
        let told = format!("{} of 9 used", number.min(9));
        assert!(shown.out.contains(&told), "{line}: {told}: {}", shown.out);
    }
}
