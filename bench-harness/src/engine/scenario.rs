//! What each row puts before the engine: nodes, what is held on them for good, and the requests.

use std::ops::Range;
use std::sync::Arc;

use wharf_core::ids::NodeId;
use wharf_core::limits::CANDIDATES_MAX;
use wharf_core::node::{GPU_MODEL_LABEL, NodeSpec, Operator, Selector, Term};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GPU_UNIT, GpuRequest};
use wharf_core::rng::Rng;

use super::shapes::{GPUS, HALF_LABEL, NodeMaker, Shapes, ZONE_LABEL, ZONES, between, draw_model, zone};

/// Requests that are drawn from: more than a branch predictor remembers.
const POOL: usize = 16_384;
/// Different candidate sets.
const CANDIDATE_SETS: usize = 512;
/// Of how many nodes one fits, where few do.
const FITTING: u32 = 100;

/// What a row is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Places and releases at 85 % utilisation.
    Steady,
    /// All but one node in a hundred fail, in the last dimension alone, by many steps.
    Last,
    /// The same, but by less than a step: their coordinates say that they fit.
    LastByLess,
    /// Every dimension alone has plenty, one node in a hundred has all of them.
    Anticorrelated,
    /// Every GPU instance has a part free, no two alike, and requests ask for parts.
    Fractions,
    /// Places and releases at 99.5 % utilisation: most requests are refused.
    Full,
    /// All nodes and all requests are the same.
    AllEqual,
    /// No two nodes and no two requests are the same.
    AllDifferent,
    /// Each request names this many nodes.
    Candidates(u16),
    /// Each request selects half of the nodes by a label.
    CandidatesHalf,
}

/// How full the engine is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// This much of the resource that is scarcest, in thousandths.
    Utilisation(u16),
    /// This many live allocations beside those held for good.
    Count(usize),
}

/// A row's input.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// In order of registration.
    pub nodes: Vec<NodeSpec>,
    /// Placed first, on the node of this index, and never released.
    pub held: Vec<(u32, Demand)>,
    /// Every request that the run makes, in three parts.
    pub requests: Vec<PlacementRequest>,
    /// Those that are measured.
    pub measured: Range<usize>,
    /// Those that fill the engine before.
    pub filling: Range<usize>,
    /// Tried in this order where filling alone does not get there.
    pub fillers: Range<usize>,
    /// How full it is kept.
    pub fill: Fill,
    /// The nodes of a request's candidate set, zero where it has none.
    pub candidates: usize,
}

fn only(key: &str, value: String) -> Arc<Selector> {
    let term = Term { key: key.to_owned(), operator: Operator::In, values: vec![value] };
    Arc::new(Selector::new(vec![term]))
}

fn demand(cpu: Amount, memory: Amount, gpu: GpuRequest) -> Demand {
    Demand { cpu, memory, gpu, custom: None }
}

/// Parts of a GPU in hundredths.
fn part(hundredths: u32) -> GpuRequest {
    let unit = u32::from(GPU_UNIT) / 100;
    GpuRequest::Fraction(u16::try_from(hundredths * unit).expect("a part of one GPU"))
}

/// The selectors that one request in ten carries: a zone, or a model for those that take GPUs.
struct Selectors {
    zones: Vec<Arc<Selector>>,
    models: std::collections::HashMap<&'static str, Arc<Selector>>,
}

impl Selectors {
    fn new() -> Self {
        let zones = (0..ZONES).map(|number| only(ZONE_LABEL, zone(number))).collect();
        Self { zones, models: std::collections::HashMap::new() }
    }

    fn draw(&mut self, gpu: GpuRequest, rng: &mut Rng) -> Option<Arc<Selector>> {
        if rng.below(10) > 0 {
            return None;
        }
        if gpu != GpuRequest::None && rng.below(2) == 0 {
            let model = draw_model(rng);
            let made = self.models.entry(model).or_insert_with(|| only(GPU_MODEL_LABEL, model.to_owned()));
            return Some(Arc::clone(made));
        }
        Some(Arc::clone(&self.zones[rng.below(ZONES) as usize]))
    }
}

