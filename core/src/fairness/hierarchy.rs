//! Hierarchical dominant resource fairness (Bhattacharya et al., Hierarchical Scheduling for Diverse Datacenter Workloads,
//! SoCC 2013; Volcano's plugin `drf` with a hierarchy).
//!
//! What a queue uses counts after its children are scaled to the least weighted share among them. Otherwise, a child with
//! much of one resource would hide that another child has little of the others. Children that are saturated are not
//! scaled: nothing can be given to them.
//!
//! A sum of scaled children has no common denominator of a reasonable size. So what they use is counted in parts of
//! 2^-40 of the cluster, and what is scaled is rounded down. The share of a leaf is exact.

use super::{Amounts, Dim, Share, dominant_share};

/// The whole cluster, in the parts in which usage is counted.
const WHOLE: u64 = 1 << 40;
/// The bits of a scale.
const SCALE_BITS: u32 = 40;
/// The bits of the part of a kind in a demand.
const PART_BITS: u32 = 30;

/// The share of a queue in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeShare {
    /// Of each kind, the part of the cluster that counts as used.
    parts: Vec<u64>,
    share: Share,
    saturated: bool,
}

impl TreeShare {
    /// Returns the share of a queue without queues below it. It is `saturated` if nothing can be given to it.
    #[must_use]
    pub fn leaf(used: &Amounts, total: &Amounts, saturated: bool) -> Self {
        let part = |dim: Dim| {
            let used = used.get(dim);
            let total = total.get(dim);
            let part = i128::from(used) * i128::from(WHOLE) / i128::from(total.max(1));
            // Of a kind of which there is none, nothing counts. Beyond 4,096 clusters, all is the same.
            if total == 0 { 0 } else { u64::try_from(part).unwrap_or(u64::MAX).min(WHOLE << 12) }
        };
        let parts = (0..used.kinds()).map(|place| part(Dim(place))).collect();
        Self { parts, share: dominant_share(used, total), saturated }
    }

    /// Returns the share of a queue with these children, each with its weight.
    ///
    /// # Panics
    /// If a weight is 0.
    #[must_use]
    pub fn of_children(children: &[(&Self, u32)]) -> Self {
        let scaled = children.iter().filter(|(child, _)| !child.saturated && child.dominant() > 0);
        let least = scaled.min_by(|(a, weight), (b, others)| {
            Share::of_parts(a.dominant()).cmp_weighted(*weight, &Share::of_parts(b.dominant()), *others)
        });
        let mut parts: Vec<u64> = Vec::new();
        for (child, weight) in children {
            if parts.len() < child.parts.len() {
                parts.resize(child.parts.len(), 0);
            }
            let scale = match least {
                Some((least, of_least)) if !child.saturated && child.dominant() > 0 => {
                    let wanted = u128::from(least.dominant()) * u128::from(*weight);
                    (wanted << SCALE_BITS) / (u128::from(*of_least) * u128::from(child.dominant()))
                }
                _ => 1 << SCALE_BITS,
            };
            for (sum, &part) in parts.iter_mut().zip(&child.parts) {
                let part = (u128::from(part) * scale) >> SCALE_BITS;
                *sum = sum.saturating_add(u64::try_from(part).unwrap_or(u64::MAX)).min(WHOLE << 12);
            }
        }
        let share = Share::of_parts(parts.iter().copied().max().unwrap_or(0));
        Self { parts, share, saturated: children.iter().all(|(child, _)| child.saturated) }
    }

    fn dominant(&self) -> u64 {
        self.parts.iter().copied().max().unwrap_or(0)
    }

    /// Returns the dominant share of what counts as used.
    #[must_use]
    pub fn share(&self) -> Share {
        self.share
    }

    /// Returns whether nothing can be given to the queue or to any below it.
    #[must_use]
    pub fn is_saturated(&self) -> bool {
        self.saturated
    }
}

impl Share {
    fn of_parts(parts: u64) -> Self {
        Self::of(i64::try_from(parts).expect("at most 4,096 clusters"), WHOLE as i64)
    }
}

/// What one queue asks of what its parent has.
#[derive(Clone, Debug)]
pub struct DrfClaim {
    /// Its weight, at least 1.
    pub weight: u32,
    /// What it uses and asks for in addition.
    pub demand: Amounts,
}

