//! Measures the cost of a group in planner and shards: creation and removal while a thousand other groups are
//! placed, by hand on one thread, without the wire.
//!
//! `cargo bench -p wharf-core --bench groups -- [BUNDLES] [STRATEGY] [GROUPS] [IN_FLIGHT]` prints nanoseconds
//! per group that is created and removed. On a noisy machine, count instructions instead. Subtract the result
//! for 0 groups from that of `perf stat -e instructions:u target/release/deps/groups-… 8 pack 20000`.

use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::Unobserved;
use wharf_core::group::{GroupSpec, PlanJob, PlanReply, Strategy};
use wharf_core::ids::GroupId;
use wharf_core::link::Clock;
use wharf_core::node::{Labels, NodeSpec, Taints};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand};
use wharf_core::rng::Rng;
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::shard::Command;
use wharf_core::state::StoreState;
use wharf_core::time::Time;

const NODES: u32 = 1_000;
const LIVE: usize = 1_000;

struct Still;

impl Clock for Still {
    fn now(&self) -> Time {
        Time(1)
    }
}

struct Driver {
    engine: Engine,
    spec: Arc<GroupSpec>,
    live: Vec<GroupId>,
    rng: Rng,
}

impl Driver {
    fn new(spec: GroupSpec) -> Self {
        let config = EngineConfig { shards: 2, planners: 1, seed: 1, ..EngineConfig::default() };
        let mut engine = Engine::open(StoreState::create(256), &config, vec![Waker::noop().clone()])
            .expect("numbers in range");
        for number in 0..NODES {
            let spec = NodeSpec {
                name: format!("n{number}").into(),
                identity: None,
                cpu: Amount::whole(64),
                memory: Amount::whole(256 * 1024),
                gpus: 0,
                custom: None,
                labels: Labels::default(),
                taints: Taints::default(),
            };
            let node = engine.registrar.register(spec).expect("a new name");
            let command = Command::AddNode(Box::new(node.clone()));
            let request = PortRequest::Partition(node.partition, command);
            engine.ports[0].submit(0, request, Time(1)).expect("room for one");
            while engine.ports[0].pending() > 0 {
                engine.ports[0].flush();
                engine.runners.iter_mut().for_each(|runner| {
                    runner.run_batch(&Still, &mut Unobserved);
                });
                engine.ports[0].poll(Time(1), |_, _| ());
            }
        }
        Self { engine, spec: Arc::new(spec), live: Vec::new(), rng: Rng::new(1) }
    }

    fn submit(&mut self, job: PlanJob) {
        let submitted = self.engine.ports[0].submit(0, PortRequest::Plan(job), Time(1));
        submitted.expect("the window has room");
    }

    /// Creates groups until `LIVE` are placed, then removes one for each new group.
    fn run(&mut self, groups: usize, in_flight: usize) {
        let mut made = 0;
        let mut done = 0;
        let mut under_way = 0;
        let mut replies = Vec::new();
        while done < groups {
            while under_way < in_flight && made < groups {
                self.submit(PlanJob::CreateGroup(Arc::clone(&self.spec)));
                (made, under_way) = (made + 1, under_way + 1);
            }
            self.engine.ports[0].flush();
            self.engine.planners[0].run_round(&Still);
            for runner in &mut self.engine.runners {
                runner.run_batch(&Still, &mut Unobserved);
            }
            self.engine.ports[0].poll(Time(1), |_, reply| replies.push(reply));
            for reply in replies.drain(..) {
                let PortReply::Plan(reply) = reply else { panic!("a planner answers: {reply:?}") };
                match *reply {
                    PlanReply::Group(Ok(view)) => {
                        self.live.push(view.id);
                        if self.live.len() <= LIVE {
                            (done, under_way) = (done + 1, under_way - 1);
                            continue;
                        }
                        let at = self.rng.below(self.live.len() as u64) as usize;
                        let id = self.live.swap_remove(at);
                        let job = PortRequest::Plan(PlanJob::RemoveGroup(id));
                        self.engine.ports[0].submit(0, job, Time(1)).expect("one was just answered");
                    }
                    PlanReply::Removed(Ok(_)) => (done, under_way) = (done + 1, under_way - 1),
                    other => panic!("made or removed: {other:?}"),
                }
            }
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let number = |at: usize, default: usize| args.get(at).map_or(Ok(default), |arg| arg.parse());
    let number = |at: usize, default: usize| number(at, default).expect("a number");
    let bundles = number(0, 8);
    let groups = number(2, 20_000);
    let in_flight = number(3, 128);
    let strategy = match args.get(1).map_or("pack", String::as_str) {
        "pack" => Strategy::Pack,
        "spread" => Strategy::Spread,
        "strict-pack" => Strategy::StrictPack,
        "strict-spread" => Strategy::StrictSpread,
        other => panic!("{other} is no strategy"),
    };
    let demand = Demand { cpu: Amount::from_milli(500), memory: Amount::whole(1024), ..Demand::default() };
    let request = Arc::new(PlacementRequest::new(demand, Policy::default()));
    let spec = GroupSpec::new(std::iter::repeat_n(request, bundles).collect(), strategy);
    let mut driver = Driver::new(spec);
    driver.run(LIVE, in_flight);
    #[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
    let started = Instant::now();
    driver.run(groups, in_flight);
    let nanos = started.elapsed().as_nanos() as usize / groups.max(1);
    println!("{bundles} bundles, {strategy:?}: {nanos} ns per group made and removed");
}
