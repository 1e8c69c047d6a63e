//! The reasons for a refusal: exact counts at a bounded cost.
//!
//! If only cpu, memory and GPUs decide, the index has counted the nodes already
//! ([`lacking`](crate::index::DistBuckets::lacking)).
//!
//! Otherwise, counting runs over contiguous 32-byte records and keeps one tally per check. Only custom resources,
//! which are rare, need more than these records. The map is built once, at the end. A command counts at most one
//! page of nodes. To count all nodes, the caller asks for each further page with another command ([`Explain`]), so
//! that other commands can run in between.

use super::Choose;
use super::{Eligibility, Eligible};
use crate::books::RESERVED;
use crate::index::Slot;
use crate::index::{Candidates, Dimension, Meter};
use crate::limits::{EXPLAIN_SLOTS_PER_NODE, STEP_NODES_MAX};
use crate::node::NodeState;
use crate::request::{Check, Explain as Explanation, PlacementRequest, Refusal, Shortage};
use crate::resource::{Amount, Demand, GpuRequest};
use crate::shard::books::Books;
use crate::shard::books::Room;

/// One check, counted without branches because the code runs for every node.
struct Tally {
    asked: u64,
    nodes: u64,
    /// The maximum of "available minus requested" as an unsigned number. Negative values, which are shortages,
    /// exceed all others when unsigned. The smallest shortage is therefore the maximum.
    best: u64,
}

impl Tally {
    fn of(asked: i64) -> Self {
        Self { asked: asked as u64, nodes: 0, best: 0 }
    }

    /// No amount is negative, so what the subtraction borrows says whether the node is short. The count wraps, because
    /// an overflow check would cost as much as the count.
    #[inline(always)]
    fn count(&mut self, available: i64) {
        debug_assert!(available >= 0, "a node has less than nothing available");
        let (over, is_short) = (available as u64).overflowing_sub(self.asked);
        self.nodes = self.nodes.wrapping_add(u64::from(is_short));
        self.best = self.best.max(over);
    }

    fn report(&self, check: Check, unit: i64, refusal: &mut Refusal) {
        if self.nodes > 0 {
            let least = -(self.best as i64);
            assert!(least > 0, "a node was counted that is not short of {check:?}");
            let least = Amount::try_from_units(least * unit).expect("a shortage is below what was asked");
            let before = refusal.checks.insert(check, Shortage { nodes: self.nodes, least });
            assert!(before.is_none(), "{check:?} is counted twice");
        }
    }
}

/// The checks of the resources that every node has.
struct Tallies {
    cpu: Tally,
    memory: Tally,
    gpu: Tally,
    /// True if the request asks for whole GPUs. Otherwise it asks for part of a GPU, or for none.
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
        if self.whole { self.count_gpus::<true>(room) } else { self.count_gpus::<false>(room) }
    }

    /// `WHOLE` is [`whole`](Self::whole), which is known before a page of nodes is counted.
    #[inline(always)]
    fn count_gpus<const WHOLE: bool>(&mut self, room: &Room) {
        self.cpu.count(room.cpu.units());
        self.memory.count(room.memory.units());
        self.gpu.count(i64::from(if WHOLE { room.whole_gpus } else { room.largest_gpu_part }));
    }

    fn report(&self, refusal: &mut Refusal) {
        self.cpu.report(Check::Cpu, 1, refusal);
        self.memory.report(Check::Memory, 1, refusal);
        let (check, unit) = if self.whole { (Check::WholeGpus, Amount::SCALE) } else { (Check::GpuPart, 1) };
        self.gpu.report(check, unit, refusal);
    }
}

/// A page of the counts of a refusal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    /// The slot where it begins.
    pub(crate) from: Slot,
    /// The maximum number of nodes.
    pub(crate) most: u32,
}

impl Choose {
    /// Counts the failing checks over the first page of this shard's nodes. Also returns whether any node could
    /// hold the request if the node were empty. That answer is exact, even if few nodes are counted.
    ///
    /// `scope` is the cached eligibility for requests like this one. What is read of capacities and of what is free is told
    /// apart.
    pub(crate) fn explain(
        &mut self,
        books: &Books,
        request: &PlacementRequest,
        scope: Eligibility,
        page: Page,
        [of_capacities, of_free]: [&mut impl Meter; 2],
    ) -> (Refusal, u64) {
        let feasible = self.feasible(books, request, scope, of_capacities);
        // Who asks for all nodes gets pages, because a crowded step is compared in part.
        let may_count = matches!(scope, Eligibility::Plain(None))
            && request.candidates.is_none()
            && request.explain == Explanation::Bounded
            && is_simple(books, request);
        let counted = if may_count { self.counted(books, request, page.most, of_free) } else { None };
        let (refusal, looked_at) =
            counted.unwrap_or_else(|| self.explain_page(books, request, scope, page, of_free));
        assert!(refusal.examined <= refusal.nodes, "more nodes are examined than there are");
        (Refusal { feasible, ..refusal }, looked_at)
    }

