//! Planners place groups. They plan on replicas of the shards and commit the plans as statements. Any number
//! of planners run concurrently with each other and with direct placements, like Omega's schedulers over
//! shared state (Schwarzkopf et al., EuroSys 2013).
//!
//! A [`Planner`] is a state machine, like a shard: jobs and shards' answers go in, commands and replies come
//! out. [`PlannerRunner`] is the loop around it on a thread. A planner keeps the groups whose number modulo
//! the number of planners is its own number ([`keeper_of`](crate::group::keeper_of)). The keeper of jobs keeps those in queues.

mod bounds;
mod capacity;
mod colocate;
mod commit;
mod demand;
mod draft;
mod explain;
mod explain_wait;
mod flow;
mod group;
mod groups;
mod in_flight;
mod in_queue;
mod jobs;
mod life;
mod metrics;
mod pending;
mod queue;
mod recall;
mod reconcile;
#[cfg(test)]
mod replica_tests;
mod runner;
mod state;
mod strategy;
mod submit;
#[cfg(test)]
mod test_bed;
mod ticket;
mod topology;
mod used;
mod watch;
mod what_if;
mod work;

pub use jobs::JobsConfig;
pub use metrics::PlannerMetrics;
pub use queue::QueuedJob;
pub use runner::PlannerRunner;
pub use work::{PlannerBudget, PlannerWork};

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use slab::Slab;

use crate::cycle::Plan;
use crate::group::{ClientKey, PlanJob, PlanReply};
use crate::ids::{AllocationId, GroupId, Incarnation, ShardId, TenantId};
use crate::jobs::TaskId;
use crate::journal::Unit;
use crate::limits::{
    EXPLAIN_UNITS_PER_ROUND, GROUP_RETRIES_PER_ROUND, HOLD_NS_DEFAULT, PLANNER_FLIGHTS_MAX,
    TICKET_NS_DEFAULT, WATCH_STEPS_MAX,
};
use crate::link::{JournalQueue, Tickets};
use crate::map::FixedMap;
use crate::replica::Replica;
use crate::reply::reply_of;
use crate::router::{Port, PortReply, WATCH_BIT};
use crate::shard::{Command, Shard};
use crate::state::{Done, Origin};
use crate::time::Time;
use crate::timers::Timers;
use crate::view::ViewReader;
use draft::{Draft, Replicas};
use explain_wait::WaitExplanations;
use group::Group;
use in_flight::StatementInFlight;
use in_queue::Capped;
use jobs::{Charge, Direct, Keeper};
use life::{ByPriority, State};
use queue::{JobQueue, PortClient};
use recall::Verdicts;
use ticket::Ticket;
use watch::WatchStep;

/// The caller's name for a job. It comes back with the reply.
pub type JobTag = u64;

/// The settings of a planner.
#[derive(Clone, Debug)]
pub struct PlannerConfig {
    /// The number of this planner in the process.
    pub number: u16,
    /// The number of planners.
    pub planners: u16,
    /// The incarnation of the service. It is part of the ids that the planner creates.
    pub incarnation: Incarnation,
    /// The seed of everything random.
    pub seed: u64,
    /// How long shards hold a part before they ask to abort, in ns.
    pub hold_ns: u64,
    /// How long a ticket keeps what it reserved, in ns.
    pub ticket_ns: u64,
}

