//! Room at planners, which is taken in order of arrival. Who waits for the port has [turns](super::turns).

use std::collections::VecDeque;

use wharf_core::limits::PORT_GROUPS_WAITING_MAX;

use super::{ConnectionKey, ConnectionService, PLAN_ROOM};

/// A number of units, and the connections that wait for some. Nobody overtakes who waits.
#[derive(Debug)]
pub(super) struct Room {
    free: usize,
    /// Each with how many it waits for.
    waiting: VecDeque<(ConnectionKey, usize)>,
}

impl Room {
    pub(super) fn new(free: usize) -> Self {
        Self { free, waiting: VecDeque::new() }
    }

    /// Takes units. If there are fewer, or others wait, `waiter` waits for them. Returns whether they were taken.
    pub(super) fn take(&mut self, waiter: ConnectionKey, units: usize) -> bool {
        if self.waiting.is_empty() && self.free >= units {
            self.free -= units;
            return true;
        }
        self.waiting.push_back((waiter, units));
        false
    }

    pub(super) fn give_back(&mut self, units: usize) {
        self.free += units;
    }

    /// Returns the first that waits if its units are free. They are taken.
    pub(super) fn next(&mut self) -> Option<ConnectionKey> {
        let &(waiter, units) = self.waiting.front()?;
        if self.free < units {
            return None;
        }
        self.waiting.pop_front();
        self.free -= units;
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
        self.plan_room.check("planner jobs", PLAN_ROOM)?;
        let taken = |what, free, whole| RoomTaken { what, free, whole, waiting: 0 };
        let (free, whole, waiting) = self.turns.counts();
        if free != whole || waiting > 0 {
            return Err(RoomTaken { waiting, ..taken("requests of the port", free as isize, whole) });
        }
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
        let mut room = Room::new(1);
        assert!(room.take(0, 1));
        assert!(!room.take(1, 1) && !room.take(2, 1));
        assert_eq!(room.next(), None);
        room.give_back(1);
        assert_eq!(room.next(), Some(1));
        room.give_back(1);
        assert!(!room.take(3, 1), "nobody overtakes who waits");
        assert_eq!((room.next(), room.next()), (Some(2), None));
    }

    #[test]
    fn who_waits_for_many_units_is_not_overtaken_by_who_needs_few() {
        let mut room = Room::new(4);
        assert!(room.take(0, 3) && !room.take(1, 2) && !room.take(2, 1));
        assert_eq!(room.next(), None, "one is free");
        room.give_back(1);
        assert_eq!((room.next(), room.next()), (Some(1), None));
        room.give_back(1);
        assert_eq!(room.next(), Some(2));
    }
}
