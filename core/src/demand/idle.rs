//! How long nodes have been idle, and which of them are to be removed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::ids::NodeId;
use crate::index::Slot;
use crate::jobs::nodes::NodesRequest;
use crate::jobs::nodes::{Removal, RemovalCause, TypePlan};
use crate::time::Time;
use crate::view::{ColdImage, HotImage, View};

/// How long nodes have been idle, as far as the clock has looked at them.
///
/// A node is idle as long as nothing is on it and nothing about it has changed since an earlier look. So work that came
/// and went between two looks is noticed.
#[derive(Clone, Debug, Default)]
pub struct IdleClock {
    nodes: BTreeMap<NodeId, Idle>,
}

#[derive(Clone, Copy, Debug)]
struct Idle {
    version: u64,
    since: Time,
    /// How long it had been idle before, in ns.
    before_ns: u64,
}

impl Idle {
    fn nanos(&self, now: Time) -> u64 {
        self.before_ns.saturating_add(now.nanos_since(self.since))
    }
}

impl IdleClock {
    /// Looks at the nodes of all shards.
    pub fn look<'a>(&mut self, views: impl Iterator<Item = &'a View>, now: Time) {
        let before = std::mem::take(&mut self.nodes);
        for view in views {
            view.nodes(|_, hot, cold| {
                if is_idle(hot, cold) {
                    let known = before.get(&hot.id).filter(|known| known.version == hot.version);
                    let fresh = Idle { version: hot.version, since: now, before_ns: 0 };
                    self.nodes.insert(hot.id, known.copied().unwrap_or(fresh));
                }
            });
        }
    }

    /// Takes over that a node has been idle for at least so long, if it was idle at the last look: its agent knows.
    pub fn set(&mut self, node: NodeId, idle_ns: u64, now: Time) {
        if let Some(idle) = self.nodes.get_mut(&node) {
            idle.before_ns += idle_ns.saturating_sub(idle.nanos(now));
        }
    }

    /// Returns how long a node has been idle, in ns. `None`: it is not.
    #[must_use]
    pub fn idle_ns(&self, node: NodeId, now: Time) -> Option<u64> {
        self.nodes.get(&node).map(|idle| idle.nanos(now))
    }
}

/// Returns whether nothing is on a node, and nothing is promised to anyone.
fn is_idle(hot: &HotImage, cold: &ColdImage) -> bool {
    hot.allocations == 0 && cold.holds.is_empty() && cold.pending.is_none() && cold.reservation().is_none()
}

/// A node of a type that is there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Present {
    pub(super) node: NodeId,
    pub(super) slot: Slot,
    pub(super) of_type: usize,
    idle_ns: u64,
    /// The mean of the parts of its resources that are in use, in 1/10,000.
    used: u64,
}

/// Returns the nodes of types in the order in which they are to go: those that have been idle for longest, then those
/// that are used least.
pub(super) fn present(request: &NodesRequest, view: &View, clock: &IdleClock, now: Time) -> Vec<Present> {
    let mut all = Vec::new();
    view.nodes(|slot, hot, cold| {
        let spec = &cold.registration.spec;
        let Some(of_type) = request.type_of(&spec.labels) else { return };
        let idle_ns = clock.idle_ns(hot.id, now).filter(|_| is_idle(hot, cold)).unwrap_or(0);
        let part = |free: i64, total: i64| {
            let used = i128::from((total - free).max(0)) * 10_000;
            used.checked_div(i128::from(total)).map(|part| u64::try_from(part).unwrap_or(u64::MAX))
        };
        let gpus = i64::from(spec.gpus) * i64::from(crate::resource::GPU_UNIT);
        let parts = [
            part(hot.cpu.units(), spec.cpu.units()),
            part(hot.memory.units(), spec.memory.units()),
            part(hot.gpus.total_free(), gpus),
        ];
        let count = parts.iter().flatten().count().max(1) as u64;
        let used = parts.iter().flatten().sum::<u64>() / count;
        all.push(Present { node: hot.id, slot, of_type, idle_ns, used });
    });
    all.sort_unstable_by_key(|one| (Reverse(one.idle_ns), one.used, one.node));
    all
}

/// Cancels launches and names nodes where types, or all of them together, have more nodes than they may. No type gets
/// fewer than its least number.
pub(super) fn beyond_limits(
    request: &NodesRequest,
    present: &[Present],
    types: &mut [TypePlan],
    counts: &mut [u32],
) -> Vec<Removal> {
    let mut removals = Vec::new();
    let mut gone = BTreeSet::new();
    for (of_type, of) in request.types.iter().enumerate() {
        let beyond = counts[of_type].saturating_sub(of.max);
        let cancelled = cancel(&mut types[of_type], &mut counts[of_type], beyond);
        let those = present.iter().filter(|one| one.of_type == of_type);
        for one in those.take((beyond - cancelled) as usize) {
            counts[of_type] -= 1;
            gone.insert(one.node);
            removals.push(removal(one, RemovalCause::TypeLimit));
        }
    }
    let of_all: u64 = counts.iter().copied().map(u64::from).sum();
    let max = request.nodes_max.map_or(of_all, u64::from);
    let mut beyond = u32::try_from(of_all.saturating_sub(max)).unwrap_or(u32::MAX);
    for (of_type, of) in request.types.iter().enumerate() {
        let most = beyond.min(counts[of_type].saturating_sub(of.min));
        beyond -= cancel(&mut types[of_type], &mut counts[of_type], most);
    }
    for one in present.iter().filter(|one| !gone.contains(&one.node)) {
        if beyond > 0 && counts[one.of_type] > request.types[one.of_type].min {
            beyond -= 1;
            counts[one.of_type] -= 1;
            removals.push(removal(one, RemovalCause::AllLimit));
        }
    }
    removals
}

/// Cancels launches of a type. Returns how many.
fn cancel(of: &mut TypePlan, count: &mut u32, most: u32) -> u32 {
    let cancelled = most.min(of.launching);
    of.launching -= cancelled;
    of.cancel += cancelled;
    *count -= cancelled;
    cancelled
}

fn removal(one: &Present, cause: RemovalCause) -> Removal {
    let of_type = u32::try_from(one.of_type).expect("few types");
    Removal { node: one.node, of_type, idle_ns: one.idle_ns, cause }
}

/// Names the nodes that have been idle for too long and that nothing needs, as far as their types keep their least numbers.
pub(super) fn idle(
    request: &NodesRequest,
    present: &[Present],
    counts: &mut [u32],
    is_needed: impl Fn(&Present) -> bool,
) -> Vec<Removal> {
    let mut removals = Vec::new();
    for one in present {
        let of = &request.types[one.of_type];
        let timeout = of.idle_ns.or(request.idle_ns);
        let is_over = one.idle_ns > 0 && timeout.is_some_and(|timeout| one.idle_ns >= timeout);
        if is_over && counts[one.of_type] > of.min && !is_needed(one) {
            counts[one.of_type] -= 1;
            removals.push(removal(one, RemovalCause::Idle));
        }
    }
    removals
}
