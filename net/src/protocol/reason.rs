//! Reason codes: stable numbers with a name. A number never changes its meaning. New codes are added at the
//! end of their range.

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal;)*) => {
        /// The reason of an answer.
        ///
        /// Ranges: 0 to 99 are outcomes of a placement, 100 to 199 faults of a request, 200 to 299 faults of
        /// a connection, and 300 to 399 the service's state.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Reason {
            $($(#[$doc])* $variant = $number,)*
        }

        impl Reason {
            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the reason's name, as commands and metrics print it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

reasons! {
    /// The request was done.
    Done = 0, "done";
    /// Some node could hold the request, but none can now.
    NoFitNow = 1, "no_fit_now";
    /// No registered node could hold the request even if nothing else ran there.
    Infeasible = 2, "infeasible";
    /// The request waited and was cancelled.
    Cancelled = 3, "cancelled";
    /// The cap of a queue forbids it.
    OverCap = 4, "over_cap";

    /// A field's value is wrong.
    InvalidField = 100, "invalid_field";
    /// The field exists in the protocol, but this service does not serve it yet.
    NotSupportedYet = 101, "not_supported_yet";
    /// A registered node already has that name.
    NodeExists = 102, "node_exists";
    /// No node has that name or id.
    UnknownNode = 103, "unknown_node";
    /// The allocation is not live.
    UnknownAllocation = 104, "unknown_allocation";
    /// The node holds allocations.
    NodeInUse = 105, "node_in_use";
    /// More than a limit allows. For a refused group: the search for a placement reached its bound.
    LimitExceeded = 106, "limit_exceeded";
    /// The body does not match its kind and version.
    MalformedBody = 107, "malformed_body";
    /// The message kind does not exist.
    UnknownKind = 108, "unknown_kind";
    /// The kind has no such body version.
    UnknownVersion = 109, "unknown_version";
    /// A critical extension is unknown to this service.
    UnknownExtension = 110, "unknown_extension";
    /// The sequence was acknowledged, so its outcome is forgotten. The request is not executed again.
    StaleSequence = 111, "stale_sequence";
    /// The sequence is further ahead than a session may be.
    SequenceOutOfWindow = 112, "sequence_out_of_window";
    /// Another request of the session had the sequence. Nothing was executed.
    SequenceReused = 113, "sequence_reused";
    /// The node's state does not allow the requested change.
    IllegalChange = 118, "illegal_change";
    /// The node is reserved for another owner.
    NodeReserved = 119, "node_reserved";
    /// The node is not reserved for that owner.
    NotReserved = 120, "not_reserved";
    /// The request is for more than the node has when nothing runs there.
    ExceedsCapacity = 121, "exceeds_capacity";
    /// A failed check of a node: it is not among the named candidates.
    NotACandidate = 150, "not_a_candidate";
    /// A failed check of a node: its labels do not satisfy the selector.
    SelectorMismatch = 151, "selector_mismatch";
    /// A failed check of a node: it takes no new work.
    NotReady = 152, "not_ready";
    /// A failed check of a node: it has too little of a resource.
    Insufficient = 153, "insufficient";
    /// A failed check of a node: it has a taint that the request does not tolerate.
    UntoleratedTaint = 154, "untolerated_taint";
    /// A failed check of a node: the request names one node, and this is another.
    NodeAffinity = 155, "node_affinity";
    /// A failed check of a node: it has enough of a unit-instance resource in sum, but not in one unit, or
    /// not in whole units.
    Fragmented = 158, "fragmented";
    /// A failed check of a node: it would fit, but is reserved for another owner.
    ReservedForOther = 159, "reserved_for_other";
    /// The service is configured not to serve the request.
    NotServed = 160, "not_served";
    /// The group does not exist.
    UnknownGroup = 161, "unknown_group";
    /// The group has no such bundle, or the bundle is not placed now.
    UnknownBundle = 162, "unknown_bundle";
    /// The group is being changed.
    GroupBusy = 163, "group_busy";
    /// The group would have fewer bundles than its minimum.
    BelowMinimum = 164, "below_minimum";
    /// Why a group is refused: a bundle fits on no node in addition to the other bundles.
    NoNodeForBundle = 165, "no_node_for_bundle";
    /// Why a group is refused: no node can hold all bundles together.
    NoSingleNode = 166, "no_single_node";
    /// Why a group is refused: its bundles need one node each, and there are too few.
    TooFewNodes = 167, "too_few_nodes";
    /// Why a group is refused: all nodes together have less than it requests.
    ClusterTooSmall = 168, "cluster_too_small";
    /// Why a group is refused: the nodes of the label's values have no room for it.
    TopologyTooSmall = 169, "topology_too_small";
    /// The operation or group conflicted with other work.
    Conflicted = 170, "conflicted";
    /// A conflict: the node has another version than expected.
    VersionChanged = 171, "version_changed";
    /// A conflict: conflict detection is coarse, and the operation names no version.
    NoVersion = 172, "no_version";
    /// A conflict: a named GPU instance is not free or does not exist.
    InstanceTaken = 173, "instance_taken";
    /// A conflict: another statement is about to evict the allocation.
    HeldByStatement = 174, "held_by_statement";
    /// A conflict: the allocation is already being released.
    AlreadyReleasing = 175, "already_releasing";
    /// A conflict: the bundle is already placed on a node.
    BundlePlaced = 176, "bundle_placed";
    /// A conflict: another operation of the same statement contradicts it.
    Contradicts = 177, "contradicts";
    /// A conflict: the statement was submitted before.
    Repeated = 178, "repeated";
    /// A shard held its part of the statement for too long, so the statement was aborted.
    Expired = 179, "expired";
    /// The operation was not done because of others of its statement.
    Aborted = 180, "aborted";
    /// A conflict: the allocation is placed into a bundle. It ends with a release or with its bundle.
    InBundle = 181, "in_bundle";
    /// This start of the service has no such shard.
    UnknownShard = 182, "unknown_shard";
    /// Why a follower begins from nothing: it named no version.
    NewFollower = 183, "new_follower";
    /// Why a follower begins from nothing: its version is from another start of the service.
    OtherIncarnation = 184, "other_incarnation";
    /// Why a follower begins from nothing: its version, or the events from its position on, are no longer kept.
    TooFarBehind = 185, "too_far_behind";
    /// Why a follower begins from nothing: its version or position was not reached yet.
    FutureVersion = 186, "future_version";
    /// Why a group is refused: the nodes with room for a bundle are used by the group's other bundles.
    OwnBundles = 187, "own_bundles";
    /// Why a group is refused: some bundles may be placed on few nodes only, which together have less than
    /// these bundles request.
    ConfinedTooSmall = 188, "confined_too_small";
    /// Why a group is refused: even if nothing else ran, nodes could hold fewer of its bundles than must be
    /// placed.
    TooFewPlaces = 189, "too_few_places";
    /// The node has the maximum number of allocations. It is a failed check, a conflict, or why an adoption
    /// or a placement into a bundle is refused.
    TooManyAllocations = 190, "too_many_allocations";
    /// The peer has no right to do this.
    Forbidden = 191, "forbidden";
    /// Nothing waits at that sequence of that session, or it belongs to another tenant.
    UnknownWait = 192, "unknown_wait";
    /// No priority class has that name.
    UnknownPriorityClass = 193, "unknown_priority_class";
    /// The allocation has no lease.
    NoLease = 195, "no_lease";
    /// The lease of the allocation belongs to a session.
    LeaseOfSession = 196, "lease_of_session";
    /// Why an allocation ended: its lease ran out.
    LeaseExpired = 197, "lease_expired";
    /// No queue has that name.
    UnknownQueue = 198, "unknown_queue";
    /// No job has that number, or it belongs to another tenant.
    UnknownJob = 199, "unknown_job";

    /// The frame is malformed.
    MalformedFrame = 200, "malformed_frame";
    /// The frame is longer than the limit.
    FrameTooLong = 201, "frame_too_long";
    /// The first frame was not a hello.
    HelloExpected = 202, "hello_expected";
    /// The connection received a second hello.
    SecondHello = 203, "second_hello";
    /// Client and server have no common protocol version.
    NoCommonVersion = 204, "no_common_version";
    /// The session to resume is unknown, or its token is wrong.
    UnknownSession = 205, "unknown_session";
    /// The session was resumed on another connection, so this one was closed.
    SessionResumed = 206, "session_resumed";

    /// The service is shutting down.
    ShuttingDown = 300, "shutting_down";
    /// The registrar cannot be reached.
    Unavailable = 301, "unavailable";
    /// The tenant has used up a limit, or the service cannot do the request before its deadline. The fault says when to
    /// ask again.
    Overloaded = 302, "overloaded";
    /// The deadline of the request passed before its turn came. It was not executed.
    DeadlineExceeded = 303, "deadline_exceeded";
}

impl Reason {
    /// Returns the reason's number on the wire.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// Returns whether nothing was done, and the same request may succeed later. Such an outcome is not kept: a request
    /// that is sent again is executed.
    #[must_use]
    pub(crate) fn is_for_now(self) -> bool {
        matches!(self, Self::Overloaded | Self::DeadlineExceeded)
    }

    /// Returns the reason with this number, if this version knows it.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.number() == number)
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A reason as a number on the wire. It may come from a newer peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReasonCode(pub u16);

impl From<Reason> for ReasonCode {
    fn from(reason: Reason) -> Self {
        Self(reason.number())
    }
}

impl ReasonCode {
    /// Returns the reason, if this version knows the number.
    #[must_use]
    pub fn known(self) -> Option<Reason> {
        Reason::from_number(self.0)
    }

    /// Returns whether this is [`Reason::Done`].
    #[must_use]
    pub fn is_done(self) -> bool {
        self.0 == Reason::Done.number()
    }
}

impl std::fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.known() {
            Some(reason) => write!(f, "{reason}"),
            None => write!(f, "reason {}", self.0),
        }
    }
}
