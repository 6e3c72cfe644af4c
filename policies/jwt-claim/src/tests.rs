//! The policy on the host, with a stand-in for signatures: which tokens are accepted, what they are
//! counted under, and what each mistake says.

mod plans;

use std::cell::Cell;

use serde_json::{Value, json};
use weir_policy::testing::{Instance, set_now_ms, set_verifier};
use weir_policy::{Verdict, VerifyingKey};

use super::*;

/// When the tests take place, in seconds since 1970.
const NOW: u64 = 2_000_000_000;
const LIMITS: &str =
    r#""limits": [{"name": "a", "algorithm": "gcra", "quota": 1, "period": "1s"}]"#;

thread_local! {
    static VERIFIED: Cell<u32> = const { Cell::new(0) };
}

fn encode(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let all = chunk.iter().fold(0, |all, byte| all << 8 | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for digit in 0..=chunk.len() {
            text.push(char::from(DIGITS[(all >> (18 - 6 * digit) & 63) as usize]));
        }
    }
    text
}

/// The stand-in's signature: the algorithm, the key's last byte, and the message.
fn signature(algorithm: &str, last: u8, message: &[u8]) -> Vec<u8> {
    [algorithm.as_bytes(), &[last], message].concat()
}

fn verifier(key: &VerifyingKey, message: &[u8], given: &[u8]) -> bool {
    VERIFIED.set(VERIFIED.get() + 1);
    let (algorithm, material) = match key {
        VerifyingKey::Hs256(secret) => ("HS256", secret),
        VerifyingKey::Hs384(secret) => ("HS384", secret),
        VerifyingKey::Hs512(secret) => ("HS512", secret),
        VerifyingKey::Rs256(key) => ("RS256", &key.modulus),
        VerifyingKey::Rs384(key) => ("RS384", &key.modulus),
        VerifyingKey::Rs512(key) => ("RS512", &key.modulus),
        VerifyingKey::Ps256(key) => ("PS256", &key.modulus),
        VerifyingKey::Ps384(key) => ("PS384", &key.modulus),
        VerifyingKey::Ps512(key) => ("PS512", &key.modulus),
        VerifyingKey::Es256(point) => ("ES256", point),
        VerifyingKey::Es384(point) => ("ES384", point),
        VerifyingKey::Ed25519(key) => ("EdDSA", key),
    };
    given == signature(algorithm, *material.last().unwrap(), message)
}

/// A token with this header and these claims, signed by the key that ends in `last`.
fn signed(header: Value, claims: &Value, last: u8) -> String {
    let part = |value: &Value| encode(value.to_string().as_bytes());
    let message = format!("{}.{}", part(&header), part(claims));
    let algorithm = header["alg"].as_str().unwrap_or_default();
    let signature = signature(algorithm, last, message.as_bytes());
    format!("{message}.{}", encode(&signature))
}

/// A token of `ann`, valid for an hour.
fn token(more: Value) -> String {
    let mut claims = json!({ "sub": "ann", "exp": NOW + 3600 });
    claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    signed(json!({ "alg": "RS256", "kid": "one" }), &claims, 1)
}

fn rsa(kid: &str, last: u8) -> Value {
    let mut modulus = vec![0xC0; 256];
    modulus[255] = last;
    json!({ "kty": "RSA", "kid": kid, "n": encode(&modulus), "e": "AQAB" })
}

