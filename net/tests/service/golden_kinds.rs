//! Every kind of message has golden bytes, as request and as reply. A page lists where, and a file has them all as data for
//! clients in other languages.

use wharf_net::protocol::Kind;

use super::{
    golden_books, golden_events, golden_extensions, golden_follow, golden_frames, golden_groups, golden_jobs,
    golden_leases, golden_plans, golden_reservations,
};
use crate::harness::golden::{checked_by, decode};

/// The tests that check golden bytes, by file.
const TESTS: [&[fn()]; 10] = [
    golden_books::TESTS,
    golden_events::TESTS,
    golden_extensions::TESTS,
    golden_follow::TESTS,
    golden_frames::TESTS,
    golden_groups::TESTS,
    golden_jobs::TESTS,
    golden_leases::TESTS,
    golden_plans::TESTS,
    golden_reservations::TESTS,
];

/// Returns what lacks golden bytes.
fn missing(covered: &[(Kind, bool)]) -> Vec<String> {
    let messages = Kind::ALL.iter().flat_map(|&kind| [(kind, false), (kind, true)]);
    let missing = messages.filter(|message| !covered.contains(message));
    let name = |(kind, is_reply): (Kind, bool)| {
        format!("the {} of `{}`", if is_reply { "reply" } else { "request" }, kind.name())
    };
    missing.map(name).collect()
}

#[test]
fn every_kind_has_golden_bytes() {
    let missing = missing(&checked_by(&TESTS).kinds);
    assert!(
        missing.is_empty(),
        "no golden bytes for {}: give `check_request` and `check_reply` a body of each with its bytes, in a file \
         net/tests/service/golden_*.rs whose `TESTS` name the test and are listed in golden_kinds.rs",
        missing.join(", ")
    );
}

/// The page about the wire names each file of golden bytes.
#[test]
fn the_page_lists_the_golden_files() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let page = std::fs::read_to_string(format!("{root}/docs/decisions/wire.md")).expect("the page is there");
    let mut files = 0;
    for entry in std::fs::read_dir(format!("{root}/net/tests/service")).expect("the folder is there") {
        let name = entry.expect("an entry").file_name().into_string().expect("names are text");
        if name.starts_with("golden_") {
            files += 1;
            let path = format!("`net/tests/service/{name}`");
            assert!(page.contains(&path), "docs/decisions/wire.md does not list {path}: say what it has");
        }
    }
    assert!(files > 10, "the golden files are not where they were: {files}");
}

#[test]
fn what_has_no_golden_bytes_is_named() {
    let mut covered = checked_by(&TESTS).kinds;
    covered.retain(|message| ![(Kind::Place, false), (Kind::Export, true)].contains(message));
    assert_eq!(missing(&covered), ["the request of `place`", "the reply of `export`"]);
    assert_eq!(missing(&[]).len(), 2 * Kind::ALL.len());
}

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/cases.txt");

const ABOUT: &str = "\
# Golden bytes of the protocol, for clients in any language. docs/protocol.md explains them. Each line is one case:
#   frame HEX JSON       a whole frame, and what it says
#   body NAME HEX JSON   the body of this name, and what it says
# HEX is empty for a body without fields. Integers may have up to 128 bits, more than a double can hold.
# The JSON of bytes that a decoder must refuse is {\"refused\": WHY}, in the words of net/tests/decoder/wharf_decoder.py.
";

/// The file has what the tests check, no more and no less. So bytes cannot change in the tests alone.
#[test]
fn the_golden_file_has_all_cases() {
    let cases = checked_by(&TESTS).cases;
    let all = format!("{ABOUT}{}\n", cases.join("\n"));
    if std::env::var_os("WHARF_WRITE_GOLDEN").is_some() {
        std::fs::write(CASES, &all).expect("the file can be written");
    }
    let file = std::fs::read_to_string(CASES).expect("the file is there");
    let differs = (1..).zip(file.lines().zip(all.lines())).find(|(_, (line, case))| line != case);
    assert!(
        differs.is_none() && file.lines().count() == all.lines().count(),
        "net/tests/golden/cases.txt does not have what the tests check, {differs:?}: if cases were added, run \
         `WHARF_WRITE_GOLDEN=1 cargo test -p wharf-net --test service golden_kinds`. No other line may change"
    );
    decode(&file, cases.len());
}
