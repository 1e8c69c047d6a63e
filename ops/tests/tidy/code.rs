//! Habits of code: values that travel together are a struct, errors are types, pages stay short.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use super::{none, root, sources};

/// Files with results whose error is a text, and how many lines have one: this list only shrinks.
const TEXT_ERRORS: &[(&str, usize)] = &[
    ("bench-harness/src/engine/floor.rs", 2),
    ("bench-harness/src/engine/floor_driver.rs", 1),
    ("bench-harness/src/engine/rows.rs", 1),
    ("core/src/resource/gpu.rs", 1),
    ("core/src/resource/units.rs", 2),
    ("fuzz/src/index_ops.rs", 5),
    ("fuzz/src/journaled.rs", 2),
    ("fuzz/src/oracle/linear_books.rs", 4),
    ("fuzz/src/oracle/linear_granularity.rs", 1),
    ("fuzz/src/oracle/linear_leases.rs", 3),
    ("fuzz/src/oracle/linear_reservations.rs", 3),
    ("fuzz/src/oracle/linear_shard.rs", 9),
    ("fuzz/src/oracle/linear_statements.rs", 4),
    ("fuzz/src/oracle/linear_view.rs", 3),
    ("fuzz/src/oracle/linear_waiting.rs", 4),
    ("fuzz/src/shard_ops.rs", 3),
    ("fuzz/src/shard_ops/queue.rs", 1),
    ("fuzz/src/shard_ops/follow.rs", 2),
    ("fuzz/src/shard_ops/reservations.rs", 1),
    ("fuzz/src/shard_ops/views.rs", 4),
    ("fuzz/src/sim/checkers/mod.rs", 2),
    ("fuzz/src/sim/checkers/statements.rs", 1),
    ("fuzz/src/sim/follower.rs", 1),
    ("fuzz/src/sim/gangs/answers.rs", 1),
    ("fuzz/src/sim/world.rs", 3),
    ("fuzz/src/sim/world/planning.rs", 2),
    ("fuzz/src/sim/world/watch.rs", 1),
    ("fuzz/src/statement_ops.rs", 5),
    ("net/src/codec/frame.rs", 1),
    ("ops/src/cli/group.rs", 1),
    ("ops/src/cli/place.rs", 2),
    ("ops/src/cli/watch.rs", 1),
    ("ops/src/config/index.rs", 1),
    ("ops/src/config/mod.rs", 1),
    ("ops/src/config/raw.rs", 1),
    ("ops/src/metrics.rs", 1),
    ("ops/src/typical_pods.rs", 1),
];

/// Folders with the least number of assertions per hundred functions that change something. These numbers only grow.
const ASSERTED: [(&str, usize); 7] = [
    ("core/src/shard/", 100),
    ("core/src/shard/books/", 100),
    ("core/src/shard/choose/", 100),
    ("core/src/shard/pending/", 100),
    ("core/src/shard/statements/", 100),
    ("core/src/books/", 100),
    ("core/src/statement/", 100),
];

/// Pages with the largest number of lines.
const PAGES: [(&str, usize); 2] = [("README.md", 150), ("ARCHITECTURE.md", 250)];

/// Returns whether a line binds several values of a tuple that it writes out.
fn binds_a_tuple(code: &str) -> bool {
    let Some((names, values)) =
        code.trim_start().strip_prefix("let (").and_then(|rest| rest.split_once(") = ("))
    else {
        return false;
    };
    // Of a tuple, the parenthesis closes at the end of the statement.
    let names_only = names.chars().all(|c| c.is_alphanumeric() || "_, ".contains(c));
    names_only && values.ends_with(");") && values.contains(", ")
}

#[test]
fn unrelated_values_are_bound_one_by_one() {
    let mut faults = Vec::new();
    for source in sources() {
        for (number, code) in source.code().filter(|(_, code)| binds_a_tuple(code)) {
            faults.push(format!(
                "{}:{number}: bind each value by a `let` of its own, or make a struct: {}",
                source.path,
                code.trim()
            ));
        }
    }
    none(&faults);
    assert!(binds_a_tuple("    let (a, b) = (f(x), y);"));
    assert!(!binds_a_tuple("    let (a, b) = (0..9).map(f).unzip();"));
}

