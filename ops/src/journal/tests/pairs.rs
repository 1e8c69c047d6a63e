//! Files of a store that are missing, empty, or do not belong together. No start may begin with empty books then.

use super::*;

const FILES: [&str; 2] = ["store.redb", "journal.redb"];

/// Checks that a start and the tools refuse a directory with a message that says this, and make no file of a store there.
#[track_caller]
fn assert_refused(directory: &Path, says: &[&str]) {
    let before = files(directory);
    let memory = Store::open(directory, PARTITIONS, Durability::Memory).map(drop);
    let mut out = |_: &[u8]| Ok(());
    let refused = [
        start(directory).map(drop),
        memory,
        check(directory).map(drop),
        export_stopped(directory, &mut out).map(drop),
    ];
    for error in refused.map(|refused| refused.expect_err("it is refused").to_string()) {
        for text in says.iter().chain(&["restore both files of the store from a copy"]) {
            assert!(error.contains(text), "{error:?} does not say {text:?}");
        }
    }
    let mut after = files(directory);
    after.retain(|path, _| before.contains_key(path) || path.extension().is_some_and(|name| name == "redb"));
    assert_eq!(after.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
}

/// Would catch a start that takes the other file for that of a new store.
#[test]
fn a_store_without_one_of_its_files_is_refused() {
    let written = written(5);
    for (lost, other) in FILES.into_iter().zip(FILES.into_iter().rev()) {
        let copy = copy_of(written.path());
        std::fs::remove_file(copy.path().join(lost)).unwrap();
        assert_refused(copy.path(), &[lost, "is missing", other]);
    }
}

#[test]
fn an_empty_store_file_is_refused() {
    let copy = copy_of(written(5).path());
    std::fs::write(copy.path().join("store.redb"), []).unwrap();
    assert_refused(copy.path(), &["store.redb", "it is empty"]);
    let copy = copy_of(written(5).path());
    std::fs::write(copy.path().join("journal.redb"), []).unwrap();
    let error = start(copy.path()).unwrap_err().to_string();
    assert!(error.contains("journal.redb") && error.contains("it is empty"), "{error}");
}

#[test]
fn a_journal_of_another_store_is_refused() {
    let mine = copy_of(written(5).path());
    let other = written(7);
    std::fs::copy(other.path().join("journal.redb"), mine.path().join("journal.redb")).unwrap();
    assert_refused(mine.path(), &["journal.redb", "belongs to another store"]);
    // That store has a checkpoint too.
    let mine = with_stop(5);
    std::fs::copy(other.path().join("journal.redb"), mine.path().join("journal.redb")).unwrap();
    assert_refused(mine.path(), &["journal.redb", "belongs to another store"]);
}

/// The bit of the head that says which commit is the last one. The commit before it is that of a store that was never
/// started, so a start would begin with empty books and give all ids again.
#[test]
fn a_store_that_went_back_to_its_creation_is_refused() {
    const LAST_AT: usize = 9;
    let directory = tempfile::tempdir().unwrap();
    let open = begun(directory.path(), 5);
    // As a kill leaves it.
    let copy = copy_of(directory.path());
    drop(open);
    let path = copy.path().join("store.redb");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[LAST_AT] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert_refused(copy.path(), &["journal.redb", "is older or damaged"]);
}

/// Returns the directory of a store that was stopped cleanly after this many appends.
fn with_stop(appends: u64) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let (store, log) = begun(directory.path(), appends);
    store.checkpoint(&twin(appends), Some(appends)).unwrap();
    drop((store, log));
    directory
}

/// Nothing follows the checkpoint then, so the portable file has no values.
#[test]
fn a_store_that_was_stopped_is_exported_and_imported() {
    let stopped = with_stop(5);
    let file = stopped.path().join("portable");
    std::fs::write(&file, exported(stopped.path())).unwrap();
    let verified = verify(&file).unwrap();
    assert_eq!((verified.end.appends, verified.books), (0, Counts::of(&twin(5))));
    let target = tempfile::tempdir().unwrap();
    let imported = import(&file, target.path()).unwrap();
    assert_eq!((imported.books.nodes, imported.books.allocations), (5, 5));
    let (state, _) = start(target.path()).unwrap();
    assert_eq!(Counts::of(&state), imported.books);
    // A file that cannot be read leaves no directory behind.
    let absent = target.path().join("absent");
    import(&target.path().join("no-file"), &absent).unwrap_err();
    assert!(!absent.exists());
}

/// Session tokens are in them.
#[test]
fn only_their_owner_reads_the_files() {
    use std::os::unix::fs::PermissionsExt;
    let written = written(1);
    for name in FILES {
        let mode = std::fs::metadata(written.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn a_dump_from_beyond_the_end_is_refused() {
    let written = written(5);
    let mut lines = 0;
    super::super::dump(written.path(), 6, |_| lines += 1).unwrap();
    assert_eq!(lines, 0);
    let refused = super::super::dump(written.path(), 7, |_| lines += 1).unwrap_err().to_string();
    assert!(refused.contains("ends at append 5"), "{refused}");
}

#[test]
fn a_first_start_without_a_journal_makes_no_file_of_one() {
    let directory = tempfile::tempdir().unwrap();
    let (mut store, state) = Store::open(directory.path(), PARTITIONS, Durability::Memory).unwrap();
    assert!(store.begin(INCARNATION, &state).unwrap().is_none());
    drop(store);
    assert!(!directory.path().join("journal.redb").exists());
    // The next run may have one.
    drop(begun(directory.path(), 0));
    assert!(directory.path().join("journal.redb").exists());
}
