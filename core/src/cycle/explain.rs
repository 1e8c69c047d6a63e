//! Explains why a job or a task waits, in steps of bounded work.
//!
//! What cycles noted ([`reason`](super::reason)) says why. Nodes, the jobs of the queue and those that use most are
//! counted only now, a bounded number at a time, and so are domains of the topology. Each is counted as it is at its step. At
//! the end, the bounds of queues are computed as the next cycle will, and from all of that the changes that would help.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::limit::Limit;
use super::plugin::{Counted, Facts};
use super::trial::Place;
use super::{Scheduler, State};
use crate::fairness::Dim;
use crate::ids::TenantId;
use crate::jobs::{
    Capped, Holder, Job, JobExplanation, JobId, JobPhase, Jobs, PendingReason, QueueId, QueuePlace,
    QueueRule, TaskClass, TaskState, Withheld,
};
use crate::replica::Counting;
use crate::request::{Check, NodeCounts};
use crate::resource::ResourceKind;
use domains::{Domains, KnownRooms};
use wanted::{Wanted, wanted};

mod answer;
mod domains;
mod nearest;
mod wanted;

/// The number of jobs or queues that are named as those that use most.
const HOLDERS: usize = 3;

/// The counts for the last class that was explained, and the state that they are of.
pub(super) struct CountedClass {
    class: Arc<TaskClass>,
    state: State,
    counts: NodeCounts,
    /// What domains have room for, if a job with hard rules was explained.
    rooms: Option<KnownRooms>,
}

/// What an explanation counts next.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The nodes of the replicas.
    Nodes,
    /// The domains of the topology.
    Domains,
    /// The waiting jobs of the queue after one.
    Queue { after: Option<JobId> },
    /// Who uses most, of the subject at this place: the jobs and direct placements of the queue after one.
    Holders { at: usize, after: Option<After> },
    /// Nothing.
    Done,
}

/// A job, after the flag that says whether it is a direct placement.
type After = (bool, JobId);

/// A queue and what somebody uses most of in it.
struct Subject {
    queue: QueueId,
    of: Capped,
    holders: Vec<Holder>,
}

/// An explanation at work.
pub(crate) struct Explaining {
    job: JobId,
    /// The task that was asked for.
    asked: Option<u32>,
    tenant: Option<TenantId>,
    /// The task that it is about.
    task: Option<u32>,
    class: Option<Arc<TaskClass>>,
    stage: Stage,
    /// What is counted of nodes, until all are.
    counting: Option<Counting>,
    counts: NodeCounts,
    /// What is counted of domains, if the job must be in one.
    domains: Option<Domains>,
    place: QueuePlace,
    limits: Vec<Limit>,
    /// What sums have of tasks that wait for caps, as far as it does not keep the job from anything.
    withheld: Withheld,
    subjects: Vec<Subject>,
    /// What the groups of a queue hold of the subject that is counted.
    of_groups: BTreeMap<Arc<str>, i64>,
}

impl Explaining {
    /// Returns the job.
    pub(crate) fn job(&self) -> JobId {
        self.job
    }

    /// Returns the tenant that asks. `None`: the operator.
    pub(crate) fn tenant(&self) -> Option<TenantId> {
        self.tenant
    }

    fn sees_queue(&self, jobs: &Jobs, queue: QueueId) -> bool {
        let owner = jobs.queue(queue).spec().tenant;
        self.tenant.is_none() || owner.is_none() || owner == self.tenant
    }

    /// Goes on after the nodes of a class: with those of the next class, then with domains, then with the queue.
    fn go_on(&mut self) {
        let next = self.domains.as_ref().and_then(Domains::next_class);
        self.counting = next.map(|class| Counting::new(&class.request));
        self.stage = match (&self.counting, &self.domains) {
            (Some(_), _) => Stage::Nodes,
            (None, Some(_)) => Stage::Domains,
            (None, None) => Stage::Queue { after: None },
        };
    }

    /// Looks at domains of the topology. Returns how many were looked at.
    fn look_at_domains(&mut self, most: u64) -> u64 {
        let (spent, is_done) = self.domains.as_mut().map_or((1, true), |domains| domains.step(most));
        if is_done {
            self.stage = Stage::Queue { after: None };
        }
        spent
    }

