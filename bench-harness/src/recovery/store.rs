//! Builds the store that a service leaves behind when it is killed: a checkpoint, and a journal after it.
//!
//! The parts are those of the service: the engine, the connections, the writer of the journal and the checkpointer. They
//! are state machines without threads, so one thread runs them here. Nothing is closed at the end.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::Unobserved;
use wharf_core::ids::AllocationId;
use wharf_core::journal::JournalStore;
use wharf_core::limits::{NODES_PER_MESSAGE_MAX, PARTITIONS_DEFAULT};
use wharf_core::link::Clock;
use wharf_core::node::NodeRegistration;
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GPU_UNIT, GpuRequest};
use wharf_core::rng::Rng;
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::shard::{Command, NodeChange, Outcome};
use wharf_net::protocol::{DemandBody, PlaceRequest};
use wharf_net::session::shared::{SessionShared, Settings};
use wharf_ops::journal::{Checkpointer, Durability, JournalWriter, Log, Store, Written};

use super::Contents;
use super::clients::{Ask, Clients, Told, counted_tokens};
use crate::engine::shapes::{NodeMaker, Shapes};
use crate::target::{ReplayClock, place_request};

/// The ports, in the order of the wakers given to the engine: of the registrar, the clients and the checkpoints.
const PORTS: usize = 3;

/// The placements that are asked for at once while the cluster is filled.
const FILL_AT_ONCE: u64 = 1024;

/// The most allocations per node with the demands of the trace. With more, each demand is divided.
const PER_NODE: u64 = 3;

/// Refused placements per allocation after which the cluster counts as full.
const REFUSED_MAX: u64 = 4;

/// One request of the tail in this many is refused.
const REFUSED_EVERY: u64 = 20;

/// The cores that a refused placement asks for. No node has so many.
const CORES_TOO_MANY: u32 = 1_000_000;

/// What was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Built {
    /// The records in the journal after the checkpoint.
    pub(super) tail_records: u64,
    /// The appends that they are in.
    pub(super) tail_appends: u64,
    /// The bytes of their values.
    pub(super) tail_bytes: u64,
    /// The requests that they tell of.
    pub(super) tail_requests: u64,
    /// Those of them that were refused.
    pub(super) tail_refused: u64,
    /// The outcomes that clients have not acknowledged.
    pub(super) outcomes: u64,
}

/// A service with its clients, on this thread.
struct Service {
    engine: Engine,
    store: Store,
    writer: JournalWriter<Log>,
    checkpointer: Checkpointer,
    clients: Clients,
    clock: ReplayClock,
    rng: Rng,
    demands: Vec<Demand>,
    nodes: u64,
    live: Vec<AllocationId>,
    /// The last allocation that was released.
    ended: Option<AllocationId>,
    /// The requests of clients that were answered.
    answered: u64,
    /// Those of them that were refused.
    refused: u64,
}

/// Builds a store in `directory`.
///
/// # Errors
/// When the directory cannot be written, or the nodes cannot hold the allocations.
pub(super) fn build(directory: &Path, contents: &Contents, shards: u16) -> anyhow::Result<Built> {
    let mut service = Service::open(directory, contents, shards)?;
    service.add_nodes(contents.nodes)?;
    service.fill(contents.allocations)?;
    let append = service.checkpoint()?;
    let before = service.so_far(append);
    while service.so_far(append).tail_records - before.tail_records < contents.tail_records {
        service.churn(contents.in_flight)?;
    }
    let after = service.so_far(append);
    let built = Built {
        tail_records: after.tail_records - before.tail_records,
        tail_appends: after.tail_appends,
        tail_bytes: after.tail_bytes - before.tail_bytes,
        tail_requests: after.tail_requests - before.tail_requests,
        tail_refused: after.tail_refused - before.tail_refused,
        outcomes: after.outcomes,
    };
    // A database that is closed tidies up. One that is killed does not, and its next start has more to do. So the files
    // stay open until the process ends.
    std::mem::forget(service);
    Ok(built)
}

impl Service {
    fn open(directory: &Path, contents: &Contents, shards: u16) -> anyhow::Result<Self> {
        let (mut store, state) = Store::open(directory, PARTITIONS_DEFAULT, Durability::Os)?;
        let config = EngineConfig { shards, seed: contents.seed, journal: true, ..EngineConfig::default() };
        let mut engine = Engine::open(state.clone(), &config, vec![Waker::noop().clone(); PORTS])?;
        let feed = engine.journal.take().context("the engine notes effects")?;
        let begun = store.begin(engine.incarnation, &state)?;
        let (log, last, heads) = begun.context("the store has a journal")?;
        let kinds = Arc::clone(&engine.catalog.load().resources);
        let epoch = u64::from(engine.incarnation.0);
        let writer = JournalWriter::new(feed, log, (epoch, last), heads, kinds);
        let checkpointer = Checkpointer::new(engine.ports.pop().context("one port per owner")?, state);
        let port = engine.ports.pop().context("one port per owner")?;
        let shared =
            SessionShared::new(store.id(), engine.incarnation, Settings::default(), counted_tokens());
        let clients = Clients::open(port, shared, contents.sessions, contents.unacknowledged)?;
        let per_node = contents.allocations.div_ceil(u64::from(contents.nodes).max(1));
        let shapes = Shapes::load(None, contents.seed)?;
        let divisor = i64::try_from(per_node.div_ceil(PER_NODE).max(1))?;
        let demands = shapes.demands.iter().map(|demand| divided(demand, divisor)).collect();
        Ok(Self {
            engine,
            store,
            writer,
            checkpointer,
            clients,
            clock: ReplayClock::real(),
            rng: Rng::new(contents.seed),
            demands,
            nodes: u64::from(contents.nodes),
            live: Vec::new(),
            ended: None,
            answered: 0,
            refused: 0,
        })
    }

