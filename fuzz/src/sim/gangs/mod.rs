//! Callers of planners: the placement groups and statements that they request, and the promises they received.
//!
//! They trust only answers, and judge them against the shards' books and against their own requests.

mod answers;
mod asks;
mod crash;

pub(super) use answers::Bench;
pub(super) use crash::view_of;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use wharf_core::group::{ClientKey, GroupSpec, GroupView, PlanJob, Submit};
use wharf_core::ids::{AllocationId, GroupId};
use wharf_core::journal::JournalPort;
use wharf_core::request::PlacementRequest;
use wharf_core::router::{Port, PortReply, PortRequest, Tag};
use wharf_core::shard::Command;
use wharf_core::time::Time;

use super::checkers::groups::placed;
use super::checkers::promises::Promise;
use super::checkers::queues::QUEUE_OF_GROUPS;
use super::checkers::rules::{Requests, Round};
use super::choices::Choices;
use super::facts::Facts;

/// The highest number of groups, and of jobs in flight.
const GROUPS_MAX: usize = 6;

/// The number of clients. Planners take their jobs in turn.
const CLIENTS: u64 = 3;

/// A request.
#[derive(Debug)]
enum Asked {
    /// A group, and whether it was cancelled.
    Create(Arc<GroupSpec>, bool),
    /// More bundles, and whether they may wait.
    Grow(GroupId, Vec<Arc<PlacementRequest>>, Waits),
    Shrink(GroupId, Vec<u32>),
    Remove(GroupId),
    Status(GroupId),
    List,
    Submit(Submit),
    /// A placement into one of some bundles.
    Into,
    /// The release of a bundle, of an allocation inside one, or of a statement's allocation.
    Release(AllocationId),
}

/// The waiting state of requested bundles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    No,
    Yes,
    /// The request was cancelled.
    NoMore,
}

/// A group that its caller knows.
struct Known {
    spec: Arc<GroupSpec>,
    /// The bundles as requested.
    requests: Requests,
    /// The group as last shown.
    view: GroupView,
    /// Set when growth was in progress as the service stopped. The group may have bundles that no caller was
    /// told of.
    is_vague: bool,
}

/// A received answer.
struct Received {
    tag: Tag,
    reply: PortReply,
    /// The round in which a planner gave it.
    round: Option<Arc<Round>>,
    /// The position of the journal that must be durable before its caller is told.
    position: u64,
}

/// Sends jobs to planners.
pub(super) struct Gangs {
    port: Port,
    last: Tag,
    /// Jobs in flight.
    asked: BTreeMap<Tag, Asked>,
    /// Received answers.
    inbox: VecDeque<Received>,
    groups: BTreeMap<GroupId, Known>,
    /// The groups that planners keep, according to the last list.
    kept: BTreeSet<GroupId>,
    /// Allocations inside bundles, each with its bundle.
    inside: BTreeMap<AllocationId, AllocationId>,
    /// Those of them whose caller was told.
    told_inside: BTreeSet<AllocationId>,
    /// Allocations that statements were granted. `claims` has the promised ids of claims.
    pub(super) promised: BTreeMap<AllocationId, Promise>,
    claims: BTreeSet<AllocationId>,
    /// Allocations of bundles that were taken out of their group, or whose group is gone.
    pub(super) ended: BTreeSet<AllocationId>,
    /// Allocations that were reported as released.
    pub(super) released: BTreeSet<AllocationId>,
    /// Facts from some time ago.
    seen: Vec<Facts>,
}

impl Gangs {
    pub(super) fn new(port: Port) -> Self {
        Self {
            port,
            last: 0,
            asked: BTreeMap::new(),
            inbox: VecDeque::new(),
            groups: BTreeMap::new(),
            kept: BTreeSet::new(),
            inside: BTreeMap::new(),
            told_inside: BTreeSet::new(),
            promised: BTreeMap::new(),
            claims: BTreeSet::new(),
            ended: BTreeSet::new(),
            released: BTreeSet::new(),
            seen: Vec::new(),
        }
    }

    /// Continues the same callers after a start. Groups remain. Growth without an answer was done fully, partly
    /// or not.
    pub(super) fn go_on(&mut self, port: Port) {
        for asked in std::mem::take(&mut self.asked).into_values() {
            if let Asked::Grow(group, ..) | Asked::Shrink(group, _) = asked
                && let Some(known) = self.groups.get_mut(&group)
            {
                known.is_vague = true;
            }
        }
        assert!(self.inbox.is_empty(), "what was answered before the stop was taken");
        self.port = port;
    }

    /// Returns whether nothing is in flight except groups that may wait.
    pub(super) fn is_idle(&self) -> bool {
        let waits = |asked: &Asked| match asked {
            Asked::Create(..) => true,
            Asked::Grow(_, _, waits) => *waits != Waits::No,
            _ => false,
        };
        self.inbox.is_empty() && self.asked.values().all(waits)
    }