#[test]
fn errors_are_types() {
    let mut known: BTreeMap<&str, usize> = TEXT_ERRORS.iter().copied().collect();
    let mut faults = Vec::new();
    for source in sources().iter().filter(|source| source.path.contains("/src/")) {
        let count =
            source.code().filter(|(_, code)| code.contains(", String>") && code.contains("Result<")).count();
        let limit = known.remove(source.path.as_str()).unwrap_or(0);
        if count > limit {
            faults.push(format!(
                "{}: {count} results have a text as their error, {limit} are known: make the error a type",
                source.path
            ));
        } else if count < limit {
            faults.push(format!(
                "{}: {count} results have a text as their error: write {count} in TEXT_ERRORS",
                source.path
            ));
        }
    }
    faults.extend(known.keys().map(|path| format!("{path}: is gone: take it out of TEXT_ERRORS")));
    none(&faults);
}

/// Returns the number of functions that change something, and the number of their assertions.
fn assertions(text: &str) -> (usize, usize) {
    const ASSERTIONS: [&str; 6] =
        ["assert!(", "assert_eq!(", "assert_ne!(", "panic!(", "unreachable!(", ".expect("];
    let code = text.split("#[cfg(test)]\nmod tests").next().expect("a text has a first part");
    let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let changing = code.split("fn ").skip(1).filter(|function| {
        let signature = function.split('{').next().expect("a text has a first part");
        signature.contains("&mut")
    });
    changing.fold((0, 0), |(functions, assertions), function| {
        let found: usize = ASSERTIONS.iter().map(|assertion| function.matches(assertion).count()).sum();
        (functions + 1, assertions + found)
    })
}

/// Getters cannot break a state, so only functions that change something count.
#[test]
fn functions_that_change_the_books_assert_what_they_rely_on() {
    let mut faults = Vec::new();
    for (folder, least) in ASSERTED {
        let sources = sources().into_iter().filter(|source| source.path.starts_with(folder));
        let counts = sources.map(|source| assertions(&source.text));
        let (functions, found) = counts.fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        // A folder in which nothing changes needs none.
        let percent = (100 * found).checked_div(functions).unwrap_or(100);
        if percent < least {
            faults.push(format!(
                "{folder}: {found} assertions in {functions} functions that change something, {percent} %: {least} % \
                 are needed"
            ));
        } else if percent > least && least < 100 {
            faults.push(format!(
                "{folder}: {percent} % of assertions per function: write {percent} in ASSERTED"
            ));
        }
    }
    none(&faults);
    assert_eq!(
        assertions("fn a(&self) { panic!() }\nfn b(\n &mut self) { assert!(x); y.expect(\"z\"); }"),
        (1, 2)
    );
}

#[test]
fn pages_for_newcomers_are_short() {
    let mut faults = Vec::new();
    for (page, most) in PAGES {
        let lines = fs::read_to_string(root().join(page)).expect("a page").lines().count();
        if lines > most {
            faults.push(format!("{page}: has {lines} lines, {most} are allowed: move parts to docs/"));
        }
    }
    none(&faults);
}

/// The commit after which messages are checked.
const MESSAGES_SINCE: &str = "52b7805";
/// The largest number of letters of a commit's subject.
const SUBJECT_MAX: usize = 72;

#[test]
fn commits_say_what_and_why() {
    let range = format!("{MESSAGES_SINCE}..HEAD");
    let log = Command::new("git")
        .current_dir(root())
        .args(["log", "--no-merges", "--format=%h%x1f%s%x1f%b%x1e", &range])
        .output();
    let Some(log) = log.ok().filter(|log| log.status.success()) else {
        eprintln!("skipped: there is no history of commits here");
        return;
    };
    let log = String::from_utf8(log.stdout).expect("messages are text");
    let mut faults = Vec::new();
    for commit in log.split('\x1e').map(str::trim).filter(|commit| !commit.is_empty()) {
        let mut parts = commit.split('\x1f');
        let [id, subject, body] = [(); 3].map(|()| parts.next().unwrap_or_default());
        if subject.chars().count() > SUBJECT_MAX {
            faults.push(format!("{id}: the subject has more than {SUBJECT_MAX} letters: {subject}"));
        }
        if body.trim().is_empty() {
            faults.push(format!("{id}: the message has no body that says why: {subject}"));
        }
    }
    none(&faults);
}
