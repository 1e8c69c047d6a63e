//! Counts of the nodes that have less of a dimension than a request asks.
//!
//! The counts per coordinate say it of all nodes but those in the step of the request itself. Of these, a bounded
//! number is compared. Their entries say how much of the step they have, rounded down, so few nodes are looked at: those
//! with the same part as the request, and those that may have the most. GPUs are counted by value, so no node is compared
//! for them.

use std::collections::BTreeMap;

use super::cell::CHUNK;
use super::coordinate::Coordinates;
use super::entry::{Entry, Narrow};
use super::plane::Plane;
use super::ranks::Rank;
use super::tree::Width;
use super::{Coordinate, Dimension, DistBuckets, Meter, Slot, Structure};

/// The most rows of a plane in which nodes of one column are looked for.
const ROWS_MAX: usize = 1024;

/// The nodes that have less of a dimension than was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lacking {
    /// The number of these nodes.
    pub(crate) nodes: u64,
    /// The largest value of those that were compared. `None` if there are none.
    pub(crate) most: Option<u64>,
    /// The number of nodes that were compared.
    pub(crate) compared: u64,
    /// The number of nodes that may also have less, but were not compared.
    pub(crate) unknown: u64,
}

/// The nodes whose free GPUs are not a whole number of steps: how many have each value, by dimension and value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Odd(BTreeMap<(usize, u16), u32>);

impl Odd {
    fn change(&mut self, before: [u16; 2], after: [u16; 2]) {
        for (d, value) in after.into_iter().enumerate().filter(|&(_, value)| value > 0) {
            *self.0.entry((d, value)).or_default() += 1;
        }
        for (d, value) in before.into_iter().enumerate().filter(|&(_, value)| value > 0) {
            let count = self.0.get_mut(&(d, value)).expect("the node was counted");
            *count -= 1;
            if *count == 0 {
                self.0.remove(&(d, value));
            }
        }
    }

    /// Returns how many nodes have a value above `low` and below `high`, and the largest of these values.
    fn between(&self, d: usize, low: u64, high: u64) -> (u64, Option<u64>) {
        let [low, high] = [low.saturating_add(1), high].map(|value| u16::try_from(value).unwrap_or(u16::MAX));
        if low >= high {
            return (0, None);
        }
        let range = || self.0.range((d, low)..(d, high));
        let nodes = range().map(|(_, &count)| u64::from(count)).sum();
        (nodes, range().next_back().map(|(&(_, value), _)| u64::from(value)))
    }
}

impl<E: Entry> Plane<E> {
    /// Follows a change of a node's values that are not a whole number of steps.
    #[cold]
    pub(super) fn change_odd(&mut self, before: [u16; 2], after: [u16; 2]) {
        self.counts.odd.change(before, after);
    }

    /// Returns whether exactly these values are counted.
    pub(super) fn has_odd(&self, values: impl Iterator<Item = [u16; 2]>) -> bool {
        let mut expected = Odd::default();
        values.for_each(|values| expected.change([0; 2], values));
        expected == self.counts.odd
    }

    /// Returns the number of nodes with a lower coordinate, and the highest such coordinate of a node.
    fn below(&self, d: usize, at: u16, visits: &mut impl Meter) -> (u64, Option<u16>) {
        let counts = &self.counts.by_coordinate[d];
        let lower = &counts[..counts.len().min(usize::from(at))];
        visits.read(Structure::Counts(d as u8), 0, size_of_val(lower));
        // It cannot wrap: there are at most `NODES_MAX` nodes. An overflow check would cost more than the sum.
        let nodes = lower.iter().fold(0u32, |nodes, &count| nodes.wrapping_add(count));
        (nodes.into(), lower.iter().rposition(|&count| count > 0).map(|at| at as u16))
    }

    fn at(&self, d: usize, at: u16) -> u64 {
        self.counts.by_coordinate[d].get(usize::from(at)).map_or(0, |&count| u64::from(count))
    }

