//! The queues and jobs of a client: its requests and the replies to them.

use std::collections::BTreeMap;

use wharf_core::cycle::Backfill;
use wharf_core::ids::AllocationId;
use wharf_core::jobs::TaskId;
use wharf_core::time::Time;
use wharf_net::codec::{FrameRef, decode_body};
use wharf_net::protocol::{
    ACTION_ABORT_JOB, ACTION_COMPLETE_JOB, ACTION_RESTART_JOB, ACTION_RESTART_TASK, AmountsBody,
    CancelJobRequest, DemandBody, JOB_ABORTED, JOB_CANCELLED, JOB_COMPLETED, JOB_FAILED, JOB_RESTARTING,
    JOB_TOPOLOGY_HARD, JOB_TOPOLOGY_SOFT, JobBody, JobPolicyBody, JobReply, JobStatusReply, JobStatusRequest,
    JobTopologyBody, Kind, NamedAmount, NodeBody, NodeTypeBody, PlaceRequest, PlanNodesReply,
    PlanNodesRequest, PriorityClassBody, PriorityClassReply, QueueBody, QueueReply, Reason, ReasonCode,
    RemovePriorityClassRequest, ReportTasksReply, ReportTasksRequest, RoleBody, SetPriorityClassRequest,
    SetQueueRequest, SubmitJobRequest, TASK_EVENT_ANY, TASK_EVENT_COMPLETED, TASK_EVENT_EVICTED,
    TASK_EVENT_FAILED, TASK_FAILED, TASK_RUNNING, TASK_SUCCEEDED, TaskGroupBody, TaskReportBody,
    WireAllocation,
};

use super::{Asked, Client};
use crate::sim::Sharing;
use crate::sim::checkers::domains::TIERS;
use crate::sim::checkers::jobs::{TOLD_ENDED, Told};
use crate::sim::checkers::plans::plans_keep_their_limits;
use crate::sim::checkers::queues::{
    FAIR_SHARE_PATIENCE_NS, GUARANTEE_PATIENCE_NS, QUEUES, QueueOfSim, STARVES_BELOW, leaves,
};
use crate::sim::checkers::{Verdict, named};
use crate::sim::choices::Choices;
use crate::sim::script::in_zone;

/// The priority classes.
const CLASSES: [&str; 3] = ["c0", "c1", "c2"];

/// One unit, in 1/10,000 of a unit.
const UNIT: i64 = 10_000;

/// The number of jobs that a client knows from which on it asks about them more often.
const JOBS_MANY: usize = 6;

/// The longest grace period of a cancelled job, in ns.
const GRACE_NS: u64 = 4_000;

/// The longest timeout of a job policy, in ns. Less than what passes in a step at rest.
const TIMEOUT_NS: u64 = 4_000;

/// The run time of tasks that end late, in ns.
const RUN_TIME_LONG_NS: u64 = 60_000;

/// A job that a client was told of.
#[derive(Debug, Default)]
pub(in crate::sim) struct Job {
    /// Whether policies may restart it, or tasks of it.
    has_policies: bool,
    /// What must be true of it from now on.
    pub(in crate::sim) told: Told,
    /// The tasks that had an allocation when it was last looked at.
    allocated: Vec<(u32, WireAllocation)>,
}

/// The jobs that a client was told of, by number.
pub(in crate::sim) type Jobs = BTreeMap<u64, Job>;

/// Makes one of the queues, or says again what it is.
pub(in crate::sim) fn set_queue(client: &mut Client, queue: &QueueOfSim) -> Vec<u8> {
    let amounts = |list: &[(&str, i64)]| AmountsBody {
        amounts: list.iter().map(|&(name, amount)| NamedAmount { name: name.to_owned(), amount }).collect(),
    };
    let sharing = client.job_rules.map(|rules| rules.sharing);
    let body = QueueBody {
        name: queue.name.to_owned(),
        parent: queue.parent.to_owned(),
        capability: amounts(queue.capability),
        allocations_max: queue.allocations_max,
        weight: queue.weight,
        usage_half_life: queue.half_life,
        ..QueueBody::default()
    };
    let body = match sharing {
        Some(Sharing::Given) => {
            QueueBody { guarantee: amounts(queue.guarantee), deserved: Some(amounts(queue.deserved)), ..body }
        }
        Some(Sharing::Deserved) => QueueBody { guarantee: amounts(queue.guarantee), ..body },
        Some(Sharing::Starved) => QueueBody {
            guarantee: amounts(queue.guarantee),
            ordering: queue.ordering,
            starves_below: Some(STARVES_BELOW),
            fair_share_patience: Some(FAIR_SHARE_PATIENCE_NS),
            guarantee_patience: Some(GUARANTEE_PATIENCE_NS),
            ..body
        },
        _ => body,
    };
    client.ask(Kind::SetQueue, &SetQueueRequest { queue: body }, Asked::SetQueue(queue.name))
}

