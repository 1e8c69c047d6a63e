//! Rows of a checkpoint about what statements left: claims, allocations on their way out, bundles,
//! and what is placed into them. Each has a table of its own, by allocation id: a store that was
//! written before them has none.

use redb::TableDefinition;
use serde::{Deserialize, Serialize};
use wharf_core::ids::{AllocationId, BundleId, GroupId, Incarnation, NodeId, PartitionId};
use wharf_core::state::{
    AllocationRecord, BundleRecord, ClaimRecord, InsideRecord, PartitionState, ReleasingRecord,
};
use wharf_core::time::Time;
use wharf_net::codec::{decode_body, encode_body};

use super::record;

type Key = (u32, u16, u64);

pub(super) const CLAIMS: TableDefinition<'_, Key, &[u8]> = TableDefinition::new("claims");
/// When each ends by itself.
pub(super) const RELEASING: TableDefinition<'_, Key, u64> = TableDefinition::new("releasing");
/// Incarnation and number of the group, and the place in it.
pub(super) const BUNDLES: TableDefinition<'_, Key, (u32, u64, u32)> = TableDefinition::new("bundles");
pub(super) const INSIDE: TableDefinition<'_, Key, &[u8]> = TableDefinition::new("inside_bundles");

/// Follows what an allocation's row says of a claim.
#[derive(Serialize, Deserialize)]
struct ClaimRow {
    /// Its place among the claims of its node.
    place: u32,
    /// As in [`BUNDLES`].
    bundle: Option<(u32, u64, u32)>,
    held: Vec<u8>,
}

/// What is placed into a bundle: the row of an allocation, and its bundle.
#[derive(Serialize, Deserialize)]
struct InsideRow {
    bundle: Key,
    held: Vec<u8>,
}

fn key(id: AllocationId) -> Key {
    (id.incarnation.0, id.partition.0, id.sequence)
}

fn id((incarnation, partition, sequence): Key) -> AllocationId {
    AllocationId { incarnation: Incarnation(incarnation), partition: PartitionId(partition), sequence }
}

fn bundle_row(BundleId { group, index }: BundleId) -> (u32, u64, u32) {
    (group.incarnation.0, group.number, index)
}

fn bundle((incarnation, number, index): (u32, u64, u32)) -> BundleId {
    BundleId { group: GroupId { incarnation: Incarnation(incarnation), number }, index }
}

fn encode<T: Serialize>(row: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_body(row, &mut bytes);
    bytes
}

/// Takes the tables away; what is not there is not an error.
pub(super) fn clear(transaction: &redb::WriteTransaction) -> Result<(), redb::Error> {
    transaction.delete_table(CLAIMS)?;
    transaction.delete_table(RELEASING)?;
    transaction.delete_table(BUNDLES)?;
    transaction.delete_table(INSIDE)?;
    Ok(())
}

/// Writes what statements left of a partition.
pub(super) fn write(
    transaction: &redb::WriteTransaction,
    partition: &PartitionState,
) -> Result<(), redb::Error> {
    let mut claims = transaction.open_table(CLAIMS)?;
    for (place, claim) in (0..).zip(&partition.claims) {
        let ClaimRecord { id, node, demand, gpus, units, bundle } = claim.clone();
        let held = AllocationRecord { id, node, demand, gpus, units, external_id: None };
        let held = record::encode_allocation(&held);
        let row = ClaimRow { place, bundle: bundle.map(bundle_row), held };
        claims.insert(key(id), encode(&row).as_slice())?;
    }
    let mut releasing = transaction.open_table(RELEASING)?;
    for record in &partition.releasing {
        releasing.insert(key(record.allocation), record.until.0)?;
    }
    let mut bundles = transaction.open_table(BUNDLES)?;
    for record in &partition.bundles {
        bundles.insert(key(record.allocation), bundle_row(record.bundle))?;
    }
    let mut inside = transaction.open_table(INSIDE)?;
    for record in &partition.inside {
        let InsideRecord { id, bundle, demand, gpus, units } = record.clone();
        let held = AllocationRecord { id, node: NodeId(0), demand, gpus, units, external_id: None };
        let row = InsideRow { bundle: key(bundle), held: record::encode_allocation(&held) };
        inside.insert(key(id), encode(&row).as_slice())?;
    }
    Ok(())
}

