//! `weir import`: nginx and Weir with the same configuration decide alike.

use std::time::Duration;

use futures_util::future::join_all;

use crate::harness::client::get;
use crate::harness::nginx::Nginx;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

/// So many requests, one after the other or all at once, after a pause.
struct Step {
    pause: Duration,
    count: usize,
    at_once: bool,
    path: &'static str,
    fields: &'static [(&'static str, &'static str)],
    /// What nginx's documentation says of it.
    admitted: usize,
    /// How many more may pass: a bucket that refills within the step depends on its moments.
    more: usize,
}

const fn step(path: &'static str, count: usize, admitted: usize) -> Step {
    Step { pause: Duration::ZERO, count, at_once: false, path, fields: &[], admitted, more: 0 }
}

/// A quota's worth of time.
const SECOND: Duration = Duration::from_millis(1_000);

fn steps() -> Vec<Step> {
    vec![
        // The first, and a burst of 19.
        Step { more: 1, ..step("/", 40, 20) },
        // Ten a second come back.
        Step { pause: SECOND, more: 2, ..step("/", 30, 10) },
        // A minute's five: the first, and a burst of four. The limit around it is not inherited.
        step("/login", 10, 5),
        // Another zone with the same numbers has counters of its own.
        step("/logins", 10, 5),
        // Each key has an allowance of its own; without a key nothing is counted.
        Step { fields: &[("x-api-key", "a")], ..step("/keys/x", 8, 3) },
        Step { fields: &[("x-api-key", "b")], ..step("/keys/y", 8, 3) },
        step("/keys/z", 8, 8),
        // A key of two parts counts without one of them, too.
        Step { fields: &[("x-api-key", "a")], ..step("/parts", 8, 2) },
        step("/parts", 8, 2),
        // One at once, and those that have to wait for half a second at most.
        Step { at_once: true, more: 1, ..step("/slow", 9, 6) },
        // Two at once, and four that wait.
        Step { at_once: true, more: 1, ..step("/both", 9, 6) },
        // The place in the burst is for a third of a second, which is no whole number of anything.
        Step { at_once: true, ..step("/third", 5, 2) },
        // Here is nobody whom the `geo` excepts, and the other one excepts this machine.
        step("/outside", 8, 2),
        step("/inside", 8, 8),
        // The plan of the `map` is counted, or not counted.
        Step { fields: &[("x-plan", "free")], ..step("/free-plan", 8, 2) },
        Step { fields: &[("x-plan", "gold")], ..step("/free-plan", 8, 8) },
        step("/free-plan", 8, 8),
        Step { fields: &[("x-plan", "gold")], ..step("/but-gold", 8, 8) },
        Step { fields: &[("x-plan", "free")], ..step("/but-gold", 8, 2) },
        // The key, or the address of those without one.
        Step { fields: &[("x-api-key", "a")], ..step("/key-or-address", 8, 2) },
        step("/key-or-address", 8, 2),
        Step { fields: &[("x-api-key", "b")], ..step("/key-or-address", 8, 2) },
        // Answered before anything is counted.
        step("/ping", 50, 50),
        step("/free", 50, 50),
    ]
}

async fn admitted(address: std::net::SocketAddr, step: &Step) -> usize {
    tokio::time::sleep(step.pause).await;
    let one = || get(address, step.path, step.fields);
    let mut statuses = Vec::new();
    if step.at_once {
        statuses.extend(join_all((0..step.count).map(|_| one())).await.iter().map(|it| it.status));
    } else {
        for _ in 0..step.count {
            statuses.push(one().await.status);
        }
    }
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    statuses.iter().filter(|status| **status == 200).count()
}

