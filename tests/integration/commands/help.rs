//! `weir help`: commands, and the documentation's pages in the terminal.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::weir::{Weir, binary};

/// Pages that are read before there is a Weir to ask: about other proxies, measurements, and files
/// of the repository.
const ELSEWHERE: [&str; 15] = [
    "README",
    "SUMMARY",
    "apisix",
    "caddy",
    "chaos",
    "envoy",
    "haproxy",
    "kong",
    "nginx",
    "recipes",
    "scale",
    "side-by-side",
    "soak",
    "traefik",
    "weir-or",
];

fn help(words: &[&str]) -> (i32, String, String) {
    Weir::with_arguments(&[&["help"], words].concat()).run()
}

#[test]
fn each_page_of_the_documentation_is_a_topic() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let (code, list, _) = help(&[]);
    assert_eq!(code, 0);
    let mut topics = 0;
    for entry in fs::read_dir(docs).unwrap() {
        let path = entry.unwrap().path();
        let Some("md") = path.extension().and_then(|extension| extension.to_str()) else {
            continue;
        };
        let topic = path.file_stem().unwrap().to_str().unwrap();
        if ELSEWHERE.contains(&topic) {
            continue;
        }
        topics += 1;
        let (code, shown, errors) = help(&[topic]);
        assert_eq!((code, errors.as_str()), (0, ""), "{topic}");
        let text = fs::read_to_string(&path).unwrap();
        assert!(shown.ends_with(&text), "{topic}: {shown}");
        assert!(list.contains(&format!("\n  {topic} ")), "{topic}: {list}");
    }
    assert!(topics > 30, "{topics}");
}

#[test]
fn commands_are_explained_like_pages() {
    for (words, expected) in [
        (&["check"][..], "Usage: weir check"),
        (&["policy", "new"], "Usage: weir policy new"),
        (&["replay"], "Usage: weir replay"),
        (&["replay"], "# What would a change do?"),
        (&["TLS.md"], "# TLS"),
    ] {
        let (code, shown, _) = help(words);
        assert_eq!(code, 0);
        assert!(shown.contains(expected), "{words:?}: {shown}");
    }
    let (code, shown, errors) = help(&["nothing"]);
    assert_eq!((code, shown.as_str()), (2, ""));
    assert!(errors.contains("no page \"nothing\""), "{errors}");
}

#[test]
fn an_upgrade_is_checked_with_the_configuration() {
    let check = |words: &[&str]| Weir::with_arguments(&[&["upgrade-check"], words].concat());
    let route = "[[routes]]\npath = \"/*\"\nrespond = { status = 204 }\n";
    let builder = check(&["--from", "0.9.0", "--all", "gateway.toml"]);
    let (code, shown, errors) = builder.file("gateway.toml", route.as_bytes()).run();
    assert_eq!(code, 0, "{errors}");
    // What is said of a release that is asked from is old.
    assert!(shown.contains(": Added") && !shown.contains("The first version"), "{shown}");
    let builder = check(&["--from", "0.9.0", "--config", "gateway.toml"]);
    let (code, _, errors) = builder.file("gateway.toml", b"[[route]]\n").run();
    assert_eq!(code, 78);
    assert!(errors.contains("gateway.toml:1"), "{errors}");
    let (code, _, errors) = check(&["--from", "0.1.0"]).run();
    assert_eq!(code, 2);
    assert!(errors.contains("expected one that this program knows") && errors.contains("0.9.0"));
}

#[test]
fn shells_complete_commands_and_options() {
    for (shell, expected) in [("bash", "_weir()"), ("zsh", "#compdef weir"), ("fish", "-c weir")] {
        let (code, script, _) = Weir::with_arguments(&["completions", shell]).run();
        assert_eq!(code, 0, "{shell}");
        assert!(script.contains(expected) && script.contains("replay"), "{shell}: {script}");
    }
}

/// Runs a command whose output goes to `output`.
fn into(words: &[&str], output: impl Into<Stdio>) -> Option<i32> {
    let mut weir = Command::new(binary());
    weir.args(words).stdout(output).stderr(Stdio::null()).status().unwrap().code()
}

#[test]
fn a_reader_who_has_read_enough_is_no_failure_and_a_full_disk_is_one() {
    for words in [&["help", "limits"][..], &["settings"], &["--help"], &["run", "--help"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(into(words, writer), Some(0), "{words:?}");
        let full = fs::File::options().write(true).open("/dev/full");
        let Ok(full) = full else { continue };
        assert_eq!(into(words, full), Some(1), "{words:?}");
    }
}
