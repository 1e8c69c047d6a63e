//! What the registrar is asked, and for which request of a client.

use wharf_core::state::{Deed, Origin};
use wharf_core::time::Time;

use super::RegistrarRequest;
use crate::protocol::NodeReply;
use crate::session::Parts;

/// A request to the registrar, and what it is for.
#[derive(Debug)]
pub struct Question {
    /// The request.
    pub request: RegistrarRequest,
    /// The client's request that it is, for the journal.
    pub origin: Option<Origin>,
    /// It is not done unless it has begun by this time.
    pub due: Time,
    /// The parts that an earlier start did.
    pub done: Parts,
}

impl From<RegistrarRequest> for Question {
    fn from(request: RegistrarRequest) -> Self {
        Self { request, origin: None, due: Time::NEVER, done: Parts::new() }
    }
}

/// What the parts of a question are for, and which were done by an earlier start.
#[derive(Default)]
pub(super) struct Cause {
    pub(super) origin: Option<Origin>,
    pub(super) done: Parts,
}

impl Cause {
    pub(super) fn origin(&self, part: usize) -> Option<Origin> {
        let part = u16::try_from(part).expect("a message has few parts");
        self.origin.map(|origin| Origin { part, ..origin })
    }

    /// Returns the reply to a part that an earlier start did.
    pub(super) fn reply(&self, part: usize) -> Option<NodeReply> {
        let (_, deed) = self.done.iter().find(|&&(done, _)| usize::from(done) == part)?;
        Some(match *deed {
            Deed::NodeChanged(node) => NodeReply { node: node.0, ..NodeReply::default() },
            Deed::NodeRemoved(node, allocations_ended) => {
                NodeReply { node: node.0, allocations_ended, ..NodeReply::default() }
            }
            ref other => unreachable!("a part about a node has not done {other:?}"),
        })
    }
}
