//! The limits that a run's shard and its oracle are given.

/// Shares of the nodes that may be reserved.
const RESERVED_PERCENT: [u8; 4] = [100, 50, 5, 0];

/// Allocations that a node may have: few in every third part of the runs.
const ALLOCATIONS_MAX: [u16; 3] = [1024, 3, 32_767];

/// The share of nodes that may be reserved, in percent, and the allocations of a node.
pub(super) type Limits = (u8, u16);

/// The limits that the second byte of a run says.
pub(super) fn limits(number: u8) -> Limits {
    let percent = RESERVED_PERCENT[usize::from(number / 8) % RESERVED_PERCENT.len()];
    (percent, ALLOCATIONS_MAX[usize::from(number / 32) % ALLOCATIONS_MAX.len()])
}
