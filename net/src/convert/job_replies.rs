//! Conversion between wire types and engine types: replies about queues and jobs.

use std::borrow::Cow;

use wharf_core::demand::NodesRequestError;
use wharf_core::fairness::{Amounts, Dim};
use wharf_core::jobs::{
    JobError, JobSummary, JobsDone, JobsRejection, JobsReply, QueueError, QueueView, TaskState, TaskView,
    UserView,
};
use wharf_core::registrar::Catalog;
use wharf_core::resource::ResourceRegistry;

use super::direct::binding_reason;
use super::explain::explain_reply;
use super::invalid;
use super::jobs::{dim_name, job_phase_number, queue_body, task_state_number, wire_amounts};
use super::plans::plan_reply;
use super::priority_classes::{class_error, classes_page};
use crate::limits::LIST_BYTES_MAX;
use crate::protocol::{
    ExplainJobReply, Fault, JobReply, JobStatusReply, JobSummaryBody, Kind, ListJobsReply,
    ListPriorityClassesReply, ListQueuesReply, NamedAmount, PlanNodesReply, PriorityClassReply, QueueReply,
    QueueStatusBody, QueueUsageBody, Reason, ReportTasksReply, TaskBody, TaskCountBody, USED_AMOUNTS_MAX,
    USER_AMOUNTS_MAX, UserBody,
};

/// The reply to a request about queues or jobs.
pub(crate) enum JobsAnswer {
    /// Answers `SetQueue` and `RemoveQueue`.
    Queue(QueueReply),
    /// Answers `ListQueues`.
    Queues(ListQueuesReply),
    /// Answers `SetPriorityClass` and `RemovePriorityClass`.
    Class(PriorityClassReply),
    /// Answers `ListPriorityClasses`.
    Classes(ListPriorityClassesReply),
    /// Answers `SubmitJob` and `CancelJob`.
    Job(JobReply),
    /// Answers `JobStatus`.
    Status(JobStatusReply),
    /// Answers `ListJobs`.
    Jobs(ListJobsReply),
    /// Answers `ReportTasks`.
    Reported(ReportTasksReply),
    /// Answers `ExplainJob`.
    Explained(Box<ExplainJobReply>),
    /// Answers `PlanNodes`.
    Plan(PlanNodesReply),
    /// Answers a request whose reply has no fault of its own.
    Fault(Fault),
}

impl JobsAnswer {
    /// Returns the reply with a fault to a request of this kind.
    pub(crate) fn of_fault(kind: Kind, fault: Fault) -> Self {
        match kind {
            Kind::SetQueue | Kind::RemoveQueue => Self::Queue(fault.into()),
            Kind::SetPriorityClass | Kind::RemovePriorityClass => Self::Class(fault.into()),
            Kind::SubmitJob | Kind::CancelJob => Self::Job(fault.into()),
            Kind::JobStatus => Self::Status(fault.into()),
            Kind::ReportTasks => Self::Reported(fault.into()),
            Kind::ExplainJob => Self::Explained(fault.into()),
            Kind::PlanNodes => Self::Plan(fault.into()),
            _ => Self::Fault(fault),
        }
    }

