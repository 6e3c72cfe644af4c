//! Lints about settings of policies that ship with Weir: what one request is charged, compared
//! with what its limits ever let through, and what a token is not checked for.

use serde_json::{Map, Value};

use super::{WrittenLimit, read};
use crate::plan::Algorithm;
use crate::telemetry::{Lint, LintKind};

/// The lists of `llm-budget` whose limits are charged what a request may use.
pub(super) const LLM_SETTLED: [&str; 4] = ["tokens", "input_tokens", "output_tokens", "money"];
/// The default of `default_max_output`.
const MAX_OUTPUT_DEFAULT: u64 = 4_096;
/// Tokens that a price is for.
const PRICED: u128 = 1_000_000;

/// What is reserved for a request that names no maximum.
struct Reservation {
    /// The setting that says so, and what it is called.
    setting: String,
    words: String,
    tokens: u64,
    /// The price in micro-dollars for a million tokens.
    price: Option<u64>,
}

/// Limits of which one request that names no maximum takes all, or more.
pub(super) fn llm_budget(config: &Value, lints: &mut Vec<Lint>) {
    let number = |table: &Value, key: &str| table.get(key).and_then(Value::as_u64);
    let default = number(config, "default_max_output");
    let in_steps = number(config, "hard_cut").is_some_and(|step| step > 0);
    let none = Map::new();
    let models = config.get("models").and_then(Value::as_object).unwrap_or(&none);
    let mut all: Vec<Reservation> = models
        .iter()
        .map(|(name, model)| {
            let own = number(model, "max_output");
            Reservation {
                setting: match own {
                    Some(_) => format!("config.models.{name}.max_output"),
                    None => "config.default_max_output".to_owned(),
                },
                words: match own {
                    Some(_) => format!("`max_output` of the model {name}"),
                    None => "`default_max_output`".to_owned(),
                },
                tokens: own.or(default).unwrap_or(MAX_OUTPUT_DEFAULT),
                price: number(model, "output"),
            }
        })
        .collect();
    if !models.contains_key("*") {
        all.push(Reservation {
            setting: "config.default_max_output".to_owned(),
            words: "`default_max_output`".to_owned(),
            tokens: default.unwrap_or(MAX_OUTPUT_DEFAULT),
            price: None,
        });
    }
    for list in ["tokens", "output_tokens", "money"] {
        let tables = config.get(list).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        // Of these, output is taken in steps while it comes.
        if list == "tokens" && in_steps {
            continue;
        }
        for limit in read(&format!("config.{list}"), tables) {
            let cost = |reserved: &Reservation| match list {
                "money" => {
                    let price = u128::from(reserved.price?);
                    u64::try_from((u128::from(reserved.tokens) * price).div_ceil(PRICED)).ok()
                }
                _ => Some(reserved.tokens),
            };
            let most = limit.algorithm.cost_max().filter(|most| *most > 0);
            let over = all.iter().find_map(|reserved| {
                let cost = cost(reserved)?;
                most.filter(|most| *most < cost).map(|most| (reserved, cost, most))
            });
            lints.extend(over.map(|(reserved, cost, most)| whole(&limit, reserved, cost, most)));
        }
    }
}

/// A price of `"*"` that is lower than another model's: a name that the table does not know may
/// lead to the dearer one.
pub(super) fn llm_prices(config: &Value, lints: &mut Vec<Lint>) {
    let Some(models) = config.get("models").and_then(Value::as_object) else { return };
    let Some(others) = models.get("*").filter(|_| config.get("money").is_some()) else { return };
    for kind in ["input", "output"] {
        let price = |model: &Value| model.get(kind).and_then(Value::as_u64);
        let priced = models.iter().filter_map(|(name, model)| Some((name, price(model)?)));
        let Some((name, dearest)) = priced.max_by_key(|(_, price)| *price) else { continue };
        if let Some(own) = price(others).filter(|own| *own < dearest) {
            let text = format!(
                "all models that are not named cost {own} for {kind}, and {name} costs {dearest}: \
                 a name that the upstream takes for {name} and this table does not is charged less"
            );
            lints.push(
                Lint::new(LintKind::CheapOthers, format!("config.models.*.{kind}"), text)
                    .beside(format!("config.models.{name}.{kind}"), "this is the dearest")
                    .remedy(format!("write {dearest}, or leave `\"*\"` out to refuse such models")),
            );
        }
    }
}

fn whole(limit: &WrittenLimit<'_>, reserved: &Reservation, cost: u64, most: u64) -> Lint {
    let text = format!(
        "`{}` never has more than {most}, and a request that names no maximum reserves {cost} ({}): \
         it takes all that is left, and others are refused until it has ended",
        limit.name, reserved.words
    );
    Lint::new(LintKind::SmallBudget, limit.amount_setting(), text)
        .beside(reserved.setting.clone(), "this is reserved")
        .remedy(format!("raise the limit above {cost}, or lower {}", reserved.words))
}

/// A `max_cost` of requests that no limit ever lets pass.
pub(super) fn graphql_cost(config: &Value, lints: &mut Vec<Lint>) {
    let Some(max_cost) = config.get("max_cost").and_then(Value::as_u64) else { return };
    let tables = config.get("limits").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let limits = read("config.limits", tables);
    let each = limits.iter().filter(|limit| !limit.is("shadow")).filter_map(|limit| {
        let cost = limit.table.get("cost").and_then(Value::as_u64).unwrap_or(1).max(1);
        let most = match limit.algorithm {
            Algorithm::Script(_) => None,
            _ => limit.algorithm.cost_max().filter(|most| *most > 0),
        };
        Some((limit, most? / cost))
    });
    let Some((limit, most)) = each.min_by_key(|(_, most)| *most) else { return };
    if most < max_cost {
        let text = format!(
            "requests that cost more than {most} never pass `{}`, and `max_cost` is {max_cost}: \
             they are asked to come back, and are refused again",
            limit.name
        );
        let lint = Lint::new(LintKind::UnreachedCost, "config.max_cost", text)
            .beside(limit.amount_setting(), "this limit refuses them")
            .remedy(format!("write `max_cost = {most}`, or raise the limit"));
        lints.push(lint);
    }
}

/// Settings of `jwt-claim` that say which tokens are meant for this API, each with what is accepted
/// without it, and how to write it.
const TOKENS: [(&str, &str, &str); 2] = [
    (
        "audience",
        "a token that was issued for another service is accepted here, too",
        "write what this API is called in the `aud` of its tokens, as in `audience = \"api\"`",
    ),
    (
        "issuer",
        "a token of anyone whose key is in the set is accepted, whatever its `iss` says",
        "write the `iss` of its tokens, as in `issuer = \"https://id.example.org/\"`",
    ),
];

/// Tokens whose signatures are verified, but not whom they are for, or who issued them.
pub(super) fn jwt_claim(config: &Value) -> Vec<Lint> {
    if config.get("verify").is_some_and(|verify| verify == "none") {
        return Vec::new();
    }
    let missing = TOKENS.iter().filter(|(setting, ..)| config.get(*setting).is_none());
    let lint = |(setting, what, remedy): &(&str, &str, &str)| {
        let text = format!("no `{setting}`: {what}");
        Lint::new(LintKind::UncheckedToken, "config", text).in_key().remedy(*remedy)
    };
    missing.map(lint).collect()
}
