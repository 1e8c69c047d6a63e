//! The placements file `pod,node,gpu_indices`, with a row per pod in the order of the trace.
//!
//! `gpu_indices` is written like `0;3`. Both fields are empty if the pod was not placed. A pod that left
//! keeps its placement in the file.

use std::io;

use super::Decision;
use crate::trace::Trace;

/// Writes the placements.
///
/// # Errors
/// When the output cannot be written.
pub fn write_placements(trace: &Trace, decisions: &[Decision], output: impl io::Write) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(io::BufWriter::new(output));
    writer.write_record(["pod", "node", "gpu_indices"])?;
    for (pod, decision) in trace.pods.iter().zip(decisions) {
        let (node, indices) = match *decision {
            Decision::Placed { node, gpus } => {
                let indices: Vec<String> = gpus.instances().map(|i| i.to_string()).collect();
                (trace.nodes[node].name.as_ref(), indices.join(";"))
            }
            Decision::Refused(_) => ("", String::new()),
        };
        writer.write_record([pod.name.as_ref(), node, &indices])?;
    }
    writer.flush()
}
