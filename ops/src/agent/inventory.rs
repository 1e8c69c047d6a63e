//! The accelerators of a machine, and the trait that the agent reads them through.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A GPU device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// The UUID of the device.
    pub uuid: String,
    /// The model name.
    #[serde(default)]
    pub model: String,
    /// Memory in MiB.
    #[serde(default)]
    pub memory_mib: u64,
    /// The NUMA node that the device is attached to.
    pub numa: Option<u16>,
    /// The UUIDs of the devices that are linked to it by NVLink.
    #[serde(default)]
    pub links: Vec<String>,
    /// Why the device takes no new work; `None` if it is healthy.
    pub fault: Option<String>,
    /// In MIG mode, the profile of each instance (`1g.5gb`). The device then does not count as a whole GPU.
    pub mig: Option<Vec<String>>,
}

/// All accelerators of a machine, in the driver's order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accelerators {
    /// The source of the data, for people: the driver's version, or why there is no driver.
    #[serde(default)]
    pub source: String,
    /// The devices.
    pub gpus: Vec<Gpu>,
}

impl Accelerators {
    /// Returns the devices that count as whole GPUs.
    pub fn whole(&self) -> impl Iterator<Item = &Gpu> {
        self.gpus.iter().filter(|gpu| gpu.mig.is_none())
    }

    /// Counts the MIG instances of healthy devices by resource kind, such as `nvidia.com/mig-1g.5gb`. The
    /// names are those of NVIDIA's device plugin for Kubernetes.
    #[must_use]
    pub fn mig_kinds(&self) -> BTreeMap<String, u32> {
        let mut kinds = BTreeMap::new();
        for gpu in self.gpus.iter().filter(|gpu| gpu.fault.is_none()) {
            for profile in gpu.mig.iter().flatten() {
                *kinds.entry(format!("nvidia.com/mig-{}", profile.replace('+', "."))).or_insert(0) += 1;
            }
        }
        kinds
    }
}

/// A source of accelerators.
pub trait Inventory: Send {
    /// Reads the current accelerators. A machine without any is not an error.
    ///
    /// # Errors
    /// When the accelerators cannot be read now. The previous reading stays valid.
    fn read(&mut self) -> anyhow::Result<Accelerators>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mig_instances_are_counted_by_kind_and_only_on_healthy_devices() {
        let gpu = |mig: &[&str], fault: Option<&str>| Gpu {
            mig: Some(mig.iter().map(|&profile| profile.to_owned()).collect()),
            fault: fault.map(str::to_owned),
            ..Gpu::default()
        };
        let gpus = vec![
            gpu(&["1g.5gb", "1g.5gb", "1g.10gb+me"], None),
            gpu(&["1g.5gb"], Some("Xid 79")),
            Gpu::default(),
        ];
        let found = Accelerators { source: String::new(), gpus };
        let kinds: Vec<_> = found.mig_kinds().into_iter().collect();
        assert_eq!(
            kinds,
            [("nvidia.com/mig-1g.10gb.me".to_owned(), 1), ("nvidia.com/mig-1g.5gb".to_owned(), 2)]
        );
        assert_eq!(found.whole().count(), 1);
    }
}