    fn done(done: JobsDone) -> Self {
        match done {
            JobsDone::QueueSet | JobsDone::QueueRemoved => Self::Queue(QueueReply::default()),
            JobsDone::ClassSet | JobsDone::ClassRemoved => Self::Class(PriorityClassReply::default()),
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
    /// The names of the groups that a plan of nodes is asked for.
    pub(crate) groups: Vec<String>,
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
        Ok(JobsReply::Classes(classes)) => JobsAnswer::Classes(classes_page(&classes, page.limit)),
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
        Ok(JobsReply::Explained(of)) => JobsAnswer::Explained(Box::new(explain_reply(&of, catalog))),
        Ok(JobsReply::Nodes(view)) => JobsAnswer::Plan(plan_reply(&view, &page.groups, catalog)),
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
    let queue = &body.queue;
    let usage = &body.usage;
    let deserved = queue.deserved.iter().flat_map(|deserved| &deserved.amounts);
    let given = queue.guarantee.amounts.iter().chain(&queue.capability.amounts).chain(deserved);
    let held = usage.held.iter().chain(&usage.pipelined).chain(&usage.releasing).chain(&usage.pending);
    let of_users = body.users.iter().flat_map(|user| user.planned.iter().chain(&user.past));
    let amounts = given.chain(held).chain(&body.deserved).chain(&body.past).chain(of_users);
    let amounts: usize = amounts.map(|amount| amount.name.len() + 12).sum();
    let users: usize = body.users.iter().map(|user| user.name.len() + 3).sum();
    NUMBERS + queue.name.len() + queue.parent.len() + amounts + users
}

/// Builds a page of queues in order of name, as many as the page may have and a frame holds. `views` has one more than the
/// page, if there are more.
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
        past: used(&view.past, resources),
        users: view.users.iter().map(|user| user_body(user, resources)).collect(),
        more_users: view.more_users,
        direct: view.direct,
        allocations: usage.allocations(),
    }
}

fn user_body(user: &UserView, resources: &ResourceRegistry) -> UserBody {
    let amounts = |amounts: &Amounts| wire_amounts(amounts.iter(), USER_AMOUNTS_MAX, resources);
    UserBody { name: user.name.to_string(), planned: amounts(&user.planned), past: amounts(&user.past) }
}

pub(super) fn summary(job: &JobSummary) -> JobSummaryBody {
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
        restarts: job.restarts,
        user: job.user.as_deref().unwrap_or_default().to_owned(),
        priority_class: job.priority_class.as_deref().unwrap_or_default().to_owned(),
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
        domain: task.domain.as_ref().map(ToString::to_string).unwrap_or_default(),
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
        QueueError::Cycle(_)
        | QueueError::TooDeep(_)
        | QueueError::HasJobs { .. }
        | QueueError::ParentFixed { .. } => (Reason::InvalidField, "queue.parent"),
        QueueError::Weight(_) => (Reason::InvalidField, "queue.weight"),
        QueueError::ChildrenGuarantee { .. } | QueueError::GuaranteeAboveCapability { .. } => {
            (Reason::InvalidField, "queue.guarantee")
        }
        QueueError::StarvesAboveShare { .. } => (Reason::InvalidField, "queue.starves_below"),
        QueueError::InUse { .. } | QueueError::HasQueues(_) => (Reason::IllegalChange, queue_field(kind)),
    }
}

