//! What is counted when a request has ended, by what the log says about the reply.

use super::*;

/// A ban is charged by the policy's `settle`, from statuses that the log has. No honest log has
/// replies as long as these, and they must not take the time that sending them would.
#[test]
fn later_charges_of_a_policy_are_counted_and_no_quota_is_suggested() {
    let mut text = String::new();
    for second in 0..40_u64 {
        let (h, m, s) = clock(START_S + second);
        let status = if second % 2 == 0 { 401 } else { 200 };
        let _ = writeln!(
            text,
            "203.0.113.9 - - [17/May/2015:{h:02}:{m:02}:{s:02} +0000] \"GET / HTTP/1.0\" {status} {}",
            u64::MAX - second
        );
    }
    let config = "[[listeners]]\naddress = \"127.0.0.1:0\"\n\
        [upstreams.api]\nendpoints = [\"http://127.0.0.1:9\"]\n\
        [policies.public]\nuse = \"ban\"\n[policies.public.config]\n\
        strikes = { quota = 3, period = \"1m\" }\nban = \"10s\"\nstatuses = [401]\n\
        [[routes]]\npath = \"/*\"\nupstream = \"api\"\npolicy = \"public\"\n";
    let folder = folder(&[("access.log", &text), ("proxy.toml", config)]);
    let report = replayed(folder.path(), &["access.log"]);
    // Strikes at 0, 2, 4 begin a ban of ten seconds; the next at 14, 16, 18, and at 28, 30, 32.
    assert_eq!(report["requests"]["counts"]["refused"], 9 + 9 + 7, "{report}");
    for limit in report["limits"].as_array().unwrap() {
        assert_eq!(limit["suggestion"], Value::Null, "{limit}");
    }
}

#[test]
fn the_upstreams_answer_is_settled() {
    let log = log(2_000);
    let limit = "name = \"a\", algorithm = \"fixed_window\", alignment = \"clock\", quota = 5, period = \"1m\", refund = \"upstream_error\"";
    let config = simple(NOWHERE, &[limit]).text();
    let folder = folder(&[("access.log", &common(&log)), ("proxy.toml", &config)]);
    replayed(folder.path(), &["access.log", "--stopped", "stopped.jsonl"]);
    // By hand: what failed is given back at once.
    let mut windows: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    let mut refused = BTreeSet::new();
    for (line, request) in log.iter().enumerate() {
        let used = windows.entry((&request.client, request.at_s / 60)).or_default();
        if *used == 5 {
            refused.insert(line + 1);
        } else if request.status < 500 {
            *used += 1;
        }
    }
    assert!(refused.len() < by_hand(&log, 5, 60).len());
    assert_eq!(stopped(folder.path()), refused);
}

/// Sign-ins of six clients: who fails, who succeeds, whose upstream fails, who only asks for the
/// form. The account is the last part of each line.
fn sign_ins() -> Vec<(&'static str, &'static str, u16, &'static str)> {
    let mut all = Vec::new();
    for turn in 0..6 {
        // One account of the first client, many of the second.
        all.push(("203.0.113.1", "POST", 401, "ann"));
        all.push(("203.0.113.2", "POST", 401, ["a", "b", "c", "d", "e", "f"][turn]));
        all.push(("203.0.113.3", "POST", 200, "cleo"));
        all.push(("203.0.113.4", "POST", 503, "dora"));
        all.push(("203.0.113.5", "GET", 200, "-"));
        // Two failures, a success, two failures: never three in a row.
        all.push(("203.0.113.6", "POST", if turn == 2 { 200 } else { 401 }, "eve"));
    }
    all
}

fn sign_in_config(account: &str) -> String {
    let limit = |name: &str, quota: u64| {
        format!(
            "[[policies.sign-in.config.{name}]]\nname = \"{name}\"\nalgorithm = \"fixed_window\"\nquota = {quota}\nperiod = \"15m\"\n"
        )
    };
    let policy = format!(
        "[policies.sign-in]\nuse = \"login-guard\"\n[policies.sign-in.config]\naccount = \"{account}\"\nsuccess = [200]\nmissing = \"address\"\n{}{}",
        limit("by_pair", 3),
        limit("by_address", 5)
    );
    let route = "name = \"sign-in\"\npath = \"/login\"\nupstream = \"api\"\npolicy = \"sign-in\"";
    Toml::new().upstream("api", NOWHERE, "").more(&policy).route(route).text()
}

/// How many sign-ins were stopped, by client.
fn stopped_clients(
    folder: &Path,
    log: &[(&'static str, &str, u16, &str)],
) -> BTreeMap<&'static str, usize> {
    let mut clients = BTreeMap::new();
    for line in stopped(folder) {
        *clients.entry(log[line - 1].0).or_insert(0) += 1;
    }
    clients
}

#[test]
fn failed_sign_ins_are_known_by_their_status_and_accounts_only_where_the_log_has_them() {
    let log = sign_ins();
    let mut text = String::new();
    for (index, (client, method, status, account)) in log.iter().enumerate() {
        let (h, m, s) = clock(START_S + index as u64);
        let _ = writeln!(
            text,
            "{client} - - [17/May/2015:{h:02}:{m:02}:{s:02} +0000] \"{method} /login HTTP/1.1\" {status} 12 \"{account}\""
        );
    }
    // The account is in the body, which no log has: addresses alone are counted, by their failures.
    let folder_of =
        |account: &str| folder(&[("access.log", &text), ("proxy.toml", &sign_in_config(account))]);
    let arguments = ["access.log", "--stopped", "stopped.jsonl"];
    let by_address = folder_of("{form.username}");
    let report = replayed(by_address.path(), &arguments);
    let expected = BTreeMap::from([("203.0.113.1", 1), ("203.0.113.2", 1)]);
    assert_eq!(stopped_clients(by_address.path(), &log), expected, "{report}");
    let told = weir(by_address.path(), &["replay", "access.log"]).out;
    let gap =
        "policy sign-in reads form.username: the log does not record it for 36 of 36 requests";
    assert!(told.contains(gap), "{told}");
    assert!(!told.contains("reads method"), "{told}");
    // It is in a field that the log has: now pairs are counted, too, and a success forgives.
    let by_pair = folder_of("{header.x-account}");
    let pattern = "$remote_addr - - [$time_local] \"$request\" $status $bytes \"$http_x_account\"";
    let report = replayed(by_pair.path(), &[&arguments[..], &["--pattern", pattern]].concat());
    let expected = BTreeMap::from([("203.0.113.1", 3), ("203.0.113.2", 1)]);
    assert_eq!(stopped_clients(by_pair.path(), &log), expected, "{report}");
    assert!(!report["not_in_the_log"].to_string().contains("x-account"), "{report}");
}
