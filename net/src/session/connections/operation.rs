//! Operations in progress: they collect the engine's replies and build the reply to the client.

use std::sync::Arc;

use wharf_core::group::{PlacedPart, PlanReply};
use wharf_core::ids::NodeId;
use wharf_core::jobs::NotCharged;
use wharf_core::registrar::Catalog;
use wharf_core::reply::reply_of;
use wharf_core::request::Placement;
use wharf_core::router::{NotPlaced, Port, PortReply, WaitEnd};
use wharf_core::shard::{Outcome, Released, UnknownAllocation};

use super::into_group::{IntoGroup, into_reply};
use super::renewing::Renewing;
use super::{Asker, stopped};
use crate::convert::{
    JobsAnswer, JobsPage, explain_candidates, jobs_answer, not_charged, placed_reply, refused_reply,
};
use crate::limits::LISTED_BYTES_MAX;
use crate::protocol::{
    ExplainWaitReply, Fault, GroupReply, ListGroupsReply, PlaceBatchReply, PlaceReply, PlacedBody, Reason,
    ReleaseBatchReply, ReleaseReply, RemoveGroupReply, RenewReply, StatementReply,
};

/// A request whose parts were submitted to the engine.
pub(super) struct Operation {
    pub(super) asker: Asker,
    pub(super) parts: Parts,
}

/// The candidates that a placement names, for the explanation of a refusal.
pub(super) type Named = Option<Arc<[NodeId]>>;

/// The candidates of the parts of a batch that name some, in order of part.
pub(super) type NamedByPart = Vec<(usize, Arc<[NodeId]>)>;

/// The state from which the reply is built.
pub(super) enum Parts {
    Place(Named),
    /// A placement that names a queue.
    InQueue(Named),
    /// A placement that waits in its queue like [`Wait`](Self::Wait), and the reason why the wait was ended.
    WaitInQueue(Named, Option<WaitEnd>),
    /// A waiting placement that names no queue. It takes no room from placements that do not wait.
    Wait(Named),
    Release,
    PlaceBatch {
        replies: Vec<PlaceReply>,
        named: NamedByPart,
        left: usize,
    },
    /// A batch of placements that name queues.
    BatchInQueues {
        replies: Vec<PlaceReply>,
        named: NamedByPart,
        /// The number of placements that were asked for.
        asked: usize,
    },
    ReleaseBatch {
        replies: Vec<ReleaseReply>,
        left: usize,
    },
    /// A renewal of leases.
    Renew(Renewing),
    /// A planner's job, and the size that bounds its reply.
    Plan(usize),
    /// A request about queues and jobs, and the page that it asks for.
    Jobs(JobsPage),
    /// A group, or the bundles that a group grows by, that waits like [`Wait`](Self::Wait). Holds the reason
    /// why the wait was ended.
    WaitGroup(Option<WaitEnd>),
    /// A placement into a bundle.
    Into,
    /// A placement into some bundle of a group.
    IntoGroup(Box<IntoGroup>),
}

impl Parts {
    /// Returns whether the operation must end when its connection is lost.
    pub(super) fn waits(&self) -> bool {
        matches!(self, Self::Wait(..) | Self::WaitGroup(..) | Self::WaitInQueue(..))
    }

    /// Returns the room that it takes at planners.
    pub(super) fn planner_room(&self) -> usize {
        match self {
            Self::Plan(..) | Self::Jobs(_) | Self::InQueue(_) => 1,
            Self::BatchInQueues { asked, .. } => *asked,
            Self::IntoGroup(into) if into.is_asking() => 1,
            _ => 0,
        }
    }

    /// Returns the number of candidates that the requests name. They count toward the bounds in `limits`.
    pub(super) fn candidates(&self) -> usize {
        match self {
            Self::Place(named) | Self::InQueue(named) | Self::Wait(named) | Self::WaitInQueue(named, _) => {
                named.as_ref().map_or(0, |ids| ids.len())
            }
            Self::PlaceBatch { named, .. } | Self::BatchInQueues { named, .. } => {
                named.iter().map(|(_, ids)| ids.len()).sum()
            }
            _ => 0,
        }
    }
}

/// The reply of a complete operation.
pub(super) enum Complete {
    /// Used for a placement into a bundle too. The grants of most placements are answered without it.
    Place(PlaceReply),
    Release(ReleaseReply),
    PlaceBatch(PlaceBatchReply),
    ReleaseBatch(ReleaseBatchReply),
    Group(Box<GroupReply>),
    Removed(RemoveGroupReply),
    Groups(ListGroupsReply),
    Statement(StatementReply),
    Renewed(RenewReply),
    Jobs(Box<JobsAnswer>),
    Explained(Box<ExplainWaitReply>),
}

impl Operation {
    /// Returns whether the operation must end when its connection is lost.
    pub(super) fn waits(&self) -> bool {
        self.parts.waits()
    }

