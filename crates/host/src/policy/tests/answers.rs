//! Arbitrary answers of guests, by a seed: each is refused with a message, or is one that the proxy
//! can carry out. What is checked is that of the fuzz target `answers`.
//!
//! `make test-long` tries more of them (`WEIR_ANSWERS`).

use super::any_answer::{Answer, answers};

const ROUNDS: usize = 10_000;
/// Maximum number of bytes from which the choices of one answer are read.
const BYTES_MAX: usize = 1_500;

#[test]
fn an_arbitrary_answer_is_refused_or_can_be_carried_out() {
    let rounds =
        std::env::var("WEIR_ANSWERS").map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
    let mut random = fastrand::Rng::with_seed(5);
    let mut count = [0; 4];
    for _ in 0..rounds {
        let mut bytes = vec![0; random.usize(..BYTES_MAX)];
        random.fill(&mut bytes);
        count[answers(&bytes) as usize] += 1;
    }
    let [short, manifests, refused, accepted] = count;
    eprintln!(
        "{manifests} manifests, {refused} decisions refused, {accepted} accepted, {short} short"
    );
    let enough = [manifests, refused, accepted].iter().all(|some| *some > rounds / 10);
    assert!(enough, "{count:?} of {rounds}");
}

#[test]
fn the_corpus_of_answers_holds() {
    for (name, bytes) in super::corpus("answers") {
        assert_ne!(answers(&bytes), Answer::TooShort, "{name}");
    }
}
