//! Custom algorithms: a Lua file in a folder decides, in memory and on Redis, is edited while Weir
//! serves, and may misbehave.

use crate::harness::client::{Client, get};
use crate::harness::cluster::Cluster;
use crate::harness::eventually_async;
use crate::harness::toml::{Toml, simple};
use crate::harness::upstream::Upstream;
use crate::harness::weir::{Builder, Weir, replace};

const LOCKOUT: &str = include_str!("../../../examples/scripts/lockout.lua");
const LOGIN: &str = "name = \"login\", algorithm = \"script\", script = \"lockout\", arguments = [3, 60_000_000, 300_000_000]";
const DAY: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 1000, period = \"1d\"";

fn with_scripts(config: &Toml) -> String {
    let mut config = config.clone();
    if config.store.is_empty() {
        config.store = "[store]\n".into();
    }
    config.text().replace("[store]\n", "[store]\nscripts = \"lua\"\n")
}

fn build(config: &Toml) -> Builder {
    Weir::build(&with_scripts(config)).file("lua/lockout.lua", LOCKOUT.as_bytes())
}

async fn it_locks_out(config: &Toml) {
    let weir = build(config).start();
    let mut client = Client::connect(weir.http).await.unwrap();
    for left in [2, 1, 0] {
        let reply = client.get("/", &[]).await.unwrap();
        assert_eq!((reply.status, reply.remaining("login")), (200, left), "{reply:?}");
    }
    let refused = client.get("/", &[]).await.unwrap();
    assert_eq!(
        (refused.status, refused.remaining("login"), refused.remaining("day")),
        (429, 0, 997),
        "{refused:?}"
    );
    let retry: u64 = refused.header("retry-after").parse().unwrap();
    assert!((200..=300).contains(&retry), "five minutes, not the window's one: {refused:?}");
}

#[tokio::test]
async fn a_script_decides_in_memory() {
    let upstream = Upstream::start();
    it_locks_out(&simple(&upstream.url(), &[LOGIN, DAY])).await;
    assert_eq!(upstream.count(), 3);
}

#[tokio::test]
async fn a_script_decides_on_a_cluster() {
    let (upstream, cluster) = (Upstream::start(), Cluster::start());
    it_locks_out(&simple(&upstream.url(), &[LOGIN, DAY]).redis("cluster", &cluster.addresses()))
        .await;
    assert_eq!(upstream.count(), 3);
    assert_eq!(cluster.keys_without_lifetime(), Vec::<String>::new());
}

#[tokio::test]
async fn a_script_is_edited_mended_and_added_while_it_serves() {
    let upstream = Upstream::start();
    let config = simple(&upstream.url(), &[LOGIN]);
    let weir = build(&config).start();
    let file = weir.folder().join("lua/lockout.lua");
    assert_eq!(get(weir.http, "/", &[]).await.remaining("login"), 2);

    // An edited script starts new counters, and the new one decides.
    let before = weir.reloads("applied");
    let generous = LOCKOUT.replace(
        "take(s1, s2, s3, now, cost, tries, window, pause)",
        "take(s1, s2, s3, now, cost, half, window, pause)\n  local tries = 2 * half",
    );
    replace(&file, generous.as_bytes());
    weir.await_reloads("applied", before + 1);
    assert_eq!(get(weir.http, "/", &[]).await.remaining("login"), 5);

    let tries = generous.lines().position(|line| line.contains("local tries = ")).unwrap() + 1;
    // Bad scripts are reported with file, line and reason, and the last good one stays in use.
    for (text, why) in [
        (
            generous.replace("return 1, s1", "return 1, 0 / 0, s1"),
            "lua/lockout.lua: take answered 9 values instead of 8".to_owned(),
        ),
        (
            generous.replace("local tries = 2 * half", "while true do end"),
            format!("lua/lockout.lua:{tries}: more than 100000 instructions"),
        ),
        (
            generous.replace("local tries =", "local tries = ="),
            format!("lua/lockout.lua:{tries}: unexpected symbol near '='"),
        ),
    ] {
        let before = weir.reloads("refused");
        replace(&file, text.as_bytes());
        weir.await_reloads("refused", before + 1);
        let told = weir.admin_page("/status").text();
        assert!(told.contains(&why), "{why}\n{told}");
    }
    assert_eq!(get(weir.http, "/", &[]).await.remaining("login"), 4);

    // A new file in the folder, and then a limit that names it.
    let before = weir.reloads("applied");
    replace(&file, generous.as_bytes());
    std::fs::write(weir.folder().join("lua/second.lua"), LOCKOUT).unwrap();
    eventually_async("the new file is taken up", async || {
        // The watcher may have seen the repaired file alone before the second one: then there are
        // two texts of one program.
        if weir.reloads("applied") + weir.reloads("unchanged") > before {
            Ok(())
        } else {
            Err(weir.output().tail(5))
        }
    })
    .await;
    weir.reload(
        &with_scripts(&simple(&upstream.url(), &[&LOGIN.replace("lockout", "second")])),
        "applied",
    );
    assert_eq!(get(weir.http, "/", &[]).await.remaining("login"), 2);
}

