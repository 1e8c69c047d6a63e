//! The requests of clients. The worlds are small on purpose, so that requests often fill nodes, meet
//! reservations and cross each other.

use wharf_core::ids::AllocationId;
use wharf_core::time::Time;
use wharf_net::protocol::{
    AdoptRequest, CancelRequest, DemandBody, DrainRequest, EFFECT_NO_SCHEDULE, EFFECT_PREFER_NO_SCHEDULE,
    EXPLAIN_FULL, EndReservationRequest, GpuBody, HeartbeatRequest, Kind, MODE_WAIT_UNTIL, Name, NodeBody,
    NodesRequest, OPERATOR_IN, POLICY_LEAST_STRANDED, Pair, PlaceRequest, ReleaseRequest, RemoveRequest,
    RenewRequest, ReportRequest, ReserveRequest, SelectorTerm, Taint, WireAllocation,
};

use super::choices::Choices;
use super::client::jobs::set_some_queue;
use super::client::{Asked, Client, Role};

/// One unit, in 1/10,000 of a unit.
const UNIT: i64 = 10_000;
/// The number of nodes that the operator names.
const NODES: u64 = 7;
/// The highest number of requests that a client has in flight.
const OPEN_MAX: usize = 8;
/// An incarnation that no run reaches.
const INCARNATION_NEVER: u32 = 1 << 20;

/// Returns the frame of the client's next action: a new request, or a repetition of one in flight.
pub(super) fn next_frame(
    client: &mut Client,
    choices: &mut Choices<'_>,
    now: Time,
    (asks_for_groups, asks_for_jobs): (bool, bool),
) -> Option<Vec<u8>> {
    let open: Vec<u64> = client.pending.keys().copied().collect();
    if open.len() >= OPEN_MAX || (!open.is_empty() && choices.one_in(4)) {
        return client.frame(*choices.pick(&open));
    }
    match client.role {
        Role::User if asks_for_jobs && choices.one_in(2) => Some(client.ask_about_jobs(choices, now)),
        Role::Operator if asks_for_jobs && choices.one_in(16) => Some(set_some_queue(client, choices)),
        Role::User if asks_for_groups && choices.one_in(6) => client.ask_about_groups(choices, now),
        Role::User => user(client, choices, now),
        Role::Operator => operator(client, choices),
        Role::Agent { .. } => agent(client, choices),
    }
}

fn user(client: &mut Client, choices: &mut Choices<'_>, now: Time) -> Option<Vec<u8>> {
    match choices.below(16) {
        0..8 => Some(place(client, choices, None)),
        8 | 9 => {
            let until = if choices.one_in(3) { 0 } else { now.0 + 1 + choices.below(30_000) };
            Some(place(client, choices, Some(until)))
        }
        10..14 => release(client, choices),
        14 => release_again(client, choices),
        _ if choices.one_in(2) => renew(client, choices),
        _ => cancel(client, choices),
    }
}

fn place(client: &mut Client, choices: &mut Choices<'_>, until: Option<u64>) -> Vec<u8> {
    let gpu = match choices.below(4) {
        0 => (choices.below(9) as i64 + 1) * 1000,
        1 => (choices.below(2) as i64 + 1) * UNIT,
        _ => 0,
    };
    let mut request = PlaceRequest {
        demand: DemandBody {
            cpu: choices.below(6) as i64 * UNIT / 2,
            memory: choices.below(4) as i64 * UNIT,
            gpu,
            ..DemandBody::default()
        },
        policy: [1, 2, 3, 4, 5, 6, 7, 8, POLICY_LEAST_STRANDED, 0][choices.place(10)],
        ..PlaceRequest::default()
    };
    if choices.one_in(4) {
        request.selectors = vec![in_zone(choices)];
    }
    if choices.one_in(6) {
        request.candidates = (0..3).map(|_| choices.below(10) + 1).collect();
        request.candidates.sort_unstable();
        request.candidates.dedup();
    }
    if request.demand.memory == 3 * UNIT {
        request.explain = EXPLAIN_FULL;
    }
    if let Some(until) = until {
        (request.mode, request.deadline) = (MODE_WAIT_UNTIL, until);
        request.priority = choices.below(3) as i32;
    }
    let owner = if choices.one_in(5) { choices.below(2) + 1 } else { 0 };
    let lease = if choices.one_in(6) { 1 + choices.below(20_000) } else { 0 };
    let session_lease = lease > 0 && choices.one_in(2);
    let request = PlaceRequest { owner, lease, session_lease, ..request };
    client.ask(Kind::Place, &request, Asked::Place { waits: until.is_some() })
}

