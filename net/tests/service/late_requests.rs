//! Requests of every kind whose deadline passes before they begin: when they are read, and in each queue after that. They
//! are refused in one way, and nothing is done.

use std::sync::atomic::Ordering;

use wharf_core::ids::{AllocationId, GroupId, Incarnation, NodeId, PartitionId, TenantId};
use wharf_core::journal::Changes;
use wharf_core::request::Placement;
use wharf_core::resource::GpuAssignment;
use wharf_core::state::{Deed, KeptOutcome};
use wharf_net::codec::decode_body;
use wharf_net::protocol::*;
use wharf_net::session::connections::ConnectionKey;

use crate::harness::bed::{Bed, NOW, PATIENCE_NS};
use crate::harness::{Frame, ask, named, node, request, request_within, with_custom};

const WITHIN_NS: u64 = 1_000_000;

/// Kinds that shards serve. Their turns have tests of their own (`overload.rs`).
const OF_SHARDS: [Kind; 5] = [Kind::Place, Kind::PlaceBatch, Kind::Release, Kind::ReleaseBatch, Kind::Renew];
/// Kinds that wait for nothing before they begin.
const AT_ONCE: [Kind; 2] = [Kind::Hello, Kind::CancelWait];
/// Kinds that may wait for the peer to take replies. The other one is tested in `events.rs`.
const FOLLOWING: [Kind; 2] = [Kind::Follow, Kind::Events];
/// Kinds that the registrar serves.
const OF_REGISTRAR: [Kind; 14] = [
    Kind::AddNodes,
    Kind::UpdateNodes,
    Kind::DrainNodes,
    Kind::RemoveNodes,
    Kind::ListNodes,
    Kind::Status,
    Kind::Report,
    Kind::Heartbeat,
    Kind::Adopt,
    Kind::SetResources,
    Kind::NodeBooks,
    Kind::Reserve,
    Kind::EndReservation,
    Kind::Export,
];

/// Makes a request of which all fields are zero or empty.
struct Blank {
    sequence: u64,
    within: u64,
}

impl MessageVisitor for Blank {
    type Output = Vec<u8>;

    fn visit<M: Message>(self) -> Vec<u8> {
        let (body, _) = decode_body::<M::Request>(&[0; 4096]).expect("zeros are a body");
        request_within(M::KIND, self.sequence, self.within, &body)
    }
}

fn is_late(frame: &Frame) -> bool {
    frame.fault().is_some_and(|fault| fault.reason == Reason::DeadlineExceeded.into())
}

/// Checks that this request is answered, and nothing else, and that it was refused as late.
#[track_caller]
fn assert_late(bed: &mut Bed, key: ConnectionKey, sequence: u64) {
    let replies = bed.replies(key);
    let [reply] = &replies[..] else { panic!("{} replies", replies.len()) };
    assert_eq!(reply.header.sequence, sequence);
    reply.assert_fault(Reason::DeadlineExceeded);
}

fn shed(bed: &Bed) -> u64 {
    // Relaxed: one thread.
    bed.shared.counters.shed.load(Ordering::Relaxed)
}

fn pass(bed: &mut Bed, nanos: u64) {
    bed.now = bed.now.plus_nanos(nanos);
}

fn group() -> WireGroup {
    GroupId { incarnation: Incarnation(9), number: 0, tenant: TenantId::OPERATOR }.into()
}

