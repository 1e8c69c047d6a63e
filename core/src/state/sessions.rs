//! Client sessions in the durable state: which requests were done, and with which outcome.
//!
//! The scheme is RIFL (Lee et al., "Implementing linearizability at large scale and low latency", SOSP 2015). A request
//! is named by its session and a sequence. The owner of an effect of a request records a [`Done`] in the same
//! unit of the journal. So after a crash, either both are there or none. The thread of the connection records the whole
//! reply ([`SessionChange::Answered`]) if the effects alone do not tell it.
//!
//! [`SessionTable`] is what these records lead to. Each record is a state, not a step: it may be applied again, and to a
//! table that shows it already.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ids::{AllocationId, GroupId, NodeId, SessionId, StatementId};
use crate::jobs::JobsDone;
use crate::request::Placement;
use crate::statement::Granted;
use crate::time::Time;

/// The secret with which a client resumes its session.
pub type SessionToken = [u8; 16];

/// A part of a request of a client session, which causes an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The session.
    pub session: SessionId,
    /// The sequence of the request.
    pub sequence: u64,
    /// The client has acknowledged all sequences below this one.
    pub mark: u64,
    /// A hash of the request, which tells another request with the same sequence.
    pub fingerprint: u32,
    /// The part of the request, from 0.
    pub part: u16,
    /// True if the client acknowledges the outcome individually, so that `mark` may pass it.
    pub is_wait: bool,
    /// The selector that the port asks for, if it asks for one after the other.
    pub alternative: Option<u8>,
}

/// What a part of a request has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// An allocation was made or adopted. The name of its node is filled in at a start, and when the node is removed.
    Placed(Box<Placement>, Option<Arc<str>>),
    /// An allocation was released. If it was a bundle, the number of allocations inside that ended with it.
    Released(Option<u32>),
    /// A node was added or changed.
    NodeChanged(NodeId),
    /// A node was removed, with this number of allocations.
    NodeRemoved(NodeId, u32),
    /// A reservation of the node ended.
    ReservationEnded(NodeId),
    /// A group was created or changed.
    GroupChanged(GroupId),
    /// A group was removed, with this number of bundles. For a request that was to create the group or to let it grow: it was
    /// removed before.
    GroupRemoved(GroupId, u32),
    /// A statement was committed. These operations took effect, by index. The names of the nodes are filled in as with
    /// `Placed`.
    Statement(StatementId, Vec<(u16, Granted)>, BTreeMap<NodeId, Arc<str>>),
    /// Queues, jobs or tasks were changed.
    Jobs(JobsDone),
}

impl Deed {
    /// Calls `each` for every node whose name belongs into the reply and is not kept yet. Keeps what it returns.
    fn name_nodes(&mut self, mut each: impl FnMut(NodeId) -> Option<Arc<str>>) {
        match self {
            Self::Placed(placement, name) if name.is_none() => *name = each(placement.node),
            Self::Statement(_, granted, names) => {
                for (_, granted) in granted {
                    if let Granted::Allocated(placement) = granted
                        && !names.contains_key(&placement.node)
                    {
                        names.extend(each(placement.node).map(|name| (placement.node, name)));
                    }
                }
            }
            _ => {}
        }
    }
}

/// A part of a request that is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The part.
    pub origin: Origin,
    /// What it has done.
    pub deed: Deed,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// Its client ended it, and has all replies.
    Closed,
    /// Its client stayed away for too long.
    Expired,
    /// There were too many sessions without a connection, and it was the oldest.
    Evicted,
}

/// A placement or a group that waits. The service goes on with it after a restart, and while its client is away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitRecord {
    /// The time from which on it waits. It orders requests of equal priority.
    pub since: Time,
    /// The kind of its frame.
    pub kind: u16,
    /// The request, as its client sent it.
    pub request: Arc<[u8]>,
}

/// How a wait of a client session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// The request was placed.
    Placed(AllocationId),
    /// The group was created, or has grown.
    Group(GroupId),
    /// Its deadline passed.
    Expired,
    /// Its client cancelled it, or its group was removed.
    Cancelled,
    /// It can never be placed, or its group is gone or is being changed.
    Refused,
}

/// A change of the sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionChange {
    /// A session was opened.
    Opened(SessionId, SessionToken),
    /// A request waits. Its client acknowledges the outcome individually.
    Waits(Origin, WaitRecord),
    /// A request was answered with this frame.
    Answered(Origin, Arc<[u8]>),
    /// The wait of a request ended without a placement. [`Answered`](Self::Answered) has the reply.
    WaitEnded(SessionId, u64, WaitOutcome),
    /// The client has the outcome of a wait.
    WaitAcknowledged(SessionId, u64),
    /// A session ended.
    Ended(SessionId, SessionEnd),
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeptOutcome {
    /// The reply, as a frame.
    Reply(Arc<[u8]>),
    /// What its parts have done, in order of part. There may be parts that were not done.
    Parts(Vec<(u16, Deed)>),
}

