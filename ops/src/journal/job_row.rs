//! Queues, jobs and tasks in a form that can be stored. What has the same form on the wire is stored as the wire's body.

use std::sync::Arc;

use anyhow::ensure;
use serde::{Deserialize, Serialize};
use wharf_core::fairness::Dim;
use wharf_core::ids::TenantId;
use wharf_core::jobs::{
    Delayed, JobId, JobPhase, JobRecord, JobSpec, JobsChange, JobsDone, PastAmount, PastRecord, PolicyAction,
    PriorityClass, QueueRecord, TaskId, TaskRecord, TaskState,
};
use wharf_core::limits::RESOURCE_KINDS_MAX;
use wharf_core::registrar::Catalog;
use wharf_core::resource::ResourceRegistry;
use wharf_core::time::Time;
use wharf_net::convert::{
    PlacementDefaults, job_body, job_phase, job_phase_number, job_spec, policy_action, policy_action_number,
    priority_class, priority_class_body, queue_body, queue_spec, task_state, task_state_number,
};
use wharf_net::protocol::{JobBody, PriorityClassBody, QueueBody, WireAllocation};

use super::mirror::{Stored, rows, stored_as};

/// The number of kinds that are no custom ones: cpu, memory and GPUs.
const OWN_KINDS: usize = 3;

/// A queue.
#[derive(Serialize, Deserialize)]
pub(super) struct QueueRow(QueueBody);

impl Stored<QueueRecord> for QueueRow {
    fn of(queue: &QueueRecord, kinds: &ResourceRegistry) -> Self {
        Self(queue_body(&queue.spec, queue.parent.as_deref(), kinds))
    }

    fn read(self, catalog: &mut Catalog) -> anyhow::Result<QueueRecord> {
        let (spec, parent) = queue_spec(self.0, &catalog.resources)?;
        Ok(QueueRecord { spec, parent })
    }
}

/// A priority class.
#[derive(Serialize, Deserialize)]
pub(super) struct ClassRow(PriorityClassBody);

impl Stored<PriorityClass> for ClassRow {
    fn of(class: &PriorityClass, _kinds: &ResourceRegistry) -> Self {
        Self(priority_class_body(class))
    }

    fn read(self, _catalog: &mut Catalog) -> anyhow::Result<PriorityClass> {
        Ok(priority_class(self.0)?)
    }
}

rows! {
    /// The state of a task.
    struct TaskRow of TaskRecord {
        state: u8,
        node: Option<u64>,
        allocation: Option<WireAllocation>,
        since: u64,
        started: Option<u64>,
        bound: Option<u64>,
        delayed: Option<DelayedRow>,
    }

    /// What a policy does later.
    struct DelayedRow of Delayed { due: u64, action: u8 }

    struct TaskIdRow of TaskId { job: u64, index: u32 }

    /// What a queue or a user in it has held.
    struct PastRow of PastRecord {
        queue: String,
        user: Option<String>,
        half_life_ns: u64,
        epoch: u64,
        kinds: Vec<PastAmountRow>,
    }

    /// A change of queues and jobs.
    enum JobsChangeRow of JobsChange {
        Queue(queue: Box<QueueRow>),
        QueueRemoved(name: String),
        Job(job: Box<JobRow>),
        JobRemoved(job: u64),
        /// With the job, its phase, and its restarts.
        Phase(job: u64, phase: u8, restarts: u32),
        Task(id: TaskIdRow, task: TaskRow),
        Past(past: Box<PastRow>),
        DirectEnded(job: u64),
        Class(class: Box<ClassRow>),
        ClassRemoved(name: String),
    }

    /// What a request about queues and jobs did.
    enum JobsDoneRow of JobsDone {
        QueueSet,
        QueueRemoved,
        Submitted(job: u64),
        Cancelled(job: u64),
        Reported(outdated: Vec<u32>),
        ClassSet,
        ClassRemoved,
    }
}

/// The place of a kind, what is held of it, and the sum.
#[derive(Serialize, Deserialize)]
pub(super) struct PastAmountRow(u16, i64, i128);

stored_as! {
    u8, TaskState: |&state| task_state_number(state), |number| Ok(task_state("state", number)?);
    u8, JobPhase: |&phase| job_phase_number(phase), |number| Ok(job_phase("phase", number)?);
    u8, PolicyAction: |&action| policy_action_number(action), |number| Ok(policy_action("action", number)?);
    PastAmountRow, PastAmount: past_amount_row, past_amount;
}

fn past_amount_row(past: &PastAmount) -> PastAmountRow {
    let place = u16::try_from(past.dim.0).expect("there are fewer kinds than numbers of kinds");
    PastAmountRow(place, past.held, past.sum)
}

