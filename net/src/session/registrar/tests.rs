//! The registrar, run by hand: the room for its questions, and what a refused one leaves behind.

use wharf_core::limits::NODES_PER_MESSAGE_MAX;
use wharf_core::router::{NoRoom, PortRequest};
use wharf_core::shard::Command;
use wharf_core::time::Time;

use super::bed::Bed;
use super::{RegistrarReply, RegistrarRequest};
use crate::protocol::{
    AdoptRequest, EndReservationRequest, LISTS_UNDER_WAY_MAX, ListRequest, NamedAmount, NodeBody,
    NodeBooksRequest, NodeReply, NodesRequest, Reason, ReportReply, ReportRequest, ReserveRequest,
    SetResourcesRequest, StatusRequest,
};

impl Bed {
    fn one(&mut self, request: RegistrarRequest) -> NodeReply {
        let RegistrarReply::Nodes(reply) = self.ask(request) else { panic!("no reply of nodes") };
        let [one] = <[NodeReply; 1]>::try_from(reply.replies).expect("one node was named");
        one
    }

    fn report_as(&mut self, identity: &str, custom: Vec<NamedAmount>) -> ReportReply {
        let node = NodeBody { identity: identity.to_owned(), custom, ..node("n") };
        let request = ReportRequest { node, boot: "1".to_owned(), version: 1, gpus: Vec::new() };
        let RegistrarReply::Report(reply) = self.ask(RegistrarRequest::Report(Box::new(request))) else {
            panic!("no reply to a report")
        };
        reply
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
    let status = || RegistrarRequest::Status(StatusRequest { audit: false });
    for shards in [1, 4, 16, 64] {
        let mut bed = Bed::new(shards, 64);
        bed.one(add(node("n")));
        let mut answers = Vec::new();
        // More requests than there is room for at once. The rest queue outside.
        while bed.service.has_room() && answers.len() < 4096 {
            answers.push(bed.put(status()));
        }
        assert!(!answers.is_empty() && answers.len() < 4096, "{} at once", answers.len());
        // Pages wait for room inside.
        let list = || RegistrarRequest::List(ListRequest { after: 0, limit: 1 });
        answers.extend((0..100).map(|_| bed.put(list())));
        bed.settle();
        assert!(bed.service.has_room());
        answers.into_iter().for_each(|asked| drop(bed.take(asked).expect("answered")));
    }
}

#[test]
fn few_pages_are_in_the_making_and_all_are_answered() {
    let mut bed = Bed::new(4, 64);
    bed.one(add(node("n")));
    let list = |_| bed.put(RegistrarRequest::List(ListRequest { after: 0, limit: 1 }));
    let asked: Vec<_> = (0..3 * LISTS_UNDER_WAY_MAX).map(list).collect();
    bed.poll();
    assert_eq!(bed.service.lists_under_way, LISTS_UNDER_WAY_MAX);
    bed.settle();
    for asked in asked {
        let Some(RegistrarReply::List(reply)) = bed.take(asked) else { panic!("a page was asked for") };
        assert_eq!((reply.nodes.len(), reply.more), (1, false));
    }
    assert!(bed.service.is_idle() && bed.service.lists_under_way == 0);
}

/// The largest batch of node commands finds room while the maximum number of requests to every shard is in
/// progress.
#[test]
fn a_whole_batch_finds_room_during_requests_to_every_shard() {
    let mut bed = Bed::new(64, 64);
    let port = &mut bed.service.port;
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
    let mut bed = Bed::new(1, 64);
    let id = bed.one(add(node("n"))).node;
    let before = bed.state();
    // `gpu` is not a valid name of a custom resource.
    let body = NodeBody { identity: "another".to_owned(), custom: vec![custom("gpu")], ..node("n") };
    let refused = bed.one(update(body));
    assert_eq!(refused.fault.expect("refused").field, "custom[0].name");
    assert_eq!(bed.state(), before);
    // The node's own agent does not count as another machine.
    let reply = bed.report_as("own", vec![]);
    assert!(reply.reason.is_done(), "{reply:?}");
    assert_eq!((reply.node, reply.replaced), (id, 0));
}

#[test]
fn a_refused_question_teaches_no_resource() {
    let mut bed = Bed::new(1, 64);
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
    let mut bed = Bed::new(1, 64);
    let id = bed.one(add(NodeBody { identity: "own".to_owned(), ..node("n") })).node;
    let unsound = bed.report_as("another", vec![custom("gpu")]);
    assert_eq!(unsound.fault.expect("refused").field, "custom[0].name");
    assert_eq!(bed.service.registrar.resolve("n").unwrap().0.0, id);
    let request = ReportRequest {
        node: NodeBody { identity: "another".to_owned(), custom: vec![custom("new")], ..node("n") },
        boot: "1".to_owned(),
        version: 1,
        gpus: Vec::new(),
    };
    let before = bed.state();
    let asked = bed.put(RegistrarRequest::Report(Box::new(request)));
    assert_eq!(bed.state(), before, "the old node is not gone yet");
    bed.settle();
    let Some(RegistrarReply::Report(reply)) = bed.take(asked) else { panic!("no answer") };
    assert!(reply.reason.is_done() && reply.replaced == id, "{reply:?}");
    assert_eq!(bed.state().resources, ["new"]);
    assert_eq!(Reason::Done, reply.reason.known().unwrap());
}

/// The bodies of requests about one node have its name in the field `node`.
#[test]
fn a_fault_of_a_node_names_the_field_of_its_request() {
    let mut bed = Bed::new(1, 64);
    let absent = || "absent".to_owned();
    let resources = vec![NamedAmount { name: "cpu".to_owned(), amount: 10_000 }];
    let set = SetResourcesRequest { node: absent(), resources };
    let set = bed.one(RegistrarRequest::SetResources(set)).fault;
    let reserve = ReserveRequest { node: absent(), owner: 1, ..ReserveRequest::default() };
    let end = EndReservationRequest { node: absent(), owner: 1 };
    let adopt = AdoptRequest { node: absent(), ..AdoptRequest::default() };
    let requests = [
        RegistrarRequest::Books(NodeBooksRequest { node: absent() }),
        RegistrarRequest::Reserve(reserve),
        RegistrarRequest::EndReservation(end),
        RegistrarRequest::Adopt(adopt),
    ];
    let faults = requests.map(|request| match bed.ask(request) {
        RegistrarReply::Fault(fault) => Some(fault),
        RegistrarReply::Reserved(reply) => reply.fault,
        RegistrarReply::Adopted(reply) => reply.fault,
        other => panic!("it is about one node: {other:?}"),
    });
    for fault in faults.into_iter().chain([set]) {
        let fault = fault.expect("no node has this name");
        assert_eq!((fault.reason.known(), fault.field.as_str()), (Some(Reason::UnknownNode), "node"));
    }
}
