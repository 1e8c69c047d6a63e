//! The linear scan: one thread, no index, every node checked for every pod.
//!
//! It makes the same checks and choices as the engine on one shard (except that Random draws its own
//! numbers). So a replay can compare the rates of both in one run, and for the deterministic policies each
//! placement.
//!
//! It is written to be reasonably fast: a check reads 32 contiguous bytes per node, the order of the policies
//! is one integer, and selectors are resolved once. It has no shards, rings or allocation ids, and does not
//! explain refusals, so it does less work than the engine.

use std::collections::HashMap;
use std::sync::Arc;

use wharf_core::fragmentation::TypicalShapes;
use wharf_core::ids::NodeId;
use wharf_core::index::{Geometry, ResourceVector};
use wharf_core::node::{GPU_MODEL_LABEL, Labels, NodeSpec, Selector};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GpuAssignment, GpuBooks, GpuRequest};
use wharf_core::rng::Rng;

use super::fragmentation::{FragmentationScan, NodeState, Price};

/// The data that one check reads.
#[derive(Clone, Copy)]
struct Record {
    cpu: i64,
    memory: i64,
    /// The coordinate with all dimensions in one integer. LeastFit and BestFit order by it.
    rank: u64,
    largest_gpu_part: u16,
    whole_gpus: u16,
    /// The label class. Nodes with equal labels share one.
    class: u32,
}

const _: () = assert!(size_of::<Record>() == 32, "two records in a cache line");

/// A selector, and whether it accepts each class.
type Accepted = (Arc<Selector>, Arc<[bool]>);

/// A cluster that is searched by scanning.
pub struct LinearScan {
    geometry: Geometry,
    records: Vec<Record>,
    gpus: Vec<GpuBooks>,
    /// The labels of each class.
    classes: Vec<Labels>,
    /// The GPU model of each class.
    models: Vec<Option<Arc<str>>>,
    /// The classes that each selector accepts, by hash of the selector. Equal hashes are told apart by the
    /// selector itself.
    accepted: HashMap<u64, Vec<Accepted>>,
    /// The node at which the last NextFit scan stopped.
    next_fit: usize,
    /// The node at which the next Spread scan begins: the one after the last result, if any.
    spread: usize,
    rng: Rng,
    /// A buffer for the fitting nodes of a Random scan.
    fitting: Vec<u32>,
    fragmentation: FragmentationScan,
}

/// The conditions of a request.
struct Asked {
    cpu: i64,
    memory: i64,
    largest_gpu_part: u16,
    whole_gpus: u16,
    classes: Option<Arc<[bool]>>,
}

impl Asked {
    #[inline]
    fn fits(&self, record: &Record) -> bool {
        record.cpu >= self.cpu
            && record.memory >= self.memory
            && record.largest_gpu_part >= self.largest_gpu_part
            && record.whole_gpus >= self.whole_gpus
            && self.classes.as_ref().is_none_or(|classes| classes[record.class as usize])
    }
}

impl LinearScan {
    /// Creates a cluster of `nodes` in this order, all free.
    #[must_use]
    pub fn new(nodes: &[NodeSpec], seed: u64) -> Self {
        let mut scan = Self {
            geometry: Geometry::default(),
            records: Vec::with_capacity(nodes.len()),
            gpus: Vec::with_capacity(nodes.len()),
            classes: Vec::new(),
            models: Vec::new(),
            accepted: HashMap::new(),
            next_fit: 0,
            spread: 0,
            rng: Rng::new(seed),
            fitting: Vec::new(),
            fragmentation: FragmentationScan::default(),
        };
        assert!(scan.geometry.dimension_count() <= 4, "four coordinates fit one integer");
        let mut known: HashMap<Labels, u32> = HashMap::new();
        for node in nodes {
            let class = *known.entry(node.labels.clone()).or_insert_with(|| {
                scan.classes.push(node.labels.clone());
                scan.models.push(node.labels.get(GPU_MODEL_LABEL).map(Arc::from));
                u32::try_from(scan.classes.len() - 1).expect("fewer classes than nodes")
            });
            let cpu = node.cpu.units();
            let memory = node.memory.units();
            let record = Record { cpu, memory, rank: 0, largest_gpu_part: 0, whole_gpus: 0, class };
            scan.records.push(record);
            scan.gpus.push(GpuBooks::with_devices(node.gpus));
            scan.refresh(scan.records.len() - 1);
        }
        scan
    }

