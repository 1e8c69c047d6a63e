//! `wharf-bench views`: the cost of publishing a view, the cost of readers to the shard, the memory that a
//! reader keeps if it never drops its view, and the structures that planners search.

mod inside;
mod planners;

use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use wharf_core::ids::{AllocationId, Incarnation, NodeId, Ordinal, PartitionId, ShardId};
use wharf_core::index::Geometry;
use wharf_core::node::{Labels, NodeRegistration, NodeSpec, Taints};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GpuRequest};
use wharf_core::rng::Rng;
use wharf_core::shard::{Command, HybridSettings, Outcome, Shard, ShardConfig};
use wharf_core::time::Time;
use wharf_core::view::{Copied, View, ViewReader};

pub use self::planners::PlannersRow;

/// The cost of one publication for the shard, and of the view for the reader that builds it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PublishRow {
    /// The number of nodes of the shard.
    pub nodes: u32,
    /// Placements or releases since the previous publication, each on a random node.
    pub changes: u32,
    /// The median time in nanoseconds, on the shard's thread.
    pub publish_ns: u64,
    /// The median time in nanoseconds that a reader takes to build the view.
    pub build_ns: u64,
    /// The mean number of bytes of chunks that the reader copies or creates.
    pub bytes_copied: u64,
    /// The mean number of chunks that the reader copies or creates.
    pub chunks_copied: u64,
}

/// The cost of readers to the shard.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ReadersRow {
    /// The number of nodes of the shard.
    pub nodes: u32,
    /// Threads that take view after view and walk the differences. They build the views.
    pub readers: u32,
    /// Placements and releases per second, published in batches of 64 as far as the readers keep up.
    pub ops_per_second: u64,
    /// Views per second that all readers took together.
    pub views_per_second: u64,
}

/// The memory that a reader keeps if it never drops its view.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MemoryRow {
    /// The number of nodes of the shard.
    pub nodes: u32,
    /// Publications since the view that is kept.
    pub publications: u64,
    /// Chunks of the current view.
    pub chunks: u64,
    /// Distinct chunks of the current view and the kept one.
    pub chunks_live: u64,
    /// The bytes of `chunks_live`.
    pub bytes_live: u64,
    /// True if the reader is told to drop its view.
    pub told: bool,
}

/// A shard whose nodes are changed one by one.
pub struct Bench {
    shard: Shard,
    reader: Option<ViewReader>,
    rng: Rng,
    seed: u64,
    nodes: u32,
    live: Vec<AllocationId>,
    outcomes: Vec<Outcome>,
}

fn registration(number: u64) -> NodeRegistration {
    let spec = NodeSpec {
        name: format!("node-{number}").into(),
        identity: None,
        cpu: Amount::whole(64),
        memory: Amount::whole(256 * 1024),
        gpus: 8,
        custom: None,
        labels: Labels::default(),
        taints: Taints::default(),
    };
    let id = NodeId(number);
    let ordinal = Ordinal(number);
    let partition = PartitionId(0);
    NodeRegistration { id, ordinal, partition, spec, agent: None }
}

fn config(seed: u64) -> ShardConfig {
    ShardConfig {
        shard: ShardId(0),
        incarnation: Incarnation(1),
        partitions: vec![PartitionId(0)],
        geometry: Geometry::default(),
        seed,
        hybrid: HybridSettings::default(),
    }
}

impl Bench {
    /// Creates a shard that publishes views, with this number of equal nodes and one allocation per node on
    /// average.
    #[must_use]
    pub fn new(nodes: u32, seed: u64) -> Self {
        let mut shard = Shard::new(config(seed));
        let mut outcomes = Vec::new();
        let commands = (1..=u64::from(nodes)).map(|number| Command::AddNode(Box::new(registration(number))));
        shard.step(commands, Time(0), &mut outcomes);
        outcomes.clear();
        let rng = Rng::new(seed);
        let mut bench = Self { shard, reader: None, rng, seed, nodes, live: Vec::new(), outcomes };
        for _ in 0..nodes {
            bench.place();
        }
        bench.reader = Some(bench.shard.enable_views());
        bench
    }

    fn step(&mut self, command: Command) {
        self.shard.step([command], Time(0), &mut self.outcomes);
        for outcome in self.outcomes.drain(..) {
            if let Outcome::Place(Ok(placed)) = outcome {
                self.live.push(placed.allocation);
            }
        }
    }

    fn place(&mut self) {
        let node = NodeId(1 + self.rng.below(u64::from(self.nodes)));
        self.place_on(node, Demand { cpu: Amount::from_milli(100), ..Demand::default() });
    }

