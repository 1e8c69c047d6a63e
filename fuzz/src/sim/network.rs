//! Messages in flight between clients and the service. Each may be delivered at any time, in any order, more
//! than once, or never. The session rules must tolerate all of this.

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Towards {
    /// To the service.
    Server,
    /// To the client.
    Client,
}

/// One frame in flight.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) connection: u64,
    pub(super) towards: Towards,
    pub(super) frame: Vec<u8>,
}

/// The highest number of messages in flight. Beyond it, the oldest is lost.
const UNDER_WAY_MAX: usize = 256;

/// All messages in flight, oldest first.
#[derive(Default)]
pub(super) struct Network(Vec<Message>);

impl Network {
    pub(super) fn send(&mut self, connection: u64, towards: Towards, frame: Vec<u8>) {
        if self.0.len() == UNDER_WAY_MAX {
            self.0.remove(0);
        }
        self.0.push(Message { connection, towards, frame });
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes and returns the message at `place`.
    pub(super) fn take(&mut self, place: usize) -> Message {
        self.0.remove(place)
    }

    /// Sends a second copy of the message at `place`.
    pub(super) fn double(&mut self, place: usize) {
        let copy = self.0[place].clone();
        self.send(copy.connection, copy.towards, copy.frame);
    }

    /// Drops all messages to a server that is gone.
    pub(super) fn lose_requests(&mut self) {
        self.0.retain(|message| message.towards == Towards::Client);
    }
}