    /// Returns the jobs without an answer.
    pub(super) fn asked(&self) -> impl std::fmt::Debug {
        self.asked.values().collect::<Vec<_>>()
    }

    /// Returns the number of jobs without an answer.
    pub(super) fn unanswered(&self) -> usize {
        self.asked.len() + self.inbox.len()
    }

    /// Returns the number of answers that wait until the journal is durable.
    pub(super) fn held_answers(&self) -> usize {
        self.inbox.len()
    }

    /// Returns whether the group is known.
    pub(super) fn has(&self, group: GroupId) -> bool {
        self.groups.contains_key(&group)
    }

    /// Returns the ids of the known groups.
    pub(super) fn ids(&self) -> impl Iterator<Item = GroupId> {
        self.groups.keys().copied()
    }

    /// Returns the groups as last shown.
    pub(super) fn views(&self) -> impl Iterator<Item = &GroupView> {
        self.groups.values().map(|known| &known.view)
    }

    /// Returns a group as last shown.
    pub(super) fn view(&self, group: GroupId) -> Option<&GroupView> {
        self.groups.get(&group).map(|known| &known.view)
    }

    /// Returns the groups that planners last said they keep.
    pub(super) fn kept(&self) -> &BTreeSet<GroupId> {
        &self.kept
    }

    /// Returns whether a statement granted this id, as an allocation or as a claim.
    pub(super) fn owns(&self, id: AllocationId) -> bool {
        self.promised.contains_key(&id) || self.claims.contains(&id)
    }

    /// Returns the allocations inside bundles, each with its bundle.
    pub(super) fn inside(&self) -> &BTreeMap<AllocationId, AllocationId> {
        &self.inside
    }

    /// Records a placement into the bundle that the books name for it.
    pub(super) fn placed_inside(&mut self, id: AllocationId, facts: &Facts) {
        let mut records = facts.partitions.iter().flat_map(|partition| &partition.inside);
        let record = records.find(|record| record.id == id).expect("it was just placed");
        self.inside.insert(id, record.bundle);
    }

    fn ask(&mut self, asked: Asked, request: PortRequest, now: Time) {
        self.last += 1;
        let at_once = self.port.submit(self.last, request, now);
        assert!(matches!(at_once, Ok(None)), "few jobs are under way");
        self.asked.insert(self.last, asked);
        self.port.flush();
    }

    /// Releases an allocation or a claim. From now on no promise covers it.
    fn release(&mut self, id: AllocationId, now: Time) {
        self.promised.remove(&id);
        self.claims.remove(&id);
        self.inside.remove(&id);
        self.ask(Asked::Release(id), PortRequest::Release(id), now);
    }

    fn plan(&mut self, asked: Asked, job: PlanJob, now: Time) {
        // Jobs come from several clients, but all jobs about one group come from the same client.
        let client = match &asked {
            Asked::Grow(group, ..)
            | Asked::Shrink(group, _)
            | Asked::Remove(group)
            | Asked::Status(group) => group.number % CLIENTS,
            _ => self.last % CLIENTS,
        };
        self.ask(asked, PortRequest::PlanFor(ClientKey::of_operator(client), job, Time::NEVER), now);
    }

    /// Looks at the shards, to plan on these facts later.
    pub(super) fn look(&mut self, facts: &[Facts]) {
        self.seen = facts.to_vec();
    }

    /// Sends the next request. Returns a description of it.
    pub(super) fn act(&mut self, choices: &mut Choices<'_>, now: Time) -> Option<String> {
        let last = self.last;
        self.choose(choices, now);
        (self.last > last).then(|| format!("asks {:?}", self.asked[&self.last]))
    }

    fn choose(&mut self, choices: &mut Choices<'_>, now: Time) {
        if self.port.planner_count() == 0 || self.asked.len() >= GROUPS_MAX {
            return;
        }
        let known: Vec<GroupId> = self.groups.keys().copied().collect();
        let create = known.is_empty() || (known.len() < GROUPS_MAX && choices.below(3) == 0);
        if create && choices.below(4) != 0 {
            let mut spec = asks::spec(choices, now);
            if self.port.keeps_jobs() && choices.one_in(3) {
                spec.queue = Some(QUEUE_OF_GROUPS.into());
            }
            let spec = Arc::new(spec);
            return self.plan(Asked::Create(Arc::clone(&spec), false), PlanJob::CreateGroup(spec), now);
        }
        match choices.below(16) {
            0..5 => self.submit(choices, now),
            5 => self.take_back(choices),
            number if !known.is_empty() => {
                let group = *choices.pick(&known);
                self.change(group, number, choices, now);
            }
            _ => {}
        }
    }

