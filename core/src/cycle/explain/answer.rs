//! Puts an explanation together: what was noted and counted, and the changes that would help.

use std::sync::Arc;

use super::domains::{DomainRoom, Domains};
use super::nearest::Lacking;
use super::wanted::{Wanted, wanted};
use super::{Explaining, is_cap, left, scarce};
use crate::cycle::Scheduler;
use crate::cycle::config::PluginKind;
use crate::cycle::limit::Limit;
use crate::cycle::topology::DomainId;
use crate::fairness::{Amounts, Dim};
use crate::ids::NodeId;
use crate::jobs::{
    Capped, Change, Changes, DomainLack, HeldBy, JobExplanation, JobId, PendingReason, QueueBound, QueueRule,
    Remedy, Scarce, TaskClass, amounts_of,
};
use crate::node::NodeSpec;
use crate::request::{Nearest, Sample};
use crate::resource::{GPU_UNIT, ResourceKind};

/// The largest number of additional nodes that is tried.
const MORE_NODES_MAX: u64 = 1 << 16;

/// The tasks that lack nodes, and what nodes have.
struct Lack<'a> {
    class: &'a TaskClass,
    /// The number of tasks of the class for which no node has room.
    tasks: u64,
    /// The node that lacks least for one more.
    nearest: Option<&'a Nearest>,
    /// A node like which others would help.
    sample: Option<Sample>,
    /// Whether only nodes of one domain help, and whether it could hold these tasks if others left it.
    in_domain: Option<bool>,
}

impl Scheduler {
    /// Returns the explanation, once all is counted.
    ///
    /// # Panics
    /// If the job is gone.
    pub(crate) fn explained(&self, explaining: Explaining) -> JobExplanation {
        let id = explaining.job;
        let job = self.jobs.job(id);
        let reason = self.reason_of(&explaining);
        let tried = self.tries.of(id);
        let changes = self.changes(&explaining, reason);
        let bounds = self.bounds(&explaining, reason);
        let has_counts = explaining.class.is_some();
        let holders = |queue, dim| self.holders(&explaining, queue, Capped::Resource(dim));
        let scarce = scarce(&explaining.counts).filter(|_| has_counts);
        let scarce = scarce.map(|dim| Scarce { dim, holders: holders(crate::jobs::QueueId::ROOT, dim) });
        let there = job.ready_tasks() + job.count(crate::jobs::TaskState::Pipelined);
        JobExplanation {
            job: self.jobs.summary(id),
            task: explaining.task,
            state: explaining.task.map(|task| job.tasks()[task as usize].state),
            reason,
            cause: if reason == PendingReason::Gang {
                tried.map_or(PendingReason::None, |tried| tried.cause)
            } else {
                PendingReason::None
            },
            tried: tried.map(|_| self.ran),
            fit: tried.map_or(there, |tried| tried.fit.max(there)),
            needed: job.spec().min_member,
            no_victims: tried.into_iter().flat_map(|tried| tried.no_victims()).map(|of| of.name()).collect(),
            place: explaining.place,
            claims: self.claims_of(id),
            date: self.reservations.get(&id).map(|of| of.date),
            held_by: self.held_by(&explaining, reason),
            domain: self.domain_lack(&explaining, reason),
            scarce,
            bounds,
            changes,
            nodes: has_counts.then_some(explaining.counts),
        }
    }

    fn holders(
        &self,
        explaining: &Explaining,
        queue: crate::jobs::QueueId,
        of: Capped,
    ) -> Vec<crate::jobs::Holder> {
        let mut subjects = explaining.subjects.iter();
        let subject = subjects.find(|subject| subject.queue == queue && subject.of == of);
        subject.map(|subject| subject.holders.clone()).unwrap_or_default()
    }

    /// Returns the bounds that are in the way.
    fn bounds(&self, explaining: &Explaining, reason: PendingReason) -> Vec<QueueBound> {
        if matches!(reason, PendingReason::None | PendingReason::Claim | PendingReason::TooFewTasks) {
            return Vec::new();
        }
        let bound = |limit: &Limit| QueueBound {
            queue: explaining.queue_name(&self.jobs, limit.queue),
            rule: limit.rule,
            of: limit.of,
            bound: limit.bound,
            used: limit.used,
            asked: limit.asked,
            holders: self.holders(explaining, limit.queue, limit.of),
        };
        explaining.limits.iter().map(bound).collect()
    }

    fn held_by(&self, explaining: &Explaining, reason: PendingReason) -> Option<HeldBy> {
        let tried = self.tries.of(explaining.job)?;
        if reason != PendingReason::Reservation && tried.cause != PendingReason::Reservation {
            return None;
        }
        let others = || self.reservations.values().filter(|of| of.job != explaining.job);
        let first = others().min_by_key(|of| (of.date, of.job))?;
        let is_seen = |job: JobId| {
            let owner = self.jobs.has_job(job).then(|| self.jobs.job(job).spec().tenant);
            explaining.tenant.is_none_or(|tenant| owner == Some(tenant))
        };
        let jobs = u32::try_from(others().count()).unwrap_or(u32::MAX);
        Some(HeldBy { job: Some(first.job).filter(|&job| is_seen(job)), date: first.date, jobs })
    }

