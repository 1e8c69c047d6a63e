//! The tools of a journal, over stores that are written here: what is found, what is dropped, and what is carried over.

use std::collections::BTreeMap;
use std::path::Path;

use wharf_core::ids::{AllocationId, Incarnation, NodeId, Ordinal, PartitionId, ShardId, TenantId};
use wharf_core::journal::{
    Append, BeginCause, Changes, Effect, JournalStore, NodeImage, NodeNews, Stream, Unit,
};
use wharf_core::node::{Labels, NodeRegistration, NodeSpec, NodeState, Taints};
use wharf_core::resource::{Amount, Demand, GpuAssignment, ResourceRegistry};
use wharf_core::state::{AllocationRecord, NodeRecord, StoreState};
use wharf_core::time::Time;

use super::check::Counts;
use super::value::{Before, Content, Header, encode, encode_unit};
use super::{Durability, Log, Recovery, Store, check, export_stopped, import, repair, verify};
use crate::file_error::FileError;

mod damage;
mod pairs;

const PARTITIONS: u16 = 4;
const PARTITION: PartitionId = PartitionId(1);

/// The incarnation of the run that writes the values.
const INCARNATION: Incarnation = Incarnation(1);

fn name(number: u64) -> String {
    format!("a-node-with-number-{number:04}")
}

/// Returns the effects of append `number`: a node, and an allocation on it.
fn effects(number: u64) -> Vec<Effect> {
    let spec = NodeSpec {
        name: name(number).into(),
        identity: None,
        cpu: Amount::whole(8),
        memory: Amount::whole(64),
        gpus: 2,
        custom: None,
        labels: Labels::default(),
        taints: Taints::default(),
    };
    let id = NodeId(number);
    let ordinal = Ordinal(number);
    let registration = NodeRegistration { id, ordinal, partition: PARTITION, spec, agent: None };
    let record = NodeRecord { registration, state: NodeState::Ready, version: 1, unhealthy: Vec::new() };
    let image = NodeImage { record, reservation: None, claims: Vec::new(), releasing: Vec::new() };
    let allocation = AllocationRecord {
        id: AllocationId {
            incarnation: INCARNATION,
            partition: PARTITION,
            sequence: number,
            tenant: TenantId::OPERATOR,
        },
        node: NodeId(number),
        demand: Demand { cpu: Amount::whole(1), ..Demand::default() },
        gpus: GpuAssignment::NONE,
        units: None,
        external_id: None,
    };
    vec![
        Effect::Allocated(allocation, BeginCause::Placed),
        Effect::Node(Box::new(image), NodeNews::default()),
    ]
}

/// Appends one value. The first one also says that the service started.
fn append(log: &mut Log, number: u64) {
    let effects = effects(number);
    let changes = Changes::Shard { shard: ShardId(0), effects, policy: None, granularity: None };
    let mut units = vec![Unit::new(Time(number), changes)];
    let mut streams = vec![(Stream(PARTITION.0), 2 * (number - 1), 2)];
    if number == 1 {
        units.insert(0, Unit::new(Time(0), Changes::Started { incarnation: INCARNATION, shards: 1 }));
        streams.push((Stream::GLOBAL, 0, 1));
    }
    let mut bytes = Vec::new();
    let mut events = 0;
    for unit in &units {
        encode_unit(unit, &ResourceRegistry::default(), &mut bytes);
        events += unit.event_count() as u32;
    }
    let epoch = u64::from(INCARNATION.0);
    let content = Content { units: units.len() as u32, events, before: Before::default() };
    let value = encode(&Header::new(epoch, number, &streams, &content), &bytes);
    log.append(&Append { epoch, number, streams: &streams, value: &value }).unwrap();
}

/// Returns a store that is open, with a journal of this many appends.
fn begun(directory: &Path, appends: u64) -> (Store, Log) {
    let (mut store, state) = Store::open(directory, PARTITIONS, Durability::Sync).unwrap();
    let (mut log, last, _) = store.begin(INCARNATION, &state).unwrap().expect("a journal");
    (last + 1..=appends).for_each(|number| append(&mut log, number));
    (store, log)
}

/// Returns the directory of a store with a journal of this many appends.
fn written(appends: u64) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    drop(begun(directory.path(), appends));
    directory
}

/// Returns the state that the appends up to `last` lead to.
fn twin(last: u64) -> StoreState {
    let mut state = StoreState::create(PARTITIONS);
    state.incarnation = INCARNATION;
    state.registrar.next_node = last + 1;
    let partition = &mut state.partitions[usize::from(PARTITION.0)];
    for effect in (1..=last).flat_map(effects) {
        match effect {
            Effect::Allocated(record, _) => partition.allocations.push(record),
            Effect::Node(image, _) => partition.nodes.push(image.record),
            _ => unreachable!("no others are written"),
        }
    }
    state
}

