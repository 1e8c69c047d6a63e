//! Room that is taken in order of arrival.

use std::collections::VecDeque;

use wharf_core::limits::{PORT_GROUPS_WAITING_MAX, PORT_IN_FLIGHT_MAX};

use super::{ConnectionKey, ConnectionService, PLAN_ROOM};

/// What waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiter {
    /// A connection with parts to submit.
    Connection(ConnectionKey),
    /// An operation that submits its next part.
    Operation(usize),
}

/// A number of units, and those that wait for some. Nobody overtakes who waits.
#[derive(Debug)]
pub(super) struct Room {
    free: usize,
    waiting: VecDeque<(Waiter, usize)>,
}

impl Room {
    pub(super) fn new(free: usize) -> Self {
        Self { free, waiting: VecDeque::new() }
    }

    /// Takes `units`. If there are too few, or others wait, `waiter` waits for them. Returns whether they were
    /// taken.
    pub(super) fn take(&mut self, waiter: Waiter, units: usize) -> bool {
        if self.waiting.is_empty() && self.free >= units {
            self.free -= units;
            return true;
        }
        self.wait(waiter, units);
        false
    }

    /// Lets `waiter` wait for `units`, even if they are free.
    pub(super) fn wait(&mut self, waiter: Waiter, units: usize) {
        self.waiting.push_back((waiter, units));
    }

    pub(super) fn give_back(&mut self, units: usize) {
        self.free += units;
    }

    /// Returns the first that waits if its units are free. They are taken.
    pub(super) fn next(&mut self) -> Option<Waiter> {
        let &(waiter, units) = self.waiting.front()?;
        self.free = self.free.checked_sub(units)?;
        self.waiting.pop_front();
        Some(waiter)
    }

    /// Checks that all of `whole` was given back.
    fn check(&self, what: &'static str, whole: usize) -> Result<(), RoomTaken> {
        let Self { free, ref waiting } = *self;
        if free == whole && waiting.is_empty() {
            return Ok(());
        }
        Err(RoomTaken { what, free: free as isize, whole, waiting: waiting.len() })
    }
}

/// Room that is taken, or waited for, although nothing is in progress.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("of {whole} {what}, {free} are free, and {waiting} wait for some, although nothing is in progress")]
pub struct RoomTaken {
    what: &'static str,
    free: isize,
    whole: usize,
    waiting: usize,
}

impl ConnectionService {
    /// Checks that all room was given back. Nothing may be in progress. A checker calls it.
    ///
    /// # Errors
    /// The first kind of room of which some is taken.
    pub fn check_room(&self) -> Result<(), RoomTaken> {
        self.port_room.check("requests of the port", PORT_IN_FLIGHT_MAX)?;
        self.plan_room.check("planner jobs", PLAN_ROOM)?;
        let taken = |what, free, whole| RoomTaken { what, free, whole, waiting: 0 };
        if self.group_room != PORT_GROUPS_WAITING_MAX as isize {
            return Err(taken("groups that may wait", self.group_room, PORT_GROUPS_WAITING_MAX));
        }
        if self.candidates_waiting > 0 {
            return Err(taken("candidates that wait", -(self.candidates_waiting as isize), 0));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_taken_in_order_of_arrival() {
        let first = Waiter::Connection(1);
        let second = Waiter::Operation(2);
        let mut room = Room::new(3);
        assert!(room.take(Waiter::Connection(0), 2));
        assert!(!room.take(first, 2), "one unit is too few");
        assert!(!room.take(second, 1), "it would fit, and does not overtake");
        assert_eq!(room.next(), None);
        room.give_back(2);
        assert_eq!(room.next(), Some(first));
        assert_eq!(room.next(), Some(second));
        assert_eq!(room.next(), None);
        assert!(!room.take(first, 1));
    }
}
