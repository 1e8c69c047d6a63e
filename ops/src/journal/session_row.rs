//! Client sessions and the outcomes of their requests, in a form that can be stored.

use serde::{Deserialize, Serialize};
use wharf_core::registrar::Catalog;
use wharf_core::request::Placement;
use wharf_core::resource::ResourceRegistry;
use wharf_core::state::{
    Deed, Done, KeptOutcome, Origin, OutcomeRecord, SessionChange, SessionEnd, SessionRecord, WaitOutcome,
    WaitRecord,
};
use wharf_core::statement::Granted;
use wharf_net::protocol::{WireAllocation, WireGroup, WireSession, WireStatement};

use super::job_row::JobsDoneRow;
use super::mirror::{Stored, numbers, rows, stored_as};
use super::row::{GpusRow, UnitsRow};

rows! {
    /// A part of a request.
    struct OriginRow of Origin {
        session: WireSession,
        sequence: u64,
        mark: u64,
        /// In four bytes, because it is as often large as small.
        fingerprint: [u8; 4],
        part: u16,
        is_wait: bool,
        alternative: Option<u8>,
    }

    /// A placement without its amounts.
    struct PlacementRow of Placement {
        node: u64,
        allocation: WireAllocation,
        gpus: GpusRow,
        alternative: u8,
        units: UnitsRow,
    }

    enum GrantedRow of Granted {
        Allocated(placement: PlacementRow),
        Pipelined { allocation: WireAllocation, node: u64 },
        Releasing { allocation: WireAllocation, until: u64 },
        Ended(allocation: WireAllocation),
    }

    enum DeedRow of Deed {
        Placed(placement: Box<PlacementRow>, name: Option<String>),
        Released(inside: Option<u32>),
        NodeChanged(node: u64),
        NodeRemoved(node: u64, allocations: u32),
        ReservationEnded(node: u64),
        GroupChanged(group: WireGroup),
        GroupRemoved(group: WireGroup, bundles: u32),
        Statement(statement: WireStatement, granted: Vec<(u16, GrantedRow)>, names: Vec<(u64, String)>),
        Jobs(done: JobsDoneRow),
    }

    /// A part of a request that is done.
    struct DoneRow of Done { origin: OriginRow, deed: DeedRow }

    /// A request that waits: since when, its kind, and the request.
    struct WaitRow of WaitRecord { since: u64, kind: u16, request: Vec<u8> }

    enum WaitOutcomeRow of WaitOutcome {
        Placed(allocation: WireAllocation),
        Group(group: WireGroup),
        Expired,
        Cancelled,
        Refused,
    }

    /// A change of sessions.
    enum SessionChangeRow of SessionChange {
        Opened(session: WireSession, token: [u8; 16]),
        Waits(origin: OriginRow, wait: WaitRow),
        WaitEnded(session: WireSession, sequence: u64, outcome: WaitOutcomeRow),
        Answered(origin: OriginRow, reply: Vec<u8>),
        WaitAcknowledged(session: WireSession, sequence: u64),
        Ended(session: WireSession, end: u8),
    }

    enum OutcomeRow of KeptOutcome {
        Reply(reply: Vec<u8>),
        Parts(parts: Vec<(u16, DeedRow)>),
    }

    /// What is kept of a request: its hash, whether it is a wait, the placement that waits, and the outcome.
    struct KeptRow of OutcomeRecord { fingerprint: u32, is_wait: bool, wait: Option<WaitRow>, outcome: OutcomeRow }

    /// A session, and by sequence what is kept of its requests.
    struct SessionRow of SessionRecord {
        id: WireSession,
        token: [u8; 16],
        mark: u64,
        outcomes: Vec<(u64, KeptRow)>,
    }
}

numbers!(SessionEnd, "cause of the end of a session": 0 Closed, 1 Expired, 2 Evicted);

stored_as! {
    [u8; 4], u32: |number| number.to_le_bytes(), |bytes| Ok(u32::from_le_bytes(bytes));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use wharf_core::ids::{
        AllocationId, GroupId, Incarnation, NodeId, PartitionId, ResourceId, SessionId, StatementId, TenantId,
    };
    use wharf_core::jobs::{JobId, JobsDone};
    use wharf_core::resource::{GpuAssignment, UnitAssignment, UnitAssignments};
    use wharf_core::time::Time;
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

    /// Writes a record as a row and reads it back.
    fn again<T, R: Stored<T> + Serialize + serde::de::DeserializeOwned>(record: &T) -> T {
        let mut bytes = Vec::new();
        encode_body(&R::of(record, &ResourceRegistry::default()), &mut bytes);
        let (row, length) = decode_stored::<R>(&bytes).expect("it was just written");
        assert_eq!(length, bytes.len());
        row.read(&mut Catalog::default()).expect("it was just written")
    }

    #[test]
    fn what_requests_did_is_read_as_it_was_written() {
        for deed in deeds() {
            let done = Done { origin: origin(), deed };
            assert_eq!(again::<_, DoneRow>(&done), done);
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
            assert_eq!(again::<_, SessionChangeRow>(&change), change);
        }
        assert!(SessionChangeRow::Ended(SESSION.into(), 3).read(&mut Catalog::default()).is_err());
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
        assert_eq!(again::<_, SessionRow>(&session), session);
    }
}
