//! Workloads that need no trace: a generator, and the small sample that it made.

mod synthetic;
pub use synthetic::{SyntheticCluster, SyntheticFiles};

use crate::trace::{Trace, TraceError, openb};

/// What `sample/` was generated with: `wharf-bench generate --nodes 160 --pods 1000 --seed 2023
/// --gpu-spec-share 20 --out bench-harness/sample`.
pub const SAMPLE: SyntheticCluster =
    SyntheticCluster { nodes: 160, pods: 1000, seed: 2023, gpu_spec_percent: 20 };

/// The nodes of the sample, as a file would have them.
pub const SAMPLE_NODES: &str = include_str!("../../sample/nodes.csv");
/// The pods of the sample, as a file would have them.
pub const SAMPLE_PODS: &str = include_str!("../../sample/pods.csv");

/// The embedded sample.
///
/// # Errors
/// Never, as long as the sample in the repository is what the generator writes.
pub fn sample() -> Result<Trace, TraceError> {
    let pods_source = "embedded sample/pods.csv".to_owned();
    Ok(Trace {
        nodes: openb::read_nodes(SAMPLE_NODES.as_bytes(), "embedded sample/nodes.csv")?,
        pods: openb::read_pods(SAMPLE_PODS.as_bytes(), &pods_source)?,
        pods_source,
    })
}