impl PlannerConfig {
    /// Creates the settings of the only planner of a process.
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

/// The purpose of a statement.
#[derive(Debug)]
enum Purpose {
    /// Places bundles of a group.
    Place(Box<Placing>),
    /// Ends bundles of a group that is removed or shrunk.
    End(GroupId),
    /// Commits operations that an external scheduler planned.
    Submit(JobTag),
    /// Commits what a cycle planned.
    Cycle(Box<Plan>),
    /// Makes a placement that names a queue.
    Direct(Box<Direct>),
    /// Evicts tasks, each with its allocation and its grace period in ns.
    EvictTasks(Vec<(TaskId, AllocationId, u64)>),
}

/// Bundles that a statement places.
#[derive(Debug)]
struct Placing {
    group: GroupId,
    /// The bundles whose allocations on lost nodes end. These are the first operations, in this order.
    ended: Vec<u32>,
    /// The placed bundles. These are the operations after them, in this order.
    draft: Draft,
    /// What a queue is charged for each of them. None, if the group is in no queue.
    charges: Vec<Charge>,
}

/// A planner of groups and statements.
pub struct Planner {
    config: PlannerConfig,
    port: Port,
    replicas: Replicas,
    /// If it keeps jobs. Then it has the groups in queues, and in addition the replicas of its cycles.
    keeper: Option<Box<Keeper>>,
    flights: Slab<(StatementInFlight, Purpose)>,
    /// Commands that the port had no room for.
    outbox: VecDeque<(u64, ShardId, Command)>,
    /// Jobs that have not begun.
    queue: JobQueue,
    groups: BTreeMap<GroupId, Group>,
    /// The groups whose records changed since the last unit, if there is a journal.
    changed: Option<BTreeSet<GroupId>>,
    /// Where changes and decisions are recorded.
    journal: Option<Arc<JournalQueue<Unit>>>,
    /// Explanations of what waits that are not answered.
    explanations: WaitExplanations,
    /// What requests have done whose jobs are not answered yet, since the last unit.
    early: Vec<Done>,
    /// The requests of client sessions whose jobs are not answered. Empty without a journal.
    origins: BTreeMap<JobTag, Origin>,
    /// Waiting groups: highest priority first, then oldest first. This and the lists of groups below follow from
    /// the groups' states ([`Planner::transition`]).
    incomplete: BTreeSet<ByPriority>,
    /// All groups without room, whatever they wait for.
    seeking: BTreeSet<ByPriority>,
    /// Those of them to which growth matters for which no watched bundle was reported.
    growing: BTreeSet<ByPriority>,
    /// The shards' growth that was last looked at.
    tried_at: Vec<u64>,
    /// Set if something grew since the last walk over `growing` began.
    grew: bool,
    /// Where the walk over `growing` goes on, if one is under way.
    growing_from: Option<Bound<ByPriority>>,
    /// Retrying groups, and uncertain ones since answers came.
    retries: VecDeque<GroupId>,
    /// Uncertain groups.
    uncertain: Vec<GroupId>,
    /// Undecided groups with their clients.
    undecided: VecDeque<(GroupId, PortClient)>,
    /// Results for groups that found no place.
    verdicts: Verdicts,
    capped: Capped,
    /// The number of times that a lost plan gave up what it had taken on the replicas.
    released: u64,
    /// Groups for which something may have changed since they were tried.
    stirred: BTreeSet<GroupId>,
    /// Waiting groups with reports of shards, which are to be tried now: by priority, then in order of arrival.
    urgent: BTreeSet<(Reverse<i32>, u64, GroupId)>,
    /// The number of groups that were ever urgent.
    urgent_count: u64,
    /// Other waiting groups that are to be tried now, in order.
    woken: VecDeque<GroupId>,
    /// Set if the next group is taken from those with reports.
    is_urgent_next: bool,
    /// The groups whose bundles are watched, by the numbers of the copies.
    watched: FixedMap<u64, GroupId>,
    /// The number of the next copy.
    next_watch: u64,
    /// Answers to shards' reports, for which others wait.
    watch_answers: VecDeque<(ShardId, Command)>,
    /// Copies to be made or removed.
    watch_steps: VecDeque<WatchStep>,
    /// The number of commands about copies in flight.
    watching: usize,
    /// Set if a plan was lost since the last retry. Others may have room on the replicas, which no shard
    /// reports.
    given_up: bool,
    /// The times by which the jobs of waiting and queued groups must be answered.
    deadlines: Timers<GroupId>,
    /// The group of each create or grow job that is not answered.
    asked: FixedMap<JobTag, GroupId>,
    tickets: Arc<Tickets>,
    /// Groups whose removal or shrink statements of others block, with the time at which it is retried.
    ending: Timers<GroupId>,
    /// Queued groups without a ticket number, in order of turn.
    ticket_queue: BTreeMap<u64, GroupId>,
    next_turn: u64,
    ticket: Option<Ticket>,
    /// Set if something grew since the ticket's commit was last tried.
    ticket_moved: bool,
    next_group: u64,
    next_statement: u64,
    replies: Vec<(JobTag, PlanReply)>,
    /// Set if the replicas were brought up to date in this round.
    followed: bool,
    /// Set if the last round waits for views that shards are about to publish.
    awaits_views: bool,
    metrics: PlannerMetrics,
    budget: PlannerBudget,
    work: PlannerWork,
    /// The units spent before this round.
    round_began_at: u64,
    answers: Vec<(u64, PortReply)>,
    /// The time of the last round.
    now: Time,
}

impl Planner {
    /// Creates a planner over `shards`: for each shard an empty replica ([`Shard::replica`]) and a reader of
    /// its views.
    #[must_use]
    pub fn new(config: PlannerConfig, port: Port, shards: Vec<(Shard, ViewReader)>) -> Self {
        let copies = shards.into_iter().map(|(shard, reader)| Replica::new(shard, reader)).collect();
        let seed = config.seed;
        Self {
            config,
            port,
            replicas: Replicas::new(copies, seed),
            keeper: None,
            flights: Slab::new(),
            outbox: VecDeque::new(),
            queue: JobQueue::default(),
            groups: BTreeMap::new(),
            changed: None,
            journal: None,
            explanations: WaitExplanations::default(),
            early: Vec::new(),
            origins: BTreeMap::new(),
            incomplete: BTreeSet::new(),
            seeking: BTreeSet::new(),
            growing: BTreeSet::new(),
            tried_at: Vec::new(),
            grew: false,
            growing_from: None,
            retries: VecDeque::new(),
            uncertain: Vec::new(),
            undecided: VecDeque::new(),
            verdicts: Verdicts::default(),
            capped: Capped::default(),
            released: 0,
            stirred: BTreeSet::new(),
            urgent: BTreeSet::new(),
            urgent_count: 0,
            woken: VecDeque::new(),
            is_urgent_next: false,
            watched: FixedMap::default(),
            next_watch: WATCH_BIT,
            watch_answers: VecDeque::new(),
            watch_steps: VecDeque::new(),
            watching: 0,
            given_up: false,
            deadlines: Timers::default(),
            asked: FixedMap::default(),
            tickets: Arc::default(),
            ending: Timers::default(),
            ticket_queue: BTreeMap::new(),
            next_turn: 0,
            ticket: None,
            ticket_moved: false,
            next_group: 0,
            next_statement: 0,
            replies: Vec::new(),
            followed: false,
            awaits_views: false,
            metrics: PlannerMetrics::default(),
            budget: PlannerBudget::default(),
            work: PlannerWork::default(),
            round_began_at: 0,
            answers: Vec::new(),
            now: Time::default(),
        }
    }

