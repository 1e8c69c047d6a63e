//! Conventions of the workspace that a test can check. Each failure names file, line and remedy.
//!
//! The checks read text, not syntax. Comments count where that is intended (left-over notes) and are stripped
//! where it is not (`HashMap` in `core`).

#[path = "tidy/code.rs"]
mod code;
#[path = "tidy/glossary.rs"]
mod glossary;
#[path = "tidy/words.rs"]
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The workspace's crates in dependency order. Each may use only those before it.
const CRATES: [(&str, &str); 5] = [
    ("core", "wharf-core"),
    ("net", "wharf-net"),
    ("ops", "wharf-ops"),
    ("bench-harness", "wharf-bench"),
    ("fuzz", "wharf-fuzz"),
];

/// The maximum length of a file, in lines.
const LINES_MAX: usize = 600;
/// The maximum length of a file that is listed in `TOO_LONG`.
const LINES_HARD_MAX: usize = 900;
/// Files longer than [`LINES_MAX`], with their permitted length. This list only shrinks.
const TOO_LONG: [(&str, usize); 0] = [];

/// The number of lines above an atomic ordering in which its explanation must be.
const ORDERING_COMMENT_LINES: usize = 8;

/// A source file or a page.
struct Source {
    /// The path below the workspace root, with `/` as separator.
    path: String,
    text: String,
}

impl Source {
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }

    /// Returns the lines without comments.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines().map(|(number, line)| (number, line.split("//").next().unwrap_or_default()))
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("ops is in the workspace").to_owned()
}

