//! The rules of groups, judged from the requests and the books, never from the planner's answers.
//!
//! A planner plans in a round, on the shards as their views show them in that round. So a placement is judged
//! by the nodes, labels and bundles of its round. Changes between the round and the commit are not the plan's
//! fault.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wharf_core::group::{GroupSpec, Spreading, Strategy};
use wharf_core::ids::{AllocationId, BundleId, GroupId, NodeId, StatementId};
use wharf_core::jobs::JobId;
use wharf_core::request::PlacementRequest;
use wharf_core::resource::Demand;
use wharf_core::time::Time;

use super::{Verdict, ensure};
use crate::sim::facts::{Facts, node_admits};

/// The state that a planner saw in one round.
#[derive(Clone, Debug)]
pub struct Round {
    /// The number of the planner.
    pub planner: u16,
    /// The time of the round.
    pub now: Time,
    /// The shards, as their newest views showed them.
    pub facts: Vec<Facts>,
    /// Set if the planner had nothing in progress after the round. Then its copies match the views.
    pub is_quiet: bool,
}

/// A bundle that a statement placed.
#[derive(Clone, Debug)]
pub struct Placed {
    /// Its index in the group.
    pub index: u32,
    /// Its node.
    pub node: NodeId,
    /// Its demand.
    pub demand: Demand,
}

/// The bundles of a group that one statement placed.
#[derive(Clone, Debug)]
pub struct Placing {
    /// The round in which it was planned. `None` if a ticket placed it, because that plan is older.
    pub round: Option<Arc<Round>>,
    /// The bundles.
    pub placed: Vec<Placed>,
    /// The nodes of the group's other bundles. `None` if someone else ended or lost one, because the planner
    /// may not know.
    pub existing: Option<Vec<NodeId>>,
}

/// The requests of a group's bundles, by index.
pub type Requests = BTreeMap<u32, Arc<PlacementRequest>>;

/// Checks that the bundles a statement placed are the requested ones, on permitted nodes, as the group's rules
/// say.
///
/// # Errors
/// Returns the broken rule.
pub fn groups_keep_their_rules(spec: &GroupSpec, requests: &Requests, placing: &Placing) -> Verdict {
    let mut seen = BTreeSet::new();
    for placed in &placing.placed {
        let asked = requests.get(&placed.index);
        let asked = asked.ok_or_else(|| format!("nobody asked for bundle {}", placed.index))?;
        ensure(asked.demand == placed.demand && seen.insert(placed.index), || {
            format!("{asked:?} is asked, and placed is {placed:?}")
        })?;
        if let Some(round) = &placing.round {
            admits(asked, placed, round)?;
        }
    }
    let least = spec.min_members as usize;
    let known = placing.existing.as_ref().map(Vec::len);
    ensure(known.is_none_or(|existing| existing + placing.placed.len() >= least), || {
        format!("fewer than {least} bundles: {placing:?}")
    })?;
    strategy_is_kept(spec.strategy, placing)?;
    let Some((rule, round)) = spec.topology.as_ref().zip(placing.round.as_ref()) else { return Ok(()) };
    let value = |node: NodeId| {
        let node = round.facts.iter().find_map(|facts| facts.node(node));
        node.and_then(|node| node.registration.spec.labels.get(&rule.key))
    };
    match rule.spreading {
        Spreading::Pack { strict: false } => Ok(()),
        Spreading::Pack { strict: true } => packed_by_label(placing, value),
        Spreading::Spread { max_skew } => {
            // Values where no bundle is permitted do not count. Other bundles of the plan may permit more
            // values.
            let placed = || placing.placed.iter().filter_map(|placed| requests.get(&placed.index));
            let nodes = round.facts.iter().flat_map(Facts::nodes);
            let open = nodes.filter(|node| placed().any(|asked| node_admits(node, asked)));
            let values = open.filter_map(|node| node.registration.spec.labels.get(&rule.key));
            spread_by_label(placing, value, values.collect(), max_skew)
        }
    }
}

fn admits(asked: &PlacementRequest, placed: &Placed, round: &Round) -> Verdict {
    let node = round.facts.iter().find_map(|facts| facts.node(placed.node));
    ensure(node.is_some_and(|node| node_admits(node, asked)), || {
        format!("{asked:?} does not admit {}, where it was planned", placed.node)
    })
}

fn strategy_is_kept(strategy: Strategy, placing: &Placing) -> Verdict {
    let existing = placing.existing.iter().flatten().copied();
    let nodes: Vec<NodeId> = existing.chain(placing.placed.iter().map(|placed| placed.node)).collect();
    let different: BTreeSet<NodeId> = nodes.iter().copied().collect();
    let kept = match strategy {
        Strategy::StrictPack => different.len() <= 1,
        Strategy::StrictSpread => different.len() == nodes.len(),
        Strategy::Pack | Strategy::Spread => true,
    };
    ensure(kept, || format!("{strategy:?}, and the bundles are on {nodes:?}"))
}

fn packed_by_label<'a>(placing: &Placing, value: impl Fn(NodeId) -> Option<&'a str>) -> Verdict {
    let new: BTreeSet<_> = placing.placed.iter().map(|placed| value(placed.node)).collect();
    let one = new.len() <= 1 && !new.contains(&None);
    ensure(one, || format!("packed by a label, and placed on {new:?}"))?;
    let old: BTreeSet<_> = placing.existing.iter().flatten().map(|&node| value(node)).collect();
    // The labels of placed bundles' nodes may have changed.
    let same = old.len() != 1 || old.contains(&None) || new.is_empty() || old == new;
    ensure(same, || format!("packed by a label on {old:?}, and placed on {new:?}"))
}

