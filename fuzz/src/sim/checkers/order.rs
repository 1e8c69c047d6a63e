//! Invariant 7: the recorded merge order of a shard's rings is its only input besides time, and no
//! ring starves another. (The runs step a second shard with the recorded commands, one by one.)

use wharf_core::hash::StateHash;
use wharf_core::limits::BATCH_MAX;
use wharf_core::shard::Outcome;
use wharf_core::time::Time;

use super::{Verdict, ensure};

/// The same commands, one by one, came to the same outcomes and the same state.
///
/// # Errors
/// Where they did not.
pub fn replay_gives_the_same(outcomes: (&[Outcome], &[Outcome]), states: (StateHash, StateHash)) -> Verdict {
    let texts = |outcomes: &[Outcome]| -> Vec<String> { outcomes.iter().map(|o| format!("{o:?}")).collect() };
    let first = texts(outcomes.0);
    let again = texts(outcomes.1);
    ensure(first.len() == again.len(), || format!("{} outcomes, then {}", first.len(), again.len()))?;
    if let Some((first, again)) = first.iter().zip(&again).find(|(first, again)| first != again) {
        return Err(format!("{first}, and when repeated {again}"));
    }
    ensure(states.0 == states.1, || format!("state {}, and when repeated {}", states.0, states.1))
}

/// What was in a ring when a batch with room left was begun is in that batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRingStarves {
    /// When the last batch that was not full began.
    drained: Option<Time>,
}

impl NoRingStarves {
    /// Looks at the next batch of the shard: when it began, and when each command was put into its
    /// ring. Nothing is put into a ring at the very time of a batch.
    ///
    /// # Errors
    /// The command that was passed over.
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
