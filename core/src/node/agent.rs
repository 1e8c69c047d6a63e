//! What a node's agent says of the machine: its boot, its GPU devices and how they are linked.
//!
//! Topology is a record of its own and not labels: labels speak of a whole node and are what
//! selectors compare, while links and NUMA nodes relate single instances to each other. It is
//! cold: no placement reads it yet.

use std::sync::Arc;

use super::NodeSpec;
use crate::limits::GPU_INSTANCES_MAX;

/// A GPU device. Its place in the node's list is its instance number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuDevice {
    /// The device's own identity: the same whatever order the driver lists devices in.
    pub uuid: Arc<str>,
    /// Its model.
    pub model: Arc<str>,
    /// Its memory, in MiB.
    pub memory_mib: u64,
    /// The NUMA node that it is attached to, where that is known.
    pub numa: Option<u16>,
    /// The instances it is linked to directly (NVLink): bit `i` stands for instance `i`.
    pub links: u16,
}

/// What an agent said last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentFacts {
    /// Which start of the machine: its kernel's boot id.
    pub boot: Arc<str>,
    /// Its GPU devices, by instance.
    pub gpus: Vec<GpuDevice>,
}

/// GPU instances that offer nothing to new work, ascending, with the reason.
pub type Unhealthy = Vec<(u8, Arc<str>)>;

/// A whole report, devices in the order in which the agent found them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentReport {
    /// Capacity and labels.
    pub spec: NodeSpec,
    /// Which start of the machine.
    pub boot: Arc<str>,
    /// The devices, `links` over this list, and what is wrong with each, if anything is.
    pub gpus: Vec<(GpuDevice, Option<Arc<str>>)>,
}

/// What is said of an instance whose device is not reported any more.
pub const DEVICE_GONE: &str = "its device is not reported any more: it is lost, or in MIG mode now";

/// Gives each reported device its instance, and says which instances are unhealthy.
///
/// An instance goes on meaning the same device, known by its UUID: the driver's order may change
/// from start to start, and allocations hold instances. A device that is not reported any more
/// keeps its place, unhealthy, so that no other moves; a new one goes to the end. Only a new boot
/// lets new devices take the places of those that are gone (the machine was opened), and cuts
/// such places off the end. So do new devices for which there is no other room.
#[must_use]
pub fn align_devices(
    known: &AgentFacts,
    boot: &Arc<str>,
    reported: Vec<(GpuDevice, Option<Arc<str>>)>,
) -> (AgentFacts, Unhealthy) {
    // Where a reported device goes; instances that none goes to are gone.
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
        // Opened and closed: the new device stands in the place of the old, nothing else moves.
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
