//! Conversion of groups and statements: what is refused and with which field. The largest replies fit a frame.

use std::sync::Arc;

use wharf_core::group::{
    BundlePlace, GroupRefusal, GroupRefusalReason, GroupSpec, GroupSpecError, GroupState, GroupView, NoGroup,
    PlanRejection, Spreading, StatementReport, Strategy,
};
use wharf_core::ids::{
    AllocationId, BundleId, GroupId, Incarnation, NodeId, OwnerId, PartitionId, StatementId, TenantId,
};
use wharf_core::limits::{AMOUNT_MAX, GROUP_BUNDLES_MAX};
use wharf_core::link::Decision;
use wharf_core::node::{Labels, NodeSpec, NodeState, Taints};
use wharf_core::registrar::{Catalog, Registrar};
use wharf_core::request::{Check, Placement, PlacementRequest, Policy, Refusal};
use wharf_core::resource::{Amount, Demand, GpuAssignment, GpuRequest, ResourceKind};
use wharf_core::statement::{
    Applied, CommitMode, Conflict, ConflictDetection, ConflictReason, Granted, Operation,
};
use wharf_core::time::Time;
use wharf_net::codec::encode_body;
use wharf_net::convert::{
    IntoTarget, PlacementDefaults, bundles, conflict_body, group_kinds_to_learn, group_reply, group_spec,
    groups_page, page_limit, place_into, plan_fault, removed_group, statement, statement_reply,
};
use wharf_net::protocol::*;

const ONE: i64 = Amount::SCALE;

/// Returns a catalog of nodes and a resource kind, all with names of maximum length.
fn catalog() -> (Catalog, Vec<NodeId>) {
    let mut registrar = Registrar::new(16, "rack");
    registrar.resources_mut().learn("npu").expect("there is room");
    registrar.resources_mut().learn(&"r".repeat(253)).expect("there is room");
    let nodes = (0..2).map(|i| {
        let spec = NodeSpec {
            name: format!("{i}{}", "n".repeat(252)).into(),
            identity: None,
            cpu: Amount::whole(8),
            memory: Amount::whole(8),
            gpus: 2,
            custom: None,
            labels: Labels::default(),
            taints: Taints::default(),
        };
        registrar.register(spec).expect("the names differ").id
    });
    let nodes = nodes.collect();
    (registrar.catalog(), nodes)
}

fn template(count: u32, request: PlaceRequest) -> BundleTemplate {
    BundleTemplate { request, count }
}

fn of(bundles: Vec<BundleTemplate>) -> CreateGroupRequest {
    CreateGroupRequest { bundles, ..CreateGroupRequest::default() }
}

fn spec(request: CreateGroupRequest) -> Result<GroupSpec, Box<GroupReply>> {
    group_spec(request, &catalog().0, PlacementDefaults::default())
}

fn demand(change: impl FnOnce(&mut DemandBody)) -> DemandBody {
    let mut demand = DemandBody::default();
    change(&mut demand);
    demand
}

#[test]
fn a_group_is_what_was_asked() {
    let small = PlaceRequest { demand: demand(|d| d.cpu = ONE), ..PlaceRequest::default() };
    let large = PlaceRequest {
        demand: demand(|d| {
            d.cpu = 2 * ONE;
            d.gpu = ONE;
        }),
        ..PlaceRequest::default()
    };
    let request = CreateGroupRequest {
        strategy: STRATEGY_STRICT_SPREAD,
        topology: Some(TopologyBody { key: "zone".to_owned(), rule: TOPOLOGY_SPREAD, max_skew: 2 }),
        min_members: 3,
        mode: MODE_WAIT_UNTIL,
        deadline: 77,
        priority: -5,
        conflict_detection: CONFLICT_DETECTION_COARSE,
        ..of(vec![template(3, small), template(1, large)])
    };
    let made = spec(request).expect("it is sound");
    assert_eq!(made.bundles.len(), 4);
    assert!(Arc::ptr_eq(&made.bundles[0], &made.bundles[2]), "equal bundles share their request");
    assert_eq!(made.bundles[3].demand.gpu, GpuRequest::Whole(1));
    assert_eq!((made.strategy, made.min_members, made.priority), (Strategy::StrictSpread, 3, -5));
    assert_eq!((made.wait_until, made.conflict_detection), (Some(Time(77)), ConflictDetection::Coarse));
    assert_eq!(made.topology.expect("there is one").spreading, Spreading::Spread { max_skew: 2 });
    let made = spec(of(vec![template(8, PlaceRequest::default())])).expect("it is sound");
    assert_eq!((made.min_members, made.wait_until, made.topology), (8, None, None));
    let waits = CreateGroupRequest { mode: MODE_WAIT_UNTIL, ..of(vec![BundleTemplate::default()]) };
    assert_eq!(spec(waits).expect("it is sound").wait_until, Some(Time(u64::MAX)));
}