impl Kind {
    /// The input of this row for `nodes` nodes.
    #[must_use]
    pub fn scenario(self, nodes: u32, policy: Policy, shapes: &Shapes, seed: u64) -> Scenario {
        let mut rng = Rng::new(seed);
        let rng = &mut rng;
        match self {
            Self::Steady => openb(nodes, policy, shapes, 850, rng),
            Self::Full => full(nodes, policy, shapes, rng),
            Self::Last => last(nodes, policy, 30, (31, 90), rng),
            Self::LastByLess => last(nodes, policy, 46, (47, 49), rng),
            Self::Anticorrelated => anticorrelated(nodes, policy, rng),
            Self::Fractions => fractions(nodes, policy, rng),
            Self::AllEqual => all_equal(nodes, policy, rng),
            Self::AllDifferent => all_different(nodes, policy, rng),
            Self::Candidates(count) => candidates(nodes, policy, shapes, usize::from(count), rng),
            Self::CandidatesHalf => half(nodes, policy, shapes, rng),
        }
    }
}

impl Scenario {
    fn new(nodes: Vec<NodeSpec>, demands: Vec<Demand>, policy: Policy, fill: Fill) -> Self {
        let requests: Vec<_> =
            demands.into_iter().map(|demand| PlacementRequest::new(demand, policy)).collect();
        let all = 0..requests.len();
        let end = requests.len();
        Self {
            nodes,
            held: Vec::new(),
            requests,
            measured: all.clone(),
            filling: all,
            fillers: end..end,
            fill,
            candidates: 0,
        }
    }

    /// Fills by LeastFit whatever is measured: where a packing policy filled, most nodes are full,
    /// and most requests that name few nodes would be refused.
    fn spread(&mut self) {
        let spreading = |request: &PlacementRequest| {
            let mut request = request.clone();
            request.policy = Policy::LeastFit;
            request
        };
        let mut copies: Vec<_> = self.requests.iter().map(spreading).collect();
        self.filling = self.requests.len()..self.requests.len() + copies.len();
        self.requests.append(&mut copies);
    }

    /// Adds a copy of the requests with constraints, to be measured in the place of the plain ones.
    fn constrained(&mut self, mut constrain: impl FnMut(&mut PlacementRequest)) {
        let plain = self.requests.len();
        let mut copies = self.requests[self.measured.clone()].to_vec();
        copies.iter_mut().for_each(&mut constrain);
        self.requests.append(&mut copies);
        self.measured = plain..self.requests.len();
        self.fillers = self.requests.len()..self.requests.len();
    }
}

fn openb_nodes(nodes: u32, rng: &mut Rng) -> Vec<NodeSpec> {
    let mut maker = NodeMaker::new();
    (0..nodes).map(|_| maker.openb(rng)).collect()
}

fn openb_demands(shapes: &Shapes, rng: &mut Rng) -> Vec<Demand> {
    let count = shapes.demands.len() as u64;
    (0..POOL).map(|_| shapes.demands[rng.below(count) as usize].clone()).collect()
}

fn openb(nodes: u32, policy: Policy, shapes: &Shapes, per_mille: u16, rng: &mut Rng) -> Scenario {
    let nodes = openb_nodes(nodes, rng);
    let demands = openb_demands(shapes, rng);
    let mut scenario = Scenario::new(nodes, demands, policy, Fill::Utilisation(per_mille));
    let mut selectors = Selectors::new();
    for request in &mut scenario.requests {
        request.selector = selectors.draw(request.demand.gpu, rng);
    }
    scenario
}

/// What is left over is filled with GPUs alone, whole ones first: the pods of the trace leave
/// holes before they get there.
fn full(nodes: u32, policy: Policy, shapes: &Shapes, rng: &mut Rng) -> Scenario {
    let mut scenario = openb(nodes, policy, shapes, 995, rng);
    let sizes = [GpuRequest::Whole(1), part(50), part(20), part(10), part(5), part(2), part(1)];
    let filler = |gpu| PlacementRequest::new(demand(Amount::ZERO, Amount::ZERO, gpu), policy);
    let plain = scenario.requests.len();
    scenario.requests.extend(sizes.map(filler));
    scenario.fillers = plain..scenario.requests.len();
    scenario
}

