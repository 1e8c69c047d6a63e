//! Message kinds: the `kind` field of a frame. The table below defines everything that depends only on the
//! kind. The server's dispatch defines what a request does.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::*;
use crate::access::{Role, Roles};
use crate::codec::{
    BodyError, decode_body, encode_body, read_grant, read_released, write_place, write_release,
};

/// The request and reply bodies of one kind.
pub trait Message {
    /// The kind of both frames.
    const KIND: Kind;
    /// The body of a request.
    type Request: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug;
    /// The body of a reply that is not a fault.
    type Reply: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug;

    /// Appends the encoded body of a request: the bytes of [`encode_body`], for frequent kinds in less time.
    fn write_request(request: &Self::Request, out: &mut Vec<u8>) {
        encode_body(request, out);
    }

    /// Reads a reply from the front of `bytes`, as [`decode_body`] does. What follows the body is not looked at.
    ///
    /// # Errors
    /// Fails if `bytes` does not begin with such a body within its limits.
    fn read_reply(bytes: &[u8]) -> Result<Self::Reply, BodyError> {
        Ok(decode_body(bytes)?.0)
    }
}

/// An operation on the bodies of any kind.
pub trait MessageVisitor {
    /// The result of the operation.
    type Output;

    /// Runs the operation on the bodies of `M`.
    fn visit<M: Message>(self) -> Self::Output;
}

/// The maximum size of the reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplySize {
    /// About one thing.
    Single,
    /// About the reservation of a node.
    Reservation,
    /// About each part of the request.
    Batch,
    /// Up to the length of a frame.
    Frame,
}

/// The treatment of a reply until its client acknowledges it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The reply is kept. A repeated request is not executed again.
    Kept,
    /// The reply is not kept. The request is read-only, and a repeated request is executed again.
    Looks,
}

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $kind:ident = $number:literal, $name:literal,
        $request:ty => $reply:ty, $outcome:ident, $size:ident, [$($role:ident),*] $(, $write:path, $read:path)?;)*) => {
        /// The kind of a message. A reply has the kind of its request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Kind {
            $($(#[doc = $doc])* $kind = $number,)*
        }

        /// One type per kind, which selects its bodies.
        pub mod kinds {
            $($(#[doc = $doc])* #[derive(Clone, Copy, Debug)] pub struct $kind;)*
        }

        $(impl Message for kinds::$kind {
            const KIND: Kind = Kind::$kind;
            type Request = $request;
            type Reply = $reply;

            $(
                fn write_request(request: &$request, out: &mut Vec<u8>) {
                    $write(request, out);
                }

                fn read_reply(bytes: &[u8]) -> Result<$reply, BodyError> {
                    $read(bytes).map_or_else(|| Ok(decode_body(bytes)?.0), Ok)
                }
            )?
        })*

        impl Kind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// Returns the kind's name, for logs and metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            const fn outcome(self) -> Outcome {
                match self {
                    $(Self::$kind => Outcome::$outcome,)*
                }
            }

            /// Returns the maximum size of the reply.
            pub(crate) const fn reply_size(self) -> ReplySize {
                match self {
                    $(Self::$kind => ReplySize::$size,)*
                }
            }

            /// Returns the roles that may send it. A peer needs one of them. An admin may send every kind.
            #[must_use]
            pub const fn roles(self) -> Roles {
                match self {
                    $(Self::$kind => Roles::of(&[Role::Admin, $(Role::$role),*]),)*
                }
            }

            /// Runs `visitor` on the bodies of this kind.
            pub fn visit<V: MessageVisitor>(self, visitor: V) -> V::Output {
                match self {
                    $(Self::$kind => visitor.visit::<kinds::$kind>(),)*
                }
            }
        }
    };
}

