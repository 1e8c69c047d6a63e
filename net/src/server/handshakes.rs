//! The turns of handshakes. A handshake takes a good part of a millisecond of the thread that also serves the connections
//! that are open. An I/O thread therefore begins only so many per second. Attempts beyond that wait. The networks that they
//! come from take turns, so a crowd at one address delays its own connections first.
//!
//! A peer may begin a handshake and not go on with it, also if it has proved its address. The number of handshakes that have
//! begun is therefore bounded. Beyond that, the oldest of the network with the most ends for the next one.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::pending;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use quinn::Incoming;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::admission::ConnectionRoom;
use super::connection::Counted;
use super::io_thread::Io;
use crate::limits::HANDSHAKE_LEAST;
use crate::shares::{Most, Shares};

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

/// A handshake that has begun: when, and its number.
type BegunKey = (Instant, u64);

/// What ends each handshake that has begun, by network. Dropping it ends the handshake.
#[derive(Default)]
struct BegunEnds {
    by_network: Shares<IpAddr, BegunKey>,
    ends: BTreeMap<BegunKey, oneshot::Sender<()>>,
    last: u64,
}

impl BegunEnds {
    /// Returns from when on another handshake may begin if `most` may have begun. `None`: there is room.
    fn room_from(&self, most: usize) -> Option<Instant> {
        if self.ends.len() < most {
            return None;
        }
        let (_, (begun, _)) = self.by_network.first_of_most(Most::Keys)?;
        Some(begun + HANDSHAKE_LEAST)
    }

    /// Begins a handshake. If `most` have begun, the oldest of the network with the most ends.
    fn begin(&mut self, network: IpAddr, now: Instant, most: usize) -> (BegunKey, oneshot::Receiver<()>) {
        if self.ends.len() >= most
            && let Some((network, oldest)) = self.by_network.first_of_most(Most::Keys)
        {
            self.end(network, oldest);
        }
        self.last += 1;
        let key = (now, self.last);
        let (end, ended) = oneshot::channel();
        self.by_network.insert(network, key, 0);
        self.ends.insert(key, end);
        (key, ended)
    }

    /// Forgets a handshake. It may have ended before.
    fn end(&mut self, network: IpAddr, key: BegunKey) {
        if self.ends.remove(&key).is_some() {
            self.by_network.remove(network, key, 0);
        }
    }
}

/// The handshakes of an I/O thread that have begun and are not complete.
#[derive(Default)]
pub(super) struct Begun {
    ends: RefCell<BegunEnds>,
    /// Notified when one has ended.
    ended: Notify,
}

/// The room of a handshake that has begun. Dropping it gives the room back.
pub(super) struct BegunRoom {
    io: Rc<Io>,
    network: IpAddr,
    key: BegunKey,
    given_up: oneshot::Receiver<()>,
}

impl BegunRoom {
    fn take(io: &Rc<Io>, network: IpAddr, now: Instant) -> Self {
        let most = io.shared.sessions.bounds().handshakes_begun;
        let (key, given_up) = io.begun.ends.borrow_mut().begin(network, now, most);
        Self { io: Rc::clone(io), network, key, given_up }
    }

    /// Waits until another handshake has taken the room.
    pub(super) async fn given_up(&mut self) {
        // Nothing is sent: the other end is dropped.
        let _ = (&mut self.given_up).await;
    }
}

impl Drop for BegunRoom {
    fn drop(&mut self) {
        self.io.begun.ends.borrow_mut().end(self.network, self.key);
        self.io.begun.ended.notify_one();
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
    pub(super) async fn next(&mut self, io: &Rc<Io>) -> (Attempt, BegunRoom) {
        loop {
            if self.turns.is_empty() {
                pending::<()>().await;
            }
            sleep_until(self.pace.due()).await;
            let now = Instant::now();
            while let Some((attempt, _)) = self.turns.pop_expired(now, io.patience.handshake) {
                attempt.incoming.ignore();
            }
            let room_from = io.begun.ends.borrow().room_from(io.shared.sessions.bounds().handshakes_begun);
            if let Some(from) = room_from.filter(|&from| now < from) {
                // One ends by itself, or the oldest has had its time.
                let _ = timeout_at(from, io.begun.ended.notified()).await;
                continue;
            }
            if let Some((attempt, _)) = self.turns.pop() {
                self.pace.take(now, io.shared.sessions.handshakes_per_second());
                let room = BegunRoom::take(io, attempt.room.network(), now);
                return (attempt, room);
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
    fn the_oldest_handshake_of_the_network_with_the_most_ends_for_the_next_one() {
        let mut begun = BegunEnds::default();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let (quiet, mut quiet_ends) = begun.begin(network(2), at(0), 3);
        let (_, mut first_ends) = begun.begin(network(1), at(1), 3);
        assert_eq!(begun.room_from(3), None);
        let (second, mut second_ends) = begun.begin(network(1), at(2), 3);
        // The one of the other network is older.
        assert_eq!(begun.room_from(3), Some(at(1) + HANDSHAKE_LEAST));
        let is_told =
            |ends: &mut oneshot::Receiver<()>| ends.try_recv() == Err(oneshot::error::TryRecvError::Closed);
        let (third, mut third_ends) = begun.begin(network(3), at(3), 3);
        let told = [&mut quiet_ends, &mut first_ends, &mut second_ends, &mut third_ends].map(is_told);
        assert_eq!(told, [false, true, false, false]);
        // Now all have as many, so the oldest of all is the next one.
        assert_eq!(begun.room_from(3), Some(at(0) + HANDSHAKE_LEAST));
        begun.end(network(2), quiet);
        begun.end(network(2), quiet);
        assert_eq!(begun.room_from(3), None);
        begun.end(network(1), second);
        begun.end(network(3), third);
        assert_eq!(begun.by_network.first_of_most(Most::Keys), None);
        assert!(begun.ends.is_empty());
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