    fn change(&mut self, group: GroupId, number: u64, choices: &mut Choices<'_>, now: Time) {
        match number {
            6 | 7 => {
                let requests: Vec<_> = (0..=choices.below(2)).map(|_| asks::bundle(choices)).collect();
                let until = asks::until(choices, now);
                let waits = if until.is_some() { Waits::Yes } else { Waits::No };
                let job = PlanJob::GrowGroup(group, requests.clone(), until);
                self.plan(Asked::Grow(group, requests, waits), job, now);
            }
            8 => {
                let indexes = vec![choices.below(4) as u32];
                self.plan(Asked::Shrink(group, indexes.clone()), PlanJob::ShrinkGroup(group, indexes), now);
            }
            9 | 10 => self.plan(Asked::Remove(group), PlanJob::RemoveGroup(group), now),
            11 => self.plan(Asked::Status(group), PlanJob::GroupStatus(group), now),
            12 => {
                let inside: Vec<AllocationId> = self.inside.keys().copied().collect();
                let bundles: Vec<AllocationId> = placed(&self.groups[&group].view).map(|b| b.2).collect();
                // Rarely a bundle of an existing group, because this takes the bundle out of its group.
                let from = if inside.is_empty() || choices.one_in(8) { bundles } else { inside };
                if !from.is_empty() {
                    let id = *choices.pick(&from);
                    self.release(id, now);
                }
            }
            _ => {
                let all: Vec<AllocationId> = placed(&self.groups[&group].view).map(|b| b.2).collect();
                if !all.is_empty() {
                    let first = *choices.pick(&all);
                    // Bundles of other shards are unknown at the shard of the first one.
                    let others = all.iter().copied().filter(|&bundle| bundle != first && choices.one_in(2));
                    let bundles = std::iter::once(first).chain(others).collect();
                    let demand = Box::new(asks::demand(choices));
                    let command = Command::PlaceInto { bundles, demand };
                    self.ask(Asked::Into, PortRequest::Partition(first.partition, command), now);
                }
            }
        }
    }

    fn submit(&mut self, choices: &mut Choices<'_>, now: Time) {
        let own: Vec<AllocationId> = self.promised.keys().chain(&self.claims).copied().collect();
        if own.len() > GROUPS_MAX || choices.one_in(5) {
            if !own.is_empty() {
                let id = *choices.pick(&own);
                self.release(id, now);
            }
            return;
        }
        if let Some(submit) = asks::submit(&self.seen, &own, choices) {
            self.plan(Asked::Submit(submit.clone()), PlanJob::Submit(Box::new(submit)), now);
        }
    }

    /// Cancels a group, or growth of one, that is not placed yet.
    fn take_back(&mut self, choices: &mut Choices<'_>) {
        let open = self.asked.iter_mut().filter_map(|(&tag, asked)| match asked {
            Asked::Create(_, false) | Asked::Grow(_, _, Waits::Yes) => Some((tag, asked)),
            _ => None,
        });
        let mut open: Vec<_> = open.collect();
        if !open.is_empty() {
            let at = choices.place(open.len());
            let (tag, asked) = &mut open[at];
            match asked {
                Asked::Create(_, taken_back) => *taken_back = true,
                Asked::Grow(_, _, waits) => *waits = Waits::NoMore,
                _ => unreachable!("just chosen"),
            }
            let tag = *tag;
            self.port.cancel_plan(tag);
            self.port.flush();
        }
    }

    /// Requests the status of every group and the list of groups that planners keep.
    pub(super) fn look_at_all(&mut self, now: Time) {
        if self.port.planner_count() == 0 {
            return;
        }
        for group in self.groups.keys().copied().collect::<Vec<_>>() {
            self.plan(Asked::Status(group), PlanJob::GroupStatus(group), now);
        }
        self.plan(Asked::List, PlanJob::ListGroups(None, None, u16::MAX), now);
    }

    /// Removes every group and releases what statements were granted.
    pub(super) fn give_back(&mut self, now: Time) {
        let own: BTreeSet<AllocationId> = self.promised.keys().chain(&self.claims).copied().collect();
        own.into_iter().for_each(|id| self.release(id, now));
        if self.port.planner_count() > 0 {
            for group in self.groups.keys().copied().collect::<Vec<_>>() {
                self.plan(Asked::Remove(group), PlanJob::RemoveGroup(group), now);
            }
        }
    }

    /// Takes answers from the rings. Answers of planners are stored with the round in which they were given.
    pub(super) fn collect(&mut self, now: Time, round: Option<&Arc<Round>>) {
        let inbox = &mut self.inbox;
        let position = self.port.journal().map_or(0, JournalPort::position);
        self.port.poll(now, |tag, reply| {
            inbox.push_back(Received { tag, reply, round: round.cloned(), position });
        });
    }
}
