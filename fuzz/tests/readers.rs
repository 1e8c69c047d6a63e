//! The readers of settings, traces and stores, through the functions that the fuzz targets call.

use wharf_fuzz::{bytes_of_seed, input_count, run_config, run_journal, run_trace};

#[test]
fn settings_are_refused_with_a_reason_or_start_an_engine() {
    let valid = (0..input_count(600)).filter(|&seed| {
        let input = bytes_of_seed(seed, 64);
        run_config(&input).unwrap_or_else(|found| panic!("seed {seed}: {found}"))
    });
    let valid = valid.count();
    assert!(valid > 10, "too few settings are valid: {valid}");
}

#[test]
fn traces_are_refused_with_a_place_or_read_the_same_again() {
    let rows = (0..input_count(2000)).map(|seed| {
        let input = bytes_of_seed(seed, 40 + (seed % 97) as usize);
        run_trace(&input).unwrap_or_else(|found| panic!("seed {seed}: {found}"))
    });
    let rows: usize = rows.sum();
    assert!(rows > 500, "too few rows are valid: {rows}");
}

#[test]
fn changed_stores_are_refused_or_have_books_that_they_had() {
    for seed in 0..input_count(300) {
        let input = bytes_of_seed(seed, 40);
        run_journal(&input).unwrap_or_else(|found| panic!("seed {seed}: {found}"));
    }
}
