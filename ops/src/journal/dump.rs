//! `wharf journal dump`: the units of a journal, one JSON object each.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use wharf_core::group::BundlePlace;
use wharf_core::ids::{BundleId, GroupId, ResourceId, SessionId};
use wharf_core::jobs::{JobsChange, JobsDone, TaskId, TaskRecord};
use wharf_core::journal::{BeginCause, Changes, Effect, NodeImage, Stream, Unit};
use wharf_core::node::NodeRegistration;
use wharf_core::registrar::Catalog;
use wharf_core::resource::{Amount, Demand, GpuAssignment, ReservedAmounts};
use wharf_core::state::{
    AllocationRecord, ClaimRecord, Deed, Done, GroupRecord, InsideRecord, LeaseRecord, Origin,
    ReleasingRecord, SessionChange, SessionEnd, WaitOutcome,
};
use wharf_core::view::EndCause;
use wharf_net::protocol::Kind;

use super::files::Directory;
use super::overlay::Overlay;
use super::row::catalog_of;
use super::store::Store;
use super::walk::{Damage, Walk};
use crate::file_error::FileError;

/// Gives the units after the checkpoint to `print`, from append `from` on. Returns the damage that the walk found.
///
/// # Errors
/// When a service runs there, a file cannot be read, the checkpoint is damaged, or the journal ends before `from`.
pub fn dump(data_dir: &Path, from: u64, mut print: impl FnMut(Value)) -> Result<Vec<Damage>, FileError> {
    let files = Arc::new(Overlay::over(Directory::lock_to_read(data_dir)?));
    let (mut store, checkpoint) = Store::look(files, &mut None)?;
    let last = store.log().last();
    if from > last.saturating_add(1) {
        let message = format!("ends at append {last}, so there is nothing from append {from} on");
        return Err(FileError::new(&store.log().path(), message));
    }
    let Some(begin) = checkpoint.from else { return Ok(Vec::new()) };
    let walk = Walk::new(begin, store.heads().clone(), catalog_of(&checkpoint.state.registrar));
    walk.run(store.log(), |catalog, step| {
        let streams = step.header.streams.iter();
        let mut positions: Positions = streams.map(|&(stream, before, _)| (stream, before)).collect();
        for unit in &step.units {
            let line = unit_view(step.header.number, unit, &mut positions, catalog);
            if step.header.number >= from {
                print(line);
            }
        }
    })
}

/// The position of each stream of a value.
type Positions = BTreeMap<u16, u64>;

/// Returns the next position of a stream.
fn advance(positions: &mut Positions, stream: Stream) -> u64 {
    let position = positions.entry(stream.0).or_default();
    *position += 1;
    *position
}

fn unit_view(append: u64, unit: &Unit, positions: &mut Positions, catalog: &Catalog) -> Value {
    let mut view = json!({ "append": append, "now": unit.now.0 });
    if !unit.done.is_empty() {
        view["done"] = unit.done.iter().map(done_view).collect();
    }
    if let Changes::Shard { shard, effects, policy, granularity } = &unit.changes {
        view["shard"] = shard.0.into();
        let effect = |effect: &Effect| {
            let partition = effect.partition().0;
            let position = advance(positions, Stream(partition));
            let mut view = effect_view(effect, catalog);
            view["partition"] = partition.into();
            view["position"] = position.into();
            view
        };
        view["effects"] = effects.iter().map(effect).collect();
        if let Some(policy) = policy {
            view["policy"] = json!({ "next_fit": policy.next_fit.0, "random": policy.rng.state() });
        }
        if let Some(granularity) = granularity {
            view["granularity"] = json!({ "thetas": granularity.thetas, "changes": granularity.changes });
        }
        return view;
    }
    view["global_position"] = advance(positions, Stream::GLOBAL).into();
    match &unit.changes {
        Changes::Shard { .. } => unreachable!("returned above"),
        Changes::Started { incarnation, shards } => {
            view["started"] = json!({ "incarnation": incarnation.0, "shards": shards });
        }
        Changes::Kinds(names, unit_instances) => {
            view["kinds"] = json!({ "names": names, "unit_instances": unit_instances });
        }
        Changes::Groups(groups) => view["groups"] = groups.iter().map(group_view).collect(),
        Changes::Jobs(changes) => view["jobs"] = changes.iter().map(jobs_view).collect(),
        Changes::Sessions(changes) => view["sessions"] = changes.iter().map(session_view).collect(),
        Changes::Decided(statement, shards) => {
            view["decided"] = json!({ "statement": statement.to_string(), "shards": shards });
        }
    }
    view
}

