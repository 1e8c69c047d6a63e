//! Omega's private copy: a shard of the planner's own that is kept equal to a shard's view.
//!
//! A plan takes capacity on the replica before the planner asks the shard for it. The capacity stays taken
//! until a view shows the result or the plan gives it up, so the planner does not plan with it twice. A node
//! of the replica is always what its view says less the claims on it. Giving up a claim rebuilds the node. So
//! the inverse is exact in any order of claims.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::domains::{Domain, Domains};
use crate::ids::{AllocationId, NodeId};
use crate::index::Slot;
use crate::map::FixedMap;
use crate::node::NodeState;
use crate::request::{PlacementRequest, Refusal};
use crate::resource::{Demand, GpuAssignment};
use crate::shard::{Shard, Tentative};
use crate::time::Time;
use crate::view::{BundleEnded, ColdImage, HotImage, View, ViewReader};

/// The key of a claim on a replica.
pub(super) type ClaimKey = u64;

/// Capacity that is taken on a node and not shown by the node's view.
#[derive(Debug)]
struct Claim {
    key: ClaimKey,
    /// The node. Its slot may have a different node now.
    node: NodeId,
    demand: Demand,
    gpus: GpuAssignment,
    /// Set if the claim is in the books of the replica. Another claim or a newer view may have left no room.
    taken: bool,
    /// The first view that shows the result.
    visible_from: Option<u64>,
    /// The version of the node when the claim was taken.
    version: Option<u64>,
}

/// The replica of one shard.
pub(super) struct Replica {
    shard: Shard,
    reader: ViewReader,
    /// The view that the replica equals. `None` before the first update.
    view: Option<Arc<View>>,
    claims: FixedMap<Slot, Vec<Claim>>,
    next_key: ClaimKey,
    hidden: Vec<Slot>,
    /// The nodes of which others are ignored, as they are without them.
    emptied: BTreeMap<Slot, (HotImage, Arc<ColdImage>)>,
    /// Nodes with claims that the view shows already. The next [`sync`](Replica::sync) rebuilds them.
    stale: Vec<Slot>,
    /// The number of the next event that tells an ended bundle. `None` before the first.
    next_end: Option<u64>,
    /// The sequence of the view that the planner waits for.
    awaited: Option<u64>,
    /// The number of times that nodes came, went, or changed in capacity, names, labels, taints or state.
    shape: u64,
    domains: Domains,
}

impl Replica {
    /// Creates an empty replica. The first [`sync`](Self::sync) fills it.
    pub(super) fn new(shard: Shard, reader: ViewReader) -> Self {
        let claims = FixedMap::default();
        let hidden = Vec::new();
        let emptied = BTreeMap::new();
        let stale = Vec::new();
        let domains = Domains::default();
        let next_key = 0;
        let next_end = None;
        Self {
            shard,
            reader,
            view: None,
            claims,
            next_key,
            hidden,
            emptied,
            stale,
            next_end,
            awaited: None,
            shape: 0,
            domains,
        }
    }

    /// Brings the replica up to the newest view. Returns whether anything changed.
    pub(super) fn sync(&mut self) -> bool {
        let newest = self.reader.read_until(self.reader.due());
        let Some(before) = self.view.replace(Arc::clone(&newest)) else {
            self.shard.follow_view(&newest);
            newest.nodes(|slot, _, _| self.shard.renew(slot));
            self.domains.forget();
            self.shape += 1;
            return true;
        };
        // Each node is rebuilt once, even if it has several grants and changes.
        let mut slots = std::mem::take(&mut self.stale);
        let moved = !Arc::ptr_eq(&newest, &before) || !slots.is_empty();
        if !Arc::ptr_eq(&newest, &before) {
            self.shard.follow_view(&newest);
            newest.diff(&before, |slot| {
                slots.push(slot);
                if !same_shape(&newest, &before, slot) {
                    self.shape += 1;
                    let there = newest.hot(slot).is_some_and(|image| image.state.is_some());
                    let cold = newest.cold(slot).filter(|_| there);
                    self.domains.follow(slot, cold.map(|cold| &cold.registration.spec.labels));
                }
            });
        }
        slots.sort_unstable();
        slots.dedup();
        slots.drain(..).for_each(|slot| self.renew(slot));
        self.stale = slots;
        moved
    }

