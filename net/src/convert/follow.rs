//! Conversion of the changes between two views of a shard to the wire.

use wharf_core::node::{NodeRegistration, NodeState};
use wharf_core::resource::{Demand, GpuAssignment, ResourceRegistry, UnitAssignments};
use wharf_core::view::{
    AllocationView, Change, ChangeCursor, ChangeKinds, ColdImage, HoldImage, HotImage, PendingImage, Step,
    View,
};

use super::{demand_body, invalid, named_amounts, named_units, node_body, unhealthy_bodies};
use crate::protocol::{
    AllocationBegun, AllocationEnded, CHANGES_PER_MESSAGE_DEFAULT, CHANGES_PER_MESSAGE_MAX, ClaimBody,
    FOLLOW_ALL, FOLLOW_ALLOCATIONS, FOLLOW_HOLDS, FOLLOW_NODES, Fault, FollowCursor, FollowPage, HoldBegun,
    HoldEnded, Holding, NodeChange, NodeGone, NodeRest, PENDING_MAX, Pending, ReleasingBody, ShardVersion,
};

/// Estimated size in bytes from which a page takes no more changes. One more change still fits a frame.
const PAGE_BYTES: usize = 256 << 10;
/// Maximum estimated bytes of one node's pending changes.
const PENDING_BYTES: usize = 128 << 10;
/// Maximum number of places of two views that are compared for one page. This takes some hundred
/// microseconds.
const PAGE_LOOKS: usize = 8192;
/// Maximum bytes of a change's numbers and lengths, without its texts and lists.
const NUMBERS_BYTES: usize = 128;
/// Maximum bytes of a list element's numbers and lengths.
const ELEMENT_BYTES: usize = 16;

/// Returns the kinds of changes that a request asks for.
pub(crate) fn follow_kinds(kinds: u8) -> Result<ChangeKinds, Fault> {
    if kinds == 0 || kinds & !FOLLOW_ALL != 0 {
        let message = format!(
            "{kinds} is no sum of kinds: give {FOLLOW_NODES} for nodes, {FOLLOW_ALLOCATIONS} for allocations, \
             {FOLLOW_HOLDS} for holds, or their sum"
        );
        return Err(invalid("kinds", message));
    }
    let has = |kind| kinds & kind != 0;
    let nodes = has(FOLLOW_NODES);
    let allocations = has(FOLLOW_ALLOCATIONS);
    let holds = has(FOLLOW_HOLDS);
    Ok(ChangeKinds { nodes, allocations, holds })
}

/// Returns the maximum number of changes on a page.
pub(crate) fn follow_limit(limit: u16) -> Result<usize, Fault> {
    match usize::from(limit) {
        0 => Ok(usize::from(CHANGES_PER_MESSAGE_DEFAULT)),
        limit if limit <= CHANGES_PER_MESSAGE_MAX => Ok(limit),
        _ => Err(invalid("limit", format!("{limit} changes: give at most {CHANGES_PER_MESSAGE_MAX}, or 0"))),
    }
}

/// A page that is being filled.
struct Filling<'a> {
    page: FollowPage,
    bytes: usize,
    resources: &'a ResourceRegistry,
}

/// Builds a page of the step from `from` to `to`. It starts at `at` and has at most `limit` changes.
pub(crate) fn follow_page(
    (from, to): (Option<&View>, &View),
    kinds: ChangeKinds,
    at: ChangeCursor,
    limit: usize,
    resources: &ResourceRegistry,
) -> FollowPage {
    let head = to.head();
    let version = ShardVersion::new(head.shard.0, head.version);
    let page = FollowPage {
        to: version,
        now: head.now.0,
        node_count: head.node_count,
        allocation_count: head.allocation_count,
        ..FollowPage::default()
    };
    let mut filling = Filling { page, bytes: 0, resources };
    let mut left = limit;
    let next = Step::new(from, to, kinds).portion(at, PAGE_LOOKS, &mut |change| {
        filling.put(change);
        left -= 1;
        left > 0 && filling.bytes < PAGE_BYTES
    });
    let cursor =
        |at: ChangeCursor| FollowCursor { to: version, stage: at.stage, place: at.place, within: at.within };
    FollowPage { next: next.map(cursor), ..filling.page }
}

