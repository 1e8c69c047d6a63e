//! The examples of the design's page on DistBuckets, with the same figures.
//!
//! There are twelve nodes with vcores and GiB. One task asks for (1,2) among the candidates b, c, e, f. The
//! order in which the patent's plain walk discovers buckets has its own golden test, together with the
//! reference walk (`fuzz/tests/reference_walk.rs`).

use wharf_core::ids::Ordinal;
use wharf_core::index::tree::Direction;
use wharf_core::index::{
    Candidates, Dimension, DistBuckets, Geometry, Marks, PolicyState, ResourceVector, Slot, Visits,
};
use wharf_core::request::Policy;
use wharf_core::resource::Amount;
use wharf_core::rng::Rng;

/// Name, vcores, GiB; in order of registration.
const NODES: [(char, u32, u32); 12] = [
    ('a', 4, 4),
    ('b', 4, 2),
    ('c', 3, 5),
    ('d', 3, 5),
    ('e', 6, 1),
    ('f', 4, 1),
    ('g', 3, 3),
    ('h', 6, 3),
    ('p', 6, 4),
    ('q', 1, 3),
    ('u', 5, 5),
    ('v', 5, 2),
];
const CANDIDATES: [char; 4] = ['b', 'c', 'e', 'f'];

/// A granularity in vcores and GiB.
#[derive(Clone, Copy)]
struct Theta(u32, u32);

fn vector(vcores: u32, gib: u32) -> ResourceVector {
    ResourceVector { cpu: Amount::whole(vcores), memory: Amount::whole(gib), ..ResourceVector::default() }
}

fn task() -> ResourceVector {
    vector(1, 2)
}

fn index(theta: Theta) -> DistBuckets {
    let geometry = Geometry::new(vec![
        (Dimension::Cpu, Amount::whole(theta.0).units()),
        (Dimension::Memory, Amount::whole(theta.1).units()),
    ])
    .expect("two different dimensions");
    let mut index = DistBuckets::new(geometry);
    for (slot, (_, vcores, gib)) in (0..).zip(NODES) {
        index.insert(slot, Ordinal(u64::from(slot) + 1), &vector(vcores, gib), Marks::NONE);
    }
    index
}

fn is_candidate(slot: Slot) -> bool {
    CANDIDATES.contains(&NODES[slot as usize].0)
}

fn leaves(theta: Theta, direction: Direction) -> Vec<(u16, u16)> {
    index(theta).leaves(direction, &task(), is_candidate).iter().map(|leaf| (leaf.0[0], leaf.0[1])).collect()
}

/// Returns the node that the task gets. The descent and a walk over the candidates must agree.
fn pick(theta: Theta, policy: Policy) -> char {
    let few: Vec<Slot> = (0..12).filter(|&slot| is_candidate(slot)).collect();
    let picks = [Candidates::All, Candidates::Walk(&few)].map(|candidates| {
        let mut state = PolicyState { next_fit: Ordinal(0), rng: Rng::new(0) };
        let accept = |slot: Slot| {
            let (_, vcores, gib) = NODES[slot as usize];
            is_candidate(slot) && vcores >= 1 && gib >= 2
        };
        let mut index = index(theta);
        let slot = index.select(policy, &task(), candidates, &mut state, &mut Visits::default(), accept);
        NODES[slot.expect("b and c fit") as usize].0
    });
    assert_eq!(picks[0], picks[1], "descent and walk");
    picks[0]
}

/// Returns the number of non-empty buckets on the first level below the root, and the number of leaves.
fn level_sizes(index: &DistBuckets) -> (usize, usize) {
    let all: Vec<_> = index.leaves(Direction::Greatest, &ResourceVector::default(), |_| true);
    let mut first: Vec<u16> = all.iter().map(|leaf| leaf.0[0]).collect();
    first.dedup();
    (first.len(), all.len())
}

#[test]
fn seventeen_buckets_exist_at_granularity_one() {
    let index = index(Theta(1, 1));
    index.check().unwrap();
    assert_eq!(index.bucket_count(), 17);
    assert_eq!(level_sizes(&index), (5, 11));
}

#[test]
fn least_fit_yields_the_largest_leaves_first_and_picks_b() {
    assert_eq!(leaves(Theta(1, 1), Direction::Greatest), [(4, 2), (3, 5)]);
    assert_eq!(pick(Theta(1, 1), Policy::LeastFit), 'b');
}

#[test]
fn best_fit_yields_the_smallest_leaves_first_and_picks_c() {
    assert_eq!(leaves(Theta(1, 1), Direction::Smallest), [(3, 5), (4, 2)]);
    assert_eq!(pick(Theta(1, 1), Policy::BestFit), 'c');
}

#[test]
fn a_coarse_granularity_makes_five_leaves_and_the_exact_check_decides() {
    let theta = Theta(2, 3);
    assert_eq!(level_sizes(&index(theta)).1, 5);
    // Of the candidates, the first leaf has only e, which has one GiB where two are asked.
    assert_eq!(leaves(theta, Direction::Greatest), [(3, 1), (2, 2), (2, 1)]);
    assert_eq!(pick(theta, Policy::LeastFit), 'c');
}

#[test]
fn a_search_for_the_task_visits_no_more_than_the_plain_walk() {
    let mut state = PolicyState { next_fit: Ordinal(0), rng: Rng::new(0) };
    let mut visits = Visits::default();
    let accept = |slot: Slot| is_candidate(slot) && NODES[slot as usize].2 >= 2;
    let found = index(Theta(1, 1)).select(
        Policy::LeastFit,
        &task(),
        Candidates::All,
        &mut state,
        &mut visits,
        accept,
    );
    assert_eq!(found, Some(1));
    // The patent's walk enters eight buckets and finishes (5,*) at once. Without a candidate counter per
    // bucket, the leaves below (5,*) are examined too.
    assert!(visits.vertices <= 10, "{visits:?}");
}
