//! How large the modules are that ship. They are part of the binary, and each is compiled when a
//! configuration names it.

use crate::policy::build::modules;

/// What the smallest consist of: a quarter reads and checks limits, an eighth is the policy and
/// what the contract's bindings generate, and the rest is JSON, conditions, templates, addresses,
/// the ranges of algorithms, and the parts of the standard library that these use.
const SHARED: &str = "limits and conditions with their messages, which each policy has";
/// Bytes of each module, at most, and why those above 100,000 are larger. A few percent more than
/// they have.
const BYTES_MAX: &[(&str, usize, &str)] = &[
    ("ban", 268_000, SHARED),
    ("client-ip", 238_000, SHARED),
    ("concurrent", 253_000, SHARED),
    ("graphql-cost", 538_000, "a parser of GraphQL, and bodies are read with serde_json"),
    ("jwt-claim", 328_000, "sets of keys, tokens, and a table of plans"),
    ("keyed", 241_000, SHARED),
    ("llm-budget", 418_000, "dialects of several APIs, references in bodies, and prices"),
    ("login-guard", 298_000, "accounts are found in bodies of several kinds"),
    ("mcp", 309_000, "messages in JSON, and tables of tools and methods"),
    ("path-cost", 269_000, "a table of path templates"),
    ("plans", 302_000, "a table of plans and of who has which"),
    ("rls", 300_000, "rules for descriptors, with patterns and metadata"),
    ("send-quota", 293_000, "path templates, and recipients are counted in bodies"),
    ("tenant", 257_000, SHARED),
];

#[test]
fn modules_are_no_larger_than_they_need_to_be() {
    let mut too_large = Vec::new();
    for (name, module) in modules() {
        let bytes = module.len();
        println!("{name}: {bytes} bytes");
        let known = BYTES_MAX.iter().find(|(known, ..)| *known == name);
        let (_, most, why) = known.unwrap_or_else(|| panic!("{name} has no size: {bytes} bytes"));
        assert!(*most <= 100_000 || !why.is_empty(), "why is {name} so large?");
        if bytes > *most {
            too_large.push(format!("{name} has {bytes} bytes, {most} at most"));
        }
    }
    assert!(too_large.is_empty(), "{too_large:#?}");
}
