//! What a journal records: the effects of each batch on the durable state, as plain data.
//!
//! A shard collects its [`Effect`]s while it changes its books, and hands them over as one [`Unit`] per batch. The
//! registrar and the planners hand over units of their own. The units of all sources are in one order: a unit that was
//! caused by another one comes after it ([`JournalQueue`](crate::link::JournalQueue)). Storage keeps a prefix of this
//! order. A reply leaves the process once every unit before it is durable.
//!
//! Effects are states, not steps: a node as it is now, an allocation that is there or has ended. So an effect may be
//! applied again, and the units from any point on lead from a checkpoint that was begun at that point to the same
//! state ([`Rebuild`](crate::recovery::Rebuild)). No scheduling logic runs during recovery. A later version of
//! the engine can read the journal of an earlier one.

mod feed;
pub use feed::{JournalFeed, JournalPort};
mod store;
pub use store::{Append, Bounds, JournalStore, StoreError, Stream};

use std::sync::Arc;

use crate::ids::{
    AllocationId, GroupId, Incarnation, NodeId, Ordinal, PartitionId, SessionId, ShardId, StatementId,
};
use crate::index::PolicyState;
use crate::jobs::JobsChange;
use crate::node::NodeRegistration;
use crate::state::{
    AllocationRecord, BundleRecord, ClaimRecord, Deed, Done, GranularityState, GroupRecord, InsideRecord,
    LeaseRecord, NodeRecord, ReleasingRecord, ReservationRecord, SessionChange, SessionEnd, WaitOutcome,
};
use crate::time::Time;
use crate::view::EndCause;

/// A node as it is now, except for its allocations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeImage {
    /// Ids, capacity, labels, state, version, unhealthy GPUs.
    pub record: NodeRecord,
    /// Its reservation, if any.
    pub reservation: Option<ReservationRecord>,
    /// Its claims, in serving order.
    pub claims: Vec<ClaimRecord>,
    /// Its releasing allocations.
    pub releasing: Vec<ReleasingRecord>,
}

/// How an allocation came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeginCause {
    /// A placement was granted at once.
    Placed,
    /// A placement was granted after it had waited.
    Waited,
    /// A statement committed it, for a group or for an external scheduler.
    Committed,
    /// A claim was granted, because what it waited for was released.
    Claimed,
    /// Another system made it, and it was adopted.
    Adopted,
}

/// What changed of a node. If nothing of this did, then its reservation, claims, releasing allocations or health.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeNews {
    /// The node was added.
    pub is_new: bool,
    /// Capacity, labels, taints or names may be others.
    pub spec: bool,
    /// The state may be another.
    pub state: bool,
}

/// A node that was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRemoved {
    /// The partition that it was in.
    pub partition: PartitionId,
    /// Its id.
    pub id: NodeId,
    /// Its position in the order of registration.
    pub ordinal: Ordinal,
    /// Its name.
    pub name: Arc<str>,
    /// The identity of its machine. With one, the machine gets its old id when it returns.
    pub identity: Option<Arc<str>>,
    /// The last version that it had.
    pub version: u64,
}

impl NodeRemoved {
    /// Creates the record of a node that had this registration.
    #[must_use]
    pub fn new(registration: &NodeRegistration, version: u64) -> Self {
        let NodeRegistration { id, ordinal, partition, spec, .. } = registration;
        let name = Arc::clone(&spec.name);
        let identity = spec.identity.clone();
        Self { partition: *partition, id: *id, ordinal: *ordinal, name, identity, version }
    }
}