fn job_error(error: &JobError) -> (Reason, Cow<'static, str>) {
    let of = |group: Option<u32>, field: &str| match group {
        Some(group) => format!("job.tasks[{group}].{field}"),
        None => format!("job.{field}"),
    };
    let policies = |group: Option<u32>| of(group, "policies");
    let (reason, field) = match error {
        JobError::Policy { group, policy, .. } => {
            return (Reason::InvalidField, format!("{}[{policy}]", policies(*group)).into());
        }
        JobError::TooManyPolicies { group, .. } => return (Reason::LimitExceeded, policies(*group).into()),
        JobError::Topology { group, .. } => return (Reason::InvalidField, of(*group, "topology").into()),
        JobError::UnknownClass { group, .. } => {
            return (Reason::UnknownPriorityClass, of(*group, "priority_class").into());
        }
        JobError::OtherPriority { group, .. } => {
            return (Reason::InvalidField, of(*group, "priority").into());
        }
        JobError::MaxRetry { .. } => (Reason::LimitExceeded, "job.max_retry"),
        JobError::Exists(_) => (Reason::InvalidField, "job.name"),
        JobError::UnknownQueue { .. } => (Reason::UnknownQueue, "job.queue"),
        JobError::ClosedQueue { .. } | JobError::InnerQueue { .. } => (Reason::InvalidField, "job.queue"),
        JobError::Empty(_) | JobError::NoRunTime(_) => (Reason::InvalidField, "job.tasks"),
        JobError::TooManyTasks { .. } | JobError::TooMuch { .. } => (Reason::LimitExceeded, "job.tasks"),
        JobError::MinMemberTooLarge { .. } => (Reason::LimitExceeded, "job.min_member"),
        JobError::MinMember { .. } => (Reason::InvalidField, "job.min_member"),
        JobError::MinSuccess { .. } => (Reason::InvalidField, "job.min_success"),
        JobError::RoleMinMember { .. } => (Reason::InvalidField, "job.roles"),
        JobError::TooManyUsers { .. } => (Reason::LimitExceeded, "job.user"),
    };
    (reason, field.into())
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

/// Returns the field of a request for a plan of nodes that is wrong.
fn nodes_field(error: &NodesRequestError) -> &'static str {
    match error {
        NodesRequestError::MinsAboveAll { .. } => "nodes_max",
        NodesRequestError::TooManyFloors(_) | NodesRequestError::TooManyBundles(_) => "floors",
        NodesRequestError::NoBundles(_) => "groups",
        _ => "types",
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
        JobsRejection::Job(error) => {
            let (reason, field) = job_error(error);
            return Fault::of_field(reason, field, message);
        }
        JobsRejection::Class(error) => class_error(error),
        JobsRejection::UnknownJob(_) => (Reason::UnknownJob, "job"),
        JobsRejection::UnknownTask(_) => (Reason::InvalidField, "task"),
        JobsRejection::Binding(error) => (binding_reason(error), queue_field(kind)),
        JobsRejection::ForeignQueue(_) => (Reason::Forbidden, queue_field(kind)),
        JobsRejection::State { index, .. } => {
            return Fault::of_field(Reason::InvalidField, format!("tasks[{index}].state"), message);
        }
        JobsRejection::ExitCode { index, .. } => {
            return Fault::of_field(Reason::InvalidField, format!("tasks[{index}].exit_code"), message);
        }
        JobsRejection::TooManyQueues(_) => (Reason::LimitExceeded, "queue"),
        JobsRejection::TooManyJobs(_) | JobsRejection::TooManyTasks(_) => (Reason::LimitExceeded, "job"),
        JobsRejection::Nodes(error) => (Reason::InvalidField, nodes_field(error)),
        JobsRejection::NodesPlannerBusy => (Reason::Overloaded, ""),
        JobsRejection::NoNodesPlanner => (Reason::NotServed, ""),
    };
    let mut fault = Fault::of_field(reason, field, message);
    if matches!(rejection, JobsRejection::NodesPlannerBusy) {
        fault.retry_after_ms = 1_000;
    }
    fault
}

#[cfg(test)]
mod tests {
    use wharf_core::ids::TenantId;
    use wharf_core::jobs::{ClassError, JobId, JobPhase, JobView, QueueContents, QueueSpec, TaskId, Usage};
    use wharf_core::limits::{QUEUE_USERS_SHOWN_MAX, USER_BYTES_MAX};
    use wharf_core::time::Time;

    use super::*;
    use crate::codec::encode_body;
    use crate::protocol::{FRAME_BYTES_MAX, JOB_RUNNING, TASK_PENDING, TASK_RUNNING};

    fn queue(name: &str) -> QueueView {
        QueueView {
            spec: QueueSpec::new(name),
            parent: None,
            usage: Usage::default(),
            deserved: None,
            past: Amounts::zero(),
            users: Vec::new(),
            more_users: 0,
            jobs: 0,
            waiting: 0,
            direct: 0,
        }
    }

    fn names(reply: &ListQueuesReply) -> Vec<&str> {
        reply.queues.iter().map(|status| &*status.queue.name).collect()
    }

    fn page(after: &str, limit: usize) -> JobsPage {
        JobsPage { after: after.to_owned(), limit, groups: Vec::new() }
    }

