//! Places what a gang needs of tasks that ask for nothing, in the statement in which it gets all else that it needs.
//!
//! Which of them find a node is not known before. So they are tried in their order, each that the job still lacks, and those
//! without a node are passed over. If too few find one, further tasks with amounts are tried instead.

use std::sync::Arc;

use super::dated::Attempt;
use super::plugin::Counted;
use super::plugins::gang::{has_place, of_role};
use super::spots::Spots;
use super::topology::Sight;
use super::trial::Cycle;
use super::victims::{From, Offers};
use crate::jobs::{Job, JobId, PendingReason, TaskId, TaskState};

/// How many tasks a job lacks, with those that it has or claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lacks {
    /// In all.
    all: u32,
    /// Of each role. Empty: the minima of roles do not count.
    of_roles: Vec<u32>,
    /// The sum over all roles.
    in_roles: u32,
}

impl Lacks {
    /// Returns what a job lacks.
    pub(super) fn of(job: &Job) -> Self {
        Self::without(job, Counted::Placed)
    }

    /// Returns what a job lacks beyond what counts already.
    pub(super) fn without(job: &Job, counted: Counted) -> Self {
        Self::without_claims(job, counted, &[])
    }

    /// Returns what a job lacks beyond what counts already, if these of its tasks, which have claims, had none.
    pub(super) fn without_claims(job: &Job, counted: Counted, claims: &[u32]) -> Self {
        let claiming = |role: Option<u32>| {
            let is_of = |index: &&u32| role.is_none_or(|role| job.tasks()[**index as usize].role == role);
            claims.iter().filter(is_of).count() as u32
        };
        let pending = |number: u32| if counted == Counted::BestEffortToo { number } else { 0 };
        let there = job.ready_tasks() + job.count(TaskState::Pipelined) + pending(job.pending_best_effort())
            - claiming(None);
        let spec = job.spec();
        let counts = |state| has_place(state) || state == TaskState::Pipelined;
        let of_role = |at: usize| {
            of_role(job, at, counts) + pending(job.role_pending_best_effort(at)) - claiming(Some(at as u32))
        };
        let has_roles = spec.roles_count() && spec.roles.iter().any(|role| role.min_member > 0);
        let roles = spec.roles.iter().enumerate().filter(|_| has_roles);
        let of_roles: Vec<u32> =
            roles.map(|(at, role)| role.min_member.saturating_sub(of_role(at))).collect();
        let in_roles = of_roles.iter().sum();
        Self { all: spec.min_member.saturating_sub(there).max(in_roles), of_roles, in_roles }
    }

    /// Returns the number of tasks in all.
    pub(super) fn all(&self) -> u32 {
        self.all
    }

    /// Returns whether it lacks nothing.
    pub(super) fn is_none(&self) -> bool {
        self.all == 0 && self.in_roles == 0
    }

    /// Returns whether one more task of a role is of use.
    pub(super) fn has(&self, role: u32) -> bool {
        self.of_roles.get(role as usize).is_some_and(|&of_role| of_role > 0) || self.all > self.in_roles
    }

    /// Notes that one more task of a role is there, if the job lacks any task or one of the role. Returns whether it does.
    pub(super) fn take(&mut self, role: u32) -> bool {
        let is_lacking = self.all > 0 || self.of_roles.get(role as usize).is_some_and(|&of_role| of_role > 0);
        self.all = self.all.saturating_sub(1);
        if let Some(of_role) = self.of_roles.get_mut(role as usize).filter(|of_role| **of_role > 0) {
            *of_role -= 1;
            self.in_roles -= 1;
        }
        is_lacking
    }
}

/// The tasks of a job in one try: what it lacks, and which of those that ask for nothing were tried.
pub(super) struct Filler<'s> {
    job: JobId,
    sight: Sight<'s>,
    /// Whose tasks may be evicted where a cap on allocations is in the way.
    from: Option<From>,
    /// Whether a task has a node and would disturb a reservation there.
    is_held_back: bool,
    /// The tasks that ask for nothing and were not tried, the next one last. `None`: none was tried.
    left: Option<Vec<TaskId>>,
    /// The task groups of which no task found a node.
    misfits: Vec<u32>,
    /// What the job lacks although those were tried. `None`: they were not.
    lacks: Option<Lacks>,
    /// The tasks with amounts that are of no use while the job lacks others.
    passed: Vec<TaskId>,
}

impl<'s> Filler<'s> {
    pub(super) fn new(job: JobId, sight: Sight<'s>) -> Self {
        Self {
            job,
            sight,
            from: None,
            is_held_back: false,
            left: None,
            misfits: Vec::new(),
            lacks: None,
            passed: Vec::new(),
        }
    }

    /// Others may be evicted for the job.
    pub(super) fn evicting(job: JobId, spots: Spots<'s>, from: From) -> Self {
        Self { from: Some(from), ..Self::new(job, Sight::Evicting(spots)) }
    }

    /// Returns what counts as room.
    pub(super) fn sight(&self) -> Sight<'s> {
        self.sight
    }

    /// Returns whether a task has a node and would disturb a reservation there.
    pub(super) fn is_held_back(&self) -> bool {
        self.is_held_back
    }

    /// Returns the tasks with amounts that were passed over, the first one last.
    pub(super) fn into_passed(self) -> impl Iterator<Item = TaskId> {
        self.passed.into_iter().rev()
    }
}

