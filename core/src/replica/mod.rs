//! Omega's private copy: a shard of the planner's own that is kept equal to a shard's view.
//!
//! A plan takes capacity on the replica before the planner asks the shard for it. The capacity stays taken
//! until a view shows the result or the plan gives it up, so the planner does not plan with it twice. A node
//! of the replica is always what its view says less the claims on it. Giving up a claim rebuilds the node. So
//! the inverse is exact in any order of claims.

mod counting;
mod domains;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ids::{AllocationId, NodeId, OwnerId};
use crate::index::Slot;
use crate::map::FixedMap;
use crate::node::{NodeSpec, NodeState};
use crate::request::{NodeLook, NodeRoom, PlacementRequest, Refusal};
use crate::resource::{Demand, GpuAssignment};
use crate::shard::{Shard, Tentative};
use crate::time::Time;
use crate::touched::Touched;
use crate::view::{BundleEnded, ColdImage, HotImage, View, ViewReader};
pub(crate) use counting::Counting;
pub(crate) use domains::Domain;
use domains::Domains;

/// The key of a claim on a replica.
pub(crate) type ClaimKey = u64;

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
pub(crate) struct Replica {
    shard: Shard,
    reader: ViewReader,
    /// The view that the replica equals. `None` before the first update.
    view: Option<Arc<View>>,
    claims: FixedMap<Slot, Vec<Claim>>,
    next_key: ClaimKey,
    hidden: Vec<Slot>,
    /// The nodes of which others are ignored, as they are without them.
    emptied: BTreeMap<Slot, (HotImage, Arc<ColdImage>)>,
    /// The claims that are left out, because they will have ended at the time that a node is shown at.
    ended_claims: BTreeSet<ClaimKey>,
    /// Nodes with claims that the view shows already. The next [`sync`](Replica::sync) rebuilds them.
    stale: Vec<Slot>,
    /// The number of the next event that tells an ended bundle. `None` before the first.
    next_end: Option<u64>,
    /// The sequence of the view that the planner waits for.
    awaited: Option<u64>,
    /// The number of times that nodes came, went, or changed in capacity, names, labels, taints or state.
    shape: u64,
    domains: Domains,
    /// The nodes that changed, also by what was taken.
    touched: Touched<Slot>,
}

