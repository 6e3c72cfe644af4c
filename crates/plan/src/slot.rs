//! A cache in a plan or a decision for what a consumer derives from it. Knows neither type.

use std::any::Any;
use std::fmt;
use std::sync::{Mutex, TryLockError};

/// Holds one value that a consumer derived from the struct that contains the slot, so that a struct
/// which is used again (a cached decision) needs no second derivation.
///
/// The slot is not part of the struct's value: a clone starts empty, and any two slots are equal.
/// The consumer chooses the value's type, so the struct's module need not know the consumer.
#[derive(Default)]
pub struct Slot(Mutex<Option<Box<dyn Any + Send>>>);

impl Slot {
    /// Calls `work` with the cached value of type `T`; `make` creates it if there is none. Never
    /// blocks: while another thread uses the slot, a value is made for this call alone.
    pub fn with<T: Any + Send, R>(
        &self,
        make: impl FnOnce() -> T,
        work: impl FnOnce(&mut T) -> R,
    ) -> R {
        let mut kept = match self.0.try_lock() {
            Ok(kept) => kept,
            // A panic in `work` may have left an incomplete value: drop it, and make a new one.
            Err(TryLockError::Poisoned(poisoned)) => {
                self.0.clear_poison();
                let mut kept = poisoned.into_inner();
                *kept = None;
                kept
            }
            Err(TryLockError::WouldBlock) => return work(&mut make()),
        };
        if let Some(value) = kept.as_deref_mut().and_then(|value| value.downcast_mut()) {
            return work(value);
        }
        let mut value = Box::new(make());
        let answer = work(&mut value);
        *kept = Some(value);
        answer
    }
}

impl Clone for Slot {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Slot {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Slot {}

impl fmt::Debug for Slot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Slot")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_made_once_for_its_type_and_not_cloned() {
        let slot = Slot::default();
        assert_eq!(slot.with(|| 1_u8, |value| std::mem::replace(value, 7)), 1);
        assert_eq!(slot.with(|| 1_u8, |value| *value), 7);
        assert_eq!(slot.clone().with(|| 1_u8, |value| *value), 1);
        assert_eq!(slot.with(|| 1_u16, |value| *value), 1, "of another type");
        assert_eq!(slot, Slot::default());
    }

    #[test]
    fn a_slot_in_use_blocks_nothing() {
        let slot = Slot::default();
        assert_eq!(slot.with(|| 1, |outer| slot.with(|| 2, |inner| (*outer, *inner))), (1, 2));
        assert_eq!(slot.with(|| 3, |value| *value), 1);
    }

    #[test]
    fn a_panic_in_work_leaves_the_slot_empty() {
        let slot = Slot::default();
        slot.with(|| 1, |_| ());
        let inside =
            std::panic::AssertUnwindSafe(|| slot.with(|| 1, |_: &mut i32| panic!("inside")));
        assert!(std::panic::catch_unwind(inside).is_err());
        assert_eq!(slot.with(|| 2, |value| *value), 2);
    }
}