fn spread_by_label<'a>(
    placing: &Placing,
    value: impl Fn(NodeId) -> Option<&'a str>,
    values: BTreeSet<&'a str>,
    max_skew: u32,
) -> Verdict {
    let mut counts: BTreeMap<&str, u32> = values.into_iter().map(|value| (value, 0)).collect();
    let mut new = BTreeSet::new();
    for placed in &placing.placed {
        let value = value(placed.node).filter(|value| counts.contains_key(value));
        let value = value.ok_or_else(|| format!("spread by a label, and placed on {}", placed.node))?;
        *counts.entry(value).or_default() += 1;
        new.insert(value);
    }
    let Some(existing) = &placing.existing else { return Ok(()) };
    for value in existing.iter().filter_map(|&node| value(node)) {
        if let Some(count) = counts.get_mut(value) {
            *count += 1;
        }
    }
    let least = counts.values().copied().min().unwrap_or(0);
    let above = new.iter().find(|&&value| counts[value] > least + max_skew);
    ensure(above.is_none(), || {
        format!("a skew of {max_skew} is asked, and the bundles are spread as {counts:?}")
    })
}

/// Records what planners' statements place, until the requests of their groups are known.
#[derive(Debug, Default)]
pub struct Rules {
    rounds: BTreeMap<StatementId, Arc<Round>>,
    placings: BTreeMap<GroupId, BTreeMap<StatementId, Placing>>,
    /// Groups of which someone else ended or lost a bundle.
    muddled: BTreeSet<GroupId>,
}

impl Rules {
    /// Records that a planner made statements in this round.
    pub fn planned(&mut self, statements: impl IntoIterator<Item = StatementId>, round: &Arc<Round>) {
        self.rounds.extend(statements.into_iter().map(|statement| (statement, Arc::clone(round))));
    }

    /// Records that a shard granted a bundle to a statement. `by_ticket` means that it used a ticket's
    /// reservation.
    pub fn granted(&mut self, statement: StatementId, group: GroupId, placed: Placed, by_ticket: bool) {
        let round = self.rounds.get(&statement);
        let placing = self.placings.entry(group).or_default().entry(statement).or_insert_with(|| {
            let existing = round.map(|round| existing(group, &round.facts));
            Placing { round: round.cloned(), placed: Vec::new(), existing }
        });
        if by_ticket {
            placing.round = None;
        }
        // A result that is kept for a late coordinator is reported again.
        if placing.placed.iter().all(|known| (known.index, known.node) != (placed.index, placed.node)) {
            placing.placed.push(placed);
        }
    }

    /// Returns whether someone else ended or lost a bundle of the group.
    #[must_use]
    pub fn is_muddled(&self, group: GroupId) -> bool {
        self.muddled.contains(&group)
    }

    /// Records that someone else ended or lost a bundle of a group. Its planner may not know yet.
    pub fn muddle(&mut self, group: GroupId) {
        self.muddled.insert(group);
        for placing in self.placings.get_mut(&group).into_iter().flat_map(BTreeMap::values_mut) {
            placing.existing = None;
        }
    }

    /// Returns what was placed of a group since the last call, by statements that `is_done` on all their shards.
    pub fn take(&mut self, group: GroupId, is_done: impl Fn(StatementId) -> bool) -> Vec<Placing> {
        let muddled = self.muddled.contains(&group);
        let placings = self.placings.remove(&group).unwrap_or_default();
        let (done, open): (BTreeMap<_, _>, BTreeMap<_, _>) =
            placings.into_iter().partition(|&(statement, _)| is_done(statement));
        if !open.is_empty() {
            self.placings.insert(group, open);
        }
        let known = |placing| if muddled { Placing { existing: None, ..placing } } else { placing };
        done.into_iter()
            .map(|(statement, placing)| {
                self.rounds.remove(&statement);
                known(placing)
            })
            .collect()
    }

    /// Returns whether a statement of the group placed something that is not judged yet.
    #[must_use]
    pub fn has(&self, group: GroupId) -> bool {
        self.placings.contains_key(&group)
    }

    /// Forgets what was placed and not shown yet, because the service crashed.
    pub fn handle_crash(&mut self) {
        self.rounds.clear();
        self.placings.clear();
    }

    /// Forgets the rounds, because the service stopped and no plan is in progress.
    pub fn forget_rounds(&mut self) {
        self.rounds.clear();
    }
}

/// Returns the nodes on which the bundles of a group are placed.
fn existing(group: GroupId, facts: &[Facts]) -> Vec<NodeId> {
    let bundles: BTreeMap<AllocationId, BundleId> = bundles(facts).collect();
    let of_it = |id: &AllocationId| bundles.get(id).is_some_and(|bundle| bundle.group == group);
    let allocations = facts.iter().flat_map(Facts::allocations).filter(|allocation| of_it(&allocation.id));
    allocations.map(|allocation| allocation.node).collect()
}

/// Returns the allocations that are bundles of groups. Those of jobs are left out.
pub fn bundles(facts: &[Facts]) -> impl Iterator<Item = (AllocationId, BundleId)> {
    let partitions = facts.iter().flat_map(|facts| &facts.partitions);
    let bundles = partitions.flat_map(|partition| &partition.bundles);
    let of_group = |bundle: &BundleId| JobId::of_group(bundle.group).is_none();
    bundles.map(|record| (record.allocation, record.bundle)).filter(move |(_, bundle)| of_group(bundle))
}
