//! Explains why a placement or a group waits, a page of nodes per step.
//!
//! Nodes are counted on the replicas, for each of the different requests that have no place. Its client pays for what is
//! looked at, as for other work. Then a shard counts the placements that come first, page by page, and at last the port asks
//! all planners for their groups that do. Nothing of it is noted while things wait.

mod judge;

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use super::life::State;
use super::queue::PortClient;
use super::{JobTag, Planner};
use crate::group::{
    CountGroups, ExplainWait, GroupsCounted, PlanRejection, PlanReply, Spreading, Strategy, TopologyRule,
    WaitExplained, WaitExplanation, WaitSubject, WaitsFor,
};
use crate::ids::{GroupId, NodeId};
use crate::limits::{EXPLAINED_REQUESTS_MAX, WAITING_LOOKS_PER_PAGE};
use crate::replica::Counting;
use crate::router::Tag;
use crate::shard::{Command, CountTurns, TurnsCounted, TurnsFrom};
use crate::time::Time;
use judge::{Class, Lack};

/// The tag of pages of the count of placements. One is asked for at a time.
pub(super) const TURNS_TAG: Tag = Tag::MAX - 3;

/// An explanation for which nodes are counted.
struct Asked {
    tag: JobTag,
    client: PortClient,
    ask: ExplainWait,
    classes: Vec<Class>,
    /// The class for which nodes are counted, and what is counted.
    at: usize,
    counting: Option<Counting>,
}

/// Explanations that are not answered.
#[derive(Default)]
pub(super) struct WaitExplanations {
    /// Those for which nodes are counted, in turn.
    counting: VecDeque<Asked>,
    /// Those for which a shard counts what comes first. It was asked about the first of them.
    placing: VecDeque<(JobTag, Box<WaitExplanation>)>,
}

impl WaitExplanations {
    /// Returns whether a round can go on with some.
    pub(super) fn is_counting(&self) -> bool {
        !self.counting.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counting.is_empty() && self.placing.is_empty()
    }
}

impl Planner {
    /// Begins to explain why something waits.
    pub(super) fn explain_wait(&mut self, tag: JobTag, client: PortClient, ask: ExplainWait) {
        match self.classes(&ask) {
            Err(rejection) => self.reply(tag, PlanReply::Explained(Err(rejection))),
            Ok(classes) => {
                let counting = classes.first().map(|class| Counting::new(&class.request));
                let asked = Asked { tag, client, ask, classes, at: 0, counting };
                self.explanations.counting.push_back(asked);
            }
        }
    }

    /// Returns the different requests that have no place. None, if nothing waits.
    fn classes(&mut self, ask: &ExplainWait) -> Result<Vec<Class>, PlanRejection> {
        let (id, bundle) = match &ask.of {
            WaitSubject::Placement { request, .. } => {
                return Ok(vec![Class::new(0, Arc::new((**request).clone()))]);
            }
            &WaitSubject::Group { id, bundle } => (id, bundle),
        };
        let group = self.groups.get(&id).filter(|_| ask.tenant.is_none_or(|tenant| tenant == id.tenant));
        let group = group.ok_or(PlanRejection::UnknownGroup(id))?;
        let named = bundle.map(|index| group.bundle(index).ok_or(PlanRejection::UnknownBundle(id, index)));
        let named = named.transpose()?.map(|bundle| &bundle.request);
        self.replicas.meter.charge(group.bundles.len() as u64);
        let mut classes: Vec<Class> = Vec::new();
        if !group.state.seeks() {
            return Ok(classes);
        }
        for bundle in group.open() {
            // Equal requests of one group are shared.
            match classes.iter_mut().find(|class| Arc::ptr_eq(&class.request, &bundle.request)) {
                Some(class) => class.count += 1,
                None => {
                    let is_named = named.is_some_and(|named| Arc::ptr_eq(named, &bundle.request));
                    // The bundle that was asked for is among those that are looked at.
                    if classes.len() < EXPLAINED_REQUESTS_MAX || is_named {
                        classes.push(Class::new(bundle.index, Arc::clone(&bundle.request)));
                    }
                }
            }
        }
        Ok(classes)
    }

    /// Goes on with the next explanation. Returns whether there was one.
    pub(super) fn explain_next_wait(&mut self) -> bool {
        let Some(mut asked) = self.explanations.counting.pop_front() else { return false };
        let mut spent = 1;
        if let Some(counting) = &mut asked.counting {
            match counting.step(&mut self.replicas.copies) {
                Some(looked_at) => spent += looked_at,
                None => {
                    let counts = asked.counting.take().map(Counting::into_counts).unwrap_or_default();
                    asked.classes[asked.at].counts = counts;
                    asked.at += 1;
                    asked.counting = asked.classes.get(asked.at).map(|class| Counting::new(&class.request));
                }
            }
        }
        self.replicas.meter.charge(spent);
        self.queue.charge(asked.client, spent);
        if asked.counting.is_some() {
            self.explanations.counting.push_back(asked);
            return true;
        }
        let tag = asked.tag;
        match self.explained(asked) {
            Ok(explained) if explained.waits_for != WaitsFor::Nothing => {
                self.explanations.placing.push_back((tag, explained));
                if self.explanations.placing.len() == 1 {
                    self.ask_for_turns(TurnsFrom::default());
                }
            }
            answer => self.reply(tag, PlanReply::Explained(answer)),
        }
        true
    }

    /// Asks a shard what comes before the first explanation. Each shard has a copy of every placement that waits.
    fn ask_for_turns(&mut self, from: TurnsFrom) {
        let Some((_, explained)) = self.explanations.placing.front() else { return };
        let (Reverse(priority), since) = explained.turn();
        let count = Command::CountTurns(Box::new(CountTurns { priority, since, from }));
        let shard = self.shard_id(0);
        self.outbox.push_back((TURNS_TAG, shard, count));
    }

