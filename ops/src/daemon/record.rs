//! Checkpoint rows: the durable state in a form that can be stored.
//!
//! The engine's own types are not serialisable, so a change to them cannot silently change the format on
//! disk. Data that has the same form on the wire is stored as the wire's body. Resource kinds are stored by
//! number; the table of resources maps numbers to names.

use std::fmt::Display;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use wharf_core::ids::{AllocationId, Incarnation, NodeId, Ordinal, PartitionId, ResourceId};
use wharf_core::node::{NodeRegistration, NodeSpec, NodeState};
use wharf_core::resource::{Amount, Demand, GpuAssignment, GpuRequest, UnitAssignment, UnitAssignments};
use wharf_core::state::{AllocationRecord, GranularityState, NodeRecord, PartitionState};
use wharf_net::codec::{decode_body, encode_body};
use wharf_net::convert::{labels, taints, wire_labels, wire_taints};
use wharf_net::protocol::{Pair, Taint};

/// The id of an allocation as a table key.
pub(super) type Key = (u32, u16, u64);

/// Returns the key of an allocation id.
pub(super) fn key(id: AllocationId) -> Key {
    (id.incarnation.0, id.partition.0, id.sequence)
}

/// Returns the allocation id of a key.
pub(super) fn id((incarnation, partition, sequence): Key) -> AllocationId {
    AllocationId { incarnation: Incarnation(incarnation), partition: PartitionId(partition), sequence }
}

/// Amounts of each resource, in 1/10,000 of its unit.
#[derive(Serialize, Deserialize)]
pub(super) struct AmountsRow {
    pub(super) cpu: i64,
    pub(super) memory: i64,
    pub(super) gpu: i64,
    /// By number of the resource kind.
    pub(super) custom: Vec<(u16, i64)>,
}

impl AmountsRow {
    /// Creates the row of a demand.
    pub(super) fn new(demand: &Demand) -> Self {
        Self {
            cpu: demand.cpu.units(),
            memory: demand.memory.units(),
            gpu: demand.gpu.units(),
            custom: custom_row(demand.custom()),
        }
    }

    /// Returns the demand of the row.
    pub(super) fn demand(self) -> Result<Demand, String> {
        Ok(Demand {
            cpu: amount(self.cpu)?,
            memory: amount(self.memory)?,
            gpu: GpuRequest::from_amount(amount(self.gpu)?)?,
            custom: Demand::canonical_custom(custom(self.custom)?).map_err(twice)?,
        })
    }
}

#[derive(Serialize, Deserialize)]
struct NodeRow {
    ordinal: u64,
    partition: u16,
    name: String,
    identity: Option<String>,
    cpu: i64,
    memory: i64,
    gpus: u8,
    custom: Vec<(u16, i64)>,
    labels: Vec<Pair>,
    taints: Vec<Taint>,
    draining: bool,
    version: u64,
}

/// An allocation: what it holds, and on which node.
#[derive(Serialize, Deserialize)]
pub(super) struct AllocationRow {
    node: u64,
    demand: AmountsRow,
    gpu_mask: u16,
    gpu_part: u16,
    /// Kind, mask and part of each unit assignment.
    units: Vec<(u16, u64, u16)>,
    external_id: Option<String>,
}

pub(super) fn custom_row(custom: &[(ResourceId, Amount)]) -> Vec<(u16, i64)> {
    custom.iter().map(|&(id, amount)| (id.0, amount.units())).collect()
}

pub(super) fn custom(row: Vec<(u16, i64)>) -> Result<Vec<(ResourceId, Amount)>, String> {
    row.into_iter().map(|(id, units)| Ok((ResourceId(id), amount(units)?))).collect()
}

fn twice(id: ResourceId) -> String {
    format!("resource {} is given twice", id.0)
}

pub(super) fn amount(units: i64) -> Result<Amount, String> {
    Amount::try_from_units(units).map_err(|error| error.to_string())
}

pub(super) fn encode_node(node: &NodeRecord) -> Vec<u8> {
    let NodeRegistration { ordinal, partition, spec, .. } = &node.registration;
    encode(&NodeRow {
        ordinal: ordinal.0,
        partition: partition.0,
        name: spec.name.to_string(),
        identity: spec.identity.as_deref().map(str::to_owned),
        cpu: spec.cpu.units(),
        memory: spec.memory.units(),
        gpus: spec.gpus,
        custom: custom_row(spec.custom.as_deref().unwrap_or(&[])),
        labels: wire_labels(&spec.labels),
        taints: wire_taints(&spec.taints),
        draining: node.state == NodeState::Draining,
        version: node.version,
    })
}

