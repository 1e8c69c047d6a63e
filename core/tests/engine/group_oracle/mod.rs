//! A naive oracle for groups on small clusters. It tries all assignments of bundles to nodes.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::group::{BundlePlace, GroupSpec, GroupView, Spreading, Strategy, TopologyRule};
use wharf_core::ids::{NodeId, ResourceId};
use wharf_core::node::{Labels, NodeSpec, Operator, Selector, Taint, TaintEffect, Taints, Term};
use wharf_core::request::{PlacementRequest, Policy, Preferences, RankRules};
use wharf_core::resource::{Amount, Demand, GPU_UNIT, GpuRequest};
use wharf_core::rng::Rng;
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::state::StoreState;

use crate::by_hand::{add_node, ask, config, node_spec};

pub(crate) const UNIT: u32 = GPU_UNIT as u32;
const ZONES: [&str; 3] = ["a", "b", "c"];

/// The capacity of a node, or the demand of a bundle.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size {
    pub(crate) cpu: u32,
    pub(crate) memory: u32,
    /// The amount of a plain custom kind.
    pub(crate) nic: u32,
    /// GPU devices, in 1/10,000. Above one, only whole devices.
    pub(crate) gpu: u32,
    /// The same for a unit-instance kind.
    pub(crate) npu: u32,
}

/// A node and its free capacity, per device.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) id: NodeId,
    pub(crate) free: Size,
    pub(crate) gpus: Vec<u32>,
    pub(crate) npus: Vec<u32>,
    pub(crate) zone: Option<usize>,
    pub(crate) tainted: bool,
}

/// A bundle as requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) size: Size,
    /// If set, only these zones are allowed: those of the selector, then that of a fallback.
    pub(crate) zones: Option<Vec<usize>>,
    pub(crate) fallback: Option<usize>,
    /// If set, only these nodes are allowed.
    pub(crate) nodes: Option<Vec<NodeId>>,
}

/// A group, and the nodes of its bundles that are already placed.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) nodes: Vec<Model>,
    pub(crate) bundles: Vec<Asked>,
    pub(crate) standing: Vec<(Asked, usize)>,
    pub(crate) strategy: Strategy,
    pub(crate) topology: Option<Spreading>,
    /// The minimum number of `bundles` to place.
    pub(crate) least: usize,
}

fn devices(free: &mut [u32], asked: u32, try_next: &mut dyn FnMut(&mut [u32]) -> bool) -> bool {
    if asked == 0 {
        return try_next(free);
    }
    if asked >= UNIT {
        let count = (asked / UNIT) as usize;
        let whole: Vec<usize> = (0..free.len()).filter(|&at| free[at] == UNIT).take(count).collect();
        if whole.len() < count {
            return false;
        }
        whole.iter().for_each(|&at| free[at] = 0);
        let found = try_next(free);
        whole.iter().for_each(|&at| free[at] = UNIT);
        return found;
    }
    let mut tried = Vec::new();
    for at in 0..free.len() {
        let before = free[at];
        if before < asked || tried.contains(&before) {
            continue;
        }
        tried.push(before);
        free[at] -= asked;
        let found = try_next(free);
        free[at] = before;
        if found {
            return true;
        }
    }
    false
}

