//! Why no node could hold a request: counts over nodes per failing check.

use std::collections::BTreeMap;

use crate::ids::{NodeId, ResourceId};
use crate::resource::Amount;

/// A check that a node failed. Nodes that fail one of the first seven are counted there alone;
/// others are counted under every resource of which they have too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    /// The request names its candidates and the node is none of them.
    Candidates,
    /// The request is for one node, and this is another.
    Affinity(NodeId),
    /// The node's labels satisfy neither the selector nor a fallback.
    Selector,
    /// The node has a taint that the request does not tolerate.
    Taint,
    /// The node takes no new work.
    NotReady,
    /// The node would do, and is reserved for another owner.
    Reserved,
    /// The node holds as many allocations as one may.
    Allocations,
    /// Too little cpu.
    Cpu,
    /// Too little memory.
    Memory,
    /// Too few wholly free GPUs.
    WholeGpus,
    /// No single GPU with that much free.
    GpuPart,
    /// Too little of a custom resource.
    Custom(ResourceId),
    /// Enough of a unit-instance kind in sum, but not in one unit, or not in whole units.
    Fragmented(ResourceId),
}

/// How many nodes failed a check, and how short the best of them was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Nodes that failed it.
    pub nodes: u64,
    /// What the least short of them lacked; zero for checks that are no resource.
    pub least: Amount,
}

/// A refusal by one shard, or by several together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// The shard's growth counter when it refused: while it stands still, the refusal stands.
    pub growth: u64,
    /// Registered nodes.
    pub nodes: u64,
    /// Nodes that the counts are over.
    pub examined: u64,
    /// Whether some node could hold the request if nothing else ran there.
    pub feasible: bool,
    /// Where the next page of nodes begins, if all are to be counted and some are not yet.
    pub rest: Option<u32>,
    /// Per failing check.
    pub checks: BTreeMap<Check, Shortage>,
}

impl Refusal {
    /// Counts one node under `check`, short by `short`.
    pub fn count(&mut self, check: Check, short: Amount) {
        self.count_many(check, Shortage { nodes: 1, least: short });
    }

    fn count_many(&mut self, check: Check, shortage: Shortage) {
        self.checks
            .entry(check)
            .and_modify(|known| {
                known.nodes += shortage.nodes;
                known.least = known.least.min(shortage.least);
            })
            .or_insert(shortage);
    }

    /// Adds the counts over the next page of the same shard's nodes.
    ///
    /// Each node is counted as it was when its page was read. Where [`growth`](Self::growth) of the page is
    /// not that of the refusal, nodes gained capacity between the two.
    pub fn add_page(&mut self, page: &Self) {
        self.examined += page.examined;
        self.nodes = page.nodes.max(self.examined);
        self.rest = page.rest;
        for (&check, &shortage) in &page.checks {
            self.count_many(check, shortage);
        }
    }

    /// Adds another shard's refusal of the same request.
    pub fn merge(&mut self, other: &Self) {
        self.nodes += other.nodes;
        self.examined += other.examined;
        self.feasible |= other.feasible;
        for (&check, &shortage) in &other.checks {
            self.count_many(check, shortage);
        }
    }
}
