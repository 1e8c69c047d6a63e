//! The status of a service.

use wharf_core::limits::{RESOURCE_KINDS_MAX, SHARDS_MAX};

use super::ServerIdentity;
use super::bounded::NAME;

bodies! {
    /// Numbers of requests that wait for capacity.
    #[derive(Copy)]
    pub struct Waiting {
        /// Requests that some node could hold if nothing else ran there.
        pub feasible: u64,
        /// Requests that no registered node could hold. A node that joins or grows may change that.
        pub infeasible: u64,
    }

    /// Asks for the status.
    #[derive(Copy)]
    pub struct StatusRequest {
        /// Checks every invariant and computes the canonical hash too. Costs O(state) on the shards' threads.
        pub audit: bool,
    }

    /// The sums of one resource, in 1/10,000 of its unit.
    pub struct ResourceStatus {
        /// `cpu`, `memory`, `gpu`, or a custom name.
        pub name: String [NAME],
        /// Capacity.
        pub total: i128,
        /// In use: allocated, held by undecided statements, or releasing.
        pub allocated: i128,
        /// In use beyond capacity.
        pub shortfall: i128,
        /// Free, but hidden because it is unhealthy.
        pub unhealthy: i128,
        /// Free, but withheld for reservations and claims.
        pub reserved: i128,
    }

    /// The status of one shard.
    pub struct ShardStatusBody {
        /// The shard's number.
        pub shard: u16,
        /// Nodes that take new work.
        pub nodes_ready: u32,
        /// Nodes that are draining.
        pub nodes_draining: u32,
        /// Nodes registered by an agent that has not sent a heartbeat yet.
        pub nodes_joining: u32,
        /// Nodes whose agent is silent.
        pub nodes_lost: u32,
        /// Reserved nodes.
        pub nodes_reserved: u32,
        /// Live allocations.
        pub allocations: u64,
        /// Requests placed since the start.
        pub placed: u64,
        /// Requests refused by this shard since the start.
        pub refused: u64,
        /// Allocations released since the start.
        pub released: u64,
        /// The shard's canonical hash. Present if an audit was requested and the books did not change during
        /// it.
        pub state_hash: Option<u128>,
    }

    /// The status of the whole service.
    pub struct StatusReply {
        /// The server's identity.
        pub server: ServerIdentity,
        /// Service time, in ns since the store was created.
        pub now: u64,
        /// Time since this start of the service, in ns.
        pub uptime: u64,
        /// Resident memory of the process, in bytes. 0 if unknown.
        pub resident_bytes: u64,
        /// Open connections.
        pub connections: u64,
        /// The status of each shard.
        pub shards: Vec<ShardStatusBody> [SHARDS_MAX as usize],
        /// The sums of each resource, over all shards.
        pub resources: Vec<ResourceStatus> [RESOURCE_KINDS_MAX + 3],
        /// Requests that wait.
        pub waiting: Waiting,
        /// The canonical hash of the books. Present if an audit was requested and no shard's books changed
        /// during it. If an audit finds a fault, the service ends without a reply.
        pub books_hash: Option<u128>,
    }
}

impl ShardStatusBody {
    /// Returns the number of registered nodes of the shard.
    #[must_use]
    pub fn nodes(&self) -> u64 {
        [self.nodes_ready, self.nodes_draining, self.nodes_joining, self.nodes_lost]
            .map(u64::from)
            .iter()
            .sum()
    }
}
