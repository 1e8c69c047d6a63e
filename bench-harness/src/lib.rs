//! Measures Wharfinger: replays cluster traces, generates synthetic ones, and compares with a linear scan
//! over all nodes in the same run.
//!
//! | module | contents |
//! |---|---|
//! | [`trace`] | a cluster and its pods, read from files |
//! | [`workload`] | synthetic clusters and workloads in the same format, and the embedded sample |
//! | [`target`] | what a replay drives: the engine in process, a server over QUIC, or the linear scan |
//! | [`replay`] | the driver, its report, the placements file |
//! | [`demo`] | a whole service on loopback under churn; a good first run |
//! | [`durability`] | what it costs that a reply survives a crash |
//! | [`recovery`] | how long a start takes after the service was killed |
//! | [`engine`] | one step of a shard, compared with a floor and a linear scan: speed, visits, memory |
//! | [`rpc`] | requests over QUIC, next to a bare QUIC echo |
//! | [`scaling`] | how many requests the engine decides by the number of its shards |
//! | [`figures`] | the tables of `docs/benchmarks.md`, generated from measurements |
//! | [`groups`] | gangs created and removed over QUIC |
//! | [`views`] | the cost of publishing views, and of their readers |
//! | [`contention`] | several planners over shared shards: conflicts by decision time and load |
//! | [`verify`] | an independent check of a placements file |
//! | [`cli`] | the commands of `wharf-bench` |
#![forbid(unsafe_code)]

pub mod cli;
pub mod contention;
pub mod demo;
pub mod durability;
pub mod engine;
pub mod figures;
pub mod groups;
mod median;
mod process;
pub mod recovery;
pub mod replay;
pub mod rpc;
pub mod scaling;
mod service;
pub mod session;
pub mod target;
pub mod trace;
pub mod verify;
pub mod views;
pub mod workload;