fn zone(choices: &mut Choices<'_>) -> String {
    (*choices.pick(&["a", "b"])).to_owned()
}

/// Returns a term of a selector: one of the zones.
pub(super) fn in_zone(choices: &mut Choices<'_>) -> SelectorTerm {
    let values = vec![Name(zone(choices))];
    SelectorTerm { key: "zone".to_owned(), operator: OPERATOR_IN, values }
}

/// Releases an allocation that was promised.
pub(super) fn release(client: &mut Client, choices: &mut Choices<'_>) -> Option<Vec<u8>> {
    if client.promised.is_empty() {
        return None;
    }
    let live: Vec<AllocationId> = client.promised.keys().copied().collect();
    Some(ask_release(client, *choices.pick(&live)))
}

fn release_again(client: &mut Client, choices: &mut Choices<'_>) -> Option<Vec<u8>> {
    let ended: Vec<AllocationId> = client.ended.iter().copied().collect();
    let id = if ended.is_empty() || choices.one_in(4) {
        // An id that was never granted, in a partition that may not exist.
        let partition = choices.below(10) as u16;
        WireAllocation {
            incarnation: INCARNATION_NEVER,
            partition,
            sequence: choices.below(9),
            tenant: client.tenant.0,
        }
        .into()
    } else {
        *choices.pick(&ended)
    };
    Some(ask_release(client, id))
}

/// Renews the leases of some allocations, which may have none, and often those of the session.
fn renew(client: &mut Client, choices: &mut Choices<'_>) -> Option<Vec<u8>> {
    let live: Vec<AllocationId> = client.promised.keys().copied().collect();
    let count = if live.is_empty() { 0 } else { choices.below(4) };
    let allocations = (0..count).map(|_| (*choices.pick(&live)).into()).collect();
    let session = client.session().filter(|_| !choices.one_in(3)).map(|(session, _)| session.into());
    let request = RenewRequest { lease: 1 + choices.below(20_000), allocations, session };
    Some(client.ask(Kind::Renew, &request, Asked::Renew))
}

pub(super) fn ask_release(client: &mut Client, id: AllocationId) -> Vec<u8> {
    client.ask(Kind::Release, &ReleaseRequest { allocation: id.into() }, Asked::Release(id))
}

fn cancel(client: &mut Client, choices: &mut Choices<'_>) -> Option<Vec<u8>> {
    let waits = client.pending.iter().filter(|(_, pending)| pending.asked.waits());
    let waits: Vec<u64> = waits.map(|(&sequence, _)| sequence).collect();
    (!waits.is_empty()).then(|| ask_cancel(client, *choices.pick(&waits)))
}

/// Cancels a waiting request by its sequence.
pub(super) fn ask_cancel(client: &mut Client, sequence: u64) -> Vec<u8> {
    client.ask(Kind::CancelWait, &CancelRequest { sequence }, Asked::Cancel(sequence))
}

/// The racks that nodes are in, and the rows of these.
pub(super) const RACKS: u64 = 5;
pub(super) const ROWS: u64 = 2;

fn node_body(name: String, choices: &mut Choices<'_>) -> NodeBody {
    let pair = |key: &str, value: String| Pair { key: key.to_owned(), value };
    let number: u64 = name.bytes().map(u64::from).sum();
    // The rack decides the partition, so it must not change with an update.
    let rack = number % RACKS;
    let mut labels = vec![pair("rack", format!("r{rack}"))];
    if !name.starts_with("agent") {
        // Rows contain racks, and are the tiers of jobs with them.
        labels.push(pair("row", format!("w{}", rack % ROWS)));
    }
    labels.push(pair("zone", zone(choices)));
    let mut taints = Vec::new();
    if choices.one_in(6) {
        let effect = *choices.pick(&[EFFECT_NO_SCHEDULE, EFFECT_PREFER_NO_SCHEDULE]);
        taints.push(Taint { key: "team".to_owned(), value: "x".to_owned(), effect });
    }
    NodeBody {
        name,
        cpu: (choices.below(7) as i64 + 1) * UNIT,
        memory: (choices.below(8) as i64 + 1) * UNIT,
        gpus: choices.below(4) as u32,
        labels,
        taints,
        ..NodeBody::default()
    }
}

