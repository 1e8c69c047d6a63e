//! Power loss at any moment of a start: what the disk may have then is made from what the start did, and opened again.
//!
//! A moment is a place between two things that the process did to its disk. The part of what was not synced that survives
//! is chosen exhaustively where it is small, and by a seed where it is large ([`Fate`]). Each image is opened as a start
//! does. The books must be those after some number of units, at least those that were durable at that moment. Some of
//! these starts lose power themselves, at any of their own moments.

use std::collections::BTreeMap;

use wharf_core::rng::Rng;
use wharf_core::state::StoreState;

use super::checkers::Verdict;
use super::checkers::crash::{a_crash_leaves_no_half, after_units};
use super::choices::Choices;
use super::journal::{Life, Opening};
use super::world::open;
use crate::disk::{Disk, Event, Fate, Image, Volume};

/// With at most this many changes that are not synced, every subset of them is tried.
const EXHAUSTIVE_MAX: usize = 5;

/// How much of a life is tried.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// The number of moments. The first ones of a life, which open the store, are always among them.
    pub moments: usize,
    /// The number of images per moment in which writes are torn and swapped.
    pub torn: u64,
    /// One of this many images is started until its journal is written, and that start loses power too.
    pub starts: u64,
    /// The number of times that a start may lose power after another one.
    pub depth: u32,
}

/// What was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// Moments.
    pub moments: u64,
    /// Moments at which every subset of the changes was tried.
    pub exhausted: u64,
    /// Images that were opened.
    pub images: u64,
    /// Starts that lost power themselves.
    pub starts: u64,
    /// Images that had more than what was durable.
    pub ahead: u64,
}

/// The number of moments at the begin of each life that are always tried.
const FIRST: usize = 40;

/// Loses power at many moments of a life.
///
/// # Errors
/// Returns the moment, what survived, and what is wrong.
pub fn lose_power(life: &Life, seed: u64, effort: Effort, tried: &mut Tried) -> Verdict {
    let books: BTreeMap<u64, StoreState> =
        life.books.iter().map(|(&position, books)| (position, after_units((position, books)))).collect();
    let durable_at = |moment: usize| {
        let before = life.durable.iter().take_while(|(events, _)| *events <= moment);
        before.last().map_or(0, |&(_, durable)| durable)
    };
    let run = Run { seed, effort };
    run.moments(&life.image, &life.events, effort.depth, tried, |moment| {
        let floor = books.range(..=durable_at(moment)).next_back().map_or(0, |(&position, _)| position);
        books.range(floor..).map(|(_, books)| books).chain(&life.stopped).cloned().collect()
    })
}

struct Run {
    seed: u64,
    effort: Effort,
}

impl Run {
    /// Loses power at moments of these events. `allowed` returns the books that a start may come to.
    fn moments(
        &self,
        image: &Image,
        events: &[Event],
        depth: u32,
        tried: &mut Tried,
        allowed: impl Fn(usize) -> Vec<StoreState>,
    ) -> Verdict {
        let mut volume = Volume::new(image);
        let mut rng = Rng::new(self.seed ^ events.len() as u64);
        let stride = (events.len() / self.effort.moments.max(1)).max(1) as u64;
        for moment in 0..=events.len() {
            if let Some(event) = moment.checked_sub(1).map(|at| &events[at]) {
                volume.apply(event);
            }
            if moment > FIRST && rng.below(stride) != 0 {
                continue;
            }
            let allowed = allowed(moment);
            tried.moments += 1;
            for fate in self.fates(volume.unsynced(), &mut rng, tried) {
                let image = volume.image(fate);
                let opened = self.open(&image, &allowed, tried);
                opened.map_err(|found| format!("moment {moment} of {}, {fate:?}: {found}", events.len()))?;
                if depth > 0 && rng.below(self.effort.starts) == 0 {
                    let started = self.lose_power_in_start(&image, &allowed, depth - 1, tried);
                    started.map_err(|found| format!("moment {moment}, {fate:?}, in the start: {found}"))?;
                }
            }
        }
        Ok(())
    }

    /// Returns what may survive of `unsynced` changes.
    fn fates(&self, unsynced: usize, rng: &mut Rng, tried: &mut Tried) -> Vec<Fate> {
        if unsynced == 0 {
            return vec![Fate::All];
        }
        let mut fates = Vec::new();
        if unsynced <= EXHAUSTIVE_MAX {
            tried.exhausted += 1;
            fates.extend((0..1 << unsynced).map(Fate::Chosen));
        } else {
            fates.extend([Fate::All, Fate::None]);
            fates.push(Fate::AllBut(rng.below(unsynced as u64) as usize));
        }
        fates.push(Fate::Prefix(unsynced, rng.next_u64()));
        fates.extend((0..self.effort.torn).map(|_| Fate::Torn(rng.next_u64())));
        fates
    }

    fn open(&self, image: &Image, allowed: &[StoreState], tried: &mut Tried) -> Verdict {
        let opened = Opening::of(Disk::new(image, false), false);
        let (_, state) = opened.map_err(|error| error.to_string())?;
        tried.images += 1;
        let durable = allowed.first().map(std::slice::from_ref).unwrap_or_default();
        if a_crash_leaves_no_half(&state, durable).is_ok() {
            return Ok(());
        }
        tried.ahead += 1;
        a_crash_leaves_no_half(&state, allowed)
    }

    /// Starts from an image until the first units of the start are durable, and loses power at moments of that.
    fn lose_power_in_start(
        &self,
        image: &Image,
        allowed: &[StoreState],
        depth: u32,
        tried: &mut Tried,
    ) -> Verdict {
        tried.starts += 1;
        let disk = Disk::new(image, true);
        let (opening, state) = Opening::of(disk, true).map_err(|error| error.to_string())?;
        let mut choices = Choices::seeded(self.seed ^ tried.starts);
        let opened = open(&state, Some(opening), &mut choices, 0, false);
        let opened = opened.map_err(|error| error.to_string())?;
        let mut journal = opened.journal.expect("it was opened with one");
        journal.write().map_err(|error| error.to_string())?;
        let life = journal.end().expect("the disk keeps what is done");
        let of_start = life.books.iter().map(|(&position, books)| after_units((position, books)));
        let allowed: Vec<StoreState> = allowed.iter().cloned().chain(of_start).collect();
        let few = Self { seed: self.seed, effort: Effort { moments: 12, torn: 1, ..self.effort } };
        few.moments(&life.image, &life.events, depth, tried, |_| allowed.clone())
    }
}
