//! Certificates of a cluster: an authority signs one per service and one per client.
//!
//! The name in a client's certificate is what the setting `identities` gives roles to.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use time::{Duration, OffsetDateTime};

use crate::file_error::FileError;

/// How long a certificate is valid before it is made, for machines whose clocks are behind.
const BEFORE: Duration = Duration::hours(1);

/// The name of the authority's files.
pub const AUTHORITY: &str = "ca";
/// The name of the service's files.
pub const SERVER: &str = "server";

/// A certificate that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CertError {
    /// The name of a client is none.
    #[error(
        "`{0}` is no name of a client: give letters, digits, `-`, `_` and `.`, and neither `ca` nor `server`"
    )]
    Name(String),
    /// The content or its signature cannot be made.
    #[error(transparent)]
    Made(#[from] rcgen::Error),
}

/// Returns the files of a certificate and of its key.
#[must_use]
pub fn files(dir: &Path, name: &str) -> [PathBuf; 2] {
    [dir.join(format!("{name}.pem")), dir.join(format!("{name}-key.pem"))]
}

/// A certificate and its key in PEM.
pub struct Made {
    certificate: String,
    key: String,
}

impl std::fmt::Debug for Made {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key is secret.
        f.debug_struct("Made").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl Made {
    /// Writes NAME.pem and NAME-key.pem, and returns their paths. Neither may exist: a key in use is never lost.
    ///
    /// # Errors
    /// When one exists, or cannot be written.
    pub fn write(&self, dir: &Path, name: &str) -> Result<[PathBuf; 2], FileError> {
        let [certificate, key] = files(dir, name);
        for path in [&certificate, &key] {
            if path.exists() {
                return Err(FileError::new(
                    path,
                    "exists already: move it away, or choose another directory",
                ));
            }
        }
        write(&key, &self.key, 0o600)?;
        write(&certificate, &self.certificate, 0o644)?;
        Ok([certificate, key])
    }
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), FileError> {
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
    written.map_err(|error| FileError::new(path, format!("cannot be written: {error}")))
}

/// Who signs certificates.
#[derive(Debug)]
pub struct Authority(Issuer<'static, KeyPair>);

impl Authority {
    /// Makes an authority, which is valid ten times as long as `days`.
    ///
    /// # Errors
    /// When it cannot be signed.
    pub fn new(days: u16) -> Result<(Self, Made), CertError> {
        let mut params = params(Vec::new(), "Wharfinger authority", i64::from(days) * 10)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        let made = Made { certificate, key: key.serialize_pem() };
        Ok((Self(Issuer::new(params, key)), made))
    }

    /// Reads the authority from its files, ca.pem and ca-key.pem.
    ///
    /// # Errors
    /// When they cannot be read, or are none.
    pub fn load(dir: &Path) -> Result<Self, FileError> {
        let read = |path: &Path| {
            let message = |error| format!("cannot be read: {error} (`wharf cert init` makes an authority)");
            fs::read_to_string(path).map_err(|error| FileError::new(path, message(error)))
        };
        let wrong =
            |path: &Path, error| FileError::new(path, format!("is not what `wharf cert` made: {error}"));
        let [certificate, key] = files(dir, AUTHORITY);
        let in_pem = read(&certificate)?;
        let key = KeyPair::from_pem(&read(&key)?).map_err(|error| wrong(&key, error))?;
        let issuer = Issuer::from_ca_cert_pem(&in_pem, key).map_err(|error| wrong(&certificate, error))?;
        Ok(Self(issuer))
    }

    /// Makes the certificate of a service, under these names or addresses.
    ///
    /// # Errors
    /// When one is neither a name nor an address.
    pub fn server(&self, hosts: &[String], days: u16) -> Result<Made, CertError> {
        let params = params(hosts.to_vec(), "Wharfinger", days.into())?;
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Makes the certificate of a client.
    ///
    /// # Errors
    /// When the name is none, or another file would have it.
    pub fn client(&self, name: &str, days: u16) -> Result<Made, CertError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let is_taken = [AUTHORITY, SERVER].contains(&name);
        if name.is_empty() || name.starts_with('.') || !name.chars().all(is_plain) || is_taken {
            return Err(CertError::Name(name.to_owned()));
        }
        self.sign(params(Vec::new(), name, days.into())?, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(&self, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose) -> Result<Made, CertError> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.0)?.pem();
        Ok(Made { certificate, key: key.serialize_pem() })
    }
}

/// Returns the content of a certificate for these hosts, under this common name.
fn params(hosts: Vec<String>, name: &str, days: i64) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let now = OffsetDateTime::now_utc();
    params.not_before = now - BEFORE;
    params.not_after = now + Duration::days(days);
    Ok(params)
}
