//! Why a placement or a group waits, and what would help.

use std::cmp::Reverse;

use super::job::{GroupView, PlanRejection};
use super::waiting::GroupTurn;
use crate::ids::{GroupId, TenantId};
use crate::jobs::{Change, JobId};
use crate::request::{NodeCounts, PlacementRequest};
use crate::time::Time;

/// A request for an explanation.
#[derive(Clone, Debug)]
pub struct ExplainWait {
    /// Who asks. It is told of no nodes. `None`: the operator.
    pub tenant: Option<TenantId>,
    /// What it is about.
    pub of: WaitSubject,
}

/// What waits.
#[derive(Clone, Debug)]
pub enum WaitSubject {
    /// A placement.
    Placement {
        /// What it asks for.
        request: Box<PlacementRequest>,
        /// Its priority.
        priority: i32,
        /// Since when it waits.
        since: Time,
        /// Until when it waits.
        until: Time,
    },
    /// A group.
    Group {
        /// The group.
        id: GroupId,
        /// The bundle to explain. `None`: the first one that has no room.
        bundle: Option<u32>,
    },
}

/// What a placement or a group waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitsFor {
    /// Nothing: it has what it needs, or it is being changed.
    #[default]
    Nothing,
    /// A node with room: none has any for it.
    Node,
    /// Room for more bundles: there is room for some, and for fewer than it needs at once.
    Bundles,
    /// Room for all bundles together, by its strategy or its rule. There is room for each by itself.
    Together,
    /// Its turn: there is room.
    Turn,
    /// A ticket, because others took several times what came free.
    Ticket,
    /// Its turn in its queue, or what the queue lacks. The explanation of its job tells.
    Queue,
}

impl WaitsFor {
    /// All that may be waited for.
    pub const ALL: [Self; 7] =
        [Self::Nothing, Self::Node, Self::Bundles, Self::Together, Self::Turn, Self::Ticket, Self::Queue];

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Node => "node",
            Self::Bundles => "bundles",
            Self::Together => "together",
            Self::Turn => "turn",
            Self::Ticket => "ticket",
            Self::Queue => "queue",
        }
    }
}

/// Why a placement or a group waits, and what would help.
#[derive(Clone, Debug, Default)]
pub struct WaitExplanation {
    /// The group. `None`: it is a placement.
    pub group: Option<Box<GroupView>>,
    /// The job as which a placement waits in its queue. `None`: it waits in none, or it is about to be tried.
    pub job: Option<JobId>,
    /// The bundle that the counts are about: the one that was asked for, or the first one that has no room.
    pub bundle: Option<u32>,
    /// What it waits for.
    pub waits_for: WaitsFor,
    /// Its priority.
    pub priority: i32,
    /// Since when it waits. With the priority, that orders what waits.
    pub since: Time,
    /// Until when it waits. `None`: as long as it must.
    pub until: Option<Time>,
    /// The number of bundles that are placed or have room, each by itself. For a placement, 0 or 1.
    pub fit: u32,
    /// The number of bundles that must have places at once, with those that are placed. 1 for a placement.
    pub needed: u32,
    /// What its planner found when it tried the group last, if that still holds.
    pub found: Option<String>,
    /// Its place among all placements and groups that wait.
    pub place: WaitPlace,
    /// The counts over nodes. `None`: it does not wait.
    pub nodes: Option<NodeCounts>,
    /// What would help. Empty: nothing but time, or nothing that is known.
    pub changes: Vec<Change>,
}

impl WaitExplanation {
    /// Returns its place in the order of what waits.
    pub(crate) fn turn(&self) -> WaitTurn {
        (Reverse(self.priority), self.since)
    }
}

/// The answer to a request for an explanation.
pub type WaitExplained = Result<Box<WaitExplanation>, PlanRejection>;

/// The place of something in the order of what waits: the highest priority first, then what waits longest.
pub(crate) type WaitTurn = (Reverse<i32>, Time);

/// The place of something among all that waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitPlace {
    /// The number of placements and groups that come before it.
    pub before: u64,
    /// The number of all placements and groups that wait.
    pub waiting: u64,
}

impl WaitPlace {
    /// Adds others that wait.
    pub(crate) fn add(&mut self, before: u64, waiting: u64) {
        self.before += before;
        self.waiting += waiting;
    }
}

/// Asks a planner how many of its groups that wait come before a turn.
#[derive(Clone, Copy, Debug)]
pub struct CountGroups {
    /// The turn.
    pub(crate) turn: WaitTurn,
    /// The turn after which the page begins. `None`: it is the first.
    pub(crate) after: Option<GroupTurn>,
}

/// A page of the count of groups.
#[derive(Clone, Copy, Debug, Default)]
pub struct GroupsCounted {
    /// The groups of the page.
    pub(crate) place: WaitPlace,
    /// The turn after which the next page begins. `None`: there is none.
    pub(crate) next: Option<GroupTurn>,
}
