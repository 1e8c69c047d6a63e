//! Measures one durable append with each storage that the journal could have. docs/decisions/journal.md has the
//! table that it prints, and what was decided by it.
#![forbid(unsafe_code)]

#[path = "../../src/figures/machine.rs"]
#[allow(unreachable_pub, reason = "it is a module of a library, and a part of this program")]
mod machine;
mod report;
mod storages;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use clap::{Parser, value_parser};

use storages::{Kind, Load, STORAGES};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The lengths of the values, in bytes: one small request, a commit of many, and a large one.
const VALUE_BYTES: [usize; 3] = [500, 8_000, 120_000];

/// The number of appends before those that are timed. Files have grown then, and old values are dropped.
const WARM_UP: u64 = 1024;

/// Measures one durable append with each storage that the journal could have, and prints a Markdown table.
///
/// Each round measures all storages in turn, so that they share what else the machine does.
#[derive(Debug, Parser)]
#[command(name = "wharf-storage-bench")]
struct Arguments {
    /// The directory below which the files are made and removed again. It must be on the disk to measure, not in
    /// memory [default: that of temporary files].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// The number of appends of each length that are timed, per storage and round.
    #[arg(long, default_value_t = 1000, value_parser = value_parser!(u64).range(1..=100_000))]
    appends: u64,
    /// The number of rounds. A cell has the median of those of the rounds, or their range if it is over 5 % wide.
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u64).range(1..=99))]
    rounds: u64,
}

fn main() -> ExitCode {
    let Err(error) = run(Arguments::parse()) else { return ExitCode::SUCCESS };
    eprintln!("wharf-storage-bench: {error:#}");
    ExitCode::FAILURE
}

fn run(Arguments { dir, appends, rounds }: Arguments) -> anyhow::Result<()> {
    let dir = dir.unwrap_or_else(std::env::temp_dir);
    let origin = machine::Origin::of_this_run(false);
    // By storage, length and round, in ns.
    let mut medians = vec![[const { Vec::new() }; VALUE_BYTES.len()]; STORAGES.len()];
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        for (at, value_bytes) in VALUE_BYTES.into_iter().enumerate() {
            let load = Load { appends: WARM_UP + appends, value_bytes };
            for (storage, cells) in STORAGES.iter().zip(&mut medians) {
                cells[at].push(measure(storage, &load, &dir)?);
            }
        }
    }
    print!("{}", report::table(&VALUE_BYTES, &medians));
    println!("\n{origin}");
    Ok(())
}

/// Returns the median time of an append after the warm-up, in ns. The storage is in a new directory below `dir`.
fn measure(kind: &Kind, load: &Load, dir: &Path) -> anyhow::Result<u64> {
    let directory = tempfile::tempdir_in(dir)
        .with_context(|| format!("{}: give a directory that can be written (`--dir`)", dir.display()))?;
    let told = || format!("{} in {}", (kind.name)(), dir.display());
    let mut storage = (kind.open)(directory.path(), load).with_context(told)?;
    let value = value(load.value_bytes);
    let mut nanos = Vec::new();
    for number in 1..=load.appends {
        let begun = Instant::now();
        storage.append(number, &value).with_context(told)?;
        let taken = begun.elapsed().as_nanos() as u64;
        if number > WARM_UP {
            nanos.push(taken);
        }
    }
    drop(storage);
    directory.close().with_context(|| format!("{}: the files cannot be removed", dir.display()))?;
    Ok(report::median(&nanos))
}

/// Returns a value of a length in bytes. It has no pattern that a storage or a disk could make shorter.
fn value(bytes: usize) -> Vec<u8> {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = |at: u64| (at.wrapping_mul(ODD) ^ at.wrapping_mul(ODD) >> 32).wrapping_mul(ODD);
    (0..bytes as u64).map(|at| (mixed(at) >> 56) as u8).collect()
}
