//! Requests about queues and jobs, which the keeper of jobs serves.

use wharf_core::group::PlanJob;
use wharf_core::ids::TenantId;
use wharf_core::jobs::{JobId, JobsRequest};
use wharf_core::limits::PLANNERS_MAX;

use super::ConnectionService;
use super::input::{Asked, read_body};
use super::operation::Parts;
use super::placing::Learning;
use super::questions::Asker;
use crate::convert::{
    JobsAnswer, JobsPage, asked_priorities, job_kinds_to_learn, job_spec, jobs_page_limit, nodes_request,
    priority_class, queue_kinds_to_learn, queue_spec, task_reports,
};
use crate::protocol::{
    CancelJobRequest, ExplainJobRequest, Fault, GRACE_NS_MAX, JOBS_PER_MESSAGE_MAX, JobBody,
    JobStatusRequest, Kind, ListJobsRequest, ListPriorityClassesRequest, ListQueuesRequest,
    PRIORITY_CLASSES_PER_MESSAGE_MAX, PlanNodesRequest, QUEUES_PER_MESSAGE_MAX, QueueBody, Reason,
    RemovePriorityClassRequest, RemoveQueueRequest, ReportTasksRequest, SetPriorityClassRequest,
    SetQueueRequest, SubmitJobRequest, TASKS_PER_MESSAGE_MAX,
};

impl ConnectionService {
    /// Executes a new request about queues or jobs.
    pub(super) fn handle_jobs(&mut self, asker: Asker, asked: &Asked<'_>) -> Result<(), Fault> {
        if !self.port.keeps_jobs() {
            let message = format!(
                "this service keeps no queues and no jobs: set `jobs.enabled` to true and `planners` to 1 to \
                 {PLANNERS_MAX}, and start the service again"
            );
            return Err(Fault::new(Reason::NotServed, message));
        }
        let tenant = self.tenant_of(asker);
        match asker.kind {
            Kind::SetQueue => {
                let SetQueueRequest { queue } = read_body(asked)?;
                self.handle_set_queue(asked.timed(asker), queue);
            }
            Kind::RemoveQueue => {
                let RemoveQueueRequest { name } = read_body(asked)?;
                self.submit_jobs(asked.timed(asker), 0, JobsRequest::RemoveQueue(name.into()));
            }
            Kind::ListQueues => {
                let ListQueuesRequest { after, limit } = read_body(asked)?;
                let limit = jobs_page_limit(limit, QUEUES_PER_MESSAGE_MAX, "queues")?;
                let after_name = (!after.is_empty()).then(|| after.as_str().into());
                let page = JobsPage { after, limit: usize::from(limit), ..JobsPage::default() };
                // One more tells whether there are more.
                let request = JobsRequest::ListQueues { tenant, after: after_name, limit: limit + 1 };
                self.submit_page(asked.timed(asker), page, request);
            }
            Kind::SetPriorityClass | Kind::RemovePriorityClass | Kind::ListPriorityClasses => {
                return self.handle_classes(asker, asked);
            }
            Kind::SubmitJob => {
                let SubmitJobRequest { job } = self.read_scoped(asker, asked)?;
                self.handle_submit_job(asked.timed(asker), job);
            }
            Kind::CancelJob => {
                let CancelJobRequest { job, grace: grace_ns } = read_body(asked)?;
                if grace_ns > GRACE_NS_MAX {
                    let message = format!("{grace_ns} ns: give at most {GRACE_NS_MAX} (365 days)");
                    return Err(Fault::of_field(Reason::InvalidField, "grace", message));
                }
                let request = JobsRequest::Cancel { job: JobId(job), tenant, grace_ns };
                self.submit_jobs(asked.timed(asker), 0, request);
            }
            Kind::JobStatus => {
                let JobStatusRequest { job, from, limit } = read_body(asked)?;
                let limit = jobs_page_limit(limit, TASKS_PER_MESSAGE_MAX, "tasks")?;
                let request = JobsRequest::Status { job: JobId(job), tenant, from, limit };
                self.submit_jobs(asked.timed(asker), limit, request);
            }
            Kind::ListJobs => {
                let ListJobsRequest { queue, after, limit } = read_body(asked)?;
                let limit = jobs_page_limit(limit, JOBS_PER_MESSAGE_MAX, "jobs")?;
                let request = JobsRequest::List {
                    tenant,
                    queue: (!queue.is_empty()).then(|| queue.into()),
                    after: (after > 0).then_some(JobId(after)),
                    limit,
                };
                self.submit_jobs(asked.timed(asker), limit, request);
            }
            Kind::ReportTasks => {
                let request: ReportTasksRequest = self.read_scoped(asker, asked)?;
                let tasks = task_reports(&request.tasks)?;
                self.submit_jobs(asked.timed(asker), 0, JobsRequest::Report { tenant, tasks });
            }
            Kind::ExplainJob => {
                let ExplainJobRequest { job, task } = read_body(asked)?;
                let request = JobsRequest::Explain { job: JobId(job), task, tenant };
                self.submit_jobs(asked.timed(asker), 0, request);
            }
            Kind::PlanNodes => {
                let request: PlanNodesRequest = self.read_scoped(asker, asked)?;
                let groups = request.groups.iter().map(|group| group.name.clone()).collect();
                let defaults = self.placement_defaults(asker.connection);
                let (request, idle) = nodes_request(request, self.port.catalog(), defaults)?;
                let page = JobsPage { groups, ..JobsPage::default() };
                let request = JobsRequest::PlanNodes { tenant, request: Box::new(request), idle };
                self.submit_page(asked.timed(asker), page, request);
            }
            other => unreachable!("{other:?} is not about jobs"),
        }
        Ok(())
    }

