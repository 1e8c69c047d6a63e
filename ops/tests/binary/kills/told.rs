//! What the clients were told of queues, jobs and tasks, and whether the service agrees with it after a start.
//!
//! Tasks ask for no memory, so the sums of the other oracle are about everything else. They count among the allocations of
//! their nodes there.

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::ids::AllocationId;
use wharf_net::protocol::{
    JOB_CANCELLED, JOB_COMPLETED, JOB_FAILED, TASK_ALLOCATED, TASK_BOUND, TASK_FAILED, TASK_PENDING,
    TASK_RELEASING, TASK_RUNNING, TASK_SUCCEEDED,
};

use super::job_reader::{SeenJob, SeenJobs, SeenTask};
use super::oracle::Token;

/// A request about queues and jobs that has no reply yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskedJobs {
    SetQueue {
        name: String,
        weight: u32,
    },
    RemoveQueue {
        name: String,
    },
    Submit {
        name: String,
        tasks: usize,
        is_fixed: bool,
    },
    Cancel {
        job: u64,
    },
    /// A report, which names the state.
    Report {
        job: u64,
        index: u32,
        allocation: AllocationId,
        state: u8,
    },
    /// Nothing changes. The job belongs to one worker.
    Look {
        job: u64,
    },
}

impl AskedJobs {
    fn job(&self) -> Option<u64> {
        match *self {
            Self::Cancel { job } | Self::Report { job, .. } | Self::Look { job } => Some(job),
            Self::SetQueue { .. } | Self::RemoveQueue { .. } | Self::Submit { .. } => None,
        }
    }
}

/// What is known of a task.
#[derive(Clone, Copy, Debug, Default)]
pub struct Task {
    /// The allocation in which it was last seen.
    allocation: Option<AllocationId>,
    /// It was bound there. Before that, its job may give the allocation up.
    is_bound: bool,
    /// It was reported as running there.
    is_running: bool,
    /// The state in which it has ended.
    end: Option<u8>,
}

/// What is known of a job.
#[derive(Debug)]
pub struct Job {
    name: String,
    tasks: Vec<Task>,
    /// Nobody may evict its tasks, so each keeps its allocation.
    is_fixed: bool,
    is_cancelled: bool,
    /// Its phase and the counts of its tasks, once it was seen to be over. They stay.
    over: Option<(u8, Vec<(u8, u32)>)>,
}

impl Job {
    fn new(name: &str, tasks: usize, is_fixed: bool) -> Self {
        let tasks = vec![Task::default(); tasks];
        Self { name: name.to_owned(), tasks, is_fixed, is_cancelled: false, over: None }
    }

    fn is_live(&self) -> bool {
        !self.is_cancelled && self.tasks.iter().any(|task| task.end.is_none())
    }
}

/// What the clients know of queues and jobs.
#[derive(Debug, Default)]
pub struct Told {
    /// The weights of the queues.
    pub queues: BTreeMap<String, u32>,
    jobs: BTreeMap<u64, Job>,
    /// Every allocation that a task was ever seen in.
    ids: BTreeSet<AllocationId>,
    under_way: BTreeMap<Token, AskedJobs>,
    next: Token,
    /// Requests that had no reply and were done, and that were not done.
    pub decided: (u64, u64),
    /// The tasks that were seen to have lost their allocations, and to have succeeded.
    pub evicted: u64,
    pub succeeded: u64,
}

impl Told {
    pub fn ask(&mut self, asked: AskedJobs) -> Token {
        self.next += 1;
        self.under_way.insert(self.next, asked);
        self.next
    }

    /// Notes a reply. What it says counts from now on.
    pub fn answer(&mut self, token: Token, is_done: bool) {
        let asked = self.under_way.remove(&token).expect("each request is answered once");
        if is_done {
            self.apply(asked);
        }
    }

    /// Notes the number of a job that was submitted.
    pub fn submitted(&mut self, token: Token, job: u64) {
        let asked = self.under_way.remove(&token).expect("each request is answered once");
        self.add(job, asked);
    }

