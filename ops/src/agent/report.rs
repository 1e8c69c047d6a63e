//! What the agent found, as the report that the service gets.

use std::collections::BTreeMap;

use wharf_core::limits::GPU_INSTANCES_MAX;
use wharf_core::node::GPU_MODEL_LABEL;
use wharf_core::resource::Amount;
use wharf_net::protocol::{GpuBody, NamedAmount, NodeBody, Pair, ReportRequest};

use super::{Accelerators, Gpu};

/// The label that says how many NUMA nodes a machine has.
const NUMA_LABEL: &str = "numa-nodes";

/// What an agent reports besides accelerators: the machine less what the system keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The node's name.
    pub name: String,
    /// The machine behind it.
    pub identity: String,
    /// Its start.
    pub boot: String,
    /// Cores for work.
    pub cpu: Amount,
    /// MiB for work.
    pub memory: Amount,
    /// NUMA nodes; 0 where that is not known.
    pub numa_nodes: u32,
    /// Labels that were asked for: they stand above those that are found.
    pub labels: BTreeMap<String, String>,
}

/// The report of `shape` with these accelerators.
#[must_use]
pub fn report(shape: &Shape, found: &Accelerators, version: u64) -> ReportRequest {
    // What is beyond the bound is not reported; the command says so when it begins.
    let gpus: Vec<&Gpu> = found.whole().take(GPU_INSTANCES_MAX).collect();
    let mut labels = BTreeMap::new();
    // Of a machine with several models no single one is true.
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
