//! Conversion of agent reports, with their checks, and of node states.

use std::sync::Arc;

use wharf_core::node::{AgentFacts, AgentReport, GpuDevice};
use wharf_core::resource::ResourceRegistry;
use wharf_core::shard::NodeView;

use super::{check_name, invalid, node_body, node_spec};
use crate::limits::FAULT_BYTES_MAX;
use crate::protocol::{AgentBody, Fault, GpuBody, NodeStatus, ReportRequest, ReservedNode, UnhealthyBody};

/// Converts a report to the engine's form. `resources` learns the names of its custom resources.
///
/// # Errors
/// Returns a fault that names the field. `resources` is then unchanged.
pub fn agent_report(wire: ReportRequest, resources: &mut ResourceRegistry) -> Result<AgentReport, Fault> {
    let ReportRequest { node, boot, gpus, .. } = wire;
    check_name("node.identity", &node.identity)?;
    if !boot.is_empty() {
        check_name("boot", &boot)?;
    }
    if node.gpus as usize != gpus.len() {
        let message = format!("{} devices for {} GPUs: give one per GPU", gpus.len(), node.gpus);
        return Err(invalid("gpus", message));
    }
    let count = gpus.len();
    let mut devices: Vec<(GpuDevice, Option<Arc<str>>)> = Vec::with_capacity(count);
    for (i, gpu) in gpus.into_iter().enumerate() {
        let GpuBody { uuid, model, memory_mib, numa, links, fault } = gpu;
        check_name(&format!("gpus[{i}].uuid"), &uuid)?;
        if devices.iter().any(|(known, _)| *known.uuid == uuid) {
            return Err(invalid(format!("gpus[{i}].uuid"), "another device has it: give each device once"));
        }
        // Shift a wider type than the mask, since all sixteen devices may be linked.
        if u32::from(links) >> count != 0 {
            let message = format!("{links:#x} links to devices that are not in the list: it has {count}");
            return Err(invalid(format!("gpus[{i}].links"), message));
        }
        if fault.len() > FAULT_BYTES_MAX || fault.chars().any(char::is_control) {
            let message = format!("give at most {FAULT_BYTES_MAX} bytes without control characters");
            return Err(invalid(format!("gpus[{i}].fault"), message));
        }
        let device = GpuDevice { uuid: uuid.into(), model: model.into(), memory_mib, numa, links };
        devices.push((device, (!fault.is_empty()).then(|| fault.into())));
    }
    let spec = node_spec(node, resources)?;
    Ok(AgentReport { spec, boot: boot.into(), gpus: devices })
}

/// Converts the facts of a node's agent to the wire.
#[must_use]
pub fn agent_body(facts: &AgentFacts) -> AgentBody {
    let gpu = |gpu: &GpuDevice| GpuBody {
        uuid: gpu.uuid.to_string(),
        model: gpu.model.to_string(),
        memory_mib: gpu.memory_mib,
        numa: gpu.numa,
        links: gpu.links,
        // The list of unhealthy instances shows the fault instead.
        fault: String::new(),
    };
    AgentBody { boot: facts.boot.to_string(), gpus: facts.gpus.iter().map(gpu).collect() }
}

/// Converts an agent's facts to the engine's form. [`agent_report`] has checked them before.
#[must_use]
pub fn agent_facts(wire: AgentBody) -> AgentFacts {
    let gpu = |GpuBody { uuid, model, memory_mib, numa, links, .. }| GpuDevice {
        uuid: uuid.into(),
        model: model.into(),
        memory_mib,
        numa,
        links,
    };
    AgentFacts { boot: wire.boot.into(), gpus: wire.gpus.into_iter().map(gpu).collect() }
}

/// Converts unhealthy instances to the wire.
#[must_use]
pub fn unhealthy_bodies(unhealthy: &[(u8, Arc<str>)]) -> Vec<UnhealthyBody> {
    let body = |(instance, reason): &(u8, Arc<str>)| UnhealthyBody {
        instance: *instance,
        reason: reason.to_string(),
    };
    unhealthy.iter().map(body).collect()
}

/// Converts the state of a node, with its agent's facts, to the wire.
#[must_use]
pub fn node_status(view: &NodeView, resources: &ResourceRegistry) -> NodeStatus {
    let registration = &view.registration;
    let reserved = view.reserved.map(|(owner, until)| ReservedNode {
        owner: owner.number(),
        until: until.map_or(0, |until| until.0),
    });
    NodeStatus {
        id: registration.id.0,
        ordinal: registration.ordinal.0,
        partition: registration.partition.0,
        state: view.state.number(),
        version: view.version,
        body: node_body(&registration.spec, resources),
        cpu_available: view.cpu_available.units(),
        memory_available: view.memory_available.units(),
        gpus_available: (0..registration.spec.gpus).map(|i| view.gpus_available.free(i)).collect(),
        allocations: view.allocations,
        unhealthy: unhealthy_bodies(&view.unhealthy),
        agent: registration.agent.as_deref().map(agent_body),
        reserved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::NodeBody;
    use wharf_core::limits::GPU_INSTANCES_MAX;

    fn report(count: usize, links: u16) -> Result<AgentReport, Fault> {
        let gpu = |i| GpuBody { uuid: format!("GPU-{i}"), links, ..GpuBody::default() };
        let node = NodeBody {
            name: "n".to_owned(),
            identity: "m".to_owned(),
            gpus: count as u32,
            ..NodeBody::default()
        };
        let request = ReportRequest { node, gpus: (0..count).map(gpu).collect(), ..ReportRequest::default() };
        agent_report(request, &mut ResourceRegistry::default())
    }

    /// Uses a machine with the maximum number of GPUs, each linked to all.
    #[test]
    fn links_are_to_devices_of_the_list_however_long_it_is() {
        let all = report(GPU_INSTANCES_MAX, u16::MAX).unwrap();
        assert!(all.gpus.iter().all(|(device, _)| device.links == u16::MAX));
        assert!(report(15, u16::MAX >> 1).is_ok());
        for (count, links) in [(15, 1 << 15), (1, 2)] {
            assert_eq!(report(count, links).unwrap_err().field, "gpus[0].links", "{count} devices");
        }
        assert!(report(0, 0).is_ok());
    }
}
