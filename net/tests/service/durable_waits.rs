//! Requests that wait on while their client is away, and after a restart, at the connections of one I/O thread.
//!
//! Faults that these find: a wait that ends with its connection or with its start, one that loses its place, one that nobody
//! can resume, one that outlives its session, and an end that no event tells.

use std::sync::Arc;

use wharf_core::ids::{GroupId, Incarnation, TenantId};
use wharf_core::journal::{Changes, Event, Unit};
use wharf_core::state::{
    Deed, KeptOutcome, SessionChange, SessionEnd, SessionTable, WaitOutcome, WaitRecord,
};
use wharf_core::time::Time;
use wharf_net::codec::encode_body;
use wharf_net::limits::SESSION_KEPT_FOR_DEFAULT;
use wharf_net::protocol::{
    BundleTemplate, CreateGroupRequest, GROUP_NOT_SHOWN, GroupBody, GroupReply, GrowGroupRequest, HelloReply,
    Kind, MODE_WAIT_UNTIL, PlaceReply, PlaceRequest, Reason, Resume, WireGroup,
};
use wharf_net::session::connections::{ConnectionKey, InputEnd};
use wharf_net::session::shared::Hangup;

use crate::harness::bed::{Bed, NOW, PATIENCE_NS, WAIT};
use crate::harness::{TestServer, add, ask, granted, node, place, within};

struct NoHangup;

impl Hangup for NoHangup {
    fn hang_up(&self, _code: u32, _reason: &'static [u8]) {}
}

/// Returns a bed with a placement that waits, its connection, and how to resume the session.
fn waiting() -> (Bed, ConnectionKey, Resume, SessionTable) {
    let mut bed = Bed::new();
    let (key, HelloReply { session, token, .. }) = bed.connect(true, None);
    let id = session.into();
    let mut table = SessionTable::default();
    table.apply(&SessionChange::Opened(id, token));
    bed.place(key);
    follow(&mut table, &bed.units());
    bed.run_shard();
    (bed, key, Resume { session, token }, table)
}

fn follow(table: &mut SessionTable, units: &[Unit]) {
    for unit in units {
        if let Changes::Sessions(changes) = &unit.changes {
            changes.iter().for_each(|change| table.apply(change));
        }
    }
}

/// Returns the ends of waits and of sessions that units tell of.
fn ends(units: &[Unit]) -> Vec<Event<'_>> {
    let of_sessions = |event: &Event<'_>| matches!(event, Event::WaitEnded(..) | Event::SessionEnded(..));
    units.iter().flat_map(Unit::events).filter(of_sessions).collect()
}

fn lose(bed: &mut Bed, key: ConnectionKey) {
    bed.service.end_input(key, InputEnd::Lost, bed.now);
    bed.service.written(key, 0, 0, true, bed.now);
    bed.run_shard();
}

#[test]
fn a_lost_connection_keeps_its_wait_until_its_client_returns() {
    let (mut bed, key, resume, _) = waiting();
    lose(&mut bed, key);
    assert!(!bed.service.is_settled(key), "the placement waits on");
    assert_eq!(bed.service.in_engine().1, 1);
    bed.service.recall(key, bed.now);
    bed.run_shard();
    assert!(bed.service.is_settled(key));
    assert_eq!(bed.service.in_engine().1, 0);
    bed.service.close(key, false, bed.now);
    let (key, hello) = bed.connect(true, Some(resume));
    assert!(hello.resumed);
    assert_eq!(bed.service.in_engine().1, 1, "it waits again, although nobody has sent it again");
    // The client sends it again. It is under way.
    bed.place(key);
    bed.run_shard();
    assert_eq!(bed.service.in_engine().1, 1);
    bed.now = Time(NOW.0 + PATIENCE_NS);
    bed.service.poll(bed.now);
    bed.run_shard();
    let units = bed.units();
    let told = ends(&units);
    assert_eq!(told, [Event::WaitEnded(resume.session.into(), WAIT, WaitOutcome::Expired)]);
    let replies = bed.replies(key);
    assert_eq!(replies[0].header.sequence, WAIT);
    assert_eq!(replies[0].body::<PlaceReply>().reason, Reason::Infeasible.into());
}

