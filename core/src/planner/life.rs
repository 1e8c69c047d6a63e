//! The states of a group, and the one place where a group goes from one to another.
//!
//! The drawing is in `docs/decisions/planners.md`. The planner's lists of groups follow from the states.

use super::explain::Proof;
use super::{JobTag, Planner};
use crate::group::GroupTurn;
use crate::ids::GroupId;
use crate::time::Time;

/// What a group does, or waits for.
#[derive(Debug)]
pub(super) enum State {
    /// Nothing. A new group begins here and is planned at once.
    Settled,
    /// It is being planned.
    Planning {
        /// As in [`Uncertain`](Self::Uncertain).
        rounds: u8,
        /// The unfinished proof.
        proof: Option<Box<Proof>>,
    },
    /// Some bundles are not placed. It is planned when a node could hold one of them, or at the deadline.
    Waiting {
        /// The deadline of its job.
        deadline: Option<Time>,
        /// Set if the last attempt found no place.
        no_fit: bool,
        /// What it does when something grows that none of its bundles was waiting for.
        on_growth: OnGrowth,
    },
    /// It lost its plan, or its deadline or ticket is over. It is planned in this round or the next one, once
    /// all answers are taken.
    Retrying,
    /// It found no place while something may have been counted twice. It is planned when answers came.
    Uncertain {
        /// How many times in a row.
        rounds: u8,
    },
    /// A proof about it continues in a later round.
    Undecided {
        /// The unfinished proof.
        proof: Option<Box<Proof>>,
    },
    /// It waits until a ticket of its is served.
    Queued {
        /// Its place in the queue.
        turn: u64,
        /// The deadline of its job.
        deadline: Option<Time>,
    },
    /// Its ticket is served.
    Ticket,
    /// A statement that places bundles is in flight.
    Committing {
        /// Set if it is the ticket's.
        by_ticket: bool,
        /// The job that removes the group afterwards.
        removal: Option<JobTag>,
    },
    /// Bundles of it end.
    Ending(Ending),
}

/// A group by its priority: the highest first, then the one that waits longest.
pub(super) type ByPriority = GroupTurn;

/// What a waiting group does when something grows, but no node for a bundle that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnGrowth {
    /// It is planned.
    Plan,
    /// It comes closer to a ticket: others use what grows.
    Count,
    /// Nothing.
    WaitOn,
}

/// The reason why bundles end.
#[derive(Debug)]
pub(super) enum Ending {
    /// The group is removed.
    Removal {
        /// The job.
        tag: JobTag,
        /// The number of bundles that ended so far.
        ended: u32,
    },
    /// These bundles are removed.
    Shrink {
        /// The job.
        tag: JobTag,
        /// The bundles.
        indexes: Vec<u32>,
        /// The job that removes the group afterwards.
        removal: Option<JobTag>,
    },
}

impl State {
    /// Returns whether the group may be planned.
    pub(super) fn is_plannable(&self) -> bool {
        self.may_become(&Self::Planning { rounds: 0, proof: None })
    }

    /// Returns the state for planning the group, with what earlier attempts left.
    pub(super) fn planned(&mut self) -> Self {
        match self {
            Self::Uncertain { rounds } => Self::Planning { rounds: *rounds, proof: None },
            Self::Undecided { proof } => Self::Planning { rounds: 0, proof: proof.take() },
            _ => Self::Planning { rounds: 0, proof: None },
        }
    }

    /// Returns whether the group waits for room, and no statement of its is in flight.
    pub(super) fn seeks(&self) -> bool {
        use State::{Queued, Retrying, Ticket, Uncertain, Undecided, Waiting};
        matches!(
            self,
            Waiting { .. } | Retrying | Uncertain { .. } | Undecided { .. } | Queued { .. } | Ticket
        )
    }

    /// Returns whether a group may go from this state to `next`.
    fn may_become(&self, next: &Self) -> bool {
        use State::{Committing, Planning, Queued, Retrying, Settled, Ticket, Uncertain, Undecided, Waiting};
        let ends = matches!(next, Self::Ending(_));
        let goes_on = match self {
            Planning { .. } => match next {
                Uncertain { .. } | Undecided { .. } | Queued { .. } => true,
                next => matches!(next, Committing { by_ticket: false, .. }),
            },
            Settled | Retrying | Uncertain { .. } | Undecided { .. } => {
                ends || matches!(next, Planning { .. })
            }
            Waiting { .. } => ends || matches!(next, Planning { .. } | Retrying | Queued { .. }),
            Queued { .. } => ends || matches!(next, Retrying | Ticket),
            Ticket => ends || matches!(next, Retrying | Committing { by_ticket: true, .. }),
            Committing { by_ticket: true, .. } => ends || matches!(next, Ticket),
            Committing { by_ticket: false, .. } => ends || matches!(next, Retrying | Queued { .. }),
            Self::Ending(Ending::Shrink { .. }) => false,
            Self::Ending(Ending::Removal { .. }) => return false,
        };
        // Its job was answered, or bundles ended.
        goes_on || matches!(next, Settled | Waiting { .. })
    }

