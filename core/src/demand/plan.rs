//! Plans nodes: the steps of Ray's autoscaler v2, in its order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::caps::{CapsLeft, Forbids};
use super::domains::Domains;
use super::idle::{self, IdleClock, Present};
use super::items::{self, Item, Layout, Unit};
use super::pack::{Homes, Meter, Packer, Templates};
use super::starts;
use crate::cycle::LocalCluster;
use crate::group::WaitingWork;
use crate::ids::{GroupId, NodeId};
use crate::jobs::JobId;
use crate::jobs::nodes::{Asker, NodesPlan, TypePlan, Unfit, Unplaced};
use crate::jobs::nodes::{NodesRequest, NodesRequestError};
use crate::limits::PLAN_ROWS_MAX;
use crate::node::NodeState;

/// Plans nodes for all that waits in a cluster, and for `waiting` at planners and shards. The cluster is a copy to try on: it
/// is of no use afterwards.
///
/// # Errors
/// The first fault in the request.
pub fn plan_nodes(
    request: &NodesRequest,
    waiting: &WaitingWork,
    mut cluster: LocalCluster,
    clock: &IdleClock,
) -> Result<NodesPlan, NodesRequestError> {
    request.check()?;
    let mut planning = Planning::new((request, waiting), &cluster);
    let arrivals = planning.pack(&mut cluster, clock);
    let of_cycles = starts::run(&mut cluster, &arrivals, request.horizon_ns);
    let mut plan = planning.plan;
    plan.starts = of_cycles.starts;
    plan.waiting = of_cycles.waiting;
    plan.measured_ends = of_cycles.measured_ends;
    plan.is_partial |= of_cycles.is_partial || plan.unplaced.len() > PLAN_ROWS_MAX;
    plan.is_partial |= plan.removals.len() > PLAN_ROWS_MAX || waiting.left_out > 0;
    plan.left_out = waiting.left_out;
    plan.unplaced.truncate(PLAN_ROWS_MAX);
    plan.removals.truncate(PLAN_ROWS_MAX);
    Ok(plan)
}

pub(super) struct Planning<'r> {
    request: &'r NodesRequest,
    waiting: &'r WaitingWork,
    templates: Templates,
    pub(super) meter: Meter,
    pub(super) plan: NodesPlan,
    domains: Domains,
    /// Where jobs with rules about domains are.
    homes: BTreeMap<JobId, Homes>,
    /// The waiting groups whose minimum gets no nodes, and why.
    lacking: BTreeMap<GroupId, Unfit>,
    #[cfg(test)]
    pub(super) seen: super::tests::Seen,
}

impl<'r> Planning<'r> {
    /// Begins to plan for a request that was checked.
    pub(super) fn new(
        (request, waiting): (&'r NodesRequest, &'r WaitingWork),
        cluster: &LocalCluster,
    ) -> Self {
        let of = |of: &super::NodeType| TypePlan { launching: of.launching, ..TypePlan::default() };
        let types = request.types.iter().map(of).collect();
        let plan = NodesPlan { types, ..NodesPlan::default() };
        Self {
            request,
            waiting,
            templates: Templates::new(request, cluster),
            meter: Meter::default(),
            plan,
            domains: Domains::default(),
            homes: BTreeMap::new(),
            lacking: BTreeMap::new(),
            #[cfg(test)]
            seen: super::tests::Seen::default(),
        }
    }

