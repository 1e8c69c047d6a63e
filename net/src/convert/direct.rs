//! Conversion of direct placements that name a queue.

use std::sync::Arc;

use wharf_core::jobs::{
    Binding, BindingError, Capped, DefaultFault, DirectPlacement, DirectWait, NotCharged,
};
use wharf_core::limits::{DIRECT_CANDIDATES_MAX, PLANNERS_MAX};
use wharf_core::registrar::Catalog;
use wharf_core::resource::{Amount, ResourceRegistry};
use wharf_core::router::Verdict;

use super::jobs::dim_name;
use super::{PlacementDefaults, check_name, placement_request, refused_reply};
use crate::protocol::{Fault, PlaceReply, PlaceRequest, Reason};

/// Checks that the service has queues, as `keeps_jobs` says. `bound` is the queue that the settings give to the request.
///
/// # Errors
/// Returns a fault that names `queue`.
pub(crate) fn check_keeps_queues(keeps_jobs: bool, bound: Option<&Binding>) -> Result<(), Fault> {
    if keeps_jobs {
        return Ok(());
    }
    let message = match bound {
        None => format!(
            "this service keeps no queues: leave `queue` empty, or set `jobs.enabled` to true and `planners` to 1 to \
             {PLANNERS_MAX}"
        ),
        Some(Binding::Default(queue)) => format!(
            "what names no queue goes to queue `{queue}` (setting `jobs.default_queue`), and this service keeps no queues: let \
             an administrator set `jobs.enabled` to true and `planners` to 1 to {PLANNERS_MAX}, or leave the setting out"
        ),
        Some(Binding::Tenant(of)) => format!(
            "tenant `{}` is bound to queue `{}` (setting `tenants.queue`), and this service keeps no queues: let an \
             administrator set `jobs.enabled` to true and `planners` to 1 to {PLANNERS_MAX}, or end the binding",
            of.tenant, of.queue
        ),
    };
    Err(Fault::of_field(Reason::NotServed, "queue", message))
}

/// Checks that a placement in a queue asks for nothing that such a placement cannot have. `keeps_jobs` says whether the
/// service has queues, and `bound` which one the settings give to the request.
///
/// # Errors
/// Returns a fault that names the field.
pub(crate) fn check_queued(
    wire: &PlaceRequest,
    keeps_jobs: bool,
    bound: Option<&Binding>,
) -> Result<(), Fault> {
    check_keeps_queues(keeps_jobs, bound)?;
    check_name("queue", &wire.queue)?;
    let named = wire.candidates.len();
    if named > DIRECT_CANDIDATES_MAX {
        let message = format!(
            "{named} candidates: a placement that is charged to a queue names at most {DIRECT_CANDIDATES_MAX} of them"
        );
        return Err(Fault::of_field(Reason::LimitExceeded, "candidates", message));
    }
    Ok(())
}

/// Converts a placement that names a queue to the engine's form. `bound` is the queue that the settings give to it, and
/// `wait` how it waits, if it may.
///
/// # Errors
/// As [`placement_request`].
pub fn queued_placement(
    mut wire: PlaceRequest,
    catalog: &Catalog,
    defaults: PlacementDefaults,
    bound: Option<Arc<Binding>>,
    wait: Option<DirectWait>,
) -> Result<DirectPlacement, Box<PlaceReply>> {
    let queue = std::mem::take(&mut wire.queue).into();
    Ok(DirectPlacement { request: placement_request(wire, catalog, defaults)?, queue, bound, wait })
}

/// Returns the reason code of a queue that a request may not use by its binding.
pub(super) fn binding_reason(error: &BindingError) -> Reason {
    match error {
        BindingError::NoQueue(_) => Reason::UnknownQueue,
        BindingError::Outside { .. } => Reason::Forbidden,
        BindingError::Default { fault, .. } => match fault {
            DefaultFault::Unknown => Reason::UnknownQueue,
            DefaultFault::Inner | DefaultFault::Closed => Reason::InvalidField,
            DefaultFault::Foreign => Reason::Forbidden,
        },
    }
}

/// Returns the name of what a cap bounds.
pub(crate) fn capped_name(of: Capped, resources: &ResourceRegistry) -> String {
    match of {
        Capped::Resource(dim) => dim_name(dim, resources),
        Capped::Allocations => "allocations".to_owned(),
    }
}

/// Returns the amount of what a cap bounds, as people read it.
fn shown(of: Capped, number: i64) -> String {
    match of {
        Capped::Resource(_) => Amount::try_from_units(number)
            .map_or_else(|_| format!("{number} in 1/10,000"), |amount| amount.to_string()),
        Capped::Allocations => number.to_string(),
    }
}