    /// Counts all nodes by what the index has counted. Compares at most `page` nodes of a step, and also returns
    /// the number of nodes compared. `None` if the index cannot tell.
    fn counted(
        &self,
        books: &Books,
        request: &PlacementRequest,
        page: u32,
        meter: &mut impl Meter,
    ) -> Option<(Refusal, u64)> {
        let nodes = books.nodes.len() as u64;
        let of_states = &books.sums.kept;
        // A replica does not count its nodes by state.
        if of_states.nodes() != nodes {
            return None;
        }
        let most = STEP_NODES_MAX.min(page as usize);
        let mut refusal = Refusal { nodes, ..Refusal::default() };
        let mut unknown = 0;
        let mut compared = 0;
        let mut count = |check, dimension, asked: i64, unit, value: fn(&Room) -> i64| {
            if asked == 0 {
                return Some(());
            }
            let value = |slot| value(books.nodes.room(slot)) as u64;
            let lacking = self.index.lacking(dimension, asked as u64, most, meter, value)?;
            if let (Some(largest), 1..) = (lacking.most, lacking.nodes) {
                let least = Amount::try_from_units((asked - largest as i64) * unit)
                    .expect("it is below what was asked");
                refusal.checks.insert(check, Shortage { nodes: lacking.nodes, least });
            }
            unknown = lacking.unknown.max(unknown);
            compared += lacking.compared;
            Some(())
        };
        let Demand { cpu, memory, gpu, .. } = &request.demand;
        count(Check::Cpu, Dimension::Cpu, cpu.units(), 1, |room| room.cpu.units())?;
        count(Check::Memory, Dimension::Memory, memory.units(), 1, |room| room.memory.units())?;
        match *gpu {
            GpuRequest::None => {}
            GpuRequest::Fraction(part) => {
                let value = |room: &Room| i64::from(room.largest_gpu_part);
                count(Check::GpuPart, Dimension::LargestGpuPart, i64::from(part), 1, value)?;
            }
            GpuRequest::Whole(gpus) => {
                let value = |room: &Room| i64::from(room.whole_gpus);
                count(Check::WholeGpus, Dimension::WholeGpus, i64::from(gpus), Amount::SCALE, value)?;
            }
        }
        let ready = u64::from(of_states.nodes_in(NodeState::Ready));
        report_plain(Check::NotReady, nodes - ready, &mut refusal);
        report_plain(Check::Allocations, ready - self.index.len() as u64, &mut refusal);
        assert!(unknown <= nodes, "a step has no more nodes than the shard");
        refusal.examined = nodes - unknown;
        Some((refusal, compared))
    }

    /// Counts nodes until the page is full. Also returns the number of slots that were looked at.
    pub(crate) fn explain_page(
        &self,
        books: &Books,
        request: &PlacementRequest,
        scope: Eligibility,
        page: Page,
        meter: &mut impl Meter,
    ) -> (Refusal, u64) {
        let Page { from, most } = page;
        let nodes = books.nodes.len() as u64;
        let eligible = self.eligible(books, request, scope);
        let mut refusal = Refusal { nodes, ..Refusal::default() };
        let mut named = books.nodes.named(request);
        if let Some(named) = &mut named {
            named.sort_unstable();
            named.dedup();
        }
        let (end, looked_at) = match &named {
            // All named candidates fit one page, and no other nodes are looked at.
            Some(named) if request.explain == Explanation::Full => {
                refusal.examined = nodes;
                count_named(books, &eligible, request, named, &mut refusal);
                (books.nodes.slots(), named.len())
            }
            _ => {
                let end = page_end(books, from, most, &mut refusal);
                let page = from..end;
                let is_simple = is_simple(books, request);
                match (&named, scope) {
                    (Some(named), _) => {
                        let here = named.partition_point(|&slot| slot < end);
                        count_named(books, &eligible, request, &named[..here], &mut refusal);
                    }
                    (None, Eligibility::Plain(None)) if is_simple => {
                        page.clone().for_each(|slot| meter.compared(slot));
                        let rooms = &books.nodes.rooms()[page.start as usize..page.end as usize];
                        count_plain(rooms.iter(), request, &mut refusal);
                    }
                    (None, Eligibility::Plain(Some(set))) => {
                        self.selectors.tell_members(set, page.clone(), meter);
                        let set = self.selectors.at(set);
                        let selected = set.count_in(page.clone());
                        let members = set.members_in(page).inspect(|&slot| meter.compared(slot));
                        if is_simple {
                            count_plain(members.map(|slot| books.nodes.room(slot)), request, &mut refusal);
                        } else {
                            count_slots(books, &eligible, request, members, &mut refusal);
                        }
                        // The others are not selected.
                        let others = refusal.examined - selected;
                        report_plain(Check::Selector, others, &mut refusal);
                    }
                    (None, _) => {
                        let page = page.inspect(|&slot| meter.compared(slot));
                        count_slots(books, &eligible, request, page, &mut refusal);
                    }
                }
                (end, (end - from) as usize)
            }
        };
        if request.explain == Explanation::Full && end < books.nodes.slots() {
            refusal.rest = Some(end);
        }
        (refusal, looked_at as u64)
    }

