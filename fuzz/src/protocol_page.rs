//! Generates the tables of `docs/protocol.md` from the sources of the protocol: kinds, bodies, constants, reasons.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::Path;

use wharf_core::limits;
use wharf_net::protocol::{Kind, Reason};

/// The line of the page after which the tables begin.
const BEGIN: &str = "<!-- tables: written by a command, do not edit -->\n";

/// Returns a limit of the engine by its name.
fn limit(name: &str) -> Option<u64> {
    macro_rules! values {
        ($($name:ident)*) => { match name { $(stringify!($name) => Some(limits::$name as u64),)* _ => None } };
    }
    values! {
        CANDIDATES_MAX CLASS_DESCRIPTION_BYTES_MAX CLASS_NAME_BYTES_MAX CUSTOM_RESOURCES_MAX DOMAIN_PATH_BYTES_MAX FALLBACK_SELECTORS_MAX FLOORS_MAX GPU_INSTANCES_MAX GROUP_BUNDLES_MAX
        JOB_POLICIES_MAX LABELS_MAX NAME_BYTES_MAX NODES_PER_MESSAGE_MAX NODE_TYPES_MAX
        PLACEMENTS_PER_MESSAGE_MAX PREFERRED_NODES_MAX PREFERRED_SELECTORS_MAX PRIORITY_CLASSES_MAX
        QUEUE_USERS_SHOWN_MAX RESOURCE_KINDS_MAX SELECTOR_TERMS_MAX SHARDS_MAX UNIT_INSTANCES_MAX USER_BYTES_MAX
    }
}

/// Removes what only Rust's documentation understands from a comment: links to items and their paths.
fn plain(doc: &str) -> String {
    let mut text = String::new();
    let mut rest = doc.trim();
    while let Some((before, link)) = rest.split_once('[') {
        let Some((name, after)) = link.split_once(']') else { break };
        let after = match after.strip_prefix('(') {
            Some(target) => target.split_once(')').map_or(after, |(_, after)| after),
            None => after,
        };
        text.push_str(before);
        text.push_str(name);
        rest = after;
    }
    text.push_str(rest);
    text.replace('|', "\\|").replace("`None`:", "Absent:")
}

/// The tables of bodies and constants.
#[derive(Default)]
struct Tables {
    /// The values of constants that bound texts and lists.
    values: BTreeMap<String, u64>,
    constants: String,
    bodies: String,
    /// The comment above the next item.
    doc: Vec<String>,
}

impl Tables {
    /// Returns the value of a sum of products of constants and numbers.
    fn value(&self, expression: &str) -> Option<u64> {
        let atom = |atom: &str| {
            let atom = atom.trim_end_matches(" as usize").trim_start_matches("wharf_core::limits::");
            atom.replace('_', "")
                .parse()
                .ok()
                .or_else(|| self.values.get(atom).copied())
                .or_else(|| limit(atom))
        };
        let product = |product: &str| product.split(" * ").map(atom).product::<Option<u64>>();
        expression.split(" + ").map(product).sum()
    }

    /// Returns the type of a field as the page shows it: `list of at most 64 SelectorTerm`.
    fn shown_type(&self, declared: &str) -> io::Result<String> {
        let (declared, default) = declared.split_once(" = ").map_or((declared, None), |(a, b)| (a, Some(b)));
        let (name, most) = match declared.split_once(" [") {
            Some((name, most)) => {
                let most = most.trim_end_matches(']');
                let known = self
                    .value(most)
                    .ok_or_else(|| io::Error::other(format!("the bound {most} is unknown")))?;
                (name, Some(known))
            }
            None => (declared, None),
        };
        let inner = |name: &str| {
            let name = name.trim_end_matches('>').trim_start_matches("Box<").trim_start_matches("super::");
            match name {
                "String" | "Name" => "text".to_owned(),
                "ReasonCode" => "u16".to_owned(),
                "SessionToken" | "[u8; 16]" => "16 bytes".to_owned(),
                body if body.starts_with(|c: char| c.is_ascii_uppercase()) => {
                    format!("[{body}](#{})", body.to_lowercase())
                }
                number => number.to_owned(),
            }
        };
        let shown = match (name.split_once('<'), most) {
            (Some(("Vec", element)), Some(most)) => format!("list of {}, at most {most}", inner(element)),
            (Some(("Option", some)), None) => format!("optional {}", inner(some)),
            (None, Some(most)) => format!("{}, at most {most} bytes", inner(name)),
            (None, None) => inner(name),
            _ => return Err(io::Error::other(format!("the type {declared} is unknown"))),
        };
        Ok(match default {
            Some(default) => format!("{shown}; usually {}", default.trim_end_matches(".to_owned()")),
            None => shown,
        })
    }

    fn read(&mut self, source: &str) -> io::Result<()> {
        for line in source.lines().map(str::trim) {
            if let Some(doc) = line.strip_prefix("///") {
                self.doc.push(plain(doc));
                continue;
            }
            if line.starts_with("#[") {
                continue;
            }
            let doc = std::mem::take(&mut self.doc);
            if let Some((constant, expression)) = line.split_once(" = ")
                && let Some((_, constant)) = constant.split_once("const ")
                && let Some((name, _)) = constant.split_once(": ")
                && let Some(value) = self.value(expression.trim_end_matches(';'))
            {
                self.values.insert(name.to_owned(), value);
            }
            self.read_item(line, &doc)?;
        }
        Ok(())
    }

