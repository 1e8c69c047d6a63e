//! What is counted for each connection whenever its state changes.

use super::{ConnectionKey, ConnectionService};

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
        self.set_tight(key);
    }

    /// Says how much may be held for a connection.
    pub(super) fn set_tight(&mut self, key: ConnectionKey) {
        let is_tight = self.held_bytes > self.held_bytes_max;
        self.connections[key].set_tight(is_tight);
    }
}
