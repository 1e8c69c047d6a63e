//! Rates nodes for one request.
//!
//! A list that is new or ran empty rates all nodes, so most of the time is spent here. What depends on the request
//! alone is computed once, and what a node costs at least is compared with the bound of the list first.

use super::Weighing;
use super::lists::{Ask, Rated, Rating};
use super::measure::Measure;
use super::standing::{Needs, Standing, Standings};
use crate::ids::Ordinal;
use crate::limits::{GPU_STATES_KEPT, MEASURES_KEPT, NODES_MAX};
use crate::request::Rank;
use crate::resource::GpuRequest;

/// U after a placement, by GPU state, remaining cpu class and request. A direct-mapped cache.
pub(super) struct Memo {
    kept: Box<[(u64, i64)]>,
    /// Part of each key. Results with another number are not used.
    number: u8,
}

/// The keys of a memo: number, GPU state, request, cpu class.
const NUMBER_AT: u32 = 56;
const STATE_AT: u32 = 32;
const REQUEST_AT: u32 = 8;
const _: () = assert!(
    2 * NODES_MAX + GPU_STATES_KEPT < 1 << (NUMBER_AT - STATE_AT),
    "there are at most twice as many states as nodes"
);

impl Memo {
    pub(super) fn new() -> Self {
        Self { kept: vec![(0, 0); MEASURES_KEPT].into(), number: 1 }
    }

    pub(super) fn memory(&self) -> u64 {
        size_of_val(&*self.kept) as u64
    }

    /// Forgets all results.
    pub(super) fn clear(&mut self) {
        // The table is written only when all numbers have been used, as it is larger than a cache.
        self.number = self.number.checked_add(1).unwrap_or_else(|| {
            self.kept.fill((0, 0));
            1
        });
    }

    #[inline(always)]
    fn get(&mut self, key: u64, compute: impl FnOnce() -> i64) -> i64 {
        const SHIFT: u32 = u64::BITS - MEASURES_KEPT.trailing_zeros();
        let place = &mut self.kept[(key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> SHIFT) as usize];
        if place.0 == key { place.1 } else { Self::put(place, key, compute) }
    }

    #[inline(never)]
    fn put(place: &mut (u64, i64), key: u64, compute: impl FnOnce() -> i64) -> i64 {
        *place = (key, compute());
        place.1
    }
}

/// The bound of a list, and what a rating that is better than the bound can have with the same rank.
pub(super) struct Limit {
    /// `None` without a bound.
    rank: Option<Rank>,
    /// The smallest fall of F. For steps.
    least_fall: i64,
    /// The largest cost. A node with this cost must have a smaller ordinal than that of the bound.
    most_cost: i64,
    ordinal: Ordinal,
}

pub(super) struct Rater<'a> {
    measure: &'a Measure,
    standings: &'a Standings,
    memo: &'a mut Memo,
    weighing: Weighing,
    pub(super) needs: Needs,
    gpu: GpuRequest,
    /// The GPU units of the request.
    units: i64,
    most_fall: i64,
    /// The part of a key that the request decides.
    key: u64,
}

impl<'a> Rater<'a> {
    pub(super) fn new(
        measure: &'a Measure,
        standings: &'a Standings,
        memo: &'a mut Memo,
        ask: &Ask<'_>,
    ) -> Self {
        let demand = ask.demand();
        let gpu = demand.gpu;
        // Below 2^17.
        let code = match gpu {
            GpuRequest::None => 0,
            GpuRequest::Fraction(part) => u64::from(part),
            GpuRequest::Whole(count) => u64::from(u16::MAX) + u64::from(count),
        };
        let key = u64::from(memo.number) << NUMBER_AT | code << REQUEST_AT;
        Self {
            measure,
            standings,
            memo,
            weighing: ask.weighing,
            needs: Needs::of(demand),
            gpu,
            units: gpu.units(),
            most_fall: measure.most_fall(gpu),
            key,
        }
    }

    pub(super) fn limit(&self, bound: Option<Rating>) -> Limit {
        let least_fall = bound.map_or(i64::MIN, |bound| self.measure.least_fall(bound.cost));
        let most_cost = bound.map_or(i64::MAX, |bound| bound.cost);
        let ordinal = bound.map_or(Ordinal(u64::MAX), |bound| bound.ordinal);
        Limit { rank: bound.map(|bound| bound.rank), least_fall, most_cost, ordinal }
    }

    /// Returns the fall of F, times the sum of counts, if the request is placed on a node that it fits.
    #[inline(always)]
    fn fall(&mut self, standing: &Standing, cpu: i64) -> i64 {
        let class = self.measure.cpu_class(cpu);
        let key = self.key | u64::from(standing.state) << STATE_AT | u64::from(class);
        let Self { measure, standings, gpu, .. } = *self;
        let compute = || measure.usable_after(standings.state(standing.state), class, gpu);
        self.most_fall - (standing.usable - self.memo.get(key, compute))
    }

    /// Returns the rating of a node that the request fits.
    pub(super) fn rate(&mut self, standing: &Standing, rank: Rank) -> Rated {
        let none = self.limit(None);
        self.within(&none, standing, rank).expect("every rating is within no limit")
    }

    /// Returns the rating of a node that the request fits, if it is better than the limit.
    #[inline(always)]
    pub(super) fn within(&mut self, limit: &Limit, standing: &Standing, rank: Rank) -> Option<Rated> {
        let is_bounded = match limit.rank {
            Some(last) if rank > last => return None,
            Some(last) => rank == last,
            None => false,
        };
        // It cannot be negative, as the request fits.
        let cpu = standing.cpu - self.needs.cpu;
        let cost = match self.weighing {
            Weighing::Steps => {
                let fall = self.fall(standing, cpu);
                if is_bounded & (fall < limit.least_fall) {
                    return None;
                }
                -i64::from(self.measure.score(fall))
            }
            Weighing::Stranding => {
                let left = i64::from(standing.idle) - self.units;
                let stranding = self.measure.stranded(cpu, left) - i64::from(standing.stranded);
                let cost = self.measure.cost_without_fall(stranding, left);
                if is_bounded & (cost - self.most_fall > limit.most_cost) {
                    return None;
                }
                cost - self.fall(standing, cpu)
            }
        };
        let is_worse = (cost, standing.ordinal) >= (limit.most_cost, limit.ordinal);
        (!(is_bounded & is_worse)).then(|| Rated::new(rank, cost, standing))
    }
}
