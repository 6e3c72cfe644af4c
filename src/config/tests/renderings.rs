//! What of a line is marked, and what of it is hidden.

use super::*;

fn rendered(config: &Config, error: SettingError) -> String {
    config.source.locate(&[error]).text
}

#[test]
fn an_error_in_a_key_marks_the_key() {
    let config = good(&MINIMAL.replace("config.limits", "config.bypas = []\nconfig.limits"));
    let unknown = SettingError::new(
        "policies.public.config.bypas",
        "the unknown key `bypas`",
        "one of `bypass`",
    )
    .in_key();
    let excerpt = rendered(&config, unknown);
    assert!(
        excerpt.contains("7 | config.bypas = []\n  |        ^^^^^ expected one of `bypass`"),
        "{excerpt}"
    );
    for (text, line, marked) in [
        (
            "policies.p = { use = \"client-ip\", wasm = \"a.wasm\" }",
            "policies.p = { use = \"client-ip\", wasm = \"a.wasm\" }",
            "^^^^ expected",
        ),
        (
            "[[routes]]\npath = \"/x\"\nupstream = \"api\"\nrespond = {}",
            "respond = {}",
            "^^^^^^^ expected one of the two",
        ),
        (
            "store = { key_secret_file = \"b\", key_secret_env = \"A\" }",
            "store = { key_secret_file",
            "^^^^^^^^^^^^^^ expected one of the two",
        ),
    ] {
        let excerpt = parse(&format!("{text}\n{MINIMAL}")).unwrap_err().text;
        assert!(excerpt.contains(line) && excerpt.contains(&format!(" {marked}")), "{excerpt}");
    }
}

#[test]
fn a_name_with_a_dot_is_quoted_and_is_no_table_below_another() {
    let text =
        MINIMAL.replace("upstreams.api", "upstreams.\"api.tls\"").replace("\"api\"", "\"api.tls\"");
    let text = format!("{text}[upstreams.api]\nendpoints = [\"http://h:1\"]\ntls = {{ ca = 3 }}\n");
    let errors = parse(&text.replace("[\"http://127.0.0.1:3000\"]", "3")).unwrap_err();
    let places: Vec<_> =
        errors.each.iter().map(|error| (error.line, error.text.as_str())).collect();
    let expected = [
        (Some(3), "upstreams.\"api.tls\".endpoints: found 3"),
        (Some(15), "upstreams.api.tls.ca: found 3"),
    ];
    assert_eq!(places.len(), 2, "{errors}");
    for ((line, text), (expected, begin)) in places.iter().zip(expected) {
        assert!(*line == expected && text.starts_with(begin), "{errors}");
    }
    // The same by a module that knows the upstream's name, and by one that writes no quotes.
    let text = text.replace(", ca = 3", "").replace("tls = { ca = 3 }\n", "");
    let config = good(&format!(
        "{text}[policies.x.config]\nplans = {{ \"a b.c\" = 1 }}\n[policies.x]\nuse = \"plans\"\n"
    ));
    for (setting, place) in [
        (setting::upstream("api.tls"), "proxy.toml:2:1"),
        ("policies.x.config.plans.\"a b.c\"".into(), "proxy.toml:16:21"),
        ("policies.x.config.plans.a b.c[0]".into(), "proxy.toml:16:21"),
    ] {
        let excerpt = rendered(&config, SettingError::new(setting, "x", "y"));
        assert!(excerpt.contains(place), "{excerpt}");
    }
}

#[test]
fn two_settings_that_contradict_each_other_are_both_shown() {
    let routes = "[[routes]]\nname = \"a\"\npath = \"/x\"\nupstream = \"api\"\n\n\n\n\n[[routes]]\npath = \"/y\"\nupstream = \"api\"\nname = \"a\"\n";
    let excerpt = parse(&format!("{MINIMAL}{routes}")).unwrap_err().text;
    let expected = [
        "error: routes[2].name: found the name \"a\", which routes[1] has",
        "14 | name = \"a\"\n   |        --- routes[1] is here",
        "24 | name = \"a\"\n   |        ^^^ expected a name that no other route has",
    ];
    expected.iter().for_each(|part| assert!(excerpt.contains(part), "{part}\n{excerpt}"));
    // The router's error, not one about names: no name would help.
    let twice = good(&format!("{MINIMAL}[[routes]]\npath = \"/*\"\nupstream = \"api\"\n"));
    let tie = SettingError::new("routes[1].path", "\"/*\"", "another")
        .beside("routes[0].path", "routes[0] is here");
    let excerpt = rendered(&twice, tie);
    assert!(
        excerpt.contains("10 | path = \"/*\"\n   |        ---- routes[0] is here"),
        "{excerpt}"
    );
    assert!(excerpt.contains("14 | path = \"/*\"\n   |        ^^^^ expected another"), "{excerpt}");
}

#[test]
fn of_a_long_list_of_keys_the_nearest_one_is_kept() {
    let config = good(MINIMAL);
    let keys: Vec<String> = (0..100).map(|number| format!("`key{number}`")).collect();
    let expected = format!("one of {}; `quota` is near", keys.join(", "));
    let excerpt = rendered(
        &config,
        SettingError::new("policies.public.config", "the unknown key `qouta`", expected),
    );
    assert!(excerpt.contains("expected one of `key0`, "), "{excerpt}");
    assert!(excerpt.contains(" ... ") && excerpt.contains("; `quota` is near\n"), "{excerpt}");
}

