//! The order in which a trace is replayed.
//!
//! Without departures pods arrive in file order and stay. With departures the trace's times are
//! virtual time: events are sorted by time; at one time departures come before arrivals, so that
//! what is given back can be taken; among equals the file's order decides. A pod that leaves at
//! the very time at which it came leaves after that time's arrivals: it cannot leave before it
//! came.

use wharf_core::time::Time;

use crate::trace::{Fault, Place, Trace, TraceError};

/// What happens to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Happening {
    /// A pod that came earlier goes.
    Departure,
    /// It comes.
    Arrival,
    /// A pod goes at the time at which it came.
    DepartureAtOnce,
}

/// One step of a replay. Its order is the order of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    /// When, on the virtual clock.
    pub at: Time,
    /// What.
    pub happening: Happening,
    /// To which pod: its index in the trace.
    pub pod: usize,
}

impl Event {
    /// Whether the pod comes.
    #[must_use]
    pub fn is_arrival(&self) -> bool {
        self.happening == Happening::Arrival
    }
}

/// The events of a trace, in order.
///
/// # Errors
/// When departures are asked for and a pod lacks a time.
pub fn events(trace: &Trace, departures: bool) -> Result<Vec<Event>, TraceError> {
    if !departures {
        let arrival = |pod| Event { at: Time::default(), happening: Happening::Arrival, pod };
        return Ok((0..trace.pods.len()).map(arrival).collect());
    }
    let mut events = Vec::with_capacity(2 * trace.pods.len());
    for (pod, entry) in trace.pods.iter().enumerate() {
        let needed = |time: Option<u64>, column: &str| {
            let file = trace.pods_source.clone();
            let place = Place { file, line: entry.line, column: column.to_owned() };
            time.ok_or(TraceError::Cell { place, fault: Fault::NoTime })
        };
        let created = needed(entry.lifetime.created, "creation_time")?;
        let deleted = needed(entry.lifetime.deleted, "deletion_time")?;
        let leaves = if deleted > created { Happening::Departure } else { Happening::DepartureAtOnce };
        events.push(Event { at: seconds(created), happening: Happening::Arrival, pod });
        events.push(Event { at: seconds(deleted), happening: leaves, pod });
    }
    events.sort_unstable();
    Ok(events)
}

/// The reader refuses times that do not fit; one that comes from elsewhere stands at the end.
fn seconds(seconds: u64) -> Time {
    Time(seconds.saturating_mul(1_000_000_000))
}
