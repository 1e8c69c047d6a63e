//! Runs the simulator for many seeds. `simulate SEED` shows the trace of one run. `simulate FIRST COUNT` runs
//! many seeds and stops at the first finding.

use std::process::ExitCode;

use wharf_fuzz::sim::{Settings, replay_command, run_seed};

/// The number of seeds between two progress lines.
const SEEDS_TOLD: u64 = 1000;

fn main() -> ExitCode {
    let given: Result<Vec<u64>, _> = std::env::args().skip(1).map(|text| text.parse()).collect();
    let (first, count) = match given.as_deref() {
        Ok([seed]) => return show(*seed),
        Ok([first, count]) => (*first, *count),
        _ => {
            eprintln!("give one seed to see its trace, or the first seed and how many to run");
            return ExitCode::from(2);
        }
    };
    let mut steps = 0;
    let mut grants = 0;
    for seed in first..first.saturating_add(count) {
        let report = run_seed(seed, settings());
        (steps, grants) = (steps + report.steps, grants + report.grants);
        if (seed - first) % SEEDS_TOLD == SEEDS_TOLD - 1 {
            println!("{} seeds, {steps} steps", seed - first + 1);
        }
        if let Some((step, found)) = report.found {
            println!("seed {seed}, step {step}: {found}\nreplay: {}", replay_command(seed));
            return ExitCode::FAILURE;
        }
    }
    println!("{count} seeds, {steps} steps, {grants} grants, nothing found");
    ExitCode::SUCCESS
}

/// Returns the settings. Groups are left out when `WHARF_SIM_NO_GROUPS` is set.
fn settings() -> Settings {
    Settings { groups: std::env::var_os("WHARF_SIM_NO_GROUPS").is_none(), ..Settings::default() }
}

fn show(seed: u64) -> ExitCode {
    let report = run_seed(seed, Settings { keeps_text: true, ..settings() });
    println!("{}", report.text.unwrap_or_default());
    println!("{} steps, {} grants, trace {}", report.steps, report.grants, report.hash);
    let Some((step, found)) = report.found else { return ExitCode::SUCCESS };
    println!("seed {seed}, step {step}: {found}");
    ExitCode::FAILURE
}
