//! `wharf cert`: the certificates of a new cluster.
//!
//! An authority signs one certificate per service and one per client. The name in a client's certificate is what the
//! setting `identities` gives roles to.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};

use super::Ended;
use super::connect::Usage;
use crate::certs::{AUTHORITY, Authority, CertError, Made, SERVER};
use crate::file_error::FileError;

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
            write(&server(&Authority::load(&place.dir)?, &place, &hosts)?, &place.dir, SERVER)?;
        }
        CertCommand::Client { name, place } => {
            write(&client(&Authority::load(&place.dir)?, &place, &name)?, &place.dir, &name)?;
        }
    }
    Ok(Ended::Done)
}

fn init(place: &PlaceArgs, hosts: &[String], admin: &str) -> anyhow::Result<()> {
    let PlaceArgs { dir, days } = place;
    fs::create_dir_all(dir).map_err(|error| FileError::new(dir, format!("cannot be created: {error}")))?;
    let (authority, of_authority) = Authority::new(*days)?;
    let server = server(&authority, place, hosts)?;
    let client = client(&authority, place, admin)?;
    // All are made before one is written, so that wrong arguments leave nothing behind.
    write(&of_authority, dir, AUTHORITY)?;
    write(&server, dir, SERVER)?;
    write(&client, dir, admin)?;
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

fn server(authority: &Authority, place: &PlaceArgs, hosts: &[String]) -> anyhow::Result<Made> {
    let made = authority.server(hosts, place.days);
    made.with_context(|| format!("--host {}: give names or addresses", hosts.join(" --host ")))
}

fn client(authority: &Authority, place: &PlaceArgs, name: &str) -> anyhow::Result<Made> {
    authority.client(name, place.days).map_err(|error| match error {
        CertError::Name(_) => Usage(error.to_string()).into(),
        CertError::Made(_) => error.into(),
    })
}

/// Writes a certificate and its key, and says where.
fn write(made: &Made, dir: &Path, name: &str) -> Result<(), FileError> {
    let [certificate, key] = made.write(dir, name)?;
    println!("made {} and {}", certificate.display(), key.display());
    Ok(())
}
