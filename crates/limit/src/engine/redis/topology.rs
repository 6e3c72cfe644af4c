//! The owners of the hash slots, as CLUSTER SLOTS and redirections report them.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::redis::{FromRedisValue, Value};

use crate::engine::key::{SLOTS, slot_of_tag};

/// Number that stands for no node.
const NOBODY: u16 = u16::MAX;
/// Tags among which one is looked for whose slot a node owns. That none of them has a given slot
/// has a chance of one in a billion.
const TAGS_TRIED_MAX: u128 = 21 * SLOTS as u128;

/// Which node owns each slot.
#[derive(Clone, Debug)]
pub(super) struct Topology {
    nodes: Vec<Master>,
    /// The index of each slot's owner in `nodes`.
    slots: Box<[u16]>,
    /// The cluster's epoch when it was reported. A failover begins a new one.
    epoch: u64,
}

/// A node that owns slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Master {
    /// Empty while only a redirection has named it.
    id: String,
    /// `host:port`.
    pub(super) address: Arc<str>,
}

impl Topology {
    /// All slots on one server.
    pub(super) fn single(address: String, epoch: u64) -> Self {
        let slots = vec![0; usize::from(SLOTS)].into_boxed_slice();
        let master = Master { id: String::new(), address: address.into() };
        Self { nodes: vec![master], slots, epoch }
    }

    /// Parses the replies to SENTINEL MASTER, names and values in turn or a map, and then to
    /// SENTINEL GET-MASTER-ADDR-BY-NAME. `None` if they are malformed.
    ///
    /// The former has the epoch, and the address of the old master until all other replicas follow
    /// the new one; the latter has the new one from its promotion on. Asked in this order, a new
    /// epoch never comes with an old address.
    pub(super) fn from_sentinel(master: &Value, address: &Value) -> Option<Self> {
        let fields: BTreeMap<String, String> =
            FromRedisValue::from_redis_value(master.clone()).ok()?;
        let epoch = fields.get("config-epoch")?.parse().ok()?;
        let (host, port): (String, u16) = FromRedisValue::from_redis_value(address.clone()).ok()?;
        (!host.is_empty()).then(|| Self::single(format!("{host}:{port}"), epoch))
    }

    /// Parses the replies to CLUSTER SLOTS and CLUSTER INFO of the node at `asked`; `None` if they
    /// are malformed.
    pub(super) fn parse(ranges: &Value, info: &str, asked: &str) -> Option<Self> {
        let Value::Array(ranges) = ranges else { return None };
        let epoch = info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:"))?;
        let slots = vec![NOBODY; usize::from(SLOTS)].into_boxed_slice();
        let mut all = Self { nodes: Vec::new(), slots, epoch: epoch.trim().parse().ok()? };
        for value in ranges {
            let (from, to, master) = range(value, asked)?;
            let node = all.number_of(master)?;
            all.slots.get_mut(usize::from(from)..=usize::from(to))?.fill(node);
        }
        Some(all)
    }

    fn number_of(&mut self, master: Master) -> Option<u16> {
        let known = self.nodes.iter().position(|known| *known == master);
        let number = known.unwrap_or_else(|| {
            self.nodes.push(master);
            self.nodes.len() - 1
        });
        u16::try_from(number).ok().filter(|number| *number != NOBODY)
    }

    /// A copy with `slot` owned by the node at `address`; `None` if it already is.
    pub(super) fn move_slot(&self, slot: u16, address: &str) -> Option<Self> {
        if self.owner(slot).is_some_and(|owner| &*owner.address == address) {
            return None;
        }
        let known = self.nodes.iter().find(|node| &*node.address == address).cloned();
        let master = known.unwrap_or_else(|| Master { id: String::new(), address: address.into() });
        let mut moved = self.clone();
        let node = moved.number_of(master)?;
        *moved.slots.get_mut(usize::from(slot))? = node;
        Some(moved)
    }

    /// The master of `slot`, if it has one.
    pub(super) fn owner(&self, slot: u16) -> Option<&Master> {
        self.nodes.get(self.shard(slot)?)
    }

    /// A number that identifies the master of `slot` as long as the topology does not change.
    pub(super) fn shard(&self, slot: u16) -> Option<usize> {
        self.slots.get(usize::from(slot)).filter(|node| **node != NOBODY).map(|node| (*node).into())
    }

    /// The nodes that own slots.
    pub(super) fn masters(&self) -> &[Master] {
        &self.nodes
    }

    /// Each node that owns slots, with a tag whose slot it owns.
    pub(super) fn masters_with_tags(&self) -> Vec<(&Master, u128)> {
        let mut wanted = vec![false; self.nodes.len()];
        for node in self.slots.iter() {
            // Nobody's number is out of range.
            wanted.get_mut(usize::from(*node)).into_iter().for_each(|wanted| *wanted = true);
        }
        let mut left = wanted.iter().filter(|wanted| **wanted).count();
        let mut found = Vec::with_capacity(left);
        // Tags are spread evenly over the slots: even a node with a single slot has one soon.
        for tag in 0..TAGS_TRIED_MAX {
            if left == 0 {
                break;
            }
            let Some(shard) = self.shard(slot_of_tag(tag)) else { continue };
            let (Some(wanted), Some(master)) = (wanted.get_mut(shard), self.nodes.get(shard))
            else {
                continue;
            };
            if std::mem::take(wanted) {
                found.push((master, tag));
                left -= 1;
            }
        }
        found
    }

