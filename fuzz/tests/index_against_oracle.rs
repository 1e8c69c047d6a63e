//! The index answers every search as the linear scan does: the same node, ties included. Random returns each of
//! the fitting nodes equally often. No search becomes a scan.

use proptest::prelude::*;
use wharf_core::ids::Ordinal;
use wharf_core::index::{
    Candidates, DistBuckets, Geometry, Marks, PolicyState, ResourceVector, Slot, Visits,
};
use wharf_core::request::Policy;
use wharf_core::resource::{Amount, GPU_UNIT};
use wharf_core::rng::Rng;
use wharf_fuzz::{bytes_of_seed, run_index_ops};

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_answer_is_the_oracles(data in proptest::collection::vec(any::<u8>(), 0..1500)) {
        prop_assert_eq!(run_index_ops(&data), Ok(()));
    }
}

/// The inputs are the same on every machine and in every run.
#[test]
fn every_answer_is_the_oracles_on_fixed_inputs() {
    for seed in 0..100 {
        assert_eq!(run_index_ops(&bytes_of_seed(seed, 3000)), Ok(()), "seed {seed}");
    }
}

fn cores(cpu: u32) -> ResourceVector {
    ResourceVector { cpu: Amount::whole(cpu), ..ResourceVector::default() }
}

/// Draws from `nodes` nodes, of which the first `fitting` fit, with `draws_each` draws per fitting node.
/// Returns the chi-square statistic in thousandths.
fn chi_square(nodes: u32, fitting: u32, draws_each: i64) -> i64 {
    let mut index = DistBuckets::new(Geometry::default());
    for slot in 0..nodes {
        let cpu = if slot < fitting { 8 } else { 1 };
        index.insert(slot, Ordinal(u64::from(slot) + 1), &cores(cpu), Marks::NONE);
    }
    let mut state = PolicyState { next_fit: Ordinal(0), rng: Rng::new(2024) };
    let mut counts = vec![0i64; fitting as usize];
    for _ in 0..draws_each * i64::from(fitting) {
        let accept = |slot: Slot| slot < fitting;
        let mut visits = Visits::default();
        let drawn = index.select(Policy::Random, &cores(4), Candidates::All, &mut state, &mut visits, accept);
        counts[drawn.expect("some node fits") as usize] += 1;
    }
    counts.iter().map(|count| (count - draws_each).pow(2) * 1000 / draws_each).sum()
}

#[test]
fn random_is_uniform_where_most_nodes_fit() {
    // 47 degrees of freedom: 82.7 is the 0.999 quantile.
    let statistic = chi_square(64, 48, 500);
    assert!(statistic < 82_700, "{statistic}");
}

#[test]
fn random_is_uniform_where_few_nodes_fit() {
    // 9 degrees of freedom: 27.9 is the 0.999 quantile. With 10 fitting nodes among 2000, the bounded draws hit
    // one about one time in seven. So this tests the enumeration.
    let statistic = chi_square(2000, 10, 1000);
    assert!(statistic < 27_900, "{statistic}");
}

/// Returns a cluster of machines of a few sizes that are partly in use.
fn friendly_cluster(nodes: u32) -> (DistBuckets, Vec<ResourceVector>) {
    let mut rng = Rng::new(3);
    let mut below = |bound: u64| rng.below(bound) as u32;
    let mut index = DistBuckets::new(Geometry::default());
    let mut vectors = Vec::new();
    for slot in 0..nodes {
        let gpus = below(9) as u16;
        let vector = ResourceVector {
            cpu: Amount::whole(below(97)),
            memory: Amount::whole(below(97) * 4096),
            whole_gpus: gpus,
            largest_gpu_part: if gpus > 0 { GPU_UNIT } else { below(20) as u16 * 500 },
            ..ResourceVector::default()
        };
        index.insert(slot, Ordinal(u64::from(slot) + 1), &vector, Marks::NONE);
        vectors.push(vector);
    }
    (index, vectors)
}

#[test]
fn a_search_visits_a_handful_of_vertices() {
    let (mut index, vectors) = friendly_cluster(20_000);
    let mut state = PolicyState { next_fit: Ordinal(0), rng: Rng::new(4) };
    let mut rng = Rng::new(5);
    for policy in Policy::PATENT {
        let mut total = 0;
        let mut worst = 0;
        const SEARCHES: u64 = 500;
        for _ in 0..SEARCHES {
            let gpus = rng.below(3) as u16;
            let asked = ResourceVector {
                cpu: Amount::whole(rng.below(16) as u32 + 1),
                memory: Amount::whole(rng.below(64) as u32 * 1024),
                whole_gpus: gpus,
                largest_gpu_part: if gpus > 0 { GPU_UNIT } else { 0 },
                ..ResourceVector::default()
            };
            let fits = |slot: Slot| {
                let has = &vectors[slot as usize];
                has.cpu >= asked.cpu
                    && has.memory >= asked.memory
                    && has.whole_gpus >= asked.whole_gpus
                    && has.largest_gpu_part >= asked.largest_gpu_part
            };
            let mut visits = Visits::default();
            let found = index.select(policy, &asked, Candidates::All, &mut state, &mut visits, fits);
            assert!(found.is_some_and(fits), "{policy}: {found:?} for {asked:?}");
            total += visits.vertices + visits.nodes;
            worst = worst.max(visits.vertices + visits.nodes);
        }
        println!("{policy}: {} on average, {worst} at worst", total / SEARCHES);
        assert!(total / SEARCHES <= 32 && worst <= 128, "{policy}: {total} in all, {worst} at worst");
    }
}
