//! The strategies that place the bundles of a group: Ray's strategies, and rules over the values of a label.
//!
//! All of them use the shards' own search on the planner's replicas. `Pack` takes the longest run of bundles,
//! largest first, that one node holds, then continues with the rest. `Spread` hides the used nodes, and goes
//! to the nodes with the fewest bundles when no other is left.
//!
//! For equal bundles, this finds a placement if there is one. Different bundles are tried in a few orders:
//! largest first, then for a gang the smallest ones first, then the bundles first that found no place. This is
//! a heuristic, because packing is NP-hard. It may miss a placement.

use std::sync::Arc;

use super::colocate::{Item, alike, largest_first};
use super::draft::{Draft, Place, Replicas};
use super::used::Used;
use crate::group::{Spreading, Strategy, TopologyRule};
use crate::limits::GROUP_ORDERS_MAX;
use crate::request::PlacementRequest;

/// The bundles to place, and the conditions.
#[derive(Clone)]
pub(super) struct Wanted {
    pub(super) strategy: Strategy,
    pub(super) topology: Option<TopologyRule>,
    /// The bundles to place.
    pub(super) items: Vec<Item>,
    /// The nodes of the group's placed bundles.
    pub(super) standing: Vec<Place>,
    /// The requests of the placed bundles, without adjacent duplicates. Empty without a rule over a label.
    pub(super) settled: Vec<Arc<PlacementRequest>>,
    /// The least number of `items` to place. Otherwise none is placed.
    pub(super) least: usize,
}

/// The first bundle that found no place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoPlace {
    pub(super) bundle: u32,
    /// The number of other bundles that found one.
    pub(super) placed: usize,
    /// For a rule over a label: the value that got furthest or that limited the others, and its number of
    /// bundles.
    pub(super) at: Option<(Arc<str>, u32)>,
    /// Set if the search was given up. Then it is not known whether there is a place.
    pub(super) given_up: bool,
}

impl NoPlace {
    /// Creates a result that only says that `bundle` found no place.
    pub(super) fn of(bundle: u32) -> Self {
        Self { bundle, placed: 0, at: None, given_up: false }
    }
}

impl Replicas {
    /// Takes the wanted bundles. Different bundles are tried in a few orders. The search is given up after
    /// `units`.
    pub(super) fn plan(&mut self, wanted: Wanted, units: u64, draft: &mut Draft) -> Result<(), NoPlace> {
        self.meter.allow(units);
        let planned = self.plan_in_orders(wanted, draft);
        let given_up = self.meter.is_spent();
        self.meter.allow(u64::MAX);
        planned.map_err(|no_place| NoPlace { given_up, ..no_place })
    }

    fn plan_in_orders(&mut self, mut wanted: Wanted, draft: &mut Draft) -> Result<(), NoPlace> {
        largest_first(&mut wanted.items);
        let Err(mut no_place) = self.plan_in_order(&wanted, draft) else { return Ok(()) };
        if alike(&wanted.items) {
            return Err(no_place);
        }
        let mut failing = no_place.bundle;
        for order in 0..GROUP_ORDERS_MAX {
            if self.meter.is_spent() {
                break;
            }
            let spare = wanted.items.len() - wanted.least;
            if order == 0 && spare > 0 {
                // The largest bundles of a gang may have taken the room of several small ones, which would
                // suffice.
                wanted.items.rotate_left(spare);
            } else {
                bring_forward(&mut wanted.items, failing);
            }
            let Err(here) = self.plan_in_order(&wanted, draft) else { return Ok(()) };
            failing = here.bundle;
            if here.placed > no_place.placed {
                no_place = here;
            }
        }
        Err(no_place)
    }

    fn plan_in_order(&mut self, wanted: &Wanted, draft: &mut Draft) -> Result<(), NoPlace> {
        match &wanted.topology {
            None => self.place(wanted, &wanted.items, draft),
            Some(TopologyRule { key, spreading: Spreading::Pack { strict } }) => {
                self.pack_by_label(wanted, key, *strict, draft)
            }
            Some(TopologyRule { key, spreading: Spreading::Spread { max_skew } }) => {
                self.spread_by_label(wanted, key, *max_skew, draft)
            }
        }
    }

    pub(super) fn place(
        &mut self,
        wanted: &Wanted,
        items: &[Item],
        draft: &mut Draft,
    ) -> Result<(), NoPlace> {
        let savepoint = draft.len();
        let failed = match wanted.strategy {
            Strategy::Pack => self.pack(wanted, items, draft),
            Strategy::StrictPack => self.pack_strictly(wanted, items, draft),
            Strategy::Spread => self.spread(wanted, items, false, draft),
            Strategy::StrictSpread => self.spread(wanted, items, true, draft),
        };
        self.unhide_all();
        self.keep_enough(wanted, failed, draft, savepoint)
    }