impl KeptOutcome {
    /// Returns whether it is known what became of a group.
    #[must_use]
    pub fn is_group(&self) -> bool {
        let Self::Parts(parts) = self else { return false };
        matches!(parts[..], [(_, Deed::GroupChanged(_) | Deed::GroupRemoved(..))])
    }
}

/// A request whose outcome its client has not acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutcomeRecord {
    /// The hash of the request.
    pub fingerprint: u32,
    /// True if the client acknowledges it individually.
    pub is_wait: bool,
    /// The request that waits, until it is answered.
    pub wait: Option<WaitRecord>,
    /// The outcome.
    pub outcome: KeptOutcome,
}

/// A client session in the durable state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    /// Its id.
    pub id: SessionId,
    /// Its token.
    pub token: SessionToken,
    /// The client has acknowledged all sequences below this one, except waits.
    pub mark: u64,
    /// The outcomes by sequence.
    pub outcomes: BTreeMap<u64, OutcomeRecord>,
}

impl SessionRecord {
    fn acknowledge(&mut self, mark: u64) {
        if mark <= self.mark {
            return;
        }
        self.mark = mark;
        let passed = self.outcomes.range(..mark).filter(|(_, record)| !record.is_wait);
        let passed: Vec<u64> = passed.map(|(&sequence, _)| sequence).collect();
        for sequence in passed {
            self.outcomes.remove(&sequence);
        }
    }

    /// Returns the record of a request, unless its client has acknowledged the outcome.
    fn outcome(&mut self, origin: &Origin) -> Option<&mut OutcomeRecord> {
        self.acknowledge(origin.mark);
        if origin.sequence < self.mark && !origin.is_wait {
            return None;
        }
        let Origin { fingerprint, is_wait, .. } = *origin;
        let outcome = KeptOutcome::Parts(Vec::new());
        let record = OutcomeRecord { fingerprint, is_wait, wait: None, outcome };
        Some(self.outcomes.entry(origin.sequence).or_insert(record))
    }
}

/// All client sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionTable {
    sessions: BTreeMap<SessionId, SessionRecord>,
}

impl SessionTable {
    /// Creates a table of these sessions.
    #[must_use]
    pub fn new(sessions: Vec<SessionRecord>) -> Self {
        Self { sessions: sessions.into_iter().map(|session| (session.id, session)).collect() }
    }

    /// Returns the sessions in order of id.
    pub fn iter(&self) -> impl Iterator<Item = &SessionRecord> {
        self.sessions.values()
    }

    /// Returns the sessions in order of id.
    #[must_use]
    pub fn into_records(self) -> Vec<SessionRecord> {
        self.sessions.into_values().collect()
    }

    /// Applies a change.
    pub fn apply(&mut self, change: &SessionChange) {
        match change {
            &SessionChange::Opened(id, token) => {
                let new = SessionRecord { id, token, mark: 1, outcomes: BTreeMap::new() };
                self.sessions.entry(id).or_insert(new);
            }
            SessionChange::Waits(origin, wait) => {
                if let Some(record) = self.outcome(origin)
                    && !matches!(record.outcome, KeptOutcome::Reply(_))
                {
                    record.wait = Some(wait.clone());
                }
            }
            SessionChange::Answered(origin, reply) => {
                if let Some(record) = self.outcome(origin) {
                    record.wait = None;
                    record.outcome = KeptOutcome::Reply(Arc::clone(reply));
                }
            }
            SessionChange::WaitEnded(..) => {}
            SessionChange::WaitAcknowledged(id, sequence) => {
                if let Some(session) = self.sessions.get_mut(id) {
                    session.outcomes.remove(sequence);
                }
            }
            SessionChange::Ended(id, _) => drop(self.sessions.remove(id)),
        }
    }

    /// Notes that a part of a request is done. Does nothing if the whole reply is known or was acknowledged.
    pub fn note(&mut self, done: &Done) {
        let Some(record) = self.outcome(&done.origin) else { return };
        let KeptOutcome::Parts(parts) = &mut record.outcome else { return };
        let part = done.origin.part;
        match parts.binary_search_by_key(&part, |&(part, _)| part) {
            Ok(at) => parts[at].1 = done.deed.clone(),
            Err(at) => parts.insert(at, (part, done.deed.clone())),
        }
    }

    fn outcome(&mut self, origin: &Origin) -> Option<&mut OutcomeRecord> {
        // Without a session: it ended after the pages of the checkpoint were begun.
        self.sessions.get_mut(&origin.session)?.outcome(origin)
    }

