//! A raw peer that sends arbitrary bytes into a stream and reads frames from it.

use std::net::SocketAddr;
use std::sync::Arc;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{Connection, ConnectionError, Endpoint, RecvStream, SendStream};
use serde::Serialize;
use serde::de::DeserializeOwned;
use wharf_net::codec::{
    Extension, FLAG_ERROR, FLAG_REPLY, Header, decode_body, decode_frame, encode_body, encode_frame,
};
use wharf_net::protocol::{
    ALPN, Deadline, EXTENSION_DEADLINE, FRAME_BYTES_MAX, Fault, Hello, HelloReply, Kind, Reason, Resume,
    VERSION_MAX,
};

use super::{SERVER_NAME, TestServer, within};

/// A received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub header: Header,
    pub payload: Vec<u8>,
    /// The whole frame, as received.
    pub bytes: Vec<u8>,
}

impl Frame {
    /// Returns the body of a reply that is not a fault.
    #[track_caller]
    pub fn body<T: DeserializeOwned>(&self) -> T {
        assert_eq!(self.header.flags, FLAG_REPLY, "{:?}", self.fault());
        decode_body(&self.payload).expect("the server sends bodies of the protocol").0
    }

    /// Returns the fault, if the frame is one.
    pub fn fault(&self) -> Option<Fault> {
        (self.header.flags == FLAG_REPLY | FLAG_ERROR)
            .then(|| decode_body(&self.payload).expect("a fault is readable").0)
    }

    /// Returns the fault, which must have this reason and a message.
    #[track_caller]
    pub fn assert_fault(&self, reason: Reason) -> Fault {
        let fault = self.fault().unwrap_or_else(|| panic!("no fault: {:?}", self.header));
        assert_eq!(fault.reason.known(), Some(reason), "{fault}");
        assert!(!fault.message.is_empty());
        fault
    }
}

/// Builds the header of a request.
pub fn header(kind: Kind, sequence: u64) -> Header {
    Header { kind: kind.number(), version: 1, sequence, lowest_unacknowledged: 1, ..Header::default() }
}

/// Builds a frame with this body.
pub fn frame<T: Serialize>(header: Header, body: &T) -> Vec<u8> {
    extended(header, &[], body)
}

/// Builds a frame with this body and extensions.
pub fn extended<T: Serialize>(header: Header, extensions: &[Extension<'_>], body: &T) -> Vec<u8> {
    let mut out = Vec::new();
    encode_frame(header, extensions, &mut out, |out| encode_body(body, out));
    out
}

/// Builds a request.
pub fn request<T: Serialize>(kind: Kind, sequence: u64, body: &T) -> Vec<u8> {
    frame(header(kind, sequence), body)
}

/// Builds a request that must be done within this time, in ns.
pub fn request_within<T: Serialize>(kind: Kind, sequence: u64, within: u64, body: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_body(&Deadline { within }, &mut bytes);
    let deadline = Extension { tag: EXTENSION_DEADLINE, bytes: &bytes };
    extended(header(kind, sequence), &[deadline], body)
}

/// Builds a hello.
pub fn hello(resume: Option<Resume>) -> Vec<u8> {
    let body = Hello { version_min: 1, version_max: VERSION_MAX, client: "raw".to_owned(), resume };
    frame(header(Kind::Hello, 0), &body)
}

/// A connection with a stream.
pub struct Peer {
    pub connection: Connection,
    pub send: SendStream,
    recv: RecvStream,
    buffer: Vec<u8>,
    endpoint: Endpoint,
}

/// Creates an endpoint that trusts the server and uses `alpn`.
pub fn endpoint(server: &TestServer, alpn: &[u8]) -> Endpoint {
    endpoint_at(server, alpn, [127, 0, 0, 1])
}

/// Returns the TLS of a client that trusts the server and uses `alpn`.
pub fn crypto(server: &TestServer, alpn: &[u8]) -> QuicClientConfig {
    crypto_offering(server, vec![alpn.to_vec()])
}

/// Returns the TLS of a client that trusts the server and offers these protocols.
pub fn crypto_offering(server: &TestServer, protocols: Vec<Vec<u8>>) -> QuicClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(server.certificate.clone()).expect("the certificate is one");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = protocols;
    tls.enable_early_data = true;
    QuicClientConfig::try_from(tls).expect("TLS 1.3 has QUIC's initial suite")
}