    /// Calls `visit` with the first nodes with this coordinate in the first or second dimension, in order of coordinate and
    /// then of rank, and with at most this many. Those of one part of a cell are in any order. For an exact layout.
    fn visit_step<M: Meter>(
        &self,
        (d, at): (usize, u16),
        most: usize,
        visits: &mut M,
        mut visit: impl FnMut(Group<'_, E>, &mut M) -> bool,
    ) {
        let mut left = most.min(self.at(d, at) as usize);
        if left == 0 {
            return;
        }
        let column_bits = self.layout.column_bits();
        let mut visit_cell = |cell: usize, visits: &mut M| {
            let here = self.cells.get_for(cell, visits);
            let len = usize::from(here.len);
            if d == 0 && here.directory().is_none() && len <= left {
                let [bound, ..] = here.within;
                if visit(Group::Bounded(len, bound), visits) {
                    left -= len;
                    return left > 0;
                }
            }
            self.cells.visit_chunks(here, visits, |entries, visits| {
                if entries.len() > left {
                    // The first ones, in any order.
                    let mut first = [E::VACANT; CHUNK];
                    let first = &mut first[..entries.len()];
                    first.copy_from_slice(entries);
                    first.select_nth_unstable_by_key(left - 1, |entry| entry.order());
                    visit(Group::Entries(&first[..left]), visits);
                    left = 0;
                } else {
                    visit(Group::Entries(entries), visits);
                    left -= entries.len();
                }
                left > 0
            });
            left > 0
        };
        let at = usize::from(at);
        if d == 0 {
            for word in bits(u64::from(self.rows.words(at, 0, visits))) {
                for bit in bits(self.rows.cells_of_all(at, word, visits)) {
                    if !visit_cell((at << column_bits) | (word * 64) | bit, visits) {
                        return;
                    }
                }
            }
        } else {
            for group in 0..self.rows.groups() {
                for row in bits(self.rows.rows(group, 0, visits)).map(|bit| group * 64 + bit) {
                    if self.rows.cells_of_all(row, at / 64, visits) >> (at % 64) & 1 == 1
                        && !visit_cell(row << column_bits | at, visits)
                    {
                        return;
                    }
                }
            }
        }
    }
}

/// Nodes of a cell.
enum Group<'a, E> {
    /// Their number, and an upper bound of their [`Entry::within`]. Returning true says that no more is needed.
    Bounded(usize, u8),
    /// Those of one part.
    Entries(&'a [E]),
}

/// Nodes of one step, as they are compared with a part of it. A node is looked at only if its part leaves open whether it has
/// less, or if it may have the most of those that have less.
struct Compared {
    d: usize,
    /// Whether equal parts are equal values.
    is_exact: bool,
    /// The nodes with a smaller part have less, and those with a greater one do not. `None` if all have less.
    part: Option<u32>,
    less: u64,
    /// The largest part of those that have less, and the largest value of these.
    largest_part: u32,
    largest: Option<u64>,
}

impl Compared {
    fn new(d: usize, part: Option<u32>, is_exact: bool) -> Self {
        Self { d, is_exact, part, less: 0, largest_part: 0, largest: None }
    }

    /// Counts nodes. Returns whether each is compared.
    #[inline]
    fn add<M: Meter>(
        &mut self,
        group: Group<'_, Narrow>,
        asked: u64,
        value: &impl Fn(Rank, &mut M) -> u64,
        visits: &mut M,
    ) -> bool {
        match group {
            Group::Bounded(nodes, bound) => self.add_below(nodes, bound),
            Group::Entries(entries) => {
                self.add_entries(entries, asked, value, visits);
                true
            }
        }
    }

    /// Counts nodes of which the first dimension is compared, if all of them have less than was asked, and none has the most
    /// of those that have less.
    #[inline]
    fn add_below(&mut self, nodes: usize, bound: u8) -> bool {
        let is_below = |part: u32| bound < Narrow::within_of_part(part);
        let is_counted = self.largest.is_some() && is_below(self.largest_part);
        if is_counted && self.part.is_none_or(is_below) {
            self.less += nodes as u64;
            return true;
        }
        false
    }

