//! The floor: a bare QUIC echo, in a process of its own, with frames as long as the service's.
//!
//! It does for a request what no service over QUIC can leave out: one frame each way, on one long-lived stream per
//! connection, and a reply that finds its request by an id. Frames that are there together are written together.
//! Nothing else is done: no decoding, no session, no scheduling.

mod client;
mod frame;
mod server;

use quinn::TransportConfig;

pub(super) use client::{EchoClient, EchoLoad};
pub(super) use frame::FrameSizes;
pub(super) use server::EchoServer;

/// The chunks of a stream that are taken at once.
const CHUNKS: usize = 64;

/// Returns the transport of both sides: that of quinn, as the service has it.
fn transport() -> TransportConfig {
    TransportConfig::default()
}
