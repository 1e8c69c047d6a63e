//! A search tells nodes apart that have the coordinate of the request but less than it asks, without a look at
//! them. It finds the node that a scan finds, while nodes join, move, gain, leave or are marked.

use wharf_core::ids::Ordinal;
use wharf_core::index::{
    Candidates, Dimension, DistBuckets, Geometry, Mark, Marks, PolicyState, ResourceVector, Slot, Visits,
};
use wharf_core::request::Policy;
use wharf_core::resource::Amount;
use wharf_core::rng::Rng;

const NODES: u32 = 300;
const COARSE: u64 = 16;

fn amount(units: u64) -> Amount {
    Amount::try_from_units(units as i64).expect("a small amount")
}

/// Coarse steps, so that most offered nodes fail the exact check.
fn geometry() -> Geometry {
    let dimensions = vec![(Dimension::Cpu, COARSE as i64), (Dimension::Memory, COARSE as i64)];
    let geometry = Geometry::new(dimensions).expect("two different dimensions").with_room(5);
    geometry.with_orders(&[vec![Dimension::Memory, Dimension::Cpu]]).expect("each dimension once")
}

fn available(rng: &mut Rng) -> ResourceVector {
    let cpu = amount(rng.below(2 * COARSE));
    let memory = amount(rng.below(2 * COARSE));
    ResourceVector { cpu, memory, ..ResourceVector::default() }
}

/// More than most nodes have, in the last step that any node has.
fn asked(rng: &mut Rng) -> ResourceVector {
    let much = |rng: &mut Rng| amount(COARSE + COARSE / 2 + rng.below(COARSE / 2));
    ResourceVector { cpu: much(rng), memory: much(rng), ..ResourceVector::default() }
}

fn state() -> PolicyState {
    PolicyState { next_fit: Ordinal(0), rng: Rng::new(1) }
}

struct Cluster {
    index: DistBuckets,
    free: Vec<Option<ResourceVector>>,
}

impl Cluster {
    /// Returns the node that the index finds, and the number of nodes that it looked at.
    fn find(
        &mut self,
        order: usize,
        asked: &ResourceVector,
        policy: Policy,
        mark: Option<Mark>,
    ) -> (Option<Slot>, u64) {
        let free: &[Option<ResourceVector>] = &self.free;
        let candidates = mark.map_or(Candidates::All, Candidates::Marked);
        let mut visits = Visits::default();
        let accept = |slot: Slot| free[slot as usize].as_ref().is_some_and(|free| fits(free, asked));
        let index = &mut self.index;
        let found =
            index.select_in_order(order, policy, asked, candidates, &mut state(), &mut visits, accept);
        (found, visits.nodes)
    }

    /// Returns the node that a scan finds.
    fn scan(&self, order: usize, asked: &ResourceVector, policy: Policy, mark: Option<Mark>) -> Option<Slot> {
        let is_marked = |slot: &Slot| {
            mark.is_none_or(|mark| self.index.marks(*slot).is_some_and(|marks| marks.hold(Marks::only(mark))))
        };
        let has = |slot: &Slot| self.free[*slot as usize].as_ref().is_some_and(|free| fits(free, asked));
        let steps = |slot: &Slot| {
            let free = self.free[*slot as usize].as_ref().expect("it fits");
            let [cpu, memory] =
                [free.cpu, free.memory].map(|amount| (amount.units() as u64).div_ceil(COARSE));
            let key = if order == 0 { [cpu, memory] } else { [memory, cpu] };
            (if policy == Policy::LeastFit { key.map(|steps| !steps) } else { key }, *slot)
        };
        (0..NODES).filter(|slot| is_marked(slot) && has(slot)).min_by_key(steps)
    }
}

fn fits(free: &ResourceVector, asked: &ResourceVector) -> bool {
    free.cpu >= asked.cpu && free.memory >= asked.memory
}

#[test]
fn only_nodes_that_fit_are_looked_at() {
    let mut rng = Rng::new(11);
    let mut cluster = Cluster { index: DistBuckets::new(geometry()), free: vec![None; NODES as usize] };
    let shapes: Vec<ResourceVector> = (0..8).map(|_| asked(&mut rng)).collect();
    let mark = Mark::new(3);
    let mut looked_at = 0;
    let mut found = 0;
    for round in 0..40_000u64 {
        let slot = rng.below(u64::from(NODES)) as Slot;
        let here = cluster.free[slot as usize];
        match rng.below(6) {
            0 if here.is_none() => {
                let free = available(&mut rng);
                let marks = if rng.below(2) == 0 { Marks::only(mark) } else { Marks::NONE };
                cluster.index.insert(slot, Ordinal(u64::from(slot) + 1), &free, marks);
                cluster.free[slot as usize] = Some(free);
            }
            1 if here.is_some() && rng.below(8) == 0 => {
                cluster.index.remove(slot);
                cluster.free[slot as usize] = None;
            }
            2 if here.is_some() => {
                let marks = if rng.below(2) == 0 { Marks::only(mark) } else { Marks::NONE };
                cluster.index.mark(slot, marks);
            }
            3 | 4 if here.is_some() => {
                // Often within one step, so that the node stays in its bucket.
                let free = match (here, rng.below(3)) {
                    (Some(old), 0) => ResourceVector { cpu: amount((old.cpu.units() as u64) ^ 1), ..old },
                    _ => available(&mut rng),
                };
                cluster.index.update(slot, &free);
                cluster.free[slot as usize] = Some(free);
            }
            _ => {}
        }
        let asked = shapes[rng.below(shapes.len() as u64) as usize];
        let policy = [Policy::BestFit, Policy::LeastFit][rng.below(2) as usize];
        let order = usize::from(rng.below(4) == 0);
        let mark = (rng.below(3) == 0).then_some(mark);
        let expected = cluster.scan(order, &asked, policy, mark);
        let (answer, nodes) = cluster.find(order, &asked, policy, mark);
        assert_eq!(answer, expected, "round {round}: {policy}, {asked:?}, order {order}, marked: {mark:?}");
        looked_at += nodes;
        found += u64::from(answer.is_some());
    }
    assert!(found > 10_000 && found < 39_000, "{found} searches found a node");
    assert_eq!(looked_at, found, "each node that was looked at was found");
}
