//! Conversion of the changes that a journal records to events on the wire.

use wharf_core::jobs::JobsChange;
use wharf_core::journal::{BeginCause, Effect, Event, NodeImage, NodeNews};
use wharf_core::resource::{ReservedAmounts, ResourceRegistry};
use wharf_core::state::{
    ClaimRecord, GroupBundleRecord, GroupRecord, ReservationRecord, SessionEnd, WaitOutcome,
};
use wharf_core::time::Time;
use wharf_core::view::EndCause;

use super::books::holding;
use super::follow::pending_body;
use super::{
    agent_body, demand_body, invalid, job_phase_number, named_amounts, node_body, strategy_number,
    task_state_number, unhealthy_bodies,
};
use crate::codec::encode_body;
use crate::protocol::{
    BEGUN_ADOPTED, BEGUN_CLAIMED, BEGUN_COMMITTED, BEGUN_PLACED, BEGUN_WAITED, CHANGED_NEW, CHANGED_SPEC,
    CHANGED_STATE, ClaimBody, DemandBody, ENDED_EVICTED, ENDED_EXPIRED, ENDED_NODE_LOST, ENDED_NODE_REMOVED,
    ENDED_RELEASED, ENDED_TAKEN_BACK, EVENT_BEGUN, EVENT_BUNDLE, EVENT_ENDED, EVENT_GROUP,
    EVENT_GROUP_REMOVED, EVENT_INSIDE, EVENT_JOB, EVENT_JOB_PHASE, EVENT_JOB_REMOVED, EVENT_KINDS,
    EVENT_LEASE, EVENT_NODE, EVENT_NODE_COUNT, EVENT_NODE_REMOVED, EVENT_PRIORITY_CLASS,
    EVENT_PRIORITY_CLASS_REMOVED, EVENT_QUEUE, EVENT_QUEUE_REMOVED, EVENT_SESSION_ENDED,
    EVENT_SESSION_RENEWED, EVENT_STARTED, EVENT_TASK, EVENT_WAIT_ENDED, EVENTS_PER_MESSAGE_DEFAULT,
    EVENTS_PER_MESSAGE_MAX, EventBody, EventGroup, EventGroupBundle, EventJob, EventNode, EventReservation,
    Fault, Pending, ReleasingBody, SESSION_CLOSED, SESSION_EVICTED, SESSION_EXPIRED, WAIT_CANCELLED,
    WAIT_EXPIRED, WAIT_PLACED, WAIT_REFUSED,
};

/// Length in bytes that the event of a group may have. Beyond it, the custom resources of its bundles are left out.
const GROUP_BYTES: usize = 256 << 10;

/// An event with its place in the order of all events.
#[derive(Clone, Copy, Debug)]
pub struct PendingEvent<'a> {
    /// Its position.
    pub position: u64,
    /// The time of the change.
    pub now: Time,
    /// It is the last event of its unit.
    pub is_whole: bool,
    /// What happened.
    pub event: Event<'a>,
}

/// Returns the maximum number of events on a page.
pub(crate) fn events_limit(limit: u16) -> Result<usize, Fault> {
    match usize::from(limit) {
        0 => Ok(usize::from(EVENTS_PER_MESSAGE_DEFAULT)),
        limit if limit <= EVENTS_PER_MESSAGE_MAX => Ok(limit),
        _ => Err(invalid("limit", format!("{limit} events: give at most {EVENTS_PER_MESSAGE_MAX}, or 0"))),
    }
}

