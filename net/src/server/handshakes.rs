//! The turns of handshakes. A handshake takes a good part of a millisecond of the thread that also serves the connections
//! that are open. An I/O thread therefore begins only so many per second. Attempts beyond that wait. The networks that they
//! come from take turns, so a crowd at one address delays its own connections first.

use std::collections::{BTreeMap, VecDeque};
use std::future::pending;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use quinn::Incoming;
use tokio::time::{Instant, sleep_until};

use super::admission::ConnectionRoom;
use super::connection::Counted;
use super::io_thread::Io;

/// The time whose handshakes may begin at once after a pause. Longer than the resolution of timers, so that these do not
/// lower the rate.
const AT_ONCE: Duration = Duration::from_millis(4);

/// An attempt to connect, which has room.
pub(super) struct Attempt {
    pub(super) incoming: Incoming,
    /// Its room, until the connection ends.
    pub(super) room: ConnectionRoom,
    /// Counts it until its handshake ends.
    pub(super) counted: Counted,
}

/// Values in turns: one of each network, and of each network in their order.
struct Turns<T> {
    /// The values of networks in the order, with their numbers. A network whose values were all dropped has none until its turn.
    by_network: BTreeMap<IpAddr, VecDeque<(u64, T)>>,
    /// Networks, the next one first.
    order: VecDeque<IpAddr>,
    /// All values as they came, also those that are gone.
    arrivals: VecDeque<(u64, Instant, IpAddr)>,
    last: u64,
}

impl<T> Turns<T> {
    fn new() -> Self {
        Self { by_network: BTreeMap::new(), order: VecDeque::new(), arrivals: VecDeque::new(), last: 0 }
    }

    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    fn push(&mut self, network: IpAddr, now: Instant, value: T) {
        self.last += 1;
        self.arrivals.push_back((self.last, now, network));
        let values = self.by_network.entry(network).or_insert_with(|| {
            self.order.push_back(network);
            VecDeque::new()
        });
        values.push_back((self.last, value));
    }

    fn pop(&mut self) -> Option<T> {
        loop {
            let network = self.order.pop_front()?;
            let values = self.by_network.get_mut(&network).expect("a network in the order is known");
            let value = values.pop_front();
            if values.is_empty() {
                self.by_network.remove(&network);
            } else {
                self.order.push_back(network);
            }
            if let Some((_, value)) = value {
                return Some(value);
            }
        }
    }

    /// Takes out the next value that came more than `patience` ago.
    fn pop_expired(&mut self, now: Instant, patience: Duration) -> Option<T> {
        while let Some(&(number, at, network)) = self.arrivals.front() {
            let values = self.by_network.get_mut(&network);
            let first = values.filter(|values| values.front().is_some_and(|&(first, _)| first == number));
            // The first of all that came is the first of its network, or gone.
            if first.is_some() && now - at <= patience {
                return None;
            }
            self.arrivals.pop_front();
            if let Some((_, value)) = first.and_then(VecDeque::pop_front) {
                return Some(value);
            }
        }
        None
    }
}

/// Spaces events out: so many per second, and after a pause those of [`AT_ONCE`] together.
struct Pace {
    /// When the next one would begin if all so far had been evenly spaced.
    even: Instant,
}

impl Pace {
    /// Returns from when on the next event may be.
    fn due(&self) -> Instant {
        self.even.checked_sub(AT_ONCE).unwrap_or(self.even)
    }

    fn take(&mut self, now: Instant, per_second: u32) {
        self.even = self.even.max(now) + Duration::from_secs(1) / per_second;
    }
}

/// The attempts that wait for their handshakes.
pub(super) struct Handshakes {
    turns: Turns<(Attempt, Counted)>,
    pace: Pace,
}

impl Handshakes {
    pub(super) fn new() -> Self {
        Self { turns: Turns::new(), pace: Pace { even: Instant::now() } }
    }

