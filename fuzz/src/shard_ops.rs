//! Runs commands from bytes on a [`Shard`] and on the oracle, and compares the answers.

mod fresh;
mod layout;
mod leases;
mod limits;
mod queue;
mod reservations;
use fresh::{fresh_shard, typical};
use layout::Layout;
use leases::{LEASES_ENDED, lasts, lease, session};
use limits::{Limits, limits};
use queue::QueueOrder;
pub use reservations::{ReservationCounts, run_reservation_ops};
mod follow;
mod views;
pub use views::{ViewCounts, run_view_ops};

use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use wharf_core::fragmentation::TypicalShapes;
use wharf_core::ids::{
    AllocationId, Incarnation, NodeId, Ordinal, OwnerId, PartitionId, ResourceId, ShardId, TenantId,
};
use wharf_core::node::{
    AgentFacts, AgentReport, GpuDevice, Labels, LifeEvent, NodeRegistration, NodeSpec, Operator, Selector,
    Taint, TaintEffect, Taints, Term, Toleration, TolerationOperator,
};
use wharf_core::request::{Explain, OrderChoice, PlacementRequest, Policy, Preferences, RankRules};
use wharf_core::resource::{Amount, CustomAmounts, Demand, GpuRequest, ResourceKind};
use wharf_core::shard::{Adoption, Command, Home, Outcome, Park, Reserve, Shard, WaitToken, Watch};
use wharf_core::time::Time;

use crate::journaled::Journaled;
use crate::oracle::LinearShard;

const OPERATIONS_MAX: usize = 256;
const PARTITIONS: u16 = 3;
const INCARNATION: Incarnation = Incarnation(1);

/// Small amounts, so that nodes fill up and requests often need the last of a resource.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Amounts {
    cpu: u8,
    memory: u8,
    custom: [u8; 2],
    /// Selects an amount of the unit-instance resource.
    units: u8,
}

/// Returns the unit-instance resource of these runs.
fn units_kind() -> ResourceId {
    ResourceId::new(2, true)
}

/// Returns a part of a unit, or a whole number of units.
fn some_units(pick: u8) -> Amount {
    match pick % 8 {
        0 => Amount::from_milli(400),
        1 => Amount::from_milli(600),
        2 => Amount::whole(1),
        3 => Amount::whole(2),
        _ => Amount::ZERO,
    }
}

fn resource(pick: u8) -> ResourceKind {
    match pick % 5 {
        0 => ResourceKind::Cpu,
        1 => ResourceKind::Memory,
        2 => ResourceKind::Gpu,
        3 => ResourceKind::Custom(ResourceId(0)),
        _ => ResourceKind::Custom(units_kind()),
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
    /// Half of all values select no taints.
    taints: u8,
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
    policy: u8,
    order: u8,
    selector: u8,
    candidates: Option<[u8; 3]>,
    wishes: Option<Wishes>,
    owner: u8,
    lease: u8,
    full: bool,
    /// Asks for less, so that most requests fit.
    modest: bool,
}

/// Preferences of a request.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Wishes {
    fallbacks: [u8; 2],
    preferred: [(u8, u8); 3],
    tolerations: [u8; 2],
    nodes: [u8; 3],
    flags: u8,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Operation {
    Add(Machine),
    AddWithAgent(Machine),
    Place(Request),
    PlaceMany(Request, u8),
    Release(u8),
    Update(u8, Machine),
    Life(u8, u8),
    Report(u8, Machine, u16),
    SetHealth(u8, u16),
    Remove(u8, bool),
    List(u8, u8),
    Status,
    Export,
    Adopt(u8, Request, Named),
    SetResource(u8, u8, u8),
    Books(u8),
    Park(Request, u8),
    Watch(Request, u8),
    Unpark(u8),
    Retry(u8),
    Settle,
    /// A node, a demand with an owner, and a duration.
    Reserve(u8, Request, u8),
    EndReservation(u8, u8),
    Pass(u8),
    RenewLease(u8, u8),
    RenewSession(u8, u8),
}

/// The instances that an adoption names.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Named {
    gpus: Option<u8>,
    units: Option<u8>,
    external_id: Option<u8>,
}

