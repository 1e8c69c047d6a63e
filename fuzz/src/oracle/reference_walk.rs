//! The patent's search as written: bucket by bucket, depth first, without pruning.
//!
//! A bucket inside the fittable area is *discovered* in its turn. A bucket without a candidate is finished at
//! once, and a leaf with a candidate is yielded. The index prunes and may discover fewer buckets, but it must
//! yield the same leaves. Source: the worked figures of the design's page on DistBuckets.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::ControlFlow;

use wharf_core::index::tree::Direction;

/// A bucket: the coordinates that it fixes, out of all dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The first coordinates, which are fixed.
    pub fixed: Vec<i64>,
    /// The number of dimensions.
    pub dimensions: usize,
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fixed = self.fixed.iter().map(ToString::to_string);
        let open = (self.fixed.len()..self.dimensions).map(|_| "*".to_owned());
        write!(f, "({})", fixed.chain(open).collect::<Vec<_>>().join(","))
    }
}

/// A step of the walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A bucket inside the fittable area.
    Discovered(Bucket),
    /// A leaf that holds a candidate. It was discovered in the step before.
    Yielded(Vec<i64>),
}

/// Walks the buckets of `nodes` in the fittable area of `lower` and calls `visit` for every step until it
/// breaks. Each node is a coordinate and whether it is a candidate.
pub fn reference_walk(
    nodes: &[(Vec<i64>, bool)],
    direction: Direction,
    lower: &[i64],
    mut visit: impl FnMut(Step) -> ControlFlow<()>,
) {
    let all: Vec<&(Vec<i64>, bool)> = nodes.iter().collect();
    let _ = walk_below(&mut Vec::new(), &all, direction, lower, &mut visit);
}

fn walk_below(
    fixed: &mut Vec<i64>,
    elements: &[&(Vec<i64>, bool)],
    direction: Direction,
    lower: &[i64],
    visit: &mut impl FnMut(Step) -> ControlFlow<()>,
) -> ControlFlow<()> {
    visit(Step::Discovered(Bucket { fixed: fixed.clone(), dimensions: lower.len() }))?;
    let holds_candidate = elements.iter().any(|(_, candidate)| *candidate);
    if !holds_candidate {
        return ControlFlow::Continue(());
    }
    let level = fixed.len();
    if level == lower.len() {
        return visit(Step::Yielded(fixed.clone()));
    }
    let steps: BTreeSet<i64> = elements
        .iter()
        .map(|(coordinate, _)| coordinate[level])
        .filter(|&step| step >= lower[level])
        .collect();
    let mut steps: Vec<i64> = steps.into_iter().collect();
    if direction == Direction::Greatest {
        steps.reverse();
    }
    for step in steps {
        let below: Vec<_> =
            elements.iter().copied().filter(|(coordinate, _)| coordinate[level] == step).collect();
        fixed.push(step);
        walk_below(fixed, &below, direction, lower, visit)?;
        fixed.pop();
    }
    ControlFlow::Continue(())
}
