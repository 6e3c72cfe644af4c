//! What is written of ratelimit's files, and what each mistake says.

use super::*;

fn imported(yaml: &str) -> Imported {
    Imported::of(yaml, &mut Names::default())
}

#[test]
fn each_leaf_is_a_rule_with_the_entries_above_it() {
    let domain = imported(
        "
domain: edge_proxy
descriptors:
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit: { unit: day, requests_per_unit: 5 }
  - key: path
    value: /v1/*
    rate_limit: { unit: MINUTE, requests_per_unit: 0 }
    shadow_mode: true
    descriptors:
      - key: code
        value: 50
        rate_limit: { unit: year, requests_per_unit: 7 }
  - key: ldap
    rate_limit: { unlimited: true }
  - key: anything
",
    );
    assert_eq!((&domain.wrong[..], &domain.left_out[..]), (&[][..], &[][..]));
    let expected = r#"
[[routes]]
name = "edge_proxy"
domain = "edge_proxy"
policy = "edge_proxy"

[policies.edge_proxy]
use = "rls"

[[policies.edge_proxy.config.rules]]
descriptor = ["message_type=marketing", "to_number"]
limits = [{ name = "message_type-marketing.to_number", algorithm = "fixed_window", quota = 5, period = "1d", alignment = "clock" }]

[[policies.edge_proxy.config.rules]]
descriptor = ["path=/v1/*"]
limits = [{ name = "path-v1", algorithm = "fixed_window", quota = 0, period = "1m", alignment = "clock", shadow = true }]

[[policies.edge_proxy.config.rules]]
descriptor = ["path=/v1/*", "code=50"]
limits = [{ name = "path-v1-.code-50", algorithm = "fixed_window", quota = 7, period = "365d", alignment = "clock" }]

[[policies.edge_proxy.config.rules]]
descriptor = ["ldap"]
unlimited = true

[[policies.edge_proxy.config.rules]]
descriptor = ["anything"]
unlimited = true
"#;
    assert_eq!(domain.text, expected);
}

#[test]
fn names_are_unique() {
    let domain = imported(
        "{domain: d, descriptors: [{key: A b, rate_limit: {unit: day, requests_per_unit: 1}}, {key: a_b, rate_limit: {unit: day, requests_per_unit: 1}}, {key: a-b, rate_limit: {unit: day, requests_per_unit: 1}}]}",
    );
    let names: Vec<&str> =
        domain.text.split("name = \"").skip(2).filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(names, ["a-b", "a_b", "a-b-2"]);
}

#[test]
fn mistakes_say_where_they_are() {
    let one = |descriptor: &str| imported(&format!("{{domain: d, descriptors: [{descriptor}]}}"));
    for (yaml, expected) in [
        ("{value: x}", "descriptors[0].key: found \"\""),
        ("{key: a=b}", "descriptors[0].key: found \"a=b\""),
        ("{key: a, rate_limt: {}}", "descriptors[0].rate_limt: found an unknown key"),
        (
            "{key: a, rate_limit: {unit: decade, requests_per_unit: 1}}",
            "descriptors[0].rate_limit.unit: found \"decade\"",
        ),
        (
            "{key: a, descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: -1}}]}",
            "descriptors[0].descriptors[0].rate_limit.requests_per_unit: found \"-1\"",
        ),
        ("{key: a, rate_limit: {requests_per_unit: 1}}", "rate_limit.unit: found \"\""),
        ("{key: a, rate_limit: {unit: day}}", "rate_limit.requests_per_unit: found nothing"),
        ("{key: a, rate_limit: {unit: day, unlimited: yes}}", "rate_limit.unit: found \"day\""),
        ("{key: a, value: [b]}", "descriptors[0].value: found a list, expected a text"),
        ("{key: 'a*'}", "descriptors[0].key: found \"a*\""),
        (
            "{key: a, shadow_mode: 'yes'}",
            "descriptors[0].shadow_mode: found \"yes\", expected true",
        ),
        ("{key: a, quota_mode: 1}", "descriptors[0].quota_mode: found \"1\""),
        ("{key: a, value: b, share_threshold: on}", "descriptors[0].share_threshold: found true"),
        (
            "{key: a, value: 'b*', share_threshold: true, descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]}",
            "share_threshold: found several entries with the key \"a\"",
        ),
        (
            "{key: a, rate_limit: {unit: day, requests_per_unit: 1, name: x, replaces: [{name: x}]}}",
            "descriptors[0].rate_limit.replaces[0].name: found \"x\", expected the name of another",
        ),
        (
            "{key: a, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{}]}}",
            "descriptors[0].rate_limit.replaces[0].name: found \"\"",
        ),
        (
            "{key: a, descriptors: [{key: b}]}, {key: a, descriptors: [{key: c}]}",
            "[1].key: found \"a\" again",
        ),
        (
            "{key: a, rate_limit: {unit: day, requests_per_unit: 1}}, {key: a, rate_limit: {unlimited: true}}",
            "descriptors[1].key: found \"a\" again, expected entries that no other descriptor",
        ),
    ] {
        let found = one(yaml).wrong.join("\n");
        assert!(found.contains(expected), "{yaml}: {found}");
    }
    assert!(imported("descriptors: []").wrong[0].contains("no `domain`"));
    assert!(imported("a: [").wrong[0].contains("line"));
    assert!(imported("--- {domain: a}\n--- {domain: b}").wrong[0].contains("2 documents"));
}

#[test]
fn what_has_no_counterpart_is_named() {
    let domain = imported(
        "{domain: d, descriptors: [{key: a, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: x}]}}]}",
    );
    assert_eq!(domain.left_out.len(), 2, "{:?}", domain.left_out);
    assert_eq!(domain.text.matches("# left out: ").count(), 2);
    // Also of what has no limit of its own.
    let domain = imported(
        "{domain: d, descriptors: [{key: a, value_to_metric: On, metadata: {x: [1, {y: z}]}, descriptors: [{key: b, metadata: {}}]}]}",
    );
    assert_eq!((domain.wrong.len(), domain.left_out.len()), (0, 3), "{:?}", domain.wrong);
    for expected in [
        "\n# left out: line 1: descriptors[0].value_to_metric (",
        "\n# left out: line 1: descriptors[0].metadata (",
        "]]\n# left out: line 1: descriptors[0].descriptors[0].metadata (",
    ] {
        assert!(domain.text.contains(expected), "{expected}: {}", domain.text);
    }
}

/// The lines of a domain's descriptors and limits.
fn rules(yaml: &str) -> Vec<String> {
    let domain = imported(yaml);
    assert_eq!((&domain.wrong[..], &domain.left_out[..]), (&[][..], &[][..]), "{yaml}");
    let is_rule = |line: &&str| line.starts_with("descriptor") || line.starts_with("limits");
    domain.text.lines().filter(is_rule).map(str::to_owned).collect()
}

#[test]
fn a_shared_threshold_has_a_counter_for_the_other_entries() {
    let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
    let rules = rules(&format!(
        "
domain: d
descriptors:
  - key: user
    descriptors:
      - {{key: path, value: '/f*', share_threshold: yes, {limit}}}
  - key: file
    value: f*
    share_threshold: On
    {limit}
    descriptors:
      - {{key: kind, {limit}}}
      - {{key: kind, value: x, {limit}}}
"
    ));
    let ends: Vec<_> = rules.chunks(2).map(|rule| (rule[0].as_str(), &rule[1])).collect();
    let shared = |keys: &str| format!("\"clock\", key = \"{keys}\", missing = \"shared\" }}]");
    for ((descriptor, limits), (expected, end)) in ends.into_iter().zip([
        ("[\"user\", \"path=/f*\"]", shared("{rls.entry.user}")),
        ("[\"file=f*\"]", "\"clock\", key = \"all\" }]".to_owned()),
        ("[\"file=f*\", \"kind\"]", shared("{rls.entry.kind}")),
        ("[\"file=f*\", \"kind=x\"]", "\"clock\", key = \"all\" }]".to_owned()),
    ]) {
        assert_eq!(descriptor, format!("descriptor = {expected}"));
        assert!(limits.ends_with(&end), "{limits}");
    }
}

#[test]
fn values_and_truth_values_are_read_as_ratelimit_reads_them() {
    let domain = imported(
        "\u{feff}domain: 12
descriptors:
  - {key: 12, value: 007, rate_limit: &l {unit: day, requests_per_unit: 1}}
  - {key: 12, value: 0x10, shadow_mode: yes, rate_limit: {<<: *l, requests_per_unit: 2}}
  - {key: 12, value: +1, quota_mode: on, rate_limit: *l}
  - {key: 12, value: True, rate_limit: {unlimited: Y}}
",
    );
    assert_eq!((&domain.wrong[..], &domain.left_out[..]), (&[][..], &[][..]));
    for expected in [
        "domain = \"12\"",
        "[\"12=007\"]",
        "[\"12=0x10\"]\nlimits = [{ name = \"12-0x10\", algorithm = \"fixed_window\", quota = 2, period = \"1d\", alignment = \"clock\", shadow = true }]",
        "[\"12=+1\"]",
        "[\"12=True\"]\nunlimited = true",
        "quota_mode = true",
    ] {
        assert!(domain.text.contains(expected), "{expected}: {}", domain.text);
    }
}

#[test]
fn what_a_pattern_before_it_covers_is_a_warning() {
    let domain = imported(
        "
domain: d
descriptors:
  - {key: path, value: /v1/*}
  - {key: path, value: '*.png'}
  - {key: path, value: /v1/*/a}
  - {key: path, value: /v1/x}
  - {key: other, value: /v1/*/a}
  - {key: all}
  - {key: all, value: '*'}
",
    );
    assert_eq!(domain.wrong.len(), 0, "{:?}", domain.wrong);
    assert_eq!(domain.warnings.len(), 2, "{:?}", domain.warnings);
    assert!(domain.warnings[0].starts_with("line 6: descriptors[2].value: \"/v1/*/a\" is never"));
    assert!(domain.warnings[1].contains("the key without a value is never reached"));
    assert!(domain.text.contains("[\"all\"]") && domain.text.contains("[\"all=*\"]"));
}