/// Shows what a part of a request has done.
fn done_view(done: &Done) -> Value {
    let Origin { session, sequence, part, .. } = done.origin;
    let did = match &done.deed {
        Deed::Placed(placement, _) => json!({ "placed": placement.allocation.to_string() }),
        Deed::Released(_) => json!("released"),
        Deed::NodeChanged(node) => json!({ "node_changed": node.0 }),
        Deed::NodeRemoved(node, _) => json!({ "node_removed": node.0 }),
        Deed::ReservationEnded(node) => json!({ "reservation_ended": node.0 }),
        Deed::GroupChanged(group) => json!({ "group_changed": group.to_string() }),
        Deed::GroupRemoved(group, _) => json!({ "group_removed": group.to_string() }),
        Deed::Statement(statement, ..) => json!({ "statement": statement.to_string() }),
        Deed::Jobs(JobsDone::QueueSet) => json!("queue_set"),
        Deed::Jobs(JobsDone::QueueRemoved) => json!("queue_removed"),
        Deed::Jobs(JobsDone::ClassSet) => json!("priority_class_set"),
        Deed::Jobs(JobsDone::ClassRemoved) => json!("priority_class_removed"),
        Deed::Jobs(JobsDone::Submitted(job)) => json!({ "job_submitted": job.to_string() }),
        Deed::Jobs(JobsDone::Cancelled(job)) => json!({ "job_cancelled": job.to_string() }),
        Deed::Jobs(JobsDone::Reported(_)) => json!("tasks_reported"),
    };
    json!({ "session": session.to_string(), "sequence": sequence, "part": part, "did": did })
}

/// Shows a change of sessions, without the secret of a session.
fn session_view(change: &SessionChange) -> Value {
    let of = |change: &str, session: SessionId| json!({ "change": change, "session": session.to_string() });
    match change {
        &SessionChange::Opened(session, _) => of("opened", session),
        SessionChange::Waits(Origin { session, sequence, .. }, wait) => json!({
            "change": "waits",
            "session": session.to_string(),
            "sequence": sequence,
            "kind": Kind::from_number(wait.kind).map(Kind::name),
            "since": wait.since.0,
        }),
        &SessionChange::WaitEnded(session, sequence, outcome) => {
            let cause = match outcome {
                WaitOutcome::Placed(_) | WaitOutcome::Group(_) => "placed",
                WaitOutcome::Expired => "expired",
                WaitOutcome::Cancelled => "cancelled",
                WaitOutcome::Refused => "refused",
            };
            json!({ "change": "wait_ended", "session": session.to_string(), "sequence": sequence, "cause": cause })
        }
        SessionChange::Answered(Origin { session, sequence, .. }, reply) => json!({
            "change": "answered",
            "session": session.to_string(),
            "sequence": sequence,
            "reply_bytes": reply.len(),
        }),
        SessionChange::WaitAcknowledged(session, sequence) => {
            json!({ "change": "wait_acknowledged", "session": session.to_string(), "sequence": sequence })
        }
        &SessionChange::Ended(session, why) => {
            let cause = match why {
                SessionEnd::Closed => "closed",
                SessionEnd::Expired => "expired",
                SessionEnd::Evicted => "evicted",
            };
            json!({ "change": "ended", "session": session.to_string(), "cause": cause })
        }
    }
}

