//! The commands of a shard are its only input. The same commands give the same outcomes and the same state,
//! no matter how they are cut into batches or which ports they came from. No port keeps another waiting.

use std::sync::Arc;

use crate::by_hand::{self, ManualClock, Recorder, Workload, cores, node_spec, open, shards_of};
use proptest::prelude::*;
use wharf_core::hash::StateHash;
use wharf_core::ids::{Incarnation, NodeId, Ordinal, PartitionId, ShardId, StatementId, TenantId};
use wharf_core::index::Geometry;
use wharf_core::limits::{BATCH_MAX, PORT_IN_FLIGHT_MAX, PORTS_MAX, RING_QUANTUM};
use wharf_core::link::Decision;
use wharf_core::node::NodeRegistration;
use wharf_core::resource::{Amount, Demand};
use wharf_core::rng::Rng;
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::shard::{Command, HybridSettings, Outcome, Shard, ShardConfig};
use wharf_core::state::StoreState;
use wharf_core::statement::{
    Allocate, CommitMode, ConflictDetection, Evict, Operation, Part, Pipeline, Prepare,
};
use wharf_core::time::Time;

const PARTITIONS: u16 = 4;

fn fresh_shard() -> Shard {
    Shard::new(ShardConfig {
        shard: ShardId(0),
        incarnation: Incarnation(1),
        partitions: (0..PARTITIONS).map(PartitionId).collect(),
        geometry: Geometry::default(),
        seed: 11,
        hybrid: HybridSettings::default(),
    })
}

/// Steps `shard` through `commands`. `cut` returns the number of commands of the next batch.
fn run_cut(mut shard: Shard, commands: &[Command], mut cut: impl FnMut() -> usize) -> (String, StateHash) {
    let mut outcomes: Vec<Outcome> = Vec::new();
    let mut rest = commands;
    let mut now = Time(0);
    while !rest.is_empty() {
        let (batch, later) = rest.split_at(cut().clamp(1, rest.len()));
        now.0 += 1;
        // Prefetching for a batch must not change the result.
        shard.step_batch(&mut batch.to_vec(), now, &mut outcomes);
        rest = later;
    }
    shard.check_invariants().expect("the books are right");
    (format!("{outcomes:?}"), shard.state_hash())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_shard_comes_to_the_same_in_any_batch_cut(seed in any::<u64>(), cuts in any::<u64>()) {
        let mut workload = Workload::new(seed, Incarnation(1), PARTITIONS);
        let mut first = fresh_shard();
        let mut outcomes = Vec::new();
        let command = |_| {
            let command = workload.command();
            first.step([command.clone()], Time(1), &mut outcomes);
            workload.saw(&std::mem::take(&mut outcomes));
            command
        };
        let commands: Vec<Command> = (0..600).map(command).collect();
        let one_by_one = run_cut(fresh_shard(), &commands, || 1);
        prop_assert!(one_by_one.0.contains("Place(Ok(") && one_by_one.0.contains("Released"));
        let mut rng = Rng::new(cuts);
        prop_assert_eq!(&run_cut(fresh_shard(), &commands, || rng.below(90) as usize), &one_by_one);
        prop_assert_eq!(&run_cut(fresh_shard(), &commands, || usize::MAX), &one_by_one);
    }
}

