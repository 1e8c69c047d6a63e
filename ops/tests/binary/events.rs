//! `wharf events` with the real binary: books that are rebuilt from its lines, over crashes of the service.
//!
//! The lines are read by a small interpreter that shares no code with the service. Its books are compared with those that
//! `wharf status` and `wharf node list` print. Faults that this finds: an event that is lost or told twice, over a crash or
//! a new connection, a cause that is wrong, and a change of the books without an event.

#![allow(unreachable_pub, reason = "its items are for the modules of one test")]

#[path = "events/books.rs"]
pub mod books;
#[path = "events/load.rs"]
mod load;

use std::collections::BTreeSet;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use serde_json::json;
use tokio::sync::oneshot;
use wharf_core::rng::Rng;

use crate::harness::{ANSWERS_ROOM, PATIENCE, Service, Site};
use crate::watch::Watch;
use books::{Books, read};

/// The kills under load, and the most answers between two of them.
const KILLS: u64 = 10;
const ANSWERS_MAX: u64 = 400;

fn add(service: &Service, name: &str) {
    service.run(&["node", "add", name, "--cpu", "64", "--memory", "64GiB", "--gpus", "4"]).with(0);
}

fn place(service: &Service, more: &[&str]) -> String {
    let placed = service.json(&[&["place", "--cpu", "2"], more].concat());
    placed["allocation"].as_str().expect("placed").to_owned()
}

/// Changes the books in every way that has a cause of its own. Returns an allocation that stays.
fn change(service: &Service, round: u32) -> String {
    let name = |part: &str| format!("{part}-{round}");
    add(service, &name("kept"));
    add(service, &name("gone"));
    let kept = place(service, &[]);
    let released = place(service, &["--gpu", "0.5"]);
    service.run(&["release", &released]).with(0);
    let gone = name("gone");
    service.run(&["adopt", &gone, "--cpu", "3", "--external-id", "pod"]).with(0);
    service.run(&["node", "drain", &gone]).with(0);
    service.run(&["node", "remove", &gone, "--force"]).with(0);
    let group = service.json(&["group", "create", "--bundles", "2", "--cpu", "4"]);
    let group = group["group"].as_str().or_else(|| group["id"].as_str()).expect("a group").to_owned();
    service.run(&["place", "--group", &group, "--cpu", "1"]).with(0);
    if round % 2 == 1 {
        service.run(&["group", "remove", &group]).with(0);
    }
    kept
}

#[test]
fn books_are_rebuilt_from_events_over_crashes() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    let address = service.address.to_string();
    let certificate = site.development_certificate();
    let arguments =
        ["events", "--follow", "--from", "1", "--json", "--server", &address, "--ca", &certificate];
    let follower = Watch::begin(&mut site.wharf(&arguments));
    let mut followed = Books::default();
    let mut read_at_once = Books::default();
    let mut service = service;
    for round in 0..3 {
        let kept = change(&service, round);
        // The follower gets the events of a change that was answered. Then it loses its connection, and notices that
        // only after further crashes.
        while round == 0 && !(followed.allocations.contains_key(&kept) && followed.nodes.len() == 1) {
            followed.apply(&follower.until(|_| true));
        }
        read_at_once.settle(&service);
        service.kill();
        service = site.serve(&["--shards", ["1", "4", "2"][round as usize], "--listen", &address]);
        read_at_once.settle(&service);
    }
    let last = place(&service, &[]);
    read_at_once.read(&service);
    while followed.last < read_at_once.last {
        followed.apply(&follower.until(|_| true));
    }
    followed.check(&service);
    assert!(followed.allocations.contains_key(&last));
    let counts = &followed.counts;
    assert_eq!(*counts, read_at_once.counts);
    assert_eq!((counts["started"], counts["adopted"], counts["placed"]), (4, 3, 7));
    assert_eq!((counts["committed"], counts["placed_into"], counts["ended_with_node"]), (6, 3, 3));
    assert_eq!(follower.interrupt(), Some(0));
    service.stop();
}

