//! What the caps of queues leave for what waits.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::fairness::{Amounts, Caps};
use crate::jobs::{Capped, Jobs, QueueId};

/// A queue with a cap.
struct CappedQueue {
    name: Arc<str>,
    caps: Caps,
    /// What is held, claimed or being released, and what the plan gives.
    used: Amounts,
    /// How many allocations the queue may have in addition. `None`: any number.
    allocations_left: Option<u32>,
}

/// The queues with caps.
pub(super) struct CapsLeft {
    capped: BTreeMap<QueueId, CappedQueue>,
    /// The queues with caps that contain a queue, with itself, for each queue that has some.
    chains: BTreeMap<QueueId, Vec<QueueId>>,
}

/// A cap that forbids something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Forbids {
    pub(super) queue: Arc<str>,
    pub(super) of: Capped,
}

impl CapsLeft {
    pub(super) fn new(jobs: &Jobs) -> Self {
        let mut capped = BTreeMap::new();
        for (id, queue) in jobs.queues() {
            let spec = queue.spec();
            if spec.capability.iter().next().is_some() || spec.allocations_max.is_some() {
                let used = queue.usage().planned().plus(&queue.usage().releasing);
                let there = u32::try_from(queue.usage().allocations()).unwrap_or(u32::MAX);
                let allocations_left = spec.allocations_max.map(|most| most.saturating_sub(there));
                let name = Arc::clone(&spec.name);
                capped
                    .insert(id, CappedQueue { name, caps: spec.capability.clone(), used, allocations_left });
            }
        }
        let chain = |id: QueueId| jobs.chain(id).filter(|of| capped.contains_key(of)).collect();
        let chains = jobs.queues().map(|(id, _)| (id, chain(id)));
        let chains = chains.filter(|(_, chain): &(_, Vec<QueueId>)| !chain.is_empty()).collect();
        Self { capped, chains }
    }

    fn chain(&self, queue: QueueId) -> Vec<QueueId> {
        self.chains.get(&queue).cloned().unwrap_or_default()
    }

    /// Counts as many equal tasks as the caps allow, at most `wanted`. Returns their number, and the cap that forbids more.
    /// Each has its amounts, and a number of allocations.
    pub(super) fn take(
        &mut self,
        queue: QueueId,
        (each, allocations): (&Amounts, u32),
        wanted: u32,
    ) -> (u32, Option<Forbids>) {
        let mut count = wanted;
        let mut forbids = None;
        for of in self.chain(queue) {
            let CappedQueue { name, caps, used, allocations_left } = &self.capped[&of];
            let left = allocations_left.map(|left| left / allocations);
            if let Some(left) = left.filter(|&left| left < count) {
                count = left;
                forbids = Some(Forbids { queue: Arc::clone(name), of: Capped::Allocations });
            }
            for (dim, cap) in caps.iter().filter(|&(dim, _)| each.get(dim) > 0) {
                let left = cap.saturating_sub(used.get(dim)).max(0) / each.get(dim);
                let left = u32::try_from(left).unwrap_or(u32::MAX);
                if left < count {
                    count = left;
                    forbids = Some(Forbids { queue: Arc::clone(name), of: Capped::Resource(dim) });
                }
            }
        }
        self.change(queue, each, count, |of, all| {
            of.used.add(all);
            of.allocations_left = of.allocations_left.map(|left| left - count * allocations);
        });
        (count, forbids)
    }

    /// Takes back what was counted and not placed.
    pub(super) fn give_back(&mut self, queue: QueueId, (each, allocations): (&Amounts, u32), count: u32) {
        self.change(queue, each, count, |of, all| {
            of.used.subtract(all);
            of.allocations_left = of.allocations_left.map(|left| left + count * allocations);
        });
    }

    fn change(
        &mut self,
        queue: QueueId,
        each: &Amounts,
        count: u32,
        change: impl Fn(&mut CappedQueue, &Amounts),
    ) {
        let times = i64::from(count);
        for id in self.chain(queue) {
            let of = self.capped.get_mut(&id).expect("a queue of a chain has a cap");
            // Only what has a cap is counted: a sum over all is bounded by the caps.
            let capped = each.iter().filter(|&(dim, _)| of.caps.get(dim).is_some());
            let all: Amounts = capped.map(|(dim, amount)| (dim, amount.saturating_mul(times))).collect();
            change(of, &all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fairness::Dim;
    use crate::jobs::QueueSpec;

    #[test]
    fn a_cap_of_any_queue_of_the_chain_binds_and_what_is_given_back_is_free_again() {
        let mut jobs = Jobs::new();
        let cap = |cpu| [(Dim::CPU, cpu)].into_iter().collect::<Caps>();
        let outer = jobs.add_queue(QueueSpec { capability: cap(100), ..QueueSpec::new("outer") }).unwrap();
        let inner =
            |name: &str, cpu| QueueSpec { parent: outer, capability: cap(cpu), ..QueueSpec::new(name) };
        let a = jobs.add_queue(inner("a", 70)).unwrap();
        let b = jobs.add_queue(QueueSpec { capability: Caps::none(), ..inner("b", 0) }).unwrap();
        let each = [(Dim::CPU, 30), (Dim::MEMORY, 1)].into_iter().collect();
        let mut left = CapsLeft::new(&jobs);
        let forbids = |queue: &str| Some(Forbids { queue: queue.into(), of: Capped::Resource(Dim::CPU) });
        assert_eq!(left.take(a, (&each, 1), 3), (2, forbids("a")));
        assert_eq!(left.take(b, (&each, 1), 3), (1, forbids("outer")));
        left.give_back(a, (&each, 1), 1);
        assert_eq!(left.take(b, (&each, 1), 1), (1, None));
        let memory = [(Dim::MEMORY, 1_000)].into_iter().collect();
        assert_eq!(left.take(b, (&memory, 1), 9), (9, None), "memory has no cap");
    }

    #[test]
    fn a_cap_on_allocations_binds_as_well() {
        let mut jobs = Jobs::new();
        let queue = jobs.add_queue(QueueSpec { allocations_max: Some(3), ..QueueSpec::new("q") }).unwrap();
        let each = [(Dim::CPU, 30)].into_iter().collect();
        let mut left = CapsLeft::new(&jobs);
        let forbids = Some(Forbids { queue: "q".into(), of: Capped::Allocations });
        assert_eq!(left.take(queue, (&each, 1), 2), (2, None));
        assert_eq!(left.take(queue, (&each, 1), 2), (1, forbids.clone()));
        left.give_back(queue, (&each, 1), 2);
        assert_eq!(left.take(queue, (&each, 1), 5), (2, forbids));
    }
}
