//! Secrets, modules, and what is watched.

use std::fs;

use super::*;

const REDIS_WITH_SECRETS: &str = "[store]\nengine = \"redis\"\non_store_error = \"allow\"\nkey_secret_file = \"key\"\n\
                                  [store.redis]\nnodes = [\"127.0.0.1:7000\"]\npassword_file = \"key\"\n";

/// Longer than what a message repeats of a text.
const LONG: &str =
    "redis://me:hunter2-0123456789012345678901234567890123456789012345678901234567890123456789@h:1";

fn wrong(text: &str) -> String {
    parse(&format!("{text}\n{}", MINIMAL)).expect_err(text).text
}

#[test]
fn secrets_are_read_and_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.toml");
    fs::write(folder.path().join("key"), "hunter2\n").unwrap();
    let text = format!("{REDIS_WITH_SECRETS}{}", MINIMAL);
    let config = Config::parse(&text, &path).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.limiter.key_secret.as_ref().map(|secret| secret.0.as_str()), Some("hunter2"));
    let engine::Settings::Redis(redis) = &config.engine else { panic!("{:?}", config.engine) };
    assert_eq!(redis.password.as_ref().map(|secret| secret.0.as_str()), Some("hunter2"));
    assert!(!format!("{config:?}").contains("hunter2"));
    assert_eq!(config.watched.len(), 3);
    fs::write(folder.path().join("key"), "\n").unwrap();
    assert!(Config::parse(&text, &path).unwrap_err().text.contains("an empty secret"));
    fs::write(folder.path().join("key"), vec![b'x'; 5_000]).unwrap();
    assert!(Config::parse(&text, &path).unwrap_err().text.contains("it has more than 4KiB"));
}

#[test]
fn certificates_and_keys_are_read_watched_and_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.toml");
    for name in ["ca.pem", "api.pem", "api.key"] {
        fs::write(folder.path().join(name), format!("secret of {name}")).unwrap();
    }
    let tls = "[upstreams.x]\nendpoints = [\"https://h\"]\ntls = { ca = \"ca.pem\", certificate = \"api.pem\", key = \"api.key\" }\n";
    let config = Config::parse(&format!("{tls}{}", MINIMAL), &path)
        .unwrap_or_else(|errors| panic!("{errors}"));
    let upstream = config.upstreams.iter().find(|upstream| upstream.name == "x").unwrap();
    assert_eq!(*upstream.tls.ca.as_ref().unwrap().bytes, *b"secret of ca.pem");
    assert_eq!(*upstream.tls.identity.as_ref().unwrap().key.bytes, *b"secret of api.key");
    assert_eq!(config.watched.len(), 4);
    assert!(!format!("{config:?}").contains("secret of"));
}

#[test]
fn a_secret_in_the_file_itself_is_an_error_whose_excerpt_hides_it() {
    for line in ["password = \"hunter2\"", "password = hunter2", "password = '''\nhunter2'''"] {
        let excerpt = wrong(&format!("{REDIS}{line}"));
        assert!(!excerpt.contains("hunter2") && excerpt.contains("password ="), "{excerpt}");
    }
    let excerpt = wrong(&REDIS.replace("127.0.0.1:7000", "redis://me:hunter2@h:1"));
    assert!(!excerpt.contains("hunter2") && excerpt.contains("redis://"), "{excerpt}");
    // A password of random characters has slashes; and the scheme is forgotten where a node is only
    // `host:port`.
    for node in [
        "redis://me:hun/hunter2@h:1",
        "me:hun/hunter2@h:1",
        ":hunter2@h:1",
        "redis://me:a?b#hunter2@h:1",
        LONG,
    ] {
        let excerpt = wrong(&REDIS.replace("127.0.0.1:7000", node));
        assert!(!excerpt.contains("hunter2") && excerpt.contains("@h:1"), "{excerpt}");
    }
    // A line that is no TOML has no tree in which to look for a key.
    let excerpt = wrong(&format!("{REDIS}[store]\nredis = {{ password = \"hunter2\", x }}"));
    assert!(!excerpt.contains("hunter2"), "{excerpt}");
}

