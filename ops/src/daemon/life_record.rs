//! Rows of a checkpoint about node life: where a node stands, what its agent said, its unhealthy
//! instances, and the machines that were removed. In tables of their own: a node that is simply
//! ready or draining has no row here, and a store that was written before them has none at all.

use serde::{Deserialize, Serialize};
use wharf_core::ids::{NodeId, Ordinal};
use wharf_core::limits::GPU_INSTANCES_MAX;
use wharf_core::node::{AgentFacts, GpuDevice, NodeState};
use wharf_core::state::{NodeRecord, RemovedNode};
use wharf_net::codec::{decode_body, encode_body};

#[derive(Serialize, Deserialize)]
struct GpuRow {
    uuid: String,
    model: String,
    memory_mib: u64,
    numa: Option<u16>,
    links: u16,
}

#[derive(Serialize, Deserialize)]
struct AgentRow {
    boot: String,
    gpus: Vec<GpuRow>,
}

#[derive(Serialize, Deserialize)]
struct LifeRow {
    state: u8,
    agent: Option<AgentRow>,
    unhealthy: Vec<(u8, String)>,
}

#[derive(Serialize, Deserialize)]
struct RemovedRow {
    name: String,
    identity: String,
    id: u64,
    ordinal: u64,
}

/// Follows a [`RemovedRow`], except in a store that was written before it.
#[derive(Serialize, Deserialize)]
struct RemovedVersion {
    version: u64,
}

fn encode<T: Serialize>(row: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_body(row, &mut bytes);
    bytes
}

/// The row of a node that has more to it than being ready or draining.
pub(super) fn encode_life(node: &NodeRecord) -> Option<Vec<u8>> {
    let agent = node.registration.agent.as_deref();
    let plain = matches!(node.state, NodeState::Ready | NodeState::Draining);
    if plain && agent.is_none() && node.unhealthy.is_empty() {
        return None;
    }
    let gpu = |gpu: &GpuDevice| GpuRow {
        uuid: gpu.uuid.to_string(),
        model: gpu.model.to_string(),
        memory_mib: gpu.memory_mib,
        numa: gpu.numa,
        links: gpu.links,
    };
    Some(encode(&LifeRow {
        state: node.state.number(),
        agent: agent.map(|facts| AgentRow {
            boot: facts.boot.to_string(),
            gpus: facts.gpus.iter().map(gpu).collect(),
        }),
        unhealthy: node.unhealthy.iter().map(|(instance, why)| (*instance, why.to_string())).collect(),
    }))
}

/// Adds what the row says to its node.
pub(super) fn decode_life(node: &mut NodeRecord, bytes: &[u8]) -> Result<(), String> {
    let id = node.registration.id;
    let damaged = |what: &str| format!("the life row of node {id} is damaged: {what}");
    let (row, _) = decode_body::<LifeRow>(bytes).map_err(|error| damaged(&error.to_string()))?;
    node.state = NodeState::from_number(row.state).ok_or_else(|| damaged("its state is none"))?;
    let agent = row.agent.map(|agent| AgentFacts {
        boot: agent.boot.into(),
        gpus: agent
            .gpus
            .into_iter()
            .map(|GpuRow { uuid, model, memory_mib, numa, links }| GpuDevice {
                uuid: uuid.into(),
                model: model.into(),
                memory_mib,
                numa,
                links,
            })
            .collect(),
    });
    if agent.as_ref().is_some_and(|agent| agent.gpus.len() > GPU_INSTANCES_MAX) {
        return Err(damaged("it has more devices than a node can have"));
    }
    node.registration.agent = agent.map(Into::into);
    node.unhealthy = row.unhealthy.into_iter().map(|(instance, why)| (instance, why.into())).collect();
    let ascending = node.unhealthy.windows(2).all(|pair| pair[0].0 < pair[1].0);
    if !ascending || node.unhealthy.last().is_some_and(|&(last, _)| last >= node.registration.spec.gpus) {
        return Err(damaged("its unhealthy instances are not instances of the node, each once"));
    }
    Ok(())
}

pub(super) fn encode_removed(node: &RemovedNode) -> Vec<u8> {
    let (name, identity) = (node.name.to_string(), node.identity.to_string());
    let mut bytes = encode(&RemovedRow { name, identity, id: node.id.0, ordinal: node.ordinal.0 });
    encode_body(&RemovedVersion { version: node.version }, &mut bytes);
    bytes
}

/// The removed node of a row; none where the row does not say its last version. Such a machine comes back as a new
/// node, because the versions of the old one would be given again.
pub(super) fn decode_removed(at: u64, bytes: &[u8]) -> Result<Option<RemovedNode>, String> {
    let damaged = |error| format!("the row of removed node {at} is damaged: {error}");
    let (row, taken) = decode_body::<RemovedRow>(bytes).map_err(damaged)?;
    if taken == bytes.len() {
        return Ok(None);
    }
    let (RemovedVersion { version }, _) = decode_body(&bytes[taken..]).map_err(damaged)?;
    let RemovedRow { name, identity, id, ordinal } = row;
    Ok(Some(RemovedNode {
        name: name.into(),
        identity: identity.into(),
        id: NodeId(id),
        ordinal: Ordinal(ordinal),
        version,
    }))
}
