//! The state of a placement that is tried at one shard after the other.

use crate::ids::ShardId;
use crate::index::Coordinate;
use crate::limits::{REFUSAL_RETRIES_MAX, SHARDS_MAX};
use crate::request::{PlacementRequest, Refusal};
use crate::shard::Explain;
use crate::state::Origin;

/// A set of shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ShardSet([u64; SHARDS_MAX as usize / 64]);

impl ShardSet {
    pub(super) fn contains(&self, shard: ShardId) -> bool {
        self.0[shard.index() / 64] >> (shard.index() % 64) & 1 == 1
    }

    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns the shards of this set, ascending. Later changes do not affect it.
    pub(super) fn iter(self) -> impl Iterator<Item = ShardId> {
        let mut words = self.0;
        let mut at = 0;
        std::iter::from_fn(move || {
            while words.get(at)? == &0 {
                at += 1;
            }
            let shard = at * 64 + words[at].trailing_zeros() as usize;
            words[at] &= words[at] - 1;
            Some(ShardId(u16::try_from(shard).expect("SHARDS_MAX fits u16")))
        })
    }

    pub(super) fn insert(&mut self, shard: ShardId) {
        self.0[shard.index() / 64] |= 1 << (shard.index() % 64);
    }

    pub(super) fn remove(&mut self, shard: ShardId) {
        self.0[shard.index() / 64] &= !(1 << (shard.index() % 64));
    }
}

pub(super) struct Placing {
    pub(super) request: PlacementRequest,
    pub(super) lower: Coordinate,
    pub(super) asked: ShardSet,
    /// The refusals so far, the latest of each shard.
    pub(super) refusals: Vec<(ShardId, Refusal)>,
    /// How many times the search may still be repeated because capacity came back.
    pub(super) retries: u8,
    pub(super) at: ShardId,
    pub(super) sweep: Option<Box<FallbackSweep>>,
    /// The request of a client session, if it is one.
    pub(super) origin: Option<Origin>,
}

/// A request with fallback selectors over several shards. All shards are tried with one selector before any
/// is tried with the next. The last sweep uses all selectors at once, so that a refusal is true of all of
/// them at one instant.
///
/// A waiting request does not use sweeps: each shard is tried with all its selectors at once.
pub(super) struct FallbackSweep {
    pub(super) whole: PlacementRequest,
    /// The number of this sweep's selector.
    pub(super) alternative: u8,
}

impl FallbackSweep {
    pub(super) fn is_last(&self) -> bool {
        usize::from(self.alternative) == self.whole.fallbacks().len()
    }

    pub(super) fn request(&self) -> PlacementRequest {
        if self.is_last() { self.whole.clone() } else { self.whole.with_alternative(self.alternative) }
    }
}

impl Placing {
    /// Returns the next page of counts to ask for, if all shards refused and counts over all nodes are
    /// wanted.
    pub(super) fn next_page(&mut self) -> Option<Explain> {
        let begins = |(shard, refusal): &(ShardId, Refusal)| Some((*shard, refusal.rest?));
        let (shard, from) = self.refusals.iter().find_map(begins)?;
        self.at = shard;
        Some(Explain { request: self.request.clone(), from })
    }

    /// Adds a page of counts from the shard that was asked last.
    pub(super) fn add_page(&mut self, page: &Refusal) {
        let of_shard = self.refusals.iter_mut().find(|(shard, _)| *shard == self.at);
        of_shard.expect("a shard counts what it refused").1.add_page(page);
    }

    pub(super) fn new(request: PlacementRequest, lower: Coordinate) -> Self {
        let asked = ShardSet::default();
        let refusals = Vec::new();
        let retries = REFUSAL_RETRIES_MAX;
        let at = ShardId(0);
        Self { request, lower, asked, refusals, retries, at, sweep: None, origin: None }
    }

    /// Returns the origin of what the next shard does.
    pub(super) fn origin(&self) -> Option<Origin> {
        let sweep = self.sweep.as_ref().filter(|sweep| !sweep.is_last());
        let alternative = sweep.map(|sweep| sweep.alternative);
        self.origin.map(|origin| Origin { alternative, ..origin })
    }

    /// Begins the sweep with the next fallback selector, if there is one.
    pub(super) fn next_sweep(&mut self) -> bool {
        let Some(sweep) = self.sweep.as_mut().filter(|sweep| !sweep.is_last()) else { return false };
        sweep.alternative += 1;
        self.request = sweep.request();
        self.asked = ShardSet::default();
        self.refusals.clear();
        self.retries = REFUSAL_RETRIES_MAX;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::rng::Rng;

    #[test]
    fn a_set_of_shards_is_a_set() {
        let mut set = ShardSet::default();
        let mut model = BTreeSet::new();
        let mut rng = Rng::new(1);
        for _ in 0..5_000 {
            let shard = rng.below(u64::from(SHARDS_MAX)) as u16;
            if rng.below(2) == 0 {
                set.insert(ShardId(shard));
                model.insert(shard);
            } else {
                set.remove(ShardId(shard));
                model.remove(&shard);
            }
            assert_eq!(set.len(), model.len());
            let other = rng.below(u64::from(SHARDS_MAX)) as u16;
            assert_eq!(set.contains(ShardId(other)), model.contains(&other));
            assert!(set.iter().map(|shard| shard.0).eq(model.iter().copied()));
        }
        assert!((0..SHARDS_MAX).all(|shard| set.contains(ShardId(shard)) == model.contains(&shard)));
    }
}
