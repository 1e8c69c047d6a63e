//! The readers of a store, given files that nobody wrote: the portable file that an import reads, and the databases.
//!
//! The first byte of an input selects what is read. The rest says how a sound file is changed, or is the file. A changed
//! file must be refused, unless all of its hashes were made again. Then it may be anything, and must only do no harm.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use wharf_core::hash::stable_hash;
use wharf_core::state::StoreState;
use wharf_ops::file_error::FileError;
use wharf_ops::journal::{Durability, Portable, Store, report_other_panics, verify_content};

use crate::disk::Disk;
use crate::finding::{Finding, found};
use crate::served::Stored;
use crate::sim::choices::Choices;

/// The length of what comes before the first record.
const BEGIN_BYTES: usize = 12;
/// The tag of a record with the value of an append.
const VALUE: u8 = 3;
/// The tag of the last record.
const END: u8 = 4;

/// A sound store, and what its files say.
struct Sound {
    stored: Stored,
    begin: Vec<u8>,
    records: Vec<Record>,
    /// The hashes of the books after each number of appends.
    books: Vec<String>,
}

/// A record of a portable file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    tag: u8,
    content: Vec<u8>,
}

fn sound() -> &'static Sound {
    static SOUND: OnceLock<Sound> = OnceLock::new();
    SOUND.get_or_init(|| {
        // The database may panic over damage, which becomes an error. A fuzzer must not take it for a finding.
        report_other_panics();
        let stored = Stored::new();
        let (begin, bytes) = stored.portable.split_at(BEGIN_BYTES);
        let mut sound = Sound { begin: begin.to_vec(), records: split(bytes), books: Vec::new(), stored };
        assert!(sound.file(&sound.records) == sound.stored.portable, "a file is put together as it was");
        sound.books = (0..=sound.appends()).map(|count| sound.books_after(count)).collect();
        sound
    })
}

