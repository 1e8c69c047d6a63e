//! State that is published before the answers. A woken thread finds views, facts and owners that are at least
//! as new as the event that woke it.
//!
//! A batch runs on one thread, so its order is only visible from inside. A waker looks while the shard rings,
//! and a second thread looks all the time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Wake, Waker};

use crate::by_hand::{ManualClock, add_node, config, cores, node_spec, settle};
use crate::group_bed;
use arc_swap::ArcSwap;
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::Unobserved;
use wharf_core::group::{PlanJob, Strategy};
use wharf_core::ids::{AllocationId, OwnerId, PartitionId, ShardId};
use wharf_core::link::Clock;
use wharf_core::resource::{Amount, Demand};
use wharf_core::router::{PortReply, PortRequest, RoutingTable, WaitRequest};
use wharf_core::shard::{Command, Outcome, ReservationChange, Reserve};
use wharf_core::state::StoreState;
use wharf_core::time::Time;
use wharf_core::view::ViewReader;

/// The published state at the moment at which a bell wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Published {
    /// The sequence of the view.
    sequence: u64,
    /// The number of live allocations in the view.
    allocations: u64,
    growth: u64,
    /// True if the owner of these tests has a reservation.
    reserved: bool,
}

/// Looks when it is woken.
#[derive(Default)]
struct Witness {
    shard: OnceLock<(ViewReader, Arc<ArcSwap<RoutingTable>>)>,
    seen: Mutex<Vec<Published>>,
}

fn owner() -> OwnerId {
    OwnerId::new(7).expect("not 0")
}

fn published(views: &ViewReader, table: &ArcSwap<RoutingTable>) -> Published {
    let table = table.load();
    let summary = table.summary(ShardId(0));
    let growth = summary.growth();
    let reserved = summary.has_reserved_for(owner());
    let view = views.latest();
    let sequence = view.version().sequence;
    let allocations = view.head().allocation_count;
    Published { sequence, allocations, growth, reserved }
}

impl Wake for Witness {
    fn wake(self: Arc<Self>) {
        let (views, table) = self.shard.get().expect("nobody is woken before the test begins");
        self.seen.lock().expect("no witness panics").push(published(views, table));
    }
}

/// One shard with one node of eight cores, and two sleeping ports.
struct Bed {
    engine: Engine,
    witnesses: [Arc<Witness>; 2],
}

impl Bed {
    fn new() -> Self {
        let witnesses = [0; 2].map(|_| Arc::<Witness>::default());
        let wakers = witnesses.iter().map(|witness| Waker::from(Arc::clone(witness))).collect();
        let config = EngineConfig { views: true, reserved_nodes_percent: 100, ..config(1) };
        let mut engine = Engine::open(StoreState::create(1), &config, wakers).expect("numbers in range");
        for witness in &witnesses {
            let shard = (engine.views[0].clone(), Arc::clone(&engine.table));
            assert!(witness.shard.set(shard).is_ok(), "set once");
        }
        add_node(&mut engine, node_spec("n", 8, 0));
        let bed = Self { engine, witnesses };
        bed.seen(0);
        bed.seen(1);
        bed
    }

    fn now(&self) -> Published {
        published(&self.engine.views[0], &self.engine.table)
    }

    /// Returns what the owner of a port saw each time it was woken since the last call.
    fn seen(&self, port: usize) -> Vec<Published> {
        std::mem::take(&mut self.witnesses[port].seen.lock().expect("no witness panics"))
    }

    /// Port 0 asks and sleeps, and the shard runs one batch. Returns what was published when the port was
    /// woken, and the reply.
    fn ask(&mut self, request: PortRequest) -> (Published, PortReply) {
        let port = &mut self.engine.ports[0];
        assert!(matches!(port.submit(7, request, Time(1)), Ok(None)));
        port.flush();
        let bell = Arc::clone(port.bell());
        assert!(bell.sleep_if(|| port.is_idle()), "nothing is answered yet");
        self.engine.runners[0].run_batch(&ManualClock::new(self.engine.now), &mut Unobserved);
        let seen = self.seen(0);
        assert_eq!(seen.len(), 1, "an answer wakes once");
        let mut replies = Vec::new();
        self.engine.ports[0].poll(Time(2), |_, reply| replies.push(reply));
        (seen[0], replies.remove(0))
    }
}

fn allocation(reply: &PortReply) -> AllocationId {
    match reply {
        PortReply::Place(Ok(placement)) => placement.allocation,
        other => panic!("placed: {other:?}"),
    }
}

#[test]
fn who_is_woken_by_an_answer_finds_the_view_and_the_facts_of_its_batch() {
    let mut bed = Bed::new();
    let before = bed.now();
    let (seen, reply) = bed.ask(PortRequest::Place(cores(3)));
    assert_eq!((seen.sequence, seen.allocations), (before.sequence + 1, 1));
    assert_eq!(seen, bed.now(), "nothing is published after the answers");
    let (seen, _) = bed.ask(PortRequest::Release(allocation(&reply)));
    assert_eq!((seen.sequence, seen.allocations), (before.sequence + 2, 0));
    assert!(seen.growth > before.growth, "what came free is told before the answer");
    assert_eq!(seen, bed.now());
}

