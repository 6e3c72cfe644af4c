//! Several keys at once on a cluster: what it refuses, what works by luck, and what is right.

use std::collections::BTreeSet;

use weir::plan::Limit;

use crate::harness::cluster::Cluster;
use crate::harness::nodes::{Node, fixed_window, of};
use crate::harness::redis::{Connection, Value};

const HOUR_MS: u64 = 3_600_000;
/// Declares one key, and reads another that it was given as an argument.
const UNDECLARED: &str = "return { redis.call('INCR', KEYS[1]), redis.call('INCR', ARGV[1]) }";

fn slot(connection: &mut Connection, key: &str) -> i64 {
    connection.ask(&["CLUSTER", "KEYSLOT", key]).number()
}

fn refused(answer: std::io::Result<Value>, why: &str) {
    let Ok(Value::Error(error)) = answer else { panic!("{answer:?}") };
    assert!(error.contains(why), "{error}");
}

#[tokio::test]
async fn keys_without_a_common_tag_are_refused_undeclared_ones_pass_by_luck_and_one_tag_is_right() {
    let cluster = Cluster::start();
    let mut first = cluster.nodes[0].connect();
    // Of three masters the first one has a third of the slots.
    let names: Vec<String> = (0..200).map(|number| format!("user-{number}")).collect();
    let (own, others): (Vec<String>, Vec<String>) =
        names.into_iter().partition(|name| slot(&mut first, name) < 16_384 / 3);
    let (key, neighbour, stranger) = (own[0].as_str(), own[1].as_str(), others[0].as_str());
    assert_ne!(slot(&mut first, key), slot(&mut first, neighbour));

    // Two keys in two slots are refused, even if one server has both.
    refused(first.command(&["MGET", key, neighbour]), "CROSSSLOT");
    refused(
        first.command(&["EVAL", "return redis.call('MGET', KEYS[1], KEYS[2])", "2", key, stranger]),
        "CROSSSLOT",
    );
    // With the same tag in both names they are accepted: one server, one slot.
    let (minute, hour) = (format!("{{{key}}}:minute"), format!("{{{key}}}:hour"));
    assert_eq!(first.ask(&["MGET", &minute, &hour]), Value::List(vec![Value::Nil, Value::Nil]));
    // A key that was not declared works if this server happens to have it, and fails for callers
    // whose key is elsewhere.
    assert_eq!(
        first.ask(&["EVAL", UNDECLARED, "1", key, neighbour]),
        Value::List(vec![Value::Integer(1), Value::Integer(1)])
    );
    refused(first.command(&["EVAL", UNDECLARED, "1", key, stranger]), "non local key");
    assert_eq!(
        first.ask(&["GET", key]).number(),
        2,
        "and what it had written before it failed stays written"
    );
    // Our scripts start with a shebang, so they are always refused.
    refused(
        first.command(&["EVAL", &format!("#!lua\n{UNDECLARED}"), "1", key, neighbour]),
        "do not hash to the same slot",
    );
    for node in &cluster.nodes {
        node.connect().ask(&["FLUSHALL"]);
    }

    // Three limits of one caller, and others of other callers in the same plan: each tag is one
    // script on one slot.
    let node = Node::cluster(&cluster.addresses());
    for caller in 0..20 {
        let limit = |name: &str, key: String| Limit::new(name, key, fixed_window(2, HOUR_MS));
        let caller = format!("user-{caller}");
        let tagged =
            Limit { tag: Some(caller.clone()), ..limit("path", format!("{caller} on /a")) };
        let plan = of(vec![
            limit("minute", caller.clone()),
            limit("hour", caller.clone()),
            tagged,
            limit("tenant", format!("{caller}'s")),
        ]);
        assert_eq!(node.admitted(&plan, 5).await, 2, "{caller}");
    }
    let mut of_tags = std::collections::BTreeMap::<String, usize>::new();
    let mut masters = BTreeSet::new();
    for (place, master) in cluster.nodes.iter().enumerate() {
        for key in master.connect().ask(&["KEYS", "*"]).list() {
            let key = key.text();
            let tag = key.split(['{', '}']).nth(1).unwrap().to_owned();
            *of_tags.entry(tag).or_default() += 1;
            masters.insert(place);
        }
    }
    let mut counts: Vec<usize> = of_tags.into_values().collect();
    counts.sort_unstable();
    assert_eq!(
        counts,
        [[1; 20], [3; 20]].concat(),
        "a caller's three counters have one tag, its tenant's its own"
    );
    assert_eq!(masters.len(), 3, "and the tags are spread over all masters");
    assert_eq!(cluster.keys_without_lifetime(), [] as [&str; 0]);
}