    /// Returns the bundles that ended since the last call, and again those that ended since a
    /// [grant](Self::granted). `None`: the view does not tell all of them, so the caller must compare its
    /// bundles with it.
    pub(super) fn take_ended(&mut self) -> Option<Vec<BundleEnded>> {
        let view = self.view.as_ref()?;
        let next = self.next_end.replace(view.head().bundles_ended)?;
        Some(view.ended_from(next)?.copied().collect())
    }

    /// Returns the sequence of the view that the replica equals.
    pub(super) fn sequence(&self) -> u64 {
        self.view.as_ref().map_or(0, |view| view.version().sequence)
    }

    /// Returns whether bundles ended that were not taken.
    pub(super) fn has_ended(&self) -> bool {
        self.next_end != Some(self.reader.bundles_ended())
    }

    /// Waits for the view that shows all that has changed until now, unless it waits for one already.
    pub(super) fn await_view(&mut self) {
        self.awaited = self.awaited.or_else(|| Some(self.reader.due()));
    }

    /// Returns whether it waits for a view, after it was brought up to the newest one.
    pub(super) fn is_awaiting(&mut self) -> bool {
        let sequence = self.sequence();
        self.awaited = self.awaited.filter(|&due| due > sequence);
        self.awaited.is_some()
    }

    /// Returns the shard's growth in the view.
    pub(super) fn growth(&self) -> u64 {
        self.view.as_ref().map_or(0, |view| view.head().facts.growth)
    }

    /// Returns the time at which a releasing allocation of a node ends at the latest, in the view.
    pub(super) fn releasing(&self, slot: Slot, id: AllocationId) -> Option<Time> {
        let pending = self.view.as_ref()?.cold(slot)?.pending.as_ref()?;
        let at = pending.releasing.binary_search_by_key(&id, |&(id, _)| id).ok()?;
        Some(pending.releasing[at].1)
    }

    /// Returns the view that the replica equals.
    pub(super) fn base(&self) -> Option<&View> {
        self.view.as_deref()
    }

    /// Returns the number of changes that may affect what could be placed if nothing ran.
    pub(super) fn shape(&self) -> u64 {
        self.shape
    }

    /// Returns the nodes by the value of a label, in any state.
    pub(super) fn domain(&mut self, key: &str) -> &Domain {
        let shard = &self.shard;
        self.domains.keep(key, || shard.label_values(key))
    }

    /// Adds to `open` the values of a label on nodes that take new work and that suit the labels, taints and
    /// names of `request`.
    ///
    /// Returns the number of nodes that were looked at.
    pub(super) fn values_open_to(
        &mut self,
        key: &str,
        request: &PlacementRequest,
        open: &mut Vec<Arc<str>>,
    ) -> usize {
        self.domain(key);
        let Self { shard, domains, .. } = self;
        let named: Option<Vec<Slot>> =
            request.candidates.as_ref().map(|ids| ids.iter().filter_map(|&id| shard.slot_of(id)).collect());
        let eligible = shard.eligible(request);
        let domain = domains.keep(key, std::iter::empty);
        match named {
            Some(named) => {
                let looked_at = named.len();
                open.extend(
                    named
                        .into_iter()
                        .filter(|&slot| eligible(slot))
                        .filter_map(|slot| domain.value(slot))
                        .cloned(),
                );
                looked_at
            }
            None => {
                let mut looked_at = 0;
                for (value, slots) in domain.values() {
                    let at = slots.iter().position(|&slot| eligible(slot));
                    looked_at += at.map_or(slots.len(), |at| at + 1);
                    open.extend(at.map(|_| Arc::clone(value)));
                }
                looked_at
            }
        }
    }

    /// Returns the state of a node in the view.
    pub(super) fn state(&self, slot: Slot) -> Option<NodeState> {
        self.view.as_ref()?.hot(slot)?.state
    }

    /// Returns the number of vertices and nodes that its searches have looked at so far.
    pub(super) fn looked_at(&self) -> u64 {
        let visits = self.shard.visits();
        visits.vertices + visits.nodes + self.domains.looked_at()
    }

    /// Returns the version of a node, for a plan to expect.
    pub(super) fn version(&self, slot: Slot) -> Option<u64> {
        Some(self.view.as_ref()?.hot(slot)?.version)
    }

