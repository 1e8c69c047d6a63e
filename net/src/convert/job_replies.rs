//! Conversion between wire types and engine types: replies about queues and jobs.

use wharf_core::fairness::{Amounts, Dim};
use wharf_core::jobs::{
    JobError, JobSummary, JobsDone, JobsRejection, JobsReply, QueueError, QueueView, TaskState, TaskView,
};
use wharf_core::registrar::Catalog;
use wharf_core::resource::ResourceRegistry;

use super::invalid;
use super::jobs::{dim_name, job_phase_number, queue_body, task_state_number, wire_amounts};
use crate::limits::LIST_BYTES_MAX;
use crate::protocol::{
    Fault, JobReply, JobStatusReply, JobSummaryBody, Kind, ListJobsReply, ListQueuesReply, NamedAmount,
    QueueReply, QueueStatusBody, QueueUsageBody, Reason, ReportTasksReply, TaskBody, TaskCountBody,
    USED_AMOUNTS_MAX,
};

/// The reply to a request about queues or jobs.
pub(crate) enum JobsAnswer {
    /// Answers `SetQueue` and `RemoveQueue`.
    Queue(QueueReply),
    /// Answers `ListQueues`.
    Queues(ListQueuesReply),
    /// Answers `SubmitJob` and `CancelJob`.
    Job(JobReply),
    /// Answers `JobStatus`.
    Status(JobStatusReply),
    /// Answers `ListJobs`.
    Jobs(ListJobsReply),
    /// Answers `ReportTasks`.
    Reported(ReportTasksReply),
    /// Answers a request whose reply has no fault of its own.
    Fault(Fault),
}

impl JobsAnswer {
    /// Returns the reply with a fault to a request of this kind.
    pub(crate) fn of_fault(kind: Kind, fault: Fault) -> Self {
        match kind {
            Kind::SetQueue | Kind::RemoveQueue => Self::Queue(fault.into()),
            Kind::SubmitJob | Kind::CancelJob => Self::Job(fault.into()),
            Kind::JobStatus => Self::Status(fault.into()),
            Kind::ReportTasks => Self::Reported(fault.into()),
            _ => Self::Fault(fault),
        }
    }

    fn done(done: JobsDone) -> Self {
        match done {
            JobsDone::QueueSet | JobsDone::QueueRemoved => Self::Queue(QueueReply::default()),
            JobsDone::Submitted(job) | JobsDone::Cancelled(job) => {
                Self::Job(JobReply { job: job.0, ..JobReply::default() })
            }
            JobsDone::Reported(outdated) => {
                Self::Reported(ReportTasksReply { outdated, ..ReportTasksReply::default() })
            }
        }
    }
}

impl From<JobsDone> for JobsAnswer {
    fn from(done: JobsDone) -> Self {
        Self::done(done)
    }
}

/// What of a list is on the page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JobsPage {
    /// Queues after the one of this name. Empty: from the first on.
    pub(crate) after: String,
    /// The most elements.
    pub(crate) limit: usize,
}

/// Returns the maximum number of elements on a page, given the requested `limit`. `what` are the elements.
///
/// # Errors
/// Returns a fault if `limit` is larger than a page.
pub(crate) fn jobs_page_limit(limit: u32, most: usize, what: &str) -> Result<u16, Fault> {
    let asked = if limit == 0 { most } else { limit as usize };
    let limit = u16::try_from(asked).ok().filter(|_| asked <= most);
    limit
        .ok_or_else(|| invalid("limit", format!("{asked} {what}: give at most {most}, or 0 for a full page")))
}

