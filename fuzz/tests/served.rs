//! Sessions fed any bytes, and connections driven by any events, through the functions that the fuzz targets call.

use wharf_fuzz::{
    Finding, ServedCounts, WITH_JOBS, bytes_of_seed, input_count, run_connection, run_session_bytes,
};

/// Runs generated inputs. Returns the sums of what they came to.
fn sums(run: impl Fn(&[u8]) -> Result<ServedCounts, Finding>) -> ServedCounts {
    let mut sums = ServedCounts::default();
    for seed in 0..input_count(400) {
        let counts = run(&bytes_of_seed(seed, 1500)).unwrap_or_else(|found| panic!("seed {seed}: {found}"));
        sums.replies += counts.replies;
        sums.done += counts.done;
        sums.placed += counts.placed;
        sums.groups += counts.groups;
        sums.in_queues += counts.in_queues;
        sums.over_caps += counts.over_caps;
        sums.jobs += counts.jobs;
        sums.resumed += counts.resumed;
    }
    println!("{sums:?}");
    sums
}

#[test]
fn sessions_answer_whatever_they_are_fed() {
    let sums = sums(run_session_bytes);
    assert!(sums.done * 4 > sums.replies, "most requests are refused: {sums:?}");
    assert!(sums.placed > 300 && sums.groups > 20, "too little is placed: {sums:?}");
}

#[test]
fn sessions_with_jobs_answer_whatever_they_are_fed() {
    let sums = sums(|input| run_session_bytes(&[WITH_JOBS, input].concat()));
    assert!(sums.done * 4 > sums.replies, "most requests are refused: {sums:?}");
    assert!(sums.placed > 150, "too little is placed: {sums:?}");
    assert!(sums.jobs > 40 && sums.in_queues > 30 && sums.over_caps > 0, "queues take too little: {sums:?}");
}

#[test]
fn connections_come_to_rest_after_any_events() {
    let sums = sums(run_connection);
    assert!(sums.resumed > 50, "too few sessions are resumed: {sums:?}");
    assert!(sums.placed > 150 && sums.groups > 10, "too little is placed: {sums:?}");
}
