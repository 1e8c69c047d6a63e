//! The network layer of Wharfinger: protocol version 1 over QUIC (TLS 1.3, ALPN `wharf/1`).
//!
//! | module | content |
//! |---|---|
//! | [`protocol`] | messages, kinds and reason codes |
//! | [`limits`] | the bounds of a server |
//! | [`log_limit`] | a bound for lines in logs that peers cause |
//! | [`codec`] | encoding of frames and bodies, within hard limits |
//! | [`convert`] | conversion between wire types and engine types, with all checks of external input |
//! | [`session`] | the state of a client session: each request is executed once and always gets the same reply |
//! | [`server`] | I/O threads: connections, dispatch to the engine's ports, the registrar's task |
//! | [`client`] | a client that pipelines many requests on one connection |
//! | [`socket`] | UDP sockets with large buffers |
//! | [`tls`] | certificates and trust |
//!
//! A faulty peer gets an error reply or a closed connection. It never causes a panic.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod access;
pub mod client;
pub mod codec;
pub mod convert;
pub mod limits;
pub mod log_limit;
pub mod protocol;
pub mod server;
pub mod session;
mod shares;
pub mod socket;
pub mod tls;
mod weight;
