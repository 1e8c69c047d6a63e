//! Stops and starts of the process: clean, after a crash, and failing starts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use serde_json::Value;
use wharf_core::ids::AllocationId;
use wharf_net::client::{Client, Completions};
use wharf_net::codec::decode_body;
use wharf_net::protocol::{DemandBody, PlaceReply, PlaceRequest, kinds};

use crate::harness::{PATIENCE, Service, Site, runtime, sum, within};

#[track_caller]
fn add(service: &Service, name: &str) -> u64 {
    let added = service.json(&[
        "node",
        "add",
        name,
        "--cpu",
        "1000",
        "--memory",
        "1TiB",
        "--gpus",
        "4",
        "--label",
        "gpu-model=T4",
    ]);
    assert_eq!(added[0]["reason"], "done");
    added[0]["id"].as_u64().expect("an id")
}

#[track_caller]
fn place(service: &Service) -> String {
    service.json(&["place", "--cpu", "1", "--gpu", "0.25"])["allocation"].as_str().expect("placed").to_owned()
}

#[track_caller]
fn place_and_release(service: &Service) -> String {
    let id = place(service);
    service.run(&["release", &id]).with(0);
    id
}

/// Places continuously until the connection ends. Calls `under_way` once many requests are in flight. Returns
/// the number of requests sent and the granted allocations.
async fn place_until_the_end(client: &Client, mut under_way: impl FnMut()) -> (u64, BTreeSet<AllocationId>) {
    const BURST: u64 = 64;
    const WINDOW: u64 = 512;
    let queue = Arc::new(Completions::default());
    let request =
        PlaceRequest { demand: DemandBody { cpu: 1, ..DemandBody::default() }, ..PlaceRequest::default() };
    let mut sent = 0;
    let mut answered = 0;
    let mut open = true;
    let mut granted = BTreeSet::new();
    let mut batch = Vec::new();
    while open || answered < sent {
        for _ in 0..if open { BURST } else { 0 } {
            open = client.submit::<kinds::Place>(&request, &queue, sent).await.is_ok();
            sent += u64::from(open);
        }
        if sent >= 10 * WINDOW {
            under_way();
        }
        if sent - answered < WINDOW && open {
            continue;
        }
        if answered < sent {
            within(queue.take(&mut batch)).await;
        }
        for completion in batch.drain(..) {
            answered += 1;
            let Ok(body) = completion.reply else { continue };
            let (reply, _) = decode_body::<PlaceReply>(&body).expect("a reply");
            granted.extend(reply.placed.map(|placed| AllocationId::from(placed.allocation)));
        }
    }
    (sent, granted)
}

/// Accepted requests are answered: after the stop, the books hold exactly what the client was told.
#[test]
fn a_stop_under_load_loses_no_answer_and_the_next_start_any_number_of_shards_goes_on() {
    let site = Site::new();
    let service = site.serve(&["--shards", "1"]);
    let ids = [add(&service, "a"), add(&service, "b"), add(&service, "c")];
    service.run(&["node", "drain", "c"]).with(0);
    let kept = place(&service);
    let (sender, under_way) = sync_channel(1);
    let config = service.client_config(&site.development_certificate());
    let load = std::thread::spawn(move || {
        runtime().block_on(async {
            let client = within(Client::connect(config)).await.expect("the service is there");
            place_until_the_end(&client, || {
                let _ = sender.try_send(());
            })
            .await
        })
    });
    under_way.recv_timeout(PATIENCE).expect("the load begins");
    service.signal("TERM");
    let (sent, granted) = load.join().expect("the load ends");
    let mut service = service;
    assert_eq!(service.wait().code(), Some(0), "{:#?}", service.log());
    assert!(sent > 5000 && !granted.is_empty(), "{sent} sent, {} granted", granted.len());
    let written = service.wait_for_log("the state is written", 1);
    drop(service);

    let service = site.serve(&["--shards", "8"]);
    let status = service.json(&["status", "--audit"]);
    assert_eq!(
        sum(&status, "allocations"),
        granted.len() as u64 + 1,
        "what was done and what was answered differ"
    );
    let books = status["books_hash"].as_str().unwrap();
    assert!(written.contains(&format!("books={books}")), "books {books} after {written}");
    assert_eq!((status["shards"].as_array().map(Vec::len), &status["incarnation"]), (Some(8), &2.into()));
    let nodes = service.json(&["node", "list"]);
    let listed: Vec<_> = nodes.as_array().unwrap().iter().map(|node| node["id"].as_u64().unwrap()).collect();
    assert_eq!(
        (listed, &nodes[2]["state"], &nodes[0]["labels"]["gpu-model"]),
        (ids.to_vec(), &"draining".into(), &"T4".into())
    );
    // Allocations of the previous run keep their ids.
    service.run(&["release", &kept]).with(0);
    service.run(&["release", &kept]).with(1);
    for id in granted.iter().take(3) {
        service.run(&["release", &id.to_string()]).with(0);
    }
    let before = (service.json(&["node", "list"]), service.json(&["status", "--audit"]));
    service.stop();

    // A start that cannot serve loses nothing.
    let busy = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    site.serve_and_fail(&["--listen", &busy.local_addr().unwrap().to_string()]).with(3);

    let service = site.serve(&["--shards", "2"]);
    let after = (service.json(&["node", "list"]), service.json(&["status", "--audit"]));
    assert_eq!(after.0, before.0);
    for key in ["resources", "books_hash", "store"] {
        assert_eq!(after.1[key], before.1[key], "{key}");
    }
    assert_eq!(sum(&after.1, "allocations"), granted.len() as u64 - 3);
    assert!(!granted.contains(&place(&service).parse().unwrap()) && add(&service, "d") > ids[2]);
    service.stop();
}

