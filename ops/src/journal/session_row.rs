//! Client sessions and the outcomes of their requests, in a form that can be stored.

use std::sync::Arc;

use anyhow::bail;
use serde::{Deserialize, Serialize};
use wharf_core::ids::{NodeId, ResourceId};
use wharf_core::request::Placement;
use wharf_core::resource::{GpuAssignment, UnitAssignment, UnitAssignments};
use wharf_core::state::{
    Deed, Done, KeptOutcome, Origin, OutcomeRecord, SessionChange, SessionEnd, SessionRecord, WaitOutcome,
    WaitRecord,
};
use wharf_core::statement::Granted;
use wharf_core::time::Time;
use wharf_net::protocol::{WireAllocation, WireGroup, WireSession, WireStatement};

use super::job_row::JobsDoneRow;

/// A part of a request.
#[derive(Serialize, Deserialize)]
pub(super) struct OriginRow {
    session: WireSession,
    sequence: u64,
    mark: u64,
    /// In four bytes, because it is as often large as small.
    fingerprint: [u8; 4],
    part: u16,
    is_wait: bool,
    alternative: Option<u8>,
}

impl OriginRow {
    fn new(origin: &Origin) -> Self {
        let &Origin { session, sequence, mark, fingerprint, part, is_wait, alternative } = origin;
        let session = session.into();
        Self { session, sequence, mark, fingerprint: fingerprint.to_le_bytes(), part, is_wait, alternative }
    }

    fn origin(self) -> Origin {
        let Self { session, sequence, mark, fingerprint, part, is_wait, alternative } = self;
        let fingerprint = u32::from_le_bytes(fingerprint);
        Origin { session: session.into(), sequence, mark, fingerprint, part, is_wait, alternative }
    }
}

/// A placement without its amounts.
#[derive(Serialize, Deserialize)]
pub(super) struct PlacementRow {
    node: u64,
    allocation: WireAllocation,
    gpu_mask: u16,
    gpu_part: u16,
    alternative: u8,
    /// Kind, mask and part of each unit assignment.
    units: Vec<(u16, u64, u16)>,
}

impl PlacementRow {
    fn new(placement: &Placement) -> Self {
        let units = placement.units.as_deref().map_or(&[][..], |units| units);
        Self {
            node: placement.node.0,
            allocation: placement.allocation.into(),
            gpu_mask: placement.gpus.mask,
            gpu_part: placement.gpus.part,
            alternative: placement.alternative,
            units: units.iter().map(|&(id, units)| (id.0, units.mask, units.part)).collect(),
        }
    }

