//! Configurations in directories that are replaced as a whole: a ConfigMap's `..data`, and a link
//! to a directory of a release. Everything that Weir reads may be there.

use std::time::Duration;

use rustix::process::Signal;

use crate::harness::client::get;
use crate::harness::eventually_async;
#[cfg(target_os = "linux")]
use crate::harness::held::HeldCalls;
use crate::harness::mount::Mount;
use crate::harness::pki::Pki;
use crate::harness::tls::{HOST, shown};
use crate::harness::toml::{Toml, simple};
use crate::harness::upstream::Upstream;
use crate::harness::weir::{Builder, Weir};
use crate::process::handover::Successor;

const SCRIPT: &str = include_str!("../../../examples/scripts/lockout.lua");

/// The files of one version.
#[derive(Clone)]
struct Files {
    config: String,
    module: Vec<u8>,
    customers: String,
    certificate: String,
    key: String,
    script: String,
}

impl Files {
    fn new(upstream: &Upstream, pki: &Pki) -> Self {
        let issued = pki.server(&[HOST]);
        let limit = |name: &str, quota: u32| {
            format!(
                "{{ name = \"{name}\", algorithm = \"fixed_window\", quota = {quota}, period = \"1d\" }}"
            )
        };
        let toml = Toml::new()
            .upstream("api", &upstream.url(), "")
            .policy("day", &["name = \"day\", algorithm = \"fixed_window\", quota = 100, period = \"1d\""])
            .policy(
                "login",
                &["name = \"login\", algorithm = \"script\", script = \"lockout\", arguments = [3, 60_000_000, 300_000_000]"],
            )
            .more(&format!("[policies.keys]\nwasm = \"policy.wasm\"\nconfig.limits = [{}]", limit("key", 5)))
            .more(&format!(
                "[policies.plans]\nuse = \"plans\"\nconfig_files = {{ assign = \"customers.toml\" }}\n\
                 config.key = \"{{header.x-api-key}}\"\nconfig.default_plan = \"free\"\n\
                 config.plans = {{ free = [{}], gold = [{}] }}",
                limit("plan", 10),
                limit("plan", 1_000)
            ))
            .more("[[listeners]]\naddress = \"127.0.0.1:0\"\ncertificates = [{ certificate = \"api.pem\", key = \"api.key\" }]");
        let routes = ["day", "login", "keys", "plans"];
        let toml = routes.iter().fold(toml, |toml, name| {
            toml.route(&format!("path = \"/{name}\"\nupstream = \"api\"\npolicy = \"{name}\""))
        });
        let config = Toml { store: "[store]\nscripts = \"lua\"\n".into(), ..toml }.text();
        Self {
            config,
            module: std::fs::read(crate::harness::guest::api_key()).unwrap(),
            customers: customers("free"),
            certificate: issued.certificate,
            key: issued.key,
            script: SCRIPT.into(),
        }
    }

    /// All but the script, which is in a directory of its own: a ConfigMap has no directories.
    fn all(&self) -> [(&str, &[u8]); 5] {
        [
            ("proxy.toml", self.config.as_bytes()),
            ("policy.wasm", &self.module),
            ("customers.toml", self.customers.as_bytes()),
            ("api.pem", self.certificate.as_bytes()),
            ("api.key", self.key.as_bytes()),
        ]
    }

    fn scripts(&self) -> [(&str, &[u8]); 1] {
        [("lockout.lua", self.script.as_bytes())]
    }
}

/// The SHA-256 of `alice` on this plan.
fn customers(plan: &str) -> String {
    format!(
        "\"sha256:2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90\" = \"{plan}\"\n"
    )
}

/// What a test publishes a version with.
trait Publish {
    fn publish(&self, files: &Files);
}

/// Two ConfigMaps: one with the files, and one with the scripts.
struct ConfigMaps(Mount, Mount);

impl Publish for ConfigMaps {
    fn publish(&self, files: &Files) {
        self.0.publish(&files.all());
        self.1.publish(&files.scripts());
    }
}

