//! `kill -9` of the real service under load over QUIC, again and again. After each start, a reader that knows nothing of
//! the load compares the books with what the clients were told: nothing is lost, and nothing is there twice. Another one
//! rebuilds the books from the events, and compares them with what the service prints.
//!
//! `WHARF_KILLS` is the number of kills, `WHARF_KILL_SEED` the seed of the load and of the moments.

#![allow(unreachable_pub, reason = "its items are for the modules of one test")]

#[path = "kills/job_reader.rs"]
mod job_reader;
#[path = "kills/jobs.rs"]
mod jobs;
#[path = "kills/load.rs"]
mod load;
#[path = "kills/oracle.rs"]
mod oracle;
#[path = "kills/reader.rs"]
mod reader;
#[path = "kills/told.rs"]
mod told;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tokio::task::LocalSet;
use wharf_core::rng::Rng;
use wharf_net::client::Client;
use wharf_net::protocol::{Name, RemoveRequest, WireGroup};

use crate::events::books::Books;
use crate::harness::{Service, Site, runtime, within};
use load::World;
use oracle::Oracle;
use reader::Seen;
use told::Told;

/// The kills of a run that does not say how many.
const KILLS: u64 = 100;

/// The clients, and the requests of each that are in flight.
const CLIENTS: usize = 4;
const WORKERS: usize = 3;

/// The most replies between a start and a kill.
const REPLIES_MAX: u64 = 240;

/// Turns of the clients after a kill, in which they read the replies that had left before.
const TURNS_AFTER: usize = 500;

/// The modes and numbers of shards, in turns.
const DURABILITY: [&str; 2] = ["sync", "os"];
const SHARDS: [&str; 3] = ["1", "4", "2"];

/// Cycles begin as soon as tasks wait, and evicted tasks end soon.
const SETTINGS: &str = "checkpoint_mib = 1\n[jobs]\ninterval = \"1ms\"\ngrace = \"5ms\"\n";

/// Allocations without a client on one node after which it is cleared.
const ORPHANS_MAX: usize = 8;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// Catches: a reply that leaves before its effects are in the journal; a start that loses, doubles or half does a change, for
/// any number of shards; ids that are given again.
#[test]
fn whatever_was_answered_is_there_after_each_kill() {
    let kills = number("WHARF_KILLS", KILLS);
    let seed = number("WHARF_KILL_SEED", 1);
    println!(
        "replay: WHARF_KILLS={kills} WHARF_KILL_SEED={seed} cargo test -p wharf-ops --test binary kills -- --nocapture"
    );
    let world = Rc::new(World {
        oracle: RefCell::new(Oracle::default()),
        jobs: RefCell::new(Told::default()),
        rng: RefCell::new(Rng::new(seed)),
        next_node: Cell::new(1),
        next_job: Cell::new(1),
        left: Cell::new(0),
        replies: Cell::new(0),
    });
    let site = Site::new();
    let settings = site.write("kills.toml", SETTINGS);
    let mut checkpoints = 0;
    let mut told = Books::default();
    for kill in 0..kills {
        let service = serve(&site, &settings, kill);
        runtime().block_on(check(&world, &service));
        told.settle(&service);
        let service = run_until_killed(&world, service);
        checkpoints += service.log().iter().filter(|line| line.contains("a checkpoint is complete")).count();
        if (kill + 1).is_multiple_of(50) {
            println!("{} kills, {} replies", kill + 1, world.replies.get());
        }
    }
    let service = serve(&site, &settings, kills);
    runtime().block_on(check(&world, &service));
    service.stop();
    let service = serve(&site, &settings, kills + 1);
    runtime().block_on(check(&world, &service));
    told.settle(&service);
    service.stop();
    let (done, not_done) = world.oracle.borrow().decided;
    println!(
        "{kills} kills, {} replies, {checkpoints} checkpoints; without a reply: {done} done, {not_done} not done",
        world.replies.get()
    );
    assert!(kills < KILLS || (done > 0 && not_done > 0), "every kill was between requests");
    let jobs = world.jobs.borrow();
    let Told { decided: (done, not_done), evicted, succeeded, .. } = *jobs;
    println!(
        "{} jobs, {succeeded} tasks succeeded, {evicted} evicted; without a reply: {done} done, {not_done} not done",
        world.next_job.get() - 1
    );
    let is_enough = done > 0 && not_done > 0 && evicted > 0 && succeeded > 0;
    assert!(kills < KILLS || is_enough, "the kills missed what they were for");
}

