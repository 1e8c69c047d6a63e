//! Conversion between wire types and engine types: placement groups, and placements into their bundles.

use std::sync::Arc;

use wharf_core::group::{
    BundlePlace, GroupRefusal, GroupRefusalReason, GroupSpec, GroupSpecError, GroupState, GroupView, NoGroup,
    PlanRejection, Spreading, Strategy, TopologyRule,
};
use wharf_core::ids::GroupId;
use wharf_core::limits::GROUP_BUNDLES_MAX;
use wharf_core::registrar::Catalog;
use wharf_core::request::PlacementRequest;
use wharf_core::resource::Demand;
use wharf_core::time::Time;

use super::{
    PlacementDefaults, check_name, chosen, conflict_body, conflict_detection, demand, invalid,
    kinds_to_learn, not_charged, number_of, placed_body, placement_request, refusal_body, resource_name,
};
use crate::protocol::{
    BundleBody, BundleTemplate, CreateGroupRequest, Fault, GROUP_CANDIDATES_MAX, GROUP_COMMITTING,
    GROUP_CONFLICTS_MAX, GROUP_DEGRADED, GROUP_PLACED, GROUP_WAITING, GROUPS_PER_MESSAGE_MAX, GroupBody,
    GroupRefusalBody, GroupReply, GroupSummary, ListGroupsReply, MODE_NOW, MODE_WAIT_UNTIL, PlaceIntoRequest,
    PlaceReply, PlaceRequest, Reason, RemoveGroupReply, STRATEGY_PACK, STRATEGY_SPREAD, STRATEGY_STRICT_PACK,
    STRATEGY_STRICT_SPREAD, TOPOLOGY_PACK, TOPOLOGY_SPREAD, TOPOLOGY_STRICT_PACK, TopologyBody,
};

const STRATEGIES: [(u8, Strategy); 4] = [
    (STRATEGY_PACK, Strategy::Pack),
    (STRATEGY_SPREAD, Strategy::Spread),
    (STRATEGY_STRICT_PACK, Strategy::StrictPack),
    (STRATEGY_STRICT_SPREAD, Strategy::StrictSpread),
];

/// Returns the number of a strategy on the wire.
#[must_use]
pub fn strategy_number(strategy: Strategy) -> u8 {
    number_of(&STRATEGIES, strategy)
}

/// Returns the strategy with this number.
///
/// # Errors
/// Returns a fault that names `strategy`.
pub fn strategy(number: u8) -> Result<Strategy, Fault> {
    let remedy = "strategy: give 0 (pack), 1 (spread), 2 (strict-pack) or 3 (strict-spread)";
    chosen(&STRATEGIES, number, "strategy", remedy)
}

/// Converts a rule over the values of a label to the engine's form.
///
/// # Errors
/// Returns a fault that names the field.
pub fn topology(wire: TopologyBody) -> Result<TopologyRule, Fault> {
    check_name("topology.key", &wire.key)?;
    let spreading = match wire.rule {
        TOPOLOGY_PACK => Spreading::Pack { strict: false },
        TOPOLOGY_STRICT_PACK => Spreading::Pack { strict: true },
        TOPOLOGY_SPREAD => Spreading::Spread { max_skew: wire.max_skew },
        other => {
            let message = format!("{other} is no rule: give 1 (pack), 2 (strict-pack) or 3 (spread)");
            return Err(invalid("topology.rule", message));
        }
    };
    if wire.max_skew > 0 && wire.rule != TOPOLOGY_SPREAD {
        let message = "only what is spread has a skew: leave it at 0, or give rule 3 (spread)";
        return Err(invalid("topology.max_skew", message));
    }
    Ok(TopologyRule { key: wire.key.into(), spreading })
}

