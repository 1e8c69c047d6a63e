//! A port connects one owner to all shards. Each I/O thread and each planner has one, and so do the registrar and a
//! benchmark that drives the engine in process.
//!
//! A port routes requests by power of two choices over the shards' summaries (Mitzenmacher 2001). A request
//! that one shard refuses goes on to another (Ray's spillback). The port also combines the answers of several
//! shards. It never blocks: [`submit`](Port::submit) puts commands into rings, and [`poll`](Port::poll) takes
//! answers out of them.
//!
//! **A refusal is final only if it was true at one instant.** Shards are asked one after the other, and
//! capacity may come back at the first while the last is asked. Each refusal carries the shard's growth
//! counter. When all shards have refused, the counters are read again. Shards whose counter moved are asked
//! again (a double collect), a bounded number of times.

mod answers;
mod choice;
mod window;

use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, Cache};
use slab::Slab;

use super::RoutingTable;
use super::placing::{FallbackSweep, Placing, ShardSet};
use super::plans::{JobAsked, PlanLink, Plans};
use super::wait::{WaitEnd, WaitRequest, Waits};
use super::watching::PortViews;
use crate::group::{ClientKey, PlanJob, PlanReply};
use crate::ids::{AllocationId, PartitionId, ShardId};
use crate::index::Geometry;
use crate::journal::JournalPort;
use crate::limits::{EVERY_IN_FLIGHT_MAX, LONE_COMMANDS_MAX, LONE_NS_MAX, PORT_IN_FLIGHT_MAX};
use crate::link::{Consumer, Doorbell, Lent, Producer, ShardNews, ViewInterest, WokenBox};
use crate::registrar::Catalog;
use crate::reply::reply_types;
use crate::request::{Placement, PlacementRequest, Refusal};
use crate::rng::Rng;
use crate::shard::{Command, Outcome, UnknownAllocation};
use crate::state::Origin;
use crate::time::Time;
use crate::view::ViewReader;
use window::Windows;

/// The caller's name for a request. It comes back with the reply.
pub type Tag = u64;

/// A command that is sent to a shard.
pub(crate) struct Submission {
    pub(crate) token: u32,
    pub(crate) enqueued: Time,
    pub(crate) origin: Option<Origin>,
    pub(crate) command: Command,
}

/// An outcome that is sent back to a port.
pub(crate) struct Answer {
    pub(crate) token: u32,
    pub(crate) outcome: Outcome,
}

/// The rings between a port and one shard, and the bell of the shard.
pub struct PortLink {
    pub(crate) submissions: Producer<Submission>,
    pub(crate) answers: Consumer<Answer>,
    pub(crate) bell: Arc<Doorbell>,
    /// The shard while its thread sleeps, if it is lent.
    pub(crate) lent: Arc<OnceLock<Arc<dyn Lent>>>,
    pub(crate) woken: Arc<WokenBox>,
    /// The interest of all ports in the shard's views.
    pub(crate) interest: Arc<ViewInterest>,
    /// The news for this port, the same in all its links.
    pub(crate) news: Arc<ShardNews>,
}

impl PortLink {
    /// Runs the shard if its thread sleeps. Returns whether its bell need not be rung.
    fn try_run(&self) -> bool {
        self.lent.get().is_some_and(|shard| shard.try_run())
    }
}

/// A request to a port.
#[derive(Clone, Debug)]
pub enum PortRequest {
    /// Place a request at any shard.
    Place(PlacementRequest),
    /// Place a request, or wait until it fits.
    Wait(Box<WaitRequest>),
    /// Release an allocation, at the shard named by its id.
    Release(AllocationId),
    /// Send a command to the shard that serves a partition.
    Partition(PartitionId, Command),
    /// Send a command to every shard.
    Every(Command),
    /// Send a command to one shard.
    Shard(ShardId, Command),
    /// Send a job to the planner that keeps the group, or to any planner. All such jobs belong to one client.
    Plan(PlanJob),
    /// Send a job for one client. Planners serve the clients of a port in turn. A job that has not begun by the given time
    /// is not done.
    PlanFor(ClientKey, PlanJob, Time),
}