/// Converts an event to the wire. `kinds` are all resource kinds that it uses.
#[must_use]
pub fn event_body(event: &PendingEvent<'_>, kinds: &ResourceRegistry) -> EventBody {
    let &PendingEvent { position, now, is_whole, event } = event;
    let body = EventBody { position, time: now.0, is_whole, ..EventBody::default() };
    match event {
        Event::Started(incarnation) => EventBody { what: EVENT_STARTED, incarnation: incarnation.0, ..body },
        Event::Kinds(names) => {
            let kinds = u32::try_from(names.len()).expect("RESOURCE_KINDS_MAX fits u32");
            EventBody { what: EVENT_KINDS, kinds, ..body }
        }
        Event::Group(id, None) => EventBody { what: EVENT_GROUP_REMOVED, group: Some(id.into()), ..body },
        Event::Group(id, Some(group)) => EventBody {
            what: EVENT_GROUP,
            group: Some(id.into()),
            group_now: Some(Box::new(group_now(group, kinds))),
            ..body
        },
        Event::SessionEnded(session, why) => {
            let cause = match why {
                SessionEnd::Closed => SESSION_CLOSED,
                SessionEnd::Expired => SESSION_EXPIRED,
                SessionEnd::Evicted => SESSION_EVICTED,
            };
            EventBody { what: EVENT_SESSION_ENDED, cause, session: Some(session.into()), ..body }
        }
        Event::WaitEnded(session, sequence, outcome) => {
            let body = EventBody { what: EVENT_WAIT_ENDED, session: Some(session.into()), sequence, ..body };
            match outcome {
                WaitOutcome::Placed(allocation) => {
                    EventBody { cause: WAIT_PLACED, allocation: Some(allocation.into()), ..body }
                }
                WaitOutcome::Group(group) => {
                    EventBody { cause: WAIT_PLACED, group: Some(group.into()), ..body }
                }
                WaitOutcome::Expired => EventBody { cause: WAIT_EXPIRED, ..body },
                WaitOutcome::Cancelled => EventBody { cause: WAIT_CANCELLED, ..body },
                WaitOutcome::Refused => EventBody { cause: WAIT_REFUSED, ..body },
            }
        }
        Event::Effect(effect) => effect_body(effect, body, kinds),
        Event::Jobs(change) => job_event(change, body),
    }
}

fn job_event(change: &JobsChange, body: EventBody) -> EventBody {
    match change {
        JobsChange::Queue(queue) => {
            EventBody { what: EVENT_QUEUE, queue: queue.spec.name.as_ref().to_owned(), ..body }
        }
        JobsChange::QueueRemoved(name) => {
            EventBody { what: EVENT_QUEUE_REMOVED, queue: name.as_ref().to_owned(), ..body }
        }
        JobsChange::Job(job) => {
            let tasks = job.spec.tasks.iter().map(|group| group.count).sum();
            let now = EventJob {
                name: job.spec.name.as_ref().to_owned(),
                tenant: job.spec.tenant.0,
                priority: job.spec.priority,
                min_member: job.spec.min_member,
                tasks,
            };
            let queue = job.queue.as_ref().to_owned();
            EventBody { what: EVENT_JOB, job: job.id.0, queue, job_now: Some(Box::new(now)), ..body }
        }
        &JobsChange::JobRemoved(id) => EventBody { what: EVENT_JOB_REMOVED, job: id.0, ..body },
        &JobsChange::Phase(id, phase, restarts) => {
            let state = job_phase_number(phase);
            EventBody { what: EVENT_JOB_PHASE, job: id.0, state, restarts, ..body }
        }
        JobsChange::Class(class) => {
            EventBody { what: EVENT_PRIORITY_CLASS, priority_class: class.name.to_string(), ..body }
        }
        JobsChange::ClassRemoved(name) => {
            EventBody { what: EVENT_PRIORITY_CLASS_REMOVED, priority_class: name.to_string(), ..body }
        }
        // It is no event.
        JobsChange::Past(_) | JobsChange::DirectEnded(_) => body,
        JobsChange::Task(id, task) => EventBody {
            what: EVENT_TASK,
            job: id.job.0,
            task: id.index,
            state: task_state_number(task.state),
            node: task.node.map_or(0, |node| node.0),
            allocation: task.allocation.map(Into::into),
            ..body
        },
    }
}

fn effect_body(effect: &Effect, body: EventBody, kinds: &ResourceRegistry) -> EventBody {
    match effect {
        Effect::Allocated(own, cause) => EventBody {
            what: EVENT_BEGUN,
            cause: begin_cause(*cause),
            allocation: Some(own.id.into()),
            node: own.node.0,
            holds: Some(Box::new(holding(&own.demand, own.gpus, own.units.as_deref(), kinds))),
            external_id: own.external_id.as_deref().unwrap_or_default().to_owned(),
            ..body
        },
        Effect::Bundle(own) => EventBody {
            what: EVENT_BUNDLE,
            allocation: Some(own.allocation.into()),
            group: Some(own.bundle.group.into()),
            bundle: own.bundle.index,
            ..body
        },
        Effect::Inside(own) => EventBody {
            what: EVENT_INSIDE,
            allocation: Some(own.id.into()),
            into: Some(own.bundle.into()),
            holds: Some(Box::new(holding(&own.demand, own.gpus, own.units.as_deref(), kinds))),
            ..body
        },
        Effect::Leased(lease) => EventBody {
            what: EVENT_LEASE,
            allocation: Some(lease.allocation.into()),
            session: lease.session.map(Into::into),
            until: lease.until.0,
            ..body
        },
        &Effect::SessionRenewed { partition, session, until } => EventBody {
            what: EVENT_SESSION_RENEWED,
            session: Some(session.into()),
            partition: partition.0,
            until: until.0,
            ..body
        },
        &Effect::Ended(id, cause) => {
            EventBody { what: EVENT_ENDED, cause: end_cause(cause), allocation: Some(id.into()), ..body }
        }
        Effect::Node(image, news) => EventBody {
            what: EVENT_NODE,
            cause: changed(*news),
            node: image.record.registration.id.0,
            version: image.record.version,
            node_now: Some(Box::new(node_now(image, kinds))),
            ..body
        },
        &Effect::Version { node, version, .. } => {
            EventBody { what: EVENT_NODE_COUNT, node: node.0, version, ..body }
        }
        Effect::NodeRemoved(removed) => {
            EventBody { what: EVENT_NODE_REMOVED, node: removed.id.0, version: removed.version, ..body }
        }
    }
}