/// Says again what one of the queues is. Or makes, changes or removes a priority class.
pub(in crate::sim) fn set_some_queue(client: &mut Client, choices: &mut Choices<'_>) -> Vec<u8> {
    let queue = choices.place(QUEUES.len());
    let class = CLASSES[queue % CLASSES.len()];
    let is_asked = |asked: &Asked| matches!(asked, Asked::ChangeClass(name, _) if *name == class);
    if client.next.is_multiple_of(2) && !client.pending.values().any(|pending| is_asked(&pending.asked)) {
        return change_class(client, class);
    }
    set_queue(client, &QUEUES[queue])
}

/// Changes a priority class of which no change is under way. Nobody else changes it.
fn change_class(client: &mut Client, class: &'static str) -> Vec<u8> {
    client.classes.remove(class);
    let name = class.to_owned();
    if client.next.is_multiple_of(4) {
        let request = RemovePriorityClassRequest { name };
        return client.ask(Kind::RemovePriorityClass, &request, Asked::ChangeClass(class, None));
    }
    let value = i32::try_from(client.next).expect("a run has few requests");
    let body = PriorityClassBody { name, value, ..PriorityClassBody::default() };
    let request = SetPriorityClassRequest { class: body };
    client.ask(Kind::SetPriorityClass, &request, Asked::ChangeClass(class, Some(value)))
}

/// Returns how long tasks may run, in ns: some end soon, some late, and some never.
fn run_time(choices: &mut Choices<'_>) -> Option<u64> {
    match choices.below(5) {
        0 => None,
        1 => Some(RUN_TIME_LONG_NS),
        2 => Some(1 + choices.below(1_000)),
        _ => Some(500 + choices.below(8_000)),
    }
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
        priority: Some(choices.below(2) as i32),
        preemptable: !choices.one_in(4),
        ..TaskGroupBody::default()
    }
}

/// Returns the policies of a job or of a task group.
fn policies(choices: &mut Choices<'_>) -> Vec<JobPolicyBody> {
    let policy = |choices: &mut Choices<'_>| {
        let event =
            *choices.pick(&[TASK_EVENT_FAILED, TASK_EVENT_EVICTED, TASK_EVENT_COMPLETED, TASK_EVENT_ANY]);
        let actions = [ACTION_RESTART_TASK, ACTION_RESTART_JOB, ACTION_COMPLETE_JOB, ACTION_ABORT_JOB];
        // What has succeeded is not restarted alone.
        let first = usize::from(event == TASK_EVENT_COMPLETED);
        let action = *choices.pick(&actions[first..]);
        let timeout = choices.one_in(3).then(|| choices.below(TIMEOUT_NS) + 1);
        JobPolicyBody { events: vec![event], action, exit_code: None, timeout }
    };
    (0..choices.below(3)).map(|_| policy(choices)).collect()
}

/// Returns in which domains a job, and each of its task groups, must be.
fn topologies(choices: &mut Choices<'_>) -> (Option<JobTopologyBody>, Option<JobTopologyBody>) {
    let [rack, row] = TIERS.map(|tier| {
        let tier = tier.to_owned();
        Some(JobTopologyBody { mode: JOB_TOPOLOGY_HARD, tier })
    });
    let soft = Some(JobTopologyBody { mode: JOB_TOPOLOGY_SOFT, tier: String::new() });
    match choices.below(10) {
        0 => (row, None),
        1 => (rack, None),
        2 => (row, rack),
        3 => (None, row),
        4 => (soft, rack),
        _ => (None, None),
    }
}

