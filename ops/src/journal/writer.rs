//! The writer: takes units from the engine, makes values of them, and says what is durable.
//!
//! All units that came in since the last append become one group commit. The writer is a state machine without a
//! thread: the service runs it on the thread of the journal, the simulator runs it by hand over a storage that fails.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wharf_core::ids::StatementId;
use wharf_core::journal::{Append, Changes, JournalFeed, JournalStore, StoreError, Stream, Unit};
use wharf_core::resource::ResourceRegistry;

use super::events::EventsStart;
use super::log::Log;
use super::recent::{Recent, StoredValue};
use super::retention::Retention;
use super::value::{Before, Content, Header, UNITS_BYTES, encode, encode_unit};

/// The number of effects in each stream.
pub type Heads = BTreeMap<Stream, u64>;

/// Counters of a writer, for metrics and status.
#[derive(Debug, Default)]
pub struct JournalCounters {
    /// Appends that are durable.
    pub appends: AtomicU64,
    /// Units that are durable.
    pub units: AtomicU64,
    /// The bytes of the values.
    pub bytes: AtomicU64,
    /// The bytes of the values since the last checkpoint.
    pub tail_bytes: AtomicU64,
    /// 1 while the storage is full.
    pub full: AtomicU64,
    /// Appends that the storage has.
    pub kept: AtomicU64,
    /// Checkpoints that were completed since the start.
    pub checkpoints: AtomicU64,
    /// The first append that the last checkpoint does not cover.
    pub checkpoint_from: AtomicU64,
    /// The time when the last checkpoint was complete, or that of the start.
    pub checkpoint_at: AtomicU64,
    /// The bytes of the values that are kept.
    pub kept_bytes: AtomicU64,
}

/// What a call of [`JournalWriter::write`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// There was nothing to write.
    Nothing,
    /// Everything that was there is durable.
    All,
    /// The storage is full. The same is tried again with the next call.
    Full,
}

/// One value that was not appended yet.
struct Pending {
    number: u64,
    streams: Vec<(Stream, u64, u32)>,
    value: Vec<u8>,
    /// What the values up to and with this one have.
    after: Before,
    /// The position of the queue once it is durable.
    position: u64,
}

/// Writes the journal of one start.
pub struct JournalWriter<S> {
    feed: JournalFeed,
    store: S,
    epoch: u64,
    /// The number of the next append.
    next: u64,
    heads: Heads,
    kinds: Arc<ResourceRegistry>,
    /// The position of the queue up to which units are in values.
    taken: u64,
    pending: Vec<Pending>,
    /// Units that were taken and are in no value yet. True if a value may end with the unit.
    waiting: Vec<(Unit, bool)>,
    commits: Commits,
    units: Vec<Unit>,
    /// Units with global records, for the checkpoint.
    global: Vec<Unit>,
    counters: Arc<JournalCounters>,
    /// What the values that were made have.
    made: Before,
    retention: Retention,
    /// Where those who follow events find the newest values.
    recent: Option<Arc<Recent>>,
}

impl<S: JournalStore> JournalWriter<S> {
    /// Creates the writer of a start that continues after append `last` with these heads. `kinds` are the resource kinds
    /// that are recorded.
    #[must_use]
    pub fn new(
        feed: JournalFeed,
        store: S,
        (epoch, last): (u64, u64),
        heads: Heads,
        kinds: Arc<ResourceRegistry>,
    ) -> Self {
        let counters = Arc::default();
        let pending = Vec::new();
        Self {
            feed,
            store,
            epoch,
            next: last + 1,
            heads,
            kinds,
            taken: 0,
            pending,
            waiting: Vec::new(),
            commits: Commits::default(),
            units: Vec::new(),
            global: Vec::new(),
            counters,
            made: Before::default(),
            retention: Retention::new(0),
            recent: None,
        }
    }

    /// Numbers events from `start` on, publishes values to `recent`, and keeps `kept_bytes` bytes of values for those who
    /// follow events.
    #[must_use]
    pub fn with_events(self, start: &EventsStart, recent: Arc<Recent>, kept_bytes: u64) -> Self {
        let retention = Retention::new(kept_bytes);
        Self { made: start.before, retention, recent: Some(recent), ..self }
    }

    /// Returns the engine's end of the journal.
    #[must_use]
    pub fn feed(&self) -> &JournalFeed {
        &self.feed
    }

    /// Returns the counters.
    #[must_use]
    pub fn counters(&self) -> &Arc<JournalCounters> {
        &self.counters
    }

