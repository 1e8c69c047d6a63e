//! Fragmentation-aware placement: FGD, and a variant that also counts GPUs left without cpu.
//!
//! FGD (Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
//! Descent", USENIX ATC 2023) measures how much of a node's idle GPU the typical requests could not use. It
//! places where this grows least, and the choice includes the device. The measure uses integers, so every
//! machine makes the same choice.
//!
//! No request examines every node. The search keeps short lists per request shape and rates only nodes that
//! changed. The value of a node state is cached per distinct state. None of this is durable: it is a function
//! of the nodes and the typical shapes. *Learned* typical shapes are a function of the requests since the
//! start, and are learned again after a restart.
//!
//! `fuzz/tests/fragmentation_against_oracle.rs` checks that the answers equal those of a linear scan by the
//! definition.

mod lists;
mod measure;
mod rater;
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

/// The criterion that decides between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Weighing {
    /// The growth of F in the steps of the paper's simulator.
    Steps,
    /// The growth of F plus the growth of idle GPU that the node's cpu is too small to serve.
    Stranding,
}

/// The nodes that a request may use.
#[derive(Clone, Copy)]
pub(crate) enum Among<'a> {
    /// All accepted nodes, as equals.
    All,
    /// All accepted nodes, by rank first. The value is the first rank that has any node.
    Ranked(Rank),
    /// The accepted nodes among these, by rank first.
    Few(&'a [Slot]),
    /// All accepted nodes, by a criterion for which no list is kept. The function returns at least these
    /// nodes.
    Listed(&'a dyn Fn() -> Vec<Slot>),
}

/// The fragmentation-aware policies of one shard. They cost nothing until one of them is requested.
#[derive(Default)]
pub(crate) struct Fragmentation {
    /// The typical shapes given by an operator. `None` if they are learned.
    given: Option<Arc<TypicalShapes>>,
    learner: Learner,
    /// True if the current request is a retry that was counted when it arrived.
    retrying: bool,
    search: Option<Box<Search>>,
}

impl Fragmentation {
    /// Calls `add` with the bytes of each structure, and with the quantity that it grows with.
    pub(crate) fn memory(&self, mut add: impl FnMut(&'static str, Per, u64)) {
        let Some(search) = &self.search else { return };
        add("fragmentation of nodes", Per::Node, search.standings_memory());
        add("fragmentation tables, short lists", Per::Shard, search.tables_memory());
    }

    /// Sets the typical shapes. Must be called before the first request.
    pub(crate) fn set_typical(&mut self, typical: Arc<TypicalShapes>) {
        self.given = Some(typical);
        self.search = None;
    }

    /// Sets whether the following requests are retries. Learned shapes count each request once, even if it is
    /// retried.
    pub(crate) fn set_retrying(&mut self, retrying: bool) {
        self.retrying = retrying;
    }

    /// Returns the number of counted requests.
    #[cfg(test)]
    pub(crate) fn arrivals(&self) -> u64 {
        self.learner.arrivals()
    }

    /// Records that the availability of a node changed.
    #[inline]
    pub(crate) fn touch(&mut self, slot: Slot) {
        if let Some(search) = &mut self.search {
            search.standings_mut().touch(slot);
        }
    }

    /// Returns whether nodes are rated.
    pub(crate) fn is_in_use(&self) -> bool {
        self.search.is_some()
    }

    /// Records that a node was added or removed, or that its labels changed.
    #[inline]
    pub(crate) fn touch_identity(&mut self, slot: Slot) {
        if let Some(search) = &mut self.search {
            search.standings_mut().touch_identity(slot);
        }
    }

    /// Returns the node that a fragmentation-aware policy chooses for a request whose arrival was recorded.
    ///
    /// `accept` checks selector, preferences and custom resources, and returns the node's rank. This function
    /// compares cpu, memory and GPUs.
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

    /// Returns the instances that the policy chooses on a node that fits the request.
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

    /// Learns from a request, regardless of its outcome. Creates the search at the first request, and
    /// rebuilds it when the typical shapes change.
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
