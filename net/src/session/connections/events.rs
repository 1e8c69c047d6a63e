//! Connections that follow events.
//!
//! A connection has one question at a time. The [source](crate::session::events) answers it from a thread of its own,
//! at once or when there is an event. A peer that does not take its replies gets no further page, so a slow follower
//! costs one page and no more.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use wharf_core::link::Doorbell;
use wharf_core::time::Time;

use super::{Asker, ConnectionKey, ConnectionService, Stalled};
use crate::convert::events_limit;
use crate::limits::EVENT_FOLLOWERS_MAX;
use crate::protocol::{EventsReply, EventsRequest, FOLLOW_WAIT_MS_MAX, Fault, Reason};
use crate::session::events::{EventFollowerKey, EventMailbox, EventSource, EventsAnswer, EventsAsked};
use crate::session::shared::{Counters, SessionShared};

/// The time for which a question that does not wait may be with the source.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// The followers of events of one I/O thread.
pub(super) struct EventFollowers {
    /// The number of the thread at the source.
    thread: u64,
    mailbox: Arc<EventMailbox>,
    /// Connections that have asked for events.
    connections: Vec<ConnectionKey>,
    /// The number of questions so far.
    asked: u64,
}

impl EventFollowers {
    pub(super) fn new(shared: &SessionShared, bell: &Arc<Doorbell>) -> Self {
        let mailbox = Arc::new(EventMailbox::new(Arc::clone(bell)));
        Self { thread: shared.next_thread(), mailbox, connections: Vec::new(), asked: 0 }
    }

    /// Returns whether no answer waits to be taken.
    pub(super) fn is_idle(&self) -> bool {
        self.connections.is_empty() || self.mailbox.is_empty()
    }
}

/// A request for events that was checked.
pub(super) struct EventsWanted {
    asker: Asker,
    /// When it is answered if there is no event by then.
    until: Time,
    from: u64,
    limit: usize,
    waits: bool,
}

/// What a connection that follows events has asked.
#[derive(Default)]
pub(super) struct EventsOfConnection {
    /// The question that is with the source, and its number.
    waiting: Option<(u64, EventsWanted)>,
}

impl ConnectionService {
    fn event_source(&self) -> Result<Arc<dyn EventSource>, Fault> {
        self.shared.events().ok_or_else(|| {
            let message = "this service keeps no journal (`durability` is `memory`), and events come from there: \
                           set `durability` to `sync` or `os`";
            Fault::new(Reason::NotServed, message)
        })
    }

    /// Executes a new request for events.
    pub(super) fn handle_events(&mut self, asker: Asker, request: &EventsRequest) -> Result<(), Fault> {
        self.event_source()?;
        let &EventsRequest { from, limit, wait_ms } = request;
        let limit = events_limit(limit)?;
        if wait_ms > FOLLOW_WAIT_MS_MAX {
            let message = format!(
                "{wait_ms} ms is longer than anybody may wait: give at most {FOLLOW_WAIT_MS_MAX}, and ask again"
            );
            return Err(Fault::of_field(Reason::InvalidField, "wait_ms", message));
        }
        let waits = wait_ms > 0;
        let wait = if waits { Duration::from_millis(u64::from(wait_ms)) } else { READ_WITHIN };
        let wait = u64::try_from(wait.as_nanos()).expect("the longest wait is an hour");
        let until = Time(asker.started.0.saturating_add(wait));
        let wanted = EventsWanted { asker, until, from, limit, waits };
        if self.connections[asker.connection].has_unwritten() {
            self.stall(asker.connection, Stalled::Events(wanted));
            return Ok(());
        }
        self.ask_for_events(wanted, asker.started)
    }

    /// Goes on with a request for events once the peer has taken its replies.
    pub(super) fn resume_events(&mut self, key: ConnectionKey, now: Time) {
        let connection = &mut self.connections[key];
        if connection.has_unwritten() {
            return;
        }
        let stalled = connection.stalled.take_if(|stalled| matches!(stalled, Stalled::Events(_)));
        let Some(Stalled::Events(wanted)) = stalled else { return };
        let asker = wanted.asker;
        if self.sheds(asker, now) {
            return;
        }
        if let Err(fault) = self.ask_for_events(wanted, now) {
            Counters::count(&self.shared.counters.frames_refused);
            self.answer_fault(asker, &fault, now);
        }
    }