    /// Returns the name of a queue, if the one who asks may see it.
    fn queue_name(&self, jobs: &Jobs, queue: QueueId) -> Option<Arc<str>> {
        let is_seen = self.sees_queue(jobs, queue) || jobs.job(self.job).spec().queue == queue;
        is_seen.then(|| Arc::clone(&jobs.queue(queue).spec().name))
    }
}

impl Subject {
    /// Notes somebody if that is one of those that use most.
    fn offer(&mut self, holder: Holder) {
        if holder.amount > 0 {
            self.holders.push(holder);
            self.holders.sort_by_key(|of| Reverse(of.amount));
            self.holders.truncate(HOLDERS);
        }
    }
}

impl Scheduler {
    /// Begins to explain why a job, or a task of it, waits. `tenant` asks; it is told only what it may see.
    ///
    /// # Panics
    /// If there is no such job or task.
    pub(crate) fn begin_explaining(
        &self,
        job: JobId,
        asked: Option<u32>,
        tenant: Option<TenantId>,
    ) -> Explaining {
        let of = self.jobs.job(job);
        let capped = self.capped_of(job, asked);
        let task = asked.or_else(|| capped.first().copied()).or_else(|| {
            let tried = self.tries.of(job).filter(|tried| tried.cause != PendingReason::None);
            let first = tried.map(|tried| tried.task).filter(|&task| is_pending(of, task));
            first.or_else(|| wanted(of, None, &capped).tasks.first().copied())
        });
        let waits = |task: &u32| is_pending(of, *task) || capped.binary_search(task).is_ok();
        let class = task.filter(waits).map(|task| class_of(of, task));
        let counting = class.as_ref().map(|class| Counting::new(&class.request));
        let in_domains = class.is_some() && of.spec().has_hard_topology() && of.phase() != JobPhase::Pending;
        let named = task.filter(|_| in_domains);
        let domains =
            named.and_then(|task| self.begin_domains(job, task, &wanted(of, asked, &capped), &capped));
        let mut explaining = Explaining {
            job,
            asked,
            tenant,
            task,
            class,
            stage: Stage::Nodes,
            counting,
            counts: NodeCounts::default(),
            domains,
            place: QueuePlace::default(),
            limits: Vec::new(),
            withheld: Withheld::default(),
            subjects: Vec::new(),
            of_groups: BTreeMap::new(),
        };
        if let Some(counts) = self.known_counts(&mut explaining) {
            explaining.counts = counts;
            explaining.go_on();
        }
        if explaining.class.is_none() {
            explaining.stage = Stage::Done;
        }
        explaining
    }

    /// Explains why a job, or a task of it, waits, in one go.
    ///
    /// # Panics
    /// If there is no such job or task.
    pub fn explain(&mut self, job: JobId, task: Option<u32>) -> JobExplanation {
        let mut explaining = self.begin_explaining(job, task, None);
        while !self.explain_step(&mut explaining, u64::MAX).1 {}
        self.explained(explaining)
    }

    /// Counts until `budget` units are spent: nodes, domains, jobs or queues, and at most one page of nodes more. Returns the
    /// number of units, and whether all is counted.
    ///
    /// # Panics
    /// If the job is gone.
    pub(crate) fn explain_step(&mut self, explaining: &mut Explaining, budget: u64) -> (u64, bool) {
        let mut spent = 0;
        while spent < budget {
            let left = budget - spent;
            spent += match explaining.stage {
                Stage::Nodes => self.count_nodes(explaining),
                Stage::Domains => explaining.look_at_domains(left),
                Stage::Queue { after } => self.count_before(explaining, after, left),
                Stage::Holders { at, after } => self.count_holders(explaining, at, after, left),
                Stage::Done => return (spent, true),
            };
        }
        (spent, matches!(explaining.stage, Stage::Done))
    }

    /// Returns the counts for equal tasks, if nothing has changed since.
    fn known_counts(&self, explaining: &mut Explaining) -> Option<NodeCounts> {
        let known = self.counted.as_ref()?;
        let is_equal = explaining.class.as_ref().is_some_and(|class| Arc::ptr_eq(class, &known.class));
        if !is_equal || known.state != self.state() {
            return None;
        }
        let is_complete =
            explaining.domains.as_mut().is_none_or(|domains| domains.take_known(known.rooms.as_ref()));
        is_complete.then(|| known.counts.clone())
    }