#[test]
fn after_a_crash_without_a_journal_the_books_are_empty_and_no_id_is_given_twice() {
    const MEMORY: [&str; 4] = ["--shards", "2", "--durability", "memory"];
    let site = Site::new();
    let service = site.serve(&MEMORY);
    service.wait_for_log("durability is `memory`", 1);
    let mut nodes = BTreeSet::new();
    let mut allocations = BTreeSet::new();
    nodes.insert(add(&service, "kept-by-a-checkpoint"));
    let old = place(&service);
    allocations.insert(old.clone());
    let store = service.json(&["status"])["store"].clone();
    service.stop();
    let mut service = site.serve(&MEMORY);
    for crash in 1..=3 {
        let name = format!("node-{crash}");
        assert!(nodes.insert(add(&service, &name)), "a node id is given twice: {nodes:?}");
        assert!(allocations.insert(place(&service)), "an allocation id is given twice: {allocations:?}");
        service.kill();
        service = site.serve(&MEMORY);
        service.wait_for_log("did not stop cleanly", 1);
        assert_eq!(service.json(&["node", "list"]), Value::Array(Vec::new()));
        let status = service.json(&["status", "--audit"]);
        assert_eq!((&status["store"], sum(&status, "allocations")), (&store, 0));
        service.run(&["release", &old]).with(1).says(&["unknown_allocation"]);
        // The name can be used again; the id is new.
        assert!(nodes.insert(add(&service, &name)));
        assert!(allocations.insert(place(&service)));
    }
    service.stop();
    let service = site.serve(&MEMORY);
    assert!(service.log().iter().all(|line| !line.contains("did not stop cleanly")));
    assert_eq!(service.json(&["node", "list"]).as_array().map(Vec::len), Some(1));
    service.stop();
}

/// What was answered is there after a crash, with any number of shards, in both modes with a journal.
#[test]
fn after_a_crash_the_journal_gives_the_books_back() {
    let site = Site::new();
    let mut service = site.serve(&["--shards", "2"]);
    let mut placed = BTreeSet::new();
    for (round, (durability, shards)) in [("sync", "1"), ("os", "4"), ("sync", "2")].into_iter().enumerate() {
        add(&service, &format!("node-{round}"));
        assert!(placed.insert(place(&service)) && placed.insert(place(&service)));
        let released = place(&service);
        service.run(&["release", &released]).with(0);
        let before = (service.json(&["node", "list"]), service.json(&["status", "--audit"]));
        service.kill();
        service = site.serve(&["--shards", shards, "--durability", durability]);
        service.wait_for_log("recovered from the journal", 1);
        let after = (service.json(&["node", "list"]), service.json(&["status", "--audit"]));
        assert_eq!(after.0, before.0, "the nodes after crash {round}");
        for key in ["resources", "books_hash", "store"] {
            assert_eq!(after.1[key], before.1[key], "{key} after crash {round}");
        }
        assert_eq!(sum(&after.1, "allocations"), placed.len() as u64);
        service.run(&["release", &released]).with(1).says(&["unknown_allocation"]);
        assert!(!placed.contains(&place_and_release(&service)), "an id is given twice");
    }
    for id in &placed {
        service.run(&["release", id]).with(0);
    }
    service.stop();
}

#[test]
fn an_interrupt_is_a_clean_stop_too() {
    let site = Site::new();
    let mut service = site.serve(&["--shards", "1"]);
    add(&service, "a");
    service.signal("INT");
    assert_eq!(service.wait().code(), Some(0));
    let service = site.serve(&["--shards", "1"]);
    assert_eq!(service.json(&["node", "list"])[0]["name"], "a");
}

/// If nobody reads the greeting or it cannot be written, the service keeps running with its books.
#[test]
fn a_greeting_that_nobody_reads_costs_nothing() {
    let site = Site::new();
    let service = site.serve(&[]);
    service.run(&["node", "add", "kept", "--cpu", "4", "--memory", "1024"]).with(0);
    service.stop();
    let full =
        std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device that is always full");
    let mut command = site.wharf(&["serve", "--listen", "127.0.0.1:0", "--metrics-listen", ""]);
    command.arg("--data-dir").arg(site.data_dir()).stdout(full).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    let log = std::io::BufReader::new(child.stderr.take().expect("its log is piped"));
    let mut lines = std::io::BufRead::lines(log).map_while(Result::ok);
    assert!(lines.any(|line| line.contains("standard output cannot be written")), "it says so in the log");
    let id = child.id().to_string();
    let killed = std::process::Command::new("kill").args(["-TERM", &id]).status().expect("kill is there");
    assert!(killed.success());
    assert!(lines.any(|line| line.contains("stopped; the state is written")));
    assert!(child.wait().expect("it ends").success());
    let service = site.serve(&[]);
    let nodes = service.json(&["node", "list"]);
    assert_eq!(nodes[0]["name"], "kept", "{nodes}");
    service.stop();
}
