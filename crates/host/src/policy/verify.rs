//! Verifies signatures for guests, which would need some ten times as long.

use aws_lc_rs::hmac;
use aws_lc_rs::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey};

use super::abi::host::{RsaKey, VerifyingKey};

/// Whether `signature` is the key's signature of `message`. A malformed key is a wrong one.
pub(super) fn is_signature(key: &VerifyingKey, message: &[u8], signature: &[u8]) -> bool {
    let hs = |algorithm, secret: &[u8]| {
        hmac::verify(&hmac::Key::new(algorithm, secret), message, signature).is_ok()
    };
    let rsa = |parameters: &'static RsaParameters, key: &RsaKey| {
        let key = RsaPublicKeyComponents { n: &key.modulus, e: &key.exponent };
        key.verify(parameters, message, signature).is_ok()
    };
    let public = |algorithm: &'static dyn signature::VerificationAlgorithm, key: &[u8]| {
        UnparsedPublicKey::new(algorithm, key).verify(message, signature).is_ok()
    };
    match key {
        VerifyingKey::Hs256(secret) => hs(hmac::HMAC_SHA256, secret),
        VerifyingKey::Hs384(secret) => hs(hmac::HMAC_SHA384, secret),
        VerifyingKey::Hs512(secret) => hs(hmac::HMAC_SHA512, secret),
        VerifyingKey::Rs256(key) => rsa(&signature::RSA_PKCS1_2048_8192_SHA256, key),
        VerifyingKey::Rs384(key) => rsa(&signature::RSA_PKCS1_2048_8192_SHA384, key),
        VerifyingKey::Rs512(key) => rsa(&signature::RSA_PKCS1_2048_8192_SHA512, key),
        VerifyingKey::Ps256(key) => rsa(&signature::RSA_PSS_2048_8192_SHA256, key),
        VerifyingKey::Ps384(key) => rsa(&signature::RSA_PSS_2048_8192_SHA384, key),
        VerifyingKey::Ps512(key) => rsa(&signature::RSA_PSS_2048_8192_SHA512, key),
        VerifyingKey::Es256(point) => public(&signature::ECDSA_P256_SHA256_FIXED, point),
        VerifyingKey::Es384(point) => public(&signature::ECDSA_P384_SHA384_FIXED, point),
        VerifyingKey::Ed25519(key) => public(&signature::ED25519, key),
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::rsa::KeySize;
    use aws_lc_rs::signature::{EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RsaKeyPair};

    use super::*;

    type Bytes = fn(Vec<u8>) -> VerifyingKey;
    type Rsa = fn(RsaKey) -> VerifyingKey;

    const MESSAGE: &[u8] = b"header.payload";

    /// The right signature is accepted; one with another message, another key or a bit changed, and
    /// an empty one, are not.
    #[track_caller]
    fn verifies(key: &VerifyingKey, other: &VerifyingKey, signature: &[u8]) {
        assert!(is_signature(key, MESSAGE, signature));
        assert!(!is_signature(other, MESSAGE, signature));
        assert!(!is_signature(key, b"header.payloae", signature));
        assert!(!is_signature(key, MESSAGE, b""));
        let mut changed = signature.to_vec();
        changed[0] ^= 1;
        assert!(!is_signature(key, MESSAGE, &changed));
    }

    #[test]
    fn shared_secrets() {
        // RFC 4231, test case 2.
        let tag = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        let tag: Vec<u8> =
            (0..32).map(|at| u8::from_str_radix(&tag[2 * at..2 * at + 2], 16).unwrap()).collect();
        let key = VerifyingKey::Hs256(b"Jefe".to_vec());
        assert!(is_signature(&key, b"what do ya want for nothing?", &tag));
        assert!(!is_signature(&key, b"what do ya want for nothing", &tag));
        for (algorithm, of) in [
            (hmac::HMAC_SHA256, VerifyingKey::Hs256 as Bytes),
            (hmac::HMAC_SHA384, VerifyingKey::Hs384),
            (hmac::HMAC_SHA512, VerifyingKey::Hs512),
        ] {
            let tag = hmac::sign(&hmac::Key::new(algorithm, b"a"), MESSAGE);
            verifies(&of(b"a".to_vec()), &of(b"b".to_vec()), tag.as_ref());
        }
    }

    #[test]
    fn rsa() {
        let [ours, other] = [(), ()].map(|()| RsaKeyPair::generate(KeySize::Rsa2048).unwrap());
        // An RSAPublicKey of RFC 8017: a sequence of two integers, of which the first is 256 bytes
        // long, and is led by a zero.
        let key = |pair: &RsaKeyPair| {
            let der = pair.public_key().as_ref();
            RsaKey { modulus: der[9..265].to_vec(), exponent: der[267..].to_vec() }
        };
        let algorithms: [(_, Rsa); 6] = [
            (&signature::RSA_PKCS1_SHA256, VerifyingKey::Rs256),
            (&signature::RSA_PKCS1_SHA384, VerifyingKey::Rs384),
            (&signature::RSA_PKCS1_SHA512, VerifyingKey::Rs512),
            (&signature::RSA_PSS_SHA256, VerifyingKey::Ps256),
            (&signature::RSA_PSS_SHA384, VerifyingKey::Ps384),
            (&signature::RSA_PSS_SHA512, VerifyingKey::Ps512),
        ];
        for (algorithm, of) in algorithms {
            let mut signed = vec![0; ours.public_modulus_len()];
            ours.sign(algorithm, &SystemRandom::new(), MESSAGE, &mut signed).unwrap();
            verifies(&of(key(&ours)), &of(key(&other)), &signed);
        }
        let nothing = RsaKey { modulus: Vec::new(), exponent: Vec::new() };
        assert!(!is_signature(&VerifyingKey::Rs256(nothing), MESSAGE, &[0; 256]));
    }

    #[test]
    fn elliptic_curves() {
        let random = SystemRandom::new();
        let curves: [(_, Bytes); 2] = [
            (&signature::ECDSA_P256_SHA256_FIXED_SIGNING, VerifyingKey::Es256),
            (&signature::ECDSA_P384_SHA384_FIXED_SIGNING, VerifyingKey::Es384),
        ];
        for (curve, of) in curves {
            let [ours, other] = [(), ()].map(|()| EcdsaKeyPair::generate(curve).unwrap());
            let signed = ours.sign(&random, MESSAGE).unwrap();
            let key = |pair: &EcdsaKeyPair| of(pair.public_key().as_ref().to_vec());
            verifies(&key(&ours), &key(&other), signed.as_ref());
        }
        let [ours, other] = [(), ()].map(|()| Ed25519KeyPair::generate().unwrap());
        let key =
            |pair: &Ed25519KeyPair| VerifyingKey::Ed25519(pair.public_key().as_ref().to_vec());
        verifies(&key(&ours), &key(&other), ours.sign(MESSAGE).as_ref());
        assert!(!is_signature(&VerifyingKey::Es256(vec![4; 65]), MESSAGE, &[1; 64]));
    }
}
