//! Message kinds: the `kind` of a frame.

/// What a frame is about. A reply has the kind of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Kind {
    /// Opens the session; the first frame of a connection, once.
    Hello = 1,
    /// One placement.
    Place = 2,
    /// Several placements, each decided on its own.
    PlaceBatch = 3,
    /// One release.
    Release = 4,
    /// Several releases, each done on its own.
    ReleaseBatch = 5,
    /// Registers nodes.
    AddNodes = 6,
    /// New capacity and labels for registered nodes.
    UpdateNodes = 7,
    /// Nodes take no new work, or take it again.
    DrainNodes = 8,
    /// Nodes go.
    RemoveNodes = 9,
    /// A page of nodes.
    ListNodes = 10,
    /// Sums, counters, and an audit on demand.
    Status = 11,
    /// What a node's agent found: registers its node, or brings it up to date.
    Report = 12,
    /// A node's agent lives.
    Heartbeat = 13,
    /// Records an allocation that was made elsewhere.
    Adopt = 16,
    /// New capacity of single resources of a node.
    SetResources = 17,
    /// The books of a node.
    NodeBooks = 18,
    /// A placement does not wait any more.
    CancelWait = 19,
    /// Keeps a node for an owner.
    Reserve = 20,
    /// A node is not kept any more.
    EndReservation = 21,
    /// Makes a placement group.
    CreateGroup = 22,
    /// Adds bundles to a group.
    GrowGroup = 23,
    /// Takes bundles out of a group.
    ShrinkGroup = 24,
    /// Ends a group.
    RemoveGroup = 25,
    /// How a group stands.
    GroupStatus = 26,
    /// A page of groups.
    ListGroups = 27,
    /// A placement into a bundle of a group.
    PlaceInto = 28,
    /// Operations that a scheduler of its own has planned.
    SubmitStatement = 29,
    /// What changed since the client's versions, or the next change.
    Follow = 30,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 28] = [
        Self::Hello,
        Self::Place,
        Self::PlaceBatch,
        Self::Release,
        Self::ReleaseBatch,
        Self::AddNodes,
        Self::UpdateNodes,
        Self::DrainNodes,
        Self::RemoveNodes,
        Self::ListNodes,
        Self::Status,
        Self::Report,
        Self::Heartbeat,
        Self::Adopt,
        Self::SetResources,
        Self::NodeBooks,
        Self::CancelWait,
        Self::Reserve,
        Self::EndReservation,
        Self::CreateGroup,
        Self::GrowGroup,
        Self::ShrinkGroup,
        Self::RemoveGroup,
        Self::GroupStatus,
        Self::ListGroups,
        Self::PlaceInto,
        Self::SubmitStatement,
        Self::Follow,
    ];

    /// Its number on the wire.
    #[must_use]
    pub const fn number(self) -> u16 {
        self as u16
    }

    /// The kind of a number, if this version knows it.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }

    /// Its name, for logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::Place => "place",
            Self::PlaceBatch => "place_batch",
            Self::Release => "release",
            Self::ReleaseBatch => "release_batch",
            Self::AddNodes => "add_nodes",
            Self::UpdateNodes => "update_nodes",
            Self::DrainNodes => "drain_nodes",
            Self::RemoveNodes => "remove_nodes",
            Self::ListNodes => "list_nodes",
            Self::Status => "status",
            Self::Report => "report",
            Self::Heartbeat => "heartbeat",
            Self::Adopt => "adopt",
            Self::SetResources => "set_resources",
            Self::NodeBooks => "node_books",
            Self::CancelWait => "cancel_wait",
            Self::Reserve => "reserve",
            Self::EndReservation => "end_reservation",
            Self::CreateGroup => "create_group",
            Self::GrowGroup => "grow_group",
            Self::ShrinkGroup => "shrink_group",
            Self::RemoveGroup => "remove_group",
            Self::GroupStatus => "group_status",
            Self::ListGroups => "list_groups",
            Self::PlaceInto => "place_into",
            Self::SubmitStatement => "submit_statement",
            Self::Follow => "follow",
        }
    }

    /// Whether it only looks: its reply is not kept, and asked again it looks again.
    #[must_use]
    pub const fn only_looks(self) -> bool {
        matches!(
            self,
            Self::ListNodes
                | Self::Status
                | Self::NodeBooks
                | Self::GroupStatus
                | Self::ListGroups
                | Self::Follow
        )
    }
}
