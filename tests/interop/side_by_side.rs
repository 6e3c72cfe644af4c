//! The configurations of nginx and HAProxy in docs/side-by-side.md, checked by nginx and HAProxy.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::harness::free_address;
use crate::harness::pki::Pki;
use crate::harness::process::run;

const PAGE: &str = include_str!("../../docs/side-by-side.md");

/// The page's block in this language.
fn block(language: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("```{language}\n")).expect("a block");
    rest.split("```").next().expect("its end")
}

/// A folder with the configuration in a file `config`, and the certificate that it names.
fn folder(config: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let issued = Pki::new().server(&["api.example.com"]);
    let both = format!("{}{}", issued.certificate, issued.key);
    for (name, text) in [
        ("config", config),
        ("api.pem", &issued.certificate),
        ("api.key", &issued.key),
        ("api-and-key.pem", &both),
    ] {
        std::fs::write(folder.path().join(name), text).expect("a file");
    }
    folder
}

/// Debian installs servers in a folder that is only on root's PATH.
fn program(name: &str) -> String {
    let path = format!("/usr/sbin/{name}");
    if Path::new(&path).exists() { path } else { name.into() }
}

fn assert_accepted(command: &mut Command) {
    let done = run(command);
    assert_eq!(done.code, 0, "{command:?}\n{}{}", done.out, done.err);
}

#[test]
fn nginx_accepts_its_configuration() {
    // nginx opens ports and files of its own even if it only checks.
    let mut own = String::from("http {\naccess_log off;\n");
    for part in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        let _ = writeln!(own, "{part}_temp_path {part};");
    }
    let config = block("nginx")
        .replacen("http {\n", &own, 1)
        .replacen("listen 80;", &format!("listen {};", free_address()), 1)
        .replacen("listen 443 ssl;", &format!("listen {} ssl;", free_address()), 1);
    let folder = folder(&config);
    let mut nginx = Command::new(program("nginx"));
    nginx.arg("-t").arg("-e").arg(folder.path().join("error")).arg("-p").arg(folder.path());
    nginx.arg("-c").arg(folder.path().join("config")).arg("-g").arg("pid pid;");
    assert_accepted(&mut nginx);
}

#[test]
fn haproxy_accepts_its_configuration() {
    let folder = folder(block("haproxy"));
    let mut haproxy = Command::new(program("haproxy"));
    assert_accepted(haproxy.args(["-c", "-f", "config"]).current_dir(folder.path()));
}
