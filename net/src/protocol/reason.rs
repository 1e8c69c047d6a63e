//! Reason codes: stable numbers with a name. A number never changes its meaning; new ones are
//! added at the end of their range.

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal;)*) => {
        /// Why something was answered as it was. 0 to 99: outcomes of a placement; 100 to 199:
        /// faults of a request; 200 to 299: faults of a connection; 300 to 399: the service's state.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Reason {
            $($(#[$doc])* $variant = $number,)*
        }

        impl Reason {
            /// All codes.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Its name, as commands and metrics print it.
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
    /// Done.
    Done = 0, "done";
    /// Some node could hold it, but none can now.
    NoFitNow = 1, "no_fit_now";
    /// No registered node could hold it even if nothing else ran there.
    Infeasible = 2, "infeasible";
    /// It waited in vain, and was taken back.
    Cancelled = 3, "cancelled";

    /// A field's value is wrong.
    InvalidField = 100, "invalid_field";
    /// A field of the protocol that this service does not serve yet.
    NotSupportedYet = 101, "not_supported_yet";
    /// A registered node has that name.
    NodeExists = 102, "node_exists";
    /// No node has that name or id.
    UnknownNode = 103, "unknown_node";
    /// The allocation is not live.
    UnknownAllocation = 104, "unknown_allocation";
    /// The node holds allocations.
    NodeInUse = 105, "node_in_use";
    /// More than a limit allows. Of a group that is refused: the search for it was given up at its bound.
    LimitExceeded = 106, "limit_exceeded";
    /// The body is not what its kind and version say.
    MalformedBody = 107, "malformed_body";
    /// No such message kind.
    UnknownKind = 108, "unknown_kind";
    /// No such body version of this kind.
    UnknownVersion = 109, "unknown_version";
    /// A critical extension that this service does not know.
    UnknownExtension = 110, "unknown_extension";
    /// The sequence was acknowledged, so its outcome is forgotten; it is not done again.
    StaleSequence = 111, "stale_sequence";
    /// The sequence is further ahead than a session may be.
    SequenceOutOfWindow = 112, "sequence_out_of_window";
    /// The node is in a state that cannot follow what was asked.
    IllegalChange = 118, "illegal_change";
    /// The node is reserved for another owner.
    NodeReserved = 119, "node_reserved";
    /// The node is not reserved for that owner.
    NotReserved = 120, "not_reserved";
    /// More than the node has when nothing runs there.
    ExceedsCapacity = 121, "exceeds_capacity";
    /// A check that a node failed: it is not among the named candidates.
    NotACandidate = 150, "not_a_candidate";
    /// A check that a node failed: its labels do not satisfy the selector.
    SelectorMismatch = 151, "selector_mismatch";
    /// A check that a node failed: it takes no new work.
    NotReady = 152, "not_ready";
    /// A check that a node failed: too little of a resource.
    Insufficient = 153, "insufficient";
    /// A check that a node failed: it has a taint that the request does not tolerate.
    UntoleratedTaint = 154, "untolerated_taint";
    /// A check that a node failed: the request is for one node, and this is another.
    NodeAffinity = 155, "node_affinity";
    /// A check that a node failed: enough of a unit-instance resource in sum, but not in one
    /// unit, or not in whole units.
    Fragmented = 158, "fragmented";
    /// A check that a node failed: it would do, and is reserved for another owner.
    ReservedForOther = 159, "reserved_for_other";
    /// The service is configured not to serve it.
    NotServed = 160, "not_served";
    /// No such group.
    UnknownGroup = 161, "unknown_group";
    /// No such bundle of the group, or it is not placed now.
    UnknownBundle = 162, "unknown_bundle";
    /// The group is being changed.
    GroupBusy = 163, "group_busy";
    /// The group would have fewer bundles than its minimum.
    BelowMinimum = 164, "below_minimum";
    /// Why a group is refused: a bundle finds no node beside the others.
    NoNodeForBundle = 165, "no_node_for_bundle";
    /// Why a group is refused: no node can hold all bundles.
    NoSingleNode = 166, "no_single_node";
    /// Why a group is refused: its bundles need a node each.
    TooFewNodes = 167, "too_few_nodes";
    /// Why a group is refused: all nodes together have less than it asks.
    ClusterTooSmall = 168, "cluster_too_small";
    /// Why a group is refused: the values of the label have no room for it.
    TopologyTooSmall = 169, "topology_too_small";
    /// It conflicted with other work.
    Conflicted = 170, "conflicted";
    /// A conflict: the node has another version than was expected.
    VersionChanged = 171, "version_changed";
    /// A conflict: coarse conflict detection, and no version is expected.
    NoVersion = 172, "no_version";
    /// A conflict: a named GPU instance is not free, or not there.
    InstanceTaken = 173, "instance_taken";
    /// A conflict: another statement is about to evict the allocation.
    HeldByStatement = 174, "held_by_statement";
    /// A conflict: the allocation is being released already.
    AlreadyReleasing = 175, "already_releasing";
    /// A conflict: the bundle stands on some node already.
    BundlePlaced = 176, "bundle_placed";
    /// A conflict: another operation of the same statement forbids it.
    Contradicts = 177, "contradicts";
    /// A conflict: the statement was submitted before.
    Repeated = 178, "repeated";
    /// A shard held its part of the statement for too long, so it was aborted.
    Expired = 179, "expired";
    /// An operation that was not done because of others of its statement.
    Aborted = 180, "aborted";
    /// A conflict: the allocation is placed into a bundle, and goes with a release or with its bundle.
    InBundle = 181, "in_bundle";
    /// No such shard in this start of the service.
    UnknownShard = 182, "unknown_shard";
    /// Why a follower begins with nothing: it named no version.
    NewFollower = 183, "new_follower";
    /// Why a follower begins with nothing: its version is of another start of the service.
    OtherIncarnation = 184, "other_incarnation";
    /// Why a follower begins with nothing: its version is not kept any more.
    TooFarBehind = 185, "too_far_behind";
    /// Why a follower begins with nothing: the shard has not come to its version yet.
    FutureVersion = 186, "future_version";
    /// Why a group is refused: the nodes with room for a bundle are used by others of its own.
    OwnBundles = 187, "own_bundles";
    /// Why a group is refused: the nodes that some of its bundles are confined to have less than these ask.
    ConfinedTooSmall = 188, "confined_too_small";
    /// Why a group is refused: nodes could hold fewer of its bundles, whatever else runs.
    TooFewPlaces = 189, "too_few_places";
    /// The node holds as many allocations as one may: a check that a node failed, a conflict, or why an adoption or
    /// a placement into a bundle is refused.
    TooManyAllocations = 190, "too_many_allocations";

    /// The frame is not a frame.
    MalformedFrame = 200, "malformed_frame";
    /// The frame is longer than the limit.
    FrameTooLong = 201, "frame_too_long";
    /// The first frame was no hello.
    HelloExpected = 202, "hello_expected";
    /// A second hello.
    SecondHello = 203, "second_hello";
    /// No common protocol version.
    NoCommonVersion = 204, "no_common_version";
    /// The session to resume is unknown, or its token is wrong.
    UnknownSession = 205, "unknown_session";
    /// The session was resumed on another connection, so this one was closed.
    SessionResumed = 206, "session_resumed";

    /// The service is shutting down.
    ShuttingDown = 300, "shutting_down";
    /// The registrar cannot be reached.
    Unavailable = 301, "unavailable";
}

impl Reason {
    /// Its number on the wire.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// The reason of a number, if this version knows it.
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

/// A reason as it stands on the wire: a number, which may come from a newer peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReasonCode(pub u16);

impl From<Reason> for ReasonCode {
    fn from(reason: Reason) -> Self {
        Self(reason.number())
    }
}

impl ReasonCode {
    /// The reason, if this version knows the number.
    #[must_use]
    pub fn known(self) -> Option<Reason> {
        Reason::from_number(self.0)
    }

    /// Whether it says [`Reason::Done`].
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
