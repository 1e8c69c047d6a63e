//! Charges for the bundles of groups in queues.
//!
//! Each charge is a [direct placement](super::JobSpec::direct) that has its place, with an id of a space of its own. So sums,
//! caps, shares and past use count it like any other. It is never recorded: the record of its group tells all of it, and a
//! start makes it again from there. So no crash comes between a group and its charges.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{JobId, JobPhase, JobRecord, JobSpec, Jobs, NotCharged, QueueId, TaskId, TaskRecord, TaskState};
use crate::ids::{AllocationId, NodeId};
use crate::request::PlacementRequest;
use crate::time::Time;

impl JobId {
    /// The first id of a charge.
    pub(super) const FIRST_CHARGE: Self = Self(1 << 62);

    /// The first id of a [placeholder](super::placeholder).
    pub(super) const FIRST_PLACEHOLDER: Self = Self(1 << 63);

    /// Returns whether it is the charge for a bundle of a group.
    #[must_use]
    pub fn is_charge(self) -> bool {
        (Self::FIRST_CHARGE..Self::FIRST_PLACEHOLDER).contains(&self)
    }

    /// Returns whether it is the placeholder of a group that waits.
    #[must_use]
    pub fn is_placeholder(self) -> bool {
        self >= Self::FIRST_PLACEHOLDER
    }

    /// Returns whether the journal has it. What groups have in queues follows from their own records.
    #[must_use]
    pub fn is_recorded(self) -> bool {
        self < Self::FIRST_CHARGE
    }
}

/// The next number of a job, of a charge, and of a placeholder.
#[derive(Debug)]
pub(super) struct NextIds {
    pub(super) job: u64,
    pub(super) charge: u64,
    pub(super) placeholder: u64,
}

impl NextIds {
    /// Returns those of a store without jobs.
    pub(super) fn first() -> Self {
        Self { job: 1, charge: JobId::FIRST_CHARGE.0, placeholder: JobId::FIRST_PLACEHOLDER.0 }
    }

    /// Notes that there is this job.
    pub(super) fn meet(&mut self, id: JobId) {
        let next = match id {
            id if id.is_placeholder() => &mut self.placeholder,
            id if id.is_charge() => &mut self.charge,
            _ => &mut self.job,
        };
        *next = (*next).max(id.0 + 1);
    }
}

impl Jobs {
    /// Returns the queue of a name if bundles of a group that is there may be charged to it. It may be closed since.
    ///
    /// # Errors
    /// The reason why not.
    pub(crate) fn charged_queue(&self, name: &Arc<str>) -> Result<QueueId, NotCharged> {
        let known = self.queue_named(name).filter(|&id| id != QueueId::ROOT);
        let id = known.ok_or_else(|| NotCharged::UnknownQueue(Arc::clone(name)))?;
        let is_leaf = self.queue(id).is_leaf();
        is_leaf.then_some(id).ok_or_else(|| NotCharged::InnerQueue(Arc::clone(name)))
    }

    /// Charges a queue for a bundle of a group that is about to be placed on a node. Caps are checked by the caller.
    ///
    /// # Errors
    /// Sums would be too large, or there are too many users. Nothing has changed.
    pub(crate) fn charge(
        &mut self,
        (queue, group): (QueueId, &Arc<str>),
        request: &PlacementRequest,
        node: NodeId,
        now: Time,
    ) -> Result<JobId, NotCharged> {
        let spec = JobSpec { name: Arc::clone(group), ..JobSpec::direct(request.clone(), queue, 0, now) };
        let admitted = self.check_amounts(&spec).and_then(|()| self.admit_user(&spec));
        admitted.map_err(|error| NotCharged::of_job(&error, &self.queue(queue).spec.name))?;
        let id = JobId(self.next_ids.charge);
        self.insert(id, spec);
        self.set(TaskId { job: id, index: 0 }, TaskState::Bound, Some(node), now);
        self.set_phase(id, JobPhase::Running);
        Ok(id)
    }

    /// Notes the allocation of the bundle that a charge is for. It may have had another one, on another node.
    pub(crate) fn set_charged(&mut self, id: JobId, node: NodeId, allocation: AllocationId, now: Time) {
        let task = TaskId { job: id, index: 0 };
        if self.task(task).node != Some(node) {
            self.set(task, TaskState::Bound, Some(node), now);
        }
        self.set_allocation(task, allocation);
    }
}

