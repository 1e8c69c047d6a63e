//! Rows of a checkpoint: the durable state in a form that can be stored. The engine's own types
//! are not serialisable, so that a change to them cannot change what lies on disk unnoticed.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use wharf_core::ids::{AllocationId, Incarnation, NodeId, Ordinal, PartitionId, ResourceId};
use wharf_core::node::{Labels, NodeRegistration, NodeSpec, NodeState, Taint, Taints};
use wharf_core::resource::{
    Amount, CustomAmounts, Demand, GpuAssignment, GpuRequest, UnitAssignment, UnitAssignments,
};
use wharf_core::state::{AllocationRecord, GranularityState, NodeRecord};
use wharf_net::codec::{decode_body, encode_body};
use wharf_net::convert::{effect_number, effect_of};

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
    labels: Vec<(String, String)>,
    /// Key, value, and the effect by its number on the wire.
    taints: Vec<(String, String, u8)>,
    draining: bool,
    version: u64,
}

#[derive(Serialize, Deserialize)]
struct AllocationRow {
    node: u64,
    cpu: i64,
    memory: i64,
    gpu: i64,
    gpu_mask: u16,
    gpu_part: u16,
    custom: Vec<(u16, i64)>,
}

/// Follows an [`AllocationRow`] where there is something to say.
#[derive(Default, Serialize, Deserialize)]
struct AllocationMore {
    /// Kind, mask and part of each.
    units: Vec<(u16, u64, u16)>,
    external_id: Option<String>,
}

fn custom_row(custom: &[(ResourceId, Amount)]) -> Vec<(u16, i64)> {
    custom.iter().map(|&(id, amount)| (id.0, amount.units())).collect()
}

fn custom(row: Vec<(u16, i64)>) -> Result<Option<CustomAmounts>, String> {
    let amounts: Result<Vec<_>, String> =
        row.into_iter().map(|(id, units)| Ok((ResourceId(id), amount(units)?))).collect();
    Demand::canonical_custom(amounts?).map_err(|id| format!("resource {} stands twice", id.0))
}

fn taint_row(taint: &Taint) -> (String, String, u8) {
    (taint.key.to_string(), taint.value.to_string(), effect_number(taint.effect))
}

fn taints(rows: Vec<(String, String, u8)>) -> Result<Taints, String> {
    let taint = |(key, value, effect): (String, String, u8)| {
        let effect = effect_of(effect).ok_or_else(|| format!("{effect} is no effect of a taint"))?;
        Ok(Taint { key: key.into(), value: value.into(), effect })
    };
    let taints: Result<Vec<_>, String> = rows.into_iter().map(taint).collect();
    Taints::new(taints?).map_err(|error| error.to_string())
}

fn amount(units: i64) -> Result<Amount, String> {
    Amount::try_from_units(units).map_err(|error| error.to_string())
}

pub(super) fn encode_node(node: &NodeRecord) -> Vec<u8> {
    let NodeRegistration { ordinal, partition, spec, .. } = &node.registration;
    let row = NodeRow {
        ordinal: ordinal.0,
        partition: partition.0,
        name: spec.name.to_string(),
        identity: spec.identity.as_deref().map(str::to_owned),
        cpu: spec.cpu.units(),
        memory: spec.memory.units(),
        gpus: spec.gpus,
        custom: custom_row(spec.custom.as_deref().unwrap_or(&[])),
        labels: spec.labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        taints: spec.taints.as_slice().iter().map(taint_row).collect(),
        draining: node.state == NodeState::Draining,
        version: node.version,
    };
    encode(&row)
}

fn encode<T: Serialize>(row: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_body(row, &mut bytes);
    bytes
}

pub(super) fn decode_node(id: u64, bytes: &[u8]) -> Result<NodeRecord, String> {
    let damaged = |what: String| format!("the row of node {id} is damaged: {what}");
    let (row, _) = decode_body::<NodeRow>(bytes).map_err(|error| damaged(error.to_string()))?;
    let labels = row.labels.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
    let spec = NodeSpec {
        name: row.name.into(),
        identity: row.identity.map(Into::into),
        cpu: amount(row.cpu).map_err(damaged)?,
        memory: amount(row.memory).map_err(damaged)?,
        gpus: row.gpus,
        custom: custom(row.custom).map_err(damaged)?,
        labels: Labels::new(labels).map_err(|error| damaged(error.to_string()))?,
        taints: taints(row.taints).map_err(damaged)?,
    };
    let (ordinal, partition) = (Ordinal(row.ordinal), PartitionId(row.partition));
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
    let damaged = |what: String| format!("the granularity of shard {shard} is damaged: {what}");
    let ((changes, thetas), _) =
        decode_body::<(u64, Vec<i64>)>(bytes).map_err(|error| damaged(error.to_string()))?;
    if let Some(theta) = thetas.iter().find(|&&theta| theta <= 0) {
        return Err(damaged(format!("{theta} is not positive")));
    }
    Ok(GranularityState { thetas, changes })
}

pub(super) fn allocation_key(allocation: &AllocationRecord) -> (u32, u16, u64) {
    (allocation.id.incarnation.0, allocation.id.partition.0, allocation.id.sequence)
}

pub(super) fn encode_allocation(allocation: &AllocationRecord) -> Vec<u8> {
    let demand = &allocation.demand;
    let mut bytes = encode(&AllocationRow {
        node: allocation.node.0,
        cpu: demand.cpu.units(),
        memory: demand.memory.units(),
        gpu: demand.gpu.amount().units(),
        gpu_mask: allocation.gpus.mask,
        gpu_part: allocation.gpus.part,
        custom: custom_row(demand.custom()),
    });
    if allocation.units.is_some() || allocation.external_id.is_some() {
        let units = allocation.units.as_ref().map_or(&[][..], |units| units.as_slice());
        let more = AllocationMore {
            units: units.iter().map(|&(id, units)| (id.0, units.mask, units.part)).collect(),
            external_id: allocation.external_id.as_deref().map(str::to_owned),
        };
        encode_body(&more, &mut bytes);
    }
    bytes
}

pub(super) fn decode_allocation(key: (u32, u16, u64), bytes: &[u8]) -> Result<AllocationRecord, String> {
    let id = AllocationId { incarnation: Incarnation(key.0), partition: PartitionId(key.1), sequence: key.2 };
    let damaged = |what: String| format!("the row of allocation {id} is damaged: {what}");
    let (row, taken) = decode_body::<AllocationRow>(bytes).map_err(|error| damaged(error.to_string()))?;
    let more = match &bytes[taken..] {
        [] => AllocationMore::default(),
        rest => decode_body(rest).map_err(|error| damaged(error.to_string()))?.0,
    };
    let units: UnitAssignments = more
        .units
        .into_iter()
        .map(|(id, mask, part)| (ResourceId(id), UnitAssignment { mask, part }))
        .collect();
    let demand = Demand {
        cpu: amount(row.cpu).map_err(damaged)?,
        memory: amount(row.memory).map_err(damaged)?,
        gpu: GpuRequest::from_amount(amount(row.gpu).map_err(damaged)?).map_err(damaged)?,
        custom: custom(row.custom).map_err(damaged)?,
    };
    let gpus = GpuAssignment { mask: row.gpu_mask, part: row.gpu_part };
    let units = (!units.is_empty()).then(|| Arc::new(units));
    let external_id = more.external_id.map(Into::into);
    Ok(AllocationRecord { id, node: NodeId(row.node), demand, gpus, units, external_id })
}
