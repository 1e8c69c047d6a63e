//! GPU allocation as a function of arrived load, as plotted in the FGD paper.
//!
//! Arrived load is the GPU demand of all pods up to some pod, placed or not, relative to the cluster's GPUs.
//! A percentage is reached at the first pod that brings the sum to it. No pod leaves in such a replay, so the
//! allocation is the demand of the placed ones among those pods.

use serde::Serialize;

use super::Decision;
use crate::trace::Trace;

/// The allocation at one arrived load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LoadPoint {
    /// Arrived GPU demand, in percent of the cluster's GPUs.
    pub arrived_percent: u32,
    /// The number of pods that had arrived; `None` if the trace ends before that load.
    pub pods: Option<u64>,
    /// Thousandths of a GPU allocated at that load, or at the end.
    pub gpu_allocated_milli: u64,
    /// The same in percent of the cluster's GPUs.
    pub gpu_allocated_percent: f64,
}

/// Returns the allocation at each of `percents`, in their order.
#[must_use]
pub fn allocation_at(trace: &Trace, decisions: &[Decision], percents: &[u32]) -> Vec<LoadPoint> {
    let capacity: u64 = trace.nodes.iter().map(|node| u64::from(node.gpus) * 1000).sum();
    let at = |&arrived_percent: &u32| {
        let mut arrived = 0u64;
        let mut allocated = 0u64;
        let mut pods = None;
        for (number, (pod, decision)) in (1..).zip(trace.pods.iter().zip(decisions)) {
            let asked = pod.demand.gpu.amount().units().unsigned_abs() / 10;
            arrived += asked;
            if matches!(decision, Decision::Placed { .. }) {
                allocated += asked;
            }
            if arrived * 100 >= u64::from(arrived_percent) * capacity {
                pods = Some(number);
                break;
            }
        }
        let gpu_allocated_percent =
            if capacity > 0 { allocated as f64 * 100.0 / capacity as f64 } else { 0.0 };
        LoadPoint { arrived_percent, pods, gpu_allocated_milli: allocated, gpu_allocated_percent }
    };
    percents.iter().map(at).collect()
}
