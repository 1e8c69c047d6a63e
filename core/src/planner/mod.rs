//! Planners: they plan groups on copies of the shards and commit them as statements, any number of
//! them at the same time as the direct path serves single placements (Omega's several schedulers
//! over shared state; Schwarzkopf et al., EuroSys 2013).
//!
//! A [`Planner`] is a state machine, as a shard is: jobs and shards' answers go in, commands and
//! replies come out; [`PlannerRunner`] is the loop around it on a thread. It keeps the groups whose
//! number is its own modulo the number of planners ([`keeper_of`](crate::group::keeper_of)).

mod bounds;
mod bundle_events;
mod capacity;
mod colocate;
mod commit;
mod domains;
mod draft;
mod explain;
mod flow;
mod group;
mod groups;
mod in_flight;
mod metrics;
mod pending;
mod queue;
mod recall;
mod reconcile;
mod replica;
mod runner;
mod state;
mod strategy;
mod submit;
#[cfg(test)]
mod test_bed;
mod ticket;
mod topology;
mod used;
mod what_if;
mod work;

pub use metrics::PlannerMetrics;
pub use runner::PlannerRunner;
pub use work::{PlannerBudget, PlannerWork};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use slab::Slab;

use crate::group::{ClientKey, PlanJob, PlanReply};
use crate::ids::{GroupId, Incarnation, NodeId, ShardId};
use crate::limits::{GROUP_RETRIES_PER_ROUND, HOLD_NS_DEFAULT, PLANNER_FLIGHTS_MAX, TICKET_NS_DEFAULT};
use crate::link::Tickets;
use crate::map::FixedMap;
use crate::router::{Port, PortReply};
use crate::shard::{Command, Shard};
use crate::time::Time;
use crate::view::ViewReader;
use draft::{Draft, Replicas};
use explain::Proof;
use group::Group;
use in_flight::StatementInFlight;
use queue::{JobQueue, PortClient};
use recall::Verdicts;
use replica::Replica;
use ticket::Ticket;

/// The caller's name for a job: comes back with the reply.
pub type JobTag = u64;

/// What a planner is made with.
#[derive(Clone, Debug)]
pub struct PlannerConfig {
    /// Which planner of the process.
    pub number: u16,
    /// How many there are.
    pub planners: u16,
    /// The start of the service: goes into ids.
    pub incarnation: Incarnation,
    /// Of all that is random.
    pub seed: u64,
    /// How long shards hold a part before they ask to abort, in ns.
    pub hold_ns: u64,
    /// How long a statement that lost too often keeps what it reserved, in ns.
    pub ticket_ns: u64,
}

impl PlannerConfig {
    /// The only one.
    #[must_use]
    pub fn single(incarnation: Incarnation, seed: u64) -> Self {
        Self {
            number: 0,
            planners: 1,
            incarnation,
            seed,
            hold_ns: HOLD_NS_DEFAULT,
            ticket_ns: TICKET_NS_DEFAULT,
        }
    }
}

/// What a statement is for.
#[derive(Debug)]
enum Purpose {
    /// Places bundles of a group.
    Place(Box<Placing>),
    /// Ends bundles of a group that goes or shrinks.
    End(GroupId, EndPurpose),
    /// Somebody else's operations.
    Submit(JobTag),
}

/// Bundles that are placed.
#[derive(Debug)]
struct Placing {
    group: GroupId,
    /// Bundles whose allocations on lost nodes end with it: the first operations, in this order.
    ended: Vec<u32>,
    /// The operations after them, in order of what was taken.
    draft: Draft,
}

/// Limit bundles end.
#[derive(Clone, Debug)]
enum EndPurpose {
    /// The group goes: so many bundles ended with it so far.
    Removal(JobTag, u32),
    /// These bundles go.
    Shrink(JobTag, Vec<u32>),
}

