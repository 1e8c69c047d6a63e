//! Tests that another machine takes the name of a lost node that a statement holds.

use std::sync::Arc;

use wharf_core::ids::{AllocationId, Incarnation, NodeId, PartitionId, StatementId};
use wharf_core::link::{Clock, Decision, DecisionCell};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand};
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::shard::{Command, Outcome};
use wharf_core::statement::{CommitMode, ConflictDetection, Evict, Operation, Part, Prepare};
use wharf_core::time::Time;

use super::REMOVE_AGAIN_NS;
use crate::protocol::{HeartbeatRequest, Name, NodeBody, Reason, RemoveRequest, ReportReply, ReportRequest};
use crate::session::registrar::bed::{Asked, Bed};
use crate::session::registrar::{RegistrarReply, RegistrarRequest};

const STATEMENT: StatementId = StatementId { incarnation: Incarnation(1), planner: 0, number: 1 };

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
    fn report(&mut self, machine: &str) -> Asked {
        let asked = self.put(RegistrarRequest::Report(Box::new(report(machine))));
        self.settle();
        asked
    }

    fn done(&mut self, asked: Asked) -> ReportReply {
        let Some(RegistrarReply::Report(reply)) = self.take(asked) else { panic!("no answer to a report") };
        reply
    }

    fn reported(&mut self, machine: &str) -> ReportReply {
        let asked = self.report(machine);
        self.done(asked)
    }

    fn command(&mut self, request: PortRequest) -> PortReply {
        let now = self.clock.now();
        assert!(self.client.submit(0, request, now).unwrap().is_none());
        self.client.flush();
        self.run_shards();
        let mut answer = None;
        self.client.poll(now, |_, reply| answer = Some(reply));
        answer.expect("the shard answered")
    }

    fn finish(&mut self) {
        let finish = Command::Finish { statement: STATEMENT, decision: Decision::Aborted };
        self.command(PortRequest::Partition(PartitionId(0), finish));
    }

    /// Creates a node with an allocation and a silent agent, and a statement that holds the allocation.
    fn lost_and_held() -> (Self, NodeId) {
        let mut bed = Self::new(1, 1);
        let node = bed.reported("old").node;
        bed.ask(RegistrarRequest::Heartbeat(HeartbeatRequest { node, version: 1 }));
        let demand = Demand { cpu: Amount::whole(1), ..Demand::default() };
        let request = PlacementRequest::new(demand, Policy::BestFit);
        let PortReply::Place(Ok(placed)) = bed.command(PortRequest::Place(request)) else { panic!("room") };
        let lost_after = bed.service.registrar.heartbeats().lost_after();
        bed.pass(lost_after);
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
        let state = self.runners[0].shard().export();
        let nodes = state.partitions.iter().flat_map(|partition| &partition.nodes);
        nodes.map(|node| (node.registration.id, node.registration.spec.name.to_string())).collect()
    }
}

#[test]
fn a_held_node_keeps_its_name_until_it_can_go() {
    let (mut bed, old) = Bed::lost_and_held();
    let answer = bed.report("new");
    for _ in 0..3 {
        assert!(bed.take(answer).is_none(), "the old node is held still");
        assert_eq!(bed.names(), [(old, "n".to_owned())]);
        assert_eq!(bed.service.registrar.resolve("n").unwrap().0, old);
        bed.pass(REMOVE_AGAIN_NS);
        bed.settle();
    }
    bed.finish();
    bed.settle();
    assert!(bed.take(answer).is_none(), "it is not tried without a pause");
    bed.pass(REMOVE_AGAIN_NS);
    bed.settle();
    let reply = bed.done(answer);
    assert!(reply.reason.is_done(), "{reply:?}");
    assert_eq!((reply.replaced, reply.allocations_ended), (old.0, 1));
    assert_eq!(bed.names(), [(NodeId(reply.node), "n".to_owned())]);
    assert_ne!(reply.node, old.0);
}

#[test]
fn the_old_machine_that_comes_back_meanwhile_keeps_its_node() {
    let (mut bed, old) = Bed::lost_and_held();
    let answer = bed.report("new");
    assert_eq!(bed.reported("old").node, old.0);
    bed.finish();
    bed.pass(REMOVE_AGAIN_NS);
    bed.settle();
    assert_eq!(bed.done(answer).reason, Reason::NodeExists.into());
    assert_eq!(bed.names(), [(old, "n".to_owned())]);
}

#[test]
fn a_stop_leaves_the_old_node_and_tells_the_new_machine() {
    let (mut bed, old) = Bed::lost_and_held();
    let answer = bed.report("new");
    bed.finish();
    let exported = bed.put(RegistrarRequest::Stop);
    bed.pass(REMOVE_AGAIN_NS);
    bed.settle();
    assert_eq!(bed.done(answer).reason, Reason::ShuttingDown.into());
    assert_eq!(bed.names(), [(old, "n".to_owned())]);
    let Some(RegistrarReply::Exported(states)) = bed.take(exported) else { panic!("no export") };
    assert_eq!(states[0].partitions[0].nodes.len(), 1);
}

/// Two removals of one node are in progress. Between their answers, the machine comes back with its old id.
/// The second answer says that the node is unknown, but means the former node.
#[test]
fn a_removal_that_came_too_late_forgets_nobody() {
    let (mut bed, old) = Bed::lost_and_held();
    bed.finish();
    let names = vec![Name("n".to_owned())];
    let removed = bed.put(RegistrarRequest::Remove(RemoveRequest { names, force: true }));
    bed.run_shards();
    // The shard has removed the node, and the registrar does not know it yet.
    let answer = bed.put(RegistrarRequest::Report(Box::new(report("new"))));
    bed.service.poll(bed.clock.now());
    assert!(bed.take(removed).is_some() && bed.service.registrar.resolve("n").is_err());
    assert_eq!(bed.reported("old").node, old.0);
    assert_eq!(bed.names(), [(old, "n".to_owned())]);
    assert_eq!(bed.service.registrar.resolve("n").map(|(node, _)| node), Ok(old));
    assert_eq!(bed.done(answer).reason, Reason::NodeExists.into());
}
