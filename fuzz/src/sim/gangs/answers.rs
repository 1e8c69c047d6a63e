//! Judges the answers that callers of planners receive, as they arrive.

use std::sync::Arc;

use wharf_core::group::{
    GroupRefusal, GroupRefusalReason, GroupSpec, GroupView, NoGroup, PlanRejection, PlanReply,
    StatementReport, Strategy,
};
use wharf_core::ids::{AllocationId, GroupId};
use wharf_core::journal::JournalPort;
use wharf_core::request::PlacementRequest;
use wharf_core::router::PortReply;
use wharf_core::shard::Outcome;
use wharf_core::statement::{CommitMode, Granted};
use wharf_core::time::Time;

use super::{Asked, Gangs, Known, Received, Waits};
use crate::sim::checkers::groups::{
    Excused, groups_are_as_asked, groups_are_in_the_books, placed, who_may_wait_is_not_refused,
};
use crate::sim::checkers::promises::Promise;
use crate::sim::checkers::refused::{infeasible_is_infeasible, is_whole, no_fit_is_no_fit};
use crate::sim::checkers::rules::{Round, Rules, groups_keep_their_rules};
use crate::sim::checkers::statements::Statements;
use crate::sim::checkers::submitted::statements_are_answered_fairly;
use crate::sim::checkers::{Verdict, named};
use crate::sim::facts::Facts;
use crate::sim::trace::Trace;

/// The state against which answers are judged.
pub(in crate::sim) struct Bench<'a> {
    pub(in crate::sim) facts: &'a [Facts],
    pub(in crate::sim) rules: &'a mut Rules,
    pub(in crate::sim) statements: &'a Statements,
    /// Allocations that someone else ended.
    pub(in crate::sim) excused: Excused<'a>,
    pub(in crate::sim) trace: &'a mut Trace,
}

/// Judges the refusal of a group: it must be true and must not come too early.
fn refused(spec: &GroupSpec, taken_back: bool, refusal: &GroupRefusal, round: &Round) -> Verdict {
    // A group that was cancelled during its commit no longer waits.
    let waits = if taken_back { Ok(()) } else { who_may_wait_is_not_refused(spec, refusal, round) };
    named("who_may_wait_is_not_refused", waits)?;
    if matches!(refusal.reason, GroupRefusalReason::Conflicts(_)) {
        // The group fitted, but conflicted until its time was up.
        return Ok(());
    }
    if refusal.infeasible {
        return named("infeasible_is_infeasible", infeasible_is_infeasible(spec, round));
    }
    if matches!(refusal.reason, GroupRefusalReason::SearchGivenUp { .. }) {
        // The answer only says that the search was given up. The group may fit.
        return Ok(());
    }
    let least = spec.min_members as usize;
    named("no_fit_is_no_fit", no_fit_is_no_fit(spec, &spec.bundles, least, round))
}

impl Gangs {
    /// Takes and judges answers. Returns their number.
    pub(in crate::sim) fn poll(&mut self, now: Time, bench: &mut Bench<'_>) -> Result<usize, String> {
        self.collect(now, None);
        let durable = self.port.journal().map_or(0, JournalPort::durable);
        let mut count = 0;
        while self.inbox.front().is_some_and(|received| received.position <= durable) {
            let Received { tag, reply, round, .. } = self.inbox.pop_front().expect("just seen");
            count += 1;
            let asked = self.asked.remove(&tag);
            let asked = asked.ok_or_else(|| format!("answers_stand: job {tag} is answered twice"))?;
            bench.trace.line(format_args!("{asked:?}: {reply:?}"));
            match reply {
                PortReply::Plan(reply) => self.handle_plan(asked, *reply, round, bench)?,
                PortReply::One(outcome) => self.handle_outcome(&asked, &outcome)?,
                other => return Err(format!("answers_stand: {asked:?} is answered with {other:?}")),
            }
        }
        Ok(count)
    }

