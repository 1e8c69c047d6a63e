//! `wharf journal check`: verifies a store, and changes nothing.
//!
//! Every value after the checkpoint is verified on its own, so one damaged value does not hide the next. If all are
//! sound, they are applied as a start does, an engine is opened over the books, and every invariant is checked.

use std::path::Path;
use std::sync::Arc;
use std::task::Waker;

use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::hash::StateHash;
use wharf_core::ids::Incarnation;
use wharf_core::journal::Changes;
use wharf_core::state::StoreState;

use super::files::{Directory, Files};
use super::overlay::Overlay;
use super::row::catalog_of;
use super::store::{Recovery, Store};
use super::walk::{Damage, Step, Walk};
use crate::file_error::FileError;

/// Numbers of the values after the checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// The first append that the checkpoint does not cover, and the last append. The first comes after the last if the
    /// checkpoint covers all.
    pub appends: (u64, u64),
    /// Units in sound values.
    pub units: u64,
    /// Effects in them.
    pub effects: u64,
    /// The length of sound values in bytes.
    pub bytes: u64,
}

/// What the books have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Registered nodes.
    pub nodes: usize,
    /// Live allocations.
    pub allocations: usize,
    /// Groups.
    pub groups: usize,
    /// Queues of jobs.
    pub queues: usize,
    /// Jobs, ended ones included.
    pub jobs: usize,
    /// The canonical hash.
    pub hash: StateHash,
}

impl Counts {
    /// Counts what a state has.
    #[must_use]
    pub fn of(state: &StoreState) -> Self {
        Self {
            nodes: state.partitions.iter().map(|partition| partition.nodes.len()).sum(),
            allocations: state.partitions.iter().map(|partition| partition.allocations.len()).sum(),
            groups: state.groups.len(),
            queues: state.jobs.queues.len(),
            jobs: state.jobs.jobs.len(),
            hash: state.books_hash(),
        }
    }
}

/// A store that was checked.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The identity of the store.
    pub store: [u8; 16],
    /// The last start, as the books say.
    pub incarnation: Incarnation,
    /// The books of the checkpoint alone.
    pub checkpoint: Counts,
    /// The last run had no journal and did not stop cleanly, so its books are gone.
    pub are_books_gone: bool,
    /// What comes after it. `None`: the checkpoint has all books.
    pub tail: Option<Tail>,
    /// Values that are not as they were written.
    pub damage: Vec<Damage>,
    /// The database of the journal is damaged. The values are those that are whole in its file.
    pub is_salvaged: bool,
    /// The books that a start would have, and what recovery found. `None` with damage.
    pub books: Option<(Counts, Recovery)>,
    /// What is wrong with those books.
    pub broken: Option<String>,
}

impl Checked {
    /// Returns the last append before any damage. `None` if nothing is damaged.
    #[must_use]
    pub fn whole_to(&self) -> Option<u64> {
        let end = self.tail.as_ref().filter(|_| self.is_salvaged).map(|tail| tail.appends.1);
        self.damage.first().map(|first| first.append - 1).or(end)
    }

    /// Returns whether a start would serve these books.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty() && self.broken.is_none() && !self.is_salvaged
    }
}

/// Checks the store of a stopped service. Changes nothing.
///
/// # Errors
/// When a service runs there, a file cannot be read, or the checkpoint is damaged.
pub fn check(data_dir: &Path) -> Result<Checked, FileError> {
    check_files(Arc::new(Overlay::over(Directory::lock_to_read(data_dir)?)))
}

/// Checks the store in `files`.
///
/// # Errors
/// As [`check`].
pub(super) fn check_files(files: Arc<dyn Files>) -> Result<Checked, FileError> {
    let mut salvaged = None;
    let (mut store, checkpoint) = Store::look(files, &mut salvaged)?;
    let mut checked = Checked {
        store: store.id(),
        incarnation: checkpoint.state.incarnation,
        checkpoint: Counts::of(&checkpoint.state),
        are_books_gone: checkpoint.from.is_none() && !checkpoint.is_clean,
        tail: None,
        damage: Vec::new(),
        is_salvaged: salvaged.is_some(),
        books: None,
        broken: None,
    };
    if let Some(from) = checkpoint.from {
        let mut tail = Tail { appends: (from, store.log().last()), ..Tail::default() };
        let walk = Walk::new(from, store.heads().clone(), catalog_of(&checkpoint.state.registrar));
        checked.damage = walk.run(store.log(), |_, step| tail.add(&step))?;
        checked.tail = Some(tail);
    }
    if checked.damage.is_empty() {
        let state = store.complete(checkpoint)?;
        checked.incarnation = state.incarnation;
        checked.books = Some((Counts::of(&state), store.recovery()));
        checked.broken = broken(state);
    }
    Ok(checked)
}

impl Tail {
    pub(super) fn add(&mut self, step: &Step<'_>) {
        self.bytes += step.bytes;
        for unit in &step.units {
            self.units += 1;
            self.effects += match &unit.changes {
                Changes::Shard { effects, .. } => effects.len() as u64,
                _ => 1,
            };
        }
    }
}

/// Opens an engine over a state, and returns what is wrong with its books.
pub(super) fn broken(state: StoreState) -> Option<String> {
    if let Err(broken) = state.check() {
        return Some(broken.to_string());
    }
    let engine = Engine::open(state, &EngineConfig::default(), vec![Waker::noop().clone()]);
    let checked = engine.map_err(|error| error.to_string());
    checked.and_then(|engine| engine.check().map_err(String::from)).err()
}