    /// Counts a page of the nodes of a replica.
    fn count_nodes(&mut self, explaining: &mut Explaining) -> u64 {
        let Explaining { counting, domains, .. } = explaining;
        let counting = counting.as_mut().expect("only a pending task is counted for");
        let page = counting.step_with(&mut self.replicas, |shard, slot, look| {
            if let Some(domains) = domains {
                domains.add(Place { shard, slot }, look);
            }
        });
        if let Some(looked_at) = page {
            return 1 + looked_at;
        }
        let counts = explaining.counting.take().map(Counting::into_counts).unwrap_or_default();
        let is_named = explaining.domains.as_ref().is_none_or(Domains::is_at_first);
        let rooms = explaining.domains.as_mut().map(Domains::end_class);
        if is_named {
            let class = Arc::clone(explaining.class.as_ref().expect("only a pending task is counted for"));
            explaining.counts = counts.clone();
            self.counted = Some(CountedClass { class, state: self.state(), counts, rooms });
        }
        explaining.go_on();
        1
    }

    /// Counts the waiting jobs of the queue that are served before the job.
    fn count_before(&mut self, explaining: &mut Explaining, after: Option<JobId>, most: u64) -> u64 {
        let job = explaining.job;
        let facts = self.present();
        let queue = facts.jobs.queue(facts.jobs.job(job).spec().queue);
        let is_capped = !self.capped_of(job, explaining.asked).is_empty();
        let mut last = after;
        let mut looked_at = 0;
        for other in queue.waiting_after(after) {
            if looked_at == most {
                explaining.stage = Stage::Queue { after: last };
                return looked_at;
            }
            last = Some(other);
            looked_at += 1;
            explaining.place.waiting += 1;
            let is_before =
                !is_capped && other != job && self.tiers.job_order(facts, other, job) == Ordering::Less;
            explaining.place.before += u32::from(is_before);
        }
        self.count_capped(explaining, is_capped);
        self.find_subjects(explaining);
        explaining.stage = Stage::Holders { at: 0, after: None };
        looked_at + 1
    }

    /// Finds the bounds that are in the way, and of what it matters who uses most.
    fn find_subjects(&self, explaining: &mut Explaining) {
        let job = self.jobs.job(explaining.job);
        let capped = self.capped_of(explaining.job, explaining.asked);
        if !capped.is_empty() {
            explaining.withheld = self.jobs.withheld_for(explaining.job);
        }
        let limits = if job.phase() == JobPhase::Pending {
            self.tiers.admission_limits(self.present(), explaining.job)
        } else {
            self.limits_of(job, &wanted(job, explaining.asked, &capped), &explaining.withheld)
        };
        let mut subjects: Vec<Subject> = Vec::new();
        let mut add = |queue: QueueId, of: Capped| {
            if !subjects.iter().any(|subject| subject.queue == queue && subject.of == of) {
                subjects.push(Subject { queue, of, holders: Vec::new() });
            }
        };
        limits.iter().for_each(|limit| add(limit.queue, limit.of));
        if let Some(dim) = scarce(&explaining.counts) {
            add(QueueId::ROOT, Capped::Resource(dim));
        }
        explaining.limits = limits;
        explaining.subjects = subjects;
    }

    /// Returns what keeps the queue of a job from having some tasks more: caps, then what rules give it.
    fn limits_of(&self, job: &Job, wanted: &Wanted, withheld: &Withheld) -> Vec<Limit> {
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let facts = self.present();
        let mut limits = Vec::new();
        for queue in facts.jobs.chain(job.spec().queue) {
            let of = facts.jobs.queue(queue);
            let used = |of_what: Capped| left(of.usage(), withheld.of_queue(queue), of_what);
            let limit = |(dim, asked): (Dim, i64)| {
                let bound = of.spec().capability.get(dim)?;
                let rule = QueueRule::Capability;
                let of = Capped::Resource(dim);
                Some(Limit { rule, queue, of, bound, used: used(of), asked })
            };
            let most = of.spec().allocations_max.map(|most| Limit {
                rule: QueueRule::Allocations,
                queue,
                of: Capped::Allocations,
                bound: i64::from(most),
                used: used(Capped::Allocations),
                asked: count(wanted.tasks.len()),
            });
            limits.extend(most.filter(|limit| limit.excess() > 0));
            limits.extend(wanted.sum.iter().filter_map(limit).filter(|limit| limit.excess() > 0));
        }
        limits.extend(self.tiers.limits(facts, &self.total, job.spec().queue, &wanted.pending));
        limits
    }