    /// Returns the number of the next append, and the heads before it. Everything that is put into the queue from now on is
    /// in that append or after it, once [`write`](Self::write) has returned [`Written::All`].
    #[must_use]
    pub fn end(&self) -> (u64, &Heads) {
        (self.next, &self.heads)
    }

    /// Returns the number of units that came in and are not durable.
    #[must_use]
    pub fn behind(&self) -> u64 {
        // Relaxed: only the thread of this writer sets it.
        self.feed.position() - self.counters.units.load(Ordering::Relaxed)
    }

    /// Takes the units with global records since the last call.
    pub fn take_global(&mut self) -> std::vec::Drain<'_, Unit> {
        self.global.drain(..)
    }

    /// Returns the storage.
    pub fn store(&mut self) -> &mut S {
        &mut self.store
    }

    /// Writes everything that came in, and says that it is durable.
    ///
    /// # Errors
    /// When it is unknown what the storage has. The process must end then.
    pub fn write(&mut self) -> Result<Written, StoreError> {
        if self.pending.is_empty() {
            self.take();
        }
        if self.pending.is_empty() {
            return Ok(Written::Nothing);
        }
        let pending = std::mem::take(&mut self.pending);
        let mut left = pending.into_iter();
        while let Some(one) = left.next() {
            let Pending { number, streams, value, position, .. } = &one;
            let append = Append { epoch: self.epoch, number: *number, streams, value };
            match self.store.append(&append) {
                Ok(()) => {}
                Err(StoreError::Full(_)) => {
                    self.pending = std::iter::once(one).chain(left).collect();
                    self.set_full(true);
                    return Ok(Written::Full);
                }
                Err(error) => return Err(error),
            }
            let durable = self.store.durable()?;
            assert!(durable == *number, "the storage is at append {durable}, not {number}");
            let position = *position;
            let bytes = value.len() as u64;
            // First, so that a client with a reply finds its events.
            self.publish(one);
            self.feed.set_durable(position);
            // Relaxed: statistics; nothing depends on their order.
            self.counters.appends.fetch_add(1, Ordering::Relaxed);
            self.counters.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.counters.tail_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.counters.units.store(position, Ordering::Relaxed);
        }
        self.set_full(false);
        Ok(Written::All)
    }

    /// Gives a value that is durable to those who follow events.
    fn publish(&mut self, one: Pending) {
        self.retention.appended(one.after);
        if let Some(recent) = &self.recent {
            let last = one.after.events;
            recent.publish(StoredValue { number: one.number, last, bytes: one.value });
        }
    }

    /// Drops values that nobody needs. A start needs those from append `needed_from` on.
    ///
    /// # Errors
    /// When the storage fails.
    pub fn trim(&mut self, needed_from: u64) -> Result<(), StoreError> {
        self.retention.trim(&mut self.store, needed_from)?;
        // Relaxed: a statistic; nothing depends on its order.
        self.counters.kept_bytes.store(self.retention.bytes(), Ordering::Relaxed);
        Ok(())
    }

    fn set_full(&self, is_full: bool) {
        // Relaxed: a statistic; nothing depends on its order.
        if self.counters.full.swap(u64::from(is_full), Ordering::Relaxed) != u64::from(is_full) {
            self.feed.set_full(is_full);
        }
    }

    /// Takes the units that came in, and makes values of them. The effects of a statement over several shards are in one
    /// value. So units wait from the first of its shards on, until all of them have committed it.
    fn take(&mut self) {
        let mut units = std::mem::take(&mut self.units);
        let to = self.feed.take(&mut units);
        for unit in units.drain(..) {
            self.commits.add(&unit);
            self.waiting.push((unit, self.commits.is_whole()));
        }
        self.units = units;
        assert!(self.taken + self.waiting.len() as u64 == to, "the queue says {to}");
        let ready = self.waiting.iter().rposition(|&(_, is_whole)| is_whole).map_or(0, |last| last + 1);
        let rest = self.waiting.split_off(ready);
        let mut begun = Begun::default();
        let mut position = self.taken;
        for (unit, is_whole) in std::mem::replace(&mut self.waiting, rest) {
            if let Changes::Kinds(names, unit_instances) = &unit.changes {
                let names = names.iter().map(String::as_str);
                let kinds = ResourceRegistry::with_names(names, unit_instances);
                self.kinds = Arc::new(kinds.expect("the registrar has learnt them"));
                self.recent.iter().for_each(|recent| recent.set_kinds(&self.kinds));
            }
            begun.add(&unit, &self.kinds);
            position += 1;
            if begun.bytes.len() >= UNITS_BYTES && is_whole {
                self.end_value(std::mem::take(&mut begun), position);
            }
            self.global.extend(unit.into_global());
        }
        if begun.units > 0 {
            self.end_value(begun, position);
        }
        self.taken = position;
    }

    fn end_value(&mut self, begun: Begun, position: u64) {
        let number = self.next;
        self.next += 1;
        let mut streams = Vec::new();
        for (stream, count) in begun.streams {
            let head = self.heads.entry(stream).or_default();
            streams.push((stream, *head, count));
            *head += u64::from(count);
        }
        let content = Content { units: begun.units, events: begun.events, before: self.made };
        let header = Header::new(self.epoch, number, &streams, &content);
        let value = encode(&header, &begun.bytes);
        self.made.events += u64::from(begun.events);
        self.made.bytes += value.len() as u64;
        self.pending.push(Pending { number, streams, value, after: self.made, position });
    }
}

