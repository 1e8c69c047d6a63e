//! Plans of nodes: what is answered follows from what was asked.

use wharf_net::protocol::{PlanNodesReply, PlanNodesRequest};

use super::{Verdict, ensure};

/// Checks that a plan keeps the limits of its request, and agrees with itself.
///
/// # Errors
/// Returns the limit that is exceeded.
pub fn plans_keep_their_limits(request: &PlanNodesRequest, reply: &PlanNodesReply) -> Verdict {
    ensure(reply.types.len() == request.types.len(), || format!("{} types are planned", reply.types.len()))?;
    let mut all = 0;
    let mut launching = 0;
    let mut launched = 0;
    let mut needed = 0;
    for (of, plan) in request.types.iter().zip(&reply.types) {
        ensure(plan.launching + plan.cancel == of.launching, || {
            format!("{} nodes are being launched, and the plan has {plan:?}", of.launching)
        })?;
        ensure(plan.launch <= plan.needed, || format!("more are launched than are needed: {plan:?}"))?;
        let nodes = plan.present + plan.launching + plan.needed;
        ensure(plan.needed == 0 || nodes <= of.max, || format!("{nodes} nodes of a type of {}", of.max))?;
        ensure(plan.cancel == 0 || plan.needed == 0, || format!("launched and cancelled: {plan:?}"))?;
        all += nodes;
        launching += plan.launching;
        launched += plan.launch;
        needed += plan.needed;
    }
    let too_many = |most: u32| needed > 0 && all > most;
    ensure(!request.nodes_max.is_some_and(too_many), || format!("{all} nodes of {:?}", request.nodes_max))?;
    ensure(launched == 0 || launching + launched <= request.launches_max, || {
        format!("{launching} launches and {launched} more, of {}", request.launches_max)
    })?;
    let is_present = |of: u32| reply.types.get(of as usize).is_some_and(|plan| plan.present > 0);
    ensure(reply.removals.iter().all(|removal| is_present(removal.of_type)), || {
        format!("a node of a type without nodes is removed: {:?}", reply.removals)
    })?;
    let waits = |job: u64| reply.waiting.iter().any(|waiting| waiting.job == job);
    ensure(!reply.starts.iter().any(|start| waits(start.job) || start.after > request.horizon), || {
        format!("jobs start that wait, or after the horizon: {:?}", reply.starts)
    })
}

#[cfg(test)]
pub(super) mod tests {
    use wharf_net::protocol::{NodeTypeBody, RemovalBody, StartBody, TypePlanBody};

    use super::*;

    #[test]
    pub(in crate::sim::checkers) fn a_plan_beyond_its_limits() {
        let of = NodeTypeBody { max: 5, launching: 2, ..NodeTypeBody::default() };
        let request = PlanNodesRequest {
            types: vec![of],
            nodes_max: Some(4),
            launches_max: 3,
            ..PlanNodesRequest::default()
        };
        let right = TypePlanBody { present: 1, launching: 2, needed: 1, launch: 1, cancel: 0 };
        let check = |plan: TypePlanBody| {
            let reply = PlanNodesReply { types: vec![plan], ..PlanNodesReply::default() };
            plans_keep_their_limits(&request, &reply)
        };
        assert_eq!(check(right), Ok(()));
        assert!(check(TypePlanBody { launch: 2, ..right }).is_err(), "not needed");
        assert!(check(TypePlanBody { launching: 1, ..right }).is_err(), "a launch is forgotten");
        assert!(check(TypePlanBody { needed: 2, ..right }).is_err(), "beyond `nodes_max`");
        assert!(check(TypePlanBody { present: 0, needed: 2, launch: 2, ..right }).is_err(), "four launches");
        assert!(check(TypePlanBody { launching: 1, cancel: 1, ..right }).is_err(), "both");
        let with = |reply: PlanNodesReply| {
            let reply = PlanNodesReply { types: vec![TypePlanBody { present: 0, ..right }], ..reply };
            plans_keep_their_limits(&request, &reply)
        };
        assert_eq!(with(PlanNodesReply::default()), Ok(()));
        let removals = vec![RemovalBody::default()];
        assert!(with(PlanNodesReply { removals, ..PlanNodesReply::default() }).is_err());
        let starts = vec![StartBody { after: 1, ..StartBody::default() }];
        assert!(with(PlanNodesReply { starts, ..PlanNodesReply::default() }).is_err());
        assert!(plans_keep_their_limits(&request, &PlanNodesReply::default()).is_err(), "no type");
    }
}
