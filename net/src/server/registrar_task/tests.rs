//! Tests of the registrar's task, stepped by hand: the room for its requests, and the state after a refused
//! one.

use std::sync::Arc;
use std::task::Waker;

use tokio::sync::{Notify, oneshot};
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::{ShardRunner, Unobserved};
use wharf_core::limits::NODES_PER_MESSAGE_MAX;
use wharf_core::link::Clock;
use wharf_core::router::{NoRoom, PortRequest};
use wharf_core::shard::Command;
use wharf_core::state::{RegistrarState, StoreState};
use wharf_core::time::Time;

use super::{Desk, RegistrarReply, RegistrarRequest, RegistrarTask};
use crate::protocol::{
    ListRequest, NamedAmount, NodeBody, NodeReply, NodesRequest, Reason, ReportReply, ReportRequest,
    SetResourcesRequest, StatusRequest,
};
use crate::server::{ServerShared, Settings};

/// A clock that does not advance.
#[derive(Clone)]
struct Still;

impl Clock for Still {
    fn now(&self) -> Time {
        Time(1)
    }
}

/// A registrar's desk and its shards. Nothing runs until [`settle`](Self::settle).
struct Bed {
    desk: Desk,
    runners: Vec<ShardRunner>,
}

impl Bed {
    fn new(shards: u16) -> Self {
        let config = EngineConfig { shards, ..EngineConfig::default() };
        let mut engine = Engine::open(StoreState::default(), &config, vec![Waker::noop().clone()]).unwrap();
        let shared = ServerShared::new(
            [0; 16],
            engine.incarnation,
            Arc::new(Still),
            Box::new(|| 0),
            Settings::default(),
        );
        let port = engine.ports.pop().unwrap();
        let registrar = engine.registrar;
        let catalog = engine.catalog;
        let task = RegistrarTask { registrar, port, wake: Arc::new(Notify::new()), catalog, shared };
        Self { desk: Desk::new(task), runners: engine.runners }
    }

    /// Submits a request, as the task does when it has room.
    fn put(&mut self, request: RegistrarRequest) -> oneshot::Receiver<RegistrarReply> {
        let (reply, answer) = oneshot::channel();
        self.desk.handle(request, reply);
        answer
    }

    /// Runs the shards and the desk until nothing changes.
    fn settle(&mut self) {
        loop {
            self.desk.handle_replacing();
            self.desk.begin_audit();
            let ran: usize = self.runners.iter_mut().map(|r| r.run_batch(&Still, &mut Unobserved)).sum();
            self.desk.poll();
            if ran == 0 {
                return;
            }
        }
    }

    fn ask(&mut self, request: RegistrarRequest) -> RegistrarReply {
        let mut answer = self.put(request);
        self.settle();
        answer.try_recv().expect("it is answered")
    }

    fn one(&mut self, request: RegistrarRequest) -> NodeReply {
        let RegistrarReply::Nodes(reply) = self.ask(request) else { panic!("no reply of nodes") };
        let [one] = <[NodeReply; 1]>::try_from(reply.replies).expect("one node was named");
        one
    }

    fn report(&mut self, identity: &str, custom: Vec<NamedAmount>) -> ReportReply {
        let node = NodeBody { identity: identity.to_owned(), custom, ..node("n") };
        let request = ReportRequest { node, boot: "1".to_owned(), version: 1, gpus: Vec::new() };
        let RegistrarReply::Report(reply) = self.ask(RegistrarRequest::Report(Box::new(request))) else {
            panic!("no reply to a report")
        };
        reply
    }

    fn state(&self) -> RegistrarState {
        self.desk.task.registrar.state()
    }
}

fn node(name: &str) -> NodeBody {
    NodeBody { name: name.to_owned(), cpu: 10_000, memory: 10_000, ..NodeBody::default() }
}

fn add(node: NodeBody) -> RegistrarRequest {
    RegistrarRequest::Add(NodesRequest { nodes: vec![node] })
}

fn update(node: NodeBody) -> RegistrarRequest {
    RegistrarRequest::Update(NodesRequest { nodes: vec![node] })
}

fn custom(name: &str) -> NamedAmount {
    NamedAmount { name: name.to_owned(), amount: 10_000 }
}

