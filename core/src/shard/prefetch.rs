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
use crate::shard::books::SETTLE_AFTER;
use crate::time::Time;

/// The number of commands to prefetch for at once. What they read stays in the first-level cache.
const AHEAD: usize = 32;
const _: () = assert!(AHEAD <= SETTLE_AFTER, "sums of a batch fit 64 bits");
/// The minimum number of commands that is worth a prefetch.
const AHEAD_MIN: usize = 8;

/// Drops what is neither a placement nor a release.
#[inline(never)]
fn drop_other(command: Command) {
    drop(command);
}

impl Shard {
    /// Like [`step`](Self::step), for a complete batch: memory that its releases read is prefetched. The batch
    /// is empty afterwards.
    ///
    /// # Panics
    /// Like [`step`](Self::step).
    pub fn step_batch(&mut self, batch: &mut Vec<Command>, now: Time, outcomes: &mut Vec<Outcome>) {
        self.begin_step(now);
        outcomes.reserve(batch.len());
        let answered = outcomes.len() + batch.len();
        for commands in batch.chunks_mut(AHEAD) {
            if commands.len() >= AHEAD_MIN {
                self.prefetch(commands);
            }
            for command in commands {
                self.carry_out(command, outcomes);
            }
            self.books.sums.kept.settle();
        }
        assert!(outcomes.len() == answered, "a command has no outcome, or two");
        // The two that are frequent are told apart by comparisons. The code that drops any command jumps by a table.
        for command in batch.drain(..) {
            match command {
                // It owns nothing. Otherwise it would be dropped by the table.
                Command::Release(_) => std::mem::forget(command),
                Command::Place(request) => drop(request),
                other => drop_other(other),
            }
        }
    }

    /// Prefetches the memory that releases among `commands` will read.
    fn prefetch(&self, commands: &[Command]) {
        let Self { books, choose, .. } = self;
        let mut releases = [(0, 0); AHEAD];
        let mut found = 0;
        // What is read is combined, because the compiler drops reads without a use.
        let mut read = 0;
        for command in commands {
            if let Command::Release(id) = command {
                read ^= books.ledger.peek(*id);
            }
        }
        for command in commands {
            if let Command::Release(id) = command
                && let Some((node, previous, next)) = books.ledger.neighbours(*id)
            {
                read ^= books.ledger.peek_at(previous);
                releases[found] = (node, next);
                found += 1;
            }
        }
        for &(node, next) in &releases[..found] {
            read ^= books.ledger.peek_at(next) ^ books.nodes.peek(node);
        }
        for &(node, _) in &releases[..found] {
            read ^= choose.peek(node);
        }
        black_box(read);
    }
}
