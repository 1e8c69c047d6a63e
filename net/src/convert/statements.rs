//! Conversion between wire types and engine types: statements of external schedulers.

use wharf_core::group::{PlanRejection, StatementReport, Submit};
use wharf_core::ids::{AllocationId, NodeId, TenantId};
use wharf_core::limits::GPU_INSTANCES_MAX;
use wharf_core::registrar::Catalog;
use wharf_core::resource::{Demand, GpuRequest};
use wharf_core::statement::{
    Allocate, CommitMode, Conflict, ConflictDetection, ConflictReason, Evict, Granted, Operation, Pipeline,
};

use super::books::mask;
use super::{chosen, demand, invalid, named_owner, placed_reply, plan_fault, resource_name};
use crate::protocol::{
    COMMIT_ALL_OR_NOTHING, COMMIT_INCREMENTAL, CONFLICT_DETECTION_COARSE, CONFLICT_DETECTION_FINE,
    ConflictBody, DemandBody, Fault, GRACE_NS_MAX, OPERATION_ALLOCATE, OPERATION_EVICT, OPERATION_PIPELINE,
    OPERATIONS_PER_MESSAGE_MAX, OperationBody, OperationReply, Reason, StatementReply, StatementRequest,
};

/// Returns the conflict detection with this number.
///
/// # Errors
/// Returns a fault that names `conflict_detection`.
pub fn conflict_detection(number: u8) -> Result<ConflictDetection, Fault> {
    let known = [
        (CONFLICT_DETECTION_FINE, ConflictDetection::Fine),
        (CONFLICT_DETECTION_COARSE, ConflictDetection::Coarse),
    ];
    let remedy = "conflict detection: give 0 (fine) or 1 (coarse)";
    chosen(&known, number, "conflict_detection", remedy)
}

fn mode(number: u8) -> Result<CommitMode, Fault> {
    let known =
        [(COMMIT_ALL_OR_NOTHING, CommitMode::AllOrNothing), (COMMIT_INCREMENTAL, CommitMode::Incremental)];
    chosen(&known, number, "mode", "mode: give 0 (all or nothing) or 1 (incremental)")
}

/// Converts a statement to the engine's form.
///
/// # Errors
/// Returns a fault that names the field of the operation (`operations[2].gpu`). An unregistered node is a
/// fault of an all-or-nothing statement. In an incremental statement, only that operation conflicts.
pub fn statement(wire: StatementRequest, catalog: &Catalog) -> Result<Submit, Fault> {
    if wire.operations.is_empty() {
        let message = format!("0 operations: give 1 to {OPERATIONS_PER_MESSAGE_MAX}");
        return Err(invalid("operations", message));
    }
    let conflict_detection = conflict_detection(wire.conflict_detection)?;
    let mode = mode(wire.mode)?;
    let operations = wire.operations.into_iter().enumerate().map(|(at, body)| {
        operation(body, mode, catalog).map_err(|fault| fault.within(format_args!("operations[{at}]")))
    });
    Ok(Submit { operations: operations.collect::<Result<_, _>>()?, conflict_detection, mode })
}

