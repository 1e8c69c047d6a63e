//! The bundles that ended, as a shard tells planners.
//!
//! A shard numbers its events. A view has the newest [`BUNDLES_ENDED_KEPT`] of them, in a ring. So a planner
//! that follows the views learns which of its bundles ended, and never infers it. A planner that fell behind
//! the ring is told so, and compares its bundles with the view.

use std::collections::VecDeque;

use super::View;
use crate::ids::{AllocationId, BundleId};
use crate::limits::BUNDLES_ENDED_KEPT;

/// The reason why an allocation or a bundle ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndCause {
    /// A caller released its allocation.
    Released,
    /// A statement evicted it, at once or with a grace period that is over.
    Evicted,
    /// Its node was removed.
    NodeRemoved,
    /// Its node was lost. Only here, the allocation is still live.
    NodeLost,
    /// A crash came before all of a change was recorded, so a start took it back. Nobody was told of it.
    TakenBack,
    /// Its lease ran out. A bundle has none.
    Expired,
}

/// A bundle that is no longer placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BundleEnded {
    /// The bundle.
    pub bundle: BundleId,
    /// The allocation that it was.
    pub allocation: AllocationId,
    /// The reason.
    pub cause: EndCause,
    /// The sequence of the first view that shows it.
    pub sequence: u64,
}

/// The events of a shard that no view tells yet. The oldest are dropped if they exceed the ring.
#[derive(Default)]
pub(crate) struct UntoldEnds {
    /// The number of all events so far.
    count: u64,
    ends: VecDeque<BundleEnded>,
}

impl BundleEnded {
    /// Returns the place of an event in the ring.
    pub(super) fn place(number: u64) -> u32 {
        (number % BUNDLES_ENDED_KEPT) as u32
    }
}

impl UntoldEnds {
    /// Returns the number of all events so far.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Returns whether some event is in no view.
    #[inline]
    pub(crate) fn is_untold(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Returns the size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.ends.capacity() * size_of::<BundleEnded>()) as u64
    }

    /// Records that a bundle ended.
    pub(crate) fn note(&mut self, bundle: BundleId, allocation: AllocationId, cause: EndCause) {
        if self.ends.len() as u64 == BUNDLES_ENDED_KEPT {
            self.ends.pop_front();
        }
        self.ends.push_back(BundleEnded { bundle, allocation, cause, sequence: 0 });
        self.count += 1;
    }

    /// Moves the events to those that the view with that sequence tells first.
    pub(crate) fn tell(&mut self, sequence: u64, told: &mut Vec<BundleEnded>) {
        told.extend(self.ends.drain(..).map(|ended| BundleEnded { sequence, ..ended }));
    }
}

impl View {
    fn end(&self, number: u64) -> &BundleEnded {
        let told = self.mirror.ended.get(BundleEnded::place(number)).and_then(Option::as_ref);
        told.expect("the ring has the newest events")
    }

    /// Returns the number of the oldest event in the ring.
    fn oldest_end(&self) -> u64 {
        self.head.bundles_ended.saturating_sub(BUNDLES_ENDED_KEPT)
    }

    /// Returns the bundles that ended, from the event with that number on. `None` if the ring has lost some of
    /// them.
    #[must_use]
    pub fn ended_from(&self, number: u64) -> Option<impl Iterator<Item = &BundleEnded>> {
        let all = number >= self.oldest_end();
        all.then(|| (number..self.head.bundles_ended).map(|number| self.end(number)))
    }

    /// Returns the number of the first event that views from `sequence` on show. If the ring may have lost it,
    /// the number is one that the ring does not have.
    #[must_use]
    pub fn first_end_since(&self, sequence: u64) -> u64 {
        let oldest = self.oldest_end();
        let newer = (oldest..self.head.bundles_ended).rev();
        let first = newer.take_while(|&number| self.end(number).sequence >= sequence).last();
        match first {
            Some(first) if first == oldest => oldest.saturating_sub(1),
            Some(first) => first,
            None => self.head.bundles_ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Copied, Mirror};
    use super::*;
    use crate::ids::{GroupId, Incarnation, PartitionId, ShardId, TenantId};
    use crate::index::Geometry;
    use crate::shard::{HybridSettings, Shard, ShardConfig};

    fn id(sequence: u64) -> AllocationId {
        AllocationId {
            incarnation: Incarnation(1),
            partition: PartitionId(0),
            sequence,
            tenant: TenantId::OPERATOR,
        }
    }

    /// A view with this sequence and ring.
    fn view(sequence: u64, ends: &UntoldEnds, mirror: &Mirror) -> View {
        let mut shard = Shard::new(ShardConfig {
            shard: ShardId(0),
            incarnation: Incarnation(1),
            partitions: vec![PartitionId(0)],
            geometry: Geometry::default(),
            seed: 1,
            hybrid: HybridSettings::default(),
        });
        let mut head = shard.enable_views().latest().head().clone();
        (head.version.sequence, head.bundles_ended) = (sequence, ends.count());
        View::new(head, mirror.clone())
    }

    #[test]
    fn views_tell_the_newest_events_in_order_and_say_when_some_are_lost() {
        let bundle = BundleId {
            group: GroupId { incarnation: Incarnation(1), number: 1, tenant: TenantId::OPERATOR },
            index: 0,
        };
        let mut ends = UntoldEnds::default();
        let mut mirror = Mirror::default();
        let mut noted = 0;
        for (sequence, count) in
            [(1, 0), (2, 3), (3, BUNDLES_ENDED_KEPT - 4), (4, 3), (5, 3 * BUNDLES_ENDED_KEPT)]
        {
            for _ in 0..count {
                noted += 1;
                ends.note(bundle, id(noted), EndCause::Evicted);
            }
            assert!(ends.ends.len() as u64 <= BUNDLES_ENDED_KEPT);
            let mut told = Vec::new();
            ends.tell(sequence, &mut told);
            mirror.tell(ends.count(), &told, &mut Copied::default());
            let view = view(sequence, &ends, &mirror);
            let oldest = noted.saturating_sub(BUNDLES_ENDED_KEPT);
            for from in [oldest, oldest + 1, noted] {
                let told: Vec<u64> = match view.ended_from(from) {
                    Some(told) => told.map(|end| end.allocation.sequence).collect(),
                    None => panic!("the ring has event {from} of {noted}"),
                };
                assert!(told.into_iter().eq(from + 1..=noted), "from {from} in view {sequence}");
            }
            assert!(oldest == 0 || view.ended_from(oldest - 1).is_none());
            let new = noted - count;
            let first = if new <= oldest { oldest.saturating_sub(1) } else { new };
            assert_eq!(view.first_end_since(sequence), first, "view {sequence}");
            assert_eq!(view.first_end_since(sequence + 1), noted);
        }
    }
}
