//! Tests that the catalog has a node before any shard can place on it.
//!
//! A shard runs on its own thread. For each node that it is given, it checks that the published catalog has
//! the node. The thread takes commands while the registrar puts more of them into the ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use arc_swap::ArcSwap;
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::{BatchRecord, Observer};
use wharf_core::link::{Clock, StopSignal};
use wharf_core::registrar::Catalog;
use wharf_core::shard::Command;
use wharf_core::state::StoreState;
use wharf_core::time::Time;

use super::{RegistrarReply, RegistrarRequest, RegistrarService};
use crate::protocol::{NodeBody, NodesRequest};

/// The number of messages, and of nodes in each.
const MESSAGES: usize = 40;
const NODES: usize = 100;

struct Still;

impl Clock for Still {
    fn now(&self) -> Time {
        Time(0)
    }
}

/// Counts the nodes that a shard is given, and those that the catalog does not have.
struct Looks<'a> {
    catalog: Arc<ArcSwap<Catalog>>,
    given: &'a AtomicU64,
    unknown: &'a AtomicU64,
}

impl Observer for Looks<'_> {
    fn handle_batch(&mut self, batch: &BatchRecord<'_>) {
        let catalog = self.catalog.load();
        for command in batch.commands {
            if let Command::AddNode(node) = command {
                let unknown = catalog.node_name(node.id).is_none();
                // Relaxed: read after the thread is joined.
                self.given.fetch_add(1, Ordering::Relaxed);
                // Relaxed: see above.
                self.unknown.fetch_add(u64::from(unknown), Ordering::Relaxed);
            }
        }
    }
}

/// Stops the shard's thread even if the test fails.
struct Stopping(StopSignal);

impl Drop for Stopping {
    fn drop(&mut self) {
        self.0.stop();
    }
}

fn nodes(message: usize) -> NodesRequest {
    let node = |number| NodeBody {
        name: format!("n{message}-{number}"),
        cpu: 40_000,
        memory: 40_000,
        ..NodeBody::default()
    };
    NodesRequest { nodes: (0..NODES).map(node).collect() }
}

#[test]
fn the_catalog_knows_a_node_before_its_shard_does() {
    let wakers = vec![Waker::noop().clone()];
    let mut engine = Engine::open(StoreState::create(1), &EngineConfig::default(), wakers).unwrap();
    let port = engine.ports.pop().unwrap();
    let mut runner = engine.runners.pop().unwrap();
    let registrar = engine.registrar;
    let catalog = Arc::clone(&engine.catalog);
    let mut service = RegistrarService::new(registrar, port, catalog);
    // The shard never sleeps, so it takes each command as soon as it is in the ring.
    runner.set_spin(u32::MAX);
    let given = AtomicU64::new(0);
    let unknown = AtomicU64::new(0);
    let mut looks = Looks { catalog: engine.catalog, given: &given, unknown: &unknown };
    std::thread::scope(|scope| {
        let _stopping = Stopping(engine.stop.clone());
        scope.spawn(move || runner.run(&Still, &mut looks));
        for message in 0..MESSAGES {
            service.handle(RegistrarRequest::Add(nodes(message)), message, Time(0));
            let reply = loop {
                service.poll(Time(0));
                match service.take_answers().next() {
                    Some((_, reply)) => break reply,
                    None => std::thread::yield_now(),
                }
            };
            let RegistrarReply::Nodes(reply) = reply else { panic!("nodes are answered") };
            assert_eq!(reply.replies.len(), NODES);
        }
    });
    assert_eq!((given.into_inner(), unknown.into_inner()), ((MESSAGES * NODES) as u64, 0));
}