#[test]
fn credentials_beside_a_mistake_are_not_shown() {
    let otlp = "[telemetry.otlp]\nendpoint = \"http://127.0.0.1:4318\"\n";
    for fields in [
        "request_headers = { set = { Authorization = \"Bearer hunter2\", X = 3 } }",
        "request_headers = { set = { X-Upstream-Key = \"hunter2\" }, x = 3 }",
        "request_headers = { add = { X-Key = [\"hunter2\", 3] } }",
        // No TOML.
        "request_headers = { set = { Authorization = \"Bearer hunter2\", x } }",
        "request_headers = { set = { X-Upstream-Key = \"hunter2\", x } }",
    ] {
        let excerpt = parse(&format!("{MINIMAL}{fields}\n")).unwrap_err().text;
        assert!(!excerpt.contains("hunter2"), "{excerpt}");
        assert!(excerpt.contains("request_headers ="), "{excerpt}");
    }
    for headers in ["headers = { X-Key = \"hunter2\", Y = 3 }", "headers = { token = 3 }"] {
        let excerpt = parse(&format!("{MINIMAL}{otlp}{headers}\n")).unwrap_err().text;
        assert!(!excerpt.contains("hunter2") && excerpt.contains("headers ="), "{excerpt}");
    }
    for fields in [
        "request_headers = {\n  add = {\n    X-Upstream-Key = [\"hunter2\"], x } }",
        "request_headers = {\n  add = { X-Upstream-Key = [\n\"hunter2\", x ] } }",
        "[routes.request_headers.set]\nX-Upstream-Key = \"hunter2\" x",
        "[routes.request_headers]\nset = {\nX-Upstream-Key = \"hunter2\" x",
        "[telemetry.otlp.headers]\nX-Upstream-Key = \"hunter2\" x",
        // A key twice, a colon, and a value on the next line.
        "[routes.request_headers.set]\nX-Key = \"a\"\nX-Key = \"hunter2\"",
        "[telemetry.otlp.headers]\nx-team: \"hunter2\"",
        "[store.redis]\npassword: \"hunter2\"",
        "[store.redis]\npassword =\n  \"hunter2\"",
        // Brackets in quotes and comments close nothing, nor do those of another kind.
        "[routes]\nrequest_headers = { set = {\nX-A = \"}}\", # }}\nX-Key: \"hunter2\" } }",
        "[routes]\nrequest_headers.set.X-Key = [ 1 }\n\"hunter2\" x",
        "[telemetry]\notlp.headers = { X = [\n[\"hunter2\", x ] }",
        "[telemetry]\notlp.headers = { X = [\n  [hunter2], x ] }",
        // A string of several lines, and headers that are indented or have a comment.
        "[store.redis]\npassword = \"\"\"\nhunter2\" x",
        "[store.redis]\npassword = \"\"\"\n[store]\nhunter2\" x",
        "[store.redis]\npassword = # from the vault\n\"hunter2\" x",
        "  [telemetry.otlp.headers] # headers\nx-team: \"hunter2\"",
    ] {
        let excerpt = parse(&format!("{MINIMAL}{fields}\n")).unwrap_err().text;
        assert!(!excerpt.contains("hunter2"), "{excerpt}");
        assert!(excerpt.contains('*'), "{excerpt}");
    }
    // What follows such a section is shown.
    let excerpt =
        wrong("[routes.request_headers]\nset = { X = \"hunter2\" }\n[server]\nworkers = two");
    assert!(excerpt.contains("workers = two") && !excerpt.contains("hunter2"), "{excerpt}");
    // Where a secret is may be read.
    let excerpt = wrong(&format!("{REDIS}password_file = \"absent\""));
    assert!(excerpt.contains("password_file = \"absent\""), "{excerpt}");
}

#[test]
fn what_a_command_does_not_need_may_be_absent() {
    let tls = "[[listeners]]\naddress = \"127.0.0.1:0\"\n\
               certificates = [{ certificate = \"absent.pem\", key = \"absent.key\" }]\n";
    let otlp = "[telemetry.otlp]\nendpoint = \"http://127.0.0.1:4318\"\n\
                headers_env = { x-key = \"WEIR_TEST_ABSENT\" }\n";
    let text = format!("{tls}{otlp}{REDIS}password_env = \"PATH\"\n{MINIMAL}");
    let needed = |text: &str, needed: &[&str]| {
        let needed: Vec<String> = needed.iter().map(|section| (*section).into()).collect();
        parse(text).unwrap_err().or_needed(&|_| needed.clone())
    };
    let config = needed(&text, &["store", "policies.public", "listener"]).unwrap();
    let engine::Settings::Redis(redis) = config.engine else { panic!("{:?}", config.engine) };
    assert!(redis.password.is_some());
    for (text, sections) in [
        (text.replace("\"PATH\"", "\"WEIR_TEST_ABSENT\""), &["store"][..]),
        (text.clone(), &["listeners"]),
        (text.clone(), &["telemetry.otlp"]),
        // Other errors are errors.
        (text.replace("quota = 100", "quota = 100, quota = 1"), &["store"]),
        (format!("workers = 3\n{text}"), &["store"]),
    ] {
        let errors = needed(&text, sections).unwrap_err();
        // All of them, also those of what is not needed.
        assert!(errors.count > 2 && errors.text.contains("absent.pem"), "{errors}");
    }
}

#[test]
fn a_token_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.toml");
    let admin = "[admin]\naddress = \"127.0.0.1:0\"\ntoken_file = \"token\"\n";
    let read = |token: &str| {
        fs::write(folder.path().join("token"), token).unwrap();
        Config::parse(&format!("{admin}{MINIMAL}"), &path)
    };
    assert!(read("hunter2-and-more\n").is_ok());
    let error = read("hunter2-and-more\nhunter3\n").unwrap_err().text;
    assert!(error.contains("a token of one line") && !error.contains("hunter"), "{error}");
}

