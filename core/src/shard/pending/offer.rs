//! The capacity that a node offers to waiting requests, and the rest of it while copies are woken.

use crate::books::{CustomBook, RESERVED};
use crate::ids::{OwnerId, ResourceId};
use crate::index::Slot;
use crate::request::PlacementRequest;
use crate::resource::{Amount, GpuBooks};
use crate::shard::books::{Books, FreeBooks};
use crate::shard::pending::shapes::{Asked, Summary, fits};

/// The rest of a node's availability while copies are woken for it.
struct Left {
    cpu: Amount,
    memory: Amount,
    gpus: GpuBooks,
    custom: Vec<CustomBook>,
    /// The same, in the form that is compared with shapes.
    most: Asked,
}

impl From<FreeBooks> for Left {
    fn from(FreeBooks { room, gpus, custom }: FreeBooks) -> Self {
        Self::new(room.cpu, room.memory, gpus, custom)
    }
}

impl Left {
    fn new(cpu: Amount, memory: Amount, gpus: GpuBooks, custom: Vec<CustomBook>) -> Self {
        let mut left = Self { cpu, memory, gpus, custom, most: Asked::default() };
        left.follow();
        left
    }

    fn follow(&mut self) {
        let whole = i64::from(self.gpus.whole_free());
        let part = i64::from(self.gpus.largest_free());
        self.most = [self.cpu.units(), self.memory.units(), whole, part];
    }

    fn book(&self, id: ResourceId) -> Option<usize> {
        self.custom.binary_search_by_key(&id, |book| book.id).ok()
    }

    /// Returns whether `request` fits.
    fn holds(&self, request: &PlacementRequest) -> bool {
        let demand = &request.demand;
        demand.cpu <= self.cpu
            && demand.memory <= self.memory
            && self.gpus.choose(demand.gpu).is_some()
            && demand.custom().iter().all(|&(id, amount)| {
                self.book(id).is_some_and(|at| amount <= self.custom[at].room_for(amount))
            })
    }

    /// Takes what `request` asks, which fits.
    fn take(&mut self, request: &PlacementRequest) {
        let demand = &request.demand;
        let before = self.most;
        self.cpu = self.cpu.minus(demand.cpu);
        self.memory = self.memory.minus(demand.memory);
        self.gpus.take(self.gpus.choose(demand.gpu).expect("the request fits"));
        for &(id, amount) in demand.custom() {
            let at = self.book(id).expect("the request fits");
            self.custom[at].take(amount);
        }
        self.follow();
        assert!(fits(&self.most, &before), "an offer grows while it is taken");
    }
}

/// The capacity that a node offers. On a reserved node, the owner's requests also see the reserved amounts.
pub(crate) struct Offer {
    left: Left,
    own: Option<(OwnerId, Left)>,
}

impl Offer {
    /// Returns what the node in `slot` offers.
    pub(super) fn of(books: &Books, slot: Slot) -> Self {
        let nodes = &books.nodes;
        let room = nodes.room(slot);
        let hot = nodes.hot(slot);
        let custom = if hot.has_custom { nodes.cold(slot).custom.clone() } else { Vec::new() };
        let own = books.reservation(slot);
        Self {
            left: Left::new(room.cpu, room.memory, hot.gpus, custom),
            own: own.map(|own| (own.owner, books.free(slot, RESERVED).into())),
        }
    }

    /// Returns whether the node may hold one of the shapes in the summary.
    #[inline]
    pub(crate) fn may_hold(&self, shapes: &Summary) -> bool {
        let may_own = || self.own.as_ref().is_some_and(|(_, left)| fits(&shapes.least, &left.most));
        fits(&shapes.least, &self.left.most) || shapes.owned && may_own()
    }

    fn left(&mut self, request: &PlacementRequest) -> &mut Left {
        match &mut self.own {
            Some((owner, left)) if request.owner == Some(*owner) => left,
            _ => &mut self.left,
        }
    }

    /// Returns whether `request` fits the rest. The rest only shrinks, so a shape that does not fit need not be
    /// tried again.
    pub(crate) fn holds(&mut self, request: &PlacementRequest) -> bool {
        self.left(request).holds(request)
    }

    /// Takes what `request` asks, which fits.
    pub(crate) fn take(&mut self, request: &PlacementRequest) {
        self.left(request).take(request);
    }
}