fn effect_view(effect: &Effect, catalog: &Catalog) -> Value {
    match effect {
        Effect::Allocated(record, begun) => {
            let AllocationRecord { id, node, external_id, .. } = record;
            let mut view = json!({ "effect": "allocated", "allocation": id.to_string(), "node": node.0 });
            view["cause"] = begin_name(*begun).into();
            if let Some(external_id) = external_id {
                view["external_id"] = (**external_id).into();
            }
            view["amounts"] = demand_view(&record.demand, record.gpus, catalog);
            view
        }
        Effect::Bundle(record) => json!({
            "effect": "bundle",
            "allocation": record.allocation.to_string(),
            "bundle": record.bundle.to_string(),
        }),
        Effect::Inside(InsideRecord { id, bundle, demand, gpus, .. }) => json!({
            "effect": "inside",
            "allocation": id.to_string(),
            "bundle": bundle.to_string(),
            "amounts": demand_view(demand, *gpus, catalog),
        }),
        Effect::Ended(id, cause) => {
            json!({ "effect": "ended", "allocation": id.to_string(), "cause": cause_name(*cause) })
        }
        Effect::Node(image, _) => node_view(image, catalog),
        Effect::Leased(LeaseRecord { allocation, session, until }) => json!({
            "effect": "leased",
            "allocation": allocation.to_string(),
            "session": session.map(|session| session.to_string()),
            "until": until.0,
        }),
        Effect::SessionRenewed { session, until, .. } => {
            json!({ "effect": "session_renewed", "session": session.to_string(), "until": until.0 })
        }
        Effect::Version { node, version, .. } => {
            json!({ "effect": "version", "node": node.0, "version": version })
        }
        Effect::NodeRemoved(removed) => json!({
            "effect": "node_removed",
            "node": removed.id.0,
            "name": *removed.name,
            "identity": removed.identity.as_deref(),
            "version": removed.version,
        }),
    }
}

fn begin_name(cause: BeginCause) -> &'static str {
    match cause {
        BeginCause::Placed => "placed",
        BeginCause::Waited => "placed_after_wait",
        BeginCause::Committed => "committed",
        BeginCause::Claimed => "claim_granted",
        BeginCause::Adopted => "adopted",
    }
}

fn cause_name(cause: EndCause) -> &'static str {
    match cause {
        EndCause::Released => "released",
        EndCause::Evicted => "evicted",
        EndCause::NodeRemoved => "node_removed",
        EndCause::NodeLost => "node_lost",
        EndCause::Expired => "expired",
        EndCause::TakenBack => "taken_back",
    }
}

fn node_view(image: &NodeImage, catalog: &Catalog) -> Value {
    let NodeImage { record, reservation, claims, releasing } = image;
    let NodeRegistration { id, ordinal, spec, .. } = &record.registration;
    let gpus = Amount::whole(u32::from(spec.gpus));
    let custom = spec.custom.as_deref().unwrap_or(&[]);
    let claim = |claim: &ClaimRecord| {
        json!({
            "allocation": claim.id.to_string(),
            "bundle": claim.bundle.map(|bundle| bundle.to_string()),
            "amounts": demand_view(&claim.demand, claim.gpus, catalog),
        })
    };
    let ending =
        |one: &ReleasingRecord| json!({ "allocation": one.allocation.to_string(), "until": one.until.0 });
    let reserved = reservation.as_ref().map(|own| {
        let ReservedAmounts { cpu, memory, gpu, custom } = &own.left;
        let left = amounts_view(*cpu, *memory, *gpu, custom, catalog);
        json!({ "owner": own.owner.number(), "left": left, "until": own.until.map(|until| until.0) })
    });
    let unhealthy =
        record.unhealthy.iter().map(|(instance, why)| (instance.to_string(), Value::from(&**why)));
    json!({
        "effect": "node",
        "node": id.0,
        "name": *spec.name,
        "identity": spec.identity.as_deref(),
        "ordinal": ordinal.0,
        "version": record.version,
        "state": record.state.name(),
        "total": amounts_view(spec.cpu, spec.memory, gpus, custom, catalog),
        "unhealthy_gpus": unhealthy.collect::<Map<_, _>>(),
        "reservation": reserved,
        "claims": claims.iter().map(claim).collect::<Value>(),
        "releasing": releasing.iter().map(ending).collect::<Value>(),
    })
}