#[test]
fn a_start_goes_on_with_what_waited_and_keeps_its_place() {
    let (_, _, resume, table) = waiting();
    let records = table.into_records();
    assert_eq!(records[0].outcomes[&WAIT].wait.as_ref().map(|wait| wait.since), Some(NOW));
    let hangup: Arc<dyn Hangup> = Arc::new(NoHangup);
    let mut records = records;
    // A start after the other, each later than the one before.
    for hour in 1..4 {
        let mut bed = Bed::restored(records.clone(), Time(NOW.0 + hour));
        let now = bed.now;
        let key = bed.service.open_restored(&hangup, now).expect("a session has a wait");
        assert!(bed.service.open_restored(&hangup, now).is_none(), "there is one session");
        bed.run_shard();
        assert_eq!(bed.service.in_engine().1, 1);
        bed.service.recall(key, now);
        bed.run_shard();
        bed.service.close(key, false, now);
        let after = bed.shared.session_records();
        assert_eq!(after, records, "a clean stop has it as it was");
        records = after;
    }
    let mut bed = Bed::restored(records, Time(NOW.0 + PATIENCE_NS));
    let now = bed.now;
    let key = bed.service.open_restored(&hangup, now).expect("a session has a wait");
    bed.run_shard();
    bed.service.poll(now);
    bed.run_shard();
    assert!(bed.service.is_settled(key), "its deadline has passed");
    bed.service.close(key, false, now);
    let units = bed.units();
    let told = ends(&units);
    assert_eq!(told, [Event::WaitEnded(resume.session.into(), WAIT, WaitOutcome::Expired)]);
    // The client returns, and sends it again.
    let (key, _) = bed.connect(true, Some(resume));
    bed.place(key);
    bed.write();
    assert_eq!(bed.replies(key)[0].body::<PlaceReply>().reason, Reason::Infeasible.into());
}

#[test]
fn a_wait_ends_with_its_session_when_its_client_stays_away() {
    let (mut bed, key, resume, _) = waiting();
    // It waits longer than its session lasts.
    lose(&mut bed, key);
    bed.service.recall(key, bed.now);
    bed.run_shard();
    bed.service.close(key, false, bed.now);
    let (key, _) = bed.connect(true, Some(resume));
    lose(&mut bed, key);
    bed.units();
    bed.now = bed.now.plus_nanos(u64::try_from(SESSION_KEPT_FOR_DEFAULT.as_nanos()).expect("an hour"));
    assert!(bed.service.next_deadline().is_some_and(|due| due <= bed.now));
    bed.service.poll(bed.now);
    bed.run_shard();
    assert!(bed.service.is_settled(key));
    bed.service.close(key, false, bed.now);
    let units = bed.units();
    assert!(ends(&units).contains(&Event::SessionEnded(resume.session.into(), SessionEnd::Expired)));
    assert_eq!(bed.shared.session_records(), []);
}

#[test]
fn the_wait_of_a_client_that_acknowledges_by_its_mark_ends_with_its_connection() {
    let mut bed = Bed::new();
    let (key, _) = bed.connect(false, None);
    bed.place(key);
    bed.run_shard();
    bed.service.end_input(key, InputEnd::Lost, bed.now);
    bed.run_shard();
    assert!(bed.service.is_settled(key));
    assert_eq!(bed.service.in_engine(), (0, 0));
}

/// Returns a bed with a group that waits to be created, its connection, and how to resume the session.
fn waiting_group() -> (Bed, ConnectionKey, Resume, SessionTable) {
    let mut bed = Bed::with_full_node(Vec::new(), NOW);
    let (key, HelloReply { session, token, .. }) = bed.connect(true, None);
    let mut table = SessionTable::default();
    table.apply(&SessionChange::Opened(session.into(), token));
    bed.create_group(key);
    follow(&mut table, &bed.units());
    bed.run_planner();
    assert_eq!(bed.groups(), 1);
    (bed, key, Resume { session, token }, table)
}

#[test]
fn a_lost_connection_keeps_its_group_until_its_client_returns() {
    let (mut bed, key, resume, _) = waiting_group();
    lose(&mut bed, key);
    bed.run_planner();
    assert!(!bed.service.is_settled(key), "the group waits on");
    assert_eq!(bed.groups(), 1);
    bed.service.recall(key, bed.now);
    bed.run_planner();
    assert!(bed.service.is_settled(key));
    assert_eq!(bed.groups(), 0);
    bed.service.close(key, false, bed.now);
    let (key, hello) = bed.connect(true, Some(resume));
    assert!(hello.resumed);
    bed.run_planner();
    assert_eq!(bed.groups(), 1, "it waits again, although nobody has sent it again");
    // The client sends it again. It is under way.
    bed.create_group(key);
    bed.run_planner();
    assert_eq!(bed.groups(), 1);
    bed.now = Time(NOW.0 + PATIENCE_NS);
    bed.run_planner();
    let units = bed.units();
    let told = ends(&units);
    assert_eq!(told, [Event::WaitEnded(resume.session.into(), WAIT, WaitOutcome::Expired)]);
    let replies = bed.replies(key);
    assert_eq!(replies[0].header.sequence, WAIT);
    assert_eq!(replies[0].body::<GroupReply>().reason, Reason::NoFitNow.into());
}

