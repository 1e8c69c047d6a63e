//! Admission of connections. There is a limit for the server and one per address, so that no peer takes the
//! room of all others.
//!
//! A connection counts from its first packet. The address of that packet may be forged. Addresses that are
//! not validated therefore get at most half of the room. Beyond that, a peer must answer a retry packet
//! first.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use wharf_core::link::lock;

use crate::limits::{CONNECTIONS_MAX, CONNECTIONS_UNPROVEN_MAX};

/// Prefix length of an IPv6 network. Its hosts choose the other 64 bits freely (RFC 4291, section 2.5.1).
const NETWORK_BITS: u32 = 64;

#[derive(Default)]
struct Counts {
    all: usize,
    by_network: BTreeMap<IpAddr, u32>,
}

/// Counts of connections that are open or in their handshake, by network.
#[derive(Default)]
pub(super) struct ConnectionRooms(Mutex<Counts>);

/// The decision about a connection attempt.
pub(super) enum Entry {
    /// The connection may enter. It counts until this value is dropped.
    Room(ConnectionRoom),
    /// The peer must validate its address first.
    Validate,
    /// There is no room for the connection.
    Full,
}

/// The room of one connection. Dropping it frees the room.
pub(super) struct ConnectionRoom {
    rooms: Arc<ConnectionRooms>,
    network: IpAddr,
}

/// Returns the network of an address: the whole IPv4 address, or the first half of an IPv6 address.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let bits = u128::from(address) >> NETWORK_BITS << NETWORK_BITS;
            IpAddr::V6(Ipv6Addr::from(bits))
        }
    }
}

impl ConnectionRooms {
    /// Takes room for one more connection from `address`, which may have at most `per_address_max`.
    pub(super) fn enter(
        self: &Arc<Self>,
        address: IpAddr,
        is_validated: bool,
        per_address_max: u32,
    ) -> Entry {
        let network = network(address);
        let mut counts = lock(&self.0);
        let there = counts.by_network.get(&network).copied().unwrap_or(0);
        if counts.all >= CONNECTIONS_MAX || there >= per_address_max {
            return Entry::Full;
        }
        if !is_validated && (there >= per_address_max / 2 || counts.all >= CONNECTIONS_UNPROVEN_MAX) {
            return Entry::Validate;
        }
        counts.all += 1;
        counts.by_network.insert(network, there + 1);
        Entry::Room(ConnectionRoom { rooms: Arc::clone(self), network })
    }
}

impl ConnectionRoom {
    /// Returns the network that the connection comes from.
    pub(super) fn network(&self) -> IpAddr {
        self.network
    }
}

impl Drop for ConnectionRoom {
    fn drop(&mut self) {
        let mut counts = lock(&self.rooms.0);
        counts.all -= 1;
        let there = counts.by_network.get_mut(&self.network).expect("this connection counts");
        *there -= 1;
        if *there == 0 {
            counts.by_network.remove(&self.network);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(entry: Entry) -> ConnectionRoom {
        match entry {
            Entry::Room(room) => room,
            Entry::Validate => panic!("to be validated"),
            Entry::Full => panic!("full"),
        }
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_has_its_own_room_and_gets_it_back() {
        let rooms = Arc::new(ConnectionRooms::default());
        let one = address("192.0.2.1");
        let other = address("192.0.2.2");
        let mut taken: Vec<_> = (0..4).map(|_| room(rooms.enter(one, true, 4))).collect();
        assert!(matches!(rooms.enter(one, true, 4), Entry::Full));
        let others = room(rooms.enter(other, true, 4));
        taken.pop();
        taken.push(room(rooms.enter(one, true, 4)));
        assert!(matches!(rooms.enter(one, true, 4), Entry::Full));
        drop((taken, others));
        let counts = lock(&rooms.0);
        assert_eq!((counts.all, counts.by_network.len()), (0, 0), "nothing is kept of who left");
    }

    #[test]
    fn forged_addresses_get_half_of_the_room() {
        let rooms = Arc::new(ConnectionRooms::default());
        let one = address("192.0.2.1");
        let _taken: Vec<_> = (0..2).map(|_| room(rooms.enter(one, false, 4))).collect();
        assert!(matches!(rooms.enter(one, false, 4), Entry::Validate));
        room(rooms.enter(one, true, 4));
    }

    #[test]
    fn forged_addresses_together_get_half_of_the_room() {
        let rooms = Arc::new(ConnectionRooms::default());
        let nth = |at: usize| IpAddr::from((at as u32).to_le_bytes());
        let taken: Vec<_> =
            (0..CONNECTIONS_UNPROVEN_MAX).map(|at| room(rooms.enter(nth(at), false, 4))).collect();
        let next = nth(CONNECTIONS_UNPROVEN_MAX);
        assert!(matches!(rooms.enter(next, false, 4), Entry::Validate));
        room(rooms.enter(next, true, 4));
        drop(taken);
        room(rooms.enter(next, false, 4));
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_together() {
        let rooms = Arc::new(ConnectionRooms::default());
        let _taken = room(rooms.enter(address("2001:db8:0:1::1"), true, 1));
        assert!(matches!(rooms.enter(address("2001:db8:0:1:ffff::2"), true, 1), Entry::Full));
        room(rooms.enter(address("2001:db8:0:2::1"), true, 1));
        let _mapped = room(rooms.enter(address("::ffff:192.0.2.1"), true, 1));
        assert!(matches!(rooms.enter(address("192.0.2.1"), true, 1), Entry::Full));
    }

    #[test]
    fn all_addresses_together_are_bounded() {
        let rooms = Arc::new(ConnectionRooms::default());
        let nth = |at: usize| IpAddr::from((at as u32).to_le_bytes());
        let taken: Vec<_> = (0..CONNECTIONS_MAX).map(|at| room(rooms.enter(nth(at), true, 4))).collect();
        assert!(matches!(rooms.enter(nth(CONNECTIONS_MAX), true, 4), Entry::Full));
        drop(taken);
        room(rooms.enter(nth(CONNECTIONS_MAX), true, 4));
    }
}