    pub(super) fn shard(&self) -> &Shard {
        &self.shard
    }

    pub(super) fn shard_mut(&mut self) -> &mut Shard {
        &mut self.shard
    }

    /// Takes the node that the policy of `request` chooses.
    pub(super) fn take(&mut self, request: &PlacementRequest) -> Option<(Tentative, ClaimKey)> {
        let tentative = self.shard.take_tentatively(request)?;
        Some((tentative, self.enter(&tentative, &request.demand)))
    }

    /// Takes `demand` on one node if it fits.
    pub(super) fn take_on(&mut self, slot: Slot, demand: &Demand) -> Option<(Tentative, ClaimKey)> {
        let tentative = self.shard.take_on(slot, demand, None)?;
        Some((tentative, self.enter(&tentative, demand)))
    }

    fn enter(&mut self, tentative: &Tentative, demand: &Demand) -> ClaimKey {
        self.next_key += 1;
        let key = self.next_key;
        let gpus = tentative.gpus;
        let node = tentative.node;
        let demand = demand.clone();
        let version = self.version(tentative.slot);
        let claim = Claim { key, node, demand, gpus, taken: true, visible_from: None, version };
        self.claims.entry(tentative.slot).or_default().push(claim);
        key
    }

    /// Returns whether something may be counted twice: it is taken here, and the view already shows it as
    /// held or granted, but the shard's answer has not arrived.
    pub(super) fn is_uncertain(&self) -> bool {
        let mut claims =
            self.claims.iter().flat_map(|(&slot, claims)| claims.iter().map(move |of| (slot, of)));
        claims.any(|(slot, claim)| claim.visible_from.is_none() && claim.version != self.version(slot))
    }

    /// Gives up what was taken on a node.
    pub(super) fn give_up(&mut self, slot: Slot, keys: &[ClaimKey]) {
        let Some(claims) = self.claims.get_mut(&slot) else { return };
        let before = claims.len();
        claims.retain(|claim| !keys.contains(&claim.key));
        if claims.len() != before {
            self.renew(slot);
        }
    }

    /// Records that a claim is granted. The shard's views from `sequence` on show it, and may already have told
    /// that it ended.
    pub(super) fn granted(&mut self, slot: Slot, key: ClaimKey, sequence: u64) {
        if let (Some(view), Some(next)) = (&self.view, &mut self.next_end) {
            *next = view.first_end_since(sequence).min(*next);
        }
        let claims = self.claims.get_mut(&slot);
        if let Some(claim) = claims.and_then(|claims| claims.iter_mut().find(|claim| claim.key == key)) {
            claim.visible_from = Some(sequence);
            if self.sequence() >= sequence {
                self.stale.push(slot);
            }
        }
    }

    /// Rebuilds a node from its view, less the claims that the view does not show. Claims on a node that is
    /// gone are dropped.
    fn renew(&mut self, slot: Slot) {
        match self.emptied.get(&slot) {
            Some((hot, cold)) => self.shard.apply_image(slot, hot, Some(cold)),
            None => self.shard.renew(slot),
        }
        let sequence = self.sequence();
        let there = self.shard.node_at(slot);
        let Some(claims) = self.claims.get_mut(&slot) else { return };
        claims.retain(|claim| {
            there == Some(claim.node) && claim.visible_from.is_none_or(|from| from > sequence)
        });
        for claim in claims.iter_mut() {
            let taken = self.shard.take_on(slot, &claim.demand, Some(claim.gpus));
            claim.taken = taken.is_some();
            claim.gpus = taken.map_or(claim.gpus, |taken| taken.gpus);
        }
        if claims.is_empty() {
            self.claims.remove(&slot);
        }
        if self.hidden.contains(&slot) {
            self.shard.hide(slot);
        }
    }

    /// Frees a node of all allocations except `own`, until [`refill`](Self::refill). A node that is reserved for an
    /// owner stays as it is. Returns the number of records looked at.
    pub(super) fn empty(&mut self, slot: Slot, own: &BTreeSet<AllocationId>) -> u64 {
        if self.emptied.contains_key(&slot) || self.reserved_for(slot).is_some() {
            return 1;
        }
        self.shard.renew(slot);
        let (hot, cold, ended) = self.shard.empty_tentatively(slot, own);
        self.emptied.insert(slot, (hot, Arc::new(cold)));
        self.renew(slot);
        1 + ended as u64
    }

