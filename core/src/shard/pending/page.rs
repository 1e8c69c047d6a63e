//! What waits at a shard, as others see it: by shape, by node, and in pages for plans of nodes.

use std::cmp::Reverse;

use super::{Shape, Turn, Waiting, WaitingShape};
use crate::index::Slot;
use crate::limits::WAITING_SHAPES_PER_PAGE;
use crate::request::WaitingPlacements;
use crate::resource::Demand;

/// A page of the placements that wait at one shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitingPlacementsPage {
    /// The placements.
    pub rows: Vec<WaitingPlacements>,
    /// Where the next page begins. `None`: there is none.
    pub next: Option<u32>,
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
}

fn rows(shape: &Shape) -> impl Iterator<Item = WaitingPlacements> + '_ {
    let row = |(&priority, &count)| WaitingPlacements { request: shape.request.clone(), priority, count };
    shape.homes_by_priority.iter().map(row)
}
