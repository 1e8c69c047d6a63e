//! Tests of lists and audits over several shards: their cost, and that the pages cover everything.

use std::sync::Arc;
use std::task::Waker;

use tokio::sync::{Notify, oneshot};
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::{ShardRunner, Unobserved};
use wharf_core::link::Clock;
use wharf_core::shard::{Pages, ShardWork};
use wharf_core::state::StoreState;
use wharf_core::time::Time;

use super::{Desk, RegistrarReply, RegistrarRequest, RegistrarTask};
use crate::protocol::{ListRequest, Name, NodeBody, NodesRequest, RemoveRequest, StatusRequest};
use crate::server::{ServerShared, Settings};

const SHARDS: u16 = 8;

struct Still;

impl Clock for Still {
    fn now(&self) -> Time {
        Time(1)
    }
}

/// A registrar's desk and some shards, stepped by hand.
struct Bed {
    desk: Desk,
    runners: Vec<ShardRunner>,
}

impl Bed {
    fn new(nodes: usize) -> Self {
        let config = EngineConfig { shards: SHARDS, ..EngineConfig::default() };
        let waker = vec![Waker::noop().clone()];
        let mut engine = Engine::open(StoreState::create(64), &config, waker).unwrap();
        let incarnation = engine.incarnation;
        let shared =
            ServerShared::new([0; 16], incarnation, Arc::new(Still), Box::new(|| 0), Settings::default());
        let port = engine.ports.pop().unwrap();
        let registrar = engine.registrar;
        let catalog = engine.catalog;
        let task = RegistrarTask { registrar, port, wake: Arc::new(Notify::new()), catalog, shared };
        let pages = Pages { audit_nodes: 2, ..Pages::default() };
        engine.runners.iter_mut().for_each(|runner| runner.set_pages(pages));
        let mut bed = Self { desk: Desk::new(task), runners: engine.runners };
        let node = |number| NodeBody { name: format!("n{number}"), cpu: 1, memory: 1, ..NodeBody::default() };
        bed.ask(RegistrarRequest::Add(NodesRequest { nodes: (0..nodes).map(node).collect() }));
        bed
    }

    fn begin(&mut self, request: RegistrarRequest) -> oneshot::Receiver<RegistrarReply> {
        let (reply, answer) = oneshot::channel();
        self.desk.handle(request, reply);
        answer
    }

    /// Lets every shard take its rings' commands. Returns the number of commands.
    fn run_shards(&mut self) -> usize {
        self.runners.iter_mut().map(|runner| runner.run_batch(&Still, &mut Unobserved)).sum()
    }

    /// Steps everything until nothing changes.
    fn settle(&mut self) {
        while self.run_shards() > 0 {
            self.desk.poll();
            self.desk.begin_audit();
        }
    }

    fn ask(&mut self, request: RegistrarRequest) -> RegistrarReply {
        let mut answer = self.begin(request);
        self.settle();
        answer.try_recv().expect("it is answered")
    }

    fn work(&self) -> Vec<ShardWork> {
        self.runners.iter().map(|runner| runner.shard().work()).collect()
    }

    /// Returns the number of nodes that all shards examined since `before`.
    fn looked_at(&self, before: &[ShardWork]) -> u64 {
        let works = self.work().into_iter().zip(before);
        works.map(|(work, &before)| work.since(before).nodes_looked_at).sum()
    }
}

fn list(after: u64, limit: u16) -> RegistrarRequest {
    RegistrarRequest::List(ListRequest { after, limit })
}

fn names(reply: RegistrarReply) -> (Vec<String>, u64, bool) {
    let RegistrarReply::List(page) = reply else { panic!("no list: {reply:?}") };
    let last = page.nodes.last().map_or(0, |node| node.ordinal);
    (page.nodes.into_iter().map(|node| node.body.name).collect(), last, page.more)
}

#[test]
fn a_page_of_the_list_costs_all_shards_together_its_own_nodes() {
    let mut bed = Bed::new(100);
    let mut after = 0;
    let mut all = Vec::new();
    loop {
        let before = bed.work();
        let (page, last, more) = names(bed.ask(list(after, 7)));
        assert_eq!(bed.looked_at(&before), page.len() as u64);
        assert!(page.len() == 7 || !more, "{page:?}");
        all.extend(page);
        after = last;
        if !more {
            break;
        }
    }
    assert_eq!(all, (0..100).map(|number| format!("n{number}")).collect::<Vec<_>>());
    assert_eq!(names(bed.ask(list(after, 7))), (Vec::new(), 0, false));
}

/// A removal is in progress when the page is requested: the registrar still has the node, its shard does not.
#[test]
fn a_page_whose_nodes_go_meanwhile_goes_on_with_those_after_it() {
    let mut bed = Bed::new(20);
    let named = (0..5).map(|number| Name(format!("n{number}"))).collect();
    drop(bed.begin(RegistrarRequest::Remove(RemoveRequest { names: named, force: false })));
    let mut answer = bed.begin(list(0, 5));
    bed.settle();
    let (page, ..) = names(answer.try_recv().expect("it is answered"));
    assert_eq!(page, (5..10).map(|number| format!("n{number}")).collect::<Vec<_>>());
}

fn audit() -> RegistrarRequest {
    RegistrarRequest::Status(StatusRequest { audit: true })
}

fn hash(reply: RegistrarReply) -> Option<u128> {
    let RegistrarReply::Status(status) = reply else { panic!("no status: {reply:?}") };
    status.books_hash
}

#[test]
fn those_who_ask_for_an_audit_meanwhile_share_the_next_one() {
    let mut bed = Bed::new(100);
    let before = bed.work();
    let alone = hash(bed.ask(audit()));
    let of_one = bed.looked_at(&before);
    assert!(alone.is_some() && of_one == 100, "{of_one} nodes");
    let before = bed.work();
    let mut answers = vec![bed.begin(audit())];
    bed.run_shards();
    bed.desk.poll();
    answers.extend((0..50).map(|_| bed.begin(audit())));
    assert!(answers[0].try_recv().is_err(), "it takes more pages");
    bed.settle();
    for answer in &mut answers {
        assert_eq!(hash(answer.try_recv().expect("it is answered")), alone);
    }
    assert_eq!(bed.looked_at(&before), 2 * of_one, "two audits for fifty-one who asked");
}

#[test]
fn a_stop_waits_for_the_audit_that_is_under_way() {
    let mut bed = Bed::new(30);
    let mut audited = bed.begin(audit());
    let mut shared = bed.begin(audit());
    let mut stopped = bed.begin(RegistrarRequest::Stop);
    for _ in 0..100 {
        bed.run_shards();
        bed.desk.poll();
        bed.desk.begin_audit();
        bed.desk.begin_stop();
    }
    assert!(hash(audited.try_recv().expect("it is answered")).is_some());
    assert!(hash(shared.try_recv().expect("it is answered")).is_some());
    assert!(matches!(stopped.try_recv(), Ok(RegistrarReply::Exported(shards)) if shards.len() == 8));
}
