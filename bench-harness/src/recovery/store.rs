//! Builds the store that a service leaves behind when it is killed: a checkpoint, and a journal after it.
//!
//! The parts are those of the service: the engine, the writer of the journal and the checkpointer. They are state
//! machines without threads, so one thread runs them here. Nothing is closed at the end.

use std::path::Path;
use std::sync::Arc;
use std::task::Waker;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::Unobserved;
use wharf_core::ids::AllocationId;
use wharf_core::journal::JournalStore;
use wharf_core::limits::{NODES_PER_MESSAGE_MAX, PARTITIONS_DEFAULT};
use wharf_core::link::Clock;
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GPU_UNIT, GpuRequest};
use wharf_core::rng::Rng;
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::shard::{Command, NodeChange, Outcome};
use wharf_ops::journal::{Checkpointer, Durability, JournalWriter, Log, Store, Written};

use super::Contents;
use crate::engine::shapes::{NodeMaker, Shapes};
use crate::target::ReplayClock;

/// The ports, in the order of the wakers given to the engine. The last one belongs to the checkpoints.
const REGISTRAR: usize = 0;
const DRIVER: usize = 1;

/// The placements that are asked for at once while the cluster is filled.
const FILL_AT_ONCE: u64 = 1024;

/// The most allocations per node with the demands of the trace. With more, each demand is divided.
const PER_NODE: u64 = 3;

/// Refused placements per allocation after which the cluster counts as full.
const REFUSED_MAX: u64 = 4;

/// What was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Built {
    /// The effects in the journal after the checkpoint.
    pub(super) tail_records: u64,
    /// The appends that they are in.
    pub(super) tail_appends: u64,
    /// The bytes of their values.
    pub(super) tail_bytes: u64,
}

/// An engine with its journal, on this thread.
struct Service {
    engine: Engine,
    store: Store,
    writer: JournalWriter<Log>,
    checkpointer: Checkpointer,
    clock: ReplayClock,
    rng: Rng,
    demands: Vec<Demand>,
    live: Vec<AllocationId>,
}

/// Builds a store in `directory`.
///
/// # Errors
/// When the directory cannot be written, or the nodes cannot hold the allocations.
pub(super) fn build(directory: &Path, contents: &Contents, shards: u16) -> anyhow::Result<Built> {
    let mut service = Service::open(directory, contents, shards)?;
    service.add_nodes(contents.nodes)?;
    service.fill(contents.allocations)?;
    let checkpoint = service.checkpoint()?;
    let bytes_before = service.bytes();
    while service.records() - checkpoint.records < contents.tail_records {
        service.churn(contents.in_flight)?;
    }
    let built = Built {
        tail_records: service.records() - checkpoint.records,
        tail_appends: service.writer.end().0 - checkpoint.append,
        tail_bytes: service.bytes() - bytes_before,
    };
    // A database that is closed tidies up. One that is killed does not, and its next start has more to do. So the files
    // stay open until the process ends.
    std::mem::forget(service);
    Ok(built)
}

/// Where a checkpoint was made.
struct Checkpoint {
    /// The append that continues it.
    append: u64,
    /// The effects before.
    records: u64,
}

impl Service {
    fn open(directory: &Path, contents: &Contents, shards: u16) -> anyhow::Result<Self> {
        let (mut store, state) = Store::open(directory, PARTITIONS_DEFAULT, Durability::Os)?;
        let config = EngineConfig { shards, seed: contents.seed, journal: true, ..EngineConfig::default() };
        let owners = vec![Waker::noop().clone(); 3];
        let mut engine = Engine::open(state.clone(), &config, owners)?;
        let feed = engine.journal.take().context("the engine notes effects")?;
        let begun = store.begin(engine.incarnation, &state)?;
        let (log, last, heads) = begun.context("the store has a journal")?;
        let kinds = Arc::clone(&engine.catalog.load().resources);
        let epoch = u64::from(engine.incarnation.0);
        let writer = JournalWriter::new(feed, log, (epoch, last), heads, kinds);
        let checkpointer = Checkpointer::new(engine.ports.pop().context("one port per owner")?, &state);
        let per_node = contents.allocations.div_ceil(u64::from(contents.nodes).max(1));
        let shapes = Shapes::load(None, contents.seed)?;
        let divisor = i64::try_from(per_node.div_ceil(PER_NODE).max(1))?;
        let demands = shapes.demands.iter().map(|demand| divided(demand, divisor)).collect();
        let clock = ReplayClock::real();
        let rng = Rng::new(contents.seed);
        Ok(Self { engine, store, writer, checkpointer, clock, rng, demands, live: Vec::new() })
    }