/// A change of the books of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// An allocation was made.
    Allocated(AllocationRecord, BeginCause),
    /// An allocation is a bundle.
    Bundle(BundleRecord),
    /// An allocation was placed into a bundle.
    Inside(InsideRecord),
    /// An allocation ended, or one inside a bundle.
    Ended(AllocationId, EndCause),
    /// A node was added or changed. The last effect of a unit for its node.
    Node(Box<NodeImage>, NodeNews),
    /// Only the version of a node changed.
    Version {
        /// The partition of the node.
        partition: PartitionId,
        /// The node.
        node: NodeId,
        /// The number of changes so far.
        version: u64,
    },
    /// A node was removed. Its allocations ended before.
    NodeRemoved(Box<NodeRemoved>),
    /// An allocation has a lease, or its lease was renewed. If the lease belongs to a session, all leases of the session
    /// in the partition have its deadline.
    Leased(LeaseRecord),
    /// The leases of a session in a partition were renewed.
    SessionRenewed {
        /// The partition.
        partition: PartitionId,
        /// The session.
        session: SessionId,
        /// The time at which their allocations end unless they are renewed again.
        until: Time,
    },
}

impl Effect {
    /// Returns the partition that it concerns.
    #[must_use]
    pub fn partition(&self) -> PartitionId {
        match self {
            Self::Allocated(record, _) => record.id.partition,
            Self::Bundle(record) => record.allocation.partition,
            Self::Inside(record) => record.id.partition,
            Self::Ended(id, _) => id.partition,
            Self::Node(image, _) => image.record.registration.partition,
            Self::Version { partition, .. } | Self::SessionRenewed { partition, .. } => *partition,
            Self::NodeRemoved(removed) => removed.partition,
            Self::Leased(record) => record.allocation.partition,
        }
    }
}

