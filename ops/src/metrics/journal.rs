//! Metrics of the journal: what is written, what is kept, and the files.

use std::sync::Arc;

use prometheus_client::registry::Unit;
use wharf_core::link::Clock;
use wharf_core::time::Time;

use super::{Counter, Samples, load, plain};
use crate::daemon::ServiceClock;
use crate::journal::{JournalCounters, Store};

/// What a scrape reads of the journal. Without a journal, only the files of the store.
pub struct JournalFigures {
    /// The counters of the journal, if there is one.
    pub counters: Option<Arc<JournalCounters>>,
    /// The store, for the lengths of its files.
    pub store: Arc<Store>,
    /// The clock of the service.
    pub clock: ServiceClock,
}

/// One metric of a scrape.
type Metric = (&'static str, &'static str, Option<Unit>, Samples);

const COUNTERS: [Counter<JournalCounters>; 4] = [
    ("journal_appends", "Appends to the journal since the start", |journal| load(&journal.appends)),
    ("journal_units", "Units that are durable since the start", |journal| load(&journal.units)),
    ("journal_bytes", "Bytes of the values that were appended", |journal| load(&journal.bytes)),
    ("checkpoints", "Checkpoints that were completed since the start", |journal| load(&journal.checkpoints)),
];

const GAUGES: [Counter<JournalCounters>; 5] = [
    ("journal_tail_bytes", "Bytes of values since the last checkpoint was begun", |journal| {
        load(&journal.tail_bytes)
    }),
    ("journal_kept_appends", "Appends that the journal has, covered ones included", |journal| {
        load(&journal.kept)
    }),
    ("journal_kept_bytes", "Bytes of the values that the journal has, covered ones included", |journal| {
        load(&journal.kept_bytes)
    }),
    ("journal_full", "1 while the disk is full, and nothing is acknowledged", |journal| load(&journal.full)),
    ("checkpoint_position", "The first append that the last checkpoint does not cover", |journal| {
        load(&journal.checkpoint_from)
    }),
];

impl JournalFigures {
    /// Returns the metrics.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let of_file = |(name, bytes): (&str, u64)| (vec![("file", name.to_owned())], bytes as f64);
        let files = self.store.file_bytes().into_iter().map(of_file).collect();
        let mut metrics: Vec<Metric> =
            vec![("file_bytes", "Lengths of the files of the store", None, Samples::Gauge(files))];
        let Some(counters) = &self.counters else { return metrics };
        let counter = |&(name, help, of): &Counter<JournalCounters>| -> Metric {
            (name, help, None, Samples::Counter(plain(of(counters))))
        };
        let gauge = |&(name, help, of): &Counter<JournalCounters>| -> Metric {
            (name, help, None, Samples::Gauge(plain(of(counters) as f64)))
        };
        metrics.extend(COUNTERS.iter().map(counter));
        metrics.extend(GAUGES.iter().map(gauge));
        let age = self.clock.now().nanos_since(Time(load(&counters.checkpoint_at)));
        let help = "Time since a checkpoint was complete, or since the start";
        let age = Samples::Gauge(plain(age as f64 / 1e9));
        metrics.push(("checkpoint_age", help, Some(Unit::Seconds), age));
        metrics
    }
}