#[tokio::test]
async fn a_configuration_of_nginx_decides_alike_in_weir() {
    let upstream = Upstream::start();
    let api = upstream.url().replace("http://", "");
    let nginx = Nginx::configured(&format!(
        "limit_req_zone $binary_remote_addr zone=clients:1m rate=10r/s;
         limit_req_zone $binary_remote_addr zone=login:1m rate=5r/m;
         limit_req_zone $binary_remote_addr zone=logins:1m rate=5r/m;
         limit_req_zone $http_x_api_key zone=keys:1m rate=6r/m;
         limit_req_zone $binary_remote_addr$http_x_api_key zone=parts:1m rate=1r/m;
         limit_req_zone $binary_remote_addr zone=third:1m rate=3r/s;
         limit_req_zone $binary_remote_addr zone=slow:1m rate=10r/s;
         limit_req_zone $binary_remote_addr zone=both:1m rate=10r/s;
         geo $far {{ default 1; 10.0.0.0/8 0; }}
         geo $near {{ 127.0.0.0/8 here; }}
         map $far $far_key {{ 0 \"\"; 1 $binary_remote_addr; }}
         map $near $near_key {{ default $binary_remote_addr; HERE \"\"; }}
         map $http_x_plan $free_key {{ free $binary_remote_addr; }}
         map $http_x_plan $no_gold {{ default $binary_remote_addr; gold \"\"; }}
         map $http_x_api_key $any_key {{ default $http_x_api_key; \"\" $binary_remote_addr; }}
         limit_req_zone $far_key zone=far:1m rate=1r/m;
         limit_req_zone $near_key zone=near:1m rate=1r/m;
         limit_req_zone $free_key zone=free:1m rate=1r/m;
         limit_req_zone $no_gold zone=gold:1m rate=1r/m;
         limit_req_zone $any_key zone=any:1m rate=1r/m;
         limit_req_status 429;
         upstream api {{ server {api}; }}
         server {{
             listen ADDRESS;
             limit_req zone=clients burst=19 nodelay;
             location / {{ proxy_pass http://api; }}
             location = /login {{ limit_req zone=login burst=4 nodelay; proxy_pass http://api; }}
             location = /logins {{ limit_req zone=logins burst=4 nodelay; proxy_pass http://api; }}
             location = /parts {{ limit_req zone=parts burst=1 nodelay; proxy_pass http://api; }}
             location = /third {{ limit_req zone=third burst=1; proxy_pass http://api; }}
             location = /ping {{ limit_req zone=login; return 200 \"pong\"; }}
             location /keys/ {{ limit_req zone=keys burst=2 nodelay; proxy_pass http://api; }}
             location = /slow {{ limit_req zone=slow burst=5; proxy_pass http://api; }}
             location = /both {{ limit_req zone=both burst=5 delay=1; proxy_pass http://api; }}
             location = /outside {{ limit_req zone=far burst=1 nodelay; proxy_pass http://api; }}
             location = /inside {{ limit_req zone=near burst=1 nodelay; proxy_pass http://api; }}
             location = /free-plan {{ limit_req zone=free burst=1 nodelay; proxy_pass http://api; }}
             location = /but-gold {{ limit_req zone=gold burst=1 nodelay; proxy_pass http://api; }}
             location = /key-or-address {{ limit_req zone=any burst=1 nodelay; proxy_pass http://api; }}
             location = /free {{ limit_req zone=keys burst=2; proxy_pass http://{api}/; }}
         }}"
    ));
    let path = nginx.configuration();
    let (code, written, notes) =
        Weir::with_arguments(&["import", path.to_str().expect("UTF-8")]).run();
    assert_eq!(code, 0, "{notes}");
    let address = format!("\"{}\"", nginx.address);
    assert!(written.contains(&address), "{written}");
    let config = written.replace(&address, "\"127.0.0.1:0\"");
    let weir = Weir::start(&format!("{config}\n[admin]\naddress = \"127.0.0.1:0\"\n"));
    for (number, step) in steps().iter().enumerate() {
        let (theirs, ours) = tokio::join!(admitted(nginx.address, step), admitted(weir.http, step));
        for (who, found) in [("nginx", theirs), ("Weir", ours)] {
            assert!(
                (step.admitted..=step.admitted + step.more).contains(&found),
                "step {number}, {}: {who} admitted {found} of {}, expected {}\n{written}",
                step.path,
                step.count,
                step.admitted
            );
        }
    }
}