impl JobRecord {
    /// Returns the charge for a bundle of this request that an earlier start placed, as it is at the start of this one.
    /// `number` counts charges from 0, and `name` is the id of the group.
    #[must_use]
    pub(crate) fn charge(
        number: u64,
        (queue, name): (Arc<str>, Arc<str>),
        request: &PlacementRequest,
        (node, allocation): (NodeId, AllocationId),
        now: Time,
    ) -> Self {
        let task = TaskRecord {
            node: Some(node),
            allocation: Some(allocation),
            started: Some(now),
            bound: Some(now),
            ..TaskRecord::without_node(TaskState::Bound, now)
        };
        Self {
            id: JobId(JobId::FIRST_CHARGE.0 + number),
            spec: Arc::new(JobSpec { name, ..JobSpec::direct(request.clone(), QueueId::ROOT, 0, now) }),
            queue,
            phase: JobPhase::Running,
            restarts: 0,
            tasks: BTreeMap::from([(0, task)]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fairness::Dim;
    use crate::ids::{Incarnation, PartitionId, TenantId};
    use crate::jobs::{JobsRecord, QueueSpec};
    use crate::request::Policy;
    use crate::resource::{Amount, Demand};

    fn cores(cpu: u32) -> PlacementRequest {
        PlacementRequest::new(Demand { cpu: Amount::whole(cpu), ..Demand::default() }, Policy::BestFit)
    }

    fn allocation(sequence: u64) -> AllocationId {
        let tenant = TenantId::OPERATOR;
        AllocationId { incarnation: Incarnation(1), partition: PartitionId(0), sequence, tenant }
    }

    /// The journal and the record know nothing of charges, and a copy knows them.
    #[test]
    fn charges_count_in_sums_and_copies_and_are_not_recorded() {
        let mut jobs = Jobs::new();
        let queue = jobs.add_queue(QueueSpec::new("q")).unwrap();
        jobs.note_changes();
        let before = jobs.record();
        let first = jobs.charge((queue, &"g".into()), &cores(3), NodeId(1), Time(5)).unwrap();
        let direct = jobs.submit(JobSpec::direct(cores(1), queue, 0, Time(5))).unwrap();
        assert!(first.is_charge() && !direct.is_charge());
        let mut copy = jobs.begin_copy();
        let second = jobs.charge((queue, &"g".into()), &cores(4), NodeId(1), Time(6)).unwrap();
        jobs.set_charged(first, NodeId(2), allocation(7), Time(6));
        while !copy.is_complete() {
            jobs.copy_step(&mut copy, 1);
        }
        jobs.end_copy(&mut copy);
        jobs.check().unwrap();
        assert_eq!(jobs.queue(queue).usage().held.get(Dim::CPU), 70_000);
        let copied = copy.into_parts().0;
        let ids = |record: &JobsRecord| record.jobs.iter().map(|job| job.id).collect::<Vec<_>>();
        assert_eq!((ids(&copied), copied.next_job), (vec![direct, first, second], 2));
        let mut again = Jobs::new();
        again.adopt(copied, Time(7)).unwrap();
        again.check().unwrap();
        assert_eq!(again.task(TaskId { job: first, index: 0 }).node, Some(NodeId(2)));
        for id in [first, direct, second] {
            jobs.set(TaskId { job: id, index: 0 }, TaskState::Failed, None, Time(8));
            jobs.remove_job(id);
        }
        assert_eq!(jobs.record().jobs, before.jobs);
        let changes = jobs.take_changes();
        assert!(changes.is_empty(), "{changes:?}");
        let third = jobs.charge((queue, &"g".into()), &cores(1), NodeId(1), Time(9)).unwrap();
        assert!(third > second && ids(&jobs.record()).is_empty());
    }

    #[test]
    fn a_charge_of_an_earlier_start_is_one_of_this() {
        let mut jobs = Jobs::new();
        jobs.add_queue(QueueSpec::new("q")).unwrap();
        let mut record = jobs.record();
        let made = |number| {
            JobRecord::charge(
                number,
                ("q".into(), "g".into()),
                &cores(2),
                (NodeId(3), allocation(number)),
                Time(4),
            )
        };
        record.jobs.extend([made(0), made(1)]);
        let mut jobs = Jobs::new();
        jobs.adopt(record, Time(4)).unwrap();
        jobs.check().unwrap();
        let queue = jobs.charged_queue(&"q".into()).unwrap();
        assert_eq!((jobs.queue(queue).usage().allocations(), jobs.next_job()), (2, 1));
        assert_eq!(
            jobs.charge((queue, &"g".into()), &cores(1), NodeId(1), Time(9)),
            Ok(JobId(JobId::FIRST_CHARGE.0 + 2))
        );
        assert_eq!(jobs.charged_queue(&"no".into()), Err(NotCharged::UnknownQueue("no".into())));
    }
}
