//! Granularity that follows the nodes: θ is derived from the distribution of their sizes.
//!
//! A θ that is too fine makes many buckets of one node each. A θ that is too coarse makes all nodes equal, so
//! that only the exact check distinguishes them. Both are slow, but neither is wrong.
//!
//! The rule for each automatic dimension:
//! - Take the size that 90 % of the nodes with any of the resource do not exceed, rounded up to a power of two.
//! - Divide it into at most 256 steps. A node of that size then has more than 50 coordinates.
//! - If the step is more than half a unit, round it up to a power of two of whole units. Otherwise round it up
//!   to 1, 2 or 5 of a decimal place. Usual sizes are then multiples of the step.
//!
//! A few unusual nodes do not decide θ, unlike with a rule based on the largest node.
//!
//! θ changes if any target differs from it by more than a factor of two, and enough nodes have joined, changed
//! or left since the last change. Enough means half the number of registered nodes, so these events pay for the
//! O(nodes) cost of a change. The choices of LeastFit and BestFit depend on θ. So θ depends only on the
//! commands, and it is part of the durable state.

use super::Choose;
use crate::index::{Coordinate, Dimension, Geometry, Slot};
use crate::limits::DIMENSIONS_MAX;
use crate::node::NodeSpec;
use crate::resource::Amount;
use crate::shard::books::Books;
use crate::state::GranularityState;

/// The maximum number of steps for the size that 90 % of the nodes do not exceed.
const STEPS_MAX: u64 = 256;
/// Sizes are counted by their bit length.
const SIZES: usize = 65;

/// The counts from which granularity is derived.
pub(crate) struct Granularity {
    /// The configured geometry. Published bounds are in this geometry.
    configured: Geometry,
    /// The number of nodes per dimension and bit length of the size.
    counts: [[u32; SIZES]; DIMENSIONS_MAX],
    nodes: u64,
    changes: u64,
}

/// Returns a step of at least `least`, in 1/10,000. A unit has `unit` such parts.
fn step(least: u64, unit: u64) -> u64 {
    if 2 * least > unit {
        return unit * least.div_ceil(unit).next_power_of_two();
    }
    let mut decimal = 1;
    loop {
        for step in [decimal, 2 * decimal, 5 * decimal] {
            if step >= least {
                return step;
            }
        }
        decimal *= 10;
    }
}

impl Granularity {
    /// Returns empty counts for `geometry`, or `None` if no granularity is automatic.
    pub(crate) fn of(geometry: &Geometry) -> Option<Box<Self>> {
        geometry.has_automatic().then(|| {
            let counts = [[0; SIZES]; DIMENSIONS_MAX];
            Box::new(Self { configured: geometry.clone(), counts, nodes: 0, changes: 0 })
        })
    }

    /// Adds or removes a node, by its values per dimension.
    fn count(&mut self, values: &[u64], joins: bool) {
        assert!(values.len() <= self.counts.len(), "a dimension is not counted");
        for (counts, value) in self.counts.iter_mut().zip(values) {
            let count = &mut counts[(u64::BITS - value.leading_zeros()) as usize];
            let fewer = || count.checked_sub(1).expect("a size that is gone was counted");
            *count = if joins { *count + 1 } else { fewer() };
        }
        let fewer = || self.nodes.checked_sub(1).expect("a node that is gone was counted");
        self.nodes = if joins { self.nodes + 1 } else { fewer() };
    }

    /// Returns θ for the current nodes, or `None` if no node has any of the resource.
    fn target(&self, place: usize, dimension: Dimension) -> Option<i64> {
        let having = &self.counts[place][1..];
        let all: u64 = having.iter().map(|&count| u64::from(count)).sum();
        let mut within = 0;
        let bits = having.iter().position(|&count| {
            within += u64::from(count);
            within > 0 && 10 * within >= 9 * all
        })? + 1;
        let unit = if dimension == Dimension::WholeGpus { 1 } else { Amount::SCALE as u64 };
        // A size is at most 2^53, so that this is at most 2^46.
        Some(step(((1u64 << bits) / STEPS_MAX).max(1), unit) as i64)
    }

