//! Batches of commands, and prefetching for them.
//!
//! A release reads the record of its id, then its node's books, then the node's place in the index. Each
//! address depends on the previous read, and little of it is in the cache, because the record was written long
//! ago. Releases handled one by one would wait for each of these reads. So the releases among the next commands
//! are followed in parallel first, step by step, because a processor can wait for independent reads at the same
//! time. This affects only speed. Requests are not prefetched for, because their node is unknown before the
//! search.

use std::hint::black_box;

use crate::shard::Command;
use crate::shard::Outcome;
use crate::shard::Shard;
use crate::time::Time;

/// The number of commands to prefetch for at once. What they read stays in the first-level cache.
const AHEAD: usize = 32;
/// The minimum number of commands that is worth a prefetch.
const AHEAD_MIN: usize = 8;

impl Shard {
    /// Like [`step`](Self::step), for a complete batch: memory that its releases read is prefetched. The batch
    /// is empty afterwards.
    ///
    /// # Panics
    /// Like [`step`](Self::step).
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

    /// Prefetches the memory that releases among `commands` will read.
    fn prefetch(&self, commands: &[Command]) {
        let mut places = [0; AHEAD];
        let mut nodes = [0; AHEAD];
        let mut nexts = [0; AHEAD];
        let mut count = 0;
        let mut found = 0;
        for command in commands {
            if let Command::Release(id) = command {
                places[count] = self.books.ledger.place_hint(*id);
                count += 1;
            }
        }
        for &at in &places[..count] {
            if let Some((node, previous, next)) = self.books.ledger.neighbours(at) {
                (nodes[found], nexts[found]) = (node, next);
                black_box(self.books.ledger.neighbours(previous));
                found += 1;
            }
        }
        for (&next, &node) in nexts.iter().zip(&nodes).take(found) {
            black_box((self.books.ledger.neighbours(next), self.books.nodes.prefetch(node)));
        }
        for &node in &nodes[..found] {
            black_box(self.choose.prefetch(node));
        }
    }
}
