//! The Wharfinger placement engine.
//!
//! What is absent here, on purpose: sockets, files, clocks, randomness of the operating system,
//! any async runtime, any serialisation format. Time, seeds and thread start come in as
//! arguments, so that the simulator and the fuzzers run the very code that serves.
//!
//! | module | content |
//! |---|---|
//! | [`ids`], [`time`], [`rng`], [`hash`], [`limits`] | what everything rests on |
//! | [`memory`] | what structures take, in bytes |
//! | [`resource`], [`node`], [`request`] | the model: amounts, GPUs, labels, demands |
//! | [`index`] | DistBuckets: which node a policy chooses |
//! | [`fragmentation`] | FGD: which node and GPU leave the least that typical requests cannot use |
//! | [`group`] | placement groups as callers know them |
//! | [`state`] | the durable state as plain data |
//! | [`books`] | parts of the books of one node |
//! | [`shard`] | the state machine `step(batch, now) -> outcomes` and its books |
//! | [`statement`] | work over several shards, all or nothing |
//! | [`view`] | immutable snapshots of a shard, and how readers get them |
//! | [`registrar`] | global records: names, ids, ordinals, resource kinds |
//! | [`link`] | what crosses threads: rings, bells, flags |
//! | [`router`] | which shard is asked, and what all shards together answer |
//! | [`planner`] | groups and statements over several shards: planned on replicas, committed optimistically |
//! | [`executor`] | shards on threads |
//! | [`planted`] | bugs that tests switch on to show that they are found |
//! | [`engine`] | an engine of any number of shards and planners over a durable state |
#![deny(unsafe_code)]
#![warn(missing_docs, clippy::float_arithmetic)]

pub mod books;
pub mod engine;
pub mod executor;
pub mod fragmentation;
pub mod group;
pub mod hash;
pub mod ids;
pub mod index;
pub mod limits;
pub mod link;
pub mod map;
pub mod memory;
pub mod node;
pub mod planner;
pub mod planted;
pub mod registrar;
pub mod request;
pub mod resource;
pub mod rng;
pub mod router;
pub mod shard;
pub mod state;
pub mod statement;
mod sync;
pub mod time;
pub mod view;