    /// Executes a new request about priority classes.
    fn handle_classes(&mut self, asker: Asker, asked: &Asked<'_>) -> Result<(), Fault> {
        let mut limit = 0;
        let request = match asker.kind {
            Kind::SetPriorityClass => {
                let SetPriorityClassRequest { class } = read_body(asked)?;
                match priority_class(class) {
                    Ok(class) => JobsRequest::SetPriorityClass(Box::new(class)),
                    Err(fault) => {
                        self.refuse_jobs(asked.timed(asker), fault.within("class"));
                        return Ok(());
                    }
                }
            }
            Kind::RemovePriorityClass => {
                let RemovePriorityClassRequest { name } = read_body(asked)?;
                JobsRequest::RemovePriorityClass(name.into())
            }
            Kind::ListPriorityClasses => {
                let request: ListPriorityClassesRequest = read_body(asked)?;
                limit = jobs_page_limit(request.limit, PRIORITY_CLASSES_PER_MESSAGE_MAX, "classes")?;
                let after = (!request.after.is_empty()).then(|| request.after.into());
                // One more tells whether there are more.
                JobsRequest::ListPriorityClasses { after, limit: limit + 1 }
            }
            other => unreachable!("{other:?} is not about priority classes"),
        };
        self.submit_jobs(asked.timed(asker), limit, request);
        Ok(())
    }

    /// Returns the tenant of the connection that asks. `None`: the operator, who sees all.
    pub(super) fn tenant_of(&self, asker: Asker) -> Option<TenantId> {
        self.connections[asker.connection].rights.tenant.as_ref().map(|tenant| tenant.limits.id)
    }

    /// Answers with a fault.
    pub(super) fn refuse_jobs(&mut self, asker: Asker, fault: Fault) {
        self.answer_jobs(asker, &JobsAnswer::of_fault(asker.kind, fault), asker.started);
    }

    fn handle_set_queue(&mut self, asker: Asker, queue: QueueBody) {
        match queue_kinds_to_learn(&queue, &self.port.catalog().resources) {
            Err(fault) => self.refuse_jobs(asker, fault.within("queue")),
            Ok(names) if names.is_empty() => self.set_queue(asker, queue),
            Ok(names) => self.ask_to_learn(asker, names, Learning::SetQueue(Box::new(queue))),
        }
    }

    /// Makes or changes a queue whose resource kinds are known.
    pub(super) fn set_queue(&mut self, asker: Asker, queue: QueueBody) {
        match queue_spec(queue, &self.port.catalog().resources) {
            Ok((spec, parent)) => {
                self.submit_jobs(asker, 0, JobsRequest::SetQueue { spec: Box::new(spec), parent });
            }
            Err(fault) => self.refuse_jobs(asker, fault.within("queue")),
        }
    }

    fn handle_submit_job(&mut self, asker: Asker, mut job: JobBody) {
        let bound = self.connections[asker.connection].rights.bound();
        if let Some(of) = bound.filter(|_| job.queue.is_empty()) {
            job.queue = of.queue().to_string();
        }
        let defaults = self.placement_defaults(asker.connection);
        match job_kinds_to_learn(&job, self.port.catalog(), defaults) {
            Err(fault) => self.refuse_jobs(asker, fault.within("job")),
            Ok(names) if names.is_empty() => self.submit_job(asker, job),
            Ok(names) => self.ask_to_learn(asker, names, Learning::SubmitJob(Box::new(job))),
        }
    }

    /// Submits a job whose resource kinds are known.
    pub(super) fn submit_job(&mut self, asker: Asker, job: JobBody) {
        let defaults = self.placement_defaults(asker.connection);
        let bound = self.connections[asker.connection].rights.bound().cloned();
        let queue = job.queue.as_str().into();
        let priorities = asked_priorities(&job);
        let spec = priorities.and_then(|asked| Ok((asked, job_spec(job, self.port.catalog(), defaults)?)));
        match spec {
            Ok((asked, spec)) => {
                let spec = Box::new(spec);
                let priorities = Some(Box::new(asked));
                self.submit_jobs(asker, 0, JobsRequest::Submit { spec, queue, bound, priorities });
            }
            Err(fault) => self.refuse_jobs(asker, fault.within("job")),
        }
    }

    fn submit_jobs(&mut self, asker: Asker, limit: u16, request: JobsRequest) {
        self.submit_page(asker, JobsPage { limit: usize::from(limit), ..JobsPage::default() }, request);
    }

    fn submit_page(&mut self, asker: Asker, page: JobsPage, request: JobsRequest) {
        self.submit_plan(asker, Parts::Jobs(page), PlanJob::Jobs(Box::new(request)));
    }
}