#[test]
fn a_group_that_cannot_be_is_refused_by_its_field() {
    let one = || vec![BundleTemplate::default()];
    let with = |request| of(vec![BundleTemplate::default(), template(1, request)]);
    let selector = |operator| SelectorTerm { key: "k".to_owned(), operator, values: Vec::new() };
    let rule = |key: &str, rule, max_skew| CreateGroupRequest {
        topology: Some(TopologyBody { key: key.to_owned(), rule, max_skew }),
        ..of(one())
    };
    let owned =
        BundleTemplate { request: PlaceRequest { owner: 1 << 63, ..PlaceRequest::default() }, count: 1 };
    let cases = [
        (of(vec![]), "bundles", "give 1 to 1024"),
        (of(vec![template(1024, PlaceRequest::default()), BundleTemplate::default()]), "bundles", "1025"),
        (of(vec![template(u32::MAX, PlaceRequest::default()); 1024]), "bundles", "1024"),
        (of(vec![BundleTemplate::default(), template(0, PlaceRequest::default())]), "bundles[1].count", "0"),
        (
            with(PlaceRequest { demand: demand(|d| d.cpu = -1), ..PlaceRequest::default() }),
            "bundles[1].cpu",
            "",
        ),
        (
            with(PlaceRequest {
                selectors: vec![selector(OPERATOR_EXISTS), selector(99)],
                ..PlaceRequest::default()
            }),
            "bundles[1].selectors[1].operator",
            "99",
        ),
        (with(PlaceRequest { mode: MODE_WAIT_UNTIL, ..PlaceRequest::default() }), "bundles[1].mode", "group"),
        (with(PlaceRequest { priority: 1, ..PlaceRequest::default() }), "bundles[1].priority", "group"),
        (with(PlaceRequest { deadline: 1, ..PlaceRequest::default() }), "bundles[1].deadline", "group"),
        (with(PlaceRequest { count: 2, ..PlaceRequest::default() }), "bundles[1].count", "leave this at 1"),
        (of(vec![owned]), "bundles[0].owner", "2^63"),
        (
            with(PlaceRequest { candidates: (0..1025).collect(), ..PlaceRequest::default() }),
            "bundles",
            "1025",
        ),
        (CreateGroupRequest { strategy: 4, ..of(one()) }, "strategy", "strict-spread"),
        (CreateGroupRequest { mode: 9, ..of(one()) }, "mode", "9"),
        (CreateGroupRequest { deadline: 9, ..of(one()) }, "deadline", "wait"),
        (CreateGroupRequest { conflict_detection: 2, ..of(one()) }, "conflict_detection", "coarse"),
        (CreateGroupRequest { min_members: 2, ..of(one()) }, "min_members", "2 of 1"),
        (rule("", TOPOLOGY_PACK, 0), "topology.key", "empty"),
        (rule("zone", 0, 0), "topology.rule", "0"),
        (rule("zone", TOPOLOGY_PACK, 1), "topology.max_skew", "skew"),
        (rule("zone", TOPOLOGY_SPREAD, 0), "topology.max_skew", "at least 1"),
    ];
    for (request, field, says) in cases {
        let reply = spec(request.clone()).expect_err("it cannot be");
        let fault = reply.fault.as_ref().unwrap_or_else(|| panic!("{request:?} was refused without a fault"));
        assert_eq!((fault.reason, fault.field.as_str()), (Reason::InvalidField.into(), field), "{fault}");
        assert!(fault.message.contains(says), "{fault}");
        assert_eq!((reply.reason, &reply.refusal), (fault.reason, &None));
    }
    let queue = PlaceRequest { queue: "q".to_owned(), ..PlaceRequest::default() };
    let fault = spec(with(queue)).expect_err("the first bundle names none").fault.expect("a fault");
    assert_eq!((fault.reason, fault.field.as_str()), (Reason::InvalidField.into(), "bundles[1].queue"));
}