fn start(directory: &Path) -> Result<(StoreState, Recovery), FileError> {
    let (store, state) = Store::open(directory, PARTITIONS, Durability::Sync)?;
    Ok((state, store.recovery()))
}

/// Returns the files of a directory with their bytes.
fn files(directory: &Path) -> BTreeMap<std::path::PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.clone(), std::fs::read(&path).unwrap())).collect()
}

/// Returns a copy of a directory: what a crash leaves, if its store is open.
fn copy_of(directory: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for (path, bytes) in files(directory) {
        std::fs::write(copy.path().join(path.file_name().unwrap()), bytes).unwrap();
    }
    copy
}

/// Changes a bit of each place of a file that has this text. Returns their number.
fn flip(file: &Path, text: &str) -> usize {
    let mut bytes = std::fs::read(file).unwrap();
    let places = bytes.windows(text.len()).enumerate().filter(|(_, bytes)| *bytes == text.as_bytes());
    let places: Vec<usize> = places.map(|(at, _)| at).collect();
    places.iter().for_each(|&at| bytes[at] ^= 1);
    std::fs::write(file, bytes).unwrap();
    places.len()
}

/// Would catch a check that skips values, counts wrongly, does not apply them, or writes.
#[test]
fn a_check_counts_what_is_there_and_changes_nothing() {
    let directory = written(7);
    let before = files(directory.path());
    let checked = check(directory.path()).unwrap();
    assert!(checked.is_sound(), "{checked:?}");
    let tail = checked.tail.expect("a journal");
    assert_eq!((tail.appends, tail.units, tail.effects), ((1, 7), 8, 15));
    let (books, recovery) = checked.books.expect("no damage");
    assert_eq!((books.nodes, books.allocations, books.hash), (7, 7, twin(7).books_hash()));
    assert_eq!((recovery.appends, recovery.units, recovery.is_cut()), (7, 8, false));
    assert_eq!(files(directory.path()), before);
    // What it says is what a start finds.
    assert_eq!(start(directory.path()).unwrap().0.books_hash(), books.hash);
}

/// Would catch a start that skips a damaged value or cuts the journal there, and a check that stops at the first fault.
#[test]
fn each_damaged_value_is_found_and_a_start_is_refused_with_its_place() {
    let directory = written(9);
    let journal = directory.path().join("journal.redb");
    assert!(flip(&journal, &name(4)) > 0 && flip(&journal, &name(7)) > 0);
    let before = files(directory.path());
    for _ in 0..2 {
        let refused = start(directory.path()).unwrap_err().to_string();
        assert!(refused.contains("append 4 of the journal is damaged: its hash"), "{refused}");
        assert!(refused.contains("wharf journal repair --to 3"), "{refused}");
    }
    // A start that is refused drops nothing.
    assert_eq!(files(directory.path()).len(), before.len());
    let checked = check(directory.path()).unwrap();
    let places: Vec<u64> = checked.damage.iter().map(|damage| damage.append).collect();
    assert_eq!((places, checked.books, checked.tail.unwrap().units), (vec![4, 7], None, 8));
}