    /// Makes all emptied nodes what their view says again.
    pub(super) fn refill(&mut self) {
        std::mem::take(&mut self.emptied).into_keys().for_each(|slot| self.renew(slot));
    }

    /// Hides a node from every search until `unhide_from` shows it again.
    pub(super) fn hide(&mut self, slot: Slot) {
        if !self.hidden.contains(&slot) {
            self.shard.hide(slot);
            self.hidden.push(slot);
        }
    }

    /// Shows the hidden nodes again, from the `from`-th on.
    pub(super) fn unhide_from(&mut self, from: usize) {
        for slot in self.hidden.split_off(from) {
            // A node that is not ready stays out of searches.
            if self.state(slot) == Some(NodeState::Ready) {
                self.shard.unhide(slot);
            }
        }
    }

    /// Shows one hidden node again.
    pub(super) fn show(&mut self, slot: Slot) {
        let Some(at) = self.hidden.iter().position(|&hidden| hidden == slot) else { return };
        self.hidden.remove(at);
        if self.state(slot) == Some(NodeState::Ready) {
            self.shard.unhide(slot);
        }
    }

    /// Returns the number of hidden nodes.
    pub(super) fn hidden_count(&self) -> usize {
        self.hidden.len()
    }

    /// Returns the refusal that the replica would give for `request`.
    pub(super) fn refusal(&mut self, request: &PlacementRequest) -> Refusal {
        self.shard.refusal_of(request)
    }
}

/// Returns whether a node is the same in both views, except for what runs there.
fn same_shape(newest: &View, before: &View, slot: Slot) -> bool {
    let state = |view: &View| view.hot(slot).and_then(|image| image.state);
    let same_spec = match (newest.cold(slot), before.cold(slot)) {
        (Some(now), Some(then)) => Arc::ptr_eq(&now.registration, &then.registration),
        (now, then) => now.is_none() && then.is_none(),
    };
    same_spec && state(newest) == state(before)
}

#[cfg(test)]
mod tests {
    use super::super::test_bed::{Bed, cores, node_of};
    use crate::ids::{AllocationId, BundleId, GroupId, Incarnation, NodeId, StatementId, TenantId};
    use crate::limits::BUNDLES_ENDED_KEPT;
    use crate::node::LifeEvent;
    use crate::resource::Amount;
    use crate::shard::{Command, Outcome};
    use crate::statement::{Allocate, CommitMode, ConflictDetection, Evict, Granted, Operation, Part};
    use crate::view::EndCause;

    /// Places bundle 0 of group 1 on a node. Returns its allocation and the first view that shows it.
    fn place_bundle(bed: &mut Bed, node: NodeId) -> (AllocationId, u64) {
        let bundle = Some(BundleId {
            group: GroupId { incarnation: Incarnation(1), number: 1, tenant: TenantId::OPERATOR },
            index: 0,
        });
        let demand = cores(1).demand;
        let allocate = Allocate {
            node,
            expected: None,
            demand,
            gpus: None,
            owner: None,
            bundle,
            tenant: TenantId::OPERATOR,
        };
        let Outcome::Applied(Ok(applied)) = bed.step(0, apply(Operation::Allocate(allocate))) else {
            panic!("a statement is applied")
        };
        match &applied.granted[..] {
            [(0, Granted::Allocated(placement))] => (placement.allocation, applied.visible_from),
            other => panic!("{other:?}"),
        }
    }

    fn apply(operation: Operation) -> Command {
        let statement = StatementId { incarnation: Incarnation(1), planner: 0, number: 1 };
        let operations = vec![(0, operation)];
        let conflict_detection = ConflictDetection::Fine;
        let mode = CommitMode::AllOrNothing;
        Command::Apply(Box::new(Part { statement, operations, conflict_detection, mode }))
    }

    /// Returns the ended bundles that the copy tells. `None` if it must be compared with the view.
    fn told(bed: &mut Bed) -> Option<Vec<(AllocationId, EndCause)>> {
        bed.sync();
        let ended = bed.replicas.copies[0].take_ended()?;
        Some(ended.iter().map(|end| (end.allocation, end.cause)).collect())
    }