    /// Returns the number of effects in the journal.
    fn records(&self) -> u64 {
        self.writer.end().1.values().sum()
    }

    /// Returns the bytes of the journal's values.
    fn bytes(&self) -> u64 {
        // Relaxed: this thread writes it.
        self.writer.counters().bytes.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Lets every shard work until the port has all replies, and writes the journal.
    fn ask(&mut self, port: usize, requests: Vec<PortRequest>) -> anyhow::Result<Vec<PortReply>> {
        let now = self.clock.now();
        let mut replies = Vec::new();
        for request in requests {
            let submitted = self.engine.ports[port].submit(0, request, now);
            replies.extend(submitted.ok().context("the port has room for what is asked at once")?);
        }
        while self.engine.ports[port].pending() > 0 {
            self.engine.ports[port].flush();
            self.run_shards();
            self.engine.ports[port].poll(now, |_, reply| replies.push(reply));
        }
        self.write()?;
        Ok(replies)
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
            let mut requests = Vec::with_capacity(at_once);
            for _ in 0..at_once {
                let registration = self.engine.registrar.register(maker.openb(&mut self.rng))?;
                let partition = registration.partition;
                requests.push(PortRequest::Partition(partition, Command::AddNode(Box::new(registration))));
            }
            self.engine.catalog.store(Arc::new(self.engine.registrar.catalog()));
            for reply in self.ask(REGISTRAR, requests)? {
                let PortReply::One(Outcome::Node(Ok(NodeChange::Added(_)))) = reply else {
                    bail!("a node was answered by {reply:?}");
                };
            }
        }
        Ok(())
    }

    fn place(&mut self) -> PortRequest {
        let demand = &self.demands[self.rng.below(self.demands.len() as u64) as usize];
        // A start does not depend on the policy, and this one spreads the allocations over all nodes.
        PortRequest::Place(PlacementRequest::new(demand.clone(), Policy::Random))
    }

    /// Notes what was granted. Returns the number of refusals.
    fn take(&mut self, replies: Vec<PortReply>) -> anyhow::Result<u64> {
        let mut refused = 0;
        for reply in replies {
            match reply {
                PortReply::Place(Ok(placement)) => self.live.push(placement.allocation),
                PortReply::Place(Err(_)) => refused += 1,
                PortReply::One(Outcome::Release(Ok(_))) => {}
                other => bail!("a request was answered by {other:?}"),
            }
        }
        Ok(refused)
    }

    /// Places until `count` allocations live.
    fn fill(&mut self, count: u64) -> anyhow::Result<()> {
        let mut refused = 0;
        while (self.live.len() as u64) < count {
            let at_once = FILL_AT_ONCE.min(count - self.live.len() as u64);
            let requests = (0..at_once).map(|_| self.place()).collect();
            let replies = self.ask(DRIVER, requests)?;
            refused += self.take(replies)?;
            ensure!(
                refused <= count * REFUSED_MAX,
                "the nodes hold {} allocations, not {count}: give more nodes or fewer allocations",
                self.live.len()
            );
        }
        Ok(())
    }

    /// Releases, and places as many again.
    fn churn(&mut self, in_flight: u64) -> anyhow::Result<()> {
        let count = self.live.len() as u64;
        let mut requests = Vec::new();
        for _ in 0..(in_flight / 2).clamp(1, count) {
            let at = self.rng.below(self.live.len() as u64) as usize;
            requests.push(PortRequest::Release(self.live.swap_remove(at)));
        }
        let replies = self.ask(DRIVER, requests)?;
        self.take(replies)?;
        self.fill(count)
    }

    /// Makes a checkpoint.
    fn checkpoint(&mut self) -> anyhow::Result<Checkpoint> {
        let records = self.records();
        let (append, heads) = self.writer.end();
        self.checkpointer.begin(&self.store, append, heads, self.clock.now())?;
        loop {
            self.run_shards();
            if let Some(from) = self.checkpointer.poll(self.clock.now())? {
                self.writer.store().trim(from)?;
                return Ok(Checkpoint { append, records });
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