fn past_amount(PastAmountRow(place, held, sum): PastAmountRow) -> anyhow::Result<PastAmount> {
    // A sum is no list of places, most of which are empty.
    let is_kind = usize::from(place) < RESOURCE_KINDS_MAX + OWN_KINDS && held >= 0;
    ensure!(is_kind, "past use of a kind that cannot be");
    Ok(PastAmount { dim: Dim(usize::from(place)), held, sum })
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
    is_direct: bool,
}

impl Stored<JobRecord> for JobRow {
    fn of(job: &JobRecord, kinds: &ResourceRegistry) -> Self {
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
            tasks: Stored::of(&job.tasks, kinds),
            is_direct: job.spec.is_direct,
        }
    }

    fn read(self, catalog: &mut Catalog) -> anyhow::Result<JobRecord> {
        let tenant = TenantId(self.tenant);
        let defaults = PlacementDefaults { orders: u8::MAX, tenant, ..PlacementDefaults::default() };
        let queue = self.body.queue.as_str().into();
        let mut spec = JobSpec {
            created: Time(self.created),
            phase: job_phase("first_phase", self.first_phase)?,
            is_direct: self.is_direct,
            ..job_spec(self.body, catalog, defaults)?
        };
        for group in self.affine {
            // A node to which a task has affinity may be gone, so it is stored as a candidate.
            if let Some(group) = spec.tasks.get_mut(group as usize) {
                Arc::make_mut(group.request.preferences.get_or_insert_default()).affinity = true;
            }
        }
        Ok(JobRecord {
            id: JobId(self.id),
            spec: Arc::new(spec),
            queue,
            phase: job_phase("phase", self.phase)?,
            restarts: self.restarts,
            tasks: self.tasks.read(catalog)?,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde::de::DeserializeOwned;
    use wharf_core::ids::{AllocationId, Incarnation, NodeId, PartitionId};
    use wharf_core::jobs::{
        JobPolicy, JobsRecord, QueueId, QueueOrdering, QueueSpec, Role, TaskEvent, TaskGroup, TopologyRule,
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
            allocations_max: Some(14),
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
            topology: Some(TopologyRule::hard("rack")),
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
            priority_class: Some("low".into()),
            preempts: false,
            created: Time(50),
            phase: JobPhase::Pending,
            policies: vec![policy(PolicyAction::RestartJob, None), policy(PolicyAction::AbortJob, Some(-3))],
            min_success: Some(3),
            max_retry: 9,
            wait_ns: Some(11),
            topology: Some(TopologyRule::soft(None)),
            is_direct: true,
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

    fn class() -> PriorityClass {
        PriorityClass {
            name: "high".into(),
            value: -7,
            preempts: false,
            is_default: true,
            description: "for few".into(),
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
        let queues = vec![outer, queue()];
        JobsRecord { next_job: 9, queues, classes: vec![class()], jobs: vec![job(kind)], past: past(kind) }
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
            JobsChange::DirectEnded(JobId(8)),
            JobsChange::Class(Box::new(class())),
            JobsChange::ClassRemoved("high".into()),
            JobsChange::Task(id, task()),
        ];
        changes.extend(past(kind).into_iter().map(|past| JobsChange::Past(Box::new(past))));
        let nothing = PastRecord { kinds: Vec::new(), ..past(kind).remove(1) };
        changes.push(JobsChange::Past(Box::new(nothing)));
        changes.extend(JobPhase::ALL.map(|phase| JobsChange::Phase(JobId(7), phase, 5)));
        changes.extend(TaskState::ALL.map(|state| JobsChange::Task(id, TaskRecord { state, ..task() })));
        for change in changes {
            let row: JobsChangeRow = again(&Stored::of(&change, &catalog.resources));
            assert_eq!(row.read(&mut catalog).unwrap(), change);
        }
        assert!(JobsChangeRow::Phase(7, 99, 0).read(&mut catalog).is_err());
        let kinds = vec![PastAmount { dim: Dim(60_000), held: 0, sum: 7 }];
        let huge = PastRecord { kinds, ..past(kind).remove(0) };
        let row = JobsChangeRow::of(&JobsChange::Past(Box::new(huge)), &catalog.resources);
        assert!(row.read(&mut catalog).is_err(), "there are not so many kinds");
        let stranger = JobsChangeRow::of(&JobsChange::Job(Box::new(job(kind))), &catalog.resources);
        assert!(stranger.read(&mut Catalog::default()).is_err(), "its kinds are not there");
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
            JobsDone::ClassSet,
            JobsDone::ClassRemoved,
        ] {
            let row: JobsDoneRow = again(&Stored::of(&done, &ResourceRegistry::default()));
            assert_eq!(row.read(&mut Catalog::default()).unwrap(), done);
        }
    }
}