    /// Returns what the journal has from append `from` on, with the records, bytes and requests of all of it.
    fn so_far(&self, from: u64) -> Built {
        let (next, heads) = self.writer.end();
        Built {
            tail_records: heads.values().sum(),
            tail_appends: next - from,
            // Relaxed: this thread writes it.
            tail_bytes: self.writer.counters().bytes.load(Ordering::Relaxed),
            tail_requests: self.answered,
            tail_refused: self.refused,
            outcomes: self.clients.outcomes(),
        }
    }

    fn run_shards(&mut self) {
        for runner in &mut self.engine.runners {
            runner.run_batch(&self.clock, &mut Unobserved);
        }
    }

    fn write(&mut self) -> anyhow::Result<()> {
        ensure!(self.writer.write()? != Written::Full, "the disk is full");
        self.writer.take_global().for_each(|unit| self.checkpointer.note(&unit));
        Ok(())
    }

    fn add_nodes(&mut self, count: u32) -> anyhow::Result<()> {
        let mut maker = NodeMaker::new();
        let mut left = count as usize;
        while left > 0 {
            let at_once = left.min(NODES_PER_MESSAGE_MAX);
            left -= at_once;
            let mut registrations = Vec::with_capacity(at_once);
            for _ in 0..at_once {
                registrations.push(self.engine.registrar.register(maker.openb(&mut self.rng))?);
            }
            self.engine.catalog.store(Arc::new(self.engine.registrar.catalog()));
            self.add(registrations)?;
        }
        Ok(())
    }

    /// Adds nodes, as the registrar does.
    fn add(&mut self, registrations: Vec<NodeRegistration>) -> anyhow::Result<()> {
        let now = self.clock.now();
        let mut replies = Vec::new();
        for registration in registrations {
            let partition = registration.partition;
            let request = PortRequest::Partition(partition, Command::AddNode(Box::new(registration)));
            let at_once = self.engine.ports[0].submit(0, request, now);
            replies.extend(at_once.ok().context("the port has room for the nodes of a message")?);
        }
        while self.engine.ports[0].pending() > 0 {
            self.engine.ports[0].flush();
            self.run_shards();
            self.engine.ports[0].poll(now, |_, reply| replies.push(reply));
        }
        self.write()?;
        for reply in replies {
            let PortReply::One(Outcome::Node(Ok(NodeChange::Added(_)))) = reply else {
                bail!("a node was answered by {reply:?}");
            };
        }
        Ok(())
    }

    /// Lets clients ask, and the service work until they have all replies. Returns the number of refusals.
    fn ask(&mut self, asks: Vec<Ask>) -> anyhow::Result<u64> {
        self.clients.send(asks, self.clock.now());
        let mut refused = 0;
        while self.clients.are_waiting() {
            self.run_shards();
            self.clients.poll(self.clock.now())?;
            self.write()?;
            self.clients.poll(self.clock.now())?;
            for told in self.clients.take_told() {
                self.answered += 1;
                match told {
                    Told::Placed(allocation) => self.live.push(allocation),
                    Told::Released => {}
                    Told::Refused => refused += 1,
                }
            }
        }
        self.refused += refused;
        Ok(refused)
    }

    fn place(&mut self) -> Ask {
        let demand = &self.demands[self.rng.below(self.demands.len() as u64) as usize];
        // A start does not depend on the policy, and this one spreads the allocations over all nodes.
        Ask::Place(Box::new(place_request(&PlacementRequest::new(demand.clone(), Policy::Random))))
    }

    /// Returns a request that is refused: a placement that its node cannot hold, or a second release.
    fn refused(&mut self) -> Ask {
        match self.ended {
            Some(ended) if self.rng.below(2) == 0 => Ask::Release(ended),
            _ => {
                let cpu = Amount::whole(CORES_TOO_MANY).units();
                let demand = DemandBody { cpu, ..DemandBody::default() };
                let candidates = vec![1 + self.rng.below(self.nodes)];
                Ask::Place(Box::new(PlaceRequest { demand, candidates, ..PlaceRequest::default() }))
            }
        }
    }