const ZONES: [&str; 2] = ["a", "b"];
const MODELS: [&str; 2] = ["T4", "P100"];
const LIFE: [LifeEvent; 5] =
    [LifeEvent::Report, LifeEvent::Beat, LifeEvent::Lose, LifeEvent::Drain, LifeEvent::Undrain];

impl Machine {
    /// Returns an agent's report. Devices have the same names and the same order on every machine.
    fn report(self, name: u64, faults: u16) -> AgentReport {
        let spec = self.spec(name);
        let device = |i: u8| {
            let uuid = format!("g{i}").into();
            let model = "T4".into();
            let device = GpuDevice { uuid, model, memory_mib: 1024, numa: None, links: 0 };
            (device, (faults & (1 << i) != 0).then(|| "Xid 79".into()))
        };
        AgentReport { boot: "1".into(), gpus: (0..spec.gpus).map(device).collect(), spec }
    }

    fn spec(self, name: u64) -> NodeSpec {
        let mut labels: Vec<(Arc<str>, Arc<str>)> = Vec::new();
        if let Some(&zone) = ZONES.get(usize::from(self.zone % 3)) {
            labels.push(("zone".into(), zone.into()));
        }
        if let Some(&model) = MODELS.get(usize::from(self.model % 3)) {
            labels.push(("gpu-model".into(), model.into()));
        }
        let levels = [None, Some("2"), Some("10"), Some("-3"), Some("many")];
        if let Some(level) = levels[usize::from(self.zone / 3 % 5)] {
            labels.push(("level".into(), level.into()));
        }
        NodeSpec {
            name: format!("n{name}").into(),
            identity: None,
            cpu: Amount::whole(u32::from(self.amounts.cpu % 9)),
            memory: Amount::whole(u32::from(self.amounts.memory % 9)),
            // One machine in sixteen has the highest number of instances.
            gpus: if self.gpus >= 240 { 16 } else { self.gpus % 5 },
            custom: self.amounts.custom(3, Amount::whole(u32::from(self.amounts.units % 4))),
            labels: Labels::new(labels).expect("different keys"),
            taints: taints(self.taints),
        }
    }
}

fn taints(number: u8) -> Taints {
    use TaintEffect::{NoExecute, NoSchedule, PreferNoSchedule};
    let taint = |key: &str, value: &str, effect| Taint { key: key.into(), value: value.into(), effect };
    let all = [
        taint("team", "a", NoSchedule),
        taint("team", "b", PreferNoSchedule),
        taint("gone", "", NoExecute),
        taint("spot", "a", PreferNoSchedule),
    ];
    let chosen = match number % 16 {
        bit @ 8..12 => vec![all[usize::from(bit - 8)].clone()],
        12 => all[..2].to_vec(),
        13 => all[1..].to_vec(),
        _ => Vec::new(),
    };
    Taints::new(chosen).expect("keys differ by effect")
}

fn toleration(number: u8) -> Option<Toleration> {
    use TolerationOperator::{Equal, Exists};
    let (key, operator, value, effect) = match number % 8 {
        0 => ("team", Equal, "a", None),
        1 => ("team", Exists, "", Some(TaintEffect::PreferNoSchedule)),
        2 => ("", Exists, "", None),
        3 => ("gone", Exists, "", Some(TaintEffect::NoExecute)),
        4 => ("", Exists, "", Some(TaintEffect::NoSchedule)),
        _ => return None,
    };
    Some(Toleration { key: key.to_owned(), operator, value: value.to_owned(), effect })
}

impl Wishes {
    fn preferences(self, node: impl Fn(u8) -> NodeId, affinity: bool) -> Preferences {
        let fallbacks = self.fallbacks.into_iter().filter_map(selector).collect();
        let preferred = self.preferred.into_iter();
        let preferred = preferred.filter_map(|(weight, s)| Some((weight % 3 + 1, selector(s)?))).collect();
        let tolerations = self.tolerations.into_iter().filter_map(toleration).collect();
        let rules = RankRules::new(fallbacks, preferred, tolerations).expect("within their bounds");
        let nodes = if self.flags & 2 == 0 { Vec::new() } else { self.nodes.map(node).to_vec() };
        Preferences {
            rules: (self.flags & 1 == 0).then(|| Arc::new(rules)),
            nodes: nodes.into(),
            avoid_gpu: self.flags & 4 == 0,
            affinity,
        }
    }
}

