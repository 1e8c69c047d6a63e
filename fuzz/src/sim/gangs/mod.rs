//! Placement groups and statements of others: what callers of planners ask, and what they were promised.
//!
//! It believes nothing but answers, and judges them against the shards' books and against what was asked.

mod answers;
mod asks;

pub(super) use answers::Bench;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use wharf_core::group::{GroupSpec, GroupView, PlanJob, Submit};
use wharf_core::ids::{AllocationId, GroupId};
use wharf_core::request::PlacementRequest;
use wharf_core::router::{Port, PortReply, PortRequest, Tag};
use wharf_core::shard::Command;
use wharf_core::time::Time;

use super::checkers::groups::placed;
use super::checkers::promises::Promise;
use super::checkers::rules::{Requests, Round};
use super::choices::Choices;
use super::facts::Facts;

/// Most groups, and most jobs under way.
const GROUPS_MAX: usize = 6;

/// Clients of which planners take jobs in turn.
const CLIENTS: u64 = 3;

/// What was asked.
#[derive(Debug)]
enum Asked {
    /// A group; whether it was taken back.
    Create(Arc<GroupSpec>, bool),
    /// More bundles; whether they may wait, and whether they were taken back.
    Grow(GroupId, Vec<Arc<PlacementRequest>>, Waits),
    Shrink(GroupId, Vec<u32>),
    Remove(GroupId),
    Status(GroupId),
    List,
    Submit(Submit),
    /// A placement into that bundle.
    Into(AllocationId),
    /// The end of a bundle, of what is inside one, or of what a statement was granted.
    Release(AllocationId),
}

/// Whether what is asked for may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    No,
    Yes,
    /// It was taken back since.
    NoMore,
}

/// A group that its caller knows.
struct Known {
    spec: Arc<GroupSpec>,
    /// As asked for.
    requests: Requests,
    /// As it was shown last.
    view: GroupView,
    /// Growth was under way when the service stopped: bundles may be there that nobody was told of.
    is_vague: bool,
}

