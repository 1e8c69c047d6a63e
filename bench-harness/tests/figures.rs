//! `wharf-bench figures`: every table of the pages can be measured, and its page has a place for it.

use std::path::Path;
use std::process::Command;

use wharf_bench::figures::{SECTIONS, splice};

fn page(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name))
        .expect("the page is there")
}

fn figures(arguments: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_wharf-bench"))
        .arg("figures")
        .args(arguments)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .output()
        .expect("the binary starts")
}

#[test]
fn the_pages_have_a_place_for_every_table() {
    for section in SECTIONS {
        splice(&page(section.page), section.name, "").unwrap_or_else(|error| panic!("{error}"));
    }
    let marks = |name| page(name).matches("<!-- figures: ").count();
    assert_eq!(marks("README.md") + marks("docs/benchmarks.md"), SECTIONS.len(), "a mark has no table");
}

#[test]
fn short_tables_are_measured_and_written() {
    let names = [
        "summary-speed",
        "engine-steady",
        "engine-fgd",
        "views-publish",
        "views-readers",
        "views-planners",
        "groups",
        "durability",
        "rpc",
        "rpc-limits",
        "rpc-secure",
        "overload",
        "idle",
        "hostile",
        "recovery",
    ];
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("page.md");
    let marks = |name: &&str| format!("<!-- figures: {name} -->\nold\n<!-- end of figures -->\n");
    std::fs::write(&path, names.iter().map(marks).collect::<String>()).expect("the page is written");

    let page = path.to_str().expect("a path in UTF-8");
    let output = figures(&["--quick", "--page", page, "--only", &names.join(",")]);

    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let written = std::fs::read_to_string(&path).expect("the page is read");
    assert!(!written.contains("old"), "{written}");
    assert_eq!(
        written.matches("cores, 2").count(),
        names.len(),
        "machine and date follow each table: {written}"
    );
    let tables = written.lines().filter(|line| line.starts_with("| --- ")).count();
    assert_eq!(tables, names.len(), "one table each: {written}");
}

#[test]
fn a_page_without_the_mark_is_refused_before_anything_is_measured() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("page.md");
    std::fs::write(&path, "# No marks\n").expect("the page is written");
    let output = figures(&["--page", path.to_str().expect("a path in UTF-8"), "--only", "engine-steady"]);
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("<!-- figures: engine-steady -->"), "{message}");
}

#[test]
fn an_unknown_table_is_wrong_usage() {
    let output = figures(&["--only", "none"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("engine-steady"));
}
