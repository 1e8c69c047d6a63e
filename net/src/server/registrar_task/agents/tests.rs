//! Tests that another machine takes the name of a lost node that a statement holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use tokio::sync::{Notify, oneshot};
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::{ShardRunner, Unobserved};
use wharf_core::ids::{AllocationId, Incarnation, NodeId, PartitionId, StatementId};
use wharf_core::link::{Clock, Decision, DecisionCell};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand};
use wharf_core::router::{Port, PortReply, PortRequest};
use wharf_core::shard::{Command, Outcome};
use wharf_core::state::StoreState;
use wharf_core::statement::{CommitMode, ConflictDetection, Evict, Operation, Part, Prepare};
use wharf_core::time::Time;

use super::{Desk, REMOVE_AGAIN_NS, RegistrarReply};
use crate::protocol::{HeartbeatRequest, Name, NodeBody, Reason, RemoveRequest, ReportReply, ReportRequest};
use crate::server::registrar_task::{RegistrarRequest, RegistrarTask};
use crate::server::{ServerShared, Settings};

const STATEMENT: StatementId = StatementId { incarnation: Incarnation(1), planner: 0, number: 1 };

#[derive(Clone, Default)]
struct Hand(Arc<AtomicU64>);

impl Clock for Hand {
    fn now(&self) -> Time {
        Time(self.0.load(Ordering::Relaxed))
    }
}

/// A registrar's desk and a shard, stepped by hand.
struct Bed {
    clock: Hand,
    desk: Desk,
    runner: ShardRunner,
    port: Port,
}

fn report(machine: &str) -> ReportRequest {
    let node = NodeBody {
        name: "n".to_owned(),
        identity: machine.to_owned(),
        cpu: 40_000,
        memory: 40_000,
        ..NodeBody::default()
    };
    ReportRequest { node, boot: "1".to_owned(), version: 1, gpus: Vec::new() }
}

impl Bed {
    fn new() -> Self {
        let clock = Hand::default();
        let wakers = vec![Waker::noop().clone(); 2];
        let mut engine = Engine::open(StoreState::create(1), &EngineConfig::default(), wakers).unwrap();
        let shared = ServerShared::new(
            [0; 16],
            engine.incarnation,
            Arc::new(clock.clone()),
            Box::new(|| 0),
            Settings::default(),
        );
        let port = engine.ports.pop().unwrap();
        let runner = engine.runners.pop().unwrap();
        let registrar = engine.registrar;
        let catalog = engine.catalog;
        let own = engine.ports.pop().unwrap();
        let task = RegistrarTask { registrar, port: own, wake: Arc::new(Notify::new()), catalog, shared };
        Self { clock, desk: Desk::new(task), runner, port }
    }

