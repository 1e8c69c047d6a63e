//! Requests that name many candidates. The smaller of two sets is walked.
//!
//! A search over all nodes is cheaper if it soon finds one of the candidates. If it does not, it is abandoned
//! after a number of nodes that is a fraction of the number of candidates, and the candidates are walked
//! instead. The total cost is close to that of the cheaper way, and both give the same answer. Random first
//! draws from the candidates a few times, before it looks at all of them.

use super::selectors::SetId;
use super::{Choose, Eligibility, Eligible};
use crate::ids::NodeId;
use crate::index::{Candidates, Meter, Slot};
use crate::limits::{NAMED_WALK_MAX, RANDOM_DRAWS_MIN};
use crate::node::NodeState;
use crate::request::{PlacementRequest, Policy};
use crate::shard::books::Books;

/// The divisor that gives the budget of a search: the number of named nodes divided by this.
const SEARCHED_PART: usize = 4;

impl Choose {
    /// Searches all nodes for a request that names many of them. `None` if few are named or the search was
    /// abandoned.
    pub(crate) fn find_among_many(
        &mut self,
        books: &Books,
        request: &PlacementRequest,
        set: Option<SetId>,
        visits: &mut impl Meter,
    ) -> Option<Option<Slot>> {
        let named = request.candidates.as_ref().filter(|ids| ids.len() > NAMED_WALK_MAX)?;
        if request.policy == Policy::Random {
            return self.draw_among(books, request, named, set, visits).map(Some);
        }
        let nodes = &books.nodes;
        let scope = Eligibility::Plain(set);
        let eligible = Eligible::of(&self.selectors, &self.rankings, books, request, scope);
        let set = set.map(|set| self.selectors.at(set));
        let candidates = set.map_or(Candidates::All, |set| set.candidates());
        if matches!(candidates, Candidates::Walk(_)) {
            return None;
        }
        let asked = self.index.geometry().asked(&request.demand);
        let order = self.order_of(books, request);
        let mut state = self.policy_state.clone();
        let mut left = named.len() / SEARCHED_PART;
        let mut given_up = false;
        let accept = |slot| {
            // Accepting an arbitrary node ends the search.
            given_up = left == 0;
            left = left.saturating_sub(1);
            given_up || nodes.fits(slot, &request.demand) && eligible.allows(slot)
        };
        let policy = request.policy;
        let found = self.index.select_in_order(order, policy, &asked, candidates, &mut state, visits, accept);
        if given_up {
            return None;
        }
        let is_usable = found.is_none_or(|slot| nodes.takes_work(slot));
        assert!(is_usable, "the index has a node that takes no new work");
        self.policy_state = state;
        Some(found)
    }

    /// Searches all nodes for a request whose selector has many members without a mark. After a fraction of as
    /// many nodes without success, walks the members. `None` if the set is small or marked, and for Random,
    /// whose draws depend on the method.
    pub(crate) fn find_in_unmarked(
        &mut self,
        books: &Books,
        request: &PlacementRequest,
        set: SetId,
        visits: &mut impl Meter,
    ) -> Option<Option<Slot>> {
        let nodes = &books.nodes;
        let set = self.selectors.at(set);
        let members = set.unmarked().filter(|_| request.policy != Policy::Random)?;
        let asked = self.index.geometry().asked(&request.demand);
        let order = self.order_of(books, request);
        let fits = |slot| nodes.fits(slot, &request.demand) && set.contains(slot);
        let mut state = self.policy_state.clone();
        let mut left = members / SEARCHED_PART;
        let mut given_up = false;
        // Accepting any node ends the search.
        let accept = |slot| {
            given_up = left == 0;
            left = left.saturating_sub(1);
            given_up || fits(slot)
        };
        let policy = request.policy;
        let index = &mut self.index;
        let all = Candidates::All;
        let found = index.select_in_order(order, policy, &asked, all, &mut state, visits, accept);
        if !given_up {
            let is_member = found.is_none_or(|slot| set.contains(slot));
            assert!(is_member, "the index returns a node that was not accepted");
            self.policy_state = state;
            return Some(found);
        }
        let count = members;
        let members = set.members();
        assert!(members.len() == count, "a candidate set counts others than it has");
        let walk = Candidates::Walk(&members);
        let state = &mut self.policy_state;
        Some(index.select_in_order(order, policy, &asked, walk, state, visits, fits))
    }

    /// Draws one of the named nodes that fit, with equal probability. `None` if the first few draws do not fit.
    fn draw_among(
        &mut self,
        books: &Books,
        request: &PlacementRequest,
        named: &[NodeId],
        set: Option<SetId>,
        visits: &mut impl Meter,
    ) -> Option<Slot> {
        assert!(named.len() > NAMED_WALK_MAX, "so few candidates are walked");
        let nodes = &books.nodes;
        let scope = Eligibility::Plain(set);
        let eligible = Eligible::of(&self.selectors, &self.rankings, books, request, scope);
        for _ in 0..RANDOM_DRAWS_MIN {
            let drawn = named[self.policy_state.rng.below(named.len() as u64) as usize];
            let Some(slot) = nodes.slot(drawn) else { continue };
            visits.node(slot);
            if nodes.state(slot) == NodeState::Ready
                && nodes.fits(slot, &request.demand)
                && eligible.allows(slot)
            {
                return Some(slot);
            }
        }
        None
    }
}
