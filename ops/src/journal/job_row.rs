//! Queues, jobs and tasks in a form that can be stored. What has the same form on the wire is stored as the wire's body.

use std::sync::Arc;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use wharf_core::fairness::Dim;
use wharf_core::ids::{NodeId, TenantId};
use wharf_core::jobs::{
    Delayed, JobId, JobRecord, JobSpec, JobsChange, JobsDone, PastAmount, PastRecord, QueueRecord, TaskId,
    TaskRecord,
};
use wharf_core::limits::RESOURCE_KINDS_MAX;
use wharf_core::registrar::Catalog;
use wharf_core::resource::ResourceRegistry;
use wharf_core::time::Time;
use wharf_net::convert::{
    PlacementDefaults, job_body, job_phase, job_phase_number, job_spec, policy_action, policy_action_number,
    queue_body, queue_spec, task_state, task_state_number,
};
use wharf_net::protocol::{JobBody, QueueBody, WireAllocation};

/// The number of kinds that are no custom ones: cpu, memory and GPUs.
const OWN_KINDS: usize = 3;

/// A queue.
#[derive(Serialize, Deserialize)]
pub(super) struct QueueRow(QueueBody);

impl QueueRow {
    pub(super) fn new(queue: &QueueRecord, kinds: &ResourceRegistry) -> Self {
        Self(queue_body(&queue.spec, queue.parent.as_deref(), kinds))
    }

    pub(super) fn record(self, kinds: &ResourceRegistry) -> anyhow::Result<QueueRecord> {
        let (spec, parent) = queue_spec(self.0, kinds)?;
        Ok(QueueRecord { spec, parent })
    }
}

/// The state of a task.
#[derive(Serialize, Deserialize)]
pub(super) struct TaskRow {
    state: u8,
    node: Option<u64>,
    allocation: Option<WireAllocation>,
    since: u64,
    started: Option<u64>,
    bound: Option<u64>,
    /// When a policy does something later, and what.
    delayed: Option<(u64, u8)>,
}

impl TaskRow {
    fn new(task: &TaskRecord) -> Self {
        Self {
            state: task_state_number(task.state),
            node: task.node.map(|node| node.0),
            allocation: task.allocation.map(Into::into),
            since: task.since.0,
            started: task.started.map(|started| started.0),
            bound: task.bound.map(|bound| bound.0),
            delayed: task.delayed.map(|delayed| (delayed.due.0, policy_action_number(delayed.action))),
        }
    }

    fn record(self) -> anyhow::Result<TaskRecord> {
        Ok(TaskRecord {
            state: task_state("state", self.state)?,
            node: self.node.map(NodeId),
            allocation: self.allocation.map(Into::into),
            since: Time(self.since),
            started: self.started.map(Time),
            bound: self.bound.map(Time),
            delayed: match self.delayed {
                Some((due, action)) => {
                    Some(Delayed { due: Time(due), action: policy_action("delayed", action)? })
                }
                None => None,
            },
        })
    }
}

/// A job.
#[derive(Serialize, Deserialize)]
pub(super) struct JobRow {
    id: u64,
    tenant: u16,
    body: JobBody,
    /// The indexes of the task groups whose requests have affinity to their candidate.
    affine: Vec<u32>,
    created: u64,
    /// Its phase at submission.
    first_phase: u8,
    phase: u8,
    restarts: u32,
    tasks: Vec<(u32, TaskRow)>,
}

impl JobRow {
    pub(super) fn new(job: &JobRecord, kinds: &ResourceRegistry) -> Self {
        let (body, affinities) = job_body(&job.spec, &job.queue, kinds);
        let affine = (0..).zip(affinities).filter_map(|(group, affinity)| affinity.then_some(group));
        Self {
            id: job.id.0,
            tenant: job.spec.tenant.0,
            body,
            affine: affine.collect(),
            created: job.spec.created.0,
            first_phase: job_phase_number(job.spec.phase),
            phase: job_phase_number(job.phase),
            restarts: job.restarts,
            tasks: job.tasks.iter().map(|(&index, task)| (index, TaskRow::new(task))).collect(),
        }
    }

    pub(super) fn record(self, catalog: &Catalog) -> anyhow::Result<JobRecord> {
        let tenant = TenantId(self.tenant);
        let defaults = PlacementDefaults { orders: u8::MAX, tenant, ..PlacementDefaults::default() };
        let queue = self.body.queue.as_str().into();
        let mut spec = JobSpec {
            created: Time(self.created),
            phase: job_phase("first_phase", self.first_phase)?,
            ..job_spec(self.body, catalog, defaults)?
        };
        for group in self.affine {
            // A node to which a task has affinity may be gone, so it is stored as a candidate.
            if let Some(group) = spec.tasks.get_mut(group as usize) {
                Arc::make_mut(group.request.preferences.get_or_insert_default()).affinity = true;
            }
        }
        let tasks = self.tasks.into_iter().map(|(index, task)| Ok((index, task.record()?)));
        Ok(JobRecord {
            id: JobId(self.id),
            spec: Arc::new(spec),
            queue,
            phase: job_phase("phase", self.phase)?,
            restarts: self.restarts,
            tasks: tasks.collect::<anyhow::Result<_>>()?,
        })
    }
}

