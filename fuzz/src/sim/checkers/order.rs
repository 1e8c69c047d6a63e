//! Invariant 7: the recorded merge order of a shard's rings is its only input apart from time, and no ring
//! starves another. A second shard runs the recorded commands one by one to check this.

use wharf_core::hash::StateHash;
use wharf_core::limits::BATCH_MAX;
use wharf_core::shard::Outcome;
use wharf_core::statement::Applied;
use wharf_core::time::Time;

use super::{Verdict, ensure};

/// Checks that the same commands, run one by one, give the same outcomes and the same state.
///
/// # Errors
/// Returns the first difference.
pub fn replay_gives_the_same(outcomes: (&[Outcome], &[Outcome]), states: (StateHash, StateHash)) -> Verdict {
    // Which view shows a grant depends on the readers of views.
    let text = |outcome: &Outcome| match outcome.clone() {
        Outcome::Applied(Ok(applied)) => format!("{:?}", Applied { visible_from: 0, ..*applied }),
        outcome => format!("{outcome:?}"),
    };
    let texts = |outcomes: &[Outcome]| -> Vec<String> { outcomes.iter().map(text).collect() };
    let first = texts(outcomes.0);
    let again = texts(outcomes.1);
    ensure(first.len() == again.len(), || format!("{} outcomes, then {}", first.len(), again.len()))?;
    if let Some((first, again)) = first.iter().zip(&again).find(|(first, again)| first != again) {
        return Err(format!("{first}, and when repeated {again}"));
    }
    ensure(states.0 == states.1, || format!("state {}, and when repeated {}", states.0, states.1))
}

/// Checks that a batch with room left takes everything that was in the rings when it began.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRingStarves {
    /// The start of the last batch that was not full.
    drained: Option<Time>,
}

impl NoRingStarves {
    /// Checks the shard's next batch, given its start and the time at which each command entered its ring. No
    /// command enters a ring at exactly the time of a batch.
    ///
    /// # Errors
    /// Returns the command that was left behind.
    pub fn check(&mut self, now: Time, enqueued: &[Time]) -> Verdict {
        if let Some(drained) = self.drained {
            let late = enqueued.iter().find(|&&time| time < drained);
            ensure(late.is_none(), || {
                format!("a command of {late:?} was left in its ring by the batch of {drained:?}")
            })?;
        }
        if enqueued.len() < BATCH_MAX {
            self.drained = Some(now);
        }
        Ok(())
    }
}
