//! The invariants, each a checker of its own, run after each step of a shard. Numbers are those of the
//! design's list, as ARCHITECTURE.md gives them.
//!
//! A checker looks at data alone ([`Step`], [`Facts`](super::facts::Facts)), so that a test can show it a state that must not be.

pub mod books;
#[cfg(test)]
mod fires;
#[cfg(test)]
mod fires_beyond;
pub mod grants;
pub mod order;
pub mod promises;
pub mod statements;
pub mod views;
pub mod waiting;

use super::facts::Step;

/// Says what is wrong.
pub type Verdict = Result<(), String>;

/// A checker of one step.
pub type Checker = fn(&Step<'_>) -> Verdict;

/// Every checker of a single step, with its name.
pub const OF_A_STEP: &[(&str, Checker)] = &[
    ("grants_fit_what_was_available", grants::grants_fit_what_was_available),
    ("grants_go_where_they_may", grants::grants_go_where_they_may),
    ("allocations_are_what_was_granted", grants::allocations_are_what_was_granted),
    ("rejections_move_nothing", grants::rejections_move_nothing),
    ("refusals_are_true", grants::refusals_are_true),
    ("nobody_takes_what_is_reserved", grants::nobody_takes_what_is_reserved),
    ("statements_take_only_what_is_there", grants::statements_take_only_what_is_there),
    ("books_balance", books::books_balance),
    ("books_are_the_sum_of_allocations", books::books_are_the_sum_of_allocations),
    ("unhealthy_offers_nothing", books::unhealthy_offers_nothing),
];

/// Runs every checker of a single step.
///
/// # Errors
/// The first that finds something, with its name.
pub fn check_step(step: &Step<'_>) -> Verdict {
    for (name, checker) in OF_A_STEP {
        checker(step).map_err(|found| format!("{name}: {found}"))?;
    }
    Ok(())
}

fn ensure(holds: bool, found: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(found()) }
}
