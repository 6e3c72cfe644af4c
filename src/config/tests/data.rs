//! Data files of a policy: what becomes of them, and where their errors are reported.

use std::fs;
use std::path::PathBuf;

use super::*;

const PLANS: &str = "[upstreams.api]\nendpoints = [\"http://h:1\"]\n[policies.p]\nuse = \"plans\"\nconfig_files = { assign = \"customers.toml\" }\n\
                     config = { default_plan = \"free\" }\n[[routes]]\npath = \"/*\"\nupstream = \"api\"\npolicy = \"p\"\n";

/// A configuration with files next to it.
struct Folder(tempfile::TempDir);

impl Folder {
    fn with(files: &[(&str, &str)]) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        files.iter().for_each(|(name, text)| fs::write(folder.path(name), text).unwrap());
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn parse(&self, text: &str) -> Result<Config, ConfigErrors> {
        Config::parse(text, &self.path("proxy.toml"))
    }

    /// The errors' text, with the folder's path left out.
    fn wrong(&self, text: &str) -> String {
        let text = self.parse(text).expect_err(text).text;
        text.replace(&format!("{}/", self.0.path().display()), "")
    }
}

#[test]
fn a_files_content_becomes_a_member_of_the_configuration_and_the_file_is_watched() {
    let folder = Folder::with(&[
        ("customers.toml", "a = \"gold\"\n\"b.c\" = { x = [1] }\n"),
        ("list.json", "[{\"name\": \"x\"}]"),
    ]);
    let text = PLANS.replace("customers.toml\"", "customers.toml\", limits = \"list.json\"");
    let config = folder.parse(&text).unwrap_or_else(|errors| panic!("{errors}"));
    let expected =
        r#"{"assign":{"a":"gold","b.c":{"x":[1]}},"default_plan":"free","limits":[{"name":"x"}]}"#;
    assert_eq!(&*config.policies[0].config_json, expected);
    let watched = [Watch::now(folder.path("customers.toml")), Watch::now(folder.path("list.json"))];
    assert!(watched.iter().all(|watch| config.watched.contains(watch)), "{:?}", config.watched);
}

#[test]
fn an_error_that_a_guest_finds_is_reported_with_that_file_and_its_line() {
    let folder =
        Folder::with(&[("customers.toml", "# ours\na = \"gold\"\n\n\"b.c\" = \"silver\"\n")]);
    let config = folder.parse(PLANS).unwrap_or_else(|errors| panic!("{errors}"));
    let at = |setting: &str| {
        SettingError::new(format!("policies.p.config{setting}"), "one thing", "another")
    };
    let located = config.source.locate(&[
        at(".assign.b.c"),
        at(".assign.absent"),
        at(".default_plan"),
        at(".assign"),
        at(".assigned"),
    ]);
    let shown = located.text.replace(&format!("{}/", folder.0.path().display()), "");
    let places: Vec<&str> =
        shown.lines().filter_map(|line| line.trim_start().strip_prefix("--> ")).collect();
    // In the order of the files; errors without a position in theirs come last.
    assert_eq!(
        places,
        [
            "proxy.toml:6:10",
            "proxy.toml:6:27",
            "customers.toml:4:9",
            "customers.toml",
            "customers.toml"
        ],
        "{shown}"
    );
    // Where, and what was expected, but nothing that is there.
    assert!(
        shown.contains("4 | \"*.*\" = \"******\"\n  |         ^^^^^^^^ expected another"),
        "{shown}"
    );
    assert!(
        !shown.contains("silver") && !shown.contains("b.c") && !shown.contains("ours"),
        "{shown}"
    );
    assert!(shown.ends_with("proxy.toml: 5 errors"), "{shown}");
}

#[test]
fn a_key_in_place_of_its_digest_is_not_shown() {
    let key = "sk-live-0123456789";
    let file = format!("{key} = \"gold\"\n");
    let quoted = format!("{{\n \"{key}\": \"gold\"\n}}\n");
    let json = PLANS.replace("customers.toml", "customers.json");
    let inline = PLANS.replace("config_files = { assign = \"customers.toml\" }\n", "");
    let inline =
        inline.replace("{ default_plan", &format!("{{ assign.{key} = \"gold\", default_plan"));
    for (name, file, text, at) in [
        ("customers.toml", &file, PLANS, "customers.toml:1:"),
        ("customers.json", &quoted, &json, "customers.json:2:"),
        ("unused", &file, &inline, "proxy.toml:5:"),
    ] {
        let folder = Folder::with(&[(name, file)]);
        let config = folder.parse(text).unwrap_or_else(|errors| panic!("{errors}"));
        let setting = format!("policies.p.config.assign.{key}");
        let found = [
            SettingError::new(&setting, "the key of 18 characters, which is no digest", "a digest")
                .in_key(),
            SettingError::new(&setting, format!("{key:?}"), "a digest"),
        ];
        let located = config.source.locate(&found);
        let all = format!("{}{:?}", located.text, located.each);
        assert!(!all.contains(key), "{all}");
        assert!(all.contains(at) && all.contains("of 18 characters, which is no digest"), "{all}");
    }
}