impl JournalWriter<Log> {
    /// Sets how many old values are dropped at once. Nothing may have been written.
    pub fn set_trim_step(&mut self, values: u64) {
        self.store.set_trim_step(values);
        self.retention.set_step(values);
    }
}

/// Statements over several shards that are being committed.
#[derive(Default)]
struct Commits {
    /// The number of shards that are left, by statement.
    left: BTreeMap<StatementId, u16>,
    /// The statements that some shards have committed, but not all.
    begun: BTreeSet<StatementId>,
}

impl Commits {
    fn add(&mut self, unit: &Unit) {
        if let Changes::Decided(statement, shards) = unit.changes {
            self.left.remove(&statement);
            if shards > 0 {
                self.left.insert(statement, shards);
            }
            assert!(!self.begun.contains(&statement), "{statement} is decided before a shard commits it");
        }
        for statement in &unit.finished {
            let Some(left) = self.left.get_mut(statement) else { continue };
            *left -= 1;
            if *left > 0 {
                self.begun.insert(*statement);
            } else {
                self.left.remove(statement);
                self.begun.remove(statement);
            }
        }
    }

    /// Returns whether each statement so far is committed by all of its shards or by none.
    fn is_whole(&self) -> bool {
        self.begun.is_empty()
    }
}

/// A value in the making.
#[derive(Default)]
struct Begun {
    bytes: Vec<u8>,
    streams: BTreeMap<Stream, u32>,
    units: u32,
    events: u32,
}

impl Begun {
    fn add(&mut self, unit: &Unit, kinds: &ResourceRegistry) {
        encode_unit(unit, kinds, &mut self.bytes);
        self.units += 1;
        self.events += u32::try_from(unit.event_count()).expect("a unit has the effects of one batch");
        match &unit.changes {
            Changes::Shard { effects, .. } => {
                for effect in effects {
                    *self.streams.entry(Stream(effect.partition().0)).or_default() += 1;
                }
            }
            _ => *self.streams.entry(Stream::GLOBAL).or_default() += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use wharf_core::ids::{Incarnation, ShardId};
    use wharf_core::time::Time;

    use super::*;

    fn statement(number: u64) -> StatementId {
        StatementId { incarnation: Incarnation(1), planner: 0, number }
    }

    fn decided(number: u64, shards: u16) -> Unit {
        Unit::new(Time(0), Changes::Decided(statement(number), shards))
    }

    fn shard(finished: &[u64]) -> Unit {
        let changes =
            Changes::Shard { shard: ShardId(0), effects: Vec::new(), policy: None, granularity: None };
        let finished = finished.iter().map(|&number| statement(number)).collect();
        Unit { finished, ..Unit::new(Time(0), changes) }
    }

    /// A value that ended in between would let a crash leave a statement on some of its shards.
    #[test]
    fn a_statement_is_whole_when_all_of_its_shards_have_committed_it() {
        let steps = [
            (decided(1, 3), true),
            (shard(&[]), true),
            (shard(&[1]), false),
            (decided(2, 2), false),
            (shard(&[2]), false),
            (shard(&[1]), false),
            (shard(&[1]), false),
            (shard(&[2]), true),
            // It was aborted after all.
            (decided(3, 2), true),
            (decided(3, 0), true),
            // A statement of another coordinator, whose decision is not recorded.
            (shard(&[4]), true),
            (decided(5, 1), true),
            (shard(&[5]), true),
        ];
        let mut commits = Commits::default();
        for (step, (unit, is_whole)) in steps.into_iter().enumerate() {
            commits.add(&unit);
            assert_eq!(commits.is_whole(), is_whole, "after step {step}");
        }
        assert!(commits.left.is_empty());
    }
}