/// Returns a request of each kind that planners or the keeper of jobs serve.
fn of_planners(sequence: u64, within: u64) -> Vec<(Kind, Vec<u8>)> {
    let bundles = vec![BundleTemplate { request: ask(1, 0, 0), count: 1 }];
    let take = OperationBody { operation: OPERATION_ALLOCATE, node: 1, ..OperationBody::default() };
    let tasks = vec![TaskGroupBody { request: ask(1, 0, 0), count: 1, ..TaskGroupBody::default() }];
    let role = RoleBody { name: "task".to_owned(), min_member: 0 };
    let queue = || "all".to_owned();
    let job =
        JobBody { name: "job".to_owned(), queue: queue(), roles: vec![role], tasks, ..JobBody::default() };
    let of_type = NodeTypeBody { node: node("type", 1, 1, 0), max: 1, ..NodeTypeBody::default() };
    let into = PlaceIntoRequest { group: Some(group()), ..PlaceIntoRequest::default() };
    let explain = ExplainWaitRequest { group: Some(group()), ..ExplainWaitRequest::default() };
    let grow = GrowGroupRequest { group: group(), bundles: bundles.clone(), ..GrowGroupRequest::default() };
    let create = CreateGroupRequest { bundles, ..CreateGroupRequest::default() };
    let set = SetQueueRequest { queue: QueueBody { name: queue(), ..QueueBody::default() } };
    let class = PriorityClassBody { name: queue(), ..PriorityClassBody::default() };
    let report = TaskReportBody { job: 1, state: TASK_SUCCEEDED, ..TaskReportBody::default() };
    let plan = PlanNodesRequest { types: vec![of_type], ..PlanNodesRequest::default() };
    let statement = StatementRequest { operations: vec![take], ..StatementRequest::default() };
    macro_rules! requests {
        ($($kind:ident: $body:expr,)*) => {
            vec![$((Kind::$kind, request_within(Kind::$kind, sequence, within, &$body)),)*]
        };
    }
    requests! {
        CreateGroup: create,
        GrowGroup: grow,
        ShrinkGroup: ShrinkGroupRequest { group: group(), bundles: vec![0] },
        RemoveGroup: RemoveGroupRequest { group: group() },
        GroupStatus: GroupStatusRequest { group: group() },
        ListGroups: ListGroupsRequest { after: None, limit: 1 },
        PlaceInto: into,
        SubmitStatement: statement,
        ExplainWait: explain,
        SetQueue: set,
        RemoveQueue: RemoveQueueRequest { name: queue() },
        ListQueues: ListQueuesRequest { after: String::new(), limit: 1 },
        SetPriorityClass: SetPriorityClassRequest { class },
        RemovePriorityClass: RemovePriorityClassRequest { name: queue() },
        ListPriorityClasses: ListPriorityClassesRequest { after: String::new(), limit: 1 },
        SubmitJob: SubmitJobRequest { job },
        CancelJob: CancelJobRequest { job: 1, grace: 0 },
        JobStatus: JobStatusRequest { job: 1, from: 0, limit: 1 },
        ListJobs: ListJobsRequest { queue: String::new(), after: 0, limit: 1 },
        ReportTasks: ReportTasksRequest { tasks: vec![report] },
        ExplainJob: ExplainJobRequest { job: 1, task: None },
        PlanNodes: plan,
        Place: PlaceRequest { queue: queue(), ..ask(0, 0, 0) },
    }
}

/// A new kind is in none of the lists, and needs a test of where it waits.
#[test]
fn each_kind_is_in_a_list_of_those_that_are_tested() {
    let of_planners: Vec<Kind> = of_planners(1, 0).into_iter().map(|(kind, _)| kind).collect();
    let lists = [&OF_SHARDS[..], &AT_ONCE, &FOLLOWING, &OF_REGISTRAR, &of_planners];
    for kind in Kind::ALL {
        assert!(lists.iter().any(|list| list.contains(kind)), "`{}` is in none", kind.name());
    }
}

#[test]
fn what_is_late_when_it_is_read_is_refused_whatever_it_asks() {
    let mut bed = Bed::with_jobs();
    let key = bed.connect(false, None).0;
    let kinds = Kind::ALL.iter().filter(|&&kind| kind != Kind::Hello);
    for (sequence, kind) in (1..).zip(kinds) {
        bed.service.receive(key, &kind.visit(Blank { sequence, within: 0 }), bed.now);
        assert_eq!(shed(&bed), sequence, "`{}`", kind.name());
        assert_late(&mut bed, key, sequence);
    }
    assert_eq!((bed.take_questions(), bed.service.in_engine()), (0, (0, 0)));
    bed.service.check_room().expect("nothing is in progress");
}