#[test]
fn names_that_the_configuration_does_not_take_are_changed() {
    let domain = imported(
        "{domain: example.org, descriptors: [{key: override, rate_limit: {unit: day, requests_per_unit: 1}}]}",
    );
    assert!(domain.text.contains("[policies.example-org]\n"), "{}", domain.text);
    assert!(domain.text.contains("domain = \"example.org\"\npolicy = \"example-org\""));
    assert!(domain.text.contains("name = \"override-2\""), "{}", domain.text);
    assert!(toml::from_str::<toml::Table>(&domain.text).is_ok(), "{}", domain.text);
    assert!(imported("{domain: '*', descriptors: [{key: a}]}").wrong[0].contains("any domain"));
}

#[test]
fn a_domain_without_descriptors_is_for_limits_of_callers() {
    for yaml in ["domain: d", "{domain: d, descriptors: []}", "{domain: d, descriptors: null}"] {
        let domain = imported(yaml);
        assert_eq!(domain.wrong.len(), 0, "{:?}", domain.wrong);
        assert!(domain.text.ends_with("use = \"rls\"\n\n[policies.d.config]\noverrides = true\n"));
    }
}

#[test]
fn a_name_that_too_many_limits_have_is_no_replacement() {
    let limit = "rate_limit: {unit: day, requests_per_unit: 1, name: default}";
    let domain = |count: usize| {
        let all: String =
            (0..count).map(|at| format!("  - {{key: k, value: v{at}, {limit}}}\n")).collect();
        let by =
            "{key: k, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: default}]}}";
        imported(&format!("domain: d\ndescriptors:\n  - {by}\n{all}"))
    };
    assert_eq!(domain(16).wrong.len(), 0);
    let expected = "line 3: descriptors[0].rate_limit.replaces: found 17 limits with these names";
    assert!(domain(17).wrong[0].starts_with(expected), "{:?}", domain(17).wrong);
}

