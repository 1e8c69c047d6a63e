//! What waits, by session and sequence. Any I/O thread may be asked to explain it.
//!
//! A wait belongs to the thread of its connection, and only that thread decides about it. What is here is a copy of what its
//! client asked for, from when it begins to wait at a connection until it ends there. It is changed once per beginning and
//! end of a wait. Requests that do not wait never come here.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use wharf_core::ids::{SessionId, TenantId};
use wharf_core::link::lock;
use wharf_core::state::WaitRecord;

/// The number of parts, each with a lock of its own.
const PARTS: usize = 16;

/// A request that waits.
#[derive(Clone, Debug)]
pub(super) struct KnownWait {
    /// The tenant of its session.
    pub(super) tenant: TenantId,
    pub(super) record: WaitRecord,
}

/// The requests of one part, by session and sequence.
type Part = BTreeMap<(SessionId, u64), KnownWait>;

/// All requests that wait at a connection.
#[derive(Debug, Default)]
pub(super) struct WaitsById {
    parts: [Mutex<Part>; PARTS],
}

impl WaitsById {
    fn part(&self, session: SessionId) -> MutexGuard<'_, Part> {
        let part = session.number % PARTS as u64;
        lock(&self.parts[usize::try_from(part).expect("few parts")])
    }

    /// Notes a request that begins to wait.
    pub(super) fn insert(&self, session: SessionId, sequence: u64, wait: KnownWait) {
        self.part(session).insert((session, sequence), wait);
    }

    /// Forgets a request whose wait has ended.
    pub(super) fn remove(&self, session: SessionId, sequence: u64) {
        self.part(session).remove(&(session, sequence));
    }

    /// Returns a request that waits.
    pub(super) fn get(&self, session: SessionId, sequence: u64) -> Option<KnownWait> {
        self.part(session).get(&(session, sequence)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wharf_core::ids::Incarnation;
    use wharf_core::time::Time;

    #[test]
    fn waits_are_found_until_they_end() {
        let waits = WaitsById::default();
        let wait = |since| KnownWait {
            tenant: TenantId(3),
            record: WaitRecord { since: Time(since), kind: 2, request: [7].into() },
        };
        let session = |number| SessionId { incarnation: Incarnation(1), number };
        for number in 1..=40 {
            waits.insert(session(number), 5, wait(number));
        }
        let since = |number, sequence| Some(waits.get(session(number), sequence)?.record.since.0);
        assert_eq!((since(17, 5), since(33, 5), since(17, 6)), (Some(17), Some(33), None));
        waits.remove(session(17), 5);
        assert_eq!((since(17, 5), since(33, 5)), (None, Some(33)));
    }
}