    fn handle_plan(
        &mut self,
        asked: Asked,
        reply: PlanReply,
        round: Option<Arc<Round>>,
        bench: &mut Bench<'_>,
    ) -> Verdict {
        let round = round.expect("planners answer in rounds");
        match (asked, reply) {
            (Asked::Create(spec, _), PlanReply::Group(Ok(view))) => {
                let requests = (0..).zip(spec.bundles.iter().cloned()).collect();
                let known = Known { spec, requests, view: (*view).clone(), is_vague: false };
                self.groups.insert(view.id, known);
                self.shown(*view, bench)
            }
            (Asked::Create(spec, taken_back), PlanReply::Group(Err(NoGroup::Refused(refusal)))) => {
                refused(&spec, taken_back, &refusal, &round)
            }
            // At rest, queues are charged for what is in the books, so room in a cap is not forgotten.
            (Asked::Create(spec, _), PlanReply::Group(Err(NoGroup::NotCharged(_))))
                if spec.queue.is_some() =>
            {
                Ok(())
            }
            (Asked::Grow(group, ..), PlanReply::Group(Err(NoGroup::NotCharged(_))))
                if group.is_in_queue() =>
            {
                Ok(())
            }
            (
                Asked::Create(_, true) | Asked::Grow(_, _, Waits::NoMore),
                PlanReply::Group(Err(NoGroup::Cancelled)),
            ) => Ok(()),
            (Asked::Grow(group, requests, _), PlanReply::Group(Ok(view))) => {
                self.grown(group, &requests, *view, bench)
            }
            (Asked::Grow(group, requests, _), PlanReply::Group(Err(NoGroup::Refused(refusal))))
                if !refusal.infeasible
                    && !matches!(
                        refusal.reason,
                        GroupRefusalReason::Conflicts(_) | GroupRefusalReason::SearchGivenUp { .. }
                    ) =>
            {
                self.growth_refused(group, &requests, &round, bench)
            }
            (Asked::Grow(..), PlanReply::Group(Err(NoGroup::Refused(_)))) => Ok(()),
            (Asked::Shrink(group, indexes), PlanReply::Status(Ok(view))) => {
                if let Some(known) = self.groups.get_mut(&group) {
                    let goes = |index: &u32| indexes.contains(index);
                    let ended = placed(&known.view).filter(|(index, ..)| goes(index)).map(|bundle| bundle.2);
                    self.ended.extend(ended);
                    known.requests.retain(|index, _| !goes(index));
                }
                self.shown(*view, bench)
            }
            // The group was removed while it grew. The removal is answered when its bundles have ended.
            (Asked::Grow(..), PlanReply::Group(Err(NoGroup::Removed))) => Ok(()),
            (Asked::Remove(_), PlanReply::Removed(Ok((id, _)))) => {
                if let Some(gone) = self.groups.remove(&id) {
                    self.ended.extend(placed(&gone.view).map(|bundle| bundle.2));
                }
                self.judge_placings(id, None, bench)
            }
            (Asked::Status(_), PlanReply::Status(Ok(view))) => self.shown(*view, bench),
            (Asked::List, PlanReply::Groups(groups)) => {
                self.kept = groups.into_iter().map(|view| view.id).collect();
                Ok(())
            }
            (Asked::Submit(submit), PlanReply::Statement(Ok(report))) => {
                let fair = statements_are_answered_fairly(&submit.operations, submit.mode, &report);
                named("statements_are_answered_fairly", fair)?;
                self.handle_report(&report);
                Ok(())
            }
            (
                asked,
                PlanReply::Group(Err(NoGroup::Rejected(rejection)))
                | PlanReply::Status(Err(rejection))
                | PlanReply::Removed(Err(rejection))
                | PlanReply::Statement(Err(rejection)),
            ) => named("answers_stand", self.rejected(&asked, &rejection)),
            (asked, reply) => Err(format!("answers_stand: {asked:?} is answered with {reply:?}")),
        }
    }

    fn growth_refused(
        &self,
        group: GroupId,
        requests: &[Arc<PlacementRequest>],
        round: &Round,
        bench: &Bench<'_>,
    ) -> Verdict {
        let Some(Known { spec, view, .. }) = self.groups.get(&group) else { return Ok(()) };
        let alone = matches!(spec.strategy, Strategy::Pack | Strategy::Spread) && spec.topology.is_none();
        // If the group has other waiting bundles, growth may be refused because those do not fit.
        let whole = is_whole(view, round) && !bench.rules.is_muddled(group);
        let judged =
            if alone && whole { no_fit_is_no_fit(spec, requests, requests.len(), round) } else { Ok(()) };
        named("no_fit_is_no_fit", judged)
    }

    /// Checks whether a job may be rejected for this reason.
    fn rejected(&self, asked: &Asked, rejection: &PlanRejection) -> Verdict {
        let fits = match (asked, rejection) {
            (Asked::Submit(submit), PlanRejection::Operations(count)) => *count == submit.operations.len(),
            (
                Asked::Submit(submit),
                PlanRejection::UnknownNode { .. } | PlanRejection::UnknownAllocation { .. },
            ) => submit.mode == CommitMode::AllOrNothing,
            (Asked::Grow(..) | Asked::Shrink(..) | Asked::Remove(_), PlanRejection::Busy(_)) => true,
            (Asked::Shrink(..), PlanRejection::UnknownBundle(..) | PlanRejection::BelowMinimum(_)) => true,
            (
                Asked::Grow(group, ..)
                | Asked::Shrink(group, _)
                | Asked::Remove(group)
                | Asked::Status(group),
                PlanRejection::UnknownGroup(unknown),
            ) => group == unknown && !self.groups.contains_key(group),
            _ => false,
        };
        if fits { Ok(()) } else { Err(format!("{asked:?} is rejected with {rejection:?}")) }
    }