    /// Packs what waits, and adds the nodes that are needed to the cluster. Returns the nodes that come, each with how
    /// long that takes, in ns.
    pub(super) fn pack(&mut self, cluster: &mut LocalCluster, clock: &IdleClock) -> Vec<(NodeId, u64)> {
        let request = self.request;
        let present = self.count_present(cluster, clock);
        let mut counts: Vec<u32> =
            self.plan.types.iter().map(|of| of.present.saturating_add(of.launching)).collect();
        let least: Vec<u32> =
            request.types.iter().zip(&counts).map(|(of, &count)| of.min.saturating_sub(count)).collect();
        for (count, least) in counts.iter_mut().zip(&least) {
            *count += least;
        }
        self.plan.removals = idle::beyond_limits(request, &present, &mut self.plan.types, &mut counts);
        // What is added is counted as it is added.
        for (at, count) in counts.iter_mut().enumerate() {
            *count -= self.plan.types[at].launching + least[at];
        }
        let units = items::units((request, self.waiting), cluster.scheduler().jobs());
        self.plan.is_partial |= units.1;
        let needed = self.pack_floors(cluster, &counts, &least);
        let mut caps = CapsLeft::new(cluster.scheduler().jobs());
        let mut packer = Packer::new(request, cluster, counts);
        let gone: BTreeSet<NodeId> = self.plan.removals.iter().map(|removal| removal.node).collect();
        let ready = |&&node: &&NodeId| {
            let slot = packer.copy.shard().slot_of(node);
            slot.is_some_and(|slot| packer.copy.shard().is_ready(slot))
        };
        let to_drain: Vec<NodeId> = gone.iter().filter(ready).copied().collect();
        packer.drain(&to_drain);
        for at in 0..request.types.len() {
            packer.add_nodes(at, self.plan.types[at].launching, true, &mut self.meter);
        }
        let launching = packer.added.len();
        for (at, &least) in least.iter().enumerate() {
            packer.add_nodes(at, least + needed.added[at], true, &mut self.meter);
        }
        if units.0.iter().any(|unit| unit.layout.is_some()) {
            self.domains = packer.domains();
        }
        for unit in &units.0 {
            self.place(unit, &mut packer, &mut caps);
        }
        packer.trim(&mut self.meter);
        self.plan.is_partial |= self.meter.has_left_out();
        for added in &packer.added[launching..] {
            self.plan.types[added.of_type].needed += 1;
        }
        let on_needed = packer.requests_from(launching);
        self.plan.fit_present = packer.requests() - on_needed;
        self.plan.fit_needed = on_needed;
        let is_needed = |one: &Present| {
            gone.contains(&one.node) || packer.is_used(one.slot) || needed.present.contains(&one.node)
        };
        let mut counts = packer.counts.clone();
        self.plan.removals.extend(idle::idle(request, &present, &mut counts, is_needed));
        self.launch();
        #[cfg(test)]
        self.seen.look(&packer);
        packer.added.iter().map(|added| (added.node, request.types[added.of_type].launch_ns)).collect()
    }

    fn count_present(&mut self, cluster: &mut LocalCluster, clock: &IdleClock) -> Vec<Present> {
        let view = cluster.view();
        let present = idle::present(self.request, &view, clock, cluster.now());
        for one in &present {
            self.plan.types[one.of_type].present += 1;
        }
        present
    }

    /// Finds the nodes that the floors need, on a cluster of the same nodes on which nothing runs.
    fn pack_floors(&mut self, cluster: &mut LocalCluster, counts: &[u32], least: &[u32]) -> Needed {
        let types = self.request.types.len();
        let mut needed = Needed { added: vec![0; types], present: BTreeSet::new() };
        let Some(unit) = items::floors(self.request) else { return needed };
        let gone: BTreeSet<NodeId> = self.plan.removals.iter().map(|removal| removal.node).collect();
        let mut empty = cluster.empty();
        let mut nodes = Vec::new();
        cluster.view().nodes(|_, hot, cold| {
            if hot.state == Some(NodeState::Ready) && !gone.contains(&hot.id) {
                let added = empty.add_node(cold.registration.spec.clone());
                nodes.push((added.expect("another shard took the node"), hot.id));
            }
        });
        let mut packer = Packer::new(self.request, &mut empty, counts.to_vec());
        for (at, (planned, least)) in self.plan.types.iter().zip(least).enumerate().take(types) {
            packer.add_nodes(at, planned.launching + least, true, &mut self.meter);
        }
        let wanted: Vec<u32> = unit.items.iter().map(|item| item.count).collect();
        let outcome = packer.place(&unit, &wanted, &mut self.templates, &mut self.meter);
        if let Some(at) = outcome.first_left() {
            let item = &unit.items[at];
            let reason = outcome.reason;
            let request = Arc::clone(&item.requests[0]);
            let (asker, count) = item.askers[0];
            self.plan.unplaced.push(Unplaced { asker, count, request, reason });
            return needed;
        }
        packer.trim(&mut self.meter);
        for added in packer.added.iter().filter(|added| !added.is_fixed) {
            needed.added[added.of_type] += 1;
        }
        let slot = |node| packer.copy.shard().slot_of(node).expect("it was just added");
        let used = nodes.iter().filter(|&&(node, _)| packer.is_used(slot(node)));
        needed.present = used.map(|&(_, node)| node).collect();
        needed
    }