    /// Returns what domains lack, as counted, or as the last cycle noted it. The names of domains are for those who may see
    /// nodes.
    fn domain_lack(&self, explaining: &Explaining, reason: PendingReason) -> Option<DomainLack> {
        let id = explaining.job;
        let counted = explaining.domains.as_ref().filter(|_| is_by_room(reason));
        let counted = counted.and_then(|domains| self.lack_in(id, domains, &self.lacking_in(id, domains)?));
        let noted = || self.tries.lack_of(id).filter(|_| reason == PendingReason::Topology).cloned();
        let lack = counted.or_else(noted)?;
        let best = lack.best.filter(|_| explaining.tenant.is_none());
        Some(DomainLack { best, ..lack })
    }

    /// Returns the changes that would help a job that waits.
    fn changes(&self, explaining: &Explaining, reason: PendingReason) -> Vec<Change> {
        use PendingReason as Why;
        let mut changes = Changes::default();
        match reason {
            Why::None | Why::NotTried | Why::TooFewTasks | Why::Claim | Why::Conflict => {}
            Why::NotAdmitted => self.admission_changes(explaining, &mut changes),
            Why::Reservation => self.run_time_change(explaining, &mut changes),
            Why::Overused | Why::Share | Why::Cap | Why::NoNode | Why::Gang | Why::Topology => {
                self.cap_changes(explaining, &mut changes);
                self.node_changes(explaining, &mut changes);
            }
        }
        changes.into_vec()
    }

    fn admission_changes(&self, explaining: &Explaining, changes: &mut Changes) {
        self.cap_changes(explaining, changes);
        let percent = self.config.plugin(PluginKind::Overcommit).map_or(100, |of| of.overcommit_percent);
        let mut more = Amounts::zero();
        for limit in &explaining.limits {
            let Some(dim) = limit.dim() else { continue };
            let by = match limit.rule {
                QueueRule::Capability | QueueRule::Allocations => continue,
                QueueRule::Overcommit => {
                    let by = i128::from(limit.excess()) * 100;
                    let percent = i128::from(percent.max(1));
                    i64::try_from((by + percent - 1) / percent).unwrap_or(i64::MAX)
                }
                QueueRule::Guarantees | QueueRule::Deserved => limit.excess(),
            };
            more.set(dim, more.get(dim).max(by));
        }
        if !more.is_zero() {
            changes.add([Remedy::Capacity { amounts: more }]);
        }
    }

    /// A job that ends before all dates delays nobody.
    fn run_time_change(&self, explaining: &Explaining, changes: &mut Changes) {
        let others = self.reservations.values().filter(|of| of.job != explaining.job);
        let first = others.map(|of| of.date).min().filter(|&date| date > self.ran);
        if let Some(date) = first {
            changes.add([Remedy::RunTime(date.nanos_since(self.ran))]);
        }
    }

    fn cap_changes(&self, explaining: &Explaining, changes: &mut Changes) {
        for limit in explaining.limits.iter().filter(|limit| is_cap(limit.rule)) {
            let queue = explaining.queue_name(&self.jobs, limit.queue);
            let by = limit.excess();
            let count = u64::try_from(by).unwrap_or(0);
            let ways = match limit.of {
                Capped::Resource(dim) => [
                    Remedy::RaiseCap { queue: queue.clone(), dim, by },
                    Remedy::Release { queue, amounts: [(dim, by)].into_iter().collect() },
                ],
                Capped::Allocations => [
                    Remedy::RaiseAllocations { queue: queue.clone(), by: count },
                    Remedy::EndAllocations { queue, count },
                ],
            };
            let ways_max = if self.used_by_others(explaining, limit) >= by { 2 } else { 1 };
            changes.add(ways.into_iter().take(ways_max));
        }
    }

    /// Returns what others than the job itself use of what a limit bounds. What the job gives back, it would lack.
    fn used_by_others(&self, explaining: &Explaining, limit: &Limit) -> i64 {
        let own = self.jobs.job(explaining.job).usage();
        limit.used.saturating_sub(left(own, explaining.withheld.of_job(explaining.job), limit.of))
    }

    /// Returns what the nearest domain lacks. `None`: nothing. That all tasks together lack room is only known if the last cycle
    /// found no nodes for them: else it was a cap or a share that stopped it.
    fn lacking_in(&self, id: JobId, domains: &Domains) -> Option<Lacking> {
        use PendingReason as Why;
        let has_failed =
            || self.tries.of(id).is_some_and(|tried| matches!(tried.cause, Why::NoNode | Why::Topology));
        domains.lacking().filter(|lacking| !lacking.is_together || has_failed())
    }