    fn add(&mut self, job: u64, asked: AskedJobs) {
        let AskedJobs::Submit { name, tasks, is_fixed } = asked else { panic!("{asked:?} has no job") };
        let before = self.jobs.insert(job, Job::new(&name, tasks, is_fixed));
        assert!(before.is_none(), "job {job} was given twice: {before:?}");
    }

    fn apply(&mut self, asked: AskedJobs) {
        match asked {
            AskedJobs::SetQueue { name, weight } => drop(self.queues.insert(name, weight)),
            AskedJobs::RemoveQueue { name } => drop(self.queues.remove(&name)),
            AskedJobs::Cancel { job } => self.job(job).is_cancelled = true,
            AskedJobs::Report { job, index, allocation, state } => {
                let task = &mut self.job(job).tasks[index as usize];
                assert_eq!(task.allocation, Some(allocation), "the report is about another allocation");
                if state == TASK_RUNNING {
                    task.is_running = true;
                } else {
                    task.end = Some(state);
                }
                self.succeeded += u64::from(state == TASK_SUCCEEDED);
            }
            AskedJobs::Submit { .. } | AskedJobs::Look { .. } => {}
        }
    }

    fn job(&mut self, job: u64) -> &mut Job {
        self.jobs.get_mut(&job).expect("a known job")
    }

    /// Returns the jobs that are not over and that no worker has.
    pub fn free_jobs(&self) -> Vec<u64> {
        let is_busy = |job: u64| self.under_way.values().any(|asked| asked.job() == Some(job));
        self.live_jobs().filter(|&job| !is_busy(job)).collect()
    }

