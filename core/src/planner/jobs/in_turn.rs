//! Groups that wait in queues have turns in cycles.
//!
//! A cycle finds a group by its [placeholder](super::placeholders), and has it planned here, by its strategy, on the replicas of
//! the cycle. What is planned leaves as a statement of the group, like any plan of it, and is charged then.

use std::collections::BTreeSet;

use super::placeholders::{Epoch, Placeholders};
use crate::cycle::{GroupPlan, GroupPlans, PlacedBundle, Plan};
use crate::ids::GroupId;
use crate::index::Slot;
use crate::jobs::JobId;
use crate::planner::Planner;
use crate::planner::draft::Draft;
use crate::planner::life::State;
use crate::replica::Replica;
use crate::request::PlacementRequest;
use crate::time::Time;

/// Plans groups within a cycle.
pub(super) struct PlannedInTurn<'a> {
    planner: &'a mut Planner,
    placeholders: &'a mut Placeholders,
    /// The units that were spent, and the changes of jobs, when the cycle began.
    began_at: u64,
    changes: u64,
    /// How many bundles more may be charged.
    left: usize,
    /// The state of the cycle, once the first group has its turn.
    state: Option<u64>,
    /// The groups that had no room, and whether others had taken none before them.
    pub(super) without_room: Vec<(GroupId, bool)>,
}

impl<'a> PlannedInTurn<'a> {
    /// `changes` is the number of changes of jobs so far, and `left` how many bundles more may be charged.
    pub(super) fn new(
        planner: &'a mut Planner,
        placeholders: &'a mut Placeholders,
        (changes, left): (u64, usize),
    ) -> Self {
        let began_at = planner.replicas.meter.spent();
        if !std::mem::take(&mut placeholders.has_left) {
            placeholders.sweep += 1;
        }
        Self { planner, placeholders, began_at, changes, left, state: None, without_room: Vec::new() }
    }

    /// Returns the number of the state that this cycle found.
    fn state(&mut self, replicas: &[Replica]) -> u64 {
        *self.state.get_or_insert_with(|| {
            let found = (self.changes, views_of(replicas), self.planner.released);
            if self.placeholders.left != Some(found) {
                self.placeholders.state += 1;
            }
            self.placeholders.state
        })
    }
}

impl Placeholders {
    /// Notes the state that a cycle leaves.
    pub(super) fn note_left(&mut self, changes: u64, replicas: &[Replica], released: u64) {
        self.left = Some((changes, views_of(replicas), released));
    }
}

fn views_of(replicas: &[Replica]) -> u64 {
    replicas.iter().map(Replica::sequence).sum()
}

impl GroupPlans for PlannedInTurn<'_> {
    fn plan(
        &mut self,
        job: JobId,
        tasks: &[u32],
        (needed, is_first): (usize, bool),
        replicas: &mut Vec<Replica>,
    ) -> GroupPlan {
        let tasks = &tasks[..tasks.len().min(self.left)];
        if tasks.len() < needed {
            return GroupPlan::NoRoom;
        }
        let state = self.state(replicas);
        let sweep = self.placeholders.sweep;
        let of = self.placeholders.by_job.get_mut(&job).expect("only groups that wait have placeholders");
        let planner = &mut *self.planner;
        // Where nodes are left out, or a value of a label may become open, it may fit later without growth.
        let has_rule = planner.groups[&of.group].spec.topology.is_some();
        let hides_some = replicas.iter().any(|replica| replica.hidden_count() > 0);
        let epoch = if has_rule || hides_some {
            Epoch::State(state)
        } else {
            let growth = replicas.iter().map(Replica::growth).sum();
            Epoch::Growth(growth, replicas.iter().map(Replica::shape).sum(), planner.released)
        };
        if of.tried.as_ref().is_some_and(|(at, tried)| *at == epoch && tried == tasks) {
            return GroupPlan::NoRoom;
        }
        if planner.replicas.meter.spent() - self.began_at >= planner.budget.round {
            self.placeholders.has_left = true;
            return GroupPlan::Later;
        }
        // Others of this sweep come first. The next cycle is in this sweep if some are left, or else in the next one.
        if std::mem::replace(&mut of.sweep, sweep) == sweep {
            return GroupPlan::Later;
        }
        let wanted: BTreeSet<u32> = tasks.iter().map(|&task| of.bundles[task as usize]).collect();
        let Some(draft) = planner.plan_within_cycle(of.group, &wanted, needed, replicas) else {
            of.tried = Some((epoch, tasks.to_vec()));
            self.without_room.push((of.group, is_first));
            return GroupPlan::NoRoom;
        };
        self.left -= draft.len();
        let task = |bundle: u32| {
            let at = of.bundles.binary_search(&bundle).expect("a plan is for bundles that wait");
            u32::try_from(at).expect("GROUP_BUNDLES_MAX fits u32")
        };
        let placed = draft.into_iter().map(|taken| PlacedBundle {
            task: task(taken.bundle),
            shard: taken.shard,
            slot: taken.slot,
            node: taken.node,
            key: taken.key,
        });
        GroupPlan::Placed(placed.collect())
    }
}