    /// Sets the tickets that all planners share.
    pub(crate) fn set_tickets(&mut self, tickets: Arc<Tickets>) {
        self.tickets = tickets;
    }

    /// Sets the bounds of its work.
    pub fn set_budget(&mut self, budget: PlannerBudget) {
        self.budget = budget;
    }

    /// Returns the bounds of its work.
    #[must_use]
    pub fn budget(&self) -> PlannerBudget {
        self.budget
    }

    /// Queues a job from a client. `client` names the port by its index, and the client. The job begins in
    /// its client's turn and is answered by [`take_replies`](Self::take_replies).
    pub fn submit(&mut self, client: (usize, ClientKey), job: QueuedJob, now: Time) {
        match job.job {
            // It plans nothing, so it begins at once. A later cancel must not overtake it: a client that
            // resumes would then ask for the group again.
            PlanJob::RemoveGroup(id) if self.groups.get(&id).is_some_and(Group::is_being_created) => {
                self.begin(client, job, now);
            }
            _ => self.queue.push(client, job),
        }
    }

    /// Begins a job, unless it is too late.
    fn begin(&mut self, client: PortClient, QueuedJob { tag, job, due }: QueuedJob, now: Time) {
        if due.is_missed(now) {
            return self.reply(tag, PlanReply::Late);
        }
        match job {
            PlanJob::CreateGroup(spec) => self.create_group((tag, client, now), spec, now),
            PlanJob::GrowGroup(id, requests, until) => {
                self.grow_group((tag, client, now), id, (&requests, until), now);
            }
            PlanJob::Resume(since, job) => match *job {
                PlanJob::CreateGroup(spec) => self.create_group((tag, client, since), spec, now),
                PlanJob::GrowGroup(id, requests, until) => {
                    self.grow_group((tag, client, since), id, (&requests, until), now);
                }
                PlanJob::Place(placement) => self.queue_direct((tag, client), *placement, (since, due)),
                job => panic!("only placements, and what creates a group or lets it grow, wait: {job:?}"),
            },
            PlanJob::ShrinkGroup(id, indexes) => self.shrink_group(tag, id, &indexes, now),
            PlanJob::RemoveGroup(id) => self.remove_group(tag, id, now),
            PlanJob::GroupStatus(id) => self.group_status(tag, id),
            PlanJob::ListGroups(after, tenant, limit) => self.list_groups(tag, after, tenant, limit),
            PlanJob::ListWaiting(_, after) => self.list_waiting(tag, after),
            PlanJob::Explain(ask) => self.explain_wait(tag, client, *ask),
            PlanJob::ExplainInQueue(wait, since) => self.explain_direct_wait(tag, &wait, since),
            PlanJob::CountGroups(asked) => self.count_groups(tag, &asked),
            PlanJob::Submit(submit) => self.submit_operations(tag, *submit),
            PlanJob::Jobs(request) => self.handle_jobs(tag, client, *request, now),
            PlanJob::Place(placement) => self.queue_direct((tag, client), *placement, (now, due)),
            PlanJob::PlaceBatch(parts) => self.queue_direct_batch((tag, client), parts, (now, due)),
        }
    }