    /// Fills each node, so that on average 85 % of cpu and GPUs are in use.
    pub fn fill(&mut self) {
        for number in 1..=u64::from(self.nodes) {
            let cpu = Amount::whole(40 + self.rng.below(23) as u32);
            let gpu = GpuRequest::Whole(6 + self.rng.below(3) as u8);
            self.place_on(NodeId(number), Demand { cpu, gpu, ..Demand::default() });
            // Permanent; only the small allocations change.
            self.live.pop();
        }
        self.publish();
    }

    fn place_on(&mut self, node: NodeId, demand: Demand) {
        let mut request = PlacementRequest::new(demand, Policy::FirstFit);
        request.candidates = Some(Arc::from([node]));
        self.step(Command::Place(request));
    }

    /// Places a request or releases a random allocation, alternately.
    pub fn change(&mut self) {
        if self.live.len() > self.nodes as usize {
            let at = self.rng.below(self.live.len() as u64) as usize;
            let id = self.live.swap_remove(at);
            self.step(Command::Release(id));
        } else {
            self.place();
        }
    }

    /// Publishes what changed, if readers have made room. Returns the time it took on the shard's thread.
    pub fn publish(&mut self) -> Duration {
        let started = Instant::now();
        black_box(self.shard.publish_view());
        started.elapsed()
    }

    /// Returns what all publications so far have copied.
    #[must_use]
    pub fn copied(&self) -> Copied {
        self.view().head().copied
    }

    /// Returns the newest view.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        let reader = self.reader.as_ref().expect("views are made");
        reader.read_until(reader.due())
    }

    /// Measures `rounds` publications with `changes` changes each.
    pub fn measure(&mut self, changes: u32, rounds: u32) -> PublishRow {
        let before = self.copied();
        let mut publish: Vec<u64> = Vec::new();
        let mut build: Vec<u64> = Vec::new();
        for _ in 0..rounds {
            (0..changes).for_each(|_| self.change());
            publish.push(self.publish().as_nanos() as u64);
            let started = Instant::now();
            let view = black_box(self.view());
            build.push(started.elapsed().as_nanos() as u64);
            assert!(view.version().sequence + 1 == self.shard.visible_from(), "each publication is read");
        }
        let median = |mut nanos: Vec<u64>| {
            nanos.sort_unstable();
            nanos[nanos.len() / 2]
        };
        let copied = self.copied().since(before);
        PublishRow {
            nodes: self.nodes,
            changes,
            publish_ns: median(publish),
            build_ns: median(build),
            bytes_copied: copied.bytes / u64::from(rounds),
            chunks_copied: copied.chunks / u64::from(rounds),
        }
    }

    /// Measures the shard's rate with this number of readers.
    pub fn with_readers(&mut self, readers: u32, limit: Duration) -> ReadersRow {
        let reader = self.shard.enable_views();
        let stop = AtomicBool::new(false);
        let mut ops = 0u64;
        let mut views = 0u64;
        let started = Instant::now();
        std::thread::scope(|threads| {
            let looks: Vec<_> = (0..readers)
                .map(|_| {
                    let reader = reader.clone();
                    let stop = &stop;
                    threads.spawn(move || {
                        let mut held = reader.latest();
                        let mut taken = 0u64;
                        // Relaxed: it only signals the end.
                        while !stop.load(Ordering::Relaxed) {
                            let latest = reader.latest();
                            latest.diff(&held, |slot| {
                                black_box(slot);
                            });
                            taken += 1;
                            held = latest;
                        }
                        taken
                    })
                })
                .collect();
            while started.elapsed() < limit {
                (0..64).for_each(|_| self.change());
                self.publish();
                ops += 64;
            }
            // Relaxed: see above.
            stop.store(true, Ordering::Relaxed);
            views = looks.into_iter().map(|look| look.join().expect("a reader does not panic")).sum();
        });
        let per_second = |count: u64| (count as f64 / started.elapsed().as_secs_f64()) as u64;
        ReadersRow {
            nodes: self.nodes,
            readers,
            ops_per_second: per_second(ops),
            views_per_second: per_second(views),
        }
    }

    /// Measures the live memory after this number of publications of 64 changes while one view is kept.
    pub fn with_a_keeper(&mut self, publications: u64) -> MemoryRow {
        let held = self.view();
        for _ in 0..publications {
            (0..64).for_each(|_| self.change());
            self.publish();
            black_box(self.view());
        }
        let current = self.view();
        let mut seen = BTreeSet::new();
        let mut bytes_live = 0u64;
        for view in [&held, &current] {
            view.chunks(|address, bytes| {
                if seen.insert(address) {
                    bytes_live += bytes as u64;
                }
            });
        }
        MemoryRow {
            nodes: self.nodes,
            publications,
            chunks: current.extent().chunks,
            chunks_live: seen.len() as u64,
            bytes_live,
            told: held.is_stale(&current),
        }
    }
}
