//! End-to-end tests of the real binary: every command with text and JSON output, exit statuses and error
//! messages; and the daemon's signals, restarts, reloads, metrics and certificates.

mod harness;

#[path = "binary/agent.rs"]
mod agent;
#[path = "binary/books.rs"]
mod books;
#[path = "binary/cancels.rs"]
mod cancels;
#[path = "binary/commands.rs"]
mod commands;
#[path = "binary/deadlines.rs"]
mod deadlines;
#[path = "binary/disk.rs"]
mod disk;
#[path = "binary/durable_waits.rs"]
mod durable_waits;
#[path = "binary/events.rs"]
mod events;
#[path = "binary/exactly_once.rs"]
mod exactly_once;
#[path = "binary/explain.rs"]
mod explain;
#[path = "binary/faults.rs"]
mod faults;
#[path = "binary/floods.rs"]
mod floods;
#[path = "binary/geometry.rs"]
mod geometry;
#[path = "binary/groups.rs"]
mod groups;
#[path = "binary/jobs.rs"]
mod jobs;
#[path = "binary/jobs_page.rs"]
mod jobs_page;
#[path = "binary/journal.rs"]
mod journal;
#[path = "binary/kills.rs"]
mod kills;
#[path = "binary/leases.rs"]
mod leases;
#[path = "binary/memory.rs"]
mod memory;
#[path = "binary/metrics.rs"]
mod metrics;
#[path = "binary/plans.rs"]
mod plans;
#[path = "binary/priority_classes.rs"]
mod priority_classes;
#[path = "binary/reload.rs"]
mod reload;
#[path = "binary/reservations.rs"]
mod reservations;
#[path = "binary/restarts.rs"]
mod restarts;
#[path = "binary/security.rs"]
mod security;
#[path = "binary/waits.rs"]
mod waits;
#[path = "binary/watch.rs"]
mod watch;