#[test]
fn a_secret_that_is_not_there_is_an_error() {
    assert!(
        wrong(&format!("{REDIS}password_file = \"absent\""))
            .contains("absent (No such file or directory)")
    );
    assert!(
        wrong(&format!("{REDIS}password_env = \"WEIR_NOT_SET_ANYWHERE\""))
            .contains("an environment variable that is set")
    );
    assert!(
        wrong(&format!("{REDIS}password_env = \"A=\""))
            .contains("an environment variable that is set")
    );
    let both = wrong("store = { key_secret_env = \"A\", key_secret_file = \"b\" }");
    assert!(both.contains("both `key_secret_file` and `key_secret_env`"), "{both}");
}

#[test]
fn a_module_is_read_relative_to_the_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mine.wasm"), b"\0asm").unwrap();
    let text = MINIMAL.replace("use = \"client-ip\"", "wasm = \"mine.wasm\"");
    let config = Config::parse(&text, &folder.path().join("proxy.toml"))
        .unwrap_or_else(|errors| panic!("{errors}"));
    let expected =
        Module::File { path: folder.path().join("mine.wasm"), bytes: b"\0asm".as_slice().into() };
    assert_eq!(config.policies[0].module, expected);
}

#[test]
fn every_file_that_is_named_is_watched_also_by_a_bad_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.toml");
    fs::write(folder.path().join("a.wasm"), b"\0asm").unwrap();
    let wasm =
        "policies.a.wasm = \"a.wasm\"\npolicies.b.wasm = \"later.wasm\"\npolicies.c.wasm = \"/\"\n";
    fs::write(&path, format!("{wasm}{}", MINIMAL)).unwrap();
    let errors = Config::load(&path).unwrap_err();
    let named = [
        Watch::now(&path),
        Watch::now(folder.path().join("a.wasm")),
        Watch::absent(folder.path().join("later.wasm")),
    ];
    assert_eq!(errors.watched[..3], named);
    assert_eq!(errors.watched[3..], [Watch::absent("/")]);
    assert!(errors.text.contains("policies.c.wasm: found / (it is not a file)"), "{errors}");
    fs::write(&path, "= syntax\npolicies.a.wasm = \"a.wasm\"\n").unwrap();
    assert_eq!(Config::load(&path).unwrap_err().watched.len(), 2);
}

#[test]
fn a_file_that_is_none_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.toml");
    let absent = Config::load(&path).unwrap_err();
    assert!(absent.text.contains("cannot be read: No such file"), "{absent}");
    assert_eq!(absent.watched, [Watch::absent(&path)]);
    fs::write(&path, b"a = 1\nb = \"\xff\"\n").unwrap();
    assert!(
        Config::load(&path)
            .unwrap_err()
            .text
            .contains("proxy.toml:2: found bytes that are not UTF-8")
    );
    fs::write(&path, vec![b'\n'; 2 << 20]).unwrap();
    assert!(Config::load(&path).unwrap_err().text.contains("more than 1MiB"));
}

/// As a ConfigMap is updated: all its files are replaced at once, by one link.
#[test]
fn files_that_are_replaced_together_are_read_together() {
    use std::sync::atomic::{AtomicBool, Ordering};

    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for version in ["1", "2"] {
        std::fs::create_dir(path(version)).unwrap();
        // So many files that a swap falls between two of them.
        let pages = (0..40).map(|page| {
            std::fs::write(path(version).join(format!("{page}.txt")), version).unwrap();
            format!("[[refusals]]\nstatus = {}\nbody_file = \"{page}.txt\"\n", 400 + page)
        });
        let pages: String = pages.collect();
        let text = MINIMAL.replace("quota = 100", &format!("quota = {version}"));
        std::fs::write(path(version).join("proxy.toml"), text + &pages).unwrap();
    }
    let point_to = |version: &str| {
        std::os::unix::fs::symlink(version, path("next")).unwrap();
        std::fs::rename(path("next"), path("live")).unwrap();
    };
    point_to("1");
    let done = AtomicBool::new(false);
    let mixed = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for version in ["2", "1"] {
                    point_to(version);
                    // Longer than a whole read, so that reading again helps.
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
            }
        });
        let read = || {
            let config = Config::load(&path("live/proxy.toml")).ok()?;
            let quota = config.policies.first()?.written_limits().first()?.algorithm.amount()?;
            let pages = config.requests.refusals.iter().map(|page| page.body.clone());
            Some((quota.to_string(), pages.collect::<Vec<_>>()))
        };
        let all: Vec<_> = (0..150).map(|_| read()).collect();
        done.store(true, Ordering::Relaxed);
        let whole = |(quota, pages): &(String, Vec<String>)| {
            pages.len() == 40 && pages.iter().all(|page| page == quota)
        };
        all.into_iter().filter(|read| !read.as_ref().is_some_and(whole)).collect::<Vec<_>>()
    });
    assert_eq!(mixed, []);
}
