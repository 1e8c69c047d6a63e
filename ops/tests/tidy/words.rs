//! Comments and pages are plain English: no archaic words, no sentence that is too long to read once.

use super::{none, pages, sources};

/// The largest number of words of a sentence.
const WORDS_MAX: usize = 35;

/// Words of a dialect that this project had, each with the plain one.
pub(super) const BANNED: [(&str, &str); 21] = [
    ("stand", "is placed, is, exists"),
    ("stands", "is placed, is, exists"),
    ("stood", "was placed, was, existed"),
    ("standing", "placed, existing"),
    ("anew", "again"),
    ("beside", "with, next to"),
    ("besides", "also, in addition"),
    ("whoever", "the caller, anyone who"),
    ("likewise", "also"),
    ("elsewhere", "somewhere else, on another node"),
    ("in vain", "without success"),
    ("on its way out", "releasing"),
    ("on their way out", "releasing"),
    ("as ever", "as before"),
    ("set aside", "withheld, reserved"),
    ("sets aside", "withholds, reserves"),
    ("at hand", "available"),
    ("whence", "from where"),
    ("hence", "so"),
    ("thence", "from there"),
    ("lest", "so that it does not"),
];

/// Text that a reader reads as one: a comment, or a paragraph of a page.
struct Block {
    place: String,
    text: String,
}

/// The comments of a source, without their code: neighbouring lines of one kind are one block.
fn comments(path: &str, source: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut before: Option<(usize, &str)> = None;
    let mut in_code = false;
    for (number, line) in (1..).zip(source.lines()) {
        let Some((kind, text)) = comment(line) else { continue };
        let goes_on = before == Some((number - 1, kind));
        before = Some((number, kind));
        if text.trim_start().starts_with("```") {
            in_code = !in_code || !goes_on;
        }
        if in_code && goes_on || text.trim_start().starts_with("```") {
            continue;
        }
        in_code = false;
        match blocks.last_mut().filter(|_| goes_on) {
            Some(block) => block.text.push_str(&format!("\n{text}")),
            None => blocks.push(Block { place: format!("{path}:{number}"), text: text.to_owned() }),
        }
    }
    blocks
}

/// The kind and the text of a line that has a comment: after `//` that is outside of quotes.
fn comment(line: &str) -> Option<(&str, &str)> {
    let mut in_quotes = false;
    let mut characters = line.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => drop(characters.next()),
            '"' => in_quotes = !in_quotes,
            '/' if !in_quotes && line[at..].starts_with("//") => {
                let length = line[at..].chars().take_while(|c| "/!".contains(*c)).count().min(3);
                return Some((&line[at..at + length], &line[at + length..]));
            }
            _ => {}
        }
    }
    None
}

/// The paragraphs, items and rows of a page, without its code.
fn paragraphs(path: &str, page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut in_code = false;
    let mut goes_on = false;
    for (number, line) in (1..).zip(page.lines()) {
        let trimmed = line.trim_start();
        if trimmed.starts_with("```") {
            in_code = !in_code;
            goes_on = false;
            continue;
        }
        if in_code || trimmed.is_empty() {
            goes_on = false;
            continue;
        }
        let item = trimmed.starts_with(['-', '*', '|', '#', '>'])
            || trimmed.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        match blocks.last_mut().filter(|_| goes_on && !item) {
            Some(block) => block.text.push_str(&format!("\n{line}")),
            None => blocks.push(Block { place: format!("{path}:{number}"), text: line.to_owned() }),
        }
        goes_on = !trimmed.starts_with(['|', '#']);
    }
    blocks
}

/// The text with each quotation of code, and each address of a link, as one plain word or none.
fn prose(text: &str) -> String {
    let quoted: String = text
        .split('`')
        .enumerate()
        .map(|(at, part)| if at % 2 == 1 { "CODE".to_owned() } else { part.to_owned() })
        .collect();
    let mut out = String::new();
    let mut rest = quoted.as_str();
    while let Some((before, after)) = rest.split_once("](") {
        out.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    out.push_str(rest);
    out
}

/// Cuts prose where a sentence, an item or a cell ends.
fn sentences(prose: &str) -> Vec<String> {
    let mut sentences = vec![String::new()];
    for line in prose.lines() {
        let item = line.trim_start().starts_with(['-', '*', '|', '#']) || line.trim().is_empty();
        if item {
            sentences.push(String::new());
        }
        for word in line.split_whitespace() {
            let ends = word.ends_with(['.', '!', '?', ':', ';']) || word == "|";
            let sentence = sentences.last_mut().expect("there is always one");
            sentence.push_str(word);
            sentence.push(' ');
            if ends {
                sentences.push(String::new());
            }
        }
    }
    sentences
}

fn word_count(sentence: &str) -> usize {
    sentence.split_whitespace().filter(|word| word.contains(|c: char| c.is_alphanumeric())).count()
}

/// Returns whether the words of `banned` occur in a row.
fn contains_words(prose: &str, banned: &str) -> bool {
    let plain = |c: char| if c.is_alphanumeric() || c == '_' || c == '-' { c } else { ' ' };
    let text: String = prose.to_lowercase().chars().map(plain).collect();
    let text: Vec<&str> = text.split_whitespace().collect();
    let banned: Vec<&str> = banned.split(' ').collect();
    text.windows(banned.len()).any(|window| window == banned)
}

#[test]
fn comments_and_pages_are_plain_english() {
    let mut blocks = Vec::new();
    for source in sources() {
        blocks.extend(comments(&source.path, &source.text));
    }
    for page in pages() {
        blocks.extend(paragraphs(&page.path, &page.text));
    }
    assert!(blocks.len() > 3000, "most comments are not found: {}", blocks.len());
    let mut faults = Vec::new();
    for Block { place, text } in blocks {
        let prose = prose(&text);
        for (banned, plain) in BANNED.iter().filter(|(banned, _)| contains_words(&prose, banned)) {
            faults.push(format!("{place}: \"{banned}\" is no plain English: write {plain}"));
        }
        for sentence in sentences(&prose) {
            let count = word_count(&sentence);
            if count > WORDS_MAX {
                let begin: String = sentence.chars().take(60).collect();
                faults.push(format!("{place}: a sentence of {count} words: cut it in two: {begin}"));
            }
        }
    }
    none(&faults);
}

#[test]
fn the_checks_of_words_find_what_they_are_for() {
    // Put together, so that this file does not use the words.
    let banned = ["an", "ew"].concat();
    let long = "word ".repeat(WORDS_MAX + 1);
    let source = format!("let url = \"http://x\"; // made {banned}\n/// {long}.\n/// {long}.\nfn f() {{}}\n");
    let found = comments("f.rs", &source);
    assert_eq!(found.len(), 2);
    assert!(contains_words(&prose(&found[0].text), &banned));
    assert!(!contains_words(&prose(&format!("`{banned}`")), &banned), "code is quoted as it is");
    let counts: Vec<usize> = sentences(&prose(&found[1].text)).iter().map(|s| word_count(s)).collect();
    assert_eq!(counts, [WORDS_MAX + 1, WORDS_MAX + 1, 0]);
    let page = "# Title\n\nOne two. Three [four](http://five.six) seven.\n- item\n- item\n\n```\ncode\n```\n";
    let found = paragraphs("p.md", page);
    assert_eq!(found.len(), 4, "a title, a paragraph and two items");
    let counts: Vec<usize> = sentences(&prose(&found[1].text)).iter().map(|s| word_count(s)).collect();
    assert_eq!(counts, [2, 3, 0]);
}