/// Returns a selector by number. Most numbers select none.
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
        5 => vec![term("level", Operator::Greater, &["2"])],
        6 => vec![term("level", Operator::Less, &["10"]), term("zone", Operator::Exists, &[])],
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
        // The range includes one id that no node has.
        let node = |pick: u8| NodeId(u64::from(pick) % (last_node + 2));
        let candidates: Option<Arc<[NodeId]>> = self.candidates.map(|picks| {
            let mut ids: Vec<NodeId> = picks.iter().map(|&pick| node(pick)).collect();
            ids.sort_unstable();
            ids.dedup();
            ids.into()
        });
        let affinity = candidates.as_ref().is_some_and(|ids| ids.len() == 1);
        let preferences = self.wishes.map(|wishes| Arc::new(wishes.preferences(node, affinity)));
        PlacementRequest {
            demand,
            policy: Policy::ALL[usize::from(self.policy) % Policy::ALL.len()],
            order: match self.order % 8 {
                number @ 0..3 => OrderChoice::Configured(number),
                3 | 4 => OrderChoice::Dominant,
                _ => OrderChoice::Default,
            },
            selector: selector(self.selector),
            candidates,
            preferences,
            owner: owner(self.owner),
            lease: lease(self.lease),
            explain: if self.full { Explain::Full } else { Explain::Bounded },
            tenant: TenantId(u16::from(self.order / 8 % 3)),
        }
    }
}

/// Returns one of three owners, or none.
fn owner(pick: u8) -> Option<OwnerId> {
    OwnerId::new(u64::from(pick % 8).saturating_sub(4))
}

/// The shard and the oracle, which receive the same commands.
struct Pair {
    shard: Shard,
    oracle: LinearShard,
    last_node: u64,
    last_wait: u64,
    now: Time,
    queue: QueueOrder,
    /// Every command so far, to be run again in one batch per moment.
    commands: Vec<(Time, Command)>,
    outcomes: Vec<Outcome>,
    journal: Journaled,
}

/// Runs the commands encoded in `data` one by one, compares every outcome and checks every invariant. Then runs
/// all of them again in one batch per moment, which must give the same outcomes.
///
/// # Errors
/// Returns the first difference and the operation that showed it.
pub fn run_shard_ops(data: &[u8]) -> Result<(), String> {
    let mut bytes = Unstructured::new(data);
    let Ok(layout) = Layout::arbitrary(&mut bytes) else {
        return Ok(());
    };
    let Ok(number) = u8::arbitrary(&mut bytes) else {
        return Ok(());
    };
    let typical = typical(number);
    let limits = limits(number);
    let mut pair = Pair::new(layout, typical.as_ref(), limits);
    for number in 0..OPERATIONS_MAX {
        if bytes.is_empty() {
            break;
        }
        let Ok(operation) = Operation::arbitrary(&mut bytes) else {
            break;
        };
        pair.apply(operation).map_err(|difference| {
            format!("operation {number}, {operation:?} over {layout:?}: {difference}")
        })?;
    }
    pair.settle().map_err(|difference| format!("at the end: {difference}"))?;
    let mut again = fresh_shard(layout.both().0, typical.as_ref(), limits);
    let mut outcomes = Vec::new();
    for batch in pair.commands.chunk_by(|a, b| a.0 == b.0) {
        again.step(batch.iter().map(|(_, command)| command.clone()), batch[0].0, &mut outcomes);
    }
    again.step([], pair.now, &mut outcomes);
    if again.state_hash() != pair.shard.state_hash()
        || format!("{outcomes:?}") != format!("{:?}", pair.outcomes)
    {
        return Err("the same commands in batches come to something else".to_owned());
    }
    pair.journal.check(&mut pair.shard, PARTITIONS, pair.now)
}

