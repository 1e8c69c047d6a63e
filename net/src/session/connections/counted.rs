//! What is counted for each connection whenever its state changes.

use super::{ConnectionKey, ConnectionService};
use crate::session::shared::Counters;

impl ConnectionService {
    /// Notes that the state of a connection has changed.
    pub(super) fn touch(&mut self, key: ConnectionKey) {
        let connection = &mut self.connections[key];
        connection.count_in_flight();
        let is_touched = std::mem::replace(&mut connection.is_touched, true);
        if connection.has_fresh() && !connection.is_fresh {
            connection.is_fresh = true;
            self.fresh.push(key);
        }
        if !is_touched {
            self.touched.push(key);
            self.count_bytes(key);
        }
    }

    /// Counts what is held for a connection, and says how much may be.
    pub(super) fn count_bytes(&mut self, key: ConnectionKey) {
        let (now, before) = self.connections[key].count_bytes();
        self.held_bytes = self.held_bytes + now - before;
        if self.is_tight() {
            if !std::mem::replace(&mut self.is_full_noted, true) {
                Counters::count(&self.shared.counters.held_full);
            }
        } else if self.is_full_noted && self.held_bytes < self.held_bytes_max / 16 * 15 {
            // Not as soon as the next request has ended, so that one time of trouble counts once.
            self.is_full_noted = false;
        }
        self.set_tight(key);
    }

    /// Returns whether all sessions together hold so much that each may hold only a part.
    fn is_tight(&self) -> bool {
        self.held_bytes > self.held_bytes_max
    }

    /// Says how much may be held for a connection.
    pub(super) fn set_tight(&mut self, key: ConnectionKey) {
        let is_tight = self.is_tight();
        self.connections[key].set_tight(is_tight);
    }
}
