//! Runs the simulator over many seeds, checks that it is deterministic, and replays one seed.
//!
//! `WHARF_SIM_SEEDS=100000 cargo test --release -p wharf-fuzz --test simulation` runs longer. `WHARF_SIM_SEED=7
//! cargo test -p wharf-fuzz --test simulation replay -- --nocapture` shows one run.

use std::sync::atomic::{AtomicU64, Ordering};

use wharf_fuzz::bytes_of_seed;
use wharf_fuzz::sim::{Journaling, Settings, replay_command, run_given, run_seed};

/// The number of seeds in an ordinary test run.
const SEEDS: u64 = 300;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: give a whole number")))
}

/// Runs `WHARF_SIM_SEEDS` seeds, starting at `WHARF_SIM_FIRST`.
#[test]
fn seeds_keep_every_promise() {
    let first = number("WHARF_SIM_FIRST").unwrap_or(1);
    let last = first + number("WHARF_SIM_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(first);
    let steps = AtomicU64::new(0);
    let grants = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    // Relaxed: only a counter, nothing depends on its order.
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= last {
                        return;
                    }
                    let report = run_seed(seed, settings());
                    if let Some((step, found)) = report.found {
                        panic!("seed {seed}, step {step}: {found}\nreplay: {}", replay_command(seed));
                    }
                    // Relaxed: both are read once the threads have ended.
                    steps.fetch_add(report.steps, Ordering::Relaxed);
                    // Relaxed: as above.
                    grants.fetch_add(report.grants, Ordering::Relaxed);
                }
            });
        }
    });
    let steps = steps.into_inner();
    let grants = grants.into_inner();
    println!("{} seeds, {steps} steps, {grants} grants", last - first);
    assert!(grants > last - first, "a world in which hardly anything is granted shows nothing: {grants}");
}

/// Seeds that once found something. Changes of the simulator change their steps, but they must still find
/// nothing.
const FOUND_ONCE: [u64; 3] = [1_010_176, 1_017_929, 1_018_760];

#[test]
fn seeds_that_found_something_once_find_nothing() {
    for seed in FOUND_ONCE {
        let report = run_seed(seed, Settings { small_budgets: false, ..Settings::default() });
        assert_eq!(report.found, None, "seed {seed}, with the budgets of the service");
    }
}

/// The fuzz target begins with these inputs (`fuzz/examples/seeds.rs`). When an input is used up, every choice is
/// the first one.
#[test]
fn inputs_of_the_fuzz_target_find_nothing() {
    for seed in 0..32 {
        let report = run_given(&bytes_of_seed(seed, 1500), Settings::default());
        assert_eq!(report.found, None, "input {seed}");
    }
    assert_eq!(run_given(&[], Settings::default()).found, None, "no input");
}

#[test]
fn the_same_seed_is_the_same_run_byte_for_byte() {
    // Every fourth one has a journal.
    for seed in 1..=8 {
        let keeping = Settings { keeps_text: true, ..Settings::default() };
        let first = run_seed(seed, keeping);
        let again = run_seed(seed, keeping);
        assert_eq!((first.hash, &first.text, &first.found), (again.hash, &again.text, &again.found));
        assert!(first.text.as_ref().is_some_and(|text| text.lines().count() > 100));
        let without = run_seed(seed, Settings::default());
        assert_eq!((without.hash, without.steps), (first.hash, first.steps), "seed {seed}");
    }
    assert_ne!(run_seed(1, Settings::default()).hash, run_seed(2, Settings::default()).hash);
}

/// Runs that found a fault that is now fixed, and whether they include groups. A seed's steps belong to the
/// commit that it was found on. Later commits may give it other steps.
const FOUND_FAULTS: &[(u64, bool)] = &[
    // A used-up reservation stayed forever once another statement that had used it was aborted.
    (5_004_462, false),
    // A ticket was committed forever when its plan named a removed node.
    (20_033_307, true),
    // A ticket was not tried again when a statement that blocked it was aborted.
    (20_077_465, true),
    // An owner's request received a part of a GPU that was withheld for a claim.
    (20_037_591, true),
    // A false alarm: a group that queued for a ticket was reported as waiting although it fitted.
    (20_097_401, true),
    // A further task of a gang was bound before the shards refused what the gang needs.
    (5_364, true),
    // A task went to another domain while the eviction of others of its job, whose run times were over, was not agreed to.
    (435, true),
    // A plan of nodes evicted what somebody else had evicted, and panicked.
    (756, true),
];

#[test]
fn seeds_that_found_faults_find_them_no_more() {
    for &(seed, groups) in FOUND_FAULTS {
        let report = run_seed(seed, Settings { groups, ..Settings::default() });
        assert_eq!(report.found, None, "seed {seed}, with groups: {groups}");
    }
}

/// Returns the settings. Groups are left out when `WHARF_SIM_NO_GROUPS` is set. Every run has a journal when
/// `WHARF_SIM_JOURNAL` is set.
fn settings() -> Settings {
    let groups = std::env::var_os("WHARF_SIM_NO_GROUPS").is_none();
    let has_journal = std::env::var_os("WHARF_SIM_JOURNAL").is_some();
    let journal = if has_journal { Journaling::Always } else { Journaling::Sometimes };
    Settings { groups, journal, ..Settings::default() }
}

/// Replays the seed that `WHARF_SIM_SEED` names. Failure messages print this command.
#[test]
fn replay() {
    let seed = number("WHARF_SIM_SEED");
    let report = run_seed(seed.unwrap_or(1), Settings { keeps_text: true, ..settings() });
    if seed.is_some() {
        println!("{}", report.text.unwrap_or_default());
        println!("{} steps, trace {}", report.steps, report.hash);
    }
    if let Some((step, found)) = report.found {
        panic!("step {step}: {found}");
    }
}
