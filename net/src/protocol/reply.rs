//! What the service does with a reply of any kind.

use serde::Serialize;

use super::*;

/// A reply, and its reasons for metrics.
pub(crate) trait Reply: Serialize {
    /// Returns the reason of the reply as a whole.
    fn reason(&self) -> ReasonCode {
        ReasonCode::default()
    }

    /// Returns the first fault that says that a right is missing, of the reply or of a part.
    fn forbidden(&self) -> Option<&Fault> {
        None
    }

    /// Returns the reason of each part.
    fn part_reasons(&self) -> Vec<ReasonCode> {
        Vec::new()
    }
}

/// Replies without a reason of their own.
macro_rules! plain {
    ($($reply:ty),*) => { $(impl Reply for $reply {})* };
}

/// Replies with a list of parts, which have the reasons.
macro_rules! in_parts {
    ($($reply:ty),*) => {
        $(impl Reply for $reply {
            fn part_reasons(&self) -> Vec<ReasonCode> {
                self.replies.iter().map(|part| part.reason).collect()
            }

            fn forbidden(&self) -> Option<&Fault> {
                self.replies.iter().find_map(Reply::forbidden)
            }
        })*
    };
}

/// Replies with a reason, which may be that of a fault in the request.
macro_rules! with_fault {
    ($($reply:ty),*) => {
        $(
            impl Reply for $reply {
                fn reason(&self) -> ReasonCode {
                    self.reason
                }

                fn forbidden(&self) -> Option<&Fault> {
                    self.fault.as_ref().filter(|fault| fault.reason == Reason::Forbidden.into())
                }
            }

            impl From<Fault> for $reply {
                fn from(fault: Fault) -> Self {
                    let mut reply = Self::default();
                    reply.reason = fault.reason;
                    reply.fault = Some(fault);
                    reply
                }
            }

            impl From<Fault> for Box<$reply> {
                fn from(fault: Fault) -> Self {
                    Self::new(fault.into())
                }
            }
        )*
    };
}

plain!(CancelReply, ExportReply, FollowReply, ListGroupsReply, ListReply, NodeBooksReply, StatusReply);
plain!(ListJobsReply, ListPriorityClassesReply, ListQueuesReply);
in_parts!(NodesReply, PlaceBatchReply, ReleaseBatchReply, RenewReply);
with_fault!(GroupReply, NodeReply, PlaceReply, ReleaseReply, RemoveGroupReply, ReportReply, ReserveReply);
with_fault!(
    ExplainJobReply,
    ExplainWaitReply,
    JobReply,
    JobStatusReply,
    PlanNodesReply,
    PriorityClassReply,
    QueueReply,
    RenewedBody,
    ReportTasksReply,
    StatementReply
);

impl Reply for HeartbeatReply {
    fn reason(&self) -> ReasonCode {
        self.reason
    }
}

impl Reply for EventsReply {
    fn reason(&self) -> ReasonCode {
        self.reason
    }
}