    /// Places a unit as far as the caps of its queue allow.
    fn place(&mut self, unit: &Unit, packer: &mut Packer<'_>, caps: &mut CapsLeft) {
        if let Some(reason) = self.lacks_minimum(unit) {
            return unit.items.iter().for_each(|item| self.leave(item, 0..item.count, &reason));
        }
        // A gang that is left is noted there, whatever it lacks.
        if let Some(Layout { job, .. }) = unit.layout {
            self.homes.entry(job).or_insert_with(|| packer.homes(job, &self.domains, &mut self.meter));
        }
        let mut wanted = Vec::with_capacity(unit.items.len());
        let mut capped = None;
        for (at, item) in unit.items.iter().enumerate() {
            let Some(queue) = item.queue else {
                wanted.push(item.count);
                continue;
            };
            let (count, forbids) = caps.take(queue, item.taken_of_caps(), item.count);
            if let Some(Forbids { queue, of }) = forbids {
                let reason = Unfit::Cap { queue, of };
                if unit.gang.is_some() {
                    capped = Some((at, reason));
                } else {
                    self.leave(item, count..item.count, &reason);
                }
            }
            wanted.push(count);
        }
        if let Some((at, reason)) = capped {
            give_back(caps, unit, &wanted);
            match &unit.least {
                Some(least) => self.place_least(unit, least, reason, (packer, caps)),
                None => self.leave_gang(unit, at, reason),
            }
            return;
        }
        let mut outcome = if let Some(layout) = &unit.layout {
            let homes = self.homes.get_mut(&layout.job).expect("the homes of the job were found");
            if let Some(reason) = homes.lacks_gang.clone() {
                give_back(caps, unit, &wanted);
                let left = unit.items.iter().zip(&wanted);
                return left.for_each(|(item, &count)| self.leave(item, 0..count, &reason));
            }
            packer.place_laid_out(
                (unit, layout),
                &wanted,
                (&self.domains, homes),
                &mut self.templates,
                &mut self.meter,
            )
        } else {
            packer.place(unit, &wanted, &mut self.templates, &mut self.meter)
        };
        if let Some(at) = outcome.first_left().filter(|_| unit.gang.is_some()) {
            give_back(caps, unit, &wanted);
            match &unit.least {
                Some(least) => self.place_least(unit, least, outcome.reason, (packer, caps)),
                None => self.leave_gang(unit, at, outcome.reason),
            }
            return;
        }
        if let Some(kept) = outcome.kept.take().filter(|_| self.domains.len() > 0) {
            packer.settle(kept, &mut self.domains, &mut self.meter);
        }
        give_back(caps, unit, &outcome.left);
        for (at, item) in unit.items.iter().enumerate().filter(|&(at, _)| outcome.left[at] > 0) {
            let reason = match &unit.layout {
                Some(_) => outcome.reason.clone(),
                None => packer.why(item, &mut self.templates, &mut self.meter),
            };
            self.leave(item, wanted[at] - outcome.left[at]..wanted[at], &reason);
        }
    }

