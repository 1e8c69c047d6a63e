//! `wharf journal` on stores that the real service has written, and its exports while it serves.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use wharf_core::ids::AllocationId;
use wharf_net::client::{Client, ClientConfig};
use wharf_net::protocol::{DemandBody, PlaceRequest};

use crate::harness::{Ended, Service, Site, runtime, sum, within};

/// Runs `wharf journal` on the store of a site.
fn journal(site: &Site, arguments: &[&str]) -> Ended {
    let data_dir = site.data_dir();
    let mut all = vec!["journal"];
    all.extend(arguments);
    all.extend(["--data-dir", &data_dir]);
    site.run(&all)
}

fn add(service: &Service, name: &str) {
    service.run(&["node", "add", name, "--cpu", "1000", "--memory", "1TiB"]).with(0);
}

fn place(service: &Service) -> String {
    service.json(&["place", "--cpu", "1"])["allocation"].as_str().expect("placed").to_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

/// Changes a bit of each place of a file that has this text.
fn flip(file: &Path, text: &str) {
    let mut bytes = std::fs::read(file).expect("the store is there");
    let places: Vec<usize> =
        (0..bytes.len() - text.len()).filter(|&at| bytes[at..].starts_with(text.as_bytes())).collect();
    assert!(!places.is_empty(), "`{text}` is in no value");
    places.iter().for_each(|&at| bytes[at] ^= 1);
    std::fs::write(file, bytes).expect("the store can be written");
}

/// Would catch commands that disagree with what the service says and serves.
#[test]
fn the_commands_tell_what_a_killed_service_has_left() {
    let site = Site::new();
    journal(&site, &["check"]).with(3).says(&["has no store"]);
    let service = site.serve(&["--shards", "2"]);
    add(&service, "first");
    let kept = place(&service);
    let hash = service.json(&["status", "--audit"])["books_hash"].clone();
    let between = service.json(&["status"])["store"].clone();
    journal(&site, &["check"]).with(3).says(&["another service uses this data directory"]);
    service.kill();

    let checked = journal(&site, &["check", "--json"]).with(0).json();
    assert_eq!((&checked["books"]["books_hash"], &checked["store"]), (&hash, &between));
    assert_eq!((&checked["books"]["nodes"], &checked["books"]["allocations"]), (&1.into(), &1.into()));
    journal(&site, &["check"]).with(0).says(&["1 nodes, 1 allocations", "all is sound"]);

    let lines = journal(&site, &["dump"]).with(0).out;
    let units: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(checked["journal"]["units"], units.len());
    assert_eq!(units[0]["started"]["incarnation"], 1);
    let effects: Vec<&Value> = units.iter().filter_map(|unit| unit["effects"].as_array()).flatten().collect();
    let allocated = effects.iter().find(|effect| effect["effect"] == "allocated").expect("placed");
    assert_eq!(
        (&allocated["allocation"], &allocated["amounts"]["cpu"]),
        (&kept.as_str().into(), &"1".into())
    );
    // The positions of a stream count its effects.
    let partition = &allocated["partition"];
    let positions: Vec<u64> = effects
        .iter()
        .filter(|effect| &effect["partition"] == partition)
        .map(|effect| effect["position"].as_u64().expect("a number"))
        .collect();
    assert_eq!(positions, (1..=positions.len() as u64).collect::<Vec<_>>());
}

/// Would catch a start that serves damaged books, a message without place or remedy, and a repair that does not help.
#[test]
fn a_damaged_journal_stops_the_start_until_it_is_repaired() {
    let site = Site::new();
    let service = site.serve(&["--shards", "1"]);
    add(&service, "kept");
    let kept = place(&service);
    add(&service, "will-be-damaged");
    let lost = place(&service);
    service.kill();
    // A start and a stop in between would write a checkpoint over the values, so the damage is below the databases.
    let checked = journal(&site, &["check", "--json"]).with(0).json();
    let last = checked["journal"]["to"].as_u64().expect("a number");
    flip(&site.path("data").join("journal.redb"), "will-be-damaged");
    let found = journal(&site, &["check"]).with(1);
    let to = found.out.split("--to ").nth(1).and_then(|rest| rest.split('`').next()).expect("a remedy");
    let refused = site.serve_and_fail(&["--shards", "1"]).with(3);
    refused.says(&["of the journal is damaged", &format!("wharf journal repair --to {to}")]);
    journal(&site, &["repair", "--to", &(last + 1).to_string()]).with(3).says(&["ends at"]);
    let repaired = journal(&site, &["repair", "--to", to]).with(0);
    repaired.says(&["dropped", "is damaged", "the journal as it was"]);
    let service = site.serve(&["--shards", "1"]);
    assert_eq!(service.json(&["status", "--audit"])["resources"][0]["allocated"], "1");
    let nodes = service.json(&["node", "list"]);
    assert_eq!((nodes[0]["name"].as_str(), nodes.as_array().map(Vec::len)), (Some("kept"), Some(1)));
    service.run(&["release", &lost]).with(1).says(&["unknown_allocation"]);
    assert_ne!(place(&service), lost, "an id is given twice");
    service.run(&["release", &kept]).with(0);
    service.stop();
}

/// Damages each page of a database below what its values have, so that it panics while it reads.
fn damage_pages(file: &Path) {
    let mut bytes = std::fs::read(file).expect("the store is there");
    bytes.chunks_mut(4096).skip(1).for_each(|page| page[0] = 0xff);
    std::fs::write(file, bytes).expect("the store can be written");
}

/// Would catch a start or a command that ends with a panic of the database, or without a word about what to do.
#[test]
fn damaged_pages_stop_the_start_with_their_remedy() {
    let site = Site::new();
    let service = site.serve(&["--shards", "1"]);
    add(&service, "kept");
    let kept = place(&service);
    service.kill();
    // A start that fails later closes the databases, and closed ones are not verified when they are opened.
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("bound").to_string();
    let close = || drop(site.serve_and_fail(&["--listen", &address]).with(3).says(&["cannot serve on"]));
    close();
    let store = site.path("data").join("store.redb");
    let whole = std::fs::read(&store).expect("the store is there");
    damage_pages(&store);
    let remedy = ["store.redb: is damaged: ", "restore both files of the store from a copy"];
    site.serve_and_fail(&["--shards", "1"]).with(3).says(&remedy);
    for command in [&["check"][..], &["dump"], &["repair", "--to", "1"]] {
        journal(&site, command).with(3).says(&remedy);
    }
    std::fs::write(&store, whole).expect("the store can be written");
    close();
    damage_pages(&site.path("data").join("journal.redb"));
    let refused = site.serve_and_fail(&["--shards", "1"]).with(3);
    let refused =
        refused.says(&["journal.redb: append", "of the journal is damaged: ", "`wharf journal check`"]);
    let to = refused.err.split("--to ").nth(1).and_then(|rest| rest.split('`').next()).expect("a remedy");
    journal(&site, &["check"])
        .with(1)
        .says(&[&format!("`wharf journal repair --to {to}` drops"), "1 allocations"]);
    journal(&site, &["repair", "--to", to]).with(0).says(&["dropped: only what is not whole"]);
    let service = site.serve(&["--shards", "1"]);
    assert_eq!(service.json(&["status", "--audit"])["shards"][0]["allocations"], 1);
    service.run(&["release", &kept]).with(0);
    service.stop();
}

/// The nodes of the load, so many that their limits of allocations are not reached.
const NODES: usize = 8;

/// No more is placed, so that there is room for the rest of the test.
const PLACED_MAX: usize = 4000;

/// Places one request after the other until told to stop, and returns what was granted.
async fn place_one_by_one(config: ClientConfig, stop: &AtomicBool) -> Vec<AllocationId> {
    let client = within(Client::connect(config)).await.expect("the service is there");
    let demand = DemandBody { cpu: 1, ..DemandBody::default() };
    let request = PlaceRequest { demand, ..PlaceRequest::default() };
    let mut granted = Vec::new();
    // Relaxed: the thread is joined later.
    while !stop.load(Ordering::Relaxed) && granted.len() < PLACED_MAX {
        let reply = within(client.place(&request)).await.expect("it serves");
        granted.push(reply.placed.expect("there is room").allocation.into());
    }
    client.close().await;
    granted
}

/// An export while placements go on holds a prefix of them, and all that were answered before it began. Would catch an
/// export whose checkpoint and values are of different times, and one that lacks acknowledged placements.
#[test]
fn an_export_under_load_is_a_prefix_of_what_was_granted() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    (0..NODES).for_each(|number| add(&service, &format!("n{number}")));
    let stop = AtomicBool::new(false);
    let exports = ["first", "second", "third"].map(|name| site.path(name));
    let (granted, told) = std::thread::scope(|scope| {
        let config = service.client_config(&site.development_certificate());
        let load = scope.spawn(|| runtime().block_on(place_one_by_one(config, &stop)));
        let mut told = Vec::new();
        for export in &exports {
            let before = sum(&service.json(&["status"]), "placed");
            let data_dir = site.data_dir();
            let exported =
                service.run(&["journal", "export", text(export), "--data-dir", &data_dir, "--json"]);
            told.push((before, exported.with(0).json()));
        }
        // Relaxed: joined below.
        stop.store(true, Ordering::Relaxed);
        (load.join().expect("the load ends"), told)
    });
    service.run(&["journal", "export", text(&exports[0]), "--online"]).with(3).says(&["is there already"]);
    let id = service.json(&["status"])["store"].clone();
    service.stop();
    let mut last = 0;
    for (export, (before, exported)) in exports.iter().zip(&told) {
        let held = exported["books"]["allocations"].as_u64().expect("a number");
        assert!(held >= *before && held >= last, "{held} allocations, and {before} were granted before");
        assert_eq!(exported["store"], id);
        last = held;
        let other = Site::new();
        let imported = journal(&other, &["import", text(export), "--json"]).with(0).json();
        assert_ne!(imported["store"], id);
        journal(&other, &["import", text(export)]).with(3).says(&["is there"]);
        let service = other.serve(&["--shards", "1"]);
        let status = service.json(&["status", "--audit"]);
        assert_eq!(
            (&status["books_hash"], &status["store"]),
            (&imported["books"]["books_hash"], &imported["store"])
        );
        assert!(status["incarnation"].as_u64() > Some(1 << 16), "{status}");
        let held = usize::try_from(held).expect("few");
        let (inside, outside) = granted.split_at(held.min(granted.len()));
        let ends: Vec<String> =
            [inside.first(), inside.last()].into_iter().flatten().map(ToString::to_string).collect();
        ends.iter()
            .collect::<BTreeSet<_>>()
            .iter()
            .for_each(|id| drop(service.run(&["release", id]).with(0)));
        if let Some(next) = outside.first() {
            service.run(&["release", &next.to_string()]).with(1).says(&["unknown_allocation"]);
        }
        // No id is issued twice, not even one that the old store issued after the export.
        assert!(!granted.contains(&place(&service).parse().expect("an id")));
        service.stop();
    }
    assert!(last > 0, "nothing was placed during the exports");
}

/// A service without a journal cannot be exported while it runs.
#[test]
fn without_a_journal_only_a_stopped_service_is_exported() {
    let site = Site::new();
    let service = site.serve(&["--shards", "1", "--durability", "memory"]);
    add(&service, "n");
    let file = site.path("export");
    let data_dir = site.data_dir();
    let export = ["journal", "export", text(&file), "--data-dir", &data_dir];
    service.run(&export).with(1).says(&["not_served", "stopped"]);
    assert!(!file.exists() && !site.path("export.unfinished").exists());
    service.stop();
    let exported = journal(&site, &["export", text(&file), "--json"]).with(0).json();
    assert_eq!((&exported["books"]["nodes"], &exported["appends"]), (&1.into(), &0.into()));
    site.run(&["journal", "import", text(&file), "--check"]).with(0).says(&["verified store", "1 nodes"]);
    let mut bytes = std::fs::read(&file).expect("just written");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).expect("just written");
    site.run(&["journal", "import", text(&file), "--check"]).with(3).says(&["is damaged at byte"]);
}
