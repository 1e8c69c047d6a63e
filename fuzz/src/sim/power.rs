//! Power loss at any moment of a start: what the disk may have then is made from what the start did, and opened again.
//!
//! A moment is a place between two things that the process did to its disk. The part of what was not synced that survives
//! is chosen exhaustively where it is small, and by a seed where it is large ([`Fate`]). Each image is opened as a start
//! does. The books must be those after some number of units, at least those that were durable at that moment. Some of
//! these starts lose power themselves, at any of their own moments.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use wharf_core::rng::Rng;
use wharf_ops::journal::report_other_panics;

use super::checkers::Verdict;
use super::checkers::crash::{a_crash_leaves_no_half, after_units};
use super::checkers::flips::{Became, CameTo, Expected, Flipped, a_flipped_bit_is_noticed};
use super::checkers::outcomes::Moment;
use super::choices::Choices;
use super::journal::{Books, Life, Opening, Span, Stage, floor};
use super::message;
use super::world::open;
use crate::disk::{Disk, Event, Fate, Image, Volume, flip};

/// With at most this many changes that are not synced, every subset of them is tried.
const EXHAUSTIVE_MAX: usize = 5;

/// How much of a life is tried.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// The number of moments, and that of further ones in each [`Stage`]. The first ones of a life, which open the store,
    /// are always among them.
    pub moments: usize,
    /// The number of images per moment in which writes are torn and swapped.
    pub torn: u64,
    /// The number of images per moment in which one bit is flipped that was synced.
    pub flips: u64,
    /// One of this many images is started until its journal is written, and that start loses power too.
    pub starts: u64,
    /// The number of times that a start may lose power after another one.
    pub depth: u32,
}

/// What was tried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// Moments.
    pub moments: u64,
    /// Moments within each stage.
    pub within: BTreeMap<Stage, u64>,
    /// Moments at which every subset of the changes was tried.
    pub exhausted: u64,
    /// Images that were opened.
    pub images: u64,
    /// Starts that lost power themselves.
    pub starts: u64,
    /// Images that had more than what was durable.
    pub ahead: u64,
    /// Replies that may have left by a moment and were not acknowledged, over all moments.
    pub replies: u64,
    /// Flipped bits for which the start refused.
    pub refused: u64,
    /// Flipped bits for which the start began before the last commit.
    pub cut: u64,
    /// Flipped bits from which nothing was read.
    pub unread: u64,
}

/// The number of moments at the begin of each life that are always tried.
const FIRST: usize = 40;

/// Loses power at many moments of a life.
///
/// # Errors
/// Returns the moment, what survived, and what is wrong.
pub fn lose_power(life: &Life, seed: u64, effort: Effort, tried: &mut Tried) -> Verdict {
    let books: Books =
        life.books.iter().map(|(&position, books)| (position, after_units((position, books)))).collect();
    let expected = |moment: usize, units: u64| {
        let allowed = books.range(floor(&books, units)..).map(|(_, books)| books).chain(&life.stopped);
        let moment = Moment { durable: units, events: moment };
        Expected { books: allowed.cloned().collect(), replies: &life.replies, moment }
    };
    let run = Run { seed, effort };
    let done = Done { image: &life.image, events: &life.events, spans: &life.spans };
    run.moments(done, effort.depth, tried, |moment| {
        let count = life.durable.partition_point(|(events, _)| *events <= moment);
        let mut durable = life.durable[..count].iter().rev();
        let mut units = || durable.next().map_or(0, |&(_, units)| units);
        let now = expected(moment, units());
        // Without two appends of its own, the last commit is of a start before, whose books are not known here.
        let before = (count > 1).then(|| expected(moment, units()));
        Allowed { before, now }
    })
}

/// What a process did to a disk.
#[derive(Clone, Copy)]
struct Done<'a> {
    image: &'a Image,
    events: &'a [Event],
    spans: &'a [Span],
}

/// What a start may come to after a power loss.
#[derive(Clone)]
struct Allowed<'a> {
    now: Expected<'a>,
    /// The same if the last commit was not there. `None` if that is not known: no bit is flipped then.
    before: Option<Expected<'a>>,
}

/// Chooses moments.
struct Moments<'a> {
    spans: &'a [Span],
    /// One of this many moments is chosen, of all and of each stage.
    stride: u64,
    strides: BTreeMap<Stage, u64>,
}

impl<'a> Moments<'a> {
    fn new(done: Done<'a>, wanted: usize) -> Self {
        let stride = |count: usize| (count / wanted.max(1)).max(1) as u64;
        let mut counts = BTreeMap::<Stage, usize>::new();
        for span in done.spans {
            *counts.entry(span.stage).or_default() += span.to - span.from;
        }
        let strides = counts.into_iter().map(|(stage, count)| (stage, stride(count))).collect();
        Self { spans: done.spans, stride: stride(done.events.len()), strides }
    }

    /// Returns whether a moment is tried.
    fn takes(&self, moment: usize, rng: &mut Rng) -> bool {
        let mut is_chosen = moment <= FIRST || rng.below(self.stride) == 0;
        for stage in self.stages(moment) {
            is_chosen |= rng.below(self.strides[&stage]) == 0;
        }
        is_chosen
    }