/// Adds a node.
pub(super) fn add_node(client: &mut Client, choices: &mut Choices<'_>) -> Vec<u8> {
    let node = node_body(node_name(choices), choices);
    client.ask(Kind::AddNodes, &NodesRequest { nodes: vec![node] }, Asked::Operate)
}

fn node_name(choices: &mut Choices<'_>) -> String {
    format!("n{}", choices.below(NODES))
}

/// Returns the name of a node of the operator or of an agent.
fn any_name(choices: &mut Choices<'_>) -> String {
    if choices.one_in(4) { format!("agent{}", choices.below(2)) } else { node_name(choices) }
}

fn operator(client: &mut Client, choices: &mut Choices<'_>) -> Option<Vec<u8>> {
    let name = any_name(choices);
    Some(match choices.below(16) {
        0..4 => add_node(client, choices),
        4 | 5 => {
            let node = node_body(node_name(choices), choices);
            client.ask(Kind::UpdateNodes, &NodesRequest { nodes: vec![node] }, Asked::Operate)
        }
        6 | 7 => {
            let request = DrainRequest { names: vec![Name(name)], undo: choices.below(2) == 1 };
            client.ask(Kind::DrainNodes, &request, Asked::Operate)
        }
        8 | 9 => {
            let request = RemoveRequest { names: vec![Name(name)], force: choices.one_in(2) };
            client.ask(Kind::RemoveNodes, &request, Asked::Operate)
        }
        10 | 11 => reserve(client, choices, name),
        12 => {
            let request = EndReservationRequest { node: name, owner: choices.below(2) + 1 };
            client.ask(Kind::EndReservation, &request, Asked::Operate)
        }
        13 | 14 => adopt(client, choices, name),
        _ => return release(client, choices),
    })
}

fn reserve(client: &mut Client, choices: &mut Choices<'_>, node: String) -> Vec<u8> {
    let request = ReserveRequest {
        node,
        owner: choices.below(2) + 1,
        demand: DemandBody {
            cpu: choices.below(4) as i64 * UNIT,
            memory: choices.below(4) as i64 * UNIT,
            gpu: [0, 0, 5000, UNIT][choices.place(4)],
            custom: Vec::new(),
        },
        lasts: if choices.one_in(3) { 0 } else { 1 + choices.below(20_000) },
    };
    client.ask(Kind::Reserve, &request, Asked::Operate)
}

fn adopt(client: &mut Client, choices: &mut Choices<'_>, node: String) -> Vec<u8> {
    let named = choices.one_in(2);
    let request = AdoptRequest {
        node,
        demand: DemandBody {
            cpu: choices.below(6) as i64 * UNIT,
            memory: choices.below(4) as i64 * UNIT,
            gpu: [0, 0, 3000, UNIT][choices.place(4)],
            ..DemandBody::default()
        },
        external_id: if named { format!("pod-{}", choices.below(3)) } else { String::new() },
        ..AdoptRequest::default()
    };
    client.ask(Kind::Adopt, &request, Asked::Adopt)
}

/// An agent reports until it knows its node. Then it sends heartbeats, and reports changes.
fn agent(client: &mut Client, choices: &mut Choices<'_>) -> Option<Vec<u8>> {
    let Role::Agent { number, node, version, alive } = &mut client.role else { return None };
    if !*alive {
        return None;
    }
    if *node != 0 && !choices.one_in(6) {
        let request = HeartbeatRequest { node: *node, version: *version };
        return Some(client.ask(Kind::Heartbeat, &request, Asked::Beat));
    }
    *version += 1;
    let number = *number;
    let version = *version;
    let mut body = node_body(format!("agent{number}"), choices);
    // Usually the same machine. Another machine with the same name must wait until the node is lost.
    body.identity = format!("machine{number}-{}", u8::from(choices.one_in(4)));
    let gpus = (0..body.gpus).map(|gpu| GpuBody {
        uuid: format!("gpu-{gpu}"),
        model: "T4".to_owned(),
        memory_mib: 1,
        fault: if choices.one_in(5) { "Xid 79".to_owned() } else { String::new() },
        ..GpuBody::default()
    });
    let gpus = gpus.collect();
    let request = ReportRequest { node: body, boot: "1".to_owned(), version, gpus };
    Some(client.ask(Kind::Report, &request, Asked::Report))
}
