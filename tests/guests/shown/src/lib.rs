//! A policy that tells the client, in the field `X-Shown`, which value of a fact it would count by.
//! A request without one value is refused. Upstreams get `X-Plan: policy`.

use weir_policy::{Decision, Denial, Facts, Manifest, Mistakes, Policy};

/// Its configuration.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shown {
    fact: String,
}

impl Policy for Shown {
    type Config = Self;

    fn new(config: Self) -> Result<Self, Mistakes> {
        Ok(config)
    }

    fn manifest(&self) -> Manifest {
        Manifest::reads([self.fact.as_str()])
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        let Some(value) = facts.only(&self.fact) else {
            return Ok(Decision::deny(Denial::new(400, "no value, or several")));
        };
        // Of any bytes, and so that blanks are seen.
        let hexadecimal: String =
            value.chars().map(|letter| format!("{:02x}", u32::from(letter))).collect();
        Ok(Decision::bypass()
            .upstream_header("X-Plan", "policy")
            .response_header("X-Shown", hexadecimal))
    }
}

weir_policy::export!(Shown);
