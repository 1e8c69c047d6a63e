//! Compares what planners can search: a private copy that is synchronised by view differences, and an index
//! in the view itself ([`inside`](super::inside)).

use std::hint::black_box;
use std::time::Instant;

use serde::Serialize;
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GpuRequest};
use wharf_core::shard::Shard;

use super::inside::{Free, Inside, free_of};
use super::{Bench, config};

/// Changes between two views of this table.
const CHANGES: u32 = 64;

/// Requests planned on each view.
const PLANS: u32 = 16;

/// Both ways to search, on the same views, by first fit.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PlannersRow {
    /// The number of nodes of the shard.
    pub nodes: u32,
    /// Nanoseconds per change to synchronise a private copy; paid by each planner.
    pub copy_sync_ns: u64,
    /// Nanoseconds to plan one request on the copy: search, take, and the later undo.
    pub copy_plan_ns: u64,
    /// The size of a private copy, in bytes.
    pub copy_bytes: u64,
    /// Nanoseconds per change to update an index in the view; paid by the shard.
    pub inside_publish_ns: u64,
    /// Nanoseconds to find a node in the index, without further planning.
    pub inside_search_ns: u64,
}

fn request(bench: &mut Bench) -> (PlacementRequest, Free) {
    let cpu = Amount::whole(1 + bench.rng.below(40) as u32);
    let gpus = bench.rng.below(4) as u8;
    let gpu = if gpus == 0 { GpuRequest::None } else { GpuRequest::Whole(gpus) };
    let demand = Demand { cpu, gpu, ..Demand::default() };
    let asked = [cpu.units(), 0, i64::from(gpus), 0];
    (PlacementRequest::new(demand, Policy::FirstFit), asked)
}

impl Bench {
    /// Measures both ways to search, over this number of views.
    ///
    /// # Panics
    /// When they find different first nodes.
    pub fn with_planners(&mut self, views: u32) -> PlannersRow {
        let mut view = self.view();
        let mut copy = Shard::replica(config(self.seed));
        let mut inside = Inside::new(self.nodes + 1);
        copy.sync(&view);
        view.nodes(|slot, image, _| inside.set(slot, free_of(image)));
        let mut changed = 0u64;
        let mut planned = 0u64;
        let mut nanos = [0u64; 4];
        let clock = |since: Instant| since.elapsed().as_nanos() as u64;
        for _ in 0..views {
            (0..CHANGES).for_each(|_| self.change());
            self.publish();
            let newest = self.view();
            let started = Instant::now();
            changed += copy.sync(&newest) as u64;
            nanos[0] += clock(started);
            let kept = inside.clone();
            let mut slots = Vec::new();
            newest.diff(&view, |slot| slots.push(slot));
            let started = Instant::now();
            for &slot in &slots {
                inside.set(slot, newest.hot(slot).map_or([-1; 4], free_of));
            }
            nanos[1] += clock(started);
            drop(kept);
            for _ in 0..PLANS {
                let (request, asked) = request(self);
                let started = Instant::now();
                let place = copy.plan(&request);
                copy.resync();
                nanos[2] += clock(started);
                let started = Instant::now();
                let first = black_box(inside.first_fit(black_box(&asked)));
                nanos[3] += clock(started);
                assert_eq!(place.map(|place| place.slot), first, "of {request:?}");
                planned += 1;
            }
            view = newest;
        }
        PlannersRow {
            nodes: self.nodes,
            copy_sync_ns: nanos[0] / changed.max(1),
            copy_plan_ns: nanos[2] / planned.max(1),
            copy_bytes: copy.memory().iter().map(|structure| structure.bytes).sum(),
            inside_publish_ns: nanos[1] / changed.max(1),
            inside_search_ns: nanos[3] / planned.max(1),
        }
    }
}
