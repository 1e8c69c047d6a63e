//! Shards and planners with nothing to do sleep, and wake for work. They do not use a core while idle.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use crate::by_hand::{cores, node_spec};
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::{BatchRecord, Observer, Unobserved};
use wharf_core::group::{BundlePlace, GroupSpec, GroupState, GroupView, PlanJob, PlanReply, Strategy};
use wharf_core::link::{Clock, StopSignal, ThreadWaker};
use wharf_core::router::{Port, PortReply, PortRequest};
use wharf_core::shard::{Command, Outcome};
use wharf_core::state::StoreState;
use wharf_core::time::Time;

struct Still;

impl Clock for Still {
    fn now(&self) -> Time {
        Time(0)
    }
}

/// Reports each sleep and each batch.
struct Told(SyncSender<&'static str>);

impl Observer for Told {
    fn handle_sleep(&mut self) {
        self.0.send("sleep").expect("the test listens");
    }

    fn handle_batch(&mut self, _batch: &BatchRecord<'_>) {
        self.0.send("batch").expect("the test listens");
    }
}

fn next(told: &Receiver<&'static str>) -> &'static str {
    told.recv_timeout(Duration::from_secs(60)).expect("the shard sleeps or works")
}

#[test]
fn an_idle_shard_sleeps_until_its_bell_is_rung() {
    let waker = Arc::new(ThreadWaker::default());
    waker.set_current();
    let mut engine =
        Engine::open(StoreState::default(), &EngineConfig::default(), vec![Arc::clone(&waker).into()])
            .unwrap();
    let runner = engine.runners.pop().expect("one shard");
    let (tell, told) = sync_channel(1024);
    std::thread::scope(|scope| {
        scope.spawn(move || runner.run(&Still, &mut Told(tell)));
        let port = &mut engine.ports[0];
        for _ in 0..3 {
            // A leftover wake-up may make it look once more before it sleeps again.
            assert_eq!(next(&told), "sleep");
            port.submit(0, PortRequest::Every(Command::Status), Time(0)).expect("room");
            port.flush();
            while next(&told) != "batch" {}
            let mut replies = 0;
            let bell = Arc::clone(port.bell());
            while replies == 0 {
                port.poll(Time(0), |_, reply| {
                    assert!(matches!(reply, PortReply::Every(_)));
                    replies += 1;
                });
                if replies == 0 && bell.sleep_if(|| port.is_idle()) {
                    std::thread::park();
                }
            }
        }
        assert_eq!(next(&told), "sleep");
        engine.stop.stop();
    });
}

/// Stops the threads even if the test fails.
struct Stopping([StopSignal; 2]);

impl Drop for Stopping {
    fn drop(&mut self) {
        self.0.iter().for_each(StopSignal::stop);
    }
}

/// Asks from the test's thread, and sleeps until the answer arrives.
fn ask(port: &mut Port, request: PortRequest) -> PortReply {
    let direct = port.submit(0, request, Time(0)).expect("room");
    port.flush();
    let bell = Arc::clone(port.bell());
    let mut replies: Vec<PortReply> = direct.into_iter().collect();
    while replies.is_empty() {
        port.poll(Time(0), |_, reply| replies.push(reply));
        if replies.is_empty() && bell.sleep_if(|| port.is_idle()) {
            std::thread::park();
        }
    }
    replies.remove(0)
}

fn group(port: &mut Port, job: PlanJob) -> GroupView {
    match ask(port, PortRequest::Plan(job)) {
        PortReply::Plan(reply) => match *reply {
            PlanReply::Group(Ok(view)) | PlanReply::Status(Ok(view)) => *view,
            other => panic!("it is placed: {other:?}"),
        },
        other => panic!("a planner answers: {other:?}"),
    }
}

/// Returns the number of live allocations reported by the shards. No planner is asked.
fn live(port: &mut Port) -> u64 {
    let PortReply::Every(outcomes) = ask(port, PortRequest::Every(Command::Status)) else {
        panic!("every shard answers")
    };
    let of_shard = |outcome| match outcome {
        Outcome::Status(status) => status.allocations,
        other => panic!("a status: {other:?}"),
    };
    outcomes.into_iter().map(of_shard).sum()
}

#[test]
fn a_sleeping_planner_wakes_for_a_bundle_that_ends() {
    let waker = Arc::new(ThreadWaker::default());
    waker.set_current();
    let config = EngineConfig { planners: 1, ..EngineConfig::default() };
    let mut engine = Engine::open(StoreState::default(), &config, vec![Arc::clone(&waker).into()])
        .expect("numbers in range");
    let nodes: Vec<_> = (0..3)
        .map(|number| engine.registrar.register(node_spec(&format!("n{number}"), 16, 0)).expect("a new name"))
        .collect();
    engine.catalog.store(Arc::new(engine.registrar.catalog()));
    let runners = std::mem::take(&mut engine.runners);
    let planners = std::mem::take(&mut engine.planners);
    std::thread::scope(|scope| {
        let _stopping = Stopping([engine.planner_stop.clone(), engine.stop.clone()]);
        for runner in runners {
            scope.spawn(move || runner.run(&Still, &mut Unobserved));
        }
        for mut planner in planners {
            planner.set_spin(0);
            scope.spawn(move || planner.run(&Still, |_| ()));
        }
        let port = &mut engine.ports[0];
        for node in nodes {
            ask(port, PortRequest::Partition(node.partition, Command::AddNode(Box::new(node))));
        }
        let request = Arc::new(cores(4));
        let bundles = vec![Arc::clone(&request), request];
        let mut view = group(port, PlanJob::CreateGroup(Arc::new(GroupSpec::new(bundles, Strategy::Spread))));
        for _ in 0..20 {
            let Some(BundlePlace { allocation: gone, .. }) = view.bundles[0].1 else { panic!("{view:?}") };
            ask(port, PortRequest::Release(gone));
            let mut looks = 0;
            while live(port) < 2 {
                looks += 1;
                assert!(looks < 1_000_000, "nobody woke the planner");
            }
            view = group(port, PlanJob::GroupStatus(view.id));
            // The planner may get this job in a round that began before the shard's answer.
            while view.state == GroupState::Committing {
                view = group(port, PlanJob::GroupStatus(view.id));
            }
            assert!(!matches!(view.bundles[0].1, Some(BundlePlace { allocation, .. }) if allocation == gone));
            // Leave time to fall asleep.
            for _ in 0..50 {
                live(port);
            }
        }
    });
}