/// Converts a rule over the values of a label to the wire.
#[must_use]
pub fn wire_topology(rule: &TopologyRule) -> TopologyBody {
    let (rule_number, max_skew) = match rule.spreading {
        Spreading::Pack { strict: false } => (TOPOLOGY_PACK, 0),
        Spreading::Pack { strict: true } => (TOPOLOGY_STRICT_PACK, 0),
        Spreading::Spread { max_skew } => (TOPOLOGY_SPREAD, max_skew),
    };
    TopologyBody { key: rule.key.to_string(), rule: rule_number, max_skew }
}

/// Turns the placement reply about `bundles[at]` into a group reply.
fn of_bundle(at: usize, reply: PlaceReply) -> Box<GroupReply> {
    let PlaceReply { reason, refusal, fault, .. } = reply;
    let fault = fault.map(|fault| fault.within(format_args!("bundles[{at}]")));
    let refusal = refusal.map(|refusal| GroupRefusalBody {
        cause: Reason::NoNodeForBundle.into(),
        refusal: Some(refusal),
        message: fault.as_ref().map_or_else(String::new, |fault| fault.message.clone()),
        ..GroupRefusalBody::default()
    });
    Box::new(GroupReply { reason, group: None, refusal, fault })
}

/// Turns the placement reply about the queue of a group into a group reply.
fn of_queue(reply: PlaceReply) -> GroupReply {
    let PlaceReply { reason, fault, .. } = reply;
    GroupReply { reason, fault, ..GroupReply::default() }
}

/// Checks that a bundle leaves the fields of its group or template at their defaults.
fn check_bundle(asked: &PlaceRequest) -> Result<(), Fault> {
    let of_group = "a group waits as a whole: leave it at its default, and give it for the group";
    check_own_fields(asked, of_group)?;
    if asked.lease != 0 || asked.session_lease {
        let message = "the bundles of a group have no leases: leave it at its default, and remove the group";
        return Err(Fault::of_field(Reason::NotSupportedYet, "lease", message));
    }
    Ok(())
}

/// Checks that a part of a whole leaves the fields of a request that waits by itself at their defaults.
pub(super) fn check_own_fields(asked: &PlaceRequest, of_whole: &str) -> Result<(), Fault> {
    let waits = [asked.mode != MODE_NOW, asked.priority != 0, asked.deadline != 0];
    if let Some((field, _)) =
        ["mode", "priority", "deadline"].into_iter().zip(waits).find(|&(_, given)| given)
    {
        return Err(invalid(field, of_whole));
    }
    if asked.count != 1 {
        return Err(invalid("count", "the template has the number of equal parts: leave this at 1"));
    }
    Ok(())
}

/// Converts bundles to the engine's form. Equal bundles share one request.
///
/// # Errors
/// Returns a reply with a fault that names the field (`bundles[3].selectors[0].operator`), or with
/// `infeasible` if a bundle names a resource that no node has ever had.
pub fn bundles(
    wire: Vec<BundleTemplate>,
    catalog: &Catalog,
    defaults: PlacementDefaults,
) -> Result<Vec<Arc<PlacementRequest>>, Box<GroupReply>> {
    let count: u64 = wire.iter().map(|template| u64::from(template.count)).sum();
    if count == 0 || count > GROUP_BUNDLES_MAX as u64 {
        let message = format!("{count} bundles: give 1 to {GROUP_BUNDLES_MAX}");
        return Err(invalid("bundles", message).into());
    }
    let named: usize = wire.iter().map(|template| template.request.candidates.len()).sum();
    if named > GROUP_CANDIDATES_MAX {
        let message = format!(
            "{named} candidates in all, which a group keeps: give at most {GROUP_CANDIDATES_MAX}, or name more by a label and a selector"
        );
        return Err(invalid("bundles", message).into());
    }
    let mut bundles = Vec::with_capacity(usize::try_from(count).expect("it was compared"));
    for (at, BundleTemplate { request, count }) in wire.into_iter().enumerate() {
        if count == 0 {
            let message = "0 bundles of this kind: give 1 or more, or leave it out";
            return Err(invalid(format!("bundles[{at}].count"), message).into());
        }
        let checked = check_bundle(&request).map_err(Into::into);
        let request = checked.and_then(|()| placement_request(request, catalog, defaults));
        let request = Arc::new(request.map_err(|reply| of_bundle(at, *reply))?);
        bundles.extend(std::iter::repeat_n(request, count as usize));
    }
    Ok(bundles)
}