#[test]
fn the_registrar_begins_nothing_that_is_late() {
    let mut bed = Bed::with_full_node(Vec::new(), NOW);
    let key = bed.connect(false, None).0;
    let before = bed.registrar();
    let mut sequence = 0;
    for kind in OF_REGISTRAR {
        // It waits in the service, or has left it in time and waits for the registrar.
        for is_taken in [false, true] {
            sequence += 1;
            let blank = kind.visit(Blank { sequence, within: WITHIN_NS });
            bed.service.receive(key, &blank, bed.now);
            if is_taken {
                assert_eq!(bed.take_questions(), 1, "`{}`", kind.name());
            }
            pass(&mut bed, WITHIN_NS);
            assert_eq!(bed.take_questions(), usize::from(is_taken), "`{}`", kind.name());
            bed.run_registrar();
            bed.deliver_answers();
            assert_late(&mut bed, key, sequence);
        }
    }
    assert_eq!(shed(&bed), sequence);
    assert_eq!(bed.registrar(), before);
    for kind in OF_REGISTRAR {
        sequence += 1;
        bed.service.receive(key, &kind.visit(Blank { sequence, within: WITHIN_NS }), bed.now);
        pass(&mut bed, WITHIN_NS - 1);
        bed.take_questions();
        bed.run_registrar();
        bed.deliver_answers();
        bed.write();
        let replies = bed.replies(key);
        assert!(replies.len() == 1 && !is_late(&replies[0]), "`{}` was in time", kind.name());
    }
}

/// The answer to a list or a status that has begun may come at any time.
#[test]
fn what_the_registrar_has_begun_is_answered() {
    let mut bed = Bed::with_full_node(Vec::new(), NOW);
    let key = bed.connect(false, None).0;
    let status = StatusRequest { audit: true };
    bed.service.receive(key, &request_within(Kind::Status, 1, WITHIN_NS, &status), bed.now);
    bed.take_questions();
    bed.run_registrar();
    pass(&mut bed, WITHIN_NS);
    bed.deliver_answers();
    bed.write();
    let reply = bed.replies(key).remove(0);
    assert!(reply.body::<StatusReply>().books_hash.is_some());
}

fn run_planners(bed: &mut Bed) {
    for _ in 0..6 {
        bed.run_planner();
        bed.run_shard();
    }
}

#[test]
fn planners_and_the_keeper_of_jobs_begin_nothing_that_is_late() {
    let mut bed = Bed::with_jobs();
    let key = bed.connect(false, None).0;
    bed.units();
    let count = of_planners(1, 0).len();
    for at in 0..count {
        let sequence = at as u64 + 1;
        let (kind, bytes) = of_planners(sequence, WITHIN_NS).swap_remove(at);
        bed.service.receive(key, &bytes, bed.now);
        assert_eq!(bed.replies(key).len(), 0, "`{}` waits for its turn", kind.name());
        pass(&mut bed, WITHIN_NS);
        run_planners(&mut bed);
        assert_eq!(shed(&bed), sequence, "`{}`", kind.name());
        assert_late(&mut bed, key, sequence);
    }
    bed.service.check_room().expect("nothing is in progress");
    // Neither what was done nor what was answered is recorded.
    assert!(bed.units().iter().all(|unit| matches!(&unit.changes, Changes::Sessions(all) if all.is_empty())));
    for at in 0..count {
        let sequence = (count + at) as u64 + 1;
        let (kind, bytes) = of_planners(sequence, WITHIN_NS).swap_remove(at);
        bed.service.receive(key, &bytes, bed.now);
        pass(&mut bed, WITHIN_NS - 1);
        run_planners(&mut bed);
        bed.units();
        let replies = bed.replies(key);
        assert!(replies.len() == 1 && !is_late(&replies[0]), "`{}` was in time", kind.name());
    }
}

