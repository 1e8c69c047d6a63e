//! One sequence of a session: what is known of its request.

use wharf_core::state::{KeptOutcome, OutcomeRecord};

use super::{Admission, Entry, Parts, ReplyBlocks, Slot};
use crate::weight::Weight;

impl Slot {
    pub(super) fn admit(&mut self, fingerprint: u32, in_flight: &mut usize) -> Admission<'_> {
        if !matches!(self.entry, Entry::Vacant) && self.fingerprint != fingerprint {
            return Admission::Reused;
        }
        let Self { fingerprint: kept, entry } = self;
        let begun = match entry {
            Entry::Vacant => Entry::InFlight(Weight::default()),
            Entry::Interrupted => Entry::Waiting(Weight { waits: true, ..Weight::default() }),
            Entry::InFlight(_) | Entry::Waiting(_) => return Admission::UnderWay,
            Entry::Answered(reply) => return Admission::Answered(reply),
            Entry::WaitAnswered(reply) => return Admission::Answered(reply),
            Entry::Acknowledged => return Admission::Stale,
            Entry::Recovered(_) | Entry::WaitRecovered(_) => unreachable!("what was recovered was taken"),
        };
        *entry = begun;
        *kept = fingerprint;
        *in_flight += 1;
        Admission::New
    }

    /// Takes what an earlier start did, if this is the same request. It can be executed then.
    pub(super) fn take_recovered(&mut self, fingerprint: u32) -> Option<Parts> {
        if self.fingerprint != fingerprint {
            return None;
        }
        match std::mem::replace(&mut self.entry, Entry::Vacant) {
            Entry::Recovered(parts) => Some(parts.into()),
            Entry::WaitRecovered(parts) => {
                self.entry = Entry::Interrupted;
                Some(parts.into())
            }
            other => {
                self.entry = other;
                None
            }
        }
    }

    /// Returns the outcome as it is stored.
    pub(super) fn record(&self) -> Option<OutcomeRecord> {
        let reply = |reply: &[u8]| KeptOutcome::Reply(reply.into());
        let (is_wait, outcome) = match &self.entry {
            Entry::Vacant | Entry::Acknowledged => return None,
            Entry::Answered(bytes) => (false, reply(bytes)),
            Entry::WaitAnswered(bytes) => (true, reply(bytes)),
            Entry::Interrupted => (true, KeptOutcome::Parts(Vec::new())),
            Entry::Recovered(parts) => (false, KeptOutcome::Parts(parts.to_vec())),
            Entry::WaitRecovered(parts) => (true, KeptOutcome::Parts(parts.to_vec())),
            Entry::InFlight(_) | Entry::Waiting(_) => unreachable!("nothing is in progress"),
        };
        Some(OutcomeRecord { fingerprint: self.fingerprint, is_wait, wait: None, outcome })
    }

    pub(super) fn restore(record: OutcomeRecord) -> Self {
        let OutcomeRecord { fingerprint, is_wait, outcome, .. } = record;
        let entry = match (outcome, is_wait) {
            (KeptOutcome::Reply(reply), false) => Entry::Answered(ReplyBlocks::default().keep(&reply)),
            (KeptOutcome::Reply(reply), true) => Entry::WaitAnswered(reply[..].into()),
            (KeptOutcome::Parts(parts), true) if parts.is_empty() => Entry::Interrupted,
            (KeptOutcome::Parts(parts), true) => Entry::WaitRecovered(parts.into()),
            (KeptOutcome::Parts(parts), false) => Entry::Recovered(parts.into()),
        };
        Self { fingerprint, entry }
    }
}
