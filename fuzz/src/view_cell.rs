//! The cell through which views are published, tested with real threads.
//!
//! `core/src/link/cell.rs` uses crossbeam-epoch, whose queues are too large for a model checker. So
//! `core/tests/loom_views.rs` models only the protocol. Here one thread publishes into the real cell and others
//! read it. cargo-fuzz adds the address sanitizer: destroying a box or a version that a reader may still follow
//! is a use after free.
//!
//! The input chooses the number of threads, their actions and their rhythm. The machine decides how they
//! interleave, so the same input may have another result the next time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use arbitrary::{Arbitrary, Unstructured};
use wharf_core::link::ViewCell;

/// The highest number of reading threads.
const READERS_MAX: usize = 3;
/// The highest number of turns of one thread.
const TURNS_MAX: usize = 64;
/// The highest number of publications in one turn.
const BURST_MAX: u64 = 64;
/// The highest number of versions that one reader keeps.
const KEPT_MAX: usize = 8;
/// The number of words in a version. It is more than a small allocation, so that a torn version shows.
const WORDS: usize = 8;
/// The value of every word after a version is destroyed.
const DESTROYED: u64 = u64::MAX;
/// The number of publications after which the epoch must have released everything. The other threads have ended
/// before.
const DRAIN_MAX: u64 = 10_000;

/// One turn of the publisher.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Publish {
    /// Publishes several versions, one after the other.
    Burst(u8),
    /// Publishes one version and reads it back.
    AndLoad,
    /// Lets another thread run.
    Yield,
}

/// One turn of a reader.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Read {
    /// Loads several times and drops each version at once.
    Burst(u8),
    /// Loads once and keeps the version.
    Keep,
    /// Checks every version that it keeps.
    Look,
    /// Drops the oldest version that it keeps.
    LetGo,
    /// Lets another thread run.
    Yield,
}

/// The events of a run, so that a test can check that they occurred.
#[derive(Clone, Copy, Debug, Default)]
pub struct ViewCellCounts {
    /// Versions published, including the first.
    pub published: u64,
    /// Versions loaded.
    pub loaded: u64,
    /// Loads that saw another version than the previous load on the same thread.
    pub moved: u64,
}

/// The numbers of versions that were made and destroyed.
#[derive(Debug, Default)]
struct Tally {
    made: AtomicU64,
    destroyed: AtomicU64,
}

/// The content of the cell. Every word is the number of the version.
struct Version {
    words: [u64; WORDS],
    tally: Arc<Tally>,
}

impl Version {
    fn new(number: u64, tally: &Arc<Tally>) -> Arc<Self> {
        // Relaxed: compared after the threads were joined.
        tally.made.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { words: [number; WORDS], tally: Arc::clone(tally) })
    }

    /// Returns the number of the version. Panics if the version is torn or destroyed.
    fn number(&self) -> u64 {
        let number = self.words[0];
        assert!(number != DESTROYED, "a version that was destroyed is read");
        assert!(self.words.iter().all(|&word| word == number), "version {number} is torn: {:?}", self.words);
        number
    }
}

impl Drop for Version {
    fn drop(&mut self) {
        let number = self.number();
        self.words = [DESTROYED; WORDS];
        // Relaxed: compared after the threads were joined.
        let destroyed = self.tally.destroyed.fetch_add(1, Ordering::Relaxed);
        let made = self.tally.made.load(Ordering::Relaxed);
        assert!(destroyed < made, "version {number} is destroyed twice");
    }
}

