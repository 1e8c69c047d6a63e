//! Identifiers. No id is ever reused, not even after a removal or a restart.
//!
//! They are newtypes, so two ids cannot be confused. Ids assigned at run time either contain the
//! *incarnation* of the service that assigned them (new at each start) or come from a counter in the durable
//! state.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

/// A node, for as long as it is registered.
///
/// The [`Registrar`](crate::registrar) assigns the id at registration, counting from 1. The node's name is a
/// separate key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// The position of a node in the order of registration.
///
/// It breaks every tie between nodes, in every policy, in every tree and in the oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ordinal(pub u64);

/// A virtual partition. It owns nodes and moves between shards as a whole. `0..partition_count`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId(pub u16);

/// A scheduler shard of this process: `0..shard_count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

impl ShardId {
    /// Returns the id as an index into per-shard arrays.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// The number of one start of a store. It is durable and larger at each start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u32);

/// A tenant: who allocations and groups belong to. The operator chooses the numbers; 0 is the operator itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u16);

impl TenantId {
    /// The operator, to whom everything belongs that no tenant asked for.
    pub const OPERATOR: Self = Self(0);

    /// Writes the last part of the id of something that belongs to this tenant. The operator has none.
    fn write(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self == Self::OPERATOR { Ok(()) } else { write!(f, "-{}", self.0) }
    }
}

/// Returns the tenant that the last part of an id names.
fn parse_tenant(part: Option<&str>) -> Option<TenantId> {
    let Some(part) = part else { return Some(TenantId::OPERATOR) };
    let tenant = part.parse().ok().map(TenantId)?;
    // Each id has one text.
    (tenant != TenantId::OPERATOR).then_some(tenant)
}

/// A granted placement.
///
/// The id is unique forever. A shard grants each `sequence` once, each partition has one shard, and each start has
/// its own `incarnation`. The id contains the partition, so a release finds its shard without a directory, even if
/// the number of shards has changed since. It also contains the tenant, so nobody touches what belongs to another
/// tenant by a forged id: the id of an allocation with another tenant is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AllocationId {
    /// The start of the service that granted it.
    pub incarnation: Incarnation,
    /// The partition of its node.
    pub partition: PartitionId,
    /// Says which record of the shard's ledger it had first, and how many ids that record had before.
    pub sequence: u64,
    /// Who it belongs to.
    pub tenant: TenantId,
}

impl fmt::Display for AllocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a{}-{}-{}", self.incarnation.0, self.partition.0, self.sequence)?;
        self.tenant.write(f)
    }
}

/// A text that is not an allocation id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not an allocation id: expected aINCARNATION-PARTITION-SEQUENCE[-TENANT], as a placement printed it (a1-17-42)"
)]
pub struct ParseAllocationIdError {
    /// The given text.
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
                tenant: parse_tenant(parts.next())?,
            };
            parts.next().is_none().then_some(id)
        };
        parse().ok_or_else(|| ParseAllocationIdError { text: text.to_owned() })
    }
}

/// A statement, numbered by its planner within the incarnation of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StatementId {
    /// The start of the service.
    pub incarnation: Incarnation,
    /// The planner that created it.
    pub planner: u16,
    /// Counts from 1 per planner.
    pub number: u64,
}

impl fmt::Display for StatementId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}-{}-{}", self.incarnation.0, self.planner, self.number)
    }
}

/// A placement group. `number` modulo the number of planners gives the planner that manages it, unless it is in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId {
    /// Who it belongs to, with all of its bundles. It comes first, so that the groups of a tenant are a range.
    pub tenant: TenantId,
    /// The start of the service that created it.
    pub incarnation: Incarnation,
    /// Counts within the incarnation.
    pub number: u64,
}

impl GroupId {
    /// The part of the number of a group that is charged to a queue.
    pub const IN_QUEUE: u64 = 1 << 48;

    /// Returns whether the group is charged to a queue. The keeper of jobs manages it then. Groups of jobs are not meant:
    /// each is one.
    #[must_use]
    pub fn is_in_queue(self) -> bool {
        self.incarnation.0 > 0 && self.number & Self::IN_QUEUE > 0
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_in_queue() {
            write!(f, "g{}-q{}", self.incarnation.0, self.number ^ Self::IN_QUEUE)?;
        } else {
            write!(f, "g{}-{}", self.incarnation.0, self.number)?;
        }
        self.tenant.write(f)
    }
}

