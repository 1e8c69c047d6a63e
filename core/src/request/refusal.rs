//! Refusals: counts of nodes per failing check.

use std::collections::BTreeMap;

use crate::ids::{NodeId, ResourceId};
use crate::resource::Amount;

/// A check that a node failed. A node that fails one of the first seven checks is counted under that check
/// only. Other nodes are counted under every resource that is too scarce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    /// The node is not one of the request's candidates.
    Candidates,
    /// The request is for one specific node, and this is another.
    Affinity(NodeId),
    /// The node's labels satisfy neither the selector nor a fallback.
    Selector,
    /// The node has a taint that the request does not tolerate.
    Taint,
    /// The node takes no new work.
    NotReady,
    /// The node fits but is reserved for another owner.
    Reserved,
    /// The node has the maximum number of allocations.
    Allocations,
    /// Too little cpu.
    Cpu,
    /// Too little memory.
    Memory,
    /// Too few fully free GPUs.
    WholeGpus,
    /// No single GPU has enough free.
    GpuPart,
    /// Too little of a custom resource.
    Custom(ResourceId),
    /// There is enough of a unit-instance kind in total, but not in one unit or not in whole units.
    Fragmented(ResourceId),
}

/// The number of nodes that failed a check, and the smallest shortage among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The number of nodes that failed the check.
    pub nodes: u64,
    /// The smallest amount missing on any of them. Zero for checks that are not about a resource.
    pub least: Amount,
}

/// A refusal by one shard, or by several shards combined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// The shard's growth counter at the time of the refusal. While the counter is unchanged, the refusal
    /// remains valid.
    pub growth: u64,
    /// The number of registered nodes.
    pub nodes: u64,
    /// The number of nodes that each check was counted for, at least.
    pub examined: u64,
    /// True if some node could hold the request if the node were empty.
    pub feasible: bool,
    /// The start of the next page, if all nodes are to be counted and some are not yet.
    pub rest: Option<u32>,
    /// The counts, by failing check.
    pub checks: BTreeMap<Check, Shortage>,
}

impl Refusal {
    /// Counts one node that fails `check` and lacks `short`.
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

    /// Adds the counts of the next page of the same shard's nodes.
    ///
    /// Each node is counted as it was when its page was read. If the [`growth`](Self::growth) of the page
    /// differs from that of the refusal, nodes gained capacity between the two.
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