/// Runs a reader until the publisher is done, and through all its turns once more.
fn read(cell: Arc<ViewCell<Version>>, turns: &[Read], done: &AtomicBool) -> ViewCellCounts {
    let mut counts = ViewCellCounts::default();
    let mut kept: VecDeque<(u64, Arc<Version>)> = VecDeque::new();
    let mut newest = 0;
    let mut load = |counts: &mut ViewCellCounts| {
        let version = cell.load();
        let number = version.number();
        assert!(number >= newest, "version {number} is read after version {newest}");
        counts.loaded += 1;
        counts.moved += u64::from(number > newest);
        newest = number;
        (number, version)
    };
    loop {
        // Acquire: pairs with the Release in `publish`, so that the last turns see the last version.
        let last = done.load(Ordering::Acquire);
        for turn in turns {
            match turn {
                Read::Burst(count) => (0..=*count).for_each(|_| drop(load(&mut counts))),
                Read::Keep if kept.len() < KEPT_MAX => kept.push_back(load(&mut counts)),
                Read::Keep | Read::LetGo => drop(kept.pop_front()),
                Read::Look => kept.iter().for_each(|(number, version)| assert_eq!(*number, version.number())),
                Read::Yield => thread::yield_now(),
            }
        }
        if last {
            load(&mut counts);
            return counts;
        }
    }
}

/// Runs the publisher. Returns the number of the last version, which is the number of versions published.
fn publish(cell: &ViewCell<Version>, turns: &[Publish], tally: &Arc<Tally>, done: &AtomicBool) -> u64 {
    let mut number = 1;
    let mut next = || {
        number += 1;
        cell.publish(Version::new(number, tally));
        number
    };
    for turn in turns {
        match turn {
            Publish::Burst(count) => (0..=u64::from(*count) % BURST_MAX).for_each(|_| {
                next();
            }),
            Publish::AndLoad => assert_eq!(next(), cell.load().number()),
            Publish::Yield => thread::yield_now(),
        }
    }
    // Release: pairs with the Acquire in `read`.
    done.store(true, Ordering::Release);
    number
}

/// Publishes further versions until the epoch has destroyed all replaced ones.
fn drain(tally: &Tally) {
    let spare = Arc::new(Tally::default());
    let cell = ViewCell::new(Version::new(1, &spare));
    for number in 0..DRAIN_MAX {
        // Relaxed: the destroying threads were joined, or share the epoch's own order.
        if tally.destroyed.load(Ordering::Relaxed) == tally.made.load(Ordering::Relaxed) {
            return;
        }
        cell.publish(Version::new(number, &spare));
        thread::yield_now();
    }
    panic!("versions are never destroyed: {tally:?}");
}

/// Publishes into a cell on this thread while others read from it. If readers outlive the publisher's
/// reference, one of them drops the cell.
///
/// # Panics
/// Panics when a reader sees a version that is torn, destroyed or older than one that it saw before. Panics
/// when a version is never destroyed. Under an address sanitizer, the process ends when freed memory is read.
#[must_use]
pub fn run_view_cell(data: &[u8]) -> ViewCellCounts {
    let mut input = Unstructured::new(data);
    let readers = input.int_in_range(1..=READERS_MAX).unwrap_or(1);
    let mut turns: Vec<Vec<Read>> = vec![Vec::new(); readers];
    let mut publications = Vec::new();
    while !input.is_empty() && publications.len() < TURNS_MAX {
        publications.extend(input.arbitrary::<Publish>());
        for turns in &mut turns {
            turns.extend(input.arbitrary::<Read>());
        }
    }
    let tally = Arc::new(Tally::default());
    let cell = Arc::new(ViewCell::new(Version::new(1, &tally)));
    let done = AtomicBool::new(false);
    let counts = thread::scope(|scope| {
        let done = &done;
        let threads: Vec<_> = turns
            .iter()
            .map(|turns| {
                let cell = Arc::clone(&cell);
                scope.spawn(move || read(cell, turns, done))
            })
            .collect();
        let published = publish(&cell, &publications, &tally, done);
        assert_eq!(cell.load().number(), published);
        drop(cell);
        let mut counts = ViewCellCounts { published, ..ViewCellCounts::default() };
        // Each thread is joined on its own: its epoch data is released at the join, not at the end of the
        // scope.
        for thread in threads {
            let read = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            counts.loaded += read.loaded;
            counts.moved += read.moved;
        }
        counts
    });
    drain(&tally);
    counts
}