    /// Goes to `next`. Returns the state before.
    ///
    /// # Panics
    /// If the group may not do this.
    fn become_next(&mut self, next: Self) -> Self {
        assert!(self.may_become(&next), "a group that is {self:?} may not become {next:?}");
        std::mem::replace(self, next)
    }
}

impl Planner {
    /// Brings a group into another state. The planner's lists follow.
    pub(super) fn transition(&mut self, id: GroupId, next: State) {
        let group = self.groups.get_mut(&id).expect("a group has states while it is kept");
        let key = group.turn();
        let before = group.state.become_next(next);
        self.unlist(key, &before);
        let group = self.groups.get_mut(&id).expect("just seen");
        group.listed = group.since;
        let key = group.turn();
        if group.state.seeks() {
            self.seeking.insert(key);
        }
        match group.state {
            State::Waiting { deadline, .. } => {
                self.incomplete.insert(key);
                deadline.into_iter().for_each(|deadline| self.deadlines.insert(deadline, id));
                if self.add_placeholder(id) {
                    // A cycle looks for room, so no shard is to report it.
                    return self.unwatch(id);
                }
                self.watch(id);
                if !matches!(self.groups[&id].state, State::Waiting { on_growth: OnGrowth::WaitOn, .. }) {
                    self.growing.insert(key);
                }
            }
            State::Planning { .. } => self.attempt_begins(id),
            State::Retrying => self.retries.push_back(id),
            State::Uncertain { .. } => self.uncertain.push(id),
            State::Undecided { .. } => {
                let client = group.client.expect("whose group is refused has asked for it");
                self.queue.hold(client);
                self.undecided.push_back((id, client));
            }
            State::Queued { turn, deadline } => {
                self.ticket_queue.insert(turn, id);
                deadline.into_iter().for_each(|deadline| self.deadlines.insert(deadline, id));
                self.unwatch(id);
            }
            State::Settled | State::Ending(_) => self.unwatch(id),
            State::Ticket | State::Committing { .. } => {}
        }
    }

    /// Takes a group out of the lists of the state that it leaves. Lists that are taken in turn drop it then.
    pub(super) fn unlist(&mut self, key: ByPriority, before: &State) {
        if before.seeks() {
            self.seeking.remove(&key);
        }
        let deadline = match *before {
            State::Waiting { deadline, .. } => {
                self.incomplete.remove(&key);
                self.growing.remove(&key);
                let now = self.now;
                self.keeper.iter_mut().for_each(|keeper| keeper.end_placeholder(key.2, now));
                deadline
            }
            State::Queued { turn, deadline } => {
                self.ticket_queue.remove(&turn);
                deadline
            }
            _ => return,
        };
        deadline.into_iter().for_each(|deadline| {
            self.deadlines.remove(deadline, key.2);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn states() -> Vec<State> {
        vec![
            State::Settled,
            State::Planning { rounds: 0, proof: None },
            State::Waiting { deadline: None, no_fit: false, on_growth: OnGrowth::Plan },
            State::Retrying,
            State::Uncertain { rounds: 1 },
            State::Undecided { proof: None },
            State::Queued { turn: 0, deadline: None },
            State::Ticket,
            State::Committing { by_ticket: false, removal: None },
            State::Committing { by_ticket: true, removal: None },
            State::Ending(Ending::Shrink { tag: 0, indexes: Vec::new(), removal: None }),
            State::Ending(Ending::Removal { tag: 0, ended: 0 }),
        ]
    }

    /// The legal transitions, in the order of [`states`].
    const LEGAL: [&str; 12] = [
        //     Settled, Planning, Waiting, Retrying, Uncertain, Undecided, Queued, Ticket,
        //     Committing, Committing by ticket, Shrink, Removal
        "+++.......++",
        "+.+.+++.+...",
        "++++..+...++",
        "+++.......++",
        "+++.......++",
        "+++.......++",
        "+.++...+..++",
        "+.++.....+++",
        "+.++..+...++",
        "+.+....+..++",
        "+.+.........",
        "............",
    ];

    #[test]
    fn each_illegal_transition_panics_and_each_legal_one_is_made() {
        for (from, row) in LEGAL.iter().enumerate() {
            for (to, legal) in row.bytes().enumerate() {
                let mut state = states().swap_remove(from);
                let next = states().swap_remove(to);
                let name = format!("{next:?}");
                let before = format!("{state:?}");
                let made = catch_unwind(AssertUnwindSafe(|| state.become_next(next))).is_ok();
                assert_eq!(made, legal == b'+', "{before} to {name}");
                assert_eq!(format!("{state:?}"), if made { name } else { before });
            }
        }
    }
}
