//! What became of [`Facts::get`](crate::Facts::get) in one call of `decide`: a fact that occurs
//! several times has no one value, and a policy can't overlook that.

use std::cell::RefCell;

use crate::{Decision, Denial, Facts, Policy};

/// Maximum length of a fact's name in a denial, in characters.
const NAME_CHARS_MAX: usize = 128;

thread_local! {
    /// The first fact that was asked for and occurs several times.
    static REPEATED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Notes that a policy asked for the value of this fact.
pub(crate) fn note(name: &str) {
    REPEATED.with_borrow_mut(|known| {
        known.get_or_insert_with(|| name.chars().take(NAME_CHARS_MAX).collect());
    });
}

/// What a policy decides, or a denial if it asked for a value that has no one meaning.
pub(crate) fn decide<P: Policy>(policy: &P, facts: &Facts) -> Result<Decision, String> {
    REPEATED.take();
    let decided = policy.decide(facts);
    match REPEATED.take() {
        Some(name) => {
            Ok(Decision::deny(Denial::new(400, format!("{name} is there several times"))))
        }
        None => decided,
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Instance;
    use crate::{Decision, Facts, Manifest, Mistakes, Policy, Verdict};

    #[derive(serde::Deserialize)]
    struct ByKey {}

    impl Policy for ByKey {
        type Config = Self;

        fn new(config: Self) -> Result<Self, Mistakes> {
            Ok(config)
        }

        fn manifest(&self) -> Manifest {
            Manifest::reads(["header.x-key", "query.first"])
        }

        fn decide(&self, facts: &Facts) -> Result<Decision, String> {
            match (facts.first("query.first"), facts.get("header.x-key")) {
                (Some("error"), _) => Err("no".to_owned()),
                (_, key) => Ok(Decision::bypass().label("key", key.unwrap_or("none"))),
            }
        }
    }

    #[test]
    fn a_request_whose_key_is_there_twice_is_denied_whatever_the_policy_decides() {
        let policy = Instance::<ByKey>::new("{}").unwrap();
        let decided = |facts: &[(&str, &str)]| policy.decide(facts);
        let (key, twice) = (("header.x-key", "a"), [("header.x-key", "a"), ("header.x-key", "a")]);
        assert_eq!(decided(&[key]).unwrap().labels[0].1, "a");
        assert_eq!(decided(&[]).unwrap().labels[0].1, "none");
        for facts in [&twice[..], &[twice[0], twice[1], ("query.first", "error")]] {
            let Verdict::Deny(denial) = decided(facts).unwrap().verdict else {
                panic!("{facts:?}")
            };
            let expected = (400, "header.x-key is there several times");
            assert_eq!((denial.status, denial.reason.as_str()), expected);
        }
        // It is about one call alone, and only about what was asked for in this way.
        assert_eq!(
            decided(&[("query.first", "1"), ("query.first", "2"), key]).unwrap().labels[0].1,
            "a"
        );
        assert!(decided(&[("query.first", "error")]).is_err());
    }
}