#[test]
fn a_bundle_of_an_unknown_resource_is_infeasible_unless_the_group_waits_for_it() {
    let custom = vec![NamedAmount { name: "qpu".to_owned(), amount: ONE }];
    let asks = PlaceRequest { demand: demand(|d| d.custom = custom), ..PlaceRequest::default() };
    let request = of(vec![BundleTemplate::default(), template(2, asks)]);
    let reply = spec(request.clone()).expect_err("nobody has it");
    assert_eq!(reply.reason, Reason::Infeasible.into());
    let refusal = reply.refusal.expect("a refusal");
    assert_eq!(refusal.cause, Reason::NoNodeForBundle.into());
    assert_eq!(refusal.refusal.expect("counts").checks[0].resource, "qpu");
    assert_eq!(reply.fault.expect("a fault").field, "bundles[1].custom[0].name");
    let learn = |request| group_kinds_to_learn(&request, &catalog().0, PlacementDefaults::default());
    assert_eq!(learn(request.clone()), Ok(vec!["qpu".to_owned()]));
    let unsound = CreateGroupRequest { strategy: 9, ..request.clone() };
    assert_eq!(learn(unsound).expect_err("it cannot be").fault.expect("a fault").field, "strategy");
    let mut unsound = request;
    unsound.bundles[1].request.policy = 200;
    assert_eq!(learn(unsound).expect_err("it cannot be").fault.expect("a fault").field, "bundles[1].policy");
}

fn submit(operations: Vec<OperationBody>) -> StatementRequest {
    StatementRequest { operations, ..StatementRequest::default() }
}

#[test]
fn a_statement_is_what_was_asked() {
    let (catalog, nodes) = catalog();
    let allocation = WireAllocation { incarnation: 1, partition: 2, sequence: 3, tenant: 0 };
    let allocate = OperationBody {
        operation: OPERATION_ALLOCATE,
        node: nodes[0].0,
        expected_version: Some(9),
        demand: demand(|d| {
            d.cpu = ONE;
            d.gpu = 2 * ONE;
        }),
        gpus: vec![1, 0],
        owner: 5,
        ..OperationBody::default()
    };
    let claim = OperationBody {
        operation: OPERATION_PIPELINE,
        node: nodes[1].0,
        demand: demand(|d| d.memory = ONE),
        ..OperationBody::default()
    };
    let evict = OperationBody {
        operation: OPERATION_EVICT,
        allocation: Some(allocation),
        grace: 7,
        ..OperationBody::default()
    };
    let request = StatementRequest {
        conflict_detection: CONFLICT_DETECTION_COARSE,
        mode: COMMIT_INCREMENTAL,
        ..submit(vec![allocate, claim, evict])
    };
    let made = statement(request, &catalog).expect("it is sound");
    assert_eq!((made.conflict_detection, made.mode), (ConflictDetection::Coarse, CommitMode::Incremental));
    let [Operation::Allocate(allocate), Operation::Pipeline(claim), Operation::Evict(evict)] =
        &made.operations[..]
    else {
        panic!("{:?}", made.operations)
    };
    assert_eq!((allocate.node, allocate.expected, allocate.gpus), (nodes[0], Some(9), Some(3)));
    assert_eq!((allocate.owner, allocate.bundle), (OwnerId::new(5), None));
    assert_eq!((claim.node, claim.expected, claim.demand.memory), (nodes[1], None, Amount::whole(1)));
    assert_eq!((evict.allocation, evict.grace_ns), (allocation.into(), 7));
}