    /// Compares nodes. Parts are rounded down, so of two values with the same part either may be larger.
    #[inline]
    fn add_entries<M: Meter>(
        &mut self,
        entries: &[Narrow],
        asked: u64,
        value: &impl Fn(Rank, &mut M) -> u64,
        visits: &mut M,
    ) {
        let shift = Narrow::part_at(self.d);
        let part = |entry: &Narrow| entry.part(shift);
        let of_part = self.part.map_or(Narrow::ABOVE_PARTS, Narrow::part_first);
        // One plain pass without branches, because most nodes need nothing else. What the subtraction borrows says who has
        // less. Of these, the largest part leaves the largest difference, because it wraps.
        let mut less = 0u64;
        let mut largest = 0u64;
        let mut nearest = u64::MAX;
        for entry in entries {
            let (over, has_less) = entry.by_part(shift).overflowing_sub(of_part);
            less = less.wrapping_add(u64::from(has_less));
            largest = largest.max(over);
            nearest = nearest.min(over);
        }
        self.less += less;
        if less > 0 {
            let largest_part = Narrow::first_part(largest.wrapping_add(of_part));
            let is_more = largest_part > self.largest_part || self.largest.is_none();
            if is_more || largest_part == self.largest_part && !self.is_exact {
                let with_it = entries.iter().filter(|entry| part(entry) == largest_part);
                let looks = if self.is_exact { 1 } else { CHUNK };
                let values = with_it.take(looks).map(|entry| value(entry.rank(), visits));
                self.largest = self.largest.max(values.max());
                self.largest_part = largest_part;
            }
        }
        if let Some(equal) = self.part
            && Narrow::first_part(nearest) == 0
            && !self.is_exact
        {
            let with_it = entries.iter().filter(|entry| part(entry) == equal);
            for value in with_it.map(|entry| value(entry.rank(), visits)).filter(|&value| value < asked) {
                self.less += 1;
                self.largest = self.largest.max(Some(value));
                self.largest_part = equal;
            }
        }
    }
}

impl Plane<Narrow> {
    /// For the first two dimensions. `part` is how much of its last step the request takes, and `is_exact` whether equal parts
    /// are equal values. `value` returns the exact value of a node.
    fn lacking<M: Meter>(
        &self,
        (d, at, part, is_exact): (usize, u16, u32, bool),
        asked: u64,
        most: usize,
        visits: &mut M,
        value: impl Fn(Rank, &mut M) -> u64,
    ) -> Option<Lacking> {
        if self.layout.rows() > ROWS_MAX {
            return None;
        }
        let (nodes, lower) = self.below(d, at, visits);
        let step_of = |at: u16| self.at(d, at).min(most as u64);
        let mut compared = step_of(at);
        let mut step = Compared::new(d, Some(part), is_exact);
        self.visit_step((d, at), most, visits, |group, visits| step.add(group, asked, &value, visits));
        let unknown = self.at(d, at) - compared;
        let nodes = nodes + step.less;
        if step.largest.is_none()
            && let Some(lower) = lower
        {
            // All of these have less.
            step = Compared::new(d, None, is_exact);
            self.visit_step((d, lower), most, visits, |group, visits| step.add(group, asked, &value, visits));
            compared += step_of(lower);
        }
        Some(Lacking { nodes, most: step.largest, compared, unknown })
    }

