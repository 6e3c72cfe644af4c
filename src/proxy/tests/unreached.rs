//! Routes that no request can reach: the analysis compared with asking for every path.

use http::Method;
use proptest::prelude::*;

use crate::proxy::route::routes::{Matcher, Routes};
use crate::proxy::route::trie::{UnreachedCause, UnreachedRoute};
use crate::proxy::settings::Paths;

/// Path, methods, whether it redirects.
type Written<'w> = (&'w str, &'w [&'w str], bool);

fn routes(paths: Paths, host: Option<&str>, written: &[Written<'_>]) -> Routes {
    let mut routes = Routes::new(paths);
    for (index, (path, methods, redirects)) in written.iter().enumerate() {
        let methods: Vec<String> = methods.iter().map(|method| (*method).to_owned()).collect();
        let matcher = Matcher { host, path, methods: &methods, redirects: *redirects };
        routes.add(index, matcher).unwrap();
    }
    routes
}

fn unreached(written: &[Written<'_>]) -> Vec<UnreachedRoute> {
    routes(Paths::default(), None, written).unreached(100)
}

fn hidden(route: usize, by: &[usize]) -> UnreachedRoute {
    UnreachedRoute { route, why: UnreachedCause::Hidden(by.to_vec()) }
}

const ANY: &[&str] = &[];

#[test]
fn two_routes_may_leave_nothing_of_an_open_one() {
    let all = [("/a/*", ANY, false), ("/a", ANY, false), ("/a/{x}/*", ANY, false)];
    assert_eq!(unreached(&all), [hidden(0, &[1, 2])]);
    // One of them alone leaves something, and so does one for some methods only.
    assert_eq!(unreached(&all[..2]), []);
    assert_eq!(unreached(&[all[0], all[2]]), []);
    assert_eq!(unreached(&[all[0], all[1], ("/a/{x}/*", &["GET", "POST"], false)]), []);
    // Literals leave all other values.
    assert_eq!(unreached(&[all[0], all[1], ("/a/b/*", ANY, false), ("/a/{x}", ANY, false)]), []);
    // The root has no path without its slash.
    let root = [("/*", ANY, false), ("/", ANY, false), ("/{x}/*", ANY, false)];
    assert_eq!(unreached(&root), [hidden(0, &[1, 2])]);
    // With more levels.
    let deep = [
        ("/a/*", ANY, false),
        ("/a/", ANY, false),
        ("/a/{x}", ANY, false),
        ("/a/{x}/{y}/*", ANY, false),
    ];
    assert_eq!(unreached(&deep), [hidden(0, &[1, 2, 3])]);
}

#[test]
fn methods_count_one_by_one() {
    fn open<'m>(methods: &'m [&'m str]) -> Written<'m> {
        ("/a/*", methods, false)
    }
    let by = [("/a", &["GET"][..], false), ("/a/{x}/*", ANY, false)];
    assert_eq!(unreached(&[open(&["GET"]), by[0], by[1]]), [hidden(0, &[1, 2])]);
    assert_eq!(unreached(&[open(&["GET", "PUT"]), by[0], by[1]]), []);
    assert_eq!(unreached(&[open(&["HEAD"]), by[0], by[1]]), [hidden(0, &[1, 2])]);
    assert_eq!(unreached(&[open(&["GET"]), ("/a", &["HEAD"], false), by[1]]), []);
    let usual = &["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"][..];
    let found = unreached(&[("/a", usual, false), ("/a", ANY, false), ("/*", ANY, false)]);
    let why = UnreachedCause::OnlyUnusualMethods(vec![0]);
    assert_eq!(found, [UnreachedRoute { route: 1, why }]);
    assert_eq!(unreached(&[("/a", &usual[1..], false), ("/a", ANY, false)]), []);
}

#[test]
fn a_final_slash_is_another_path_where_it_is_told_apart() {
    let all = [("/a/*", ANY, false), ("/a", ANY, false), ("/a/{x}/*", ANY, false)];
    let exact = Paths { trailing_slash_exact: true, ..Paths::default() };
    assert_eq!(routes(exact, None, &all).unreached(100), []);
    let slashed = [all[0], all[1], all[2], ("/a/", ANY, false)];
    assert_eq!(routes(exact, None, &slashed).unreached(100), [hidden(0, &[1, 2, 3])]);
    // A redirect is never matched by the path that it may redirect to.
    assert_eq!(unreached(&[all[0], ("/a", ANY, true), all[2]]), []);
}

#[test]
fn a_path_longer_than_any_request_is_not_reached() {
    let long = format!("/{}/{{x}}/", "a".repeat(97));
    let found = unreached(&[(&long, ANY, false), ("/*", ANY, false)]);
    assert_eq!(found.len(), 0, "100 bytes without the final slash");
    let long = format!("/{}/{{x}}", "a".repeat(98));
    let why = UnreachedCause::TooLong { bytes: 101 };
    assert_eq!(
        unreached(&[("/*", ANY, false), (&long, ANY, false)]),
        [UnreachedRoute { route: 1, why }]
    );
    let long = format!("/{}", "é".repeat(60));
    assert_eq!(unreached(&[(&long, ANY, false)]), [], "nobody knows how a client escapes it");
}

#[test]
fn routes_hide_only_others_of_their_host() {
    let mut routes = Routes::new(Paths::default());
    for (index, (host, path)) in [
        (Some("*.b.c"), "/*"),
        (Some("*.c"), "/"),
        (Some("*.c"), "/{x}/*"),
        (Some("*.c"), "/*"),
        (None, "/*"),
    ]
    .into_iter()
    .enumerate()
    {
        routes.add(index, Matcher { host, path, methods: &[], redirects: false }).unwrap();
    }
    assert_eq!(routes.unreached(100), [hidden(3, &[1, 2])]);
}

/// Every path of up to four segments, with and without a final slash.
fn every_path() -> Vec<String> {
    let mut paths = vec![String::new()];
    let mut last = paths.clone();
    for _ in 0..4 {
        let longer =
            last.iter().flat_map(|path| ["a", "b", "c"].map(|segment| format!("{path}/{segment}")));
        last = longer.collect();
        paths.extend(last.iter().cloned());
    }
    let slashed: Vec<String> = paths.iter().map(|path| format!("{path}/")).collect();
    paths.retain(|path| !path.is_empty());
    paths.extend(slashed);
    paths
}

proptest! {
    #[test]
    fn unreached_routes_are_those_that_no_path_finds(
        written in prop::collection::vec(
            (
                prop::collection::vec(prop::sample::select(vec!["a", "b", "{}"]), 0..3),
                prop::sample::select(vec!["", "/", "/*", "/*"]),
                prop::sample::select(vec![&[][..], &["GET"], &["HEAD", "POST"], &["PUT", "GET"]]),
                any::<bool>(),
            ),
            1..14,
        ),
        slash_exact in any::<bool>(),
    ) {
        let paths = Paths { trailing_slash_exact: slash_exact, ..Paths::default() };
        let mut routes = Routes::new(paths);
        let mut added = Vec::new();
        for (parts, end, methods, redirects) in written {
            let mut path = String::new();
            for (index, part) in parts.iter().enumerate() {
                path.push('/');
                path.push_str(if *part == "{}" { ["{x}", "{y}", "{z}"][index] } else { part });
            }
            path.push_str(end);
            let methods: Vec<String> = methods.iter().map(|method| (*method).to_owned()).collect();
            let index = added.len();
            let matcher = Matcher { host: None, path: &path, methods: &methods, redirects };
            // Those that no rule tells apart are errors, and are left out.
            if routes.add(index, matcher).is_ok() {
                added.push(path);
            }
        }
        let unreached: Vec<usize> = routes
            .unreached(1_000)
            .into_iter()
            .filter(|one| matches!(one.why, UnreachedCause::Hidden(_)))
            .map(|one| one.route)
            .collect();
        let methods = ["GET", "HEAD", "POST", "PUT", "OTHER"]
            .map(|method| Method::from_bytes(method.as_bytes()).unwrap());
        let paths = every_path();
        let mut found = vec![false; added.len()];
        for path in &paths {
            for method in &methods {
                if let Ok(one) = routes.find("", path, method) {
                    found[one.route] = true;
                }
            }
        }
        let never: Vec<usize> = (0..added.len()).filter(|index| !found[*index]).collect();
        prop_assert_eq!(unreached, never, "{:?}", added);
    }
}