/// Asks planners.
pub(super) struct Gangs {
    port: Port,
    last: Tag,
    /// Under way.
    asked: BTreeMap<Tag, Asked>,
    /// Answers on their way, each with the round in which a planner gave it.
    inbox: VecDeque<(Tag, PortReply, Option<Arc<Round>>)>,
    groups: BTreeMap<GroupId, Known>,
    /// What planners keep, by the last list of them.
    kept: BTreeSet<GroupId>,
    /// What is placed into bundles, and into which.
    inside: BTreeMap<AllocationId, AllocationId>,
    /// What statements were granted, or claim.
    pub(super) promised: BTreeMap<AllocationId, Promise>,
    claims: BTreeSet<AllocationId>,
    /// Allocations of bundles of groups that are gone, or that were taken out.
    pub(super) ended: BTreeSet<AllocationId>,
    /// What it was told is released.
    pub(super) released: BTreeSet<AllocationId>,
    /// Facts of a while ago.
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
            promised: BTreeMap::new(),
            claims: BTreeSet::new(),
            ended: BTreeSet::new(),
            released: BTreeSet::new(),
            seen: Vec::new(),
        }
    }

    /// The same callers after a start: what stood stands, what had no answer was not done, or in part.
    pub(super) fn go_on(&mut self, port: Port) {
        for asked in std::mem::take(&mut self.asked).into_values() {
            if let Asked::Grow(group, ..) = asked
                && let Some(known) = self.groups.get_mut(&group)
            {
                known.is_vague = true;
            }
        }
        assert!(self.inbox.is_empty(), "what was answered before the stop was taken");
        self.port = port;
    }

    /// Whether nothing is under way, but groups that may wait.
    pub(super) fn is_idle(&self) -> bool {
        let waits = |asked: &Asked| match asked {
            Asked::Create(..) => true,
            Asked::Grow(_, _, waits) => *waits != Waits::No,
            _ => false,
        };
        self.inbox.is_empty() && self.asked.values().all(waits)
    }

    /// Jobs without an answer.
    pub(super) fn unanswered(&self) -> usize {
        self.asked.len() + self.inbox.len()
    }

    /// Whether there is that group.
    pub(super) fn has(&self, group: GroupId) -> bool {
        self.groups.contains_key(&group)
    }

    /// The groups that callers know.
    pub(super) fn ids(&self) -> impl Iterator<Item = GroupId> {
        self.groups.keys().copied()
    }

    /// The groups as they were shown last.
    pub(super) fn views(&self) -> impl Iterator<Item = &GroupView> {
        self.groups.values().map(|known| &known.view)
    }

    /// A group as it was shown last.
    pub(super) fn view(&self, group: GroupId) -> Option<&GroupView> {
        self.groups.get(&group).map(|known| &known.view)
    }

    /// What planners said last that they keep.
    pub(super) fn kept(&self) -> &BTreeSet<GroupId> {
        &self.kept
    }

    /// Whether it was granted this by a statement, as an allocation or as a claim.
    pub(super) fn owns(&self, id: AllocationId) -> bool {
        self.promised.contains_key(&id) || self.claims.contains(&id)
    }

    /// What is placed into bundles, and into which.
    pub(super) fn inside(&self) -> &BTreeMap<AllocationId, AllocationId> {
        &self.inside
    }

    fn ask(&mut self, asked: Asked, request: PortRequest, now: Time) {
        self.last += 1;
        let at_once = self.port.submit(self.last, request, now);
        assert!(matches!(at_once, Ok(None)), "few jobs are under way");
        self.asked.insert(self.last, asked);
        self.port.flush();
    }

    /// Ends an allocation or a claim: from now on it is not counted on.
    fn release(&mut self, id: AllocationId, now: Time) {
        self.promised.remove(&id);
        self.claims.remove(&id);
        self.inside.remove(&id);
        self.ask(Asked::Release(id), PortRequest::Release(id), now);
    }

    fn plan(&mut self, asked: Asked, job: PlanJob, now: Time) {
        // Several clients ask; what is asked about one group is asked by one.
        let client = match &asked {
            Asked::Grow(group, ..)
            | Asked::Shrink(group, _)
            | Asked::Remove(group)
            | Asked::Status(group) => group.number % CLIENTS,
            _ => self.last % CLIENTS,
        };
        self.ask(asked, PortRequest::PlanFor(client, job), now);
    }

    /// Looks at the shards, to plan on it later.
    pub(super) fn look(&mut self, facts: &[Facts]) {
        self.seen = facts.to_vec();
    }

    /// The next thing that is asked.
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
            let spec = Arc::new(asks::spec(choices, now));
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
                // Seldom a bundle of a group that stands: whoever does that takes it out of its group.
                let from = if inside.is_empty() || choices.one_in(8) { bundles } else { inside };
                if !from.is_empty() {
                    let id = *choices.pick(&from);
                    self.release(id, now);
                }
            }
            _ => {
                let bundles: Vec<AllocationId> = placed(&self.groups[&group].view).map(|b| b.2).collect();
                if !bundles.is_empty() {
                    let bundle = *choices.pick(&bundles);
                    let command = Command::PlaceInto { bundle, demand: Box::new(asks::demand(choices)) };
                    self.ask(Asked::Into(bundle), PortRequest::Partition(bundle.partition, command), now);
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

    /// Takes back a group, or what one grows by, that is not placed yet.
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

    /// Asks for every group, to see it as it stands, and for what planners keep.
    pub(super) fn look_at_all(&mut self, now: Time) {
        if self.port.planner_count() == 0 {
            return;
        }
        for group in self.groups.keys().copied().collect::<Vec<_>>() {
            self.plan(Asked::Status(group), PlanJob::GroupStatus(group), now);
        }
        self.plan(Asked::List, PlanJob::ListGroups(None, u16::MAX), now);
    }

    /// Ends every group, and gives back what statements were granted.
    pub(super) fn give_back(&mut self, now: Time) {
        let own: BTreeSet<AllocationId> = self.promised.keys().chain(&self.claims).copied().collect();
        own.into_iter().for_each(|id| self.release(id, now));
        if self.port.planner_count() > 0 {
            for group in self.groups.keys().copied().collect::<Vec<_>>() {
                self.plan(Asked::Remove(group), PlanJob::RemoveGroup(group), now);
            }
        }
    }

    /// Answers leave the rings: those of planners with the round in which they were given.
    pub(super) fn collect(&mut self, now: Time, round: Option<&Arc<Round>>) {
        let inbox = &mut self.inbox;
        self.port.poll(now, |tag, reply| inbox.push_back((tag, reply, round.cloned())));
    }
}
