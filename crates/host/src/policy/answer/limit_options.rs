//! The options of a limit: how it is leased, whether it is a child that has a parent, and whether
//! the messages of a WebSocket are charged to it.

use super::{Pairs, second, shortened};
use crate::plan::{Bound, Lease, Limit, Role};

/// What the options of a limit say.
pub(super) struct LimitOptions {
    /// How it is leased.
    pub(super) lease: Option<Lease>,
    /// If it is a child's ceiling, the names of the other two.
    pub(super) parts: Option<ChildParts>,
    /// What happens to messages that it has no units for, if they are charged to it.
    pub(super) messages: Option<MessageExcess>,
}

/// What happens to a message of a WebSocket's client that a limit has no units for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageExcess {
    /// The WebSocket is closed.
    Close,
    /// It waits, and what the client sends after it is not read.
    Wait,
}

/// The names of the limits beside a child's ceiling.
pub(super) struct ChildParts {
    assured: String,
    parent: String,
}

/// Reads the options of a limit.
pub(super) fn read(options: &Pairs) -> Result<LimitOptions, String> {
    let (mut life_ms, mut units_max, mut bound, mut to_callers) = (None, None, None, false);
    let (mut assured, mut parent, mut messages) = (None, None, None);
    // All are known names, so they are few.
    let mut seen: Vec<&str> = Vec::new();
    for (name, value) in options {
        if seen.contains(&name.as_str()) {
            return Err(format!(": {}", second(name)));
        }
        let number = || {
            let wrong =
                || format!(".{name}: found {:?}, expected a whole number", shortened(value));
            value.parse::<u64>().map_err(|_| wrong())
        };
        match name.as_str() {
            "lease-ms" => life_ms = Some(number()?),
            "lease-units" => units_max = Some(number()?),
            "lease-bound" => {
                bound = match value.as_str() {
                    "strict" => Some(Bound::Strict),
                    "loose" => Some(Bound::Loose),
                    other => {
                        let other = shortened(other);
                        return Err(format!(".{name}: found {other:?}, expected strict or loose"));
                    }
                }
            }
            "lease-to" => {
                to_callers = match value.as_str() {
                    "workers" => false,
                    "callers" => true,
                    other => {
                        let other = shortened(other);
                        return Err(format!(
                            ".{name}: found {other:?}, expected workers or callers"
                        ));
                    }
                }
            }
            "assured" => assured = Some(value.clone()),
            "parent" => parent = Some(value.clone()),
            "messages" => {
                messages = match value.as_str() {
                    "close" => Some(MessageExcess::Close),
                    "wait" => Some(MessageExcess::Wait),
                    other => {
                        let other = shortened(other);
                        return Err(format!(".{name}: found {other:?}, expected close or wait"));
                    }
                }
            }
            other => {
                return Err(format!(
                    ": found {:?}, expected lease-ms, lease-units, lease-bound, lease-to, assured, parent or messages",
                    shortened(other)
                ));
            }
        }
        seen.push(name);
    }
    let lease = match life_ms {
        Some(life_ms) => {
            let bound = bound.unwrap_or(Bound::Strict);
            Some(Lease { life_ms, units_max, bound, to_callers })
        }
        None if units_max.is_none() && bound.is_none() && !to_callers => None,
        None => {
            return Err(
                ": found no lease-ms, expected it beside lease-units, lease-bound and lease-to"
                    .into(),
            );
        }
    };
    let parts = match (assured, parent) {
        (Some(assured), Some(parent)) => Some(ChildParts { assured, parent }),
        (None, None) => None,
        _ => return Err(": found one of assured and parent, expected both or none".into()),
    };
    Ok(LimitOptions { lease, parts, messages })
}

/// Gives the limit at `index`, a child's ceiling, the role of a child, and its parts theirs.
pub(super) fn join(limits: &mut [Limit], index: usize, parts: ChildParts) -> Result<(), String> {
    let mut place = |option: &str, name: &str, role: Role| {
        let found = limits.iter().position(|limit| limit.name == name);
        let part = found.filter(|at| *at != index).and_then(|at| limits.get_mut(at));
        match part.filter(|part| part.role == Role::Alone) {
            // A plan has 16 limits at most.
            Some(part) => {
                part.role = role;
                Ok(found.and_then(|at| u8::try_from(at).ok()).unwrap_or(0))
            }
            None => Err(format!(
                "{option}: found {:?}, expected another limit of the decision that has no part in another hierarchy",
                shortened(name)
            )),
        }
    };
    let assured = place("assured", &parts.assured, Role::Assured)?;
    let parent = place("parent", &parts.parent, Role::Parent)?;
    // An assured limit refuses nothing by itself.
    let enforcement = limits.get(usize::from(parent)).map(|parent| parent.enforcement);
    if let (Some(assured), Some(enforcement)) = (limits.get_mut(usize::from(assured)), enforcement)
    {
        assured.enforcement = enforcement;
    }
    match limits.get_mut(index).filter(|child| child.role == Role::Alone) {
        Some(child) => {
            child.role = Role::Child { assured, parent };
            Ok(())
        }
        None => Err("parent: found one of a limit that is a parent itself, or assured, expected a hierarchy of two levels".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_comes_twice_is_refused() {
        let read = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            read(&pairs.collect())
        };
        assert!(read(&[("lease-ms", "1000"), ("lease-units", "5")]).is_ok());
        let twice = read(&[("lease-ms", "1000"), ("lease-units", "5"), ("lease-ms", "2000")]);
        let expected = ": found `lease-ms` a second time, expected it once";
        assert_eq!(twice.err().as_deref(), Some(expected));
    }
}
