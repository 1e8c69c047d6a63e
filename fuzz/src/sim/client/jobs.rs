//! The queues and jobs of a client: its requests and the replies to them.

use std::collections::BTreeMap;

use wharf_net::codec::{FrameRef, decode_body};
use wharf_net::protocol::{
    AmountsBody, CancelJobRequest, DemandBody, JobBody, JobReply, JobStatusReply, JobStatusRequest, Kind,
    NamedAmount, PlaceRequest, QueueBody, QueueReply, Reason, ReasonCode, ReportTasksReply,
    ReportTasksRequest, RoleBody, SetQueueRequest, SubmitJobRequest, TASK_FAILED, TASK_RUNNING,
    TASK_SUCCEEDED, TaskGroupBody, TaskReportBody, WireAllocation,
};

use super::{Asked, Client};
use crate::sim::checkers::Verdict;
use crate::sim::checkers::jobs::{QUEUES, QueueOfSim, TOLD_ENDED, Told};
use crate::sim::choices::Choices;

/// One unit, in 1/10,000 of a unit.
const UNIT: i64 = 10_000;

/// The number of jobs that a client knows from which on it asks about them more often.
const JOBS_MANY: usize = 6;

/// The longest grace period of a cancelled job, in ns.
const GRACE_NS: u64 = 4_000;

/// A job that a client was told of.
#[derive(Debug, Default)]
pub(in crate::sim) struct Job {
    /// What must be true of it from now on.
    pub(in crate::sim) told: Told,
    /// The tasks that had an allocation when it was last looked at.
    allocated: Vec<(u32, WireAllocation)>,
}

/// The jobs that a client was told of, by number.
pub(in crate::sim) type Jobs = BTreeMap<u64, Job>;

/// Makes one of the queues, or says again what it is.
pub(in crate::sim) fn set_queue(client: &mut Client, queue: &QueueOfSim) -> Vec<u8> {
    let cap = queue.cpu_max.map(|cpu| NamedAmount { name: "cpu".to_owned(), amount: cpu });
    let body = QueueBody {
        name: queue.name.to_owned(),
        parent: queue.parent.to_owned(),
        capability: AmountsBody { amounts: cap.into_iter().collect() },
        ..QueueBody::default()
    };
    client.ask(Kind::SetQueue, &SetQueueRequest { queue: body }, Asked::SetQueue(queue.name))
}

/// Says again what one of the queues is.
pub(in crate::sim) fn set_some_queue(client: &mut Client, choices: &mut Choices<'_>) -> Vec<u8> {
    let queue = choices.place(QUEUES.len());
    set_queue(client, &QUEUES[queue])
}

fn task_group(choices: &mut Choices<'_>) -> TaskGroupBody {
    let demand = DemandBody {
        cpu: (choices.below(4) as i64 + 1) * UNIT / 2,
        memory: choices.below(3) as i64 * UNIT,
        gpu: [UNIT, 4_000, 0, 0, 0, 0][choices.place(6)],
        ..DemandBody::default()
    };
    TaskGroupBody {
        request: PlaceRequest { demand, policy: 1, ..PlaceRequest::default() },
        count: choices.below(3) as u32 + 1,
        role: 0,
        priority: choices.below(2) as i32,
        preemptable: !choices.one_in(4),
        ..TaskGroupBody::default()
    }
}

impl Client {
    /// Submits a job, looks at one, reports its tasks, or cancels it.
    pub(in crate::sim) fn ask_about_jobs(&mut self, choices: &mut Choices<'_>) -> Vec<u8> {
        let known: Vec<u64> = self.jobs.keys().copied().collect();
        if known.is_empty() || choices.one_in(if known.len() < JOBS_MANY { 2 } else { 6 }) {
            return self.submit_job(choices);
        }
        let number = *choices.pick(&known);
        let job = &self.jobs[&number];
        if choices.one_in(8) {
            let request = CancelJobRequest { job: number, grace: choices.below(2) * GRACE_NS };
            return self.ask(Kind::CancelJob, &request, Asked::CancelJob(number));
        }
        if job.allocated.is_empty() || choices.one_in(3) {
            let request = JobStatusRequest { job: number, from: 0, limit: 0 };
            return self.ask(Kind::JobStatus, &request, Asked::JobStatus(number));
        }
        let state = *choices.pick(&[TASK_RUNNING, TASK_SUCCEEDED, TASK_FAILED]);
        let mut tasks = Vec::new();
        for &(index, allocation) in &job.allocated {
            if tasks.is_empty() || choices.one_in(2) {
                tasks.push(TaskReportBody {
                    job: number,
                    index,
                    allocation,
                    state,
                    ..TaskReportBody::default()
                });
            }
        }
        let request = ReportTasksRequest { tasks: tasks.clone() };
        self.ask(Kind::ReportTasks, &request, Asked::ReportTasks(tasks))
    }