/// Takes the queue out of the bundles of a new group: all name the same one, or none does.
///
/// # Errors
/// Returns a fault that names the field.
fn take_queue(wire: &mut [BundleTemplate]) -> Result<Option<Arc<str>>, Fault> {
    let mut queues = wire.iter_mut().map(|bundle| std::mem::take(&mut bundle.request.queue));
    let queue = queues.next().unwrap_or_default();
    if let Some((at, other)) = (1..).zip(queues).find(|(_, other)| *other != queue) {
        let message = format!(
            "the first bundles name queue `{queue}`, and these name `{other}`: a group has one queue, or none"
        );
        return Err(invalid(format!("bundles[{at}].queue"), message));
    }
    if queue.is_empty() {
        return Ok(None);
    }
    check_name("bundles[0].queue", &queue)?;
    Ok(Some(queue.into()))
}

/// Lets the bundles of a new group name a queue, if none of them names any.
pub(crate) fn fill_queue(wire: &mut [BundleTemplate], queue: &str) {
    if wire.iter().all(|bundle| bundle.request.queue.is_empty()) {
        wire.iter_mut().for_each(|bundle| queue.clone_into(&mut bundle.request.queue));
    }
}

/// Checks that bundles by which a group grows name no queue: they are charged to that of the group.
///
/// # Errors
/// Returns a fault that names the field.
pub(crate) fn check_no_queue(wire: &[BundleTemplate]) -> Result<(), Fault> {
    let named = wire.iter().position(|bundle| !bundle.request.queue.is_empty());
    let message = "what a group grows by is charged to the queue of the group, if it has one: leave it empty";
    named.map_or(Ok(()), |at| Err(invalid(format!("bundles[{at}].queue"), message)))
}

/// Returns the time until which something waits. 0 means that it waits without end.
pub(crate) fn deadline_of(deadline: u64) -> Time {
    if deadline == 0 { Time::NEVER } else { Time(deadline) }
}

/// Returns the end of the wait of a group or of new bundles. Returns `None` if they do not wait.
///
/// # Errors
/// Returns a fault that names `mode` or `deadline`.
pub fn wait_until(mode: u8, deadline: u64) -> Result<Option<Time>, Fault> {
    match mode {
        MODE_NOW if deadline != 0 => {
            Err(invalid("deadline", "a group that does not wait has none: leave it at 0, or let it wait"))
        }
        MODE_NOW => Ok(None),
        MODE_WAIT_UNTIL => Ok(Some(deadline_of(deadline))),
        other => Err(invalid("mode", format!("{other} is no mode: give 0 (now) or 1 (wait)"))),
    }
}

/// Converts a group to the engine's form.
///
/// # Errors
/// Same as [`bundles`], or a reply with a fault that names the field.
pub fn group_spec(
    mut wire: CreateGroupRequest,
    catalog: &Catalog,
    defaults: PlacementDefaults,
) -> Result<GroupSpec, Box<GroupReply>> {
    let strategy = strategy(wire.strategy)?;
    let topology = wire.topology.map(topology).transpose()?;
    let wait_until = wait_until(wire.mode, wire.deadline)?;
    let conflict_detection = conflict_detection(wire.conflict_detection)?;
    let queue = take_queue(&mut wire.bundles)?;
    let mut spec = GroupSpec::new(bundles(wire.bundles, catalog, defaults)?, strategy);
    if wire.min_members > 0 {
        spec.min_members = wire.min_members;
    }
    (spec.topology, spec.wait_until, spec.conflict_detection) = (topology, wait_until, conflict_detection);
    (spec.priority, spec.queue) = (wire.priority, queue);
    spec.check().map_err(spec_fault)?;
    Ok(spec)
}

