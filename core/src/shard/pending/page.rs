//! What waits at a shard, as others see it: by shape, by node, in pages for plans of nodes, and counted by turn for
//! explanations.

use std::cmp::Reverse;
use std::ops::Bound;

use super::{Shape, Turn, Waiting, WaitingShape};
use crate::index::Slot;
use crate::limits::{WAITING_SHAPES_PER_PAGE, WAITING_TURNS_PER_PAGE};
use crate::request::WaitingPlacements;
use crate::resource::Demand;
use crate::time::Time;

/// A page of the placements that wait at one shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitingPlacementsPage {
    /// The placements.
    pub rows: Vec<WaitingPlacements>,
    /// Where the next page begins. `None`: there is none.
    pub next: Option<u32>,
}

/// Where a page of counts begins: at a shape, after a turn of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnsFrom {
    shape: u32,
    after: Option<Turn>,
}

/// Asks how many of the placements that wait at a shard come before a turn. Each shard has a copy of every one that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountTurns {
    /// The priority of the turn.
    pub priority: i32,
    /// Since when who has the turn waits.
    pub since: Time,
    /// Where the page begins: at the default, or as the page before says.
    pub from: TurnsFrom,
}

/// A page of the count. A placement that is tried at the moment is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnsCounted {
    /// The number of placements of the page that come before the turn.
    pub before: u64,
    /// The number of all placements of the page.
    pub waiting: u64,
    /// Where the next page begins. `None`: there is none.
    pub next: Option<TurnsFrom>,
}

impl Shape {
    /// Notes that a request is counted by a copy of it.
    pub(super) fn count_home(&mut self, (Reverse(priority), ..): Turn) {
        self.homes += 1;
        *self.homes_by_priority.entry(priority).or_default() += 1;
    }

    /// Notes that a request is no longer counted here.
    pub(super) fn forget_home(&mut self, (Reverse(priority), ..): Turn) {
        self.homes -= 1;
        let count = self.homes_by_priority.get_mut(&priority).expect("a counted request has a priority");
        *count -= 1;
        if *count == 0 {
            self.homes_by_priority.remove(&priority);
        }
    }
}

impl Waiting {
    /// Returns the status of every waiting shape, as far as homes are known.
    pub(crate) fn statuses(&self) -> Vec<WaitingShape> {
        let status = |(_, shape): (usize, &Shape)| WaitingShape {
            hash: shape.hash,
            homes: shape.homes,
            feasible: shape.home.is_known(),
        };
        self.shapes.iter().map(status).collect()
    }

    /// Returns the demands of requests that are counted here and whose home is the node in `slot`. One entry
    /// per shape, with the number of requests.
    pub(crate) fn at(&self, slot: Slot) -> Vec<(Demand, u64)> {
        let shapes = self.homes.at(slot).map(|at| &self.shapes[at]);
        let counted = shapes.filter(|shape| shape.homes > 0);
        counted.map(|shape| (shape.request.demand.clone(), shape.homes)).collect()
    }

    /// Returns a page of the placements that are counted here, from the shape of this index on.
    pub(crate) fn page(&self, from: u32) -> WaitingPlacementsPage {
        let mut page = WaitingPlacementsPage::default();
        let mut looks = 0;
        for at in from as usize..self.places() {
            if looks >= WAITING_SHAPES_PER_PAGE {
                page.next = Some(u32::try_from(at).expect("as many shapes as ports may have"));
                break;
            }
            looks += 1;
            let Some(shape) = self.shapes.get(at) else { continue };
            looks += shape.homes_by_priority.len();
            page.rows.extend(rows(shape));
        }
        page
    }

    /// Counts a page of the placements that wait to be woken, and those of them that come before a turn.
    pub(crate) fn count_turns(&self, asked: &CountTurns) -> TurnsCounted {
        let mut counted = TurnsCounted::default();
        let turn = (Reverse(asked.priority), asked.since);
        let mut looks = 0;
        let mut after = asked.from.after;
        for at in asked.from.shape as usize..self.places() {
            let begin = after.take().map_or(Bound::Unbounded, Bound::Excluded);
            let armed = self.shapes.get(at).map(|shape| shape.armed.range((begin, Bound::Unbounded)));
            // The look at the shape itself. So each page gets on, also over places without shapes.
            let mut last = None;
            for armed in [None].into_iter().chain(armed.into_iter().flatten().copied().map(Some)) {
                if looks >= WAITING_TURNS_PER_PAGE {
                    let shape = u32::try_from(at).expect("as many shapes as ports may have");
                    counted.next = Some(TurnsFrom { shape, after: last });
                    return counted;
                }
                looks += 1;
                let Some(armed) = armed else { continue };
                last = Some(armed);
                // Groups are counted by their planners.
                if self.copies[&armed.2].bundle.is_none() {
                    counted.waiting += 1;
                    counted.before += u64::from((armed.0, armed.1) < turn);
                }
            }
        }
        counted
    }
}

fn rows(shape: &Shape) -> impl Iterator<Item = WaitingPlacements> + '_ {
    let row = |(&priority, &count)| WaitingPlacements { request: shape.request.clone(), priority, count };
    shape.homes_by_priority.iter().map(row)
}
