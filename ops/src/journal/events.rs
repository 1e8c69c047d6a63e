//! Reads events from the journal, for those who follow them.
//!
//! The events of a store are the changes in its journal, one after the other. Their positions go on over restarts,
//! because each value says how many events came before it. The reader is a state machine without a thread: the service
//! runs it on a thread of its own, and tests run it by hand.
//!
//! | part | bound |
//! |---|---|
//! | questions | one per follower |
//! | a page | its limit of events, or [`PAGE_BYTES`] and one event |
//! | decoded values | [`DECODED_BYTES_MAX`], as encoded, or one value |

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tracing::error;
use wharf_core::journal::{StoreError, Unit};
use wharf_core::link::{Doorbell, lock};
use wharf_core::registrar::Catalog;
use wharf_core::resource::ResourceRegistry;
use wharf_core::time::Time;
use wharf_net::codec::encode_body;
use wharf_net::convert::{PendingEvent, event_body};
use wharf_net::protocol::{EventsReply, Fault, Reason};
use wharf_net::session::events::{EventFollowerKey, EventSource, EventsAnswer, EventsAsked, EventsKept};

use super::log::LogReader;
use super::recent::Recent;
use super::value::{Before, Value};

/// Length in bytes from which a page takes no more events. One more event still fits a frame.
const PAGE_BYTES: usize = 256 << 10;
/// Maximum bytes of the values that are kept decoded, as they are encoded.
const DECODED_BYTES_MAX: usize = 4 << 20;
/// Maximum number of pages of which is remembered where the next one begins.
const PLACES_MAX: usize = 1024;

/// Where the events of a start begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventsStart {
    /// What the values before this start have.
    pub before: Before,
    /// The first append whose events lead to those of this start without a gap.
    pub history_from: u64,
}

/// A value that cannot be read.
#[derive(Debug, thiserror::Error)]
enum ReadFault {
    /// It is no longer kept.
    #[error("it is no longer kept")]
    Gone,
    /// The storage failed.
    #[error("{0}")]
    Store(StoreError),
    /// It is not as it was written.
    #[error("append {0} of the journal is damaged: {1:#}")]
    Damaged(u64, anyhow::Error),
}

/// The questions of followers, on their way to the reader.
pub struct EventsInbox {
    /// By follower. `None`: its question ends.
    asked: Mutex<BTreeMap<EventFollowerKey, Option<EventsAsked>>>,
    bell: Arc<Doorbell>,
    recent: Arc<Recent>,
    is_stopped: AtomicBool,
}

impl EventsInbox {
    /// Creates the inbox of a reader with this bell.
    #[must_use]
    pub fn new(recent: Arc<Recent>, bell: Arc<Doorbell>) -> Self {
        Self { asked: Mutex::default(), bell, recent, is_stopped: AtomicBool::new(false) }
    }

    /// Tells the reader's thread to end.
    pub fn stop(&self) {
        // Relaxed: the ring makes it visible.
        self.is_stopped.store(true, Ordering::Relaxed);
        self.bell.ring();
    }

    /// Returns whether the reader's thread must end.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        // Relaxed: see `stop`.
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Returns the bell of the reader.
    #[must_use]
    pub fn bell(&self) -> &Doorbell {
        &self.bell
    }

    fn put(&self, follower: EventFollowerKey, asked: Option<EventsAsked>) {
        lock(&self.asked).insert(follower, asked);
        self.bell.ring();
    }
}

impl EventSource for EventsInbox {
    fn ask(&self, asked: EventsAsked) {
        self.put(asked.follower, Some(asked));
    }

    fn forget(&self, follower: EventFollowerKey) {
        self.put(follower, None);
    }

    fn kept(&self) -> EventsKept {
        self.recent.kept()
    }
}

/// Answers a question.
fn answer(asked: EventsAsked, page: Result<EventsReply, Fault>) {
    let EventsAsked { follower: EventFollowerKey { connection, .. }, ticket, mailbox, .. } = asked;
    mailbox.put(EventsAnswer { ticket, connection, page });
}

/// A position, and the append at which its events are to be looked for.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    position: u64,
    number: u64,
}

/// A decoded value.
struct Decoded {
    number: u64,
    /// The position of the last event before it.
    before: u64,
    units: Vec<Unit>,
    /// Its length as it was encoded.
    bytes: usize,
}

/// Reads events.
pub struct EventReader {
    log: LogReader,
    recent: Arc<Recent>,
    history_from: u64,
    /// Has the resource kinds, for reading.
    catalog: Catalog,
    /// The same, as they were published.
    kinds: Arc<ResourceRegistry>,
    /// Decoded values, the one that was used last at the end.
    decoded: VecDeque<Arc<Decoded>>,
    /// Where the next pages begin. The newest is at the end.
    places: VecDeque<Place>,
    /// The oldest append that is kept.
    oldest: u64,
    /// Questions that wait for an event.
    waiting: BTreeMap<EventFollowerKey, EventsAsked>,
    /// The end up to which the waiting questions were tried.
    tried_to: u64,
}

