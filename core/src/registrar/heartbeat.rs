//! Tracks the heartbeats of node agents on the engine's logical clock.
//!
//! Nothing here is durable. After a start, every agent gets a fresh grace period and is asked to report
//! again. Nodes without an agent are not tracked here, so they are never lost.

use crate::ids::NodeId;
use crate::limits::{BEATS_MISSED_MAX, NODE_LOST_AFTER_DEFAULT};
use crate::map::FixedMap;
use crate::time::Time;
use crate::timers::Timers;

/// The state of one agent.
#[derive(Clone, Copy, Debug)]
struct Pulse {
    /// When it was last heard of or expected. `None` once it is lost.
    heard: Option<Time>,
    /// True if its shard was told that the agent is alive, since that was last in doubt.
    told: bool,
    /// The version of its last report to this start of the service.
    version: Option<u64>,
}

/// The consequences of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The agent must report, because the service does not know its last report.
    pub report_again: bool,
    /// The shard must be told that the node is alive.
    pub tell: bool,
}

/// The agents of all nodes.
pub struct Heartbeats {
    /// The time that an agent may be silent, in ns.
    lost_after: u64,
    pulses: FixedMap<NodeId, Pulse>,
    /// The agents that are not lost, by the time when they were last heard of.
    alive: Timers<NodeId>,
    /// Agents that have not been heard of since this time count as heard of at this time.
    granted: Time,
}

impl Default for Heartbeats {
    fn default() -> Self {
        Self {
            lost_after: NODE_LOST_AFTER_DEFAULT,
            pulses: FixedMap::default(),
            alive: Timers::default(),
            granted: Time::default(),
        }
    }
}

impl Heartbeats {
    /// Sets the time that an agent may be silent, in ns. Known agents get a full period from now on.
    pub fn set_lost_after(&mut self, nanos: u64, now: Time) {
        self.lost_after = nanos.max(1);
        self.granted = now;
    }

    /// Returns the time that an agent may be silent, in ns.
    #[must_use]
    pub fn lost_after(&self) -> u64 {
        self.lost_after
    }

    /// Returns the interval between heartbeats, in ns.
    #[must_use]
    pub fn interval(&self) -> u64 {
        self.lost_after / BEATS_MISSED_MAX
    }

    fn set(&mut self, node: NodeId, pulse: Pulse) {
        let before = self.pulses.insert(node, pulse);
        if let Some(heard) = before.and_then(|before| before.heard) {
            self.alive.remove(heard, node);
        }
        if let Some(heard) = pulse.heard {
            self.alive.insert(heard, node);
        }
    }

    /// Returns when an agent that was last heard of at `heard` is lost.
    fn deadline(&self, heard: Time) -> Time {
        Time(heard.max(self.granted).0.saturating_add(self.lost_after))
    }

    /// Records that a node of the store has an agent that this start has not heard of yet.
    pub fn expect(&mut self, node: NodeId, now: Time) {
        self.set(node, Pulse { heard: Some(now), told: false, version: None });
    }

    /// Records an agent's report. The report itself tells the shard that the agent is alive. A joining node
    /// becomes ready only with the first heartbeat, so that heartbeat is passed on too.
    pub fn reported(&mut self, node: NodeId, version: u64, now: Time) {
        self.set(node, Pulse { heard: Some(now), told: false, version: Some(version) });
    }

    /// Records a heartbeat. Returns `None` if no agent reported for the node.
    pub fn beat(&mut self, node: NodeId, version: u64, now: Time) -> Option<Heard> {
        let known = *self.pulses.get(&node)?;
        self.set(node, Pulse { heard: Some(now), told: true, version: known.version });
        Some(Heard { report_again: known.version != Some(version), tell: !known.told })
    }

    /// Returns whether the node has an agent that is not lost.
    #[must_use]
    pub fn is_alive(&self, node: NodeId) -> bool {
        self.pulses.get(&node).is_some_and(|pulse| pulse.heard.is_some())
    }