fn config(more: &str, keys: &[Value]) -> String {
    let keys = json!({ "keys": keys });
    format!(r#"{{{more}"algorithms": ["RS256"], "keys": {keys}, {LIMITS}}}"#)
}

fn policy(config: &str) -> Instance<JwtClaim> {
    set_now_ms(NOW * 1000);
    set_verifier(verifier);
    Instance::new(config).unwrap_or_else(|mistakes| panic!("{mistakes:?}"))
}

fn plain(more: &str) -> Instance<JwtClaim> {
    policy(&config(more, &[rsa("one", 1), rsa("two", 2)]))
}

/// The key that a request with this field is counted under, or the reason for its refusal.
fn counted(policy: &Instance<JwtClaim>, authorization: &[&str]) -> Result<String, String> {
    let mut facts: Vec<_> =
        authorization.iter().map(|value| ("header.authorization", *value)).collect();
    facts.push(("client-ip", "192.0.2.1"));
    let decision = policy.decide(&facts).unwrap();
    match decision.verdict {
        Verdict::Deny(denial) => {
            assert_eq!(denial.status, 401);
            Err(denial.reason)
        }
        _ => Ok(decision.limits()[0].key.clone()),
    }
}

fn bearer(policy: &Instance<JwtClaim>, token: &str) -> Result<String, String> {
    counted(policy, &[&format!("Bearer {token}")])
}

#[track_caller]
fn refused(policy: &Instance<JwtClaim>, token: &str, why: &str) {
    assert_eq!(bearer(policy, token), Err(why.to_owned()), "{token}");
}

#[test]
fn a_verified_token_is_counted_by_its_claim() {
    let policy = plain("");
    assert!(!policy.manifest().pure);
    assert_eq!(policy.manifest().request_facts, ["header.authorization", "client-ip"]);
    assert_eq!(bearer(&policy, &token(json!({}))).unwrap(), "ann");
    assert_eq!(bearer(&policy, &token(json!({ "sub": 7 }))).unwrap(), "7");
    assert_eq!(
        bearer(&policy, &token(json!({ "sub": "\\@192.0.2.1" }))).unwrap(),
        "\\\\@192.0.2.1"
    );
    let found = counted(&policy, &[&format!("bEARER  {} ", token(json!({})))]);
    assert_eq!(found.unwrap(), "ann");
    let nested = plain(r#""claim": "/realm/tenant", "#);
    let claims = json!({ "realm": { "tenant": "acme" } });
    assert_eq!(bearer(&nested, &token(claims)).unwrap(), "acme");
    let lacks = "the token lacks the claim that is counted";
    for claims in [json!({}), json!({ "realm": 1 }), json!({ "realm": { "tenant": [1] } })] {
        refused(&nested, &token(claims), lacks);
    }
    for sub in [json!(""), json!(null), json!(1.5), json!(true), json!({})] {
        refused(&policy, &token(json!({ "sub": sub })), lacks);
    }
}

#[test]
fn a_token_is_signed_by_a_key_of_the_set_with_an_algorithm_of_the_list() {
    let policy = plain("");
    let claims = json!({ "sub": "ann", "exp": NOW + 3600 });
    let wrong = "the token's signature is wrong";
    let none = "no key of the set fits the token's algorithm and key id";
    let unknown = "the token's algorithm is not accepted";
    // By the second key, which is named, unnamed, or not the one that is named.
    for (header, last, expected) in [
        (json!({ "alg": "RS256", "kid": "two" }), 2, Ok("ann")),
        (json!({ "alg": "RS256" }), 2, Ok("ann")),
        (json!({ "alg": "RS256", "kid": "one" }), 2, Err(wrong)),
        (json!({ "alg": "RS256", "kid": "three" }), 2, Err(none)),
        (json!({ "alg": "RS256" }), 3, Err(wrong)),
        (json!({ "alg": "none" }), 1, Err(unknown)),
        (json!({ "alg": "HS256" }), 1, Err(unknown)),
        (json!({ "alg": "RS512" }), 1, Err(unknown)),
        (json!({ "alg": "rs256" }), 1, Err(unknown)),
        (json!({ "alg": 1 }), 1, Err("the token is malformed")),
        (
            json!({ "alg": "RS256", "crit": ["b64"], "b64": false }),
            1,
            Err("the token needs extensions"),
        ),
    ] {
        let found = bearer(&policy, &signed(header.clone(), &claims, last));
        assert_eq!(found.as_deref().map_err(String::as_str), expected, "{header}");
    }
}

#[test]
fn a_key_signs_by_the_algorithms_of_its_kind_alone() {
    let secret = |bytes: usize| json!({ "kty": "oct", "k": encode(&vec![9; bytes]) });
    let point = |curve: &str, bytes: usize| {
        let coordinate = encode(&vec![9; bytes]);
        json!({ "kty": "EC", "crv": curve, "x": coordinate, "y": coordinate })
    };
    let ed25519 = json!({ "kty": "OKP", "crv": "Ed25519", "x": encode(&[9; 32]) });
    let limited = json!({ "kty": "RSA", "alg": "PS256", "n": rsa("", 9)["n"], "e": "AQAB" });
    let all = [
        "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256",
        "ES384", "EdDSA",
    ];
    for (key, fitting) in [
        (secret(32), &["HS256"][..]),
        (secret(48), &["HS256", "HS384"]),
        (secret(64), &["HS256", "HS384", "HS512"]),
        (rsa("", 9), &all[3..9]),
        (limited, &["PS256"]),
        (point("P-256", 32), &["ES256"]),
        (point("P-384", 48), &["ES384"]),
        (ed25519, &["EdDSA"]),
    ] {
        let set = json!({ "keys": [key] });
        let policy =
            policy(&format!(r#"{{"algorithms": {}, "keys": {set}, {LIMITS}}}"#, json!(all)));
        for algorithm in all {
            let claims = json!({ "sub": "ann", "exp": NOW + 3600 });
            let found = bearer(&policy, &signed(json!({ "alg": algorithm }), &claims, 9));
            assert_eq!(found.is_ok(), fitting.contains(&algorithm), "{algorithm} {set}");
        }
    }
}

#[test]
fn few_keys_are_tried_and_none_for_what_is_refused_anyway() {
    let keys: Vec<Value> = (0..20).map(|last| rsa(&last.to_string(), last)).collect();
    let policy = policy(&config("", &keys));
    let claims = json!({ "sub": "ann", "exp": NOW + 3600 });
    let tried = |token: &str| {
        VERIFIED.set(0);
        assert!(bearer(&policy, token).is_err());
        VERIFIED.get()
    };
    assert_eq!(tried(&signed(json!({ "alg": "RS256" }), &claims, 99)), 4);
    assert_eq!(tried(&signed(json!({ "alg": "RS256", "kid": "7" }), &claims, 99)), 1);
    let expired = json!({ "sub": "ann", "exp": NOW - 3600 });
    assert_eq!(tried(&signed(json!({ "alg": "RS256", "kid": "7" }), &expired, 7)), 0);
}

#[test]
fn a_token_is_valid_for_its_time_for_this_api_and_from_its_issuer() {
    let policy = plain(
        r#""issuer": ["https://a.example", "https://b.example"], "audience": "api", "leeway": "30s", "#,
    );
    let with = |more: Value| {
        let mut claims = json!({ "iss": "https://a.example", "aud": ["web", "api"] });
        claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        token(claims)
    };
    let ann = Ok("17:https://a.example/ann".to_owned());
    for (claims, why) in [
        (json!({}), ""),
        (json!({ "aud": "api" }), ""),
        (json!({ "exp": NOW - 29 }), ""),
        (json!({ "exp": (NOW - 29) as f64 - 0.5 }), ""),
        (json!({ "nbf": NOW + 30 }), ""),
        (json!({ "exp": NOW - 30 }), "the token has expired"),
        (json!({ "nbf": NOW + 31 }), "the token is not valid yet"),
        (json!({ "exp": null }), "the token's times are malformed"),
        (json!({ "exp": "2033" }), "the token's times are malformed"),
        (json!({ "nbf": -1 }), "the token's times are malformed"),
        (json!({ "aud": "web" }), "the token is for another audience"),
        (json!({ "aud": [] }), "the token is for another audience"),
        (json!({ "aud": null }), "the token is for another audience"),
        (json!({ "iss": "https://c.example" }), "the token is from another issuer"),
        (json!({ "iss": ["https://a.example"] }), "the token is from another issuer"),
    ] {
        let expected = if why.is_empty() { ann.clone() } else { Err(why.to_owned()) };
        assert_eq!(bearer(&policy, &with(claims.clone())), expected, "{claims}");
    }
    let endless = signed(json!({ "alg": "RS256" }), &json!({ "sub": "ann" }), 1);
    refused(&plain(""), &endless, "the token never expires");
    assert_eq!(bearer(&plain(r#""exp": "optional", "#), &endless).unwrap(), "ann");
}

#[test]
fn a_token_of_another_type_is_refused() {
    let of = |typ: Value| {
        let mut header = json!({ "alg": "RS256", "kid": "one" });
        if !typ.is_null() {
            header["typ"] = typ;
        }
        signed(header, &json!({ "sub": "ann", "exp": NOW + 3600 }), 1)
    };
    let policy = plain(r#""typ": ["at+jwt", "application/vnd.x+jwt", "a/b"], "#);
    for typ in ["at+jwt", "AT+JWT", "application/at+jwt", "Application/At+Jwt", "vnd.x+JWT", "A/B"]
    {
        assert_eq!(bearer(&policy, &of(json!(typ))).as_deref(), Ok("ann"), "{typ}");
    }
    VERIFIED.set(0);
    for typ in [
        json!(null),
        json!("JWT"),
        json!("logout+jwt"),
        json!("text/at+jwt"),
        json!("application/a/b"),
        json!("at+jwt "),
        json!(""),
        json!(["at+jwt"]),
    ] {
        refused(&policy, &of(typ), "the token is of another type");
    }
    assert_eq!(VERIFIED.get(), 0);
    // One type is a list of one, and without the setting each type is accepted.
    let one = plain(r#""typ": "JWT", "#);
    assert_eq!(bearer(&one, &of(json!("jwt"))).as_deref(), Ok("ann"));
    refused(&one, &of(json!("at+jwt")), "the token is of another type");
    for typ in [json!(null), json!("JWT"), json!("logout+jwt")] {
        assert_eq!(bearer(&plain(""), &of(typ)).as_deref(), Ok("ann"));
    }
}

#[test]
fn a_malformed_token_is_refused_before_it_costs_anything() {
    let policy = plain("");
    let good = token(json!({}));
    let (message, signature) = good.rsplit_once('.').unwrap();
    let payload = message.split_once('.').unwrap().1;
    VERIFIED.set(0);
    for (token, why) in [
        ("x".to_owned(), "the token is malformed"),
        ("..".to_owned(), "the token is malformed"),
        (message.to_owned(), "the token is malformed"),
        (format!("{good}."), "the token is encrypted or malformed"),
        (format!("{good}.a.b"), "the token is encrypted or malformed"),
        (format!("{message}.{signature}="), "the token is malformed"),
        (format!("W10.{payload}.{signature}"), "the token is malformed"),
        (format!("{message}.{}", "A".repeat(8192)), "the token is too long"),
        (format!("{good}\u{e9}"), "the token is malformed"),
    ] {
        refused(&policy, &token, why);
    }
    assert_eq!(VERIFIED.get(), 0);
}

#[test]
fn requests_without_a_token_or_with_a_bad_one_may_be_counted_by_address() {
    let none = Err("a token is needed".to_owned());
    let policy = plain("");
    for fields in [&[][..], &[""], &["Basic YTpi"], &["Bearer "], &["Bearer"]] {
        assert_eq!(counted(&policy, fields), none, "{fields:?}");
    }
    let good = format!("Bearer {}", token(json!({})));
    let several = Err("there is more than one token".to_owned());
    assert_eq!(counted(&policy, &[&good, &good]), several);
    let address = Ok("\\@192.0.2.1".to_owned());
    let missing = plain(r#""missing": "address", "#);
    assert_eq!(counted(&missing, &[]), address);
    assert_eq!(bearer(&missing, &token(json!({ "sub": "" }))), address);
    refused(&missing, "x", "the token is malformed");
    let invalid = plain(r#""invalid": "address", "#);
    assert_eq!(counted(&invalid, &[]), none);
    assert_eq!(bearer(&invalid, "x"), address);
    assert_eq!(counted(&invalid, &[&good, &good]), address);
}

#[test]
fn a_refusal_is_the_challenge_of_bearer_tokens() {
    let policy = plain("");
    let challenge = |fields: &[(&str, &str)]| {
        let Verdict::Deny(denial) = policy.decide(fields).unwrap().verdict else { panic!() };
        denial.headers[0].1.clone()
    };
    assert_eq!(challenge(&[]), "Bearer");
    assert_eq!(
        challenge(&[("header.authorization", "Bearer x")]),
        "Bearer error=\"invalid_token\", error_description=\"the token is malformed\""
    );
}

#[test]
fn a_token_may_be_in_a_cookie_or_another_field() {
    for (source, fact) in
        [("cookie.Session", "cookie.Session"), ("header.X-Token", "header.x-token")]
    {
        let policy = plain(&format!(r#""token": "{source}", "#));
        let token = token(json!({}));
        let facts = [(fact, token.as_str()), ("client-ip", "192.0.2.1")];
        assert_eq!(policy.decide(&facts).unwrap().limits()[0].key, "ann", "{source}");
    }
}

#[test]
fn the_upstream_is_told_claims_and_no_client_can_forge_them() {
    let policy = plain(
        r#""forward": {"X-User": "sub", "x-tenant": "/realm/tenant"}, "missing": "address", "bypass": ["10.0.0.0/8"], "#,
    );
    let told = |address: &str, token: Option<&str>| {
        let field = token.map(|token| format!("Bearer {token}"));
        let mut facts = vec![("client-ip", address)];
        facts.extend(field.as_deref().map(|field| ("header.authorization", field)));
        let headers = policy.decide(&facts).unwrap().upstream_headers;
        let value = |name: &str| headers.iter().find(|(field, _)| field == name).unwrap().1.clone();
        [value("x-user"), value("x-tenant")]
    };
    let good = token(json!({ "realm": { "tenant": 7 } }));
    assert_eq!(told("192.0.2.1", Some(&good)), ["ann", "7"]);
    assert_eq!(told("192.0.2.1", Some(&good)), ["ann", "7"], "remembered");
    assert_eq!(told("192.0.2.1", Some(&token(json!({ "sub": "a\nb" })))), ["", ""]);
    assert_eq!(told("192.0.2.1", Some(&token(json!({ "sub": "jos\u{e9}" })))), ["", ""]);
    for unfit in [" ann", "ann ", &"a".repeat(4_097)] {
        assert_eq!(told("192.0.2.1", Some(&token(json!({ "sub": unfit })))), ["", ""], "{unfit}");
    }
    assert_eq!(told("192.0.2.1", Some("x")), ["", ""]);
    assert_eq!(told("192.0.2.1", None), ["", ""]);
    assert_eq!(told("10.0.0.1", Some(&good)), ["", ""]);
}

#[test]
fn a_token_is_verified_once_and_expires_all_the_same() {
    let policy = plain(r#""leeway": "0s", "#);
    let (one, other) = (token(json!({ "nbf": NOW })), token(json!({ "sub": "bob" })));
    VERIFIED.set(0);
    for _ in 0..3 {
        assert_eq!(bearer(&policy, &one).unwrap(), "ann");
        assert_eq!(bearer(&policy, &other).unwrap(), "bob");
    }
    assert_eq!(VERIFIED.get(), 2);
    // Another signature is another token.
    let message = one.rsplit_once('.').unwrap().0;
    refused(&policy, &format!("{message}.AAAA"), "the token's signature is wrong");
    set_now_ms((NOW + 3600) * 1000);
    refused(&policy, &one, "the token has expired");
    set_now_ms((NOW - 1) * 1000);
    refused(&policy, &one, "the token is not valid yet");
}

#[test]
fn signatures_are_not_verified_where_that_is_written() {
    let policy = policy(&format!(r#"{{"verify": "none", {LIMITS}}}"#));
    let unsigned = token(json!({}));
    let unsigned = format!("{}.", unsigned.rsplit_once('.').unwrap().0);
    assert_eq!(bearer(&policy, &unsigned).unwrap(), "ann");
    refused(&policy, &token(json!({ "exp": 1 })), "the token has expired");
}

fn mistakes(config: &str) -> Vec<String> {
    let mistakes = Instance::<JwtClaim>::new(config).unwrap_err();
    mistakes.iter().map(|mistake| format!("{}: {}", mistake.path, mistake.message)).collect()
}

#[test]
fn errors_in_keys_are_reported_and_no_key_is_repeated() {
    let one = |member: &str, value: Value| {
        let mut key = rsa("one", 1);
        key[member] = value;
        key
    };
    for (key, expected) in [
        (
            one("n", json!("!!secret!!")),
            "keys.keys[0].n: found a text of another kind, expected 256 to 1024 bytes",
        ),
        (
            one("n", json!("AAAA")),
            "keys.keys[0].n: found 0 bytes, expected 256 to 1024 bytes in base64url",
        ),
        (one("d", json!("AQAB")), "keys.keys[0].d: found a private key, expected a public key"),
        (json!({ "kty": "RSA", "e": "AQAB" }), "keys.keys[0]: found no `n`, expected 256"),
        (
            json!({ "kty": "oct", "k": encode(b"secret") }),
            "keys.keys[0].k: found 6 bytes, expected 32",
        ),
        (one("use", json!("enc")), "keys: found 0 keys, none of them for a configured algorithm"),
        (one("key_ops", json!(["sign"])), "keys: found 0 keys, none of them"),
        (one("alg", json!("RS512")), "keys: found 1 keys, none of them for a configured algorithm"),
        (json!({ "kty": "EC", "crv": "P-521" }), "keys: found 0 keys"),
    ] {
        let found = mistakes(&config("", &[key]));
        assert!(found.len() == 1 && found[0].starts_with(expected), "{found:#?}");
    }
    let many: Vec<Value> = (0..101).map(|_| rsa("one", 1)).collect();
    assert_eq!(mistakes(&config("", &many)), ["keys.keys: found 101 keys, expected at most 100"]);
    let other = format!(r#"{{"algorithms": ["RS256"], "keys": [], {LIMITS}}}"#);
    assert!(mistakes(&other)[0].starts_with("keys: found no list `keys`"));
}

#[test]
fn missing_and_useless_settings_are_errors() {
    let key = json!({ "keys": [rsa("one", 1)] });
    for (settings, expected) in [
        (String::new(), &[": found no `algorithms`", ": found no `keys`"][..]),
        (r#""verify": "none", "algorithms": ["RS256"], "#.to_owned(), &["algorithms: found algorithms"]),
        (format!(r#""verify": "none", "keys": {key}, "#), &["keys: found a set of keys"]),
        (
            format!(r#""algorithms": ["none"], "keys": {key}, "#),
            &["algorithms[0]: found \"none\", expected one of `HS256`"],
        ),
        (
            r#""verify": "none", "token": "query.token", "leeway": "11m", "claim": "/a~2", "issuer": [], "typ": [1], "#
                .to_owned(),
            &["claim: found \"/a~2\"", "issuer: found []", "leeway: found \"11m\"", "token: found \"query.token\"", "typ: found [1]"],
        ),
        (
            r#""verify": "none", "forward": {"Host": "sub", "x-a": "sub", "X-A": "sub"}, "#.to_owned(),
            &["forward.Host: found \"Host\", expected a field that", "forward.x-a: found the field a second time"],
        ),
    ] {
        let mut found = mistakes(&format!("{{{settings}{LIMITS}}}"));
        found.sort();
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found} {expected}");
        }
    }
}

#[test]
fn tokens_for_anybody_and_from_anybody_are_warned_of() {
    let told = |policy: &Instance<JwtClaim>| -> Vec<String> {
        let warnings = policy.manifest().warnings.into_iter();
        let all = warnings.map(|warning| {
            assert_eq!((&*warning.kind, &*warning.path), ("unchecked-token", ""));
            warning.message.split(':').next().unwrap().to_owned()
        });
        all.collect()
    };
    let missing = ["no `audience`", "no `issuer`"];
    assert_eq!(told(&plain("")), missing);
    assert_eq!(told(&plain(r#""verify": "signature", "#)), missing);
    assert_eq!(told(&plain(r#""audience": "api", "#)), missing[1..]);
    assert_eq!(told(&plain(r#""issuer": ["a", "b"], "#)), missing[..1]);
    assert_eq!(told(&plain(r#""issuer": "a", "audience": "b", "#)), [""; 0]);
    // Then the gateway in front of Weir decides which tokens there are.
    assert_eq!(told(&policy(&format!(r#"{{"verify": "none", {LIMITS}}}"#))), [""; 0]);
}
