//! What a replay drives. The driver knows this interface only, so the engine in process and a
//! server behind a connection are driven by the same code and report the same figures.
//!
//! A target belongs to one thread. Orders are carried out in the order of [`submit`], as far as
//! the target can promise that (with one shard: exactly; with several: per shard); answers come
//! back in any order and are matched by tag.
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
pub use remote::RemoteTarget;

use wharf_core::ids::AllocationId;
use wharf_core::node::NodeSpec;
use wharf_core::request::PlacementRequest;
use wharf_core::resource::GpuAssignment;
use wharf_core::router::Verdict;
use wharf_core::time::Time;

/// What a target is asked to do.
#[derive(Clone, Debug)]
pub enum Order {
    /// Place a pod.
    Place(PlacementRequest),
    /// End an allocation that the target granted.
    Release(AllocationId),
}

/// What it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Placed.
    Placed(Granted),
    /// Not placed: no node can hold it now, or none ever could.
    Refused(Verdict),
    /// The allocation has ended.
    Released,
}

/// A placement as the driver needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The node: its index among those given to [`Target::register`], over all calls.
    pub node: usize,
    /// To be released by this id.
    pub allocation: AllocationId,
    /// The GPU instances, and how much of each.
    pub gpus: GpuAssignment,
}

/// An answer with the tag of its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// As given to [`Target::submit`].
    pub tag: u64,
    /// The answer.
    pub answer: Answer,
}

/// Capacity and allocations of one resource, in 1/10 000 units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BookSum {
    /// Of all nodes.
    pub capacity: i128,
    /// Held by live allocations.
    pub allocated: i128,
}

/// The target's books, summed over all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// Nodes, whatever their state.
    pub nodes: u64,
    /// Live allocations.
    pub allocations: u64,
    /// Cores.
    pub cpu: BookSum,
    /// MiB.
    pub memory: BookSum,
    /// GPU devices.
    pub gpu: BookSum,
}

/// A target that cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// More orders under way than the target takes.
    #[error("the target has no room for another order: wait for replies first")]
    NoRoom,
    /// A shard's thread is gone.
    #[error("a shard stopped before it answered: its message stands above")]
    ShardStopped,
    /// A thread could not be started.
    #[error("the thread of shard {shard} cannot be started")]
    Thread {
        /// Which.
        shard: u16,
        /// Why.
        source: std::io::Error,
    },
    /// The engine cannot be opened so.
    #[error(transparent)]
    Engine(#[from] wharf_core::engine::EngineError),
    /// A node cannot be registered.
    #[error(transparent)]
    Registrar(#[from] wharf_core::registrar::RegistrarError),
    /// An order that was refused as wrong.
    #[error("the target rejected an order: {0}")]
    Rejected(String),
    /// The connection, the peer, or the process behind it.
    #[error("the target cannot be reached")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Something that places pods on nodes.
pub trait Target {
    /// What stands between driver and engine, as reports name it.
    fn transport(&self) -> &'static str;

    /// How many shards serve it.
    fn shards(&self) -> u16;

    /// Most orders that may be under way at once.
    fn in_flight_max(&self) -> usize;

    /// Registers nodes in this order and waits until all stand.
    ///
    /// # Errors
    /// When one is refused, or the target is gone.
    fn register(&mut self, nodes: &[NodeSpec]) -> Result<(), TargetError>;

    /// Virtual time moves on. Targets with a clock of their own ignore it.
    fn set_now(&mut self, _now: Time) {}

    /// Gives an order; its reply will carry `tag`. It may be held back until the next
    /// [`wait`](Self::wait).
    ///
    /// # Errors
    /// When there is no room, or the target is gone.
    fn submit(&mut self, tag: u64, order: Order) -> Result<(), TargetError>;

    /// Sends what was held back, waits for a reply if orders are under way, and appends all
    /// replies that are there.
    ///
    /// # Errors
    /// When the target is gone.
    fn wait(&mut self, replies: &mut Vec<Reply>) -> Result<(), TargetError>;

    /// How often an order went on to another shard because one refused it, where that is known.
    fn spilled(&self) -> Option<u64> {
        None
    }

    /// Resident memory of the process that serves, in bytes, as the last audit found it.
    fn resident_bytes(&self) -> Option<u64> {
        None
    }

    /// Checks its own invariants and gives its books. Called when nothing is under way.
    ///
    /// # Errors
    /// When the target is gone.
    fn audit(&mut self) -> Result<Books, TargetError>;
}