#[test]
fn customers_keys_in_a_file_that_is_no_toml_are_not_shown() {
    let inline = PLANS.replace("config_files = { assign = \"customers.toml\" }\n", "");
    for lines in [
        // A key that is written twice is no TOML either.
        "[policies.p.config.assign]\nKEY = \"gold\"\nKEY = \"gold\"",
        "[policies.p.config.assign]\n\"KEY\": \"gold\"",
        "  [ policies.p.config.\"assign\" ] # customers\n\"KEY\" \"gold\"",
        "[policies.p.config.assign\nKEY = \"gold\"",
        "[policies.p.config.assign.KEY]\nx = 1 1",
        "[policies.p.config.assign]\n\"sha256:00\" = \"gold\", KEY = \"gold\"",
        "[policies.p.config]\nassign.KEY: \"gold\"",
        "[policies.p.config]\nassign = { KEY = \"gold\", KEY = \"gold\" }",
        "[policies.p.config]\nassign = {\n\"a]}\" = \"gold\", # }\n  KEY: \"gold\" }",
        "[policies.p]\nconfig = { assign = { KEY = \"gold\" \"x\" } }",
    ] {
        let text =
            inline.replace("config = {", "x = {") + "\n" + &lines.replace("KEY", "sk-live-01");
        let shown = Folder::with(&[]).wrong(&text);
        assert!(!shown.contains("sk-live"), "{shown}");
        assert!(shown.contains("TOML: "), "{shown}");
    }
    for (lines, part) in [
        // A digest and the name of a file are no secrets.
        (
            "[policies.q.config.assign]\n\"sha256:00\" = \"gold\"\n\"sha256:00\" = \"gold\"",
            "| \"sha256:00\" = \"gold\"",
        ),
        ("[policies.q]\nconfig_files = { assign = \"a.toml\" x }", "{ assign = \"a.toml\" x }"),
        ("[policies.q.config.assign]\nKEY = \"gold\"\n[server]\nworkers = two", "workers = two"),
    ] {
        let shown = Folder::with(&[]).wrong(&format!("{inline}\n{lines}"));
        assert!(shown.contains(part), "{shown}");
    }
}

#[test]
fn a_json_file_has_lines_too() {
    let json = PLANS.replace("customers.toml", "customers.json");
    let text = "{\n  \"a\": \"gold\",\n  \"b.c\": [\"x\",\n    \"silver\"]\n}\n";
    let folder = Folder::with(&[("customers.json", text)]);
    let config = folder.parse(&json).unwrap_or_else(|errors| panic!("{errors}"));
    let at =
        |setting: &str| SettingError::new(format!("policies.p.config{setting}"), "one", "another");
    let found = [at(".assign.b.c[1]"), at(".assign.a").in_key(), at(".assign.absent")];
    let located = config.source.locate(&found);
    let shown = located.text.replace(&format!("{}/", folder.0.path().display()), "");
    let places: Vec<&str> =
        shown.lines().filter_map(|line| line.trim_start().strip_prefix("--> ")).collect();
    let expected = ["customers.json:1:1", "customers.json:2:3", "customers.json:4:5"];
    assert_eq!(places, expected, "{shown}");
    let lines: Vec<_> = located.each.iter().map(|error| error.line).collect();
    assert_eq!(lines, [Some(1), Some(2), Some(4)]);
}

