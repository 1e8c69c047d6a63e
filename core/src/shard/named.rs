//! Requests that name many candidates: the smaller of the two sets is walked.
//!
//! Where a search over all nodes meets one of the candidates soon, it is the cheaper way; where it
//! does not, it is given up after it has looked at a part of as many nodes as are named, and these
//! are walked. So either way costs little more than the cheaper one alone. Both give the same answer.
//! Random draws from the named a few times before it looks at all of them.

use super::Shard;
use super::ranked::is_candidate;
use super::selectors::{CandidateSet, SetId};
use crate::ids::NodeId;
use crate::index::{Candidates, Shape, Slot};
use crate::limits::{NAMED_WALK_MAX, RANDOM_DRAWS_MIN};
use crate::node::NodeState;
use crate::request::{PlacementRequest, Policy};
use crate::resource::Demand;

/// The part of the named that a search may look at in vain before they are walked.
const SEARCHED_PART: usize = 4;

/// What a search for `demand` accepts, where that is the same for each such search.
pub(super) fn hint_shape(demand: &Demand, set: Option<&CandidateSet>) -> Option<Shape> {
    let &Demand { cpu, memory, gpu, .. } = demand;
    let set = set.map(CandidateSet::number);
    demand.custom.is_none().then_some(Shape { cpu, memory, gpu, set })
}

impl Shard {
    /// The slots of the named candidates that are registered here.
    pub(super) fn named(&self, request: &PlacementRequest) -> Option<Vec<Slot>> {
        let ids = request.candidates.as_ref()?;
        Some(ids.iter().filter_map(|&id| self.nodes.slot(id)).collect())
    }

    /// The answer of a search over all nodes to a request that names many of them; nothing where few
    /// are named, or where the search was given up.
    pub(super) fn find_among_many(
        &mut self,
        request: &PlacementRequest,
        set: Option<SetId>,
    ) -> Option<Option<Slot>> {
        let named = request.candidates.as_ref().filter(|ids| ids.len() > NAMED_WALK_MAX)?;
        if request.policy == Policy::Random {
            return self.draw_among(request, named, set).map(Some);
        }
        let nodes = &self.nodes;
        let set = set.map(|set| self.selectors.at(set));
        let candidates = set.map_or(Candidates::All, |set| set.candidates());
        if matches!(candidates, Candidates::Walk(_)) {
            return None;
        }
        let asked = self.index.geometry().asked(&request.demand);
        let order = self.order_of(request);
        let mut state = self.policy_state.clone();
        let mut left = named.len() / SEARCHED_PART;
        let mut given_up = false;
        let accept = |slot| {
            // Accepting whatever comes ends the search.
            given_up = left == 0;
            left = left.saturating_sub(1);
            given_up
                || nodes.fits(slot, &request.demand)
                    && set.is_none_or(|set| set.contains(slot))
                    && is_candidate(request, nodes, slot)
        };
        let policy = request.policy;
        let visits = &mut self.visits;
        let found =
            self.index.select_shape(None, order, policy, &asked, candidates, &mut state, visits, accept);
        if given_up {
            return None;
        }
        self.policy_state = state;
        Some(found)
    }

    /// The answer of a search over all nodes to a request whose selector leaves many of them without a
    /// mark. Where a part of as many nodes was looked at without success, the members are walked. None where
    /// the set is small or marked, and for Random, whose draws depend on the way.
    pub(super) fn find_in_unmarked(
        &mut self,
        request: &PlacementRequest,
        set: SetId,
    ) -> Option<Option<Slot>> {
        let nodes = &self.nodes;
        let set = self.selectors.at(set);
        let members = set.unmarked().filter(|_| request.policy != Policy::Random)?;
        let asked = self.index.geometry().asked(&request.demand);
        let order = self.order_of(request);
        let shape = hint_shape(&request.demand, Some(set));
        let fits = |slot| nodes.fits(slot, &request.demand) && set.contains(slot);
        let mut state = self.policy_state.clone();
        let mut left = members / SEARCHED_PART;
        let mut given_up = false;
        // Accepting any node ends the search. What it tells the hints stays true: none before it fits.
        let accept = |slot| {
            given_up = left == 0;
            left = left.saturating_sub(1);
            given_up || fits(slot)
        };
        let policy = request.policy;
        let visits = &mut self.visits;
        let index = &mut self.index;
        let shape = shape.as_ref();
        let all = Candidates::All;
        let found = index.select_shape(shape, order, policy, &asked, all, &mut state, visits, accept);
        if !given_up {
            self.policy_state = state;
            return Some(found);
        }
        let members = set.members();
        let walk = Candidates::Walk(&members);
        let state = &mut self.policy_state;
        Some(index.select_shape(None, order, policy, &asked, walk, state, visits, fits))
    }

    /// One of the named that fit, each with equal probability; nothing where none was drawn soon.
    fn draw_among(
        &mut self,
        request: &PlacementRequest,
        named: &[NodeId],
        set: Option<SetId>,
    ) -> Option<Slot> {
        let nodes = &self.nodes;
        let set = set.map(|set| self.selectors.at(set));
        for _ in 0..RANDOM_DRAWS_MIN {
            let drawn = named[self.policy_state.rng.below(named.len() as u64) as usize];
            let Some(slot) = nodes.slot(drawn) else { continue };
            self.visits.nodes += 1;
            if nodes.state(slot) == NodeState::Ready
                && nodes.fits(slot, &request.demand)
                && set.is_none_or(|set| set.contains(slot))
            {
                return Some(slot);
            }
        }
        None
    }
}