    /// Returns the new granularities if they should change.
    fn moves(&self, geometry: &Geometry) -> Option<Vec<i64>> {
        if 2 * self.changes < self.nodes {
            return None;
        }
        let targets: Vec<(i64, i64)> = (0..)
            .zip(geometry.dimensions())
            .map(|(place, &(dimension, theta))| {
                let target = geometry.is_automatic(place).then(|| self.target(place, dimension)).flatten();
                (theta, target.unwrap_or(theta))
            })
            .collect();
        let far = |&(theta, target): &(i64, i64)| target > 2 * theta || theta > 2 * target;
        targets.iter().any(far).then(|| targets.iter().map(|&(_, target)| target).collect())
    }

    /// Converts `highest`, a bound in the index's geometry, to the published geometry.
    pub(crate) fn published(&self, geometry: &Geometry, highest: Coordinate) -> Coordinate {
        geometry.bound_in(&self.configured, highest)
    }
}

impl Choose {
    /// Returns the values of a node of this capacity, per dimension.
    fn values_of(&self, books: &Books, spec: &NodeSpec) -> Vec<u64> {
        self.index.geometry().values(&books.nodes.capacity_of(spec))
    }

    /// Notes that a node joined (`former` is `None`), changed, or left (`now` is `None`).
    pub(super) fn node_resized(&mut self, books: &Books, former: Option<&NodeSpec>, now: Option<Slot>) {
        if self.granularity.is_none() {
            return;
        }
        let spec = now.map(|slot| &books.nodes.cold(slot).registration.spec);
        let [former, now] = [former, spec].map(|spec| spec.map(|spec| self.values_of(books, spec)));
        let granularity = self.granularity.as_mut().expect("just looked at");
        for (values, joins) in
            former.iter().map(|values| (values, false)).chain(now.iter().map(|v| (v, true)))
        {
            granularity.count(values, joins);
        }
        assert!(
            granularity.nodes == books.nodes.len() as u64,
            "sizes are counted of other nodes than there are"
        );
        granularity.changes += 1;
        if let Some(thetas) = granularity.moves(self.index.geometry()) {
            granularity.changes = 0;
            self.regrain(books, &thetas);
        }
    }

    /// Stops following the sizes of nodes. A replica follows its shard's granularity.
    pub(crate) fn fix_granularity(&mut self) {
        assert!(self.capacities.is_empty(), "sizes of nodes were followed that are forgotten");
        self.granularity = None;
    }

    /// Follows the granularity of a shard.
    pub(crate) fn follow_thetas(&mut self, books: &Books, thetas: &[i64]) {
        let dimensions = self.index.geometry().dimensions();
        assert!(dimensions.len() == thetas.len(), "a replica has other dimensions than its shard");
        if dimensions.iter().zip(thetas).any(|(&(_, now), &then)| now != then) {
            self.regrain(books, thetas);
        }
    }

    fn regrain(&mut self, books: &Books, thetas: &[i64]) {
        assert!(thetas.iter().all(|&theta| theta > 0), "a step of nothing: {thetas:?}");
        let geometry = self.index.geometry().with_thetas(thetas);
        let nodes = &books.nodes;
        let there = self.index.len();
        self.index.regrain(geometry.clone(), |slot| nodes.available(slot));
        self.capacities.regrain(geometry.clone(), |slot| nodes.capacity(slot));
        self.reserved.regrain(geometry, |slot| {
            books.available_to_owner(slot).expect("only reserved nodes are in this tree")
        });
        assert!(self.index.len() == there, "a change of steps loses a node");
    }

    /// Returns the durable state of granularity, if any granularity is automatic.
    pub(crate) fn granularity_state(&self) -> Option<GranularityState> {
        let granularity = self.granularity.as_ref()?;
        let thetas = self.index.geometry().dimensions().iter().map(|&(_, theta)| theta).collect();
        Some(GranularityState { thetas, changes: granularity.changes })
    }