    /// Returns the jobs that are not over.
    pub fn live_jobs(&self) -> impl Iterator<Item = u64> + '_ {
        self.jobs.iter().filter(|(_, job)| job.is_live()).map(|(&id, _)| id)
    }

    /// Returns whether nobody may evict the tasks of a job.
    pub fn is_fixed(&self, job: u64) -> bool {
        self.jobs[&job].is_fixed
    }

    /// Returns whether a queue is being changed.
    pub fn is_queue_busy(&self, queue: &str) -> bool {
        self.under_way.values().any(|asked| {
            matches!(asked, AskedJobs::SetQueue { name, .. } | AskedJobs::RemoveQueue { name } if name == queue)
        })
    }

    /// Returns the jobs that were seen to be over.
    pub fn over(&self) -> BTreeSet<u64> {
        self.jobs.iter().filter(|(_, job)| job.over.is_some()).map(|(&id, _)| id).collect()
    }

    /// Notes that a node is removed with all that it had: its tasks get other allocations.
    pub fn drop_node(&mut self, node: u64, seen: &SeenJobs) {
        for (job, task) in seen.tasks().filter(|(_, task)| task.node == Some(node)) {
            let known = &mut self.job(job).tasks[task.index as usize];
            *known = Task { end: known.end, ..Task::default() };
        }
    }

    /// Decides a request that is under way: it was done, if there is such a one.
    fn done(&mut self, is_it: impl Fn(&AskedJobs) -> bool) -> bool {
        let found = self.under_way.iter().find(|(_, asked)| is_it(asked)).map(|(&token, _)| token);
        let Some(asked) = found.and_then(|token| self.under_way.remove(&token)) else { return false };
        self.apply(asked);
        self.decided.0 += 1;
        true
    }

    /// Compares what the service has after a start with what the clients know, and decides what was undecided.
    pub fn compare(&mut self, seen: &SeenJobs) {
        self.compare_queues(seen);
        for job in &seen.jobs {
            self.compare_job(job);
        }
        let there: BTreeSet<u64> = seen.jobs.iter().map(|job| job.id).collect();
        assert_eq!(there.len(), seen.jobs.len(), "a job is listed twice");
        let lost = self.jobs.iter().find(|(id, _)| !there.contains(id));
        assert!(lost.is_none(), "{lost:?} is lost");
        let is_open = |asked: &AskedJobs| !matches!(asked, AskedJobs::Look { .. });
        self.decided.1 += self.under_way.values().filter(|asked| is_open(asked)).count() as u64;
        self.under_way.clear();
    }

    fn compare_queues(&mut self, seen: &SeenJobs) {
        for queue in &seen.queues {
            let set = AskedJobs::SetQueue { name: queue.name.clone(), weight: queue.weight };
            let is_known = self.queues.get(&queue.name) == Some(&queue.weight);
            assert!(is_known || self.done(|asked| *asked == set), "nobody has made {queue:?} so");
        }
        let there: BTreeSet<&str> = seen.queues.iter().map(|queue| queue.name.as_str()).collect();
        let gone: Vec<String> =
            self.queues.keys().filter(|name| !there.contains(name.as_str())).cloned().collect();
        for name in gone {
            let removal = AskedJobs::RemoveQueue { name: name.clone() };
            assert!(self.done(|asked| *asked == removal), "queue {name} is lost");
        }
    }

    fn compare_job(&mut self, seen: &SeenJob) {
        if !self.jobs.contains_key(&seen.id) {
            let is_it =
                |asked: &AskedJobs| matches!(asked, AskedJobs::Submit { name, .. } if *name == seen.name);
            let found = self.under_way.iter().find(|(_, asked)| is_it(asked)).map(|(&token, _)| token);
            let asked = found.and_then(|token| self.under_way.remove(&token));
            let asked = asked.unwrap_or_else(|| panic!("{seen:?} was not submitted, or is there twice"));
            self.add(seen.id, asked);
            self.decided.0 += 1;
        }
        let known = &self.jobs[&seen.id];
        assert_eq!(known.name, seen.name, "job {} is another one", seen.id);
        if let Some(over) = &known.over {
            assert_eq!(*over, (seen.phase, seen.counts.clone()), "{seen:?} was over");
            return;
        }
        let cancel = AskedJobs::Cancel { job: seen.id };
        if seen.phase == JOB_CANCELLED && !known.is_cancelled {
            assert!(self.done(|asked| *asked == cancel), "nobody has cancelled {seen:?}");
        }
        self.note_tasks(seen.id, &seen.tasks);
        let known = self.job(seen.id);
        let is_over = known.tasks.iter().all(|task| task.end.is_some());
        let phases: &[u8] = match (known.is_cancelled, is_over) {
            (true, _) => &[JOB_CANCELLED],
            (false, true) => &[JOB_COMPLETED, JOB_FAILED],
            (false, false) => &[],
        };
        let is_ended = [JOB_CANCELLED, JOB_COMPLETED, JOB_FAILED].contains(&seen.phase);
        assert!(phases.contains(&seen.phase) || phases.is_empty() && !is_ended, "{seen:?} is {known:?}");
        if is_ended {
            known.over = Some((seen.phase, seen.counts.clone()));
        }
    }

    /// Compares the tasks of a job with what is known of them. No reply about this job is under way, except after a start.
    pub fn note_tasks(&mut self, job: u64, seen: &[SeenTask]) {
        assert_eq!(self.jobs[&job].tasks.len(), seen.len(), "the tasks of job {job}: {seen:?}");
        for task in seen {
            self.note_allocation(job, task);
            self.note_end(job, task);
        }
    }

    /// A task has one allocation, which no other one ever has, and never comes back to one that it has left.
    fn note_allocation(&mut self, job: u64, seen: &SeenTask) {
        let is_bound = [TASK_BOUND, TASK_RUNNING, TASK_RELEASING].contains(&seen.state);
        let known = self.jobs[&job].tasks[seen.index as usize];
        if seen.is_over() {
            return;
        }
        if known.allocation == seen.allocation {
            self.job(job).tasks[seen.index as usize].is_bound |= is_bound;
            return;
        }
        let of = &self.jobs[&job];
        assert!(
            !known.is_bound || !of.is_fixed || of.is_cancelled,
            "{seen:?} of {of:?} was {known:?}, and nobody may evict it"
        );
        self.evicted += u64::from(known.is_bound);
        if let Some(id) = seen.allocation {
            assert!(self.ids.insert(id), "{seen:?} of {of:?} has an allocation that was there before");
        }
        let now = Task { allocation: seen.allocation, is_bound, is_running: false, end: known.end };
        self.job(job).tasks[seen.index as usize] = now;
    }

    fn note_end(&mut self, job: u64, seen: &SeenTask) {
        let known = self.jobs[&job].tasks[seen.index as usize];
        if let Some(end) = known.end {
            assert_eq!(seen.state, end, "{seen:?} of job {job} has ended");
            return;
        }
        let is_told = match seen.state {
            TASK_BOUND => !known.is_running,
            TASK_RUNNING => known.is_running || self.is_reported(job, &known, seen),
            // The tasks of a job that is cancelled fail.
            TASK_FAILED if self.jobs[&job].is_cancelled => {
                self.job(job).tasks[seen.index as usize].end = Some(TASK_FAILED);
                true
            }
            TASK_SUCCEEDED | TASK_FAILED => self.is_reported(job, &known, seen),
            TASK_PENDING => !self.jobs[&job].is_cancelled,
            _ => true,
        };
        assert!(is_told, "{seen:?} of job {job} was {known:?}");
    }

    /// Returns whether a report without a reply explains the state of a task.
    fn is_reported(&mut self, of: u64, known: &Task, seen: &SeenTask) -> bool {
        let Some(id) = known.allocation else { return false };
        let report = AskedJobs::Report { job: of, index: seen.index, allocation: id, state: seen.state };
        self.done(|asked| *asked == report)
    }
}

