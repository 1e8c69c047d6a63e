//! Requests about queues and jobs.

use std::sync::Arc;

use super::{Ended, Keeper};
use crate::group::PlanReply;
use crate::ids::TenantId;
use crate::jobs::{
    AskedPriorities, JobError, JobId, JobPhase, JobSpec, JobView, JobsDone, JobsRejection, JobsReply,
    JobsRequest, PriorityClass, QueueContents, QueueError, QueueId, QueueSpec, QueueView, Task, TaskReport,
    TaskState, TaskView,
};
use crate::limits::{DOMAIN_BYTES_PER_PAGE_MAX, JOBS_MAX, QUEUES_MAX, USERS_LOOKED_AT_MAX};
use crate::planner::queue::PortClient;
use crate::planner::{JobTag, Planner};
use crate::time::Time;

type Answer = Result<JobsReply, JobsRejection>;

impl Planner {
    /// Begins a request about jobs, and answers it.
    pub(in crate::planner) fn handle_jobs(
        &mut self,
        tag: JobTag,
        client: PortClient,
        request: JobsRequest,
        now: Time,
    ) {
        if let JobsRequest::PlanNodes { tenant, request, idle } = request {
            if let Err(rejection) = self.plan_nodes((tag, client), *request, tenant, idle) {
                self.reply(tag, PlanReply::Jobs(Err(rejection)));
            }
            return;
        }
        let groups =
            if let JobsRequest::RemoveQueue(name) = &request { self.uncharged_groups(name) } else { 0 };
        let keeper = self.keeper_mut();
        let mut ended = Ended::default();
        let answer = match request {
            JobsRequest::SetQueue { spec, parent } => keeper.set_queue(*spec, parent, now),
            JobsRequest::RemoveQueue(name) => keeper.remove_queue(&name, groups),
            JobsRequest::ListQueues { tenant, after, limit } => {
                Ok(JobsReply::Queues(keeper.list_queues(tenant, after.as_deref(), limit, now)))
            }
            JobsRequest::SetPriorityClass(class) => keeper.set_class(*class),
            JobsRequest::RemovePriorityClass(name) => keeper.remove_class(&name),
            JobsRequest::ListPriorityClasses { after, limit } => {
                let classes = keeper.jobs().classes_after(after.as_deref()).take(usize::from(limit));
                Ok(JobsReply::Classes(classes.cloned().collect()))
            }
            JobsRequest::Submit { spec, queue, bound, priorities } => {
                let binding = keeper.jobs().check_binding(&queue, spec.tenant, bound.as_deref());
                let submit = |()| keeper.submit(*spec, priorities.as_deref(), &queue, now);
                binding.map_err(Into::into).and_then(submit)
            }
            JobsRequest::Cancel { job, tenant, grace_ns } => {
                keeper.cancel(job, tenant, &mut ended, grace_ns, now)
            }
            JobsRequest::Status { job, tenant, from, limit } => keeper.status(job, tenant, from, limit),
            JobsRequest::Explain { job, task, tenant } => {
                return self.begin_explaining(tag, client, (job, task), tenant);
            }
            JobsRequest::List { tenant, queue, after, limit } => {
                keeper.list(tenant, queue.as_deref(), after, limit)
            }
            JobsRequest::Report { tenant, tasks } => keeper.report(tenant, &tasks, &mut ended, now),
            JobsRequest::PlanNodes { .. } => unreachable!("answered when the plan is made"),
        };
        keeper.end_jobs(&mut ended, now);
        if !ended.released.is_empty() {
            // In the unit that is recorded before anything is released.
            if let Ok(JobsReply::Done(done)) = &answer {
                self.note_deed(tag, crate::state::Deed::Jobs(done.clone()));
                self.origins.remove(&tag);
            }
        }
        self.take_ended(ended);
        self.reply(tag, PlanReply::Jobs(answer));
    }
}

impl Keeper {
    fn set_queue(&mut self, spec: QueueSpec, parent: Option<Arc<str>>, now: Time) -> Answer {
        let jobs = self.scheduler.jobs_mut();
        if let Some(id) = jobs.queue_named(&spec.name) {
            if id == QueueId::ROOT {
                return Err(QueueError::Root.into());
            }
            let own = jobs.queue(id).spec().parent;
            if parent.is_some_and(|parent| jobs.queue_named(&parent) != Some(own)) {
                let parent = Arc::clone(&jobs.queue(own).spec().name);
                return Err(QueueError::ParentFixed { queue: spec.name, parent }.into());
            }
            jobs.update_queue(id, spec, now)?;
        } else {
            let queues = jobs.named_queues().count();
            if queues >= QUEUES_MAX {
                return Err(JobsRejection::TooManyQueues(queues));
            }
            if parent.as_ref() == Some(&spec.name) {
                return Err(QueueError::Cycle(spec.name).into());
            }
            let parent = match parent {
                None => QueueId::ROOT,
                Some(name) => jobs.queue_named(&name).ok_or(QueueError::Unknown(name))?,
            };
            jobs.add_queue(QueueSpec { parent, ..spec })?;
        }
        Ok(JobsReply::Done(JobsDone::QueueSet))
    }

