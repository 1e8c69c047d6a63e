//! Everything that crosses threads except the data of views: rings, bells and flags between ports, shards and
//! planners.
//!
//! Loom model-checks the lock-free parts: `core/tests/loom_*.rs`. This module does not know what it carries.
#![allow(unsafe_code, reason = "a ring hands values between threads without a lock; model-checked by loom")]

mod clock;
mod decision;
mod doorbell;
mod interest;
mod journal_queue;
mod lending;
mod planner_bell;
mod ring;
mod stop;
mod summary;
mod tickets;
mod view_log;
mod waker;
mod woken;

pub use clock::Clock;
pub use decision::{Decision, DecisionCell};
pub use doorbell::Doorbell;
pub use interest::{ShardNews, ViewInterest};
pub use journal_queue::JournalQueue;
pub use lending::{Lending, Lent};
pub use planner_bell::PlannerBell;
pub use ring::{Consumer, Producer, channel};
pub use stop::StopSignal;
pub use summary::{Facts, ShardFacts, ShardSummary};
pub use tickets::Tickets;
pub use view_log::{ViewLog, ViewProgress, ViewSource, view_log};
pub use waker::ThreadWaker;
pub use woken::WokenBox;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex whose value is valid even if a thread panicked with the lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
