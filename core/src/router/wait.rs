//! The waiting requests of a port. A request is tried at one shard after the other and parked at each. It is
//! tried again when a shard reports that an event could help.
//!
//! A waiting request with fallback selectors is tried at each shard with all of them at once, without sweeps.
//! The first shard that can place it by any selector does so.
//!
//! The answer at a deadline is true of all shards. Shards that were not asked yet are asked then, once each
//! and without parking. So are shards that woke the request. If the verdict would be `infeasible`, shards
//! that grew since they refused are asked again. So a deadline costs at most two commands per shard.
//!
//! At most one command that could place a waiting request is in flight, so it is placed only once. Wake-ups
//! in the meantime are remembered and tried next. After the decision, its copies at other shards are removed.

use std::collections::VecDeque;

use super::placing::Placing;
use super::port::{NotPlaced, Pending, Port, PortReply, Tag, Verdict, merged};
use crate::ids::ShardId;
use crate::limits::{PORT_WAITING_MAX, WAIT_IN_FLIGHT_MAX};
use crate::map::FixedMap;
use crate::planted::{PlantedBug, is_planted};
use crate::reply::reply_of;
use crate::request::{Placement, PlacementRequest};
use crate::shard::{Command, Home, Outcome, Park, Refused, WaitToken};
use crate::state::Origin;
use crate::time::Time;
use crate::timers::Timers;

/// Set in the numbers of watched bundles. Their planner gives the numbers.
pub(crate) const WATCH_BIT: u64 = 1 << 63;

/// A placement that waits for capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitRequest {
    /// The request to place.
    pub request: PlacementRequest,
    /// The priority. Requests of higher priority are woken first.
    pub priority: i32,
    /// The time from which on it waits. It orders requests of equal priority.
    pub since: Time,
    /// The deadline.
    pub until: Time,
    /// It waited before, at another port or in an earlier start. It may wait although the port is full.
    pub is_resumed: bool,
}

/// The reason why a request stops waiting without a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// Its deadline passed.
    Expired,
    /// It was cancelled.
    Cancelled,
    /// The service stops.
    Stopped,
}

/// One waiting request.
struct Wait {
    tag: Tag,
    priority: i32,
    since: Time,
    until: Time,
    /// The request, the shards asked, and the latest refusal of each.
    placing: Placing,
    /// The shards that hold a copy.
    parked: Vec<ShardId>,
    /// The shards that reported that an event could help.
    woken: Vec<ShardId>,
    /// Set if a command is in flight that could place the request.
    busy: bool,
    /// Where the request is counted, as told to the copy in flight or the latest one.
    home: Home,
    ended: Option<WaitEnd>,
    /// Set once old refusals were reviewed after the deadline.
    reviewed: bool,
}

/// The waiting requests of a port.
#[derive(Default)]
pub(super) struct Waits {
    /// The number of the port. It is part of the tokens.
    port: u16,
    last: u64,
    by_number: FixedMap<u64, Wait>,
    by_tag: FixedMap<Tag, u64>,
    deadlines: Timers<u64>,
    /// Commands that wait for room in the rings, each with the request that its answer belongs to.
    queued: VecDeque<(ShardId, Option<u64>, Command)>,
    in_flight: usize,
}

impl Waits {
    /// Creates an empty set for the port with this number.
    pub(super) fn new(port: u16) -> Self {
        Self { port, ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Returns the number of commands in flight. Each has a pending request of its own.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn token(&self, number: u64) -> WaitToken {
        WaitToken { port: self.port, number }
    }
}

impl Port {
    /// Returns the number of requests that wait at this port.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waits.len()
    }

    /// Returns the token of the watched bundle with this number.
    pub(crate) fn watch_token(&self, number: u64) -> WaitToken {
        assert!(number & WATCH_BIT != 0, "{number} is the number of a waiting request");
        self.waits.token(number)
    }

    /// Returns whether one more request can wait here.
    #[must_use]
    pub fn can_wait(&self) -> bool {
        self.waits.len() < PORT_WAITING_MAX
    }

    /// Returns the earliest deadline of the waiting requests. Call [`end_waits`](Self::end_waits) at that
    /// time.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let of_waits = self.waits.deadlines.first().map(|(until, _)| until);
        of_waits.into_iter().chain(self.plans.next_deadline()).min()
    }