/// The combined result of a placement that no shard could do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Some node could hold the request, but none can now.
    NoFitNow,
    /// No registered node could hold the request even if nothing else ran there.
    Infeasible,
}

reply_types! {
    /// A reply of a port. [`reply_of`](crate::reply::reply_of) turns it into the reply to one kind of request.
    pub enum PortReply {
        /// Answers `Place` and `Wait`.
        Place(Result<Placement, NotPlaced>),
        /// Answers `Release`, `Partition` and `Shard`: the outcome of one shard.
        One(Outcome),
        /// Answers `Every`: the outcomes of all shards, in order of shard.
        Every(Vec<Outcome>),
        /// Answers `Plan` and `PlanFor`: the reply of a planner.
        Plan(Box<PlanReply>),
        /// Tells that a node of this shard could hold the watched bundle whose number is the tag.
        Room(ShardId),
    }
}

/// The combined refusals of a request that was not placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotPlaced {
    /// The reason why it no longer waits, if it waited.
    pub ended: Option<WaitEnd>,
    /// What the refusals say together.
    pub verdict: Verdict,
    /// The counts. They are over all shards, or from the latest refusals of the shards that were asked if it waited.
    pub refusal: Box<Refusal>,
}

/// The port has as many requests in flight as it may. Poll, then submit again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "as much is under way at this port as may be ({PORT_IN_FLIGHT_MAX} requests, of which \
     {EVERY_IN_FLIGHT_MAX} to every shard): wait for replies"
)]
pub struct NoRoom;

pub(super) enum Pending {
    /// A command of the waiting request with this number. `None` if its answer is ignored.
    Wait(Option<u64>),
    /// A placement, by its key in the slab of placings. This keeps the enum small and avoids an allocation.
    Place(Tag, usize),
    One(Tag),
    Every {
        tag: Tag,
        left: u16,
        outcomes: Vec<Option<Outcome>>,
    },
}

/// Connects one owner to all shards.
pub struct Port {
    links: Vec<PortLink>,
    /// The shards whose bell the next flush rings.
    touched: ShardSet,
    /// The number of commands at each shard that are not answered.
    unanswered: Vec<u32>,
    /// How many commands the port should have at the shards.
    windows: Windows,
    /// The shards that have any. Only their rings are polled, so that a poll does not take longer with more shards.
    busy: ShardSet,
    /// The shards that have woken requests of this port.
    woken_at: Arc<ShardNews>,
    /// The number of commands since the last flush.
    sent: usize,
    /// Lone requests are decided on this port's thread if their shard sleeps.
    runs_sleeping_shards: bool,
    table: Cache<Arc<ArcSwap<RoutingTable>>, Arc<RoutingTable>>,
    catalog: Cache<Arc<ArcSwap<Catalog>>, Arc<Catalog>>,
    geometry: Geometry,
    /// The requests in flight. Each has at most one command or answer in each ring, which bounds the rings.
    pending: Slab<Pending>,
    /// The number of these that ask every shard.
    every_in_flight: usize,
    rng: Rng,
    bell: Arc<Doorbell>,
    placings: Slab<Placing>,
    pub(super) waits: Waits,
    pub(super) plans: Plans,
    spillbacks: u64,
    pub(super) views: PortViews,
    journal: Option<JournalPort>,
}

impl Port {
    /// Creates a port over `links`, one per shard in order.
    ///
    /// `bell` wakes the port's owner. Shards ring it after they put answers into the port's rings.
    #[must_use]
    pub(crate) fn new(
        links: Vec<PortLink>,
        table: &Arc<ArcSwap<RoutingTable>>,
        catalog: &Arc<ArcSwap<Catalog>>,
        geometry: Geometry,
        seed: u64,
        bell: Arc<Doorbell>,
        number: u16,
    ) -> Self {
        Self {
            waits: Waits::new(number),
            views: PortViews::new(number, &links),
            touched: ShardSet::default(),
            unanswered: vec![0; links.len()],
            windows: Windows::new(links.len()),
            busy: ShardSet::default(),
            woken_at: links.first().map_or_else(Arc::default, |link| Arc::clone(link.woken.of_port())),
            sent: 0,
            runs_sleeping_shards: false,
            links,
            table: Cache::new(Arc::clone(table)),
            catalog: Cache::new(Arc::clone(catalog)),
            geometry,
            pending: Slab::with_capacity(PORT_IN_FLIGHT_MAX),
            every_in_flight: 0,
            rng: Rng::new(seed),
            bell,
            placings: Slab::new(),
            plans: Plans::default(),
            spillbacks: 0,
            journal: None,
        }
    }