    fn placement(self) -> Placement {
        let units = self.units.into_iter();
        let units: UnitAssignments =
            units.map(|(id, mask, part)| (ResourceId(id), UnitAssignment { mask, part })).collect();
        Placement {
            node: NodeId(self.node),
            allocation: self.allocation.into(),
            gpus: GpuAssignment { mask: self.gpu_mask, part: self.gpu_part },
            alternative: self.alternative,
            units: (!units.is_empty()).then(|| Arc::new(units)),
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) enum GrantedRow {
    Allocated(PlacementRow),
    Pipelined(WireAllocation, u64),
    Releasing(WireAllocation, u64),
    Ended(WireAllocation),
}

impl GrantedRow {
    fn new(granted: &Granted) -> Self {
        match granted {
            Granted::Allocated(placement) => Self::Allocated(PlacementRow::new(placement)),
            &Granted::Pipelined { allocation, node } => Self::Pipelined(allocation.into(), node.0),
            &Granted::Releasing { allocation, until } => Self::Releasing(allocation.into(), until.0),
            &Granted::Ended(allocation) => Self::Ended(allocation.into()),
        }
    }

    fn granted(self) -> Granted {
        match self {
            Self::Allocated(placement) => Granted::Allocated(placement.placement()),
            Self::Pipelined(allocation, node) => {
                Granted::Pipelined { allocation: allocation.into(), node: NodeId(node) }
            }
            Self::Releasing(allocation, until) => {
                Granted::Releasing { allocation: allocation.into(), until: Time(until) }
            }
            Self::Ended(allocation) => Granted::Ended(allocation.into()),
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) enum DeedRow {
    Placed(PlacementRow, Option<String>),
    Released(Option<u32>),
    NodeChanged(u64),
    NodeRemoved(u64, u32),
    ReservationEnded(u64),
    GroupChanged(WireGroup),
    GroupRemoved(WireGroup, u32),
    Statement(WireStatement, Vec<(u16, GrantedRow)>, Vec<(u64, String)>),
    Jobs(JobsDoneRow),
}

impl DeedRow {
    fn new(deed: &Deed) -> Self {
        match deed {
            Deed::Placed(placement, name) => {
                Self::Placed(PlacementRow::new(placement), name.as_deref().map(str::to_owned))
            }
            &Deed::Released(inside) => Self::Released(inside),
            &Deed::NodeChanged(node) => Self::NodeChanged(node.0),
            &Deed::NodeRemoved(node, allocations) => Self::NodeRemoved(node.0, allocations),
            &Deed::ReservationEnded(node) => Self::ReservationEnded(node.0),
            &Deed::GroupChanged(group) => Self::GroupChanged(group.into()),
            &Deed::GroupRemoved(group, bundles) => Self::GroupRemoved(group.into(), bundles),
            Deed::Statement(statement, granted, names) => {
                let row = |(place, granted): &(u16, Granted)| (*place, GrantedRow::new(granted));
                let names = names.iter().map(|(node, name)| (node.0, name.to_string()));
                Self::Statement((*statement).into(), granted.iter().map(row).collect(), names.collect())
            }
            Deed::Jobs(done) => Self::Jobs(JobsDoneRow::new(done)),
        }
    }

    fn deed(self) -> Deed {
        match self {
            Self::Placed(placement, name) => {
                Deed::Placed(Box::new(placement.placement()), name.map(Into::into))
            }
            Self::Released(inside) => Deed::Released(inside),
            Self::NodeChanged(node) => Deed::NodeChanged(NodeId(node)),
            Self::NodeRemoved(node, allocations) => Deed::NodeRemoved(NodeId(node), allocations),
            Self::ReservationEnded(node) => Deed::ReservationEnded(NodeId(node)),
            Self::GroupChanged(group) => Deed::GroupChanged(group.into()),
            Self::GroupRemoved(group, bundles) => Deed::GroupRemoved(group.into(), bundles),
            Self::Statement(statement, rows, names) => {
                let granted = rows.into_iter().map(|(place, row)| (place, row.granted()));
                let names = names.into_iter().map(|(node, name)| (NodeId(node), name.into()));
                Deed::Statement(statement.into(), granted.collect(), names.collect())
            }
            Self::Jobs(done) => Deed::Jobs(done.done()),
        }
    }
}

/// A part of a request that is done.
#[derive(Serialize, Deserialize)]
pub(super) struct DoneRow(OriginRow, DeedRow);

impl DoneRow {
    pub(super) fn new(done: &Done) -> Self {
        Self(OriginRow::new(&done.origin), DeedRow::new(&done.deed))
    }

    pub(super) fn done(self) -> Done {
        Done { origin: self.0.origin(), deed: self.1.deed() }
    }
}

/// A request that waits: since when, its kind, and the request.
#[derive(Serialize, Deserialize)]
pub(super) struct WaitRow(u64, u16, Vec<u8>);

impl WaitRow {
    fn new(wait: &WaitRecord) -> Self {
        Self(wait.since.0, wait.kind, wait.request.to_vec())
    }

    fn wait(self) -> WaitRecord {
        WaitRecord { since: Time(self.0), kind: self.1, request: self.2.into() }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) enum WaitOutcomeRow {
    Placed(WireAllocation),
    Group(WireGroup),
    Expired,
    Cancelled,
    Refused,
}

impl WaitOutcomeRow {
    fn new(outcome: WaitOutcome) -> Self {
        match outcome {
            WaitOutcome::Placed(allocation) => Self::Placed(allocation.into()),
            WaitOutcome::Group(group) => Self::Group(group.into()),
            WaitOutcome::Expired => Self::Expired,
            WaitOutcome::Cancelled => Self::Cancelled,
            WaitOutcome::Refused => Self::Refused,
        }
    }

    fn outcome(self) -> WaitOutcome {
        match self {
            Self::Placed(allocation) => WaitOutcome::Placed(allocation.into()),
            Self::Group(group) => WaitOutcome::Group(group.into()),
            Self::Expired => WaitOutcome::Expired,
            Self::Cancelled => WaitOutcome::Cancelled,
            Self::Refused => WaitOutcome::Refused,
        }
    }
}

/// A change of sessions.
#[derive(Serialize, Deserialize)]
pub(super) enum SessionChangeRow {
    Opened(WireSession, [u8; 16]),
    Waits(OriginRow, WaitRow),
    WaitEnded(WireSession, u64, WaitOutcomeRow),
    Answered(OriginRow, Vec<u8>),
    WaitAcknowledged(WireSession, u64),
    Ended(WireSession, u8),
}

fn end_number(end: SessionEnd) -> u8 {
    match end {
        SessionEnd::Closed => 0,
        SessionEnd::Expired => 1,
        SessionEnd::Evicted => 2,
    }
}

fn end(number: u8) -> anyhow::Result<SessionEnd> {
    Ok(match number {
        0 => SessionEnd::Closed,
        1 => SessionEnd::Expired,
        2 => SessionEnd::Evicted,
        _ => bail!("{number} is no cause of the end of a session"),
    })
}

impl SessionChangeRow {
    pub(super) fn new(change: &SessionChange) -> Self {
        match change {
            &SessionChange::Opened(session, token) => Self::Opened(session.into(), token),
            SessionChange::Waits(origin, wait) => Self::Waits(OriginRow::new(origin), WaitRow::new(wait)),
            &SessionChange::WaitEnded(session, sequence, outcome) => {
                Self::WaitEnded(session.into(), sequence, WaitOutcomeRow::new(outcome))
            }
            SessionChange::Answered(origin, reply) => Self::Answered(OriginRow::new(origin), reply.to_vec()),
            &SessionChange::WaitAcknowledged(session, sequence) => {
                Self::WaitAcknowledged(session.into(), sequence)
            }
            &SessionChange::Ended(session, end) => Self::Ended(session.into(), end_number(end)),
        }
    }

    pub(super) fn change(self) -> anyhow::Result<SessionChange> {
        Ok(match self {
            Self::Opened(session, token) => SessionChange::Opened(session.into(), token),
            Self::Waits(origin, wait) => SessionChange::Waits(origin.origin(), wait.wait()),
            Self::WaitEnded(session, sequence, outcome) => {
                SessionChange::WaitEnded(session.into(), sequence, outcome.outcome())
            }
            Self::Answered(origin, reply) => SessionChange::Answered(origin.origin(), reply.into()),
            Self::WaitAcknowledged(session, sequence) => {
                SessionChange::WaitAcknowledged(session.into(), sequence)
            }
            Self::Ended(session, number) => SessionChange::Ended(session.into(), end(number)?),
        })
    }
}

#[derive(Serialize, Deserialize)]
enum OutcomeRow {
    Reply(Vec<u8>),
    Parts(Vec<(u16, DeedRow)>),
}

/// What is kept of a request: its hash, whether it is a wait, the placement that waits, and the outcome.
#[derive(Serialize, Deserialize)]
struct KeptRow(u32, bool, Option<WaitRow>, OutcomeRow);

/// A session, and by sequence what is kept of its requests.
#[derive(Serialize, Deserialize)]
pub(super) struct SessionRow {
    id: WireSession,
    token: [u8; 16],
    mark: u64,
    outcomes: Vec<(u64, KeptRow)>,
}

impl SessionRow {
    pub(super) fn new(session: &SessionRecord) -> Self {
        let row = |(&sequence, record): (&u64, &OutcomeRecord)| {
            let outcome = match &record.outcome {
                KeptOutcome::Reply(reply) => OutcomeRow::Reply(reply.to_vec()),
                KeptOutcome::Parts(parts) => {
                    OutcomeRow::Parts(parts.iter().map(|(part, deed)| (*part, DeedRow::new(deed))).collect())
                }
            };
            let wait = record.wait.as_ref().map(WaitRow::new);
            (sequence, KeptRow(record.fingerprint, record.is_wait, wait, outcome))
        };
        let outcomes = session.outcomes.iter().map(row).collect();
        Self { id: session.id.into(), token: session.token, mark: session.mark, outcomes }
    }

    pub(super) fn record(self) -> SessionRecord {
        let record = |(sequence, KeptRow(fingerprint, is_wait, wait, row))| {
            let outcome = match row {
                OutcomeRow::Reply(reply) => KeptOutcome::Reply(reply.into()),
                OutcomeRow::Parts(rows) => {
                    KeptOutcome::Parts(rows.into_iter().map(|(part, row)| (part, row.deed())).collect())
                }
            };
            (sequence, OutcomeRecord { fingerprint, is_wait, wait: wait.map(WaitRow::wait), outcome })
        };
        let outcomes = self.outcomes.into_iter().map(record).collect();
        SessionRecord { id: self.id.into(), token: self.token, mark: self.mark, outcomes }
    }
}

#[cfg(test)]
mod tests {
    use wharf_core::ids::{
        AllocationId, GroupId, Incarnation, PartitionId, SessionId, StatementId, TenantId,
    };
    use wharf_core::jobs::{JobId, JobsDone};
    use wharf_net::codec::{decode_stored, encode_body};

    use super::*;

    const SESSION: SessionId = SessionId { incarnation: Incarnation(3), number: 4 };

    fn placement() -> Placement {
        let allocation = AllocationId {
            incarnation: Incarnation(3),
            partition: PartitionId(5),
            sequence: 1 << 40,
            tenant: TenantId::OPERATOR,
        };
        let units: UnitAssignments = vec![(ResourceId(7), UnitAssignment { mask: 5, part: 10_000 })];
        Placement {
            node: NodeId(9),
            allocation,
            gpus: GpuAssignment { mask: 3, part: 10_000 },
            alternative: 2,
            units: Some(Arc::new(units)),
        }
    }

    fn deeds() -> Vec<Deed> {
        let group = GroupId { incarnation: Incarnation(3), number: 6, tenant: TenantId::OPERATOR };
        let statement = StatementId { incarnation: Incarnation(3), planner: 1, number: 2 };
        let allocation = placement().allocation;
        let granted = vec![
            (0, Granted::Allocated(placement())),
            (1, Granted::Pipelined { allocation, node: NodeId(9) }),
            (2, Granted::Releasing { allocation, until: Time(5) }),
            (4, Granted::Ended(allocation)),
        ];
        vec![
            Deed::Placed(placement().into(), Some("name".into())),
            Deed::Placed(Placement { units: None, ..placement() }.into(), None),
            Deed::Released(Some(4)),
            Deed::NodeChanged(NodeId(1)),
            Deed::NodeRemoved(NodeId(2), 3),
            Deed::ReservationEnded(NodeId(3)),
            Deed::GroupChanged(group),
            Deed::GroupRemoved(group, 8),
            Deed::Statement(statement, granted, [(NodeId(3), "name".into())].into()),
            Deed::Jobs(JobsDone::Submitted(JobId(3))),
        ]
    }

    fn wait() -> WaitRecord {
        WaitRecord { since: Time(1 << 40), kind: 300, request: vec![3, 0, 255].into() }
    }

    fn origin() -> Origin {
        Origin {
            session: SESSION,
            sequence: 12,
            mark: 11,
            fingerprint: u32::MAX - 1,
            part: 2,
            is_wait: true,
            alternative: Some(1),
        }
    }

    /// Writes a row and reads it back.
    fn again<T: Serialize + serde::de::DeserializeOwned>(row: &T) -> T {
        let mut bytes = Vec::new();
        encode_body(row, &mut bytes);
        let (read, length) = decode_stored(&bytes).expect("it was just written");
        assert_eq!(length, bytes.len());
        read
    }

    #[test]
    fn what_requests_did_is_read_as_it_was_written() {
        for deed in deeds() {
            let done = Done { origin: origin(), deed };
            assert_eq!(again(&DoneRow::new(&done)).done(), done);
        }
    }

    #[test]
    fn changes_of_sessions_are_read_as_they_were_written() {
        let ends = [SessionEnd::Closed, SessionEnd::Expired, SessionEnd::Evicted];
        let ends = ends.map(|end| SessionChange::Ended(SESSION, end));
        let rest = [
            SessionChange::Opened(SESSION, [9; 16]),
            SessionChange::Waits(origin(), wait()),
            SessionChange::WaitEnded(SESSION, 9, WaitOutcome::Placed(placement().allocation)),
            SessionChange::WaitEnded(
                SESSION,
                9,
                WaitOutcome::Group(GroupId {
                    incarnation: Incarnation(9),
                    number: 8,
                    tenant: TenantId::OPERATOR,
                }),
            ),
            SessionChange::WaitEnded(SESSION, 9, WaitOutcome::Expired),
            SessionChange::WaitEnded(SESSION, 9, WaitOutcome::Cancelled),
            SessionChange::WaitEnded(SESSION, 9, WaitOutcome::Refused),
            SessionChange::Answered(origin(), vec![1, 2, 3].into()),
            SessionChange::WaitAcknowledged(SESSION, 77),
        ];
        for change in ends.into_iter().chain(rest) {
            let read = again(&SessionChangeRow::new(&change)).change().expect("it was just written");
            assert_eq!(read, change);
        }
        assert!(SessionChangeRow::Ended(SESSION.into(), 3).change().is_err());
    }

    #[test]
    fn sessions_are_read_as_they_were_written() {
        let parts = KeptOutcome::Parts((0..).zip(deeds()).collect());
        let record = |outcome, is_wait| OutcomeRecord { fingerprint: 5, is_wait, wait: None, outcome };
        let waits = OutcomeRecord { wait: Some(wait()), ..record(KeptOutcome::Parts(Vec::new()), true) };
        let outcomes = [
            (3, record(parts, true)),
            (9, record(KeptOutcome::Reply(vec![4].into()), false)),
            (11, record(KeptOutcome::Parts(Vec::new()), true)),
            (12, waits),
        ];
        let session =
            SessionRecord { id: SESSION, token: [1; 16], mark: 8, outcomes: outcomes.into_iter().collect() };
        assert_eq!(again(&SessionRow::new(&session)).record(), session);
    }
}