    /// Records the new bundles of a group. They appear in the order in which they were requested.
    fn grown(
        &mut self,
        group: GroupId,
        asked: &[Arc<PlacementRequest>],
        view: GroupView,
        bench: &mut Bench<'_>,
    ) -> Verdict {
        if let Some(known) = self.groups.get_mut(&group) {
            let new = view.bundles.iter().map(|&(index, _)| index);
            let new: Vec<u32> = new.filter(|index| !known.requests.contains_key(index)).collect();
            if new.len() != asked.len() && !known.is_vague {
                return Err(format!("groups_are_as_asked: grown by {asked:?}, and {view:?} has {new:?}"));
            }
            if !known.is_vague {
                known.requests.extend(new.into_iter().zip(asked.iter().cloned()));
            }
        }
        self.shown(view, bench)
    }

    /// Judges a shown group against its caller's knowledge and against the books.
    fn shown(&mut self, view: GroupView, bench: &mut Bench<'_>) -> Verdict {
        let Some(known) = self.groups.get_mut(&view.id) else { return Ok(()) };
        if known.is_vague {
            let shown = view.bundles.iter().map(|&(index, _)| index).zip(view.requests.iter().cloned());
            known.requests = shown.collect();
        }
        named("groups_are_as_asked", groups_are_as_asked(&view, &known.spec, &known.requests))?;
        let id = view.id;
        let goes = |asked: &Asked| matches!(asked, Asked::Remove(of) | Asked::Shrink(of, _) if *of == id);
        // Bundles that its own planner ends may have ended before the planner heard of it.
        if !self.asked.values().any(goes) {
            let books = groups_are_in_the_books(&view, bench.facts, &bench.excused);
            named("groups_are_in_the_books", books)?;
        }
        known.view = view;
        let known = &self.groups[&id];
        let all = known.view.bundles.iter().all(|(index, _)| known.requests.contains_key(index));
        // While the group grows, it is unknown which index belongs to which request.
        if all { self.judge_placings(id, Some(id), bench) } else { Ok(()) }
    }

    /// Judges the new placements of a group by the requested rules, each when its statement is done on all its shards. Forgets
    /// them if `known` is `None`.
    fn judge_placings(&self, id: GroupId, known: Option<GroupId>, bench: &mut Bench<'_>) -> Verdict {
        let known = known.and_then(|id| self.groups.get(&id));
        let placings = bench.rules.take(id, |statement| bench.statements.is_done(statement));
        for placing in known.into_iter().flat_map(|known| placings.iter().map(move |p| (known, p))) {
            let (known, placing) = placing;
            let gone = |index: &u32| !known.requests.contains_key(index);
            if known.is_vague || placing.placed.iter().any(|placed| gone(&placed.index)) {
                continue;
            }
            let kept = groups_keep_their_rules(&known.spec, &known.requests, placing);
            named("groups_keep_their_rules", kept)?;
        }
        Ok(())
    }

    fn handle_report(&mut self, report: &StatementReport) {
        for (_, granted) in report.applied.iter().flat_map(|applied| &applied.granted) {
            match granted {
                Granted::Allocated(placement) => {
                    let promise = Promise { node: placement.node, gpus: placement.gpus.mask };
                    self.promised.insert(placement.allocation, promise);
                }
                Granted::Pipelined { allocation, .. } => {
                    self.claims.insert(*allocation);
                }
                Granted::Ended(id) => self.forget(*id),
                Granted::Releasing { .. } => {}
            }
        }
    }

    fn forget(&mut self, id: AllocationId) {
        self.promised.remove(&id);
        self.claims.remove(&id);
        self.inside.remove(&id);
        self.released.insert(id);
    }

    /// Handles the outcome of a release or of a placement into a bundle.
    fn handle_outcome(&mut self, asked: &Asked, outcome: &Outcome) -> Verdict {
        match (asked, outcome) {
            (Asked::Into, Outcome::PlaceInto(placed)) => {
                self.told_inside.extend(placed.iter().map(|placement| placement.allocation));
            }
            (Asked::Release(id), Outcome::Release(_)) => self.forget(*id),
            other => return Err(format!("answers_stand: {other:?}")),
        }
        Ok(())
    }
}
