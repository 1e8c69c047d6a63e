//! `wharf-bench figures`: generates the tables of a page from measurements.
//!
//! The page marks where each table belongs by `<!-- figures: NAME -->` and `<!-- end of figures -->`. The
//! text between the marks is replaced by the table, its command, the commit, the machine and the date.
//! Nothing else on the page changes.

mod machine;
mod sections;
mod table;

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde_json::Value;

pub use machine::Origin;
pub use sections::{SECTIONS, Section};
pub use table::{Column, Unit};

/// The mark after a table.
const END: &str = "<!-- end of figures -->";

/// Returns the mark before the table of a section.
fn begin(name: &str) -> String {
    format!("<!-- figures: {name} -->")
}

/// Runs every command of a section with this binary, and returns the rows of all.
///
/// # Errors
/// When a command fails, or prints something other than JSON rows.
pub fn measure(section: &Section, quick: bool) -> anyhow::Result<Vec<Value>> {
    let binary = std::env::current_exe().context("the path of this binary")?;
    let mut rows = Vec::new();
    for command in section.commands() {
        let mut arguments: Vec<&str> = command.split(' ').collect();
        if quick {
            arguments.extend(section.quick.split(' ').filter(|argument| !argument.is_empty()));
        }
        let output = Command::new(&binary)
            .args(&arguments)
            .arg("--json")
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("cannot start `wharf-bench {command}`"))?;
        if !output.status.success() {
            bail!("`wharf-bench {}` failed: its message is above", arguments.join(" "));
        }
        let printed: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("`wharf-bench {command} --json` printed no JSON"))?;
        match printed {
            Value::Array(of_command) => rows.extend(of_command),
            row => rows.push(row),
        }
    }
    Ok(rows)
}

/// Returns the text between the marks of a section.
///
/// # Errors
/// When a row lacks a column. The error names both.
pub fn render(section: &Section, rows: &[Value], origin: &Origin) -> anyhow::Result<String> {
    let table = table::render(section.columns, rows).with_context(|| format!("section {}", section.name))?;
    let mut command = format!("`wharf-bench {}`", section.command);
    if section.variants != [""] {
        let variants: Vec<String> = section.variants.iter().map(|variant| format!("`{variant}`")).collect();
        command.push_str(" with ");
        command.push_str(&variants.join(", "));
    }
    Ok(format!("{command}\n\n{table}\n{origin}\n"))
}

/// Returns the page with the table of a section replaced.
///
/// # Errors
/// When the page lacks the marks of the section.
pub fn splice(page: &str, name: &str, text: &str) -> anyhow::Result<String> {
    let mark = begin(name);
    let Some((before, rest)) = page.split_once(&mark) else {
        bail!("the page has no mark `{mark}`: add it, and `{END}` after it");
    };
    let Some((_, after)) = rest.split_once(END) else {
        bail!("the page has no `{END}` after `{mark}`: add it");
    };
    Ok(format!("{before}{mark}\n{text}{END}{after}"))
}

/// Measures the sections and writes their tables to `page`, or to their own pages, one after the other, so that an
/// interrupted run keeps its results. `note` is called with the name of each section before it runs.
///
/// # Errors
/// When a page cannot be read or written or lacks a mark, or a measurement fails.
pub fn write(
    page: Option<&Path>,
    sections: &[&Section],
    quick: bool,
    origin: &Origin,
    mut note: impl FnMut(&str),
) -> anyhow::Result<()> {
    let page_of = |section: &Section| page.unwrap_or_else(|| Path::new(section.page));
    let read = |section: &Section| {
        let page = page_of(section);
        std::fs::read_to_string(page).with_context(|| format!("cannot read {}", page.display()))
    };
    // Checks all marks before the first measurement, which may take minutes.
    for section in sections {
        splice(&read(section)?, section.name, "")?;
    }
    for section in sections {
        note(section.name);
        let rows = measure(section, quick)?;
        let rendered = render(section, &rows, origin)?;
        let text = splice(&read(section)?, section.name, &rendered)?;
        let page = page_of(section);
        std::fs::write(page, text).with_context(|| format!("cannot write {}", page.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Page\n<!-- figures: a -->\nold\n<!-- end of figures -->\nafter\n\
                        <!-- figures: b -->\nkept\n<!-- end of figures -->\n";

    #[test]
    fn a_table_is_exchanged_and_nothing_else() {
        let page = splice(PAGE, "a", "new\n").expect("the mark is there");
        assert_eq!(page, PAGE.replace("old", "new"));
    }

    #[test]
    fn a_missing_mark_is_named() {
        let error = splice(PAGE, "c", "").expect_err("no mark").to_string();
        assert!(error.contains("<!-- figures: c -->"), "{error}");
        let error = splice("<!-- figures: a -->\n", "a", "").expect_err("no end").to_string();
        assert!(error.contains(END), "{error}");
    }

    #[test]
    fn every_section_has_a_name_of_its_own() {
        for (at, section) in SECTIONS.iter().enumerate() {
            assert!(SECTIONS[..at].iter().all(|other| other.name != section.name), "{}", section.name);
            assert!(!section.variants.is_empty() && !section.columns.is_empty(), "{}", section.name);
        }
    }
}
