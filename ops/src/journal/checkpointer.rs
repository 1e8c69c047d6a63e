//! The checkpointer: reads the durable state from the shards, page by page, while they work.
//!
//! A checkpoint begins at an append: everything that was put into the journal before is in the pages, because they are
//! read later. The appends from there on lead from the pages to any later state, although the pages are of different
//! times ([`Rebuild`](wharf_core::recovery::Rebuild)). A checkpoint is complete once all units that a page may show are
//! durable. Otherwise a crash could leave a page that shows more than the journal does.

use std::sync::Arc;

use wharf_core::ids::ShardId;
use wharf_core::journal::Unit;
use wharf_core::recovery::Globals;
use wharf_core::reply::reply_of;
use wharf_core::router::{Port, PortReply, PortRequest};
use wharf_core::shard::{CheckpointPage, Command};
use wharf_core::state::StoreState;
use wharf_core::time::Time;

use super::checkpoint::CheckpointWriter;
use super::recent::Recent;
use super::row::{self, Row};
use super::store::Store;
use super::writer::Heads;
use crate::file_error::FileError;

/// A shard spends at most one part in this many on pages.
const PAGE_SHARE: u64 = 5;

/// The longest pause between two pages, in ns.
const PAUSE_MAX_NS: u64 = 10_000_000;

/// Where a checkpoint is.
enum Step {
    /// It waits for a page of this shard, which was asked for then.
    Asking(ShardId, Time),
    /// It asks for the page of this shard from this slot on, when the time has come.
    Pausing(ShardId, u32, Time),
    /// All pages are written. It waits until the journal is durable up to this position.
    Settling(u64),
}

struct Run {
    writer: CheckpointWriter,
    step: Step,
    from: u64,
    begun: Time,
    /// The number of resource kinds that are written.
    kinds: usize,
}

/// Makes checkpoints of one start. It is a state machine without a thread.
pub struct Checkpointer {
    port: Port,
    globals: Globals,
    partitions: u16,
    run: Option<Run>,
    /// Says which appends are durable.
    recent: Option<Arc<Recent>>,
}

impl Checkpointer {
    /// Creates the checkpointer over the [global records](StoreState::globals) of the state that the start was opened with.
    /// `port` is its own.
    #[must_use]
    pub fn new(port: Port, state: StoreState) -> Self {
        let partitions = u16::try_from(state.partitions.len()).expect("PARTITIONS_MAX fits u16");
        Self { port, globals: Globals::new(state), partitions, run: None, recent: None }
    }

    /// Lets checkpoints say which appends they show. `recent` is where the writer publishes values.
    #[must_use]
    pub fn with_appends(self, recent: Arc<Recent>) -> Self {
        Self { recent: Some(recent), ..self }
    }

    /// Returns its port.
    pub fn port(&mut self) -> &mut Port {
        &mut self.port
    }

    /// Notes the global records of a unit. All units before the begin of a checkpoint must be noted before it.
    pub fn note(&mut self, unit: &Unit) {
        self.globals.apply(unit);
    }