    #[test]
    fn each_bundle_that_ends_is_told_once_with_its_cause() {
        let mut bed = Bed::new(1);
        let node = bed.add(0, node_of(4, &[]), true);
        bed.step(0, Command::Life(node, LifeEvent::Beat));
        assert_eq!(told(&mut bed), None, "the first view is compared");
        let (released, _) = place_bundle(&mut bed, node);
        assert_eq!(told(&mut bed), Some(Vec::new()));
        bed.step(0, Command::Release(released));
        assert_eq!(told(&mut bed), Some(vec![(released, EndCause::Released)]));
        let (evicted, _) = place_bundle(&mut bed, node);
        let evict = Evict { allocation: evicted, expected: None, grace_ns: 0 };
        bed.step(0, apply(Operation::Evict(evict)));
        let (lost, _) = place_bundle(&mut bed, node);
        bed.step(0, Command::Life(node, LifeEvent::Drain));
        bed.step(0, Command::Life(node, LifeEvent::Lose));
        // Views in between are skipped, their events are not.
        assert_eq!(told(&mut bed), Some(vec![(evicted, EndCause::Evicted), (lost, EndCause::NodeLost)]));
        bed.step(0, Command::RemoveNode { node, force: true });
        assert_eq!(told(&mut bed), Some(vec![(lost, EndCause::NodeRemoved)]));
        assert_eq!(told(&mut bed), Some(Vec::new()));
    }

    #[test]
    fn an_end_that_is_told_before_the_answer_with_the_grant_is_told_again_after_it() {
        let mut bed = Bed::new(1);
        let node = bed.add(0, node_of(4, &[]), false);
        told(&mut bed);
        let slot = bed.replicas.copies[0].shard().slot_of(node).expect("it is there");
        let (earlier, _) = place_bundle(&mut bed, node);
        bed.step(0, Command::Release(earlier));
        told(&mut bed);
        let (allocation, visible_from) = place_bundle(&mut bed, node);
        told(&mut bed);
        bed.step(0, Command::Release(allocation));
        let ended = Some(vec![(allocation, EndCause::Released)]);
        assert_eq!(told(&mut bed), ended);
        // The key is of no claim: what was taken on a node that is gone is given up.
        bed.replicas.copies[0].granted(slot, 77, visible_from);
        assert!(bed.replicas.copies[0].has_ended());
        assert_eq!(told(&mut bed), ended);
        bed.replicas.copies[0].granted(slot, 77, visible_from + 2);
        assert_eq!(told(&mut bed), Some(Vec::new()), "it ended before that view");
    }

    #[test]
    fn a_copy_that_fell_behind_the_ring_is_compared_once() {
        let mut bed = Bed::new(1);
        let node = bed.add(0, node_of(4, &[]), false);
        told(&mut bed);
        let slot = bed.replicas.copies[0].shard().slot_of(node).expect("it is there");
        for ends in [BUNDLES_ENDED_KEPT, BUNDLES_ENDED_KEPT + 1] {
            let (first, visible_from) = place_bundle(&mut bed, node);
            bed.step(0, Command::Release(first));
            for _ in 1..ends {
                let (allocation, _) = place_bundle(&mut bed, node);
                bed.step(0, Command::Release(allocation));
            }
            let told_all = told(&mut bed).map(|told| (told.len() as u64, told[0].0));
            assert_eq!(told_all, (ends == BUNDLES_ENDED_KEPT).then_some((ends, first)));
            assert_eq!(told(&mut bed), Some(Vec::new()));
            // A grant of that time may have ended with an event that the ring has lost.
            bed.replicas.copies[0].granted(slot, 77, visible_from);
            assert_eq!(told(&mut bed).is_none(), ends > BUNDLES_ENDED_KEPT);
        }
    }

