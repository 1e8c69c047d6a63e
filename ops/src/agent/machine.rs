//! The machine's own resources that this process may use: cores and memory within its control group,
//! identity, boot id and NUMA nodes.

use std::path::Path;

use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The host name.
    pub host: String,
    /// `/etc/machine-id`, which stays the same until the system is reinstalled.
    pub identity: String,
    /// The kernel's boot id, which changes at each boot.
    pub boot: String,
    /// Cores that this process may use, limited by its affinity and the quota of its control group.
    pub cpus: u32,
    /// Memory in MiB: the machine's, or the control group's limit if that is lower.
    pub memory_mib: u64,
    /// The number of NUMA nodes; 0 if unknown.
    pub numa_nodes: u32,
}

impl Machine {
    /// Reads the machine's properties.
    #[must_use]
    pub fn read() -> Self {
        let system = System::new_with_specifics(
            RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram()),
        );
        let limit = system.cgroup_limits().map_or(u64::MAX, |limits| limits.total_memory);
        Self {
            host: System::host_name().unwrap_or_default(),
            identity: line("/etc/machine-id"),
            boot: line("/proc/sys/kernel/random/boot_id"),
            cpus: u32::try_from(std::thread::available_parallelism().map_or(1, usize::from))
                .unwrap_or(u32::MAX),
            memory_mib: system.total_memory().min(limit) >> 20,
            numa_nodes: numa_nodes(Path::new("/sys/devices/system/node")),
        }
    }
}

/// Returns the trimmed contents of a file, or an empty string if it cannot be read.
fn line(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn numa_nodes(directory: &Path) -> u32 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let is_node = |name: &str| {
        name.strip_prefix("node")
            .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
    };
    entries.filter(|entry| entry.file_name().to_str().is_some_and(is_node)).map(|_| 1).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_something() {
        let machine = Machine::read();
        assert!(machine.cpus >= 1 && machine.memory_mib > 0, "{machine:?}");
    }

    #[test]
    fn numa_nodes_are_counted_by_their_directories() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["node0", "node1", "node", "nodes", "possible"] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        assert_eq!((numa_nodes(directory.path()), numa_nodes(Path::new("/nowhere"))), (2, 0));
    }
}
