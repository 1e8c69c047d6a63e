//! Places pending tasks on capacity that is free, or claims capacity that is being released.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::best_effort::Filler;
use super::dated::{Attempt, HeldBack};
use super::job_turns::JobTurns;
use super::parked::{Parked, address};
use super::signature::FailedTogether;
use super::topology::{DomainId, Sight};
use super::trial::Cycle;
use super::turns::Turns;
use crate::jobs::{JobId, PendingReason, QueueId, TaskClass, TaskId};
use crate::map::FixedMap;

/// The turns of the jobs of each queue.
type TurnsOfJobs = BTreeMap<QueueId, JobTurns>;

/// The pending tasks of each job, in order, the next one last.
type TaskLists = BTreeMap<JobId, Vec<TaskId>>;

/// The classes of which no task fits until something changes, and what reservations hold back.
#[derive(Default)]
pub(super) struct Misfits {
    classes: Vec<Arc<TaskClass>>,
    /// The same, by address.
    known: FixedMap<usize, ()>,
    /// Those that earlier cycles parked.
    parked: Parked,
    held_back: HeldBack,
    /// The domain of which that is true. `None`: of all nodes.
    scope: Option<DomainId>,
}

/// How much was noted.
#[derive(Clone, Copy)]
struct Noted {
    classes: usize,
    held_back: usize,
}

impl Misfits {
    pub(super) fn has(&self, class: &Arc<TaskClass>) -> bool {
        self.known.contains_key(&address(class))
    }

    pub(super) fn note(&mut self, class: Arc<TaskClass>) {
        self.known.insert(address(&class), ());
        self.classes.push(class);
    }

    /// Forgets everything if it is about other nodes.
    fn enter(&mut self, scope: Option<DomainId>) {
        if self.scope != scope {
            *self = Self { scope, ..Self::default() };
        }
    }

    /// Returns how much was noted so far, for [`forget`](Self::forget).
    fn noted(&self) -> Noted {
        Noted { classes: self.classes.len(), held_back: self.held_back.noted() }
    }

    /// Forgets all that was noted later.
    fn forget(&mut self, noted: Noted) {
        for class in self.classes.drain(noted.classes..) {
            self.known.remove(&address(&class));
        }
        self.held_back.forget(noted.held_back);
    }
}