/// Has some task groups of a job, or all of them, ask for nothing. Its tasks are of two roles with minima.
fn ask_for_nothing(job: &mut JobBody, choices: &mut Choices<'_>) {
    let mut of_roles = [0; 2];
    for group in &mut job.tasks {
        group.role = choices.below(2) as u32;
        of_roles[group.role as usize] += group.count;
        if choices.below(3) > 0 {
            group.request.demand = DemandBody::default();
        }
        if choices.one_in(2) {
            group.request.selectors = vec![in_zone(choices)];
        }
    }
    job.min_member = choices.below(u64::from(of_roles[0] + of_roles[1])) as u32 + 1;
    let role = |(name, tasks): (&str, u32)| RoleBody {
        name: name.to_owned(),
        min_member: choices.below(u64::from(tasks) + 1) as u32,
    };
    job.roles = ["first", "second"].into_iter().zip(of_roles).map(role).collect();
}

/// Asks for a plan of nodes of two types.
fn plan_request(choices: &mut Choices<'_>) -> PlanNodesRequest {
    let node_type = |name: &str, cores: i64, choices: &mut Choices<'_>| {
        let launching = choices.below(3) as u32;
        let name = name.to_owned();
        let node = NodeBody { name, cpu: cores * UNIT, memory: 8 * UNIT, ..NodeBody::default() };
        let min = choices.below(2) as u32;
        NodeTypeBody {
            node,
            min,
            max: min + choices.below(4) as u32 + 1,
            launching,
            launch_time: choices.below(2) * GRACE_NS,
            idle_timeout: None,
        }
    };
    PlanNodesRequest {
        types: vec![node_type("small", 1, choices), node_type("large", 4, choices)],
        // At least what is there in any case.
        nodes_max: choices.one_in(2).then(|| choices.below(6) as u32 + 2),
        upscaling_speed: choices.below(3) as u32 * 5_000,
        launches_max: choices.below(4) as u32 + 1,
        idle_timeout: choices.one_in(2).then_some(GRACE_NS),
        horizon: choices.below(2) * 4 * GRACE_NS,
        ..PlanNodesRequest::default()
    }
}