/// A text that is not a group id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a group id: expected gINCARNATION-NUMBER[-TENANT], as creation printed it (g1-42)")]
pub struct ParseGroupIdError {
    /// The given text.
    pub text: String,
}

impl FromStr for GroupId {
    type Err = ParseGroupIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let mut parts = text.strip_prefix('g')?.split('-');
            let incarnation = Incarnation(parts.next()?.parse().ok()?);
            let number = parts.next()?;
            let number = match number.strip_prefix('q') {
                Some(number) => {
                    number.parse().ok().filter(|&number: &u64| number < Self::IN_QUEUE)? | Self::IN_QUEUE
                }
                None => number.parse().ok()?,
            };
            let id = Self { incarnation, number, tenant: parse_tenant(parts.next())? };
            parts.next().is_none().then_some(id)
        };
        parse().ok_or_else(|| ParseGroupIdError { text: text.to_owned() })
    }
}

/// A bundle of a placement group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BundleId {
    /// The group.
    pub group: GroupId,
    /// The bundle's index in the group. An index is never reused for another bundle.
    pub index: u32,
}

impl fmt::Display for BundleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group, self.index)
    }
}

/// A client session, numbered by the server within its incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId {
    /// The start of the service that opened it.
    pub incarnation: Incarnation,
    /// Counts from 1 within the incarnation.
    pub number: u64,
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}-{}", self.incarnation.0, self.number)
    }
}

/// The owner of a reservation: a request, a job, or the ticket of a group that failed repeatedly.
///
/// The caller chooses the number. 0 means no owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(NonZeroU64);

impl OwnerId {
    /// Returns the owner with this number, or `None` for 0.
    #[must_use]
    pub fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// Returns the owner that represents a ticket.
    #[must_use]
    pub(crate) fn ticket(number: u64) -> Self {
        Self(NonZeroU64::MIN | (Self::TICKET | number << 1))
    }

    /// Returns whether this owner is a ticket.
    #[must_use]
    pub fn is_ticket(self) -> bool {
        self.0.get() & Self::TICKET != 0
    }

    const TICKET: u64 = 1 << 63;

    /// Returns the owner's number.
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

/// A custom resource kind in the [registry](crate::resource::ResourceRegistry). Ids are never reassigned.
///
/// The highest bit is set for *unit-instance* kinds, so this is known from the id alone. The other bits are
/// the kind's index in the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId(pub u16);

impl ResourceId {
    const UNIT_INSTANCE: u16 = 0x8000;

    /// Returns the id of the kind at `index` of the registry.
    ///
    /// # Panics
    /// When `index` is larger than any index of a registry.
    #[must_use]
    pub fn new(index: u16, unit_instance: bool) -> Self {
        assert!(index < Self::UNIT_INSTANCE, "resource kind {index} is beyond any registry");
        Self(if unit_instance { index | Self::UNIT_INSTANCE } else { index })
    }

    /// Returns the kind's index in the registry.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0 & !Self::UNIT_INSTANCE)
    }

    /// Returns whether each unit has an id and its own free part.
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
        let id = AllocationId {
            incarnation: Incarnation(7),
            partition: PartitionId(255),
            sequence: 1 << 40,
            tenant: TenantId::OPERATOR,
        };
        assert_eq!((id.to_string().as_str(), id.to_string().parse()), ("a7-255-1099511627776", Ok(id)));
        let id = AllocationId { tenant: TenantId(9), ..id };
        assert_eq!((id.to_string().as_str(), id.to_string().parse()), ("a7-255-1099511627776-9", Ok(id)));
        let id = GroupId { tenant: TenantId(9), incarnation: Incarnation(7), number: 3 };
        assert_eq!((id.to_string().as_str(), id.to_string().parse()), ("g7-3-9", Ok(id)));
    }

    #[test]
    fn broken_group_ids_are_refused_with_what_was_given() {
        for text in ["", "g", "g1", "g1-2-0", "g1-2-3-4", "1-2", "a1-2"] {
            let error = text.parse::<GroupId>().unwrap_err();
            assert!(error.to_string().contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn broken_allocation_ids_are_refused_with_what_was_given() {
        for text in [
            "",
            "a",
            "a1",
            "a1-2",
            "a1-2-3-0",
            "a1-2-3-4-5",
            "a1-2-3-70000",
            "1-2-3",
            "a1-70000-3",
            "a-1-2-3",
            "a1-2-x",
        ] {
            let error = text.parse::<AllocationId>().unwrap_err();
            assert!(error.to_string().contains(&format!("`{text}`")), "{error}");
        }
    }
}