impl Cycle<'_> {
    /// Places the pending tasks of all admitted jobs.
    ///
    /// Queues take turns, the first by order each time, and so do the jobs of a queue. A job is tried until it has what
    /// it needs. It then waits for its next turn with the rest of its tasks, so that one job does not take everything.
    pub(super) fn allocate_all(&mut self) {
        let mut jobs = self.waiting_jobs();
        let mut turns = Turns::new(self, jobs.keys().copied());
        let mut tasks = TaskLists::new();
        // What did not fit does not fit later in the same action, because capacity is only taken here. Only a job that is
        // undone gives back what it took, so what did not fit because of it may fit then.
        let mut misfits = Misfits { parked: self.take_parked(), ..Misfits::default() };
        let mut failed = FailedTogether::new();
        while let Some(queue) = turns.next(self) {
            let of_queue = jobs.get_mut(&queue).expect("a queue with jobs");
            let is_overused = self.is_overused(queue);
            if is_overused {
                self.tries.note_overused(queue);
            }
            let first = if is_overused { None } else { of_queue.next(self) };
            if let Some(job) = first {
                let has_more = if job.is_placeholder() {
                    self.allocate_group(job);
                    false
                } else if self.has_topology(job) {
                    self.allocate_job_in_domains(job, &mut tasks, &mut failed)
                } else {
                    self.allocate_job(job, &mut tasks, &mut misfits, &mut failed)
                };
                of_queue.put_back(self, job, has_more);
                if !job.is_placeholder() {
                    self.reserve_or_give_up(job);
                }
            }
            turns.put_back(self, queue, first.is_some());
        }
        let Misfits { mut parked, classes, .. } = misfits;
        // What is only kept for dates has room: it is held back, and no misfit.
        parked.park(classes);
        self.parked = parked;
    }

    /// Returns the admitted, valid jobs with pending tasks, by queue.
    fn waiting_jobs(&self) -> TurnsOfJobs {
        let mut turns = TurnsOfJobs::new();
        for (id, queue) in self.jobs.queues() {
            let is_ready = |job: &JobId| {
                let is_admitted = self.jobs.job(*job).phase().is_admitted();
                is_admitted && self.tiers().is_valid(self.facts(), *job)
            };
            let mut jobs = queue.waiting().filter(is_ready).peekable();
            if jobs.peek().is_some() {
                turns.insert(id, JobTurns::new(self, jobs));
            }
        }
        turns
    }

    /// Returns the pending tasks of a job that were not tried, the next one last.
    fn left_of<'t>(&self, job: JobId, tasks: &'t mut TaskLists) -> &'t mut Vec<TaskId> {
        tasks.entry(job).or_insert_with(|| {
            let mut pending = self.pending_tasks(job, false);
            pending.reverse();
            pending
        })
    }

    /// Places tasks of a job that has rules about domains, as [`allocate_job`](Self::allocate_job) does. A job for which no
    /// domain has room is an example for all equal ones: capacity is only taken here.
    fn allocate_job_in_domains(
        &mut self,
        job: JobId,
        tasks: &mut TaskLists,
        failed: &mut FailedTogether,
    ) -> bool {
        let signature = self.signature(job);
        if let Some(&equal) = signature.as_ref().and_then(|signature| failed.get(signature)) {
            self.tries.note_as(job, equal);
            return false;
        }
        let left = self.left_of(job, tasks);
        if left.is_empty() {
            return false;
        }
        self.tries.begin();
        let savepoint = self.savepoint();
        let has_enough = self.allocate_in_domains(job, left);
        let has_more = has_enough && !left.is_empty() && self.is_ready(job);
        self.note_try(job);
        if !self.keep_if(has_enough, savepoint) {
            failed.extend(signature.map(|signature| (signature, job)));
        }
        has_more
    }

    /// Places tasks of a job until it has what it needs. Returns whether it has more tasks to place in a later turn.
    fn allocate_job(
        &mut self,
        job: JobId,
        tasks: &mut TaskLists,
        misfits: &mut Misfits,
        failed: &mut FailedTogether,
    ) -> bool {
        // A gang that lacks tasks that ask for nothing may place all others first.
        let needs_both = self.jobs.job(job).pending_best_effort() > 0 && !self.is_ready(job);
        let signature = if needs_both { self.signature(job) } else { None };
        if let Some(&equal) = signature.as_ref().and_then(|signature| failed.get(signature)) {
            self.tries.note_as(job, equal);
            return false;
        }
        let left = self.left_of(job, tasks);
        if left.is_empty() {
            return false;
        }
        self.tries.begin();
        let savepoint = self.savepoint();
        let mut known_misfits = misfits.noted();
        let mut filler = Filler::new(job, Sight::Later);
        let mut is_ready = false;
        while let Some(task) = left.pop() {
            if self.passes(&mut filler, task) {
                continue;
            }
            if !self.place(task, misfits) {
                if self.savepoint() == savepoint {
                    // It did not fit although this job had taken nothing, so that stays so if the job is undone.
                    known_misfits.classes = misfits.classes.len();
                }
                continue;
            }
            is_ready = self.fill_up(&mut filler);
            if is_ready {
                break;
            }
        }
        left.extend(filler.into_passed());
        let has_more = is_ready && !left.is_empty();
        let has_enough = self.has_enough(job);
        self.note_try(job);
        if !self.keep_if(has_enough, savepoint) {
            misfits.forget(known_misfits);
            failed.extend(signature.map(|signature| (signature, job)));
        }
        has_more
    }

    /// Gives a task a node, or a claim. Returns whether it has one.
    pub(super) fn place(&mut self, task: TaskId, misfits: &mut Misfits) -> bool {
        misfits.enter(self.topology.scope());
        let class = Arc::clone(&self.jobs.task(task).class);
        let queue = self.queue_of(task.job);
        if !self.tiers().is_allocatable(self.facts(), queue, &class) {
            self.tries.refuse(task, PendingReason::Share);
            return false;
        }
        if misfits.has(&class) {
            self.tries.refuse(task, PendingReason::NoNode);
            return false;
        }
        if self.is_held_back(task, &misfits.held_back) {
            self.tries.refuse(task, PendingReason::Reservation);
            return false;
        }
        let is_capped = self.cap_in_the_way(queue, &class, true).is_some();
        let is_parked = misfits.parked.has(&class);
        misfits.parked.searches += u64::from(!is_parked);
        let attempt = if is_parked { Attempt::NoRoom } else { self.attempt(task, is_capped) };
        #[cfg(debug_assertions)]
        assert!(
            !is_parked || self.attempt(task, is_capped) != Attempt::Placed,
            "task {task} would fit, and its class is parked"
        );
        match attempt {
            Attempt::Placed => return true,
            Attempt::HeldBack => self.hold_back(task, &mut misfits.held_back),
            Attempt::NoRoom if !is_capped => misfits.note(class),
            Attempt::NoRoom => {}
        }
        let reason = match attempt {
            Attempt::HeldBack => PendingReason::Reservation,
            _ if is_capped => PendingReason::Cap,
            _ => PendingReason::NoNode,
        };
        self.tries.refuse(task, reason);
        false
    }

    /// Tries to give a task a node, unless a cap forbids that now, or a claim.
    fn attempt(&mut self, task: TaskId, is_capped: bool) -> Attempt {
        let at_once = if is_capped { Attempt::NoRoom } else { self.try_allocate(task) };
        // A claim has no lease.
        let may_claim = self.jobs.task(task).class.request.lease.is_none();
        at_once.or_else(|| if may_claim { self.pipeline(task) } else { Attempt::NoRoom })
    }
}
