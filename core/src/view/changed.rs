//! What a shard hands over to the readers of its views: images of the places that changed.

use std::sync::Arc;

use super::image::{AllocationImage, ColdImage, HotImage, MoreImage};
use super::{BundleEnded, Copied, Mirror, ViewHead};
use crate::ids::AllocationId;
use crate::index::Slot;
use crate::limits::VIEW_PORTION;

/// Images of changed places, in the order in which the shard read them. A later image of a place replaces an
/// earlier one.
#[derive(Default)]
pub(crate) struct Changed {
    pub(crate) nodes: Vec<(Slot, HotImage)>,
    pub(crate) cold: Vec<(Slot, Option<ColdImage>)>,
    pub(crate) allocations: Vec<(u32, AllocationImage)>,
    /// The images of those allocations that have more.
    pub(crate) more: Vec<(u32, MoreImage)>,
    /// The bundles that ended.
    pub(crate) ended: Vec<BundleEnded>,
    /// The allocations whose lease ran out.
    pub(crate) expired: Vec<AllocationId>,
    /// The head of the view that these complete.
    pub(crate) head: Option<ViewHead>,
    /// The size in bytes when the shard handed it over.
    pub(crate) bytes: u64,
}

/// How many images of each list a reader has taken over.
#[derive(Clone, Copy, Default)]
pub(crate) struct Taken {
    nodes: usize,
    cold: usize,
    allocations: usize,
    more: usize,
}

/// Scratch lists, so that nothing is allocated per portion.
#[derive(Default)]
pub(crate) struct Order {
    /// Places with the position of their last image, ascending.
    last: Vec<(u32, usize)>,
    places: Vec<u32>,
}

impl Order {
    /// Orders the next images of a list, at most `room`. Returns their range.
    fn next<T>(&mut self, list: &[(u32, T)], taken: &mut usize, room: &mut usize) {
        let end = list.len().min(*taken + *room);
        *room -= end - *taken;
        self.last.clear();
        self.last.extend((*taken..end).map(|at| (list[at].0, at)));
        *taken = end;
        self.last.sort_unstable();
        // Of several images of a place, the last one is kept.
        self.last.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            kept.1 = if same { later.1 } else { kept.1 };
            same
        });
        self.places.clear();
        self.places.extend(self.last.iter().map(|&(place, _)| place));
    }

    /// Returns the position of the image of a place.
    fn of(&self, place: u32) -> usize {
        let at =
            self.last.binary_search_by_key(&place, |&(place, _)| place).expect("only these are asked for");
        self.last[at].1
    }
}

impl Changed {
    /// Returns the number of images.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len() + self.cold.len() + self.allocations.len() + self.more.len()
    }

    /// Returns the size in bytes, without what cold images own.
    pub(crate) fn bytes(&self) -> u64 {
        use crate::memory::of_vec;
        of_vec(&self.nodes) + of_vec(&self.cold) + of_vec(&self.allocations) + of_vec(&self.more)
    }

    /// Empties the lists. Those that grew beyond a portion are freed.
    pub(crate) fn clear(&mut self) {
        fn empty<T>(list: &mut Vec<T>) {
            list.clear();
            list.shrink_to(VIEW_PORTION);
        }
        empty(&mut self.nodes);
        empty(&mut self.cold);
        empty(&mut self.allocations);
        empty(&mut self.more);
        self.ended.clear();
        self.expired.clear();
    }

    /// Brings `mirror` up to the next images, at most `room`. Returns whether that was the last of them.
    pub(crate) fn apply(
        &mut self,
        taken: &mut Taken,
        room: &mut usize,
        (mirror, order): (&mut Mirror, &mut Order),
        copied: &mut Copied,
    ) -> bool {
        order.next(&self.cold, &mut taken.cold, room);
        let cold = |slot, _: &_| {
            let image = self.cold[order.of(slot)].1.take()?;
            Some(Arc::new(image))
        };
        mirror.cold.set(&order.places, cold, copied);
        order.next(&self.nodes, &mut taken.nodes, room);
        mirror.nodes.set(&order.places, |slot, _| self.nodes[order.of(slot)].1, copied);
        order.next(&self.allocations, &mut taken.allocations, room);
        let mut vacated = Vec::new();
        let allocation = |at, before: &AllocationImage| {
            let image = self.allocations[order.of(at)].1;
            vacated.extend((before.has_more && !image.has_more).then_some(at));
            image
        };
        mirror.allocations.set(&order.places, allocation, copied);
        mirror.more.set(&vacated, |_, _| None, copied);
        order.next(&self.more, &mut taken.more, room);
        let Mirror { allocations, more, .. } = mirror;
        // A later image of the allocation may have no more.
        let has_more = |at| allocations.get(at).is_some_and(|image| image.has_more);
        let image = |at, _: &_| has_more(at).then(|| Arc::new(self.more[order.of(at)].1.clone()));
        more.set(&order.places, image, copied);
        *room > 0 || taken.nodes + taken.cold + taken.allocations + taken.more == self.len()
    }
}