    /// Returns the tasks that lack nodes. `None`: no node would help. `capped` are tasks that wait for a cap.
    fn lack<'a>(&'a self, explaining: &'a Explaining, wanted: &Wanted, capped: &[u32]) -> Option<Lack<'a>> {
        let class = explaining.class.as_deref()?;
        let job = self.jobs.job(explaining.job);
        let room = &explaining.counts.room;
        if job.spec().has_hard_topology() {
            let domains = explaining.domains.as_ref()?;
            let Some(lacking) = self.lacking_in(explaining.job, domains) else {
                return Some(Lack { class, tasks: 0, nearest: None, sample: room.sample, in_domain: None });
            };
            let of = lacking.domain.and_then(|domain| domains.room_of(&lacking, domain));
            let anywhere = domains.room_of(&lacking, DomainId::ROOT);
            let sample = |of: Option<&'a DomainRoom>| of.and_then(|of| of.room.sample);
            let in_domain = lacking.domain != Some(DomainId::ROOT);
            return Some(Lack {
                class: domains.class_of(&lacking),
                tasks: lacking.tasks,
                nearest: of.filter(|_| !lacking.is_together).and_then(|of| of.room.nearest.as_ref()),
                sample: sample(of).or_else(|| sample(anywhere)),
                in_domain: in_domain.then(|| self.may_hold(explaining.job, domains, &lacking, capped)),
            });
        }
        let is_of_class = |index: &&u32| std::ptr::eq(&*job.tasks()[**index as usize].class, class);
        let of_class = wanted.tasks.iter().filter(is_of_class).count() as u64;
        let tasks = of_class.saturating_sub(room.places);
        let nearest = room.nearest.as_ref();
        Some(Lack { class, tasks, nearest, sample: room.sample, in_domain: None })
    }

    /// What helps where nodes have no room, or rules give the queue no more. Both are about what the cluster has, so more
    /// nodes may help with both.
    fn node_changes(&self, explaining: &Explaining, changes: &mut Changes) {
        let job = self.jobs.job(explaining.job);
        let capped = self.capped_of(explaining.job, explaining.asked);
        let wanted = wanted(job, explaining.asked, &capped);
        let Some(lack) = self.lack(explaining, &wanted, &capped) else { return };
        let by_rules = |limit: &&Limit| !is_cap(limit.rule);
        let limits: Vec<Limit> = explaining.limits.iter().filter(by_rules).copied().collect();
        if limits.is_empty() {
            if lack.tasks > 0 {
                let free = self.free_on_node(explaining, &lack, &Amounts::zero(), None);
                let free = free.or_else(|| free_in_domain(&lack));
                let more = self.more_nodes(explaining, &lack, None);
                changes.add(free.into_iter().chain(more));
            }
            return;
        }
        let queue = explaining.queue_name(&self.jobs, limits[0].queue);
        let excess: Amounts =
            limits.iter().filter_map(|limit| Some((limit.dim()?, limit.excess()))).collect();
        let more = self.more_nodes(explaining, &lack, Some(&wanted.pending));
        let free = self.free_on_node(explaining, &lack, &excess, queue.clone());
        // A queue gives back no more than its other jobs use.
        let has_enough = limits.iter().all(|limit| limit.excess() <= self.used_by_others(explaining, limit));
        let release = has_enough.then_some(Remedy::Release { queue, amounts: excess });
        let free = free.filter(|_| has_enough);
        if lack.tasks == 0 {
            changes.add(release.into_iter().chain(more));
        } else if free.is_some() || more.is_some() {
            changes.add(free.into_iter().chain(more));
        } else {
            changes.add(release);
            changes.add(self.more_nodes(explaining, &lack, None));
        }
    }

    /// Returns what must come free on one node, if only one task lacks room. `excess` must come free in any case, from a
    /// queue.
    fn free_on_node(
        &self,
        explaining: &Explaining,
        lack: &Lack<'_>,
        excess: &Amounts,
        of: Option<Arc<str>>,
    ) -> Option<Remedy> {
        // Nothing that comes free makes a node larger.
        let nearest = lack.nearest.filter(|of| lack.tasks == 1 && of.is_large_enough)?;
        if !self.others_hold(explaining, nearest, &lack.class.amounts) {
            return None;
        }
        let amounts = amounts_of(&nearest.lacks).max(excess);
        Some(Remedy::FreeOnNode { node: seen(explaining, nearest.node), amounts, of })
    }