kinds! {
    /// Opens the session. The first frame of a connection, and only that one.
    Hello = 1, "hello", Hello => HelloReply, Kept, Single, [Submit, NodeAgent, Observer, Planner];
    /// Places one request.
    Place = 2, "place", PlaceRequest => PlaceReply, Kept, Single, [Submit], write_place, read_grant;
    /// Places several requests, each decided on its own.
    PlaceBatch = 3, "place_batch", PlaceBatch => PlaceBatchReply, Kept, Batch, [Submit];
    /// Releases one allocation.
    Release = 4, "release", ReleaseRequest => ReleaseReply, Kept, Single, [Submit], write_release, read_released;
    /// Releases several allocations, each on its own.
    ReleaseBatch = 5, "release_batch", ReleaseBatch => ReleaseBatchReply, Kept, Batch, [Submit];
    /// Registers nodes.
    AddNodes = 6, "add_nodes", NodesRequest => NodesReply, Kept, Batch, [];
    /// Updates capacity and labels of registered nodes.
    UpdateNodes = 7, "update_nodes", NodesRequest => NodesReply, Kept, Batch, [];
    /// Drains nodes, or undoes it.
    DrainNodes = 8, "drain_nodes", DrainRequest => NodesReply, Kept, Batch, [];
    /// Removes nodes.
    RemoveNodes = 9, "remove_nodes", RemoveRequest => NodesReply, Kept, Batch, [];
    /// Lists a page of nodes.
    ListNodes = 10, "list_nodes", ListRequest => ListReply, Looks, Frame, [Observer, Planner];
    /// Returns sums and counters, and audits on demand.
    Status = 11, "status", StatusRequest => StatusReply, Looks, Frame, [Observer, Planner];
    /// Registers or updates a node with the findings of its agent.
    Report = 12, "report", ReportRequest => ReportReply, Kept, Single, [NodeAgent];
    /// Tells that a node's agent is alive.
    Heartbeat = 13, "heartbeat", HeartbeatRequest => HeartbeatReply, Kept, Single, [NodeAgent];
    /// Adopts an allocation that another system made.
    Adopt = 16, "adopt", AdoptRequest => PlaceReply, Kept, Single, [Planner];
    /// Replaces the capacity of single resources of a node.
    SetResources = 17, "set_resources", SetResourcesRequest => NodesReply, Kept, Batch, [];
    /// Returns the books of a node.
    NodeBooks = 18, "node_books", NodeBooksRequest => NodeBooksReply, Looks, Frame, [Observer, Planner];
    /// Cancels the wait of a placement or group.
    CancelWait = 19, "cancel_wait", CancelRequest => CancelReply, Kept, Single, [Submit];
    /// Reserves a node for an owner.
    Reserve = 20, "reserve", ReserveRequest => ReserveReply, Kept, Reservation, [Planner];
    /// Ends the reservation of a node.
    EndReservation = 21, "end_reservation", EndReservationRequest => ReserveReply, Kept, Reservation, [Planner];
    /// Creates a placement group.
    CreateGroup = 22, "create_group", CreateGroupRequest => GroupReply, Kept, Frame, [Submit];
    /// Adds bundles to a group.
    GrowGroup = 23, "grow_group", GrowGroupRequest => GroupReply, Kept, Frame, [Submit];
    /// Removes bundles from a group.
    ShrinkGroup = 24, "shrink_group", ShrinkGroupRequest => GroupReply, Kept, Frame, [Submit];
    /// Removes a group.
    RemoveGroup = 25, "remove_group", RemoveGroupRequest => RemoveGroupReply, Kept, Single, [Submit];
    /// Returns the state of a group.
    GroupStatus = 26, "group_status", GroupStatusRequest => GroupReply, Looks, Frame, [Submit, Observer, Planner];
    /// Lists a page of groups.
    ListGroups = 27, "list_groups", ListGroupsRequest => ListGroupsReply, Looks, Frame, [Submit, Observer, Planner];
    /// Places into a bundle of a group.
    PlaceInto = 28, "place_into", PlaceIntoRequest => PlaceReply, Kept, Single, [Submit];
    /// Submits operations that an external scheduler planned.
    SubmitStatement = 29, "submit_statement", StatementRequest => StatementReply, Kept, Frame, [Planner];
    /// Returns the changes since the client's versions, or waits for the next change.
    Follow = 30, "follow", FollowRequest => FollowReply, Looks, Frame, [Observer, Planner];
    /// Returns a page of an export of the store.
    Export = 40, "export", ExportRequest => ExportReply, Looks, Frame, [];
    /// Returns what happened from a position on, or waits for the next event.
    Events = 41, "events", EventsRequest => EventsReply, Looks, Frame, [Observer, Planner];
    /// Renews leases of allocations, or those of a session.
    Renew = 42, "renew", RenewRequest => RenewReply, Kept, Batch, [Submit];
    /// Makes or changes a queue.
    SetQueue = 50, "set_queue", SetQueueRequest => QueueReply, Kept, Single, [];
    /// Removes a queue.
    RemoveQueue = 51, "remove_queue", RemoveQueueRequest => QueueReply, Kept, Single, [];
    /// Lists a page of queues.
    ListQueues = 52, "list_queues", ListQueuesRequest => ListQueuesReply, Looks, Frame, [Submit, Observer, Planner];
    /// Submits a job.
    SubmitJob = 53, "submit_job", SubmitJobRequest => JobReply, Kept, Single, [Submit];
    /// Ends a job.
    CancelJob = 54, "cancel_job", CancelJobRequest => JobReply, Kept, Single, [Submit];
    /// Returns a job with a page of its tasks.
    JobStatus = 55, "job_status", JobStatusRequest => JobStatusReply, Looks, Frame, [Submit, Observer, Planner];
    /// Lists a page of jobs.
    ListJobs = 56, "list_jobs", ListJobsRequest => ListJobsReply, Looks, Frame, [Submit, Observer, Planner];
    /// Tells what became of tasks.
    ReportTasks = 57, "report_tasks", ReportTasksRequest => ReportTasksReply, Kept, Single, [Submit];
    /// Explains why a job or a task waits.
    ExplainJob = 58, "explain_job", ExplainJobRequest => ExplainJobReply, Looks, Frame, [Submit, Observer, Planner];
    /// Plans nodes for all that waits.
    PlanNodes = 59, "plan_nodes", PlanNodesRequest => PlanNodesReply, Looks, Frame, [Submit, Observer, Planner];
    /// Explains why a placement or a group waits.
    ExplainWait = 60, "explain_wait", ExplainWaitRequest => ExplainWaitReply, Looks, Frame, [Submit, Observer, Planner];
    /// Makes or changes a priority class.
    SetPriorityClass = 61, "set_priority_class", SetPriorityClassRequest => PriorityClassReply, Kept, Single, [];
    /// Removes a priority class.
    RemovePriorityClass = 62, "remove_priority_class", RemovePriorityClassRequest => PriorityClassReply, Kept, Single, [];
    /// Lists a page of priority classes.
    ListPriorityClasses = 63, "list_priority_classes", ListPriorityClassesRequest => ListPriorityClassesReply, Looks, Frame, [Submit, Observer, Planner];
}

/// All kinds, by their number.
const BY_NUMBER: [Option<Kind>; 64] = {
    let mut kinds = [None; 64];
    let mut at = 0;
    while at < Kind::ALL.len() {
        kinds[Kind::ALL[at] as usize] = Some(Kind::ALL[at]);
        at += 1;
    }
    kinds
};

impl Kind {
    /// Returns the kind's number on the wire.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// Returns the kind with this number, if this version knows it.
    #[inline]
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        *BY_NUMBER.get(usize::from(number))?
    }

    /// Returns whether the reply has a part, with a reason of its own, for each part of the request.
    #[must_use]
    pub const fn has_parts(self) -> bool {
        matches!(self.reply_size(), ReplySize::Batch)
    }

    /// Returns whether the request is read-only: its reply is not kept, and a repeated request is executed
    /// again.
    #[must_use]
    pub fn only_looks(self) -> bool {
        self.outcome() == Outcome::Looks
    }
}
