//! The life cycle of a node: its states and transitions, in one table.
//!
//! Two things decide whether a node takes work: the operator's decision (draining), and the agent's reports
//! and heartbeats (joining, lost). A lost node remembers whether it was draining and returns to that state.
//! An operator may change this while the node is lost. Nodes without an agent are only ready or draining.

use std::fmt;

/// The state of a node. Only a ready node takes new work. In every state, a node keeps its allocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeState {
    /// Registered by its agent, which has not yet shown that it knows its node id.
    Joining,
    /// Takes new work.
    Ready,
    /// Takes no new work, by decision of the operator.
    Draining,
    /// The agent has been silent for too long. The allocations stay in the books until the node returns or is
    /// removed.
    Lost {
        /// True if the node is draining when it returns. Otherwise it is ready.
        draining: bool,
    },
}

/// An event in the life of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LifeEvent {
    /// The agent reported the machine's capacity.
    Report,
    /// The agent sent a heartbeat, so it knows the node's id.
    Beat,
    /// The agent was not heard of in time.
    Lose,
    /// The operator wants no new work there.
    Drain,
    /// The operator allows new work again.
    Undrain,
}

/// An event that is invalid in the node's current state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IllegalChange {
    /// The node's state.
    pub state: NodeState,
    /// The rejected event.
    pub event: LifeEvent,
}

impl std::fmt::Display for NodeState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Joining => "joining",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Lost { .. } => "lost",
        })
    }
}

impl NodeState {
    /// Every state.
    pub const ALL: [Self; 5] = [
        Self::Joining,
        Self::Ready,
        Self::Draining,
        Self::Lost { draining: false },
        Self::Lost { draining: true },
    ];

    /// Returns the state after `event`. This is the complete table.
    ///
    /// # Errors
    /// When the event is invalid in this state.
    pub fn after(self, event: LifeEvent) -> Result<Self, IllegalChange> {
        use LifeEvent::{Beat, Drain, Lose, Report, Undrain};
        Ok(match (self, event) {
            (Self::Joining, Report) => Self::Joining,
            (Self::Joining, Beat) | (Self::Ready | Self::Lost { draining: false }, Report | Beat) => {
                Self::Ready
            }
            (Self::Draining | Self::Lost { draining: true }, Report | Beat) => Self::Draining,

            (Self::Joining | Self::Ready, Lose) => Self::Lost { draining: false },
            (Self::Draining, Lose) => Self::Lost { draining: true },
            (Self::Lost { draining }, Lose) => Self::Lost { draining },

            (Self::Joining | Self::Ready | Self::Draining, Drain) => Self::Draining,
            (Self::Lost { .. }, Drain) => Self::Lost { draining: true },

            (Self::Ready | Self::Draining, Undrain) => Self::Ready,
            (Self::Lost { draining: true }, Undrain) => Self::Lost { draining: false },
            // The node was not drained, and an operator cannot vouch for its agent.
            (Self::Joining | Self::Lost { draining: false }, Undrain) => {
                return Err(IllegalChange { state: self, event });
            }
        })
    }

    /// Returns the number of the state in hashes and on disk.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Ready => 1,
            Self::Draining => 2,
            Self::Joining => 3,
            Self::Lost { draining: false } => 4,
            Self::Lost { draining: true } => 5,
        }
    }

    /// Returns the state with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.number() == number)
    }

    /// Returns the name of the state, as commands print it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Lost { draining: false } => "lost",
            Self::Lost { draining: true } => "lost, draining",
        }
    }
}

impl fmt::Display for IllegalChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let remedy = match self.state {
            NodeState::Joining => "it takes work once its agent has joined it",
            _ => "it takes work again when its agent is back",
        };
        write!(f, "is {}, and nothing drained it: {remedy}", self.state.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [LifeEvent; 5] =
        [LifeEvent::Report, LifeEvent::Beat, LifeEvent::Lose, LifeEvent::Drain, LifeEvent::Undrain];

    /// Checks all pairs against the meaning of each event, not against the table.
    #[test]
    fn every_state_follows_every_event_as_its_meaning_says() {
        for state in NodeState::ALL {
            let draining = matches!(state, NodeState::Draining | NodeState::Lost { draining: true });
            let lost = matches!(state, NodeState::Lost { .. });
            for event in EVENTS {
                let after = state.after(event);
                match event {
                    LifeEvent::Report | LifeEvent::Beat => {
                        let joined = state != NodeState::Joining || event == LifeEvent::Beat;
                        let expected = match (joined, draining) {
                            (false, _) => NodeState::Joining,
                            (true, false) => NodeState::Ready,
                            (true, true) => NodeState::Draining,
                        };
                        assert_eq!(after, Ok(expected), "{state:?} {event:?}");
                    }
                    LifeEvent::Lose => assert_eq!(after, Ok(NodeState::Lost { draining }), "{state:?}"),
                    LifeEvent::Drain => {
                        let expected =
                            if lost { NodeState::Lost { draining: true } } else { NodeState::Draining };
                        assert_eq!(after, Ok(expected), "{state:?}");
                    }
                    LifeEvent::Undrain if state == NodeState::Joining || (lost && !draining) => {
                        let refused = after.unwrap_err();
                        assert_eq!(refused, IllegalChange { state, event });
                        assert!(refused.to_string().contains("agent"), "{refused}");
                    }
                    LifeEvent::Undrain => {
                        let expected =
                            if lost { NodeState::Lost { draining: false } } else { NodeState::Ready };
                        assert_eq!(after, Ok(expected), "{state:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_lost_node_comes_back_as_it_was_and_draining_survives() {
        for before in [NodeState::Ready, NodeState::Draining] {
            let lost = before.after(LifeEvent::Lose).unwrap();
            assert_eq!(lost.after(LifeEvent::Report), Ok(before));
            assert_eq!(lost.after(LifeEvent::Beat), Ok(before));
        }
    }

    #[test]
    fn numbers_name_states() {
        for state in NodeState::ALL {
            assert_eq!(NodeState::from_number(state.number()), Some(state));
        }
        assert_eq!((NodeState::from_number(0), NodeState::from_number(6)), (None, None));
    }
}
