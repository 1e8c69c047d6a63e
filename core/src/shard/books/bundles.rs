//! Bundles: allocations with books of their own, into which later placements are made.
//!
//! For its node, a bundle is one allocation. A placement into the bundle takes from the bundle's books, on the
//! bundle's own instances (Ray's placement groups). It has its own id and ends with the bundle at the latest.

use crate::broken::{Broken, broken};
use std::collections::BTreeSet;
use std::sync::Arc;

use super::ledger::Allocation;
use super::{Books, Dirty, FreeBooks, short_of};
use crate::ids::{AllocationId, BundleId};
use crate::index::Slot;
use crate::journal::Effect;
use crate::map::FixedMap;
use crate::node::NodeState;
use crate::request::Placement;
use crate::resource::{Demand, GpuAssignment, UnitAssignments};
use crate::shard::rejection::{BundleRejection, TooManyAllocations, UnknownAllocation};
use crate::state::{BundleRecord, InsideRecord};
use crate::statement::ConflictReason;
use crate::view::{EndCause, UntoldEnds};

/// A bundle. Most have no placements inside and no books.
struct Bundle {
    id: BundleId,
    books: Option<Box<BundleBooks>>,
}

/// The free amounts of a bundle and the allocations inside.
struct BundleBooks {
    free: FreeBooks,
    inside: BTreeSet<AllocationId>,
}

impl Bundle {
    /// Returns the bundle's books. The first placement creates them from `allocation`.
    fn open(&mut self, allocation: &Allocation) -> &mut BundleBooks {
        let Allocation { demand, gpus, units, .. } = allocation;
        self.books.get_or_insert_with(|| {
            let free = FreeBooks::of_allocation(demand, *gpus, units.as_ref());
            Box::new(BundleBooks { free, inside: BTreeSet::new() })
        })
    }

    /// Returns the first resource of which `demand` takes more than is free. A bundle without books stays without.
    fn short_of(&self, allocation: &Allocation, demand: &Demand) -> Option<ConflictReason> {
        let Allocation { demand: all, gpus, units, .. } = allocation;
        match &self.books {
            Some(books) => short_of(&books.free, demand),
            None => short_of(&FreeBooks::of_allocation(all, *gpus, units.as_ref()), demand),
        }
    }

    /// Returns the allocations inside, in order of id.
    fn inside(&self) -> impl Iterator<Item = AllocationId> {
        self.books.iter().flat_map(|books| books.inside.iter().copied())
    }
}

/// An allocation inside a bundle.
struct Inside {
    bundle: AllocationId,
    demand: Demand,
    gpus: GpuAssignment,
    units: Option<Arc<UnitAssignments>>,
}

/// The bundles of a shard.
#[derive(Default)]
pub(crate) struct Bundles {
    live: FixedMap<AllocationId, Bundle>,
    inside: FixedMap<AllocationId, Inside>,
    /// The number of times each bundle is placed on this shard, as allocation, claim or hold. A bundle counts
    /// twice while an undecided statement moves it.
    placed: FixedMap<BundleId, u32>,
    /// The bundles that ended, for planners.
    pub(crate) ends: UntoldEnds,
}

impl Bundles {
    /// Returns the size in bytes, without the boxed parts of demands.
    pub(crate) fn bytes(&self) -> u64 {
        use crate::memory::{of_btree, of_map, of_vec};
        let of_books = |books: &BundleBooks| {
            let inside = of_btree(books.inside.len(), size_of::<AllocationId>());
            size_of::<BundleBooks>() as u64 + of_vec(&books.free.custom) + inside
        };
        let books = self.live.values().filter_map(|bundle| bundle.books.as_deref());
        let bundles = books.map(of_books).sum::<u64>();
        of_map(&self.live) + of_map(&self.inside) + of_map(&self.placed) + bundles + self.ends.bytes()
    }

    /// Returns the number of bundles.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    /// Returns the number of allocations inside bundles.
    pub(crate) fn len_inside(&self) -> usize {
        self.inside.len()
    }

    /// Returns how often the bundle is placed on this shard.
    pub(crate) fn count(&self, bundle: BundleId) -> u32 {
        self.placed.get(&bundle).copied().unwrap_or(0)
    }

    /// Returns the bundle that an allocation is.
    pub(crate) fn id_of(&self, allocation: AllocationId) -> Option<BundleId> {
        self.live.get(&allocation).map(|bundle| bundle.id)
    }

    /// Returns the bundle that contains an allocation.
    pub(crate) fn holder(&self, id: AllocationId) -> Option<AllocationId> {
        self.inside.get(&id).map(|inside| inside.bundle)
    }

    /// Notes that a bundle is held or claimed.
    pub(crate) fn promise(&mut self, bundle: Option<BundleId>) {
        if let Some(bundle) = bundle {
            *self.placed.entry(bundle).or_default() += 1;
        }
    }