/// What a queue or a user in it has held.
#[derive(Serialize, Deserialize)]
pub(super) struct PastRow {
    queue: String,
    user: Option<String>,
    half_life: u64,
    epoch: u64,
    /// The place of each kind, what is held of it, and the sum.
    kinds: Vec<(u16, i64, i128)>,
}

impl PastRow {
    pub(super) fn new(past: &PastRecord) -> Self {
        let place = |dim: Dim| u16::try_from(dim.0).expect("there are fewer kinds than numbers of kinds");
        Self {
            queue: past.queue.to_string(),
            user: past.user.as_deref().map(str::to_owned),
            half_life: past.half_life_ns,
            epoch: past.epoch,
            kinds: past.kinds.iter().map(|kind| (place(kind.dim), kind.held, kind.sum)).collect(),
        }
    }

    pub(super) fn record(self) -> anyhow::Result<PastRecord> {
        let kind = |(place, held, sum): (u16, i64, i128)| {
            // A sum is no list of places, most of which are empty.
            let is_kind = usize::from(place) < RESOURCE_KINDS_MAX + OWN_KINDS && held >= 0;
            is_kind.then_some(PastAmount { dim: Dim(usize::from(place)), held, sum })
        };
        let kinds = self.kinds.into_iter().map(kind).collect::<Option<_>>();
        Ok(PastRecord {
            queue: self.queue.into(),
            user: self.user.map(Into::into),
            half_life_ns: self.half_life,
            epoch: self.epoch,
            kinds: kinds.context("past use of a kind that cannot be")?,
        })
    }
}

/// A change of queues and jobs.
#[derive(Serialize, Deserialize)]
pub(super) enum JobsChangeRow {
    Queue(Box<QueueRow>),
    QueueRemoved(String),
    Job(Box<JobRow>),
    JobRemoved(u64),
    /// With the job, its phase, and its restarts.
    Phase(u64, u8, u32),
    /// With the job, and the index of the task.
    Task(u64, u32, TaskRow),
    Past(Box<PastRow>),
}

impl JobsChangeRow {
    pub(super) fn new(change: &JobsChange, kinds: &ResourceRegistry) -> Self {
        match change {
            JobsChange::Queue(queue) => Self::Queue(Box::new(QueueRow::new(queue, kinds))),
            JobsChange::QueueRemoved(name) => Self::QueueRemoved(name.to_string()),
            JobsChange::Job(job) => Self::Job(Box::new(JobRow::new(job, kinds))),
            &JobsChange::JobRemoved(job) => Self::JobRemoved(job.0),
            &JobsChange::Phase(job, phase, restarts) => Self::Phase(job.0, job_phase_number(phase), restarts),
            JobsChange::Task(id, task) => Self::Task(id.job.0, id.index, TaskRow::new(task)),
            JobsChange::Past(past) => Self::Past(Box::new(PastRow::new(past))),
        }
    }

    pub(super) fn change(self, catalog: &Catalog) -> anyhow::Result<JobsChange> {
        Ok(match self {
            Self::Queue(queue) => JobsChange::Queue(Box::new(queue.record(&catalog.resources)?)),
            Self::QueueRemoved(name) => JobsChange::QueueRemoved(name.into()),
            Self::Job(job) => JobsChange::Job(Box::new(job.record(catalog)?)),
            Self::JobRemoved(job) => JobsChange::JobRemoved(JobId(job)),
            Self::Phase(job, phase, restarts) => {
                JobsChange::Phase(JobId(job), job_phase("phase", phase)?, restarts)
            }
            Self::Task(job, index, task) => {
                JobsChange::Task(TaskId { job: JobId(job), index }, task.record()?)
            }
            Self::Past(past) => JobsChange::Past(Box::new(past.record()?)),
        })
    }
}

/// What a request about queues and jobs did.
#[derive(Serialize, Deserialize)]
pub(super) enum JobsDoneRow {
    QueueSet,
    QueueRemoved,
    Submitted(u64),
    Cancelled(u64),
    Reported(Vec<u32>),
}

