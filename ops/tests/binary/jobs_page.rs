//! The page about jobs: its files and commands in their order with the real binary, and what it shows as output.
//!
//! A block of YAML after a line that ends in "`NAME`:" is the file NAME. Blocks of `wharf` commands are run. Another block
//! after commands is what the last of them prints: `…` is any text, and a line of `…` is any lines. Other YAML, and
//! settings, are checked.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::harness::{Ended, PATIENCE, Service, Site};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/jobs.md");

/// The commands that the page must show.
const SHOWN: [&str; 13] = [
    "queue set",
    "queue list",
    "queue remove",
    "priority-class set",
    "priority-class list",
    "priority-class remove",
    "job submit",
    "job status",
    "job list",
    "job cancel",
    "job report",
    "explain",
    "plan",
];

/// A fenced block, with its language and the last line of text before it.
struct Block {
    before: String,
    language: String,
    lines: Vec<String>,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    let mut before = String::new();
    for line in page.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(language)) => {
                let before = std::mem::take(&mut before);
                open = Some(Block { before, language: language.to_owned(), lines: Vec::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => block.lines.push(line.to_owned()),
            (None, None) if !line.trim().is_empty() => line.clone_into(&mut before),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block of the page has no end");
    blocks
}

impl Block {
    fn text(&self) -> String {
        self.lines.join("\n") + "\n"
    }

    fn has_commands(&self) -> bool {
        self.language.is_empty() && self.lines.iter().all(|line| line.starts_with("wharf "))
    }

    fn has_settings(&self) -> bool {
        self.language.is_empty() && self.lines.first().is_some_and(|line| line.starts_with('['))
    }

    /// Returns the file that it is, if the text before it names one.
    fn file(&self) -> Option<&str> {
        self.before.strip_suffix("`:")?.rsplit('`').next().filter(|_| self.language == "yaml")
    }
}

/// Returns whether a text is as a line of the page shows it.
fn is_as_shown(shown: &str, text: &str) -> bool {
    let Some((first, others)) = shown.split_once('…') else { return shown == text };
    let (middle, last) = others.rsplit_once('…').unwrap_or(("", others));
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    for part in middle.split('…') {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Returns whether lines are as the page shows them. Blanks at the end of a line do not count.
fn are_as_shown(shown: &[String], lines: &[&str]) -> bool {
    let Some((first, others)) = shown.split_first() else { return lines.is_empty() };
    if first == "…" {
        return (0..=lines.len()).any(|skipped| are_as_shown(others, &lines[skipped..]));
    }
    let Some((line, rest)) = lines.split_first() else { return false };
    is_as_shown(first.trim_end(), line.trim_end()) && are_as_shown(others, rest)
}

#[test]
fn lines_are_compared_with_what_is_shown() {
    for (shown, text, is_same) in [
        ("a b", "a b", true),
        ("a b", "a b c", false),
        ("a … c", "a b b c", true),
        ("a … c", "a b b d", false),
        ("a …", "a b", true),
        ("… b", "a b", true),
        ("… b", "a b c b", true),
        ("… b", "a c", false),
        ("… b … d …", "a b c d e", true),
        ("… d … b …", "a b c d e", false),
        ("", "", true),
    ] {
        assert_eq!(is_as_shown(shown, text), is_same, "{shown} {text}");
    }
    let shown = ["a".to_owned(), "…".to_owned(), "c".to_owned()];
    assert!(are_as_shown(&shown, &["a", "b", "b", "c"]) && are_as_shown(&shown, &["a", "c  "]));
    assert!(!are_as_shown(&shown, &["a", "b"]) && !are_as_shown(&shown[..1], &["a", "b"]));
}

/// Runs a command until it succeeds and prints what is shown, if anything is. A reader takes longer than a cycle, too.
fn run(service: &Service, arguments: &[&str], shown: Option<&Block>) {
    let end = Instant::now() + PATIENCE / 2;
    loop {
        let ended: Ended = service.run(arguments);
        let lines: Vec<&str> = ended.out.lines().collect();
        let is_right = shown.is_none_or(|block| are_as_shown(&block.lines, &lines));
        if ended.code == Some(0) && is_right {
            return;
        }
        let shown = shown.map(Block::text);
        assert!(Instant::now() < end, "{arguments:?}, shown {shown:#?}\n{ended:#?}\n{}", ended.out);
    }
}

#[test]
fn what_the_page_about_jobs_says_is_so() {
    let page = std::fs::read_to_string(PAGE).expect("the page is here");
    let blocks = blocks(&page);
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    let mut ran: BTreeSet<String> = BTreeSet::new();
    let mut outputs = 0;
    for (at, block) in blocks.iter().enumerate() {
        if let Some(name) = block.file() {
            let file = site.write(name, &block.text());
            site.run(&["check", &file]).with(0);
        } else if block.has_commands() {
            let shows =
                |next: &&Block| next.language.is_empty() && !next.has_commands() && !next.has_settings();
            let shown = blocks.get(at + 1).filter(shows);
            outputs += usize::from(shown.is_some());
            for (number, line) in block.lines.iter().enumerate() {
                let command = line.split(" #").next().unwrap_or_default();
                let given: Vec<&str> = command.split_whitespace().skip(1).collect();
                if given == ["serve"] {
                    continue;
                }
                let paths: Vec<String> = given.iter().map(|of| path_of(&site, of)).collect();
                let arguments: Vec<&str> = paths.iter().map(String::as_str).collect();
                run(&service, &arguments, shown.filter(|_| number + 1 == block.lines.len()));
                ran.extend([given[0].to_owned(), given[..2].join(" ")]);
            }
        } else if block.has_settings() || block.language == "yaml" {
            let ending = if block.has_settings() { "toml" } else { "yaml" };
            let file = site.write(&format!("block-{at}.{ending}"), &block.text());
            site.run(&["check", &file]).with(0);
        }
    }
    let missing: Vec<&str> = SHOWN.into_iter().filter(|command| !ran.contains(*command)).collect();
    assert!(missing.is_empty(), "the page shows no command {missing:?}, only {ran:?}");
    assert!(outputs >= 4, "the page shows what {outputs} commands print");
    assert!(service.json(&["status", "--audit"])["books_hash"].is_string());
    service.stop();
}

/// Returns an argument, or the path of the file of the page that it names.
fn path_of(site: &Site, argument: &str) -> String {
    let path = site.path(argument);
    if path.is_file() {
        path.to_str().expect("temporary paths are text").to_owned()
    } else {
        argument.to_owned()
    }
}