/// Returns the custom kinds that the registry must learn before a group can wait for them, like
/// [`kinds_to_learn`] for a placement. If there are any, the rest of the request has been checked.
///
/// # Errors
/// Returns the reply to an invalid request.
pub fn group_kinds_to_learn(
    wire: &CreateGroupRequest,
    catalog: &Catalog,
    defaults: PlacementDefaults,
) -> Result<Vec<String>, Box<GroupReply>> {
    let mut names = Vec::new();
    let mut known = wire.clone();
    for (at, template) in known.bundles.iter_mut().enumerate() {
        let learnt =
            kinds_to_learn(&template.request, catalog, defaults).map_err(|reply| of_bundle(at, *reply))?;
        if !learnt.is_empty() {
            template.request.demand.custom.retain(|named| !learnt.contains(&named.name));
            names.extend(learnt);
        }
    }
    if !names.is_empty() {
        group_spec(known, catalog, defaults)?;
        names.sort_unstable();
        names.dedup();
    }
    Ok(names)
}

fn spec_fault(error: GroupSpecError) -> Fault {
    let field = match error {
        GroupSpecError::Bundles(_) => "bundles",
        GroupSpecError::MinMembers { .. } => "min_members",
        GroupSpecError::Skew => "topology.max_skew",
        GroupSpecError::StrictPackSpread => "topology.rule",
    };
    invalid(field, error.to_string())
}

/// Converts a planner's rejection to the wire.
#[must_use]
pub fn plan_fault(rejection: &PlanRejection) -> Fault {
    let operation = |operation: u16, part: &str| format!("operations[{operation}].{part}");
    let (reason, field) = match rejection {
        PlanRejection::UnknownGroup(_) => (Reason::UnknownGroup, "group".to_owned()),
        PlanRejection::UnknownBundle(..) => (Reason::UnknownBundle, "bundles".to_owned()),
        PlanRejection::Busy(_) => (Reason::GroupBusy, "group".to_owned()),
        PlanRejection::BelowMinimum(_) => (Reason::BelowMinimum, "bundles".to_owned()),
        PlanRejection::Spec(error) => return spec_fault(*error),
        PlanRejection::Operations(_) => (Reason::InvalidField, "operations".to_owned()),
        PlanRejection::UnknownNode { operation: at, .. } => (Reason::UnknownNode, operation(*at, "node")),
        PlanRejection::UnknownAllocation { operation: at, .. } => {
            (Reason::UnknownAllocation, operation(*at, "allocation"))
        }
        PlanRejection::TooManyGroups(_) => (Reason::LimitExceeded, "group".to_owned()),
    };
    Fault::of_field(reason, field, rejection.to_string())
}

fn state_number(state: GroupState) -> u8 {
    match state {
        GroupState::Waiting => GROUP_WAITING,
        GroupState::Committing => GROUP_COMMITTING,
        GroupState::Placed => GROUP_PLACED,
        GroupState::Degraded => GROUP_DEGRADED,
    }
}

/// Converts a group's state to the wire.
#[must_use]
pub(super) fn group_body(view: &GroupView, catalog: &Catalog) -> GroupBody {
    let spec = &view.spec;
    let bundles = view.bundles.iter().enumerate().map(|(at, &(index, bundle))| {
        let demand = &view.requests[at].demand;
        let placed = bundle
            .map(|BundlePlace { node, allocation, gpus }| placed_body(node, allocation, gpus, None, catalog));
        let cpu = demand.cpu.units();
        let memory = demand.memory.units();
        let gpu = demand.gpu.units();
        let until = view.releasing.iter().find(|(releasing, _)| *releasing == index);
        BundleBody { index, cpu, memory, gpu, placed, releasing_until: until.map_or(0, |(_, until)| until.0) }
    });
    GroupBody {
        id: view.id.into(),
        state: state_number(view.state),
        strategy: strategy_number(spec.strategy),
        topology: spec.topology.as_ref().map(wire_topology),
        min_members: spec.min_members,
        priority: spec.priority,
        deadline: spec.wait_until.map_or(0, |until| if until.0 == u64::MAX { 0 } else { until.0 }),
        attempts: view.attempts,
        bundles: bundles.collect(),
    }
}