    /// Returns whether some registered node has the capacity and the labels, and no taint that excludes the
    /// request.
    fn feasible(
        &mut self,
        books: &Books,
        request: &PlacementRequest,
        scope: Eligibility,
        meter: &mut impl Meter,
    ) -> bool {
        let asked = self.capacities.geometry().asked(&request.demand);
        let named = books.nodes.named(request);
        let Self { capacities, selectors, rankings, .. } = self;
        let nodes = &books.nodes;
        let eligible = Eligible::of(selectors, rankings, books, request, scope);
        let mut any = |candidates: Candidates<'_>| {
            capacities.any(&asked, candidates, meter, |slot| {
                eligible.excluded(slot).is_none() && nodes.could_fit(slot, &request.demand)
            })
        };
        match (&named, scope) {
            (Some(named), _) => any(Candidates::Walk(named)),
            (None, Eligibility::Plain(Some(set))) => any(selectors.at(set).candidates()),
            (None, Eligibility::Plain(None)) => any(Candidates::All),
            (None, Eligibility::Ranked(id)) => {
                rankings.at(id).tiers().iter().any(|tier| any(tier.candidates()))
            }
        }
    }
}

/// Returns whether only amounts that every node has decide, of nodes that labels and taints allow.
fn is_simple(books: &Books, request: &PlacementRequest) -> bool {
    request.demand.custom.is_none() && books.reservations.is_empty()
}

/// Returns the end of the page that begins at `from`, and counts its nodes as examined.
fn page_end(books: &Books, from: Slot, most: u32, refusal: &mut Refusal) -> Slot {
    assert!(refusal.examined == 0, "a page begins with nodes that were examined");
    let slots = books.nodes.slots();
    if books.nodes.len() == slots as usize {
        // No slot is vacant.
        let end = slots.min(from.saturating_add(most)).max(from);
        refusal.examined += u64::from(end - from);
        return end;
    }
    let last = slots.min(from.saturating_add(most.saturating_mul(EXPLAIN_SLOTS_PER_NODE)));
    let mut end = from;
    while end < last && refusal.examined < u64::from(most) {
        refusal.examined += u64::from(books.nodes.room(end).state.is_some());
        end += 1;
    }
    end
}

/// Counts nodes of a page for a request that depends only on the amounts of these nodes.
fn count_plain<'a>(rooms: impl Iterator<Item = &'a Room>, request: &PlacementRequest, refusal: &mut Refusal) {
    let tallies = Tallies::of(request);
    if tallies.whole {
        count_rooms::<true>(rooms, tallies, refusal);
    } else {
        count_rooms::<false>(rooms, tallies, refusal);
    }
}

/// The same for whole GPUs, or for parts of one.
#[inline(never)]
fn count_rooms<'a, const WHOLE: bool>(
    rooms: impl Iterator<Item = &'a Room>,
    mut tallies: Tallies,
    refusal: &mut Refusal,
) {
    let mut not_ready = 0u64;
    let mut full = 0u64;
    // The iterator has the loop, which is shorter than its calls one by one.
    rooms.for_each(|room| {
        if room.takes_work() {
            tallies.count_gpus::<WHOLE>(room);
        } else if room.state == Some(NodeState::Ready) {
            full += 1;
        } else {
            not_ready += u64::from(room.state.is_some());
        }
    });
    assert!(not_ready + full <= refusal.examined, "more nodes are counted than were examined");
    tallies.report(refusal);
    report_plain(Check::NotReady, not_ready, refusal);
    report_plain(Check::Allocations, full, refusal);
}