    /// Notes that a bundle is no longer held or claimed.
    pub(crate) fn forget(&mut self, bundle: Option<BundleId>) {
        let Some(bundle) = bundle else { return };
        let count = self.placed.get_mut(&bundle).expect("what is forgotten was placed");
        *count -= 1;
        if *count == 0 {
            self.placed.remove(&bundle);
        }
    }

    /// Notes that a promised bundle is now an allocation.
    fn enter(&mut self, bundle: Option<BundleId>, allocation: &Allocation) {
        let is_of_group = bundle.is_none_or(|bundle| bundle.group.tenant == allocation.id.tenant);
        assert!(is_of_group, "{} belongs to another tenant than the group of its bundle", allocation.id);
        let Some(id) = bundle else { return };
        assert!(self.count(id) > 0, "bundle {id} is placed, and it was neither held nor claimed");
        let before = self.live.insert(allocation.id, Bundle { id, books: None });
        assert!(before.is_none(), "{} is two bundles", allocation.id);
    }

    /// Notes that an allocation ended. If it is a bundle, ends everything inside, and tells each of these allocations to
    /// `tell`. Returns their number.
    pub(crate) fn end(
        &mut self,
        id: AllocationId,
        cause: EndCause,
        mut tell: impl FnMut(AllocationId),
    ) -> u32 {
        let Some(bundle) = self.live.remove(&id) else { return 0 };
        self.forget(Some(bundle.id));
        self.ends.note(bundle.id, id, cause);
        let mut ended = 0;
        for inside in bundle.inside() {
            let was_inside = self.inside.remove(&inside).is_some_and(|of| of.bundle == id);
            assert!(was_inside, "{inside} ends with {id}, and it is not inside");
            tell(inside);
            ended += 1;
        }
        ended
    }

    /// Returns the durable records of a bundle and of the allocations inside.
    pub(crate) fn records(&self, id: AllocationId) -> Option<(BundleRecord, Vec<InsideRecord>)> {
        let bundle = self.live.get(&id)?;
        let inside = bundle.inside().map(|id| {
            let Inside { bundle, demand, gpus, units } = &self.inside[&id];
            let demand = demand.clone();
            let units = units.clone();
            InsideRecord { id, bundle: *bundle, demand, gpus: *gpus, units }
        });
        Some((BundleRecord { allocation: id, bundle: bundle.id }, inside.collect()))
    }
}

impl Books {
    /// Notes that a promised bundle is now an allocation. Its node may have been lost since it was promised.
    pub(super) fn enter_bundle(&mut self, bundle: Option<BundleId>, allocation: &Allocation) {
        self.bundles.enter(bundle, allocation);
        if let Some(bundle) = bundle {
            self.note(|| Effect::Bundle(BundleRecord { allocation: allocation.id, bundle }));
        }
        if let (Some(bundle), NodeState::Lost { .. }) = (bundle, self.nodes.state(allocation.node)) {
            self.bundles.ends.note(bundle, allocation.id, EndCause::NodeLost);
        }
    }

    /// Tells planners that the bundles of a node are lost. Returns the number of allocations looked at.
    pub(crate) fn lose_bundles(&mut self, slot: Slot) -> u64 {
        let Self { ledger, nodes, bundles, .. } = self;
        if bundles.live.is_empty() {
            return 0;
        }
        let mut looked_at = 0;
        for allocation in ledger.of_node(slot, nodes) {
            looked_at += 1;
            if let Some(bundle) = bundles.id_of(allocation.id) {
                bundles.ends.note(bundle, allocation.id, EndCause::NodeLost);
            }
        }
        let hot = nodes.hot(slot);
        assert!(looked_at == u64::from(hot.allocations), "node {} counts others than it lists", hot.id);
        looked_at
    }

    /// Places an allocation into a bundle.
    pub(crate) fn place_into(
        &mut self,
        bundle: AllocationId,
        demand: &Demand,
    ) -> Result<(Placement, Dirty), BundleRejection> {
        let Some(allocation) = self.ledger.get(bundle) else {
            return Err(match self.claims.by_id.contains_key(&bundle) {
                true => BundleRejection::Pending(bundle),
                false => UnknownAllocation(bundle).into(),
            });
        };
        let releasing = self.releasing.until(bundle).is_some();
        let there = self.bundles.live.get_mut(&bundle).ok_or(BundleRejection::NotABundle(bundle))?;
        if releasing {
            return Err(BundleRejection::Releasing(bundle));
        }
        let slot = allocation.node;
        let node = self.nodes.hot(slot).id;
        if let NodeState::Lost { .. } = self.nodes.state(slot) {
            return Err(BundleRejection::Lost(bundle, node));
        }
        if self.nodes.room(slot).places <= 0 {
            return Err(TooManyAllocations(node).into());
        }
        if let Some(ConflictReason::Short { kind, asked, available }) = there.short_of(&allocation, demand) {
            return Err(BundleRejection::Short { bundle, kind, asked, available });
        }
        let books = there.open(&allocation);
        let (gpus, units) = books.free.planned(demand).expect("just checked");
        books.free.take(demand, gpus, units.as_ref());
        let id = self.next_id(slot, bundle.tenant);
        assert!(id.partition == bundle.partition, "{bundle} is on a node of another partition");
        let there = self.bundles.live.get_mut(&bundle).expect("just found");
        let is_new = there.open(&allocation).inside.insert(id);
        assert!(is_new, "{id} is placed twice into {bundle}");
        let demand = demand.clone();
        self.note(|| {
            let demand = demand.clone();
            let units = units.clone();
            Effect::Inside(InsideRecord { id, bundle, demand, gpus, units })
        });
        let before = self.bundles.inside.insert(id, Inside { bundle, demand, gpus, units: units.clone() });
        assert!(before.is_none(), "{id} is inside two bundles");
        self.sums.placed += 1;
        self.bump_version(slot);
        self.nodes.take_place(slot);
        Ok((Placement { node, allocation: id, gpus, alternative: 0, units }, Dirty::changed(slot)))
    }

