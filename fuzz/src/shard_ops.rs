//! Commands for a [`Shard`], made from bytes and answered by shard and oracle alike.

use std::collections::VecDeque;
use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use wharf_core::ids::{AllocationId, Incarnation, NodeId, Ordinal, PartitionId, ResourceId, ShardId};
use wharf_core::index::{Dimension, Geometry};
use wharf_core::node::{Labels, NodeRegistration, NodeSpec, NodeState, Operator, Selector, Term};
use wharf_core::request::{Explain, PlacementRequest};
use wharf_core::resource::{Amount, CustomAmounts, Demand, GpuRequest};
use wharf_core::shard::{Adoption, Command, Outcome, Park, ResourceKind, Shard, ShardConfig, WaitToken};
use wharf_core::time::Time;

use crate::index_ops::PolicyName;
use crate::oracle::LinearShard;

const OPERATIONS_MAX: usize = 256;
const PARTITIONS: u16 = 3;
const INCARNATION: Incarnation = Incarnation(1);

/// Amounts as small numbers, so that nodes fill up and requests meet the last of something.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Amounts {
    cpu: u8,
    memory: u8,
    custom: [u8; 2],
    /// Of a unit-instance kind.
    units: u8,
}

/// The unit-instance kind of these runs.
fn units_kind() -> ResourceId {
    ResourceId::new(2, true)
}

/// A part of a unit, or a whole number of units.
fn some_units(pick: u8) -> Amount {
    match pick % 8 {
        0 => Amount::from_milli(400),
        1 => Amount::from_milli(600),
        2 => Amount::whole(1),
        3 => Amount::whole(2),
        _ => Amount::ZERO,
    }
}