fn amounts_view(
    cpu: Amount,
    memory: Amount,
    gpu: Amount,
    custom: &[(ResourceId, Amount)],
    catalog: &Catalog,
) -> Value {
    let known = [("cpu", cpu), ("memory", memory), ("gpu", gpu)];
    let known = known.map(|(name, amount)| (name.to_owned(), amount));
    let named = |&(id, amount): &(ResourceId, Amount)| {
        let name = catalog.resources.name(id);
        (name.map_or_else(|| format!("kind {}", id.0), str::to_owned), amount)
    };
    let all = known.into_iter().chain(custom.iter().map(named)).filter(|(_, amount)| !amount.is_zero());
    all.map(|(name, amount)| (name, Value::from(amount.to_string()))).collect::<Map<_, _>>().into()
}

fn demand_view(demand: &Demand, gpus: GpuAssignment, catalog: &Catalog) -> Value {
    let gpu = demand.gpu.amount();
    let mut view = amounts_view(demand.cpu, demand.memory, gpu, demand.custom(), catalog);
    let instances: Vec<u8> = gpus.instances().collect();
    if !instances.is_empty() {
        view["gpu_instances"] = instances.into();
    }
    view
}

fn task_view(id: TaskId, task: &TaskRecord) -> Value {
    json!({
        "task": id.to_string(),
        "state": task.state.name(),
        "node": task.node.map(|node| node.0),
        "allocation": task.allocation.map(|allocation| allocation.to_string()),
        "since": task.since.0,
    })
}

/// Shows a change of queues and jobs.
fn jobs_view(change: &JobsChange) -> Value {
    match change {
        JobsChange::Queue(queue) => json!({
            "queue": *queue.spec.name,
            "parent": queue.parent.as_deref(),
            "weight": queue.spec.weight,
            "open": queue.spec.open,
        }),
        JobsChange::QueueRemoved(name) => json!({ "queue": **name, "removed": true }),
        JobsChange::Class(class) => json!({
            "priority_class": *class.name,
            "value": class.value,
            "default": class.is_default,
            "preempts": class.preempts,
        }),
        JobsChange::ClassRemoved(name) => json!({ "priority_class": **name, "removed": true }),
        JobsChange::DirectEnded(job) => json!({ "placement": job.to_string(), "removed": true }),
        JobsChange::Job(job) if job.spec.is_direct => json!({
            "placement": job.id.to_string(),
            "queue": *job.queue,
            "tenant": job.spec.tenant.0,
        }),
        JobsChange::Job(job) => json!({
            "job": job.id.to_string(),
            "name": *job.spec.name,
            "queue": *job.queue,
            "tenant": job.spec.tenant.0,
            "phase": job.phase.name(),
            "tasks": job.spec.tasks.iter().map(|group| u64::from(group.count)).sum::<u64>(),
        }),
        JobsChange::JobRemoved(job) => json!({ "job": job.to_string(), "removed": true }),
        JobsChange::Phase(job, phase, restarts) => {
            json!({ "job": job.to_string(), "phase": phase.name(), "restarts": restarts })
        }
        JobsChange::Task(id, task) => task_view(*id, task),
        JobsChange::Past(past) => json!({
            "past_of": *past.queue,
            "user": past.user.as_deref(),
            "half_life": past.half_life_ns,
            "epoch": past.epoch,
            // A sum has more digits than numbers in JSON.
            "sums": past.kinds.iter().map(|kind| kind.sum.to_string()).collect::<Value>(),
        }),
    }
}

fn group_view((id, group): &(GroupId, Option<GroupRecord>)) -> Value {
    let Some(group) = group else { return json!({ "group": id.to_string(), "removed": true }) };
    let place =
        |place: BundlePlace| json!({ "node": place.node.0, "allocation": place.allocation.to_string() });
    let bundles = group.bundles.iter().map(|bundle| {
        json!({
            "bundle": BundleId { group: *id, index: bundle.index }.to_string(),
            "place": bundle.place.map(place),
            "lost": bundle.lost.map(|lost| lost.to_string()),
        })
    });
    json!({ "group": id.to_string(), "bundles": bundles.collect::<Value>() })
}