#[test]
fn who_is_woken_by_an_answer_finds_the_owners_of_reservations() {
    let mut bed = Bed::new();
    let node = bed.engine.registrar.resolve("n").expect("registered").0;
    let demand = Demand { cpu: Amount::whole(2), ..Demand::default() };
    let reserve = Reserve { node, owner: owner(), demand, until: None };
    let (seen, _) = bed.ask(PortRequest::Partition(PartitionId(0), Command::Reserve(Box::new(reserve))));
    assert!(seen.reserved, "others ask there first from now on");
    assert_eq!(seen, bed.now());
    let (seen, reply) =
        bed.ask(PortRequest::Partition(PartitionId(0), Command::EndReservation(node, owner())));
    assert!(matches!(reply, PortReply::One(Outcome::Reserve(Ok(ReservationChange::Ended(_))))), "{reply:?}");
    assert!(!seen.reserved, "others need not ask there first any more");
    assert_eq!(seen, bed.now());
}

#[test]
fn the_owner_of_a_port_is_woken_for_a_request_that_waits_there() {
    let mut bed = Bed::new();
    let (_, reply) = bed.ask(PortRequest::Place(cores(8)));
    let wait = WaitRequest {
        request: cores(4),
        priority: 0,
        since: Time(1),
        until: Time(u64::MAX),
        is_resumed: false,
    };
    let waits = &mut bed.engine.ports[1];
    assert!(matches!(waits.submit(9, PortRequest::Wait(Box::new(wait)), Time(1)), Ok(None)));
    assert!(settle(&mut bed.engine).is_empty(), "it waits");
    assert!(bed.engine.ports[1].bell().is_asleep());
    bed.seen(1);
    bed.ask(PortRequest::Release(allocation(&reply)));
    let seen = bed.seen(1);
    assert_eq!(seen.len(), 1, "the batch that frees something has no answer for that port");
    assert_eq!(seen[0].allocations, 0, "a retry there finds what came free");
    // It asks the shard again, which has work only then.
    let now = bed.engine.now;
    bed.engine.ports[1].poll(now, |tag, reply| panic!("{tag} is answered by nobody: {reply:?}"));
    let replies = settle(&mut bed.engine);
    assert!(matches!(replies[..], [(9, PortReply::Place(Ok(_)))]), "{replies:?}");
}

/// A planner that sees growth tries its waiting groups by the views of that moment, once.
#[test]
fn who_sees_growth_finds_it_in_the_view() {
    let mut bed = Bed::new();
    let views = bed.engine.views[0].clone();
    let table = Arc::clone(&bed.engine.table);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let mut looks = 0u64;
            // Relaxed: it only ends the loop.
            while !done.load(Ordering::Relaxed) {
                let growth = table.load().summary(ShardId(0)).growth();
                let shown = views.latest().head().facts.growth;
                assert!(shown >= growth, "growth {growth} is told, and the view is of growth {shown}");
                looks += 1;
            }
            looks
        });
        for _ in 0..4_000 {
            let (_, reply) = bed.ask(PortRequest::Place(cores(1)));
            bed.ask(PortRequest::Release(allocation(&reply)));
            if looks.is_finished() {
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
        let looks = looks.join().expect("views are at least as new as growth");
        assert!(looks > 0);
    });
}

/// A planner that comes back while a shard is behind plans nothing on the old view. It sleeps, its bell rings when the
/// view that was due is published, and then its plan has no conflict.
#[test]
fn a_planner_waits_for_the_view_that_was_due_when_it_asked() {
    let mut engine = group_bed::engine(1, 1);
    group_bed::with_nodes(&mut engine, 4, 8, 0);
    settle(&mut engine);
    engine.runners[0].set_view_bounds(1, 1);
    let clock = ManualClock::new(engine.now);
    for tag in 0..3 {
        assert!(matches!(engine.ports[0].submit(tag, PortRequest::Place(cores(8)), Time(1)), Ok(None)));
        engine.ports[0].flush();
        assert_eq!(engine.runners[0].run_batch(&clock, &mut Unobserved), 1);
    }
    assert!(engine.runners[0].fall_asleep(), "nobody has made room");
    let group = Arc::new(group_bed::group_of(cores(8), 1, Strategy::Pack));
    let job = PortRequest::Plan(PlanJob::CreateGroup(group));
    assert!(matches!(engine.ports[0].submit(3, job, Time(1)), Ok(None)));
    engine.ports[0].flush();
    engine.planners[0].run_round(&clock);
    assert!(engine.planners[0].planner().awaits_views());
    assert!(!engine.runners[0].is_asleep(), "the shard is rung");
    assert!(engine.planners[0].fall_asleep() && !engine.planners[0].oversleeps());
    let mut turns = 0;
    while engine.planners[0].is_asleep() {
        assert_eq!(engine.runners[0].run_batch(&clock, &mut Unobserved), 0);
        turns += 1;
    }
    assert_eq!(turns, 4, "two nodes and two allocations, one in a turn");
    engine.planners[0].run_round(&clock);
    assert!(!engine.planners[0].planner().awaits_views());
    engine.now = clock.now();
    let placed = settle(&mut engine);
    assert!(matches!(placed.last(), Some((3, PortReply::Plan(_)))), "{placed:?}");
    let metrics = engine.planners[0].planner().metrics();
    assert_eq!((metrics.statements, metrics.committed), (1, 1));
}