impl Cycle<'_> {
    /// Returns whether a job has what it needs.
    pub(super) fn is_ready(&self, job: JobId) -> bool {
        self.tiers().is_ready(self.facts(), job, Counted::Placed)
    }

    /// Returns whether a job will have what it needs when its claims are granted.
    pub(super) fn is_pipelined(&self, job: JobId) -> bool {
        self.tiers().is_pipelined(self.facts(), job, Counted::Placed)
    }

    /// Returns whether a job has what it needs, or will have it when its claims are granted.
    pub(super) fn has_enough(&self, job: JobId) -> bool {
        self.is_ready(job) || self.is_pipelined(job)
    }

    /// Returns whether a job would have enough if all of its tasks that ask for nothing had nodes.
    pub(super) fn may_have_enough(&self, job: JobId) -> bool {
        let tiers = self.tiers();
        let facts = self.facts();
        tiers.is_ready(facts, job, Counted::BestEffortToo)
            || tiers.is_pipelined(facts, job, Counted::BestEffortToo)
    }

    /// After a task of the job has got a place: once tasks that ask for nothing are all that it lacks, places as many of them
    /// as it needs, in the domain at work. Returns whether the job is ready. If it does not get enough, the caller takes
    /// back what was placed.
    pub(super) fn fill_up(&mut self, filler: &mut Filler<'_>) -> bool {
        let is_ready = self.is_ready(filler.job);
        if is_ready || self.jobs.job(filler.job).pending_best_effort() == 0 && filler.lacks.is_none() {
            return is_ready;
        }
        if !self.may_have_enough(filler.job) {
            return false;
        }
        let last = self.topology.last();
        self.fill(filler);
        // Tasks with amounts go on where the last one of them is.
        self.topology.go_back_to(last);
        self.is_ready(filler.job)
    }

    fn fill(&mut self, filler: &mut Filler<'_>) {
        let mut lacks = Lacks::of(self.jobs.job(filler.job));
        let mut left = filler.left.take().unwrap_or_else(|| {
            let mut pending = self.pending_tasks(filler.job, true);
            pending.reverse();
            pending
        });
        while let Some(&task) = left.last().filter(|_| !lacks.is_none()) {
            let of = self.jobs.task(task);
            // It may have been placed together with others of its task group. What is of no use now is of none later, because
            // the job lacks less and less.
            if of.state == TaskState::Pending && lacks.has(of.role) {
                match self.place_one(task, filler) {
                    Ok(()) => lacks = Lacks::of(self.jobs.job(filler.job)),
                    // The cap may allow more after evictions.
                    Err(PendingReason::Cap) => break,
                    Err(_) => {}
                }
            }
            left.pop();
        }
        filler.left = Some(left);
        filler.lacks = Some(lacks);
    }

    /// Places a task that asks for nothing, where its job and its task group may have it.
    fn place_one(&mut self, task: TaskId, filler: &mut Filler<'_>) -> Result<(), PendingReason> {
        let group = self.jobs.task(task).group;
        let sight = filler.sight;
        let from = filler.from;
        let mut reason = PendingReason::NoNode;
        let is_placed = !filler.misfits.contains(&group)
            && self.in_group_domain(task, sight, |cycle, task| {
                let class = Arc::clone(&cycle.jobs.task(task).class);
                let queue = cycle.queue_of(task.job);
                if cycle.cap_in_the_way(queue, &class, true).is_none() {
                    let attempt = cycle.try_allocate(task).or_else(|| cycle.pipeline(task));
                    if attempt == Attempt::HeldBack {
                        reason = PendingReason::Reservation;
                    }
                    return attempt == Attempt::Placed;
                }
                if cycle.cap_in_the_way(queue, &class, false).is_none() {
                    // It has a node now and takes nothing of it, so it waits for the cap only.
                    return cycle.choose_and_wait(task) || cycle.pipeline(task) == Attempt::Placed;
                }
                let may_take = |from| {
                    from != From::OtherQueues || cycle.tiers().is_preemptive(cycle.facts(), queue, &class)
                };
                let is_there_room = match (sight, from) {
                    (Sight::Evicting(spots), Some(from)) if may_take(from) => {
                        cycle.make_room(task, from, spots, &mut Offers::default())
                    }
                    _ => false,
                };
                if !is_there_room {
                    reason = PendingReason::Cap;
                }
                is_there_room
            });
        if is_placed {
            return Ok(());
        }
        self.tries.refuse(task, reason);
        filler.is_held_back |= reason == PendingReason::Reservation;
        if reason == PendingReason::NoNode {
            filler.misfits.push(group);
        }
        Err(reason)
    }

    /// Returns whether a task with amounts is of no use to its job yet: too few of those that ask for nothing found nodes, and
    /// the job lacks tasks of other roles.
    pub(super) fn passes(&self, filler: &mut Filler<'_>, task: TaskId) -> bool {
        let Some(lacks) = &filler.lacks else { return false };
        let is_of_no_use = !lacks.is_none() && !lacks.has(self.jobs.task(task).role);
        if is_of_no_use {
            filler.passed.push(task);
        }
        is_of_no_use
    }
}
