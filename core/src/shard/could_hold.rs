//! Computes what nodes could hold if they were empty, for proofs that a request can never be placed.

use std::ops::Range;

use super::ranked::Eligibility;
use super::{Shard, Slot};
use crate::limits::{RANKINGS_KEPT_MAX, SELECTORS_KEPT_MAX};
use crate::node::NodeSpec;
use crate::request::PlacementRequest;

impl Shard {
    /// Visits the nodes in `slots`, in any state. The bits passed to `visit` say which requests the node could
    /// hold, one at a time, if it were empty and its labels, taints and name allow it. Returns whether more
    /// slots follow.
    ///
    /// # Panics
    /// If there are more than 64 requests.
    pub(crate) fn capable(
        &mut self,
        requests: &[&PlacementRequest],
        slots: Range<Slot>,
        mut visit: impl FnMut(Slot, &NodeSpec, u64),
    ) -> bool {
        const { assert!(RANKINGS_KEPT_MAX >= 64 && SELECTORS_KEPT_MAX >= 64, "kept while they are looked at") };
        assert!(requests.len() <= 64, "a bit for each of {} requests", requests.len());
        let scopes: Vec<Eligibility> = requests.iter().map(|request| self.scope(request)).collect();
        let end = slots.end.min(self.nodes.slots());
        for slot in slots.start..end {
            if !self.nodes.is_there(slot) {
                continue;
            }
            let id = self.nodes.hot(slot).id;
            let spec = &self.nodes.cold(slot).registration.spec;
            let mut bits = 0;
            for (at, (&request, &scope)) in requests.iter().zip(&scopes).enumerate() {
                let eligible = match scope {
                    Eligibility::Plain(set) => set.is_none_or(|set| self.selectors.at(set).contains(slot)),
                    Eligibility::Ranked(id) => self.rankings.at(id).rank(slot).is_eligible(),
                };
                let named = || request.candidates.as_ref().is_none_or(|ids| ids.binary_search(&id).is_ok());
                bits |= u64::from(eligible && named() && self.nodes.could_fit(slot, &request.demand)) << at;
            }
            visit(slot, spec, bits);
        }
        end < self.nodes.slots()
    }
}