/// Creates such an endpoint at a loopback address.
pub fn endpoint_at(server: &TestServer, alpn: &[u8], address: [u8; 4]) -> Endpoint {
    endpoint_with(Arc::new(crypto(server, alpn)), address)
}

/// Creates an endpoint with this TLS at a loopback address.
pub fn endpoint_with(crypto: Arc<dyn quinn_proto::crypto::ClientConfig>, address: [u8; 4]) -> Endpoint {
    let mut endpoint = Endpoint::client((address, 0).into()).expect("the loopback has a free port");
    endpoint.set_default_client_config(quinn::ClientConfig::new(crypto));
    endpoint
}

/// Attempts to connect with `alpn`.
pub async fn connect(server: &TestServer, alpn: &[u8]) -> Result<(Endpoint, Connection), ConnectionError> {
    let endpoint = endpoint(server, alpn);
    let connecting = endpoint.connect(server.address, SERVER_NAME).expect("the address is one");
    let connection = within(connecting).await?;
    Ok((endpoint, connection))
}

impl Peer {
    /// Connects without sending anything.
    pub async fn connect(server: &TestServer) -> Self {
        Self::connect_from(endpoint(server, ALPN), server.address).await
    }

    /// Connects from this endpoint to the server at this address, without sending anything.
    pub async fn connect_from(endpoint: Endpoint, address: SocketAddr) -> Self {
        let connecting = endpoint.connect(address, SERVER_NAME).expect("the address is one");
        let connection = within(connecting).await.expect("the handshake succeeds");
        let (send, recv) = within(connection.open_bi()).await.expect("one stream is allowed");
        Self { connection, send, recv, buffer: Vec::new(), endpoint }
    }

    /// Connects and opens a session.
    pub async fn open(server: &TestServer) -> (Self, HelloReply) {
        Self::resume(server, None).await
    }

    /// Connects and opens a session, or resumes the given one.
    pub async fn resume(server: &TestServer, resume: Option<Resume>) -> (Self, HelloReply) {
        let mut peer = Self::connect(server).await;
        let reply = peer.greet(resume).await;
        (peer, reply)
    }

    /// Opens a session, or resumes the given one.
    pub async fn greet(&mut self, resume: Option<Resume>) -> HelloReply {
        self.send(&hello(resume)).await;
        self.frame().await.body()
    }

    /// Tells the server that no more replies are taken.
    pub fn stop_replies(&mut self) {
        self.recv.stop(0u32.into()).expect("the stream is open");
    }

    /// Sends bytes.
    pub async fn send(&mut self, bytes: &[u8]) {
        within(self.send.write_all(bytes)).await.expect("the server reads");
    }

    /// Sends a request and returns its reply.
    pub async fn call<T: Serialize>(&mut self, kind: Kind, sequence: u64, body: &T) -> Frame {
        self.send(&request(kind, sequence, body)).await;
        let reply = self.frame().await;
        assert_eq!(reply.header.sequence, sequence);
        reply
    }

    /// Returns the next frame, which must arrive.
    pub async fn frame(&mut self) -> Frame {
        self.next().await.expect("the server did not end the stream")
    }

    /// Returns the next frame, or `None` if the server ended the stream or the connection.
    pub async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = decode_frame(&self.buffer, FRAME_BYTES_MAX).expect("the server sends frames")
            {
                let taken = frame.bytes;
                let header = frame.header;
                let payload = frame.payload.to_vec();
                let bytes = self.buffer.drain(..taken).collect();
                return Some(Frame { header, payload, bytes });
            }
            let chunk = within(self.recv.read_chunk(usize::MAX, true)).await.ok()??;
            self.buffer.extend_from_slice(&chunk.bytes);
        }
    }

    /// Waits until the server ends the stream. Returns the code with which it closed the connection.
    pub async fn closed(mut self) -> u64 {
        let more = self.next().await;
        assert_eq!(more, None, "the server goes on");
        match within(self.connection.closed()).await {
            ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
            other => panic!("the server closes a connection by a code: {other}"),
        }
    }

    /// Closes the connection without ending the stream. Returns when the local endpoint is idle.
    pub async fn leave(self) {
        self.connection.close(0u32.into(), b"");
        within(self.endpoint.wait_idle()).await;
    }
}
