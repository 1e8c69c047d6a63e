//! The targets of a replay. The driver uses only this interface, so the engine in process and a server behind
//! a connection are driven by the same code and report the same figures.
//!
//! A target belongs to one thread. Orders are executed in the order of [`submit`] as far as the target can
//! guarantee it: exactly with one shard, per shard with several. Answers arrive in any order and are matched
//! by tag.
//!
//! [`submit`]: Target::submit

mod baseline;
pub use baseline::LinearScan;
mod clock;
pub use clock::ReplayClock;
mod engine;
pub use engine::{EngineTarget, EngineTargetConfig};
mod fragmentation;
pub use fragmentation::{FragmentationScan, NodeState, Price};
mod remote;
pub(crate) use engine::pin;
pub use remote::RemoteTarget;
pub(crate) use remote::{audited_books, place_request};

use wharf_core::ids::AllocationId;
use wharf_core::node::NodeSpec;
use wharf_core::request::PlacementRequest;
use wharf_core::resource::GpuAssignment;
use wharf_core::router::Verdict;
use wharf_core::time::Time;

/// An order to a target.
#[derive(Clone, Debug)]
pub enum Order {
    /// Place a pod.
    Place(PlacementRequest),
    /// Release an allocation that the target granted.
    Release(AllocationId),
}

/// The answer to an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Placed.
    Placed(Granted),
    /// Not placed: no node can hold it now, or no node ever could.
    Refused(Verdict),
    /// The allocation has ended.
    Released,
}

/// A placement, as needed by the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The index of the node among those given to [`Target::register`], over all calls.
    pub node: usize,
    /// The id to release it by.
    pub allocation: AllocationId,
    /// The GPU instances, and the part of each.
    pub gpus: GpuAssignment,
}

/// An answer with the tag of its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The tag given to [`Target::submit`].
    pub tag: u64,
    /// The answer.
    pub answer: Answer,
}

/// Capacity and allocations of one resource, in 1/10,000 units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BookSum {
    /// The capacity of all nodes.
    pub capacity: i128,
    /// The amount held by live allocations.
    pub allocated: i128,
}

/// The target's books, summed over all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// The number of nodes in any state.
    pub nodes: u64,
    /// The number of live allocations.
    pub allocations: u64,
    /// Cores.
    pub cpu: BookSum,
    /// MiB.
    pub memory: BookSum,
    /// GPU devices.
    pub gpu: BookSum,
}

/// An error of a target.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// More orders are in flight than the target takes.
    #[error("the target has no room for another order: wait for replies first")]
    NoRoom,
    /// The thread of a shard has ended.
    #[error("a shard stopped before it answered: its message is above")]
    ShardStopped,
    /// A thread cannot be started.
    #[error("the thread of shard {shard} cannot be started")]
    Thread {
        /// The shard.
        shard: u16,
        /// The cause.
        source: std::io::Error,
    },
    /// The engine cannot be opened with this configuration.
    #[error(transparent)]
    Engine(#[from] wharf_core::engine::EngineError),
    /// A node cannot be registered.
    #[error(transparent)]
    Registrar(#[from] wharf_core::registrar::RegistrarError),
    /// An order was rejected as invalid.
    #[error("the target rejected an order: {0}")]
    Rejected(String),
    /// The connection, the peer or its process failed.
    #[error("the target cannot be reached")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Something that places pods on nodes.
pub trait Target {
    /// Returns the transport between driver and engine, as named in reports.
    fn transport(&self) -> &'static str;

    /// Returns the number of shards.
    fn shards(&self) -> u16;

    /// Returns the maximum number of orders in flight.
    fn in_flight_max(&self) -> usize;

    /// Registers nodes in this order and waits until all are registered.
    ///
    /// # Errors
    /// When a node is refused, or the target is lost.
    fn register(&mut self, nodes: &[NodeSpec]) -> Result<(), TargetError>;

    /// Advances virtual time. Targets with their own clock ignore it.
    fn set_now(&mut self, _now: Time) {}

    /// Submits an order; its reply carries `tag`. The order may be buffered until the next
    /// [`wait`](Self::wait).
    ///
    /// # Errors
    /// When there is no room, or the target is lost.
    fn submit(&mut self, tag: u64, order: Order) -> Result<(), TargetError>;

    /// Sends buffered orders, waits for a reply if orders are in flight, and appends all available replies.
    ///
    /// # Errors
    /// When the target is lost.
    fn wait(&mut self, replies: &mut Vec<Reply>) -> Result<(), TargetError>;

    /// Returns how often an order spilled to another shard after a refusal, if known.
    fn spilled(&self) -> Option<u64> {
        None
    }

    /// Returns the resident memory of the serving process in bytes, as of the last audit.
    fn resident_bytes(&self) -> Option<u64> {
        None
    }

    /// Checks the invariants and returns the books. Called when nothing is in flight.
    ///
    /// # Errors
    /// When the target is lost.
    fn audit(&mut self) -> Result<Books, TargetError>;
}