    /// Returns the bell that shards ring for this port.
    #[must_use]
    pub fn bell(&self) -> &Arc<Doorbell> {
        &self.bell
    }

    /// Returns the journal, if the engine has one.
    #[must_use]
    pub fn journal(&self) -> Option<&JournalPort> {
        self.journal.as_ref()
    }

    pub(crate) fn set_journal(&mut self, journal: JournalPort) {
        self.journal = Some(journal);
    }

    /// Returns the views of the shards.
    #[must_use]
    pub fn views(&self) -> &PortViews {
        &self.views
    }

    /// Sets the readers of the shards' views.
    pub(crate) fn set_views(&mut self, readers: Vec<ViewReader>) {
        self.views.set_readers(readers);
    }

    /// Returns the newest published catalog.
    #[inline]
    pub fn catalog(&mut self) -> &Arc<Catalog> {
        self.catalog.load()
    }

    /// Returns the number of shards.
    #[must_use]
    pub fn shard_count(&self) -> usize {
        self.links.len()
    }

    /// Returns the shard that serves a partition, or `None` if the partition does not exist.
    pub fn shard_of(&mut self, partition: PartitionId) -> Option<ShardId> {
        self.table.load().shard(partition)
    }

    /// Returns the growth counters of all shards, in order of shard.
    pub fn growth(&mut self) -> Vec<u64> {
        let table = self.table.load();
        (0..table.shard_count()).map(|shard| table.summary(ShardId(shard)).growth()).collect()
    }

    /// Adds a planner behind the port.
    pub(crate) fn add_planner(&mut self, link: PlanLink) {
        self.plans.add(link);
    }

    /// Adds the keeper of jobs behind the port, after all planners.
    pub(crate) fn add_keeper(&mut self, link: PlanLink) {
        self.plans.add_keeper(link);
    }

    /// Returns whether somebody keeps jobs behind the port.
    #[must_use]
    pub fn keeps_jobs(&self) -> bool {
        self.plans.has_keeper()
    }

    /// Cancels a waiting group. The group's own reply reports the result. Does nothing if the group is
    /// answered or was cancelled before. A cancel does not use the room of requests.
    pub fn cancel_plan(&mut self, tag: Tag) {
        self.plans.cancel(tag);
    }

    /// Returns the number of planners behind the port.
    #[must_use]
    pub fn planner_count(&self) -> usize {
        self.plans.count()
    }