    /// Records the engine's reply to one part. Returns the whole reply after the last part. A placement into a group
    /// may return no reply: it then has a next part.
    pub(super) fn handle_part(&mut self, part: usize, reply: PortReply, port: &mut Port) -> Option<Complete> {
        let catalog = port.catalog();
        match &mut self.parts {
            Parts::InQueue(named) => Some(in_queue(reply, None, named, catalog)),
            Parts::WaitInQueue(named, end) => Some(in_queue(reply, *end, named, catalog)),
            Parts::Place(named) | Parts::Wait(named) => Some(explained(reply_of(reply), named, catalog)),
            Parts::Release => Some(Complete::Release(release_reply(of_shard(reply)))),
            Parts::PlaceBatch { replies, named, left } => {
                replies[part] = place_reply(reply_of(reply), catalog);
                explain_part(replies, part, named, catalog);
                *left -= 1;
                (*left == 0).then(|| Complete::place_batch(std::mem::take(replies)))
            }
            Parts::BatchInQueues { replies, named, .. } => {
                let placed: Vec<PlacedPart> = reply_of(*reply_of::<Box<PlanReply>, _>(reply));
                for (part, placed) in placed {
                    let part = usize::from(part);
                    replies[part] = queue_reply(placed, catalog);
                    explain_part(replies, part, named, catalog);
                }
                Some(Complete::place_batch(std::mem::take(replies)))
            }
            Parts::ReleaseBatch { replies, left } => {
                replies[part] = release_reply(of_shard(reply));
                *left -= 1;
                (*left == 0)
                    .then(|| Complete::ReleaseBatch(ReleaseBatchReply { replies: std::mem::take(replies) }))
            }
            Parts::Renew(renewing) => renewing.handle_part(part, reply),
            &mut Parts::Plan(size) => {
                Some(Complete::plan(size, *reply_of::<Box<PlanReply>, _>(reply), catalog))
            }
            Parts::Jobs(page) => {
                let reply: Result<_, _> = reply_of(*reply_of::<Box<PlanReply>, _>(reply));
                Some(Complete::Jobs(Box::new(jobs_answer(self.asker.kind, page, reply, catalog))))
            }
            &mut Parts::WaitGroup(end) => {
                Some(Complete::waited_group(end, *reply_of::<Box<PlanReply>, _>(reply), catalog))
            }
            Parts::Into => Some(Complete::Place(into_reply(of_shard(reply), catalog))),
            Parts::IntoGroup(into) => into.handle_reply(reply, port).map(Complete::Place),
        }
    }
}

/// Returns an upper bound on the bytes of a placement's units.
fn units_bytes(placed: &PlacedBody) -> usize {
    // Two lengths and the part, at their longest.
    const NUMBERS: usize = 3 + 3 + 3;
    placed.units.iter().map(|units| units.name.len() + units.instances.len() + NUMBERS).sum()
}

/// Removes the units of placements if the reply would not fit a frame with them. The allocations still hold
/// the units.
pub(super) fn cut_units<'a>(placed: impl Iterator<Item = &'a mut PlacedBody>) {
    let placed: Vec<_> = placed.filter(|placed| !placed.units.is_empty()).collect();
    if placed.iter().map(|placed| units_bytes(placed)).sum::<usize>() > LISTED_BYTES_MAX {
        placed.into_iter().for_each(|placed| placed.units.clear());
    }
}

/// Removes the counts of a batch's refusals if the reply would not fit a frame with them. `examined` is then
/// 0. If the units alone are too long, they are removed too.
fn cut_to_fit(replies: &mut [PlaceReply]) {
    // The longest encoding of a check's numbers, without the resource's name.
    const NUMBERS: usize = 3 + 3 + 9 + 9;
    let checks =
        replies.iter().filter_map(|reply| reply.refusal.as_ref()).flat_map(|refusal| &refusal.checks);
    let checks: usize = checks.map(|check| check.resource.len() + NUMBERS).sum();
    let units: usize = replies.iter().filter_map(|reply| reply.placed.as_ref()).map(units_bytes).sum();
    if checks + units > LISTED_BYTES_MAX {
        for refusal in replies.iter_mut().filter_map(|reply| reply.refusal.as_mut()) {
            refusal.examined = 0;
            refusal.checks.clear();
        }
        cut_units(replies.iter_mut().filter_map(|reply| reply.placed.as_mut()));
    }
}

impl Complete {
    /// Returns the reply to a batch.
    pub(super) fn place_batch(mut replies: Vec<PlaceReply>) -> Self {
        cut_to_fit(&mut replies);
        Self::PlaceBatch(PlaceBatchReply { replies })
    }
}