impl Planner {
    /// Plans at least so many of these bundles of a group on the replicas of a cycle. Nodes that are hidden there are left out.
    fn plan_within_cycle(
        &mut self,
        id: GroupId,
        bundles: &BTreeSet<u32>,
        needed: usize,
        replicas: &mut Vec<Replica>,
    ) -> Option<Draft> {
        let group = self.groups.get_mut(&id).expect("a group that waits is kept");
        let has_rule = group.spec.topology.is_some();
        group.attempts += 1;
        group.passed_over =
            group.open().map(|bundle| bundle.index).filter(|index| !bundles.contains(index)).collect();
        std::mem::swap(&mut self.replicas.copies, replicas);
        let wanted = self.wanted(id);
        assert!(
            wanted.items.len() >= wanted.least && wanted.least == needed,
            "the placeholder of group {id} is out of date"
        );
        let mut draft = Draft::new();
        let units = self.budget.search;
        // A value of a label counts also if its nodes are left out, so a rule needs to see all of them.
        let planned = if has_rule {
            let hidden: Vec<Vec<Slot>> = self.replicas.copies.iter_mut().map(Replica::show_all).collect();
            let planned = self.replicas.plan_apart(wanted, units, &mut draft);
            for (copy, hidden) in self.replicas.copies.iter_mut().zip(&hidden) {
                hidden.iter().for_each(|&slot| copy.hide(slot));
            }
            if draft.iter().any(|taken| hidden[taken.shard].contains(&taken.slot)) {
                self.replicas.roll_back(&mut draft, 0);
            }
            planned
        } else {
            self.replicas.plan_apart(wanted, units, &mut draft)
        };
        std::mem::swap(&mut self.replicas.copies, replicas);
        self.work.searches += 1;
        self.work.given_up += u64::from(planned.is_err_and(|no_place| no_place.given_up));
        Some(draft).filter(|draft| !draft.is_empty())
    }

    /// Places a group where a cycle has planned it, by a statement of its own.
    pub(super) fn commit_planned(&mut self, job: JobId, plan: &Plan, now: Time) {
        let group = self.keeper_mut().take_planned(job, plan, now);
        let is_committing = group.is_some_and(|(id, bundles)| {
            self.sync();
            // The views may have told of bundles that ended: then it has another placeholder.
            let draft =
                if self.has_placeholder_of(id, job) { self.taken_again(id, &bundles, plan) } else { None };
            draft.is_some_and(|draft| {
                let conflict_detection = self.groups[&id].spec.conflict_detection;
                self.transition(id, State::Planning { rounds: 0, proof: None });
                self.commit_placing(id, draft, conflict_detection, now);
                matches!(self.groups.get(&id).map(|group| &group.state), Some(State::Committing { .. }))
            })
        });
        if !is_committing {
            // What it would have had is free for others.
            self.released += 1;
        }
    }

    /// Takes what a cycle has planned for a group on the replicas of groups. What is in flight may be known to the others only:
    /// then there may be no room.
    fn taken_again(&mut self, id: GroupId, bundles: &[u32], plan: &Plan) -> Option<Draft> {
        let mut draft = Draft::new();
        for step in &plan.tasks {
            let index = bundles[step.task.index as usize];
            let request = self.groups[&id].item(index).request;
            let is_taken = if request.owner.is_some() {
                // Only a search finds capacity that is reserved for the owner.
                let there = PlacementRequest { candidates: Some([step.node].into()), ..(*request).clone() };
                self.replicas.take(&mut draft, index, &there)
            } else {
                let place = self.replicas.locate(step.node);
                place.is_some_and(|place| self.replicas.take_on(&mut draft, place, index, &request))
            };
            if !is_taken {
                self.replicas.roll_back(&mut draft, 0);
                return None;
            }
        }
        Some(draft)
    }
}
