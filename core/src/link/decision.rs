//! The decision on a statement: made once, and visible to all shards.

use std::sync::OnceLock;

/// The decision on a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Decision {
    /// All parts of the statement take effect.
    Committed,
    /// No part of the statement takes effect.
    Aborted,
}

/// The decision on one statement: undecided at first, then committed or aborted for good by the first caller.
///
/// The coordinator decides when every part is held. A shard whose hold is past its deadline only asks to
/// abort, and follows the decision that was made. After `Committed`, a hold can only become allocations, even
/// past its deadline.
#[derive(Debug, Default)]
pub struct DecisionCell(OnceLock<Decision>);

impl DecisionCell {
    /// Makes the decision `wanted` unless there is one already. Returns the decision that holds from now on.
    /// Everyone who learns of it sees what the decider did before.
    pub fn decide(&self, wanted: Decision) -> Decision {
        *self.0.get_or_init(|| wanted)
    }

    /// Returns the decision, if there is one.
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        self.0.get().copied()
    }
}