#[test]
fn an_interface_is_not_taken_for_a_password() {
    let config = good(MINIMAL);
    let found =
        |found: &str| rendered(&config, SettingError::new("policies.public.use", found, "a guest"));
    for name in [
        "weir:policy/handler@0.9.0",
        "`wasi:io/streams@0.2.3`",
        "no export `weir:policy/handler@0.9.0#decide`:",
        "(a:b/c@1.2.3)",
    ] {
        assert!(found(name).contains(name), "{}", found(name));
    }
    for (secret, shown) in [
        ("me:hunter2@h:1", "found **********@h:1"),
        ("me:hun/hunter2@10.0.0.1", "@10.0.0.1"),
        ("redis://me:hun/hunter2@1.2.3", "redis://**************@1.2.3"),
        ("me:HUN/hunter2@1.2.3", "@1.2.3"),
        ("me:hunter2@1.2.3", "@1.2.3"),
    ] {
        let excerpt = found(secret);
        assert!(excerpt.contains(shown) && !excerpt.contains("hunter2"), "{excerpt}");
    }
}

#[test]
fn a_list_that_is_not_closed_is_one_error_at_its_bracket() {
    for (text, place) in [
        ("[server]\ntrusted_proxies = [\"10.0.0.0/8\"\n", "proxy.toml:2:19"),
        (
            "[server]\ntrusted_proxies = [\n  \"10.0.0.0/8\",\n\nshutdown_grace = \"1s\"\n",
            "proxy.toml:2:19",
        ),
        ("[server]\nlimits = { connections = 5\n", "proxy.toml:2:10"),
    ] {
        let shown = parse(&format!("{text}{MINIMAL}")).unwrap_err().text;
        assert!(
            shown.contains(&format!("--> {place}\n")) && shown.contains("is not closed"),
            "{shown}"
        );
        assert!(shown.ends_with("proxy.toml: 1 error"), "{shown}");
    }
    let shown =
        parse(&format!("[server]\nworkers = = 2\ntrusted_proxies = [\n{MINIMAL}")).unwrap_err();
    assert!(
        shown.text.contains("--> proxy.toml:2:") && shown.text.contains("--> proxy.toml:3:19"),
        "{shown}"
    );
}

#[test]
fn a_number_that_the_file_can_not_hold_is_reported_with_the_settings_own_range() {
    let errors =
        parse(&MINIMAL.replace("quota = 100", "quota = 99999999999999999999")).unwrap_err();
    let shown = errors.and_those_of(|config, _| {
        assert!(
            config.policies[0].config_json.contains("\"quota\":9007199254740992"),
            "{}",
            config.policies[0].config_json
        );
        vec![SettingError::new(
            "policies.public.config.limits[0].quota",
            "9007199254740992",
            "0 to 5",
        )]
    });
    assert_eq!(shown.count, 1, "{shown}");
    assert!(
        shown.text.contains("quota: found 99999999999999999999\n")
            && shown.text.contains("expected 0 to 5"),
        "{shown}"
    );
}

#[test]
fn a_name_with_a_dot_and_without_quotes_gets_the_advice_to_quote_it() {
    let unknown = |setting: &str, key: &str| {
        let found = format!("the unknown key `{key}`");
        let expected = "one of `input`, `output`, `max_output`";
        SettingError::new(format!("policies.public.config.{setting}"), found, expected).in_key()
    };
    let help = |text: &str, error: SettingError| {
        let config = good(&MINIMAL.replace("config.limits", &format!("{text}\nconfig.limits")));
        let excerpt = rendered(&config, error);
        excerpt.split_once("help: ").map(|(_, help)| help.lines().next().unwrap().to_owned())
    };
    let quote = "`gpt-4.1` is a table `gpt-4` with `1` in it: write a name with a dot in quotes, \"gpt-4.1\"";
    for text in [
        "config.models.gpt-4.1 = { input = 5, output = 6 }",
        "config.models.gpt-4.1.input = 5\nconfig.models.gpt-4.1.output = 6",
    ] {
        assert_eq!(help(text, unknown("models.gpt-4.1", "1")).as_deref(), Some(quote), "{text}");
    }
    let longer = help("config.models.o-4.1.2 = { input = 5 }", unknown("models.o-4.1", "1"));
    assert!(longer.unwrap().ends_with("in quotes, \"o-4.1.2\""));
    // Another table, one that is written as such, and no table at all.
    for (text, setting) in [
        ("config.models.gpt-4.1 = { price = 5 }", "models.gpt-4.1"),
        ("config.models.gpt-4 = { 1 = { input = 5 } }", "models.gpt-4.1"),
        ("config.models.gpt-4.1 = 5", "models.gpt-4.1"),
        ("config.models.\"gpt-4\".1 = { input = 5 }", "models.gpt-4.1"),
    ] {
        assert_eq!(help(text, unknown(setting, "1")), None, "{text}");
    }
    let upstream = MINIMAL.replace("[upstreams.api]", "[upstreams.api.v1]");
    let told = parse(&upstream).unwrap_err().text;
    assert!(
        told.contains("help: write a name with a dot in quotes: `upstreams.\"api.v1\"`"),
        "{told}"
    );
    let both = "policies.p.config.limits = [{ when = { path = \"/a\", path.id = \"7\" } }]\n";
    let told = parse(&format!("{both}{MINIMAL}")).unwrap_err().text;
    assert!(told.contains("write a name with a dot in quotes, as in `\"path.id\" = 5`"), "{told}");
}