fn serve(site: &Site, settings: &str, start: u64) -> Service {
    let durability = DURABILITY[start as usize % DURABILITY.len()];
    let shards = SHARDS[start as usize / DURABILITY.len() % SHARDS.len()];
    site.serve(&["--config", settings, "--shards", shards, "--durability", durability])
}

/// Compares the books with what the clients were told, and clears a node that has much that no client knows.
async fn check(world: &World, service: &Service) {
    let client = service.client().await;
    let seen = whole(world, &client).await;
    world.jobs.borrow_mut().compare(&seen.jobs);
    world.oracle.borrow_mut().compare(&seen);
    load::check_leases(world, &client).await;
    let crowded = world.oracle.borrow().node_of_orphans(&seen, ORPHANS_MAX);
    let Some((name, allocations)) = crowded else { return };
    let request = RemoveRequest { names: vec![Name(name.clone())], force: true };
    let reply = within(client.remove_nodes(&request)).await.expect("the service is there");
    let reply = &reply.replies[0];
    assert_eq!((reply.reason.is_done(), reply.allocations_ended), (true, allocations), "{reply:?}");
    world.oracle.borrow_mut().drop_node(&name, reply.node);
    world.jobs.borrow_mut().drop_node(reply.node, &seen.jobs);
}

/// Reads the books. Removals of which only a part was done are asked for again, as their client would.
async fn whole(world: &World, client: &Client) -> Seen {
    let over = world.jobs.borrow().over();
    loop {
        let seen = reader::read(client, &over).await;
        let halves = world.oracle.borrow().half_removed(&seen);
        if halves.is_empty() {
            return seen;
        }
        for key in halves {
            let (incarnation, number) = key;
            let reply = within(client.remove_group(WireGroup { incarnation, number, tenant: 0 })).await;
            let reply = reply.expect("the service is there");
            assert!(reply.reason.is_done(), "{reply:?}");
            world.oracle.borrow_mut().finish_removal(key);
        }
    }
}

/// Loads the service, and kills it after a random number of replies. Returns it when it is gone.
fn run_until_killed(world: &Rc<World>, mut service: Service) -> Service {
    world.left.set(1 + world.rng.borrow_mut().below(REPLIES_MAX));
    runtime().block_on(LocalSet::new().run_until(async {
        let mut tasks = Vec::new();
        for client in 0..CLIENTS {
            let connected: Client = service.client().await;
            if client == 0 && world.oracle.borrow().nodes.is_empty() {
                within(load::add(world, &connected, load::new_node(world))).await.expect("it is there");
                within(jobs::add_queues(world, &connected)).await.expect("it is there");
            }
            for worker in 0..WORKERS {
                let changes_nodes = client == 0 && worker == 0;
                tasks.push(tokio::task::spawn_local(load::work(
                    Rc::clone(world),
                    connected.clone(),
                    changes_nodes,
                )));
            }
        }
        while world.left.get() > 0 {
            assert!(tasks.iter().all(|task| !task.is_finished()), "a worker ended before the kill");
            tokio::task::yield_now().await;
        }
        service.kill_now();
        for _ in 0..TURNS_AFTER {
            tokio::task::yield_now().await;
        }
        for task in tasks {
            task.abort();
            // A worker that panicked has found something.
            if let Err(error) = task.await {
                assert!(!error.is_panic(), "{error}");
            }
        }
    }));
    service
}
