//! Every term of the glossary is in a name of the code, and names use one word for one thing.

use std::collections::BTreeSet;
use std::fs;

use super::words::BANNED;
use super::{none, root, sources};

/// Words that no name has, each with the term that is used. Names have no word that prose has not either.
const SECOND_WORDS: [(&str, &str); 5] = [
    ("aside", "withheld"),
    ("desk", "registrar"),
    ("kick", "evict"),
    ("spillover", "spillback"),
    ("worker", "shard, planner"),
];

/// Returns the words of a name: `NodeTable` and `node_table` have two.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut before = '_';
    for letter in name.chars() {
        let begins = before == '_' || letter.is_uppercase() && !before.is_uppercase();
        if letter != '_' {
            match words.last_mut() {
                Some(word) if !begins => word.extend(letter.to_lowercase()),
                _ => words.push(letter.to_lowercase().collect()),
            }
        }
        before = letter;
    }
    words
}

/// Returns the words of all names in a line of code. Texts are left out.
fn words_of_line(code: &str) -> Vec<String> {
    let without_texts = code.split('"').step_by(2).collect::<Vec<_>>().join(" ");
    let names = without_texts.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    names.flat_map(words).collect()
}

/// Returns whether the code uses a word of a term, in some form of it.
fn is_used(word: &str, used: &BTreeSet<String>) -> bool {
    let stem = word.strip_suffix("ing").unwrap_or(word);
    let forms = [word.to_owned(), format!("{word}s"), format!("{word}d"), format!("{word}ed")];
    forms.iter().chain([&stem.to_owned(), &format!("{stem}e")]).any(|form| used.contains(form))
}

#[test]
fn every_term_of_the_glossary_is_in_a_name() {
    let page = fs::read_to_string(root().join("docs/glossary.md")).expect("the glossary");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | ")).skip(1);
    let terms: Vec<&str> = rows.flat_map(|(terms, _)| terms.split(", ")).collect();
    assert!(terms.len() > 50, "the glossary has {} terms", terms.len());
    let mut used = BTreeSet::new();
    for source in sources().iter().filter(|source| source.path.contains("/src/")) {
        used.extend(source.code().flat_map(|(_, code)| words_of_line(code)));
    }
    let mut faults = Vec::new();
    for term in terms {
        for word in term.split([' ', '-']).filter(|word| !is_used(word, &used)) {
            faults.push(format!(
                "docs/glossary.md: no name has `{word}` of `{term}`: use the term, or take it out"
            ));
        }
    }
    none(&faults);
}

#[test]
fn names_use_one_word_for_one_thing() {
    let mut faults = Vec::new();
    for source in sources().iter().filter(|source| source.path.contains("/src/")) {
        for (number, code) in source.code() {
            // The engine has older names with these words.
            let is_older =
                |word: &str| source.path.starts_with("core/") && ["standing", "elsewhere"].contains(&word);
            // The name of a method of tokio, which nobody here gave.
            let is_of_tokio = |word: &str| word == "worker" && code.contains(".worker_threads(");
            let is_ours = |word: &String| !is_older(word) && !is_of_tokio(word);
            for word in words_of_line(code).into_iter().filter(is_ours) {
                let banned = SECOND_WORDS.iter().chain(&BANNED).find(|(banned, _)| *banned == word);
                if let Some((_, term)) = banned {
                    faults.push(format!("{}:{number}: a name has `{word}`: say {term}", source.path));
                }
            }
        }
    }
    none(&faults);
}

#[test]
fn the_words_of_names_are_found() {
    assert_eq!(words("NodeTable"), ["node", "table"]);
    assert_eq!(words("_set_aside"), ["set", "aside"]);
    assert_eq!(words("HOT"), ["hot"]);
    assert_eq!(
        words_of_line("let spill = f(\"set aside\", FreeBooks::of(x));"),
        ["let", "spill", "f", "free", "books", "of", "x"]
    );
}
