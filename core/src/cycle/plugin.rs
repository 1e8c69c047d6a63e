//! The rules of a cycle, and how tiers of them decide together.

use std::cmp::Ordering;

use super::agree::{agree, agree_as_volcano};
use super::config::{Combination, CycleConfig, Decision, PluginConfig, PluginKind};
use super::limit::Limit;
use super::plugins;
use super::shares::JobShares;
use crate::fairness::Amounts;
use crate::jobs::{JobId, Jobs, QueueId, TaskClass, TaskId};
use crate::time::Time;

/// What rules read.
#[derive(Clone, Copy)]
pub(super) struct Facts<'a> {
    pub(super) jobs: &'a Jobs,
    /// The capacity of all nodes that take work.
    pub(super) total: &'a Amounts,
    pub(super) now: Time,
    /// The fair shares of jobs, while the action `starve` runs.
    pub(super) shares: Option<&'a JobShares>,
}

impl Facts<'_> {
    /// Returns the fair share of a job.
    ///
    /// # Panics
    /// If the action `starve` does not run.
    pub(super) fn fair_share(&self, job: JobId) -> Amounts {
        self.shares.expect("only `starve` asks for fair shares of jobs").of(self.jobs, job)
    }
}

impl Facts<'_> {
    /// Returns what a queue uses in the plan.
    pub(super) fn planned(self, queue: QueueId) -> Amounts {
        self.jobs.queue(queue).usage().planned()
    }
}

/// What queues use, now or at a later time.
pub(super) type Used<'a> = &'a dyn Fn(QueueId) -> Amounts;

/// A vote on a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vote {
    Permit,
    Abstain,
    Reject,
}

/// Which tasks count towards what a job needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    /// Those that have places.
    Placed,
    /// Those that have places which shards have granted.
    Granted,
    /// Also pending ones that ask for nothing, as in Volcano. They are placed [with the others](super::best_effort).
    BestEffortToo,
}

/// Tasks that count towards what a job needs in addition to those that have places.
#[derive(Default)]
pub(super) struct More {
    pub(super) all: u32,
    /// By role. What is not there is 0.
    pub(super) of_roles: Vec<u32>,
}

