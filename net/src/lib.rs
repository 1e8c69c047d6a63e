//! The Wharfinger wire: protocol version 1 over QUIC (TLS 1.3, ALPN `wharf/1`).
//!
//! | module | what stands there |
//! |---|---|
//! | [`protocol`] | messages, kinds, reason codes: what is said |
//! | [`codec`] | frames and bodies: how it is written, within hard limits |
//! | [`convert`] | between wire types and the engine's: every check of what came from outside |
//! | [`session`] | what a server remembers of a client session: answered once, answered the same |
//! | [`server`] | I/O threads: connections, dispatch to the engine's ports, the registrar's task |
//! | [`client`] | a client that pipelines many requests on one connection |
//! | [`tls`] | certificates and trust |
//!
//! A fault of the peer is an error reply or a closed connection, never a panic.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod client;
pub mod codec;
pub mod convert;
mod convert_books;
mod convert_reservations;
pub mod protocol;
pub mod server;
pub mod session;
pub mod tls;
mod weight;
