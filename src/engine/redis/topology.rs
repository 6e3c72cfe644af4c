//! Who owns which hash slots, as CLUSTER SLOTS tells it: to notice that it changed, and to name a slot's owner.

use ::redis::Value;

/// Slots and their masters, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Topology(Vec<Range>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Range {
    from: u16,
    to: u16,
    master: String,
}

impl Topology {
    /// Reads the answer of CLUSTER SLOTS; `None` where it makes no sense.
    pub(super) fn parse(answer: &Value) -> Option<Self> {
        let Value::Array(ranges) = answer else { return None };
        let mut all = ranges.iter().map(range).collect::<Option<Vec<_>>>()?;
        all.sort();
        Some(Self(all))
    }

    /// `host:port` of the master of `slot`, if anybody owns it.
    pub(super) fn owner(&self, slot: u16) -> Option<&str> {
        self.0.iter().find(|range| (range.from..=range.to).contains(&slot)).map(|range| range.master.as_str())
    }

    /// The masters' addresses.
    pub(super) fn masters(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|range| range.master.as_str())
    }
}

fn range(value: &Value) -> Option<Range> {
    let Value::Array(parts) = value else { return None };
    let number = |index: usize| if let Some(Value::Int(number)) = parts.get(index) { u16::try_from(*number).ok() } else { None };
    let Some(Value::Array(node)) = parts.get(2) else { return None };
    let host = match node.first()? {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        _ => return None,
    };
    let Some(Value::Int(port)) = node.get(1) else { return None };
    Some(Range { from: number(0)?, to: number(1)?, master: format!("{host}:{port}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_each_slots_owner() {
        let text = "*2\r\n*3\r\n:8192\r\n:16383\r\n*2\r\n$1\r\nb\r\n:2\r\n*3\r\n:0\r\n:8191\r\n*2\r\n$1\r\na\r\n:1\r\n";
        let topology = Topology::parse(&::redis::parse_redis_value(text.as_bytes()).unwrap()).unwrap();
        assert_eq!(topology.owner(8191), Some("a:1"));
        assert_eq!(topology.owner(8192), Some("b:2"));
        assert_eq!(Topology::default().owner(1), None);
        assert_eq!(Topology::parse(&Value::Int(1)), None);
    }
}