#[test]
fn a_statement_that_cannot_be_is_refused_by_operation_and_field() {
    let (catalog, nodes) = catalog();
    let body = |operation| OperationBody {
        operation,
        node: nodes[0].0,
        demand: demand(|d| d.cpu = ONE),
        ..OperationBody::default()
    };
    let allocate = || body(OPERATION_ALLOCATE);
    let allocation = Some(WireAllocation::default());
    let evict = || OperationBody { operation: OPERATION_EVICT, allocation, ..OperationBody::default() };
    let changed = |mut body: OperationBody, change: &dyn Fn(&mut DemandBody)| {
        change(&mut body.demand);
        body
    };
    let custom = |name: &str| vec![NamedAmount { name: name.to_owned(), amount: ONE }];
    let cases = [
        (OperationBody { operation: 4, ..allocate() }, "operation", Reason::InvalidField, "3 (evict)"),
        (OperationBody { node: 999, ..allocate() }, "node", Reason::UnknownNode, "n999"),
        (changed(allocate(), &|d| d.cpu = -1), "cpu", Reason::InvalidField, ""),
        (changed(allocate(), &|d| d.gpu = 15_000), "gpu", Reason::InvalidField, "whole"),
        (changed(allocate(), &|d| d.custom = custom("qpu")), "custom[0].name", Reason::InvalidField, "qpu"),
        (OperationBody { gpus: vec![1], ..allocate() }, "gpus", Reason::InvalidField, "0 are taken"),
        (
            OperationBody { gpus: vec![16], ..changed(allocate(), &|d| d.gpu = ONE) },
            "gpus",
            Reason::InvalidField,
            "16",
        ),
        (OperationBody { owner: u64::MAX, ..allocate() }, "owner", Reason::InvalidField, "2^63"),
        (OperationBody { allocation, ..allocate() }, "allocation", Reason::InvalidField, "leave it out"),
        (OperationBody { grace: 1, ..allocate() }, "grace", Reason::InvalidField, "leave it out"),
        (OperationBody { owner: 1, ..body(OPERATION_PIPELINE) }, "owner", Reason::InvalidField, "leave"),
        (OperationBody { gpus: vec![0], ..body(OPERATION_PIPELINE) }, "gpus", Reason::InvalidField, "leave"),
        (OperationBody { allocation: None, ..evict() }, "allocation", Reason::InvalidField, "which"),
        (OperationBody { node: 1, ..evict() }, "node", Reason::InvalidField, "leave"),
        (changed(evict(), &|d| d.cpu = 1), "cpu", Reason::InvalidField, "leave"),
        (changed(evict(), &|d| d.custom = custom("npu")), "custom", Reason::InvalidField, "leave"),
        (OperationBody { grace: GRACE_NS_MAX + 1, ..evict() }, "grace", Reason::InvalidField, "365"),
    ];
    for (operation, field, reason, says) in cases {
        let fault = statement(submit(vec![allocate(), operation]), &catalog).expect_err("it cannot be");
        assert_eq!((fault.reason, fault.field), (reason.into(), format!("operations[1].{field}")));
        assert!(fault.message.contains(says), "{}", fault.message);
    }
    let request =
        |conflict_detection, mode| StatementRequest { conflict_detection, mode, ..submit(vec![allocate()]) };
    let unsound =
        [(submit(vec![]), "operations"), (request(2, 0), "conflict_detection"), (request(0, 2), "mode")];
    for (request, field) in unsound {
        assert_eq!(statement(request, &catalog).expect_err("it cannot be").field, field);
    }
}

#[test]
fn a_placement_into_a_bundle_names_exactly_one() {
    let (catalog, _) = catalog();
    let allocation = Some(WireAllocation::default());
    let group = Some(WireGroup::default());
    let into =
        |allocation, group, bundle| PlaceIntoRequest { allocation, group, bundle, ..Default::default() };
    let target = |request| place_into(request, &catalog).map(|(target, _)| target);
    let id = IntoTarget::Allocation(WireAllocation::default().into());
    assert_eq!(target(into(allocation, None, None)), Ok(id));
    let of_group = GroupId::from(WireGroup::default());
    assert_eq!(target(into(None, group, Some(3))), Ok(IntoTarget::Group(of_group, Some(3))));
    assert_eq!(target(into(None, group, None)), Ok(IntoTarget::Group(of_group, None)));
    for (request, field) in [
        (into(None, None, None), "allocation"),
        (into(None, None, Some(1)), "allocation"),
        (into(allocation, None, Some(1)), "bundle"),
        (into(allocation, group, None), "group"),
        (PlaceIntoRequest { demand: demand(|d| d.gpu = 15_000), ..into(allocation, None, None) }, "gpu"),
    ] {
        assert_eq!(target(request).expect_err("it cannot be").fault.expect("a fault").field, field);
    }
}

fn conflict(operation: u16, node: NodeId, reason: ConflictReason) -> Conflict {
    Conflict { operation, node: Some(node), version: Some(u64::MAX), reason }
}

const INCARNATION: Incarnation = Incarnation(u32::MAX);
const TENANT: TenantId = TenantId(u16::MAX);
const STATEMENT: StatementId = StatementId { incarnation: INCARNATION, planner: u16::MAX, number: u64::MAX };
const GROUP: GroupId = GroupId { incarnation: INCARNATION, number: u64::MAX, tenant: TENANT };
const PARTITION: PartitionId = PartitionId(u16::MAX);
const ALLOCATION: AllocationId =
    AllocationId { incarnation: INCARNATION, partition: PARTITION, sequence: u64::MAX, tenant: TENANT };