/// With any number of shards, there is room for every request that the task takes.
#[test]
fn every_question_that_is_taken_finds_room() {
    let questions: [fn() -> RegistrarRequest; 2] = [
        || RegistrarRequest::List(ListRequest { after: 0, limit: 1 }),
        || RegistrarRequest::Status(StatusRequest { audit: false }),
    ];
    for shards in [1, 4, 16, 64] {
        let mut bed = Bed::new(shards);
        bed.one(add(node("n")));
        for question in questions {
            let mut answers = Vec::new();
            // More requests than there is room for at once. The rest queue outside.
            while bed.desk.has_room() && answers.len() < 4096 {
                answers.push(bed.put(question()));
            }
            assert!(!answers.is_empty() && answers.len() < 4096, "{} at once", answers.len());
            bed.settle();
            assert!(bed.desk.has_room());
            answers.iter_mut().for_each(|answer| drop(answer.try_recv().expect("answered")));
        }
    }
}

/// The largest batch of node commands finds room while the maximum number of requests to every shard is in
/// progress.
#[test]
fn a_whole_batch_finds_room_beside_questions_to_every_shard() {
    let mut bed = Bed::new(64);
    let port = &mut bed.desk.task.port;
    let every = || PortRequest::Every(Command::Status);
    let mut questions = 0;
    while port.has_room(&every()) {
        port.submit(0, every(), Time(1)).unwrap();
        questions += 1;
    }
    assert!(questions > 1);
    assert_eq!(port.submit(0, every(), Time(1)).unwrap_err(), NoRoom);
    assert!(port.room() >= NODES_PER_MESSAGE_MAX);
}

#[test]
fn a_refused_update_leaves_the_identity_as_it_was() {
    let mut bed = Bed::new(1);
    let id = bed.one(add(node("n"))).node;
    let before = bed.state();
    // `gpu` is not a valid name of a custom resource.
    let body = NodeBody { identity: "another".to_owned(), custom: vec![custom("gpu")], ..node("n") };
    let refused = bed.one(update(body));
    assert_eq!(refused.fault.expect("refused").field, "custom[0].name");
    assert_eq!(bed.state(), before);
    // The node's own agent does not count as another machine.
    let reply = bed.report("own", vec![]);
    assert!(reply.reason.is_done(), "{reply:?}");
    assert_eq!((reply.node, reply.replaced), (id, 0));
}

#[test]
fn a_refused_question_teaches_no_resource() {
    let mut bed = Bed::new(1);
    bed.one(add(NodeBody { identity: "own".to_owned(), ..node("n") }));
    let before = bed.state();
    let new = || vec![custom("new")];
    let refused = [
        bed.one(add(NodeBody { custom: new(), ..node("n") })),
        bed.one(update(NodeBody { custom: new(), ..node("unknown") })),
        bed.one(update(NodeBody { identity: "another".to_owned(), custom: new(), ..node("n") })),
        bed.one(add(NodeBody { custom: vec![custom("new"), custom("gpu")], ..node("m") })),
        bed.one(RegistrarRequest::SetResources(SetResourcesRequest {
            node: "n".to_owned(),
            resources: new(),
        })),
    ];
    for reply in refused {
        assert!(reply.fault.is_some(), "{reply:?}");
        assert_eq!(bed.state(), before, "{reply:?}");
    }
    assert_eq!(bed.one(update(NodeBody { custom: new(), ..node("n") })).fault, None);
    assert_eq!(bed.state().resources, ["new"]);
}

/// Another machine's report takes a lost node's name only if it is valid, and adds no kinds before that.
#[test]
fn a_report_that_waits_for_a_lost_node_to_go_has_taught_nothing() {
    let mut bed = Bed::new(1);
    let id = bed.one(add(NodeBody { identity: "own".to_owned(), ..node("n") })).node;
    let unsound = bed.report("another", vec![custom("gpu")]);
    assert_eq!(unsound.fault.expect("refused").field, "custom[0].name");
    assert_eq!(bed.desk.task.registrar.resolve("n").unwrap().0.0, id);
    let request = ReportRequest {
        node: NodeBody { identity: "another".to_owned(), custom: vec![custom("new")], ..node("n") },
        boot: "1".to_owned(),
        version: 1,
        gpus: Vec::new(),
    };
    let before = bed.state();
    let mut answer = bed.put(RegistrarRequest::Report(Box::new(request)));
    assert_eq!(bed.state(), before, "the old node is not gone yet");
    bed.settle();
    let Ok(RegistrarReply::Report(reply)) = answer.try_recv() else { panic!("no answer") };
    assert!(reply.reason.is_done() && reply.replaced == id, "{reply:?}");
    assert_eq!(bed.state().resources, ["new"]);
    assert_eq!(Reason::Done, reply.reason.known().unwrap());
}