    /// Lets an attempt wait for its turn.
    pub(super) fn wait(&mut self, io: &Rc<Io>, incoming: Incoming, room: ConnectionRoom) {
        let network = room.network();
        let counted = Counted::new(io, |counters| &counters.handshakes);
        let waiting = Counted::new(io, |counters| &counters.handshakes_waiting);
        self.turns.push(network, Instant::now(), (Attempt { incoming, room, counted }, waiting));
    }

    /// Returns the attempt whose handshake begins next, when it is time. Attempts that waited for longer than a handshake may
    /// take are dropped: nobody waits for them any more. Cancel safe.
    pub(super) async fn next(&mut self, io: &Io) -> Attempt {
        loop {
            if self.turns.is_empty() {
                pending::<()>().await;
            }
            sleep_until(self.pace.due()).await;
            let now = Instant::now();
            while let Some((attempt, _)) = self.turns.pop_expired(now, io.patience.handshake) {
                attempt.incoming.ignore();
            }
            if let Some((attempt, _)) = self.turns.pop() {
                self.pace.take(now, io.shared.sessions.handshakes_per_second());
                return attempt;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    fn all(turns: &mut Turns<u32>) -> Vec<u32> {
        std::iter::from_fn(|| turns.pop()).collect()
    }

    #[test]
    fn networks_take_turns_and_each_keeps_its_order() {
        let mut turns = Turns::new();
        let now = Instant::now();
        (0..4).for_each(|value| turns.push(network(1), now, value));
        turns.push(network(2), now, 10);
        turns.push(network(2), now, 11);
        assert_eq!(turns.pop(), Some(0));
        turns.push(network(3), now, 20);
        assert_eq!(all(&mut turns), [10, 1, 20, 11, 2, 3]);
        assert!(
            turns.is_empty() && turns.by_network.is_empty(),
            "nothing is kept of networks without values"
        );
        turns.push(network(1), now, 4);
        assert_eq!(all(&mut turns), [4]);
    }

    #[test]
    fn what_waited_for_too_long_is_taken_out_of_all_networks() {
        let mut turns = Turns::new();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        for (millis, value) in [(0, 1), (1, 2), (2, 3)] {
            turns.push(network(1), at(millis), value);
        }
        turns.push(network(2), at(3), 10);
        turns.push(network(1), at(4), 4);
        assert_eq!(turns.pop(), Some(1));
        // Those of the first network are old, wherever its turn is.
        let patience = Duration::from_millis(10);
        let old: Vec<u32> = std::iter::from_fn(|| turns.pop_expired(at(13), patience)).collect();
        assert_eq!(old, [2, 3]);
        assert_eq!(turns.pop_expired(at(14), patience), Some(10));
        // A network that has nothing any more keeps its turn until then, and has no second one.
        turns.push(network(2), at(5), 11);
        assert_eq!(all(&mut turns), [11, 4]);
        assert_eq!(turns.pop_expired(at(19), patience), None);
        assert!(turns.is_empty() && turns.by_network.is_empty() && turns.arrivals.is_empty());
    }

    #[test]
    fn events_are_spaced_out_after_those_that_may_come_at_once() {
        let start = Instant::now();
        let mut pace = Pace { even: start };
        let mut now = start;
        let mut begun = Vec::new();
        for _ in 0..8 {
            now = now.max(pace.due());
            pace.take(now, 1000);
            begun.push((now - start).as_millis());
        }
        assert_eq!(begun, [0, 0, 0, 0, 0, 1, 2, 3]);
        // A late timer does not lower the rate.
        now += AT_ONCE;
        let late = (0..5).map(|_| {
            now = now.max(pace.due());
            pace.take(now, 1000);
            (now - start).as_millis()
        });
        assert_eq!(late.collect::<Vec<_>>(), [7, 7, 7, 7, 8]);
        // A long pause is worth no more than a short one.
        now += Duration::from_secs(10);
        let after: Vec<_> = (0..7)
            .map(|_| {
                let at = now.max(pace.due());
                pace.take(at, 1000);
                (at - now).as_millis()
            })
            .collect();
        assert_eq!(after, [0, 0, 0, 0, 0, 1, 2]);
    }
}