    /// Takes a page of the count of placements, and asks for the next one.
    pub(super) fn turns_counted(&mut self, page: TurnsCounted) {
        let placing = &mut self.explanations.placing;
        let (_, explained) = placing.front_mut().expect("a page is counted for an explanation");
        explained.place.add(page.before, page.waiting);
        if let Some(next) = page.next {
            return self.ask_for_turns(next);
        }
        let (tag, explained) = placing.pop_front().expect("just seen");
        self.reply(tag, PlanReply::Explained(Ok(explained)));
        self.ask_for_turns(TurnsFrom::default());
    }

    /// Answers with a page of the count of groups that wait here.
    pub(super) fn count_groups(&mut self, tag: JobTag, asked: &CountGroups) {
        let mut counted = GroupsCounted::default();
        let from = asked.after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut last = None;
        for &turn in self.seeking.range((from, Bound::Unbounded)) {
            if counted.place.waiting >= WAITING_LOOKS_PER_PAGE {
                counted.next = last;
                break;
            }
            last = Some(turn);
            counted.place.add(u64::from((turn.0, turn.1) < asked.turn), 1);
        }
        self.replicas.meter.charge(counted.place.waiting);
        self.reply(tag, PlanReply::Counted(counted));
    }

    /// Returns the explanation, once all nodes are counted.
    fn explained(&mut self, asked: Asked) -> WaitExplained {
        let Asked { ask, classes, .. } = asked;
        match ask.of {
            WaitSubject::Placement { priority, since, until, .. } => {
                let lack = Lack { least: 1, ..Lack::default() };
                let until = Some(until).filter(|&until| until != Time::NEVER);
                let explained =
                    WaitExplanation { priority, since, until, needed: 1, ..WaitExplanation::default() };
                Ok(Box::new(lack.judge(classes, None, ask.tenant.is_none(), explained)))
            }
            WaitSubject::Group { id, bundle } => {
                self.explained_group(id, bundle, classes, ask.tenant.is_none())
            }
        }
    }

    fn explained_group(
        &mut self,
        id: GroupId,
        bundle: Option<u32>,
        classes: Vec<Class>,
        sees_nodes: bool,
    ) -> WaitExplained {
        // It may have been removed since.
        let group = self.groups.get(&id).ok_or(PlanRejection::UnknownGroup(id))?;
        self.replicas.meter.charge(group.bundles.len() as u64);
        let placed = u32::try_from(group.placed()).expect("GROUP_BUNDLES_MAX fits u32");
        let open = u32::try_from(group.open().count()).expect("GROUP_BUNDLES_MAX fits u32");
        let missing = u32::try_from(group.missing()).expect("GROUP_BUNDLES_MAX fits u32");
        // A growth is placed as a whole. Bundles beyond the minimum are placed one by one.
        let least = if group.grows_from().is_some() { open } else { missing.max(1).min(open) };
        let (Reverse(priority), since, _) = group.turn();
        let explained = WaitExplanation {
            group: Some(Box::new(group.view())),
            priority,
            since,
            until: group.deadline(),
            fit: placed,
            needed: placed + least,
            ..WaitExplanation::default()
        };
        // It may have been placed since.
        if !group.state.seeks() || classes.is_empty() {
            return Ok(Box::new(WaitExplanation { needed: group.spec.min_members, ..explained }));
        }
        if let Some(refused) = self.refused_by_queue(id) {
            let found = Some(refused.said());
            return Ok(Box::new(WaitExplanation { waits_for: WaitsFor::Queue, found, ..explained }));
        }
        if let Some(found) = self.refused_by_share(id) {
            let found = Some(found);
            return Ok(Box::new(WaitExplanation { waits_for: WaitsFor::Queue, found, ..explained }));
        }
        let own: Vec<NodeId> = group.bundles.iter().filter_map(|bundle| Some(bundle.place?.node)).collect();
        let spec = Arc::clone(&group.spec);
        let named = bundle.and_then(|index| {
            let request = &group.bundle(index)?.request;
            Some((classes.iter().position(|class| Arc::ptr_eq(&class.request, request))?, index))
        });
        let lack = Lack {
            strategy: spec.strategy,
            rule: strict_rule(spec.topology.as_ref()),
            own,
            least: u64::from(least),
            has_ticket: matches!(group.state, State::Queued { .. } | State::Ticket),
            is_labelled: spec.topology.as_ref().is_none_or(|rule| self.has_label(&classes, rule)),
        };
        let found = self.recall(id).and_then(|(_, told)| told).map(|(_, reason)| reason.to_string());
        let explained = WaitExplanation { found, ..explained };
        Ok(Box::new(lack.judge(classes, named, sees_nodes, explained)))
    }

    /// Returns whether the node like which others would help has the label of a rule.
    fn has_label(&self, classes: &[Class], rule: &TopologyRule) -> bool {
        let sample = classes.first().and_then(|class| class.counts.room.sample);
        let place = sample.and_then(|sample| self.replicas.locate(sample.node));
        place.is_some_and(|(shard, slot)| {
            self.replicas.copies[shard].shard().label_of(slot, &rule.key).is_some()
        })
    }
}

/// Returns the rule over a label, if the group is placed by it or not at all.
fn strict_rule(rule: Option<&TopologyRule>) -> Option<Spreading> {
    rule.map(|rule| rule.spreading).filter(|spreading| *spreading != Spreading::Pack { strict: false })
}

impl Default for Lack {
    fn default() -> Self {
        Self {
            strategy: Strategy::Pack,
            rule: None,
            own: Vec::new(),
            least: 0,
            has_ticket: false,
            is_labelled: true,
        }
    }
}