/// Returns commands about statements, grouped by time. They depend only on the seed.
fn statement_commands(seed: u64) -> Vec<(Time, Vec<Command>)> {
    let mut rng = Rng::new(seed);
    let mut workload = Workload::new(seed, Incarnation(1), PARTITIONS);
    let mut commands: Vec<(Time, Vec<Command>)> = Vec::new();
    let nodes = (0..12).map(|number| {
        let spec = node_spec(&format!("s{number}"), 16, 4);
        let id = NodeId(1_000 + number);
        let partition = PartitionId((number % u64::from(PARTITIONS)) as u16);
        let ordinal = Ordinal(id.0);
        Command::AddNode(Box::new(NodeRegistration { id, ordinal, partition, spec, agent: None }))
    });
    commands.push((Time(1), nodes.collect()));
    let mut prepared = 0;
    let mut first = fresh_shard();
    let mut outcomes = Vec::new();
    first.step(commands[0].1.iter().cloned(), Time(1), &mut outcomes);
    for time in 1..150 {
        workload.saw(&outcomes);
        outcomes.clear();
        let group = (0..1 + rng.below(8)).map(|_| {
            let statement =
                |number| StatementId { incarnation: Incarnation(1), planner: (number % 3) as u16, number };
            let mut operation = |at: u16| {
                let node = NodeId(1_000 + rng.below(12));
                let demand = Demand { cpu: Amount::whole(1 + rng.below(6) as u32), ..Demand::default() };
                let expected = None;
                let owner = None;
                let gpus = None;
                let bundle = None;
                let tenant = TenantId(rng.below(2) as u16);
                let operation = match rng.below(3) {
                    0 => Operation::Allocate(Allocate {
                        node,
                        expected,
                        demand,
                        gpus,
                        owner,
                        bundle,
                        tenant,
                        lease: None,
                    }),
                    1 => Operation::Pipeline(Pipeline { node, expected, demand, bundle, tenant }),
                    _ => {
                        let allocation = workload.allocation(20);
                        Operation::Evict(Evict { allocation, expected, grace_ns: rng.below(3) * 7 })
                    }
                };
                (at, operation)
            };
            let operations: Vec<_> = (0..3).map(&mut operation).collect();
            let mode = [CommitMode::AllOrNothing, CommitMode::Incremental][rng.below(2) as usize];
            let part = |number| Part {
                statement: statement(number),
                operations: operations.clone(),
                conflict_detection: ConflictDetection::Fine,
                mode,
            };
            match rng.below(6) {
                0 => Command::Place(workload.request()),
                1 => Command::Release(workload.allocation(20)),
                2 => Command::Apply(Box::new(part(1_000_000 + rng.below(1 << 30)))),
                3 | 4 => {
                    prepared += 1;
                    // Some deadlines are in the past.
                    let deadline = Time(time * 5 + rng.below(20));
                    Command::Prepare(Box::new(Prepare {
                        part: part(prepared),
                        deadline,
                        cell: Arc::default(),
                    }))
                }
                _ => {
                    let number = 1 + rng.below(prepared.max(1));
                    let decision = [Decision::Committed, Decision::Aborted][(number % 2) as usize];
                    Command::Finish { statement: statement(number), decision }
                }
            }
        });
        let group: Vec<Command> = group.collect();
        first.step(group.iter().cloned(), Time(time * 5 + 5), &mut outcomes);
        commands.push((Time(time * 5 + 5), group));
    }
    commands
}

/// The same as [`run_cut`], at given times. Deadlines and claims reported to the runner are compared too.
fn run_cut_at(groups: &[(Time, Vec<Command>)], mut cut: impl FnMut() -> usize) -> (String, StateHash) {
    let mut shard = fresh_shard();
    let mut outcomes = Vec::new();
    let mut told = String::new();
    for (now, commands) in groups {
        let mut rest = &commands[..];
        while !rest.is_empty() {
            let (batch, later) = rest.split_at(cut().clamp(1, rest.len()));
            shard.step(batch.iter().cloned(), *now, &mut outcomes);
            rest = later;
        }
        let due: Vec<_> = shard.drain_due().map(|(statement, _)| statement).collect();
        let events: Vec<_> = shard.drain_claim_events().collect();
        told += &format!("{due:?} {events:?}");
    }
    shard.check_invariants().expect("the books are right");
    (format!("{outcomes:?} {told}"), shard.state_hash())
}

#[test]
fn statements_come_to_the_same_in_any_batch_cut() {
    let kinds = ["Allocated", "Pipelined", "Releasing", "Short", "UnknownStatement", "Granted"];
    let mut met = [0; 6];
    for seed in 0..24 {
        let commands = statement_commands(seed);
        let one_by_one = run_cut_at(&commands, || 1);
        for (count, kind) in met.iter_mut().zip(kinds) {
            *count += u32::from(one_by_one.0.contains(kind));
        }
        let mut rng = Rng::new(seed);
        assert_eq!(run_cut_at(&commands, || rng.below(5) as usize), one_by_one, "seed {seed}");
        assert_eq!(run_cut_at(&commands, || usize::MAX), one_by_one, "seed {seed}");
    }
    assert!(met.iter().all(|&runs| runs > 0), "runs that meet {kinds:?}: {met:?}");
}