impl Filling<'_> {
    fn put(&mut self, change: Change<'_>) {
        self.bytes += NUMBERS_BYTES;
        match change {
            Change::HoldEnded(node, hold) => {
                let statement = hold.statement.into();
                let operation = hold.operation;
                let (node, node_name) = self.node(node);
                self.page.holds_ended.push(HoldEnded { statement, operation, node, node_name });
            }
            Change::AllocationEnded(node, id) => {
                let (node, node_name) = self.node(node);
                let allocation = id.into();
                self.page.allocations_ended.push(AllocationEnded { allocation, node, node_name });
            }
            Change::NodeGone(node) => {
                let (node, node_name) = self.node(node);
                self.page.nodes_gone.push(NodeGone { node, node_name });
            }
            Change::Node { hot, cold, before } => {
                let change = self.node_change(hot, cold, before);
                self.page.nodes.push(change);
            }
            Change::Allocation(node, AllocationView { id, demand, gpus, units }) => {
                let (node, node_name) = self.node(node);
                let holds = self.holding(&demand, gpus, units.as_deref());
                self.page.allocations.push(AllocationBegun { allocation: id.into(), node, node_name, holds });
            }
            Change::Hold(node, hold) => {
                let (node, node_name) = self.node(node);
                let HoldImage { statement, operation, taken, evicts } = hold;
                let holds = taken.as_ref().map(|(demand, gpus)| self.holding(demand, *gpus, None));
                let evicts = evicts.map(Into::into);
                let statement = (*statement).into();
                let operation = *operation;
                self.page.holds.push(HoldBegun { statement, operation, node, node_name, holds, evicts });
            }
        }
    }

    fn node(&mut self, node: &NodeRegistration) -> (u64, String) {
        self.bytes += node.spec.name.len();
        (node.id.0, node.spec.name.to_string())
    }

    fn holding(&mut self, demand: &Demand, gpus: GpuAssignment, units: Option<&UnitAssignments>) -> Holding {
        let demand = demand_body(demand, self.resources);
        let units = units.map_or_else(Vec::new, |units| named_units(units, self.resources));
        self.bytes += demand.custom.iter().map(|amount| amount.name.len() + ELEMENT_BYTES).sum::<usize>();
        self.bytes += units.iter().map(|u| u.name.len() + u.instances.len() + ELEMENT_BYTES).sum::<usize>();
        Holding { demand, gpus: gpus.instances().collect(), gpu_part: gpus.part, units }
    }

    fn node_change(&mut self, hot: &HotImage, cold: &ColdImage, before: Option<&ColdImage>) -> NodeChange {
        let spec = &cold.registration.spec;
        // Placements do not change the cold part, so comparing addresses nearly always suffices.
        let unchanged = before.is_some_and(|before| std::ptr::eq(before, cold));
        let same_spec = unchanged || before.is_some_and(|before| before.registration.spec == *spec);
        let body = (!same_spec).then(|| node_body(spec, self.resources));
        let rest = if unchanged { None } else { Some(self.rest(cold)) };
        let details = rest.filter(|rest| before.is_none_or(|before| self.rest(before) != *rest));
        if let Some(body) = &body {
            let custom: usize = body.custom.iter().map(|amount| amount.name.len() + ELEMENT_BYTES).sum();
            let labels: usize =
                body.labels.iter().map(|pair| pair.key.len() + pair.value.len() + ELEMENT_BYTES).sum();
            let taints: usize =
                body.taints.iter().map(|taint| taint.key.len() + taint.value.len() + ELEMENT_BYTES).sum();
            self.bytes += body.identity.len() + body.name.len() + custom + labels + taints;
        }
        if let Some(rest) = &details {
            let custom: usize = rest.custom.iter().map(|amount| amount.name.len() + ELEMENT_BYTES).sum();
            let unhealthy: usize = rest.unhealthy.iter().map(|u| u.reason.len() + ELEMENT_BYTES).sum();
            self.bytes += custom + unhealthy;
        }
        let pending = cold.pending.as_deref().map_or_else(Pending::default, |pending| self.pending(pending));
        let (node, node_name) = self.node(&cold.registration);
        NodeChange {
            node,
            node_name,
            state: hot.state.map_or(0, NodeState::number),
            version: hot.version,
            cpu: hot.cpu.units(),
            memory: hot.memory.units(),
            gpus: (0..spec.gpus).map(|i| hot.gpus.free(i)).collect(),
            allocations: hot.allocations,
            details,
            body,
            pending,
        }
    }

    /// Takes the first elements of each list, as many as a page can hold for one node. Claims are in the
    /// order in which they are served.
    fn pending(&mut self, pending: &PendingImage) -> Pending {
        let releasing = pending.releasing.iter().take(PENDING_MAX);
        let releasing: Vec<_> = releasing
            .map(|&(allocation, until)| ReleasingBody { allocation: allocation.into(), until: until.0 })
            .collect();
        self.bytes += releasing.len() * 2 * ELEMENT_BYTES;
        let mut claims = Vec::new();
        let full = self.bytes + PENDING_BYTES;
        for claim in pending.claims.iter().take(PENDING_MAX) {
            let holds = self.holding(&claim.demand, claim.gpus, claim.units.as_deref());
            self.bytes += NUMBERS_BYTES;
            if self.bytes > full {
                break;
            }
            claims.push(ClaimBody { allocation: claim.id.into(), holds });
        }
        let all = pending.releasing.len() + pending.claims.len();
        let untold = all - releasing.len() - claims.len();
        let untold = u32::try_from(untold).unwrap_or(u32::MAX);
        Pending { releasing, claims, untold }
    }

    fn rest(&self, cold: &ColdImage) -> NodeRest {
        let (owner, until) =
            cold.reservation().map_or((0, None), |(owner, _, until)| (owner.number(), until));
        NodeRest {
            custom: named_amounts(cold.custom_available(), self.resources),
            unhealthy: unhealthy_bodies(cold.unhealthy()),
            owner,
            until: until.map_or(0, |until| until.0),
        }
    }
}
