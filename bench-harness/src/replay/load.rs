//! How much was allocated when so much had arrived: what the FGD paper plots.
//!
//! Arrived load is what the pods up to some pod ask of GPUs, placed or not, over what the cluster
//! has; a percentage is reached at the first pod that brings the sum to it. Nobody leaves in such
//! a replay, so what is allocated then is what the placed ones among those pods hold.

use serde::Serialize;

use super::Decision;
use crate::trace::Trace;

/// The allocation at one arrived load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LoadPoint {
    /// Arrived GPUs in percent of the cluster's.
    pub arrived_percent: u32,
    /// The pods that had come then; absent where the trace ends before that load.
    pub pods: Option<u64>,
    /// Thousandths of a GPU that were held then, or at the end.
    pub gpu_allocated_milli: u64,
    /// The same in percent of the cluster's GPUs.
    pub gpu_allocated_percent: f64,
}

/// The allocation at each of `percents`, in their order.
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