/// Returns the reply to a placement that was charged to a queue, or was not made.
fn queue_reply(placed: Result<Box<Placement>, NotCharged>, catalog: &Catalog) -> PlaceReply {
    match placed {
        Ok(placement) => placed_reply(&placement, catalog),
        Err(refused) => not_charged(&refused, catalog),
    }
}

/// Returns the reply to a placement that names a queue. `end` is why its wait was ended.
fn in_queue(reply: PortReply, end: Option<WaitEnd>, named: &Named, catalog: &Catalog) -> Complete {
    let placed: Result<Box<Placement>, _> = reply_of(*reply_of::<Box<PlanReply>, _>(reply));
    let mut reply = match placed {
        Err(NotCharged::Cancelled) if end == Some(WaitEnd::Stopped) => stopped().into(),
        placed => queue_reply(placed, catalog),
    };
    explain_candidates(&mut reply, named.as_deref(), catalog);
    Complete::Place(reply)
}

/// Returns the reply to a placement that may name candidates.
fn explained(placed: Result<Placement, NotPlaced>, named: &Named, catalog: &Catalog) -> Complete {
    let mut reply = place_reply(placed, catalog);
    explain_candidates(&mut reply, named.as_deref(), catalog);
    Complete::Place(reply)
}

/// Explains the refusal of a part of a batch that may name candidates.
fn explain_part(replies: &mut [PlaceReply], part: usize, named: &NamedByPart, catalog: &Catalog) {
    if let Ok(at) = named.binary_search_by_key(&part, |&(part, _)| part) {
        explain_candidates(&mut replies[part], Some(&named[at].1), catalog);
    }
}

/// Returns the reply of one shard.
pub(super) fn of_shard<R: TryFrom<Outcome, Error = Outcome>>(reply: PortReply) -> R {
    reply_of(reply_of::<Outcome, _>(reply))
}

/// Returns the reply to a placement, which may have waited.
fn place_reply(placed: Result<Placement, NotPlaced>, catalog: &Catalog) -> PlaceReply {
    match placed {
        Ok(placement) => placed_reply(&placement, catalog),
        Err(NotPlaced { ended: Some(WaitEnd::Stopped), .. }) => stopped().into(),
        Err(NotPlaced { ended, verdict, refusal }) => {
            let refused = refused_reply(verdict, &refusal, catalog);
            let is_cancelled = ended == Some(WaitEnd::Cancelled);
            PlaceReply {
                reason: if is_cancelled { Reason::Cancelled.into() } else { refused.reason },
                ..refused
            }
        }
    }
}

fn release_reply(released: Result<Released, UnknownAllocation>) -> ReleaseReply {
    match released {
        Ok(Released { inside, .. }) => ReleaseReply { inside_ended: inside, ..ReleaseReply::default() },
        Err(unknown) => Fault::of_field(Reason::UnknownAllocation, "allocation", unknown.to_string()).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::encode_body;
    use crate::protocol::FRAME_BYTES_MAX;
    use crate::protocol::{FailedCheck, NamedUnits, RefusalBody};

    fn placed(kinds: usize) -> PlaceReply {
        let name = "k".repeat(250);
        let units = vec![NamedUnits { name, instances: (0..64).collect(), part: 10_000 }; kinds];
        PlaceReply { placed: Some(PlacedBody { units, ..PlacedBody::default() }), ..PlaceReply::default() }
    }

    fn refused() -> PlaceReply {
        let check = FailedCheck { resource: "r".repeat(250), ..FailedCheck::default() };
        let refusal = Some(RefusalBody { nodes: 9, examined: 9, checks: vec![check; 2] });
        PlaceReply { refusal, ..PlaceReply::default() }
    }

    /// A reply that does not fit a frame would become a fault, and the client would lose its grants.
    #[test]
    fn the_reply_to_a_batch_leaves_out_what_does_not_fit() {
        let fits = |replies: &[PlaceReply]| {
            let mut bytes = Vec::new();
            replies.iter().for_each(|reply| encode_body(reply, &mut bytes));
            bytes.len() <= FRAME_BYTES_MAX as usize
        };
        let mut small = vec![placed(1), refused()];
        cut_to_fit(&mut small);
        assert_eq!(small, [placed(1), refused()]);
        let mut large = [vec![placed(8); 512], vec![refused(); 512]].concat();
        assert!(!fits(&large));
        cut_to_fit(&mut large);
        assert!(fits(&large));
        assert!(large[..512].iter().all(|reply| reply.placed.as_ref().is_some_and(|it| it.units.is_empty())));
        assert!(large[512..].iter().all(|reply| reply.refusal.as_ref().is_some_and(|it| it.examined == 0)));
        // If only the counts are too long, the units stay.
        let mut counts = [vec![placed(1)], vec![refused(); 1023]].concat();
        cut_to_fit(&mut counts);
        assert_eq!(counts[0], placed(1));
    }
}
