//! The client: one QUIC connection, one long-lived stream, many requests under way.
//!
//! Requests are matched with replies by sequence. Whoever calls gets a future; whoever drives
//! very many requests gives a [`Completions`] queue instead and takes replies in batches. A
//! [`Client`] can be cloned and used from many tasks; requests are sent in the order of calls.
//! One may still be done after a later one: when the server keeps more unacknowledged outcomes
//! than it can (only very large pipelined batches reach that), or after a resumption, a request
//! is sent again. Whoever needs an order waits for the reply.

mod error;
pub use error::ClientError;
mod pending;
pub use pending::{Completion, Completions};
mod calls;
mod connection;
pub use connection::{Client, ClientConfig};
mod follow;
pub use follow::{Followed, Follower, Mirror, MirroredShard};
