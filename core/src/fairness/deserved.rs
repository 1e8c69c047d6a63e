//! What each queue deserves of a cluster: Volcano's division by weight (its plugin `proportion`).
//!
//! The total is poured over the queues by weight, round after round. A queue gets no more than its cap and its
//! request, and no less than its guarantee. What it leaves goes to the others in the next round. The result does
//! not depend on the order of the queues, because all queues of a round divide what was left before it.

use super::{Amounts, Caps, Dim};

/// What one queue claims of a cluster.
#[derive(Clone, Debug, Default)]
pub struct QueueClaim {
    /// Its weight among the queues. A queue of weight 0 gets its guarantee only.
    pub weight: u32,
    /// The most that it may use ([`real_caps`]).
    pub cap: Caps,
    /// What it uses and asks for in addition.
    pub request: Amounts,
    /// What it gets in any case.
    pub guarantee: Amounts,
}

/// Returns the most that a queue may use so that the guarantees of the others stay free: its own guarantee and what
/// no guarantee covers, or its capability if that is less.
#[must_use]
pub fn real_caps(total: &Amounts, guaranteed: &Amounts, guarantee: &Amounts, capability: &Caps) -> Caps {
    let shared = total.minus_or_zero(guaranteed).plus(guarantee);
    // A kind of which the cluster has nothing has no cap by it: no request can use it anyway.
    let by_total: Caps = total.iter().map(|(dim, _)| (dim, shared.get(dim))).collect();
    capability.stricter(&by_total)
}

/// Returns what each queue deserves of `total`, in the order of `queues`. Rounding may leave
/// some undivided: fewer parts of 1/10,000 than all weights together.
#[must_use]
pub fn deserved(total: &Amounts, queues: &[QueueClaim]) -> Vec<Amounts> {
    let mut deserved = vec![Amounts::zero(); queues.len()];
    let mut unmet: Vec<usize> = (0..queues.len()).collect();
    let mut remaining = total.clone();
    loop {
        let weights: i128 = unmet.iter().map(|&at| i128::from(queues[at].weight)).sum();
        if weights == 0 {
            break;
        }
        let poured = remaining.clone();
        let mut given = Amounts::zero();
        let mut returned = Amounts::zero();
        unmet.retain(|&at| {
            let queue = &queues[at];
            let before = deserved[at].clone();
            let after = round(&before, &poured, queue, weights);
            given.add(&after.minus_or_zero(&before));
            returned.add(&before.minus_or_zero(&after));
            let is_met = queue.request.is_within(&after) || after == before;
            deserved[at] = after;
            !is_met
        });
        remaining = poured.plus(&returned).minus_or_zero(&given);
        if remaining.is_zero() || remaining == poured {
            break;
        }
    }
    // A queue whose weight is 0, or that came too late to a round, still has its guarantee.
    for (deserved, queue) in deserved.iter_mut().zip(queues) {
        *deserved = deserved.max(&queue.guarantee);
    }
    deserved
}

/// Returns what a queue deserves after it got its part of what is poured.
fn round(before: &Amounts, poured: &Amounts, queue: &QueueClaim, weights: i128) -> Amounts {
    let part = |amount: i64| {
        let part = i128::from(amount) * i128::from(queue.weight) / weights;
        i64::try_from(part).expect("a part is no more than the whole")
    };
    let portion: Amounts = poured.iter().map(|(dim, amount): (Dim, i64)| (dim, part(amount))).collect();
    queue.cap.cut(&before.plus(&portion)).min(&queue.request).max(&queue.guarantee)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cpu(amount: i64) -> Amounts {
        [(Dim::CPU, amount)].into_iter().collect()
    }

    fn claim(weight: u32, request: i64, cap: Option<i64>, guarantee: i64) -> QueueClaim {
        let cap = cap.map(|cap| (Dim::CPU, cap)).into_iter().collect();
        QueueClaim { weight, cap, request: cpu(request), guarantee: cpu(guarantee) }
    }

    fn cpus(total: i64, queues: &[QueueClaim]) -> Vec<i64> {
        deserved(&cpu(total), queues).iter().map(|amounts| amounts.get(Dim::CPU)).collect()
    }

    #[test]
    fn the_total_is_divided_by_weight() {
        assert_eq!(cpus(900, &[claim(1, 999, None, 0), claim(2, 999, None, 0)]), [300, 600]);
    }

    #[test]
    fn what_a_queue_leaves_goes_to_the_others() {
        let queues = [claim(1, 100, None, 0), claim(1, 999, None, 0), claim(1, 999, None, 0)];
        assert_eq!(cpus(900, &queues), [100, 400, 400]);
        assert_eq!(cpus(900, &[claim(1, 999, Some(50), 0), claim(1, 999, None, 0)]), [50, 850]);
    }

    #[test]
    fn a_guarantee_holds_without_a_request_and_without_weight() {
        assert_eq!(cpus(900, &[claim(1, 0, None, 300), claim(1, 999, None, 0)]), [300, 600]);
        assert_eq!(cpus(900, &[claim(0, 999, None, 200), claim(1, 100, None, 0)]), [200, 100]);
    }

    #[test]
    fn the_guarantees_of_others_bound_what_a_queue_may_use() {
        let caps = real_caps(&cpu(10), &cpu(6), &cpu(2), &Caps::none());
        assert_eq!(caps.get(Dim::CPU), Some(6));
        let capability: Caps = [(Dim::CPU, 3), (Dim::MEMORY, 1)].into_iter().collect();
        let caps = real_caps(&cpu(10), &cpu(6), &cpu(2), &capability);
        assert_eq!((caps.get(Dim::CPU), caps.get(Dim::MEMORY), caps.get(Dim::GPU)), (Some(3), Some(1), None));
    }

    proptest! {
        /// No queue exceeds its cap or what it asks for, nothing is divided twice, and nothing is left while a queue
        /// could use it.
        #[test]
        fn a_division_is_within_bounds_and_leaves_nothing_that_is_asked_for(
            queues in prop::collection::vec((1..9_u32, 0..5_000_i64, prop::option::of(0..3_000_i64)), 1..7),
            total in 1..10_000_i64,
        ) {
            let claims: Vec<QueueClaim> =
                queues.iter().map(|&(weight, request, cap)| claim(weight, request, cap, 0)).collect();
            let divided = cpus(total, &claims);
            let most: Vec<i64> =
                queues.iter().map(|&(_, request, cap)| request.min(cap.unwrap_or(i64::MAX))).collect();
            for (got, most) in divided.iter().zip(&most) {
                prop_assert!(got <= most);
            }
            let sum: i64 = divided.iter().sum();
            prop_assert!(sum <= total);
            let usable = total.min(most.iter().sum());
            let weights: i64 = queues.iter().map(|&(weight, ..)| i64::from(weight)).sum();
            prop_assert!(sum + weights > usable, "{sum} of {usable} are divided");
            let mut turned = claims;
            turned.reverse();
            let mut back = cpus(total, &turned);
            back.reverse();
            prop_assert_eq!(back, divided, "the order of queues decides nothing");
        }
    }
}