    /// Continues from the state of an earlier start, unless the dimensions or their settings changed. The
    /// partitions must already be restored.
    pub(crate) fn resume_granularity(&mut self, books: &Books, state: &GranularityState) {
        let dimensions = self.index.geometry().dimensions();
        let Some(granularity) = &mut self.granularity else { return };
        let same = dimensions.len() == state.thetas.len()
            && (0..).zip(dimensions).zip(&state.thetas).all(|((place, &(_, configured)), &theta)| {
                theta > 0 && (granularity.configured.is_automatic(place) || theta == configured)
            });
        assert!(
            granularity.nodes == books.nodes.len() as u64,
            "sizes are counted of other nodes than there are"
        );
        if same {
            granularity.changes = state.changes;
            self.regrain(books, &state.thetas);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Incarnation, PartitionId, ShardId};
    use crate::shard::{HybridSettings, Shard, ShardConfig};

    #[test]
    fn steps_are_such_that_usual_sizes_are_multiples() {
        let core = Amount::SCALE as u64;
        for (least, expected) in [
            (1, 1),
            (3, 5),
            (64, 100),
            (4096, 5000),
            (5001, core),
            (core, core),
            (core + 1, 2 * core),
            (5 * core, 8 * core),
        ] {
            assert_eq!(step(least, core), expected, "at least {least}");
        }
        assert_eq!((step(1, 1), step(3, 1)), (1, 4));
    }

    fn counted(sizes: &[(u32, u32)]) -> Granularity {
        let geometry = Geometry::new(vec![(Dimension::Cpu, Amount::SCALE)]).unwrap();
        let mut granularity = Granularity::of(&geometry.with_automatic(&[Dimension::Cpu])).unwrap();
        for &(cores, nodes) in sizes {
            for _ in 0..nodes {
                granularity.count(&[Amount::whole(cores).units() as u64], true);
                granularity.changes += 1;
            }
        }
        *granularity
    }

    #[test]
    fn a_few_large_nodes_do_not_decide() {
        let target = |sizes| counted(sizes).target(0, Dimension::Cpu);
        assert_eq!(target(&[(64, 10)]), Some(5_000));
        assert_eq!(target(&[(64, 19), (20_000, 1)]), Some(5_000));
        assert_eq!(target(&[(64, 8), (20_000, 2)]), Some(128 * Amount::SCALE));
        assert_eq!(target(&[(0, 5)]), None);
    }

    #[test]
    fn it_moves_by_more_than_a_factor_of_two_and_seldom() {
        let moves = |granularity: &Granularity| granularity.moves(&granularity.configured);
        assert_eq!(moves(&counted(&[(64, 10)])), None, "half a core is not far from one");
        let mut granularity = counted(&[(4, 10)]);
        assert_eq!(moves(&granularity), Some(vec![500]));
        granularity.changes = 4;
        assert_eq!(moves(&granularity), None, "fewer changes than half of the nodes");
    }

    #[test]
    fn a_granularity_that_can_be_none_is_not_gone_on_with() {
        let mut shard = Shard::new(ShardConfig {
            shard: ShardId(0),
            incarnation: Incarnation(1),
            partitions: vec![PartitionId(0)],
            geometry: Geometry::default().with_automatic(&[Dimension::Cpu]),
            seed: 0,
            hybrid: HybridSettings::default(),
        });
        let configured = shard.choose.granularity_state().expect("one is automatic");
        let with = |theta: i64| {
            let mut thetas = configured.thetas.clone();
            thetas[0] = theta;
            GranularityState { thetas, changes: 7 }
        };
        for theta in [0, -1] {
            shard.resume_granularity(&with(theta));
            assert_eq!(shard.choose.granularity_state().as_ref(), Some(&configured), "{theta}");
        }
        shard.resume_granularity(&with(1));
        assert_eq!(shard.choose.granularity_state(), Some(with(1)));
    }
}
