//! The Wharfinger daemon and its command line.
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | settings from embedded defaults, a TOML file, the environment and flags, in rising order |
//! | [`journal`] | the journal, checkpoints and recovery |
//! | [`daemon`] | a running service: threads, pinning, clock, certificate, storage, shutdown |
//! | [`file_error`] | the error of files and directories |
//! | [`line_error`] | texts in YAML, whose faults name their line |
//! | [`metrics`] | Prometheus metrics over HTTP, with latency from HDR histograms |
//! | [`agent`] | the node agent, which reports a machine to a service and sends heartbeats |
//! | [`scenario`] | scenarios: policies tested in virtual time, from YAML |
//! | [`units`] | amounts of memory and times as texts |
//! | [`certs`] | the certificates of a cluster |
//! | [`logging`] | the log of a service, and its audit log |
//! | [`cli`] | the commands of `wharf` |
#![forbid(unsafe_code)]

pub mod agent;
pub mod audit;
pub mod certs;
mod class_file;
pub mod cli;
pub mod config;
mod cycle_file;
pub mod daemon;
mod default_queue;
pub mod file_error;
mod job_file;
pub mod journal;
pub mod line_error;
pub mod logging;
pub mod metrics;
mod plan_file;
pub mod scenario;
mod terms;
pub mod typical_pods;
pub mod units;
mod unused;
