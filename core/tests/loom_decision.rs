//! Model checks the decision cell with loom, over every interleaving within the bound.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p wharf-core --test loom_decision --release`
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use wharf_core::link::{Decision, DecisionCell};

/// A coordinator commits while two shards, whose holds are past their deadlines, ask to abort.
///
/// There is one decision, and all threads learn the same. A thread that learns of a commit sees what the
/// coordinator wrote before.
#[test]
fn a_statement_is_decided_once_and_seen_alike() {
    loom::model(|| {
        let cell = Arc::new(DecisionCell::default());
        let written = Arc::new(AtomicU64::new(0));
        let shards: Vec<_> = (0..2)
            .map(|_| {
                let cell = Arc::clone(&cell);
                let written = Arc::clone(&written);
                thread::spawn(move || {
                    let decision = cell.decide(Decision::Aborted);
                    if decision == Decision::Committed {
                        // Relaxed: the cell provides the ordering, or this fails.
                        assert_eq!(written.load(Ordering::Relaxed), 7);
                    }
                    decision
                })
            })
            .collect();
        written.store(7, Ordering::Relaxed);
        let decision = cell.decide(Decision::Committed);
        for shard in shards {
            assert_eq!(shard.join().unwrap(), decision);
        }
        assert_eq!(cell.decision(), Some(decision));
    });
}

/// A thread that only looks sees no decision, or the final one, with what its decider wrote before.
#[test]
fn a_decision_that_was_seen_stays() {
    loom::model(|| {
        let cell = Arc::new(DecisionCell::default());
        let written = Arc::new(AtomicU64::new(0));
        let decider = {
            let cell = Arc::clone(&cell);
            let written = Arc::clone(&written);
            thread::spawn(move || {
                written.store(7, Ordering::Relaxed);
                cell.decide(Decision::Committed)
            })
        };
        if let Some(decision) = cell.decision() {
            assert_eq!((decision, written.load(Ordering::Relaxed)), (Decision::Committed, 7));
            assert_eq!(cell.decision(), Some(decision));
        }
        assert_eq!(decider.join().unwrap(), Decision::Committed);
    });
}
