//! The decision on a statement: made once, and visible to all shards.

use crate::sync::{AtomicU8, Ordering};

/// The decision on a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Decision {
    /// All parts of the statement take effect.
    Committed,
    /// No part of the statement takes effect.
    Aborted,
}

const UNDECIDED: u8 = 0;
const COMMITTED: u8 = 1;
const ABORTED: u8 = 2;

/// The decision on one statement: undecided at first, then committed or aborted for good by the first caller.
///
/// The coordinator decides when every part is held. A shard whose hold is past its deadline only asks to
/// abort, and follows the decision that was made. After `Committed`, a hold can only become allocations, even
/// past its deadline.
#[derive(Debug)]
pub struct DecisionCell(AtomicU8);

impl Default for DecisionCell {
    fn default() -> Self {
        Self(AtomicU8::new(UNDECIDED))
    }
}

impl DecisionCell {
    /// Makes the decision `wanted` unless there is one already. Returns the decision that holds from now on.
    pub fn decide(&self, wanted: Decision) -> Decision {
        let value = match wanted {
            Decision::Committed => COMMITTED,
            Decision::Aborted => ABORTED,
        };
        // AcqRel: pairs with itself and with the Acquire in `decision`. Everyone who learns of the decision
        // sees what the decider did before. The loser sees what the winner did.
        match self.0.compare_exchange(UNDECIDED, value, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => wanted,
            Err(found) => named(found).expect("a cell that refuses is decided"),
        }
    }

    /// Returns the decision, if there is one.
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        // Acquire pairs with the AcqRel in `decide`.
        named(self.0.load(Ordering::Acquire))
    }
}

fn named(value: u8) -> Option<Decision> {
    match value {
        COMMITTED => Some(Decision::Committed),
        ABORTED => Some(Decision::Aborted),
        _ => None,
    }
}
