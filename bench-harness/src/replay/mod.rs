//! Replays a trace: registers its nodes on a target, sends its pods, checks the books, and reports.

mod baseline;
pub use baseline::BaselineRun;
mod driver;
pub use driver::{Decision, Driven, Promised, drive};
mod error;
pub use error::ReplayError;
mod events;
pub use events::{Event, Happening, events};
mod load;
pub use load::{LoadPoint, allocation_at};
mod placements;
pub use placements::write_placements;
mod report;
pub use report::{Findings, LatencyNs, Report, rate};
mod run;
pub use run::{IN_FLIGHT_DEFAULT, Replay, ReplayOptions, check_books, replay_in_process, replay_on};

/// A receiver of the progress of a replay.
pub trait Progress {
    /// Called with the number of decided pods.
    fn advance(&mut self, decided: u64);
}

/// Ignores progress.
pub struct Silent;
impl Progress for Silent {
    fn advance(&mut self, _decided: u64) {}
}
