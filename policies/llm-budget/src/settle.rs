//! The end of a reply: what it used, and how the limits' charges change. Knows no API.
//!
//! Nothing is given back where nothing is known: a reply that can't be read keeps its reservation.

use weir_policy::{Adjustment, ResponseView, Settlement};

use crate::AMOUNT_MAX;
use crate::api::Reply;
use crate::memo::{Memo, Taken};
use crate::prices::Usage;

/// The statuses that the proxy notes if there was no reply yet: the client left, the proxy was
/// shutting down, or the request took too long. 0 means that there was no status.
const NO_REPLY: [u16; 4] = [0, 499, 503, 504];

/// What a request has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Used {
    /// Nothing: there was no answer.
    Nothing,
    /// These tokens. `told` says whether the reply reported its input, which is estimated
    /// otherwise.
    Tokens { usage: Usage, told: bool },
    /// Nobody knows: the reservation stands.
    Unknown,
}

/// The changes of all limits, and what was used, as far as it is known. `estimates` says whether
/// the output of a complete reply without usage is estimated from its texts.
pub(crate) fn settlement(
    memo: &Memo,
    reply: &Reply,
    response: &ResponseView,
    estimates: bool,
) -> Settlement {
    let used = used(memo, reply, response, estimates);
    let changes = memo.limits.iter().filter_map(|limit| adjustment(memo, limit, used, response));
    let settlement = Settlement::from_iter(changes);
    match used {
        Used::Tokens { usage, .. } => {
            settlement.amount("input-tokens", usage.input).amount("output-tokens", usage.output)
        }
        Used::Nothing | Used::Unknown => settlement,
    }
}

fn used(memo: &Memo, reply: &Reply, response: &ResponseView, estimates: bool) -> Used {
    let gone = response.is_by_client();
    // The upstream may have worked for a client that did not wait for the head of the reply.
    let unseen = gone && NO_REPLY.contains(&response.status);
    let failed = response.status >= 400 || response.status == 0;
    if failed && !unseen && !reply.tells() {
        // A status of the proxy's own says nothing about what the model did.
        return if response.is_unanswered() { Used::Unknown } else { Used::Nothing };
    }
    if !reply.tells() && reply.text.is_none() {
        return Used::Unknown;
    }
    let complete = response.is_whole();
    let seen = reply.text.max(reply.so_far);
    let output = match reply.output {
        Some(told) if complete => told,
        // What was reported may be older than the last text.
        Some(told) => told.max(seen.unwrap_or(0)),
        // If no output was seen, only a complete reply shows that there was none.
        None if complete && (seen.is_none() || estimates) => seen.unwrap_or(0),
        // A stream that is cut is taken in steps as its text is seen.
        None if memo.extends && seen.is_some() => seen.unwrap_or(0),
        // Only the usage, which did not come, says what was thought before the text and how many
        // tokens the text has.
        None => reserved_output(memo, response).max(seen.unwrap_or(0)),
    };
    let usage = match reply.input {
        Some(input) => Usage {
            input,
            cached: reply.cached,
            written: reply.written,
            written_1h: reply.written_1h,
            output,
        },
        None => Usage { input: memo.input, output, ..Usage::default() },
    };
    Used::Tokens { usage, told: reply.input.is_some() }
}

/// The output that the request could use: less than it asked for, if less was left.
fn reserved_output(memo: &Memo, response: &ResponseView) -> u64 {
    let taken = response.taken().map(|taken| taken.saturating_sub(memo.input));
    taken.map_or(memo.output, |taken| taken.min(memo.output))
}

fn adjustment(
    memo: &Memo,
    limit: &Taken,
    used: Used,
    response: &ResponseView,
) -> Option<Adjustment> {
    let taken = taken(limit, response);
    let used = match used {
        Used::Nothing => 0,
        Used::Tokens { usage, told } => {
            let money = memo.tariff.as_ref().map_or(0, |tariff| match told {
                true => tariff.of(&usage),
                false => tariff.most(usage.input, usage.output),
            });
            limit.counted.units(usage.input, usage.output, money)
        }
        // A reply that was reserved in steps was not extended if nothing could be read. It is
        // charged what it would have been without steps.
        Used::Unknown if memo.extends => {
            let money = memo.tariff.as_ref();
            let money = money.map_or(0, |tariff| tariff.most(memo.input, memo.output));
            taken.max(limit.counted.units(memo.input, memo.output, money))
        }
        Used::Unknown => taken,
    };
    if used < taken {
        Some(Adjustment::give_back(&limit.name, taken - used))
    } else if used > taken {
        Some(Adjustment::debt(&limit.name, used - taken))
    } else {
        None
    }
}

/// The total that was taken of a limit.
fn taken(limit: &Taken, response: &ResponseView) -> u64 {
    if !limit.shares {
        return limit.units;
    }
    let first = response.taken().unwrap_or(limit.units);
    first.saturating_add(response.extended()).min(AMOUNT_MAX)
}
