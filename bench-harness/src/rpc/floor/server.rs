//! The server of the echo: one thread, and one task per connection.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use quinn::{Connection, Endpoint, ServerConfig, TransportConfig};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use super::frame::{Frames, append};
use super::{CHUNKS, endpoint, transport};

/// A server that answers each frame with one of the asked length and the same id.
pub(in crate::rpc) struct EchoServer {
    endpoint: Endpoint,
    /// The certificate that clients must trust.
    pub(in crate::rpc) certificate: CertificateDer<'static>,
}

impl EchoServer {
    /// Opens a socket on loopback. Needs a runtime.
    pub(in crate::rpc) fn bind() -> anyhow::Result<Self> {
        let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])
            .context("a certificate for the echo cannot be made")?;
        let certificate = own.cert.der().clone();
        let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
        let mut config = ServerConfig::with_single_cert(vec![certificate.clone()], key.into())
            .context("the certificate of the echo cannot be used")?;
        let mut transport: TransportConfig = transport();
        transport.max_concurrent_bidi_streams(1u8.into());
        config.transport_config(Arc::new(transport));
        let endpoint = endpoint(Some(config))?;
        Ok(Self { endpoint, certificate })
    }

    /// Returns the address that it serves.
    pub(in crate::rpc) fn address(&self) -> anyhow::Result<SocketAddr> {
        self.endpoint.local_addr().context("the echo's socket has no address")
    }

    /// Serves until `stop` is ready.
    pub(in crate::rpc) async fn serve(self, stop: impl Future<Output = ()>) {
        tokio::pin!(stop);
        loop {
            tokio::select! {
                () = &mut stop => return,
                Some(incoming) = self.endpoint.accept() => {
                    tokio::spawn(async move {
                        if let Ok(connection) = incoming.await {
                            // The client closes its connection when it is done.
                            let _ = echo(connection).await;
                        }
                    });
                }
            }
        }
    }
}

async fn echo(connection: Connection) -> anyhow::Result<()> {
    let (mut send, mut recv) = connection.accept_bi().await?;
    let mut chunks: [Bytes; CHUNKS] = std::array::from_fn(|_| Bytes::new());
    let mut frames = Frames::default();
    while let Some(count) = recv.read_chunks(&mut chunks).await? {
        let mut out = Vec::with_capacity(chunks[..count].iter().map(Bytes::len).sum());
        for chunk in &chunks[..count] {
            frames.take(chunk, |id, reply| append(&mut out, reply, 0, id));
        }
        send.write_chunk(out.into()).await?;
    }
    Ok(())
}
