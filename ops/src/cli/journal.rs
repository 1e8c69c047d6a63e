//! `wharf journal`: looks at the books of a stopped service, repairs them, and copies them.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::Ended;
use super::connect::ConnectArgs;
use super::export::export;
use super::print::{self, say, store_id};
use crate::config::default_data_dir;
use crate::journal::{self, Checked, Counts, Damage, End, Imported, Portable, Repaired, Tail};

#[derive(Debug, Subcommand)]
pub(super) enum JournalCommand {
    /// Verify the checkpoint, every value of the journal, and the invariants of the books. Changes nothing.
    Check(StoreArgs),
    /// Print the units of the journal after the checkpoint, one line of JSON each. Changes nothing.
    Dump(DumpArgs),
    /// Drop all appends after one, with everything that they acknowledged. Keeps a copy of the journal.
    Repair(RepairArgs),
    /// Write the books to one portable file, also while the service runs.
    Export(ExportArgs),
    /// Make a store with the books of a portable file.
    Import(ImportArgs),
}

/// The store that a command works on.
#[derive(Clone, Debug, Args)]
pub(super) struct StoreArgs {
    /// Data directory of the service [default: as for `wharf serve`].
    #[arg(long, env = "WHARF_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, env = "WHARF_JSON")]
    json: bool,
}

impl StoreArgs {
    fn data_dir(&self) -> PathBuf {
        self.data_dir.clone().unwrap_or_else(default_data_dir)
    }

    /// Prints a result as JSON or for people.
    fn show(&self, is_done: bool, view: &Value, say: impl FnOnce()) -> Ended {
        if self.json {
            print::json(view);
        } else {
            say();
        }
        if is_done { Ended::Done } else { Ended::Refused }
    }
}

#[derive(Debug, Args)]
pub(super) struct DumpArgs {
    /// Begin with this append.
    #[arg(long, default_value_t = 0)]
    from: u64,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, Args)]
pub(super) struct RepairArgs {
    /// The last append to keep.
    #[arg(long, value_name = "POSITION")]
    to: u64,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    /// The file to write. It must not exist.
    file: PathBuf,
    /// Ask the running service, even if the data directory could be read.
    #[arg(long)]
    online: bool,
    /// Data directory of the service [default: as for `wharf serve`].
    #[arg(long, env = "WHARF_DATA_DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    connect: ConnectArgs,
}

#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// The file to read.
    file: PathBuf,
    /// Only verify the file.
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    store: StoreArgs,
}

pub(super) fn run(command: JournalCommand) -> anyhow::Result<Ended> {
    journal::report_other_panics();
    match command {
        JournalCommand::Check(args) => check(&args),
        JournalCommand::Dump(args) => dump(&args),
        JournalCommand::Repair(args) => repair(&args),
        JournalCommand::Export(args) => {
            let data_dir = args.data_dir.unwrap_or_else(default_data_dir);
            let portable = export(&args.file, &data_dir, args.online, &args.connect)?;
            args.connect.show(true, || portable_view(&portable), || say_portable("exported", &portable))
        }
        JournalCommand::Import(args) => import(&args),
    }
}

fn counts_view(counts: &Counts) -> Value {
    json!({
        "nodes": counts.nodes,
        "allocations": counts.allocations,
        "groups": counts.groups,
        "queues": counts.queues,
        "jobs": counts.jobs,
        "books_hash": counts.hash.to_string(),
    })
}

fn say_counts(what: &str, counts: &Counts) {
    let Counts { nodes, allocations, groups, queues, jobs, hash } = counts;
    say(format_args!(
        "{what}: {nodes} nodes, {allocations} allocations, {groups} groups, {queues} queues, {jobs} jobs; hash {hash}"
    ));
}

fn tail_view(tail: &Tail) -> Value {
    let (from, to) = tail.appends;
    json!({ "from": from, "to": to, "units": tail.units, "effects": tail.effects, "bytes": tail.bytes })
}

fn say_tail(what: &str, tail: &Tail) {
    let Tail { appends: (from, to), units, effects, bytes } = tail;
    if from > to {
        say(format_args!("{what}: nothing after append {to}"));
    } else {
        say(format_args!("{what}: appends {from} to {to}, {units} units, {effects} effects, {bytes} bytes"));
    }
}

fn damage_view(damage: &[Damage]) -> Value {
    damage.iter().map(|one| json!({ "append": one.append, "fault": one.what })).collect()
}

fn say_damage(damage: &[Damage]) {
    for Damage { append, what } in damage {
        say(format_args!("append {append} is damaged: {what}"));
    }
}

fn check(args: &StoreArgs) -> anyhow::Result<Ended> {
    let checked = journal::check(&args.data_dir())?;
    Ok(args.show(checked.is_sound(), &check_view(&checked), || say_check(&checked)))
}

