//! Operations under way: what becomes of the engine's replies.

use std::rc::Rc;

use wharf_core::registrar::Catalog;
use wharf_core::router::{PortReply, Tag};
use wharf_core::shard::Outcome;
use wharf_core::time::Time;

use super::connection::ConnectionState;
use super::wait::wait_reply;
use crate::convert::{placed_reply, refused_reply, rejection_fault};
use crate::protocol::{
    FRAME_BYTES_MAX, Kind, PlaceBatchReply, PlaceReply, Reason, ReleaseBatchReply, ReleaseReply,
};

/// A request whose parts are in the engine.
pub(super) struct Operation {
    pub(super) connection: Rc<ConnectionState>,
    pub(super) sequence: u64,
    pub(super) started: Time,
    pub(super) parts: Parts,
}

/// What the reply will be made of.
pub(super) enum Parts {
    Place,
    /// A placement that waits: it took no room of those that do not.
    Wait,
    Release,
    PlaceBatch {
        replies: Vec<PlaceReply>,
        left: usize,
    },
    ReleaseBatch {
        replies: Vec<ReleaseReply>,
        left: usize,
    },
}

/// The reply of an operation that is complete.
pub(super) enum Complete {
    Place(PlaceReply),
    Release(ReleaseReply),
    PlaceBatch(PlaceBatchReply),
    ReleaseBatch(ReleaseBatchReply),
}

const PART_BITS: u32 = 16;

/// The tag of one part of an operation.
pub(super) fn tag(operation: usize, part: usize) -> Tag {
    debug_assert!(part < 1 << PART_BITS);
    ((operation as u64) << PART_BITS) | part as u64
}

/// The operation and part of a tag.
pub(super) fn split_tag(tag: Tag) -> (usize, usize) {
    ((tag >> PART_BITS) as usize, (tag & ((1 << PART_BITS) - 1)) as usize)
}

impl Operation {
    pub(super) fn kind(&self) -> Kind {
        match self.parts {
            Parts::Place | Parts::Wait => Kind::Place,
            Parts::Release => Kind::Release,
            Parts::PlaceBatch { .. } => Kind::PlaceBatch,
            Parts::ReleaseBatch { .. } => Kind::ReleaseBatch,
        }
    }

    /// Takes the engine's reply to one part; the whole reply when it was the last.
    pub(super) fn handle_part(
        &mut self,
        part: usize,
        reply: PortReply,
        catalog: &Catalog,
    ) -> Option<Complete> {
        match &mut self.parts {
            Parts::Place => Some(Complete::Place(place_reply(reply, catalog))),
            Parts::Wait => Some(Complete::Place(wait_reply(reply, catalog))),
            Parts::Release => Some(Complete::Release(release_reply(reply))),
            Parts::PlaceBatch { replies, left } => {
                replies[part] = place_reply(reply, catalog);
                *left -= 1;
                (*left == 0).then(|| Complete::PlaceBatch(batch_reply(std::mem::take(replies))))
            }
            Parts::ReleaseBatch { replies, left } => {
                replies[part] = release_reply(reply);
                *left -= 1;
                (*left == 0)
                    .then(|| Complete::ReleaseBatch(ReleaseBatchReply { replies: std::mem::take(replies) }))
            }
        }
    }
}

/// Bytes of the checks that one batch's refusals may have: what else it holds fits beside them.
const BATCH_CHECK_BYTES_MAX: usize = FRAME_BYTES_MAX as usize / 2;

/// The reply to a batch. Where the counts of its refusals would not fit a frame, it goes
/// without: `examined` is then 0.
pub(super) fn batch_reply(mut replies: Vec<PlaceReply>) -> PlaceBatchReply {
    // The longest that numbers of a check can be, beside its resource's name.
    const NUMBERS: usize = 3 + 3 + 9 + 9;
    let refusals = || replies.iter().filter_map(|reply| reply.refusal.as_ref());
    let bytes: usize =
        refusals().flat_map(|refusal| &refusal.checks).map(|check| check.resource.len() + NUMBERS).sum();
    if bytes > BATCH_CHECK_BYTES_MAX {
        for refusal in replies.iter_mut().filter_map(|reply| reply.refusal.as_mut()) {
            refusal.examined = 0;
            refusal.checks.clear();
        }
    }
    PlaceBatchReply { replies }
}

pub(super) fn place_reply(reply: PortReply, catalog: &Catalog) -> PlaceReply {
    match reply {
        PortReply::Placed(placement) => placed_reply(&placement, catalog),
        PortReply::Refused(verdict, refusal) => refused_reply(verdict, &refusal, catalog),
        other => unreachable!("a placement is placed or refused, not {other:?}"),
    }
}

pub(super) fn release_reply(reply: PortReply) -> ReleaseReply {
    match reply {
        PortReply::One(Outcome::Released(_)) => ReleaseReply { reason: Reason::Done.into(), fault: None },
        PortReply::One(Outcome::Rejected(rejection)) => {
            let fault = rejection_fault(&rejection);
            ReleaseReply { reason: fault.reason, fault: Some(fault) }
        }
        other => unreachable!("a release is done or rejected, not {other:?}"),
    }
}
