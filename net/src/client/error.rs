//! The errors of a client.

use std::net::SocketAddr;

use crate::codec::{BodyError, FrameError};
use crate::protocol::Fault;

/// Why a call has no reply, or a connection could not be made.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// The trust roots or the address cannot be used.
    #[error("cannot connect to {server}: {message}")]
    Setup {
        /// The server.
        server: SocketAddr,
        /// The problem.
        message: String,
    },
    /// No connection could be made.
    #[error("cannot connect to {server}: {message}")]
    Connect {
        /// The server.
        server: SocketAddr,
        /// The problem and the remedy.
        message: String,
    },
    /// The connection is gone and was not resumed in time (`ClientConfig::retry_for`). Whether requests in progress were
    /// executed is known to the service, but not to this client.
    #[error("the connection is gone, and whether the request was done is unknown: {0}")]
    ConnectionLost(String),
    /// The service no longer has the session. The outcome of requests in progress is unknown: look at the books before
    /// they are sent again.
    #[error("unknown outcome: the service no longer has the session of this client: {0}")]
    SessionGone(String),
    /// The request is longer than a frame may be. It was not sent.
    #[error("the request cannot be sent: {0}")]
    TooLong(FrameError),
    /// The server sent bytes that are not a frame.
    #[error("the server sent what is no frame: {0}")]
    Frame(#[from] FrameError),
    /// The server sent a body that cannot be read.
    #[error("the server's reply cannot be read: {0}")]
    Body(#[from] BodyError),
    /// The server found a fault in the request.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Explains a failed connection attempt to a person.
pub(super) fn connect_message(error: &quinn::ConnectionError) -> String {
    // TLS alerts as QUIC codes: 0x100 plus the alert (RFC 9001, section 4.8).
    const ALERTS: u64 = 0x100;
    const ALERT_NO_APPLICATION_PROTOCOL: u64 = ALERTS + 120;
    // CONNECTION_REFUSED (RFC 9000, section 20.1).
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
    let alert = code.checked_sub(ALERTS);
    // What this side finds is about the server's certificate, what the server sends is about this client's.
    let message = match error {
        quinn::ConnectionError::TransportError(found) => {
            alert.and_then(|alert| server_certificate_message(alert, &found.reason))
        }
        _ => alert.and_then(alert_message).map(str::to_owned),
    };
    message.unwrap_or_else(|| error.to_string())
}

/// Explains why this client does not accept the certificate of the server, from the TLS alert that it sent (RFC 8446,
/// section 6.2) and the reason in words.
fn server_certificate_message(alert: u64, reason: &str) -> Option<String> {
    let remedy = match alert {
        45 => {
            "it has expired, or is not valid yet: give the server a new one (`wharf cert server`), or set the clock of this \
             machine"
        }
        48 => {
            "give the certificate of the authority that signed it (--ca), or the server another certificate"
        }
        42 => {
            "give the name that it is for, or give the server a certificate for this name (`wharf cert server`)"
        }
        43 | 44 | 46 | 51 => "give the server another certificate (`wharf cert server`)",
        _ => return None,
    };
    Some(format!("the certificate of the server is not accepted ({reason}): {remedy}"))
}

/// Explains a TLS alert about the client's certificate (RFC 8446, section 6.2).
fn alert_message(alert: u64) -> Option<&'static str> {
    Some(match alert {
        116 => {
            "the server wants a certificate of this client: give one, with its key (--cert and --key, made by \
             `wharf cert client`)"
        }
        42 | 43 | 46 | 48 | 51 => {
            "the server does not accept the certificate of this client: take one that an authority in its setting \
             `tls_client_ca` has signed"
        }
        44 => "the certificate of this client is revoked: take a new one",
        45 => "the certificate of this client has expired, or is not valid yet: take a new one",
        _ => return None,
    })
}

/// Returns the text of an error with all its causes. quinn's own text only says that the connection was lost.
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
