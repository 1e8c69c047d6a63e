//! The threads of the journal: one writes it, one makes checkpoints, and one [reads events](super::events).

use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tracing::{error, info, warn};
use wharf_core::journal::{JournalFeed, JournalStore, Unit};
use wharf_core::link::{Clock, Doorbell, StopSignal, ThreadWaker, lock};
use wharf_core::router::Port;
use wharf_core::state::StoreState;
use wharf_net::protocol::ExportRequest;
use wharf_net::server::ExportAnswer;
use wharf_net::session::events::EventSource;

use super::events::Events;
use super::exports::{Exporter, ToCheckpoints};
use super::{DaemonError, ServiceClock, threads};
use crate::config::Config;
use crate::journal::{Checkpointer, Heads, JournalCounters, JournalWriter, Log, Store, Written};

/// The exit status of a process that could not write its journal to the end.
pub const EXIT_JOURNAL_FAILED: u8 = 74;

/// How often a full disk is tried again.
const FULL_PAUSE: Duration = Duration::from_millis(100);

/// What the checkpoint thread is told.
pub(super) enum Told {
    /// Units with global records.
    Global(Vec<Unit>),
    /// Begin a checkpoint that this append continues, with these heads before it.
    Begin(u64, Heads),
    /// Make a page of an export.
    Export(ExportRequest, ExportAnswer),
    /// Stop.
    Stop,
}

/// The running threads.
pub(super) struct Journal {
    stop: StopSignal,
    writer: JoinHandle<Stopped>,
    checkpoints: JoinHandle<()>,
    inbox: Arc<Inbox>,
    events: Events,
    /// The counters of the journal.
    pub(super) counters: Arc<JournalCounters>,
}

/// What the checkpoint thread was told, and what it tells.
pub(super) struct Inbox {
    messages: Mutex<Vec<Told>>,
    bell: Arc<Doorbell>,
    /// The journal is needed from this append on.
    needed_from: AtomicU64,
    /// A checkpoint was asked for and is not complete.
    is_busy: AtomicBool,
    counters: Arc<JournalCounters>,
}

impl Inbox {
    pub(super) fn tell(&self, message: Told) {
        lock(&self.messages).push(message);
        self.bell.ring();
    }

    fn take(&self) -> Vec<Told> {
        std::mem::take(&mut *lock(&self.messages))
    }
}

impl Journal {
    /// Starts the threads. `port` belongs to the checkpoints, and `waker` wakes their thread.
    pub(super) fn start(
        feed: JournalFeed,
        (log, last, heads): (Log, u64, Heads),
        (port, waker): (Port, Arc<ThreadWaker>),
        state: &StoreState,
        store: &Arc<Store>,
        clock: &ServiceClock,
        config: &Config,
    ) -> Result<Self, DaemonError> {
        let stop = feed.stop();
        let kinds = Arc::clone(&port_kinds(state));
        let epoch = u64::from(state.incarnation.0) + 1;
        let exporter = Exporter::new(log.reader());
        let events = Events::start(&log, last, Arc::clone(&kinds), store)?;
        let writer = JournalWriter::new(feed, log, (epoch, last), heads, kinds);
        let writer = writer.with_events(&store.events(), Arc::clone(events.recent()), config.events_bytes);
        let counters = Arc::clone(writer.counters());
        // Relaxed: statistics; nothing depends on their order.
        counters.checkpoint_from.store(store.checkpoint_from()?, Ordering::Relaxed);
        counters.checkpoint_at.store(clock.now().0, Ordering::Relaxed);
        // The tail that this start read is in the way of the next one too, so it counts for the next checkpoint.
        // Relaxed: the thread that reads it does not run yet.
        counters.tail_bytes.store(store.recovery().bytes, Ordering::Relaxed);
        let inbox = Arc::new(Inbox {
            messages: Mutex::default(),
            bell: Arc::clone(port.bell()),
            needed_from: AtomicU64::new(0),
            is_busy: AtomicBool::new(false),
            counters: Arc::clone(&counters),
        });
        let checkpointer = Checkpointer::new(port, state);
        let store = Arc::clone(store);
        let clock = clock.clone();
        let of_checkpoints = Arc::clone(&inbox);
        let checkpoints = threads::start("wharf-checkpoint".to_owned(), move || {
            waker.set_current();
            run_checkpoints(checkpointer, exporter, &of_checkpoints, &store, &clock);
        })?;
        let of_writer = Arc::clone(&inbox);
        let checkpoint_bytes = config.checkpoint_bytes;
        let writer = threads::start("wharf-journal".to_owned(), move || {
            run_writer(writer, &of_writer, checkpoint_bytes)
        })?;
        Ok(Self { stop, writer, checkpoints, inbox, events, counters })
    }

    /// Returns where the events come from.
    pub(super) fn events(&self) -> Arc<dyn EventSource> {
        self.events.source()
    }

    /// Returns who serves exports.
    pub(super) fn exports(&self) -> ToCheckpoints {
        ToCheckpoints(Arc::clone(&self.inbox))
    }

