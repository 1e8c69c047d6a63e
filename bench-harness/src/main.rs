//! `wharf-bench`: parses the command line and runs the command. Everything else is in the library.

use std::process::ExitCode;

use clap::Parser;
use wharf_bench::cli::{Cli, Usage};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("wharf-bench: {error:#}");
            ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
        }
    }
}
