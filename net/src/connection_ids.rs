//! Ids of connections at the server's side.
//!
//! When an address is to be validated, the retry packet names an id that the client sends to. quinn does not check that no
//! connection has this id already, and gives a packet to a connection before it takes it for a new one. A client that got
//! the id of another connection was never answered. The ids of quinn's own generator differ in 24 bits. With a thousand
//! connections, and several ids each, one of a few thousand clients got one that was in use.
//!
//! These ids differ in 64 bits. As with quinn's, a server recognises its own ids, also those of an earlier start, so it
//! answers no other unknown packet with a reset.

use quinn::{ConnectionId, ConnectionIdGenerator};
use quinn_proto::InvalidCid;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

const RANDOM_BYTES: usize = 8;
const TAG_BYTES: usize = 4;

/// Makes ids of random bytes and a tag over them.
pub(crate) struct ConnectionIds {
    key: hmac::Key,
    random: SystemRandom,
}

impl ConnectionIds {
    /// Creates it with the secret by which ids are recognised.
    pub(crate) fn new(secret: &[u8]) -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, secret), random: SystemRandom::new() }
    }

    fn tag(&self, random: &[u8]) -> [u8; TAG_BYTES] {
        let tag = hmac::sign(&self.key, random);
        *tag.as_ref().first_chunk().expect("a tag has 32 bytes")
    }
}

impl ConnectionIdGenerator for ConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; RANDOM_BYTES + TAG_BYTES];
        let (random, tag) = id.split_at_mut(RANDOM_BYTES);
        self.random.fill(random).expect("the system has random numbers: it could start TLS");
        tag.copy_from_slice(&self.tag(random));
        ConnectionId::new(&id)
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        let (random, tag) = id.split_at_checked(RANDOM_BYTES).ok_or(InvalidCid)?;
        if tag == self.tag(random) { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        RANDOM_BYTES + TAG_BYTES
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn many_ids_are_different() {
        let mut ids = ConnectionIds::new(b"secret");
        let made: HashSet<Vec<u8>> = (0..100_000).map(|_| ids.generate_cid().to_vec()).collect();
        // With 24 bits, about 300 would be equal to another one.
        assert_eq!(made.len(), 100_000);
        assert!(made.iter().all(|id| id.len() == ids.cid_len()));
    }

    #[test]
    fn ids_are_recognised_by_those_with_the_same_secret() {
        let mut ids = ConnectionIds::new(b"secret");
        let id = ids.generate_cid();
        assert!(ConnectionIds::new(b"secret").validate(&id).is_ok());
        assert!(ConnectionIds::new(b"another").validate(&id).is_err());
        let mut other = id.to_vec();
        other[0] ^= 1;
        assert!(ids.validate(&ConnectionId::new(&other)).is_err());
        assert!(ids.validate(&ConnectionId::new(&id[..4])).is_err());
    }
}
