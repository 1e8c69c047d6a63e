//! The Wharfinger daemon and its command line.
//!
//! | module | what stands there |
//! |---|---|
//! | [`config`] | settings: embedded defaults, TOML file, environment, flags, in rising order |
//! | [`daemon`] | a running service: threads, pinning, clock, certificate, storage, shutdown |
//! | [`metrics`] | Prometheus metrics over HTTP, latency out of HDR histograms |
//! | [`agent`] | the node agent: what a machine has, reported to a service, and beats |
//! | [`cli`] | the commands of `wharf` |
#![forbid(unsafe_code)]

pub mod agent;
pub mod cli;
pub mod config;
pub mod daemon;
pub mod metrics;
pub mod planner_metrics;
pub mod typical_pods;
