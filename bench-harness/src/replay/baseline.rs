//! A timed replay of the same events with the linear scan, as a baseline for the index.

use std::time::{Duration, Instant};

use wharf_core::resource::GpuAssignment;

use super::{Decision, Driven, Event, ReplayOptions};
use crate::target::LinearScan;
use crate::trace::Trace;

/// The result of the scan.
#[derive(Clone, Debug)]
pub struct BaselineRun {
    /// The placement of each pod, in the order of the trace.
    pub placements: Vec<Option<(usize, GpuAssignment)>>,
    /// The time of all events. Building the cluster is not included, just as registration is not for a
    /// target.
    pub elapsed: Duration,
}

impl BaselineRun {
    /// Replays `events` on a fresh cluster.
    #[must_use]
    pub fn replay(trace: &Trace, events: &[Event], options: &ReplayOptions) -> Self {
        let policy = options.policy;
        let specs: Vec<_> = trace.nodes.iter().map(crate::trace::TraceNode::spec).collect();
        let mut scan = LinearScan::new(&specs, options.seed);
        if let Some(typical) = &options.typical_shapes {
            scan.set_typical_shapes(typical);
        }
        let mut placements = vec![None; trace.pods.len()];
        let started = Instant::now();
        for event in events {
            let pod = &trace.pods[event.pod];
            if event.is_arrival() {
                placements[event.pod] = scan.place(&pod.request(policy));
            } else if let Some((node, gpus)) = placements[event.pod] {
                scan.release(node, &pod.demand, gpus);
            }
        }
        Self { placements, elapsed: started.elapsed() }
    }

    /// Returns the index of the first pod that the target placed differently.
    #[must_use]
    pub fn first_difference(&self, driven: &Driven) -> Option<usize> {
        let placed = |decision: &Decision| match *decision {
            Decision::Placed { node, gpus } => Some((node, gpus)),
            Decision::Refused(_) => None,
        };
        let mut pairs = self.placements.iter().zip(&driven.decisions);
        pairs.position(|(scanned, decision)| *scanned != placed(decision))
    }
}