/// Returns every Rust file of the workspace's crates, sorted by path.
fn sources() -> Vec<Source> {
    let mut sources = Vec::new();
    for (directory, _) in CRATES {
        collect(directory, ".rs", &mut sources);
    }
    assert!(sources.len() > 50, "the workspace's sources are not where they were: {} files", sources.len());
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

/// Returns every page of the project but the change log, which quotes former names.
fn pages() -> Vec<Source> {
    let mut pages = Vec::new();
    collect("", ".md", &mut pages);
    pages.retain(|page| page.path != "CHANGELOG.md");
    assert!(pages.len() > 10, "the pages are not where they were: {}", pages.len());
    pages
}

/// Collects the files below a directory whose names end with `ending`.
fn collect(directory: &str, ending: &str, found: &mut Vec<Source>) {
    for entry in fs::read_dir(root().join(directory)).unwrap_or_else(|error| panic!("{directory}: {error}")) {
        let entry = entry.expect("a directory entry");
        let name = entry.file_name().into_string().expect("names are text");
        let path = if directory.is_empty() { name.clone() } else { format!("{directory}/{name}") };
        // Output directories of tools are outside of `src`, which has a module `target`.
        let is_output = ["corpus", "artifacts"].contains(&name.as_str()) || name.starts_with("target");
        if entry.path().is_dir() {
            if !name.starts_with('.') && (!is_output || path.contains("/src/")) {
                collect(&path, ending, found);
            }
        } else if name.ends_with(ending) {
            let text = fs::read_to_string(entry.path()).unwrap_or_else(|error| panic!("{path}: {error}"));
            found.push(Source { path, text });
        }
    }
}

/// Fails with one fault per line, if there are any.
#[track_caller]
fn none(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn every_file_opens_with_what_it_is() {
    let mut faults = Vec::new();
    for source in sources() {
        // A fuzz target must begin with its crate attributes.
        let first = source.text.lines().find(|line| !line.starts_with("#![") && !line.is_empty());
        if !first.is_some_and(|line| line.starts_with("//!")) {
            faults.push(format!("{}:1: open the file with `//!`: what it is, and why so", source.path));
        }
    }
    none(&faults);
}

#[test]
fn files_are_short() {
    let mut faults = Vec::new();
    let mut known: BTreeMap<_, _> = TOO_LONG.into_iter().collect();
    for source in sources() {
        let lines = source.text.lines().count();
        let limit = known.remove(source.path.as_str());
        match limit {
            Some(limit) if lines <= LINES_MAX => {
                faults.push(format!(
                    "{}: is short now: take it out of TOO_LONG (its entry says {limit})",
                    source.path
                ));
            }
            Some(limit) if lines < limit => {
                faults.push(format!(
                    "{}: has {lines} lines: write {lines} in place of {limit} in TOO_LONG",
                    source.path
                ));
            }
            _ if lines > limit.unwrap_or(LINES_MAX).min(LINES_HARD_MAX) => {
                faults.push(format!(
                    "{}:{LINES_MAX}: has {lines} lines: split it by what its parts do",
                    source.path
                ));
            }
            _ => {}
        }
    }
    faults.extend(known.keys().map(|path| format!("{path}: is gone: take it out of TOO_LONG")));
    none(&faults);
}

#[test]
fn nothing_is_left_over() {
    // Concatenated, so that this file does not contain the banned words.
    let banned = [
        (["TO", "DO"].concat(), "do it, or write an issue"),
        (["FIX", "ME"].concat(), "mend it, or write an issue"),
        (["dbg", "!("].concat(), "take it out"),
        (["to", "do!("].concat(), "write it"),
        (["unimplemen", "ted!("].concat(), "write it"),
    ];
    let mut faults = Vec::new();
    for source in sources() {
        for (number, line) in source.lines() {
            for (word, remedy) in banned.iter().filter(|(word, _)| line.contains(word.as_str())) {
                faults.push(format!("{}:{number}: `{word}`: {remedy}", source.path));
            }
        }
    }
    none(&faults);
}

#[test]
fn unsafe_code_stays_in_what_crosses_threads() {
    // Concatenated, so that this file does not contain the banned word.
    let keyword = ["un", "safe"].concat();
    let mut faults = Vec::new();
    for source in sources() {
        // The loom model of the view cell has the same code.
        if source.path.starts_with("core/src/link/") || source.path == "core/tests/loom_views.rs" {
            continue;
        }
        for (number, code) in source.code() {
            let words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
            if words.into_iter().any(|word| word == keyword) {
                faults.push(format!(
                    "{}:{number}: `{keyword}` is allowed below core/src/link/ only: build on what is there without it",
                    source.path
                ));
            }
        }
    }
    for (directory, package) in CRATES.into_iter().skip(1) {
        let path = format!("{directory}/src/lib.rs");
        let text = fs::read_to_string(root().join(&path)).unwrap_or_default();
        if !text.contains(&format!("#![forbid({keyword}_code)]")) {
            faults.push(format!("{path}:1: {package} needs none: say `#![forbid({keyword}_code)]`"));
        }
    }
    none(&faults);
}

#[test]
fn every_memory_ordering_is_explained() {
    let orderings =
        ["Relaxed", "Acquire", "Release", "AcqRel", "SeqCst"].map(|name| format!("Ordering::{name}"));
    let mut faults = Vec::new();
    for source in sources().iter().filter(|source| source.path.starts_with("core/src/")) {
        let lines: Vec<_> = source.text.lines().collect();
        for (number, code) in source.code() {
            if !orderings.iter().any(|ordering| code.contains(ordering.as_str())) {
                continue;
            }
            let near = &lines[number.saturating_sub(1 + ORDERING_COMMENT_LINES)..number];
            let explained = |line: &&str| {
                let comment = line.split_once("//").map_or("", |(_, comment)| comment).to_lowercase();
                ["pairs with", "relaxed", "acquire", "release", "seqcst", "acqrel"]
                    .iter()
                    .any(|word| comment.contains(word))
            };
            if !near.iter().any(explained) {
                faults.push(format!(
                    "{}:{number}: say above it what this ordering pairs with, and where (`Acquire: pairs with …`), \
                     or why it needs no partner",
                    source.path
                ));
            }
        }
    }
    none(&faults);
}

#[test]
fn the_wire_format_has_one_door() {
    let mut faults = Vec::new();
    // Concatenated, so that this file does not match its own check.
    let name = ["bin", "code"].concat();
    for source in sources().iter().filter(|source| source.path != "net/src/codec/body.rs") {
        for (number, code) in source.code() {
            if code.contains(&format!("{name}::")) || code.contains(&format!("use {name}")) {
                faults.push(format!(
                    "{}:{number}: `{name}` is used in net/src/codec/body.rs only: use `encode_body` and `decode_body`",
                    source.path
                ));
            }
        }
    }
    for (directory, _) in CRATES.iter().filter(|(directory, _)| *directory != "net") {
        if dependencies(directory).contains(&name) {
            faults.push(format!(
                "{directory}/Cargo.toml: `{name}` is a dependency of net only: go through its codec"
            ));
        }
    }
    none(&faults);
}

/// Returns the packages that a crate depends on, of all kinds and for all targets.
fn dependencies(directory: &str) -> BTreeSet<String> {
    let path = root().join(directory).join("Cargo.toml");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{directory}/Cargo.toml: {error}"));
    let manifest: toml::Table =
        text.parse().unwrap_or_else(|error| panic!("{directory}/Cargo.toml: {error}"));
    let mut names = BTreeSet::new();
    let mut add = |table: &toml::Table| {
        for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let found = table.get(kind).and_then(toml::Value::as_table);
            for (name, value) in found.into_iter().flatten() {
                // A renamed dependency is still the same package.
                let package = value.get("package").and_then(toml::Value::as_str);
                names.insert(package.unwrap_or(name).to_owned());
            }
        }
    };
    add(&manifest);
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    targets.into_iter().flatten().filter_map(|(_, target)| target.as_table()).for_each(add);
    names
}

#[test]
fn dependencies_point_one_way() {
    let mut faults = Vec::new();
    for (place, (directory, package)) in CRATES.into_iter().enumerate() {
        let used = dependencies(directory);
        for (_, later) in CRATES.into_iter().skip(place) {
            if used.contains(later) {
                faults.push(format!(
                    "{directory}/Cargo.toml: {package} may not depend on {later}: the line is core <- net <- ops <- \
                     bench-harness <- fuzz; move what both need to the earlier of them"
                ));
            }
        }
    }
    // The engine has no runtime, wire format, file format or system randomness.
    let banned = ["tokio", "quinn", "rustls", "serde", "serde_json", "redb", "rand", "getrandom", "tracing"];
    let used = dependencies("core");
    for name in banned.into_iter().filter(|name| used.contains(*name)) {
        faults.push(format!(
            "core/Cargo.toml: core may not depend on `{name}`: I/O, formats and clocks belong to the outer crates"
        ));
    }
    none(&faults);
}

#[test]
fn the_engine_has_no_clock_and_no_random_order() {
    let banned = [
        ("HashMap", "its order differs from run to run: use `FixedMap` or `BTreeMap`"),
        ("HashSet", "its order differs from run to run: use `FixedMap` or `BTreeSet`"),
        ("Instant", "time comes in as an argument: take a `Time`"),
        ("SystemTime", "time comes in as an argument: take a `Time`"),
        ("RandomState", "the seed comes in as an argument: use `Rng`"),
        ("thread::sleep", "wait for an event, not for time"),
        ("std::fs", "files belong to ops"),
        ("std::net", "sockets belong to net"),
    ];
    let mut faults = Vec::new();
    // map.rs defines the map with a fixed order on top of the standard one.
    let engine = |source: &&Source| source.path.starts_with("core/src/") && source.path != "core/src/map.rs";
    for source in sources().iter().filter(engine) {
        for (number, code) in source.code() {
            for (word, remedy) in banned {
                let whole = |at: usize| {
                    let around = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
                    !around(code[..at].chars().next_back()) && !around(code[at + word.len()..].chars().next())
                };
                if code.match_indices(word).any(|(at, _)| whole(at)) {
                    faults.push(format!("{}:{number}: `{word}` in the engine: {remedy}", source.path));
                }
            }
        }
    }
    none(&faults);
}

/// A peer that chooses the keys of an unkeyed hash map can choose keys with equal hashes.
#[test]
fn texts_are_no_keys_of_unkeyed_hash_maps() {
    let mut faults = Vec::new();
    for source in sources().iter().filter(|source| source.path.contains("/src/")) {
        for (number, code) in source.code() {
            // The key ends at the first comma outside of parentheses and angle brackets.
            for (at, map) in code.match_indices("FixedMap<") {
                let mut depth = 0;
                let key = code[at + map.len()..].chars().take_while(|&c| {
                    depth += i32::from("(<".contains(c)) - i32::from(")>".contains(c));
                    depth > 0 || c != ','
                });
                let key: String = key.collect();
                if ["str>", "String", "Key"].iter().any(|text| key.contains(text)) {
                    faults.push(format!(
                        "{}:{number}: texts are keys of a `FixedMap`: use a `BTreeMap`, whose order nobody can attack",
                        source.path
                    ));
                }
            }
        }
    }
    none(&faults);
}

/// Returns whether `quoted`, a text in backticks, is the path of a Rust file of the workspace.
fn is_path(quoted: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    quoted.contains('/') && quoted.ends_with(".rs") && quoted.chars().all(plain)
}

#[test]
fn what_the_pages_name_is_there() {
    let sources = sources();
    let mut faults = Vec::new();
    let pages = pages();
    for (page, number, line) in
        pages.iter().flat_map(|page| page.lines().map(|(n, line)| (&page.path, n, line)))
    {
        let quoted: Vec<_> = line.split('`').skip(1).step_by(2).collect();
        for path in quoted.iter().filter(|quoted| is_path(quoted)) {
            if !sources.iter().any(|source| source.path == **path) {
                faults.push(format!(
                    "{page}:{number}: there is no file `{path}`: name the one that took its place"
                ));
            }
        }
        // A test or function, as `path/to/file.rs::name`.
        for (path, name) in quoted.iter().filter_map(|quoted| quoted.split_once(".rs::")) {
            let path = format!("{path}.rs");
            let found = sources.iter().find(|source| source.path == path);
            if !found.is_some_and(|source| source.text.contains(&format!("fn {name}("))) {
                faults.push(format!(
                    "{page}:{number}: there is no `{name}` in `{path}`: name the test that took its place"
                ));
            }
        }
    }
    none(&faults);
}

#[test]
fn bounds_of_the_network_crate_are_in_its_module_of_bounds() {
    let mut faults = Vec::new();
    let is_bound = |code: &str| {
        code.split_once("const ")
            .is_some_and(|(_, rest)| rest.split_once(':').is_some_and(|(name, _)| name.ends_with("_MAX")))
    };
    let has_bounds = |path: &str| path == "net/src/limits.rs" || path.starts_with("net/src/protocol/");
    for source in sources().iter().filter(|source| source.path.starts_with("net/src/")) {
        for (number, _) in source.code().filter(|(_, code)| is_bound(code) && !has_bounds(&source.path)) {
            faults.push(format!(
                "{}:{number}: a bound: put it into net/src/limits.rs, or into net/src/protocol/ if peers see it",
                source.path
            ));
        }
    }
    none(&faults);
}