#[tokio::test]
async fn a_hostile_script_costs_its_own_requests_and_nobody_elses() {
    let upstream = Upstream::start();
    // It passes its trial and misbehaves only in a request.
    let hostile = "-- trial: 0\nlocal function take(s1, _, _, now, cost, evil)\n  if evil == 1 then while true do end end\n  if evil == 2 then error('no') end\n  \
                   if evil == 3 then local t = {} for k = 1, 1e12 do t[k] = { k } end end\n  if evil == 4 then return '1' end\n  \
                   return 1, s1 + cost, 0, 0, 100, -1, 0, now + 1000000\nend\n\
                   local function give_back(s1) return s1, 0, 0, 0, 0 end\nreturn { take = take, give_back = give_back }\n";
    let evil = |number: usize| {
        format!(
            "name = \"evil{number}\", algorithm = \"script\", script = \"hostile\", arguments = [{number}], when = {{ path = \"/{number}\" }}"
        )
    };
    let limits: Vec<String> = (0..=4).map(evil).collect();
    let limits: Vec<&str> = limits.iter().map(String::as_str).chain([DAY]).collect();
    let weir = Weir::build(&with_scripts(&simple(&upstream.url(), &limits)))
        .file("lua/hostile.lua", hostile.as_bytes())
        .start();
    let mut client = Client::connect(weir.http).await.unwrap();
    let mut day = 1000;
    for _ in 0..3 {
        for number in 1..=4 {
            let reply = client.get(&format!("/{number}"), &[]).await.unwrap();
            assert_eq!(reply.status, 503, "{reply:?}");
            for path in ["/", "/0"] {
                let reply = client.get(path, &[]).await.unwrap();
                day -= 1;
                assert_eq!(
                    (reply.status, reply.remaining("day")),
                    (200, day),
                    "{path} after /{number}: {reply:?}"
                );
            }
        }
    }
    assert_eq!(weir.metric("weir_store_errors_total{cause=\"script\"}"), 12);
    assert_eq!(upstream.count(), 24);
}

#[test]
fn a_limit_whose_script_is_not_there_is_an_error_at_its_line() {
    let upstream = Upstream::start();
    let config = simple(&upstream.url(), &[&LOGIN.replace("\"lockout\"", "\"lokout\"")]);
    let (code, out, told) = Weir::check(build(&config));
    assert_eq!(code, 78, "{out}{told}");
    let (found, expected) = (
        "limits[0].script: found \"lokout\"\n",
        "^ expected the name of a file in `store.scripts`, without `.lua`; ",
    );
    assert!(
        told.contains(found)
            && told.contains(expected)
            && told.contains("the nearest is \"lockout\""),
        "{told}"
    );
    let (code, _, told) = Weir::check(Weir::build(&simple(&upstream.url(), &[LOGIN]).text()));
    assert!(code == 78 && told.contains("limits[0].script: found \"lockout\"\n"), "{told}");
}