/// Returns every reason of a conflict, with facts of maximum length.
fn conflicts(catalog: &Catalog) -> Vec<(ConflictReason, Reason)> {
    let kind = ResourceKind::Custom(catalog.resources.id(&"r".repeat(253)).expect("it was learnt"));
    let most = Amount::try_from_units(AMOUNT_MAX - 1).expect("it is an amount");
    let owner = OwnerId::new(u64::MAX).expect("it is not 0");
    vec![
        (ConflictReason::UnknownNode, Reason::UnknownNode),
        (ConflictReason::NotReady(NodeState::Draining), Reason::NotReady),
        (ConflictReason::VersionChanged { expected: 3, found: 4 }, Reason::VersionChanged),
        (ConflictReason::NoVersion, Reason::NoVersion),
        (ConflictReason::Short { kind, asked: most, available: most }, Reason::Insufficient),
        (ConflictReason::InstanceTaken(15), Reason::InstanceTaken),
        (ConflictReason::Reserved(owner), Reason::ReservedForOther),
        (ConflictReason::UnknownAllocation(ALLOCATION), Reason::UnknownAllocation),
        (ConflictReason::HeldBy(STATEMENT), Reason::HeldByStatement),
        (ConflictReason::InBundle(ALLOCATION), Reason::InBundle),
        (ConflictReason::AlreadyReleasing, Reason::AlreadyReleasing),
        (ConflictReason::TooManyClaims, Reason::LimitExceeded),
        (ConflictReason::TooManyAllocations, Reason::TooManyAllocations),
        (ConflictReason::BundlePlaced(BundleId { group: GROUP, index: u32::MAX }), Reason::BundlePlaced),
        (ConflictReason::Contradicts(u16::MAX), Reason::Contradicts),
        (ConflictReason::Repeated, Reason::Repeated),
    ]
}

#[test]
fn every_conflict_keeps_its_facts() {
    let (catalog, nodes) = catalog();
    for (reason, expected) in conflicts(&catalog) {
        let body = conflict_body(&conflict(7, nodes[0], reason), &catalog);
        assert_eq!((body.operation, body.reason, body.node), (7, expected.into(), nodes[0].0));
        assert!(!body.message.is_empty() && !body.message.contains("resource 1"), "{}", body.message);
        match expected {
            Reason::VersionChanged => assert_eq!((body.expected_version, body.version), (Some(3), Some(4))),
            Reason::Insufficient => {
                assert_eq!((body.asked, body.available), (AMOUNT_MAX - 1, AMOUNT_MAX - 1));
                assert!(body.resource == "r".repeat(253) && body.message.contains(&body.resource));
            }
            Reason::InstanceTaken => assert_eq!(body.instance, Some(15)),
            Reason::ReservedForOther => assert_eq!(body.owner, u64::MAX),
            Reason::UnknownAllocation | Reason::InBundle => {
                assert_eq!(body.allocation, Some(ALLOCATION.into()))
            }
            Reason::HeldByStatement => assert_eq!(body.statement, Some(STATEMENT.into())),
            Reason::BundlePlaced => assert_eq!((body.group, body.bundle), (Some(GROUP.into()), u32::MAX)),
            Reason::Contradicts => assert_eq!(body.other, Some(u16::MAX)),
            _ => assert_eq!(body.version, Some(u64::MAX)),
        }
    }
}

fn applied(granted: Vec<(u16, Granted)>, conflicts: Vec<Conflict>) -> Applied {
    Applied { statement: STATEMENT, decision: Decision::Committed, granted, conflicts, visible_from: 1 }
}