    /// Finds who uses most of a subject: the queues below a queue, or its jobs.
    fn count_holders(&self, explaining: &mut Explaining, at: usize, after: Option<After>, most: u64) -> u64 {
        let Some(subject) = explaining.subjects.get(at) else {
            explaining.stage = Stage::Done;
            return 1;
        };
        let jobs = &self.jobs;
        let tenant = explaining.tenant;
        let queue = jobs.queue(subject.queue);
        let of = subject.of;
        let own = jobs.job(explaining.job);
        let mut looked_at = 1;
        let mut next = Stage::Holders { at: at + 1, after: None };
        let mut found: Vec<Holder> = Vec::new();
        if queue.is_leaf() {
            let mut last = after;
            for id in queue.all_after(after) {
                if looked_at >= most {
                    next = Stage::Holders { at, after: last };
                    break;
                }
                looked_at += 1;
                let job = jobs.job(id);
                last = Some((job.spec().is_direct, id));
                let is_seen = tenant.is_none_or(|tenant| tenant == job.spec().tenant);
                // What the job has itself is not what it lacks. A group that waits has nothing.
                if !is_seen || id == explaining.job || id.is_placeholder() {
                    continue;
                }
                let amount = left(job.usage(), explaining.withheld.of_job(id), of);
                let name = Arc::clone(&job.spec().name);
                if id.is_charge() {
                    *explaining.of_groups.entry(name).or_default() += amount;
                } else {
                    found.push(Holder { name, job: Some(id), is_group: false, amount });
                }
            }
            if !matches!(next, Stage::Holders { after: Some(_), .. }) {
                let groups = std::mem::take(&mut explaining.of_groups).into_iter();
                found.extend(groups.map(|(name, amount)| Holder { name, job: None, is_group: true, amount }));
            }
        } else {
            for &child in queue.children() {
                looked_at += 1;
                if explaining.sees_queue(jobs, child) {
                    let queue = jobs.queue(child);
                    let has_job = jobs.chain(own.spec().queue).any(|outer| outer == child);
                    let withheld = &explaining.withheld;
                    let of_job =
                        if has_job { left(own.usage(), withheld.of_job(explaining.job), of) } else { 0 };
                    let amount = left(queue.usage(), withheld.of_queue(child), of) - of_job;
                    let name = Arc::clone(&queue.spec().name);
                    found.push(Holder { name, job: None, is_group: false, amount });
                }
            }
        }
        let subject = &mut explaining.subjects[at];
        found.into_iter().for_each(|holder| subject.offer(holder));
        explaining.stage = next;
        looked_at
    }

