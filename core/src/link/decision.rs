//! One decision per statement, taken once, seen by all.

use crate::sync::{AtomicU8, Ordering};

/// What was decided of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Decision {
    /// It happens, everywhere.
    Committed,
    /// It happens nowhere.
    Aborted,
}

const UNDECIDED: u8 = 0;
const COMMITTED: u8 = 1;
const ABORTED: u8 = 2;

/// Undecided at first; committed or aborted by whoever comes first, for ever.
///
/// The coordinator decides when every part is held. A shard whose hold is past its deadline only
/// asks to abort, and does what was decided: after `Committed` a hold can only become allocations,
/// whatever the clock says.
#[derive(Debug)]
pub struct DecisionCell(AtomicU8);

impl Default for DecisionCell {
    fn default() -> Self {
        Self(AtomicU8::new(UNDECIDED))
    }
}

impl DecisionCell {
    /// Decides so unless it is decided; what is decided from now on.
    pub fn decide(&self, wanted: Decision) -> Decision {
        let value = match wanted {
            Decision::Committed => COMMITTED,
            Decision::Aborted => ABORTED,
        };
        // AcqRel: pairs with itself and with the Acquire in `decision`. What the decider did before
        // is seen by everyone who learns of the decision, and the loser sees what the winner did.
        match self.0.compare_exchange(UNDECIDED, value, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => wanted,
            Err(found) => named(found).expect("a cell that refuses is decided"),
        }
    }

    /// What is decided, if anything is.
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