    /// Keeps what was placed since the savepoint if it is at least the wanted number. Otherwise rolls back.
    pub(super) fn keep_enough(
        &mut self,
        wanted: &Wanted,
        failed: Option<u32>,
        draft: &mut Draft,
        savepoint: usize,
    ) -> Result<(), NoPlace> {
        let placed = draft.len() - savepoint;
        match failed {
            Some(bundle) if placed < wanted.least => {
                self.roll_back(draft, savepoint);
                Err(NoPlace { placed, ..NoPlace::of(bundle) })
            }
            _ => Ok(()),
        }
    }

    /// Packs as many of `items` as possible. Returns the first bundle without a place.
    fn pack(&mut self, wanted: &Wanted, items: &[Item], draft: &mut Draft) -> Option<u32> {
        let before = draft.len();
        let mut rest: Vec<Item> = items.to_vec();
        for &place in &wanted.standing {
            rest.retain(|item| !self.take_on(draft, place, item.bundle, &item.request));
        }
        let mut failed = None;
        let mut rest = &rest[..];
        while !rest.is_empty() {
            if self.meter.is_spent() {
                return failed.or(Some(rest[0].bundle));
            }
            let count = self.take_longest(draft, rest);
            if count == 0 {
                failed = failed.or(Some(rest[0].bundle));
                // Bundles with the same request find no place either.
                let same =
                    rest.iter().take_while(|item| Arc::ptr_eq(&item.request, &rest[0].request)).count();
                rest = &rest[same..];
                if draft.len() - before + rest.len() < wanted.least {
                    return failed;
                }
            }
            rest = &rest[count..];
        }
        failed
    }

    /// Takes the longest run at the start of `items` that one node holds. Returns its length.
    fn take_longest(&mut self, draft: &mut Draft, items: &[Item]) -> usize {
        if self.place_colocated(draft, items) {
            return items.len();
        }
        let savepoint = draft.len();
        let mut held = 0;
        let mut beyond = items.len();
        while held + 1 < beyond && !self.meter.is_spent() {
            let middle = held.midpoint(beyond);
            if self.place_colocated(draft, &items[..middle]) {
                self.roll_back(draft, savepoint);
                held = middle;
            } else {
                beyond = middle;
            }
        }
        if held > 0 && !self.place_colocated(draft, &items[..held]) {
            // This search may begin at another shard, where the devices do not fit. Then take a single
            // bundle.
            return usize::from(self.place_colocated(draft, &items[..1]));
        }
        held
    }

    /// Packs all of `items` on one node, or the longest run of at least the wanted number.
    fn pack_strictly(&mut self, wanted: &Wanted, items: &[Item], draft: &mut Draft) -> Option<u32> {
        if let Some(&place) = wanted.standing.first() {
            let mut failed = None;
            for item in items {
                if !self.take_on(draft, place, item.bundle, &item.request) {
                    failed = failed.or(Some(item.bundle));
                }
            }
            return failed;
        }
        let held = self.take_longest(draft, items);
        items.get(held).map(|item| item.bundle)
    }

    /// Places each of `items` on a node of its own. If that fails and is not strict, uses the nodes with the
    /// fewest bundles. Returns the first bundle without a place.
    fn spread(&mut self, wanted: &Wanted, items: &[Item], strict: bool, draft: &mut Draft) -> Option<u32> {
        let mut used = Used::default();
        for &place in &wanted.standing {
            self.hide(place);
            if !self.is_left_out(place) {
                used.add(place);
            }
        }
        let mut failed = None;
        // The request that found no unused node. Equal requests find none either.
        let mut spent: Option<&Arc<PlacementRequest>> = None;
        // The request that found no used node either. A node that is used later had no room for it before.
        let mut hopeless: Option<&Arc<PlacementRequest>> = None;
        for item in items {
            if hopeless.is_some_and(|hopeless| Arc::ptr_eq(hopeless, &item.request)) {
                failed = failed.or(Some(item.bundle));
                continue;
            }
            if self.meter.is_spent() {
                failed = failed.or(Some(item.bundle));
                break;
            }
            let known = spent.is_some_and(|spent| Arc::ptr_eq(spent, &item.request));
            let mut placed = !known && self.take(draft, item.bundle, &item.request);
            if !placed {
                spent = Some(&item.request);
                placed = !strict && self.take_used(draft, &used, item.bundle, &item.request);
            }
            if placed {
                let taken = *draft.last().expect("just taken");
                self.hide((taken.shard, taken.slot));
                used.add((taken.shard, taken.slot));
            } else {
                hopeless = Some(&item.request);
                failed = failed.or(Some(item.bundle));
            }
        }
        failed
    }
}

/// Moves the bundle that found no place, and those with the same request, to the front.
fn bring_forward(items: &mut [Item], bundle: u32) {
    let asked = items.iter().find(|item| item.bundle == bundle).map(|item| Arc::clone(&item.request));
    let asked = asked.expect("what found no place was to be placed");
    // The sort is stable, so the others keep their order.
    items.sort_by_cached_key(|item| !(Arc::ptr_eq(&item.request, &asked) || item.request == asked));
}
