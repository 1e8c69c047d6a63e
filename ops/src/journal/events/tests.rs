//! Events lead to the durable state, over crashes, checkpoints and trims, however a follower reads them.
//!
//! A small service runs by hand: two shards, a writer, checkpoints and a reader, over a store in a directory. Commands
//! are drawn at random. Some crash it, and what was not written is lost then. The oracle is the state that the next start
//! recovers, or that the shards export while everything is durable. Faults that this finds: a change without an event, an
//! event that is told twice or never, and a wrong position after a restart. Also what a start took back and did not tell,
//! and a page that does not go on where the one before ended.

mod bed;
mod expected;

use std::task::Waker;

use wharf_core::ids::Incarnation;
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::rng::Rng;
use wharf_core::router::PortRequest;
use wharf_core::state::StoreState;
use wharf_core::time::Time;
use wharf_net::client::EventBooks;
use wharf_net::session::events::EventMailbox;

use super::*;
use crate::journal::{Durability, Store};
use bed::{PARTITIONS, Reader, Service, cores, start};
use expected::{assert_books, expected};

/// More than any test writes.
const EVERYTHING: u64 = 1 << 30;

/// Runs a service through crashes. Two followers read all of it, one at once and one late; a third begins again.
fn run(seed: u64, steps: u64) {
    let directory = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(seed);
    let (mut service, _) = start(&directory, EVERYTHING);
    let new = |number| Reader { next: 1, books: EventBooks::default(), number, read: 0 };
    let mut quick = new(1);
    let mut slow = new(2);
    for step in 0..steps {
        service.step(&mut rng, step * 100);
        match rng.below(40) {
            0 => {
                // What is in the queue is lost, and maybe the last appends are unread.
                drop(service);
                let (again, recovered) = start(&directory, EVERYTHING);
                service = again;
                service.write();
                service.read(&mut quick, 7, usize::MAX);
                assert_books(&quick.books, &expected(&recovered), &format!("after a crash at step {step}"));
                service.check(&mut quick, &format!("after a start at step {step}"));
            }
            1 => service.checkpoint(&mut rng, step * 100, 20),
            2..=20 => service.write(),
            21..=25 => {
                service.write();
                service.read(&mut quick, 1 + rng.below(50) as usize, usize::MAX);
                service.check(&mut quick, &format!("at step {step}"));
            }
            26..=30 => service.read(&mut slow, 1 + rng.below(9) as usize, 3),
            _ => {}
        }
    }
    for follower in [&mut quick, &mut slow] {
        service.check(follower, "at the end");
        assert_eq!(follower.read, service.recent.kept().end - 1);
    }
}

#[test]
fn events_lead_to_the_durable_state() {
    for seed in 0..12 {
        run(seed, 400);
    }
}

/// Asks for a page without a wait.
fn page(service: &mut Service, from: u64) -> EventsReply {
    let mailbox = mailbox();
    service.ask_events(from, 1, &mailbox);
    service.reader.poll(&service.inbox, Time(0));
    let answer = mailbox.take().pop().expect("an answer");
    answer.page.expect("a page")
}

fn mailbox() -> Arc<EventMailbox> {
    Arc::new(EventMailbox::new(Arc::new(Doorbell::new(Waker::noop().clone()))))
}

impl Service {
    /// Asks for a page, with a wait if the ticket is even.
    fn ask_events(&self, from: u64, ticket: u64, mailbox: &Arc<EventMailbox>) {
        self.ask_events_until(Time::NEVER, from, ticket, mailbox);
    }

    /// Asks in the same way, for a page that is looked for by `due` or not at all.
    fn ask_events_until(&self, due: Time, from: u64, ticket: u64, mailbox: &Arc<EventMailbox>) {
        self.inbox.ask(EventsAsked {
            follower: EventFollowerKey { thread: 0, connection: 3 },
            ticket,
            from,
            limit: 100,
            due,
            waits: ticket.is_multiple_of(2),
            mailbox: Arc::clone(mailbox),
        });
    }

    /// Appends some values of one placement each, and ends these again.
    fn append(&mut self, count: u64) {
        for _ in 0..count {
            self.place(PlacementRequest::new(cores(1, 0), Policy::FirstFit));
            self.write();
            let (id, _) = self.live.pop().expect("just placed");
            self.ask(PortRequest::Release(id));
            self.write();
        }
    }
}

/// Finds values that are dropped too early or never, and positions that are not those of the values that are left.
#[test]
fn old_events_are_dropped_and_the_oldest_is_named() {
    const KEPT: u64 = 30_000;
    let directory = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(1);
    let (mut service, _) = start(&directory, KEPT);
    service.add_node(1, &mut rng);
    service.append(600);
    assert_eq!(page(&mut service, 1).first, 1, "a start needs all of it");
    for _ in 0..6 {
        service.checkpoint(&mut rng, 100, 0);
        service.append(50);
    }
    let told = page(&mut service, 1);
    assert_eq!(told.reason, Reason::TooFarBehind.into());
    assert!(told.events.is_empty() && told.first > 1 && told.next == 1, "{told:?}");
    let EventsKept { first, end } = service.recent.kept();
    assert_eq!((told.first, told.end), (first, end));
    assert_eq!(page(&mut service, first - 1).reason, Reason::TooFarBehind.into());
    let oldest = page(&mut service, first);
    assert_eq!(oldest.events[0].position, first);
    // Values are dropped in steps, so up to one step more is left, and what the next append drops.
    let log = service.writer.store().reader();
    let length = |number| log.value(number).unwrap().map_or(0, |value| value.len() as u64);
    let from = log.first().unwrap().unwrap();
    let kept: u64 = (from..service.writer.end().0).map(length).sum();
    let step: u64 = (from..from + 256).map(length).sum();
    drop(log);
    assert!((KEPT..KEPT + 2 * step).contains(&kept), "{kept} bytes are left, and {step} are in a step");
    // Relaxed: one thread uses it.
    let shown = service.writer.counters().kept_bytes.load(Ordering::Relaxed);
    assert!(shown >= KEPT && shown <= kept, "{shown} are shown, and {kept} are there");
    // The same after a start, whose memory has no values yet.
    drop(service);
    let (mut service, _) = start(&directory, KEPT);
    assert_eq!(service.recent.kept().end, end, "positions go on");
    let mut follower = Reader { next: first, books: EventBooks::default(), number: 1, read: 0 };
    service.write();
    service.read(&mut follower, 64, usize::MAX);
    assert_eq!(follower.read, service.recent.kept().end - first);
}