#[test]
fn a_statements_reply_says_of_each_operation_what_became_of_it() {
    let (catalog, nodes) = catalog();
    let placement = Placement {
        node: nodes[0],
        allocation: ALLOCATION,
        gpus: GpuAssignment { mask: 0b11, part: 10_000 },
        alternative: 0,
        units: None,
    };
    let lost = conflict(2, nodes[1], ConflictReason::AlreadyReleasing);
    let reply = |report: StatementReport, count| statement_reply(&Ok(Box::new(report)), count, &catalog);
    let report =
        |applied, conflicts, expired| StatementReport { statement: STATEMENT, applied, conflicts, expired };
    let reasons = |reply: &StatementReply| -> Vec<_> {
        reply.operations.iter().map(|operation| operation.reason.known().expect("known")).collect()
    };
    let here =
        applied(vec![(3, Granted::Pipelined { allocation: ALLOCATION, node: nodes[1] })], vec![lost.clone()]);
    let there = applied(
        vec![
            (0, Granted::Allocated(placement)),
            (1, Granted::Releasing { allocation: ALLOCATION, until: Time(9) }),
            (4, Granted::Ended(ALLOCATION)),
        ],
        vec![],
    );
    let partly = reply(report(vec![here, there], vec![], false), 5);
    assert_eq!((partly.reason, partly.statement), (Reason::Conflicted.into(), Some(STATEMENT.into())));
    assert_eq!(
        reasons(&partly),
        [Reason::Done, Reason::Done, Reason::AlreadyReleasing, Reason::Done, Reason::Done]
    );
    let placed = partly.operations[0].placed.as_ref().expect("it was allocated");
    assert_eq!((placed.node, &placed.gpus[..]), (nodes[0].0, &[0, 1][..]));
    assert_eq!((partly.operations[1].until, partly.operations[3].node), (9, nodes[1].0));
    assert!(partly.operations.iter().all(|op| op.allocation.is_some() != op.conflict.is_some()));
    let nothing = reply(report(vec![], vec![lost], false), 4);
    assert_eq!(
        reasons(&nothing),
        [Reason::Aborted, Reason::Aborted, Reason::AlreadyReleasing, Reason::Aborted]
    );
    assert_eq!(nothing.reason, Reason::Conflicted.into());
    let late = reply(report(vec![], vec![], true), 2);
    assert_eq!((late.reason, reasons(&late)), (Reason::Expired.into(), vec![Reason::Expired; 2]));
    let rejected = Err(PlanRejection::UnknownNode { operation: 3, node: NodeId(9) });
    let refused = statement_reply(&rejected, 4, &catalog);
    assert_eq!(refused.fault.expect("a fault").field, "operations[3].node");
    assert_eq!((refused.reason, refused.operations.len()), (Reason::UnknownNode.into(), 0));
}

