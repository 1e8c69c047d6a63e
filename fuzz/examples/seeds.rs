//! Writes a seed corpus: `cargo run -p wharf-fuzz --example seeds -- DIR`. Without one, libFuzzer needs minutes
//! to reach inputs that are long enough to do more than set up a shard.

use std::path::Path;

use wharf_fuzz::bytes_of_seed;

/// The number of inputs that are written.
const SEEDS: u64 = 32;
/// The length of each input in bytes: a few hundred operations.
const LENGTH: usize = 1500;

fn main() -> std::io::Result<()> {
    let Some(folder) = std::env::args_os().nth(1) else {
        return Err(std::io::Error::other("give the folder to write to"));
    };
    std::fs::create_dir_all(&folder)?;
    for seed in 0..SEEDS {
        std::fs::write(Path::new(&folder).join(format!("seed-{seed}")), bytes_of_seed(seed, LENGTH))?;
    }
    Ok(())
}