/// No node could ever hold it. Would catch an event that tells of a deadline.
#[test]
fn a_group_that_is_refused_at_once_is_told_as_refused() {
    let mut bed = Bed::new();
    let (key, HelloReply { session, .. }) = bed.connect(true, None);
    bed.create_group(key);
    bed.run_planner();
    let units = bed.units();
    assert_eq!(ends(&units), [Event::WaitEnded(session.into(), WAIT, WaitOutcome::Refused)]);
    assert_eq!(bed.replies(key)[0].body::<GroupReply>().reason, Reason::Infeasible.into());
}

/// Would catch a wait that a start ends, and no event tells.
#[test]
fn a_start_without_queues_refuses_what_waited_in_one() {
    let mut bed = Bed::with_jobs();
    let (key, HelloReply { session, token, .. }) = bed.connect(true, None);
    let mut table = SessionTable::default();
    table.apply(&SessionChange::Opened(session.into(), token));
    bed.place_in("all", key);
    follow(&mut table, &bed.units());
    let mut bed = Bed::restored(table.into_records(), Time(NOW.0 + 1));
    let hangup: Arc<dyn Hangup> = Arc::new(NoHangup);
    let key = bed.service.open_restored(&hangup, bed.now).expect("a session has a wait");
    assert!(bed.service.is_settled(key), "it is refused at once");
    bed.service.close(key, false, bed.now);
    let units = bed.units();
    assert_eq!(ends(&units), [Event::WaitEnded(session.into(), WAIT, WaitOutcome::Refused)]);
    let (key, _) = bed.connect(true, Some(Resume { session, token }));
    bed.place_in("all", key);
    bed.write();
    assert_eq!(bed.replies(key)[0].body::<PlaceReply>().reason, Reason::NotServed.into());
}

/// A service without queues has nobody who could let a group in a queue grow. Would catch that it is asked nevertheless.
#[test]
fn a_start_without_queues_refuses_what_waited_for_a_group_of_one() {
    let create = CreateGroupRequest {
        bundles: vec![BundleTemplate {
            request: PlaceRequest { queue: "all".into(), ..ask(1, 0, 0) },
            count: 1,
        }],
        mode: MODE_WAIT_UNTIL,
        ..CreateGroupRequest::default()
    };
    let grow = GrowGroupRequest {
        group: WireGroup { incarnation: 1, number: GroupId::IN_QUEUE, tenant: 0 },
        bundles: vec![BundleTemplate { request: ask(1, 0, 0), count: 1 }],
        mode: MODE_WAIT_UNTIL,
        ..GrowGroupRequest::default()
    };
    for (kind, request) in [(Kind::CreateGroup, body(&create)), (Kind::GrowGroup, body(&grow))] {
        let mut bed = Bed::with_jobs();
        let (key, HelloReply { session, token, .. }) = bed.connect(true, None);
        bed.place_in("all", key);
        let mut table = SessionTable::default();
        table.apply(&SessionChange::Opened(session.into(), token));
        let units = bed.units();
        let changes = units.iter().filter_map(|unit| match &unit.changes {
            Changes::Sessions(changes) => Some(changes),
            _ => None,
        });
        for change in changes.flatten() {
            if let SessionChange::Waits(origin, wait) = change {
                let wait = WaitRecord { kind: kind.number(), request: request.clone(), ..wait.clone() };
                table.apply(&SessionChange::Waits(*origin, wait));
            }
        }
        let mut bed = Bed::restored(table.into_records(), Time(NOW.0 + 1));
        let hangup: Arc<dyn Hangup> = Arc::new(NoHangup);
        let key = bed.service.open_restored(&hangup, bed.now).expect("a session has a wait");
        assert!(bed.service.is_settled(key), "it is refused at once");
        bed.service.close(key, false, bed.now);
        let refused = [Event::WaitEnded(session.into(), WAIT, WaitOutcome::Refused)];
        assert_eq!(ends(&bed.units()), refused, "{kind:?}");
    }
}

/// Returns the body of a request, as a wait keeps it.
fn body(request: &impl serde::Serialize) -> Arc<[u8]> {
    let mut bytes = Vec::new();
    encode_body(request, &mut bytes);
    bytes.into()
}

