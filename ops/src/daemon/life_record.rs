//! Checkpoint rows of node life: a node's state, its agent's report, its unhealthy instances, and removed
//! machines. They have separate tables; a node that is merely ready or draining has no row here.

use serde::{Deserialize, Serialize};
use wharf_core::ids::{NodeId, Ordinal};
use wharf_core::node::NodeState;
use wharf_core::state::{NodeRecord, RemovedNode};
use wharf_net::convert::{agent_body, agent_facts, unhealthy_bodies};
use wharf_net::protocol::{AgentBody, UnhealthyBody};

use super::record::{damaged, decode, encode};

#[derive(Serialize, Deserialize)]
struct LifeRow {
    state: u8,
    agent: Option<AgentBody>,
    unhealthy: Vec<UnhealthyBody>,
}

#[derive(Serialize, Deserialize)]
struct RemovedRow {
    name: String,
    identity: String,
    id: u64,
    ordinal: u64,
    version: u64,
}

/// Returns the row of a node, or `None` if there is nothing to store beyond ready or draining.
pub(super) fn encode_life(node: &NodeRecord) -> Option<Vec<u8>> {
    let agent = node.registration.agent.as_deref();
    let plain = matches!(node.state, NodeState::Ready | NodeState::Draining);
    if plain && agent.is_none() && node.unhealthy.is_empty() {
        return None;
    }
    Some(encode(&LifeRow {
        state: node.state.number(),
        agent: agent.map(agent_body),
        unhealthy: unhealthy_bodies(&node.unhealthy),
    }))
}

/// Applies the row to its node.
pub(super) fn decode_life(node: &mut NodeRecord, bytes: &[u8]) -> Result<(), String> {
    let what = format!("the life row of node {}", node.registration.id);
    let row: LifeRow = decode(&what, bytes)?;
    let state = NodeState::from_number(row.state);
    node.state = state.ok_or_else(|| damaged(&what, "its state is none"))?;
    node.registration.agent = row.agent.map(|agent| agent_facts(agent).into());
    let unhealthy = row.unhealthy.into_iter();
    node.unhealthy = unhealthy.map(|UnhealthyBody { instance, reason }| (instance, reason.into())).collect();
    let ascending = node.unhealthy.windows(2).all(|pair| pair[0].0 < pair[1].0);
    if !ascending || node.unhealthy.last().is_some_and(|&(last, _)| last >= node.registration.spec.gpus) {
        return Err(damaged(what, "its unhealthy instances are not instances of the node, each once"));
    }
    Ok(())
}

pub(super) fn encode_removed(node: &RemovedNode) -> Vec<u8> {
    encode(&RemovedRow {
        name: node.name.to_string(),
        identity: node.identity.to_string(),
        id: node.id.0,
        ordinal: node.ordinal.0,
        version: node.version,
    })
}

pub(super) fn decode_removed(at: u64, bytes: &[u8]) -> Result<RemovedNode, String> {
    let RemovedRow { name, identity, id, ordinal, version } =
        decode(format_args!("the row of removed node {at}"), bytes)?;
    Ok(RemovedNode {
        name: name.into(),
        identity: identity.into(),
        id: NodeId(id),
        ordinal: Ordinal(ordinal),
        version,
    })
}