#[test]
fn a_file_that_can_not_be_read_is_an_error_in_it_or_where_it_is_named() {
    for (content, parts) in [
        (
            "a = \"gold\"\nb = = 1\n",
            &["policies.p.config.assign: TOML: ", "--> customers.toml:2:5\n", "2 | * = = *"][..],
        ),
        (
            "a = 1\na = 2\n",
            &["policies.p.config.assign: TOML: duplicate key", "--> customers.toml:2:1"],
        ),
        // A list that is not closed, and nothing that follows from it.
        (
            "a = \"gold\"\nb = [1,\n\nc = 2\nd = 3\n",
            &[
                "policies.p.config.assign: a text that is not shown",
                "--> customers.toml:2:5",
                "1 error",
            ],
        ),
        (
            "a = 9007199254740993\n",
            &[
                "policies.p.config.assign: found a text that is not shown",
                "--> customers.toml:1:5",
                "2^53",
            ],
        ),
        (
            "[\"secret\"]\npassword = \"hunter2\"\nx = nan",
            &["policies.p.config.assign: found a text that is not shown", "customers.toml:3:5"],
        ),
    ] {
        let shown = Folder::with(&[("customers.toml", content)]).wrong(PLANS);
        assert!(parts.iter().all(|part| shown.contains(part)), "{content}\n{shown}");
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    let json = PLANS.replace("customers.toml", "customers.json");
    let shown = Folder::with(&[("customers.json", "{\n  \"a\": \"gold\",,\n}")]).wrong(&json);
    assert!(
        shown.contains("policies.p.config.assign: JSON: ")
            && shown.contains("--> customers.json:2:15\n"),
        "{shown}"
    );
    let content = "{\"password\": \"hunter2\",\n\"a\": {\"b\": [1, 9007199254740993]}}";
    let shown = Folder::with(&[("customers.json", content)]).wrong(&json);
    for part in [
        "policies.p.config.assign: found a text that is not shown, as it may be a secret\n --> customers.json:2:16\n",
        "expected a whole number from -2^53 to 2^53",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let content = "{\"password\": \"hunter2\", \"a\": 9007199254740993}";
    let shown = Folder::with(&[("customers.json", content)]).wrong(&json);
    assert!(shown.contains(":1:30") && !shown.contains("hunter2"), "{shown}");
    let shown = Folder::with(&[]).wrong(PLANS);
    assert!(
        shown.contains("policies.p.config_files.assign: found customers.toml (No such file")
            && shown.contains("proxy.toml:5:27"),
        "{shown}"
    );
    let shown = Folder::with(&[("customers.toml", "")])
        .wrong(&PLANS.replace("{ default_plan", "{ assign.a = \"x\", default_plan"));
    assert!(shown.contains("found a file for `assign`, which is in `config` too"), "{shown}");
    let shown = Folder::with(&[]).wrong(&PLANS.replace("\"customers.toml\"", "3"));
    assert!(shown.contains("policies.p.config_files.assign: found 3"), "{shown}");
    let folder = Folder::with(&[]);
    fs::write(folder.path("customers.toml"), b"a = \"\xff\"").unwrap();
    assert!(folder.wrong(PLANS).contains("it is not UTF-8"));
    fs::write(folder.path("customers.toml"), vec![b'\n'; (16 << 20) + 1]).unwrap();
    assert!(folder.wrong(PLANS).contains("it has more than 16MiB"));
}

#[test]
fn a_file_of_deep_tables_is_refused_and_not_followed() {
    let deep = format!("x = {}1{}", "[".repeat(40), "]".repeat(40));
    let shown = Folder::with(&[("customers.toml", &deep)]).wrong(PLANS);
    assert!(shown.contains("at most 32 levels"), "{shown}");
    let dotted = format!("{} = 1", vec!["a"; 20_000].join("."));
    Folder::with(&[("customers.toml", &dotted)]).wrong(PLANS);
}

#[test]
fn the_names_of_both_files_are_reported_where_both_have_errors() {
    let folder = Folder::with(&[("customers.toml", "a = nan")]);
    let shown = folder.wrong(&format!("{PLANS}methods = 3\n"));
    assert!(
        shown.contains("--> customers.toml:1:5") && shown.contains("--> proxy.toml:"),
        "{shown}"
    );
    assert!(shown.ends_with("proxy.toml: 2 errors"), "{shown}");
}

/// The configuration with a document that is fetched.
fn fetched(table: &str) -> String {
    PLANS.replace("\"customers.toml\"", table)
}

const DOCUMENT: &str = "{ url = \"https://id.example.org/k?x\", file = \"customers.toml\" }";

#[test]
fn a_document_that_is_fetched_is_read_from_its_file() {
    let folder = Folder::with(&[("customers.toml", "a = \"gold\"\n"), ("ca.pem", "a")]);
    let config = folder.parse(&fetched(DOCUMENT)).unwrap_or_else(|errors| panic!("{errors}"));
    assert!(config.policies[0].config_json.contains(r#""assign":{"a":"gold"}"#));
    assert!(config.watched.contains(&Watch::now(folder.path("customers.toml"))));
    let [document] = &config.documents[..] else { panic!("{:?}", config.documents) };
    assert_eq!(document.setting, "policies.p.config_files.assign");
    assert_eq!((document.policy.as_str(), document.member.as_str()), ("p", "assign"));
    assert_eq!(document.url, "https://id.example.org/k?x");
    assert_eq!(document.file, folder.path("customers.toml"));
    assert_eq!(document.every, Duration::from_secs(600));
    assert!(document.tls.is_empty());
    let more = DOCUMENT.replace(" }", ", every = \"5m\", tls = { ca = \"ca.pem\" } }");
    let config = folder.parse(&fetched(&more)).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.documents[0].every, Duration::from_secs(300));
    assert!(config.documents[0].tls.ca.is_some());
    assert!(config.watched.contains(&Watch::now(folder.path("ca.pem"))));
}

#[test]
fn errors_in_what_is_fetched_are_reported_at_their_setting() {
    let folder = Folder::with(&[("customers.toml", "a = \"gold\"\n")]);
    for (table, expected) in [
        ("{}", &["assign.url: found nothing, expected a URL", "assign.file: found nothing"][..]),
        ("{ url = 3, file = 4 }", &["assign.url: found 3, expected a URL"]),
        ("{ url = \"https://h/\", file = 4 }", &["assign.file: found 4, expected the path of"]),
        (&DOCUMENT.replace("file", "fil"), &["found the unknown key \"fil\""]),
        (
            &DOCUMENT.replace(" }", ", every = \"500ms\" }"),
            &["assign.every: found \"500ms\", expected a duration from \"1s\" to \"1d\""],
        ),
        (&DOCUMENT.replace(" }", ", tls = { ca = \"no.pem\" } }"), &["assign.tls.ca: found "]),
    ] {
        let wrong = folder.parse(&fetched(table)).expect_err(table);
        let told: Vec<&str> = wrong.each.iter().map(|one| one.text.as_str()).collect();
        for expected in expected {
            assert!(told.iter().any(|told| told.contains(expected)), "{expected}: {told:#?}");
        }
    }
}

#[test]
fn one_file_keeps_one_document_and_others_may_read_it() {
    let folder = Folder::with(&[("customers.toml", "a = \"gold\"\n")]);
    let other = "[policies.q]\nuse = \"plans\"\nconfig_files = { assign = FILE }\n[[routes]]\n\
                 path = \"/q\"\nupstream = \"api\"\npolicy = \"q\"\n";
    let two = |file: &str| format!("{}{}", fetched(DOCUMENT), other.replace("FILE", file));
    let shown = folder.wrong(&two(DOCUMENT));
    assert!(shown.contains("the file of policies.p.config_files.assign"), "{shown}");
    assert!(shown.contains("name only its file"), "{shown}");
    let config =
        folder.parse(&two("\"customers.toml\"")).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.documents.len(), 1);
}

#[test]
fn a_document_that_was_not_fetched_yet_can_be_given() {
    let folder = Folder::with(&[("proxy.toml", &fetched(DOCUMENT))]);
    let missing = Config::load(&folder.path("proxy.toml")).unwrap_err();
    assert_eq!((missing.count, missing.unfetched().len()), (1, 1), "{missing}");
    assert!(missing.text.contains("customers.toml (it does not exist yet)"), "{missing}");
    assert!(missing.text.contains("which `weir run` fetches before it serves"), "{missing}");
    assert!(missing.watched.contains(&Watch::absent(folder.path("customers.toml"))));
    let given = |text: &str| {
        let given = vec![(folder.path("customers.toml"), text.as_bytes().to_vec())];
        Config::load_given(&folder.path("proxy.toml"), given)
    };
    let config = given("a = \"gold\"").unwrap_or_else(|errors| panic!("{errors}"));
    assert!(config.policies[0].config_json.contains(r#""assign":{"a":"gold"}"#));
    let wrong = given("a = ").unwrap_err();
    assert!(wrong.each[0].file.ends_with("customers.toml"), "{wrong}");
    assert_eq!(wrong.each[0].line, Some(1), "{wrong}");
    // It is used instead of a file that is there, too.
    fs::write(folder.path("customers.toml"), "a = \"silver\"").unwrap();
    let config = given("a = \"gold\"").unwrap_or_else(|errors| panic!("{errors}"));
    assert!(config.policies[0].config_json.contains("gold"));
}
