//! The limits of a run's shard and of its oracle.

/// The shares of nodes that may be reserved, in percent.
const RESERVED_PERCENT: [u8; 4] = [100, 50, 5, 0];

/// The numbers of allocations that a node may have. A third of the runs use a small one.
const ALLOCATIONS_MAX: [u16; 3] = [1024, 3, 32_767];

/// The share of nodes that may be reserved, in percent, and the highest number of allocations per node.
pub(super) type Limits = (u8, u16);

/// Returns the limits that the second byte of an input selects.
pub(super) fn limits(number: u8) -> Limits {
    let percent = RESERVED_PERCENT[usize::from(number / 8) % RESERVED_PERCENT.len()];
    (percent, ALLOCATIONS_MAX[usize::from(number / 32) % ALLOCATIONS_MAX.len()])
}