    #[test]
    fn queues_are_shown_in_pages_by_name() {
        let views = || vec![queue("c"), queue("a"), queue("d"), queue("b")];
        let resources = ResourceRegistry::default();
        let first = queues_page(views(), &page("", 3), &resources);
        assert_eq!((names(&first), first.more), (vec!["a", "b", "c"], true));
        let second = queues_page(views(), &page("c", 3), &resources);
        assert_eq!((names(&second), second.more), (vec!["d"], false));
        // A queue that was removed between two pages is no obstacle.
        let second = queues_page(views(), &page("bb", 3), &resources);
        assert_eq!((names(&second), second.more), (vec!["c", "d"], false));
        assert_eq!(queues_page(views(), &page("d", 3), &resources), ListQueuesReply::default());
    }

    #[test]
    fn a_page_of_the_longest_queues_fits_a_frame() {
        let long: Vec<String> = (0..400).map(|at| format!("{at:03}{}", "r".repeat(250))).collect();
        let resources = ResourceRegistry::with_names(long.iter().map(String::as_str), &[]).unwrap();
        let all: Amounts = (0..403).map(|place| (Dim(place), i64::MAX)).collect();
        let given: Vec<(Dim, i64)> = (0..35).map(|place| (Dim(place), i64::MAX)).collect();
        let mut usage = Usage::default();
        for sum in [&mut usage.held, &mut usage.pipelined, &mut usage.releasing, &mut usage.pending] {
            sum.clone_from(&all);
        }
        let view = |at: usize| {
            let mut view = queue(&format!("{at:03}{}", "q".repeat(250)));
            view.spec.guarantee = given.iter().copied().collect();
            view.spec.capability = given.iter().copied().collect();
            view.spec.deserved = Some(given.iter().copied().collect());
            let user = |at: usize| UserView {
                name: format!("{at:02}{}", "u".repeat(USER_BYTES_MAX - 2)).into(),
                planned: all.clone(),
                past: all.clone(),
            };
            let users = (0..QUEUE_USERS_SHOWN_MAX).map(user).collect();
            let deserved = Some(all.clone());
            let past = all.clone();
            QueueView { usage: usage.clone(), deserved, past, users, more_users: u32::MAX, ..view }
        };
        let mut shown = 0;
        let mut after = String::new();
        loop {
            let page = queues_page((0..7).map(view).collect(), &page(&after, 1000), &resources);
            let mut bytes = Vec::new();
            encode_body(&page, &mut bytes);
            assert!(bytes.len() + 64 <= FRAME_BYTES_MAX as usize, "{} bytes", bytes.len());
            shown += page.queues.len();
            after.clone_from(&page.queues.last().expect("each page has one").queue.name);
            if !page.more {
                break;
            }
        }
        assert_eq!(shown, 7);
    }

    fn job() -> JobSummary {
        let mut counts = [0; TaskState::ALL.len()];
        counts[TaskState::Running.index()] = 3;
        counts[TaskState::Pending.index()] = 1;
        JobSummary {
            id: JobId(5),
            name: "j".into(),
            queue: "q".into(),
            tenant: TenantId(7),
            user: Some("u".into()),
            phase: JobPhase::Running,
            priority: -2,
            priority_class: Some("low".into()),
            min_member: 3,
            restarts: 2,
            counts,
            created: Time(9),
        }
    }

    #[test]
    fn a_job_is_shown_with_the_states_that_its_tasks_have() {
        let view = JobView { job: job(), tasks: Vec::new(), more: true };
        let reply = Ok(JobsReply::Job(Box::new(view)));
        let answer = jobs_answer(Kind::JobStatus, &page("", 10), reply, &Catalog::default());
        let JobsAnswer::Status(status) = answer else { panic!("a status") };
        let body = status.job.expect("it is there");
        assert_eq!(
            (body.id, body.tenant, body.phase, body.created, status.more),
            (5, 7, JOB_RUNNING, 9, true)
        );
        let counts: Vec<_> = body.counts.iter().map(|count| (count.state, count.count)).collect();
        assert_eq!(counts, [(TASK_PENDING, 1), (TASK_RUNNING, 3)]);
        let reply = Ok(JobsReply::Jobs(vec![job(), job()]));
        let answer = jobs_answer(Kind::ListJobs, &page("", 2), reply, &Catalog::default());
        assert!(matches!(answer, JobsAnswer::Jobs(page) if page.jobs.len() == 2 && page.more));
    }