fn check_view(checked: &Checked) -> Value {
    json!({
        "store": store_id(checked.store),
        "incarnation": checked.incarnation.0,
        "checkpoint": counts_view(&checked.checkpoint),
        "journal": checked.tail.as_ref().map(tail_view),
        "damage": damage_view(&checked.damage),
        "is_salvaged": checked.is_salvaged,
        "books": checked.books.as_ref().map(|(counts, _)| counts_view(counts)),
        "taken_back": checked.books.as_ref().map(|(_, recovery)| json!({
            "bundles": recovery.taken_back.bundles,
            "places": recovery.taken_back.places,
            "reservations": recovery.taken_back.reservations,
        })),
        "is_cut": checked.books.as_ref().map(|(_, recovery)| recovery.is_cut()),
        "broken": checked.broken,
        "are_books_gone": checked.are_books_gone,
    })
}

fn say_check(checked: &Checked) {
    say(format_args!("store {}, incarnation {}", store_id(checked.store), checked.incarnation.0));
    say_counts("checkpoint", &checked.checkpoint);
    match &checked.tail {
        Some(tail) => say_tail("journal", tail),
        None if checked.are_books_gone => {
            say(format_args!(
                "journal: none; the last run had `durability = memory` and did not stop cleanly, so its books are gone"
            ));
        }
        None => say(format_args!("journal: none; the checkpoint has all books")),
    }
    if let Some((counts, recovery)) = &checked.books {
        if let Some(file) = recovery.cut_file {
            say(format_args!("{file}: the last write was not whole; a start cuts it off"));
        }
        say_counts("books", counts);
    }
    if checked.is_salvaged {
        say(format_args!(
            "the database of the journal is damaged; these are the values that are whole in its file"
        ));
    }
    if checked.is_salvaged && checked.tail.is_none() {
        say(format_args!("the checkpoint has all books: move `journal.redb` away"));
    }
    say_damage(&checked.damage);
    if let Some(broken) = &checked.broken {
        say(format_args!("the books break an invariant: {broken}"));
    }
    if let Some(last) = checked.whole_to() {
        say(format_args!(
            "`wharf journal repair --to {last}` drops append {} and all after it, with what they acknowledged",
            last + 1
        ));
    }
    if checked.is_sound() {
        say(format_args!("all is sound: every value, and every invariant of the books"));
    }
}

fn dump(args: &DumpArgs) -> anyhow::Result<Ended> {
    let damage = journal::dump(&args.store.data_dir(), args.from, |line| say(format_args!("{line}")))?;
    for Damage { append, what } in &damage {
        eprintln!("wharf: append {append} is damaged: {what}");
    }
    Ok(if damage.is_empty() { Ended::Done } else { Ended::Refused })
}

fn repair(args: &RepairArgs) -> anyhow::Result<Ended> {
    let repaired = journal::repair(&args.store.data_dir(), args.to)?;
    let view = json!({
        "last": repaired.last,
        "dropped": repaired.dropped.as_ref().map(tail_view),
        "damage": damage_view(&repaired.damage),
        "copy": repaired.copy,
    });
    Ok(args.store.show(true, &view, || say_repair(&repaired)))
}

fn say_repair(repaired: &Repaired) {
    if repaired.copy.is_none() {
        return say(format_args!("the journal ends at append {} already", repaired.last));
    }
    match &repaired.dropped {
        Some(dropped) => say_tail("dropped", dropped),
        None => say(format_args!("dropped: only what is not whole")),
    }
    say_damage(&repaired.damage);
    if let Some(copy) = &repaired.copy {
        say(format_args!("the journal as it was is in {}", copy.display()));
    }
    say(format_args!(
        "the journal ends at append {}; what was acknowledged after it is not in the books",
        repaired.last
    ));
}

fn import(args: &ImportArgs) -> anyhow::Result<Ended> {
    if args.check {
        let portable = journal::verify(&args.file)?;
        return Ok(args.store.show(true, &portable_view(&portable), || say_portable("verified", &portable)));
    }
    let imported = journal::import(&args.file, &args.store.data_dir())?;
    let view = json!({
        "file": portable_view(&imported.file),
        "store": store_id(imported.store),
        "incarnation": imported.incarnation.0,
        "books": counts_view(&imported.books),
    });
    Ok(args.store.show(true, &view, || say_import(&imported, &args.store.data_dir())))
}

fn say_import(imported: &Imported, data_dir: &Path) {
    say_portable("imported", &imported.file);
    say(format_args!(
        "new store {} in {}; its first start is incarnation {}",
        store_id(imported.store),
        data_dir.display(),
        imported.incarnation.0 + 1
    ));
    say_counts("books with new ids", &imported.books);
}

fn portable_view(portable: &Portable) -> Value {
    let End { rows, appends, last } = portable.end;
    json!({
        "store": store_id(portable.store),
        "incarnation": portable.incarnation.0,
        "rows": rows,
        "appends": appends,
        "last": last,
        "units": portable.recovery.units,
        "books": counts_view(&portable.books),
    })
}

fn say_portable(done: &str, portable: &Portable) {
    let Portable { store, incarnation, end, books, recovery } = portable;
    say(format_args!("{done} store {}, incarnation {}", store_id(*store), incarnation.0));
    let up_to = if end.appends > 0 { format!(", up to append {}", end.last) } else { String::new() };
    say(format_args!("journal: {} appends, {} units{up_to}", end.appends, recovery.units));
    say_counts("books", books);
}