fn allocation(sequence: u64) -> AllocationId {
    AllocationId {
        incarnation: wharf_core::ids::Incarnation(1),
        partition: wharf_core::ids::PartitionId(0),
        sequence,
        tenant: wharf_core::ids::TenantId::OPERATOR,
    }
}

/// Returns what a service shows of job 1 with these tasks: their states and allocations.
fn shown(phase: u8, tasks: &[(u8, u64)]) -> SeenJobs {
    let task = |(index, &(state, id)): (u32, &(u8, u64))| SeenTask {
        index,
        state,
        allocation: (id > 0).then(|| allocation(id)),
        node: (id > 0).then_some(1),
    };
    let job = SeenJob {
        id: 1,
        name: "job".to_owned(),
        queue: "q".to_owned(),
        phase,
        counts: Vec::new(),
        tasks: (0..).zip(tasks).map(task).collect(),
    };
    SeenJobs { queues: Vec::new(), jobs: vec![job] }
}

/// What is told of job 1: its first task was reported as running, and its second one has succeeded.
fn told(is_fixed: bool) -> Told {
    let mut told = Told::default();
    let token = told.ask(AskedJobs::Submit { name: "job".to_owned(), tasks: 2, is_fixed });
    told.submitted(token, 1);
    told.compare(&shown(2, &[(TASK_BOUND, 1), (TASK_BOUND, 2)]));
    for (index, state) in [(0, TASK_RUNNING), (1, TASK_SUCCEEDED)] {
        let allocation = allocation(u64::from(index) + 1);
        let token = told.ask(AskedJobs::Report { job: 1, index, allocation, state });
        told.answer(token, true);
    }
    told
}

fn is_refused(mut told: Told, seen: &SeenJobs) -> bool {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| told.compare(seen))).is_err()
}

