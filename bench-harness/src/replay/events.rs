//! The order in which a trace is replayed.
//!
//! Without departures, pods arrive in file order and never leave. With departures, the trace's times are
//! virtual time and events are sorted by time. At the same time, departures come before arrivals, so that
//! freed capacity can be used; otherwise file order decides. A pod whose deletion time equals its creation
//! time leaves after the arrivals of that time.

use wharf_core::time::Time;

use crate::trace::{Fault, Place, Trace, TraceError};

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Happening {
    /// A pod that arrived earlier leaves.
    Departure,
    /// A pod arrives.
    Arrival,
    /// A pod leaves at the time at which it arrived.
    DepartureAtOnce,
}

/// One event of a replay. Events are ordered as they are replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    /// The virtual time.
    pub at: Time,
    /// The kind of event.
    pub happening: Happening,
    /// The index of the pod in the trace.
    pub pod: usize,
}

impl Event {
    /// Returns whether the pod arrives.
    #[must_use]
    pub fn is_arrival(&self) -> bool {
        self.happening == Happening::Arrival
    }
}

/// Returns the events of a trace in order.
///
/// # Errors
/// When departures are requested and a pod lacks a time.
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

/// Converts seconds to virtual time. The reader refuses times that do not fit; the largest time applies to
/// any others.
fn seconds(seconds: u64) -> Time {
    Time(seconds.saturating_mul(1_000_000_000))
}