    fn read_item(&mut self, line: &str, doc: &[String]) -> io::Result<()> {
        let mut text = String::new();
        for line in doc {
            match line.as_str() {
                "" => text.push_str("\n\n"),
                item if item.starts_with("- ") => {
                    text.extend([if text.ends_with('\n') { "" } else { "\n" }, item])
                }
                words if text.is_empty() || text.ends_with('\n') => text.push_str(words),
                words => text.extend([" ", words]),
            }
        }
        let Some(item) = line.strip_prefix("pub ") else { return Ok(()) };
        if let Some(constant) = item.strip_prefix("const ") {
            // Numbers of one byte select a meaning. The others are limits, and have their place above the tables.
            if let Some((name, value)) = constant.trim_end_matches(';').split_once(": u8 = ")
                && !name.contains("VERSION")
            {
                let value = value.replace('|', "\\|");
                let _ = writeln!(self.constants, "| `{name}` | {value} | {} |", text.replace('\n', " "));
            }
        } else if let Some(body) = item.strip_prefix("struct ").and_then(|rest| rest.strip_suffix(" {"))
            && !body.contains('$')
        {
            let _ =
                write!(self.bodies, "\n### {body}\n\n{text}\n\n| field | type | meaning |\n|---|---|---|\n");
        } else if let Some((name, declared)) = item.split_once(": ")
            && let Some(declared) = declared.strip_suffix(',')
        {
            let shown = self.shown_type(declared)?;
            let _ = writeln!(self.bodies, "| `{name}` | {shown} | {} |", text.replace('\n', " "));
        }
        Ok(())
    }
}

/// Returns the rows of the kinds and those of the reasons: the comment above `Name = number, "name"`.
fn numbered(source: &str) -> impl Iterator<Item = (String, &str)> {
    let mut doc = Vec::new();
    source.lines().map(str::trim).filter_map(move |line| {
        if let Some(text) = line.strip_prefix("///") {
            doc.push(plain(text));
            return None;
        }
        let doc = std::mem::take(&mut doc).join(" ");
        (line.ends_with(';') && line.contains(", \"")).then_some((doc, line))
    })
}

/// Returns `page` with new tables, generated from the sources in `protocol`.
///
/// # Errors
/// Returns an error if a file cannot be read, or if the sources or the page have an unknown form.
pub fn protocol_page(protocol: &Path, page: &str) -> io::Result<String> {
    let (prose, _) = page.split_once(BEGIN).ok_or_else(|| io::Error::other("the page has no tables"))?;
    let mut out = format!("{prose}{BEGIN}");
    out.push_str("\n## Kinds\n\n| number | name | request | reply | outcome kept | roles | meaning |\n|---|---|---|---|---|---|---|\n");
    let kinds = std::fs::read_to_string(protocol.join("kind.rs"))?;
    let mut rows = numbered(&kinds).filter(|(_, line)| line.contains("=>")).peekable();
    for kind in Kind::ALL {
        // A long row of the table has its bodies on the next line.
        let (doc, line) = rows.next().ok_or_else(|| io::Error::other("a kind has no row"))?;
        let bodies = line.splitn(3, ", ").nth(2).and_then(|rest| rest.split_once(','));
        let (bodies, _) = bodies.ok_or_else(|| io::Error::other(format!("the row {line:?}")))?;
        let (request, reply) =
            bodies.split_once(" => ").ok_or_else(|| io::Error::other(bodies.to_owned()))?;
        let kept = if kind.only_looks() { "no" } else { "yes" };
        let _ = writeln!(
            out,
            "| {} | `{}` | [{request}](#{}) | [{reply}](#{}) | {kept} | {} | {doc} |",
            kind.number(),
            kind.name(),
            request.to_lowercase(),
            reply.to_lowercase(),
            kind.roles()
        );
    }
    out.push_str("\n## Reasons\n\n| number | name | meaning |\n|---|---|---|\n");
    let reasons = std::fs::read_to_string(protocol.join("reason.rs"))?;
    for (reason, (doc, _)) in Reason::ALL.iter().zip(numbered(&reasons)) {
        let _ = writeln!(out, "| {} | `{reason}` | {doc} |", reason.number());
    }
    let mut tables = Tables::default();
    for file in
        ["bounded", "mod", "message", "place", "preference", "node", "agent", "books", "reservation", "group"]
            .into_iter()
            .chain([
                "statement",
                "follow",
                "event",
                "status",
                "export",
                "lease",
                "job",
                "priority_class",
                "explain",
                "plan",
            ])
    {
        tables.read(&std::fs::read_to_string(protocol.join(file).with_extension("rs"))?)?;
    }
    out.push_str("\n## Constants\n\n| name | value | meaning |\n|---|---|---|\n");
    out.push_str(&tables.constants);
    out.push_str("\n## Bodies\n");
    out.push_str(&tables.bodies);
    Ok(out)
}