    fn stages(&self, moment: usize) -> impl Iterator<Item = Stage> {
        self.spans.iter().filter(move |span| span.is_within(moment)).map(|span| span.stage)
    }
}

struct Run {
    seed: u64,
    effort: Effort,
}

impl Run {
    /// Loses power at moments of what was done. `allowed` returns what a start may come to.
    fn moments<'a>(
        &self,
        done: Done<'_>,
        depth: u32,
        tried: &mut Tried,
        allowed: impl Fn(usize) -> Allowed<'a>,
    ) -> Verdict {
        let mut volume = Volume::new(done.image);
        let count = done.events.len();
        let mut rng = Rng::new(self.seed ^ count as u64);
        let moments = Moments::new(done, self.effort.moments);
        for moment in 0..=count {
            if let Some(event) = moment.checked_sub(1).map(|at| &done.events[at]) {
                volume.apply(event);
            }
            if !moments.takes(moment, &mut rng) {
                continue;
            }
            let allowed = allowed(moment);
            tried.moments += 1;
            tried.replies += allowed.now.replies.count(allowed.now.moment) as u64;
            moments.stages(moment).for_each(|stage| *tried.within.entry(stage).or_default() += 1);
            for fate in self.fates(volume.unsynced(), &mut rng, tried) {
                let image = volume.image(fate);
                let opened = self.open(&image, &allowed.now, tried);
                opened.map_err(|found| format!("moment {moment} of {count}, {fate:?}: {found}"))?;
                if depth > 0 && rng.below(self.effort.starts) == 0 {
                    let started = self.lose_power_in_start(&image, &allowed, depth - 1, tried);
                    started.map_err(|found| format!("moment {moment}, {fate:?}, in the start: {found}"))?;
                }
            }
            let Some(before) = &allowed.before else { continue };
            let synced = volume.image(Fate::None);
            for _ in 0..self.effort.flips {
                let seed = rng.next_u64();
                let Some(Flipped { became, verdict }) = flip_bit(&synced, seed, &allowed.now, before) else {
                    continue;
                };
                verdict.map_err(|found| format!("moment {moment} of {count}, flip {seed}: {found}"))?;
                match became {
                    Became::Refused => tried.refused += 1,
                    Became::Cut => tried.cut += 1,
                    Became::Unread => tried.unread += 1,
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

    fn open(&self, image: &Image, expected: &Expected<'_>, tried: &mut Tried) -> Verdict {
        let opened = Opening::of(Disk::new(image, false), false);
        let (_, state) = opened.map_err(|error| error.to_string())?;
        tried.images += 1;
        let durable = expected.books.first().map(std::slice::from_ref).unwrap_or_default();
        tried.ahead += u64::from(a_crash_leaves_no_half(&state, durable).is_err());
        expected.check(&state)
    }

    /// Starts from an image until the first units of the start are durable, and loses power at moments of that.
    fn lose_power_in_start(
        &self,
        image: &Image,
        allowed: &Allowed<'_>,
        depth: u32,
        tried: &mut Tried,
    ) -> Verdict {
        tried.starts += 1;
        let disk = Disk::new(image, true);
        let (opening, state) = Opening::of(disk, true).map_err(|error| error.to_string())?;
        let mut choices = Choices::seeded(self.seed ^ tried.starts);
        // Runs of which power loss is tried have no jobs.
        let opened = open(&state, Some(opening), &mut choices, 0, (false, None));
        let opened = opened.map_err(|error| error.to_string())?;
        let mut journal = opened.journal.expect("it was opened with one");
        journal.write().map_err(|error| error.to_string())?;
        let life = journal.end(allowed.now.replies).expect("the disk keeps what is done");
        // The start itself may change the books.
        let of_start = life.books.iter().map(|(&position, books)| after_units((position, books)));
        let mut allowed = allowed.clone();
        allowed.now.books.extend(of_start);
        allowed.before = None;
        let few = Self { seed: self.seed, effort: Effort { moments: 12, torn: 1, flips: 0, ..self.effort } };
        let done = Done { image: &life.image, events: &life.events, spans: &life.spans };
        few.moments(done, depth, tried, |_| allowed.clone())
    }
}

/// Opens an image in which a bit is flipped that the seed chooses. Returns what became of it. `before` is what a start must
/// come to if the last commit was not there. `None` if nothing was written.
pub(super) fn flip_bit(
    image: &Image,
    seed: u64,
    expected: &Expected<'_>,
    before: &Expected<'_>,
) -> Option<Flipped> {
    let (flipped, flip) = flip(image, seed)?;
    static QUIET: Once = Once::new();
    QUIET.call_once(report_other_panics);
    let open = || match Opening::of(Disk::new(&flipped, false), false) {
        Ok((Opening { disk, store, .. }, state)) => {
            let is_cut = store.recovery().is_cut();
            // Its close would read pages that no start reads, and two panics over one that is damaged end the process.
            disk.remove();
            CameTo::Read { state: Box::new(state), is_cut }
        }
        Err(error) => CameTo::Refused(error.to_string()),
    };
    Some(match catch_unwind(AssertUnwindSafe(open)) {
        Ok(came_to) => a_flipped_bit_is_noticed(&flip, &came_to, expected, before),
        Err(panic) => {
            let verdict = Err(format!("with {flip}, a panic: {}", message(&*panic)));
            Flipped { became: Became::Refused, verdict }
        }
    })
}
