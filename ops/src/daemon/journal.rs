//! The threads of the journal: one writes it, one makes checkpoints, and one [reads events](super::events).
//!
//! What they do is in [`JournalLoops`], which the simulator runs too. Here they are parked between turns, and say in the
//! log what happened.

use std::process;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tracing::{error, info, warn};
use wharf_core::link::{Clock, StopSignal, ThreadWaker};
use wharf_net::server::Exports;
use wharf_net::session::events::EventSource;

use super::events::{Events, EventsBell};
use super::{DaemonError, ServiceClock, threads};
use crate::journal::{
    CheckpointInbox, CheckpointLoop, CheckpointTurn, JournalCounters, JournalLoop, JournalLoops, JournalTurn,
};

/// The exit status of a process that could not write its journal to the end.
pub const EXIT_JOURNAL_FAILED: u8 = 74;

/// How often a full disk is tried again.
const FULL_PAUSE: Duration = Duration::from_millis(100);

/// The running threads.
pub(super) struct Journal {
    stop: StopSignal,
    writer: JoinHandle<Stopped>,
    checkpoints: JoinHandle<()>,
    inbox: Arc<CheckpointInbox>,
    events: Events,
    /// The counters of the journal.
    pub(super) counters: Arc<JournalCounters>,
}

impl Journal {
    /// Starts the threads. `waker` wakes that of the checkpoints, and `bell` that of the events.
    pub(super) fn start(
        loops: JournalLoops,
        waker: Arc<ThreadWaker>,
        bell: EventsBell,
        clock: &ServiceClock,
    ) -> Result<Self, DaemonError> {
        let JournalLoops { journal, checkpoints, events, inbox, events_inbox, counters } = loops;
        let stop = journal.stop();
        let events = Events::start(events, events_inbox, bell, clock.clone())?;
        let clock = clock.clone();
        let checkpoints = threads::start("wharf-checkpoint".to_owned(), move || {
            waker.set_current();
            run_checkpoints(checkpoints, &clock);
        })?;
        let writer = threads::start("wharf-journal".to_owned(), move || run_writer(journal))?;
        Ok(Self { stop, writer, checkpoints, inbox, events, counters })
    }

    /// Returns where the events come from.
    pub(super) fn events(&self) -> Arc<dyn EventSource> {
        self.events.source()
    }

    /// Returns who serves exports.
    pub(super) fn exports(&self) -> Arc<dyn Exports> {
        Arc::clone(&self.inbox) as Arc<dyn Exports>
    }

    /// Ends checkpoints. The shards must still run.
    pub(super) async fn stop_checkpoints(self) -> Result<StoppedCheckpoints, DaemonError> {
        self.inbox.stop();
        threads::join("wharf-checkpoint".to_owned(), self.checkpoints).await?;
        self.events.stop().await?;
        Ok(StoppedCheckpoints { stop: self.stop, writer: self.writer })
    }
}

/// How the thread that writes the journal ended.
struct Stopped {
    /// The last append.
    last: u64,
    /// Units that the full disk did not take.
    lost: u64,
}

/// A journal without checkpoints.
pub(super) struct StoppedCheckpoints {
    stop: StopSignal,
    writer: JoinHandle<Stopped>,
}

impl StoppedCheckpoints {
    /// Writes what is left. Everything that puts units in must have ended. Returns the number of the last append.
    ///
    /// # Errors
    /// When the disk is full. A checkpoint would then hold changes that no event tells, so none may be written.
    pub(super) async fn finish(self) -> Result<u64, DaemonError> {
        self.stop.stop();
        let Stopped { last, lost } = threads::join("wharf-journal".to_owned(), self.writer).await?;
        if lost > 0 { Err(DaemonError::JournalFull { last, lost }) } else { Ok(last) }
    }
}

/// Writes the journal until it is stopped, and everything is written or the disk is full.
fn run_writer(mut journal: JournalLoop) -> Stopped {
    journal.feed().set_current();
    let mut was_full = false;
    loop {
        match journal.turn().unwrap_or_else(|error| fail(&error)) {
            JournalTurn::Nothing { sleeps: true } => thread::park(),
            JournalTurn::Nothing { sleeps: false } => {}
            JournalTurn::Written => {
                if std::mem::take(&mut was_full) {
                    info!("the journal has room again");
                }
            }
            JournalTurn::Full => {
                if !std::mem::replace(&mut was_full, true) {
                    warn!("the disk of the journal is full: nothing is acknowledged until there is room");
                }
                thread::park_timeout(FULL_PAUSE);
            }
            JournalTurn::Ended { last, lost } => {
                if lost > 0 {
                    error!(
                        lost,
                        last, "the disk of the journal is full: the changes in `lost` units are not written"
                    );
                }
                return Stopped { last, lost };
            }
        }
    }
}

/// Ends the process. It is unknown what is on disk, so nothing in flight may be called durable.
fn fail(error: &dyn std::error::Error) -> ! {
    error!(%error, "the journal failed: this process ends, and what it did not acknowledge is decided by the next start");
    process::exit(EXIT_JOURNAL_FAILED.into())
}

/// Makes checkpoints and exports until it is told to stop.
fn run_checkpoints(mut checkpoints: CheckpointLoop, clock: &ServiceClock) {
    loop {
        match checkpoints.turn(clock.now()) {
            CheckpointTurn::GoesOn => {}
            CheckpointTurn::Completed(from) => info!(from, "a checkpoint is complete"),
            CheckpointTurn::GivenUp(error) => {
                warn!(%error, "a checkpoint was given up; the journal grows until one succeeds");
            }
            CheckpointTurn::Ended => return,
        }
        let due = checkpoints.next_deadline();
        if checkpoints.fall_asleep() {
            match due {
                None => thread::park(),
                Some(due) => thread::park_timeout(Duration::from_nanos(due.nanos_since(clock.now()))),
            }
        }
    }
}