/// Runs three ports against an engine of two shards, in an order that the seed decides. Returns what each
/// shard was given and what it answered.
fn run_engine(seed: u64) -> Vec<(Recorder, StateHash)> {
    let mut engine = open(StoreState::create(16), 2, 3);
    let clock = ManualClock::new(engine.now);
    let mut workload = Workload::new(seed, engine.incarnation, 16);
    let mut recorders = [Recorder::default(), Recorder::default()];
    let mut rng = Rng::new(seed);
    for i in 0..40 {
        let spec = workload.spec(&format!("n{i}"));
        let registration = engine.registrar.register(spec).expect("a new name");
        let command = Command::AddNode(Box::new(registration.clone()));
        let request = PortRequest::Partition(registration.partition, command);
        engine.ports[0].submit(0, request, engine.now).expect("room");
    }
    for _ in 0..60 {
        for port in &mut engine.ports {
            for _ in 0..rng.below(40) {
                let request = match rng.below(3) {
                    0 => PortRequest::Release(workload.allocation(20)),
                    _ => PortRequest::Place(workload.request()),
                };
                port.submit(0, request, engine.now).expect("room");
            }
            if rng.below(2) == 0 {
                port.poll(engine.now, |_, reply| {
                    if let PortReply::Place(Ok(placement)) = reply {
                        workload.granted.push(placement.allocation);
                    }
                });
            }
        }
        let shard = rng.below(2) as usize;
        engine.runners[shard].run_batch(&clock, &mut recorders[shard]);
    }
    let hashes: Vec<StateHash> = engine.runners.iter().map(|runner| runner.shard().state_hash()).collect();
    recorders.into_iter().zip(hashes).collect()
}

#[test]
fn replaying_the_recorded_order_gives_the_same_bytes() {
    for seed in 0..8 {
        let recorded = run_engine(seed);
        let replays = [1, 7, usize::MAX].map(|cut| (cut, shards_of(open(StoreState::create(16), 2, 1))));
        for (cut, shards) in replays {
            for (shard, (recorder, hash)) in shards.into_iter().zip(&recorded) {
                assert!(recorder.orders.iter().any(|order| order.len() > 1), "batches of several ports");
                let (outcomes, replayed) = run_cut(shard, &recorder.commands, || cut);
                assert_eq!(replayed, *hash, "seed {seed}, batches of {cut}");
                assert_eq!(outcomes, format!("{:?}", recorder.outcomes), "seed {seed}, batches of {cut}");
            }
        }
    }
}

#[test]
fn a_whole_run_repeats_byte_for_byte() {
    let first = run_engine(3);
    let second = run_engine(3);
    for ((a, hash_a), (b, hash_b)) in first.iter().zip(&second) {
        assert_eq!((hash_a, &a.orders), (hash_b, &b.orders));
        assert_eq!(format!("{:?}", a.outcomes), format!("{:?}", b.outcomes));
    }
}

/// Returns the number of commands handled before that of port `quiet`, while all other ports flood their rings.
fn wait_during_floods(flooding: usize, quiet: usize) -> usize {
    let mut engine = open(StoreState::create(1), 1, flooding + 1);
    by_hand::add_node(&mut engine, node_spec("n", 8, 0));
    let clock = ManualClock::new(engine.now);
    let mut recorder = Recorder::default();
    engine.ports[quiet].submit(1, PortRequest::Place(cores(1)), engine.now).expect("room");
    let mut ahead = 0;
    loop {
        for port in (0..=flooding).filter(|&port| port != quiet) {
            engine.ports[port].poll(engine.now, |_, _| ());
            while engine.ports[port].submit(0, PortRequest::Place(cores(9)), engine.now).is_ok() {}
            assert!(engine.ports[port].pending() == PORT_IN_FLIGHT_MAX);
        }
        let count = engine.runners[0].run_batch(&clock, &mut recorder);
        assert!(count <= BATCH_MAX);
        for &(port, count) in recorder.orders.last().expect("a batch") {
            if usize::from(port) == quiet {
                return ahead;
            }
            ahead += usize::from(count);
        }
        assert!(ahead < 100 * BATCH_MAX, "port {quiet} is starved");
    }
}

#[test]
fn a_flooding_port_delays_another_by_one_quantum() {
    assert!(wait_during_floods(1, 0) <= RING_QUANTUM);
    assert!(wait_during_floods(1, 1) <= RING_QUANTUM);
}

#[test]
fn many_flooding_ports_delay_another_by_one_quantum_each() {
    for quiet in [0, 17, PORTS_MAX - 1] {
        let ahead = wait_during_floods(PORTS_MAX - 1, quiet);
        assert!(ahead <= (PORTS_MAX - 1) * RING_QUANTUM, "port {quiet} waits behind {ahead} commands");
    }
}
