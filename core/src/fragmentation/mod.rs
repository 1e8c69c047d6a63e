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

mod measure;
mod search;
mod standing;
mod typical;
pub(crate) use standing::{NodeRoom, Nodes};
pub use typical::{Learner, RequestShape, TypicalShape, TypicalShapes};

use std::sync::Arc;

use crate::index::{Slot, Visits};
use crate::request::{PlacementRequest, Policy};
use crate::resource::GpuAssignment;
use measure::Measure;
use search::{Ask, Search};

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
    /// Any.
    All,
    /// These.
    Few(&'a [Slot]),
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

    /// The node and the instances that a fragmentation-aware policy chooses. `accept` decides by
    /// selector and custom resources; cpu, memory and GPUs are compared here.
    pub(crate) fn find(
        &mut self,
        request: &PlacementRequest,
        among: Among<'_>,
        nodes: &impl Nodes,
        accept: impl Fn(Slot) -> bool,
        visits: &mut Visits,
    ) -> Option<(Slot, GpuAssignment)> {
        let weighing = match request.policy {
            Policy::LeastStranded => Weighing::Stranding,
            _ => Weighing::Steps,
        };
        self.prepare(request, nodes);
        let search = self.search.as_mut().expect("it was just prepared");
        search.refresh(nodes);
        let ask = Ask { weighing, request };
        let slot = match among {
            Among::All => search.best(&ask, accept, visits),
            Among::Few(slots) => search.best_of(&ask, slots, accept, visits),
        }?;
        let gpus = search.instances(&ask, slot, nodes);
        Some((slot, gpus.expect("a node that was found to fit")))
    }

    /// Makes the search at the first request, and anew when other shapes became typical.
    fn prepare(&mut self, request: &PlacementRequest, nodes: &impl Nodes) {
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