    /// Ends checkpoints. The shards must still run.
    pub(super) async fn stop_checkpoints(self) -> Result<StoppedCheckpoints, DaemonError> {
        self.inbox.tell(Told::Stop);
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

fn port_kinds(state: &StoreState) -> Arc<wharf_core::resource::ResourceRegistry> {
    let names = state.registrar.resources.iter().map(String::as_str);
    let kinds = wharf_core::resource::ResourceRegistry::with_names(names, &state.registrar.unit_instances);
    Arc::new(kinds.expect("the registrar of this start has them"))
}

/// Writes the journal until it is stopped, and everything is written or the disk is full.
fn run_writer(mut writer: JournalWriter<Log>, inbox: &Inbox, checkpoint_bytes: u64) -> Stopped {
    writer.feed().set_current();
    let mut was_full = false;
    loop {
        let is_stopped = writer.feed().is_stopped();
        match writer.write() {
            Ok(Written::Nothing) if is_stopped => return Stopped { last: writer.end().0 - 1, lost: 0 },
            Ok(Written::Nothing) => {
                if writer.feed().fall_asleep() {
                    thread::park();
                }
            }
            Ok(Written::All) => {
                if std::mem::take(&mut was_full) {
                    info!("the journal has room again");
                }
                let global: Vec<Unit> = writer.take_global().collect();
                if !global.is_empty() {
                    inbox.tell(Told::Global(global));
                }
                // Relaxed: a number that only grows; reading it late only keeps values longer.
                let needed_from = inbox.needed_from.load(Ordering::Relaxed);
                writer.trim(needed_from).unwrap_or_else(|error| fail(&error));
                let kept = writer.store().bounds().unwrap_or_else(|error| fail(&error)).count();
                // Relaxed: a statistic; nothing depends on its order.
                writer.counters().kept.store(kept, Ordering::Relaxed);
                let tail = writer.counters().tail_bytes.load(Ordering::Relaxed);
                // Relaxed: only this thread sets it, and the other thread clears it once it is done.
                if tail >= checkpoint_bytes && !inbox.is_busy.swap(true, Ordering::Relaxed) {
                    writer.counters().tail_bytes.store(0, Ordering::Relaxed);
                    let (from, heads) = writer.end();
                    inbox.tell(Told::Begin(from, heads.clone()));
                }
            }
            Ok(Written::Full) => {
                if !was_full {
                    was_full = true;
                    warn!("the disk of the journal is full: nothing is acknowledged until there is room");
                }
                if is_stopped {
                    // Values that were made and not appended have numbers too, so the end of the writer is too far.
                    let last = writer.store().bounds().unwrap_or_else(|error| fail(&error)).last;
                    let lost = writer.behind();
                    error!(
                        lost,
                        last, "the disk of the journal is full: the changes in `lost` units are not written"
                    );
                    return Stopped { last, lost };
                }
                thread::park_timeout(FULL_PAUSE);
            }
            Err(error) => fail(&error),
        }
    }
}

/// Ends the process. It is unknown what is on disk, so nothing in flight may be called durable.
fn fail(error: &dyn std::error::Error) -> ! {
    error!(%error, "the journal failed: this process ends, and what it did not acknowledge is decided by the next start");
    process::exit(EXIT_JOURNAL_FAILED.into())
}

/// Makes checkpoints and exports until it is told to stop.
fn run_checkpoints(
    mut checkpointer: Checkpointer,
    mut exporter: Exporter,
    inbox: &Inbox,
    store: &Store,
    clock: &ServiceClock,
) {
    let mut needed_from = 0;
    loop {
        for message in inbox.take() {
            match message {
                Told::Global(units) => units.iter().for_each(|unit| checkpointer.note(unit)),
                Told::Begin(from, heads) => {
                    if let Err(error) = checkpointer.begin(store, from, &heads, clock.now()) {
                        put_off(&error, inbox);
                    }
                }
                Told::Export(request, answer) => answer(exporter.handle(request, store, clock.now())),
                Told::Stop => return,
            }
        }
        match checkpointer.poll(clock.now()) {
            Ok(None) => {}
            Ok(Some(from)) => {
                needed_from = from;
                let JournalCounters { checkpoints, checkpoint_from, checkpoint_at, .. } = &*inbox.counters;
                // Relaxed: statistics; nothing depends on their order.
                checkpoints.fetch_add(1, Ordering::Relaxed);
                checkpoint_from.store(from, Ordering::Relaxed);
                checkpoint_at.store(clock.now().0, Ordering::Relaxed);
                // Relaxed: see where it is read.
                inbox.is_busy.store(false, Ordering::Relaxed);
                info!(from, "a checkpoint is complete");
            }
            Err(error) => put_off(&error, inbox),
        }
        exporter.expire(clock.now());
        if !exporter.is_active() {
            // Relaxed: see where it is read.
            inbox.needed_from.store(needed_from, Ordering::Relaxed);
        }
        let due = [checkpointer.next_deadline(), exporter.next_deadline()].into_iter().flatten().min();
        let idle = || checkpointer.port().is_idle() && lock(&inbox.messages).is_empty();
        if inbox.bell.sleep_if(idle) {
            match due {
                None => thread::park(),
                Some(due) => thread::park_timeout(Duration::from_nanos(due.nanos_since(clock.now()))),
            }
        }
    }
}

fn put_off(error: &dyn std::error::Error, inbox: &Inbox) {
    warn!(%error, "a checkpoint was given up; the journal grows until one succeeds");
    // Relaxed: see where it is read.
    inbox.is_busy.store(false, Ordering::Relaxed);
}