/// Whether this is one of the few nodes that fit, at least one of any number of nodes.
fn is_fitting(node: u32, nodes: u32) -> bool {
    node % FITTING == (FITTING / 2).min(nodes - 1)
}

fn random_size(rng: &mut Rng) -> (Amount, Amount) {
    (Amount::whole(between(rng, 8, 128)), Amount::whole(1024 * between(rng, 32, 768)))
}

/// All nodes have cpu and memory; GPUs have `free` hundredths free where requests ask for `asked`.
fn last(nodes: u32, policy: Policy, free: u32, asked: (u32, u32), rng: &mut Rng) -> Scenario {
    let mut maker = NodeMaker::new();
    let specs: Vec<_> = (0..nodes)
        .map(|_| {
            let (cpu, memory) = random_size(rng);
            maker.sized(cpu, memory, GPUS, "G2", rng)
        })
        .collect();
    let demands = (0..POOL)
        .map(|_| {
            let cores = between(rng, 1, 3);
            let gib = between(rng, 1, 12);
            let gpu = part(between(rng, asked.0, asked.1));
            demand(Amount::whole(cores), Amount::whole(1024 * gib), gpu)
        })
        .collect();
    let fitting = nodes.div_ceil(FITTING);
    let mut scenario = Scenario::new(specs, demands, policy, Fill::Count(2 * fitting as usize));
    let pinned = demand(Amount::ZERO, Amount::ZERO, part(100 - free));
    let failing = (0..nodes).filter(|node| !is_fitting(*node, nodes));
    scenario.held =
        failing.flat_map(|node| std::iter::repeat_n((node, pinned.clone()), usize::from(GPUS))).collect();
    scenario
}

/// Nodes lie on the plane cpu + memory + GPUs = 1 (of the largest node), requests above it.
fn anticorrelated(nodes: u32, policy: Policy, rng: &mut Rng) -> Scenario {
    let mut maker = NodeMaker::new();
    let specs = (0..nodes)
        .map(|node| {
            let (eighths, cores, gib) = if is_fitting(node, nodes) {
                (8, 128, 768)
            } else {
                let eighths = between(rng, 0, 8);
                let rest = 1000 * (8 - eighths) / 8;
                let cpu = between(rng, 0, rest);
                (eighths, 1 + 127 * cpu / 1000, 1 + 767 * (rest - cpu) / 1000)
            };
            let gpus = u8::try_from(eighths).expect("at most 8");
            maker.sized(Amount::whole(cores), Amount::whole(1024 * gib), gpus, "G2", rng)
        })
        .collect();
    let demands = (0..POOL)
        .map(|_| {
            let cores = between(rng, 52, 64);
            let gib = between(rng, 310, 384);
            let gpus = u8::try_from(between(rng, 3, 4)).expect("at most 4");
            demand(Amount::whole(cores), Amount::whole(1024 * gib), GpuRequest::Whole(gpus))
        })
        .collect();
    Scenario::new(specs, demands, policy, Fill::Count(nodes.div_ceil(FITTING) as usize))
}

/// Each GPU instance holds one part above a half for good, so that parts cannot gather on few.
fn fractions(nodes: u32, policy: Policy, rng: &mut Rng) -> Scenario {
    let specs = openb_nodes(nodes, rng);
    let demands = (0..POOL)
        .map(|_| {
            let cores = between(rng, 1, 4);
            let gib = between(rng, 1, 16);
            let gpu = match rng.below(20) {
                0 => GpuRequest::Whole(1),
                1 => part(between(rng, 50, 90)),
                _ => part(between(rng, 3, 49)),
            };
            demand(Amount::whole(cores), Amount::whole(1024 * gib), gpu)
        })
        .collect();
    let with_gpus: Vec<u32> =
        (0..nodes).zip(&specs).filter(|(_, spec)| spec.gpus > 0).map(|(node, _)| node).collect();
    let live = 3 * with_gpus.len();
    let mut scenario = Scenario::new(specs, demands, policy, Fill::Count(live));
    for node in with_gpus.into_iter().filter(|node| node % FITTING != 0) {
        for _ in 0..GPUS {
            let pinned = demand(Amount::ZERO, Amount::ZERO, part(between(rng, 51, 97)));
            scenario.held.push((node, pinned));
        }
    }
    scenario
}

