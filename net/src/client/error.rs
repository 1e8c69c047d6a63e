//! What can go wrong for a client.

use std::net::SocketAddr;

use crate::codec::{BodyError, FrameError};
use crate::protocol::Fault;

/// Why a call has no reply, or a connection could not be made.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// The trust or the address cannot be used.
    #[error("cannot connect to {server}: {message}")]
    Setup {
        /// The server.
        server: SocketAddr,
        /// What is wrong.
        message: String,
    },
    /// No connection came about.
    #[error("cannot connect to {server}: {message}")]
    Connect {
        /// The server.
        server: SocketAddr,
        /// What is wrong and the remedy.
        message: String,
    },
    /// The connection is gone. Whether requests under way were done is unknown: resume the
    /// session to learn it.
    #[error("the connection is gone, and whether the request was done is unknown: {0}")]
    ConnectionLost(String),
    /// The request is longer than a frame may be; it was not sent.
    #[error("the request cannot be sent: {0}")]
    TooLong(FrameError),
    /// The server sent what is no frame.
    #[error("the server sent what is no frame: {0}")]
    Frame(#[from] FrameError),
    /// The server sent a body that cannot be read.
    #[error("the server's reply cannot be read: {0}")]
    Body(#[from] BodyError),
    /// The server answered that something is wrong with the request.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// What a failed connection attempt means to a person.
pub(super) fn connect_message(error: &quinn::ConnectionError) -> String {
    // TLS alerts as QUIC codes (RFC 9001, 4.8): 0x100 plus the alert.
    const ALERT_NO_APPLICATION_PROTOCOL: u64 = 0x100 + 120;
    // CONNECTION_REFUSED (RFC 9000, 20.1).
    const REFUSED: u64 = 0x2;
    let code = match error {
        quinn::ConnectionError::ConnectionClosed(close) => u64::from(close.error_code),
        quinn::ConnectionError::TransportError(error) => u64::from(error.code),
        quinn::ConnectionError::TimedOut => {
            return "nothing answers there: is the server running, and is the address right?".to_owned();
        }
        _ => 0,
    };
    if code == REFUSED {
        return "the server has as many connections as it takes, in all or from this address (its setting \
                `connections_per_address_max`): close some, or try again later"
            .to_owned();
    }
    if code == ALERT_NO_APPLICATION_PROTOCOL {
        return "the server does not speak the protocol `wharf/1` (no common ALPN)".to_owned();
    }
    format!("{error}")
}

/// An error and what caused it: quinn's own text says only that the connection was lost.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
