//! Builds the report that the service gets from what the agent found.

use std::collections::BTreeMap;

use wharf_core::limits::GPU_INSTANCES_MAX;
use wharf_core::node::GPU_MODEL_LABEL;
use wharf_core::resource::Amount;
use wharf_net::protocol::{GpuBody, NamedAmount, NodeBody, Pair, ReportRequest};

use super::{Accelerators, Gpu};

/// The label with the number of NUMA nodes of a machine.
const NUMA_LABEL: &str = "numa-nodes";

/// The reported properties except accelerators: the machine minus what is kept for the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The node's name.
    pub name: String,
    /// The identity of the machine.
    pub identity: String,
    /// The boot id of the machine.
    pub boot: String,
    /// Cores available for work.
    pub cpu: Amount,
    /// Memory available for work, in MiB.
    pub memory: Amount,
    /// The number of NUMA nodes; 0 if unknown.
    pub numa_nodes: u32,
    /// Configured labels. They override detected labels.
    pub labels: BTreeMap<String, String>,
}

/// Builds the report of `shape` with these accelerators.
#[must_use]
pub fn report(shape: &Shape, found: &Accelerators, version: u64) -> ReportRequest {
    // GPUs beyond the bound are not reported. The command warns about them when it starts.
    let gpus: Vec<&Gpu> = found.whole().take(GPU_INSTANCES_MAX).collect();
    let mut labels = BTreeMap::new();
    // A machine with several models gets no model label.
    if let Some(first) = gpus.first().map(|gpu| &gpu.model)
        && !first.is_empty()
        && gpus.iter().all(|gpu| gpu.model == *first)
    {
        labels.insert(GPU_MODEL_LABEL.to_owned(), first.clone());
    }
    if shape.numa_nodes > 0 {
        labels.insert(NUMA_LABEL.to_owned(), shape.numa_nodes.to_string());
    }
    labels.extend(shape.labels.clone());
    let kinds = found.mig_kinds().into_iter();
    let node = NodeBody {
        name: shape.name.clone(),
        identity: shape.identity.clone(),
        cpu: shape.cpu.units(),
        memory: shape.memory.units(),
        gpus: gpus.len() as u32,
        custom: kinds
            .map(|(name, count)| NamedAmount { name, amount: Amount::whole(count).units() })
            .collect(),
        labels: labels.into_iter().map(|(key, value)| Pair { key, value }).collect(),
        taints: Vec::new(),
    };
    let body = |gpu: &&Gpu| GpuBody {
        uuid: gpu.uuid.clone(),
        model: gpu.model.clone(),
        memory_mib: gpu.memory_mib,
        numa: gpu.numa,
        links: (0u16..)
            .zip(&gpus)
            .filter(|(_, other)| gpu.links.contains(&other.uuid))
            .fold(0, |mask, (at, _)| mask | 1 << at),
        fault: gpu.fault.clone().unwrap_or_default(),
    };
    ReportRequest { node, boot: shape.boot.clone(), version, gpus: gpus.iter().map(body).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_in_mig_mode_is_no_whole_gpu_and_links_become_places() {
        let gpu = |uuid: &str, links: &[&str]| Gpu {
            uuid: uuid.to_owned(),
            model: "A100".to_owned(),
            links: links.iter().map(|&link| link.to_owned()).collect(),
            ..Gpu::default()
        };
        let mig = Gpu { mig: Some(vec!["1g.5gb".to_owned(); 7]), ..gpu("m", &[]) };
        let gpus = vec![gpu("a", &["b", "m"]), mig, gpu("b", &["a"])];
        let found = Accelerators { source: String::new(), gpus };
        let labels = [("rack".to_owned(), "r1".to_owned()), (NUMA_LABEL.to_owned(), "own".to_owned())];
        let shape = Shape {
            name: "n".to_owned(),
            identity: "m".to_owned(),
            boot: "b".to_owned(),
            cpu: Amount::whole(4),
            memory: Amount::whole(8),
            numa_nodes: 2,
            labels: labels.into(),
        };
        let request = report(&shape, &found, 3);
        assert_eq!((request.node.gpus, request.version), (2, 3));
        let links: Vec<_> = request.gpus.iter().map(|gpu| (gpu.uuid.as_str(), gpu.links)).collect();
        assert_eq!(links, [("a", 0b10), ("b", 0b01)]);
        let custom = &request.node.custom;
        assert_eq!((custom[0].name.as_str(), custom[0].amount), ("nvidia.com/mig-1g.5gb", 70_000));
        let labels: Vec<_> =
            request.node.labels.iter().map(|pair| (pair.key.as_str(), pair.value.as_str())).collect();
        assert_eq!(labels, [("gpu-model", "A100"), ("numa-nodes", "own"), ("rack", "r1")]);
    }
}