/// A request that is refused as late is no outcome: sent again, it is done.
#[test]
fn a_late_group_that_is_sent_again_is_made() {
    let mut bed = Bed::with_jobs();
    let key = bed.connect(false, None).0;
    let bundles = vec![BundleTemplate { request: ask(0, 0, 0), count: 1 }];
    let create = CreateGroupRequest { bundles, ..CreateGroupRequest::default() };
    let bytes = request_within(Kind::CreateGroup, 1, WITHIN_NS, &create);
    bed.service.receive(key, &bytes, bed.now);
    pass(&mut bed, WITHIN_NS);
    run_planners(&mut bed);
    assert_late(&mut bed, key, 1);
    assert_eq!(bed.groups(), 0);
    bed.service.receive(key, &bytes, bed.now);
    run_planners(&mut bed);
    bed.units();
    assert!(bed.replies(key)[0].body::<GroupReply>().reason.is_done());
    assert_eq!(bed.groups(), 1);
}

/// A placement that waits names a kind of resource that nobody knows yet, so the registrar learns it first.
#[test]
fn a_wait_does_not_begin_after_its_deadline() {
    let wait = |sequence| {
        let until = PlaceRequest { mode: MODE_WAIT_UNTIL, deadline: NOW.0 + PATIENCE_NS, ..ask(0, 0, 0) };
        request_within(Kind::Place, sequence, WITHIN_NS, &with_custom(vec![named("fpga", 1)], until))
    };
    // The deadline passes before step 1, 2 or 3. In the last turn it does not.
    for passes_before in 1..=4 {
        let mut bed = Bed::with_full_node(Vec::new(), NOW);
        let key = bed.connect(false, None).0;
        bed.service.receive(key, &wait(1), bed.now);
        for step in 1..=3 {
            if step == passes_before {
                pass(&mut bed, WITHIN_NS);
            }
            match step {
                1 => drop(bed.take_questions()),
                2 => bed.run_registrar(),
                _ => bed.deliver_answers(),
            }
        }
        if passes_before > 3 {
            assert_eq!((bed.replies(key).len(), bed.service.in_engine()), (0, (0, 1)), "it waits");
            // From now on only its own field bounds the wait.
            pass(&mut bed, WITHIN_NS);
            bed.run_shard();
            assert_eq!(bed.service.in_engine(), (0, 1));
            continue;
        }
        assert_late(&mut bed, key, 1);
        assert_eq!(bed.service.in_engine(), (0, 0), "late before step {passes_before}");
        // The connection goes on.
        bed.service.receive(key, &request(Kind::Place, 2, &ask(0, 0, 0)), bed.now);
        bed.run_shard();
        bed.write();
        assert_eq!(bed.replies(key).len(), 1);
    }
}