#[test]
fn the_oracle_of_jobs_finds_what_is_lost_and_what_runs_again() {
    const RUNS: u8 = wharf_net::protocol::JOB_RUNNING;
    let done = (TASK_SUCCEEDED, 0);
    for is_fixed in [false, true] {
        told(is_fixed).compare(&shown(RUNS, &[(TASK_RUNNING, 1), done]));
        // A task that nobody may evict stays.
        for moved in [(TASK_PENDING, 0), (TASK_BOUND, 3)] {
            assert_eq!(is_refused(told(is_fixed), &shown(RUNS, &[moved, done])), is_fixed, "{moved:?}");
        }
        let wrong: [&[(u8, u64)]; 6] = [
            // A report is lost, or nobody has made it.
            &[(TASK_BOUND, 1), done],
            &[(TASK_SUCCEEDED, 0), done],
            // What has succeeded runs again, is pending, or has failed.
            &[(TASK_RUNNING, 1), (TASK_BOUND, 3)],
            &[(TASK_RUNNING, 1), (TASK_PENDING, 0)],
            &[(TASK_RUNNING, 1), (TASK_FAILED, 0)],
            // It has an allocation that another task had.
            &[(TASK_BOUND, 2), done],
        ];
        for tasks in wrong {
            assert!(is_refused(told(is_fixed), &shown(RUNS, tasks)), "{tasks:?} is accepted");
        }
        // The phase is not that of the tasks, or nobody has cancelled the job.
        for phase in [JOB_COMPLETED, JOB_CANCELLED] {
            assert!(is_refused(told(is_fixed), &shown(phase, &[(TASK_RUNNING, 1), done])), "{phase}");
        }
        assert!(is_refused(told(is_fixed), &SeenJobs::default()), "a job is lost");
        let other = SeenJob { id: 2, ..shown(RUNS, &[(TASK_BOUND, 4), done]).jobs.remove(0) };
        let mut twice = shown(RUNS, &[(TASK_RUNNING, 1), done]);
        twice.jobs.push(other);
        assert!(is_refused(told(is_fixed), &twice), "a job is there that nobody has submitted");
    }
    // What is not bound yet may be given up, also by a job that nobody may evict.
    let mut starting = Told::default();
    let token = starting.ask(AskedJobs::Submit { name: "job".to_owned(), tasks: 1, is_fixed: true });
    starting.submitted(token, 1);
    for (state, id) in [(TASK_ALLOCATED, 1), (TASK_PENDING, 0), (TASK_ALLOCATED, 2), (TASK_BOUND, 2)] {
        starting.compare(&shown(2, &[(state, id)]));
    }
    assert!(is_refused(starting, &shown(2, &[(TASK_PENDING, 0)])));
    // One that was evicted never comes back to what it has left.
    let mut moved = told(false);
    moved.compare(&shown(RUNS, &[(TASK_BOUND, 3), done]));
    assert!(is_refused(moved, &shown(RUNS, &[(TASK_BOUND, 1), done])));
}

#[test]
fn requests_about_jobs_without_a_reply_are_decided_either_way() {
    const RUNS: u8 = wharf_net::protocol::JOB_RUNNING;
    let asked = || {
        let mut told = told(true);
        let allocation = allocation(1);
        told.ask(AskedJobs::Report { job: 1, index: 0, allocation, state: TASK_SUCCEEDED });
        told.ask(AskedJobs::Cancel { job: 1 });
        told
    };
    let done = (TASK_SUCCEEDED, 0);
    for (phase, first, decided) in [
        (RUNS, (TASK_RUNNING, 1), (0, 2)),
        (JOB_COMPLETED, done, (1, 1)),
        (JOB_CANCELLED, (TASK_FAILED, 0), (1, 1)),
        (JOB_CANCELLED, done, (2, 0)),
    ] {
        let mut told = asked();
        told.compare(&shown(phase, &[first, done]));
        assert_eq!(told.decided, decided, "{phase} {first:?}");
        // What is over stays as it is.
        told.compare(&shown(phase, &[first, done]));
        let changed = shown(RUNS, &[(TASK_BOUND, 7), done]);
        assert!(is_refused(told, &changed));
    }
}