    /// Keeps the names of nodes, for outcomes that name the nodes. Of several names of a node, the last one counts. A name that
    /// is kept already stays.
    pub(crate) fn keep_names<'a>(&mut self, names: impl Iterator<Item = (NodeId, &'a Arc<str>)>) {
        let mut unnamed = BTreeSet::new();
        self.name_nodes(|node| {
            unnamed.insert(node);
            None
        });
        if !unnamed.is_empty() {
            let names: BTreeMap<NodeId, &Arc<str>> =
                names.filter(|(node, _)| unnamed.contains(node)).collect();
            self.name_nodes(|node| names.get(&node).map(|&name| Arc::clone(name)));
        }
    }

    fn name_nodes(&mut self, mut each: impl FnMut(NodeId) -> Option<Arc<str>>) {
        let outcomes = self.sessions.values_mut().flat_map(|session| session.outcomes.values_mut());
        let parts = outcomes.filter_map(|record| match &mut record.outcome {
            KeptOutcome::Parts(parts) => Some(parts),
            KeptOutcome::Reply(_) => None,
        });
        parts.flatten().for_each(|(_, deed)| deed.name_nodes(&mut each));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{AllocationId, Incarnation, PartitionId, TenantId};
    use crate::resource::GpuAssignment;
    use crate::rng::Rng;

    const ID: SessionId = SessionId { incarnation: Incarnation(1), number: 1 };

    fn origin(sequence: u64, mark: u64) -> Origin {
        Origin {
            session: ID,
            sequence,
            mark,
            fingerprint: sequence as u32,
            part: 0,
            is_wait: false,
            alternative: None,
        }
    }

    fn table() -> SessionTable {
        let mut table = SessionTable::default();
        table.apply(&SessionChange::Opened(ID, [7; 16]));
        table
    }

    fn sequences(table: &SessionTable) -> Vec<u64> {
        table.iter().flat_map(|session| session.outcomes.keys().copied()).collect()
    }

    fn released(origin: Origin) -> Done {
        Done { origin, deed: Deed::Released(None) }
    }

    #[test]
    fn a_mark_drops_all_outcomes_below_it_except_those_of_waits() {
        let mut table = table();
        for sequence in 1..=4 {
            table.note(&released(Origin { is_wait: sequence == 2, ..origin(sequence, 1) }));
        }
        table.note(&released(origin(5, 4)));
        assert_eq!(sequences(&table), [2, 4, 5]);
        table.apply(&SessionChange::WaitAcknowledged(ID, 2));
        assert_eq!(sequences(&table), [4, 5]);
        // Below the mark: it is not done again.
        table.note(&released(origin(3, 1)));
        assert_eq!(sequences(&table), [4, 5]);
    }

    #[test]
    fn the_whole_reply_replaces_the_parts_and_stays() {
        let mut table = table();
        for part in [2, 0, 1, 2] {
            table.note(&released(Origin { part, ..origin(1, 1) }));
        }
        let record = |table: &SessionTable| table.iter().next().expect("opened").outcomes[&1].clone();
        let parts = (0..3).map(|part| (part, Deed::Released(None))).collect();
        assert_eq!(record(&table).outcome, KeptOutcome::Parts(parts));
        table.apply(&SessionChange::Answered(origin(1, 1), vec![9].into()));
        table.note(&released(origin(1, 1)));
        assert_eq!(record(&table).outcome, KeptOutcome::Reply(vec![9].into()));
    }

    #[test]
    fn a_wait_is_kept_until_it_is_answered() {
        let mut table = table();
        let of = Origin { is_wait: true, ..origin(1, 1) };
        let wait = WaitRecord { since: Time(5), kind: 1, request: vec![1, 2].into() };
        table.apply(&SessionChange::Waits(of, wait.clone()));
        let record = |table: &SessionTable| table.iter().next().expect("opened").outcomes[&1].wait.clone();
        assert_eq!(record(&table), Some(wait.clone()));
        // It is placed. The reply is not recorded yet.
        table.note(&released(of));
        assert_eq!(record(&table), Some(wait.clone()));
        table.apply(&SessionChange::Answered(of, vec![9].into()));
        assert_eq!(record(&table), None);
        // The page of a checkpoint may show the answer before the units tell that it waits.
        table.apply(&SessionChange::Waits(of, wait));
        assert_eq!(record(&table), None);
    }

    #[test]
    fn records_of_a_session_that_ended_do_nothing() {
        let mut table = table();
        table.apply(&SessionChange::Ended(ID, SessionEnd::Closed));
        table.note(&released(origin(1, 1)));
        table.apply(&SessionChange::Answered(origin(1, 1), vec![9].into()));
        assert_eq!(table, SessionTable::default());
    }

    #[test]
    fn the_name_of_a_removed_node_is_kept_once() {
        let mut table = table();
        let id = AllocationId {
            incarnation: Incarnation(1),
            partition: PartitionId(0),
            sequence: 1,
            tenant: TenantId::OPERATOR,
        };
        let gpus = GpuAssignment::default();
        let placement = Placement { node: NodeId(3), allocation: id, gpus, alternative: 0, units: None };
        table.note(&Done { origin: origin(1, 1), deed: Deed::Placed(placement.clone().into(), None) });
        for (node, name) in [(4, "other"), (3, "name"), (3, "later")] {
            table.keep_names([(NodeId(node), &name.into())].into_iter());
        }
        let kept = KeptOutcome::Parts(vec![(0, Deed::Placed(placement.into(), Some("name".into())))]);
        assert_eq!(table.iter().next().expect("opened").outcomes[&1].outcome, kept);
    }

    /// A node may be removed after a start, when only the names that a start kept are left.
    #[test]
    fn a_start_keeps_the_names_of_all_nodes_in_outcomes() {
        let mut table = table();
        let of = |node: u64, sequence| {
            let allocation = AllocationId {
                incarnation: Incarnation(1),
                partition: PartitionId(0),
                sequence,
                tenant: TenantId::OPERATOR,
            };
            let gpus = GpuAssignment::default();
            Placement { node: NodeId(node), allocation, gpus, alternative: 0, units: None }
        };
        let statement = StatementId { incarnation: Incarnation(1), planner: 0, number: 1 };
        let granted = vec![(0, Granted::Allocated(of(4, 2))), (1, Granted::Allocated(of(5, 3)))];
        table.note(&Done { origin: origin(1, 1), deed: Deed::Placed(of(3, 1).into(), None) });
        let deed = Deed::Statement(statement, granted.clone(), BTreeMap::new());
        table.note(&Done { origin: origin(2, 1), deed });
        table.keep_names([(NodeId(5), &"removed".into())].into_iter());
        let names: Vec<Arc<str>> = vec!["c".into(), "d".into(), "later".into(), "other".into()];
        table.keep_names((3..).map(NodeId).zip(&names));
        let outcomes = &table.iter().next().expect("opened").outcomes;
        let kept = KeptOutcome::Parts(vec![(0, Deed::Placed(of(3, 1).into(), Some("c".into())))]);
        assert_eq!(outcomes[&1].outcome, kept);
        let names = BTreeMap::from([(NodeId(4), "d".into()), (NodeId(5), "removed".into())]);
        let kept = KeptOutcome::Parts(vec![(0, Deed::Statement(statement, granted, names))]);
        assert_eq!(outcomes[&2].outcome, kept);
    }

    /// A checkpoint's table may show any later state. The records from its begin on lead to the same table.
    #[test]
    fn records_may_be_applied_again() {
        enum Record {
            Change(SessionChange),
            Done(Done),
        }
        let apply = |table: &mut SessionTable, record: &Record| match record {
            Record::Change(change) => table.apply(change),
            Record::Done(done) => table.note(done),
        };
        let mut rng = Rng::new(4);
        for _ in 0..200 {
            let mut mark = 1;
            let mut records = vec![Record::Change(SessionChange::Opened(ID, [7; 16]))];
            for sequence in 1..40 {
                mark += rng.below(sequence - mark + 1);
                let of = Origin { is_wait: sequence % 5 == 0, ..origin(sequence, mark) };
                if of.is_wait {
                    let request = vec![sequence as u8].into();
                    let wait = WaitRecord { since: Time(sequence), kind: 1, request };
                    records.push(Record::Change(SessionChange::Waits(of, wait)));
                }
                records.push(Record::Done(released(Origin { part: rng.below(3) as u16, ..of })));
                if rng.below(3) == 0 {
                    let reply = vec![sequence as u8].into();
                    records.push(Record::Change(SessionChange::Answered(of, reply)));
                }
                if of.is_wait && rng.below(2) == 0 {
                    records.push(Record::Change(SessionChange::WaitAcknowledged(ID, sequence)));
                }
            }
            if rng.below(4) == 0 {
                records.push(Record::Change(SessionChange::Ended(ID, SessionEnd::Expired)));
            }
            let mut straight = SessionTable::default();
            records.iter().for_each(|record| apply(&mut straight, record));
            let from = rng.below(records.len() as u64) as usize;
            let to = from + rng.below((records.len() - from) as u64 + 1) as usize;
            let mut again = SessionTable::default();
            records[..to].iter().for_each(|record| apply(&mut again, record));
            records[from..].iter().for_each(|record| apply(&mut again, record));
            assert_eq!(again, straight, "from {from}, page at {to}");
        }
    }
}
