//! Ids on the wire and in the engine.

use wharf_core::ids::{AllocationId, GroupId, Incarnation, PartitionId, SessionId, StatementId, TenantId};

use super::{WireAllocation, WireGroup, WireSession, WireStatement};

/// Converts ids of the same fields into each other: first the numbers that the engine wraps, then the plain ones.
macro_rules! same_ids {
    ($($wire:ident = $id:ident { $($wrapped:ident: $wrapper:ident),*; $($plain:ident),* })*) => {$(
        impl From<$id> for $wire {
            fn from(id: $id) -> Self {
                Self { $($wrapped: id.$wrapped.0,)* $($plain: id.$plain,)* }
            }
        }

        impl From<$wire> for $id {
            fn from(wire: $wire) -> Self {
                Self { $($wrapped: $wrapper(wire.$wrapped),)* $($plain: wire.$plain,)* }
            }
        }
    )*};
}

same_ids! {
    WireAllocation = AllocationId { incarnation: Incarnation, partition: PartitionId, tenant: TenantId; sequence }
    WireGroup = GroupId { incarnation: Incarnation, tenant: TenantId; number }
    WireSession = SessionId { incarnation: Incarnation; number }
    WireStatement = StatementId { incarnation: Incarnation; planner, number }
}