    /// Returns whether a node is large enough for one more task with some amounts, next to those that have room there now and
    /// those that the job itself has there. Only what the node lacks is looked at.
    fn others_hold(&self, explaining: &Explaining, nearest: &Nearest, asked: &Amounts) -> bool {
        let node = nearest.node;
        let Some(spec) = self.spec_of(node) else { return false };
        let mut own = Amounts::zero();
        for task in self.jobs.on_node(node).iter().filter(|task| task.job == explaining.job) {
            let of = self.jobs.task(*task);
            if of.state.holds() {
                own.add(&of.class.amounts);
            }
        }
        let has = amounts_of_spec(spec);
        let count = i64::try_from(nearest.places).unwrap_or(i64::MAX).saturating_add(1);
        let all = |dim: Dim| own.get(dim).saturating_add(asked.get(dim).saturating_mul(count));
        amounts_of(&nearest.lacks).iter().all(|(dim, _)| all(dim) <= has.get(dim))
    }

    /// Returns how many more nodes like the largest would do, or larger ones if none is large enough. With `asked`, the
    /// rules must then give the queue that much more, too.
    fn more_nodes(
        &self,
        explaining: &Explaining,
        lack: &Lack<'_>,
        asked: Option<&Amounts>,
    ) -> Option<Remedy> {
        let sample = lack.sample;
        let holds = sample.map_or(1, |sample| sample.holds);
        let least = lack.tasks.div_ceil(holds).max(1);
        let of_node = match sample {
            Some(sample) => amounts_of_spec(self.spec_of(sample.node)?),
            None => lack.class.amounts.clone(),
        };
        let count = match asked {
            None => least,
            Some(asked) => self.least_nodes(explaining.job, least, &of_node, asked)?,
        };
        let like = sample.map(|sample| seen(explaining, sample.node));
        Some(match (like, lack.in_domain) {
            (Some(like), None) => Remedy::MoreNodes { count, like },
            (Some(like), Some(_)) => Remedy::MoreNodesInDomain { count, like },
            (None, None) => Remedy::LargerNodes { count, amounts: of_node },
            (None, Some(_)) => Remedy::LargerNodesInDomain { count, amounts: of_node },
        })
    }

    /// Returns the least number of such nodes, of `least` or more, with which the rules give the queue of a job some
    /// amounts more.
    fn least_nodes(&self, job: JobId, least: u64, of_node: &Amounts, asked: &Amounts) -> Option<u64> {
        let queue = self.jobs.job(job).spec().queue;
        let suffices = |count: u64| {
            let count = i64::try_from(count).expect("at most MORE_NODES_MAX");
            let times = |(dim, amount): (Dim, i64)| (dim, amount.saturating_mul(count));
            let total = self.total.plus(&of_node.iter().map(times).collect());
            self.tiers.limits(self.present(), &total, queue, asked).is_empty()
        };
        let mut enough = least;
        while enough <= MORE_NODES_MAX && !suffices(enough) {
            enough *= 2;
        }
        if enough > MORE_NODES_MAX {
            return None;
        }
        // Half as many are too few, unless they are fewer than the least.
        let mut too_few = if enough == least { enough - 1 } else { enough / 2 };
        while enough - too_few > 1 {
            let between = too_few + (enough - too_few) / 2;
            if suffices(between) {
                enough = between;
            } else {
                too_few = between;
            }
        }
        Some(enough)
    }

    fn spec_of(&self, node: NodeId) -> Option<&NodeSpec> {
        self.replicas.iter().find_map(|replica| replica.spec(replica.shard().slot_of(node)?))
    }
}

/// Returns whether a job waits for room, or for what rules and caps give its queue.
fn is_by_room(reason: PendingReason) -> bool {
    use PendingReason as Why;
    matches!(reason, Why::Overused | Why::Share | Why::Cap | Why::NoNode | Why::Gang | Why::Topology)
}

/// Returns what others must leave free in a domain, if it could hold the tasks then.
fn free_in_domain(lack: &Lack<'_>) -> Option<Remedy> {
    let remedy = Remedy::FreeInDomain { tasks: lack.tasks, amounts: lack.class.amounts.clone() };
    lack.in_domain.filter(|&may_hold| may_hold).map(|_| remedy)
}

/// Returns a node if the one who asks may see nodes: the operator may.
fn seen(explaining: &Explaining, node: NodeId) -> Option<NodeId> {
    explaining.tenant.is_none().then_some(node)
}

fn amounts_of_spec(spec: &NodeSpec) -> Amounts {
    let plain = [
        (Dim::CPU, spec.cpu.units()),
        (Dim::MEMORY, spec.memory.units()),
        (Dim::GPU, i64::from(spec.gpus) * i64::from(GPU_UNIT)),
    ];
    let custom = spec.custom.as_deref().unwrap_or(&[]).iter();
    let custom = custom.map(|&(id, amount)| (Dim::of(ResourceKind::Custom(id)), amount.units()));
    plain.into_iter().chain(custom).collect()
}
