//! Measures Wharfinger: replays cluster traces, makes synthetic ones, and compares with a plain
//! scan over all nodes in the same run.
//!
//! | module | what stands there |
//! |---|---|
//! | [`trace`] | a cluster and its pods, read from files |
//! | [`workload`] | synthetic clusters and workloads in the same format, and the embedded sample |
//! | [`target`] | what a replay drives: the engine in process, a server over QUIC, the linear scan |
//! | [`replay`] | the driver, its report, the placements file |
//! | [`demo`] | a whole service on loopback under churn: what a newcomer runs first |
//! | [`engine`] | one step of a shard beside a floor and a linear scan: speed, visits, memory |
//! | [`figures`] | the tables of `docs/benchmarks.md`, out of measurements |
//! | [`groups`] | gangs made and removed over QUIC |
//! | [`views`] | what publishing views costs, and their readers |
//! | [`contention`] | several planners over shared shards: conflicts over decision time and load |
//! | [`verify`] | an independent check of a placements file |
//! | [`cli`] | the commands of `wharf-bench` |
#![forbid(unsafe_code)]

pub mod cli;
pub mod contention;
pub mod demo;
pub mod engine;
pub mod figures;
pub mod groups;
pub mod replay;
pub mod target;
pub mod trace;
pub mod verify;
pub mod views;
pub mod workload;
