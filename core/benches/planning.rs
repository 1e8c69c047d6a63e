//! Measures the cost of planning a group at scale: topology rules, refusals and proofs, by hand on one
//! thread.
//!
//! `cargo bench -p wharf-core --bench planning -- [NODES] [ROW]` prints nanoseconds per group that is created
//! and removed, or refused. Racks have 40 nodes. All nodes except those of the last rack are too full for any
//! bundle. A search that tries value after value therefore meets all values without room.

use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::Unobserved;
use wharf_core::group::{GroupSpec, NoGroup, PlanJob, PlanReply, Spreading, Strategy, TopologyRule};
use wharf_core::link::Clock;
use wharf_core::node::{Labels, NodeSpec, Taints};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand};
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::shard::Command;
use wharf_core::state::StoreState;
use wharf_core::time::Time;

const RACK: u32 = 40;

struct Still;

impl Clock for Still {
    fn now(&self) -> Time {
        Time(1)
    }
}

fn ask(engine: &mut Engine, request: PortRequest) -> PortReply {
    engine.ports[0].submit(0, request, Time(1)).expect("room for one");
    let mut answer = None;
    while answer.is_none() {
        engine.ports[0].flush();
        engine.planners[0].run_round(&Still);
        for runner in &mut engine.runners {
            runner.run_batch(&Still, &mut Unobserved);
        }
        engine.ports[0].poll(Time(1), |_, reply| answer = Some(reply));
    }
    answer.expect("just seen")
}

fn request(cores: u32) -> PlacementRequest {
    let demand = Demand { cpu: Amount::whole(cores), memory: Amount::whole(1), ..Demand::default() };
    PlacementRequest::new(demand, Policy::FirstFit)
}

fn cluster(nodes: u32) -> Engine {
    let config = EngineConfig { shards: 2, planners: 1, seed: 1, ..EngineConfig::default() };
    let mut engine = Engine::open(StoreState::create(256), &config, vec![Waker::noop().clone()])
        .expect("numbers in range");
    for number in 0..nodes {
        let labels = vec![
            ("rack".into(), format!("r{:06}", number / RACK).into()),
            ("host".into(), format!("h{number:07}").into()),
        ];
        let spec = NodeSpec {
            name: format!("n{number}").into(),
            identity: None,
            cpu: Amount::whole(64),
            memory: Amount::whole(256 * 1024),
            gpus: 0,
            custom: None,
            labels: Labels::new(labels).expect("two keys"),
            taints: Taints::default(),
        };
        let node = engine.registrar.register(spec).expect("a new name");
        ask(&mut engine, PortRequest::Partition(node.partition, Command::AddNode(Box::new(node.clone()))));
        if number < nodes - RACK {
            let full = PlacementRequest { candidates: Some(Arc::new([node.id])), ..request(63) };
            let reply = ask(&mut engine, PortRequest::Place(full));
            assert!(matches!(reply, PortReply::Place(Ok(_))), "{reply:?}");
        }
    }
    engine
}

/// Creates and removes a group, or gets a refusal. Returns whether it was created.
fn once(engine: &mut Engine, spec: &Arc<GroupSpec>) -> bool {
    let PortReply::Plan(reply) = ask(engine, PortRequest::Plan(PlanJob::CreateGroup(Arc::clone(spec))))
    else {
        panic!("a planner answers")
    };
    match *reply {
        PlanReply::Group(Ok(view)) => {
            ask(engine, PortRequest::Plan(PlanJob::RemoveGroup(view.id)));
            true
        }
        PlanReply::Group(Err(NoGroup::Refused(_))) => false,
        other => panic!("made or refused: {other:?}"),
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let nodes: u32 = args.first().map_or(10_000, |arg| arg.parse().expect("a number of nodes"));
    let only = args.get(1);
    let rule = |key: &str, spreading| Some(TopologyRule { key: key.into(), spreading });
    let pack = Spreading::Pack { strict: true };
    let spread = Spreading::Spread { max_skew: 1_000_000 };
    let even = Spreading::Spread { max_skew: 1 };
    let rows = [
        ("pack", 8, 4, Strategy::Pack, None),
        ("spread", 8, 4, Strategy::Spread, None),
        ("pack-by-rack", 8, 4, Strategy::Pack, rule("rack", pack)),
        ("pack-by-host", 8, 4, Strategy::Pack, rule("host", pack)),
        ("spread-by-rack", 8, 4, Strategy::Pack, rule("rack", spread)),
        ("spread-by-host", 8, 4, Strategy::Pack, rule("host", spread)),
        ("even-by-rack", 8, 1, Strategy::Pack, rule("rack", even)),
        ("even-by-host", 8, 1, Strategy::Pack, rule("host", even)),
        ("refused-now", 700, 4, Strategy::Pack, None),
        ("refused-now-by-rack", 700, 4, Strategy::Pack, rule("rack", pack)),
        ("refused-now-by-host", 9, 8, Strategy::Pack, rule("host", pack)),
        ("never-bundle", 8, 65, Strategy::Pack, None),
        ("never-one-node", 8, 9, Strategy::StrictPack, None),
        ("never-by-rack", 400, 9, Strategy::Pack, rule("rack", pack)),
        ("never-by-host", 8, 9, Strategy::Pack, rule("host", pack)),
    ];
    let mut engine = cluster(nodes);
    for (name, bundles, cores, strategy, topology) in rows {
        if only.is_some_and(|only| *only != name) {
            continue;
        }
        let bundles: Vec<_> = std::iter::repeat_n(Arc::new(request(cores)), bundles).collect();
        let spec = Arc::new(GroupSpec { topology, ..GroupSpec::new(bundles, strategy) });
        let made = once(&mut engine, &spec);
        #[allow(clippy::disallowed_methods, reason = "a benchmark measures time")]
        let started = Instant::now();
        let mut times = 0;
        while times < 3 || (started.elapsed().as_millis() < 500 && times < 10_000) {
            assert_eq!(once(&mut engine, &spec), made, "{name}: each time the same");
            times += 1;
        }
        let micros = started.elapsed().as_nanos() as f64 / 1_000.0 / f64::from(times);
        println!(
            "{name:>20} {nodes:>8} nodes: {micros:>12.1} us {}",
            if made { "made and removed" } else { "refused" }
        );
    }
}
