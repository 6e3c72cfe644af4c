//! Limits by a `map` or a `geo`.

use super::{imported, server, simulation};

/// The limits and notes of one zone with this key, beside these directives.
fn of_key(directives: &str, key: &str) -> (String, String) {
    let (config, notes) = imported(&format!(
        "{directives}\nlimit_req_zone {key} zone=z:1m rate=1r/s; limit_req_status 429;\n{}",
        server("location / { limit_req zone=z; PASS }")
    ));
    simulation(&config);
    let limit = config.lines().find(|line| line.contains("name = \"z\"")).unwrap_or_default();
    let limit = limit.split_once("burst = 1").unwrap_or_default().1;
    (limit.trim_start_matches(", ").trim_end_matches(" },").to_owned(), notes)
}

#[test]
fn a_map_or_geo_says_which_requests_a_limit_is_about() {
    let address = "key = \"{client_ip}\"";
    let allowed = "geo $limited { default 1; 10.0.0.0/8 0; 192.0.2.7 0; 198.51.100.0/24 1; }
        map $limited $limit_key { 0 ''; 1 $binary_remote_addr; }";
    for (directives, key, expected) in [
        (
            allowed,
            "$limit_key",
            format!("{address}, unless.client_ip = [\"10.0.0.0/8\", \"192.0.2.7/32\"]"),
        ),
        (
            "map $request_method $writes { volatile; POST $binary_remote_addr; PUT $remote_addr; }",
            "${Writes}",
            format!("{address}, when.method = [\"POST\", \"PUT\"]"),
        ),
        (
            "map $host $of_host { hostnames; default $http_x_key; www.example.com ''; }",
            "$of_host",
            "key = \"{header.x-key}\", missing = \"skip\", unless.host = \"www.example.com\""
                .to_owned(),
        ),
        (
            "map $http_x_key $any { default $http_x_key; '' $binary_remote_addr; }",
            "$any",
            "key = \"{header.x-key}\", missing = \"address\"".to_owned(),
        ),
        (
            "map $http_x_key $some { default $http_x_key; '' ''; \\default ''; }",
            "$some",
            "key = \"{header.x-key}\", missing = \"skip\", unless.header.x-key = \"default\""
                .to_owned(),
        ),
        (
            "map $request_method $k { post $remote_addr; POST $remote_addr; }",
            "$k",
            format!("{address}, when.method = \"POST\""),
        ),
        (
            "map $host $k { EXAMPLE.com $remote_addr; include nothing*.conf; }",
            "$k",
            format!("{address}, when.host = \"example.com\""),
        ),
        // A text that no address is.
        (
            "map $remote_addr $k { default $remote_addr; 10.0.0.0/8 ''; localhost ''; 10.0.0.1 ''; }",
            "$k",
            format!("{address}, unless.client_ip = \"10.0.0.1\""),
        ),
        (
            "geo $k { default $remote_addr; 10.0.0.0/8 $remote_addr; 10.0.0.0/8 ''; }",
            "$k",
            format!("{address}, unless.client_ip = \"10.0.0.0/8\""),
        ),
        ("geo $all { default $remote_addr; }", "$all", address.to_owned()),
    ] {
        let (limit, notes) = of_key(directives, key);
        assert_eq!(limit, expected, "{directives}\n{notes}");
    }
    let (_, notes) = of_key(allowed, "$limit_key");
    assert_eq!(notes, "");
    let (_, notes) = of_key("map $http_x_plan $paid { free $binary_remote_addr; }", "$paid");
    assert!(notes.contains("compares the values of its `map` in any case"), "{notes}");
    let (_, notes) = of_key("map $http_x_real_ip $k { 10.0.0.1 $remote_addr; }", "$k");
    assert!(notes.contains("a proxy's word for it holds"), "{notes}");
}

#[test]
fn a_limit_by_a_map_that_weir_can_not_write_is_left_out_with_the_reason() {
    for (directives, why) in [
        (
            "map $http_user_agent $k { ~*bot $remote_addr; }",
            "line 1: limits of Weir know no expressions",
        ),
        ("map $host $k { hostnames; *.example.com $remote_addr; }", "no names with stars"),
        (
            "map $http_x_a$http_x_b $k { ab $remote_addr; }",
            "`$http_x_a$http_x_b` of $k is more than one variable",
        ),
        (
            "map $request_method $k { default $http_x_key; POST $remote_addr; }",
            "keys of several kinds",
        ),
        ("map $http_x_a $k { default $remote_addr; '' ''; }", "that header.x-a is absent"),
        ("map $http_x_a $k { '*' $remote_addr; }", "\"*\" means something else"),
        ("map $http_x_a $k { a ''; }", "its key is always empty"),
        ("map $k $k { a $remote_addr; }", "$k depends on itself"),
        (
            "map $http_x_a $a { default $http_x_b; } map $a $k { a $remote_addr; }",
            "$a is itself of variables",
        ),
        ("geo $http_x_a $k { default $remote_addr; }", "$http_x_a is no address"),
        ("geo $k { ranges; 10.0.0.0-10.0.0.9 $remote_addr; }", "`ranges` is no network"),
        (
            "geo $k { default $remote_addr; 10.0.0.0/8 ''; 10.1.0.0/16 $remote_addr; }",
            "10.1.0.0/16 is excepted from 10.0.0.0/8",
        ),
        ("map $remote_addr $k { 10.0.0.0/8 $remote_addr; }", "its key is empty for all clients"),
        ("map $http_x_a $k { '' $http_x_a; default $remote_addr; }", "keys of two kinds"),
        ("map $binary_remote_addr $k { default $remote_addr; 10.0.0.1 ''; }", "is no text"),
        ("geo $binary_remote_addr $k { default $remote_addr; }", "is no text"),
        ("map $http_x_a $k { a $remote_addr b; }", "expected a value"),
        ("geo $k { default 1; ::ffff:127.0.0.0/104 ''; }", "is no network"),
        ("map $arg_ $k { a $remote_addr; }", "Weir has no fact for $arg_"),
        ("map $ssl_protocol $k { TLSv1.3 $remote_addr; }", "Weir has no fact for $ssl_protocol"),
    ] {
        let (limit, notes) = of_key(directives, "$k");
        assert_eq!(limit, "", "{directives}");
        let expected = "LEFT OUT, nothing is limited by it: ";
        let told = notes.lines().find(|line| line.contains(expected)).unwrap_or_default();
        assert!(told.contains(why), "{directives}\n{notes}");
    }
    // One that no limit needs.
    let (limit, notes) = of_key("map $http_x_a $k { a b; }", "$remote_addr");
    assert_eq!(limit, "key = \"{client_ip}\"");
    assert_eq!(notes, "line 1: map $http_x_a $k { ... }: left out");
}
