//! The journal: what makes acknowledged outcomes survive crashes and power loss.
//!
//! - [`JournalWriter`] takes units from the engine, makes one group commit of all that came in, and says what is
//!   durable. Replies leave then.
//! - [`Store`] has the newest checkpoint and the values after it, and rebuilds the durable state from them.
//! - [`Checkpointer`] reads a checkpoint from the shards, page by page, while they work.
//! - [`JournalLoops`] are the loops of the threads, which run these.
//! - [`EventReader`] reads events from the values, for clients that follow them.
//!
//! The formats are in `row`, `group_row`, `job_row`, `session_row`, `unit_row` and `value`. The engine's own types are not
//! serialisable: `mirror` makes rows from their records and back, so a change to them cannot silently change the format on
//! disk.

mod check;
pub use check::{Checked, Counts, Tail, check};
mod checkpoint;
pub use checkpoint::CheckpointWriter;
mod checkpointer;
pub use checkpointer::Checkpointer;
mod dump;
pub use dump::dump;
mod events;
pub use events::{EventReader, EventsInbox, EventsStart};
mod export;
pub use export::{Export, export_stopped};
mod exporter;
mod files;
pub use files::{Directory, Files};
mod group_row;
mod guard;
pub use guard::{becomes_error, report_other_panics};
mod import;
mod job_row;
pub use import::{Imported, Portable, import, verify, verify_content};
mod log;
pub use log::{Log, LogReader};
mod loops;
pub use loops::{
    CheckpointInbox, CheckpointLoop, CheckpointTurn, JournalBounds, JournalLoop, JournalLoops, JournalStart,
    JournalTurn,
};
mod mirror;
mod numbers;
pub use numbers::random;
mod overlay;
mod portable;
pub use portable::End;
mod reading;
mod recent;
pub use recent::Recent;
mod repair;
pub use repair::{Repaired, repair};
mod retention;
mod row;
mod salvage;
mod session_row;
mod store;
pub use store::{Durability, Recovery, Store};
mod unit_row;
mod value;
pub use value::Before;
mod walk;
pub use walk::Damage;
mod writer;
pub use writer::{Heads, JournalCounters, JournalWriter, Written};

#[cfg(test)]
mod tests;