impl Amounts {
    fn custom(self, most: u8, units: Amount) -> Option<CustomAmounts> {
        let amounts = [0u16, 1].map(|kind| {
            (ResourceId(kind), Amount::whole(u32::from(self.custom[usize::from(kind)] % (most + 1))))
        });
        let amounts = amounts.into_iter().chain([(units_kind(), units)]).collect();
        Demand::canonical_custom(amounts).expect("three different kinds")
    }
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Machine {
    amounts: Amounts,
    gpus: u8,
    zone: u8,
    model: u8,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Gpus {
    None,
    Fraction(u8),
    Whole(u8),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Request {
    amounts: Amounts,
    gpus: Gpus,
    policy: PolicyName,
    selector: u8,
    candidates: Option<[u8; 3]>,
    full: bool,
    /// Asks for less, so that most requests find a place.
    modest: bool,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Operation {
    Add(Machine),
    Place(Request),
    PlaceMany(Request, u8),
    Release(u8),
    Update(u8, Machine),
    SetState(u8, bool),
    Remove(u8, bool),
    List(u8, u8),
    Status,
    Export,
    Adopt(u8, Request, Named),
    SetResource(u8, u8, u8),
    Books(u8),
    Park(Request, u8),
    Unpark(u8),
    Retry(u8),
    Settle,
}

/// Which instances an adoption names.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Named {
    gpus: Option<u8>,
    units: Option<u8>,
    external_id: Option<u8>,
}

const ZONES: [&str; 2] = ["a", "b"];
const MODELS: [&str; 2] = ["T4", "P100"];

impl Machine {
    fn spec(self, name: u64) -> NodeSpec {
        let mut labels: Vec<(Arc<str>, Arc<str>)> = Vec::new();
        if let Some(&zone) = ZONES.get(usize::from(self.zone % 3)) {
            labels.push(("zone".into(), zone.into()));
        }
        if let Some(&model) = MODELS.get(usize::from(self.model % 3)) {
            labels.push(("gpu-model".into(), model.into()));
        }
        NodeSpec {
            name: format!("n{name}").into(),
            identity: None,
            cpu: Amount::whole(u32::from(self.amounts.cpu % 9)),
            memory: Amount::whole(u32::from(self.amounts.memory % 9)),
            // One machine in sixteen has every instance there can be.
            gpus: if self.gpus >= 240 { 16 } else { self.gpus % 5 },
            custom: self.amounts.custom(3, Amount::whole(u32::from(self.amounts.units % 4))),
            labels: Labels::new(labels).expect("two different keys"),
        }
    }
}

/// A selector by number; most numbers ask for none.
fn selector(number: u8) -> Option<Arc<Selector>> {
    let term = |key: &str, operator, values: &[&str]| Term {
        key: key.to_owned(),
        operator,
        values: values.iter().map(|&value| value.to_owned()).collect(),
    };
    let terms = match number % 16 {
        0 => vec![term("zone", Operator::In, &["a"])],
        1 => vec![term("zone", Operator::NotIn, &["a", "c"])],
        2 => vec![term("gpu-model", Operator::In, &MODELS)],
        3 => vec![term("gpu-model", Operator::Exists, &[]), term("zone", Operator::NotExists, &[])],
        4 => vec![term("zone", Operator::In, &["nowhere"])],
        _ => return None,
    };
    Some(Arc::new(Selector::new(terms)))
}

impl Request {
    fn request(self, last_node: u64) -> PlacementRequest {
        let most = if self.modest { 2 } else { 8 };
        let demand = Demand {
            cpu: Amount::whole(u32::from(self.amounts.cpu % (most + 1))),
            memory: Amount::whole(u32::from(self.amounts.memory % (most + 1))),
            gpu: match self.gpus {
                Gpus::None => GpuRequest::None,
                Gpus::Fraction(tenths) => GpuRequest::Fraction(u16::from(tenths % 9 + 1) * 1000),
                Gpus::Whole(count) => GpuRequest::Whole(count % (most / 2) + 1),
            },
            custom: self.amounts.custom(u8::from(!self.modest) * 2, some_units(self.amounts.units)),
        };
        let candidates = self.candidates.map(|picks| {
            // One beyond the last: an id that no node has.
            let mut ids: Vec<NodeId> =
                picks.iter().map(|&pick| NodeId(u64::from(pick) % (last_node + 2))).collect();
            ids.sort_unstable();
            ids.dedup();
            ids.into()
        });
        PlacementRequest {
            demand,
            policy: self.policy.into(),
            selector: selector(self.selector),
            candidates,
            explain: if self.full { Explain::Full } else { Explain::Bounded },
        }
    }
}

fn geometry(fine: bool) -> Geometry {
    let theta = if fine { 1 } else { 3 };
    Geometry::new(vec![
        (Dimension::Cpu, theta * Amount::SCALE),
        (Dimension::Memory, theta * Amount::SCALE),
        (Dimension::WholeGpus, 1),
        (Dimension::LargestGpuPart, theta * 1000),
    ])
    .expect("four different dimensions")
}

fn fresh_shard(geometry: Geometry) -> Shard {
    Shard::new(ShardConfig {
        shard: ShardId(0),
        incarnation: INCARNATION,
        partitions: (0..PARTITIONS).map(PartitionId).collect(),
        geometry,
        seed: 7,
    })
}

/// Shard and oracle side by side.
struct Pair {
    shard: Shard,
    oracle: LinearShard,
    last_node: u64,
    last_wait: u64,
    /// Wake-ups that were not answered yet.
    woken: VecDeque<WaitToken>,
    /// Every command so far, to be repeated in one batch.
    commands: Vec<Command>,
    outcomes: Vec<Outcome>,
}

/// Carries out the commands that `data` spells, one by one, comparing every outcome and checking
/// every invariant; then all of them again in one batch, which must come to the same.
///
/// # Errors
/// The first difference, with the operation that showed it.
pub fn run_shard_ops(data: &[u8]) -> Result<(), String> {
    let mut bytes = Unstructured::new(data);
    let Ok(fine) = bool::arbitrary(&mut bytes) else {
        return Ok(());
    };
    let mut pair = Pair {
        shard: fresh_shard(geometry(fine)),
        oracle: LinearShard::new(&geometry(fine), INCARNATION),
        last_node: 0,
        last_wait: 0,
        woken: VecDeque::new(),
        commands: Vec::new(),
        outcomes: Vec::new(),
    };
    for number in 0..OPERATIONS_MAX {
        if bytes.is_empty() {
            break;
        }
        let Ok(operation) = Operation::arbitrary(&mut bytes) else {
            break;
        };
        pair.apply(operation)
            .map_err(|difference| format!("operation {number}, {operation:?}: {difference}"))?;
    }
    pair.settle().map_err(|difference| format!("at the end: {difference}"))?;
    let mut again = fresh_shard(geometry(fine));
    let mut outcomes = Vec::new();
    again.step(pair.commands, Time(1), &mut outcomes);
    if again.state_hash() != pair.shard.state_hash()
        || format!("{outcomes:?}") != format!("{:?}", pair.outcomes)
    {
        return Err("the same commands in one batch come to something else".to_owned());
    }
    Ok(())
}

impl Pair {
    fn apply(&mut self, operation: Operation) -> Result<(), String> {
        // An id in 0..=last + 1: the first and the last were never registered.
        let node = |pick: u8| NodeId(u64::from(pick) % (self.last_node + 2));
        let command = match operation {
            Operation::Add(machine) => {
                self.last_node += 1;
                Command::AddNode(Box::new(NodeRegistration {
                    id: NodeId(self.last_node),
                    ordinal: Ordinal(self.last_node),
                    partition: PartitionId((self.last_node % u64::from(PARTITIONS)) as u16),
                    spec: machine.spec(self.last_node),
                }))
            }
            Operation::Place(request) => Command::Place(request.request(self.last_node)),
            Operation::PlaceMany(request, count) => {
                let request = request.request(self.last_node);
                for _ in 0..count % 8 {
                    self.step(Command::Place(request.clone()))?;
                }
                return Ok(());
            }
            Operation::Release(pick) => Command::Release(self.allocation(pick)),
            Operation::Update(pick, machine) => {
                let node = node(pick);
                Command::UpdateNode(node, Box::new(machine.spec(node.0)))
            }
            Operation::SetState(pick, draining) => {
                let state = if draining { NodeState::Draining } else { NodeState::Ready };
                Command::SetState(node(pick), state)
            }
            Operation::Remove(pick, force) => Command::RemoveNode { node: node(pick), force },
            Operation::List(after, limit) => Command::ListNodes {
                after: Ordinal(u64::from(after) % (self.last_node + 2)),
                limit: u16::from(limit % 8),
            },
            Operation::Status => Command::Status { audit: true },
            Operation::Export => Command::Export,
            Operation::Adopt(pick, request, named) => {
                let demand = request.request(self.last_node).demand;
                Command::Adopt(Box::new(Adoption {
                    node: node(pick),
                    demand,
                    gpus: named.gpus.map(|mask| u16::from(mask % 16)),
                    units: named.units.map(|mask| (units_kind(), u64::from(mask % 8))).into_iter().collect(),
                    external_id: named.external_id.map(|name| format!("pod-{}", name % 4).into()),
                }))
            }
            Operation::SetResource(pick, kind, amount) => {
                let kind = match kind % 5 {
                    0 => ResourceKind::Cpu,
                    1 => ResourceKind::Memory,
                    2 => ResourceKind::Gpu,
                    3 => ResourceKind::Custom(ResourceId(0)),
                    _ => ResourceKind::Custom(units_kind()),
                };
                Command::SetResources(node(pick), [(kind, Amount::whole(u32::from(amount % 5)))].into())
            }
            Operation::Books(pick) => Command::NodeBooks(node(pick)),
            Operation::Park(request, priority) => {
                self.last_wait += 1;
                Command::Park(Box::new(Park {
                    token: WaitToken { port: u16::from(priority) % 3, number: self.last_wait },
                    request: request.request(self.last_node),
                    priority: i32::from(priority % 4),
                    since: Time(self.last_wait / 2),
                    home: true,
                }))
            }
            Operation::Unpark(pick) => Command::Unpark(self.waiting(pick)),
            Operation::Retry(pick) => Command::Retry(self.waiting(pick)),
            Operation::Settle => return self.settle(),
        };
        self.step(command)
    }

    /// A waiting request, or one time in sixteen one that does not wait.
    fn waiting(&self, pick: u8) -> WaitToken {
        let waiting = self.oracle.waiting();
        if waiting.is_empty() || pick.is_multiple_of(16) {
            return WaitToken { port: 9, number: u64::from(pick) };
        }
        waiting[usize::from(pick) % waiting.len()]
    }

    /// Answers every wake-up as a port does; then nothing that fits waits.
    fn settle(&mut self) -> Result<(), String> {
        // Each retry places something or moves on to the next in turn.
        let bound = 1000 + 100 * self.oracle.waiting().len();
        for _ in 0..bound {
            self.woken.extend(self.shard.drain_woken());
            let Some(token) = self.woken.pop_front() else {
                return match self.oracle.waits_in_vain() {
                    Some(token) => Err(format!("{token:?} waits although a node could take it")),
                    None => Ok(()),
                };
            };
            if self.oracle.waiting().contains(&token) {
                self.step(Command::Retry(token))?;
            }
        }
        Err("wake-ups do not come to an end".to_owned())
    }

    /// A live allocation, or one time in sixteen an id that names none.
    fn allocation(&self, pick: u8) -> AllocationId {
        let live = self.oracle.live();
        if live.is_empty() || pick.is_multiple_of(16) {
            let (partition, sequence) = (PartitionId(u16::from(pick) % (PARTITIONS + 1)), u64::from(pick));
            return AllocationId { incarnation: INCARNATION, partition, sequence };
        }
        live[usize::from(pick) % live.len()]
    }

    fn step(&mut self, command: Command) -> Result<(), String> {
        let mut outcomes = Vec::new();
        let now = Time(self.commands.len() as u64);
        self.shard.step([command.clone()], now, &mut outcomes);
        let [outcome] = &outcomes[..] else {
            return Err(format!("one command, {} outcomes", outcomes.len()));
        };
        self.oracle.compare(&command, outcome)?;
        self.shard.check_invariants()?;
        self.commands.push(command);
        self.outcomes.append(&mut outcomes);
        Ok(())
    }
}