    pub(super) fn submit_wait(&mut self, origin: Option<Origin>, tag: Tag, wait: WaitRequest, now: Time) {
        self.waits.last += 1;
        let number = self.waits.last;
        let lower = self.geometry().coordinate(&self.geometry().asked(&wait.request.demand));
        let entry = Wait {
            tag,
            priority: wait.priority,
            since: wait.since,
            until: wait.until,
            placing: Placing { origin, ..Placing::new(wait.request, lower) },
            parked: Vec::new(),
            woken: Vec::new(),
            busy: false,
            home: Home::IfFeasible,
            ended: None,
            reviewed: false,
        };
        self.waits.deadlines.insert(wait.until, number);
        let before = self.waits.by_tag.insert(tag, number);
        assert!(before.is_none(), "tag {tag} waits twice");
        self.waits.by_number.insert(number, entry);
        let at_once = self.go_on(number);
        assert!(at_once.is_none(), "a request that was not asked anywhere is not decided");
        self.send_queued(now);
    }

    /// Takes the next step of a request: asks a shard, answers if the wait has ended, or keeps waiting.
    fn go_on(&mut self, number: u64) -> Option<(Tag, PortReply)> {
        let mut wait = self.waits.by_number.remove(&number).expect("a waiting request");
        debug_assert!(!wait.busy, "one step at a time");
        let token = self.waits.token(number);
        // Requests that were cancelled or that the stop ends must not be placed any more.
        let asks = wait.ended.is_none_or(|end| end == WaitEnd::Expired);
        if asks && let Some((shard, command)) = self.next_question(token, &mut wait) {
            wait.placing.at = shard;
            wait.busy = true;
            self.waits.queued.push_back((shard, Some(number), command));
        } else if let Some(end) = wait.ended {
            let whole = wait.placing.asked.len() == self.shard_count();
            let merged = merged(&wait.placing.refusals);
            // Nothing is known about shards that were not asked.
            let verdict = if whole { merged.verdict } else { Verdict::NoFitNow };
            let not_placed = NotPlaced { ended: Some(end), verdict, ..merged };
            return Some(self.decided(number, &wait, Err(not_placed)));
        }
        self.waits.by_number.insert(number, wait);
        None
    }

    /// Returns the next shard and command: a retry at a shard that woke the request, else a shard that was
    /// not asked.
    fn next_question(&mut self, token: WaitToken, wait: &mut Wait) -> Option<(ShardId, Command)> {
        if let Some(shard) = wait.woken.pop() {
            return Some((shard, Command::Retry(token)));
        }
        let mut next = self.choose(&wait.placing);
        if next.is_none() && wait.ended.is_some() && !std::mem::replace(&mut wait.reviewed, true) {
            self.forget_outgrown(&mut wait.placing);
            next = self.choose(&wait.placing);
        }
        let shard = next?;
        wait.placing.asked.insert(shard);
        if wait.home == Home::IfFeasible && wait.placing.asked.len() == self.shard_count() {
            wait.home = Home::Here;
        }
        let request = wait.placing.request.clone();
        let command = if wait.parked.contains(&shard) {
            Command::Retry(token)
        } else if wait.ended.is_some() {
            Command::Place(request)
        } else {
            Command::Park(Box::new(Park {
                token,
                request,
                priority: wait.priority,
                since: wait.since,
                home: wait.home,
            }))
        };
        Some((shard, command))
    }

    /// Marks shards that grew since they refused as not asked, if no shard could ever hold the request. A
    /// node that grows while it is full wakes nobody, so these refusals may be old.
    fn forget_outgrown(&mut self, placing: &mut Placing) {
        if placing.refusals.iter().any(|(_, refusal)| refusal.feasible) {
            return;
        }
        for (shard, refusal) in &placing.refusals {
            if self.growth_of(*shard) != refusal.growth {
                placing.asked.remove(*shard);
            }
        }
    }

    /// Removes the copies of a decided request and returns its reply.
    fn decided(&mut self, number: u64, wait: &Wait, reply: Result<Placement, NotPlaced>) -> (Tag, PortReply) {
        let token = self.waits.token(number);
        for &shard in &wait.parked {
            self.waits.queued.push_back((shard, None, Command::Unpark(token)));
        }
        self.waits.deadlines.remove(wait.until, number);
        self.waits.by_tag.remove(&wait.tag);
        (wait.tag, PortReply::Place(reply))
    }

