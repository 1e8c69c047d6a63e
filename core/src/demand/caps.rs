//! What the caps of queues leave for what waits.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::fairness::{Amounts, Caps};
use crate::jobs::{Capped as Bounded, Jobs, QueueId};

/// A queue with a cap.
struct Capped {
    name: Arc<str>,
    caps: Caps,
    /// What is held, claimed or being released, and what the plan gives.
    used: Amounts,
    /// How many allocations the queue may have in addition. `None`: any number.
    allocations_left: Option<u32>,
}

/// The queues with caps.
pub(super) struct CapsLeft {
    capped: BTreeMap<QueueId, Capped>,
    /// The queues with caps that contain a queue, with itself, for each queue that has some.
    chains: BTreeMap<QueueId, Vec<QueueId>>,
}

/// A cap that forbids something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Forbids {
    pub(super) queue: Arc<str>,
    pub(super) of: Bounded,
}

/// How what is used changes, and how many allocations are left.
type Change = (fn(&mut Amounts, &Amounts), fn(u32, u32) -> u32);

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
                capped.insert(id, Capped { name, caps: spec.capability.clone(), used, allocations_left });
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
    pub(super) fn take(&mut self, queue: QueueId, each: &Amounts, wanted: u32) -> (u32, Option<Forbids>) {
        let mut count = wanted;
        let mut forbids = None;
        for of in self.chain(queue) {
            let Capped { name, caps, used, allocations_left } = &self.capped[&of];
            if let Some(left) = allocations_left.filter(|&left| left < count) {
                count = left;
                forbids = Some(Forbids { queue: Arc::clone(name), of: Bounded::Allocations });
            }
            for (dim, cap) in caps.iter().filter(|&(dim, _)| each.get(dim) > 0) {
                let left = cap.saturating_sub(used.get(dim)).max(0) / each.get(dim);
                let left = u32::try_from(left).unwrap_or(u32::MAX);
                if left < count {
                    count = left;
                    forbids = Some(Forbids { queue: Arc::clone(name), of: Bounded::Resource(dim) });
                }
            }
        }
        self.change(queue, each, count, (Amounts::add, u32::saturating_sub));
        (count, forbids)
    }

    /// Takes back what was counted and not placed.
    pub(super) fn give_back(&mut self, queue: QueueId, each: &Amounts, count: u32) {
        self.change(queue, each, count, (Amounts::subtract, u32::saturating_add));
    }

    fn change(&mut self, queue: QueueId, each: &Amounts, count: u32, (change, change_left): Change) {
        let times = i64::from(count);
        for of in self.chain(queue) {
            let Capped { caps, used, allocations_left, .. } =
                self.capped.get_mut(&of).expect("a queue of a chain has a cap");
            // Only what has a cap is counted: a sum over all is bounded by the caps.
            let capped = each.iter().filter(|&(dim, _)| caps.get(dim).is_some());
            let all = capped.map(|(dim, amount)| (dim, amount.saturating_mul(times))).collect();
            change(used, &all);
            *allocations_left = allocations_left.map(|left| change_left(left, count));
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
        let forbids = |queue: &str| Some(Forbids { queue: queue.into(), of: Bounded::Resource(Dim::CPU) });
        assert_eq!(left.take(a, &each, 3), (2, forbids("a")));
        assert_eq!(left.take(b, &each, 3), (1, forbids("outer")));
        left.give_back(a, &each, 1);
        assert_eq!(left.take(b, &each, 1), (1, None));
        let memory = [(Dim::MEMORY, 1_000)].into_iter().collect();
        assert_eq!(left.take(b, &memory, 9), (9, None), "memory has no cap");
    }

    #[test]
    fn a_cap_on_allocations_binds_as_well() {
        let mut jobs = Jobs::new();
        let queue = jobs.add_queue(QueueSpec { allocations_max: Some(3), ..QueueSpec::new("q") }).unwrap();
        let each = [(Dim::CPU, 30)].into_iter().collect();
        let mut left = CapsLeft::new(&jobs);
        let forbids = Some(Forbids { queue: "q".into(), of: Bounded::Allocations });
        assert_eq!(left.take(queue, &each, 2), (2, None));
        assert_eq!(left.take(queue, &each, 2), (1, forbids.clone()));
        left.give_back(queue, &each, 2);
        assert_eq!(left.take(queue, &each, 5), (2, forbids));
    }
}