/// One change, as a client is told of it. Its position in the order of all changes is its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The service started, for the time of this number.
    Started(Incarnation),
    /// A change of the books of a shard.
    Effect(&'a Effect),
    /// A group as it is now. `None`: it was removed.
    Group(GroupId, Option<&'a GroupRecord>),
    /// A change of queues, jobs or tasks.
    Jobs(&'a JobsChange),
    /// The names of all resource kinds, because there are new ones.
    Kinds(&'a [String]),
    /// A client session ended. What waits of it has ended with it.
    SessionEnded(SessionId, SessionEnd),
    /// The wait of this request of a client session ended.
    WaitEnded(SessionId, u64, WaitOutcome),
}

/// What changed in one step of one source. All of it becomes durable at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The time of the step.
    pub now: Time,
    /// The changes.
    pub changes: Changes,
    /// The requests of clients that caused them, with their outcomes.
    pub done: Vec<Done>,
    /// The statements whose part on the shard is committed by this unit. They are not stored.
    pub finished: Vec<StatementId>,
}

/// The changes of a unit, by source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changes {
    /// The service started. Earlier policies of shards hold only for the same number of shards.
    Started {
        /// The number of this start.
        incarnation: Incarnation,
        /// The number of shards.
        shards: u16,
    },
    /// A batch of a shard.
    Shard {
        /// The shard.
        shard: ShardId,
        /// The changes of its books, in order.
        effects: Vec<Effect>,
        /// The cursor and the random state of its policies, if they changed.
        policy: Option<PolicyState>,
        /// Its granularity, if nodes changed and it follows them.
        granularity: Option<GranularityState>,
    },
    /// The registrar learnt resource kinds: all kinds in order of their ids, and the indexes of the unit-instance kinds.
    Kinds(Vec<String>, Vec<u16>),
    /// A planner changed groups. `None`: the group was removed.
    Groups(Vec<(GroupId, Option<GroupRecord>)>),
    /// Queues, jobs or tasks changed, in order.
    Jobs(Vec<JobsChange>),
    /// An I/O thread changed client sessions.
    Sessions(Vec<SessionChange>),
    /// A planner commits a statement over this number of shards. 0: it was aborted after all. The storage keeps the effects
    /// of all shards in one value.
    Decided(StatementId, u16),
}

impl Unit {
    /// Creates a unit that no request caused.
    #[must_use]
    pub fn new(now: Time, changes: Changes) -> Self {
        Self { now, changes, done: Vec::new(), finished: Vec::new() }
    }

    /// Returns the number of its [events](Self::events).
    #[must_use]
    pub fn event_count(&self) -> usize {
        match &self.changes {
            Changes::Shard { effects, .. } => effects.len() + self.placed_waits().count(),
            Changes::Groups(groups) => groups.len() + self.placed_waits().count(),
            Changes::Started { .. } | Changes::Kinds(..) => 1,
            Changes::Sessions(changes) => changes.iter().filter_map(of_session).count(),
            Changes::Jobs(changes) => changes.iter().filter_map(of_jobs).count(),
            Changes::Decided(..) => 0,
        }
    }

    /// Returns its changes one by one, in order, as a client is told of them.
    pub fn events(&self) -> impl Iterator<Item = Event<'_>> {
        let mut effects = &[][..];
        let mut groups = &[][..];
        let mut jobs = &[][..];
        let mut sessions = &[][..];
        let mut other = None;
        match &self.changes {
            Changes::Shard { effects: changed, .. } => effects = changed,
            Changes::Groups(changed) => groups = changed,
            Changes::Sessions(changed) => sessions = changed,
            &Changes::Started { incarnation, .. } => other = Some(Event::Started(incarnation)),
            Changes::Kinds(names, _) => other = Some(Event::Kinds(names)),
            Changes::Jobs(changed) => jobs = changed,
            Changes::Decided(..) => {}
        }
        let groups = groups.iter().map(|(id, group)| Event::Group(*id, group.as_ref()));
        let ended = sessions.iter().filter_map(of_session);
        let placed = self.placed_waits();
        let jobs = jobs.iter().filter_map(of_jobs);
        effects.iter().map(Event::Effect).chain(groups).chain(jobs).chain(placed).chain(ended).chain(other)
    }

    /// Returns the waits of client sessions that it ends by a placement.
    fn placed_waits(&self) -> impl Iterator<Item = Event<'_>> {
        self.done.iter().filter(|done| done.origin.is_wait).filter_map(|done| {
            let outcome = match &done.deed {
                Deed::Placed(placement, _) => WaitOutcome::Placed(placement.allocation),
                &Deed::GroupChanged(group) => WaitOutcome::Group(group),
                _ => return None,
            };
            Some(Event::WaitEnded(done.origin.session, done.origin.sequence, outcome))
        })
    }

    /// Keeps only what no page of a shard shows: resource kinds, groups, sessions, a start, what requests did, and what
    /// becomes of a machine that was removed. `None` if there is nothing of it.
    #[must_use]
    pub fn into_global(mut self) -> Option<Self> {
        if let Changes::Decided(..) = self.changes {
            return None;
        }
        if let Changes::Shard { effects, policy, granularity, .. } = &mut self.changes {
            effects.retain(|effect| match effect {
                Effect::Node(image, _) => image.record.registration.spec.identity.is_some(),
                Effect::NodeRemoved(_) => true,
                _ => false,
            });
            *policy = None;
            *granularity = None;
            if effects.is_empty() && self.done.is_empty() {
                return None;
            }
        }
        Some(self)
    }
}

/// Returns the event of a change of jobs, if there is one. What queues have held is not told. Of a direct placement, its
/// allocation tells all.
fn of_jobs(change: &JobsChange) -> Option<Event<'_>> {
    let is_told = match change {
        JobsChange::Past(_) | JobsChange::DirectEnded(_) => false,
        JobsChange::Job(job) => !job.spec.is_direct,
        _ => true,
    };
    is_told.then_some(Event::Jobs(change))
}

/// Returns the event of a change of sessions, if there is one.
fn of_session(change: &SessionChange) -> Option<Event<'_>> {
    match *change {
        SessionChange::Ended(session, why) => Some(Event::SessionEnded(session, why)),
        SessionChange::WaitEnded(session, sequence, outcome) => {
            Some(Event::WaitEnded(session, sequence, outcome))
        }
        _ => None,
    }
}