impl Client {
    /// Submits a job, looks at one, reports its tasks, or cancels it. Or places in a queue, or releases that.
    pub(in crate::sim) fn ask_about_jobs(&mut self, choices: &mut Choices<'_>, now: Time) -> Vec<u8> {
        if choices.one_in(24) {
            let request = plan_request(choices);
            return self.ask(Kind::PlanNodes, &request, Asked::PlanNodes(Box::new(request.clone())));
        }
        if choices.one_in(4) {
            return self.ask_about_placements(choices, now);
        }
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

    /// Submits a job.
    pub(in crate::sim) fn submit_job(&mut self, choices: &mut Choices<'_>) -> Vec<u8> {
        self.jobs_made += 1;
        let groups: Vec<TaskGroupBody> = (0..=choices.below(2)).map(|_| task_group(choices)).collect();
        let tasks: u32 = groups.iter().map(|group| group.count).sum();
        let mut groups = groups;
        let has_policies = choices.one_in(2);
        let of_job = if has_policies { policies(choices) } else { Vec::new() };
        if has_policies {
            groups.iter_mut().for_each(|group| group.policies = policies(choices));
        }
        let max_retry = choices.below(4) as u32;
        let leaves: Vec<&QueueOfSim> = leaves().collect();
        let (topology, of_groups) = topologies(choices);
        groups.iter_mut().for_each(|group| group.topology.clone_from(&of_groups));
        let mut job = JobBody {
            // Two clients may act for one tenant. They are of different kinds then.
            name: format!("{}-{}", self.is_exact, self.jobs_made),
            queue: choices.pick(&leaves).name.to_owned(),
            min_member: choices.below(u64::from(tasks) + 1) as u32,
            roles: vec![RoleBody { name: "task".to_owned(), min_member: 0 }],
            tasks: groups,
            priority: Some(choices.below(3) as i32),
            policies: of_job,
            max_retry,
            min_success: choices.one_in(4).then(|| choices.below(u64::from(tasks)) as u32 + 1),
            user: (*choices.pick(&["", "ann", "bob"])).to_owned(),
            topology,
            ..JobBody::default()
        };
        let rules = self.job_rules.expect("a run with jobs has rules for them");
        if rules.best_effort && choices.one_in(2) {
            ask_for_nothing(&mut job, choices);
        }
        if rules.backfill != Backfill::None {
            job.tasks.iter_mut().for_each(|group| group.run_time = run_time(choices));
        }
        let restarts = has_policies.then_some(max_retry);
        self.ask(Kind::SubmitJob, &SubmitJobRequest { job }, Asked::SubmitJob(restarts))
    }

    /// Reports that tasks of its jobs have succeeded, each in an allocation.
    pub(in crate::sim) fn report_success(&mut self, tasks: &[(TaskId, AllocationId)]) -> Vec<u8> {
        let report = |&(task, allocation): &(TaskId, AllocationId)| TaskReportBody {
            job: task.job.0,
            index: task.index,
            allocation: allocation.into(),
            state: TASK_SUCCEEDED,
            ..TaskReportBody::default()
        };
        let tasks: Vec<TaskReportBody> = tasks.iter().map(report).collect();
        let request = ReportTasksRequest { tasks: tasks.clone() };
        self.ask(Kind::ReportTasks, &request, Asked::ReportTasks(tasks))
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

    /// Notes what a priority class is from now on.
    pub(super) fn handle_class(
        &mut self,
        frame: &FrameRef<'_>,
        (name, value): (&'static str, Option<i32>),
    ) -> Verdict {
        let (reply, _) =
            decode_body::<PriorityClassReply>(frame.payload).map_err(|error| error.to_string())?;
        let was_not_there = value.is_none() && reply.reason == Reason::UnknownPriorityClass.into();
        if !was_not_there {
            done(reply.reason, &reply)?;
        }
        self.classes.insert(name, value);
        Ok(())
    }

    pub(super) fn handle_submitted(&mut self, frame: &FrameRef<'_>, max_retry: Option<u32>) -> Verdict {
        let (reply, _) = decode_body::<JobReply>(frame.payload).map_err(|error| error.to_string())?;
        // A crash may have taken a queue back that nobody was told of.
        if reply.reason == Reason::UnknownQueue.into() {
            return Ok(());
        }
        done(reply.reason, &reply)?;
        let told = Told { max_retry: Some(max_retry.unwrap_or(0)), ..Told::default() };
        let job = Job { has_policies: max_retry.is_some(), told, ..Job::default() };
        match self.jobs.insert(reply.job, job) {
            None => Ok(()),
            Some(_) => Err(format!("job {} was submitted twice", reply.job)),
        }
    }

    /// Forgets what it was told of how jobs are: it may have been shown what was not durable.
    pub(in crate::sim) fn forget_statuses(&mut self) {
        for job in self.jobs.values_mut() {
            let max_retry = job.told.max_retry;
            job.told = Told { max_retry, ..Told::default() };
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
        let told = &mut job.told;
        let summary = reply.job.as_ref().ok_or("a status without its job")?;
        if told.max_retry.is_some_and(|most| summary.restarts > most) {
            return Err(format!("job {number} was restarted {} times: {told:?}", summary.restarts));
        }
        if summary.restarts < told.restarts {
            // It was written before another one that came earlier.
            return Ok(());
        }
        if summary.restarts > told.restarts {
            told.restarts = summary.restarts;
            told.ended.clear();
        }
        told.is_over |= [JOB_COMPLETED, JOB_CANCELLED, JOB_ABORTED, JOB_FAILED].contains(&summary.phase);
        for task in &reply.tasks {
            // Of a job that restarts, tasks that have ended are about to be pending again.
            if TOLD_ENDED.contains(&task.state) && summary.phase != JOB_RESTARTING {
                told.ended.insert(task.index, task.state);
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
            // The reply does not tell what a policy did.
            if is_end && !job.has_policies && !reply.outdated.contains(&at) {
                job.told.ended.insert(report.index, report.state);
            }
        }
        Ok(())
    }
}

/// Checks a plan of nodes. Only one is made at a time.
pub(super) fn handle_plan(frame: &FrameRef<'_>, request: &PlanNodesRequest) -> Verdict {
    let (reply, _) = decode_body::<PlanNodesReply>(frame.payload).map_err(|error| error.to_string())?;
    if reply.reason == Reason::Overloaded.into() {
        return Ok(());
    }
    done(reply.reason, &reply)?;
    named("plans_keep_their_limits", plans_keep_their_limits(request, &reply))
}

fn done(reason: ReasonCode, reply: &impl std::fmt::Debug) -> Verdict {
    if reason.is_done() { Ok(()) } else { Err(format!("a request about jobs was answered with {reply:?}")) }
}