    /// Returns a check whether a job may begin. Jobs that may begin statements wait while too many are in
    /// flight.
    fn may_begin(&self) -> impl Fn(&PlanJob) -> bool + use<> {
        let has_room = self.flights.len() < PLANNER_FLIGHTS_MAX && self.watch_steps.len() < WATCH_STEPS_MAX;
        move |job| has_room || !job.plans()
    }

    /// Begins the next job and charges its client. Returns whether there was one.
    fn begin_next(&mut self, now: Time) -> bool {
        let may_begin = self.may_begin();
        let keeps_jobs = self.keeps_jobs();
        let is_next = |job: &PlanJob| may_begin(job) && (!keeps_jobs || job.is_about_groups());
        let Some((client, job)) = self.queue.next(is_next) else { return false };
        let before = self.replicas.meter.spent();
        self.replicas.meter.charge(job.job.units());
        self.begin(client, job, now);
        self.queue.charge(client, self.replicas.meter.spent() - before);
        true
    }

    /// The first half of a round: takes the shards' answers. Take jobs after this, when the grants are known.
    fn take_answers(&mut self, now: Time) -> usize {
        self.now = now;
        let mut answers = std::mem::take(&mut self.answers);
        self.port.poll(now, |tag, reply| answers.push((tag, reply)));
        let count = answers.len();
        for (tag, reply) in answers.drain(..) {
            match reply {
                PortReply::Room(shard) => self.room_found(tag, shard),
                PortReply::Plan(page) => self.groups_listed(tag, reply_of(*page)),
                reply => self.handle_answer(tag, reply_of(reply), now),
            }
        }
        self.answers = answers;
        if count > 0 {
            self.retries.extend(self.uncertain.drain(..));
        }
        count
    }

    /// Calls `step` until it returns `false` or `units` are spent, at most `count` times. A first step is
    /// always taken unless `count` is 0.
    fn within(&mut self, units: u64, count: usize, mut step: impl FnMut(&mut Self) -> bool) {
        let end = self.replicas.meter.spent() + units;
        for _ in 0..count {
            if !step(self) || self.replicas.meter.spent() >= end {
                break;
            }
        }
    }

    /// Tries the next retrying group. Returns whether there was one.
    fn try_again(&mut self, now: Time) -> bool {
        let Some(id) = self.retries.pop_front() else { return false };
        let state = self.groups.get(&id).map(|group| &group.state);
        if matches!(state, Some(State::Retrying | State::Uncertain { .. })) {
            self.try_group(id, now);
        }
        true
    }

    /// The second half: follows the shards' views, begins jobs, retries waiting work and creates statements. Returns
    /// the number of new statements. Each kind of work has a share of the round's units, so that ready commands leave
    /// in time. The next round continues with the rest.
    fn advance(&mut self, now: Time) -> usize {
        if self.keeps_jobs() {
            return self.advance_jobs(now);
        }
        let sent = self.metrics.statements;
        self.awaits_views = !self.catch_up();
        if self.awaits_views {
            return 0;
        }
        self.serve_groups(now);
        usize::try_from(self.metrics.statements - sent).unwrap_or(usize::MAX)
    }

    /// Goes on with groups and statements, on replicas that are up to date.
    fn serve_groups(&mut self, now: Time) {
        self.followed = true;
        let share = self.budget.round / 4;
        self.end_again(now);
        self.end_overdue(now);
        self.within(share, self.retries.len(), |planner| planner.try_again(now));
        self.within(share, usize::MAX, |planner| planner.begin_next(now));
        self.within(share, self.undecided.len(), |planner| planner.decide_next(now));
        self.within(share.min(EXPLAIN_UNITS_PER_ROUND), usize::MAX, Self::explain_next_wait);
        self.look_at_caps();
        self.look_for_room();
        self.within(share, GROUP_RETRIES_PER_ROUND, |planner| planner.retry_next(now));
        self.serve_ticket(now);
        // Capacity that a ticket reserved or that others released may be free now.
        self.within(share, self.retries.len(), |planner| planner.try_again(now));
        self.followed = false;
        self.work.units = self.replicas.meter.spent();
        let of_round = self.work.units - self.round_began_at;
        self.work.most_per_round = self.work.most_per_round.max(of_round);
        self.round_began_at = self.work.units;
    }

