//! TLS 1.3: the server's certificate, which can be replaced at run time, and the client's trust.

use std::sync::Arc;

use arc_swap::ArcSwap;
use quinn::EndpointConfig;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::HashedConnectionIdGenerator;
use ring::hmac;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::protocol::{ALPN, SessionToken};

/// The error when a certificate or trust root cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// rustls rejects it.
    #[error("the certificate or its key cannot be used: {0}")]
    Rustls(#[from] rustls::Error),
    /// The provider lacks the cipher suite that QUIC starts with.
    #[error("TLS cannot be used for QUIC: {0}")]
    Quic(#[from] quinn::crypto::rustls::NoInitialCipherSuite),
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A certificate, and those of the authorities that signed it.
type Chain = Vec<CertificateDer<'static>>;

/// The server's certificate. [`set`](Self::set) replaces it for new connections.
pub struct ServerCertificate {
    key: ArcSwap<CertifiedKey>,
    /// The secret from which the server recognises connections of an earlier start.
    resets: hmac::Key,
}

impl ServerCertificate {
    /// Creates it from a certificate chain and its key.
    ///
    /// # Errors
    /// Fails if the key cannot be used.
    pub fn new(chain: Chain, key: PrivateKeyDer<'static>) -> Result<Arc<Self>, TlsError> {
        let resets = hmac::Key::new(hmac::HMAC_SHA256, key.secret_der());
        let key = ArcSwap::from_pointee(CertifiedKey::from_der(chain, key, &provider())?);
        Ok(Arc::new(Self { key, resets }))
    }

    /// Replaces the certificate.
    ///
    /// # Errors
    /// Fails if the key cannot be used. The old certificate then stays.
    pub fn set(&self, chain: Chain, key: PrivateKeyDer<'static>) -> Result<(), TlsError> {
        self.key.store(Arc::new(CertifiedKey::from_der(chain, key, &provider())?));
        Ok(())
    }

    /// Returns the configuration of an endpoint that recognises connections of earlier starts with the same key. It
    /// resets them, so that their clients connect again at once (RFC 9000, section 10.3).
    pub(crate) fn endpoint(&self) -> EndpointConfig {
        let secret = |purpose: &[u8]| hmac::sign(&self.resets, purpose);
        let ids = secret(b"connection ids");
        let (ids, _) = ids.as_ref().split_first_chunk().expect("a tag has 32 bytes");
        let ids = u64::from_le_bytes(*ids);
        let resets = hmac::Key::new(hmac::HMAC_SHA256, secret(b"stateless resets").as_ref());
        let mut config = EndpointConfig::new(Arc::new(resets));
        config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
        config
    }
}

impl std::fmt::Debug for ServerCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerCertificate").finish_non_exhaustive()
    }
}

impl ResolvesServerCert for ServerCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.key.load_full())
    }
}

/// Builds the QUIC configuration of a server with this certificate.
pub(crate) fn server_crypto(certificate: &Arc<ServerCertificate>) -> Result<QuicServerConfig, TlsError> {
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::<ServerCertificate>::clone(certificate));
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(QuicServerConfig::try_from(config)?)
}

/// Builds the QUIC configuration of a client that trusts `roots` and uses `alpn`. `roots` are certificates of
/// authorities, or the server's own self-signed certificate.
pub(crate) fn client_crypto(
    roots: &[CertificateDer<'static>],
    alpn: &[u8],
) -> Result<QuicClientConfig, TlsError> {
    let mut store = rustls::RootCertStore::empty();
    for root in roots {
        store.add(root.clone())?;
    }
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(store)
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    Ok(QuicClientConfig::try_from(config)?)
}

/// Returns an unguessable secret.
///
/// # Panics
/// Panics if the operating system provides no randomness. TLS could not run either then.
pub(crate) fn random_token() -> SessionToken {
    let mut token = SessionToken::default();
    provider().secure_random.fill(&mut token).expect("the operating system gives randomness");
    token
}
