//! The plain walk discovers buckets in the order of the patent's worked figure.

use std::ops::ControlFlow;

use wharf_core::index::tree::Direction;
use wharf_fuzz::oracle::{Step, reference_walk};

/// vcores, GiB, and whether the node is one of the task's candidates {b, c, e, f}.
const NODES: [(i64, i64, bool); 12] = [
    (4, 4, false),
    (4, 2, true),
    (3, 5, true),
    (3, 5, false),
    (6, 1, true),
    (4, 1, true),
    (3, 3, false),
    (6, 3, false),
    (6, 4, false),
    (1, 3, false),
    (5, 5, false),
    (5, 2, false),
];

fn nodes() -> Vec<(Vec<i64>, bool)> {
    NODES.iter().map(|&(cores, memory, candidate)| (vec![cores, memory], candidate)).collect()
}

#[test]
fn buckets_are_discovered_in_the_patents_order() {
    let mut discovered = Vec::new();
    reference_walk(&nodes(), Direction::Greatest, &[1, 2], |step| match step {
        Step::Discovered(bucket) => {
            discovered.push(bucket.to_string());
            ControlFlow::Continue(())
        }
        Step::Yielded(leaf) => {
            assert_eq!(leaf, [4, 2]);
            ControlFlow::Break(())
        }
    });
    assert_eq!(discovered, ["(*,*)", "(6,*)", "(6,4)", "(6,3)", "(5,*)", "(4,*)", "(4,4)", "(4,2)"]);
}

#[test]
fn both_directions_yield_the_worked_leaves() {
    for (direction, expected) in
        [(Direction::Greatest, [vec![4, 2], vec![3, 5]]), (Direction::Smallest, [vec![3, 5], vec![4, 2]])]
    {
        let mut leaves = Vec::new();
        reference_walk(&nodes(), direction, &[1, 2], |step| {
            if let Step::Yielded(leaf) = step {
                leaves.push(leaf);
            }
            ControlFlow::Continue(())
        });
        assert_eq!(leaves, expected, "{direction:?}");
    }
}
