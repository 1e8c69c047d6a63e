//! Renewals of leases.
//!
//! Each named allocation is one command to its shard. A session is one command to each shard.

use wharf_core::ids::{AllocationId, ShardId};
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::shard::{Command, LeaseRejection, RenewedLease, RenewedSession, UnknownAllocation};

use super::operation::{Complete, Parts, of_shard};
use super::{Asker, ConnectionService};
use crate::convert::{lease_lasts, renewed_body, session_renewed};
use crate::protocol::{Fault, RenewReply, RenewRequest, RenewedBody};

/// The outcomes of a renewal so far.
pub(super) struct Renewing {
    /// One per allocation.
    replies: Vec<RenewedBody>,
    /// The answers of the shards so far, if a session was named.
    session: Option<RenewedSession>,
    left: usize,
}

impl Renewing {
    /// Handles the reply to one part. Parts beyond the allocations are those of the session.
    pub(super) fn handle_part(&mut self, part: usize, reply: PortReply) -> Option<Complete> {
        match self.replies.get_mut(part) {
            Some(outcome) => {
                *outcome = renewed_body(of_shard::<Result<RenewedLease, LeaseRejection>>(reply));
            }
            None => {
                let so_far = self.session.expect("only a session has further parts");
                self.session = Some(so_far.and(of_shard(reply)));
            }
        }
        self.left -= 1;
        (self.left == 0).then(|| Complete::Renewed(self.reply()))
    }

    fn reply(&mut self) -> RenewReply {
        let replies = std::mem::take(&mut self.replies);
        RenewReply { replies, session: self.session.map(session_renewed) }
    }
}

impl ConnectionService {
    pub(super) fn handle_renew(&mut self, asker: Asker, request: &RenewRequest) -> Result<(), Fault> {
        let lasts_ns = lease_lasts(request.lease)?;
        let mut replies = vec![RenewedBody::default(); request.allocations.len()];
        let mut requests = Vec::with_capacity(replies.len());
        for (part, &allocation) in request.allocations.iter().enumerate() {
            let allocation = AllocationId::from(allocation);
            match self.port.shard_of(allocation.partition) {
                Some(shard) => {
                    let command = Command::RenewLease { allocation, lasts_ns };
                    requests.push((part, PortRequest::Shard(shard, command)));
                }
                None => replies[part] = renewed_body(Err(UnknownAllocation(allocation).into())),
            }
        }
        let session = request.session.map(Into::into);
        let shards = u16::try_from(self.port.shard_count()).expect("SHARDS_MAX fits u16");
        if let Some(session) = session {
            let of_session = |shard: u16| {
                let command = Command::RenewSession { session, lasts_ns };
                (replies.len() + usize::from(shard), PortRequest::Shard(ShardId(shard), command))
            };
            requests.extend((0..shards).map(of_session));
        }
        let left = requests.len();
        let mut renewing = Renewing { replies, session: session.map(|_| RenewedSession::default()), left };
        if left == 0 {
            let reply = renewing.reply();
            self.answer(asker, &reply, asker.started);
        } else {
            self.submit_parts(asker, Parts::Renew(renewing), requests);
        }
        Ok(())
    }
}