    /// Returns when the next agent is lost unless it is heard of.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.alive.first().map(|(heard, _)| self.deadline(heard))
    }

    /// Returns at most `most` nodes whose agents were silent for too long. They are now lost.
    ///
    /// If this is called late by a whole period or more, the service itself was not running (a stopped
    /// process, a stalled machine). Messages from agents may still be unread, so all agents get a fresh
    /// period instead.
    pub fn take_lost(&mut self, now: Time, most: usize) -> Vec<NodeId> {
        let Some(first) = self.next_deadline() else { return Vec::new() };
        if now.nanos_since(first) >= self.lost_after {
            self.granted = now;
            return Vec::new();
        }
        let mut lost = Vec::new();
        while lost.len() < most
            && let Some((heard, node)) = self.alive.first()
            && self.deadline(heard) <= now
        {
            let version = self.pulses.get(&node).and_then(|pulse| pulse.version);
            self.set(node, Pulse { heard: None, told: false, version });
            lost.push(node);
        }
        lost
    }

    /// Forgets a removed node.
    pub fn forget(&mut self, node: NodeId) {
        if let Some(heard) = self.pulses.remove(&node).and_then(|pulse| pulse.heard) {
            self.alive.remove(heard, node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);

    fn heartbeats(lost_after: u64) -> Heartbeats {
        let mut heartbeats = Heartbeats::default();
        heartbeats.set_lost_after(lost_after, Time(0));
        heartbeats
    }

    #[test]
    fn a_node_that_is_silent_for_too_long_is_lost_once() {
        let mut beats = heartbeats(30);
        beats.reported(A, 1, Time(0));
        beats.reported(B, 1, Time(5));
        assert_eq!((beats.interval(), beats.next_deadline()), (10, Some(Time(30))));
        assert_eq!(beats.beat(A, 1, Time(20)), Some(Heard { report_again: false, tell: true }));
        assert_eq!(beats.beat(A, 1, Time(21)), Some(Heard { report_again: false, tell: false }));
        assert_eq!(beats.take_lost(Time(34), 9), []);
        assert_eq!(beats.take_lost(Time(35), 9), [B]);
        assert_eq!(beats.take_lost(Time(36), 9), []);
        assert!(beats.is_alive(A) && !beats.is_alive(B));
        assert_eq!(beats.beat(B, 1, Time(40)), Some(Heard { report_again: false, tell: true }));
        assert!(beats.is_alive(B));
        beats.forget(A);
        beats.forget(B);
        assert_eq!((beats.next_deadline(), beats.beat(A, 1, Time(41))), (None, None));
    }

    #[test]
    fn another_version_means_another_report() {
        let mut beats = heartbeats(30);
        beats.reported(A, 7, Time(0));
        assert!(beats.beat(A, 8, Time(1)).unwrap().report_again);
        beats.reported(A, 8, Time(2));
        assert!(!beats.beat(A, 8, Time(3)).unwrap().report_again);
    }

    #[test]
    fn after_a_start_there_is_a_fresh_period_and_a_report_is_wanted() {
        let mut beats = heartbeats(30);
        beats.expect(A, Time(100));
        assert!(beats.is_alive(A), "it has time to come back");
        assert_eq!(beats.take_lost(Time(129), 9), []);
        assert_eq!(beats.beat(A, 1, Time(129)), Some(Heard { report_again: true, tell: true }));
        assert_eq!(beats.take_lost(Time(158), 9), []);
        assert_eq!(beats.take_lost(Time(159), 9), [A]);
    }

    #[test]
    fn a_service_that_was_away_loses_nobody_for_it() {
        let mut beats = heartbeats(30);
        beats.reported(A, 1, Time(0));
        beats.reported(B, 1, Time(20));
        assert_eq!(beats.take_lost(Time(60), 9), []);
        assert_eq!(beats.take_lost(Time(89), 9), []);
        assert_eq!(beats.take_lost(Time(90), 1), [A]);
        assert_eq!(beats.take_lost(Time(90), 1), [B]);
    }
}
