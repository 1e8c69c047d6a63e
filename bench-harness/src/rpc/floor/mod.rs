//! The floor: a bare QUIC echo, in a process of its own, with frames as long as the service's.
//!
//! It does for a request what no service over QUIC can leave out: one frame each way, on one long-lived stream per
//! connection, and a reply that finds its request by an id. Frames that are there together are written together.
//! Nothing else is done: no decoding, no session, no scheduling.

mod client;
mod frame;
mod server;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Context;
use quinn::{Endpoint, EndpointConfig, ServerConfig, TokioRuntime, TransportConfig};
use wharf_net::socket;

pub(super) use client::{EchoClient, EchoLoad};
pub(super) use frame::FrameSizes;
pub(super) use server::EchoServer;

/// The chunks of a stream that are taken at once.
const CHUNKS: usize = 64;

/// Opens a socket on loopback. Needs a runtime.
fn endpoint(server: Option<ServerConfig>) -> anyhow::Result<Endpoint> {
    let any: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
    let socket = socket::bind(any, false).context("the echo has no socket on loopback")?;
    Endpoint::new(EndpointConfig::default(), server, socket, Arc::new(TokioRuntime))
        .context("the echo's socket cannot be used")
}

/// Returns the transport of both sides: that of quinn, as the service has it.
fn transport() -> TransportConfig {
    TransportConfig::default()
}
