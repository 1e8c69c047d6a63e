//! Message kinds: the `kind` of a frame. The table below says everything that depends on the kind alone; what a
//! request does is in the server's one dispatch.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{
    AdoptRequest, CancelReply, CancelRequest, CreateGroupRequest, DrainRequest, EndReservationRequest,
    FollowReply, FollowRequest, GroupReply, GroupStatusRequest, GrowGroupRequest, HeartbeatReply,
    HeartbeatRequest, Hello, HelloReply, ListGroupsReply, ListGroupsRequest, ListReply, ListRequest,
    NodeBooksReply, NodeBooksRequest, NodesReply, NodesRequest, PlaceBatch, PlaceBatchReply,
    PlaceIntoRequest, PlaceReply, PlaceRequest, ReleaseBatch, ReleaseBatchReply, ReleaseReply,
    ReleaseRequest, RemoveGroupReply, RemoveGroupRequest, RemoveRequest, ReportReply, ReportRequest,
    ReserveReply, ReserveRequest, SetResourcesRequest, ShrinkGroupRequest, StatementReply, StatementRequest,
    StatusReply, StatusRequest,
};

/// Bodies of one kind: what is asked, and what is answered.
pub trait Message {
    /// The kind of both frames.
    const KIND: Kind;
    /// The body of a request.
    type Request: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug;
    /// The body of a reply that is no fault.
    type Reply: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug;
}

/// Something to do with the bodies of any kind.
pub trait MessageVisitor {
    /// What comes of it.
    type Output;

    /// Does it with the bodies of `M`.
    fn visit<M: Message>(self) -> Self::Output;
}

/// How long the reply to a request may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplySize {
    /// About one thing.
    Single,
    /// About what is reserved on a node.
    Reservation,
    /// About each part of the request.
    Batch,
    /// As long as a frame.
    Frame,
}

/// Whether a reply is kept until its client acknowledges it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It is: asked again, the request is not done again.
    Kept,
    /// It is not: the request only looks, and asked again it looks again.
    Looks,
}

macro_rules! kinds {
    ($($(#[doc = $doc:literal])* $kind:ident = $number:literal, $name:literal,
        $request:ty => $reply:ty, $outcome:ident, $size:ident;)*) => {
        /// What a frame is about. A reply has the kind of its request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Kind {
            $($(#[doc = $doc])* $kind = $number,)*
        }

        /// The bodies of each kind, by its name.
        pub mod kinds {
            $($(#[doc = $doc])* #[derive(Clone, Copy, Debug)] pub struct $kind;)*
        }

        $(impl Message for kinds::$kind {
            const KIND: Kind = Kind::$kind;
            type Request = $request;
            type Reply = $reply;
        })*

        impl Kind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// Its name, for logs and metrics.
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

            /// How long its reply may be.
            pub(crate) const fn reply_size(self) -> ReplySize {
                match self {
                    $(Self::$kind => ReplySize::$size,)*
                }
            }

            /// Does something with the bodies of this kind.
            pub fn visit<V: MessageVisitor>(self, visitor: V) -> V::Output {
                match self {
                    $(Self::$kind => visitor.visit::<kinds::$kind>(),)*
                }
            }
        }
    };
}

kinds! {
    /// Opens the session; the first frame of a connection, once.
    Hello = 1, "hello", Hello => HelloReply, Kept, Single;
    /// One placement.
    Place = 2, "place", PlaceRequest => PlaceReply, Kept, Single;
    /// Several placements, each decided on its own.
    PlaceBatch = 3, "place_batch", PlaceBatch => PlaceBatchReply, Kept, Batch;
    /// One release.
    Release = 4, "release", ReleaseRequest => ReleaseReply, Kept, Single;
    /// Several releases, each done on its own.
    ReleaseBatch = 5, "release_batch", ReleaseBatch => ReleaseBatchReply, Kept, Batch;
    /// Registers nodes.
    AddNodes = 6, "add_nodes", NodesRequest => NodesReply, Kept, Batch;
    /// New capacity and labels for registered nodes.
    UpdateNodes = 7, "update_nodes", NodesRequest => NodesReply, Kept, Batch;
    /// Nodes take no new work, or take it again.
    DrainNodes = 8, "drain_nodes", DrainRequest => NodesReply, Kept, Batch;
    /// Nodes go.
    RemoveNodes = 9, "remove_nodes", RemoveRequest => NodesReply, Kept, Batch;
    /// A page of nodes.
    ListNodes = 10, "list_nodes", ListRequest => ListReply, Looks, Frame;
    /// Sums, counters, and an audit on demand.
    Status = 11, "status", StatusRequest => StatusReply, Looks, Frame;
    /// What a node's agent found: registers its node, or brings it up to date.
    Report = 12, "report", ReportRequest => ReportReply, Kept, Single;
    /// A node's agent lives.
    Heartbeat = 13, "heartbeat", HeartbeatRequest => HeartbeatReply, Kept, Single;
    /// Records an allocation that was made elsewhere.
    Adopt = 16, "adopt", AdoptRequest => PlaceReply, Kept, Single;
    /// New capacity of single resources of a node.
    SetResources = 17, "set_resources", SetResourcesRequest => NodesReply, Kept, Batch;
    /// The books of a node.
    NodeBooks = 18, "node_books", NodeBooksRequest => NodeBooksReply, Looks, Frame;
    /// A placement does not wait any more.
    CancelWait = 19, "cancel_wait", CancelRequest => CancelReply, Kept, Single;
    /// Keeps a node for an owner.
    Reserve = 20, "reserve", ReserveRequest => ReserveReply, Kept, Reservation;
    /// Ends the reservation of a node.
    EndReservation = 21, "end_reservation", EndReservationRequest => ReserveReply, Kept, Reservation;
    /// Makes a placement group.
    CreateGroup = 22, "create_group", CreateGroupRequest => GroupReply, Kept, Frame;
    /// Adds bundles to a group.
    GrowGroup = 23, "grow_group", GrowGroupRequest => GroupReply, Kept, Frame;
    /// Takes bundles out of a group.
    ShrinkGroup = 24, "shrink_group", ShrinkGroupRequest => GroupReply, Kept, Frame;
    /// Ends a group.
    RemoveGroup = 25, "remove_group", RemoveGroupRequest => RemoveGroupReply, Kept, Single;
    /// The state of a group.
    GroupStatus = 26, "group_status", GroupStatusRequest => GroupReply, Looks, Frame;
    /// A page of groups.
    ListGroups = 27, "list_groups", ListGroupsRequest => ListGroupsReply, Looks, Frame;
    /// A placement into a bundle of a group.
    PlaceInto = 28, "place_into", PlaceIntoRequest => PlaceReply, Kept, Single;
    /// Operations that a scheduler of its own has planned.
    SubmitStatement = 29, "submit_statement", StatementRequest => StatementReply, Kept, Frame;
    /// What changed since the client's versions, or the next change.
    Follow = 30, "follow", FollowRequest => FollowReply, Looks, Frame;
}

impl Kind {
    /// Its number on the wire.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// The kind of a number, if this version knows it.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.number() == number)
    }

    /// Whether it only looks: its reply is not kept, and asked again it looks again.
    #[must_use]
    pub fn only_looks(self) -> bool {
        self.outcome() == Outcome::Looks
    }
}
