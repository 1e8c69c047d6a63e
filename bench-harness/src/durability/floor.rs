//! The floor: one small durable write, without anything around it.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

/// The length of a write.
const BYTES: usize = 256;

/// The number of writes. The first quarter is not counted.
const WRITES: usize = 400;

/// Returns the median time of a write to a file in `directory` and its sync, in ns. The file has its length before.
///
/// # Errors
/// When the file cannot be written.
pub fn floor_sync_ns(directory: &Path) -> io::Result<u64> {
    let path = directory.join("floor");
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(&path)?;
    file.write_all_at(&vec![1; BYTES * WRITES], 0)?;
    file.sync_all()?;
    let mut nanos = Vec::with_capacity(WRITES);
    for at in 0..WRITES {
        let begun = Instant::now();
        file.write_all_at(&[2; BYTES], (at * BYTES) as u64)?;
        file.sync_data()?;
        nanos.push(begun.elapsed().as_nanos() as u64);
    }
    std::fs::remove_file(&path)?;
    let mut counted = nanos.split_off(WRITES / 4);
    counted.sort_unstable();
    Ok(counted[counted.len() / 2])
}