/// A planner.
pub struct Planner {
    config: PlannerConfig,
    port: Port,
    replicas: Replicas,
    flights: Slab<(StatementInFlight, Purpose)>,
    /// Commands that the port had no room for.
    outbox: VecDeque<(u64, ShardId, Command)>,
    /// Jobs that were not begun.
    queue: JobQueue,
    groups: BTreeMap<GroupId, Group>,
    /// Bundles by the node they stand on.
    by_node: FixedMap<NodeId, BTreeSet<(GroupId, u32)>>,
    /// Groups with bundles that found no place: highest priority first, then those that wait longest.
    incomplete: BTreeSet<(std::cmp::Reverse<i32>, GroupId)>,
    /// The shards' growth when incomplete groups were last tried.
    tried_at: Vec<u64>,
    /// Nodes on which bundles were granted that may have ended before that was known.
    look_again: Vec<NodeId>,
    /// Nodes on which bundles were granted: judged by the next views, which show the grants.
    granted_on: Vec<NodeId>,
    /// Those whose statement was lost to other work: planned again once all answers are taken.
    lost: VecDeque<GroupId>,
    /// Those that found no place where something may have been counted twice: the same when answers came.
    uncertain: Vec<GroupId>,
    /// Those about which a proof goes on in a later round, and whose they are.
    undecided: VecDeque<(GroupId, PortClient)>,
    /// What these proofs have so far.
    proofs: FixedMap<GroupId, Proof>,
    /// What was found for groups that have no place.
    verdicts: Verdicts,
    /// How often a lost plan gave up what it had taken on the copies.
    released: u64,
    /// Those that are still to be tried since something grew.
    retrying: VecDeque<(std::cmp::Reverse<i32>, GroupId)>,
    /// Bundles were lost since: they are tried again whatever grew.
    retry_now: bool,
    /// A plan was lost since, so that others may have room on the copies which no shard tells of.
    given_up: bool,
    /// When whoever waits is to be answered: of all that wait, and maybe of some that do not any more.
    deadlines: BTreeSet<(Time, GroupId)>,
    /// What is asked for by jobs that are not answered.
    asked: FixedMap<JobTag, GroupId>,
    tickets: Arc<Tickets>,
    /// Bundles that end once the statements of others that hold them are decided: tried again then, in order.
    ending: VecDeque<(Time, GroupId, EndPurpose)>,
    /// Groups that wait for a number.
    ticket_queue: VecDeque<GroupId>,
    ticket: Option<Ticket>,
    /// Something grew since what the ticket reserved was tried.
    ticket_moved: bool,
    next_group: u64,
    next_statement: u64,
    replies: Vec<(JobTag, PlanReply)>,
    /// The copies were brought up to date in this round.
    followed: bool,
    metrics: PlannerMetrics,
    budget: PlannerBudget,
    work: PlannerWork,
    /// Units that were spent before this round.
    round_began_at: u64,
    answers: Vec<(u64, PortReply)>,
}

impl Planner {
    /// A planner over `shards`: per shard an empty copy ([`Shard::replica`]) and the reader of its views.
    #[must_use]
    pub fn new(config: PlannerConfig, port: Port, shards: Vec<(Shard, ViewReader)>) -> Self {
        let copies = shards.into_iter().map(|(shard, reader)| Replica::new(shard, reader)).collect();
        let seed = config.seed;
        Self {
            config,
            port,
            replicas: Replicas::new(copies, seed),
            flights: Slab::new(),
            outbox: VecDeque::new(),
            queue: JobQueue::default(),
            groups: BTreeMap::new(),
            by_node: FixedMap::default(),
            incomplete: BTreeSet::new(),
            tried_at: Vec::new(),
            look_again: Vec::new(),
            granted_on: Vec::new(),
            lost: VecDeque::new(),
            uncertain: Vec::new(),
            undecided: VecDeque::new(),
            proofs: FixedMap::default(),
            verdicts: Verdicts::default(),
            released: 0,
            retrying: VecDeque::new(),
            retry_now: false,
            given_up: false,
            deadlines: BTreeSet::new(),
            asked: FixedMap::default(),
            tickets: Arc::default(),
            ending: VecDeque::new(),
            ticket_queue: VecDeque::new(),
            ticket: None,
            ticket_moved: false,
            next_group: 0,
            next_statement: 0,
            replies: Vec::new(),
            followed: false,
            metrics: PlannerMetrics::default(),
            budget: PlannerBudget::default(),
            work: PlannerWork::default(),
            round_began_at: 0,
            answers: Vec::new(),
        }
    }

