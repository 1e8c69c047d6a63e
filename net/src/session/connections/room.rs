//! Room at planners. Who waits for some has it in turn: in [rounds](wharf_core::rounds) over tenants, by the units that they take,
//! and within a tenant in order of arrival. Who waits for the port has [turns](super::turns).

use std::collections::VecDeque;

use wharf_core::ids::TenantId;
use wharf_core::limits::PORT_GROUPS_WAITING_MAX;
use wharf_core::rounds::Rounds;

use super::{ConnectionKey, ConnectionService, PLAN_ROOM};
use crate::limits::PLAN_ROOM_QUANTUM;

/// The connections of a tenant that wait, each with how many units it waits for.
type OfTenant = VecDeque<(ConnectionKey, usize)>;

/// A number of units, and the connections that wait for some. Nobody overtakes who has the turn, however many units it needs.
#[derive(Debug)]
pub(super) struct Room {
    free: usize,
    /// The number of connections that wait.
    waiting: usize,
    /// Tenants that wait or have an overdraft. Empty while nobody waits.
    tenants: Rounds<TenantId, OfTenant, PLAN_ROOM_QUANTUM>,
}

impl Room {
    pub(super) fn new(free: usize) -> Self {
        Self { free, waiting: 0, tenants: Rounds::default() }
    }

    /// Takes units. If there are fewer, or others wait, `waiter` waits for them. Returns whether they were taken.
    pub(super) fn take(&mut self, tenant: TenantId, waiter: ConnectionKey, units: usize) -> bool {
        if self.waiting == 0 && self.free >= units {
            self.free -= units;
            return true;
        }
        self.tenants.entry(tenant).push_back((waiter, units));
        self.waiting += 1;
        false
    }

    pub(super) fn give_back(&mut self, units: usize) {
        self.free += units;
    }

    /// Returns the connection whose turn it is if its units are free. They are taken.
    pub(super) fn next(&mut self) -> Option<ConnectionKey> {
        if self.waiting == 0 {
            return None;
        }
        loop {
            let (tenant, waiting, may_spend) = self.tenants.first().expect("a tenant that waits has turns");
            if let Some(&(waiter, units)) = waiting.front().filter(|_| may_spend) {
                if self.free < units {
                    return None;
                }
                waiting.pop_front();
                self.tenants.charge(tenant, units as u64);
                self.free -= units;
                self.waiting -= 1;
                if self.waiting == 0 {
                    // Nobody is owed anything.
                    self.tenants.clear();
                }
                return Some(waiter);
            }
            self.tenants.end_turn(OfTenant::is_empty);
        }
    }

    /// Checks that all of `whole` was given back.
    fn check(&self, what: &'static str, whole: usize) -> Result<(), RoomTaken> {
        let Self { free, waiting, .. } = *self;
        if free == whole && waiting == 0 {
            return Ok(());
        }
        Err(RoomTaken { what, free: free as isize, whole, waiting })
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

    const ONE: TenantId = TenantId(1);
    const TWO: TenantId = TenantId(2);
    const QUANTUM: usize = PLAN_ROOM_QUANTUM as usize;

    #[test]
    fn room_of_a_tenant_is_taken_in_order_of_arrival() {
        let mut room = Room::new(1);
        assert!(room.take(ONE, 0, 1));
        assert!(!room.take(ONE, 1, 1) && !room.take(ONE, 2, 1));
        assert_eq!(room.next(), None);
        room.give_back(1);
        assert_eq!(room.next(), Some(1));
        room.give_back(1);
        assert!(!room.take(ONE, 3, 1), "nobody overtakes who waits");
        assert_eq!((room.next(), room.next()), (Some(2), None));
    }

    #[test]
    fn who_waits_for_many_units_is_not_overtaken_by_who_needs_few() {
        let mut room = Room::new(4);
        assert!(room.take(ONE, 0, 3) && !room.take(ONE, 1, 2) && !room.take(TWO, 2, 1));
        assert_eq!(room.next(), None, "one is free");
        room.give_back(1);
        assert_eq!((room.next(), room.next()), (Some(1), None));
        room.give_back(1);
        assert_eq!(room.next(), Some(2));
        room.give_back(4);
        room.check("units", 4).expect("all is given back");
    }

    /// A tenant with many connections that wait takes no more than one with one, whatever a request of it needs.
    #[test]
    fn tenants_take_equal_shares_however_many_of_their_connections_wait() {
        const GREEDY: usize = 1000;
        let mut room = Room::new(2 * QUANTUM);
        assert!(room.take(ONE, 0, 2 * QUANTUM));
        for waiter in 0..GREEDY {
            assert!(!room.take(ONE, waiter, 2 * QUANTUM));
        }
        let mut taken = [0; 2];
        let mut of_two = 0;
        for _ in 0..20 * QUANTUM {
            if of_two == 0 {
                // It asks again as soon as it was served.
                assert!(!room.take(TWO, GREEDY, 1));
                of_two = 1;
            }
            let Some(waiter) = room.next() else {
                room.give_back(1);
                continue;
            };
            let is_two = waiter == GREEDY;
            of_two -= usize::from(is_two);
            taken[usize::from(is_two)] += if is_two { 1 } else { 2 * QUANTUM };
        }
        let [one, two] = taken;
        assert!(one >= 4 * QUANTUM && two >= one / 2, "{taken:?}");
    }

    #[test]
    fn a_tenant_that_comes_waits_for_one_turn_of_each_other() {
        let mut room = Room::new(0);
        for waiter in 0..10 * QUANTUM {
            assert!(!room.take(ONE, waiter, 1));
        }
        room.give_back(1);
        assert_eq!(room.next(), Some(0));
        assert!(!room.take(TWO, 9999, 1));
        let before = (0..)
            .find(|_| {
                room.give_back(1);
                room.next() == Some(9999)
            })
            .expect("it has its turn");
        assert!(before <= QUANTUM, "{before} were before it");
    }
}