fn all_equal(nodes: u32, policy: Policy, rng: &mut Rng) -> Scenario {
    let mut maker = NodeMaker::new();
    let cpu = Amount::whole(96);
    let memory = Amount::whole(384 * 1024);
    let specs = (0..nodes).map(|_| maker.sized(cpu, memory, GPUS, "G2", rng)).collect();
    let asked = demand(Amount::whole(12), Amount::whole(48 * 1024), GpuRequest::Whole(1));
    Scenario::new(specs, vec![asked; POOL], policy, Fill::Utilisation(850))
}

fn all_different(nodes: u32, policy: Policy, rng: &mut Rng) -> Scenario {
    let mut maker = NodeMaker::new();
    let specs = (0..nodes)
        .map(|node| {
            let cpu = Amount::from_milli(between(rng, 8_000, 128_000));
            let memory = Amount::whole(between(rng, 32 * 1024, 768 * 1024));
            maker.sized(cpu, memory, if node % 2 == 0 { GPUS } else { 0 }, "G2", rng)
        })
        .collect();
    let demands = (0..POOL)
        .map(|_| {
            let gpu = match rng.below(10) {
                0..4 => GpuRequest::Fraction(u16::try_from(between(rng, 1, 5_000)).expect("a part")),
                4..8 => GpuRequest::Whole(1),
                _ => GpuRequest::None,
            };
            let cpu = Amount::from_milli(between(rng, 100, 16_000));
            demand(cpu, Amount::whole(between(rng, 64, 64 * 1024)), gpu)
        })
        .collect();
    Scenario::new(specs, demands, policy, Fill::Utilisation(850))
}

/// Requests name `count` nodes, of those with GPUs where they ask for any.
fn candidates(nodes: u32, policy: Policy, shapes: &Shapes, count: usize, rng: &mut Rng) -> Scenario {
    let mut scenario = openb(nodes, policy, shapes, 850, rng);
    let of = |specs: &[NodeSpec], gpus: bool| -> Vec<NodeId> {
        let ids = (1..).zip(specs).filter(|(_, spec)| !gpus || spec.gpus > 0);
        ids.map(|(id, _)| NodeId(id)).collect()
    };
    let mut sets = |ids: &[NodeId]| -> Vec<Arc<[NodeId]>> {
        (0..CANDIDATE_SETS).map(|_| draw_set(ids, count.min(CANDIDATES_MAX), rng)).collect()
    };
    let any = sets(&of(&scenario.nodes, false));
    let with_gpus = sets(&of(&scenario.nodes, true));
    let mut at = 0;
    scenario.spread();
    scenario.constrained(|request| {
        request.selector = None;
        let sets = if request.demand.gpu == GpuRequest::None { &any } else { &with_gpus };
        request.candidates = Some(Arc::clone(&sets[at % CANDIDATE_SETS]));
        at += 1;
    });
    scenario.candidates = count.min(nodes as usize);
    scenario
}

fn draw_set(ids: &[NodeId], count: usize, rng: &mut Rng) -> Arc<[NodeId]> {
    let mut set = std::collections::BTreeSet::new();
    while set.len() < count.min(ids.len()) {
        set.insert(ids[rng.below(ids.len() as u64) as usize]);
    }
    set.into_iter().collect()
}

/// More nodes than a request may name: a selector gives the set.
fn half(nodes: u32, policy: Policy, shapes: &Shapes, rng: &mut Rng) -> Scenario {
    let mut scenario = openb(nodes, policy, shapes, 850, rng);
    scenario.spread();
    let halves = ["a", "b"].map(|half| only(HALF_LABEL, half.to_owned()));
    scenario.constrained(|request| {
        request.selector = Some(Arc::clone(&halves[rng.below(2) as usize]));
    });
    scenario.candidates = nodes as usize / 2;
    scenario
}