    /// Sends queued commands while there is room in the rings.
    pub(super) fn send_queued(&mut self, now: Time) {
        while self.waits.in_flight < WAIT_IN_FLIGHT_MAX
            && let Some((shard, number, command)) = self.waits.queued.pop_front()
        {
            let wait = number.and_then(|number| self.waits.by_number.get(&number));
            let origin = wait.and_then(|wait| wait.placing.origin);
            let pending = self.pending_mut().insert(Pending::Wait(number));
            self.waits.in_flight += 1;
            self.send(shard, pending, origin, command, now);
        }
    }

    /// Handles a shard's answer to the command `token` about a waiting request.
    pub(super) fn handle_wait_answer(
        &mut self,
        token: usize,
        number: Option<u64>,
        outcome: Outcome,
    ) -> Option<(Tag, PortReply)> {
        self.pending_mut().remove(token);
        self.waits.in_flight -= 1;
        let number = number?;
        let mut wait = self.waits.by_number.remove(&number).expect("an answer is to a waiting request");
        wait.busy = false;
        let at = wait.placing.at;
        let Refused { refusal, parked } = match reply_of(outcome) {
            Ok(placement) => {
                // The shard that placed the request has removed its copy already.
                wait.parked.retain(|&shard| shard != at);
                return Some(self.decided(number, &wait, Ok(placement)));
            }
            Err(refused) => refused,
        };
        if parked {
            wait.parked.push(at);
            if wait.home.is_at(&refusal) {
                wait.home = Home::Elsewhere;
            }
        }
        wait.placing.refusals.retain(|&(shard, _)| shard != at);
        wait.placing.refusals.push((at, *refusal));
        self.waits.by_number.insert(number, wait);
        self.go_on(number)
    }

    /// Takes the requests that shards woke and hands out the replies that result.
    pub(super) fn poll_woken(&mut self, reply: &mut impl FnMut(Tag, PortReply)) {
        for shard in self.take_woken_shards() {
            for number in self.woken_box(shard.index()).take() {
                if number & WATCH_BIT != 0 {
                    reply(number, PortReply::Room(shard));
                    continue;
                }
                // The copies of a request that is already decided are being removed.
                let Some(wait) = self.waits.by_number.get_mut(&number) else { continue };
                // After its end, a request ignores new wake-ups, so the number of commands is bounded.
                if wait.ended.is_some() || (wait.busy && is_planted(PlantedBug::WakeWhileBusyForgotten)) {
                    continue;
                }
                wait.woken.push(shard);
                if !wait.busy
                    && let Some((tag, done)) = self.go_on(number)
                {
                    reply(tag, done);
                }
            }
        }
    }

    /// Returns whether no shard has woken a request.
    pub(super) fn nothing_woken(&self) -> bool {
        self.woken_at().is_empty()
    }

    /// Ends one waiting request if it still waits. The answer comes at once or with a later poll. It may be a
    /// placement that happened in the meantime.
    pub fn end_wait(&mut self, tag: Tag, end: WaitEnd, now: Time) -> Option<(Tag, PortReply)> {
        let number = *self.waits.by_tag.get(&tag)?;
        let done = self.end_number(number, end);
        self.send_queued(now);
        self.flush();
        done
    }

    fn end_number(&mut self, number: u64, end: WaitEnd) -> Option<(Tag, PortReply)> {
        let wait = self.waits.by_number.get_mut(&number).expect("a tag names a waiting request");
        // A deadline may have commands in flight. Any other end sends no more commands.
        if wait.ended.is_none_or(|ended| ended == WaitEnd::Expired) {
            wait.ended = Some(end);
        }
        let until = wait.until;
        self.waits.deadlines.remove(until, number);
        if self.waits.by_number[&number].busy { None } else { self.go_on(number) }
    }

    /// Ends the requests whose deadline has passed.
    pub fn end_waits(&mut self, now: Time, mut reply: impl FnMut(Tag, PortReply)) {
        self.plans.end_overdue(now, &mut reply);
        while let Some(number) = self.waits.deadlines.due(now) {
            if let Some((tag, done)) = self.end_number(number, WaitEnd::Expired) {
                reply(tag, done);
            }
        }
        self.send_queued(now);
        self.flush();
    }

    /// Ends all waiting requests because the service stops.
    pub fn stop_waits(&mut self, now: Time, mut reply: impl FnMut(Tag, PortReply)) {
        let mut numbers: Vec<u64> = self.waits.by_number.keys().copied().collect();
        numbers.sort_unstable();
        for number in numbers {
            if let Some((tag, done)) = self.end_number(number, WaitEnd::Stopped) {
                reply(tag, done);
            }
        }
        self.send_queued(now);
        self.flush();
    }
}