/// Returns the reply to a request of this kind.
pub(crate) fn jobs_answer(
    kind: Kind,
    page: &JobsPage,
    reply: Result<JobsReply, JobsRejection>,
    catalog: &Catalog,
) -> JobsAnswer {
    match reply {
        Ok(JobsReply::Done(done)) => JobsAnswer::done(done),
        Ok(JobsReply::Queues(queues)) => JobsAnswer::Queues(queues_page(queues, page, &catalog.resources)),
        Ok(JobsReply::Job(view)) => JobsAnswer::Status(JobStatusReply {
            job: Some(summary(&view.job)),
            tasks: view.tasks.iter().map(|task| task_body(task, catalog)).collect(),
            more: view.more,
            ..JobStatusReply::default()
        }),
        Ok(JobsReply::Jobs(jobs)) => JobsAnswer::Jobs(ListJobsReply {
            more: jobs.len() >= page.limit,
            jobs: jobs.iter().map(summary).collect(),
        }),
        Err(rejection) => JobsAnswer::of_fault(kind, rejection_fault(kind, &rejection, &catalog.resources)),
    }
}

fn used(amounts: &Amounts, resources: &ResourceRegistry) -> Vec<NamedAmount> {
    wire_amounts(amounts.iter(), USED_AMOUNTS_MAX, resources)
}

/// Returns an upper bound on the bytes of a queue in a list.
fn queue_bytes(body: &QueueStatusBody) -> usize {
    // Lengths and numbers at their longest encoding.
    const NUMBERS: usize = 256;
    let (queue, usage) = (&body.queue, &body.usage);
    let deserved = queue.deserved.iter().flat_map(|deserved| &deserved.amounts);
    let given = queue.guarantee.amounts.iter().chain(&queue.capability.amounts).chain(deserved);
    let held = usage.held.iter().chain(&usage.pipelined).chain(&usage.releasing).chain(&usage.pending);
    let amounts = given.chain(held).chain(&body.deserved);
    let amounts: usize = amounts.map(|amount| amount.name.len() + 12).sum();
    NUMBERS + queue.name.len() + queue.parent.len() + amounts
}

/// Builds a page of queues in order of name, as many as the page may have and a frame holds.
fn queues_page(mut views: Vec<QueueView>, page: &JobsPage, resources: &ResourceRegistry) -> ListQueuesReply {
    views.sort_unstable_by(|a, b| a.spec.name.cmp(&b.spec.name));
    let first =
        if page.after.is_empty() { 0 } else { views.partition_point(|view| *view.spec.name <= *page.after) };
    let mut queues = Vec::new();
    let mut bytes = 0;
    for view in views.iter().skip(first).take(page.limit) {
        let body = queue_status(view, resources);
        bytes += queue_bytes(&body);
        if bytes > LIST_BYTES_MAX && !queues.is_empty() {
            break;
        }
        queues.push(body);
    }
    ListQueuesReply { more: first + queues.len() < views.len(), queues }
}

fn queue_status(view: &QueueView, resources: &ResourceRegistry) -> QueueStatusBody {
    let usage = &view.usage;
    QueueStatusBody {
        queue: queue_body(&view.spec, view.parent.as_deref(), resources),
        usage: QueueUsageBody {
            held: used(&usage.held, resources),
            pipelined: used(&usage.pipelined, resources),
            releasing: used(&usage.releasing, resources),
            pending: used(&usage.pending, resources),
        },
        has_deserved: view.deserved.is_some(),
        deserved: view.deserved.as_ref().map(|deserved| used(deserved, resources)).unwrap_or_default(),
        jobs: view.jobs,
        waiting: view.waiting,
    }
}

fn summary(job: &JobSummary) -> JobSummaryBody {
    let counts = TaskState::ALL.into_iter().zip(job.counts).filter(|&(_, count)| count > 0);
    JobSummaryBody {
        id: job.id.0,
        name: job.name.to_string(),
        queue: job.queue.to_string(),
        tenant: job.tenant.0,
        phase: job_phase_number(job.phase),
        priority: job.priority,
        min_member: job.min_member,
        counts: counts
            .map(|(state, count)| TaskCountBody { state: task_state_number(state), count })
            .collect(),
        created: job.created.0,
    }
}

fn task_body(task: &TaskView, catalog: &Catalog) -> TaskBody {
    let name = task.node.and_then(|node| catalog.node_name(node));
    TaskBody {
        index: task.index,
        role: task.role.to_string(),
        state: task_state_number(task.state),
        node: task.node.map_or(0, |node| node.0),
        node_name: name.map(ToString::to_string).unwrap_or_default(),
        allocation: task.allocation.map(Into::into),
        since: task.since.0,
    }
}