fn operation(wire: OperationBody, mode: CommitMode, catalog: &Catalog) -> Result<Operation, Fault> {
    match wire.operation {
        OPERATION_ALLOCATE => {
            check_absent(&wire, &["allocation", "grace"])?;
            let owner = named_owner("owner", wire.owner)?;
            let expected = wire.expected_version;
            let (node, gpus) =
                (node(wire.node, mode, catalog)?, mask("gpus", &wire.gpus, GPU_INSTANCES_MAX)?);
            let named = !wire.gpus.is_empty();
            let demand = asked(wire.demand, catalog)?;
            let gpus = named.then_some(gpus as u16);
            check_instances(gpus, demand.gpu)?;
            Ok(Operation::Allocate(Allocate {
                node,
                expected,
                demand,
                gpus,
                owner,
                bundle: None,
                tenant: TenantId(wire.tenant),
                lease: None,
            }))
        }
        OPERATION_PIPELINE => {
            check_absent(&wire, &["allocation", "grace", "gpus", "owner"])?;
            let node = node(wire.node, mode, catalog)?;
            let expected = wire.expected_version;
            let demand = asked(wire.demand, catalog)?;
            Ok(Operation::Pipeline(Pipeline {
                node,
                expected,
                demand,
                bundle: None,
                tenant: TenantId(wire.tenant),
            }))
        }
        OPERATION_EVICT => {
            check_absent(&wire, &["node", "custom", "memory", "gpu", "cpu", "gpus", "owner"])?;
            let OperationBody { allocation, expected_version: expected, grace: grace_ns, .. } = wire;
            let allocation = allocation
                .ok_or_else(|| invalid("allocation", "no allocation is named: say which is to end"))?
                .into();
            if grace_ns > GRACE_NS_MAX {
                return Err(invalid(
                    "grace",
                    format!("{grace_ns} ns: give at most {GRACE_NS_MAX} (365 days)"),
                ));
            }
            Ok(Operation::Evict(Evict { allocation, expected, grace_ns }))
        }
        other => {
            let message = format!("{other} is no operation: give 1 (allocate), 2 (pipeline) or 3 (evict)");
            Err(invalid("operation", message))
        }
    }
}

/// Checks that fields of other kinds of operations are absent, since they would be ignored.
fn check_absent(wire: &OperationBody, of_others: &[&str]) -> Result<(), Fault> {
    let given = [
        ("node", wire.node != 0),
        ("cpu", wire.demand.cpu != 0),
        ("memory", wire.demand.memory != 0),
        ("gpu", wire.demand.gpu != 0),
        ("custom", !wire.demand.custom.is_empty()),
        ("gpus", !wire.gpus.is_empty()),
        ("owner", wire.owner != 0),
        ("allocation", wire.allocation.is_some()),
        ("grace", wire.grace != 0),
    ];
    let message = || format!("an operation of kind {} has none: leave it out", wire.operation);
    let unfit = of_others.iter().find(|&&field| given.contains(&(field, true)));
    unfit.map_or(Ok(()), |&field| Err(invalid(field, message())))
}

/// Converts the node of an operation. In an incremental statement, the planner reports an unregistered node
/// as a conflict of the operation.
fn node(number: u64, mode: CommitMode, catalog: &Catalog) -> Result<NodeId, Fault> {
    let node = NodeId(number);
    if mode == CommitMode::AllOrNothing && catalog.node_partition(node).is_none() {
        let message = format!("node {node} is not registered: list the nodes to see which are");
        return Err(Fault::of_field(Reason::UnknownNode, "node", message));
    }
    Ok(node)
}

fn asked(wire: DemandBody, catalog: &Catalog) -> Result<Demand, Fault> {
    demand(wire, catalog).map_err(|reply| {
        let fault = reply.fault.expect("a demand that is not taken is said to be wrong");
        // `infeasible` is a verdict over all nodes, but here the node is given.
        Fault { reason: Reason::InvalidField.into(), ..fault }
    })
}

/// Checks that the number of named instances matches the demand.
fn check_instances(gpus: Option<u16>, asked: GpuRequest) -> Result<(), Fault> {
    let taken = match asked {
        GpuRequest::None => 0,
        GpuRequest::Fraction(_) => 1,
        GpuRequest::Whole(count) => u32::from(count),
    };
    match gpus.map(u16::count_ones) {
        Some(named) if named != taken => {
            let message =
                format!("{named} instances are named, and {taken} are taken: name as many, or none");
            Err(invalid("gpus", message))
        }
        _ => Ok(()),
    }
}