#[test]
fn every_refusal_of_a_group_says_what_it_falls_short_of() {
    let (catalog, nodes) = catalog();
    let mut counts = Refusal { nodes: 2, examined: 2, feasible: true, ..Refusal::default() };
    counts.count(Check::Cpu, Amount::whole(3));
    let lost = vec![conflict(0, nodes[0], ConflictReason::AlreadyReleasing); 1024];
    let refused = |infeasible, reason| {
        let refusal = GroupRefusal { infeasible, reason, attempts: 3 };
        let reply = group_reply(&Err(NoGroup::Refused(Box::new(refusal))), &catalog);
        assert!(reply.group.is_none() && reply.fault.is_none());
        let body = reply.refusal.expect("it is one");
        assert!(body.attempts == 3 && !body.message.is_empty());
        (reply.reason.known().expect("known"), body.cause.known().expect("known"), body)
    };
    let bundle = GroupRefusalReason::Bundle { bundle: 5, placed: 4, refusal: Box::new(counts) };
    let (reason, cause, body) = refused(false, bundle);
    assert_eq!((reason, cause), (Reason::NoFitNow, Reason::NoNodeForBundle));
    assert_eq!((body.bundle, body.bundles), (Some(5), 4));
    assert_eq!(body.refusal.expect("counts").checks[0].least_short, 3 * ONE);
    let (reason, cause, body) = refused(true, GroupRefusalReason::OneNode { bundles: 8 });
    assert_eq!((reason, cause, body.bundles), (Reason::Infeasible, Reason::NoSingleNode, 8));
    let (reason, cause, body) = refused(true, GroupRefusalReason::TooFewNodes { bundles: 8, nodes: 2 });
    assert_eq!((reason, cause), (Reason::Infeasible, Reason::TooFewNodes));
    assert_eq!((body.bundles, body.nodes), (8, 2));
    let npu = ResourceKind::Custom(catalog.resources.id("npu").expect("it was learnt"));
    let (_, cause, body) = refused(true, GroupRefusalReason::Cluster(npu));
    assert_eq!((cause, body.resource.as_str()), (Reason::ClusterTooSmall, "npu"));
    assert!(body.message.contains("npu"), "{}", body.message);
    let confined = GroupRefusalReason::Confined { bundles: 3, nodes: 2, kind: npu };
    let (reason, cause, body) = refused(true, confined);
    assert_eq!((reason, cause), (Reason::Infeasible, Reason::ConfinedTooSmall));
    assert_eq!((body.bundles, body.nodes, body.resource.as_str()), (3, 2, "npu"));
    assert!(body.message.ends_with("too little npu"), "{}", body.message);
    let (_, cause, body) = refused(true, GroupRefusalReason::TooFewPlaces { bundles: 8, most: 7 });
    assert_eq!((cause, body.bundles), (Reason::TooFewPlaces, 8));
    let (key, value, strategy): (Arc<str>, Arc<str>, _) = ("zone".into(), "b".into(), "strict-spread");
    let own = GroupRefusalReason::OwnBundles { bundle: 5, placed: 4, bundles: 6, nodes: 3, strategy };
    let (reason, cause, body) = refused(false, own);
    assert_eq!((reason, cause), (Reason::NoFitNow, Reason::OwnBundles));
    assert_eq!((body.bundle, body.bundles, body.nodes), (Some(5), 4, 3));
    let no_value = refused(false, GroupRefusalReason::NoValue { key: Arc::clone(&key) });
    assert_eq!((no_value.1, no_value.2.bundle), (Reason::TopologyTooSmall, None));
    let topology = GroupRefusalReason::Topology { key, value, placed: 2, bundle: 3, bundles: 8 };
    let (_, cause, body) = refused(false, topology);
    assert_eq!((cause, body.bundle, body.bundles), (Reason::TopologyTooSmall, Some(3), 2));
    assert!(body.message.contains("zone=b"), "{}", body.message);
    let small =
        GroupRefusalReason::ValueTooSmall { key: "zone".into(), value: "b".into(), most: 2, bundles: 8 };
    let (reason, cause, body) = refused(true, small);
    assert_eq!((reason, cause, body.bundle), (Reason::Infeasible, Reason::TopologyTooSmall, None));
    assert!(body.bundles == 8 && body.message.contains("zone=b could hold 2"), "{}", body.message);
    let given_up = GroupRefusalReason::SearchGivenUp { bundle: 5, placed: 4, bundles: 6, units: 1000 };
    let (reason, cause, body) = refused(false, given_up);
    assert_eq!((reason, cause), (Reason::NoFitNow, Reason::LimitExceeded));
    assert_eq!((body.bundle, body.bundles), (Some(5), 4));
    let (reason, cause, body) = refused(false, GroupRefusalReason::Conflicts(lost));
    assert_eq!(
        (reason, cause, body.conflicts.len()),
        (Reason::Conflicted, Reason::Conflicted, GROUP_CONFLICTS_MAX)
    );
}

#[test]
fn every_rejection_has_its_reason_and_field() {
    let cases = [
        (PlanRejection::UnknownGroup(GROUP), Reason::UnknownGroup, "group"),
        (PlanRejection::UnknownBundle(GROUP, 3), Reason::UnknownBundle, "bundles"),
        (PlanRejection::Busy(GROUP), Reason::GroupBusy, "group"),
        (PlanRejection::BelowMinimum(GROUP), Reason::BelowMinimum, "bundles"),
        (PlanRejection::Spec(GroupSpecError::Bundles(0)), Reason::InvalidField, "bundles"),
        (PlanRejection::Operations(0), Reason::InvalidField, "operations"),
        (
            PlanRejection::UnknownAllocation { operation: 2, allocation: ALLOCATION },
            Reason::UnknownAllocation,
            "operations[2].allocation",
        ),
        (PlanRejection::TooManyGroups(5), Reason::LimitExceeded, "group"),
    ];
    for (rejection, reason, field) in cases {
        let fault = plan_fault(&rejection);
        assert_eq!((fault.reason, fault.field.as_str()), (reason.into(), field), "{fault}");
        let reply = group_reply(&Err(NoGroup::Rejected(rejection.clone())), &Catalog::default());
        assert_eq!((reply.reason, reply.fault), (reason.into(), Some(fault.clone())));
        let removed = removed_group(&Err(rejection));
        assert_eq!((removed.reason, removed.fault), (reason.into(), Some(fault)));
    }
    assert_eq!(removed_group(&Ok((GROUP, 8))).bundles_ended, 8);
    for reason in [NoGroup::Cancelled, NoGroup::Removed] {
        let reply = group_reply(&Err(reason), &Catalog::default());
        assert!(reply.reason == Reason::Cancelled.into() && reply.refusal.is_some() && reply.fault.is_none());
    }
}