    /// Returns why the group gets no nodes of whose bundles beyond the minimum this unit is: those alone would be of no use.
    fn lacks_minimum(&self, unit: &Unit) -> Option<Unfit> {
        match unit.items.first()?.askers[0].0 {
            Asker::Waiting(group) => self.lacking.get(&group).filter(|_| unit.gang.is_none()).cloned(),
            Asker::Floor(_) | Asker::Group(_) | Asker::Job(_) | Asker::Placements => None,
        }
    }

    /// Places what a gang needs at least, because it does not fit as a whole.
    fn place_least(
        &mut self,
        unit: &Unit,
        least: &Unit,
        reason: Unfit,
        (packer, caps): (&mut Packer<'_>, &mut CapsLeft),
    ) {
        let before = self.plan.unplaced.len();
        self.place(least, packer, caps);
        let all = u32::try_from(unit.count()).unwrap_or(u32::MAX);
        if let Some(left) = self.plan.unplaced.get_mut(before) {
            left.count = all;
            return;
        }
        let asker = unit.gang.expect("a gang");
        let count = all - u32::try_from(least.count()).unwrap_or(u32::MAX);
        let request = Arc::clone(&unit.items[0].requests[0]);
        self.plan.unplaced.push(Unplaced { asker, count, request, reason });
    }

    /// Notes that a gang gets no nodes.
    fn leave_gang(&mut self, unit: &Unit, at: usize, reason: Unfit) {
        let asker = unit.gang.expect("a gang");
        if let Asker::Waiting(group) = asker {
            self.lacking.insert(group, reason.clone());
        }
        if let Some(homes) = unit.layout.as_ref().and_then(|layout| self.homes.get_mut(&layout.job)) {
            homes.lacks_gang = Some(reason.clone());
        }
        let count = u32::try_from(unit.count()).unwrap_or(u32::MAX);
        let request = Arc::clone(&unit.items[at].requests[0]);
        self.plan.unplaced.push(Unplaced { asker, count, request, reason });
    }

    /// Notes that some of equal tasks get no nodes: those with these numbers.
    fn leave(&mut self, item: &Item, numbers: std::ops::Range<u32>, reason: &Unfit) {
        let mut before = 0;
        for &(asker, count) in &item.askers {
            let first = numbers.start.max(before);
            let last = numbers.end.min(before + count);
            before += count;
            if first < last {
                let request = Arc::clone(&item.requests[0]);
                self.plan.unplaced.push(Unplaced {
                    asker,
                    count: last - first,
                    request,
                    reason: reason.clone(),
                });
            }
        }
    }

    /// Decides how many of the needed nodes are launched now.
    fn launch(&mut self) {
        let under_way: u64 = self.plan.types.iter().map(|of| u64::from(of.launching)).sum();
        let most = u64::from(self.request.launches_max).saturating_sub(under_way);
        let mut most = u32::try_from(most).unwrap_or(u32::MAX);
        for of in &mut self.plan.types {
            let there = u64::from(of.present) + u64::from(of.launching);
            let share = (there * u64::from(self.request.upscaling_speed)).div_ceil(10_000).max(1);
            of.launch = of.needed.min(u32::try_from(share).unwrap_or(u32::MAX)).min(most);
            most -= of.launch;
        }
    }
}

/// Takes back what was counted of a unit and not placed.
fn give_back(caps: &mut CapsLeft, unit: &Unit, counts: &[u32]) {
    for (item, &count) in unit.items.iter().zip(counts) {
        if let Some(queue) = item.queue {
            caps.give_back(queue, item.taken_of_caps(), count);
        }
    }
}

/// The nodes that the floors need.
struct Needed {
    /// Of each type, how many in addition to those that are there in any case.
    added: Vec<u32>,
    present: BTreeSet<NodeId>,
}