/// Returns the field of a request of this kind that names a queue.
fn queue_field(kind: Kind) -> &'static str {
    match kind {
        Kind::SetQueue => "queue.name",
        Kind::SubmitJob => "job.queue",
        Kind::ListJobs => "queue",
        _ => "name",
    }
}

fn queue_error(kind: Kind, error: &QueueError) -> (Reason, &'static str) {
    match error {
        QueueError::Exists(_) | QueueError::Root => (Reason::InvalidField, queue_field(kind)),
        QueueError::Unknown(_) if kind == Kind::SetQueue => (Reason::UnknownQueue, "queue.parent"),
        QueueError::Unknown(_) => (Reason::UnknownQueue, queue_field(kind)),
        QueueError::Cycle(_) | QueueError::TooDeep(_) | QueueError::HasJobs(_) => {
            (Reason::InvalidField, "queue.parent")
        }
        QueueError::Weight(_) => (Reason::InvalidField, "queue.weight"),
        QueueError::ChildrenGuarantee { .. } | QueueError::GuaranteeAboveCapability { .. } => {
            (Reason::InvalidField, "queue.guarantee")
        }
        QueueError::StarvesAboveShare { .. } => (Reason::InvalidField, "queue.starves_below"),
        QueueError::InUse(_) | QueueError::HasQueues(_) => (Reason::IllegalChange, queue_field(kind)),
    }
}

fn job_error(error: &JobError) -> (Reason, &'static str) {
    match error {
        JobError::Exists(_) => (Reason::InvalidField, "job.name"),
        JobError::UnknownQueue { .. } => (Reason::UnknownQueue, "job.queue"),
        JobError::ClosedQueue { .. } | JobError::InnerQueue { .. } => (Reason::InvalidField, "job.queue"),
        JobError::Empty(_) => (Reason::InvalidField, "job.tasks"),
        JobError::TooManyTasks { .. } | JobError::TooMuch { .. } => (Reason::LimitExceeded, "job.tasks"),
        JobError::MinMemberTooLarge { .. } => (Reason::LimitExceeded, "job.min_member"),
        JobError::MinMember { .. } => (Reason::InvalidField, "job.min_member"),
        JobError::RoleMinMember { .. } => (Reason::InvalidField, "job.roles"),
    }
}

/// Returns the resource that an error names.
fn dim_of(rejection: &JobsRejection) -> Option<Dim> {
    match rejection {
        JobsRejection::Queue(
            QueueError::ChildrenGuarantee { dim, .. } | QueueError::GuaranteeAboveCapability { dim, .. },
        )
        | JobsRejection::Job(JobError::TooMuch { dim, .. }) => Some(*dim),
        _ => None,
    }
}

/// Converts a rejection to the wire, with the names of custom kinds.
fn rejection_fault(kind: Kind, rejection: &JobsRejection, resources: &ResourceRegistry) -> Fault {
    let mut message = rejection.to_string();
    if let Some(dim) = dim_of(rejection) {
        let name = dim_name(dim, resources);
        message = message.replacen(&format!(" {dim} "), &format!(" {name} "), 1);
    }
    let (reason, field) = match rejection {
        JobsRejection::Queue(error) => queue_error(kind, error),
        JobsRejection::Job(error) => job_error(error),
        JobsRejection::UnknownJob(_) => (Reason::UnknownJob, "job"),
        JobsRejection::ForeignQueue(_) => (Reason::Forbidden, queue_field(kind)),
        JobsRejection::State { index, .. } => {
            return Fault::of_field(Reason::InvalidField, format!("tasks[{index}].state"), message);
        }
        JobsRejection::TooManyQueues(_) => (Reason::LimitExceeded, "queue"),
        JobsRejection::TooManyJobs(_) | JobsRejection::TooManyTasks(_) => (Reason::LimitExceeded, "job"),
    };
    Fault::of_field(reason, field, message)
}