/// Divides `available` so that the dominant shares in `total` are as the weights. Each queue gets of each kind in proportion
/// to its demand, and no more than that. Where one kind is used up, the others are divided further.
///
/// # Panics
/// If a weight is 0.
#[must_use]
pub fn drf_division(available: &Amounts, total: &Amounts, claims: &[DrfClaim]) -> Vec<Amounts> {
    let dominant: Vec<Share> = claims.iter().map(|claim| dominant_share(&claim.demand, total)).collect();
    let mut order: Vec<usize> = (0..claims.len()).collect();
    // Those whose whole demand is met at the smallest weighted share come first.
    order.sort_by(|&a, &b| {
        let [mine, theirs] = [a, b].map(|at| claims[at].weight);
        dominant[a].cmp_weighted(mine, &dominant[b], theirs).then(a.cmp(&b))
    });
    let mut divided = vec![Amounts::zero(); claims.len()];
    for (dim, whole) in total.iter() {
        let asks = |&at: &usize| claims[at].demand.get(dim) > 0;
        let rates: Vec<(usize, u128)> = order
            .iter()
            .copied()
            .filter(asks)
            .map(|at| (at, rate(&claims[at], dim, whole, dominant[at])))
            .collect();
        let mut rest: u128 = rates.iter().map(|&(_, rate)| rate).sum();
        let mut left = available.get(dim);
        for (at, rate) in rates {
            let part = (left as u128 * rate / rest) as i64;
            let given = part.min(claims[at].demand.get(dim));
            divided[at].set(dim, given);
            left -= given;
            rest -= rate;
        }
    }
    divided
}

/// Returns how fast a queue gets a kind while all weighted dominant shares grow alike.
fn rate(claim: &DrfClaim, dim: Dim, whole: i64, dominant: Share) -> u128 {
    let of_kind = Share::of(claim.demand.get(dim), whole);
    u128::from(claim.weight) * u128::from(of_kind.part_of(&dominant, PART_BITS)).max(1)
}