/// One that has been looked for in time, and waits for its event, is answered at any time.
#[test]
fn a_page_is_not_looked_for_after_its_deadline() {
    let directory = tempfile::tempdir().unwrap();
    let (mut service, _) = start(&directory, EVERYTHING);
    service.write();
    let EventsKept { end, .. } = service.recent.kept();
    let mailbox = mailbox();
    for ticket in [1, 2] {
        service.ask_events_until(Time(10), end, ticket, &mailbox);
        service.reader.poll(&service.inbox, Time(10));
        let answer = mailbox.take().pop().expect("an answer");
        assert!(answer.page.is_err_and(|fault| fault.is_late()));
    }
    service.ask_events_until(Time(10), end, 4, &mailbox);
    service.reader.poll(&service.inbox, Time(9));
    assert!(mailbox.is_empty(), "it waits");
    service.add_node(1, &mut Rng::new(1));
    service.write();
    service.reader.poll(&service.inbox, Time(10));
    let page = mailbox.take().pop().expect("an answer").page.expect("a page");
    assert!(!page.events.is_empty());
}

/// Finds a question that is answered without an event, twice, or never.
#[test]
fn a_question_waits_for_its_event() {
    let directory = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(1);
    let (mut service, _) = start(&directory, EVERYTHING);
    service.write();
    let EventsKept { end, .. } = service.recent.kept();
    let mailbox = mailbox();
    let answered = |service: &mut Service| -> Vec<(u64, usize)> {
        service.reader.poll(&service.inbox, Time(0));
        mailbox.take().into_iter().map(|it| (it.ticket, it.page.unwrap().events.len())).collect()
    };
    // Who does not wait is told that there is nothing, and who asks for the position is told it.
    service.ask_events(end, 1, &mailbox);
    assert_eq!(answered(&mut service), [(1, 0)]);
    assert_eq!(page(&mut service, 0).next, end);
    // The later question replaces the earlier one.
    service.ask_events(end, 2, &mailbox);
    assert_eq!(answered(&mut service), []);
    service.ask_events(end, 4, &mailbox);
    assert_eq!(answered(&mut service), []);
    assert!(service.inbox.bell().sleep_if(|| service.reader.is_idle(&service.inbox)));
    service.add_node(1, &mut rng);
    assert!(service.inbox.bell().is_asleep(), "nothing is durable yet");
    service.write();
    assert!(!service.inbox.bell().is_asleep(), "the journal wakes the reader");
    let events = usize::try_from(service.recent.kept().end - end).unwrap();
    assert!(events > 0);
    assert_eq!(answered(&mut service), [(4, events)]);
    // What is forgotten is not answered.
    let end = service.recent.kept().end;
    service.ask_events(end, 6, &mailbox);
    assert_eq!(answered(&mut service), []);
    service.inbox.forget(EventFollowerKey { thread: 0, connection: 3 });
    service.add_node(2, &mut rng);
    service.write();
    assert_eq!(answered(&mut service), []);
}

/// Finds positions that are given twice, and events that do not lead to the books.
#[test]
fn after_a_run_without_a_journal_a_new_history_begins() {
    let directory = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(1);
    let (mut service, _) = start(&directory, EVERYTHING);
    service.add_node(1, &mut rng);
    service.append(3);
    let end = service.recent.kept().end;
    drop(service);
    let open = || Store::open(directory.path(), PARTITIONS, Durability::Memory).unwrap();
    let (mut store, state) = open();
    assert!(store.begin(Incarnation(2), &state).unwrap().is_none());
    store.checkpoint(&StoreState { incarnation: Incarnation(2), ..state }, None).unwrap();
    drop(store);
    for history in 1..3 {
        let (mut service, _) = start(&directory, EVERYTHING);
        let begun = history << 44;
        assert_eq!(service.recent.kept(), EventsKept { first: begun + 1, end: begun + 1 });
        for early in [1, end, begun] {
            assert_eq!(page(&mut service, early).reason, Reason::TooFarBehind.into(), "{early}");
        }
        assert_eq!(page(&mut service, begun + 2).reason, Reason::FutureVersion.into());
        service.append(2);
        let reply = page(&mut service, begun + 1);
        assert_eq!((reply.reason, reply.events[0].position), (Reason::Done.into(), begun + 1));
        // A start goes on, until the store went back in time.
        let end = service.recent.kept().end;
        drop(service);
        let (service, _) = start(&directory, EVERYTHING);
        assert_eq!(service.recent.kept().end, end);
        service.store.break_history().unwrap();
    }
}
