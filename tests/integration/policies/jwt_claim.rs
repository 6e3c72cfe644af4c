//! `jwt-claim` with real keys: tokens of each algorithm through the running proxy, and a set of
//! keys that is replaced while it runs.

use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    self, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RsaEncoding, RsaKeyPair,
};
use serde_json::{Value, json};

use crate::harness::client::{Client, get};
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::{Weir, replace};
use crate::policies::examples::{example, whole};

const ISSUER: &str = "https://id.example.org/";

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

type Sign = Box<dyn Fn(&[u8]) -> Vec<u8>>;

/// A key that signs, and its public part.
pub struct Signer {
    alg: &'static str,
    jwk: Value,
    sign: Sign,
}

impl Signer {
    /// A token with these claims besides those that every token has.
    pub fn token(&self, more: Value) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let mut claims = json!({ "iss": ISSUER, "aud": ["web", "api"], "exp": now + 600 });
        claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.signed(&json!({ "alg": self.alg, "kid": self.jwk["kid"], "typ": "JWT" }), &claims)
    }

    fn signed(&self, header: &Value, claims: &Value) -> String {
        let part = |value: &Value| encode(value.to_string().as_bytes());
        let message = format!("{}.{}", part(header), part(claims));
        format!("{message}.{}", encode(&(self.sign)(message.as_bytes())))
    }
}

pub fn rsa(alg: &'static str, kid: &str, encoding: &'static dyn RsaEncoding) -> Signer {
    let pair = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
    // An RSAPublicKey of RFC 8017: a sequence of two integers, of which the first is 256 bytes
    // long, and is led by a zero.
    let der = pair.public_key().as_ref().to_vec();
    let jwk =
        json!({ "kty": "RSA", "kid": kid, "n": encode(&der[9..265]), "e": encode(&der[267..]) });
    let sign = move |message: &[u8]| {
        let mut signature = vec![0; pair.public_modulus_len()];
        pair.sign(encoding, &SystemRandom::new(), message, &mut signature).unwrap();
        signature
    };
    Signer { alg, jwk, sign: Box::new(sign) }
}

pub fn ec(
    alg: &'static str,
    curve: &str,
    algorithm: &'static signature::EcdsaSigningAlgorithm,
) -> Signer {
    let pair = EcdsaKeyPair::generate(algorithm).unwrap();
    let point = pair.public_key().as_ref()[1..].to_vec();
    let (x, y) = point.split_at(point.len() / 2);
    let jwk = json!({ "kty": "EC", "crv": curve, "kid": alg, "x": encode(x), "y": encode(y) });
    let sign =
        move |message: &[u8]| pair.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec();
    Signer { alg, jwk, sign: Box::new(sign) }
}

fn ed25519() -> Signer {
    let pair = Ed25519KeyPair::generate().unwrap();
    let public = encode(pair.public_key().as_ref());
    let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "kid": "EdDSA", "x": public });
    let sign = move |message: &[u8]| pair.sign(message).as_ref().to_vec();
    Signer { alg: "EdDSA", jwk, sign: Box::new(sign) }
}

pub fn secret(alg: &'static str, algorithm: hmac::Algorithm) -> Signer {
    let secret = [7; 64];
    let jwk = json!({ "kty": "oct", "kid": alg, "k": encode(&secret) });
    let key = hmac::Key::new(algorithm, &secret);
    let sign = move |message: &[u8]| hmac::sign(&key, message).as_ref().to_vec();
    Signer { alg, jwk, sign: Box::new(sign) }
}

/// A key set as an identity provider publishes it.
pub fn key_set() -> String {
    set(&[&rsa("RS256", "a", &signature::RSA_PKCS1_SHA256)])
}

pub fn set(signers: &[&Signer]) -> String {
    let keys: Vec<&Value> = signers.iter().map(|signer| &signer.jwk).collect();
    json!({ "keys": keys }).to_string()
}