/// Counts the named candidates among the examined nodes. All other examined nodes are not candidates.
fn count_named(
    books: &Books,
    eligible: &Eligible<'_>,
    request: &PlacementRequest,
    named: &[Slot],
    refusal: &mut Refusal,
) {
    count_slots(books, eligible, request, named.iter().copied(), refusal);
    let others = refusal.examined.checked_sub(named.len() as u64);
    let others = others.expect("candidates are examined before they are counted");
    report_plain(candidate_check(request), others, refusal);
}

/// Counts nodes for which labels, taints, custom resources or reservations may decide.
fn count_slots(
    books: &Books,
    eligible: &Eligible<'_>,
    request: &PlacementRequest,
    slots: impl Iterator<Item = Slot>,
    refusal: &mut Refusal,
) {
    let reserves = !books.reservations.is_empty();
    let custom = request.demand.custom();
    let tally = |&(_, amount): &(_, Amount)| Tally::of(amount.units());
    let mut tallies = Tallies::of(request);
    let mut of_custom: Vec<Tally> = custom.iter().map(tally).collect();
    let mut fragmented: Vec<Tally> = custom.iter().map(tally).collect();
    let mut excluded_by = [0u64; 5];
    let [not_selected, tainted, not_ready, reserved, full] = &mut excluded_by;
    for slot in slots {
        let room = books.nodes.room(slot);
        let Some(state) = room.state else { continue };
        let excluded = eligible.excluded(slot);
        if excluded == Some(Check::Selector) {
            *not_selected += 1;
        } else if excluded.is_some() {
            *tainted += 1;
        } else if state != NodeState::Ready {
            *not_ready += 1;
        } else if reserves && is_kept_from(books, slot, request) {
            *reserved += 1;
        } else if room.places <= 0 {
            *full += 1;
        } else {
            let own = books.own(slot, request.owner);
            let own = (own != 0).then(|| books.free(slot, own));
            tallies.count(own.as_ref().map_or(room, |own| &own.room));
            for (at, &(id, amount)) in custom.iter().enumerate() {
                let book = own.as_ref().map_or_else(|| books.nodes.book(slot, id), |own| own.book(id));
                let room = book.map_or(Amount::ZERO, |book| book.room_for(amount));
                let sum_would_do = room < amount && book.is_some_and(|book| book.available >= amount);
                let tallies = if sum_would_do { &mut fragmented } else { &mut of_custom };
                tallies[at].count(room.units());
            }
        }
    }
    let excluded: u64 = excluded_by.iter().sum();
    assert!(excluded <= refusal.examined, "more nodes are excluded than were examined");
    let checks = [Check::Selector, Check::Taint, Check::NotReady, Check::Reserved, Check::Allocations];
    for (check, nodes) in checks.into_iter().zip(excluded_by) {
        report_plain(check, nodes, refusal);
    }
    tallies.report(refusal);
    for (tally, &(id, _)) in of_custom.iter().zip(custom) {
        tally.report(Check::Custom(id), 1, refusal);
    }
    for (tally, &(id, _)) in fragmented.iter().zip(custom) {
        tally.report(Check::Fragmented(id), 1, refusal);
    }
}

/// Returns whether the node would fit if it were not reserved for another owner.
fn is_kept_from(books: &Books, slot: Slot, request: &PlacementRequest) -> bool {
    books.reservation(slot).is_some_and(|there| {
        Some(there.owner) != request.owner && books.fits(slot, RESERVED, &request.demand)
    })
}

/// Returns the check for nodes that are not candidates.
fn candidate_check(request: &PlacementRequest) -> Check {
    let affinity = request.preferences.as_ref().is_some_and(|preferences| preferences.affinity);
    match request.candidates.as_deref() {
        Some(&[node]) if affinity => Check::Affinity(node),
        _ => Check::Candidates,
    }
}

/// Reports a check that is not about a resource.
fn report_plain(check: Check, nodes: u64, refusal: &mut Refusal) {
    assert!(nodes <= refusal.nodes, "{check:?} excludes more nodes than there are");
    if nodes > 0 {
        let before = refusal.checks.insert(check, Shortage { nodes, least: Amount::ZERO });
        assert!(before.is_none(), "{check:?} is counted twice");
    }
}