impl EventReader {
    /// Creates a reader of a start that begins at `start`.
    #[must_use]
    pub fn new(log: LogReader, recent: Arc<Recent>, start: &EventsStart) -> Self {
        let tried_to = recent.kept().end;
        let mut reader = Self {
            log,
            recent,
            history_from: start.history_from,
            catalog: Catalog::default(),
            kinds: Arc::default(),
            decoded: VecDeque::new(),
            places: VecDeque::new(),
            oldest: 0,
            waiting: BTreeMap::new(),
            tried_to,
        };
        // So that the positions that are kept can be shown before anybody asks.
        if let Err(fault) = reader.find_first() {
            error!(%fault, "the oldest event cannot be read");
        }
        reader
    }

    /// Answers what was asked, and what waited for events that are there now. What is too late at `now` is not looked for.
    /// Returns whether anything was asked.
    pub fn poll(&mut self, inbox: &EventsInbox, now: Time) -> bool {
        let asked = std::mem::take(&mut *lock(&inbox.asked));
        let moved = !asked.is_empty();
        for (follower, asked) in asked {
            self.waiting.remove(&follower);
            match asked {
                Some(asked) if asked.due.is_missed(now) => answer(asked, Err(Fault::late())),
                asked => asked.into_iter().for_each(|asked| self.handle(asked)),
            }
        }
        let end = self.recent.kept().end;
        if end != self.tried_to {
            self.tried_to = end;
            let waiting = std::mem::take(&mut self.waiting);
            waiting.into_values().for_each(|asked| self.handle(asked));
        }
        moved
    }

    /// Looks a last time. Returns whether there is nothing to do until the bell is rung.
    #[must_use]
    pub fn is_idle(&self, inbox: &EventsInbox) -> bool {
        let waits = self.waiting.is_empty() || self.recent.want(self.tried_to);
        waits && lock(&inbox.asked).is_empty() && !inbox.is_stopped()
    }

    fn handle(&mut self, asked: EventsAsked) {
        let page = self.page(asked.from, asked.limit);
        let has_none = page.as_ref().is_ok_and(|page| page.reason.is_done() && page.events.is_empty());
        if has_none && asked.waits && asked.from > 0 {
            self.waiting.insert(asked.follower, asked);
            return;
        }
        let page = page.map_err(|fault| {
            error!(%fault, from = asked.from, "events cannot be read");
            let message = format!("the events from {} on cannot be read: {fault}", asked.from);
            Fault::new(Reason::Unavailable, message)
        });
        answer(asked, page);
    }

    /// Returns the page of events from `from` on.
    fn page(&mut self, from: u64, limit: usize) -> Result<EventsReply, ReadFault> {
        self.find_first()?;
        let EventsKept { first, end } = self.recent.kept();
        let reply = EventsReply { first, end, next: from, ..EventsReply::default() };
        if from == 0 {
            return Ok(EventsReply { next: end, ..reply });
        }
        if from > end {
            return Ok(EventsReply { reason: Reason::FutureVersion.into(), ..reply });
        }
        if from == end {
            return Ok(reply);
        }
        let read = if from < first { Err(ReadFault::Gone) } else { self.read(reply, limit) };
        match read {
            // It may have been dropped just now.
            Err(ReadFault::Gone) => {
                self.find_first()?;
                let first = self.recent.kept().first;
                let reason = Reason::TooFarBehind.into();
                Ok(EventsReply { reason, first, end, next: from, events: Vec::new() })
            }
            read => read,
        }
    }

    fn read(&mut self, mut reply: EventsReply, limit: usize) -> Result<EventsReply, ReadFault> {
        let mut number = self.locate(reply.next)?;
        let mut bytes = Vec::new();
        while reply.next < reply.end {
            let value = self.load(number)?;
            let is_full = self.add_events(&value, &mut reply, &mut bytes, limit);
            if is_full {
                break;
            }
            number += 1;
        }
        assert!(!reply.events.is_empty(), "a page begins with the event that was asked for");
        self.places.push_back(Place { position: reply.next, number });
        if self.places.len() > PLACES_MAX {
            self.places.pop_front();
        }
        Ok(reply)
    }