    /// Whether the same nodes own slots in both.
    pub(super) fn has_masters_of(&self, other: &Self) -> bool {
        let all_in = |a: &Self, b: &Self| a.nodes.iter().all(|node| b.nodes.contains(node));
        all_in(self, other) && all_in(other, self)
    }

    /// Whether some slot has no owner.
    pub(super) fn lacks_owners(&self) -> bool {
        self.slots.contains(&NOBODY)
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }
}

/// One range of CLUSTER SLOTS: first slot, last slot, master.
fn range(value: &Value, asked: &str) -> Option<(u16, u16, Master)> {
    let Value::Array(parts) = value else { return None };
    let number = |index: usize| match parts.get(index) {
        Some(Value::Int(number)) => u16::try_from(*number).ok(),
        _ => None,
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
    let address = address_of(&text(0)?, &port.to_string(), asked);
    Some((number(0)?, number(1)?, Master { id: text(2)?, address: address.into() }))
}

/// The address of a node that the node at `asked` names. Without a host, it is that of `asked`.
pub(super) fn address_of(host: &str, port: &str, asked: &str) -> String {
    let host = match host {
        "" | "?" => asked.rsplit_once(':').map_or("", |(host, _)| host),
        host => host,
    };
    format!("{host}:{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two nodes that share the slots, as the node at `q:9` reports it. `host` is the second's.
    fn topology(host: &str, id: &str) -> Topology {
        let second = format!("*3\r\n:8192\r\n:16383\r\n*3\r\n{host}:2\r\n$2\r\n{id}\r\n");
        let text =
            format!("*2\r\n{second}*3\r\n:0\r\n:8191\r\n*3\r\n$1\r\na\r\n:1\r\n$2\r\nia\r\n");
        let ranges = ::redis::parse_redis_value(text.as_bytes()).unwrap();
        Topology::parse(&ranges, "x:1\r\ncluster_current_epoch:7\r\n", "q:9").unwrap()
    }

    fn owner(topology: &Topology, slot: u16) -> &str {
        topology.owner(slot).map_or("nobody", |owner| &*owner.address)
    }

    #[test]
    fn while_replicas_are_told_of_a_new_master_sentinels_name_that() {
        let text = |texts: &[&str]| {
            let each = texts.iter().map(|text| Value::BulkString(text.as_bytes().to_vec()));
            Value::Array(each.collect())
        };
        // The sentinel that leads the failover, before the last replica follows.
        let state = text(&["ip", "10.0.0.1", "port", "6379", "config-epoch", "8"]);
        let known = Topology::from_sentinel(&state, &text(&["10.0.0.2", "6380"])).unwrap();
        assert_eq!((owner(&known, 0), known.epoch()), ("10.0.0.2:6380", 8));
        for (state, address) in [
            (text(&["ip", "a", "port", "1"]), text(&["b", "2"])),
            (state.clone(), text(&["", "2"])),
            (state.clone(), Value::Nil),
        ] {
            assert!(Topology::from_sentinel(&state, &address).is_none(), "{state:?} {address:?}");
        }
    }

    #[test]
    fn an_answer_names_each_slots_owner() {
        let known = topology("$1\r\nb\r\n", "ib");
        assert_eq!((owner(&known, 8191), owner(&known, 8192), known.epoch()), ("a:1", "b:2", 7));
        assert!(!known.lacks_owners());
        let nameless = topology("$-1\r\n", "ib");
        assert_eq!(owner(&nameless, 8192), "q:2", "on the host that was asked");
        assert!(known.has_masters_of(&topology("$1\r\nb\r\n", "ib")));
        assert!(!known.has_masters_of(&topology("$1\r\nb\r\n", "ic")));
        let none =
            Topology::parse(&Value::Array(vec![]), "cluster_current_epoch:0", "q:9").unwrap();
        assert_eq!((owner(&none, 1), none.lacks_owners()), ("nobody", true));
        assert!(Topology::parse(&Value::Int(1), "cluster_current_epoch:0", "q:9").is_none());
        assert!(Topology::parse(&Value::Array(vec![]), "", "q:9").is_none());
    }

    #[test]
    fn a_redirection_moves_one_slot() {
        let known = topology("$1\r\nb\r\n", "ib");
        assert!(known.move_slot(8192, "b:2").is_none(), "it is there already");
        let moved = known.move_slot(7, "b:2").unwrap();
        assert_eq!((owner(&moved, 6), owner(&moved, 7), owner(&moved, 8)), ("a:1", "b:2", "a:1"));
        assert_eq!(moved.shard(7), moved.shard(8192));
        let moved = moved.move_slot(7, "new:3").unwrap();
        assert_eq!((owner(&moved, 7), moved.masters().len()), ("new:3", 3));
    }

    #[test]
    fn each_owner_has_a_tag_of_its_own_slots() {
        let slots = vec![NOBODY; usize::from(SLOTS)].into_boxed_slice();
        let master = |id: &str| Master { id: id.into(), address: id.into() };
        let nodes = vec![master("a"), master("b"), master("gone"), master("d")];
        let mut all = Topology { nodes, slots, epoch: 1 };
        all.slots[..8_000].fill(0);
        // One slot only.
        all.slots[16_383] = 1;
        all.slots[9_000..12_000].fill(3);
        let found = all.masters_with_tags();
        let mut owners: Vec<&str> = found.iter().map(|(master, _)| &*master.address).collect();
        owners.sort_unstable();
        assert_eq!(owners, ["a", "b", "d"], "what owns nothing can't fail");
        for (master, tag) in found {
            assert_eq!(all.owner(slot_of_tag(tag)), Some(master));
        }
    }
}