    /// Places until `count` allocations live.
    fn fill(&mut self, count: u64) -> anyhow::Result<()> {
        let mut refused = 0;
        while (self.live.len() as u64) < count {
            let at_once = FILL_AT_ONCE.min(count - self.live.len() as u64);
            let asks = (0..at_once).map(|_| self.place()).collect();
            refused += self.ask(asks)?;
            ensure!(
                refused <= count * REFUSED_MAX,
                "the nodes hold {} allocations, not {count}: give more nodes or fewer allocations",
                self.live.len()
            );
        }
        Ok(())
    }

    /// Releases, and places as many again. Some requests are refused.
    fn churn(&mut self, in_flight: u64) -> anyhow::Result<()> {
        let count = self.live.len() as u64;
        let mut asks = Vec::new();
        for _ in 0..(in_flight / 2).clamp(1, count) {
            let at = self.rng.below(self.live.len() as u64) as usize;
            let ended = self.live.swap_remove(at);
            asks.push(Ask::Release(ended));
            if self.rng.below(REFUSED_EVERY / 2) == 0 {
                asks.push(self.refused());
            }
            self.ended = Some(ended);
        }
        self.ask(asks)?;
        self.fill(count)
    }

    /// Makes a checkpoint. Returns the append that continues it.
    fn checkpoint(&mut self) -> anyhow::Result<u64> {
        let (append, heads) = self.writer.end();
        self.checkpointer.begin(&self.store, append, heads, self.clock.now())?;
        loop {
            self.run_shards();
            if let Some(from) = self.checkpointer.poll(self.clock.now())? {
                self.writer.store().trim(from)?;
                return Ok(append);
            }
        }
    }
}

/// Returns a demand of the same kind, and 1/`divisor` of its size.
fn divided(demand: &Demand, divisor: i64) -> Demand {
    let part = |amount: Amount| {
        let units = (amount.units() / divisor).max(1);
        Amount::try_from_units(units).expect("a part of an amount is one")
    };
    let gpu = match demand.gpu {
        GpuRequest::None => GpuRequest::None,
        gpu => {
            let units = (gpu.units() / divisor).max(1);
            // More than one GPU is whole GPUs.
            let whole = units / i64::from(GPU_UNIT) * i64::from(GPU_UNIT);
            let amount = Amount::try_from_units(if whole > 0 { whole } else { units });
            GpuRequest::from_amount(amount.expect("a part of an amount is one"))
                .expect("whole, or a part of one")
        }
    };
    Demand { cpu: part(demand.cpu), memory: part(demand.memory), gpu, custom: demand.custom.clone() }
}

#[cfg(test)]
mod tests {
    use wharf_core::state::{Deed, KeptOutcome};

    use super::*;
    use crate::recovery::copy_store;

    /// Catches: a tail without sessions, origins, marks or stored replies, which a start would read faster than what
    /// clients leave.
    #[test]
    fn a_store_has_what_clients_leave() {
        let directory = tempfile::tempdir().expect("a directory");
        let built = directory.path().join("built");
        let contents = Contents {
            nodes: 40,
            allocations: 400,
            tail_records: 2_000,
            in_flight: 8,
            sessions: 4,
            unacknowledged: 100,
            seed: 3,
        };
        let was_built = build(&built, &contents, 2).expect("a store");
        let copy = directory.path().join("copy");
        copy_store(&built, &copy).expect("the files are there");
        let (store, state) = Store::open(&copy, PARTITIONS_DEFAULT, Durability::Os).expect("a whole store");

        let recovery = store.recovery();
        assert_eq!((recovery.appends, recovery.bytes), (was_built.tail_appends, was_built.tail_bytes));
        assert_eq!(state.sessions.len(), 4);
        assert!(state.sessions.iter().all(|session| session.mark > 25), "clients acknowledge");
        let outcomes = || state.sessions.iter().flat_map(|session| session.outcomes.values());
        assert_eq!(outcomes().count() as u64, was_built.outcomes);
        assert!((100..100 + 2 * 8 + 4).contains(&was_built.outcomes), "{was_built:?}");
        let is_placed = |deed: &Deed| matches!(deed, Deed::Placed(..));
        let is_released = |deed: &Deed| matches!(deed, Deed::Released(_));
        let with_deed = |is: fn(&Deed) -> bool| {
            let has = |kept: &KeptOutcome| matches!(kept, KeptOutcome::Parts(parts) if parts.iter().any(|(_, deed)| is(deed)));
            outcomes().filter(|record| has(&record.outcome)).count()
        };
        let placed = with_deed(is_placed);
        let released = with_deed(is_released);
        let replies = outcomes().filter(|record| matches!(record.outcome, KeptOutcome::Reply(_))).count();
        assert!(placed > 20 && released > 20 && replies > 0, "{placed}, {released}, {replies}");
        let part = was_built.tail_requests / was_built.tail_refused;
        assert!((15..30).contains(&part), "one in {REFUSED_EVERY} is refused: {was_built:?}");
    }
}