/// The planner has named the bundles of the group, and no shard was asked.
#[test]
fn a_placement_into_a_group_that_is_late_at_its_turn_is_not_done() {
    const PACE_NS: u64 = WITHIN_NS;
    let mut bed = Bed::with_full_node(Vec::new(), NOW);
    let key = bed.connect(false, None).0;
    let bundles = vec![BundleTemplate { request: ask(0, 0, 0), count: 1 }];
    let create = CreateGroupRequest { bundles, ..CreateGroupRequest::default() };
    bed.service.receive(key, &request(Kind::CreateGroup, 1, &create), bed.now);
    run_planners(&mut bed);
    bed.units();
    let group = bed.replies(key)[0].body::<GroupReply>().group.expect("it fits").id;
    bed.set_pace(PACE_NS);
    bed.service.receive(key, &request(Kind::Place, 2, &ask(0, 0, 0)), bed.now);
    bed.run_shard();
    bed.units();
    assert_eq!(bed.replies(key).len(), 1);
    let into = PlaceIntoRequest { group: Some(group), ..PlaceIntoRequest::default() };
    let mut sequence = 2;
    for is_late in [true, false] {
        for _ in 0..10 {
            sequence += 1;
            bed.service.receive(key, &request(Kind::Place, sequence, &ask(0, 0, 0)), bed.now);
        }
        sequence += 1;
        let within = if is_late { WITHIN_NS } else { 100 * PACE_NS };
        bed.service.receive(key, &request_within(Kind::PlaceInto, sequence, within, &into), bed.now);
        bed.run_planner();
        for _ in 0..12 {
            pass(&mut bed, PACE_NS);
            bed.run_shard();
            bed.units();
        }
        let replies = bed.replies(key);
        assert_eq!(replies.len(), 11);
        let reply = replies.iter().find(|reply| reply.header.sequence == sequence).expect("it is answered");
        if is_late {
            reply.assert_fault(Reason::DeadlineExceeded);
        } else {
            assert!(reply.fault().is_none(), "{:?}", reply.fault());
        }
    }
    bed.service.check_room().expect("nothing is in progress");
}

/// A peer that does not take its replies gets no further page until it does.
#[test]
fn a_page_of_changes_is_not_made_after_its_deadline() {
    let mut bed = Bed::with_full_node(Vec::new(), NOW);
    let key = bed.connect(false, None).0;
    run_planners(&mut bed);
    let follow = FollowRequest { kinds: FOLLOW_ALL, ..FollowRequest::default() };
    let mut sequence = 0;
    while bed.service.wants_input(key) {
        sequence += 1;
        assert!(sequence < 100, "no page waits");
        bed.service.receive(key, &request_within(Kind::Follow, sequence, WITHIN_NS, &follow), bed.now);
        bed.run_shard();
    }
    pass(&mut bed, WITHIN_NS);
    let pages = bed.replies(key);
    assert_eq!(pages.len() as u64, sequence - 1);
    assert!(pages.iter().all(|page| !is_late(page)));
    assert_late(&mut bed, key, sequence);
}

/// What an earlier start has done in part goes on, however late the client is. It would be refused if it were new.
#[test]
fn a_batch_that_has_begun_is_finished() {
    let batch = PlaceBatch { requests: vec![ask(0, 0, 0); 2] };
    let bytes = request_within(Kind::PlaceBatch, 1, 0, &batch);
    let mut bed = Bed::with_full_node(Vec::new(), NOW);
    // In this version the extension means nothing, so the batch is done.
    bed.version = 1;
    let (key, hello) = bed.connect(false, None);
    bed.service.receive(key, &bytes, bed.now);
    bed.run_shard();
    bed.lose(key);
    let mut records = bed.shared.session_records();
    let partition = PartitionId(0);
    let allocation =
        AllocationId { incarnation: Incarnation(1), partition, sequence: 2, tenant: TenantId::OPERATOR };
    let gpus = GpuAssignment::default();
    let placement = Placement { node: NodeId(1), allocation, gpus, alternative: 0, units: None };
    let placed = Deed::Placed(placement.into(), Some("full".into()));
    records[0].outcomes.get_mut(&1).expect("it was answered").outcome = KeptOutcome::Parts(vec![(0, placed)]);
    let mut bed = Bed::with_full_node(records, bed.now);
    let (key, _) = bed.connect(false, Some(Resume { session: hello.session, token: hello.token }));
    bed.service.receive(key, &bytes, bed.now);
    bed.run_shard();
    bed.write();
    let replies = bed.replies(key);
    let reply: PlaceBatchReply = replies[0].body();
    assert!(reply.replies.iter().all(|reply| reply.placed.is_some()), "{reply:?}");
    assert_eq!(shed(&bed), 0);
}