pub(super) fn summary(view: &GroupView) -> GroupSummary {
    let placed = view.bundles.iter().filter(|(_, bundle)| bundle.is_some()).count();
    let count = |count: usize| u32::try_from(count).expect("a group has few bundles");
    GroupSummary {
        id: view.id.into(),
        state: state_number(view.state),
        strategy: strategy_number(view.spec.strategy),
        bundles: count(view.bundles.len()),
        placed: count(placed),
        min_members: view.spec.min_members,
        priority: view.spec.priority,
    }
}

/// Converts a group's refusal to the wire.
#[must_use]
pub fn group_refusal(refusal: &GroupRefusal, catalog: &Catalog) -> GroupReply {
    use GroupRefusalReason as Why;
    let GroupRefusal { infeasible, reason, attempts } = refusal;
    let (cause, bundle, bundles, nodes) = match *reason {
        Why::Bundle { bundle, placed, .. } => (Reason::NoNodeForBundle, Some(bundle), placed, 0),
        Why::OneNode { bundles } => (Reason::NoSingleNode, None, bundles, 0),
        Why::TooFewNodes { bundles, nodes } => (Reason::TooFewNodes, None, bundles, nodes),
        Why::Cluster(_) => (Reason::ClusterTooSmall, None, 0, 0),
        Why::Confined { bundles, nodes, .. } => (Reason::ConfinedTooSmall, None, bundles, nodes),
        Why::TooFewPlaces { bundles, .. } => (Reason::TooFewPlaces, None, bundles, 0),
        Why::OwnBundles { bundle, placed, nodes, .. } => (Reason::OwnBundles, Some(bundle), placed, nodes),
        Why::NoValue { .. } => (Reason::TopologyTooSmall, None, 0, 0),
        Why::ValueTooSmall { bundles, .. } | Why::SkewTooSmall { bundles, .. } => {
            (Reason::TopologyTooSmall, None, bundles, 0)
        }
        Why::Topology { bundle, placed, .. } | Why::Skew { bundle, placed, .. } => {
            (Reason::TopologyTooSmall, Some(bundle), placed, 0)
        }
        Why::SearchGivenUp { bundle, placed, .. } => (Reason::LimitExceeded, Some(bundle), placed, 0),
        Why::NoTurn => (Reason::LimitExceeded, None, 0, 0),
        Why::Conflicts(_) => (Reason::Conflicted, None, 0, 0),
    };
    let message = reason.to_string();
    let mut body = GroupRefusalBody {
        cause: cause.into(),
        attempts: *attempts,
        bundle,
        bundles,
        nodes,
        message,
        ..GroupRefusalBody::default()
    };
    match reason {
        Why::Bundle { refusal, .. } => body.refusal = Some(refusal_body(refusal, catalog)),
        Why::Cluster(kind) | Why::Confined { kind, .. } => {
            body.resource = resource_name(*kind, &catalog.resources);
            body.message = body.message.replace(&kind.to_string(), &body.resource);
        }
        Why::Conflicts(conflicts) => {
            let first = conflicts.iter().take(GROUP_CONFLICTS_MAX);
            body.conflicts = first.map(|conflict| conflict_body(conflict, catalog)).collect();
        }
        _ => {}
    }
    let reason = match cause {
        _ if *infeasible => Reason::Infeasible,
        Reason::Conflicted => Reason::Conflicted,
        _ => Reason::NoFitNow,
    };
    GroupReply { reason: reason.into(), refusal: Some(body), ..GroupReply::default() }
}