    /// Shares tickets with the other planners.
    pub(crate) fn set_tickets(&mut self, tickets: Arc<Tickets>) {
        self.tickets = tickets;
    }

    /// Bounds its work otherwise than by default.
    pub fn set_budget(&mut self, budget: PlannerBudget) {
        self.budget = budget;
    }

    /// The bounds of its work.
    #[must_use]
    pub fn budget(&self) -> PlannerBudget {
        self.budget
    }

    /// Takes a job of a client of the port at that place; it is begun when its client has its turn, and answered in
    /// [`take_replies`](Self::take_replies).
    pub fn submit(&mut self, tag: JobTag, client: (usize, ClientKey), job: PlanJob, now: Time) {
        match job {
            PlanJob::Cancel => self.cancel(tag, client, now),
            // It plans nothing, and a cancel that comes after it must not overtake it: the group would be
            // asked for again by a client that resumes.
            PlanJob::RemoveGroup(id) if self.is_awaited(id) => self.remove_group(tag, id, now),
            job => self.queue.push(client, tag, job),
        }
    }

    fn begin(&mut self, tag: JobTag, client: PortClient, job: PlanJob, now: Time) {
        match job {
            PlanJob::CreateGroup(spec) => self.create_group(tag, client, spec, now),
            PlanJob::GrowGroup(id, requests, until) => {
                self.grow_group((tag, client), id, (&requests, until), now);
            }
            PlanJob::ShrinkGroup(id, indexes) => self.shrink_group(tag, id, &indexes, now),
            PlanJob::RemoveGroup(id) => self.remove_group(tag, id, now),
            PlanJob::GroupStatus(id) => self.group_status(tag, id),
            PlanJob::ListGroups(after, limit) => self.list_groups(tag, after, limit),
            PlanJob::Submit(submit) => self.submit_operations(tag, *submit),
            PlanJob::Cancel => unreachable!("taken back as soon as it comes"),
        }
    }

    /// Whether a job may be begun: as many statements as may be are under way at most.
    fn may_begin(&self) -> impl Fn(&PlanJob) -> bool + use<> {
        let has_room = self.flights.len() < PLANNER_FLIGHTS_MAX;
        move |job| has_room || !job.plans()
    }

    /// Begins the next job, on its client's account; whether there was one.
    fn begin_next(&mut self, now: Time) -> bool {
        let may_begin = self.may_begin();
        let Some((client, tag, job)) = self.queue.next(may_begin) else { return false };
        let before = self.replicas.meter.spent();
        self.replicas.meter.charge(job.units());
        self.begin(tag, client, job, now);
        self.queue.charge(client, self.replicas.meter.spent() - before);
        true
    }

    /// Takes what shards answered, follows their views, and tries again what waits; how many answers
    /// there were, and statements that it sent. Call it when the bell was rung, and when
    /// [`next_deadline`](Self::next_deadline) comes.
    pub fn poll(&mut self, now: Time) -> usize {
        let moved = self.take_answers(now) + self.advance(now);
        self.flush(now);
        moved
    }

    /// The first half of [`poll`](Self::poll): takes what shards answered, and follows their views. Jobs
    /// are best taken after it: what is granted is then known to be.
    fn take_answers(&mut self, now: Time) -> usize {
        let mut answers = std::mem::take(&mut self.answers);
        self.port.poll(now, |tag, reply| answers.push((tag, reply)));
        let count = answers.len();
        for (tag, reply) in answers.drain(..) {
            let PortReply::One(outcome) = reply else { panic!("a planner asks single shards: {reply:?}") };
            self.handle_answer(tag, outcome, now);
        }
        self.answers = answers;
        // After the answers: what they granted is in these views, and each node is made anew once.
        self.sync();
        self.followed = true;
        if count > 0 {
            self.lost.extend(self.uncertain.drain(..));
        }
        count
    }

    /// Takes `step` at most `count` times, until there is nothing left to do or `units` are spent; once at least.
    fn within(&mut self, units: u64, count: usize, mut step: impl FnMut(&mut Self) -> bool) {
        let end = self.replicas.meter.spent() + units;
        for _ in 0..count {
            if !step(self) || self.replicas.meter.spent() >= end {
                break;
            }
        }
    }

