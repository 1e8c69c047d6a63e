//! `wharf cert`: the certificates of a new cluster.
//!
//! An authority signs one certificate per service and one per client. The name in a client's certificate is what the
//! setting `identities` gives roles to.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use time::{Duration, OffsetDateTime};

use super::Ended;
use super::connect::Usage;
use crate::file_error::FileError;

/// How long a certificate is valid before it is made, for machines whose clocks are behind.
const BEFORE: Duration = Duration::hours(1);

#[derive(Debug, Subcommand)]
pub(super) enum CertCommand {
    /// Make all that a new cluster needs: an authority, a certificate of the service, and one of an administrator.
    Init {
        #[command(flatten)]
        place: PlaceArgs,
        /// A name or address under which clients reach the service; may be repeated.
        #[arg(long = "host", default_values = ["localhost", "127.0.0.1", "::1"])]
        hosts: Vec<String>,
        /// The name of the administrator.
        #[arg(long, default_value = "admin")]
        admin: String,
    },
    /// Make a certificate of the service: server.pem and server-key.pem.
    Server {
        #[command(flatten)]
        place: PlaceArgs,
        /// A name or address under which clients reach the service; may be repeated.
        #[arg(long = "host", required = true)]
        hosts: Vec<String>,
    },
    /// Make a certificate of a client: NAME.pem and NAME-key.pem.
    Client {
        /// The name, as in the setting `identities`.
        name: String,
        #[command(flatten)]
        place: PlaceArgs,
    },
}

#[derive(Debug, Args)]
pub(super) struct PlaceArgs {
    /// Directory of the certificates. The authority is ca.pem with ca-key.pem.
    #[arg(long, default_value = "wharf-certs")]
    dir: PathBuf,
    /// The number of days for which the certificate is valid. An authority is valid ten times as long.
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u16).range(1..=3650))]
    days: u16,
}

pub(super) fn run(command: CertCommand) -> anyhow::Result<Ended> {
    match command {
        CertCommand::Init { place, hosts, admin } => init(&place, &hosts, &admin)?,
        CertCommand::Server { place, hosts } => {
            let made = Authority::load(&place.dir)?.server(&place, &hosts)?;
            made.write(&place.dir, "server")?;
        }
        CertCommand::Client { name, place } => {
            let made = Authority::load(&place.dir)?.client(&place, &name)?;
            made.write(&place.dir, &name)?;
        }
    }
    Ok(Ended::Done)
}

fn init(place: &PlaceArgs, hosts: &[String], admin: &str) -> anyhow::Result<()> {
    let PlaceArgs { dir, days } = place;
    fs::create_dir_all(dir).map_err(|error| FileError::new(dir, format!("cannot be created: {error}")))?;
    let (authority, of_authority) = Authority::new(*days)?;
    let server = authority.server(place, hosts)?;
    let client = authority.client(place, admin)?;
    // All are made before one is written, so that wrong arguments leave nothing behind.
    of_authority.write(dir, "ca")?;
    server.write(dir, "server")?;
    client.write(dir, admin)?;
    let path = |name: &str| dir.join(name).display().to_string();
    println!(
        "\nSettings of the service:\n\n\
         tls_certificate = {:?}\ntls_key = {:?}\ntls_client_ca = {:?}\n\n\
         [[identities]]\nname = {admin:?}\nroles = [\"admin\"]\n\n\
         Commands that connect to it take --ca {} --cert {} --key {}.",
        path("server.pem"),
        path("server-key.pem"),
        path("ca.pem"),
        path("ca.pem"),
        path(&format!("{admin}.pem")),
        path(&format!("{admin}-key.pem")),
    );
    Ok(())
}

/// A certificate and its key in PEM.
struct Made {
    certificate: String,
    key: String,
}

impl Made {
    /// Writes NAME.pem and NAME-key.pem. Neither may exist: a key in use is never lost.
    fn write(&self, dir: &Path, name: &str) -> Result<(), FileError> {
        let certificate = dir.join(format!("{name}.pem"));
        let key = dir.join(format!("{name}-key.pem"));
        for path in [&certificate, &key] {
            if path.exists() {
                return Err(FileError::new(path, "exists already: move it away, or choose another --dir"));
            }
        }
        write(&key, &self.key, 0o600)?;
        write(&certificate, &self.certificate, 0o644)?;
        println!("made {} and {}", certificate.display(), key.display());
        Ok(())
    }
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), FileError> {
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
    written.map_err(|error| FileError::new(path, format!("cannot be written: {error}")))
}

/// Who signs certificates.
struct Authority(Issuer<'static, KeyPair>);

impl Authority {
    fn new(days: u16) -> anyhow::Result<(Self, Made)> {
        let mut params = params(Vec::new(), "Wharfinger authority", i64::from(days) * 10)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        let made = Made { certificate, key: key.serialize_pem() };
        Ok((Self(Issuer::new(params, key)), made))
    }

    fn load(dir: &Path) -> anyhow::Result<Self> {
        let read = |name: &str| {
            let path = dir.join(name);
            let message = |error| format!("cannot be read: {error} (`wharf cert init` makes an authority)");
            fs::read_to_string(&path).map_err(|error| FileError::new(&path, message(error)))
        };
        let certificate = read("ca.pem")?;
        let key = read("ca-key.pem")?;
        let wrong = |name: &str, error| {
            FileError::new(&dir.join(name), format!("is not what `wharf cert` made: {error}"))
        };
        let key = KeyPair::from_pem(&key).map_err(|error| wrong("ca-key.pem", error))?;
        let issuer = Issuer::from_ca_cert_pem(&certificate, key).map_err(|error| wrong("ca.pem", error))?;
        Ok(Self(issuer))
    }

    fn server(&self, place: &PlaceArgs, hosts: &[String]) -> anyhow::Result<Made> {
        let params = params(hosts.to_vec(), "Wharfinger", place.days.into())
            .with_context(|| format!("--host {}: give names or addresses", hosts.join(" --host ")))?;
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    fn client(&self, place: &PlaceArgs, name: &str) -> anyhow::Result<Made> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty()
            || name.starts_with('.')
            || !name.chars().all(is_plain)
            || name == "ca"
            || name == "server"
        {
            let message = format!(
                "`{name}` is no name of a client: give letters, digits, `-`, `_` and `.`, and neither `ca` nor `server`"
            );
            return Err(Usage(message).into());
        }
        self.sign(params(Vec::new(), name, place.days.into())?, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(&self, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose) -> anyhow::Result<Made> {
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
