//! The loop of a shard's thread.

use std::sync::Arc;
use std::time::Duration;

use super::{Observer, ShardRunner};
use crate::link::{Clock, Lending, Lent};
use crate::shard::Shard;
use crate::time::Time;

/// What a thread does after a pass of its loop.
enum Next {
    /// Another pass.
    Pass,
    /// Sleep until the bell rings or this time is reached. The runner has fallen asleep.
    Sleep(Option<Time>),
    /// End.
    End,
}

/// What a thread that runs a shard needs.
pub(super) struct Running<C, O> {
    /// `None` once the thread has ended.
    pub(super) runner: Option<ShardRunner>,
    pub(super) clock: C,
    pub(super) observer: O,
}

impl ShardRunner {
    /// Runs on the calling thread until it is stopped and has no work left. Returns the shard.
    pub fn run(mut self, clock: &impl Clock, observer: &mut impl Observer) -> Shard {
        self.begin();
        let mut idle_looks = 0;
        loop {
            match self.pass(clock, observer, &mut idle_looks) {
                Next::Pass => {}
                Next::Sleep(due) => park(due, clock.now()),
                Next::End => return self.shard,
            }
        }
    }

    /// Runs on the calling thread as [`run`](Self::run) does. While it sleeps, the shard is lent to ports that
    /// [run sleeping shards](crate::router::Port::run_sleeping_shards).
    pub fn run_lent<C, O>(mut self, clock: C, observer: O) -> Shard
    where
        C: Clock + 'static,
        O: Observer + Send + 'static,
    {
        self.begin();
        let bell = Arc::clone(&self.bell);
        let slot = Arc::clone(&self.lent);
        let lending = Arc::new(Lending::new(Running { runner: Some(self), clock, observer }, bell));
        let lent: Arc<dyn Lent> = lending.clone();
        assert!(slot.set(lent).is_ok(), "a shard has one thread");
        let mut idle_looks = 0;
        loop {
            let mut running = lending.hold();
            let due = loop {
                let Running { runner, clock, observer } = &mut *running;
                let of_thread = runner.as_mut().expect("this thread has not ended");
                match of_thread.pass(clock, observer, &mut idle_looks) {
                    Next::Pass => {}
                    Next::Sleep(due) => break due,
                    Next::End => return runner.take().expect("this thread has not ended").shard,
                }
            };
            let now = running.clock.now();
            drop(running);
            park(due, now);
        }
    }

    fn begin(&mut self) {
        self.waker.set_current();
        self.record_start();
    }

    fn pass(&mut self, clock: &impl Clock, observer: &mut impl Observer, idle_looks: &mut u32) -> Next {
        // Read before the rings, so that commands submitted before the stop are still seen.
        let stopping = self.stop.is_stopped();
        if self.run_batch(clock, observer) > 0 {
            *idle_looks = 0;
        } else if stopping {
            if !self.settle() {
                return Next::End;
            }
        } else if *idle_looks < self.spin {
            *idle_looks += 1;
            std::hint::spin_loop();
        } else {
            *idle_looks = 0;
            let due = self.shard.next_deadline();
            if self.fall_asleep() {
                observer.handle_sleep();
                return Next::Sleep(due);
            }
        }
        Next::Pass
    }
}

/// Sleeps until the thread is woken or a time is reached.
fn park(due: Option<Time>, now: Time) {
    match due {
        None => std::thread::park(),
        Some(due) => std::thread::park_timeout(Duration::from_nanos(due.nanos_since(now))),
    }
}

impl<C: Clock, O: Observer + Send> Lent for Lending<Running<C, O>> {
    fn try_run(&self) -> bool {
        self.borrow(|Running { runner, clock, observer }| {
            let Some(runner) = runner else { return false };
            let due = runner.shard.next_deadline();
            runner.run_batch(clock, observer);
            // The owner sleeps until the deadline that it saw.
            let is_earlier = runner.shard.next_deadline().is_some_and(|new| due.is_none_or(|due| new < due));
            runner.fall_asleep() && !is_earlier
        })
    }
}
