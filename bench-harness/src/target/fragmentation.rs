//! The fragmentation-aware policies computed by their definition, for the scan and the oracle.
//!
//! This shares only the typical shapes with the engine, not the measurement of nodes. Every typical shape is
//! tried on every node before and after a placement. Results are remembered per node state, because a trace
//! would take hours otherwise. The score is computed in floating point, as the paper's simulator does.

use std::sync::Arc;

use wharf_core::fragmentation::{Learner, TypicalShape, TypicalShapes};
use wharf_core::limits::GPU_INSTANCES_MAX;
use wharf_core::map::FixedMap;
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{GPU_UNIT, GpuAssignment, GpuBooks, GpuRequest};

/// One whole device.
const DEVICE: i128 = GPU_UNIT as i128;

/// A node before a placement.
pub struct NodeState<'a> {
    /// Free cpu, in 1/10,000 of a core.
    pub cpu: i64,
    /// The free parts of the devices.
    pub gpus: &'a GpuBooks,
    /// The model of the devices.
    pub model: Option<&'a Arc<str>>,
}

/// The cost of a placement, and the devices that it takes.
#[derive(Clone, Copy, Debug)]
pub struct Price {
    /// The cost; lower is better.
    pub cost: i128,
    /// The devices.
    pub gpus: GpuAssignment,
}

/// The state of the policies apart from the nodes.
#[derive(Clone, Debug, Default)]
pub struct FragmentationScan {
    given: bool,
    learner: Learner,
    typical: TypicalShapes,
    /// Values of F by node state. Cleared when the typical requests change.
    known: FixedMap<State, i128>,
    /// True if F is computed again each time.
    forgets: bool,
}

/// Free cpu, free parts of the devices, model.
type State = (i128, [u16; GPU_INSTANCES_MAX], Option<Arc<str>>);

/// The maximum number of remembered values of F.
const KNOWN_MAX: usize = 1 << 20;

fn idle(gpus: &GpuBooks) -> i128 {
    i128::from(gpus.total_free())
}

/// Returns the idle GPU capacity that a typical request cannot use. This is all of it if the request cannot
/// run on the node or asks for no GPU. Otherwise it is the capacity on devices with less free than the
/// request takes of one.
fn unusable(typical: &TypicalShape, cpu: i128, gpus: &GpuBooks, model: Option<&str>) -> i128 {
    let shape = &typical.shape;
    let (devices, part) = match shape.gpu {
        GpuRequest::None => return idle(gpus),
        GpuRequest::Fraction(part) => (1, part),
        GpuRequest::Whole(devices) => (devices, GPU_UNIT),
    };
    let models = shape.models.as_deref();
    let runs_on = models.is_none_or(|models| models.iter().any(|m| Some(m.as_ref()) == model));
    let mut room = 0;
    let mut small = 0;
    for instance in 0..GPU_INSTANCES_MAX as u8 {
        let free = gpus.free(instance);
        if free >= part {
            room += 1;
        } else {
            small += i128::from(free);
        }
    }
    if i128::from(shape.cpu.units()) > cpu || !runs_on || room < devices { idle(gpus) } else { small }
}

fn lowest_whole(gpus: &GpuBooks, count: u8) -> GpuAssignment {
    let whole = (0..GPU_INSTANCES_MAX as u8).filter(|&instance| gpus.free(instance) == GPU_UNIT);
    let mask = whole.take(usize::from(count)).fold(0, |mask, instance| mask | 1 << instance);
    GpuAssignment { mask, part: GPU_UNIT }
}

impl FragmentationScan {
    /// Sets the typical requests.
    pub fn give(&mut self, typical: &TypicalShapes) {
        (self.given, self.typical) = (true, typical.clone());
        self.known.clear();
    }

    /// Stops remembering values of F. From now on F of each node is computed for every request.
    pub fn forget(&mut self) {
        self.forgets = true;
        self.known.clear();
    }