fn view(nodes: &[NodeId], bundles: usize) -> GroupView {
    let demand = Demand { cpu: Amount::whole(2), ..Demand::default() };
    let request = Arc::new(PlacementRequest::new(demand, Policy::default()));
    let gpus = GpuAssignment { mask: u16::MAX, part: 10_000 };
    let placed = Some(BundlePlace { node: nodes[0], allocation: ALLOCATION, gpus });
    GroupView {
        id: GROUP,
        state: GroupState::Placed,
        spec: Arc::new(GroupSpec::new(vec![Arc::clone(&request); bundles], Strategy::Spread)),
        bundles: (0..bundles).map(|i| (i as u32, placed)).collect(),
        requests: vec![Arc::clone(&request); bundles],
        attempts: 1,
        releasing: Vec::new(),
    }
}

#[test]
fn pages_of_groups_are_cut_and_say_so() {
    let (_, nodes) = catalog();
    let mut waiting = view(&nodes, 3);
    (waiting.state, waiting.bundles[1].1) = (GroupState::Waiting, None);
    let views = [waiting, view(&nodes, 2)];
    let page = groups_page(&views, 2);
    assert_eq!((page.groups.len(), page.more), (2, true));
    let first = page.groups[0];
    assert_eq!((first.state, first.strategy), (GROUP_WAITING, STRATEGY_SPREAD));
    assert_eq!((first.bundles, first.placed, first.min_members), (3, 2, 3));
    assert!(!groups_page(&views, 3).more);
    assert_eq!(groups_page(&views, 1).groups.len(), 1);
    assert_eq!((page_limit(0), page_limit(7)), (Ok(1024), Ok(7)));
    assert_eq!(page_limit(1025).expect_err("a page has less").field, "limit");
}

/// A reply that does not fit a frame would leave the caller without the result.
#[test]
fn the_largest_replies_fit_a_frame() {
    let (catalog, nodes) = catalog();
    let bytes = |reply: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        reply(&mut out);
        out.len() + 64
    };
    let placed = Placement {
        node: nodes[0],
        allocation: ALLOCATION,
        gpus: GpuAssignment { mask: u16::MAX, part: 10_000 },
        alternative: 0,
        units: None,
    };
    let worst = |made: &dyn Fn(u16) -> Applied| {
        let all: Vec<Applied> = (0..OPERATIONS_PER_MESSAGE_MAX as u16).map(made).collect();
        let report =
            StatementReport { statement: STATEMENT, applied: all, conflicts: vec![], expired: false };
        let reply = statement_reply(&Ok(Box::new(report)), OPERATIONS_PER_MESSAGE_MAX, &catalog);
        bytes(&|out| encode_body(&reply, out))
    };
    let granted = worst(&|i| applied(vec![(i, Granted::Allocated(placed.clone()))], vec![]));
    assert!(granted <= FRAME_BYTES_MAX as usize, "{granted}");
    for (reason, _) in conflicts(&catalog) {
        let lost = worst(&|i| applied(vec![], vec![conflict(i, nodes[0], reason)]));
        assert!(lost <= FRAME_BYTES_MAX as usize, "{reason}: {lost}");
    }
    let largest = Ok(Box::new(view(&nodes, GROUP_BUNDLES_MAX)));
    let group = group_reply(&largest, &catalog);
    assert_eq!(group.group.as_ref().expect("a group").bundles[9].cpu, 2 * ONE);
    let group = bytes(&|out| encode_body(&group, out));
    assert!(group <= FRAME_BYTES_MAX as usize, "{group}");
    let page = groups_page(&vec![view(&nodes, 1); GROUPS_PER_MESSAGE_MAX], 1024);
    assert!(bytes(&|out| encode_body(&page, out)) <= FRAME_BYTES_MAX as usize);
    // A group with the maximum number of different bundles fits one frame too.
    let different = vec![BundleTemplate::default(); GROUP_BUNDLES_MAX];
    let made = bundles(different.clone(), &catalog, PlacementDefaults::default()).expect("it is sound");
    assert_eq!(made.len(), GROUP_BUNDLES_MAX);
    assert!(bytes(&|out| encode_body(&of(different.clone()), out)) <= FRAME_BYTES_MAX as usize);
}