/// Would catch that such a request is sent to a keeper that is not there.
#[test]
fn a_service_without_queues_places_into_no_group_of_one() {
    let mut bed = Bed::new();
    let (key, _) = bed.connect(true, None);
    bed.place_into(WireGroup { incarnation: 1, number: GroupId::IN_QUEUE, tenant: 0 }, key);
    bed.write();
    let reply: PlaceReply = bed.replies(key)[0].body();
    assert_eq!(reply.reason, Reason::NotServed.into());
    assert!(reply.fault.is_some_and(|fault| fault.message.contains("is charged to a queue")));
}

#[test]
fn a_start_goes_on_with_groups_that_waited() {
    let (_, _, resume, table) = waiting_group();
    let mut records = table.into_records();
    let hangup: Arc<dyn Hangup> = Arc::new(NoHangup);
    for hour in 1..4 {
        let mut bed = Bed::with_full_node(records.clone(), Time(NOW.0 + hour));
        let key = bed.service.open_restored(&hangup, bed.now).expect("a session has a wait");
        bed.run_planner();
        assert_eq!(bed.groups(), 1);
        bed.service.recall(key, bed.now);
        bed.run_planner();
        bed.service.close(key, false, bed.now);
        let after = bed.shared.session_records();
        assert_eq!(after, records, "a clean stop has it as it was");
        records = after;
    }
    // A start without planners keeps it for the next one.
    let mut none = Bed::without_planners(records.clone(), NOW);
    if let Some(key) = none.service.open_restored(&hangup, none.now) {
        none.service.recall(key, none.now);
        none.service.close(key, false, none.now);
    }
    assert_eq!(none.shared.session_records(), records);
    // A crash came after the group was removed, and before the reply.
    let id = GroupId { incarnation: Incarnation(1), number: 7, tenant: TenantId::OPERATOR };
    let outcome = |deed| KeptOutcome::Parts(vec![(0, deed)]);
    let mut removed = records.clone();
    removed[0].outcomes.get_mut(&WAIT).expect("it waits").outcome = outcome(Deed::GroupRemoved(id, 0));
    let mut bed = Bed::with_full_node(removed, NOW);
    assert!(bed.service.open_restored(&hangup, bed.now).is_none(), "nothing waits");
    let (key, _) = bed.connect(true, Some(resume));
    bed.create_group(key);
    bed.write();
    assert_eq!(bed.replies(key)[0].body::<GroupReply>().reason, Reason::Cancelled.into());
    // A crash came after the group was placed, and before its reply.
    let mut placed = records;
    placed[0].outcomes.get_mut(&WAIT).expect("it waits").outcome = outcome(Deed::GroupChanged(id));
    // Without planners, its client learns its id.
    let mut none = Bed::without_planners(placed.clone(), NOW);
    let (key, _) = none.connect(true, Some(resume));
    none.create_group(key);
    none.write();
    let shown = none.replies(key)[0].body::<GroupReply>();
    let body = GroupBody { id: id.into(), state: GROUP_NOT_SHOWN, ..GroupBody::default() };
    assert_eq!(shown, GroupReply { group: Some(body), ..GroupReply::default() });
    let mut bed = Bed::with_full_node(placed, NOW);
    assert!(bed.service.open_restored(&hangup, bed.now).is_none(), "nothing waits");
    let (key, _) = bed.connect(true, Some(resume));
    bed.create_group(key);
    bed.run_planner();
    bed.write();
    let reply: GroupReply = bed.replies(key)[0].body();
    assert_eq!(reply.reason, Reason::UnknownGroup.into(), "its group is shown, and is gone");
    assert_eq!(bed.groups(), 0);
}

/// The older wait goes first, also after its connection was lost and resumed.
#[tokio::test]
async fn a_resumed_wait_keeps_its_place() {
    let server = TestServer::start(1);
    let operator = server.client().await;
    add(&operator, vec![node("a", 4, 1024, 0)]).await;
    let held = place(&operator, &ask(4, 0, 0)).await;
    let first = within(super::long_waits::Exact::open(&server, None, 2)).await;
    let mut first = first;
    first.ask_to_wait(1, 4).await;
    super::waiting::until_waiting(&operator, 1, 0).await;
    let mut second = within(super::long_waits::Exact::open(&server, None, 2)).await;
    second.ask_to_wait(1, 4).await;
    super::waiting::until_waiting(&operator, 2, 0).await;
    let mut first = first.lose(&server).await;
    super::waiting::until_waiting(&operator, 2, 0).await;
    within(operator.release(held.allocation)).await.expect("answered");
    // Nobody has sent it again.
    let reply = first.reply().await;
    assert_eq!(reply.header.sequence, 1);
    granted(reply.body());
    super::waiting::until_waiting(&operator, 1, 0).await;
    server.stop().await;
}
