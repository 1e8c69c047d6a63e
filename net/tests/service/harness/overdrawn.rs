//! Clients that open more streams than the server grants.
//!
//! quinn honours the credit in the server's transport parameters. These clients read other parameters than the server has
//! sent, so that their quinn takes the credit for large.

use std::any::Any;
use std::sync::Arc;

use quinn::Side;
use quinn::crypto::rustls::QuicClientConfig;
use quinn_proto::crypto::{
    ClientConfig, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, Session,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, TransportError};
use wharf_net::protocol::ALPN;

use super::{TestServer, crypto};

/// The streams of each kind that such a client takes as granted.
pub const OVERDRAWN: u16 = 1000;

/// The ids of the parameters with the credit for streams: bidirectional and unidirectional (RFC 9000, section 18.2).
const CREDIT_IDS: [u64; 2] = [0x08, 0x09];

/// Returns the TLS of a client that takes every server to grant [`OVERDRAWN`] streams of each kind.
pub fn overdrawing(server: &TestServer) -> Arc<dyn ClientConfig> {
    Arc::new(Overdrawing(Arc::new(crypto(server, ALPN))))
}

struct Overdrawing(Arc<QuicClientConfig>);

impl ClientConfig for Overdrawing {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let session = Arc::clone(&self.0).start_session(version, server_name, params)?;
        Ok(Box::new(OverdrawnSession(session)))
    }
}

/// Takes a variable-length integer from the front (RFC 9000, section 16).
fn take_number(bytes: &mut &[u8]) -> u64 {
    let length = 1 << (bytes[0] >> 6);
    let number = bytes[1..length]
        .iter()
        .fold(u64::from(bytes[0] & 0x3f), |number, &byte| number << 8 | u64::from(byte));
    *bytes = &bytes[length..];
    number
}

/// Returns the parameters with another credit for streams.
fn overdrawn(granted: &TransportParameters) -> TransportParameters {
    let mut bytes = Vec::new();
    granted.write(&mut bytes);
    let mut rest = &bytes[..];
    let mut out = Vec::new();
    while !rest.is_empty() {
        let parameter = rest;
        let id = take_number(&mut rest);
        let length = usize::try_from(take_number(&mut rest)).expect("it fits a packet");
        rest = &rest[length..];
        if !CREDIT_IDS.contains(&id) {
            out.extend_from_slice(&parameter[..parameter.len() - rest.len()]);
        }
    }
    for id in CREDIT_IDS {
        // A number of two bytes begins with the bits 01.
        #[expect(clippy::big_endian_bytes, reason = "QUIC writes numbers so: RFC 9000, section 16")]
        let [high, low] = (OVERDRAWN | 0x4000).to_be_bytes();
        out.extend([id as u8, 2, high, low]);
    }
    TransportParameters::read(Side::Client, &mut &out[..]).expect("they are well-formed")
}

struct OverdrawnSession(Box<dyn Session>);

impl Session for OverdrawnSession {
    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        Ok(self.0.transport_parameters()?.as_ref().map(overdrawn))
    }

    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        self.0.initial_keys(dst_cid, side)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.0.handshake_data()
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.0.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.0.early_crypto()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.0.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.0.is_handshaking()
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        self.0.read_handshake(buf)
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        self.0.write_handshake(buf)
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.0.next_1rtt_keys()
    }

    fn is_valid_retry(&self, orig_dst_cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.0.is_valid_retry(orig_dst_cid, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.0.export_keying_material(output, label, context)
    }
}
