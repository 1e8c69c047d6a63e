//! An agent's description of its machine: its boot, its GPU devices and their links.
//!
//! The topology is a separate record and not labels. Labels describe a whole node and are compared by
//! selectors. Links and NUMA nodes relate individual instances to each other. The record is cold: no
//! placement reads it yet.

use std::sync::Arc;

use super::NodeSpec;
use crate::limits::GPU_INSTANCES_MAX;

/// A GPU device. Its index in the node's list is its instance number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuDevice {
    /// The device's own identity. It does not depend on the order in which the driver lists devices.
    pub uuid: Arc<str>,
    /// Its model.
    pub model: Arc<str>,
    /// Its memory, in MiB.
    pub memory_mib: u64,
    /// The NUMA node that it is attached to, if known.
    pub numa: Option<u16>,
    /// The instances that it is linked to directly (NVLink). Bit `i` is instance `i`.
    pub links: u16,
}

/// The facts of an agent's last report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentFacts {
    /// The kernel's boot id, which identifies one start of the machine.
    pub boot: Arc<str>,
    /// Its GPU devices, by instance.
    pub gpus: Vec<GpuDevice>,
}

/// GPU instances that take no new work, ascending, each with the reason.
pub type Unhealthy = Vec<(u8, Arc<str>)>;

/// A complete report, with the devices in the order in which the agent found them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentReport {
    /// Capacity and labels.
    pub spec: NodeSpec,
    /// The boot id of the machine.
    pub boot: Arc<str>,
    /// The devices, each with its fault, if any. `links` refers to indexes of this list.
    pub gpus: Vec<(GpuDevice, Option<Arc<str>>)>,
}

/// The fault of an instance whose device is no longer reported.
pub const DEVICE_GONE: &str = "its device is not reported any more: it is lost, or in MIG mode now";