/// One rule. Each method takes part in one kind of [`Decision`]; a rule that has nothing to say leaves it as it is.
pub(super) trait Plugin: Send {
    /// Prepares for a cycle.
    fn open(&mut self, _: Facts<'_>) {}

    fn queue_order(&self, _: Facts<'_>, _: QueueId, _: QueueId) -> Ordering {
        Ordering::Equal
    }

    /// Returns a number that is another one after the order of queues has changed that nothing was given to.
    fn order_version(&self, _: Facts<'_>) -> u64 {
        0
    }

    fn job_order(&self, _: Facts<'_>, _: JobId, _: JobId) -> Ordering {
        Ordering::Equal
    }

    /// Returns whether its orders of queues and jobs change as time passes, although nothing else does.
    fn is_timed(&self) -> bool {
        false
    }

    /// Returns whether there are times at which it decides otherwise about jobs that wait ([`due`](Self::due)).
    fn has_due(&self) -> bool {
        false
    }

    /// Returns when it decides about a job that waits otherwise than before, although nothing else has changed.
    fn due(&self, _: Facts<'_>, _: JobId) -> Option<Time> {
        None
    }

    fn task_order(&self, _: Facts<'_>, _: TaskId, _: TaskId) -> Ordering {
        Ordering::Equal
    }

    fn valid(&self, _: Facts<'_>, _: JobId) -> bool {
        true
    }

    /// Returns whether a job has what it needs, or would have it with more tasks.
    fn ready(&self, _: Facts<'_>, _: JobId, _: Counted, _: &More) -> bool {
        true
    }

    /// Returns whether it keeps gangs from being broken, and lets them go as a whole.
    fn takes_whole_gangs(&self) -> bool {
        false
    }

    /// Returns whether it may accept a victim for a task, alone or with others. It is asked about many, so it must be cheap. If
    /// it does not accept the victim in any case, the rule may say so here.
    fn may_accept(&self, _: Facts<'_>, _: Decision, _: TaskId, _victim: TaskId) -> bool {
        true
    }

    /// Returns whether it only accepts tasks of jobs of a lower priority for tasks of other jobs.
    fn takes_lower_priorities(&self) -> bool {
        false
    }

    fn pipelined(&self, _: Facts<'_>, _: JobId, _: Counted) -> bool {
        true
    }

    fn starving(&self, _: Facts<'_>, _: JobId) -> Option<bool> {
        None
    }

    fn enqueueable(&self, _: Facts<'_>, _: JobId) -> Vote {
        Vote::Abstain
    }

    /// Called when a job was admitted.
    fn enqueued(&mut self, _: Facts<'_>, _: JobId) {}

    fn overused(&self, _: Facts<'_>, _: QueueId) -> bool {
        false
    }

    fn allocatable(&self, _: Facts<'_>, _: Used<'_>, _: QueueId, _: &TaskClass) -> bool {
        true
    }

    /// Returns what keeps a queue from having some amounts more if the cluster has `total`, apart from its capability and
    /// those of queues that contain it. It explains [`allocatable`](Self::allocatable), as the next cycle will decide.
    fn limits(&self, _: Facts<'_>, _total: &Amounts, _: QueueId, _asked: &Amounts) -> Vec<Limit> {
        Vec::new()
    }

    /// Returns what keeps a job from being admitted. It explains [`enqueueable`](Self::enqueueable).
    fn admission_limits(&self, _: Facts<'_>, _: JobId) -> Vec<Limit> {
        Vec::new()
    }

    fn preemptive(&self, _: Facts<'_>, _: QueueId, _: &TaskClass) -> bool {
        true
    }

    /// Returns those of `candidates` that may be evicted for a task of the same queue, or `None` to abstain.
    fn preemptable(&self, _: Facts<'_>, _: TaskId, _: &[TaskId]) -> Option<Vec<TaskId>> {
        None
    }

    /// Returns whether a queue may give up all these tasks for another of its tasks. It is asked in addition to
    /// [`preemptable`](Self::preemptable), in whatever tier it is.
    fn may_give_up(&self, _: Facts<'_>, _: TaskId, _victims: &[TaskId]) -> bool {
        true
    }

    /// Returns those of `candidates` that may be evicted for a task of another queue, or `None` to abstain.
    fn reclaimable(&self, _: Facts<'_>, _: TaskId, _: &[TaskId]) -> Option<Vec<TaskId>> {
        None
    }

    /// Returns those of `candidates` that may be evicted for a task of a job that starves, or `None` to abstain.
    fn evictable(&self, _: Facts<'_>, _: TaskId, _: &[TaskId]) -> Option<Vec<TaskId>> {
        None
    }

    /// Returns what a queue deserves, if the rule says so.
    fn deserved(&self, _: QueueId) -> Option<&Amounts> {
        None
    }
}

/// The rules in tiers.
pub(super) struct Tiers {
    tiers: Vec<Vec<(PluginConfig, Box<dyn Plugin>)>>,
    combination: Combination,
}

impl Tiers {
    pub(super) fn new(config: &CycleConfig) -> Self {
        let tier = |tier: &Vec<PluginConfig>| {
            tier.iter().map(|plugin| (plugin.clone(), plugins::make(plugin, config.combination))).collect()
        };
        Self { tiers: config.tiers.iter().map(tier).collect(), combination: config.combination }
    }

    /// Prepares all rules for a cycle.
    pub(super) fn open(&mut self, facts: Facts<'_>) {
        self.tiers.iter_mut().flatten().for_each(|(_, plugin)| plugin.open(facts));
    }

    /// Prepares those rules for another look whose orders change as time passes.
    pub(super) fn open_timed(&mut self, facts: Facts<'_>) {
        let timed = self.tiers.iter_mut().flatten().filter(|(_, plugin)| plugin.is_timed());
        timed.for_each(|(_, plugin)| plugin.open(facts));
    }

    fn timed(&self, decision: Decision) -> impl Iterator<Item = &dyn Plugin> {
        self.all(decision).filter(|plugin| plugin.is_timed())
    }

    /// Compares queues by the rules only whose orders change as time passes.
    pub(super) fn timed_queue_order(&self, facts: Facts<'_>, a: QueueId, b: QueueId) -> Ordering {
        first_of(self.timed(Decision::QueueOrder).map(|plugin| plugin.queue_order(facts, a, b)))
    }

    /// Compares jobs by the rules only whose orders change as time passes.
    pub(super) fn timed_job_order(&self, facts: Facts<'_>, a: JobId, b: JobId) -> Ordering {
        first_of(self.timed(Decision::JobOrder).map(|plugin| plugin.job_order(facts, a, b)))
    }

    /// Returns the earliest time after now at which a rule decides otherwise about a job that waits.
    pub(super) fn due(&self, facts: Facts<'_>) -> Option<Time> {
        let all = self.tiers.iter().flatten().map(|(_, plugin)| &**plugin);
        let rules: Vec<&dyn Plugin> = all.filter(|plugin| plugin.has_due()).collect();
        // Without such a rule, no job is looked at.
        if rules.is_empty() {
            return None;
        }
        let jobs = facts.jobs.queues().flat_map(|(_, queue)| queue.waiting());
        let due = jobs.flat_map(|job| rules.iter().filter_map(move |plugin| plugin.due(facts, job)));
        due.filter(|&due| due > facts.now).min()
    }

    /// Returns the rules of a tier that take part in a kind of decisions.
    fn of(tier: &[(PluginConfig, Box<dyn Plugin>)], decision: Decision) -> impl Iterator<Item = &dyn Plugin> {
        tier.iter().filter(move |(config, _)| config.takes_part(decision)).map(|(_, plugin)| &**plugin)
    }

    fn all(&self, decision: Decision) -> impl Iterator<Item = &dyn Plugin> {
        self.tiers.iter().flat_map(move |tier| Self::of(tier, decision))
    }

    /// Compares queues: the first rule that orders them counts, then the order in which they were made.
    pub(super) fn queue_order(&self, facts: Facts<'_>, a: QueueId, b: QueueId) -> Ordering {
        let orders = self.all(Decision::QueueOrder).map(|plugin| plugin.queue_order(facts, a, b));
        first_of(orders).then(a.cmp(&b))
    }

    /// Returns a number that is another one after the order of queues has changed that nothing was given to.
    pub(super) fn order_version(&self, facts: Facts<'_>) -> u64 {
        self.all(Decision::QueueOrder).map(|plugin| plugin.order_version(facts)).fold(0, u64::wrapping_add)
    }

    /// Compares jobs: the first rule that orders them counts, then the time of submission, then the number.
    pub(super) fn job_order(&self, facts: Facts<'_>, a: JobId, b: JobId) -> Ordering {
        let orders = self.all(Decision::JobOrder).map(|plugin| plugin.job_order(facts, a, b));
        let created = |job: JobId| facts.jobs.job(job).spec().created;
        first_of(orders).then_with(|| created(a).cmp(&created(b))).then(a.cmp(&b))
    }

    /// Returns whether a rule orders jobs by what their users use, so that a job that gets something moves those of the same
    /// user back.
    pub(super) fn orders_users(&self) -> bool {
        let orders = |(config, _): &(PluginConfig, Box<dyn Plugin>)| {
            config.kind == PluginKind::Usage && config.takes_part(Decision::JobOrder)
        };
        self.tiers.iter().flatten().any(orders)
    }

    /// Compares tasks: the first rule that orders them counts, then the index.
    pub(super) fn task_order(&self, facts: Facts<'_>, a: TaskId, b: TaskId) -> Ordering {
        let orders = self.all(Decision::TaskOrder).map(|plugin| plugin.task_order(facts, a, b));
        first_of(orders).then(a.cmp(&b))
    }

    /// Returns whether a job may be placed at all.
    pub(super) fn is_valid(&self, facts: Facts<'_>, job: JobId) -> bool {
        self.all(Decision::JobValid).all(|plugin| plugin.valid(facts, job))
    }

    /// Returns whether a job has what it needs.
    pub(super) fn is_ready(&self, facts: Facts<'_>, job: JobId, counted: Counted) -> bool {
        self.all(Decision::JobReady).all(|plugin| plugin.ready(facts, job, counted, &More::default()))
    }

    /// Returns whether a job would have what it needs if more of its tasks had places, and all pending ones that ask for nothing.
    pub(super) fn is_ready_with(&self, facts: Facts<'_>, job: JobId, more: &More) -> bool {
        self.all(Decision::JobReady).all(|plugin| plugin.ready(facts, job, Counted::BestEffortToo, more))
    }

    /// Returns whether a job will have what it needs when what is being released has come free.
    ///
    /// Every rule must agree. In Volcano, `sla` lets a late job keep what it has in part until its session ends. Here it would
    /// be kept in all later cycles, and two such jobs would wait for each other for ever.
    pub(super) fn is_pipelined(&self, facts: Facts<'_>, job: JobId, counted: Counted) -> bool {
        self.all(Decision::JobPipelined).all(|plugin| plugin.pipelined(facts, job, counted))
    }

    /// Returns whether the queue of a job admits it.
    pub(super) fn is_enqueueable(&self, facts: Facts<'_>, job: JobId) -> bool {
        self.vote(Decision::JobEnqueueable, |plugin| plugin.enqueueable(facts, job))
    }

    /// Tells all rules that a job was admitted.
    pub(super) fn enqueued(&mut self, facts: Facts<'_>, job: JobId) {
        self.tiers.iter_mut().flatten().for_each(|(_, plugin)| plugin.enqueued(facts, job));
    }

    /// One vote against decides at once. Otherwise, the first tier with a vote in favour decides.
    fn vote(&self, decision: Decision, vote: impl Fn(&dyn Plugin) -> Vote) -> bool {
        for tier in &self.tiers {
            let mut permitted = false;
            for plugin in Self::of(tier, decision) {
                match vote(plugin) {
                    Vote::Reject => return false,
                    Vote::Permit => permitted = true,
                    Vote::Abstain => {}
                }
            }
            if permitted {
                return true;
            }
        }
        true
    }

    /// Returns whether a job may preempt others: the first tier with an opinion decides.
    pub(super) fn is_starving(&self, facts: Facts<'_>, job: JobId) -> bool {
        for tier in &self.tiers {
            let mut answers = Self::of(tier, Decision::JobStarving)
                .filter_map(|plugin| plugin.starving(facts, job))
                .peekable();
            if answers.peek().is_some() {
                return answers.all(|starves| starves);
            }
        }
        false
    }

    /// Returns whether a queue has enough already.
    pub(super) fn is_overused(&self, facts: Facts<'_>, queue: QueueId) -> bool {
        self.all(Decision::Overused).any(|plugin| plugin.overused(facts, queue))
    }

    /// Returns whether a queue may have one more task of a class.
    pub(super) fn is_allocatable(&self, facts: Facts<'_>, queue: QueueId, class: &TaskClass) -> bool {
        self.will_be_allocatable(facts, &|queue| facts.planned(queue), queue, class)
    }

    /// Returns whether a queue may have one more task of a class when queues use what `used` says.
    pub(super) fn will_be_allocatable(
        &self,
        facts: Facts<'_>,
        used: Used<'_>,
        queue: QueueId,
        class: &TaskClass,
    ) -> bool {
        self.all(Decision::Allocatable).all(|plugin| plugin.allocatable(facts, used, queue, class))
    }

    /// Returns what keeps a queue from having some amounts more, if the cluster has `total`.
    pub(super) fn limits(
        &self,
        facts: Facts<'_>,
        total: &Amounts,
        queue: QueueId,
        asked: &Amounts,
    ) -> Vec<Limit> {
        self.all(Decision::Allocatable).flat_map(|plugin| plugin.limits(facts, total, queue, asked)).collect()
    }

    /// Returns what keeps a job from being admitted.
    pub(super) fn admission_limits(&self, facts: Facts<'_>, job: JobId) -> Vec<Limit> {
        self.all(Decision::JobEnqueueable).flat_map(|plugin| plugin.admission_limits(facts, job)).collect()
    }

    /// Returns whether a queue may reclaim for a task of a class.
    pub(super) fn is_preemptive(&self, facts: Facts<'_>, queue: QueueId, class: &TaskClass) -> bool {
        self.all(Decision::Preemptive).all(|plugin| plugin.preemptive(facts, queue, class))
    }

    /// Returns whether a rule says which of two jobs of a queue may preempt the other. Without one, two jobs could evict
    /// each other in turns.
    pub(super) fn orders_preemption(&self) -> bool {
        self.tiers.iter().flatten().any(|(config, _)| bounds(config, Decision::Preemptable))
    }

    /// Returns whether a rule says what queues deserve, both of those that take and of those that give. Without one, two
    /// queues could evict each other in turns. Hierarchical `drf` looks at both when it is asked for victims.
    pub(super) fn orders_reclaim(&self) -> bool {
        let orders = |(config, _): &(PluginConfig, Box<dyn Plugin>)| {
            let limits_taking =
                config.takes_part(Decision::Preemptive) || config.takes_part(Decision::Overused);
            bounds(config, Decision::Reclaimable) && (limits_taking || config.kind == PluginKind::Drf)
        };
        self.tiers.iter().flatten().any(orders)
    }

    /// Returns the rules that decide about victims: those of the first tier that answers. If none of them bounds
    /// evictions, those of the next tier that do decide with them.
    fn deciding(&self, decision: Decision) -> Vec<&dyn Plugin> {
        let mut rules: Vec<&dyn Plugin> = Vec::new();
        let mut are_bounded = false;
        for tier in &self.tiers {
            let is_first = rules.is_empty();
            for (config, plugin) in tier.iter().filter(|(config, _)| answers(config, decision)) {
                if is_first || bounds(config, decision) {
                    rules.push(&**plugin);
                    are_bounded |= bounds(config, decision);
                }
            }
            if are_bounded {
                break;
            }
        }
        rules
    }

    /// Returns those of `candidates` that may be evicted for a task, by one of the decisions about victims. Volcano has
    /// no `evictable`, so its tiers are always combined strictly.
    pub(super) fn victims(
        &self,
        facts: Facts<'_>,
        decision: Decision,
        task: TaskId,
        candidates: &[TaskId],
    ) -> Vec<TaskId> {
        let answer = |plugin: &dyn Plugin| ask(plugin, facts, decision, task, candidates);
        if self.is_strict(decision) {
            return agree(self.deciding(decision).into_iter().filter_map(answer)).unwrap_or_default();
        }
        let agreed = |tier: &Vec<_>| agree_as_volcano(Self::of(tier, decision).filter_map(answer));
        self.tiers.iter().find_map(agreed).unwrap_or_default()
    }

    fn is_strict(&self, decision: Decision) -> bool {
        self.combination == Combination::Strict || decision == Decision::Evictable
    }

    /// Returns those of `candidates` that all rules of the first tier that answers accept, asked about one after the
    /// other. `None`: tiers are combined as in Volcano, which does not do this.
    pub(super) fn victims_jointly(
        &self,
        facts: Facts<'_>,
        decision: Decision,
        task: TaskId,
        candidates: &[TaskId],
    ) -> Option<Vec<TaskId>> {
        if !self.is_strict(decision) {
            return None;
        }
        let rules = self.deciding(decision);
        if rules.is_empty() {
            return None;
        }
        let mut accepted = Vec::new();
        for &candidate in candidates {
            accepted.push(candidate);
            let mut all = rules.iter().filter_map(|plugin| ask(*plugin, facts, decision, task, &accepted));
            if !all.all(|answer| answer.len() == accepted.len()) {
                accepted.pop();
            }
        }
        Some(accepted)
    }

    /// Returns whether a queue may give up all these tasks for another of its tasks.
    pub(super) fn may_give_up(&self, facts: Facts<'_>, task: TaskId, victims: &[TaskId]) -> bool {
        self.all(Decision::Preemptable).all(|plugin| plugin.may_give_up(facts, task, victims))
    }

    /// Returns the rules that all must accept each victim. `None`: that is not so, because tiers are combined as in Volcano, or
    /// gangs may go as a whole.
    pub(super) fn must_accept(&self, decision: Decision) -> Option<Vec<&dyn Plugin>> {
        let rules = self.deciding(decision);
        let by_each = self.is_strict(decision) && !rules.iter().any(|rule| rule.takes_whole_gangs());
        by_each.then_some(rules)
    }

    /// Returns whether jobs only take the place of others of a lower priority.
    pub(super) fn takes_lower_priorities(&self) -> bool {
        let rules = self.must_accept(Decision::Preemptable);
        let by_rule = rules.is_some_and(|rules| rules.iter().any(|rule| rule.takes_lower_priorities()));
        by_rule || !self.orders_preemption()
    }

    /// Returns whether a rule lets running gangs go as a whole.
    pub(super) fn takes_whole_gangs(&self, decision: Decision) -> bool {
        self.is_strict(decision) && self.deciding(decision).into_iter().any(Plugin::takes_whole_gangs)
    }

    /// Returns whether all rules accept victims: some single ones, and all of them, with gangs that go as a whole. Rules
    /// that keep gangs from being broken are asked about the single ones.
    pub(super) fn accept_with_gangs(
        &self,
        facts: Facts<'_>,
        decision: Decision,
        task: TaskId,
        (single, all): (&[TaskId], &[TaskId]),
    ) -> bool {
        let mut rules = self.deciding(decision).into_iter();
        rules.all(|plugin| {
            let victims = if plugin.takes_whole_gangs() { single } else { all };
            ask(plugin, facts, decision, task, victims).is_none_or(|answer| answer.len() == victims.len())
        })
    }

    /// Returns what a queue deserves, if a rule says so.
    pub(super) fn deserved(&self, queue: QueueId) -> Option<&Amounts> {
        self.tiers.iter().flatten().find_map(|(_, plugin)| plugin.deserved(queue))
    }
}

/// Asks a rule about victims.
fn ask(
    plugin: &dyn Plugin,
    facts: Facts<'_>,
    decision: Decision,
    task: TaskId,
    candidates: &[TaskId],
) -> Option<Vec<TaskId>> {
    match decision {
        Decision::Preemptable => plugin.preemptable(facts, task, candidates),
        Decision::Reclaimable => plugin.reclaimable(facts, task, candidates),
        Decision::Evictable => plugin.evictable(facts, task, candidates),
        other => panic!("`{}` is no decision about victims", other.name()),
    }
}

/// Returns whether a plugin takes part in a decision about victims, and has an answer.
fn answers(config: &PluginConfig, decision: Decision) -> bool {
    let has_answer = match decision {
        Decision::Preemptable => {
            matches!(
                config.kind,
                PluginKind::Priority | PluginKind::Gang | PluginKind::Conformance | PluginKind::Drf
            )
        }
        Decision::Evictable => {
            matches!(config.kind, PluginKind::Gang | PluginKind::Conformance | PluginKind::FairShare)
        }
        _ => match config.kind {
            PluginKind::Drf => config.hierarchical,
            PluginKind::Gang | PluginKind::Conformance | PluginKind::Proportion | PluginKind::Capacity => {
                true
            }
            _ => false,
        },
    };
    has_answer && config.takes_part(decision)
}

/// Returns whether a plugin's answers about victims make evictions end under a fixed demand.
fn bounds(config: &PluginConfig, decision: Decision) -> bool {
    let bounds = match decision {
        Decision::Preemptable => matches!(config.kind, PluginKind::Priority | PluginKind::Drf),
        Decision::Evictable => config.kind == PluginKind::FairShare,
        _ => {
            let is_hierarchical = config.kind == PluginKind::Drf && config.hierarchical;
            is_hierarchical || matches!(config.kind, PluginKind::Proportion | PluginKind::Capacity)
        }
    };
    bounds && config.takes_part(decision)
}

fn first_of(mut orders: impl Iterator<Item = Ordering>) -> Ordering {
    orders.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}