    /// Adds the events of a value to a page. Returns whether the page is full.
    fn add_events(
        &self,
        value: &Decoded,
        reply: &mut EventsReply,
        bytes: &mut Vec<u8>,
        limit: usize,
    ) -> bool {
        let mut position = value.before;
        for unit in &value.units {
            let count = unit.event_count() as u64;
            let last = position + count;
            if last < reply.next {
                position = last;
                continue;
            }
            for event in unit.events() {
                position += 1;
                if position < reply.next {
                    continue;
                }
                if reply.events.len() >= limit || bytes.len() >= PAGE_BYTES {
                    return true;
                }
                let event = PendingEvent { position, now: unit.now, is_whole: position == last, event };
                let body = event_body(&event, &self.kinds);
                encode_body(&body, bytes);
                reply.events.push(body);
                reply.next = position + 1;
            }
        }
        false
    }

    /// Returns the number of an append at or before the one with the event at `position`, with no event between them.
    fn locate(&self, position: u64) -> Result<u64, ReadFault> {
        let known = self.places.iter().rev().find(|place| place.position == position);
        if let Some(place) = known.filter(|place| place.number >= self.oldest) {
            return Ok(place.number);
        }
        if let Some(number) = self.recent.find(position) {
            return Ok(number);
        }
        // The first append with this event or a later one.
        let mut low = self.oldest;
        let mut high = self.recent.last_append();
        while low < high {
            let middle = low + (high - low) / 2;
            if self.after(middle)?.events < position {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// Returns what the values up to and with this one have.
    fn after(&self, number: u64) -> Result<Before, ReadFault> {
        let bytes = self.log.value(number).map_err(ReadFault::Store)?.ok_or(ReadFault::Gone)?;
        let value = Value::read(&bytes).map_err(|error| ReadFault::Damaged(number, error))?;
        Ok(value.after())
    }

    /// Finds the oldest append that is kept, and its first event.
    fn find_first(&mut self) -> Result<(), ReadFault> {
        let kept = self.log.first().map_err(ReadFault::Store)?;
        let number = kept.unwrap_or(1).max(self.history_from);
        if self.oldest == number {
            return Ok(());
        }
        if number > self.recent.last_append() {
            // Nothing was appended since the history began.
            self.recent.set_first(self.recent.kept().end);
            return Ok(());
        }
        let bytes = self.log.value(number).map_err(ReadFault::Store)?.ok_or(ReadFault::Gone)?;
        let value = Value::read(&bytes).map_err(|error| ReadFault::Damaged(number, error))?;
        let first = value.header.before.events + 1;
        self.oldest = number;
        self.recent.set_first(first);
        Ok(())
    }

    /// Returns a value, decoded.
    fn load(&mut self, number: u64) -> Result<Arc<Decoded>, ReadFault> {
        let known = self.decoded.iter().position(|decoded| decoded.number == number);
        if let Some(decoded) = known.and_then(|at| self.decoded.remove(at)) {
            self.decoded.push_back(Arc::clone(&decoded));
            return Ok(decoded);
        }
        let decoded = match self.recent.get(number) {
            Some(value) => self.decode(number, &value.bytes)?,
            None => {
                let bytes = self.log.value(number).map_err(ReadFault::Store)?.ok_or(ReadFault::Gone)?;
                self.decode(number, &bytes)?
            }
        };
        let decoded = Arc::new(decoded);
        self.decoded.push_back(Arc::clone(&decoded));
        let mut bytes: usize = self.decoded.iter().map(|decoded| decoded.bytes).sum();
        while bytes > DECODED_BYTES_MAX && self.decoded.len() > 1 {
            bytes -= self.decoded.pop_front().map_or(0, |oldest| oldest.bytes);
        }
        Ok(decoded)
    }

    fn decode(&mut self, number: u64, bytes: &[u8]) -> Result<Decoded, ReadFault> {
        let damaged = |error| ReadFault::Damaged(number, error);
        let value = Value::read(bytes).map_err(damaged)?;
        let found = value.header.number;
        if found != number {
            return Err(damaged(anyhow::anyhow!("it says that it is append {found}")));
        }
        let before = value.header.before.events;
        self.take_kinds();
        let units = value.units(&mut self.catalog).map_err(damaged)?;
        // An old value may have set the kinds of its time.
        if self.catalog.resources.len() != self.kinds.len() {
            self.catalog.resources = Arc::new((*self.kinds).clone());
        }
        Ok(Decoded { number, before, units, bytes: bytes.len() })
    }

    /// Takes the resource kinds that are known now. They include those of every value that is durable.
    fn take_kinds(&mut self) {
        let kinds = self.recent.kinds();
        if !Arc::ptr_eq(&kinds, &self.kinds) {
            // A copy of its own, because reading changes it.
            self.catalog.resources = Arc::new((*kinds).clone());
            self.kinds = kinds;
        }
    }
}

#[cfg(test)]
mod tests;