fn cancelled_group(message: &str) -> GroupReply {
    let cause = Reason::Cancelled.into();
    let refusal = GroupRefusalBody { cause, message: message.to_owned(), ..GroupRefusalBody::default() };
    GroupReply { reason: cause, refusal: Some(refusal), ..GroupReply::default() }
}

/// Returns the reply to a request about one group.
#[must_use]
pub fn group_reply(group: &Result<Box<GroupView>, NoGroup>, catalog: &Catalog) -> GroupReply {
    match group {
        Ok(view) => GroupReply {
            reason: Reason::Done.into(),
            group: Some(group_body(view, catalog)),
            ..GroupReply::default()
        },
        Err(NoGroup::Refused(refusal)) => group_refusal(refusal, catalog),
        Err(NoGroup::Rejected(rejection)) => plan_fault(rejection).into(),
        Err(NoGroup::NotCharged(refused)) => of_queue(not_charged(refused, catalog)),
        Err(NoGroup::Cancelled) => cancelled_group("it was taken back before it was placed"),
        Err(NoGroup::Removed) => cancelled_group("the group was removed before this was placed"),
    }
}

/// Returns the reply to the removal of a group.
#[must_use]
pub fn removed_group(removed: &Result<(GroupId, u32), PlanRejection>) -> RemoveGroupReply {
    match removed {
        Ok((_, ended)) => RemoveGroupReply { bundles_ended: *ended, ..RemoveGroupReply::default() },
        Err(rejection) => plan_fault(rejection).into(),
    }
}

/// Returns the maximum number of groups on a page, given the requested `limit`.
///
/// # Errors
/// Returns a fault if `limit` is larger than a page.
pub fn page_limit(limit: u32) -> Result<u16, Fault> {
    const MOST: u16 = GROUPS_PER_MESSAGE_MAX as u16;
    match u16::try_from(limit) {
        Ok(0) => Ok(MOST),
        Ok(limit) if limit <= MOST => Ok(limit),
        _ => Err(invalid("limit", format!("{limit} groups: give at most {MOST}, or 0"))),
    }
}

/// Builds a page of at most `limit` groups.
#[must_use]
pub fn groups_page(views: &[GroupView], limit: usize) -> ListGroupsReply {
    ListGroupsReply { groups: views.iter().take(limit).map(summary).collect(), more: views.len() >= limit }
}

/// The target of a placement into a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntoTarget {
    /// The bundle with that allocation.
    Allocation(wharf_core::ids::AllocationId),
    /// One bundle of a group, or the first one with room.
    Group(GroupId, Option<u32>),
}

/// Converts a placement into a bundle to the engine's form.
///
/// # Errors
/// Returns a reply with a fault that names the field, or with `infeasible` if it names a resource that no
/// node has ever had.
pub fn place_into(
    wire: PlaceIntoRequest,
    catalog: &Catalog,
) -> Result<(IntoTarget, Demand), Box<PlaceReply>> {
    let target = match (wire.allocation, wire.group, wire.bundle) {
        (Some(allocation), None, None) => IntoTarget::Allocation(allocation.into()),
        (None, Some(group), bundle) => IntoTarget::Group(group.into(), bundle),
        (None, None, _) => {
            return Err(invalid("allocation", "no bundle is named: give its allocation, or its group").into());
        }
        (Some(_), None, Some(_)) => {
            let message = "a bundle that is named by its allocation has no index as well: leave it out";
            return Err(invalid("bundle", message).into());
        }
        (Some(_), Some(_), _) => {
            let message = "the bundle is named by its allocation already: leave one of the two out";
            return Err(invalid("group", message).into());
        }
    };
    Ok((target, demand(wire.demand, catalog)?))
}