/// Returns the reply to a placement that was not charged to its queue, and so not made.
pub(crate) fn not_charged(refused: &NotCharged, catalog: &Catalog) -> PlaceReply {
    let fault = |reason, message: String| PlaceReply::from(Fault::of_field(reason, "queue", message));
    match refused {
        NotCharged::UnknownQueue(queue) => {
            let message = format!("there is no queue `{queue}`: make it first, or name another one");
            fault(Reason::UnknownQueue, message)
        }
        NotCharged::InnerQueue(queue) => {
            fault(Reason::InvalidField, format!("queue `{queue}` has queues below it: name one of these"))
        }
        NotCharged::ClosedQueue(queue) => {
            fault(Reason::InvalidField, format!("queue `{queue}` is closed: open it, or name another one"))
        }
        NotCharged::Binding(error) => fault(binding_reason(error), error.to_string()),
        NotCharged::ForeignQueue(queue) => fault(
            Reason::Forbidden,
            format!("queue `{queue}` belongs to another tenant: name a queue of your own"),
        ),
        NotCharged::Cap { queue, over, waiting } => {
            let name = capped_name(over.of, &catalog.resources);
            let [cap, used, asked] = [over.cap, over.used, over.asked].map(|number| shown(over.of, number));
            // They hold nothing. What is released is kept for them, because others were evicted for them.
            let kept = match waiting {
                0 => String::new(),
                waiting => {
                    let waiting = shown(over.of, *waiting);
                    format!(" (of which {waiting} are kept for tasks that wait until the cap allows them)")
                }
            };
            let remedy = match over.of {
                Capped::Resource(_) => "ask for less, or again when some is released",
                Capped::Allocations => "ask again when some is released",
            };
            let message = format!(
                "the cap of queue `{queue}` forbids it: of {name} {cap}, {used} are in use, claimed or being released{kept}, and \
                 {asked} more are asked for: {remedy}"
            );
            fault(Reason::OverCap, message)
        }
        NotCharged::TooManyJobs(jobs) => fault(
            Reason::LimitExceeded,
            format!(
                "there are {jobs} jobs and placements that name queues, which is all there may be: release some, or wait"
            ),
        ),
        NotCharged::TooManyTasks(tasks) => fault(
            Reason::LimitExceeded,
            format!(
                "there would be {tasks} tasks and placements that name queues, more than there may be: release some, or \
                 wait"
            ),
        ),
        NotCharged::TooManyUsers(queue) => fault(
            Reason::LimitExceeded,
            format!("queue `{queue}` has as many users as it may have: wait until jobs of others have ended"),
        ),
        NotCharged::TooMuch(queue) => fault(
            Reason::LimitExceeded,
            format!("the sum over all that is charged to queue `{queue}` would be too large: ask for less"),
        ),
        NotCharged::NoNode(refusal) => {
            let verdict = if refusal.feasible { Verdict::NoFitNow } else { Verdict::Infeasible };
            refused_reply(verdict, refusal, catalog)
        }
        NotCharged::Conflicts => {
            fault(Reason::Conflicted, "it conflicted with other work at each attempt: ask again".to_owned())
        }
        NotCharged::Cancelled => PlaceReply { reason: Reason::Cancelled.into(), ..PlaceReply::default() },
        NotCharged::NoTurn => fault(
            Reason::NoFitNow,
            "it had no turn before its deadline: too many placements and groups wait at this I/O thread of the service"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use wharf_core::fairness::Dim;
    use wharf_core::jobs::{OverCap, QueueId};

    use super::*;
    use crate::protocol::MODE_WAIT_UNTIL;

    #[test]
    fn what_a_placement_in_a_queue_cannot_have_is_told_with_its_field() {
        let fault = |change: fn(&mut PlaceRequest), keeps_jobs| {
            let mut wire = PlaceRequest { queue: "q".to_owned(), ..PlaceRequest::default() };
            change(&mut wire);
            let fault = check_queued(&wire, keeps_jobs, None).err()?;
            Some((fault.field.clone(), fault.reason.known()?))
        };
        let told = |field: &str, reason| Some((field.to_owned(), reason));
        assert_eq!(fault(|_| (), true), None);
        assert_eq!(fault(|_| (), false), told("queue", Reason::NotServed));
        assert_eq!(fault(|wire| wire.queue = "a\nb".to_owned(), true), told("queue", Reason::InvalidField));
        let waits: fn(&mut PlaceRequest) = |wire| wire.mode = MODE_WAIT_UNTIL;
        assert_eq!(fault(waits, true), None);
        let many: fn(&mut PlaceRequest) = |wire| wire.candidates = (1..=257).collect();
        assert_eq!(fault(many, true), told("candidates", Reason::LimitExceeded));
    }

    #[test]
    fn a_cap_tells_its_queue_what_is_in_use_and_what_was_asked_for() {
        let over = |of, cap, used, (asked, waiting)| {
            let over = OverCap { queue: QueueId(3), of, cap, used, asked };
            let refused = NotCharged::Cap { queue: "outer".into(), over, waiting };
            let reply = not_charged(&refused, &Catalog::default());
            assert_eq!(reply.reason, Reason::OverCap.into());
            reply.fault.expect("the reason").message
        };
        let message = over(Capped::Resource(Dim::CPU), 60_000, 45_000, (20_000, 0));
        let part = "of cpu 6, 4.5 are in use, claimed or being released, and 2 more";
        assert!(message.starts_with(&format!("the cap of queue `outer` forbids it: {part}")), "{message}");
        let message = over(Capped::Resource(Dim::CPU), 60_000, 45_000, (20_000, 15_000));
        let part = "being released (of which 1.5 are kept for tasks that wait until the cap allows them), and 2 more";
        assert!(message.contains(part), "{message}");
        let message = over(Capped::Allocations, 3, 3, (1, 0));
        assert!(
            message.contains("of allocations 3, 3 are in use, claimed or being released, and 1 more"),
            "{message}"
        );
    }
}
