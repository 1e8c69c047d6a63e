//! Batches of commands, and what is read ahead for them.
//!
//! A release goes from its id to the record, from there to its node's books, and on to where the node
//! stands in the index. Each address is known from what stood at the one before, and little of it is
//! in the cache: the record was written long ago. One release after the other would wait for
//! each of these reads. So the releases of some commands are followed side by side first, step by step:
//! a processor waits for reads that do not depend on each other at once. Nothing but time depends on
//! it, and a request is read ahead for by nobody: its node is not known before it is searched.

use std::hint::black_box;

use super::{Command, Outcome, Shard};
use crate::time::Time;

/// Commands that are read ahead for at once: what they read stays in the first cache.
const AHEAD: usize = 32;
/// Fewer are not worth it.
const AHEAD_MIN: usize = 8;

impl Shard {
    /// As [`step`](Self::step), over a batch that is there as a whole: what its releases read is read
    /// ahead. The batch is empty afterwards.
    ///
    /// # Panics
    /// As [`step`](Self::step) does.
    pub fn step_batch(&mut self, batch: &mut Vec<Command>, now: Time, outcomes: &mut Vec<Outcome>) {
        self.begin_step(now);
        let mut left = batch.drain(..);
        while let commands = left.as_slice()
            && !commands.is_empty()
        {
            let some = &commands[..commands.len().min(AHEAD)];
            if some.len() >= AHEAD_MIN {
                self.prefetch(some);
            }
            for command in left.by_ref().take(AHEAD) {
                let outcome = self.handle_command(command);
                self.note_change(Some(&outcome));
                outcomes.push(outcome);
            }
        }
    }

    /// Brings what releases among `commands` will read into the cache.
    fn prefetch(&self, commands: &[Command]) {
        let mut places = [0; AHEAD];
        let mut nodes = [0; AHEAD];
        let mut nexts = [0; AHEAD];
        let mut count = 0;
        let mut found = 0;
        for command in commands {
            if let Command::Release(id) = command
                && let Some(at) = self.ledger.place_hint(*id)
            {
                places[count] = at;
                count += 1;
            }
        }
        for &at in &places[..count] {
            if let Some((node, previous, next)) = self.ledger.neighbours(at) {
                (nodes[found], nexts[found]) = (node, next);
                black_box(self.ledger.neighbours(previous));
                found += 1;
            }
        }
        for (&next, &node) in nexts.iter().zip(&nodes).take(found) {
            black_box((self.ledger.neighbours(next), self.nodes.prefetch(node)));
        }
        for &node in &nodes[..found] {
            black_box(self.index.prefetch(node));
        }
    }
}