    /// Ends the allocation `id` inside a bundle. Returns `None` if there is none.
    pub(super) fn end_inside(&mut self, id: AllocationId) -> Option<Dirty> {
        let Inside { bundle, demand, gpus, units } = self.bundles.inside.remove(&id)?;
        self.note(|| Effect::Ended(id, EndCause::Released));
        let there = self.bundles.live.get_mut(&bundle).expect("what is inside has a bundle");
        let books = there.books.as_mut().expect("what is inside is in the books");
        books.free.give(&demand, gpus, units.as_ref());
        let was_inside = books.inside.remove(&id);
        assert!(was_inside, "{id} is not inside {bundle}");
        let slot = self.ledger.get(bundle).expect("a bundle is live").node;
        self.sums.released += 1;
        self.bump_version(slot);
        let was_full = self.nodes.room(slot).places <= 0;
        self.nodes.give_places(slot, 1);
        Some(if was_full { self.grew(slot) } else { Dirty::changed(slot) })
    }

    /// Restores a bundle from the durable state. Its allocation must be in the ledger.
    pub(crate) fn resume_bundle(&mut self, record: &BundleRecord) {
        let allocation = self.ledger.get(record.allocation).expect("a bundle is an allocation");
        self.bundles.promise(Some(record.bundle));
        self.bundles.enter(Some(record.bundle), &allocation);
    }

    /// Restores an allocation inside a bundle from the durable state.
    pub(crate) fn resume_inside(&mut self, record: InsideRecord) -> Dirty {
        let InsideRecord { id, bundle, demand, gpus, units } = record;
        let there = self.bundles.live.get_mut(&bundle).expect("what is inside has a bundle");
        let books = there.open(&self.ledger.get(bundle).expect("a bundle is an allocation"));
        books.free.take(&demand, gpus, units.as_ref());
        let is_new = books.inside.insert(id);
        let before = self.bundles.inside.insert(id, Inside { bundle, demand, gpus, units });
        assert!(is_new && before.is_none(), "{id} is recorded twice inside bundles");
        let slot = self.ledger.get(bundle).expect("a bundle is an allocation").node;
        self.nodes.take_place(slot);
        Dirty::changed(slot)
    }

    /// Returns the number of allocations inside the bundle that `allocation` is. Zero if it is no bundle.
    pub(crate) fn count_inside(&self, allocation: AllocationId) -> usize {
        self.bundles.live.get(&allocation).map_or(0, |bundle| bundle.inside().count())
    }

    /// Checks the books of every bundle against the allocations inside.
    /// `held` is the number of bundles that statements hold.
    pub(crate) fn check_bundles(&self, held: usize) -> Result<(), Broken> {
        let mut inside = 0;
        for (&id, bundle) in &self.bundles.live {
            let Some(allocation) = self.ledger.get(id) else {
                return Err(broken!("bundle {} is on {id}, which is not live", bundle.id));
            };
            if bundle.inside().chain([id]).any(|one| one.tenant != bundle.id.group.tenant) {
                return Err(broken!("bundle {} and what is inside belong to different tenants", bundle.id));
            }
            let Allocation { demand, gpus, units, .. } = &allocation;
            let mut free = FreeBooks::of_allocation(demand, *gpus, units.as_ref());
            for id in bundle.inside() {
                let Some(Inside { demand, gpus, units, .. }) = self.bundles.inside.get(&id) else {
                    return Err(broken!("{id} is lost out of bundle {}", bundle.id));
                };
                free.take(demand, *gpus, units.as_ref());
            }
            inside += bundle.inside().count();
            let agree = bundle.books.as_ref().is_none_or(|books| books.free == free);
            if !agree || self.bundles.count(bundle.id) == 0 {
                return Err(broken!("the books of bundle {} are not what is left of it", bundle.id));
            }
        }
        let promised = held + self.bundles_claimed();
        if inside != self.bundles.inside.len()
            || self.bundles.placed.values().sum::<u32>() as usize != self.bundles.live.len() + promised
        {
            return Err(broken!("{inside} inside bundles, {} known", self.bundles.inside.len()));
        }
        Ok(())
    }
}