/// The partition of an allocation.
fn of_partition(partitions: &mut [PartitionState], id: AllocationId) -> Result<&mut PartitionState, String> {
    let at = usize::from(id.partition.0);
    partitions.get_mut(at).ok_or_else(|| format!("allocation {id} is of a partition that is none"))
}

/// Reads what statements left, where there are tables of it.
pub(super) fn read(
    transaction: &redb::ReadTransaction,
    there: impl Fn(&str) -> Result<bool, redb::Error>,
    partitions: &mut [PartitionState],
) -> Result<Result<(), String>, redb::Error> {
    use redb::{ReadableTable, TableHandle};
    if !there(CLAIMS.name())? {
        return Ok(Ok(()));
    }
    let mut read = || -> Result<Result<(), String>, redb::Error> {
        let mut claims: Vec<(u32, ClaimRecord)> = Vec::new();
        for row in transaction.open_table(CLAIMS)?.iter()? {
            let (at, bytes) = row?;
            match decode_claim(at.value(), bytes.value()) {
                Ok(claim) => claims.push(claim),
                Err(message) => return Ok(Err(message)),
            }
        }
        claims.sort_by_key(|&(place, _)| place);
        for (_, claim) in claims {
            match of_partition(partitions, claim.id) {
                Ok(partition) => partition.claims.push(claim),
                Err(message) => return Ok(Err(message)),
            }
        }
        for row in transaction.open_table(RELEASING)?.iter()? {
            let (at, until) = row?;
            let record = ReleasingRecord { allocation: id(at.value()), until: Time(until.value()) };
            match of_partition(partitions, record.allocation) {
                Ok(partition) => partition.releasing.push(record),
                Err(message) => return Ok(Err(message)),
            }
        }
        for row in transaction.open_table(BUNDLES)?.iter()? {
            let (at, row) = row?;
            let record = BundleRecord { allocation: id(at.value()), bundle: bundle(row.value()) };
            match of_partition(partitions, record.allocation) {
                Ok(partition) => partition.bundles.push(record),
                Err(message) => return Ok(Err(message)),
            }
        }
        for row in transaction.open_table(INSIDE)?.iter()? {
            let (at, bytes) = row?;
            let record = decode_inside(at.value(), bytes.value());
            match record.and_then(|record| Ok((of_partition(partitions, record.id)?, record))) {
                Ok((partition, record)) => partition.inside.push(record),
                Err(message) => return Ok(Err(message)),
            }
        }
        Ok(Ok(()))
    };
    read()
}

fn decode_claim(at: Key, bytes: &[u8]) -> Result<(u32, ClaimRecord), String> {
    let damaged = |what: String| format!("the row of claim {} is damaged: {what}", id(at));
    let (row, _) = decode_body::<ClaimRow>(bytes).map_err(|error| damaged(error.to_string()))?;
    let AllocationRecord { id, node, demand, gpus, units, .. } = record::decode_allocation(at, &row.held)?;
    let bundle = row.bundle.map(bundle);
    Ok((row.place, ClaimRecord { id, node, demand, gpus, units, bundle }))
}

fn decode_inside(at: Key, bytes: &[u8]) -> Result<InsideRecord, String> {
    let damaged = |what: String| format!("the row of {}, inside a bundle, is damaged: {what}", id(at));
    let (row, _) = decode_body::<InsideRow>(bytes).map_err(|error| damaged(error.to_string()))?;
    let AllocationRecord { id: own, demand, gpus, units, .. } = record::decode_allocation(at, &row.held)?;
    Ok(InsideRecord { id: own, bundle: id(row.bundle), demand, gpus, units })
}