    /// Learns from a request, unless the typical requests are set.
    pub fn handle_arrival(&mut self, request: &PlacementRequest) {
        if !self.given
            && let Some(typical) = self.learner.handle_arrival(request)
        {
            self.typical = typical.clone();
            self.known.clear();
        }
    }

    fn total(&self) -> i128 {
        self.typical.shapes().iter().map(|t| i128::from(t.count)).sum()
    }

    /// Returns F of a node, times the sum of all counts.
    fn fragmentation(&mut self, cpu: i128, gpus: &GpuBooks, model: Option<&Arc<str>>) -> i128 {
        let shapes = self.typical.shapes().iter();
        let value =
            || shapes.map(|t| i128::from(t.count) * unusable(t, cpu, gpus, model.map(AsRef::as_ref))).sum();
        if self.forgets {
            return value();
        }
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        let free = std::array::from_fn(|instance| gpus.free(instance as u8));
        *self.known.entry((cpu, free, model.cloned())).or_insert_with(value)
    }

    /// Returns the idle GPU capacity beyond what the node's cpu can serve, at the typical requests' cores per
    /// device.
    fn stranded(&self, cpu: i128, gpus: &GpuBooks) -> i128 {
        let mut cpu_asked = 0;
        let mut gpu_asked = 0;
        for t in self.typical.shapes().iter().filter(|t| t.shape.gpu != GpuRequest::None) {
            cpu_asked += i128::from(t.count) * i128::from(t.shape.cpu.units());
            gpu_asked += i128::from(t.count) * i128::from(t.shape.gpu.amount().units());
        }
        if cpu_asked == 0 {
            return 0;
        }
        // The ratio is rounded down to 32 binary places.
        let served = cpu * (gpu_asked * (1 << 32) / cpu_asked) / (1 << 32);
        (idle(gpus) - served).max(0)
    }

    /// Returns the cheapest way to place a request that fits the node. Among equal devices the lowest is
    /// taken.
    #[must_use]
    pub fn price(&mut self, request: &PlacementRequest, node: &NodeState<'_>) -> Price {
        let choices: Vec<GpuAssignment> = match request.demand.gpu {
            GpuRequest::Fraction(part) => (0..GPU_INSTANCES_MAX as u8)
                .filter(|&instance| node.gpus.free(instance) >= part)
                .map(|instance| GpuAssignment { mask: 1 << instance, part })
                .collect(),
            GpuRequest::Whole(count) => vec![lowest_whole(node.gpus, count)],
            GpuRequest::None => vec![GpuAssignment::NONE],
        };
        let cpu = i128::from(node.cpu);
        let left = cpu - i128::from(request.demand.cpu.units());
        let before = self.fragmentation(cpu, node.gpus, node.model);
        let mut best: Option<Price> = None;
        for gpus in choices {
            let mut after = *node.gpus;
            after.take(gpus);
            let fall = before - self.fragmentation(left, &after, node.model);
            let cost = if request.policy == Policy::LeastStranded {
                let stranding = self.stranded(left, &after) - self.stranded(cpu, node.gpus);
                self.total() * stranding - fall + self.total() * idle(&after) / 400
            } else {
                -self.score(fall)
            };
            if best.is_none_or(|best| cost < best.cost) {
                best = Some(Price { cost, gpus });
            }
        }
        best.expect("it was found to fit")
    }

    /// Returns 100 / (1 + e^-x), rounded down, where x is the decrease of F in devices.
    #[allow(clippy::cast_possible_truncation, reason = "0 to 100")]
    fn score(&self, fall: i128) -> i128 {
        if self.total() == 0 {
            return 0;
        }
        let devices = fall as f64 / (self.total() * DEVICE) as f64;
        // The engine treats scores of 99 and above as equal.
        ((100.0 / (1.0 + (-devices).exp())).floor() as i128).min(99)
    }
}
