//! The status of a service.

use serde::{Deserialize, Serialize};
use wharf_core::limits::{RESOURCE_KINDS_MAX, SHARDS_MAX};

use super::ServerIdentity;
use super::bounded::{self, field};

/// Requests that wait for capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// That some node could hold if nothing else ran there.
    pub feasible: u64,
    /// That no registered node could hold: a node that joins or grows may.
    pub infeasible: u64,
}

/// Asks for the status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusRequest {
    /// Also check every invariant and compute the canonical hash: O(state), on the shards' threads.
    pub audit: bool,
}

/// The books of one resource, in 1/10 000 units.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResourceStatus {
    /// `cpu`, `memory`, `gpu`, or a custom name.
    #[serde(deserialize_with = "bounded::name::<_, field::Name>")]
    pub name: String,
    /// Capacity.
    pub total: i128,
    /// Held by allocations.
    pub allocated: i128,
    /// In use beyond capacity.
    pub shortfall: i128,
    /// Free, and hidden because it is unhealthy.
    pub unhealthy: i128,
    /// Free, and withheld for reservations and claims.
    pub reserved: i128,
}

/// One shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardStatusBody {
    /// Its number.
    pub shard: u16,
    /// Nodes that take new work.
    pub nodes_ready: u32,
    /// Nodes that are draining.
    pub nodes_draining: u32,
    /// Nodes registered by an agent that has not beaten yet.
    pub nodes_joining: u32,
    /// Nodes whose agent is silent.
    pub nodes_lost: u32,
    /// Reserved nodes.
    pub nodes_reserved: u32,
    /// Live allocations.
    pub allocations: u64,
    /// Placed since the start.
    pub placed: u64,
    /// Refused by this shard since the start.
    pub refused: u64,
    /// Released since the start.
    pub released: u64,
    /// Its canonical hash, when an audit was asked for and its books did not change while they were read.
    pub state_hash: Option<u128>,
}

impl ShardStatusBody {
    /// Registered nodes of the shard.
    #[must_use]
    pub fn nodes(&self) -> u64 {
        [self.nodes_ready, self.nodes_draining, self.nodes_joining, self.nodes_lost]
            .map(u64::from)
            .iter()
            .sum()
    }
}

/// The whole service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusReply {
    /// Who answers.
    pub server: ServerIdentity,
    /// Service time, in ns since the store was created.
    pub now: u64,
    /// In ns since this start.
    pub uptime: u64,
    /// Resident memory of the process, in bytes; 0 where it is unknown.
    pub resident_bytes: u64,
    /// Open connections.
    pub connections: u64,
    /// Per shard.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Shards, { SHARDS_MAX as usize }>")]
    pub shards: Vec<ShardStatusBody>,
    /// Per resource, over all shards.
    #[serde(deserialize_with = "bounded::list::<_, _, field::Resources, { RESOURCE_KINDS_MAX + 3 }>")]
    pub resources: Vec<ResourceStatus>,
    /// Requests that wait.
    pub waiting: Waiting,
    /// The canonical hash of the books, when an audit was asked for and no shard's books changed while they
    /// were read. An audit that finds a fault has no reply: the service ends.
    pub books_hash: Option<u128>,
}
