//! Why a request was refused: an honest count, at a bounded cost.
//!
//! The counts go over contiguous records of 24 bytes into one tally per check; what is seldom
//! asked (custom resources) is all that looks beyond them. The map is built once, at the end.

use super::ranked::Scope;
use super::rankings::Rankings;
use super::refusal::{Check, Refusal, Shortage};
use super::selectors::SelectorSets;
use super::table::Room;
use super::{Shard, Slot};
use crate::index::{Candidates, Visits};
use crate::limits::EXPLAIN_NODES_MAX;
use crate::node::NodeState;
use crate::request::{Explain, PlacementRequest, Rank};
use crate::resource::{Amount, GpuRequest};

/// One check, counted without a branch: it runs over every node.
struct Tally {
    asked: i64,
    nodes: u64,
    /// The largest of "available less asked" as an unsigned number. What is short is negative and
    /// so above everything that is not, and the least short of them is the largest.
    best: u64,
}

impl Tally {
    fn of(asked: i64) -> Self {
        Self { asked, nodes: 0, best: 0 }
    }

    /// Wrapping throughout: amounts are at most 2^53, and checks would cost as much as the count.
    #[inline]
    fn count(&mut self, available: i64) {
        let over = available.wrapping_sub(self.asked) as u64;
        self.nodes = self.nodes.wrapping_add(over >> 63);
        self.best = self.best.max(over);
    }

    fn report(&self, check: Check, unit: i64, refusal: &mut Refusal) {
        if self.nodes > 0 {
            let least = -(self.best as i64);
            assert!(least > 0, "a node was counted that is not short of {check:?}");
            let least = Amount::try_from_units(least * unit).expect("a shortage is below what was asked");
            refusal.checks.insert(check, Shortage { nodes: self.nodes, least });
        }
    }
}

/// The checks of resources that every node has.
struct Tallies {
    cpu: Tally,
    memory: Tally,
    gpu: Tally,
    /// Whether whole GPUs are asked; otherwise it is a part of one, or nothing.
    whole: bool,
}

impl Tallies {
    fn of(request: &PlacementRequest) -> Self {
        let demand = &request.demand;
        let (gpu, whole) = match demand.gpu {
            GpuRequest::None => (0, false),
            GpuRequest::Fraction(part) => (i64::from(part), false),
            GpuRequest::Whole(count) => (i64::from(count), true),
        };
        Self {
            cpu: Tally::of(demand.cpu.units()),
            memory: Tally::of(demand.memory.units()),
            gpu: Tally::of(gpu),
            whole,
        }
    }

    #[inline]
    fn count(&mut self, room: &Room) {
        self.cpu.count(room.cpu.units());
        self.memory.count(room.memory.units());
        self.gpu.count(i64::from(if self.whole { room.whole_gpus } else { room.largest_gpu_part }));
    }

    fn report(&self, refusal: &mut Refusal) {
        self.cpu.report(Check::Cpu, 1, refusal);
        self.memory.report(Check::Memory, 1, refusal);
        let (check, unit) = if self.whole { (Check::WholeGpus, Amount::SCALE) } else { (Check::GpuPart, 1) };
        self.gpu.report(check, unit, refusal);
    }
}

impl Shard {
    /// Counts, over the nodes of this shard, which checks the request fails; and whether any
    /// node could hold it if nothing else ran there, which is exact however few are counted.
    ///
    /// `scope` is what is kept for requests such as this one.
    pub(super) fn explain(&mut self, request: &PlacementRequest, scope: Scope) -> Refusal {
        let mut refusal = Refusal {
            growth: self.growth,
            nodes: self.nodes.len() as u64,
            feasible: self.feasible(request, scope),
            ..Refusal::default()
        };
        let examined_max = match request.explain {
            Explain::Bounded => EXPLAIN_NODES_MAX as u64,
            Explain::Full => u64::MAX,
        };
        let plain = matches!(scope, Scope::Plain(None));
        let simple = plain && request.demand.custom.is_none() && self.reservations.is_empty();
        if request.candidates.is_none() && simple {
            self.count_all(request, examined_max, &mut refusal);
        } else {
            self.count_named(request, scope, examined_max, &mut refusal);
        }
        refusal
    }

    /// Counts over the first nodes that there are.
    fn count_all(&self, request: &PlacementRequest, examined_max: u64, refusal: &mut Refusal) {
        let (mut tallies, mut ready, mut not_ready, mut full) = (Tallies::of(request), 0u64, 0u64, 0u64);
        for room in self.nodes.rooms() {
            if ready + not_ready == examined_max {
                break;
            }
            match room.state {
                Some(NodeState::Ready) => {
                    if room.places > 0 {
                        tallies.count(room);
                    } else {
                        full += 1;
                    }
                    ready += 1;
                }
                Some(_) => not_ready += 1,
                None => {}
            }
        }
        refusal.examined = ready + not_ready;
        tallies.report(refusal);
        report_plain(Check::NotReady, not_ready, refusal);
        report_plain(Check::Allocations, full, refusal);
    }