    /// Tries the next group that lost its plan, or whose time is up; whether there was one.
    fn try_lost(&mut self, now: Time) -> bool {
        let Some(id) = self.lost.pop_front() else { return false };
        self.try_group(id, now);
        true
    }

    /// The second half: begins jobs, tries again what waits, and makes statements; how many are new. Each kind of work
    /// has its share of the round's units, so that what was made ready leaves in time; the rest is left to the next
    /// round.
    fn advance(&mut self, now: Time) -> usize {
        let sent = self.metrics.statements;
        let share = self.budget.round / 4;
        self.end_again(now);
        self.end_overdue(now);
        self.within(share, self.lost.len(), |planner| planner.try_lost(now));
        self.within(share, usize::MAX, |planner| planner.begin_next(now));
        self.within(share, self.undecided.len(), |planner| planner.decide_next(now));
        self.look_for_growth();
        self.within(share, GROUP_RETRIES_PER_ROUND, |planner| planner.retry_next(now));
        self.serve_ticket(now);
        // What a ticket reserved, or others gave back, may be free by now.
        self.within(share, self.lost.len(), |planner| planner.try_lost(now));
        self.followed = false;
        self.work.units = self.replicas.meter.spent();
        let of_round = self.work.units - self.round_began_at;
        self.work.most_per_round = self.work.most_per_round.max(of_round);
        self.round_began_at = self.work.units;
        usize::try_from(self.metrics.statements - sent).unwrap_or(usize::MAX)
    }

    /// Whether a round left something to the next one.
    pub(crate) fn has_left_over(&self) -> bool {
        !self.lost.is_empty()
            || !self.undecided.is_empty()
            || !self.retrying.is_empty()
            || self.queue.has_ready(self.may_begin())
    }

    /// Whether some statement is under way or to be repeated, or a job waits for one to end.
    #[must_use]
    pub fn is_committing(&self) -> bool {
        !self.flights.is_empty() || !self.queue.is_empty() || !self.ending.is_empty()
    }

    /// Whether nothing came in that it has not looked at.
    pub fn is_idle(&mut self) -> bool {
        let grew = self.wants_growth() && self.port.growth() != self.tried_at;
        let ended = self.wants_losses() && self.replicas.copies.iter().any(Replica::has_endings);
        !self.is_called()
            && self.outbox.is_empty()
            && self.replies.is_empty()
            && !grew
            && !self.retry_now
            && !self.given_up
            && !self.has_left_over()
            && !ended
            && self.port.is_idle()
    }

    /// Whether capacity that comes free matters: then shards should ring for it.
    #[must_use]
    pub fn wants_growth(&self) -> bool {
        !self.incomplete.is_empty() || self.ticket.is_some()
    }

    /// Whether nodes that are lost and bundles that end matter: then shards should ring for that.
    #[must_use]
    pub fn wants_losses(&self) -> bool {
        !self.by_node.is_empty()
    }

    /// When the first waiting group is to be given up, or something to be tried again.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let ending = self.ending.front().map(|&(due, ..)| due);
        self.first_deadline().into_iter().chain(self.ticket_deadline()).chain(ending).min()
    }

    /// What was answered since the last call.
    pub fn take_replies(&mut self) -> std::vec::Drain<'_, (JobTag, PlanReply)> {
        self.replies.drain(..)
    }

    /// What it did so far.
    #[must_use]
    pub fn metrics(&self) -> &PlannerMetrics {
        &self.metrics
    }

    /// What it did so far, counted.
    #[must_use]
    pub fn work(&self) -> PlannerWork {
        self.work
    }

    /// How many groups it keeps.
    #[must_use]
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    fn reply(&mut self, tag: JobTag, reply: PlanReply) {
        self.asked.remove(&tag);
        self.replies.push((tag, reply));
    }

    /// A new group's id: its number is this planner's modulo the number of planners.
    fn next_group_id(&mut self) -> GroupId {
        let planners = u64::from(self.config.planners);
        let own = u64::from(self.config.number);
        let number = self.next_group * planners + own;
        self.next_group += 1;
        GroupId { incarnation: self.config.incarnation, number }
    }
}
