//! Tests of lists and audits over several shards: their cost, and that the pages cover everything.

use wharf_core::link::Clock;
use wharf_core::shard::{Pages, ShardWork};

use super::bed::Bed;
use super::{RegistrarReply, RegistrarRequest};
use crate::protocol::{
    LISTS_UNDER_WAY_MAX, ListRequest, Name, NodeBody, NodesRequest, RemoveRequest, StatusRequest,
};

const SHARDS: u16 = 8;

/// Shards with nodes, whose audits have small pages.
fn bed_of(nodes: usize) -> Bed {
    let mut bed = Bed::new(SHARDS, 64);
    let pages = Pages { audit_nodes: 2, ..Pages::default() };
    bed.runners.iter_mut().for_each(|runner| runner.set_pages(pages));
    let node = |number| NodeBody { name: format!("n{number}"), cpu: 1, memory: 1, ..NodeBody::default() };
    bed.ask(RegistrarRequest::Add(NodesRequest { nodes: (0..nodes).map(node).collect() }));
    bed
}

impl Bed {
    fn work(&self) -> Vec<ShardWork> {
        self.runners.iter().map(|runner| runner.shard().work()).collect()
    }

    /// The number of nodes that all shards looked at since `before`.
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
    let mut bed = bed_of(100);
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
    let mut bed = bed_of(20);
    let named = (0..5).map(|number| Name(format!("n{number}"))).collect();
    bed.put(RegistrarRequest::Remove(RemoveRequest { names: named, force: false }));
    let answer = bed.put(list(0, 5));
    bed.settle();
    let (page, ..) = names(bed.take(answer).expect("it is answered"));
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
    let mut bed = bed_of(100);
    let before = bed.work();
    let alone = hash(bed.ask(audit()));
    let of_one = bed.looked_at(&before);
    assert!(alone.is_some() && of_one == 100, "{of_one} nodes");
    let before = bed.work();
    let mut answers = vec![bed.put(audit())];
    bed.run_shards();
    bed.poll();
    answers.extend((0..50).map(|_| bed.put(audit())));
    assert!(bed.take(answers[0]).is_none(), "it takes more pages");
    bed.settle();
    for answer in answers {
        assert_eq!(hash(bed.take(answer).expect("it is answered")), alone);
    }
    assert_eq!(bed.looked_at(&before), 2 * of_one, "two audits for fifty-one who asked");
}

#[test]
fn a_stop_waits_for_the_audit_that_is_under_way() {
    let mut bed = bed_of(30);
    let audited = bed.put(audit());
    let shared = bed.put(audit());
    let stopped = bed.put(RegistrarRequest::Stop);
    for _ in 0..100 {
        bed.run_shards();
        bed.poll();
    }
    assert!(hash(bed.take(audited).expect("it is answered")).is_some());
    assert!(hash(bed.take(shared).expect("it is answered")).is_some());
    assert!(matches!(bed.take(stopped), Some(RegistrarReply::Exported(shards)) if shards.len() == 8));
}

fn is_late(reply: Option<RegistrarReply>) -> bool {
    matches!(reply, Some(RegistrarReply::Fault(fault)) if fault.is_late())
}

/// Pages and audits wait inside the registrar, for those that are in the making.
#[test]
fn a_page_or_an_audit_whose_deadline_passes_while_it_waits_is_not_made() {
    for is_audit in [false, true] {
        let ask = || if is_audit { audit() } else { list(0, 1) };
        let mut bed = bed_of(100);
        let under_way = if is_audit { 1 } else { LISTS_UNDER_WAY_MAX };
        let begun: Vec<_> = (0..under_way)
            .map(|_| {
                let due = bed.clock.now().plus_nanos(5);
                bed.put_until(due, ask())
            })
            .collect();
        bed.poll();
        let late = bed.put_until(bed.clock.now().plus_nanos(5), ask());
        let in_time = bed.put_until(bed.clock.now().plus_nanos(6), ask());
        bed.pass(5);
        bed.settle();
        assert!(is_late(bed.take(late)));
        for asked in begun.into_iter().chain([in_time]) {
            let reply = bed.take(asked);
            assert!(reply.is_some() && !is_late(reply), "it had begun, or was in time");
        }
        let at_once = bed.put_until(bed.clock.now(), ask());
        assert!(is_late(bed.take(at_once)), "it does not even wait");
        assert!(bed.service.is_idle());
    }
}
