//! TLS 1.3: the server's certificate and the authorities of clients, which can be replaced at run time, and what
//! clients trust.

use std::sync::Arc;

use arc_swap::ArcSwap;
use quinn::EndpointConfig;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::RandomConnectionIdGenerator;
use ring::hmac;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert, VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};
use x509_parser::extensions::GeneralName;

use crate::protocol::{ALPN, SessionToken};

/// The error when a certificate or trust root cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// rustls rejects it.
    #[error("the certificate or its key cannot be used: {0}")]
    Rustls(#[from] rustls::Error),
    /// The authorities or the lists of revoked certificates cannot be used.
    #[error("the certificates of client authorities cannot be used: {0}")]
    Clients(#[from] VerifierBuilderError),
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
        let resets = hmac::Key::new(hmac::HMAC_SHA256, secret(b"stateless resets").as_ref());
        let mut config = EndpointConfig::new(Arc::new(resets));
        config.cid_generator(|| Box::new(connection_ids()));
        config
    }
}

/// Returns what makes the ids of connections at the server's side, with 64 random bits.
///
/// When an address is to be validated, the retry packet names an id that the client sends to. quinn does not check that no
/// connection has this id already, and gives a packet to a connection before it takes it for a new one. So a client that gets
/// the id of another connection is never answered. The ids that quinn makes by default differ in 24 bits. That is too
/// few: with a thousand connections, which have several ids each, one of a few thousand new ones gets one that is in use.
fn connection_ids() -> RandomConnectionIdGenerator {
    RandomConnectionIdGenerator::new(size_of::<u64>())
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

/// Checks the certificates of clients. [`set`](Self::set) replaces the authorities for new connections.
#[derive(Debug)]
pub struct ClientTrust(ArcSwap<Trusted>);

#[derive(Debug)]
struct Trusted(Arc<dyn ClientCertVerifier>);

impl ClientTrust {
    /// Creates it from the certificates of authorities, and their lists of revoked certificates.
    ///
    /// # Errors
    /// Fails if there is no authority, or if a certificate or a list cannot be used.
    pub fn new(
        authorities: &[CertificateDer<'static>],
        revoked: Vec<CertificateRevocationListDer<'static>>,
    ) -> Result<Arc<Self>, TlsError> {
        Ok(Arc::new(Self(ArcSwap::from_pointee(trusted(authorities, revoked)?))))
    }

    /// Replaces authorities and revoked certificates.
    ///
    /// # Errors
    /// Same as [`new`](Self::new). The old ones then stay.
    pub fn set(
        &self,
        authorities: &[CertificateDer<'static>],
        revoked: Vec<CertificateRevocationListDer<'static>>,
    ) -> Result<(), TlsError> {
        self.0.store(Arc::new(trusted(authorities, revoked)?));
        Ok(())
    }

    fn current(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.0.load().0)
    }
}

fn trusted(
    authorities: &[CertificateDer<'static>],
    revoked: Vec<CertificateRevocationListDer<'static>>,
) -> Result<Trusted, TlsError> {
    let roots = Arc::new(store_of(authorities)?);
    let has_lists = !revoked.is_empty();
    let mut builder = WebPkiClientVerifier::builder_with_provider(roots, provider()).with_crls(revoked);
    if has_lists {
        // An authority without a list has revoked nothing.
        builder = builder.allow_unknown_revocation_status();
    }
    Ok(Trusted(builder.build()?))
}

impl ClientCertVerifier for ClientTrust {
    // Clients send the one certificate that they have, so they need no hint, and a hint would tell strangers.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.current().verify_client_cert(certificate, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.current().verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.current().verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.current().supported_verify_schemes()
    }
}

/// Returns the names in a client's certificate: the URIs among its alternative names, then the common name of its
/// subject. The certificate was verified.
pub(crate) fn names_of(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else { return Vec::new() };
    let alternative = parsed.subject_alternative_name().ok().flatten();
    let uris =
        alternative.iter().flat_map(|names| &names.value.general_names).filter_map(|name| match name {
            GeneralName::URI(uri) => Some((*uri).to_owned()),
            _ => None,
        });
    let common = parsed.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    uris.chain(common.map(str::to_owned)).collect()
}

/// Builds the QUIC configuration of a server with this certificate. With `clients`, every client must show a
/// certificate. Data that a client sends before the handshake is complete (0-RTT) is never accepted, because it could
/// be replayed. No handshake resumes an earlier one: rustls would not look at the client's certificate again, so a
/// revoked one would go on.
pub(crate) fn server_crypto(
    certificate: &Arc<ServerCertificate>,
    clients: Option<&Arc<ClientTrust>>,
) -> Result<QuicServerConfig, TlsError> {
    let builder = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?;
    let builder = match clients {
        Some(clients) => builder.with_client_cert_verifier(Arc::<ClientTrust>::clone(clients)),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::<ServerCertificate>::clone(certificate));
    assert!(config.max_early_data_size == 0, "rustls accepts no early data unless it is told to");
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(QuicServerConfig::try_from(config)?)
}

fn store_of(roots: &[CertificateDer<'static>]) -> Result<rustls::RootCertStore, TlsError> {
    let mut store = rustls::RootCertStore::empty();
    for root in roots {
        store.add(root.clone())?;
    }
    Ok(store)
}

/// A client's certificate with those that signed it, and its key.
#[derive(Debug)]
pub struct ClientCertificate {
    /// The certificate first.
    pub chain: Vec<CertificateDer<'static>>,
    /// The key.
    pub key: PrivateKeyDer<'static>,
}

impl Clone for ClientCertificate {
    fn clone(&self) -> Self {
        Self { chain: self.chain.clone(), key: self.key.clone_key() }
    }
}

/// Builds the QUIC configuration of a client that trusts `roots` and uses `alpn`. `roots` are certificates of
/// authorities, or the server's own self-signed certificate. `own` is for servers that want a certificate.
pub(crate) fn client_crypto(
    roots: &[CertificateDer<'static>],
    own: Option<ClientCertificate>,
    alpn: &[u8],
) -> Result<QuicClientConfig, TlsError> {
    let builder = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(store_of(roots)?);
    let mut config = match own {
        Some(ClientCertificate { chain, key }) => builder.with_client_auth_cert(chain, key)?,
        None => builder.with_no_client_auth(),
    };
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

#[cfg(test)]
mod tests {
    use quinn::ConnectionIdGenerator;

    use super::*;

    #[test]
    fn many_ids_of_connections_are_different() {
        let mut ids = connection_ids();
        let made: std::collections::HashSet<Vec<u8>> =
            (0..100_000).map(|_| ids.generate_cid().to_vec()).collect();
        // With 24 bits, about 300 would be equal to another one.
        assert_eq!(made.len(), 100_000);
    }
}