/// Encodes a row.
pub(super) fn encode<T: Serialize>(row: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_body(row, &mut bytes);
    bytes
}

/// Decodes a row. `what` names the row in errors.
pub(super) fn decode<T: DeserializeOwned>(what: impl Display, bytes: &[u8]) -> Result<T, String> {
    decode_body(bytes).map(|(row, _)| row).map_err(|error| damaged(what, error))
}

/// Formats the error of a row that is not as it was written.
pub(super) fn damaged(what: impl Display, why: impl Display) -> String {
    format!("{what} is damaged: {why}")
}

pub(super) fn decode_node(id: u64, bytes: &[u8]) -> Result<NodeRecord, String> {
    let what = format!("the row of node {id}");
    node(id, decode(&what, bytes)?).map_err(|why| damaged(what, why))
}

fn node(id: u64, row: NodeRow) -> Result<NodeRecord, String> {
    let spec = NodeSpec {
        name: row.name.into(),
        identity: row.identity.map(Into::into),
        cpu: amount(row.cpu)?,
        memory: amount(row.memory)?,
        gpus: row.gpus,
        custom: Demand::canonical_custom(custom(row.custom)?).map_err(twice)?,
        labels: labels(row.labels).map_err(|fault| fault.to_string())?,
        taints: taints(row.taints).map_err(|fault| fault.to_string())?,
    };
    let ordinal = Ordinal(row.ordinal);
    let partition = PartitionId(row.partition);
    Ok(NodeRecord {
        registration: NodeRegistration { id: NodeId(id), ordinal, partition, spec, agent: None },
        state: if row.draining { NodeState::Draining } else { NodeState::Ready },
        version: row.version,
        unhealthy: Vec::new(),
    })
}

pub(super) fn encode_granularity(granularity: &GranularityState) -> Vec<u8> {
    encode(&(granularity.changes, &granularity.thetas))
}

pub(super) fn decode_granularity(shard: u16, bytes: &[u8]) -> Result<GranularityState, String> {
    let what = format!("the granularity of shard {shard}");
    let (changes, thetas): (u64, Vec<i64>) = decode(&what, bytes)?;
    match thetas.iter().find(|&&theta| theta <= 0) {
        Some(theta) => Err(damaged(what, format_args!("{theta} is not positive"))),
        None => Ok(GranularityState { thetas, changes }),
    }
}

pub(super) fn allocation_row(allocation: &AllocationRecord) -> AllocationRow {
    let units = allocation.units.as_ref().map_or(&[][..], |units| units.as_slice());
    AllocationRow {
        node: allocation.node.0,
        demand: AmountsRow::new(&allocation.demand),
        gpu_mask: allocation.gpus.mask,
        gpu_part: allocation.gpus.part,
        units: units.iter().map(|&(id, units)| (id.0, units.mask, units.part)).collect(),
        external_id: allocation.external_id.as_deref().map(str::to_owned),
    }
}

pub(super) fn allocation(at: Key, row: AllocationRow) -> Result<AllocationRecord, String> {
    let units = row.units.into_iter();
    let units: UnitAssignments =
        units.map(|(id, mask, part)| (ResourceId(id), UnitAssignment { mask, part })).collect();
    Ok(AllocationRecord {
        id: id(at),
        node: NodeId(row.node),
        demand: row.demand.demand()?,
        gpus: GpuAssignment { mask: row.gpu_mask, part: row.gpu_part },
        units: (!units.is_empty()).then(|| Arc::new(units)),
        external_id: row.external_id.map(Into::into),
    })
}

pub(super) fn decode_allocation(at: Key, bytes: &[u8]) -> Result<AllocationRecord, String> {
    let what = format!("the row of allocation {}", id(at));
    allocation(at, decode(&what, bytes)?).map_err(|why| damaged(what, why))
}

/// Returns the partition of an allocation.
pub(super) fn partition_of(
    partitions: &mut [PartitionState],
    id: AllocationId,
) -> Result<&mut PartitionState, String> {
    let at = usize::from(id.partition.0);
    partitions.get_mut(at).ok_or_else(|| format!("allocation {id} is of a partition that is none"))
}
