//! The rows of `wharf-bench rpc`, as data.

use serde::Serialize;

use super::arrivals::Arrivals;
use crate::durability::Mode;

/// Who sends the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Callers {
    /// One task has all requests of a connection in flight. It takes the replies that are there, and sends as many new
    /// requests at once.
    Lockstep,
    /// Each request in flight has a task of its own, which waits for its reply.
    Independent,
}

impl Callers {
    /// Both kinds.
    pub const ALL: [Self; 2] = [Self::Lockstep, Self::Independent];

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lockstep => "lockstep",
            Self::Independent => "independent",
        }
    }
}

/// What is sent, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// Places and releases, a fixed number in flight.
    Closed,
    /// Places and releases at a rate.
    Open {
        /// The rule for arrivals.
        arrivals: Arrivals,
        /// The rate.
        rate: Rate,
    },
    /// As closed, but one request in twenty creates or removes a group, and one in twenty updates a node.
    Mixed,
}

impl Load {
    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open { .. } => "open",
            Self::Mixed => "mixed",
        }
    }
}

/// The rate of an open loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Requests per second.
    PerSecond(f64),
    /// Percent of the best closed loop of the same service with one connection and one request per frame.
    PercentOfClosed(f64),
}

/// What a row is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "what", content = "limit", rename_all = "kebab-case")]
pub enum Target {
    /// The median is at most this many times the floor's.
    MedianToFloor(f64),
    /// The 99th and the 99.99th percentile are at most this many times the floor's.
    TailToFloor(f64),
    /// The rate is at least this part of the floor's.
    RateToFloor(f64),
    /// The rate is at least this part of that of the same row in `memory` mode.
    RateToMemory(f64),
    /// The rate is at least this part of that of `served-step`.
    RateToServedStep(f64),
}

/// A row to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowPlan {
    /// The name in `--rows`; empty for a row that the caller made.
    pub name: &'static str,
    /// What is sent, and when.
    pub load: Load,
    /// When replies leave.
    pub mode: Mode,
    /// The number of connections.
    pub connections: usize,
    /// Frames in flight per connection. Of an open loop, the most that may be.
    pub in_flight: usize,
    /// Requests per frame.
    pub batch: usize,
    /// Who sends them.
    pub callers: Callers,
    /// What the row is judged by.
    pub target: Option<Target>,
}

impl RowPlan {
    /// Returns whether `other` is the same but for its mode.
    pub(super) fn is_as(&self, other: &Self) -> bool {
        Self { mode: other.mode, name: other.name, target: other.target, ..*self } == *other
    }
}

/// The most requests in flight on a connection, by the defaults of a service.
const FULL: usize = wharf_net::protocol::IN_FLIGHT_DEFAULT as usize;

const ROW: RowPlan = RowPlan {
    name: "",
    load: Load::Closed,
    mode: Mode::MEMORY,
    connections: 1,
    in_flight: FULL,
    batch: 1,
    callers: Callers::Lockstep,
    target: None,
};

const fn open(name: &'static str, arrivals: Arrivals) -> RowPlan {
    let load = Load::Open { arrivals, rate: Rate::PercentOfClosed(50.0) };
    RowPlan { name, load, target: Some(Target::TailToFloor(3.0)), ..ROW }
}

/// The rows of a run without arguments: those that have targets, and the mixed load.
pub const ROWS: [RowPlan; 12] = [
    RowPlan {
        name: "one",
        in_flight: 1,
        callers: Callers::Independent,
        target: Some(Target::MedianToFloor(2.0)),
        ..ROW
    },
    RowPlan { name: "few", in_flight: 32, target: Some(Target::RateToFloor(0.5)), ..ROW },
    RowPlan {
        name: "few-callers",
        in_flight: 32,
        callers: Callers::Independent,
        target: Some(Target::RateToFloor(0.5)),
        ..ROW
    },
    RowPlan { name: "many", target: Some(Target::RateToFloor(0.4)), ..ROW },
    RowPlan {
        name: "many-callers",
        callers: Callers::Independent,
        target: Some(Target::RateToFloor(0.4)),
        ..ROW
    },
    RowPlan {
        name: "batches",
        in_flight: FULL / 64,
        batch: 64,
        target: Some(Target::RateToServedStep(0.6)),
        ..ROW
    },
    RowPlan {
        name: "connections",
        connections: 1000,
        in_flight: 1,
        callers: Callers::Independent,
        target: Some(Target::RateToFloor(0.6)),
        ..ROW
    },
    open("poisson", Arrivals::Poisson),
    open("bursty", Arrivals::Bursty),
    RowPlan { name: "mixed", load: Load::Mixed, in_flight: 256, ..ROW },
    RowPlan { name: "many-sync", mode: Mode::SYNC, target: Some(Target::RateToMemory(0.5)), ..ROW },
    RowPlan {
        name: "many-callers-sync",
        mode: Mode::SYNC,
        callers: Callers::Independent,
        target: Some(Target::RateToMemory(0.5)),
        ..ROW
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own() {
        for (at, row) in ROWS.iter().enumerate() {
            assert!(!row.name.is_empty() && ROWS[..at].iter().all(|other| other.name != row.name));
            assert!(row.in_flight * row.batch <= FULL, "{}: a connection has no such window", row.name);
        }
    }

    #[test]
    fn a_row_that_is_judged_by_another_finds_it() {
        for row in ROWS.iter().filter(|row| matches!(row.target, Some(Target::RateToMemory(_)))) {
            let same = ROWS.iter().find(|other| other.mode == Mode::MEMORY && row.is_as(other));
            assert!(same.is_some(), "{}", row.name);
        }
    }
}