impl JobsDoneRow {
    pub(super) fn new(done: &JobsDone) -> Self {
        match done {
            JobsDone::QueueSet => Self::QueueSet,
            JobsDone::QueueRemoved => Self::QueueRemoved,
            JobsDone::Submitted(job) => Self::Submitted(job.0),
            JobsDone::Cancelled(job) => Self::Cancelled(job.0),
            JobsDone::Reported(outdated) => Self::Reported(outdated.clone()),
        }
    }

    pub(super) fn done(self) -> JobsDone {
        match self {
            Self::QueueSet => JobsDone::QueueSet,
            Self::QueueRemoved => JobsDone::QueueRemoved,
            Self::Submitted(job) => JobsDone::Submitted(JobId(job)),
            Self::Cancelled(job) => JobsDone::Cancelled(JobId(job)),
            Self::Reported(outdated) => JobsDone::Reported(outdated),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde::de::DeserializeOwned;
    use wharf_core::ids::{AllocationId, Incarnation, PartitionId};
    use wharf_core::jobs::{
        JobPhase, JobPolicy, JobsRecord, PolicyAction, QueueId, QueueOrdering, QueueSpec, Role, TaskEvent,
        TaskGroup, TaskState,
    };
    use wharf_core::node::{Operator, Selector, Term};
    use wharf_core::request::{PlacementRequest, Policy};
    use wharf_core::resource::{Amount, Demand, GpuRequest, ResourceKind};
    use wharf_net::codec::{decode_stored, encode_body};

    use super::*;

    fn queue() -> QueueRecord {
        let spec = QueueSpec {
            parent: QueueId::ROOT,
            tenant: Some(TenantId(4)),
            weight: 3,
            guarantee: [(Dim::CPU, 5)].into_iter().collect(),
            deserved: Some([(Dim::GPU, 7)].into_iter().collect()),
            capability: [(Dim::MEMORY, 0), (Dim(3), 8)].into_iter().collect(),
            priority: -1,
            reclaimable: false,
            open: false,
            ordering: QueueOrdering::Fifo,
            starves_below: Some(9),
            fair_share_patience_ns: Some(10),
            guarantee_patience_ns: Some(11),
            min_run_time_ns: Some(12),
            usage_half_life_ns: Some(13),
            ..QueueSpec::new("inner")
        };
        QueueRecord { spec, parent: Some("outer".into()) }
    }

    fn task() -> TaskRecord {
        let allocation = AllocationId {
            incarnation: Incarnation(3),
            partition: PartitionId(5),
            sequence: 1 << 40,
            tenant: TenantId(4),
        };
        TaskRecord {
            state: TaskState::Running,
            node: Some(NodeId(9)),
            allocation: Some(allocation),
            since: Time(100),
            started: Some(Time(90)),
            bound: Some(Time(44)),
            delayed: Some(Delayed { due: Time(210), action: PolicyAction::CompleteJob }),
        }
    }

    fn policy(action: PolicyAction, exit_code: Option<i32>) -> JobPolicy {
        JobPolicy {
            events: vec![TaskEvent::Failed, TaskEvent::Evicted],
            action,
            exit_code,
            timeout_ns: Some(15),
        }
    }

    /// Returns a job whose fields all differ from their defaults, and that uses the custom kind `kind`.
    fn job(kind: ResourceKind) -> JobRecord {
        let ResourceKind::Custom(id) = kind else { panic!("{kind} is no custom kind") };
        let custom = Demand::canonical_custom(vec![(id, Amount::whole(2))]).unwrap();
        let demand = Demand { cpu: Amount::whole(1), gpu: GpuRequest::Whole(1), custom, ..Demand::default() };
        let term = Term { key: "zone".to_owned(), operator: Operator::In, values: vec!["a".to_owned()] };
        let plain = PlacementRequest { tenant: TenantId(4), ..PlacementRequest::new(demand, Policy::Spread) };
        let mut affine = PlacementRequest {
            selector: Some(Arc::new(Selector::new(vec![term]))),
            candidates: Some([NodeId(7)].into()),
            ..plain.clone()
        };
        Arc::make_mut(affine.preferences.get_or_insert_default()).affinity = true;
        let group = |request, role| TaskGroup {
            request,
            count: 3,
            role,
            priority: 4,
            preemptable: false,
            master: true,
            run_time_ns: Some(7),
            policies: vec![policy(PolicyAction::RestartTask, None)],
        };
        let spec = JobSpec {
            name: "train".into(),
            queue: QueueId::ROOT,
            user: Some("ann".into()),
            tenant: TenantId(4),
            min_member: 2,
            min_resources: Some([(Dim::of(kind), 6)].into_iter().collect()),
            roles: vec![
                Role { name: "ps".into(), min_member: 1 },
                Role { name: "run".into(), min_member: 0 },
            ],
            tasks: vec![group(plain, 0), group(affine, 1)],
            priority: -5,
            preempts: false,
            created: Time(50),
            phase: JobPhase::Pending,
            policies: vec![policy(PolicyAction::RestartJob, None), policy(PolicyAction::AbortJob, Some(-3))],
            min_success: Some(3),
            max_retry: 9,
        };
        let pending =
            TaskRecord { state: TaskState::Pending, node: None, allocation: None, started: None, ..task() };
        JobRecord {
            id: JobId(7),
            spec: Arc::new(spec),
            queue: "inner".into(),
            phase: JobPhase::Running,
            restarts: 2,
            tasks: [(0, task()), (5, pending)].into(),
        }
    }

    /// Returns what a queue and a user have held.
    fn past(kind: ResourceKind) -> Vec<PastRecord> {
        let kinds = vec![
            PastAmount { dim: Dim::CPU, held: 3, sum: -(1 << 100) },
            PastAmount { dim: Dim::of(kind), held: 0, sum: 7 },
        ];
        let of_queue = PastRecord { queue: "inner".into(), user: None, half_life_ns: 14, epoch: 15, kinds };
        let kinds = vec![PastAmount { dim: Dim::GPU, held: i64::MAX, sum: i128::MAX }];
        vec![of_queue.clone(), PastRecord { user: Some("ann".into()), kinds, ..of_queue }]
    }

    /// Returns queues and jobs that use every field, and the custom kind `kind`.
    pub(in crate::journal) fn record(kind: ResourceKind) -> JobsRecord {
        let outer = QueueRecord { spec: QueueSpec::new("outer"), parent: None };
        JobsRecord { next_job: 9, queues: vec![outer, queue()], jobs: vec![job(kind)], past: past(kind) }
    }

    /// Writes a row and reads it back.
    fn again<T: Serialize + DeserializeOwned>(row: &T) -> T {
        let mut bytes = Vec::new();
        encode_body(row, &mut bytes);
        let (read, length) = decode_stored(&bytes).expect("it was just written");
        assert_eq!(length, bytes.len());
        read
    }

    #[test]
    fn changes_of_jobs_are_read_as_they_were_written() {
        let mut catalog = Catalog::default();
        let mut kinds = ResourceRegistry::default();
        let kind = ResourceKind::Custom(kinds.learn("npu").unwrap());
        catalog.resources = Arc::new(kinds);
        let id = TaskId { job: JobId(7), index: 2 };
        let mut changes = vec![
            JobsChange::Queue(Box::new(queue())),
            JobsChange::Queue(Box::new(QueueRecord { spec: QueueSpec::new("plain"), parent: None })),
            JobsChange::QueueRemoved("inner".into()),
            JobsChange::Job(Box::new(job(kind))),
            JobsChange::JobRemoved(JobId(7)),
            JobsChange::Task(id, task()),
        ];
        changes.extend(past(kind).into_iter().map(|past| JobsChange::Past(Box::new(past))));
        let nothing = PastRecord { kinds: Vec::new(), ..past(kind).remove(1) };
        changes.push(JobsChange::Past(Box::new(nothing)));
        changes.extend(JobPhase::ALL.map(|phase| JobsChange::Phase(JobId(7), phase, 5)));
        changes.extend(TaskState::ALL.map(|state| JobsChange::Task(id, TaskRecord { state, ..task() })));
        for change in changes {
            let row = again(&JobsChangeRow::new(&change, &catalog.resources));
            assert_eq!(row.change(&catalog).unwrap(), change);
        }
        assert!(JobsChangeRow::Phase(7, 99, 0).change(&catalog).is_err());
        let kinds = vec![PastAmount { dim: Dim(60_000), held: 0, sum: 7 }];
        let huge = PastRecord { kinds, ..past(kind).remove(0) };
        let row = JobsChangeRow::new(&JobsChange::Past(Box::new(huge)), &catalog.resources);
        assert!(row.change(&catalog).is_err(), "there are not so many kinds");
        let stranger = JobsChangeRow::new(&JobsChange::Job(Box::new(job(kind))), &catalog.resources);
        assert!(stranger.change(&Catalog::default()).is_err(), "its kinds are not there");
    }

    #[test]
    fn what_requests_about_jobs_did_is_read_as_it_was_written() {
        let job = JobId(1 << 40);
        for done in [
            JobsDone::QueueSet,
            JobsDone::QueueRemoved,
            JobsDone::Submitted(job),
            JobsDone::Cancelled(job),
            JobsDone::Reported(vec![0, 1023]),
        ] {
            assert_eq!(again(&JobsDoneRow::new(&done)).done(), done);
        }
    }
}
