//! A policy that tells the client, in the field `X-Shown`, which value of a fact it would count by.
//! A request without one value is refused. Upstreams get `X-Plan: policy`. The messages of a
//! WebSocket are amounts of its access line.

use weir_policy::{Decision, Denial, Facts, Manifest, Mistakes, Policy, ResponseView, Settlement};

/// Response facts, and the amounts that they become.
const MESSAGES: [(&str, &str); 2] =
    [("request.messages", "messages-up"), ("response.messages", "messages-down")];

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
        Manifest::reads([self.fact.as_str()]).and_of_response(MESSAGES.map(|(fact, _)| fact))
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        let Some(value) = facts.only(&self.fact) else {
            return Ok(Decision::deny(Denial::new(400, "no value, or several")));
        };
        // Of any bytes, and so that blanks are seen.
        let hexadecimal: String =
            value.chars().map(|letter| format!("{:02x}", u32::from(letter))).collect();
        Ok(Decision::bypass()
            .settle_with("it was asked")
            .upstream_header("X-Plan", "policy")
            .response_header("X-Shown", hexadecimal))
    }

    fn settle(&self, _: &str, response: &ResponseView) -> Result<Settlement, String> {
        let facts = Facts::new(&response.facts);
        let amounts = MESSAGES
            .iter()
            .filter_map(|(fact, amount)| Some((*amount, facts.get(fact)?.parse::<u64>().ok()?)));
        Ok(amounts
            .fold(Settlement::nothing(), |settled, (name, count)| settled.amount(name, count)))
    }
}

weir_policy::export!(Shown);
