//! What is allowed in the configuration and probably not meant: budgets that one request takes as a
//! whole, and prices that clients can choose. Knows no request.

use weir_policy::{Limit, Warning};

use crate::config::Config;
use crate::lists::Counted;
use crate::models::{ALL, Model};
use crate::prices::cost_of;

/// A price of a model, if it is written.
type PriceOf = fn(&Model) -> Option<u64>;

/// What is reserved for a request that names no maximum.
struct Reservation {
    /// The setting that says so, and what it is called.
    setting: String,
    words: String,
    tokens: u64,
    /// The price of output.
    price: Option<u64>,
}

/// All warnings about a configuration.
pub(crate) fn of(config: &Config) -> Vec<Warning> {
    let mut warnings = small_budgets(config);
    warnings.extend(cheap_others(config));
    warnings
}

/// Limits of which one request that names no maximum takes all, or more.
fn small_budgets(config: &Config) -> Vec<Warning> {
    let reservations = reservations(config);
    let mut warnings = Vec::new();
    for (counted, list) in config.settled() {
        // Of these, output is taken in steps while it comes.
        let in_steps = counted == Counted::Tokens && config.hard_cut > 0;
        if counted == Counted::Input || in_steps {
            continue;
        }
        let cost = |reserved: &Reservation| match counted {
            Counted::Money => cost_of(reserved.tokens, reserved.price?),
            _ => Some(reserved.tokens),
        };
        for (index, limit) in list.limits.each().enumerate() {
            let most = limit.cost_max();
            let over = reservations.iter().find_map(|reserved| {
                let cost = cost(reserved)?;
                (0 < most && most < cost).then_some((reserved, cost))
            });
            let at = format!("{}[{index}].{}", counted.setting(), limit.amount_setting());
            warnings.extend(over.map(|(reserved, cost)| small_budget(limit, at, reserved, cost)));
        }
    }
    warnings
}

fn reservations(config: &Config) -> Vec<Reservation> {
    let default = || {
        let setting = "default_max_output";
        (setting.to_owned(), format!("`{setting}`"), config.default_max_output)
    };
    let of_model = |(name, model): (&String, &Model)| {
        let (setting, words, tokens) = match model.max_output {
            Some(own) => {
                let words = format!("`max_output` of the model {name}");
                (format!("models.{name}.max_output"), words, own)
            }
            None => default(),
        };
        Reservation { setting, words, tokens, price: model.output }
    };
    let mut all: Vec<Reservation> = config.models.iter().map(of_model).collect();
    if !config.models.contains_key(ALL) {
        let (setting, words, tokens) = default();
        all.push(Reservation { setting, words, tokens, price: None });
    }
    all
}

fn small_budget(limit: &Limit, at: String, reserved: &Reservation, cost: u64) -> Warning {
    let Reservation { setting, words, .. } = reserved;
    let text = format!(
        "`{}` never has more than {}, and a request that names no maximum reserves {cost} ({words}): \
         it takes all that is left, and others are refused until it has ended",
        limit.name,
        limit.cost_max()
    );
    Warning::new("small-budget", at, text)
        .beside(setting.as_str(), "this is reserved")
        .remedy(format!("raise the limit above {cost}, or lower {words}"))
}

/// A price of all other models that is lower than that of one: a name that the table does not know
/// may lead to the dearer one.
fn cheap_others(config: &Config) -> Vec<Warning> {
    let Some(others) = config.models.get(ALL).filter(|_| config.money.is_some()) else {
        return Vec::new();
    };
    let kinds: [(&str, PriceOf); 2] =
        [("input", |model| model.input), ("output", |model| model.output)];
    let warning = |(kind, price): (&str, PriceOf)| {
        let priced = config.models.iter();
        let priced = priced.filter_map(|(name, model)| Some((name, price(model)?)));
        let (name, dearest) = priced.max_by_key(|(_, price)| *price)?;
        let own = price(others).filter(|own| *own < dearest)?;
        let text = format!(
            "all models that are not named cost {own} for {kind}, and {name} costs {dearest}: a name \
             that the upstream takes for {name} and this table does not is charged less"
        );
        Some(
            Warning::new("cheap-others", format!("models.{ALL}.{kind}"), text)
                .beside(format!("models.{name}.{kind}"), "this is the dearest")
                .remedy(format!("write {dearest}, or leave `\"{ALL}\"` out to refuse such models")),
        )
    };
    kinds.into_iter().filter_map(warning).collect()
}