#[cfg(test)]
#[expect(clippy::float_arithmetic, reason = "what is expected is computed in floating point")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn amounts(cpu: i64, memory: i64) -> Amounts {
        [(Dim::CPU, cpu), (Dim::MEMORY, memory)].into_iter().collect()
    }

    fn leaf(cpu: i64, memory: i64) -> TreeShare {
        TreeShare::leaf(&amounts(cpu, memory), &amounts(100, 100), false)
    }

    #[test]
    fn children_are_scaled_to_the_least_share_among_them() {
        let dev = leaf(80, 0);
        let prod = leaf(0, 20);
        let eng = TreeShare::of_children(&[(&dev, 1), (&prod, 1)]);
        // 80 cpu count as 20, so the child with little memory is not delayed. Rounding takes less than a part.
        assert!(eng.share() <= Share::of(20, 100) && eng.share() > Share::of(19_999, 100_000));
        // By weight, 80 to 20 is even: nothing is scaled.
        let even = TreeShare::of_children(&[(&dev, 4), (&prod, 1)]);
        assert!(even.share() > Share::of(79_999, 100_000));
        let blocked = TreeShare { saturated: true, ..leaf(80, 0) };
        let eng = TreeShare::of_children(&[(&blocked, 1), (&prod, 1)]);
        assert!(eng.share() > Share::of(79_999, 100_000) && !eng.is_saturated());
        let empty = TreeShare::of_children(&[(&leaf(0, 0), 1), (&prod, 1)]);
        assert!(empty.share() > Share::of(19_999, 100_000), "a child without anything does not scale others");
        assert!(TreeShare::of_children(&[(&blocked, 1)]).is_saturated());
    }

    #[test]
    fn a_total_is_divided_by_dominant_shares() {
        let claim = |weight, cpu, memory| DrfClaim { weight, demand: amounts(cpu, memory) };
        let divide = |available: Amounts, claims: &[DrfClaim]| {
            drf_division(&available, &amounts(30, 30), claims)
                .iter()
                .map(|of| (of.get(Dim::CPU), of.get(Dim::MEMORY)))
                .collect::<Vec<_>>()
        };
        let claims = [claim(1, 30, 0), claim(1, 30, 0), claim(1, 30, 30), claim(1, 0, 30)];
        assert_eq!(divide(amounts(30, 30), &claims), [(10, 0), (10, 0), (10, 15), (0, 15)]);
        // What one does not ask for goes to the others by weight.
        let claims = [claim(1, 3, 0), claim(2, 30, 0), claim(1, 30, 0)];
        assert_eq!(divide(amounts(30, 30), &claims), [(3, 0), (18, 0), (9, 0)]);
        let claims = [claim(1, 30, 10), claim(1, 10, 30)];
        // Each has the same part of its dominant kind. The last one also gets what rounding leaves.
        assert_eq!(divide(amounts(30, 30), &claims), [(22, 7), (8, 23)]);
    }

    proptest! {
        /// Compared with the plain recursion in floating point.
        #[test]
        fn shares_are_those_of_the_plain_recursion(
            leaves in prop::collection::vec((0..50_i64, 0..50_i64, 1..4_u32, any::<bool>()), 1..6),
            other in (0..50_i64, 0..50_i64, 1..4_u32),
        ) {
            let total = amounts(100, 70);
            let shares: Vec<TreeShare> = leaves.iter()
                .map(|&(cpu, memory, _, saturated)| TreeShare::leaf(&amounts(cpu, memory), &total, saturated))
                .collect();
            let with_weights: Vec<(&TreeShare, u32)> =
                shares.iter().zip(&leaves).map(|(share, leaf)| (share, leaf.2)).collect();
            let inner = TreeShare::of_children(&with_weights);
            let outer_leaf = TreeShare::leaf(&amounts(other.0, other.1), &total, false);
            let root = TreeShare::of_children(&[(&inner, 2), (&outer_leaf, other.2)]);
            let parts = |cpu: i64, memory: i64| [cpu as f64 / 100.0, memory as f64 / 70.0];
            let plain: Vec<_> = leaves.iter()
                .map(|&(cpu, memory, weight, saturated)| (parts(cpu, memory), f64::from(weight), saturated))
                .collect();
            let (of_inner, saturated) = recursion(&plain);
            let of_other = parts(other.0, other.1);
            let (of_root, _) =
                recursion(&[(of_inner, 2.0, saturated), (of_other, f64::from(other.2), false)]);
            for (share, plain) in [(&inner, of_inner), (&root, of_root)] {
                for (part, plain) in share.parts.iter().zip(plain) {
                    let part = *part as f64 / WHOLE as f64;
                    prop_assert!((part - plain).abs() < 1e-6, "{part} {plain}");
                }
            }
            prop_assert_eq!(inner.is_saturated(), saturated);
        }

        /// Nobody gets more than it asks for, and nothing is left that somebody asks for, apart from rounding. Who gets less
        /// of a kind than it asks for has no smaller weighted part of its demand than others that also get less.
        #[test]
        fn a_division_is_within_bounds_and_leaves_nothing(
            claims in prop::collection::vec((1..5_u32, 0..90_000_i64, 0..90_000_i64), 1..7),
            available in (0..100_000_i64, 0..70_000_i64),
        ) {
            let total = amounts(100_000, 70_000);
            let claims: Vec<DrfClaim> = claims.into_iter()
                .map(|(weight, cpu, memory)| DrfClaim { weight, demand: amounts(cpu, memory) })
                .collect();
            let available = amounts(available.0, available.1);
            let divided = drf_division(&available, &total, &claims);
            for dim in [Dim::CPU, Dim::MEMORY] {
                let asked: i64 = claims.iter().map(|claim| claim.demand.get(dim)).sum();
                let given: i64 = divided.iter().map(|given| given.get(dim)).sum();
                let wanted = asked.min(available.get(dim));
                prop_assert!(given <= wanted && given + 8 >= wanted, "{given} of {wanted}");
                let mut levels = Vec::new();
                for (claim, given) in claims.iter().zip(&divided) {
                    let asked = claim.demand.get(dim);
                    let given = given.get(dim);
                    prop_assert!(given <= asked);
                    let dominant = (claim.demand.get(Dim::CPU) as f64 / 100_000.0)
                        .max(claim.demand.get(Dim::MEMORY) as f64 / 70_000.0);
                    if given < asked && asked > 10_000 {
                        let level = given as f64 / asked as f64 * dominant / f64::from(claim.weight);
                        levels.push(level);
                    }
                }
                let spread = levels.iter().copied().fold(f64::MIN, f64::max)
                    - levels.iter().copied().fold(f64::MAX, f64::min);
                prop_assert!(levels.len() < 2 || spread < 1e-3, "{levels:?}");
            }
        }
    }

    fn recursion(children: &[([f64; 2], f64, bool)]) -> ([f64; 2], bool) {
        let dominant = |parts: &[f64; 2]| parts[0].max(parts[1]);
        let scaled = |child: &&([f64; 2], f64, bool)| !child.2 && dominant(&child.0) > 0.0;
        let least =
            children.iter().filter(scaled).map(|child| dominant(&child.0) / child.1).fold(f64::MAX, f64::min);
        let mut sum = [0.0, 0.0];
        for child in children {
            let scale = if scaled(&child) { least * child.1 / dominant(&child.0) } else { 1.0 };
            sum = [sum[0] + child.0[0] * scale, sum[1] + child.0[1] * scale];
        }
        (sum, children.iter().all(|child| child.2))
    }
}