impl Pair {
    fn new(layout: Layout, typical: Option<&Arc<TypicalShapes>>, limits: Limits) -> Self {
        let (geometry, space) = layout.both();
        let mut oracle = LinearShard::new(&geometry, INCARNATION);
        oracle.set_space(space);
        oracle.set_reserved_nodes_percent(limits.0);
        oracle.set_allocations_per_node_max(limits.1);
        oracle.set_leases_ended(LEASES_ENDED);
        if let Some(typical) = typical {
            oracle.set_typical_shapes(typical);
        }
        let mut shard = fresh_shard(geometry, typical, limits);
        let journal = Journaled::begin(&mut shard);
        Self {
            shard,
            journal,
            oracle,
            last_node: 0,
            last_wait: 0,
            now: Time(0),
            queue: QueueOrder::default(),
            commands: Vec::new(),
            outcomes: Vec::new(),
        }
    }

    fn apply(&mut self, operation: Operation) -> Result<(), String> {
        // An id in 0..=last + 1. The first and the last were never registered.
        let node = |pick: u8| NodeId(u64::from(pick) % (self.last_node + 2));
        let command = match operation {
            Operation::Add(machine) => self.add(machine, None),
            Operation::AddWithAgent(machine) => self.add(machine, Some(Arc::default())),
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
            Operation::Life(pick, event) => Command::Life(node(pick), LIFE[usize::from(event) % LIFE.len()]),
            Operation::Report(pick, machine, faults) => {
                let node = node(pick);
                Command::Report(node, Box::new(machine.report(node.0, faults)))
            }
            Operation::SetHealth(pick, mask) => {
                let bits = (0..16u8).filter(|bit| mask & (1 << bit) != 0);
                Command::SetHealth(node(pick), bits.map(|bit| (bit, format!("bit {bit}").into())).collect())
            }
            Operation::Remove(pick, force) => Command::RemoveNode { node: node(pick), force },
            Operation::List(after, limit) => Command::ListNodes {
                after: Ordinal(u64::from(after) % (self.last_node + 2)),
                limit: u16::from(limit % 8),
            },
            Operation::Status => Command::Audit { number: 0 },
            Operation::Export => Command::Export,
            Operation::Adopt(pick, request, named) => self.adopt(node(pick), request, named),
            Operation::SetResource(pick, kind, amount) => {
                let total = Amount::whole(u32::from(amount % 5));
                Command::SetResources(node(pick), [(resource(kind), total)].into())
            }
            Operation::Books(pick) => Command::NodeBooks(node(pick)),
            Operation::Park(request, priority) => {
                self.last_wait += 1;
                Command::Park(Box::new(Park {
                    token: WaitToken { port: u16::from(priority) % 3, number: self.last_wait },
                    request: request.request(self.last_node),
                    priority: i32::from(priority % 4),
                    since: Time(self.last_wait / 2),
                    home: Home::Here,
                }))
            }
            Operation::Watch(request, priority) => {
                self.last_wait += 1;
                Command::Watch(Box::new(Watch {
                    token: WaitToken { port: u16::from(priority) % 3, number: self.last_wait },
                    request: request.request(self.last_node),
                    priority: i32::from(priority % 4),
                    since: Time(self.last_wait / 2),
                }))
            }
            Operation::Unpark(pick) => Command::Unpark(self.waiting(pick)),
            Operation::Retry(pick) => self.answer(self.waiting(pick)),
            Operation::Settle => return self.settle(),
            Operation::Reserve(pick, request, lasts) => {
                let owner = owner(request.owner).or_else(|| OwnerId::new(1)).expect("not 0");
                let until = (!lasts.is_multiple_of(4)).then(|| Time(self.now.0 + u64::from(lasts / 4)));
                let demand = request.request(self.last_node).demand;
                Command::Reserve(Box::new(Reserve { node: node(pick), owner, demand, until }))
            }
            Operation::EndReservation(pick, owner) => {
                let owner = OwnerId::new(u64::from(owner % 3 + 1)).expect("not 0");
                Command::EndReservation(node(pick), owner)
            }
            Operation::RenewLease(pick, time) => {
                Command::RenewLease { allocation: self.allocation(pick), lasts_ns: lasts(time) }
            }
            Operation::RenewSession(pick, time) => {
                Command::RenewSession { session: session(pick), lasts_ns: lasts(time) }
            }
            Operation::Pass(time) => {
                self.now.0 += u64::from(time % 32);
                self.shard.step([], self.now, &mut Vec::new());
                self.journal.follow(&mut self.shard);
                self.oracle.set_now(self.now);
                self.queue.take_woken(&mut self.shard, &self.oracle).map_or(Ok(()), Err)?;
                return Ok(self.shard.check_invariants()?);
            }
        };
        self.step(command)
    }