impl Case {
    pub(crate) fn may_be_placed(&self, asked: &Asked, node: usize) -> bool {
        let node = &self.nodes[node];
        let zone = match (&asked.zones, node.zone) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(zones), Some(zone)) => zones.contains(&zone) || asked.fallback == Some(zone),
        };
        zone && !node.tainted && asked.nodes.as_ref().is_none_or(|ids| ids.contains(&node.id))
    }

    /// Returns the zones that count: those with a node where some bundle may be placed.
    fn zones(&self) -> Vec<usize> {
        let all: Vec<&Asked> = self.bundles.iter().chain(self.standing.iter().map(|(a, _)| a)).collect();
        let open = |&zone: &usize| {
            let of_zone = (0..self.nodes.len()).filter(|&node| self.nodes[node].zone == Some(zone));
            of_zone.clone().any(|node| all.iter().any(|asked| self.may_be_placed(asked, node)))
        };
        (0..ZONES.len()).filter(open).collect()
    }

    /// Checks whether the nodes of the bundles (`None`: unplaced) satisfy the strategy and the rule.
    ///
    /// # Errors
    /// Returns the violated rule.
    pub(crate) fn check_rules(&self, places: &[Option<usize>]) -> Result<(), String> {
        let placed: Vec<usize> = places.iter().copied().flatten().collect();
        if placed.len() < self.least {
            return Err(format!("{} of at least {} are placed", placed.len(), self.least));
        }
        for (asked, node) in self.bundles.iter().zip(places) {
            if node.is_some_and(|node| !self.may_be_placed(asked, node)) {
                return Err(format!("{asked:?} is placed on {node:?}"));
            }
        }
        let all: Vec<usize> = placed.iter().copied().chain(self.standing.iter().map(|&(_, n)| n)).collect();
        let mut nodes = all.clone();
        nodes.sort_unstable();
        nodes.dedup();
        match self.strategy {
            Strategy::StrictPack if nodes.len() > 1 => return Err(format!("on {nodes:?}")),
            Strategy::StrictSpread if nodes.len() < all.len() => {
                return Err(format!("twice on one: {all:?}"));
            }
            _ => {}
        }
        let zone = |&node: &usize| self.nodes[node].zone;
        match self.topology {
            None | Some(Spreading::Pack { strict: false }) => Ok(()),
            Some(Spreading::Pack { strict: true }) => {
                let zones: Vec<_> = all.iter().map(zone).collect();
                let one = zones.iter().all(|of| of.is_some() && *of == zones[0]);
                one.then_some(()).ok_or_else(|| format!("in zones {zones:?}"))
            }
            Some(Spreading::Spread { max_skew }) => {
                if placed.iter().any(|node| zone(node).is_none()) {
                    return Err("on a node without the label".to_owned());
                }
                let count = |of: &usize| all.iter().filter(|node| zone(node) == Some(*of)).count();
                let counts: Vec<usize> = self.zones().iter().map(count).collect();
                let least = counts.iter().min();
                let most = counts.iter().max();
                let skew = most.copied().unwrap_or(0) - least.copied().unwrap_or(0);
                (skew <= max_skew as usize).then_some(()).ok_or_else(|| format!("counts {counts:?}"))
            }
        }
    }

    /// Returns whether any valid assignment exists.
    pub(crate) fn exists(&self) -> bool {
        let mut nodes = self.nodes.clone();
        self.search(&mut nodes, &mut Vec::new())
    }

    fn search(&self, nodes: &mut Vec<Model>, places: &mut Vec<Option<usize>>) -> bool {
        let at = places.len();
        let open = places.iter().filter(|place| place.is_none()).count();
        if self.bundles.len() - open < self.least {
            return false;
        }
        let Some(asked) = self.bundles.get(at) else { return self.check_rules(places).is_ok() };
        // Equal adjacent bundles are placed in order of node, unplaced ones last.
        let before = at.checked_sub(1).filter(|&before| self.bundles[before] == *asked);
        let from = before.map_or(Some(0), |before| places[before]);
        for node in from.map_or(nodes.len(), |from| from)..nodes.len() {
            if !self.may_be_placed(asked, node) {
                continue;
            }
            let size = &asked.size;
            let model = nodes[node].clone();
            let free = &model.free;
            if free.cpu < size.cpu || free.memory < size.memory || free.nic < size.nic {
                continue;
            }
            places.push(Some(node));
            let mut gpus = model.gpus.clone();
            let mut npus = model.npus.clone();
            let found = devices(&mut gpus, size.gpu, &mut |gpus| {
                let gpus = gpus.to_vec();
                devices(&mut npus, size.npu, &mut |npus| {
                    let free = Size {
                        cpu: free.cpu - size.cpu,
                        memory: free.memory - size.memory,
                        nic: free.nic - size.nic,
                        ..Size::default()
                    };
                    let after = Model { free, gpus: gpus.clone(), npus: npus.to_vec(), ..model.clone() };
                    nodes[node] = after;
                    self.search(nodes, places)
                })
            });
            nodes[node] = model;
            places.pop();
            if found {
                return true;
            }
        }
        places.push(None);
        let found = self.search(nodes, places);
        places.pop();
        found
    }

    /// Returns the nodes of a group's bundles, in order of bundle index, as indexes into the nodes.
    pub(crate) fn places_of(&self, view: &GroupView) -> Vec<Option<usize>> {
        let place = |(_, bundle): &(u32, Option<BundlePlace>)| {
            bundle.and_then(|place| self.nodes.iter().position(|model| model.id == place.node))
        };
        view.bundles.iter().map(place).collect()
    }

    pub(crate) fn spec(&self) -> GroupSpec {
        let rule = |spreading| TopologyRule { key: "zone".into(), spreading };
        GroupSpec {
            topology: self.topology.map(rule),
            min_members: u32::try_from(self.least).expect("few"),
            ..GroupSpec::new(requests(&self.bundles), self.strategy)
        }
    }

    /// Takes an existing bundle from the free capacity, on the first devices.
    pub(crate) fn settle(&mut self, asked: &Asked, node: usize, gpus: impl Iterator<Item = u8>) {
        let model = &mut self.nodes[node];
        let size = &asked.size;
        model.free.cpu -= size.cpu;
        model.free.memory -= size.memory;
        model.free.nic -= size.nic;
        gpus.for_each(|instance| model.gpus[usize::from(instance)] -= size.gpu.min(UNIT));
    }
}