/// Cuts a sound file into its records.
fn split(mut bytes: &[u8]) -> Vec<Record> {
    let mut records = Vec::new();
    while let Some((&tag, rest)) = bytes.split_first() {
        let (length, rest) = rest.split_first_chunk().expect("a sound file");
        let (content, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
        records.push(Record { tag, content: content.to_vec() });
        bytes = &rest[8..];
    }
    records
}

/// Puts records together, with hashes that are right.
fn join(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut chain = 0u64;
    for Record { tag, content } in records {
        bytes.push(*tag);
        bytes.extend_from_slice(&(content.len() as u32).to_le_bytes());
        bytes.extend_from_slice(content);
        let mut linked = chain.to_le_bytes().to_vec();
        linked.push(*tag);
        linked.extend_from_slice(&stable_hash(content).to_le_bytes());
        linked.extend_from_slice(&(content.len() as u64).to_le_bytes());
        chain = stable_hash(&linked);
        bytes.extend_from_slice(&chain.to_le_bytes());
    }
    bytes
}

fn verify(bytes: &[u8]) -> Result<Portable, FileError> {
    verify_content(Path::new("books.wharfexp"), bytes)
}

impl Sound {
    fn file(&self, records: &[Record]) -> Vec<u8> {
        [self.begin.clone(), join(records)].concat()
    }

    /// Returns the number of appends.
    fn appends(&self) -> usize {
        self.records.iter().filter(|record| record.tag == VALUE).count()
    }

    /// Returns the records up to this number of appends, as an export at that time would have them.
    fn prefix(&self, appends: usize) -> Vec<Record> {
        let mut records = self.records.clone();
        let drop = self.appends() - appends;
        let end = records.pop().expect("a file has an end");
        records.truncate(records.len() - drop);
        // The end counts rows, appends, and the last append, as numbers of one or few bytes.
        let numbers = end.content;
        let last = u64::from(numbers[2]) - drop as u64;
        let content = vec![numbers[0], appends as u8, if appends == 0 { 0 } else { last as u8 }];
        records.push(Record { tag: END, content });
        records
    }

    fn books_after(&self, appends: usize) -> String {
        let read = verify(&self.file(&self.prefix(appends)));
        read.expect("a prefix of a sound journal is sound").books.hash.to_string()
    }
}

/// Reads a portable file or a store that `data` describes.
///
/// # Errors
/// When a changed file is accepted, or a refusal has no reason.
pub fn run_journal(data: &[u8]) -> Result<(), Finding> {
    let Some((&choice, rest)) = data.split_first() else { return Ok(()) };
    let mut choices = Choices::Given(rest);
    match choice % 5 {
        0 => refusal(verify(rest).map(drop)),
        1 => bytes_are_changed(&mut choices),
        2 => records_are_changed(&mut choices, false),
        3 => records_are_changed(&mut choices, true),
        _ => databases_are_changed(&mut choices),
    }
}

fn refusal(read: Result<(), FileError>) -> Result<(), Finding> {
    match read {
        Err(error) if error.message.len() < 10 => {
            found(format!("a file is refused without a reason: {error}"))
        }
        _ => Ok(()),
    }
}

/// Changes bytes: sets some, cuts the file off, or repeats a part of it.
fn change(bytes: &mut Vec<u8>, choices: &mut Choices<'_>) {
    for _ in 0..=choices.below(3) {
        let at = choices.place(bytes.len().max(1));
        match choices.below(8) {
            0 => bytes.truncate(at),
            1 => {
                let again = bytes[at..].iter().copied().take(choices.place(64)).collect::<Vec<_>>();
                bytes.extend(again);
            }
            2 => bytes.insert(at, choices.below(256) as u8),
            3 if at < bytes.len() => drop(bytes.remove(at)),
            _ => {
                let value = choices.below(256) as u8;
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
        }
    }
}

fn bytes_are_changed(choices: &mut Choices<'_>) -> Result<(), Finding> {
    let sound = &sound().stored.portable;
    let mut bytes = sound.clone();
    change(&mut bytes, choices);
    match verify(&bytes) {
        Ok(_) if bytes != *sound => found("a portable file whose bytes were changed is accepted"),
        read => refusal(read.map(drop)),
    }
}

/// Changes records. The hashes that link them are made again, and with `deeply` those inside of values too.
fn records_are_changed(choices: &mut Choices<'_>, deeply: bool) -> Result<(), Finding> {
    let sound = sound();
    let mut records = sound.prefix(choices.place(sound.appends() + 1));
    let before = records.clone();
    for _ in 0..choices.below(3) {
        let at = choices.place(records.len());
        match choices.below(8) {
            0 => drop(records.remove(at)),
            1 => records.insert(at, records[at].clone()),
            2 => {
                let other = choices.place(records.len());
                records.swap(at, other);
            }
            _ => change_content(&mut records[at], choices, deeply),
        }
        if records.is_empty() {
            break;
        }
    }
    let read = verify(&sound.file(&records));
    let values = |records: &[Record]| -> Vec<Record> {
        records.iter().filter(|record| record.tag == VALUE).cloned().collect()
    };
    match read {
        Ok(portable) if records == before => {
            let appends = portable.end.appends as usize;
            let books = portable.books.hash.to_string();
            if sound.books[appends] != books {
                return found(format!("{appends} appends lead to other books: {books}"));
            }
            Ok(())
        }
        // A shorter journal whose end says so is one of an earlier time.
        Ok(_) if !deeply && !values(&before).starts_with(&values(&records)) => {
            found("a journal whose values were changed is accepted")
        }
        Err(error) if records == before => found(format!("a prefix of a journal is refused: {error}")),
        read => refusal(read.map(drop)),
    }
}

fn change_content(record: &mut Record, choices: &mut Choices<'_>, deeply: bool) {
    change(&mut record.content, choices);
    if deeply && record.tag == VALUE && record.content.len() > 8 {
        let end = record.content.len() - 8;
        let (content, hash) = record.content.split_at_mut(end);
        hash.copy_from_slice(&stable_hash(content).to_le_bytes());
    }
}

/// Changes the files of a store whose power was lost, and starts with them.
fn databases_are_changed(choices: &mut Choices<'_>) -> Result<(), Finding> {
    let sound = sound();
    let mut image = sound.stored.image.clone();
    let count = image.len();
    for _ in 0..=choices.below(2) {
        let content = image.values_mut().nth(choices.place(count)).expect("a store has files");
        // Most of a file is empty, so a page is chosen first.
        let pages: Vec<u64> = content.written().collect();
        // An earlier change may have cut the file off at its begin.
        let page = if pages.is_empty() { 0 } else { pages[choices.place(pages.len())] };
        let at = page + choices.below(4096);
        if choices.one_in(32) {
            content.set_len(at);
        } else {
            content.write(at, &[choices.below(256) as u8]);
        }
    }
    let files = Arc::new(Disk::new(&image, false));
    let read = Store::open_files(files, 4, Durability::Sync).map(|(_, state)| state);
    match read {
        Ok(state) => {
            let books = books(&state);
            if sound.books.contains(&books) {
                Ok(())
            } else {
                found(format!("a store that was changed has books that it never had: {books}"))
            }
        }
        Err(error) => refusal(Err(error)),
    }
}

fn books(state: &StoreState) -> String {
    wharf_ops::journal::Counts::of(state).hash.to_string()
}