    fn pass(&mut self, nanos: u64) {
        self.clock.0.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Steps everything until nothing changes.
    fn settle(&mut self) {
        for _ in 0..8 {
            self.desk.handle_replacing();
            self.runner.run_batch(&self.clock, &mut Unobserved);
            self.desk.poll();
        }
    }

    fn report(&mut self, machine: &str) -> oneshot::Receiver<RegistrarReply> {
        let (reply, answer) = oneshot::channel();
        self.desk.handle_report(report(machine), reply);
        self.settle();
        answer
    }

    fn command(&mut self, request: PortRequest) -> PortReply {
        let now = self.clock.now();
        assert!(self.port.submit(0, request, now).unwrap().is_none());
        self.port.flush();
        self.runner.run_batch(&self.clock, &mut Unobserved);
        let mut answer = None;
        self.port.poll(now, |_, reply| answer = Some(reply));
        answer.expect("the shard answered")
    }

    fn finish(&mut self) {
        let finish = Command::Finish { statement: STATEMENT, decision: Decision::Aborted };
        self.command(PortRequest::Partition(PartitionId(0), finish));
    }

    /// Creates a node with an allocation and a silent agent, and a statement that holds the allocation.
    fn lost_and_held() -> (Self, NodeId) {
        let mut bed = Self::new();
        let node = done(bed.report("old")).node;
        let (reply, _answer) = oneshot::channel();
        bed.desk.handle_heartbeat(HeartbeatRequest { node, version: 1 }, reply);
        bed.settle();
        let demand = Demand { cpu: Amount::whole(1), ..Demand::default() };
        let request = PlacementRequest::new(demand, Policy::BestFit);
        let PortReply::Placed(placed) = bed.command(PortRequest::Place(request)) else { panic!("room") };
        let lost_after = bed.desk.task.registrar.heartbeats().lost_after();
        bed.pass(lost_after);
        bed.desk.lose_silent();
        bed.settle();
        bed.hold(placed.allocation);
        (bed, NodeId(node))
    }

    fn hold(&mut self, allocation: AllocationId) {
        let evict = Operation::Evict(Evict { allocation, expected: None, grace_ns: 0 });
        let conflict_detection = ConflictDetection::Fine;
        let mode = CommitMode::AllOrNothing;
        let part = Part { statement: STATEMENT, operations: vec![(0, evict)], conflict_detection, mode };
        let deadline = Time(u64::MAX);
        let cell = Arc::new(DecisionCell::default());
        let prepare = Command::Prepare(Box::new(Prepare { part, deadline, cell }));
        let held = self.command(PortRequest::Partition(PartitionId(0), prepare));
        let PortReply::One(Outcome::Prepared(prepared)) = held else { panic!("{held:?}") };
        assert_eq!(prepared.held, [0]);
    }

    /// Returns the names of all nodes in the durable state.
    fn names(&self) -> Vec<(NodeId, String)> {
        let state = self.runner.shard().export();
        let nodes = state.partitions.iter().flat_map(|partition| &partition.nodes);
        nodes.map(|node| (node.registration.id, node.registration.spec.name.to_string())).collect()
    }
}

fn done(mut answer: oneshot::Receiver<RegistrarReply>) -> ReportReply {
    let Ok(RegistrarReply::Report(reply)) = answer.try_recv() else { panic!("no answer to a report") };
    reply
}

#[test]
fn a_held_node_keeps_its_name_until_it_can_go() {
    let (mut bed, old) = Bed::lost_and_held();
    let mut answer = bed.report("new");
    for _ in 0..3 {
        assert!(answer.try_recv().is_err(), "the old node is held still");
        assert_eq!(bed.names(), [(old, "n".to_owned())]);
        assert_eq!(bed.desk.task.registrar.resolve("n").unwrap().0, old);
        bed.pass(REMOVE_AGAIN_NS);
        bed.settle();
    }
    bed.finish();
    bed.settle();
    assert!(answer.try_recv().is_err(), "it is not tried without a pause");
    bed.pass(REMOVE_AGAIN_NS);
    bed.settle();
    let reply = done(answer);
    assert!(reply.reason.is_done(), "{reply:?}");
    assert_eq!((reply.replaced, reply.allocations_ended), (old.0, 1));
    assert_eq!(bed.names(), [(NodeId(reply.node), "n".to_owned())]);
    assert_ne!(reply.node, old.0);
}

#[test]
fn the_old_machine_that_comes_back_meanwhile_keeps_its_node() {
    let (mut bed, old) = Bed::lost_and_held();
    let answer = bed.report("new");
    assert_eq!(done(bed.report("old")).node, old.0);
    bed.finish();
    bed.pass(REMOVE_AGAIN_NS);
    bed.settle();
    assert_eq!(done(answer).reason, Reason::NodeExists.into());
    assert_eq!(bed.names(), [(old, "n".to_owned())]);
}

#[test]
fn a_stop_leaves_the_old_node_and_tells_the_new_machine() {
    let (mut bed, old) = Bed::lost_and_held();
    let answer = bed.report("new");
    bed.finish();
    let (reply, mut exported) = oneshot::channel();
    bed.desk.handle(RegistrarRequest::Stop, reply);
    bed.pass(REMOVE_AGAIN_NS);
    bed.settle();
    assert_eq!(done(answer).reason, Reason::ShuttingDown.into());
    assert_eq!(bed.names(), [(old, "n".to_owned())]);
    let Ok(RegistrarReply::Exported(states)) = exported.try_recv() else { panic!("no export") };
    assert_eq!(states[0].partitions[0].nodes.len(), 1);
}

/// Two removals of one node are in progress. Between their answers, the machine comes back with its old id.
/// The second answer says that the node is unknown, but means the former node.
#[test]
fn a_removal_that_came_too_late_forgets_nobody() {
    let (mut bed, old) = Bed::lost_and_held();
    bed.finish();
    let (reply, mut removed) = oneshot::channel();
    let names = vec![Name("n".to_owned())];
    bed.desk.handle(RegistrarRequest::Remove(RemoveRequest { names, force: true }), reply);
    bed.runner.run_batch(&bed.clock, &mut Unobserved);
    // The shard has removed the node, and the registrar does not know it yet.
    let (reply, answer) = oneshot::channel();
    bed.desk.handle_report(report("new"), reply);
    bed.desk.poll();
    assert!(removed.try_recv().is_ok() && bed.desk.task.registrar.resolve("n").is_err());
    assert_eq!(done(bed.report("old")).node, old.0);
    assert_eq!(bed.names(), [(old, "n".to_owned())]);
    assert_eq!(bed.desk.task.registrar.resolve("n").map(|(node, _)| node), Ok(old));
    assert_eq!(done(answer).reason, Reason::NodeExists.into());
}