fn in_zones(zones: &[usize]) -> Arc<Selector> {
    let values = zones.iter().map(|&zone| ZONES[zone].to_owned()).collect();
    Arc::new(Selector::new(vec![Term { key: "zone".to_owned(), operator: Operator::In, values }]))
}

pub(crate) fn requests(bundles: &[Asked]) -> Vec<Arc<PlacementRequest>> {
    let mut requests: Vec<Arc<PlacementRequest>> = Vec::new();
    for (at, asked) in bundles.iter().enumerate() {
        let last = at.checked_sub(1).filter(|&last| bundles[last] == *asked);
        requests.push(last.map_or_else(|| Arc::new(request(asked)), |last| Arc::clone(&requests[last])));
    }
    requests
}

fn request(asked: &Asked) -> PlacementRequest {
    let size = &asked.size;
    let amount = |units: u32| Amount::try_from_units(i64::from(units)).expect("few");
    let custom = [(nic(), Amount::whole(size.nic)), (npu(), amount(size.npu))];
    let custom = custom.into_iter().filter(|(_, amount)| *amount > Amount::ZERO).collect();
    let demand = Demand {
        cpu: Amount::whole(size.cpu),
        memory: Amount::whole(size.memory),
        gpu: GpuRequest::from_amount(amount(size.gpu)).expect("a part, or whole ones"),
        custom: Demand::canonical_custom(custom).expect("two kinds"),
    };
    let mut request = PlacementRequest::new(demand, Policy::BestFit);
    request.selector = asked.zones.as_deref().map(in_zones);
    request.candidates = asked.nodes.clone().map(Into::into);
    if let Some(fallback) = asked.fallback {
        let rules = RankRules::new(vec![in_zones(&[fallback])], Vec::new(), Vec::new()).expect("one");
        let rules = Some(Arc::new(rules));
        request.preferences = Some(Arc::new(Preferences { rules, ..Preferences::default() }));
    }
    request
}

/// A kind that is a plain amount.
pub(crate) fn nic() -> ResourceId {
    ResourceId::new(0, false)
}

/// A unit-instance kind.
pub(crate) fn npu() -> ResourceId {
    ResourceId::new(1, true)
}

/// Random cases of every kind. They depend only on the seed.
pub(crate) struct Cases {
    rng: Rng,
    pub(crate) alike: bool,
}

impl Cases {
    pub(crate) fn new(seed: u64, alike: bool) -> Self {
        Self { rng: Rng::new(seed), alike }
    }

    pub(crate) fn below(&mut self, bound: u64) -> usize {
        usize::try_from(self.rng.below(bound)).expect("small")
    }

    fn one_of(&mut self, choices: &[u32]) -> u32 {
        choices[self.below(choices.len() as u64)]
    }

    /// Returns an engine with a few small nodes, and the oracle's model of them.
    pub(crate) fn cluster(&mut self) -> (Engine, Vec<Model>) {
        let shards = 1 + self.below(2) as u16;
        let config = EngineConfig { planners: 1, unit_instances: vec!["npu".to_owned()], ..config(shards) };
        let wakers = vec![Waker::noop().clone()];
        let mut engine = Engine::open(StoreState::create(4), &config, wakers).expect("numbers in range");
        for name in ["nic", "npu"] {
            engine.registrar.resources_mut().learn(name).expect("two kinds");
        }
        let zones = 1 + self.below(3);
        let devices = self.below(3) == 0;
        let count = 2 + self.below(if self.alike { 5 } else { 3 });
        let nodes = (0..count).map(|number| self.node(&mut engine, number, zones, devices)).collect();
        (engine, nodes)
    }