/// Would catch a reader that takes the next value where one is missing.
#[test]
fn a_missing_value_is_found() {
    let directory = written(9);
    let table = redb::TableDefinition::<u64, (u64, &[u8])>::new("values");
    let database = redb::Database::open(directory.path().join("journal.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(table).unwrap().remove(5).unwrap().expect("it is there");
    transaction.commit().unwrap();
    drop(database);
    let refused = start(directory.path()).unwrap_err().to_string();
    assert!(refused.contains("append 5 of the journal is damaged"), "{refused}");
    let checked = check(directory.path()).unwrap();
    assert_eq!(checked.damage[0].append, 5, "{checked:?}");
    assert_eq!(checked.damage[0].what, "it is missing");
}

/// Would catch a repair that drops too much or too little, loses the copy, or lets ids of what it dropped be issued again.
#[test]
fn a_repair_drops_the_end_and_skips_its_ids() {
    let directory = written(9);
    let journal = directory.path().join("journal.redb");
    assert!(flip(&journal, &name(7)) > 0);
    for outside in [10, u64::MAX] {
        let refused = repair(directory.path(), outside).unwrap_err().to_string();
        assert!(refused.contains("ends at 9"), "{refused}");
    }
    let refused = repair(directory.path(), 7).unwrap_err().to_string();
    assert!(refused.contains("append 7 is damaged"), "{refused}");
    let before = files(directory.path());
    let repaired = repair(directory.path(), 6).unwrap();
    let dropped = repaired.dropped.expect("something was there");
    assert_eq!((repaired.last, dropped.appends, dropped.units), (6, (7, 9), 2));
    assert_eq!(repaired.damage[0].append, 7);
    let copy = std::fs::read(repaired.copy.expect("a copy")).unwrap();
    assert_eq!(copy.len(), before[&journal].len());
    let (state, recovery) = start(directory.path()).unwrap();
    assert_eq!(recovery.appends, 6);
    // The run is in the books, but not with all of its ids.
    let mut expected = twin(6);
    expected.skip_ids(Incarnation(INCARNATION.0 + 1));
    expected.now = Time(6);
    assert_eq!(state, expected);
    assert!(state.registrar.next_node > 9, "an id of a node that was dropped is given again");
    assert!(check(directory.path()).unwrap().is_sound());
    // Again, without anything to drop.
    assert!(repair(directory.path(), 6).unwrap().dropped.is_none());
}

/// Would catch a repair whose next start issues the ids of what it dropped.
#[test]
fn a_repair_without_damage_skips_the_incarnations_that_it_drops() {
    let directory = written(4);
    repair(directory.path(), 0).unwrap();
    let (state, recovery) = start(directory.path()).unwrap();
    let mut expected = StoreState::create(PARTITIONS);
    expected.skip_ids(Incarnation(INCARNATION.0 + 1));
    assert_eq!((state, recovery.appends), (expected, 0));
    assert!(check(directory.path()).unwrap().is_sound());
}

/// Would catch a repair that a copy of an earlier one blocks, one that overwrites such a copy, and a copy in part.
#[test]
fn a_repair_keeps_a_whole_copy_whatever_an_earlier_one_has_left() {
    let directory = written(9);
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("journal-to-9.redb"), "the copy of an earlier repair").unwrap();
    std::fs::write(path("journal-to-9.redb.new"), "half of a copy").unwrap();
    let copy = repair(directory.path(), 6).unwrap().copy.expect("something was dropped");
    assert_eq!(copy, path("journal-to-9-2.redb"));
    assert_eq!(std::fs::read(path("journal-to-9.redb")).unwrap(), b"the copy of an earlier repair");
    assert!(!path("journal-to-9.redb.new").exists());
    // The copy is the journal as it was.
    std::fs::rename(copy, path("journal.redb")).unwrap();
    assert_eq!(start(directory.path()).unwrap().0.partitions, twin(9).partitions);
}

/// Would catch a repaired store that issues the ids of a start whose values are all lost, or those of an import.
#[test]
fn a_repaired_store_issues_no_id_of_a_lost_start_or_of_an_import() {
    let directory = written(4);
    let file = directory.path().join("export");
    std::fs::write(&file, exported(directory.path())).unwrap();
    let target = tempfile::tempdir().unwrap();
    let imported = import(&file, target.path()).unwrap().incarnation;
    // Starts that left no value.
    for incarnation in [2, 3] {
        let (mut store, state) = Store::open(directory.path(), PARTITIONS, Durability::Sync).unwrap();
        store.begin(Incarnation(incarnation), &state).unwrap();
    }
    assert!(flip(&directory.path().join("journal.redb"), &name(4)) > 0);
    let mut last = Incarnation(3);
    for to in [3, 2] {
        repair(directory.path(), to).unwrap();
        let state = start(directory.path()).unwrap().0;
        assert!(state.incarnation > last && state.incarnation < imported, "{}", state.incarnation.0);
        last = state.incarnation;
    }
}

/// Exports a stopped store.
fn exported(directory: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let is_written = export_stopped(directory, &mut |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        Ok(())
    });
    assert!(is_written.unwrap());
    bytes
}

/// Would catch an export that leaves something out, and an import whose store shares ids or an identity with the old one.
#[test]
fn an_import_has_the_books_of_the_export_and_ids_of_its_own() {
    let directory = written(9);
    let before = files(directory.path());
    let file = directory.path().join("export");
    std::fs::write(&file, exported(directory.path())).unwrap();
    let target = tempfile::tempdir().unwrap();
    let imported = import(&file, target.path()).unwrap();
    assert_eq!((imported.file.end.appends, imported.file.end.last), (9, 9));
    assert_eq!(imported.file.books.hash, twin(9).books_hash());
    assert_ne!(imported.store, imported.file.store);
    let (store, state) = Store::open(target.path(), PARTITIONS, Durability::Sync).unwrap();
    assert_eq!((store.id(), state.incarnation), (imported.store, Incarnation(1 << 16)));
    let mut expected = twin(9);
    expected.skip_ids(Incarnation(1 << 16));
    expected.now = Time(9);
    assert_eq!(state, expected);
    assert_eq!(state.books_hash(), imported.books.hash);
    drop(store);
    // A directory with a store is left alone, and the exported one too.
    let refused = import(&file, target.path()).unwrap_err().to_string();
    assert!(refused.contains("store.redb: is there"), "{refused}");
    for (path, bytes) in before {
        assert_eq!(std::fs::read(path).unwrap(), bytes);
    }
    // An import of an import skips on.
    let file = target.path().join("export");
    std::fs::write(&file, exported(target.path())).unwrap();
    let third = tempfile::tempdir().unwrap();
    assert_eq!(import(&file, third.path()).unwrap().incarnation, Incarnation(2 << 16));
}

