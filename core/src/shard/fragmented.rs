//! A shard's nodes as the fragmentation-aware policies see them, and their placements.

use std::sync::Arc;

use super::Shard;
use super::rankings::RankingId;
use super::selectors::SetId;
use super::table::{NodeTable, Taken};
use crate::fragmentation::{Among, NodeRoom, Nodes, TypicalShapes};
use crate::ids::Ordinal;
use crate::index::Slot;
use crate::node::{GPU_MODEL_LABEL, NodeState};
use crate::request::PlacementRequest;

impl Nodes for NodeTable {
    fn room(&self, slot: Slot) -> Option<NodeRoom<'_>> {
        let room = Self::room(self, slot);
        (room.state == Some(NodeState::Ready)).then(|| NodeRoom {
            cpu: room.cpu,
            memory: room.memory,
            gpus: &self.hot(slot).gpus,
        })
    }

    fn identity(&self, slot: Slot) -> (Ordinal, Option<&str>) {
        let registration = &self.cold(slot).registration;
        (registration.ordinal, registration.spec.labels.get(GPU_MODEL_LABEL))
    }

    fn slots(&self) -> usize {
        self.rooms().len()
    }
}

impl Shard {
    /// Gives the typical request shapes of the fragmentation-aware policies; learnt from what
    /// arrives if none are given.
    pub fn set_typical_shapes(&mut self, typical: Arc<TypicalShapes>) {
        self.fragmentation.set_typical(typical);
    }

    /// Chooses node and GPU instances by fragmentation, and takes them.
    pub(super) fn take_least_fragmented(
        &mut self,
        request: &PlacementRequest,
        set: Option<SetId>,
    ) -> Option<(Slot, Taken)> {
        let named = self.named(request);
        let (nodes, set) = (&self.nodes, set.map(|set| self.selectors.at(set)));
        let among = match (&named, set.and_then(|set| set.few())) {
            (Some(named), _) => Among::Few(named),
            (None, Some(few)) => Among::Few(few),
            (None, None) => Among::All,
        };
        let custom = request.demand.custom.is_some();
        let accept =
            |slot| set.is_none_or(|set| set.contains(slot)) && (!custom || nodes.fits(slot, &request.demand));
        let (slot, gpus) = self.fragmentation.find(request, among, nodes, accept, &mut self.visits)?;
        Some((slot, self.nodes.take_chosen(slot, &request.demand, gpus)))
    }

    /// As [`take_least_fragmented`](Self::take_least_fragmented), among the nodes that the request
    /// wants most; and which of its selectors holds. These are rated anew for each request: what it
    /// would rather have is no part of what the short lists are kept for.
    pub(super) fn take_least_fragmented_ranked(
        &mut self,
        request: &PlacementRequest,
        id: RankingId,
    ) -> Option<(Slot, Taken, u8)> {
        let wanted = self.wanted_most(request, id);
        let nodes = &self.nodes;
        let among = Among::Few(&wanted);
        let found = self.fragmentation.find(request, among, nodes, |_| true, &mut self.visits);
        let (slot, gpus) = found?;
        let taken = self.nodes.take_chosen(slot, &request.demand, gpus);
        Some((slot, taken, self.rankings.at(id).rank(slot).alternative()))
    }
}