    fn adopt(&self, node: NodeId, request: Request, named: Named) -> Command {
        Command::Adopt(Box::new(Adoption {
            node,
            demand: request.request(self.last_node).demand,
            gpus: named.gpus.map(|mask| u16::from(mask % 16)),
            units: named.units.map(|mask| (units_kind(), u64::from(mask % 8))).into_iter().collect(),
            external_id: named.external_id.map(|name| format!("pod-{}", name % 4).into()),
            tenant: TenantId::OPERATOR,
        }))
    }

    fn add(&mut self, machine: Machine, agent: Option<Arc<AgentFacts>>) -> Command {
        self.last_node += 1;
        Command::AddNode(Box::new(NodeRegistration {
            id: NodeId(self.last_node),
            ordinal: Ordinal(self.last_node),
            partition: PartitionId((self.last_node % u64::from(PARTITIONS)) as u16),
            spec: machine.spec(self.last_node),
            agent,
        }))
    }

    /// Returns the token of a waiting request, or in one of sixteen cases a token that does not wait.
    fn waiting(&self, pick: u8) -> WaitToken {
        let waiting = self.oracle.waiting();
        if waiting.is_empty() || pick.is_multiple_of(16) {
            return WaitToken { port: 9, number: u64::from(pick) };
        }
        waiting[usize::from(pick) % waiting.len()]
    }

    /// Returns a live allocation, or in one of sixteen cases an unknown id. Every other one is that of a live allocation
    /// with another tenant.
    fn allocation(&self, pick: u8) -> AllocationId {
        let live = self.oracle.live();
        if !live.is_empty() && pick % 32 == 16 {
            let id = live[usize::from(pick) % live.len()];
            return AllocationId { tenant: TenantId(id.tenant.0 + 1), ..id };
        }
        if live.is_empty() || pick.is_multiple_of(16) {
            let partition = PartitionId(u16::from(pick) % (PARTITIONS + 1));
            let sequence = u64::from(pick);
            return AllocationId {
                incarnation: INCARNATION,
                partition,
                sequence,
                tenant: TenantId::OPERATOR,
            };
        }
        live[usize::from(pick) % live.len()]
    }

    fn step(&mut self, command: Command) -> Result<(), String> {
        let mut outcomes = Vec::new();
        let now = self.now;
        let draws = match &command {
            Command::Place(request) => request.policy == Policy::Hybrid,
            Command::Park(park) => park.request.policy == Policy::Hybrid,
            Command::Retry(_) => true,
            _ => false,
        };
        if draws {
            // The random draw must follow from the current state. An export reads it without changing it.
            self.shard.step([Command::Export], now, &mut outcomes);
            if let Some(Outcome::Exported(state)) = outcomes.pop() {
                self.oracle.set_rng(state.policy.rng);
            }
        }
        self.queue.note_command(&command);
        self.shard.step([command.clone()], now, &mut outcomes);
        // Some units are of several commands, and pages of a checkpoint are read between commands.
        match self.commands.len() % 5 {
            0 | 1 => self.journal.follow(&mut self.shard),
            2 => self.journal.read_page(&mut self.shard, now),
            _ => {}
        }
        let [outcome] = &outcomes[..] else {
            return Err(format!("one command, {} outcomes", outcomes.len()));
        };
        self.oracle.compare(&command, outcome)?;
        self.oracle.compare_leases(&self.shard)?;
        self.queue.take_woken(&mut self.shard, &self.oracle).map_or(Ok(()), Err)?;
        self.shard.check_invariants()?;
        let goes_on = matches!(command, Command::GoOn);
        self.commands.push((now, command));
        self.outcomes.append(&mut outcomes);
        // Sometimes this runs at once, sometimes only when everything is settled.
        if self.shard.is_behind() && !goes_on && self.commands.len().is_multiple_of(3) {
            return self.step(Command::GoOn);
        }
        Ok(())
    }

    /// Returns the outcome of the last command that was not [`Command::GoOn`].
    fn last_outcome(&self) -> Option<&Outcome> {
        self.outcomes.iter().rev().find(|outcome| !matches!(outcome, Outcome::WentOn))
    }
}