    /// Sets the typical requests of the fragmentation-aware policies. Without this they are learned.
    pub fn set_typical_shapes(&mut self, typical: &TypicalShapes) {
        self.fragmentation.give(typical);
    }

    /// Lets the fragmentation-aware policies learn from `requests` as from arrivals. From then on every node
    /// is computed again for every request, so that the scan by definition can be timed.
    pub fn recompute_after<'a>(&mut self, requests: impl Iterator<Item = &'a PlacementRequest>) {
        requests.for_each(|request| self.fragmentation.handle_arrival(request));
        self.fragmentation.forget();
    }

    /// Recomputes the values that are derived from a node's books.
    fn refresh(&mut self, node: usize) {
        let record = &mut self.records[node];
        let gpus = &self.gpus[node];
        record.largest_gpu_part = gpus.largest_free();
        record.whole_gpus = gpus.whole_free();
        let available = ResourceVector::available(amount(record.cpu), amount(record.memory), gpus);
        let coordinate = self.geometry.coordinate(&available);
        record.rank = coordinate.0[..4].iter().fold(0, |rank, &c| rank << 16 | u64::from(c));
    }

    /// Places a request. Returns the node's index and its GPU instances, or `None` if no node fits.
    pub fn place(&mut self, request: &PlacementRequest) -> Option<(usize, GpuAssignment)> {
        let demand = &request.demand;
        let (largest_gpu_part, whole_gpus) = match demand.gpu {
            GpuRequest::None => (0, 0),
            GpuRequest::Fraction(part) => (part, 0),
            GpuRequest::Whole(count) => (0, u16::from(count)),
        };
        let asked = Asked {
            cpu: demand.cpu.units(),
            memory: demand.memory.units(),
            largest_gpu_part,
            whole_gpus,
            classes: request.selector.as_ref().map(|selector| self.classes_of(selector)),
        };
        let (node, gpus) = if request.policy.is_fragmentation_aware() {
            self.find_least_fragmented(request, &asked)?
        } else {
            let node = match &request.candidates {
                Some(named) => self.find_among(named, request.policy, &asked)?,
                None => self.find(request.policy, &asked)?,
            };
            (node, self.gpus[node].choose(demand.gpu).expect("the node was checked to fit"))
        };
        self.take(node, demand, gpus);
        Some((node, gpus))
    }

    /// Takes these GPU instances and `demand` of the node, as chosen by another engine.
    pub fn take(&mut self, node: usize, demand: &Demand, gpus: GpuAssignment) {
        self.gpus[node].take(gpus);
        self.records[node].cpu -= demand.cpu.units();
        self.records[node].memory -= demand.memory.units();
        self.refresh(node);
    }

    /// Takes `demand` from this node, with GPU instances chosen by the books.
    ///
    /// # Panics
    /// When the node has too few free GPUs.
    pub fn hold(&mut self, node: usize, demand: &Demand) {
        let gpus = self.gpus[node].choose(demand.gpu).expect("a node with GPUs enough");
        self.take(node, demand, gpus);
    }

    /// Sets the node at which the next NextFit scan starts.
    pub fn go_on_from(&mut self, node: usize) {
        self.stopped_at(node);
    }

    /// Returns what a placement took.
    pub fn release(&mut self, node: usize, demand: &Demand, gpus: GpuAssignment) {
        self.records[node].cpu += demand.cpu.units();
        self.records[node].memory += demand.memory.units();
        for instance in gpus.instances() {
            let free = self.gpus[node].free(instance);
            self.gpus[node].set_free(instance, free + gpus.part);
        }
        self.refresh(node);
    }

    fn find(&mut self, policy: Policy, asked: &Asked) -> Option<usize> {
        let first_from = |records: &[Record]| records.iter().position(|record| asked.fits(record));
        match policy {
            Policy::FirstFit => first_from(&self.records),
            Policy::NextFit => {
                let start = self.next_fit;
                let ahead = first_from(&self.records[start..]).map(|at| start + at);
                let found = ahead.or_else(|| first_from(&self.records[..start]))?;
                self.stopped_at(found);
                Some(found)
            }
            Policy::Spread => {
                // Like NextFit, but from the node after the last one.
                let start = self.spread.min(self.records.len());
                let ahead = first_from(&self.records[start..]).map(|at| start + at);
                let found = ahead.or_else(|| first_from(&self.records[..start]))?;
                self.stopped_at(found);
                Some(found)
            }
            Policy::Hybrid => unreachable!("a replay has no linear scan of it and says so"),
            // Only a better rank replaces the best, so ties go to the node registered first.
            Policy::BestFit | Policy::Fgd | Policy::LeastStranded => {
                self.best(asked, |rank, best| rank < best)
            }
            Policy::LeastFit => self.best(asked, |rank, best| rank > best),
            Policy::Random => {
                self.fitting.clear();
                let fitting = (0..).zip(&self.records).filter(|(_, record)| asked.fits(record));
                self.fitting.extend(fitting.map(|(node, _): (u32, _)| node));
                let count = self.fitting.len() as u64;
                (count > 0).then(|| self.fitting[self.rng.below(count) as usize] as usize)
            }
        }
    }

    /// Like [`find`](Self::find), but only over named nodes. The node with index `i` has the id `i + 1`.
    fn find_among(&mut self, named: &[NodeId], policy: Policy, asked: &Asked) -> Option<usize> {
        let nodes = named.iter().map(|id| id.0 as usize - 1);
        let mut fitting = nodes.filter(|&node| asked.fits(&self.records[node]));
        let rank = |&node: &usize| self.records[node].rank;
        match policy {
            Policy::FirstFit => fitting.next(),
            Policy::BestFit => fitting.min_by_key(rank),
            // `max_by_key` takes the last of equal elements, so the reversed order gives the first.
            Policy::LeastFit => fitting.rev().max_by_key(rank),
            Policy::NextFit | Policy::Spread => {
                // Spread continues from the node after the last one.
                let start = if policy == Policy::Spread { self.spread } else { self.next_fit };
                let first = fitting.next()?;
                let ahead = if first >= start { Some(first) } else { fitting.find(|&node| node >= start) };
                self.stopped_at(ahead.unwrap_or(first));
                Some(self.next_fit)
            }
            Policy::Random => {
                let count = fitting.clone().count() as u64;
                (count > 0).then(|| fitting.nth(self.rng.below(count) as usize))?
            }
            Policy::Fgd | Policy::LeastStranded => unreachable!("found by what they strand"),
            Policy::Hybrid => unreachable!("there is no linear scan of it"),
        }
    }

    fn stopped_at(&mut self, node: usize) {
        (self.next_fit, self.spread) = (node, node + 1);
    }

    fn find_least_fragmented(
        &mut self,
        request: &PlacementRequest,
        asked: &Asked,
    ) -> Option<(usize, GpuAssignment)> {
        self.fragmentation.handle_arrival(request);
        let mut best: Option<(Price, usize)> = None;
        for (node, record) in self.records.iter().enumerate() {
            if !asked.fits(record) {
                continue;
            }
            let model = self.models[record.class as usize].as_ref();
            let state = NodeState { cpu: record.cpu, gpus: &self.gpus[node], model };
            let price = self.fragmentation.price(request, &state);
            if best.as_ref().is_none_or(|(least, _)| price.cost < least.cost) {
                best = Some((price, node));
            }
        }
        best.map(|(price, node)| (node, price.gpus))
    }

    fn best(&self, asked: &Asked, better: impl Fn(u64, u64) -> bool) -> Option<usize> {
        let mut best: Option<(u64, usize)> = None;
        for (node, record) in self.records.iter().enumerate() {
            if best.is_none_or(|(rank, _)| better(record.rank, rank)) && asked.fits(record) {
                best = Some((record.rank, node));
            }
        }
        best.map(|(_, node)| node)
    }

    fn classes_of(&mut self, selector: &Arc<Selector>) -> Arc<[bool]> {
        let known = self.accepted.entry(selector.hash()).or_default();
        if let Some((_, classes)) = known.iter().find(|(known, _)| known == selector) {
            return Arc::clone(classes);
        }
        let classes: Arc<[bool]> = self.classes.iter().map(|labels| selector.holds(labels)).collect();
        known.push((Arc::clone(selector), Arc::clone(&classes)));
        classes
    }
}

fn amount(units: i64) -> Amount {
    Amount::try_from_units(units).expect("books stay within the capacity of their node")
}