#[test]
fn a_domain_has_as_many_rules_as_the_policy_takes() {
    let domain = |count: usize| {
        let all: String = (0..count).map(|at| format!("  - {{key: k, value: v{at}}}\n")).collect();
        imported(&format!("domain: d\ndescriptors:\n{all}")).wrong
    };
    assert_eq!(domain(2_000).len(), 0);
    assert!(domain(2_001)[0].contains("found 2001 rules"));
}

#[test]
fn limits_are_replaced_by_the_names_that_they_have_here() {
    let limit = "unit: day, requests_per_unit: 1";
    let domain = imported(&format!(
        "
domain: d
descriptors:
  - key: special
    rate_limit: {{ {limit}, replaces: [{{ name: Read All }}] }}
  - key: free
    rate_limit: {{ unlimited: true, replaces: [{{ name: write }}] }}
  - key: a
    rate_limit: {{ {limit}, name: Read All }}
  - key: b
    quota_mode: true
    rate_limit: {{ {limit}, name: Read All }}
  - key: c
    rate_limit: {{ {limit}, name: write }}
"
    ));
    assert_eq!((&domain.wrong[..], &domain.left_out[..]), (&[][..], &[][..]));
    let lines = domain.text.lines().filter(|line| line.starts_with("replaces"));
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines, ["replaces = [\"read-all\", \"read-all-2\"]", "replaces = [\"write\"]"]);
    assert!(domain.text.contains("name = \"read-all-2\", algorithm"), "{}", domain.text);
    assert_eq!(domain.text.matches("quota_mode = true").count(), 1);
}

#[test]
fn metadata_of_what_has_limits_is_told() {
    let domain = imported(
        "{domain: d, descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {tier: gold, n: [1]}}]}",
    );
    assert_eq!((&domain.wrong[..], &domain.left_out[..]), (&[][..], &[][..]));
    assert!(domain.text.contains("\nmetadata = { n = [1], tier = \"gold\" }\n"), "{}", domain.text);
    let wrong = imported("{domain: d, descriptors: [{key: a, metadata: 5}]}").wrong;
    assert!(wrong[0].contains("descriptors[0].metadata: found \"5\""), "{wrong:?}");
}

#[test]
fn files_of_one_domain_are_one_policy() {
    let file = |key: &str, more: &str| {
        let limit = format!("unit: day, requests_per_unit: 1, {more}");
        format!("{{domain: d, descriptors: [{{key: {key}, rate_limit: {{{limit}}}}}]}}")
    };
    let files =
        [file("a", "name: n"), file("b", "replaces: [{name: later}]"), file("c", "name: later")];
    let all = |names: &mut Names| {
        files.iter().map(|file| Imported::of(file, names).text).collect::<Vec<_>>()
    };
    let mut names = Names::default();
    all(&mut names);
    let texts = all(&mut Names::knowing(names));
    let routes: Vec<_> = texts.iter().map(|text| text.matches("[[routes]]").count()).collect();
    assert_eq!(routes, [1, 0, 0]);
    assert!(texts.iter().all(|text| text.contains("[[policies.d.config.rules]]")));
    // One file's limit may be replaced by an earlier one.
    assert!(texts[1].contains("replaces = [\"later\"]"), "{}", texts[1]);
}