    fn ask_for_events(&mut self, wanted: EventsWanted, now: Time) -> Result<(), Fault> {
        let source = self.event_source()?;
        let key = wanted.asker.connection;
        self.begin_events(key)?;
        self.events.asked += 1;
        let ticket = self.events.asked;
        let asked = EventsAsked {
            follower: EventFollowerKey { thread: self.events.thread, connection: key },
            ticket,
            from: wanted.from,
            limit: wanted.limit,
            due: wanted.asker.due,
            waits: wanted.waits && self.connections[key].input_end.is_none(),
            mailbox: Arc::clone(&self.events.mailbox),
        };
        let follows = self.connections[key].events.as_mut().expect("it has begun");
        let earlier = follows.waiting.replace((ticket, wanted));
        self.has_new_deadline = true;
        source.ask(asked);
        if let Some((_, earlier)) = earlier {
            self.answer_no_events(&earlier, now);
        }
        Ok(())
    }

    /// Makes a connection one that follows events, if there is room for it.
    fn begin_events(&mut self, key: ConnectionKey) -> Result<(), Fault> {
        if self.connections[key].events.is_some() {
            return Ok(());
        }
        if self.events.connections.len() >= EVENT_FOLLOWERS_MAX {
            let message =
                format!("{EVENT_FOLLOWERS_MAX} connections of this thread follow events: ask again later");
            return Err(Fault::new(Reason::LimitExceeded, message));
        }
        self.connections[key].events = Some(EventsOfConnection::default());
        self.events.connections.push(key);
        Counters::count(&self.shared.counters.event_followers);
        Ok(())
    }

    /// Handles the answers of the source. Returns whether there were any.
    pub(super) fn handle_event_pages(&mut self, now: Time) -> bool {
        if self.events.is_idle() {
            return false;
        }
        for EventsAnswer { ticket, connection, page } in self.events.mailbox.take() {
            let follows = self.connections.get_mut(connection).and_then(|it| it.events.as_mut());
            // Otherwise the question was answered without events, or its connection is gone.
            let asked = follows.and_then(|follows| follows.waiting.take_if(|(of, _)| *of == ticket));
            match (asked, page) {
                (None, _) => {}
                (Some((_, wanted)), Ok(page)) => {
                    Counters::count(&self.shared.counters.event_pages);
                    self.answer(wanted.asker, &page, now);
                }
                (Some((_, wanted)), Err(fault)) => self.answer_fault(wanted.asker, &fault, now),
            }
        }
        true
    }

    fn answer_no_events(&mut self, wanted: &EventsWanted, now: Time) {
        let kept = self.shared.events().map(|source| source.kept()).unwrap_or_default();
        let next = if wanted.from == 0 { kept.end } else { wanted.from };
        let reply = EventsReply { first: kept.first, end: kept.end, next, ..EventsReply::default() };
        self.answer(wanted.asker, &reply, now);
    }

    /// Answers the waiting request of a connection without events.
    pub(super) fn end_events(&mut self, key: ConnectionKey, now: Time) {
        let follows = self.connections[key].events.as_mut();
        let Some((_, wanted)) = follows.and_then(|follows| follows.waiting.take()) else { return };
        self.forget_events(key);
        self.answer_no_events(&wanted, now);
    }

    fn forget_events(&self, connection: ConnectionKey) {
        if let Some(source) = self.shared.events() {
            source.forget(EventFollowerKey { thread: self.events.thread, connection });
        }
    }

    /// Returns when the first waiting request for events must be answered.
    pub(super) fn next_events_deadline(&self) -> Option<Time> {
        let follows = self.events.connections.iter().filter_map(|&key| self.connections[key].events.as_ref());
        follows.filter_map(|follows| follows.waiting.as_ref()).map(|(_, wanted)| wanted.until).min()
    }

    /// Answers the requests for events whose deadline has passed.
    pub(super) fn expire_events(&mut self, now: Time) {
        for at in 0..self.events.connections.len() {
            let key = self.events.connections[at];
            let follows = self.connections[key].events.as_ref();
            let waiting = follows.and_then(|follows| follows.waiting.as_ref());
            if waiting.is_some_and(|(_, wanted)| wanted.until <= now) {
                self.end_events(key, now);
            }
        }
    }

    /// Handles the end of a connection.
    pub(super) fn leave_events(&mut self, key: ConnectionKey) {
        if self.connections[key].events.take().is_none() {
            return;
        }
        self.forget_events(key);
        self.events.connections.retain(|&other| other != key);
        // Relaxed: a statistic; nothing depends on its order.
        self.shared.counters.event_followers.fetch_sub(1, Ordering::Relaxed);
    }
}
