//! Checkpoint rows of the effects of statements: claims, releasing allocations, bundles, and allocations
//! inside bundles. Each has a table keyed by allocation id.

use redb::TableDefinition;
use serde::{Deserialize, Serialize};
use wharf_core::ids::{BundleId, GroupId, Incarnation, NodeId};
use wharf_core::state::{
    AllocationRecord, BundleRecord, ClaimRecord, InsideRecord, PartitionState, ReleasingRecord,
};
use wharf_core::time::Time;

use super::record::{self, AllocationRow, Key, damaged, decode, encode, id, key};
use super::storage::ReadError;

pub(super) const CLAIMS: TableDefinition<'_, Key, &[u8]> = TableDefinition::new("claims");
/// The time at which each releasing allocation ends at the latest.
pub(super) const RELEASING: TableDefinition<'_, Key, u64> = TableDefinition::new("releasing");
/// Incarnation and number of the group, and the index of the bundle in it.
pub(super) const BUNDLES: TableDefinition<'_, Key, (u32, u64, u32)> = TableDefinition::new("bundles");
pub(super) const INSIDE: TableDefinition<'_, Key, &[u8]> = TableDefinition::new("inside_bundles");

/// A claim. The allocation row comes last.
#[derive(Serialize, Deserialize)]
struct ClaimRow {
    /// The position in the partition's list of claims, which has the claims of each node in serving order.
    place: u32,
    /// As in [`BUNDLES`].
    bundle: Option<(u32, u64, u32)>,
    held: AllocationRow,
}

/// An allocation inside a bundle, and the bundle.
#[derive(Serialize, Deserialize)]
struct InsideRow {
    bundle: Key,
    held: AllocationRow,
}

fn bundle_row(BundleId { group, index }: BundleId) -> (u32, u64, u32) {
    (group.incarnation.0, group.number, index)
}

fn bundle((incarnation, number, index): (u32, u64, u32)) -> BundleId {
    BundleId { group: GroupId { incarnation: Incarnation(incarnation), number }, index }
}

/// Returns what a claim holds, as an allocation.
pub(super) fn claimed(claim: &ClaimRecord) -> AllocationRecord {
    let ClaimRecord { id, node, demand, gpus, units, .. } = claim.clone();
    AllocationRecord { id, node, demand, gpus, units, external_id: None }
}

/// Returns what an allocation inside a bundle holds, as an allocation on `node`.
pub(super) fn held_inside(record: &InsideRecord, node: NodeId) -> AllocationRecord {
    let InsideRecord { id, demand, gpus, units, .. } = record.clone();
    AllocationRecord { id, node, demand, gpus, units, external_id: None }
}

/// Writes the claims, releasing allocations, bundles and their contents of a partition.
pub(super) fn write(
    transaction: &redb::WriteTransaction,
    partition: &PartitionState,
) -> Result<(), redb::Error> {
    let mut claims = transaction.open_table(CLAIMS)?;
    for (place, claim) in (0..).zip(&partition.claims) {
        let held = record::allocation_row(&claimed(claim));
        let row = ClaimRow { place, bundle: claim.bundle.map(bundle_row), held };
        claims.insert(key(claim.id), encode(&row).as_slice())?;
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
        let held = record::allocation_row(&held_inside(record, NodeId(0)));
        let row = InsideRow { bundle: key(record.bundle), held };
        inside.insert(key(record.id), encode(&row).as_slice())?;
    }
    Ok(())
}

/// Reads what `write` wrote.
pub(super) fn read(
    transaction: &redb::ReadTransaction,
    partitions: &mut [PartitionState],
) -> Result<(), ReadError> {
    use redb::ReadableTable;
    let mut claims: Vec<(u32, ClaimRecord)> = Vec::new();
    for row in transaction.open_table(CLAIMS)?.iter()? {
        let (at, bytes) = row?;
        claims.push(decode_claim(at.value(), bytes.value())?);
    }
    claims.sort_by_key(|&(place, _)| place);
    for (_, claim) in claims {
        record::partition_of(partitions, claim.id)?.claims.push(claim);
    }
    for row in transaction.open_table(RELEASING)?.iter()? {
        let (at, until) = row?;
        let record = ReleasingRecord { allocation: id(at.value()), until: Time(until.value()) };
        record::partition_of(partitions, record.allocation)?.releasing.push(record);
    }
    for row in transaction.open_table(BUNDLES)?.iter()? {
        let (at, row) = row?;
        let record = BundleRecord { allocation: id(at.value()), bundle: bundle(row.value()) };
        record::partition_of(partitions, record.allocation)?.bundles.push(record);
    }
    for row in transaction.open_table(INSIDE)?.iter()? {
        let (at, bytes) = row?;
        let record = decode_inside(at.value(), bytes.value())?;
        record::partition_of(partitions, record.id)?.inside.push(record);
    }
    Ok(())
}

fn decode_claim(at: Key, bytes: &[u8]) -> Result<(u32, ClaimRecord), String> {
    let what = format!("the row of claim {}", id(at));
    let ClaimRow { place, bundle: of, held } = decode(&what, bytes)?;
    let held = record::allocation(at, held).map_err(|why| damaged(what, why))?;
    let AllocationRecord { id, node, demand, gpus, units, .. } = held;
    Ok((place, ClaimRecord { id, node, demand, gpus, units, bundle: of.map(bundle) }))
}

fn decode_inside(at: Key, bytes: &[u8]) -> Result<InsideRecord, String> {
    let what = format!("the row of {}, inside a bundle,", id(at));
    let InsideRow { bundle, held } = decode(&what, bytes)?;
    let held = record::allocation(at, held).map_err(|why| damaged(what, why))?;
    let AllocationRecord { id: own, demand, gpus, units, .. } = held;
    Ok(InsideRecord { id: own, bundle: id(bundle), demand, gpus, units })
}
