//! Conversion of the changes between two views of a shard to the wire.

use wharf_core::node::{NodeRegistration, NodeState};
use wharf_core::resource::ResourceRegistry;
use wharf_core::view::{
    AllocationView, Change, ChangeCursor, ChangeKinds, ColdImage, HoldImage, HotImage, PendingImage, Step,
    View,
};

use super::books::holding;
use super::{invalid, named_amounts, node_body, unhealthy_bodies};
use crate::codec::encode_body;
use crate::protocol::{
    AllocationBegun, AllocationEnded, CHANGES_PER_MESSAGE_DEFAULT, CHANGES_PER_MESSAGE_MAX, ClaimBody,
    FOLLOW_ALL, FOLLOW_ALLOCATIONS, FOLLOW_HOLDS, FOLLOW_NODES, Fault, FollowCursor, FollowPage, HoldBegun,
    HoldEnded, NodeChange, NodeGone, NodeRest, PENDING_MAX, Pending, Reason, ReleasingBody, ShardVersion,
};

/// Length in bytes from which a page takes no more changes. One more change still fits a frame.
const PAGE_BYTES: usize = 256 << 10;
/// Length in bytes from which a change of one node names no more claims.
const PENDING_BYTES: usize = 128 << 10;
/// Maximum number of places of two views that are compared for one page. This takes some hundred
/// microseconds.
const PAGE_LOOKS: usize = 8192;

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

/// Takes the first elements of each list, as many as a page can hold for one node. Claims come in the order in which they
/// are served.
pub(super) fn pending_body(
    mut releasing: Vec<ReleasingBody>,
    all_claims: impl ExactSizeIterator<Item = ClaimBody>,
) -> Pending {
    let all = releasing.len() + all_claims.len();
    releasing.truncate(PENDING_MAX);
    let mut claims = Vec::new();
    let mut encoded = Vec::new();
    for claim in all_claims.take(PENDING_MAX) {
        encode_body(&claim, &mut encoded);
        claims.push(claim);
        if encoded.len() > PENDING_BYTES {
            break;
        }
    }
    let untold = u32::try_from(all - releasing.len() - claims.len()).unwrap_or(u32::MAX);
    Pending { releasing, claims, untold }
}

/// A page that is being filled.
struct Filling<'a> {
    page: FollowPage,
    /// The changes, encoded only to learn their length.
    encoded: Vec<u8>,
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
    let mut filling = Filling { page, encoded: Vec::new(), resources };
    let mut left = limit;
    let next = Step::new(from, to, kinds).portion(at, PAGE_LOOKS, &mut |change| {
        filling.put(change);
        left -= 1;
        left > 0 && filling.encoded.len() < PAGE_BYTES
    });
    let cursor =
        |at: ChangeCursor| FollowCursor { to: version, stage: at.stage, place: at.place, within: at.within };
    FollowPage { next: next.map(cursor), ..filling.page }
}

/// Adds a change to a list of the page.
macro_rules! add {
    ($filling:ident, $list:ident, $change:expr) => {{
        let change = $change;
        encode_body(&change, &mut $filling.encoded);
        $filling.page.$list.push(change);
    }};
}

impl Filling<'_> {
    fn put(&mut self, change: Change<'_>) {
        match change {
            Change::HoldEnded(node, hold) => {
                let statement = hold.statement.into();
                let operation = hold.operation;
                let (node, node_name) = named(node);
                add!(self, holds_ended, HoldEnded { statement, operation, node, node_name });
            }
            Change::AllocationEnded(node, id, has_expired) => {
                let (node, node_name) = named(node);
                let allocation = id.into();
                let reason = if has_expired { Reason::LeaseExpired } else { Reason::Done }.into();
                add!(self, allocations_ended, AllocationEnded { allocation, node, node_name, reason });
            }
            Change::NodeGone(node) => {
                let (node, node_name) = named(node);
                add!(self, nodes_gone, NodeGone { node, node_name });
            }
            Change::Node { hot, cold, before } => {
                add!(self, nodes, self.node_change(hot, cold, before));
            }
            Change::Allocation(node, AllocationView { id, demand, gpus, units }) => {
                let (node, node_name) = named(node);
                let allocation = id.into();
                let holds = holding(&demand, gpus, units.as_deref(), self.resources);
                add!(self, allocations, AllocationBegun { allocation, node, node_name, holds });
            }
            Change::Hold(node, hold) => {
                let (node, node_name) = named(node);
                let HoldImage { statement, operation, taken, evicts } = hold;
                let holds = taken.as_ref().map(|(demand, gpus)| holding(demand, *gpus, None, self.resources));
                let evicts = evicts.map(Into::into);
                let statement = (*statement).into();
                let operation = *operation;
                add!(self, holds, HoldBegun { statement, operation, node, node_name, holds, evicts });
            }
        }
    }

    fn node_change(&self, hot: &HotImage, cold: &ColdImage, before: Option<&ColdImage>) -> NodeChange {
        let spec = &cold.registration.spec;
        // Placements do not change the cold part, so comparing addresses nearly always suffices.
        let unchanged = before.is_some_and(|before| std::ptr::eq(before, cold));
        let same_spec = unchanged || before.is_some_and(|before| before.registration.spec == *spec);
        let details = if unchanged { None } else { Some(self.rest(cold)) };
        let details = details.filter(|details| before.is_none_or(|before| self.rest(before) != *details));
        let (node, node_name) = named(&cold.registration);
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
            body: (!same_spec).then(|| node_body(spec, self.resources)),
            pending: cold.pending.as_deref().map_or_else(Pending::default, |image| self.pending(image)),
        }
    }

    fn pending(&self, image: &PendingImage) -> Pending {
        let releasing = image.releasing.iter();
        let releasing = releasing
            .map(|&(allocation, until)| ReleasingBody { allocation: allocation.into(), until: until.0 })
            .collect();
        let claim = |claim: &AllocationView| ClaimBody {
            allocation: claim.id.into(),
            holds: holding(&claim.demand, claim.gpus, claim.units.as_deref(), self.resources),
        };
        pending_body(releasing, image.claims.iter().map(claim))
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

fn named(node: &NodeRegistration) -> (u64, String) {
    (node.id.0, node.spec.name.to_string())
}