    fn node(&mut self, engine: &mut Engine, number: usize, zones: usize, devices: bool) -> Model {
        let cpu = self.one_of(&[2, 3, 4, 4, 6]);
        let memory = self.one_of(&[4, 8, 8]);
        let [gpus, npus, nic_total] = [self.below(3), self.below(3), self.below(4)];
        let (gpus, npus, nic_total) = if devices { (gpus, npus, nic_total) } else { (0, 0, 0) };
        let zone = Some(self.below(zones as u64)).filter(|_| number == 0 || self.below(10) > 0);
        let tainted = self.below(12) == 0;
        let mut custom = vec![(nic(), Amount::whole(nic_total as u32)), (npu(), Amount::whole(npus as u32))];
        custom.retain(|(_, amount)| *amount > Amount::ZERO);
        let labels = zone.map(|zone| ("zone".into(), ZONES[zone].into()));
        let taint = Taint { key: "t".into(), value: "".into(), effect: TaintEffect::NoSchedule };
        let spec = NodeSpec {
            memory: Amount::whole(memory),
            custom: Some(custom.into()).filter(|custom: &Arc<[_]>| !custom.is_empty()),
            labels: Labels::new(labels.into_iter().collect()).expect("one key"),
            taints: Taints::new(Some(taint).filter(|_| tainted).into_iter().collect()).expect("one"),
            ..node_spec(&format!("n{number}"), cpu, gpus as u8)
        };
        let id = add_node(engine, spec).id;
        let free = Size { cpu, memory, nic: nic_total as u32, ..Size::default() };
        Model { id, free, gpus: vec![UNIT; gpus], npus: vec![UNIT; npus], zone, tainted }
    }

    /// Returns the request of a random kind of bundle.
    pub(crate) fn asked(&mut self, nodes: &[Model]) -> Asked {
        let devices = nodes.iter().any(|node| !node.gpus.is_empty() || !node.npus.is_empty());
        let parts = [0, 0, UNIT / 4, UNIT * 2 / 5, UNIT / 2, UNIT * 3 / 5, UNIT, 2 * UNIT];
        let [gpu, npu] = [self.one_of(&parts), self.one_of(&parts)];
        let (gpu, npu) = if devices { (gpu, if self.below(2) == 0 { npu } else { 0 }) } else { (0, 0) };
        let nic = if devices { self.below(3) as u32 } else { 0 };
        let cpu = self.one_of(&[1, 1, 2, 2, 3, 4]);
        let memory = self.one_of(&[0, 1, 2, 4]);
        let size = Size { cpu, memory, nic, gpu, npu };
        let zones = (self.below(4) == 0).then(|| vec![self.below(3)]);
        let fallback = (zones.is_some() && self.below(4) == 0).then(|| self.below(3));
        let named = (self.below(8) == 0).then(|| {
            let mut named: Vec<NodeId> = nodes.iter().map(|node| node.id).collect();
            named.retain(|_| self.below(2) == 0);
            named
        });
        Asked { size, zones, fallback, nodes: named.filter(|named| !named.is_empty()) }
    }

    /// Returns a random group on these nodes.
    pub(crate) fn case(&mut self, nodes: &[Model]) -> Case {
        let count = 1 + self.below(if self.alike { 7 } else { 5 });
        let kinds = if self.alike { 1 } else { 1 + self.below(3) };
        let kinds: Vec<Asked> = (0..kinds).map(|_| self.asked(nodes)).collect();
        let mut bundles: Vec<Asked> =
            (0..count).map(|_| kinds[self.below(kinds.len() as u64)].clone()).collect();
        // Equal bundles are adjacent, so the oracle need not try them in every order.
        bundles.sort_by_key(|asked| kinds.iter().position(|kind| kind == asked));
        let strategy = Strategy::NAMES[self.below(4)].0;
        let max_skew = 1 + self.below(2) as u32;
        let rules = [Spreading::Pack { strict: true }, Spreading::Spread { max_skew }];
        let mut topology = [None, Some(rules[0]), Some(rules[1]), Some(rules[1])][self.below(4)];
        if strategy == Strategy::StrictPack && topology == Some(rules[1]) {
            topology = Some(Spreading::Pack { strict: false });
        }
        let least = if self.below(3) == 0 { 1 + self.below(count as u64) } else { count };
        Case { nodes: nodes.to_vec(), bundles, standing: Vec::new(), strategy, topology, least }
    }

    /// Makes single placements that take a part of the nodes.
    pub(crate) fn fill(&mut self, engine: &mut Engine, nodes: &mut [Model]) {
        for node in nodes {
            if self.below(2) == 0 || node.tainted {
                continue;
            }
            let parts = [0, UNIT * 3 / 5, UNIT];
            let gpu = if node.gpus.is_empty() { 0 } else { self.one_of(&parts) };
            let size = Size { cpu: 1, gpu, ..Size::default() };
            let asked = Asked { size, zones: None, fallback: None, nodes: Some(vec![node.id]) };
            let PortReply::Place(Ok(placement)) = ask(engine, PortRequest::Place(request(&asked))) else {
                panic!("an empty node holds it")
            };
            node.free.cpu -= 1;
            let part = u32::from(placement.gpus.part);
            placement.gpus.instances().for_each(|instance| node.gpus[usize::from(instance)] -= part);
        }
    }
}

/// The number of cases per category.
pub(crate) type Counts = BTreeMap<&'static str, u32>;