fn begin_cause(cause: BeginCause) -> u8 {
    match cause {
        BeginCause::Placed => BEGUN_PLACED,
        BeginCause::Waited => BEGUN_WAITED,
        BeginCause::Committed => BEGUN_COMMITTED,
        BeginCause::Claimed => BEGUN_CLAIMED,
        BeginCause::Adopted => BEGUN_ADOPTED,
    }
}

fn end_cause(cause: EndCause) -> u8 {
    match cause {
        EndCause::Released => ENDED_RELEASED,
        EndCause::Evicted => ENDED_EVICTED,
        EndCause::NodeRemoved => ENDED_NODE_REMOVED,
        EndCause::NodeLost => ENDED_NODE_LOST,
        EndCause::Expired => ENDED_EXPIRED,
        EndCause::TakenBack => ENDED_TAKEN_BACK,
    }
}

fn changed(news: NodeNews) -> u8 {
    let NodeNews { is_new, spec, state } = news;
    let parts = [(is_new, CHANGED_NEW), (spec, CHANGED_SPEC), (state, CHANGED_STATE)];
    parts.into_iter().filter(|&(is, _)| is).map(|(_, part)| part).sum()
}

fn node_now(image: &NodeImage, kinds: &ResourceRegistry) -> EventNode {
    let registration = &image.record.registration;
    EventNode {
        ordinal: registration.ordinal.0,
        partition: registration.partition.0,
        state: image.record.state.number(),
        body: node_body(&registration.spec, kinds),
        agent: registration.agent.as_deref().map(agent_body),
        unhealthy: unhealthy_bodies(&image.record.unhealthy),
        reservation: image.reservation.as_ref().map(|own| reservation(own, kinds)),
        pending: pending(image, kinds),
    }
}

fn reservation(own: &ReservationRecord, kinds: &ResourceRegistry) -> EventReservation {
    let ReservedAmounts { cpu, memory, gpu, custom } = &own.left;
    let custom = named_amounts(custom.iter().copied(), kinds);
    let left = DemandBody { cpu: cpu.units(), memory: memory.units(), gpu: gpu.units(), custom };
    EventReservation { owner: own.owner.number(), until: own.until.map_or(0, |until| until.0), left }
}

fn pending(image: &NodeImage, kinds: &ResourceRegistry) -> Pending {
    let releasing = image.releasing.iter();
    let mut releasing: Vec<_> = releasing
        .map(|own| ReleasingBody { allocation: own.allocation.into(), until: own.until.0 })
        .collect();
    releasing.sort_unstable_by_key(|own| own.allocation);
    let claim = |claim: &ClaimRecord| ClaimBody {
        allocation: claim.id.into(),
        holds: holding(&claim.demand, claim.gpus, claim.units.as_deref(), kinds),
    };
    pending_body(releasing, image.claims.iter().map(claim))
}

fn group_now(group: &GroupRecord, kinds: &ResourceRegistry) -> EventGroup {
    let bundle = |own: &GroupBundleRecord| EventGroupBundle {
        index: own.index,
        demand: demand_body(&own.request.demand, kinds),
        node: own.place.map_or(0, |place| place.node.0),
        allocation: own.place.map(|place| place.allocation.into()),
        lost: own.lost.map(Into::into),
    };
    let mut now = EventGroup {
        strategy: strategy_number(group.spec.strategy),
        min_members: group.spec.min_members,
        priority: group.spec.priority,
        bundles: group.bundles.iter().map(bundle).collect(),
        is_cut: false,
    };
    let mut encoded = Vec::new();
    encode_body(&now, &mut encoded);
    if encoded.len() > GROUP_BYTES {
        now.bundles.iter_mut().for_each(|bundle| bundle.demand.custom.clear());
        now.is_cut = true;
    }
    now
}
