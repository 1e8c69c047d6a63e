//! The input of each row: nodes, permanent allocations, and requests.

use std::ops::Range;
use std::sync::Arc;

use wharf_core::ids::NodeId;
use wharf_core::limits::CANDIDATES_MAX;
use wharf_core::node::{GPU_MODEL_LABEL, NodeSpec, Operator, Selector, Term};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GPU_UNIT, GpuRequest};
use wharf_core::rng::Rng;

use super::shapes::{GPUS, HALF_LABEL, NodeMaker, Shapes, ZONE_LABEL, ZONES, between, draw_model, zone};

/// The number of distinct requests to draw from: more than a branch predictor can learn.
const POOL: usize = 16_384;
/// The number of different candidate sets.
const CANDIDATE_SETS: usize = 512;
/// One of this number of nodes fits, in scenarios where few do.
const FITTING: u32 = 100;

/// The kind of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Places and releases at 85 % utilisation.
    Steady,
    /// All but one node in a hundred fail, only in the last dimension, by many steps.
    Last,
    /// The same, but by less than a step, so that their coordinates indicate a fit.
    LastByLess,
    /// Each single dimension has plenty of capacity, but only one node in a hundred has enough of all.
    Anticorrelated,
    /// Every GPU instance has a free part, all different, and requests ask for parts.
    Fractions,
    /// Places and releases at 99.5 % utilisation, where most requests are refused.
    Full,
    /// All nodes are the same, and so are all requests.
    AllEqual,
    /// All nodes are different, and so are all requests.
    AllDifferent,
    /// Each request names this number of nodes.
    Candidates(u16),
    /// Each request selects half of the nodes by a label.
    CandidatesHalf,
}

/// The target utilisation of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// This share of the scarcest resource, in thousandths.
    Utilisation(u16),
    /// This number of live allocations, not counting the permanent ones.
    Count(usize),
}

/// The input of a row.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The nodes in order of registration.
    pub nodes: Vec<NodeSpec>,
    /// Permanent allocations, each on the node of this index. They are placed first and never released.
    pub held: Vec<(u32, Demand)>,
    /// Every request of the run, in three parts.
    pub requests: Vec<PlacementRequest>,
    /// The measured requests.
    pub measured: Range<usize>,
    /// The requests that fill the engine before.
    pub filling: Range<usize>,
    /// Requests that are tried in this order if the filling requests do not reach the target.
    pub fillers: Range<usize>,
    /// The target utilisation.
    pub fill: Fill,
    /// The size of a request's candidate set; 0 if it has none.
    pub candidates: usize,
}

fn only(key: &str, value: String) -> Arc<Selector> {
    let term = Term { key: key.to_owned(), operator: Operator::In, values: vec![value] };
    Arc::new(Selector::new(vec![term]))
}

fn demand(cpu: Amount, memory: Amount, gpu: GpuRequest) -> Demand {
    Demand { cpu, memory, gpu, custom: None }
}

/// Returns a part of a GPU, given in hundredths.
fn part(hundredths: u32) -> GpuRequest {
    let unit = u32::from(GPU_UNIT) / 100;
    GpuRequest::Fraction(u16::try_from(hundredths * unit).expect("a part of one GPU"))
}

/// The selectors of one request in ten: a zone, or a model for requests with GPUs.
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
    /// Returns the input of this row for `nodes` nodes.
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

    /// Fills by LeastFit, independent of the measured policy. After filling with a packing policy, most nodes
    /// are full, and most requests that name few nodes would be refused.
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

    /// Adds a copy of the requests with constraints, which is measured instead of the plain ones.
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

/// Fills the remaining capacity with GPU-only requests, whole GPUs first. The pods of the trace alone do not
/// reach the target, because they leave gaps.
fn full(nodes: u32, policy: Policy, shapes: &Shapes, rng: &mut Rng) -> Scenario {
    let mut scenario = openb(nodes, policy, shapes, 995, rng);
    let sizes = [GpuRequest::Whole(1), part(50), part(20), part(10), part(5), part(2), part(1)];
    let filler = |gpu| PlacementRequest::new(demand(Amount::ZERO, Amount::ZERO, gpu), policy);
    let plain = scenario.requests.len();
    scenario.requests.extend(sizes.map(filler));
    scenario.fillers = plain..scenario.requests.len();
    scenario
}

/// Returns whether this is one of the few nodes that fit. There is always at least one.
fn is_fitting(node: u32, nodes: u32) -> bool {
    node % FITTING == (FITTING / 2).min(nodes - 1)
}

fn random_size(rng: &mut Rng) -> (Amount, Amount) {
    (Amount::whole(between(rng, 8, 128)), Amount::whole(1024 * between(rng, 32, 768)))
}

/// All nodes have enough cpu and memory. GPUs have `free` hundredths free, and requests ask for `asked`
/// hundredths.
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

/// A permanent allocation takes more than half of each GPU instance, so that parts cannot gather on a few
/// instances.
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

/// Requests name `count` nodes; with GPUs if the request asks for any.
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

/// The set exceeds the number of nodes that a request may name, so a selector defines it.
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