    /// As [`count_all`](Self::count_all), for requests that name nodes or custom resources, and
    /// where nodes are reserved.
    fn count_named(
        &self,
        request: &PlacementRequest,
        scope: Scope,
        examined_max: u64,
        refusal: &mut Refusal,
    ) {
        let mut named = self.named(request);
        if let Some(named) = &mut named {
            named.sort_unstable();
            named.dedup();
        }
        let custom = request.demand.custom();
        let (mut tallies, mut not_ready) = (Tallies::of(request), 0);
        let (mut not_candidate, mut not_selected, mut tainted, mut reserved, mut full) = (0, 0, 0, 0, 0);
        let tally = |&(_, amount): &(_, Amount)| Tally::of(amount.units());
        let mut of_custom: Vec<Tally> = custom.iter().map(tally).collect();
        let mut fragmented: Vec<Tally> = custom.iter().map(tally).collect();
        let mut count = |slot: Slot, room: &Room| {
            let Some(state) = room.state else { return };
            let excluded = excluded(&self.selectors, &self.rankings, scope, slot);
            if excluded == Some(Check::Selector) {
                not_selected += 1;
            } else if excluded.is_some() {
                tainted += 1;
            } else if state != NodeState::Ready {
                not_ready += 1;
            } else if self.is_kept_from(slot, request) {
                reserved += 1;
            } else if room.places <= 0 {
                full += 1;
            } else {
                let own = self.reservations.own(slot, request.owner);
                let own = own.map(|own| self.nodes.revealed(slot, &own.aside));
                tallies.count(own.as_ref().map_or(room, |own| &own.room));
                for (at, &(id, amount)) in custom.iter().enumerate() {
                    let book = own.as_ref().map_or_else(|| self.nodes.book(slot, id), |own| own.book(id));
                    let room = book.map_or(Amount::ZERO, |book| book.room_for(amount));
                    let sum_would_do = room < amount && book.is_some_and(|book| book.available >= amount);
                    let tallies = if sum_would_do { &mut fragmented } else { &mut of_custom };
                    tallies[at].count(room.units());
                }
            }
        };
        let rooms = self.nodes.rooms();
        match &named {
            // Every slot has a node: all but the named are counted without a look at them.
            Some(named) if rooms.len() == self.nodes.len() => {
                refusal.examined = examined_max.min(rooms.len() as u64);
                let examined = &named[..named.partition_point(|&slot| u64::from(slot) < refusal.examined)];
                examined.iter().for_each(|&slot| count(slot, &rooms[slot as usize]));
                not_candidate = refusal.examined - examined.len() as u64;
            }
            _ => {
                for (slot, room) in (0..).zip(rooms) {
                    if refusal.examined == examined_max {
                        break;
                    }
                    refusal.examined += u64::from(room.state.is_some());
                    match &named {
                        Some(named) if named.binary_search(&slot).is_err() => {
                            not_candidate += u64::from(room.state.is_some());
                        }
                        _ => count(slot, room),
                    }
                }
            }
        }
        report_plain(candidate_check(request), not_candidate, refusal);
        report_plain(Check::Selector, not_selected, refusal);
        report_plain(Check::Taint, tainted, refusal);
        report_plain(Check::NotReady, not_ready, refusal);
        report_plain(Check::Reserved, reserved, refusal);
        report_plain(Check::Allocations, full, refusal);
        tallies.report(refusal);
        for (tally, &(id, _)) in of_custom.iter().zip(custom) {
            tally.report(Check::Custom(id), 1, refusal);
        }
        for (tally, &(id, _)) in fragmented.iter().zip(custom) {
            tally.report(Check::Fragmented(id), 1, refusal);
        }
    }

    /// Whether the node would do if it were not reserved for another owner.
    fn is_kept_from(&self, slot: Slot, request: &PlacementRequest) -> bool {
        self.reservations.at(slot).is_some_and(|there| {
            Some(there.owner) != request.owner
                && self.nodes.fits_revealed(slot, &there.aside, &request.demand)
        })
    }

    /// Whether some registered node has the capacity, the labels and no taint against it.
    fn feasible(&mut self, request: &PlacementRequest, scope: Scope) -> bool {
        let asked = self.capacities.geometry().asked(&request.demand);
        let named = self.named(request);
        let (nodes, selectors, rankings) = (&self.nodes, &self.selectors, &self.rankings);
        let mut any = |candidates: Candidates<'_>| {
            self.capacities.any(&asked, candidates, &mut Visits::default(), |slot| {
                excluded(selectors, rankings, scope, slot).is_none() && nodes.could_fit(slot, &request.demand)
            })
        };
        match (&named, scope) {
            (Some(named), _) => any(Candidates::Walk(named)),
            (None, Scope::Plain(Some(set))) => any(selectors.at(set).candidates()),
            (None, Scope::Plain(None)) => any(Candidates::All),
            (None, Scope::Ranked(id)) => rankings.at(id).tiers().iter().any(|tier| any(tier.candidates())),
        }
    }
}

/// The check by which labels or taints exclude a node.
#[inline]
fn excluded(selectors: &SelectorSets, rankings: &Rankings, scope: Scope, slot: Slot) -> Option<Check> {
    match scope {
        Scope::Plain(None) => None,
        Scope::Plain(Some(set)) => (!selectors.at(set).contains(slot)).then_some(Check::Selector),
        Scope::Ranked(id) => match rankings.at(id).rank(slot) {
            Rank::NOT_SELECTED => Some(Check::Selector),
            Rank::TAINTED => Some(Check::Taint),
            _ => None,
        },
    }
}

/// The check under which nodes count that are no candidates.
fn candidate_check(request: &PlacementRequest) -> Check {
    let affinity = request.preferences.as_ref().is_some_and(|preferences| preferences.affinity);
    match request.candidates.as_deref() {
        Some(&[node]) if affinity => Check::Affinity(node),
        _ => Check::Candidates,
    }
}

/// Reports a check that is no resource.
fn report_plain(check: Check, nodes: u64, refusal: &mut Refusal) {
    if nodes > 0 {
        refusal.checks.insert(check, Shortage { nodes, least: Amount::ZERO });
    }
}