    fn submit_job(&mut self, choices: &mut Choices<'_>) -> Vec<u8> {
        self.jobs_made += 1;
        let groups: Vec<TaskGroupBody> = (0..=choices.below(2)).map(|_| task_group(choices)).collect();
        let tasks: u32 = groups.iter().map(|group| group.count).sum();
        let leaves: Vec<&QueueOfSim> = QUEUES.iter().filter(|queue| queue.is_leaf).collect();
        let job = JobBody {
            // Two clients may act for one tenant. They are of different kinds then.
            name: format!("{}-{}", self.is_exact, self.jobs_made),
            queue: choices.pick(&leaves).name.to_owned(),
            min_member: choices.below(u64::from(tasks) + 1) as u32,
            roles: vec![RoleBody { name: "task".to_owned(), min_member: 0 }],
            tasks: groups,
            priority: choices.below(3) as i32,
            ..JobBody::default()
        };
        self.ask(Kind::SubmitJob, &SubmitJobRequest { job }, Asked::SubmitJob)
    }

    pub(super) fn handle_queue(&mut self, frame: &FrameRef<'_>, name: &'static str) -> Verdict {
        let (reply, _) = decode_body::<QueueReply>(frame.payload).map_err(|error| error.to_string())?;
        // The queue above it may not be there.
        if reply.reason == Reason::UnknownQueue.into() {
            return Ok(());
        }
        done(reply.reason, &reply)?;
        self.queues.insert(name);
        Ok(())
    }

    pub(super) fn handle_submitted(&mut self, frame: &FrameRef<'_>) -> Verdict {
        let (reply, _) = decode_body::<JobReply>(frame.payload).map_err(|error| error.to_string())?;
        // A crash may have taken a queue back that nobody was told of.
        if reply.reason == Reason::UnknownQueue.into() {
            return Ok(());
        }
        done(reply.reason, &reply)?;
        match self.jobs.insert(reply.job, Job::default()) {
            None => Ok(()),
            Some(_) => Err(format!("job {} was submitted twice", reply.job)),
        }
    }

    pub(super) fn handle_job_cancelled(&mut self, frame: &FrameRef<'_>, job: u64) -> Verdict {
        let (reply, _) = decode_body::<JobReply>(frame.payload).map_err(|error| error.to_string())?;
        done(reply.reason, &reply)?;
        self.jobs.entry(job).or_default().told.is_over = true;
        Ok(())
    }

    pub(super) fn handle_job_status(&mut self, frame: &FrameRef<'_>, number: u64) -> Verdict {
        let (reply, _) = decode_body::<JobStatusReply>(frame.payload).map_err(|error| error.to_string())?;
        done(reply.reason, &reply)?;
        let job = self.jobs.entry(number).or_default();
        for task in &reply.tasks {
            if TOLD_ENDED.contains(&task.state) {
                job.told.ended.insert(task.index, task.state);
            }
        }
        let allocated = reply.tasks.iter().filter_map(|task| Some((task.index, task.allocation?)));
        job.allocated = allocated.collect();
        Ok(())
    }

    pub(super) fn handle_reported(&mut self, frame: &FrameRef<'_>, reports: &[TaskReportBody]) -> Verdict {
        let (reply, _) = decode_body::<ReportTasksReply>(frame.payload).map_err(|error| error.to_string())?;
        done(reply.reason, &reply)?;
        for (at, report) in (0..).zip(reports) {
            let is_end = TOLD_ENDED.contains(&report.state);
            let job = self.jobs.entry(report.job).or_default();
            if is_end {
                job.allocated.retain(|(index, _)| *index != report.index);
            }
            if is_end && !reply.outdated.contains(&at) {
                job.told.ended.insert(report.index, report.state);
            }
        }
        Ok(())
    }
}

fn done(reason: ReasonCode, reply: &impl std::fmt::Debug) -> Verdict {
    if reason.is_done() { Ok(()) } else { Err(format!("a request about jobs was answered with {reply:?}")) }
}
