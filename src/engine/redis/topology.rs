//! The owners of the hash slots, as CLUSTER SLOTS reports them: used to notice changes, and to name
//! a slot's owner.
//!
//! Owners are compared by node id, because nodes may report different addresses for a node, above
//! all for themselves.

use ::redis::Value;

/// Slot ranges and their masters, sorted by slot.
#[derive(Clone, Debug, Default)]
pub(super) struct Topology(Vec<Range>);

#[derive(Clone, Debug)]
struct Range {
    from: u16,
    to: u16,
    id: String,
    /// `host:port`.
    address: String,
}

impl Topology {
    /// Parses the reply to CLUSTER SLOTS; `None` if it is malformed.
    pub(super) fn parse(answer: &Value) -> Option<Self> {
        let Value::Array(ranges) = answer else { return None };
        let mut all = ranges.iter().map(range).collect::<Option<Vec<_>>>()?;
        all.sort_by_key(|range| range.from);
        Some(Self(all))
    }

    /// Whether every slot has the same owner in both.
    pub(super) fn agrees(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
            && self
                .0
                .iter()
                .zip(&other.0)
                .all(|(a, b)| (a.from, a.to, &a.id) == (b.from, b.to, &b.id))
    }

    /// The node id of the master of `slot`, if it has one.
    pub(super) fn owner(&self, slot: u16) -> Option<&str> {
        self.0
            .iter()
            .find(|range| (range.from..=range.to).contains(&slot))
            .map(|range| range.id.as_str())
    }

    /// The address of the master of `slot`, `host:port`, if it has one.
    pub(super) fn address(&self, slot: u16) -> Option<&str> {
        self.0
            .iter()
            .find(|range| (range.from..=range.to).contains(&slot))
            .map(|range| range.address.as_str())
    }

    /// A number that identifies the master of `slot` as long as the topology does not change.
    pub(super) fn shard(&self, slot: u16) -> Option<usize> {
        let owner = self.owner(slot)?;
        self.0.iter().position(|range| range.id == owner)
    }

    /// The masters' addresses.
    pub(super) fn masters(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|range| range.address.as_str())
    }
}

fn range(value: &Value) -> Option<Range> {
    let Value::Array(parts) = value else { return None };
    let number = |index: usize| {
        if let Some(Value::Int(number)) = parts.get(index) {
            u16::try_from(*number).ok()
        } else {
            None
        }
    };
    let Some(Value::Array(node)) = parts.get(2) else { return None };
    let text = |index: usize| match node.get(index)? {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        // A node may not know its own address.
        Value::Nil => Some(String::new()),
        _ => None,
    };
    let Some(Value::Int(port)) = node.get(1) else { return None };
    Some(Range {
        from: number(0)?,
        to: number(1)?,
        id: text(2)?,
        address: format!("{}:{port}", text(0)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_each_slots_owner() {
        let parse = |host: &str, id: &str| {
            let second = format!("*3\r\n:8192\r\n:16383\r\n*3\r\n{host}:2\r\n$2\r\n{id}\r\n");
            let text =
                format!("*2\r\n{second}*3\r\n:0\r\n:8191\r\n*3\r\n$1\r\na\r\n:1\r\n$2\r\nia\r\n");
            Topology::parse(&::redis::parse_redis_value(text.as_bytes()).unwrap()).unwrap()
        };
        let topology = parse("$1\r\nb\r\n", "ib");
        assert_eq!((topology.owner(8191), topology.owner(8192)), (Some("ia"), Some("ib")));
        assert_eq!(topology.masters().collect::<Vec<_>>(), ["a:1", "b:2"]);
        assert!(
            topology.agrees(&parse("$-1\r\n", "ib"))
                && !topology.agrees(&parse("$1\r\nb\r\n", "ic"))
        );
        assert_eq!(Topology::default().owner(1), None);
        assert!(Topology::parse(&Value::Int(1)).is_none());
    }
}