    /// Returns whether the last round left work for the next one.
    pub(crate) fn has_left_over(&self) -> bool {
        if self.keeps_jobs() {
            return self.has_jobs_left() && !self.awaits_views;
        }
        (self.has_group_work() || self.queue.has_ready(self.may_begin())) && !self.awaits_views
    }

    /// Returns whether the last round left work about groups for the next one, but for jobs that have not begun.
    fn has_group_work(&self) -> bool {
        !self.retries.is_empty()
            || !self.undecided.is_empty()
            || !self.urgent.is_empty()
            || self.grew
            || self.growing_from.is_some()
            || !self.woken.is_empty()
            || !self.stirred.is_empty()
            || self.explanations.is_counting()
            || self.capped.has_some_left()
    }

    /// Returns whether a statement is in flight or to be retried, or a job is queued.
    #[must_use]
    pub fn is_committing(&self) -> bool {
        let has_work = !self.flights.is_empty() || !self.queue.is_empty() || !self.ending.is_empty();
        has_work || !self.explanations.is_empty() || self.is_keeping()
    }

    /// Returns whether the last round waits for views that shards are about to publish. It planned nothing.
    #[must_use]
    pub fn awaits_views(&self) -> bool {
        self.awaits_views
    }

    /// Returns the sequence of the view of each shard that the last round used.
    pub fn view_sequences(&self) -> impl Iterator<Item = u64> {
        self.replicas.copies.iter().map(Replica::sequence)
    }

    /// Returns whether there is no new input and no work left.
    pub fn is_idle(&mut self) -> bool {
        let may_serve = self.may_serve_groups();
        let grew = may_serve && self.wants_growth() && self.port.growth() != self.tried_at;
        let given_up = may_serve && self.given_up;
        let ended =
            !self.keeps_jobs() && self.wants_ends() && self.replicas.copies.iter().any(Replica::has_ended);
        let may_advance = may_serve && self.is_called() || grew || given_up || self.has_left_over() || ended;
        self.outbox.is_empty()
            && self.watch_answers.is_empty()
            && self.watch_steps.is_empty()
            && self.replies.is_empty()
            && (self.awaits_views || !may_advance)
            && !self.has_nodes_plan()
            && self.port.is_idle()
    }

    /// Returns whether freed capacity matters to this planner. If so, shards should ring for it.
    #[must_use]
    pub fn wants_growth(&self) -> bool {
        !self.growing.is_empty() || self.ticket.is_some()
    }

    /// Returns whether ended bundles matter to this planner. If so, shards should ring for them.
    #[must_use]
    pub fn wants_ends(&self) -> bool {
        !self.groups.is_empty() || self.wants_task_ends()
    }

    /// Returns the time at which the first waiting group is given up or something is retried. `None` if there is none,
    /// or while it waits for views.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        if self.awaits_views {
            return None;
        }
        let waiting = self.deadlines.first().map(|(until, _)| until);
        let ending = self.ending.first().map(|(due, _)| due);
        let of_groups = waiting.into_iter().chain(self.ticket_deadline()).chain(ending).min();
        of_groups.filter(|_| self.may_serve_groups()).into_iter().chain(self.jobs_deadline()).min()
    }

    /// Takes the replies since the last call.
    pub fn take_replies(&mut self) -> std::vec::Drain<'_, (JobTag, PlanReply)> {
        self.replies.drain(..)
    }

    /// Returns the counters of its statements.
    #[must_use]
    pub fn metrics(&self) -> &PlannerMetrics {
        &self.metrics
    }

    /// Returns the counters of its work.
    #[must_use]
    pub fn work(&self) -> PlannerWork {
        self.work
    }

    /// Returns the number of groups that it keeps.
    #[must_use]
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    fn reply(&mut self, tag: JobTag, reply: PlanReply) {
        self.asked.remove(&tag);
        self.replies.push((tag, reply));
    }

    /// Creates the id of a new group. Its number modulo the number of planners is this planner's number, or it is in a queue.
    fn next_group_id(&mut self, tenant: TenantId) -> GroupId {
        let PlannerConfig { planners, number: own, .. } = self.config;
        let number = if self.keeps_jobs() {
            GroupId::IN_QUEUE | self.next_group
        } else {
            self.next_group * u64::from(planners) + u64::from(own)
        };
        self.next_group += 1;
        GroupId { incarnation: self.config.incarnation, number, tenant }
    }
}