    /// Removes a queue. `groups` are those in it without a placed bundle.
    fn remove_queue(&mut self, name: &Arc<str>, groups: usize) -> Answer {
        let id = self.jobs().queue_named(name).ok_or_else(|| QueueError::Unknown(Arc::clone(name)))?;
        if groups > 0 {
            let has = QueueContents { groups, ..self.jobs().queue(id).contents() };
            return Err(QueueError::InUse { queue: Arc::clone(name), has }.into());
        }
        // Ended jobs do not keep a queue from being removed.
        let jobs: Vec<JobId> = self.jobs().queue(id).jobs().collect();
        let all_ended = jobs.iter().all(|&job| self.jobs().job(job).has_ended());
        let has_direct = self.jobs().queue(id).direct().len() > 0;
        if all_ended && !has_direct && self.jobs().queue(id).is_leaf() {
            jobs.into_iter().for_each(|job| self.forget(job));
        }
        self.jobs_mut().remove_queue(id)?;
        Ok(JobsReply::Done(JobsDone::QueueRemoved))
    }

    fn list_queues(
        &self,
        tenant: Option<TenantId>,
        after: Option<&str>,
        limit: u16,
        now: Time,
    ) -> Vec<QueueView> {
        let jobs = self.jobs();
        let is_seen = |spec: &QueueSpec| tenant.is_none() || spec.tenant.is_none() || spec.tenant == tenant;
        let queues = jobs.queues_after(after).filter(|&id| is_seen(jobs.queue(id).spec()));
        let mut looked_at = 0;
        let view = |id: QueueId| {
            let queue = jobs.queue(id);
            let spec = queue.spec().clone();
            let count = jobs.user_count(id);
            looked_at += count;
            let users = if looked_at <= USERS_LOOKED_AT_MAX { jobs.users(id, now) } else { Vec::new() };
            let parent = Some(spec.parent).filter(|&parent| parent != QueueId::ROOT);
            QueueView {
                parent: parent.map(|parent| Arc::clone(&jobs.queue(parent).spec().name)),
                spec,
                usage: queue.usage().clone(),
                deserved: self.scheduler.deserved(id).cloned(),
                past: jobs.past_use(id, now),
                more_users: u32::try_from(count - users.len()).unwrap_or(u32::MAX),
                users,
                jobs: u32::try_from(queue.jobs().len()).unwrap_or(u32::MAX),
                waiting: u32::try_from(queue.waiting().len()).unwrap_or(u32::MAX),
                direct: u32::try_from(queue.contents().direct).unwrap_or(u32::MAX),
            }
        };
        queues.take(usize::from(limit)).map(view).collect()
    }

    fn set_class(&mut self, class: PriorityClass) -> Answer {
        self.jobs_mut().set_priority_class(class)?;
        Ok(JobsReply::Done(JobsDone::ClassSet))
    }

    fn remove_class(&mut self, name: &Arc<str>) -> Answer {
        self.jobs_mut().remove_priority_class(name)?;
        Ok(JobsReply::Done(JobsDone::ClassRemoved))
    }

    fn submit(
        &mut self,
        mut spec: JobSpec,
        priorities: Option<&AskedPriorities>,
        queue: &Arc<str>,
        now: Time,
    ) -> Answer {
        let tasks: u64 = spec.tasks.iter().map(|group| u64::from(group.count)).sum();
        let live = self.live_jobs();
        if live >= JOBS_MAX {
            return Err(JobsRejection::TooManyJobs(live));
        }
        let all = (self.tasks - self.ended_tasks).saturating_add(tasks);
        if all > self.tasks_max {
            return Err(JobsRejection::TooManyTasks(all));
        }
        let Some(id) = self.jobs().queue_named(queue) else {
            return Err(JobError::UnknownQueue { job: spec.name, queue: Arc::clone(queue) }.into());
        };
        let foreign = |owner: TenantId| owner != spec.tenant && spec.tenant != TenantId::OPERATOR;
        if self.jobs().queue(id).spec().tenant.is_some_and(foreign) {
            return Err(JobsRejection::ForeignQueue(Arc::clone(queue)));
        }
        priorities.map_or(Ok(()), |asked| self.jobs().resolve_priorities(&mut spec, asked))?;
        let spec = JobSpec { queue: id, created: now, phase: JobPhase::Pending, ..spec };
        let job = self.jobs_mut().submit(spec)?;
        self.tasks += tasks;
        while self.tasks > self.tasks_max {
            self.forget_oldest();
        }
        Ok(JobsReply::Done(JobsDone::Submitted(job)))
    }

    /// Returns a job that the tenant may see.
    pub(super) fn visible(&self, id: JobId, tenant: Option<TenantId>) -> Result<JobId, JobsRejection> {
        self.own(id, tenant, |spec| !spec.is_direct)
    }

