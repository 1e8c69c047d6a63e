//! `wharf`: the placement service and its command line.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    wharf_ops::cli::run()
}