/// The README's first example, with these algorithms, and three requests for each user.
pub fn config(url: &str, algorithms: &[&str]) -> String {
    let readme = include_str!("../../../policies/jwt-claim/README.md");
    let block = readme.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let block = block
        .replace("algorithms = [\"RS256\", \"ES256\"]", &format!("algorithms = {algorithms:?}"))
        .replace("gcra", "fixed_window")
        .replace("quota = 600\nperiod = \"1m\"", "quota = 3\nperiod = \"1d\"");
    let route = "path = \"/*\"\nupstream = \"app\"\npolicy = \"users\"";
    let config = Toml::new().upstream("app", url, "").more(&block).route(route).text();
    assert!(config.contains("quota = 3"), "{config}");
    config
}

#[test]
fn the_example_that_verifies_nothing_has_no_error() {
    let block = example("jwt-claim", 2);
    let route = "path = \"/*\"\nupstream = \"app\"\npolicy = \"behind-gateway\"";
    let config = Toml::new().upstream("app", "http://127.0.0.1:9", "").more(&block).route(route);
    let (code, out, err) = Weir::check(Weir::build(&config.text()));
    assert_eq!(code, 0, "{out}{err}");
}

#[test]
fn the_check_and_the_start_warn_of_tokens_for_anybody_and_from_anybody() {
    let full = config("http://127.0.0.1:9", &["RS256"]);
    let build = |config: &str| Weir::build(config).file("jwks.json", key_set().as_bytes());
    let (code, out, err) = Weir::check(build(&full));
    assert!(code == 0 && !format!("{out}{err}").contains("unchecked-token"), "{out}{err}");
    let bare = full
        .replace("issuer = \"https://id.example.org/\"\n", "")
        .replace("audience = \"api\"\n", "");
    let (code, out, err) = Weir::check(build(&bare));
    assert_eq!((code, err.matches("unchecked-token").count()), (0, 2), "{out}{err}");
    assert!(err.contains("no `audience`: ") && err.contains("no `issuer`: "), "{err}");
    let weir = build(&bare).start();
    weir.output().await_text("no `audience`: a token that was issued for another service");
    weir.output().await_text("no `issuer`: a token of anyone whose key is in the set");
}

pub async fn with_token(weir: &Weir, token: &str) -> u16 {
    get(weir.http, "/", &[("authorization", &format!("Bearer {token}"))]).await.status
}

#[tokio::test]
async fn each_algorithm_is_verified_and_its_users_are_counted() {
    let signers = [
        secret("HS256", hmac::HMAC_SHA256),
        secret("HS384", hmac::HMAC_SHA384),
        secret("HS512", hmac::HMAC_SHA512),
        rsa("RS256", "RS256", &signature::RSA_PKCS1_SHA256),
        rsa("RS384", "RS384", &signature::RSA_PKCS1_SHA384),
        rsa("RS512", "RS512", &signature::RSA_PKCS1_SHA512),
        rsa("PS256", "PS256", &signature::RSA_PSS_SHA256),
        rsa("PS384", "PS384", &signature::RSA_PSS_SHA384),
        rsa("PS512", "PS512", &signature::RSA_PSS_SHA512),
        ec("ES256", "P-256", &signature::ECDSA_P256_SHA256_FIXED_SIGNING),
        ec("ES384", "P-384", &signature::ECDSA_P384_SHA384_FIXED_SIGNING),
        ed25519(),
    ];
    let algorithms: Vec<&str> = signers.iter().map(|signer| signer.alg).collect();
    let upstream = Upstream::start();
    let weir = Weir::build(&config(&upstream.url(), &algorithms))
        .file("jwks.json", set(&signers.each_ref()).as_bytes())
        .start();
    for signer in &signers {
        let user = json!({ "sub": signer.alg });
        // Two tokens of one user, and one of another.
        let tokens =
            [signer.token(user.clone()), signer.token(json!({ "sub": signer.alg, "x": 1 }))];
        for (status, token) in [200, 200, 200, 429, 429].into_iter().zip(tokens.iter().cycle()) {
            assert_eq!(with_token(&weir, token).await, status, "{}", signer.alg);
        }
        assert_eq!(upstream.last().header("x-user").as_deref(), Some(signer.alg));
        // The signature of another message, and none at all.
        let other = signer.token(json!({ "sub": "other" }));
        let (message, signature) = other.rsplit_once('.').unwrap();
        let (_, wrong) = tokens[0].rsplit_once('.').unwrap();
        assert_eq!(with_token(&weir, &format!("{message}.{wrong}")).await, 401, "{}", signer.alg);
        assert_eq!(with_token(&weir, &format!("{message}.")).await, 401, "{}", signer.alg);
        assert_ne!(signature, wrong);
    }
}

