//! Kinds of resources.

use crate::ids::ResourceId;

/// A kind of resource in a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKind {
    /// Cores.
    Cpu,
    /// MiB.
    Memory,
    /// GPU devices.
    Gpu,
    /// A custom kind.
    Custom(ResourceId),
}

impl std::fmt::Display for ResourceKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Memory => f.write_str("memory"),
            Self::Gpu => f.write_str("gpu"),
            Self::Custom(id) => write!(f, "resource {}", id.index()),
        }
    }
}
