//! `wharf journal export`: the books as a portable file, from a stopped store or from a running service.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use wharf_net::client::Client;
use wharf_net::protocol::{ExportReply, ExportRequest};

use super::connect::{ConnectArgs, block_on_any};
use crate::file_error::FileError;
use crate::journal::{self, Portable};

/// Writes the portable file. Without `online`, a store whose service is stopped is read where it is; only a running
/// service is asked. The file is verified before it gets its name.
pub(super) fn export(
    file: &Path,
    data_dir: &Path,
    online: bool,
    connect: &ConnectArgs,
) -> anyhow::Result<Portable> {
    if file.exists() {
        return Err(FileError::new(file, "is there already: name another file").into());
    }
    let mut unfinished = file.as_os_str().to_owned();
    unfinished.push(".unfinished");
    let unfinished = PathBuf::from(unfinished);
    let written = write(&unfinished, data_dir, online, connect);
    let verified = written.and_then(|()| Ok(journal::verify(&unfinished)?));
    let Ok(portable) = verified else {
        // What is there is of no use, and may be missing too.
        let _ = std::fs::remove_file(&unfinished);
        return verified;
    };
    let named = || -> std::io::Result<()> {
        std::fs::rename(&unfinished, file)?;
        let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or_else(|| Path::new(".")))?.sync_all()
    };
    named().map_err(|error| FileError::new(file, error))?;
    Ok(portable)
}

fn write(unfinished: &Path, data_dir: &Path, online: bool, connect: &ConnectArgs) -> anyhow::Result<()> {
    // Only for this user: it has everything that the store has.
    let mut options = File::options();
    options.create(true).truncate(true).write(true).mode(0o600);
    let mut file = options.open(unfinished).map_err(|error| FileError::new(unfinished, error))?;
    let mut out = |piece: &[u8]| file.write_all(piece).map_err(|error| FileError::new(unfinished, error));
    let is_written = !online && journal::export_stopped(data_dir, &mut out)?;
    if !is_written {
        block_on_any(ask(connect, &mut out))?.context("the running service was asked for its journal")?;
    }
    file.sync_all().map_err(|error| FileError::new(unfinished, error))?;
    Ok(())
}

/// Asks a service for its export, piece by piece.
async fn ask(
    connect: &ConnectArgs,
    out: &mut impl FnMut(&[u8]) -> Result<(), FileError>,
) -> anyhow::Result<()> {
    let client: Client = connect.connect().await?;
    let mut number = [0; 8];
    journal::random(&mut number);
    let export = u64::from_le_bytes(number);
    for page in 0.. {
        let ExportReply { more, bytes } = client.export(&ExportRequest { export, page }).await?;
        out(&bytes)?;
        if !more {
            break;
        }
    }
    client.close().await;
    Ok(())
}
