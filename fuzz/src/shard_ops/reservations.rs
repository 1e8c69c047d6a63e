//! Commands around reservations. Few nodes, small amounts and short deadlines make owners meet their nodes.

use std::collections::BTreeMap;

use super::{
    Amounts, Command, Gpus, Layout, Machine, Operation, Outcome, Pair, PlacementRequest, Policy, Request,
    Wishes, typical,
};
use wharf_core::limits::ALLOCATIONS_PER_NODE_DEFAULT;
use wharf_core::request::Check;
use wharf_core::rng::Rng;
use wharf_core::shard::{Refused, ReservationChange};

/// The events of a run, so that a test can check that they occurred.
#[derive(Clone, Debug, Default)]
pub struct ReservationCounts {
    /// Placements of owners on nodes that were reserved for them, by policy.
    pub on_own: BTreeMap<&'static str, u64>,
    /// Placements of owners on other nodes.
    pub on_other_nodes: u64,
    /// Reservations made or replaced.
    pub made: u64,
    /// Reservations that ended: by deadline, by command, by use or with their node.
    pub ended: u64,
    /// Refusals that count a node as reserved for another owner.
    pub kept_from: u64,
}

impl ReservationCounts {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        for (policy, count) in &other.on_own {
            *self.on_own.entry(policy).or_default() += count;
        }
        self.on_other_nodes += other.on_other_nodes;
        self.made += other.made;
        self.ended += other.ended;
        self.kept_from += other.kept_from;
    }
}

fn amounts(rng: &mut Rng) -> Amounts {
    let mut byte = || rng.below(256) as u8;
    Amounts { cpu: byte(), memory: byte(), custom: [byte(), byte()], units: byte() }
}

fn machine(rng: &mut Rng) -> Machine {
    let [gpus, zone, model, taints] = [0; 4].map(|_: u8| rng.below(200) as u8);
    // Six to eight cores and GiB, so that a reservation takes most of a node.
    let mut amounts = amounts(rng);
    (amounts.cpu, amounts.memory) = (6 + amounts.cpu % 3, 6 + amounts.memory % 3);
    Machine { amounts, gpus, zone, model, taints: if rng.below(6) == 0 { taints } else { 0 } }
}

fn request(rng: &mut Rng) -> Request {
    let gpus = match rng.below(4) {
        0 => Gpus::None,
        1 => Gpus::Whole(rng.below(3) as u8),
        _ => Gpus::Fraction(rng.below(9) as u8),
    };
    let wishes = (rng.below(4) == 0).then(|| Wishes {
        fallbacks: [0; 2].map(|_| rng.below(32) as u8),
        preferred: [0; 3].map(|_| (rng.below(3) as u8, rng.below(32) as u8)),
        tolerations: [0; 2].map(|_| rng.below(8) as u8),
        nodes: [0; 3].map(|_| rng.below(14) as u8),
        flags: rng.below(8) as u8,
    });
    let mut amounts = amounts(rng);
    // Most requests name no custom resources, because otherwise nothing would fit.
    if rng.below(4) > 0 {
        (amounts.custom, amounts.units) = ([0; 2], 7);
    }
    Request {
        amounts,
        gpus,
        policy: rng.below(9) as u8,
        order: rng.below(256) as u8,
        selector: 7 + rng.below(12) as u8,
        candidates: (rng.below(8) == 0).then(|| [0; 3].map(|_| rng.below(14) as u8)),
        wishes,
        owner: rng.below(8) as u8,
        lease: 7,
        full: rng.below(2) == 0,
        modest: rng.below(3) > 0,
    }
}

/// Returns a demand to reserve, in most cases a large one.
fn reserved(rng: &mut Rng) -> Request {
    let mut reserved = Request { modest: rng.below(3) == 0, ..request(rng) };
    (reserved.amounts.cpu, reserved.amounts.memory) = (rng.below(7) as u8, rng.below(7) as u8);
    reserved
}

fn operation(rng: &mut Rng) -> Operation {
    let pick = rng.below(256) as u8;
    let node = rng.below(14) as u8;
    match rng.below(100) {
        0..38 => Operation::Place(request(rng)),
        38..64 => Operation::Release(pick),
        64..75 => Operation::Reserve(node, reserved(rng), pick),
        75..77 => Operation::EndReservation(node, pick),
        77..82 => Operation::Pass(pick % 8),
        82..84 => Operation::Life(node, 3 + pick % 2),
        84..86 => Operation::SetHealth(node, rng.below(16) as u16),
        86 => Operation::Update(node, machine(rng)),
        87 => Operation::Remove(node, true),
        88 => Operation::Books(node),
        89 => Operation::List(0, 7),
        90 => Operation::Export,
        91..93 => {
            let gpus = None;
            let units = None;
            let external_id = None;
            Operation::Adopt(node, request(rng), super::Named { gpus, units, external_id })
        }
        93..97 => Operation::Park(request(rng), pick),
        97 => Operation::Unpark(pick),
        98 => Operation::Add(machine(rng)),
        _ => Operation::Settle,
    }
}

/// Runs `operations` operations drawn from `seed` and compares each with the oracle.
///
/// # Errors
/// Returns the first difference and the operation that showed it.
pub fn run_reservation_ops(seed: u64, operations: u64) -> Result<ReservationCounts, String> {
    let mut rng = Rng::new(seed);
    let typical = typical(rng.below(8) as u8);
    let percent = [30, 60, 100][rng.below(3) as usize];
    let mut byte = || rng.below(256) as u8;
    let layout = Layout { fine: byte() % 2 == 0, extras: byte(), orders: [byte(), byte(), byte()] };
    let mut pair = Pair::new(layout, typical.as_ref(), (percent, ALLOCATIONS_PER_NODE_DEFAULT));
    for _ in 0..10 {
        pair.apply(Operation::Add(machine(&mut rng)))?;
    }
    let mut counts = ReservationCounts::default();
    for number in 0..operations {
        let operation = operation(&mut rng);
        let before = pair.oracle.owners();
        pair.apply(operation)
            .map_err(|difference| format!("seed {seed}, operation {number}, {operation:?}: {difference}"))?;
        let after = pair.oracle.owners();
        counts.ended += before.keys().filter(|node| !after.contains_key(node)).count() as u64;
        if let (Operation::Place(_), Some((_, Command::Place(request)))) = (operation, pair.commands.last()) {
            count_place(request, pair.last_outcome(), &before, &mut counts);
        }
        if matches!(
            (operation, pair.last_outcome()),
            (Operation::Reserve(..), Some(Outcome::Reserve(Ok(ReservationChange::Made(_)))))
        ) {
            counts.made += 1;
        }
    }
    pair.settle().map_err(|difference| format!("seed {seed}, at the end: {difference}"))?;
    Ok(counts)
}

fn count_place(
    request: &PlacementRequest,
    outcome: Option<&Outcome>,
    before: &BTreeMap<super::NodeId, super::OwnerId>,
    counts: &mut ReservationCounts,
) {
    match outcome {
        Some(Outcome::Place(Ok(placement))) if request.owner.is_some() => {
            if before.get(&placement.node).copied() == request.owner {
                *counts.on_own.entry(Policy::name(request.policy)).or_default() += 1;
            } else {
                counts.on_other_nodes += 1;
            }
        }
        Some(Outcome::Place(Err(Refused { refusal, .. })))
            if refusal.checks.contains_key(&Check::Reserved) =>
        {
            counts.kept_from += 1;
        }
        _ => {}
    }
}