    /// Returns whether a checkpoint is under way.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.run.is_some()
    }

    /// Begins a checkpoint that append `from` and those after it continue. `heads` are those before that append.
    ///
    /// # Errors
    /// When the store cannot be written.
    ///
    /// # Panics
    /// If a checkpoint is under way.
    pub fn begin(&mut self, store: &Store, from: u64, heads: &Heads, now: Time) -> Result<(), FileError> {
        assert!(self.run.is_none(), "one checkpoint at a time");
        let mut writer = store.begin_checkpoint(from)?;
        writer.heads(heads)?;
        let step = Step::Pausing(ShardId(0), 0, now);
        self.run = Some(Run { writer, step, from, begun: now, kinds: 0 });
        self.write_kinds()
    }

    /// Gives up a checkpoint that is under way. The one before it stays.
    pub fn give_up(&mut self) {
        self.run = None;
    }

    /// Returns the time at which [`poll`](Self::poll) must be called, if it waits for a time.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        match self.run.as_ref()?.step {
            Step::Pausing(_, _, due) => Some(due),
            _ => None,
        }
    }

    /// Asks for the next page if its time has come.
    fn ask(&mut self, now: Time) {
        let Some(run) = &mut self.run else { return };
        let Step::Pausing(shard, from, due) = run.step else { return };
        if due > now {
            return;
        }
        run.step = Step::Asking(shard, now);
        let request = PortRequest::Shard(shard, Command::Checkpoint { from });
        let at_once = self.port.submit(0, request, now);
        assert!(matches!(at_once, Ok(None)), "one page at a time is asked for");
        self.port.flush();
    }

    /// Writes the resource kinds, if there are new ones. Rows have them by number.
    fn write_kinds(&mut self) -> Result<(), FileError> {
        let run = self.run.as_mut().expect("a checkpoint is under way");
        let kinds = &self.port.catalog().resources;
        if run.kinds == 0 || run.kinds != kinds.len() + 1 {
            run.kinds = kinds.len() + 1;
            let names = kinds.names().map(str::to_owned).collect();
            run.writer.row(&Row::Kinds(names, kinds.unit_instances()))?;
        }
        Ok(())
    }

    /// Goes on: takes a page and asks for the next one, or ends the checkpoint. Returns the append from which the journal
    /// is needed once a checkpoint is complete.
    ///
    /// # Errors
    /// When the store cannot be written. The checkpoint is given up, and the one before it stays.
    pub fn poll(&mut self, now: Time) -> Result<Option<u64>, FileError> {
        let mut pages: Vec<CheckpointPage> = Vec::new();
        self.port.poll(now, |_, reply: PortReply| {
            let page: Box<CheckpointPage> = reply_of(reply_of::<wharf_core::shard::Outcome, _>(reply));
            pages.push(*page);
        });
        let moved = pages.into_iter().try_for_each(|page| self.write_page(page, now));
        self.ask(now);
        let done = moved.and_then(|()| self.settle());
        if done.is_err() {
            self.run = None;
        }
        done
    }

    fn write_page(&mut self, page: CheckpointPage, now: Time) -> Result<(), FileError> {
        // The page of a checkpoint that was given up.
        if self.run.is_none() {
            return Ok(());
        }
        self.write_kinds()?;
        let kinds = self.port.catalog().resources.clone();
        let shards = self.port.shard_count();
        let run = self.run.as_mut().expect("just seen");
        let Step::Asking(shard, asked) = run.step else { panic!("no page was asked for") };
        let pause = (now.nanos_since(asked) * (PAGE_SHARE - 1)).min(PAUSE_MAX_NS);
        let due = now.plus_nanos(pause);
        for partition in &page.partitions {
            self.globals.meet_nodes(partition);
            row::rows_of(partition, &kinds).try_for_each(|row| run.writer.row(&row))?;
        }
        match page.next {
            Some(next) => run.step = Step::Pausing(shard, next, due),
            None => {
                let (policy, granularity) = &page.policy;
                run.writer.row(&row::shard_row(shard.0, policy, granularity.as_ref(), &kinds))?;
                let next = ShardId(shard.0 + 1);
                if next.index() < shards {
                    run.step = Step::Pausing(next, 0, due);
                } else {
                    let journal = self.port.journal().expect("only a journal has checkpoints");
                    run.step = Step::Settling(journal.position());
                }
            }
        }
        Ok(())
    }

    /// Ends the checkpoint if everything that it shows is durable.
    fn settle(&mut self) -> Result<Option<u64>, FileError> {
        let Some(Run { step: Step::Settling(position), .. }) = self.run else { return Ok(None) };
        let journal = self.port.journal().expect("only a journal has checkpoints");
        if journal.wait_for(position) {
            return Ok(None);
        }
        // Those are durable: a value is published before its position is. The pages show nothing after them.
        let shown = self.recent.as_ref().map_or(0, |recent| recent.last_append());
        let Run { mut writer, from, begun, .. } = self.run.take().expect("just seen");
        let mut state = self.globals.state(self.partitions);
        state.now = state.now.max(begun);
        // The catalog has every kind that a page uses.
        let kinds = &self.port.catalog().resources;
        state.registrar.resources = kinds.names().map(str::to_owned).collect();
        state.registrar.unit_instances = kinds.unit_instances();
        writer.state(&state)?;
        writer.finish(&state, shown)?;
        Ok(Some(from))
    }
}
