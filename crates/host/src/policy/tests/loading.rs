//! What a bad module or configuration does to its loading: an error with its setting, never more.

use super::*;

fn errors(module: Module, config: &str) -> Vec<SettingError> {
    build(&settings(module, config)).unwrap_err()
}

#[test]
fn a_guests_errors_have_the_whole_path_of_their_setting() {
    let config = r#"{"ipv6_prefix": 129, "bypass": ["x"], "limits": [{"name": "a", "algorithm": "gcra", "qouta": 1, "quota": 1, "period": "1s"}]}"#;
    let mut found = errors(shipped("client-ip"), config);
    found.sort_by(|a, b| a.setting.cmp(&b.setting));
    let settings: Vec<&str> = found.iter().map(|error| error.setting.as_str()).collect();
    assert_eq!(settings, ["config.bypass[0]", "config.ipv6_prefix", "config.limits[0].qouta"]);
    assert_eq!((found[1].found.as_str(), found[1].expected.as_str()), ("129", "0 to 128"));
    assert!(found[2].expected.ends_with("`quota` is near"), "{found:?}");
}

#[test]
fn a_rate_written_as_nginx_writes_it_is_answered_with_the_two_keys_that_say_it() {
    let config = r#"{"limits": [{"name": "a", "algorithm": "gcra", "rate": "30r/m"}]}"#;
    let found = errors(shipped("client-ip"), config);
    let rate = found.iter().find(|error| error.setting == "config.limits[0].rate").unwrap();
    assert!(rate.expected.ends_with("is `quota = 30`, `period = \"1m\"`"), "{found:?}");
    // Elsewhere these two keys would be as unknown.
    let found = errors(shipped("client-ip"), r#"{"rate": "30r/m"}"#);
    let rate = found.iter().find(|error| error.setting == "config.rate").unwrap();
    assert!(rate.expected.contains("`limits`"), "{found:?}");
}

#[test]
fn a_time_zone_that_nobody_knows_is_an_error_beside_the_guests_own() {
    let limit = |name: &str, more: &str| {
        format!(
            r#"{{"name": "{name}", "algorithm": "quota", "quota": 1, "calendar": "day", {more}}}"#
        )
    };
    let known = limit("a", r#""time_zone": "Europe/Berlin""#);
    let unknown = limit("b", r#""time_zone": "Europe/Berln""#);
    let settings = |limits: &[&str]| {
        let found =
            errors(shipped("client-ip"), &format!(r#"{{"limits": [{}]}}"#, limits.join(",")));
        found.into_iter().map(|error| error.setting).collect::<Vec<_>>()
    };
    assert_eq!(settings(&[&known, &unknown]), ["config.limits[1].time_zone"]);
    let worse = limit("c", r#""time_zone": "", "cost": 2"#);
    assert_eq!(
        settings(&[&unknown, &worse]),
        ["config.limits[1].time_zone", "config.limits[1].cost", "config.limits[0].time_zone"]
    );
}

#[test]
fn a_missing_setting_is_reported_at_the_table_that_lacks_it() {
    let found = errors(shipped("client-ip"), "{}");
    assert_eq!(
        (found.len(), found[0].setting.as_str(), found[0].found.as_str()),
        (1, "config", "no `limits`")
    );
}

#[test]
fn an_unknown_shipped_policy_is_an_error_with_the_nearest() {
    let found = errors(shipped("client_ip"), LIMITS);
    assert_eq!((found.len(), found[0].setting.as_str()), (1, "use"));
    assert!(found[0].expected.contains("nearest is `client-ip`"), "{found:?}");
    assert_eq!(
        super::super::shipped(),
        [
            "ban",
            "client-ip",
            "concurrent",
            "graphql-cost",
            "jwt-claim",
            "keyed",
            "llm-budget",
            "login-guard",
            "mcp",
            "path-cost",
            "plans",
            "rls",
            "send-quota",
            "tenant"
        ]
    );
}

#[test]
fn unknown_facts_refuse_the_configuration() {
    let found = errors(
        misbehaving(),
        r#"{"facts": ["client_ip", "tls.serial"], "response_facts": ["bytes"]}"#,
    );
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found.iter().all(|error| error.setting == "wasm"));
    assert!(
        found[0].found.contains("`client_ip`")
            && found[0].expected.ends_with("nearest is `client-ip`"),
        "{found:?}"
    );
    assert!(found[1].found.contains("`tls.serial`"), "{found:?}");
}

#[test]
fn a_file_that_is_not_a_policy_is_refused() {
    for (module, part) in [
        (wat("wrong_world.wat"), "weir:policy/handler@0.9.0"),
        (wat("foreign_import.wat"), "other:store/keys@1.0.0"),
        (bytes(b"not wasm at all".to_vec()), "valid WebAssembly"),
        (bytes(Vec::new()), "valid WebAssembly"),
        (bytes(b"\0asm\x01\0\0\0".to_vec()), "weir:policy/handler@0.9.0"),
        (bytes(wat::parse_str("(component)").unwrap()), "weir:policy/handler@0.9.0"),
        (bytes(wat::parse_str(r#"(module (import "env" "f" (func)))"#).unwrap()), "no export"),
    ] {
        let found = errors(module, "{}");
        assert_eq!((found.len(), found[0].setting.as_str()), (1, "wasm"));
        assert!(
            found[0].to_string().contains(part) && found[0].to_string().len() < 800,
            "{part}: {found:?}"
        );
    }
}

#[test]
fn a_guest_that_fails_before_it_is_configured_is_refused() {
    for (module, part) in
        [(wat("looping_start.wat"), "time: "), (wat("outside_memory.wat"), "answer: ")]
    {
        let found = errors(module, "{}");
        assert_eq!((found.len(), found[0].setting.as_str()), (1, "wasm"));
        assert!(found[0].found.contains(part), "{found:?}");
    }
    assert!(errors(misbehaving(), r#"{"loops_in_configure": true}"#)[0].found.contains("time: "));
    let mut small = settings(misbehaving(), "{}");
    small.memory_bytes = 64 << 10;
    assert_eq!(build(&small).unwrap_err()[0].setting, "memory");
    small.memory_bytes = usize::MAX;
    assert_eq!(build(&small).unwrap_err()[0].setting, "memory");
    assert!(client_ip().decide(&[("client-ip", "192.0.2.1")]).is_ok());
}

#[test]
fn a_damaged_description_of_types_is_never_read() {
    // The custom section from which the toolchain would learn the guest's types: any two bytes of
    // it flipped must not matter.
    let module = std::fs::read(guest::api_key()).unwrap();
    let at = module.windows(14).position(|window| window == b"component-type").unwrap();
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..20 {
        let mut damaged = module.clone();
        for _ in 0..2 {
            damaged[at + 14 + random.usize(..1_500)] ^= 1 << random.u8(..8);
        }
        let policy = build(&settings(bytes(damaged), LIMITS)).unwrap();
        assert!(policy.decide(&[("client-ip", "192.0.2.1")]).is_ok());
    }
}

#[test]
fn the_corpus_of_modules_holds() {
    for (_, bytes) in corpus("modules") {
        any_module::modules(&bytes);
    }
}
