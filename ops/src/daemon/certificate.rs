//! The server's certificate: the configured one, or a self-signed development certificate. The development
//! certificate is created once in the data directory, where clients on the same machine find it.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use tracing::info;

use wharf_net::tls::{ClientCertificate, ClientTrust, ServerCertificate, TlsError};

use crate::config::ClientFiles;
use crate::file_error::FileError;

/// File name of the development certificate in the data directory.
pub const DEVELOPMENT_CERTIFICATE: &str = "dev-cert.pem";
const DEVELOPMENT_KEY: &str = "dev-key.pem";

pub(super) type ChainAndKey = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Reads the certificates of a PEM file.
///
/// # Errors
/// When the file cannot be read or contains no certificate.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = read.map_err(|error| FileError::new(path, error))?;
    if certificates.is_empty() {
        return Err(FileError::new(path, "holds no certificate: give a PEM file with at least one"));
    }
    Ok(certificates)
}

/// Loads the configured certificate, or loads or creates the development certificate of `data_dir`.
pub(super) fn load_or_create(
    data_dir: &Path,
    configured: Option<&(PathBuf, PathBuf)>,
) -> Result<ChainAndKey, FileError> {
    if let Some((chain, key)) = configured {
        return load(chain, key);
    }
    let certificate = data_dir.join(DEVELOPMENT_CERTIFICATE);
    let key = data_dir.join(DEVELOPMENT_KEY);
    if !certificate.exists() || !key.exists() {
        create(&certificate, &key)?;
        info!(certificate = %certificate.display(), "made a self-signed certificate for development");
    }
    load(&certificate, &key)
}

fn load(chain: &Path, key: &Path) -> Result<ChainAndKey, FileError> {
    Ok((read_certificates(chain)?, read_key(key)?))
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, FileError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| match error {
        pem::Error::NoItemsFound => FileError::new(path, "holds no key: give a PEM file with one"),
        other => FileError::new(path, other),
    })
}

/// Reads the certificate and the key of a client.
///
/// # Errors
/// When a file cannot be read or contains none.
pub fn client_certificate(chain: &Path, key: &Path) -> Result<ClientCertificate, FileError> {
    let (chain, key) = load(chain, key)?;
    Ok(ClientCertificate { chain, key })
}

/// The authorities that sign the certificates of clients, and their lists of revoked certificates.
pub(super) type AuthoritiesAndRevoked =
    (Vec<CertificateDer<'static>>, Vec<CertificateRevocationListDer<'static>>);

/// Reads the authorities of clients.
pub(super) fn load_authorities(files: &ClientFiles) -> Result<AuthoritiesAndRevoked, FileError> {
    let authorities = read_certificates(&files.authorities)?;
    let revoked = files.revoked.as_deref().map(read_revoked).transpose()?;
    Ok((authorities, revoked.unwrap_or_default()))
}

fn read_revoked(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, FileError> {
    let read =
        CertificateRevocationListDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let revoked = read.map_err(|error| FileError::new(path, error))?;
    if revoked.is_empty() {
        return Err(FileError::new(path, "holds no list of revoked certificates: give a PEM file with one"));
    }
    Ok(revoked)
}

/// A setting that names a file with which no service can start.
pub(crate) struct Unusable {
    /// The setting.
    pub(crate) setting: &'static str,
    /// The file, its fault and the remedy.
    pub(crate) message: String,
}

/// Checks the files of a certificate with its key, and those that say which clients are known.
///
/// # Errors
/// The first file that cannot be read, is no PEM file of its kind, or does not fit the others.
pub(crate) fn check(tls: Option<&(PathBuf, PathBuf)>, clients: Option<&ClientFiles>) -> Result<(), Unusable> {
    let of = |setting| move |error: FileError| Unusable { setting, message: error.to_string() };
    if let Some((certificate, key)) = tls {
        let chain = read_certificates(certificate).map_err(of("tls_certificate"))?;
        let secret = read_key(key).map_err(of("tls_key"))?;
        ServerCertificate::new(chain, secret).map_err(|error| match error {
            TlsError::Rustls(rustls::Error::InconsistentKeys(_)) => {
                let message = format!(
                    "it is not the key of the certificate in {}: give the key that was made with it",
                    certificate.display()
                );
                of("tls_key")(FileError::new(key, message))
            }
            other => of("tls_certificate")(FileError::new(certificate, other)),
        })?;
    }
    if let Some(files) = clients {
        let authorities = read_certificates(&files.authorities).map_err(of("tls_client_ca"))?;
        ClientTrust::new(&authorities, Vec::new())
            .map_err(|error| of("tls_client_ca")(FileError::new(&files.authorities, error)))?;
        if let Some(path) = &files.revoked {
            let revoked = read_revoked(path).map_err(of("tls_client_crl"))?;
            ClientTrust::new(&authorities, revoked)
                .map_err(|error| of("tls_client_crl")(FileError::new(path, error)))?;
        }
    }
    Ok(())
}

fn create(certificate: &Path, key: &Path) -> Result<(), FileError> {
    let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    let made = rcgen::generate_simple_self_signed(names);
    let made = made.map_err(|error| FileError::new(certificate, format_args!("cannot be made: {error}")))?;
    // Write the key first: a certificate without its key would be found but not usable.
    write(key, &made.signing_key.serialize_pem(), 0o600)?;
    write(certificate, &made.cert.pem(), 0o644)
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), FileError> {
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(mode).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| FileError::new(path, format_args!("cannot be written: {error}")))
}
