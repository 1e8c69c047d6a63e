//! The Wharfinger placement engine.
//!
//! The crate deliberately contains no sockets, files, clocks, operating system randomness, async runtime or
//! serialization format. Time, seeds and a way to start threads are passed in as arguments. The simulator and
//! the fuzzers therefore run the same code as the service.
//!
//! | module | content |
//! |---|---|
//! | [`ids`], [`time`], [`rng`], [`hash`], [`limits`] | basic types and constants |
//! | [`memory`] | memory accounting, in bytes |
//! | [`timers`] | times at which something is due, in order |
//! | `touched` | what changed since the last look |
//! | [`lru`] | a cache whose least recently used entry is replaced |
//! | [`resource`], [`node`], [`request`] | the model: amounts, GPUs, labels, demands |
//! | [`index`] | DistBuckets: finds the node that a policy chooses |
//! | [`fragmentation`] | FGD: finds the node and GPU that strand the least capacity for typical requests |
//! | [`group`] | placement groups as callers see them |
//! | [`state`] | the durable state as plain data |
//! | [`journal`] | the effects of a batch on the durable state, and the storage that keeps them |
//! | [`recovery`] | the durable state rebuilt from a checkpoint and the journal after it |
//! | [`books`] | parts of the books of one node |
//! | [`broken`] | broken invariants, as checks report them |
//! | [`shard`] | the state machine `step(batch, now) -> outcomes` and its books |
//! | [`statement`] | atomic operations over several shards |
//! | [`view`] | immutable snapshots of a shard, and how readers get them |
//! | [`registrar`] | global records: names, ids, ordinals, resource kinds |
//! | [`link`] | communication between threads: rings, bells, flags |
//! | [`router`] | routes requests to shards and merges their answers |
//! | [`replica`] | a private copy of a shard that follows its views, for plans |
//! | [`demand`] | the nodes to launch for all that waits, and what would start if they came |
//! | [`planner`] | groups and statements over several shards: planned on replicas, committed optimistically |
//! | [`executor`] | runs shards on threads |
//! | [`planted`] | bugs that tests switch on to show that they are found |
//! | [`engine`] | an engine of any number of shards and planners over a durable state |
#![deny(unsafe_code)]
#![warn(missing_docs, clippy::float_arithmetic)]

pub mod books;
pub mod broken;
pub mod cycle;
pub mod demand;
pub mod engine;
pub mod executor;
pub mod fairness;
pub mod fragmentation;
pub mod group;
pub mod hash;
pub mod ids;
pub mod index;
pub mod jobs;
pub mod journal;
pub mod limits;
pub mod link;
pub mod lru;
pub mod map;
pub mod memory;
pub mod node;
pub mod planner;
pub mod planted;
pub mod recovery;
pub mod registrar;
pub mod replica;
pub mod reply;
pub mod request;
pub mod resource;
pub mod rng;
pub mod rounds;
pub mod router;
pub mod shard;
pub mod state;
pub mod statement;
mod sync;
pub mod time;
pub mod timers;
mod touched;
pub mod view;