/// Would catch a part of the file that no hash covers.
#[test]
fn a_portable_file_with_any_change_is_refused() {
    let directory = written(3);
    let good = exported(directory.path());
    let file = directory.path().join("export");
    let is_refused = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        verify(&file).is_err()
    };
    assert!(!is_refused(&good));
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        assert!(is_refused(&bytes), "a changed bit of byte {at}");
    }
    for length in 0..good.len() {
        assert!(is_refused(&good[..length]), "{length} bytes");
    }
    assert!(is_refused(&[&good[..], &[0]].concat()));
}

/// A commit that was not whole is taken back with a word, and the one before it stays. Would catch a start that says
/// nothing, and a rollback that is taken for damage.
#[test]
fn a_torn_last_append_is_cut_off_and_told() {
    let directory = tempfile::tempdir().unwrap();
    let open = begun(directory.path(), 5);
    let crashed = copy_of(directory.path());
    drop(open);
    let torn = copy_of(crashed.path());
    let (state, recovery) = start(crashed.path()).unwrap();
    assert_eq!((recovery.appends, recovery.is_cut(), state.books_hash()), (5, false, twin(5).books_hash()));
    // A sector of the last commit was not written.
    assert_eq!(flip(&torn.path().join("journal.redb"), &name(5)), 1);
    let checked = check(torn.path()).unwrap();
    assert!(checked.is_sound() && checked.books.expect("no damage").1.is_cut());
    let (state, recovery) = start(torn.path()).unwrap();
    assert_eq!((recovery.appends, recovery.is_cut(), state.books_hash()), (4, true, twin(4).books_hash()));
}

/// After a crash, damage before the last commit is no torn end. Would catch a start that drops the journal down to there.
#[test]
fn damage_before_the_last_append_is_no_torn_end() {
    let directory = tempfile::tempdir().unwrap();
    let open = begun(directory.path(), 5);
    let crashed = copy_of(directory.path());
    drop(open);
    assert!(flip(&crashed.path().join("journal.redb"), &name(2)) > 1);
    for _ in 0..2 {
        let refused = start(crashed.path()).unwrap_err().to_string();
        assert!(refused.contains("append 2 of the journal is damaged: "), "{refused}");
        assert!(refused.contains("wharf journal repair --to 1"), "{refused}");
    }
    let checked = check(crashed.path()).unwrap();
    let places: Vec<u64> = checked.damage.iter().map(|damage| damage.append).collect();
    assert_eq!((places, checked.is_salvaged, checked.whole_to()), (vec![2], true, Some(1)));
    assert_eq!(checked.tail.unwrap().units, 5);
    assert!(export_stopped(crashed.path(), &mut |_: &[u8]| Ok(())).is_err());
    for damaged in [2, 5] {
        let refused = repair(crashed.path(), damaged).unwrap_err().to_string();
        assert!(refused.contains("append 2 is damaged"), "{refused}");
    }
    let repaired = repair(crashed.path(), 1).unwrap();
    assert_eq!((repaired.dropped.unwrap().appends, repaired.damage.len()), ((2, 5), 1));
    let (state, recovery) = start(crashed.path()).unwrap();
    let mut expected = twin(1);
    expected.skip_ids(Incarnation(INCARNATION.0 + 1));
    expected.now = Time(1);
    assert_eq!((recovery.appends, state), (1, expected));
}

/// Would catch a salvage that loses whole values, or takes a damaged checkpoint's place for an append.
#[test]
fn a_damaged_database_with_whole_values_is_written_from_them() {
    let directory = tempfile::tempdir().unwrap();
    let open = begun(directory.path(), 5);
    let crashed = copy_of(directory.path());
    drop(open);
    // Damage in the pages around the values: the names of the tables.
    assert!(flip(&crashed.path().join("journal.redb"), "values") > 1);
    let refused = start(crashed.path()).unwrap_err().to_string();
    assert!(refused.contains("append 6 of the journal is damaged"), "{refused}");
    let checked = check(crashed.path()).unwrap();
    assert_eq!((checked.damage.len(), checked.is_sound(), checked.whole_to()), (0, false, Some(5)));
    let repaired = repair(crashed.path(), 5).unwrap();
    assert!(repaired.dropped.is_none() && repaired.copy.is_some());
    let (state, recovery) = start(crashed.path()).unwrap();
    assert_eq!((recovery.appends, state.partitions), (5, twin(5).partitions));
    assert!(check(crashed.path()).unwrap().is_sound());
}
