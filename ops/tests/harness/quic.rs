//! Peers that speak QUIC themselves, to do what the client of the network layer never does.

use std::sync::Arc;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig as QuicConfig, Endpoint, TransportConfig};
use serde::Serialize;
use wharf_net::client::ClientConfig;
use wharf_net::codec::{Header, encode_body, encode_frame};
use wharf_net::protocol::{ALPN, Hello, Kind};

use super::within;

/// Opens a socket for peers.
pub fn endpoint(config: &ClientConfig) -> Endpoint {
    endpoint_saying(quic(config))
}

/// Opens a socket for peers that wait without end for what they connect to.
pub fn patient_endpoint(config: &ClientConfig) -> Endpoint {
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(None);
    let mut says = quic(config);
    says.transport_config(Arc::new(transport));
    endpoint_saying(says)
}

fn endpoint_saying(says: QuicConfig) -> Endpoint {
    let mut endpoint = Endpoint::client(([127, 0, 0, 1], 0).into()).expect("a free port");
    endpoint.set_default_client_config(says);
    endpoint
}

/// Returns what peers say in their handshakes.
pub fn quic(config: &ClientConfig) -> QuicConfig {
    let mut roots = rustls::RootCertStore::empty();
    config.roots.iter().for_each(|root| roots.add(root.clone()).expect("a certificate"));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let crypto = QuicClientConfig::try_from(tls).expect("TLS 1.3 has QUIC's initial suite");
    QuicConfig::new(Arc::new(crypto))
}

/// Builds a frame of a request.
pub fn frame<T: Serialize>(kind: Kind, sequence: u64, body: &T) -> Vec<u8> {
    let header =
        Header { kind: kind.number(), version: 1, sequence, lowest_unacknowledged: 1, ..Header::default() };
    let mut out = Vec::new();
    encode_frame(header, &[], &mut out, |out| encode_body(body, out));
    out
}

/// Opens a session and leaves it: the connection is closed, and the session is not ended.
pub async fn leave_session(config: &ClientConfig) {
    let endpoint = endpoint(config);
    let connecting = endpoint.connect(config.server, &config.server_name).expect("an address");
    let connection = within(connecting).await.expect("the service accepts");
    let (mut send, mut recv) = within(connection.open_bi()).await.expect("one stream is allowed");
    let hello = Hello { version_min: 1, version_max: 1, client: "leaving".to_owned(), resume: None };
    within(send.write_all(&frame(Kind::Hello, 0, &hello))).await.expect("the service reads");
    within(recv.read_chunk(usize::MAX, true)).await.expect("the service answers").expect("a reply");
    connection.close(0u32.into(), b"");
    within(endpoint.wait_idle()).await;
}
