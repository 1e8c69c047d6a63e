//! The rules of groups, judged from what was asked and from the books: never from the planner's word.
//!
//! A planner plans in a round, on the shards as their views show them in that round; so the rules of a
//! placement are judged by the nodes, labels and bundles of its round. What changes between the round and the
//! commit is no fault of the plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use wharf_core::group::{GroupSpec, Spreading, Strategy};
use wharf_core::ids::{AllocationId, BundleId, GroupId, NodeId, StatementId};
use wharf_core::request::PlacementRequest;
use wharf_core::resource::Demand;
use wharf_core::time::Time;

use super::{Verdict, ensure};
use crate::sim::facts::{Facts, node_admits};

/// What a planner saw in one round.
#[derive(Clone, Debug)]
pub struct Round {
    /// Which planner.
    pub planner: u16,
    /// When.
    pub now: Time,
    /// The shards, as their newest views showed them.
    pub facts: Vec<Facts>,
    /// After it the planner had nothing under way: nothing was taken on its copies that views do not show.
    pub is_quiet: bool,
}

/// A bundle that a statement placed.
#[derive(Clone, Debug)]
pub struct Placed {
    /// Its index in the group.
    pub index: u32,
    /// Where.
    pub node: NodeId,
    /// What it takes.
    pub demand: Demand,
}

/// What one statement placed of a group.
#[derive(Clone, Debug)]
pub struct Placing {
    /// The round in which it was planned. None: by a ticket, whose plan is older.
    pub round: Option<Arc<Round>>,
    /// The bundles.
    pub placed: Vec<Placed>,
    /// Where other bundles of the group stood. None: somebody else ended or lost one, and its planner may
    /// not know.
    pub standing: Option<Vec<NodeId>>,
}

/// What is asked of the bundles of a group, by index.
pub type Requests = BTreeMap<u32, Arc<PlacementRequest>>;

/// What a statement placed of a group is what was asked, where it may be, as its rules say.
///
/// # Errors
/// The rule that is broken.
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
    let known = placing.standing.as_ref().map(Vec::len);
    ensure(known.is_none_or(|standing| standing + placing.placed.len() >= least), || {
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
            // Values where no bundle may stand do not count; what else was to be placed may admit more.
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
    let standing = placing.standing.iter().flatten().copied();
    let nodes: Vec<NodeId> = standing.chain(placing.placed.iter().map(|placed| placed.node)).collect();
    let different: BTreeSet<NodeId> = nodes.iter().copied().collect();
    let kept = match strategy {
        Strategy::StrictPack => different.len() <= 1,
        Strategy::StrictSpread => different.len() == nodes.len(),
        Strategy::Pack | Strategy::Spread => true,
    };
    ensure(kept, || format!("{strategy:?}, and the bundles stand on {nodes:?}"))
}

fn packed_by_label<'a>(placing: &Placing, value: impl Fn(NodeId) -> Option<&'a str>) -> Verdict {
    let new: BTreeSet<_> = placing.placed.iter().map(|placed| value(placed.node)).collect();
    let one = new.len() <= 1 && !new.contains(&None);
    ensure(one, || format!("packed by a label, and placed on {new:?}"))?;
    let old: BTreeSet<_> = placing.standing.iter().flatten().map(|&node| value(node)).collect();
    // Labels may have changed under bundles that stand.
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
    let Some(standing) = &placing.standing else { return Ok(()) };
    for value in standing.iter().filter_map(|&node| value(node)) {
        if let Some(count) = counts.get_mut(value) {
            *count += 1;
        }
    }
    let least = counts.values().copied().min().unwrap_or(0);
    let above = new.iter().find(|&&value| counts[value] > least + max_skew);
    ensure(above.is_none(), || format!("a skew of {max_skew} is asked, and the bundles stand as {counts:?}"))
}

/// Follows what statements of planners place, until what was asked of their groups is known.
#[derive(Debug, Default)]
pub struct Rules {
    rounds: BTreeMap<StatementId, Arc<Round>>,
    placings: BTreeMap<GroupId, BTreeMap<StatementId, Placing>>,
    /// Groups of which somebody else ended or lost a bundle.
    muddled: BTreeSet<GroupId>,
}

impl Rules {
    /// A planner made statements in this round.
    pub fn planned(&mut self, statements: impl IntoIterator<Item = StatementId>, round: &Arc<Round>) {
        self.rounds.extend(statements.into_iter().map(|statement| (statement, Arc::clone(round))));
    }

    /// A shard granted a bundle to a statement; `by_ticket`: as the owner of what a ticket reserved.
    pub fn granted(&mut self, statement: StatementId, group: GroupId, placed: Placed, by_ticket: bool) {
        let round = self.rounds.get(&statement);
        let placing = self.placings.entry(group).or_default().entry(statement).or_insert_with(|| {
            let standing = round.map(|round| standing(group, &round.facts));
            Placing { round: round.cloned(), placed: Vec::new(), standing }
        });
        if by_ticket {
            placing.round = None;
        }
        // What is kept for a late coordinator is said again.
        if placing.placed.iter().all(|known| (known.index, known.node) != (placed.index, placed.node)) {
            placing.placed.push(placed);
        }
    }

    /// Whether somebody else ended or lost a bundle of the group.
    #[must_use]
    pub fn is_muddled(&self, group: GroupId) -> bool {
        self.muddled.contains(&group)
    }

    /// Somebody else ended or lost a bundle of a group: its planner may not know yet.
    pub fn muddle(&mut self, group: GroupId) {
        self.muddled.insert(group);
        for placing in self.placings.get_mut(&group).into_iter().flat_map(BTreeMap::values_mut) {
            placing.standing = None;
        }
    }

    /// What was placed of a group since the last call, all of it granted.
    pub fn take(&mut self, group: GroupId) -> Vec<Placing> {
        let muddled = self.muddled.contains(&group);
        let placings = self.placings.remove(&group).unwrap_or_default();
        let known = |placing| if muddled { Placing { standing: None, ..placing } } else { placing };
        placings
            .into_iter()
            .map(|(statement, placing)| {
                self.rounds.remove(&statement);
                known(placing)
            })
            .collect()
    }

    /// Whether any statement of the group has placed something that nobody has judged.
    #[must_use]
    pub fn has(&self, group: GroupId) -> bool {
        self.placings.contains_key(&group)
    }

    /// The service stopped: all that was planned is placed or not.
    pub fn forget_rounds(&mut self) {
        self.rounds.clear();
    }
}

/// Where the bundles of a group stand.
fn standing(group: GroupId, facts: &[Facts]) -> Vec<NodeId> {
    let bundles: BTreeMap<AllocationId, BundleId> = bundles(facts).collect();
    let of_it = |id: &AllocationId| bundles.get(id).is_some_and(|bundle| bundle.group == group);
    let allocations = facts.iter().flat_map(Facts::allocations).filter(|allocation| of_it(&allocation.id));
    allocations.map(|allocation| allocation.node).collect()
}

/// The allocations that are bundles.
pub fn bundles(facts: &[Facts]) -> impl Iterator<Item = (AllocationId, BundleId)> {
    let partitions = facts.iter().flat_map(|facts| &facts.partitions);
    partitions.flat_map(|partition| &partition.bundles).map(|record| (record.allocation, record.bundle))
}
