//! The server's certificate: the configured one, or a self-signed development certificate. The development
//! certificate is created once in the data directory, where clients on the same machine find it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tracing::info;

/// File name of the development certificate in the data directory.
pub const DEVELOPMENT_CERTIFICATE: &str = "dev-cert.pem";
const DEVELOPMENT_KEY: &str = "dev-key.pem";

/// A certificate or key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A PEM file cannot be read.
    #[error("{path}: {message}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The fault and the remedy.
        message: String,
    },
    /// A file cannot be written.
    #[error("{path}: cannot be written: {error}", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// A development certificate cannot be created.
    #[error("cannot make a development certificate: {0}")]
    Generate(#[from] rcgen::Error),
}

pub(super) type ChainAndKey = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Reads the certificates of a PEM file.
///
/// # Errors
/// When the file cannot be read or contains no certificate.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let read = |message: String| CertificateError::Read { path: path.to_owned(), message };
    let certificates: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|error| read(error.to_string()))?.collect();
    let certificates = certificates.map_err(|error| read(error.to_string()))?;
    if certificates.is_empty() {
        return Err(read("holds no certificate: give a PEM file with at least one".to_owned()));
    }
    Ok(certificates)
}

/// Loads the configured certificate, or loads or creates the development certificate of `data_dir`.
pub(super) fn load_or_create(
    data_dir: &Path,
    configured: Option<&(PathBuf, PathBuf)>,
) -> Result<ChainAndKey, CertificateError> {
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

fn load(chain: &Path, key: &Path) -> Result<ChainAndKey, CertificateError> {
    let certificates = read_certificates(chain)?;
    let key = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| CertificateError::Read { path: key.to_owned(), message: error.to_string() })?;
    Ok((certificates, key))
}

fn create(certificate: &Path, key: &Path) -> Result<(), CertificateError> {
    let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    let made = rcgen::generate_simple_self_signed(names)?;
    // Write the key first: a certificate without its key would be found but not usable.
    write(key, &made.signing_key.serialize_pem(), 0o600)?;
    write(certificate, &made.cert.pem(), 0o644)
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), CertificateError> {
    let failed = |error| CertificateError::Write { path: path.to_owned(), error };
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(mode);
    }
    #[cfg(not(unix))]
    let _ = mode;
    options.open(path).and_then(|mut file| file.write_all(text.as_bytes())).map_err(failed)
}
