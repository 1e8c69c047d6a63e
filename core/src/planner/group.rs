//! The state of a group at its planner.

use std::sync::Arc;

use super::JobTag;
use super::colocate::Item;
use super::queue::PortClient;
use crate::group::{BundleView, GroupSpec, GroupState, GroupView};
use crate::ids::{AllocationId, GroupId, NodeId};
use crate::request::PlacementRequest;
use crate::resource::GpuAssignment;
use crate::time::Time;

/// The node and allocation of a placed bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) node: NodeId,
    pub(super) allocation: AllocationId,
    pub(super) gpus: GpuAssignment,
}

/// A bundle of a group.
#[derive(Clone, Debug)]
pub(super) struct Bundle {
    /// The index in the group. It never changes.
    pub(super) index: u32,
    pub(super) request: Arc<PlacementRequest>,
    pub(super) place: Option<Place>,
    /// The allocation on a lost node. It ends with the statement that places the bundle again.
    pub(super) lost: Option<AllocationId>,
}

/// The job that waits for the outcome of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Awaiting {
    /// No job waits.
    Nobody,
    /// The job that created the group.
    Creation(JobTag),
    /// The job that adds bundles, and the index of the first of them.
    Growth(JobTag, u32),
}

/// A group.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) id: GroupId,
    pub(super) spec: Arc<GroupSpec>,
    /// The client of the last job. `None` after a restart.
    pub(super) client: Option<PortClient>,
    /// The bundles in order of index.
    pub(super) bundles: Vec<Bundle>,
    pub(super) next_index: u32,
    pub(super) awaiting: Awaiting,
    /// Set if a statement of the group is in flight.
    pub(super) committing: bool,
    /// The job that removes the group as soon as nothing is in flight.
    pub(super) removal: Option<JobTag>,
    /// The deadline for placing the minimum, or the bundles that the group grows by.
    pub(super) until: Option<Time>,
    /// The deadline for getting a ticket, for a group that does not wait and lost too often.
    pub(super) queued_until: Option<Time>,
    pub(super) attempts: u32,
    /// How many times in a row a failed search was not trusted.
    pub(super) uncertain_rounds: u8,
    /// Set if the last attempt found no place.
    pub(super) no_fit: bool,
    /// The number of attempts lost to other work since the last success.
    pub(super) losses: u32,
    /// Set if the group waits for its ticket or has it.
    pub(super) queued_for_ticket: bool,
    /// The number of tickets without success since the last success.
    pub(super) tickets: u32,
    /// The shape of the nodes for which the group was last found not to be infeasible.
    pub(super) judged: Option<u64>,
    /// Set if a proof about the group continues in a later round.
    pub(super) undecided: bool,
}

impl Group {
    pub(super) fn new(id: GroupId, spec: Arc<GroupSpec>, tag: JobTag, client: PortClient) -> Self {
        let mut group = Self {
            id,
            client: Some(client),
            bundles: Vec::with_capacity(spec.bundles.len()),
            next_index: 0,
            awaiting: Awaiting::Creation(tag),
            committing: false,
            removal: None,
            until: spec.wait_until,
            queued_until: None,
            spec: Arc::clone(&spec),
            attempts: 0,
            no_fit: false,
            uncertain_rounds: 0,
            losses: 0,
            queued_for_ticket: false,
            tickets: 0,
            judged: None,
            undecided: false,
        };
        group.add(&spec.bundles);
        group
    }

    /// Creates a group that an earlier start placed.
    pub(super) fn resumed(id: GroupId, spec: Arc<GroupSpec>, bundles: Vec<Bundle>, next_index: u32) -> Self {
        let awaiting = Awaiting::Nobody;
        let removal = None;
        let until = None;
        let committing = false;
        let queued_for_ticket = false;
        let attempts = 0;
        let losses = 0;
        Self {
            id,
            spec,
            client: None,
            bundles,
            next_index,
            awaiting,
            committing,
            removal,
            until,
            queued_until: None,
            attempts,
            no_fit: false,
            uncertain_rounds: 0,
            losses,
            queued_for_ticket,
            tickets: 0,
            judged: None,
            undecided: false,
        }
    }

    /// Adds bundles. Returns the index of the first.
    pub(super) fn add(&mut self, requests: &[Arc<PlacementRequest>]) -> u32 {
        let first = self.next_index;
        for request in requests {
            let index = self.next_index;
            let request = Arc::clone(request);
            self.bundles.push(Bundle { index, request, place: None, lost: None });
            self.next_index += 1;
        }
        first
    }

    pub(super) fn bundle(&self, index: u32) -> Option<&Bundle> {
        let at = self.bundles.binary_search_by_key(&index, |bundle| bundle.index).ok()?;
        Some(&self.bundles[at])
    }

    pub(super) fn bundle_mut(&mut self, index: u32) -> Option<&mut Bundle> {
        let at = self.bundles.binary_search_by_key(&index, |bundle| bundle.index).ok()?;
        Some(&mut self.bundles[at])
    }

    /// Returns a bundle as an item to place.
    pub(super) fn item(&self, index: u32) -> Item {
        let at = self.bundles.binary_search_by_key(&index, |bundle| bundle.index);
        let request = &self.bundles[at.expect("a bundle of the group")].request;
        Item { bundle: index, request: Arc::clone(request) }
    }

    pub(super) fn placed(&self) -> usize {
        self.bundles.iter().filter(|bundle| bundle.place.is_some()).count()
    }

    /// Returns how many more bundles must be placed to reach the minimum.
    pub(super) fn missing(&self) -> usize {
        (self.spec.min_members as usize).saturating_sub(self.placed())
    }

    /// Returns whether some bundle is not placed.
    pub(super) fn is_incomplete(&self) -> bool {
        self.bundles.iter().any(|bundle| bundle.place.is_none())
    }

    /// Returns the time by which the waiting job must be answered.
    pub(super) fn deadline(&self) -> Option<Time> {
        match self.awaiting {
            Awaiting::Nobody => None,
            Awaiting::Creation(_) | Awaiting::Growth(..) => self.until.or(self.queued_until),
        }
    }

    /// Returns the index of the first bundle that the group grows by, if it grows.
    pub(super) fn grows_from(&self) -> Option<u32> {
        match self.awaiting {
            Awaiting::Growth(_, first) => Some(first),
            _ => None,
        }
    }

    pub(super) fn view(&self) -> GroupView {
        let bundle = |bundle: &Bundle| {
            let view = match bundle.place {
                None => BundleView::Unplaced,
                Some(Place { node, allocation, gpus }) => BundleView::Placed { node, allocation, gpus },
            };
            (bundle.index, view)
        };
        let state = if self.committing {
            GroupState::Committing
        } else if self.missing() == 0 {
            GroupState::Placed
        } else if matches!(self.awaiting, Awaiting::Creation(_)) {
            GroupState::Waiting
        } else {
            GroupState::Degraded
        };
        let id = self.id;
        let spec = Arc::clone(&self.spec);
        let attempts = self.attempts;
        let requests = self.bundles.iter().map(|bundle| Arc::clone(&bundle.request)).collect();
        let bundles = self.bundles.iter().map(bundle).collect();
        GroupView { id, state, spec, bundles, requests, attempts, releasing: Vec::new() }
    }
}