/// Converts a conflict to the wire.
#[must_use]
pub fn conflict_body(conflict: &Conflict, catalog: &Catalog) -> ConflictBody {
    let Conflict { operation, node, version, reason } = conflict;
    let mut body = ConflictBody {
        operation: *operation,
        node: node.map_or(0, |node| node.0),
        node_name: node.and_then(|node| catalog.node_name(node)).map(ToString::to_string).unwrap_or_default(),
        version: *version,
        message: reason.to_string(),
        ..ConflictBody::default()
    };
    let number = match *reason {
        ConflictReason::UnknownNode => Reason::UnknownNode,
        ConflictReason::NotReady(_) => Reason::NotReady,
        ConflictReason::VersionChanged { expected, found } => {
            (body.expected_version, body.version) = (Some(expected), Some(found));
            Reason::VersionChanged
        }
        ConflictReason::NoVersion => Reason::NoVersion,
        ConflictReason::Short { kind, asked, available } => {
            body.resource = resource_name(kind, &catalog.resources);
            (body.asked, body.available) = (asked.units(), available.units());
            body.message = body.message.replace(&kind.to_string(), &body.resource);
            Reason::Insufficient
        }
        ConflictReason::InstanceTaken(instance) => {
            body.instance = Some(instance);
            Reason::InstanceTaken
        }
        ConflictReason::Reserved(owner) => {
            body.owner = owner.number();
            Reason::ReservedForOther
        }
        ConflictReason::UnknownAllocation(allocation) => {
            body.allocation = Some(allocation.into());
            Reason::UnknownAllocation
        }
        ConflictReason::HeldBy(statement) => {
            body.statement = Some(statement.into());
            Reason::HeldByStatement
        }
        ConflictReason::InBundle(bundle) => {
            body.allocation = Some(bundle.into());
            Reason::InBundle
        }
        ConflictReason::AlreadyReleasing => Reason::AlreadyReleasing,
        ConflictReason::TooManyClaims => Reason::LimitExceeded,
        ConflictReason::TooManyAllocations => Reason::TooManyAllocations,
        ConflictReason::BundlePlaced(bundle) => {
            (body.group, body.bundle) = (Some(bundle.group.into()), bundle.index);
            Reason::BundlePlaced
        }
        ConflictReason::Contradicts(other) => {
            body.other = Some(other);
            Reason::Contradicts
        }
        ConflictReason::Repeated => Reason::Repeated,
    };
    body.reason = number.into();
    body
}

fn granted(granted: &Granted, catalog: &Catalog) -> OperationReply {
    let of = |allocation: AllocationId| OperationReply {
        reason: Reason::Done.into(),
        allocation: Some(allocation.into()),
        ..OperationReply::default()
    };
    match granted {
        Granted::Allocated(placement) => {
            let placed = placed_reply(placement, catalog).placed;
            OperationReply { placed, ..of(placement.allocation) }
        }
        Granted::Pipelined { allocation, node } => OperationReply { node: node.0, ..of(*allocation) },
        Granted::Releasing { allocation, until } => OperationReply { until: until.0, ..of(*allocation) },
        Granted::Ended(allocation) => of(*allocation),
    }
}

/// Returns the reply to a statement of `count` operations.
///
/// # Panics
/// If the report names other operations.
#[must_use]
pub fn statement_reply(
    report: &Result<Box<StatementReport>, PlanRejection>,
    count: usize,
    catalog: &Catalog,
) -> StatementReply {
    let report = match report {
        Ok(report) => report,
        Err(rejection) => return plan_fault(rejection).into(),
    };
    let rest = if report.expired { Reason::Expired } else { Reason::Aborted };
    let mut operations = vec![OperationReply { reason: rest.into(), ..OperationReply::default() }; count];
    let conflicts = report.applied.iter().flat_map(|applied| &applied.conflicts);
    for conflict in conflicts.chain(&report.conflicts) {
        let body = conflict_body(conflict, catalog);
        operations[usize::from(conflict.operation)] =
            OperationReply { reason: body.reason, conflict: Some(body), ..OperationReply::default() };
    }
    for (place, done) in report.applied.iter().flat_map(|applied| &applied.granted) {
        operations[usize::from(*place)] = granted(done, catalog);
    }
    let all_done = operations.iter().all(|operation| operation.reason.is_done());
    let reason = match (all_done, report.expired) {
        (true, _) => Reason::Done,
        (false, true) => Reason::Expired,
        (false, false) => Reason::Conflicted,
    };
    let statement = Some(report.statement.into());
    StatementReply { reason: reason.into(), statement, operations, fault: None }
}