#[tokio::test]
async fn a_verified_claim_chooses_the_plan() {
    let signer = rsa("RS256", "one", &signature::RSA_PKCS1_SHA256);
    let upstream = Upstream::start();
    let config = example("jwt-claim", 1)
        .replace("token_bucket\", quota = 60,", "fixed_window\", quota = 1,")
        .replace(
            "token_bucket\", quota = 6000, period = \"1m\", burst = 500",
            "fixed_window\", quota = 3, period = \"1m\"",
        )
        .replace("period = \"1m\"", "period = \"1d\"");
    assert!(config.contains("quota = 1,") && config.contains("quota = 3,"), "{config}");
    let weir = Weir::build(&whole(&config, &upstream.url()).text())
        .file("jwks.json", set(&[&signer]).as_bytes())
        .start();
    let of =
        |user: &str, plan: Value| signer.token(json!({ "sub": user, "app": { "plan": plan } }));
    for (token, statuses, plan) in [
        (of("ann", json!("gold")), &[200, 200, 200, 429][..], "gold"),
        // Another plan has other counters, and one that is not known is the default plan.
        (of("ann", json!("free")), &[200, 429], "free"),
        (of("ann", json!("silver")), &[429], "free"),
        (of("bob", json!(["gold"])), &[200, 429], "free"),
        (signer.token(json!({ "sub": "eve" })), &[200, 429], "free"),
    ] {
        for status in statuses {
            assert_eq!(with_token(&weir, &token).await, *status, "{token}");
        }
        if statuses.contains(&200) {
            assert_eq!(upstream.last().header("x-plan").as_deref(), Some(plan), "{token}");
        }
    }
}

#[tokio::test]
async fn forged_tokens_are_refused() {
    let ours = rsa("RS256", "one", &signature::RSA_PKCS1_SHA256);
    let theirs = rsa("RS256", "one", &signature::RSA_PKCS1_SHA256);
    let upstream = Upstream::start();
    let typed = config(&upstream.url(), &["RS256", "HS256"])
        .replace("# typ = \"at+jwt\"", "typ = [\"at+jwt\", \"JWT\"]");
    assert!(typed.contains("typ = ["), "{typed}");
    let weir = Weir::build(&typed).file("jwks.json", set(&[&ours]).as_bytes()).start();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let claims = json!({ "iss": ISSUER, "aud": "api", "sub": "ann", "exp": now + 600 });
    // HS256 with the public key as the secret.
    let modulus = ours.jwk["n"].as_str().unwrap().to_owned();
    let forged = Signer {
        alg: "HS256",
        jwk: json!({}),
        sign: Box::new(move |message| {
            hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, modulus.as_bytes()), message)
                .as_ref()
                .to_vec()
        }),
    };
    let unsigned = Signer { alg: "none", jwk: json!({}), sign: Box::new(|_| Vec::new()) };
    for (token, why) in [
        (theirs.token(json!({ "sub": "ann" })), "the token's signature is wrong"),
        (
            forged.signed(&json!({ "alg": "HS256", "kid": "one", "typ": "jwt" }), &claims),
            "no key of the set fits the token's algorithm and key id",
        ),
        (
            unsigned.signed(&json!({ "alg": "none", "typ": "JWT" }), &claims),
            "the token's algorithm is not accepted",
        ),
        (
            ours.signed(&json!({ "alg": "RS256", "crit": ["x"] }), &claims),
            "the token needs extensions",
        ),
        (
            ours.signed(&json!({ "alg": "RS256", "typ": "logout+jwt" }), &claims),
            "the token is of another type",
        ),
        (ours.token(json!({ "sub": "ann", "exp": now - 61 })), "the token has expired"),
        (ours.token(json!({ "sub": "ann", "nbf": now + 120 })), "the token is not valid yet"),
        (
            ours.token(json!({ "sub": "ann", "iss": "https://evil.example" })),
            "the token is from another issuer",
        ),
        (ours.token(json!({ "sub": "ann", "aud": "web" })), "the token is for another audience"),
        (ours.token(json!({})), "the token lacks the claim that is counted"),
        ("a.b.c.d.e".to_owned(), "the token is encrypted or malformed"),
    ] {
        let field = format!("Bearer {token}");
        let reply = get(weir.http, "/", &[("authorization", &field), ("x-user", "root")]).await;
        let challenge = format!("Bearer error=\"invalid_token\", error_description=\"{why}\"");
        assert_eq!((reply.status, reply.header("www-authenticate")), (401, challenge), "{token}");
    }
    let reply = get(weir.http, "/", &[]).await;
    assert_eq!((reply.status, reply.header("www-authenticate").as_str()), (401, "Bearer"));
    let good = format!("Bearer {}", ours.token(json!({ "sub": "ann" })));
    let twice = [("authorization", good.as_str()), ("authorization", good.as_str())];
    assert!(matches!(get(weir.http, "/", &twice).await.status, 400 | 401));
    assert_eq!(upstream.count(), 0);
    let reply = get(weir.http, "/", &[("authorization", &good), ("x-user", "root")]).await;
    assert_eq!(reply.status, 200);
    assert_eq!(upstream.only().header("x-user").as_deref(), Some("ann"));
}

