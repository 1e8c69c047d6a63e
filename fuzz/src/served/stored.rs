//! The store of a service that served some requests: its files, and its portable file.

use std::sync::Arc;
use std::task::Waker;

use wharf_core::link::Doorbell;
use wharf_core::state::StoreState;
use wharf_ops::journal::{
    Durability, Export, JournalBounds, JournalLoops, JournalStart, JournalTurn, LogReader, Store,
};

use super::bed::{Bed, PARTITIONS, Setup};
use super::peers::Peers;
use super::{Run, script};
use crate::bytes_of_seed;
use crate::disk::{Disk, Fate, Image};
use crate::sim::choices::Choices;

/// The number of requests in each start.
const REQUESTS: usize = 24;

/// A store that was stopped once, started again, and then lost its power.
pub(crate) struct Stored {
    /// Its files.
    pub(crate) image: Image,
    /// Its portable file.
    pub(crate) portable: Vec<u8>,
}

impl Stored {
    /// Makes the store. It always has the same books.
    pub(crate) fn new() -> Self {
        let disk = Disk::new(&Image::new(), false);
        start(&disk, 1, |life| life.stop());
        start(&disk, 2, |life| {
            let mut portable = Vec::new();
            let mut export = Export::begin(&life.store, life.values.clone()).expect("the store can be read");
            while export.piece(&mut portable).expect("the store can be read") {}
            Self { image: life.disk.image(Fate::All), portable }
        })
    }
}

/// One start of a service over a disk.
struct Life<'a> {
    disk: &'a Disk,
    run: Run<'a>,
    store: Arc<Store>,
    loops: JournalLoops,
    values: LogReader,
}

/// Starts the service, lets it serve requests that depend on `seed`, and ends it.
fn start<T>(disk: &Disk, seed: u64, end: impl FnOnce(Life<'_>) -> T) -> T {
    let files = Arc::new(disk.clone());
    let (mut store, state) = Store::open_files(files, PARTITIONS, Durability::Sync).expect("a sound store");
    let setup = Setup { journal: true, in_flight_max: 64, ..Setup::default() };
    let mut bed = Bed::over(setup, state.clone());
    let (feed, port) = bed.take_journal().expect("the engine has a journal");
    store.record_undone(&feed, state.now);
    let begun = store.begin(bed.incarnation, &state).expect("the disk works");
    let (log, last, heads) = begun.expect("this store has a journal");
    let values = log.reader();
    let store = Arc::new(store);
    let loops = JournalLoops::begin(JournalStart {
        feed,
        port,
        events_bell: Arc::new(Doorbell::new(Waker::noop().clone())),
        store: &store,
        log,
        last,
        heads,
        globals: StoreState::globals(&state),
        bounds: JournalBounds::new(1 << 20, 1 << 20),
        now: state.now,
    });
    let loops = loops.expect("the disk works");
    let bytes = bytes_of_seed(seed, 4000);
    let kinds = script::kinds(false);
    let run = Run { kinds, choices: Choices::Given(&bytes), bed, peers: Peers::default() };
    let mut life = Life { disk, run, store, loops, values };
    life.serve();
    end(life)
}

impl Life<'_> {
    /// Writes what came in.
    fn write(&mut self) -> JournalTurn {
        self.loops.journal.turn().expect("the disk works")
    }

    fn serve(&mut self) {
        self.run.connect(true);
        for _ in 0..REQUESTS {
            self.run.send(0);
            self.run.peers.feed(&mut self.run.bed, 0, usize::MAX);
            for _ in 0..8 {
                self.run.bed.pass(100);
                self.run.bed.run_all();
                self.write();
            }
            self.run.peers.take(&mut self.run.bed, 0).expect("the service answers");
            self.run.peers.write(&mut self.run.bed, 0);
        }
    }

    /// Stops the service cleanly.
    fn stop(mut self) {
        for _ in 0..super::ROUNDS_MAX {
            let moved = self.run.finish_round().expect("the service answers");
            self.write();
            if moved == 0 && self.run.peers.open().is_empty() {
                break;
            }
            self.run.bed.pass(1_000);
        }
        let state = self.run.bed.state();
        self.loops.journal.stop().stop();
        let last = loop {
            if let JournalTurn::Ended { last, .. } = self.write() {
                break last;
            }
        };
        self.store.checkpoint(&state, Some(last)).expect("the disk works");
    }
}
