//! Fragmentation-aware placement: FGD, and a variant that also counts GPUs left without cpu.
//!
//! FGD (Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
//! Gradient Descent", USENIX ATC 2023) measures how much of a node's idle GPU the typical requests
//! could not use, and places where that grows least; which device of the node is part of the
//! choice. The measure is in integers, so every machine places the same.
//!
//! No request looks at every node: the search keeps short lists per request shape and rates what
//! changed since; what a node state is worth is remembered per distinct state. Nothing of this is
//! durable: it is a function of the nodes and of the typical shapes. Typical shapes that are
//! *learnt* are a function of the requests since the start, and are learnt anew after one.
//!
//! It answers as a linear scan by the definition does: `fuzz/tests/fragmentation_against_oracle.rs`.

mod lists;
mod measure;
mod search;
mod standing;
mod typical;
pub(crate) use standing::{NodeRoom, Nodes};
pub use typical::{Learner, RequestShape, TypicalShape, TypicalShapes};

use std::sync::Arc;

use crate::index::{Slot, Visits};
use crate::memory::Per;
use crate::request::{PlacementRequest, Policy, Rank};
use crate::resource::GpuAssignment;
use lists::{Ask, Breadth, Listed};
use measure::Measure;
use search::Search;

/// What decides between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Weighing {
    /// The growth of F in the steps of the paper's simulator.
    Steps,
    /// The growth of F, and of idle GPU that the node's cpu does not suffice for.
    Stranding,
}

/// Which nodes a request may go to.
#[derive(Clone, Copy)]
pub(crate) enum Among<'a> {
    /// All that are accepted, each as good as the other.
    All,
    /// All that are accepted, by rank first: this is the first rank that has any.
    Ranked(Rank),
    /// Of these, those that are accepted, by rank first.
    Few(&'a [Slot]),
    /// All that are accepted, by what no list is kept for; this lists at least those.
    Listed(&'a dyn Fn() -> Vec<Slot>),
}

/// The fragmentation-aware policies of one shard; costs nothing before one of them is asked for.
#[derive(Default)]
pub(crate) struct Fragmentation {
    /// What an operator gave; learnt if nothing.
    given: Option<Arc<TypicalShapes>>,
    learner: Learner,
    /// A request that was counted when it arrived is tried again.
    retrying: bool,
    search: Option<Box<Search>>,
}

impl Fragmentation {
    /// Calls `add` with what each structure takes that grows with the nodes, and with what does not.
    pub(crate) fn memory(&self, mut add: impl FnMut(&'static str, Per, u64)) {
        let Some(search) = &self.search else { return };
        add("fragmentation of nodes", Per::Node, search.standings_memory());
        add("fragmentation tables, short lists", Per::Shard, search.tables_memory());
    }

    /// Gives typical shapes; before the first request.
    pub(crate) fn set_typical(&mut self, typical: Arc<TypicalShapes>) {
        self.given = Some(typical);
        self.search = None;
    }

    /// Whether what follows is a retry: learnt shapes count a request once, however often it is
    /// tried.
    pub(crate) fn set_retrying(&mut self, retrying: bool) {
        self.retrying = retrying;
    }

    /// Requests that were counted.
    #[cfg(test)]
    pub(crate) fn arrivals(&self) -> u64 {
        self.learner.arrivals()
    }

    /// The availability of a node changed.
    #[inline]
    pub(crate) fn touch(&mut self, slot: Slot) {
        if let Some(search) = &mut self.search {
            search.standings_mut().touch(slot);
        }
    }

    /// A node came, went, or has other labels.
    #[inline]
    pub(crate) fn touch_identity(&mut self, slot: Slot) {
        if let Some(search) = &mut self.search {
            search.standings_mut().touch_identity(slot);
        }
    }

    /// The node that a fragmentation-aware policy chooses for a request whose arrival was handled.
    /// `accept` decides by selector, preferences and custom resources, and tells the node's rank;
    /// cpu, memory and GPUs are compared here.
    pub(crate) fn choose(
        &mut self,
        request: &PlacementRequest,
        among: Among<'_>,
        nodes: &impl Nodes,
        accept: impl Fn(Slot) -> Option<Rank>,
        visits: &mut Visits,
    ) -> Option<Slot> {
        let search = self.search.as_mut().expect("its arrival was handled");
        search.refresh(nodes);
        let ask = Ask { weighing: weighing(request), request, ranked: matches!(among, Among::Ranked(_)) };
        let common = match among {
            Among::Few(slots) => return search.best_of(&ask, slots, accept, visits),
            Among::All | Among::Listed(_) => search.listed(&ask, Breadth::Common, &accept, visits),
            Among::Ranked(first) => {
                let first = |slot| accept(slot).filter(|&rank| rank == first);
                search.listed(&ask, Breadth::Common, &first, visits)
            }
        };
        match (common, among) {
            (Listed::Best(slot), _) => Some(slot),
            (Listed::Empty, _) => None,
            (Listed::Below, Among::Listed(list)) => search.best_of(&ask, &list(), accept, visits),
            (Listed::Below, _) => match search.listed(&ask, Breadth::Own, &accept, visits) {
                Listed::Best(slot) => Some(slot),
                Listed::Empty | Listed::Below => None,
            },
        }
    }

    /// The instances that the policy chooses of a node that the request fits.
    pub(crate) fn instances(
        &mut self,
        request: &PlacementRequest,
        slot: Slot,
        nodes: &impl Nodes,
    ) -> GpuAssignment {
        let ask = Ask { weighing: weighing(request), request, ranked: false };
        let search = self.search.as_mut().expect("its arrival was handled");
        search.refresh(nodes);
        search.instances(&ask, slot, nodes).expect("a node that was found to fit")
    }

    /// Learns from a request, whatever becomes of it. Makes the search at the first one, and anew when
    /// other shapes became typical.
    pub(crate) fn handle_arrival(&mut self, request: &PlacementRequest, nodes: &impl Nodes) {
        let measure = match &self.given {
            Some(_) if self.search.is_some() => return,
            Some(given) => Measure::new(given),
            None => match (!self.retrying).then(|| self.learner.handle_arrival(request)).flatten() {
                Some(typical) => Measure::new(typical),
                None if self.search.is_some() => return,
                None => Measure::new(&TypicalShapes::default()),
            },
        };
        let search = self.search.get_or_insert_with(|| Box::new(Search::new()));
        search.remeasure(measure, nodes);
    }
}

fn weighing(request: &PlacementRequest) -> Weighing {
    match request.policy {
        Policy::LeastStranded => Weighing::Stranding,
        _ => Weighing::Steps,
    }
}
