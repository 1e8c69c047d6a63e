//! Damage of any page of a store whose databases were closed, so that they are not verified before they are read.

use std::sync::{Arc, Once};

use wharf_core::rng::Rng;

use super::*;
use crate::journal::check::check_files;
use crate::journal::files::{Directory, Files};
use crate::journal::guard::report_other_panics;
use crate::journal::overlay::Overlay;

/// The appends of the store.
const APPENDS: u64 = 40;

/// How often each page of a file gets each fault.
const ROUNDS: usize = 4;

/// The size of a page of the database.
const PAGE: usize = 4096;

/// What comes into a page.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Zeros,
    Ones,
    Noise,
    /// One byte, at any place.
    Byte,
}

impl Fault {
    const ALL: [Self; 4] = [Self::Zeros, Self::Ones, Self::Noise, Self::Byte];

    fn put(self, page: &mut [u8], rng: &mut Rng) {
        match self {
            Self::Zeros => page.fill(0),
            Self::Ones => page.fill(0xff),
            Self::Noise => page.iter_mut().for_each(|byte| *byte = rng.below(256) as u8),
            Self::Byte => page[rng.below(page.len() as u64) as usize] ^= 1 + rng.below(255) as u8,
        }
    }
}

/// Returns the files of a store in which a page of a file is damaged.
fn damaged(directory: &Path, name: &str, at: usize, fault: Fault, rng: &mut Rng) -> Arc<dyn Files> {
    let overlay = Overlay::over(Directory::lock(directory).unwrap());
    let file = overlay.open(name, true).unwrap();
    let mut page = [0; PAGE];
    file.read(at as u64, &mut page).unwrap();
    fault.put(&mut page, rng);
    file.write(at as u64, &page).unwrap();
    Arc::new(overlay)
}

fn start_over(files: &Arc<dyn Files>) -> Result<StoreState, FileError> {
    let (mut store, state) = Store::open_files(Arc::clone(files), PARTITIONS, Durability::Sync)?;
    store.begin(Incarnation(2), &state)?;
    Ok(state)
}

/// Fails unless the error of a damaged file says where to look and what to do.
fn assert_says_the_remedy(name: &str, error: &str) {
    let says = |text: &str| error.contains(text);
    assert!(says("is damaged"), "{error}");
    if name == "journal.redb" {
        let is_repaired = says("wharf journal check") && says("wharf journal repair --to");
        assert!(says("journal.redb: ") && (is_repaired || says("restore both files")), "{error}");
    } else {
        assert!(says("store.redb: ") && says("restore both files"), "{error}");
    }
}

/// Panics that become errors are not printed, because there are many.
fn quiet_guarded_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(report_other_panics);
}

/// Returns the directory of a store whose checkpoint covers the first half of the appends.
fn with_checkpoint() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let (store, log) = begun(directory.path(), APPENDS);
    let covered = APPENDS / 2;
    let mut checkpoint = store.begin_checkpoint(covered + 1).unwrap();
    let heads = [(Stream(PARTITION.0), 2 * covered), (Stream::GLOBAL, 1)];
    checkpoint.heads(&heads.into_iter().collect()).unwrap();
    checkpoint.state(&twin(covered)).unwrap();
    checkpoint.finish(&twin(covered), covered).unwrap();
    drop((store, log));
    directory
}

/// Would catch a start or a check that panics over a damaged page, serves other books than were there, or does not say
/// what to do.
#[test]
fn a_damaged_page_is_refused_with_its_remedy_or_not_in_use() {
    quiet_guarded_panics();
    let directory = with_checkpoint();
    let books = twin(APPENDS).books_hash();
    let mut rng = Rng::new(15);
    for name in ["store.redb", "journal.redb"].repeat(ROUNDS) {
        let bytes = std::fs::read(directory.path().join(name)).unwrap();
        let is_used = |&at: &usize| bytes[at..at + PAGE].iter().any(|&byte| byte != 0);
        let pages: Vec<usize> = (0..bytes.len()).step_by(PAGE).filter(is_used).collect();
        let mut served = 0;
        for (&at, fault) in pages.iter().flat_map(|at| Fault::ALL.map(|fault| (at, fault))) {
            let files = damaged(directory.path(), name, at, fault, &mut rng);
            let is_sound = check_files(Arc::clone(&files)).is_ok_and(|checked| checked.is_sound());
            match start_over(&files) {
                Ok(state) => {
                    served += 1;
                    assert_eq!(state.books_hash(), books, "other books: {name} at {at}, {fault:?}");
                }
                Err(error) => {
                    assert!(!is_sound, "the check found nothing: {name} at {at}, {fault:?}: {error}");
                    assert_says_the_remedy(name, &error.to_string());
                }
            }
        }
        let all = pages.len() * Fault::ALL.len();
        assert!(served > 0 && served < all, "{name}: {served} of {all} faults did no harm");
    }
}

/// Damages each page of a file.
fn damage_all(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    bytes.chunks_mut(PAGE).skip(1).for_each(|page| page[0] = 0xff);
    std::fs::write(file, bytes).unwrap();
}

/// Would catch a run without a journal that needs one, a remedy that does not help, and positions of events that are given
/// again after the journal was moved away.
#[test]
fn a_journal_that_no_books_need_is_moved_away_if_it_is_damaged() {
    quiet_guarded_panics();
    let directory = written(APPENDS);
    let journal = directory.path().join("journal.redb");
    let open = |durability| Store::open(directory.path(), PARTITIONS, durability);
    let stop = |incarnation: u32, durability| {
        let (mut store, mut state) = open(durability).unwrap();
        let begun = store.begin(Incarnation(incarnation), &state).unwrap();
        state.incarnation = Incarnation(incarnation);
        store.checkpoint(&state, begun.map(|(_, last, _)| last)).unwrap();
        (store.events(), state.partitions)
    };
    let (_, books) = stop(2, Durability::Sync);
    assert_eq!(stop(3, Durability::Memory).1, books);
    damage_all(&journal);
    assert_eq!(stop(4, Durability::Memory).1, books);
    let refused = open(Durability::Sync).map(drop).unwrap_err().to_string();
    assert!(refused.contains("journal.redb: is damaged: "), "{refused}");
    assert!(refused.contains("the checkpoint has all books, so move this file away"), "{refused}");
    let checked = check(directory.path()).unwrap();
    assert_eq!((checked.is_sound(), checked.is_salvaged, checked.tail), (false, true, None));
    std::fs::rename(&journal, directory.path().join("moved")).unwrap();
    let (events, state) = stop(5, Durability::Sync);
    assert_eq!((state, events.before.events), (books, 1 << 44));
}