/// Edits one thing after the other, each as a new version of everything, and sees it applied.
async fn each_edit_is_applied(weir: &Weir, pki: &Pki, mut files: Files, mount: &dyn Publish) {
    let secured = weir.listeners()[1];
    let remaining = async |path: &str, limit: &str| {
        get(weir.http, path, &[("x-api-key", "alice")]).await.remaining(limit)
    };
    let becomes = async |what: &str, expected: i64, path: &str, limit: &str| {
        eventually_async(what, async || match remaining(path, limit).await {
            // The questions count, too.
            left if left > expected - 50 && left <= expected => Ok(()),
            left => {
                // Each question uses up a unit.
                tokio::time::sleep(Duration::from_millis(100)).await;
                Err(format!("{left} of {expected} left\n{}", weir.output().tail(20)))
            }
        })
        .await;
    };
    assert_eq!((remaining("/day", "day").await, remaining("/keys", "key").await), (99, 4));
    assert_eq!((remaining("/plans", "plan").await, remaining("/login", "login").await), (9, 2));

    files.config = files.config.replace("quota = 100,", "quota = 200,");
    mount.publish(&files);
    becomes("the main file", 199, "/day", "day").await;

    files.customers = customers("gold");
    mount.publish(&files);
    becomes("the customers", 1_000, "/plans", "plan").await;

    let before = shown(secured, &pki.ca).await.unwrap();
    let renewed = pki.server(&[HOST]);
    (files.certificate, files.key) = (renewed.certificate, renewed.key);
    mount.publish(&files);
    eventually_async("the certificate", async || {
        let now = shown(secured, &pki.ca).await.map_err(|error| error.to_string())?;
        if now == before { Err("the old one".to_owned()) } else { Ok(()) }
    })
    .await;

    files.script = files
        .script
        .replace("tries, window, pause)", "half, window, pause)\n  local tries = 50 * half");
    mount.publish(&files);
    becomes("the script", 149, "/login", "login").await;

    // A module that is none is refused, and so seen. The counters of the right one go on.
    let module = std::mem::replace(&mut files.module, b"\0asm\x01\0\0\0\xff".to_vec());
    mount.publish(&files);
    weir.await_reloads("refused", 1);
    let left = remaining("/keys", "key").await;
    files.module = module;
    files.module.extend_from_slice(b"\0\x05\x04note");
    files.config = files.config.replace(
        "name = \"key\", algorithm = \"fixed_window\", quota = 5",
        "name = \"key\", algorithm = \"fixed_window\", quota = 50",
    );
    mount.publish(&files);
    becomes("the module", left + 44, "/keys", "key").await;
}

#[tokio::test]
async fn everything_in_a_config_map_is_reloaded_when_its_link_is_swapped() {
    let (upstream, pki) = (Upstream::start(), Pki::new());
    let files = Files::new(&upstream, &pki);
    let builder = Weir::build(&files.config);
    let folder = builder.folder();
    let maps = ConfigMaps(Mount::new(&folder), Mount::new(&folder.join("lua")));
    maps.publish(&files);
    let weir = builder.start();
    each_edit_is_applied(&weir, &pki, files, &maps).await;
}

/// A link to the directory of a release, as `ln -sfn` and git-sync replace it.
struct Releases(std::path::PathBuf, std::cell::Cell<u32>);

impl Publish for Releases {
    fn publish(&self, files: &Files) {
        let Self(folder, count) = self;
        let name = format!("release-{}", count.replace(count.get() + 1));
        std::fs::create_dir_all(folder.join(&name).join("lua")).unwrap();
        for (file, bytes) in files.all() {
            std::fs::write(folder.join(&name).join(file), bytes).unwrap();
        }
        for (file, bytes) in files.scripts() {
            std::fs::write(folder.join(&name).join("lua").join(file), bytes).unwrap();
        }
        std::os::unix::fs::symlink(&name, folder.join("next")).unwrap();
        std::fs::rename(folder.join("next"), folder.join("live")).unwrap();
    }
}

#[tokio::test]
async fn everything_in_a_release_is_reloaded_when_the_link_to_it_is_swapped() {
    let (upstream, pki) = (Upstream::start(), Pki::new());
    let files = Files::new(&upstream, &pki);
    let builder: Builder = Weir::with_arguments(&["run", "--config", "live/proxy.toml"]);
    let releases = Releases(builder.folder(), std::cell::Cell::new(0));
    releases.publish(&files);
    let weir = builder.start();
    each_edit_is_applied(&weir, &pki, files, &releases).await;
}

fn day(upstream: &Upstream, quota: u32) -> String {
    let limit =
        format!("name = \"day\", algorithm = \"fixed_window\", quota = {quota}, period = \"1d\"");
    simple(&upstream.url(), &[&limit]).text()
}

#[tokio::test]
async fn a_folder_that_takes_the_place_of_the_working_directory_is_read() {
    let upstream = Upstream::start();
    let build = Weir::with_arguments(&["run", "proxy.toml"]);
    let weir = build.file("proxy.toml", day(&upstream, 100).as_bytes()).start();
    assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), 99);
    std::fs::remove_dir_all(weir.folder()).unwrap();
    weir.await_reloads("refused", 1);
    std::fs::create_dir(weir.folder()).unwrap();
    weir.reload(&day(&upstream, 200), "applied");
    assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), 198);
    // The new process is started there, too.
    weir.signal(Signal::USR2);
    let successor = Successor::of(&weir, 1);
    weir.output().await_text("handed over to a new process");
    drop(successor);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn without_watches_changes_are_found_and_the_lack_is_said_once() {
    let (held, upstream) = (HeldCalls::new(), Upstream::start());
    held.fail("inotify_init1");
    let build = Weir::build(&day(&upstream, 100));
    let build = held
        .environment()
        .iter()
        .fold(build, |build, (name, value)| build.environment(name, value));
    let weir = build.start();
    // Each is found by a look of its own.
    for quota in [200, 300] {
        weir.reload(&day(&upstream, quota), "applied");
    }
    held.restore("inotify_init1");
    weir.output().await_text("files are watched again");
    let events = weir.output().events();
    let lost: Vec<_> = events.iter().filter_map(|event| event["remedy"].as_str()).collect();
    assert_eq!(lost, ["raise the sysctl fs.inotify.max_user_instances"]);
    // By an event again, and not only every half a minute.
    weir.reload(&day(&upstream, 400), "applied");
}