impl Replica {
    /// Creates an empty replica. The first [`sync`](Self::sync) fills it.
    pub(crate) fn new(shard: Shard, reader: ViewReader) -> Self {
        let claims = FixedMap::default();
        let hidden = Vec::new();
        let emptied = BTreeMap::new();
        let ended_claims = BTreeSet::new();
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
            ended_claims,
            stale,
            next_end,
            awaited: None,
            shape: 0,
            domains,
            touched: Touched::default(),
        }
    }

    /// Brings the replica up to the newest view. Returns whether anything changed.
    pub(crate) fn sync(&mut self) -> bool {
        let newest = self.reader.read_until(self.reader.due());
        let Some(before) = self.view.replace(Arc::clone(&newest)) else {
            self.shard.follow_view(&newest);
            newest.nodes(|slot, _, _| self.shard.renew(slot));
            self.domains.forget();
            self.touched.note_all();
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
    pub(crate) fn take_ended(&mut self) -> Option<Vec<BundleEnded>> {
        let view = self.view.as_ref()?;
        let next = self.next_end.replace(view.head().bundles_ended)?;
        Some(view.ended_from(next)?.copied().collect())
    }

    /// Returns the sequence of the view that the replica equals.
    pub(crate) fn sequence(&self) -> u64 {
        self.view.as_ref().map_or(0, |view| view.version().sequence)
    }

    /// Returns whether bundles ended that were not taken.
    pub(crate) fn has_ended(&self) -> bool {
        self.next_end != Some(self.reader.bundles_ended())
    }

    /// Waits for the view that shows all that has changed until now, unless it waits for one already.
    pub(crate) fn await_view(&mut self) {
        self.awaited = self.awaited.or_else(|| Some(self.reader.due()));
    }

    /// Returns whether it waits for a view, after it was brought up to the newest one.
    pub(crate) fn is_awaiting(&mut self) -> bool {
        let sequence = self.sequence();
        self.awaited = self.awaited.filter(|&due| due > sequence);
        self.awaited.is_some()
    }

    /// Returns the nodes that changed since the last call, with repetitions. `None`: any may have.
    pub(crate) fn take_touched(&mut self) -> Option<Vec<Slot>> {
        self.touched.take()
    }

    /// Returns a mark for [`forget_since`](Self::forget_since).
    pub(crate) fn mark(&self) -> usize {
        self.touched.mark()
    }

    /// Forgets which nodes were touched since a mark, because what was taken there is given up.
    pub(crate) fn forget_since(&mut self, mark: usize) {
        self.touched.forget_since(mark);
    }

    /// Returns the shard's growth in the view.
    pub(crate) fn growth(&self) -> u64 {
        self.view.as_ref().map_or(0, |view| view.head().facts.growth)
    }

    /// Returns the time at which a releasing allocation of a node ends at the latest, in the view.
    pub(crate) fn releasing(&self, slot: Slot, id: AllocationId) -> Option<Time> {
        let pending = self.view.as_ref()?.cold(slot)?.pending.as_ref()?;
        let at = pending.releasing.binary_search_by_key(&id, |&(id, _)| id).ok()?;
        Some(pending.releasing[at].1)
    }

    /// Returns when all that is releasing on a node has ended at the latest, in the view.
    pub(crate) fn released_by(&self, slot: Slot) -> Time {
        let pending = self.view.as_ref().and_then(|view| view.cold(slot)?.pending.as_ref());
        let ends = pending.into_iter().flat_map(|pending| &pending.releasing);
        ends.map(|&(_, end)| end).max().unwrap_or_default()
    }

    /// Returns the view that the replica equals.
    pub(crate) fn base(&self) -> Option<&View> {
        self.view.as_deref()
    }

    /// Returns the number of changes that may affect what could be placed if nothing ran.
    pub(crate) fn shape(&self) -> u64 {
        self.shape
    }

    /// Returns the nodes by the value of a label, in any state.
    pub(crate) fn domain(&mut self, key: &str) -> &Domain {
        let shard = &self.shard;
        self.domains.keep(key, || shard.label_values(key))
    }

    /// Adds to `open` the values of a label on nodes that take new work and that suit the labels, taints and
    /// names of `request`.
    ///
    /// Returns the number of nodes that were looked at.
    pub(crate) fn values_open_to(
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
    pub(crate) fn state(&self, slot: Slot) -> Option<NodeState> {
        self.view.as_ref()?.hot(slot)?.state
    }

    /// Returns the number of vertices and nodes that its searches have looked at so far.
    pub(crate) fn looked_at(&self) -> u64 {
        let visits = self.shard.visits();
        visits.vertices + visits.nodes + self.domains.looked_at()
    }

    /// Returns the version of a node, for a plan to expect.
    pub(crate) fn version(&self, slot: Slot) -> Option<u64> {
        Some(self.view.as_ref()?.hot(slot)?.version)
    }

    pub(crate) fn shard(&self) -> &Shard {
        &self.shard
    }

    pub(crate) fn shard_mut(&mut self) -> &mut Shard {
        &mut self.shard
    }

    /// Takes the node that the policy of `request` chooses.
    pub(crate) fn take(&mut self, request: &PlacementRequest) -> Option<(Tentative, ClaimKey)> {
        let tentative = self.shard.take_tentatively(request)?;
        Some((tentative, self.enter(&tentative, &request.demand)))
    }

    /// Takes `demand` on one node if it fits.
    pub(crate) fn take_on(&mut self, slot: Slot, demand: &Demand) -> Option<(Tentative, ClaimKey)> {
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
        self.touched.note(tentative.slot);
        key
    }

    /// Returns whether something may be counted twice: it is taken here, and the view already shows it as
    /// held or granted, but the shard's answer has not arrived.
    pub(crate) fn is_uncertain(&self) -> bool {
        let mut claims =
            self.claims.iter().flat_map(|(&slot, claims)| claims.iter().map(move |of| (slot, of)));
        claims.any(|(slot, claim)| claim.visible_from.is_none() && claim.version != self.version(slot))
    }

    /// Gives up what was taken on a node.
    pub(crate) fn give_up(&mut self, slot: Slot, keys: &[ClaimKey]) {
        let Some(claims) = self.claims.get_mut(&slot) else { return };
        let before = claims.len();
        claims.retain(|claim| !keys.contains(&claim.key));
        if claims.len() != before {
            self.renew(slot);
        }
    }

    /// Records that a claim is granted. The shard's views from `sequence` on show it, and may already have told
    /// that it ended.
    pub(crate) fn granted(&mut self, slot: Slot, key: ClaimKey, sequence: u64) {
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
        self.touched.note(slot);
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
            if self.ended_claims.contains(&claim.key) {
                claim.taken = false;
                continue;
            }
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
    pub(crate) fn empty(&mut self, slot: Slot, own: &BTreeSet<AllocationId>) -> u64 {
        if self.emptied.contains_key(&slot) || self.reserved_for(slot).is_some() {
            return 1;
        }
        self.shard.renew(slot);
        let (hot, cold, ended) = self.shard.empty_tentatively(slot, own);
        self.emptied.insert(slot, (hot, Arc::new(cold)));
        self.renew(slot);
        1 + ended as u64
    }

    /// Shows a node as it will be once what is releasing there, and what is in `ended`, has ended and its claims have
    /// their capacity. It stays so until [`show_present`](Self::show_present).
    ///
    /// Returns false if that is not known, and the node is as it was: it is reserved for an owner, or a claim has a part
    /// of its capacity already, which the view does not tell.
    pub(crate) fn show_future(&mut self, slot: Slot, ended: &BTreeSet<AllocationId>) -> bool {
        if self.reserved_for(slot).is_some() {
            return false;
        }
        self.emptied.remove(&slot);
        self.shard.renew(slot);
        let view = Arc::clone(self.view.as_ref().expect("a replica that was brought up to date"));
        let pending = view.cold(slot).and_then(|cold| cold.pending.as_deref());
        let releasing = |id: AllocationId| {
            pending.is_some_and(|pending| pending.releasing.binary_search_by_key(&id, |&(id, _)| id).is_ok())
        };
        let kept: BTreeSet<AllocationId> = view
            .allocations(slot)
            .map(|allocation| allocation.id)
            .filter(|id| !ended.contains(id) && !releasing(*id))
            .collect();
        let (mut hot, mut cold, _) = self.shard.empty_tentatively(slot, &kept);
        for claim in pending.into_iter().flat_map(|pending| &pending.claims) {
            if self.shard.take_on(slot, &claim.demand, Some(claim.gpus)).is_none() {
                self.renew(slot);
                return false;
            }
            hot = self.shard.hot_image(slot);
            cold = self.shard.cold_image(slot, Some(&cold.registration)).expect("a registered node");
        }
        self.emptied.insert(slot, (hot, Arc::new(cold)));
        self.renew(slot);
        let is_held = |claim: &Claim| claim.taken || self.ended_claims.contains(&claim.key);
        self.claims.get(&slot).is_none_or(|claims| claims.iter().all(is_held))
    }

    /// Shows a node as [`show_future`](Self::show_future) does, also without the claims in `ended_claims`. It stays so
    /// until [`show_again`](Self::show_again); until then, no other node is changed.
    pub(crate) fn show_at(
        &mut self,
        slot: Slot,
        ended: &BTreeSet<AllocationId>,
        ended_claims: BTreeSet<ClaimKey>,
    ) -> bool {
        self.ended_claims = ended_claims;
        self.show_future(slot, ended)
    }

    /// Shows a node as its view has it again, less all that was taken.
    pub(crate) fn show_again(&mut self, slot: Slot) {
        self.ended_claims.clear();
        self.emptied.remove(&slot);
        self.renew(slot);
    }

    /// Shows a node as its view has it again, less what was taken.
    pub(crate) fn show_present(&mut self, slot: Slot) {
        if self.emptied.remove(&slot).is_some() {
            self.renew(slot);
        }
    }

    /// Makes all emptied nodes what their view says again.
    pub(crate) fn refill(&mut self) {
        std::mem::take(&mut self.emptied).into_keys().for_each(|slot| self.renew(slot));
    }

    /// Hides a node from every search until `unhide_from` shows it again.
    pub(crate) fn hide(&mut self, slot: Slot) {
        if !self.hidden.contains(&slot) {
            self.shard.hide(slot);
            self.hidden.push(slot);
        }
    }

    /// Shows the hidden nodes again, from the `from`-th on.
    pub(crate) fn unhide_from(&mut self, from: usize) {
        for slot in self.hidden.split_off(from) {
            // A node that is not ready stays out of searches.
            if self.state(slot) == Some(NodeState::Ready) {
                self.shard.unhide(slot);
            }
        }
    }

    /// Shows one hidden node again.
    pub(crate) fn show(&mut self, slot: Slot) {
        let Some(at) = self.hidden.iter().position(|&hidden| hidden == slot) else { return };
        self.hidden.remove(at);
        if self.state(slot) == Some(NodeState::Ready) {
            self.shard.unhide(slot);
        }
    }

    /// Shows all hidden nodes. Returns them in the order in which they were hidden.
    pub(crate) fn show_all(&mut self) -> Vec<Slot> {
        let hidden = self.hidden.clone();
        self.unhide_from(0);
        hidden
    }

    /// Returns whether a node is among the first `count` hidden nodes.
    pub(crate) fn is_among_hidden(&self, slot: Slot, count: usize) -> bool {
        self.hidden[..count].contains(&slot)
    }

    /// Returns the number of hidden nodes.
    pub(crate) fn hidden_count(&self) -> usize {
        self.hidden.len()
    }

    /// Returns whether `request` could be placed on a node if nothing ran there.
    pub(crate) fn could_hold(&mut self, slot: Slot, request: &PlacementRequest) -> bool {
        let others = self.reserved_for(slot).is_some_and(|owner| request.owner != Some(owner));
        !others && self.shard.could_hold(slot, &request.demand) && self.shard.may_hold(slot, request)
    }

    /// Returns the owner for whom a node is reserved. Tickets are ignored, because one is served at a time.
    pub(crate) fn reserved_for(&self, slot: Slot) -> Option<OwnerId> {
        let (owner, ..) = self.view.as_ref()?.cold(slot)?.reservation()?;
        Some(owner).filter(|owner| !owner.is_ticket())
    }

    /// Returns the spec of a node.
    pub(crate) fn spec(&self, slot: Slot) -> Option<&NodeSpec> {
        Some(&self.view.as_ref()?.cold(slot)?.registration.spec)
    }

    /// Counts one page of its nodes for an explanation, from a slot on. `each` is told of every node that labels and taints allow.
    pub(crate) fn room_page(
        &mut self,
        request: &PlacementRequest,
        from: Slot,
        room: &mut NodeRoom,
        each: &mut dyn FnMut(Slot, &NodeLook),
    ) -> Refusal {
        self.shard.room_page(request, from, room, each)
    }

    /// Returns the refusal that the replica would give for `request`.
    pub(crate) fn refusal(&mut self, request: &PlacementRequest) -> Refusal {
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