    #[test]
    fn what_is_granted_stays_taken_until_the_view_that_shows_it_and_no_longer() {
        let mut bed = Bed::new(1);
        let node = bed.add(0, node_of(8, &[]), false);
        bed.sync();
        let copy = &mut bed.replicas.copies[0];
        let slot = copy.shard().slot_of(node).expect("it is there");
        let (_, key) = copy.take_on(slot, &cores(2).demand).expect("it is free");
        copy.granted(slot, key, copy.sequence() + 2);
        // The next view shows a placement of others there. The one after it shows the grant.
        for (cpu, left) in [(1, 8 - 1 - 2), (2, 8 - 1 - 2), (3, 8 - 1 - 2 - 3)] {
            bed.step(0, Command::Place(cores(cpu)));
            bed.sync();
            let [free, ..] = bed.replicas.copies[0].shard().free_on(slot);
            assert_eq!(free, Amount::whole(left).units(), "after {cpu} cores were placed");
        }
    }

    #[test]
    fn it_is_uncertain_while_a_node_with_a_claim_has_changed_and_the_claim_is_not_answered() {
        let mut bed = Bed::new(1);
        let node = bed.add(0, node_of(8, &[]), false);
        let other = bed.add(0, node_of(2, &[]), false);
        bed.sync();
        let slot = bed.replicas.copies[0].shard().slot_of(node).expect("it is there");
        let small = bed.replicas.copies[0].shard().slot_of(other).expect("it is there");
        let (_, key) = bed.replicas.copies[0].take_on(slot, &cores(2).demand).expect("it is free");
        assert!(!bed.replicas.copies[0].is_uncertain());
        // Two cores go on the smaller node, which has no claim.
        bed.step(0, Command::Place(cores(2)));
        bed.sync();
        assert!(!bed.replicas.copies[0].is_uncertain(), "another node changed");
        bed.step(0, Command::Place(cores(3)));
        bed.sync();
        let copy = &mut bed.replicas.copies[0];
        assert!(copy.is_uncertain(), "what was placed there may be what is claimed");
        copy.give_up(small, &[key]);
        copy.give_up(slot, &[key + 1]);
        assert!(copy.is_uncertain(), "neither node nor key are those of the claim");
        copy.granted(slot, key, copy.sequence());
        assert!(!copy.is_uncertain());
        let [free, ..] = copy.shard().free_on(slot);
        assert_eq!(free, Amount::whole(3).units());
        // The next update looks at the node, although no newer view is there.
        bed.sync();
        let copy = &bed.replicas.copies[0];
        let [free, ..] = copy.shard().free_on(slot);
        assert_eq!(free, Amount::whole(5).units(), "the view shows the grant already");
    }

    #[test]
    fn hidden_nodes_are_found_by_no_search_until_they_are_shown() {
        let mut bed = Bed::new(1);
        let nodes = [1, 2, 3].map(|_| bed.add(0, node_of(4, &[]), false));
        let idle = bed.add(0, node_of(4, &[]), true);
        bed.sync();
        let slots = nodes.map(|node| bed.replicas.copies[0].shard().slot_of(node).expect("it is there"));
        let waits = bed.replicas.copies[0].shard().slot_of(idle).expect("it is there");
        let found = |bed: &mut Bed| {
            let copy = &mut bed.replicas.copies[0];
            let hidden = copy.hidden_count();
            while let Some(slot) = copy.shard_mut().find_tentatively(&cores(3)) {
                copy.hide(slot);
            }
            let count = copy.hidden_count() - hidden;
            copy.unhide_from(hidden);
            count
        };
        assert_eq!(found(&mut bed), 3, "a node that takes no work is found by none");
        let copy = &mut bed.replicas.copies[0];
        let (_, key) = copy.take_on(slots[0], &cores(1).demand).expect("it is free");
        for slot in [slots[0], slots[0], waits, slots[1]] {
            copy.hide(slot);
        }
        assert_eq!(copy.hidden_count(), 3, "each is hidden once");
        assert_eq!(found(&mut bed), 1);
        let copy = &mut bed.replicas.copies[0];
        copy.give_up(slots[0], &[key]);
        assert_eq!(found(&mut bed), 1, "a node that is rebuilt stays hidden");
        bed.replicas.copies[0].unhide_from(1);
        assert_eq!((bed.replicas.copies[0].hidden_count(), found(&mut bed)), (1, 2));
        bed.replicas.copies[0].show(slots[0]);
        bed.replicas.copies[0].show(slots[0]);
        assert_eq!((bed.replicas.copies[0].hidden_count(), found(&mut bed)), (0, 3));
    }
}
