//! What waits at the service apart from jobs, as units to place: placement groups, with their strategies, and near the
//! bundles that they have placed already, and single placements.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::items::{Item, Unit, together};
use crate::group::{Spreading, Strategy, WaitingGroup, WaitingWork};
use crate::ids::NodeId;
use crate::jobs::nodes::Asker;
use crate::jobs::{Jobs, QueueId};
use crate::request::PlacementRequest;

/// Returns the groups of the service that wait. Those of the request, `before` in number, have the first numbers.
pub(super) fn groups<'a>(
    waiting: &'a WaitingWork,
    before: usize,
    jobs: &'a Jobs,
) -> impl Iterator<Item = Unit> + 'a {
    let first = u32::try_from(before).expect("at most FLOORS_MAX");
    let queue = |group: &WaitingGroup| jobs.queue_named(group.spec.queue.as_ref()?);
    (first..).zip(&waiting.groups).flat_map(move |(number, group)| {
        let queue = queue(group);
        let mut units = units_of(group, number, queue);
        units.extend(passed_over(group, number, queue));
        units
    })
}

/// Returns the placements that wait, those of one priority together.
pub(super) fn placements(waiting: &WaitingWork) -> impl Iterator<Item = Unit> + '_ {
    let mut by_priority: BTreeMap<i32, Vec<Item>> = BTreeMap::new();
    for row in &waiting.placements {
        let count = u32::try_from(row.count).unwrap_or(u32::MAX);
        by_priority.entry(row.priority).or_default().push(Item::of(&row.request, count, Asker::Placements));
    }
    by_priority.into_iter().map(|(priority, mut items)| {
        items.sort_by_cached_key(Item::rank);
        Unit { priority, items, ..Unit::default() }
    })
}

/// Returns what a group lacks that its queue cannot be charged for now. The plan says why it gets no nodes.
fn passed_over(group: &WaitingGroup, number: u32, queue: Option<QueueId>) -> Option<Unit> {
    let items = items_of(group, number, &group.passed_over, queue);
    (!items.is_empty()).then(|| Unit { priority: group.spec.priority, items, ..Unit::default() })
}

/// Returns some bundles of a group as items, the hardest to place first.
fn items_of(
    group: &WaitingGroup,
    number: u32,
    bundles: &[(Arc<PlacementRequest>, u32)],
    queue: Option<QueueId>,
) -> Vec<Item> {
    let strategy = group.spec.strategy;
    let item = |(request, count): &(Arc<PlacementRequest>, u32)| {
        let asker = Asker::Waiting(group.id());
        let of = Item::of(&on_node_of_group(request, strategy, &group.nodes), *count, asker);
        let item = Item { queue, ..of };
        match strategy {
            Strategy::StrictSpread => {
                Item { apart: Some(number), taken: group.nodes.as_slice().into(), ..item }
            }
            Strategy::Pack | Strategy::Spread | Strategy::StrictPack => item,
        }
    };
    let mut items: Vec<Item> = bundles.iter().map(item).collect();
    items.sort_by_cached_key(Item::rank);
    items
}

/// Returns what a group lacks that its queue can be charged for. It is placed at once as far as its minimum or its growth needs
/// it, and the rest one by one.
fn units_of(group: &WaitingGroup, number: u32, queue: Option<QueueId>) -> Vec<Unit> {
    let asker = Asker::Waiting(group.id());
    let strategy = group.spec.strategy;
    // Caps that count a part of a group already would count it twice.
    let items = items_of(group, number, &group.open, queue.filter(|_| !group.is_charged));
    let domain =
        group.spec.topology.as_ref().filter(|rule| rule.spreading == Spreading::Pack { strict: true });
    let of = Unit {
        priority: group.spec.priority,
        gang: Some(asker),
        domain: domain.map(|rule| Arc::clone(&rule.key)),
        domain_of: group.nodes.first().copied(),
        ..Unit::default()
    };
    // Those with the least demand are the easiest to place at once.
    let (rest, least) = split(&items, group.least);
    if least.is_empty() {
        return vec![Unit { gang: None, items, ..of }];
    }
    let is_on_one_node = strategy == Strategy::StrictPack && group.nodes.is_empty();
    let gang = |items: Vec<Item>| {
        let items = if is_on_one_node { vec![together(items, asker)] } else { items };
        Unit { items, ..of.clone() }
    };
    if rest.is_empty() {
        return vec![gang(items)];
    }
    if domain.is_none() && matches!(strategy, Strategy::Pack | Strategy::Spread) {
        return vec![gang(least), Unit { gang: None, items: rest, ..of }];
    }
    // Where the rest may go follows from where the minimum is. So all of it is tried first.
    vec![Unit { least: Some(Box::new(gang(least))), ..gang(items) }]
}

/// Returns a request that goes to the node where the group is, if all of it goes to one node.
fn on_node_of_group(
    request: &Arc<PlacementRequest>,
    strategy: Strategy,
    nodes: &[NodeId],
) -> Arc<PlacementRequest> {
    if strategy != Strategy::StrictPack || nodes.is_empty() {
        return Arc::clone(request);
    }
    let may = |node: &&NodeId| request.candidates.as_ref().is_none_or(|own| own.contains(node));
    let candidates = nodes.iter().filter(may).copied().collect();
    Arc::new(PlacementRequest { candidates: Some(candidates), ..(**request).clone() })
}

/// Divides items: the last `count` requests, and those before them. Returns these first.
fn split(items: &[Item], count: u32) -> (Vec<Item>, Vec<Item>) {
    let mut rest = Vec::new();
    let mut last = Vec::new();
    let mut left = count;
    for item in items.iter().rev() {
        let taken = item.count.min(left);
        left -= taken;
        last.extend((taken > 0).then(|| item.with_count(taken)));
        rest.extend((taken < item.count).then(|| item.with_count(item.count - taken)));
    }
    rest.reverse();
    last.reverse();
    (rest, last)
}