    /// For a dimension that counts GPUs.
    fn lacking_gpus(
        &self,
        (d, at): (usize, u16),
        asked: u64,
        theta: u64,
        visits: &mut impl Meter,
    ) -> Lacking {
        let odd_in = |at: u16, end: u64| {
            let end_of_step = u64::from(at).saturating_mul(theta);
            self.counts.odd.between(d - 2, end_of_step.saturating_sub(theta), end_of_step.min(end))
        };
        let (nodes, lower) = self.below(d, at, visits);
        let (odd, most) = odd_in(at, asked);
        let most = most.or_else(|| {
            let lower = lower?;
            let (odd, largest) = odd_in(lower, u64::MAX);
            if odd == self.at(d, lower) { largest } else { Some(u64::from(lower).saturating_mul(theta)) }
        });
        Lacking { nodes: nodes + odd, most, ..Lacking::default() }
    }
}

impl DistBuckets {
    /// Counts the nodes that have less than `asked` of a dimension, which is above zero. `value` returns how much
    /// a node has exactly. Compares at most `most` nodes of a step. `None` if the index cannot tell.
    pub(crate) fn lacking<M: Meter>(
        &self,
        dimension: Dimension,
        asked: u64,
        most: usize,
        visits: &mut M,
        value: impl Fn(Slot) -> u64,
    ) -> Option<Lacking> {
        let d = self.geometry.dimensions().iter().position(|&(of, _)| of == dimension)?;
        let Width::Narrow(tree) = &self.first.width else { return None };
        let scale = &self.geometry.scales[d];
        let mut of_request = Coordinates::default();
        of_request.set(d, scale, asked);
        let at = of_request.coordinate.0[d];
        let part = u32::from(of_request.within[d]);
        // The highest coordinate includes all larger values.
        let is_exact = scale.is_exact() && at < Coordinate::HIGHEST;
        match d {
            0 | 1 => {
                let value = |rank, visits: &mut M| {
                    let slot = self.ranks.slot_for(rank, visits);
                    visits.compared(slot);
                    value(slot)
                };
                tree.plane.lacking((d, at, part, is_exact), asked, most, visits, value)
            }
            _ if self.geometry.is_wide => None,
            _ => Some(tree.plane.lacking_gpus((d, at), asked, scale.theta, visits)),
        }
    }
}

/// Returns the numbers of the bits that are set.
fn bits(mut of: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (of != 0).then(|| of.trailing_zeros() as usize);
        of &= of.wrapping_sub(1);
        bit
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Ordinal;
    use crate::index::{Geometry, Marks, ResourceVector, Visits};
    use crate::limits::STEP_NODES_MAX;
    use crate::resource::Amount;
    use crate::rng::Rng;

    const DIMENSIONS: [Dimension; 4] =
        [Dimension::Cpu, Dimension::Memory, Dimension::WholeGpus, Dimension::LargestGpuPart];

    fn value_of(vector: &ResourceVector, dimension: Dimension) -> u64 {
        match dimension {
            Dimension::Cpu => vector.cpu.units() as u64,
            Dimension::Memory => vector.memory.units() as u64,
            Dimension::WholeGpus => u64::from(vector.whole_gpus),
            _ => u64::from(vector.largest_gpu_part),
        }
    }

    /// A node with few distinct values, so that many share a step and many share a value.
    fn node(rng: &mut Rng) -> ResourceVector {
        let amount = |units: u64| Amount::try_from_units(units as i64).expect("it is small");
        ResourceVector {
            cpu: amount(rng.below(60) * 2_500),
            memory: amount(rng.below(40) * 10_240_000 + rng.below(2)),
            whole_gpus: rng.below(4) as u16,
            largest_gpu_part: [0, 3_333, 3_334, 3_400, 5_000, 6_667, 10_000][rng.below(7) as usize],
            ..ResourceVector::default()
        }
    }

    #[test]
    fn counts_are_those_of_a_scan() {
        let mut rng = Rng::new(7);
        let mut index = DistBuckets::new(Geometry::default().with_room(4));
        let mut nodes: Vec<Option<ResourceVector>> = vec![None; 400];
        for round in 0..4_000u32 {
            let slot = rng.below(nodes.len() as u64) as Slot;
            match nodes[slot as usize].take() {
                Some(_) if rng.below(3) == 0 => index.remove(slot),
                known => {
                    let vector = node(&mut rng);
                    match known {
                        Some(_) => index.update(slot, &vector),
                        None => index.insert(slot, Ordinal(u64::from(slot)), &vector, Marks::NONE),
                    }
                    nodes[slot as usize] = Some(vector);
                }
            }
            if round % 16 > 0 {
                continue;
            }
            index.check().expect("the index is right");
            for dimension in DIMENSIONS {
                let asked = value_of(&node(&mut rng), dimension) + rng.below(2);
                if asked > 0 {
                    let exact =
                        |slot: Slot| value_of(nodes[slot as usize].as_ref().expect("it is there"), dimension);
                    let Lacking { nodes: lacking, most, unknown, .. } = index
                        .lacking(dimension, asked, 1 << 20, &mut Visits::default(), exact)
                        .expect("the layout is exact");
                    let below = || {
                        nodes.iter().flatten().map(|node| value_of(node, dimension)).filter(|&v| v < asked)
                    };
                    let largest = below().max();
                    assert_eq!((lacking, unknown), (below().count() as u64, 0), "{dimension:?} {asked}");
                    assert!(lacking == 0 || most == largest, "{dimension:?} {asked}: {most:?}, {largest:?}");
                }
            }
        }
    }

    /// Steps with fewer units than parts, about as many, and more: equal parts are equal values only in the first ones.
    #[test]
    fn counts_hold_for_steps_of_any_size_and_if_nodes_are_left_out() {
        let mut rng = Rng::new(11);
        let mut told = 0;
        for theta in [7, 1_000, 10_000, 16_383, 16_384, 50_000, 10_000_000] {
            let dimensions = vec![(Dimension::Cpu, theta), (Dimension::Memory, 3 * theta)];
            let mut index = DistBuckets::new(Geometry::new(dimensions).expect("two dimensions"));
            // Values are close to the bounds of steps, and to each other.
            let value = |rng: &mut Rng| {
                rng.below(4) as i64 * theta
                    + [0, 1, theta / 2, theta - 1][rng.below(4) as usize]
                    + rng.below(2) as i64
            };
            let amount = |units: i64| Amount::try_from_units(units).expect("it is small");
            let nodes: Vec<ResourceVector> = (0..300)
                .map(|_| ResourceVector {
                    cpu: amount(value(&mut rng)),
                    memory: amount(value(&mut rng)),
                    ..ResourceVector::default()
                })
                .collect();
            for (slot, vector) in (0..).zip(&nodes) {
                index.insert(slot, Ordinal(u64::from(slot)), vector, Marks::NONE);
            }
            for round in 0..200 {
                let dimension = [Dimension::Cpu, Dimension::Memory][round % 2];
                let asked = value(&mut rng).max(1) as u64;
                let most = [8, 64, 1 << 20][rng.below(3) as usize];
                let exact = |slot: Slot| value_of(&nodes[slot as usize], dimension);
                let Some(found) = index.lacking(dimension, asked, most, &mut Visits::default(), exact) else {
                    continue;
                };
                told += 1;
                let below = || nodes.iter().map(|node| value_of(node, dimension)).filter(|&v| v < asked);
                let all = below().count() as u64;
                let counted = found.nodes..=found.nodes + found.unknown;
                assert!(counted.contains(&all), "{theta} {dimension:?} {asked} {most}: {found:?}, {all}");
                assert!(found.compared <= 2 * most as u64, "{found:?}");
                assert!(found.most.is_none_or(|value| below().any(|of| of == value)), "{found:?}");
                if most > nodes.len() {
                    assert_eq!((found.nodes, found.unknown), (all, 0), "{theta} {dimension:?} {asked}");
                    assert!(
                        all == 0 || found.most == below().max(),
                        "{theta} {dimension:?} {asked}: {found:?}"
                    );
                }
            }
        }
        assert!(told > 1_000, "the index tells it: {told} times");
    }

    #[test]
    fn a_crowded_step_is_compared_in_part() {
        let mut index = DistBuckets::new(Geometry::default());
        let nodes = STEP_NODES_MAX as u32 + 100;
        let amount = |slot: Slot| Amount::try_from_units(i64::from(slot) + 1).expect("it is small");
        for slot in 0..nodes {
            let vector = ResourceVector { cpu: amount(slot), ..ResourceVector::default() };
            index.insert(slot, Ordinal(u64::from(nodes - slot) << 32), &vector, Marks::NONE);
        }
        let exact = |slot: Slot| amount(slot).units() as u64;
        // The last slots were registered first.
        let of_step = index
            .lacking(Dimension::Cpu, u64::from(nodes - 2), STEP_NODES_MAX, &mut Visits::default(), exact)
            .expect("it is exact");
        let compared = STEP_NODES_MAX as u64;
        let most = Some(u64::from(nodes - 3));
        assert_eq!(of_step, Lacking { nodes: compared - 3, most, compared, unknown: 100 });
        let of_higher = index
            .lacking(Dimension::Cpu, 10_001, STEP_NODES_MAX, &mut Visits::default(), exact)
            .expect("it is exact");
        let most = Some(u64::from(nodes));
        assert_eq!(of_higher, Lacking { nodes: u64::from(nodes), most, compared, unknown: 0 });
    }
}
