//! Identifiers. None is ever reused: not after a removal, not after a restart.
//!
//! They are newtypes so that two numbers side by side cannot be swapped. Ids that are handed
//! out while the service runs carry the *incarnation* of the service that granted them (new at
//! each start) or come from a counter that is part of the durable state.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

/// A node, for as long as it is registered. Given by the [`Registrar`](crate::registrar) at
/// registration, counted from 1; the name is a key beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// The place of a node in the order of registration. Every tie between nodes, in every policy,
/// in every tree and in the oracle, is broken by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ordinal(pub u64);

/// A virtual partition: owns nodes, moves between shards whole. `0..partition_count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId(pub u16);

/// A scheduler shard of this process: `0..shard_count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

impl ShardId {
    /// As an index into per-shard arrays.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The number of one start of a store: durable, and larger at each start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u32);

/// One granted placement.
///
/// Unique for ever: `sequence` counts within the partition, and a start that lost the end of the
/// count has an `incarnation` of its own. The partition stands in the id, so that a release finds
/// its shard without a directory, whatever the number of shards was when the allocation was
/// granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocationId {
    /// The start of the service that granted it.
    pub incarnation: Incarnation,
    /// The partition of its node.
    pub partition: PartitionId,
    /// Counted from 1 within the partition.
    pub sequence: u64,
}

impl fmt::Display for AllocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a{}-{}-{}", self.incarnation.0, self.partition.0, self.sequence)
    }
}

/// Text that is not an allocation id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not an allocation id: expected aINCARNATION-PARTITION-SEQUENCE, as a placement printed it (a1-17-42)"
)]
pub struct ParseAllocationIdError {
    /// What was given.
    pub text: String,
}

impl FromStr for AllocationId {
    type Err = ParseAllocationIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let mut parts = text.strip_prefix('a')?.split('-');
            let id = Self {
                incarnation: Incarnation(parts.next()?.parse().ok()?),
                partition: PartitionId(parts.next()?.parse().ok()?),
                sequence: parts.next()?.parse().ok()?,
            };
            parts.next().is_none().then_some(id)
        };
        parse().ok_or_else(|| ParseAllocationIdError { text: text.to_owned() })
    }
}

/// A statement: numbered by its planner within the incarnation of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StatementId {
    /// The start of the service.
    pub incarnation: Incarnation,
    /// The planner that made it.
    pub planner: u16,
    /// Counted from 1 by the planner.
    pub number: u64,
}

impl fmt::Display for StatementId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}-{}-{}", self.incarnation.0, self.planner, self.number)
    }
}

/// A placement group. The planner that keeps it follows from the number (`number` modulo planners).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId {
    /// The start of the service that made it.
    pub incarnation: Incarnation,
    /// Counted within the incarnation.
    pub number: u64,
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}-{}", self.incarnation.0, self.number)
    }
}

/// A bundle of a placement group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BundleId {
    /// The group.
    pub group: GroupId,
    /// Its place in the group. A place is not given to another bundle later.
    pub index: u32,
}

impl fmt::Display for BundleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group, self.index)
    }
}

/// A client session: numbered by the server within its incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId {
    /// The start of the service that opened it.
    pub incarnation: Incarnation,
    /// Counted from 1 within the incarnation.
    pub number: u64,
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}-{}", self.incarnation.0, self.number)
    }
}

/// Whom a node is reserved for: a request, a job, a statement that lost too often. Given by the
/// caller; 0 is nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(NonZeroU64);

impl OwnerId {
    /// The owner of that number; none for 0.
    #[must_use]
    pub fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// The owner that a statement's ticket is: no caller can give it.
    #[must_use]
    pub(crate) fn ticket(number: u64) -> Self {
        Self(NonZeroU64::MIN | (Self::TICKET | number << 1))
    }

    /// Whether it is a statement's ticket.
    #[must_use]
    pub fn is_ticket(self) -> bool {
        self.0.get() & Self::TICKET != 0
    }

    const TICKET: u64 = 1 << 63;

    /// Its number.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A custom resource kind in the [registry](crate::resource::ResourceRegistry): never reassigned.
///
/// The highest bit says that the kind is *unit-instance*, so that whoever has an id knows without
/// looking it up; the rest is the kind's place in the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId(pub u16);

impl ResourceId {
    const UNIT_INSTANCE: u16 = 0x8000;

    /// The id of the kind at `index` of the registry.
    ///
    /// # Panics
    /// When `index` is more than a registry holds.
    #[must_use]
    pub fn new(index: u16, unit_instance: bool) -> Self {
        assert!(index < Self::UNIT_INSTANCE, "resource kind {index} is beyond any registry");
        Self(if unit_instance { index | Self::UNIT_INSTANCE } else { index })
    }

    /// Its place in the registry.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0 & !Self::UNIT_INSTANCE)
    }

    /// Whether each unit of it has an id and its own free part.
    #[must_use]
    pub fn is_unit_instance(self) -> bool {
        self.0 & Self::UNIT_INSTANCE != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocation_ids_survive_their_text_form() {
        let id = AllocationId { incarnation: Incarnation(7), partition: PartitionId(255), sequence: 1 << 40 };
        assert_eq!(id.to_string().parse(), Ok(id));
    }

    #[test]
    fn broken_allocation_ids_are_refused_with_what_was_given() {
        for text in ["", "a", "a1", "a1-2", "a1-2-3-4", "1-2-3", "a1-70000-3", "a-1-2-3", "a1-2-x"] {
            let error = text.parse::<AllocationId>().unwrap_err();
            assert!(error.to_string().contains(&format!("`{text}`")), "{error}");
        }
    }
}
