//! The client: one QUIC connection with one long-lived stream and many requests in progress.
//!
//! Requests and replies are matched by sequence. A call returns a future. Callers that drive very many
//! requests can pass a [`Completions`] queue instead and take replies in batches. A [`Client`] can be cloned
//! and used from many tasks.
//!
//! Requests are sent in the order of the calls, but one may be executed after a later one. This happens if a
//! request is sent again: after a resumption, or when the server keeps too many unacknowledged outcomes
//! (which only very large pipelined batches reach). Callers that need an order must wait for each reply.

mod error;
pub use error::ClientError;
mod frames;
mod pending;
mod state;
pub use pending::{Completion, Completions};
mod calls;
mod leases;
pub use leases::LeaseKeeper;
mod connection;
pub use connection::{Client, ClientConfig};
mod events;
pub use events::{BookedAllocation, BookedNode, EventBooks, EventFollower};
mod follow;
pub use follow::{Followed, Follower, Mirror, MirroredShard};