#[test]
fn a_waiting_placement_and_text_and_refusals_are_told() {
    let site = Site::new();
    let service = site.serve(&["--shards", "1"]);
    add(&service, "a");
    let held = place(&service, &["--gpu", "4"]);
    let waiting = service.begin(&["place", "--cpu", "8", "--gpu", "1", "--wait", "50s"]);
    service.until(&["status"], |status| status["waiting"] == json!(1));
    service.run(&["release", &held]).with(0);
    waiting.end().with(0);
    let lines = read(&service, 1);
    assert_eq!(
        lines.iter().filter(|line| line["event"] == json!("placed_after_wait")).count(),
        1,
        "{lines:#?}"
    );
    service.run(&["events"]).with(0).says(&["placed_after_wait a1-", "node_added a (n1) ready", "8 cpu"]);
    let end = lines.last().expect("some")["position"].as_u64().expect("a position") + 1;
    // The sessions of these commands end, and each end is an event.
    service.run(&["events", "--from", &(end + 1000).to_string()]).with(1).says(&["future_version"]);
    service.run(&["events", "--from", "0"]).with(2).says(&["from 1 on"]);
    service.stop();
    let service = site.serve(&["--shards", "1", "--durability", "memory"]);
    service.run(&["events"]).with(1).says(&["not_served", "`durability` to `sync` or `os`"]);
    service.stop();
    // A run without events came between, so none of the earlier ones leads to the books.
    let service = site.serve(&["--shards", "1"]);
    service.run(&["events", "--from", &end.to_string()]).with(1).says(&["too_far_behind"]);
    let lines = read(&service, (1 << 44) + 1);
    assert_eq!(lines[0]["event"], json!("started"), "{lines:#?}");
    service.stop();
}

#[test]
fn a_refused_command_ends_its_session() {
    let site = Site::new();
    let config = site.write("wharf.toml", "unit_instance_resources = [\"npu\"]\n");
    let service = site.serve(&["--shards", "1", "--config", &config]);
    service.run(&["node", "add", "a", "--cpu", "4", "--memory", "1GiB", "--resource", "npu=2"]).with(0);
    service.run(&["place", "--resource", "npu=1.5"]).with(1).says(&["whole number"]);
    // Sessions are numbered from 1 on. One that is not closed would be kept for an hour, and miss among those that ended.
    let ended = || -> BTreeSet<u64> {
        let lines = read(&service, 1);
        let closed = lines.iter().filter(|line| line["event"] == json!("session_closed"));
        let number = |session: &str| session.rsplit('-').next()?.parse().ok();
        closed.map(|line| line["session"].as_str().and_then(number).expect("its id")).collect()
    };
    let are_all = |ended: BTreeSet<u64>| ended.len() > 2 && ended.last() == Some(&(ended.len() as u64));
    let begun = Instant::now();
    while !are_all(ended()) {
        assert!(begun.elapsed() < PATIENCE, "its session goes on");
    }
    service.stop();
}

/// The service is killed at random moments with requests under way. After each start, its books are those that the events
/// lead to, which is the same for an event reader that stayed away for several kills. Would catch a unit that is durable
/// without its events, an event whose position is given twice, and a start that takes back what an event has told.
#[test]
fn books_are_rebuilt_from_events_over_kills_under_load() {
    let seed = std::env::var("WHARF_EVENTS_SEED").map_or(1, |text| text.parse().expect("a number"));
    println!(
        "replay: WHARF_EVENTS_SEED={seed} cargo test -p wharf-ops --test binary kills_under_load -- --nocapture"
    );
    let site = Site::new();
    let settings = site.write("wharf.toml", load::SETTINGS);
    let serve = |shards| site.serve(&["--config", &settings, "--shards", shards]);
    let mut rng = Rng::new(seed);
    let mut often = Books::default();
    let mut seldom = Books::default();
    let mut service = serve("2");
    for number in 0..load::NODES {
        service.run(&["node", "add", &load::node(number), "--cpu", "1000", "--memory", "1TiB"]).with(0);
    }
    load::report_agent(&service);
    for kill in 0..KILLS {
        let config = service.client_config(&site.development_certificate());
        let (sender, answered) = sync_channel(ANSWERS_ROOM);
        let load_seed = rng.below(u64::MAX);
        let (kill_it, killed) = oneshot::channel();
        let client = std::thread::spawn(move || load::run(config, load_seed, &sender, killed));
        for _ in 0..1 + rng.below(ANSWERS_MAX) {
            answered.recv_timeout(PATIENCE).expect("the load goes on until the kill");
        }
        service.kill();
        kill_it.send(()).expect("the load goes on until the kill");
        client.join().expect("no answer was wrong");
        service = serve(["1", "4", "2"][kill as usize % 3]);
        often.settle(&service);
        if kill % 4 == 3 {
            seldom.settle(&service);
        }
    }
    // The agent was silent all the time.
    service.until(&["node", "list"], |nodes| nodes.to_string().contains("\"lost\""));
    often.settle(&service);
    seldom.settle(&service);
    println!("{:#?}", often.counts);
    let kinds = load::EVENTS.iter().filter(|&&event| !often.counts.contains_key(event)).collect::<Vec<_>>();
    assert!(kinds.is_empty(), "no events of these kinds: {kinds:?} in {:?}", often.counts);
    assert_eq!(often.counts["started"], KILLS + 1);
    service.stop();
}