/// Assigns each reported device its instance, and returns the unhealthy instances.
///
/// Allocations hold instances, so an instance keeps its device, identified by UUID. The driver's order may
/// change with each start.
///
/// A device that is no longer reported keeps its instance, which becomes unhealthy. No other device moves. A
/// new device goes to the end. It takes the instance of a missing device only after a new boot (the machine
/// may have been opened), or if there is no other room. A new boot also removes instances of missing devices
/// from the end of the list.
#[must_use]
pub fn align_devices(
    known: &AgentFacts,
    boot: &Arc<str>,
    reported: Vec<(GpuDevice, Option<Arc<str>>)>,
) -> (AgentFacts, Unhealthy) {
    // The instance of each reported device. Instances without a reported device are missing.
    let mut place: Vec<Option<usize>> =
        reported.iter().map(|(device, _)| known.gpus.iter().position(|k| k.uuid == device.uuid)).collect();
    let mut taken: Vec<Option<usize>> = vec![None; known.gpus.len()];
    for (from, at) in place.iter().enumerate() {
        if let Some(at) = at {
            taken[*at] = Some(from);
        }
    }
    let rebooted = known.boot != *boot;
    for (from, at) in place.iter_mut().enumerate().filter(|(_, at)| at.is_none()) {
        let gone = taken.iter().position(Option::is_none);
        let to = match gone {
            Some(gone) if rebooted || taken.len() >= GPU_INSTANCES_MAX => gone,
            _ => {
                taken.push(None);
                taken.len() - 1
            }
        };
        taken[to] = Some(from);
        *at = Some(to);
    }
    while rebooted && taken.last() == Some(&None) {
        taken.pop();
    }
    let moved = |links: u16| {
        let linked = place.iter().enumerate().filter(|&(from, _)| links & (1 << from) != 0);
        linked.fold(0, |mask, (_, to)| mask | to.map_or(0, |to| 1 << to))
    };
    let mut facts = AgentFacts { boot: Arc::clone(boot), gpus: Vec::new() };
    let mut unhealthy = Vec::new();
    for (instance, from) in (0u8..).zip(&taken) {
        let (device, fault) = match from {
            Some(from) => {
                let (device, fault) = &reported[*from];
                (GpuDevice { links: moved(device.links), ..device.clone() }, fault.clone())
            }
            None => {
                let gone = &known.gpus[usize::from(instance)];
                (GpuDevice { links: 0, ..gone.clone() }, Some(DEVICE_GONE.into()))
            }
        };
        facts.gpus.push(device);
        unhealthy.extend(fault.map(|fault| (instance, fault)));
    }
    (facts, unhealthy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(uuid: &str, links: u16) -> (GpuDevice, Option<Arc<str>>) {
        let uuid = uuid.into();
        let model = "T4".into();
        (GpuDevice { uuid, model, memory_mib: 16 << 10, numa: Some(0), links }, None)
    }

    fn align(known: &AgentFacts, boot: &str, uuids: &[&str]) -> (AgentFacts, Unhealthy) {
        align_devices(known, &boot.into(), uuids.iter().map(|uuid| device(uuid, 0)).collect())
    }

    fn uuids(facts: &AgentFacts) -> String {
        facts.gpus.iter().map(|gpu| gpu.uuid.as_ref()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn an_instance_goes_on_meaning_the_same_device_in_any_order() {
        let (first, healthy) = align(&AgentFacts::default(), "1", &["c", "a", "b"]);
        assert_eq!((uuids(&first).as_str(), healthy), ("c a b", vec![]));
        for boot in ["1", "2"] {
            let (again, healthy) = align(&first, boot, &["a", "b", "c"]);
            assert_eq!((uuids(&again).as_str(), healthy), ("c a b", vec![]));
        }
    }

    #[test]
    fn a_device_that_is_gone_keeps_its_place_until_the_machine_starts_again() {
        let (first, _) = align(&AgentFacts::default(), "1", &["a", "b", "c"]);
        let (without, unhealthy) = align(&first, "1", &["c", "a", "new"]);
        assert_eq!(uuids(&without), "a b c new");
        assert_eq!(unhealthy, vec![(1, DEVICE_GONE.into())]);
        let (back, unhealthy) = align(&without, "1", &["a", "b", "c", "new"]);
        assert_eq!((uuids(&back).as_str(), unhealthy), ("a b c new", vec![]));
        // The machine was opened: the new device takes the old one's instance, and nothing else moves.
        let (swapped, unhealthy) = align(&first, "2", &["c", "a", "new"]);
        assert_eq!((uuids(&swapped).as_str(), unhealthy), ("a new c", vec![]));
        let (fewer, unhealthy) = align(&first, "2", &["a"]);
        assert_eq!((uuids(&fewer).as_str(), unhealthy), ("a", vec![]));
        let (hole, unhealthy) = align(&first, "2", &["c"]);
        assert_eq!((uuids(&hole).as_str(), unhealthy.len()), ("a b c", 2));
    }

    #[test]
    fn there_are_never_more_instances_than_a_node_can_have() {
        let names = |from: usize| (from..from + 16).map(|i| format!("g{i}")).collect::<Vec<_>>();
        let of = |names: &[String]| names.iter().map(|name| device(name, 0)).collect();
        let (first, _) = align_devices(&AgentFacts::default(), &"1".into(), of(&names(0)));
        let (second, unhealthy) = align_devices(&first, &"1".into(), of(&names(8)));
        assert_eq!((second.gpus.len(), unhealthy), (16, vec![]));
        assert!(second.gpus[8..].iter().zip(8..).all(|(gpu, i)| *gpu.uuid == format!("g{i}")));
    }

    #[test]
    fn links_and_faults_go_with_their_device() {
        let (first, _) = align(&AgentFacts::default(), "1", &["a", "b", "c"]);
        let mut reported = vec![device("c", 0b100), device("b", 0), device("a", 0b001)];
        reported[1].1 = Some("Xid 79".into());
        let (facts, unhealthy) = align_devices(&first, &"1".into(), reported);
        let links: Vec<u16> = facts.gpus.iter().map(|gpu| gpu.links).collect();
        assert_eq!((links, unhealthy), (vec![0b100, 0, 0b001], vec![(1, "Xid 79".into())]));
    }
}
