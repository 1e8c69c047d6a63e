//! What a machine's accelerators are: the trait that the agent asks, and what it is told.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A GPU device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// The device's own identity.
    pub uuid: String,
    /// Its model.
    #[serde(default)]
    pub model: String,
    /// Its memory, in MiB.
    #[serde(default)]
    pub memory_mib: u64,
    /// The NUMA node it is attached to.
    #[serde(default)]
    pub numa: Option<u16>,
    /// The devices that it is linked to by NVLink, by UUID.
    #[serde(default)]
    pub links: Vec<String>,
    /// Why nothing new is to run there; none while it is healthy.
    #[serde(default)]
    pub fault: Option<String>,
    /// In MIG mode, the profile of each instance (`1g.5gb`); the device is then no whole GPU.
    #[serde(default)]
    pub mig: Option<Vec<String>>,
}

/// All accelerators of a machine, in the order in which the driver lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accelerators {
    /// What answered, for people: the driver's version, or why there is none.
    #[serde(default)]
    pub source: String,
    /// The devices.
    pub gpus: Vec<Gpu>,
}

impl Accelerators {
    /// Devices that count as whole GPUs.
    pub fn whole(&self) -> impl Iterator<Item = &Gpu> {
        self.gpus.iter().filter(|gpu| gpu.mig.is_none())
    }

    /// MIG instances of healthy devices, by resource kind, such as `nvidia.com/mig-1g.5gb`: the
    /// names of NVIDIA's device plugin for Kubernetes.
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

/// Where accelerators are read.
pub trait Inventory: Send {
    /// Reads them as they are now. A machine without any is an ordinary answer.
    ///
    /// # Errors
    /// When they cannot be read at the moment: what was read before still holds.
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
