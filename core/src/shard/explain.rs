//! Why a request was refused: an honest count, at a bounded cost.

use super::refusal::{Check, Refusal};
use super::table::{ColdNode, HotNode};
use super::{Shard, Slot};
use crate::index::{Candidates, PolicyState, ResourceVector, Visits};
use crate::limits::EXPLAIN_NODES_MAX;
use crate::node::NodeState;
use crate::request::{Explain, PlacementRequest, Policy};
use crate::resource::{Amount, GPU_UNIT, GpuRequest};
use crate::rng::Rng;

impl Shard {
    /// Counts, over the nodes of this shard, which checks the request fails; and whether any
    /// node could hold it if nothing else ran there, which is exact however few are counted.
    pub(super) fn explain(&mut self, request: &PlacementRequest) -> Refusal {
        let mut refusal = Refusal {
            growth: self.growth,
            nodes: self.nodes.len() as u64,
            feasible: self.feasible(request),
            ..Refusal::default()
        };
        let examined_max = match request.explain {
            Explain::Bounded => EXPLAIN_NODES_MAX,
            Explain::Full => usize::MAX,
        };
        let set = request.selector.as_ref().map(|selector| self.selectors.set(selector, &self.nodes));
        for (slot, hot, cold) in self.nodes.iter().take(examined_max) {
            refusal.examined += 1;
            if request.candidates.as_ref().is_some_and(|ids| ids.binary_search(&hot.id).is_err()) {
                refusal.count(Check::Candidates, Amount::ZERO);
            } else if set.is_some_and(|set| !set.contains(slot)) {
                refusal.count(Check::Selector, Amount::ZERO);
            } else if hot.state == NodeState::Draining {
                refusal.count(Check::NotReady, Amount::ZERO);
            } else {
                count_shortages(&mut refusal, request, hot, cold);
            }
        }
        refusal
    }

    /// Whether some registered node has the capacity and the labels.
    fn feasible(&mut self, request: &PlacementRequest) -> bool {
        let asked = ResourceVector::asked(&request.demand);
        let set = request.selector.as_ref().map(|selector| self.selectors.set(selector, &self.nodes));
        let nodes = &self.nodes;
        let named: Option<Vec<Slot>> =
            request.candidates.as_ref().map(|ids| ids.iter().filter_map(|&id| nodes.slot(id)).collect());
        let candidates = match (&named, set.and_then(|set| set.few())) {
            (Some(named), _) => Candidates::Walk(named),
            (None, Some(few)) => Candidates::Walk(few),
            (None, None) => Candidates::All,
        };
        // LeastFit: the largest nodes first. It neither reads nor moves the policies' state.
        let mut unused = PolicyState { next_fit: crate::ids::Ordinal(0), rng: Rng::new(0) };
        self.capacities
            .select(Policy::LeastFit, &asked, candidates, &mut unused, &mut Visits::default(), |slot| {
                nodes.could_fit(slot, &request.demand) && set.is_none_or(|set| set.contains(slot))
            })
            .is_some()
    }
}

/// Counts one node under every resource of which it has too little.
fn count_shortages(refusal: &mut Refusal, request: &PlacementRequest, hot: &HotNode, cold: &ColdNode) {
    let demand = &request.demand;
    let mut count = |check, asked: Amount, available: Amount| {
        let short = asked.saturating_minus(available);
        if !short.is_zero() {
            refusal.count(check, short);
        }
    };
    count(Check::Cpu, demand.cpu, hot.cpu);
    count(Check::Memory, demand.memory, hot.memory);
    match demand.gpu {
        GpuRequest::None => {}
        GpuRequest::Fraction(part) => {
            count(Check::GpuPart, gpu_units(part), gpu_units(hot.gpus.largest_free()));
        }
        GpuRequest::Whole(whole) => {
            let devices = |n: u16| Amount::whole(u32::from(n));
            count(Check::WholeGpus, devices(u16::from(whole)), devices(hot.gpus.whole_free()));
        }
    }
    for &(id, amount) in demand.custom() {
        let book = cold.custom.binary_search_by_key(&id, |book| book.id);
        count(Check::Custom(id), amount, book.map_or(Amount::ZERO, |at| cold.custom[at].available));
    }
}

fn gpu_units(part: u16) -> Amount {
    debug_assert!(part <= GPU_UNIT);
    Amount::try_from_units(i64::from(part)).unwrap_or_default()
}