#[tokio::test]
async fn keys_are_rotated_without_a_restart_and_without_losing_a_count() {
    let old = rsa("RS256", "2026-01", &signature::RSA_PKCS1_SHA256);
    let new = ec("ES256", "P-256", &signature::ECDSA_P256_SHA256_FIXED_SIGNING);
    let upstream = Upstream::start();
    let weir = Weir::build(&config(&upstream.url(), &["RS256", "ES256"]))
        .file("jwks.json", set(&[&old]).as_bytes())
        .start();
    let path = weir.folder().join("jwks.json");
    let change = |text: &str, result: &str| {
        let before = weir.reloads(result);
        replace(&path, text.as_bytes());
        weir.await_reloads(result, before + 1);
    };
    let user = |name: &str| json!({ "sub": name });
    let mut client = Client::connect(weir.http).await.unwrap();
    let mut status = async |token: &str| {
        let field = format!("Bearer {token}");
        client.get("/", &[("authorization", &field)]).await.unwrap().status
    };
    let (by_old, by_new) = (old.token(user("ann")), new.token(user("ann")));
    assert_eq!([status(&by_old).await, status(&by_new).await], [200, 401]);
    // Both keys for a while, then the new one alone.
    change(&set(&[&old, &new]), "applied");
    assert_eq!([status(&by_old).await, status(&by_new).await], [200, 200]);
    assert_eq!([status(&by_old).await, status(&by_new).await], [429, 429], "one user, one count");
    change(&set(&[&new]), "applied");
    assert_eq!([status(&by_old).await, status(&by_new).await], [401, 429]);
    // An error is reported with its file, shows no key, and leaves the keys as they are.
    let broken = set(&[&new]).replace("\"x\":\"", "\"x\":\"!");
    change(&broken, "refused");
    let page = weir.admin_page("/status").text();
    assert!(page.contains("jwks.json") && page.contains("a text of another kind"), "{page}");
    change("{\"keys\": [", "refused");
    assert_eq!(status(&new.token(user("bob"))).await, 200);
}

/// The first fenced block of a language in the policy's README.
fn block(language: &str) -> String {
    let readme = include_str!("../../../policies/jwt-claim/README.md");
    let (_, rest) = readme.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

#[tokio::test]
async fn the_readmes_token_is_accepted_by_the_readmes_keys() {
    let upstream = Upstream::start();
    let config = whole(&block("toml"), &upstream.url());
    let weir = Weir::build(&config.text()).file("jwks.json", block("json").as_bytes()).start();
    let shell = block("sh");
    let token = shell.lines().find_map(|line| line.strip_prefix("TOKEN=")).unwrap();
    let reply = get(weir.http, "/", &[("authorization", &format!("Bearer {token}"))]).await;
    assert_eq!((reply.status, reply.remaining("user")), (200, 599), "{reply:?}");
    assert_eq!(upstream.only().header("x-user").as_deref(), Some("alice"));
    let other = token.replacen("fQ.li", "fQ.Li", 1);
    assert_ne!(other, token);
    assert_eq!(with_token(&weir, &other).await, 401);
    assert_eq!(get(weir.http, "/", &[]).await.status, 401);
}