    /// Returns what rules read between two cycles.
    pub(super) fn present(&self) -> Facts<'_> {
        Facts { jobs: &self.jobs, total: &self.total, now: self.ran, shares: None }
    }

    /// Returns why a job waits, or a task of it that was asked for.
    fn reason_of(&self, explaining: &Explaining) -> PendingReason {
        let id = explaining.job;
        let job = self.jobs.job(id);
        if job.phase().is_end() {
            return PendingReason::None;
        }
        match explaining.asked.map(|task| &job.tasks()[task as usize]) {
            Some(task) => match task.state {
                TaskState::Pending => {}
                TaskState::Allocated => return PendingReason::Gang,
                TaskState::Pipelined if task.allocation.is_some() => return PendingReason::Claim,
                TaskState::Pipelined => return PendingReason::Cap,
                _ => return PendingReason::None,
            },
            None => {
                let claims = self.claims_of(id);
                let is_ready = self.tiers.is_ready(self.present(), id, Counted::Placed);
                if (claims.claimed > 0 || claims.capped > 0) && (job.pending().len() == 0 || !is_ready) {
                    return if claims.claimed > 0 { PendingReason::Claim } else { PendingReason::Cap };
                }
                if job.pending().len() == 0 {
                    let waits = job.count(TaskState::Allocated) > 0 && !is_ready;
                    return if waits { PendingReason::Gang } else { PendingReason::None };
                }
            }
        }
        let reason = self.reason_of_pending(explaining, job);
        // A queue deserves no more than its capability. That says better what is in the way.
        let is_by_rules = matches!(reason, PendingReason::Overused | PendingReason::Share);
        let mut rules = explaining.limits.iter().map(|limit| limit.rule).peekable();
        let is_by_cap = rules.peek().is_some() && rules.all(is_cap);
        if is_by_rules && is_by_cap { PendingReason::Cap } else { reason }
    }

    /// Returns why a job with pending tasks waits, or a pending task of it.
    fn reason_of_pending(&self, explaining: &Explaining, job: &Job) -> PendingReason {
        let id = explaining.job;
        let tried = self.tries.of(id).filter(|tried| tried.cause != PendingReason::None);
        let cause = tried.map_or(PendingReason::NotTried, |tried| tried.cause);
        if job.phase() == JobPhase::Pending {
            let is_refused = cause == PendingReason::NotAdmitted;
            return if is_refused { cause } else { PendingReason::NotTried };
        }
        if !self.tiers.is_valid(self.present(), id) {
            return PendingReason::TooFewTasks;
        }
        let queue = job.spec().queue;
        if tried.is_none() && self.tries.is_overused(queue) {
            return PendingReason::Overused;
        }
        let Some(asked) = explaining.asked else {
            let is_short = tried.is_some_and(|tried| tried.fit > 0 && tried.fit < job.spec().min_member);
            return if is_short && is_misfit(cause) { PendingReason::Gang } else { cause };
        };
        let class = class_of(job, asked);
        let is_of = |rule: &[QueueRule]| {
            let limits = self.limits_of(job, &Wanted::one(asked, &class), &Withheld::default());
            limits.iter().any(|limit| rule.contains(&limit.rule))
        };
        if self.tries.is_overused(queue) && self.tiers.is_overused(self.present(), queue) {
            PendingReason::Overused
        } else if is_of(&[QueueRule::Capability, QueueRule::Allocations]) {
            PendingReason::Cap
        } else if is_of(&[QueueRule::Deserved, QueueRule::Guarantees]) {
            PendingReason::Share
        } else if explaining.counts.room.fits == 0 {
            PendingReason::NoNode
        } else if tried.is_some_and(|tried| is_misfit(cause) && tried.fit < job.spec().min_member)
            && cause != PendingReason::Reservation
        {
            PendingReason::Gang
        } else {
            cause
        }
    }
}

/// Returns whether a reason is that a task found no place, although its job was tried.
fn is_misfit(reason: PendingReason) -> bool {
    use PendingReason as Why;
    matches!(reason, Why::NoNode | Why::Cap | Why::Share | Why::Reservation)
}

fn is_pending(job: &Job, task: u32) -> bool {
    job.tasks().get(task as usize).is_some_and(|task| task.state == TaskState::Pending)
}

fn class_of(job: &Job, task: u32) -> Arc<TaskClass> {
    Arc::clone(&job.tasks()[task as usize].class)
}

/// Returns whether a rule is a cap of the queue itself.
fn is_cap(rule: QueueRule) -> bool {
    matches!(rule, QueueRule::Capability | QueueRule::Allocations)
}

/// Returns what is in use: held, claimed, or being released.
fn in_use(usage: &crate::jobs::Usage, of: Capped) -> i64 {
    let Capped::Resource(dim) = of else { return i64::try_from(usage.allocations()).unwrap_or(i64::MAX) };
    let parts = [&usage.held, &usage.pipelined, &usage.releasing];
    parts.iter().fold(0, |sum: i64, part| sum.saturating_add(part.get(dim)))
}

/// Returns what is in use, without what is withheld of it.
fn left(usage: &crate::jobs::Usage, withheld: Option<&crate::jobs::Usage>, of: Capped) -> i64 {
    in_use(usage, of).saturating_sub(withheld.map_or(0, |withheld| in_use(withheld, of)))
}

/// Returns the kind that most nodes lack.
fn scarce(counts: &NodeCounts) -> Option<Dim> {
    let dim = |check: Check| match check {
        Check::Cpu => Some(Dim::CPU),
        Check::Memory => Some(Dim::MEMORY),
        Check::WholeGpus | Check::GpuPart => Some(Dim::GPU),
        Check::Custom(id) | Check::Fragmented(id) => Some(Dim::of(ResourceKind::Custom(id))),
        _ => None,
    };
    let checks = counts.refusal.checks.iter().filter_map(|(&check, of)| Some((of.nodes, dim(check)?)));
    checks.max_by_key(|&(nodes, dim)| (nodes, Reverse(dim))).map(|(_, dim)| dim)
}