    #[test]
    fn a_rejection_names_the_field_of_the_request() {
        let queue = || "q".into();
        let has = QueueContents { jobs: 1, direct: 2, groups: 0 };
        let job = || "j".into();
        let cases: Vec<(Kind, JobsRejection, Reason, &str)> = vec![
            (Kind::SetQueue, QueueError::Unknown(queue()).into(), Reason::UnknownQueue, "queue.parent"),
            (Kind::RemoveQueue, QueueError::Unknown(queue()).into(), Reason::UnknownQueue, "name"),
            (Kind::ListJobs, QueueError::Unknown(queue()).into(), Reason::UnknownQueue, "queue"),
            (Kind::SetQueue, QueueError::Weight(queue()).into(), Reason::InvalidField, "queue.weight"),
            (
                Kind::RemoveQueue,
                QueueError::InUse { queue: queue(), has }.into(),
                Reason::IllegalChange,
                "name",
            ),
            (
                Kind::RemovePriorityClass,
                ClassError::Unknown(job()).into(),
                Reason::UnknownPriorityClass,
                "name",
            ),
            (
                Kind::SubmitJob,
                JobError::UnknownClass { job: job(), group: Some(3), class: queue() }.into(),
                Reason::UnknownPriorityClass,
                "job.tasks[3].priority_class",
            ),
            (Kind::SubmitJob, JobError::Exists(job()).into(), Reason::InvalidField, "job.name"),
            (
                Kind::SubmitJob,
                JobError::UnknownQueue { job: job(), queue: queue() }.into(),
                Reason::UnknownQueue,
                "job.queue",
            ),
            (Kind::SubmitJob, JobsRejection::ForeignQueue(queue()), Reason::Forbidden, "job.queue"),
            (Kind::SubmitJob, JobsRejection::TooManyJobs(3), Reason::LimitExceeded, "job"),
            (Kind::JobStatus, JobsRejection::UnknownJob(JobId(3)), Reason::UnknownJob, "job"),
            (
                Kind::ExplainJob,
                JobsRejection::UnknownTask(TaskId { job: JobId(3), index: 4 }),
                Reason::InvalidField,
                "task",
            ),
            (
                Kind::ReportTasks,
                JobsRejection::State { index: 4, state: TaskState::Pending },
                Reason::InvalidField,
                "tasks[4].state",
            ),
        ];
        for (kind, rejection, reason, field) in cases {
            let fault = rejection_fault(kind, &rejection, &ResourceRegistry::default());
            assert_eq!((fault.reason, &*fault.field), (reason.into(), field), "{rejection}");
        }
    }

    #[test]
    fn a_rejection_names_resources_as_they_were_given() {
        let resources = ResourceRegistry::with_names(["fpga", "npu"], &[]).unwrap();
        let message =
            |rejection: JobsRejection| rejection_fault(Kind::SetQueue, &rejection, &resources).message;
        let too_much = JobError::TooMuch { job: "j".into(), dim: Dim(4) };
        assert!(message(too_much.into()).contains(" npu "));
        let children =
            QueueError::ChildrenGuarantee { parent: "q".into(), dim: Dim(3), children: 2, guarantee: 1 };
        assert!(message(children.into()).contains(" fpga "));
    }

    #[test]
    fn a_page_has_at_most_as_much_as_a_message() {
        assert_eq!(jobs_page_limit(0, 1000, "jobs"), Ok(1000));
        assert_eq!(jobs_page_limit(7, 1000, "jobs"), Ok(7));
        let fault = jobs_page_limit(1001, 1000, "jobs").unwrap_err();
        assert!(fault.field == "limit" && fault.message.contains("at most 1000"), "{fault}");
    }
}