    /// Returns the number of requests in flight.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len() + self.plans.pending()
    }

    /// Returns how many times a request went on to another shard after a refusal.
    #[must_use]
    pub fn spillbacks(&self) -> u64 {
        self.spillbacks
    }

    pub(super) fn pending_mut(&mut self) -> &mut Slab<Pending> {
        &mut self.pending
    }

    /// Returns the number of attribute orders that a request may choose from.
    #[must_use]
    pub fn order_count(&self) -> usize {
        self.geometry.order_count()
    }

    pub(super) fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(super) fn woken_box(&self, shard: usize) -> &WokenBox {
        &self.links[shard].woken
    }

    /// Returns the shards that have woken requests of this port.
    pub(super) fn woken_at(&self) -> &ShardNews {
        &self.woken_at
    }

    /// Takes the shards that have woken requests of this port, ascending.
    pub(super) fn take_woken_shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        let mut shards = ShardSet::default();
        self.woken_at.take(|shard| shards.insert(shard));
        shards.iter()
    }

    /// Returns whether `request` can be submitted now.
    #[must_use]
    pub fn has_room(&self, request: &PortRequest) -> bool {
        if let PortRequest::Wait(wait) = request {
            return wait.is_resumed || self.can_wait();
        }
        if let PortRequest::Plan(job) | PortRequest::PlanFor(_, job, _) = request {
            return self.plans.has_room_for(job);
        }
        let every = matches!(request, PortRequest::Every(_));
        self.room() > 0 && !(every && self.every_in_flight >= EVERY_IN_FLIGHT_MAX)
    }

    /// Returns how many more requests to single shards can be submitted now.
    #[must_use]
    pub fn room(&self) -> usize {
        // Waiting requests have slots of their own.
        PORT_IN_FLIGHT_MAX - (self.pending.len() - self.waits.in_flight())
    }

    /// Returns how many commands to single shards should be under way, so that they queue for about
    /// [`QUEUE_NS`](crate::limits::QUEUE_NS). It follows from how long commands took so far, and is at most the bound of
    /// [`room`](Self::room). The port takes more: it is the caller who decides who waits.
    #[must_use]
    pub fn window(&self) -> usize {
        self.windows.sum()
    }

    /// Sets the most commands that should be under way, for a test.
    pub fn set_window_max(&mut self, most: usize) {
        self.windows.set_most(most);
    }

    /// Returns the time from one command to the next in ns if all shards are at work, by how long commands took so far.
    #[must_use]
    pub fn turn_ns(&self) -> u64 {
        self.windows.turn_ns()
    }

    /// Sends `request`. Its reply will carry `tag`. Shards learn of it at the next [`flush`](Self::flush).
    ///
    /// A release of an allocation in an unknown partition is answered at once: the reply is returned as
    /// `Some`.
    ///
    /// # Errors
    /// Returns `NoRoom` if too many requests are in flight at this port.
    pub fn submit(&mut self, tag: Tag, request: PortRequest, now: Time) -> Result<Option<PortReply>, NoRoom> {
        self.submit_for(None, tag, request, now)
    }

    /// Sends a request of a client session. What it does is recorded in the journal together with its origin.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_for(
        &mut self,
        origin: Option<Origin>,
        tag: Tag,
        request: PortRequest,
        now: Time,
    ) -> Result<Option<PortReply>, NoRoom> {
        if !self.has_room(&request) {
            return Err(NoRoom);
        }
        match request {
            PortRequest::Place(request) => self.submit_place(origin, tag, request, now),
            PortRequest::Wait(wait) => self.submit_wait(origin, tag, *wait, now),
            PortRequest::Release(id) => {
                let Some(shard) = self.table.load().shard(id.partition) else {
                    return Ok(Some(PortReply::One(Outcome::Release(Err(UnknownAllocation(id))))));
                };
                self.submit_one(origin, tag, (shard, Command::Release(id)), now);
            }
            PortRequest::Partition(partition, command) => {
                let shard = self.table.load().shard(partition);
                let shard = shard.unwrap_or_else(|| panic!("there is no partition {}", partition.0));
                self.submit_one(origin, tag, (shard, command), now);
            }
            PortRequest::Shard(shard, command) => self.submit_one(origin, tag, (shard, command), now),
            PortRequest::Plan(job) => {
                let client = ClientKey::default();
                self.plans.submit(JobAsked { origin, tag, client, job, due: Time::NEVER })?;
            }
            PortRequest::PlanFor(client, job, due) => {
                self.plans.submit(JobAsked { origin, tag, client, job, due })?;
            }
            PortRequest::Every(command) => {
                let shards = self.links.len();
                let left = u16::try_from(shards).expect("SHARDS_MAX fits u16");
                let pending = Pending::Every { tag, left, outcomes: vec![None; shards] };
                let token = self.pending.insert(pending);
                self.every_in_flight += 1;
                for shard in 0..left {
                    self.send(ShardId(shard), token, None, command.clone(), now);
                }
            }
        }
        Ok(None)
    }

    fn submit_one(
        &mut self,
        origin: Option<Origin>,
        tag: Tag,
        (shard, command): (ShardId, Command),
        now: Time,
    ) {
        let token = self.pending.insert(Pending::One(tag));
        self.send(shard, token, origin, command, now);
    }

    fn submit_place(&mut self, origin: Option<Origin>, tag: Tag, mut request: PlacementRequest, now: Time) {
        let mut sweep = None;
        if self.links.len() > 1 && !request.fallbacks().is_empty() {
            let first = FallbackSweep { whole: request, alternative: 0 };
            request = first.request();
            sweep = Some(Box::new(first));
        }
        let lower = self.geometry.coordinate(&self.geometry.asked(&request.demand));
        let mut placing = Placing { sweep, origin, ..Placing::new(request, lower) };
        let shard = self.choose(&placing).expect("no shard was asked yet");
        placing.asked.insert(shard);
        placing.at = shard;
        let command = Command::Place(placing.request.clone());
        let origin = placing.origin();
        let placing = self.placings.insert(placing);
        let token = self.pending.insert(Pending::Place(tag, placing));
        self.send(shard, token, origin, command, now);
    }

    /// Sends a command of a pending request. The caller has checked that there is room for the request.
    pub(super) fn send(
        &mut self,
        shard: ShardId,
        token: usize,
        origin: Option<Origin>,
        command: Command,
        now: Time,
    ) {
        let token = u32::try_from(token).expect("PORT_IN_FLIGHT_MAX fits u32");
        let submission = Submission { token, enqueued: now, origin, command };
        let pushed = self.links[shard.index()].submissions.push(submission);
        assert!(pushed.is_ok(), "a ring holds all that a port may have in flight");
        self.touched.insert(shard);
        self.unanswered[shard.index()] += 1;
        self.busy.insert(shard);
        self.sent += 1;
    }

    /// Lets [`flush`](Self::flush) run a shard that sleeps, instead of waking its thread for a few requests. Only
    /// shards that are [lent](crate::executor::ShardRunner::run_lent) are run.
    pub fn run_sleeping_shards(&mut self) {
        self.runs_sleeping_shards = true;
    }

    /// Rings the bells of the shards and planners that were sent something since the last flush.
    pub fn flush(&mut self) {
        let is_lone = self.runs_sleeping_shards && self.sent <= LONE_COMMANDS_MAX;
        let sent = std::mem::take(&mut self.sent) as u64;
        for shard in std::mem::take(&mut self.touched).iter() {
            let link = &self.links[shard.index()];
            let takes = self.windows.pace(shard.index()).saturating_mul(sent);
            let is_done = is_lone && takes <= LONE_NS_MAX && link.try_run();
            if !is_done {
                link.bell.ring();
            }
        }
        self.plans.flush();
    }

    /// Takes all available answers and hands out the replies that are complete. Returns the number of answers
    /// taken.
    pub fn poll(&mut self, now: Time, mut reply: impl FnMut(Tag, PortReply)) -> usize {
        let mut taken = 0;
        // A copy: answers from shards that a request spills to in this poll wait for the next one.
        for shard in self.busy.iter() {
            let at = shard.index();
            let before = taken;
            while let Some(answer) = self.links[at].answers.pop() {
                taken += 1;
                self.unanswered[at] -= 1;
                if let Some((tag, done)) = self.handle_answer(at, answer, now) {
                    reply(tag, done);
                }
            }
            if taken > before {
                self.windows.set_pace(at, self.table.load().summary(shard).pace());
            }
            if self.unanswered[at] == 0 {
                self.busy.remove(shard);
            }
        }
        if !self.nothing_woken() {
            self.poll_woken(&mut reply);
        }
        self.send_queued(now);
        taken + self.plans.poll(reply)
    }

    /// Returns a shard's published growth counter. If it differs from the one in a refusal, the refusal may
    /// be old.
    pub(super) fn growth_of(&mut self, shard: ShardId) -> u64 {
        self.table.load().summary(shard).growth()
    }

    /// Returns whether there are no answers and no news now.
    pub fn is_idle(&mut self) -> bool {
        self.busy.iter().all(|shard| self.links[shard.index()].answers.is_empty())
            && self.nothing_woken()
            && self.plans.is_idle()
            && !self.views.has_news()
    }
}

/// Merges the refusals of several shards.
pub(super) fn merged(refusals: &[(ShardId, Refusal)]) -> NotPlaced {
    let mut merged = Refusal::default();
    for (_, refusal) in refusals {
        merged.merge(refusal);
    }
    let verdict = if merged.feasible { Verdict::NoFitNow } else { Verdict::Infeasible };
    NotPlaced { ended: None, verdict, refusal: Box::new(merged) }
}
