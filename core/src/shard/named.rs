//! Requests that name many candidates: the smaller of the two sets is walked.
//!
//! Where a search over all nodes meets one of the candidates soon, it is the cheaper way; where it
//! does not, it is given up after it has looked at a part of as many nodes as are named, and these
//! are walked. So either way costs little more than the cheaper one alone. Both give the same answer.
//! Random draws from the named a few times before it looks at all of them.

use super::Shard;
use super::ranked::names;
use super::selectors::SetId;
use crate::ids::NodeId;
use crate::index::{Candidates, Slot};
use crate::limits::{NAMED_WALK_MAX, RANDOM_DRAWS_MIN};
use crate::node::NodeState;
use crate::request::{PlacementRequest, Policy};

/// The part of the named that a search may look at in vain before they are walked.
const SEARCHED_PART: usize = 4;

impl Shard {
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
        let (nodes, set) = (&self.nodes, set.map(|set| self.selectors.at(set)));
        let candidates = set.map_or(Candidates::All, |set| set.candidates());
        if matches!(candidates, Candidates::Walk(_)) {
            return None;
        }
        let (asked, order) = (self.index.geometry().asked(&request.demand), self.order_of(request));
        let mut state = self.policy_state.clone();
        let (mut left, mut given_up) = (named.len() / SEARCHED_PART, false);
        let accept = |slot| {
            // Accepting whatever comes ends the search.
            given_up = left == 0;
            left = left.saturating_sub(1);
            given_up
                || nodes.fits(slot, &request.demand)
                    && set.is_none_or(|set| set.contains(slot))
                    && names(request, nodes, slot)
        };
        let (policy, visits) = (request.policy, &mut self.visits);
        let found =
            self.index.select_shape(None, order, policy, &asked, candidates, &mut state, visits, accept);
        if given_up {
            return None;
        }
        self.policy_state = state;
        Some(found)
    }

    /// One of the named that fit, each with equal probability; nothing where none was drawn soon.
    fn draw_among(
        &mut self,
        request: &PlacementRequest,
        named: &[NodeId],
        set: Option<SetId>,
    ) -> Option<Slot> {
        let (nodes, set) = (&self.nodes, set.map(|set| self.selectors.at(set)));
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
