//! The store over a disk that fails for a while.

use std::sync::Arc;

use wharf_core::ids::Incarnation;
use wharf_fuzz::disk::{Disk, Image, Room};
use wharf_ops::journal::{Durability, Store};

/// Finds a store that takes no checkpoint any more after one that failed.
#[test]
fn a_checkpoint_succeeds_after_one_that_found_no_room() {
    let disk = Disk::new(&Image::new(), false);
    let open = || Store::open_files(Arc::new(disk.clone()), 4, Durability::Sync).unwrap();
    let (mut store, mut state) = open();
    store.begin(Incarnation(1), &state).unwrap().unwrap();
    state.incarnation = Incarnation(1);
    state.registrar.next_node = 7;
    disk.set_room(Room::None);
    store.checkpoint(&state, Some(0)).unwrap_err();
    // It cannot even be opened again.
    store.checkpoint(&state, Some(0)).unwrap_err();
    disk.set_room(Room::Plenty);
    store.checkpoint(&state, Some(0)).unwrap();
    drop(store);
    assert_eq!(open().1.registrar.next_node, 7);
}

/// Finds ids that are given twice: a start may show ids to readers before its first unit is durable.
#[test]
fn a_start_of_which_nothing_is_durable_is_known_to_the_next() {
    let disk = Disk::new(&Image::new(), false);
    let open = || Store::open_files(Arc::new(disk.clone()), 4, Durability::Sync).unwrap();
    for number in 1..4 {
        let (mut store, state) = open();
        assert_eq!(state.incarnation, Incarnation(number - 1));
        store.begin(Incarnation(number), &state).unwrap().unwrap();
    }
    let (_, state) = open();
    assert_eq!(state.incarnation, Incarnation(3));
    assert!(state.registrar.next_node > 1 << 40, "ids of nodes may have been shown too");
}
