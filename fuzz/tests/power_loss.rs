//! Power loss at moments of simulated runs: every acknowledged outcome is there, and no effect is there in part.
//!
//! `WHARF_POWER_SEEDS=100 cargo test --release -p wharf-fuzz --test power_loss` tries more runs, and
//! `WHARF_POWER_MOMENTS` more moments of each start.

use wharf_fuzz::sim::power::{Effort, Tried, lose_power};
use wharf_fuzz::sim::{Journaling, Settings, Stage, run_seed};

/// The number of runs in an ordinary test run.
const SEEDS: u64 = 6;

const EFFORT: Effort = Effort { moments: 60, torn: 3, flips: 2, starts: 200, depth: 2 };

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name);
    text.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: give a whole number")))
}

/// Runs a seed with a journal, and loses power in each of its starts.
fn lose_power_in(seed: u64, effort: Effort, tried: &mut Tried) -> Result<(), String> {
    let settings =
        Settings { journal: Journaling::Always, jobs: false, keeps_lives: true, ..Settings::default() };
    let report = run_seed(seed, settings);
    if let Some((step, found)) = report.found {
        return Err(format!("step {step}: {found}"));
    }
    report.lives.iter().enumerate().try_for_each(|(number, life)| {
        lose_power(life, seed, effort, tried).map_err(|found| format!("start {number}: {found}"))
    })
}

/// Finds a missing sync, a commit that is not atomic, a reply before its unit is durable, and values that are dropped
/// too early.
#[test]
fn nothing_acknowledged_is_lost_and_nothing_is_there_in_part() {
    let moments = number("WHARF_POWER_MOMENTS", EFFORT.moments as u64) as usize;
    let effort = Effort { moments, ..EFFORT };
    let mut tried = Tried::default();
    let first = number("WHARF_POWER_FIRST", 1);
    for seed in first..first + number("WHARF_POWER_SEEDS", SEEDS) {
        let replay = format!(
            "WHARF_POWER_FIRST={seed} WHARF_POWER_SEEDS=1 WHARF_POWER_MOMENTS={moments} \
             cargo test -p wharf-fuzz --test power_loss"
        );
        assert_eq!(lose_power_in(seed, effort, &mut tried), Ok(()), "seed {seed}\nreplay: {replay}");
    }
    println!("{tried:?}");
    assert!(tried.exhausted > 100 && tried.ahead > 100 && tried.starts > 10, "{tried:?}");
    assert!(tried.replies > 1000, "{tried:?}");
    assert!(tried.refused > 100 && tried.cut > 10 && tried.unread > 100, "{tried:?}");
    for stage in [Stage::Checkpoint, Stage::Completion, Stage::Trim] {
        assert!(tried.within.get(&stage).is_some_and(|&moments| moments > 20), "{stage:?}: {tried:?}");
    }
}