    /// Returns a job that the tenant may have explained: one that it may see, or its placement that waits.
    pub(super) fn explainable(&self, id: JobId, tenant: Option<TenantId>) -> Result<JobId, JobsRejection> {
        self.own(id, tenant, |spec| !spec.is_direct || self.directs.waits.has(id))
    }

    /// Returns a job of the tenant that meets a condition.
    fn own(
        &self,
        id: JobId,
        tenant: Option<TenantId>,
        is_it: impl Fn(&JobSpec) -> bool,
    ) -> Result<JobId, JobsRejection> {
        let is_own = |id: &JobId| {
            let spec = self.jobs().job(*id).spec();
            tenant.is_none_or(|tenant| spec.tenant == tenant) && is_it(spec)
        };
        let known = Some(id).filter(|&id| self.jobs().has_job(id)).filter(is_own);
        known.ok_or(JobsRejection::UnknownJob(id))
    }

    fn cancel(
        &mut self,
        id: JobId,
        tenant: Option<TenantId>,
        ended: &mut Ended,
        grace_ns: u64,
        now: Time,
    ) -> Answer {
        self.visible(id, tenant)?;
        if self.jobs().job(id).has_ended() {
            return Ok(JobsReply::Done(JobsDone::Cancelled(id)));
        }
        // Once more: what is in its grace period may end at once.
        if self.jobs().job(id).phase() != JobPhase::Cancelled {
            self.jobs_mut().set_phase(id, JobPhase::Cancelled);
        }
        self.end_job(id, grace_ns, grace_ns == 0, ended, now);
        Ok(JobsReply::Done(JobsDone::Cancelled(id)))
    }

    fn report(
        &mut self,
        tenant: Option<TenantId>,
        reports: &[TaskReport],
        ended: &mut Ended,
        now: Time,
    ) -> Answer {
        let reportable = [TaskState::Running, TaskState::Succeeded, TaskState::Failed];
        for (index, report) in (0..).zip(reports) {
            if !reportable.contains(&report.state) {
                return Err(JobsRejection::State { index, state: report.state });
            }
            if report.exit_code.is_some() && report.state != TaskState::Failed {
                return Err(JobsRejection::ExitCode { index, state: report.state });
            }
        }
        let mut outdated = Vec::new();
        for (index, &TaskReport { task: id, allocation, state, exit_code }) in (0..).zip(reports) {
            let is_there = self.visible(id.job, tenant).is_ok() && self.holds(id, allocation);
            let before = is_there.then(|| self.jobs().task(id).clone());
            let Some(before) = before.filter(|task| task.state != TaskState::Pipelined) else {
                outdated.push(index);
                continue;
            };
            if state.is_end() {
                if state == TaskState::Succeeded {
                    self.jobs_mut().task_succeeded(id, now);
                } else {
                    self.jobs_mut().task_failed(id, exit_code, now);
                }
                ended.released.push(allocation);
                self.settle(id.job);
            } else if before.state.holds() && before.state != state {
                self.jobs_mut().set(id, state, before.node, now);
            }
        }
        Ok(JobsReply::Done(JobsDone::Reported(outdated)))
    }

    fn status(&self, id: JobId, tenant: Option<TenantId>, from: u32, limit: u16) -> Answer {
        self.visible(id, tenant)?;
        let job = self.jobs().job(id);
        let view = |(index, task): (u32, &Task)| TaskView {
            index,
            role: Arc::clone(&job.spec().roles[task.role as usize].name),
            state: task.state,
            node: task.node,
            allocation: task.allocation,
            domain: task.node.and_then(|node| self.scheduler.domain_path(node)),
            since: task.since,
        };
        let tasks = (0..).zip(job.tasks()).skip(from as usize).take(usize::from(limit));
        let mut domain_bytes = 0;
        let fits = |task: &TaskView| {
            let before = domain_bytes;
            domain_bytes += task.domain.as_ref().map_or(0, |domain| domain.len());
            before <= DOMAIN_BYTES_PER_PAGE_MAX
        };
        let tasks: Vec<TaskView> = tasks.map(view).take_while(fits).collect();
        let more = from as usize + tasks.len() < job.tasks().len();
        Ok(JobsReply::Job(Box::new(JobView { job: self.jobs().summary(id), tasks, more })))
    }

    fn list(
        &self,
        tenant: Option<TenantId>,
        queue: Option<&str>,
        after: Option<JobId>,
        limit: u16,
    ) -> Answer {
        let jobs = self.jobs();
        let of_queue = match queue {
            None => None,
            Some(name) => Some(jobs.queue_named(name).ok_or_else(|| QueueError::Unknown(name.into()))?),
        };
        let is_own = |&id: &JobId| tenant.is_none_or(|tenant| jobs.job(id).spec().tenant == tenant);
        let limit = usize::from(limit);
        let page: Vec<JobId> = match of_queue {
            Some(queue) => jobs.queue(queue).jobs_after(after).filter(is_own).take(limit).collect(),
            None => jobs.ids_after(after).filter(is_own).take(limit).collect(),
        };
        Ok(JobsReply::Jobs(page.into_iter().map(|id| jobs.summary(id)).collect()))
    }
}
