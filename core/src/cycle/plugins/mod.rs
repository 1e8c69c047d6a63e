//! The rules that a cycle can use.

mod capacity;
mod conformance;
mod drf;
mod fair_share;
pub(super) mod gang;
mod kept;
mod overcommit;
mod priority;
mod proportion;
mod sla;
mod usage;

use super::config::{Combination, PluginConfig, PluginKind};
use super::limit::Limit;
use super::plugin::{Facts, Plugin};
use crate::fairness::{Amounts, Caps};
use crate::jobs::{Capped, JobPhase, QueueId, QueueRule};

/// Makes a rule with its settings.
pub(super) fn make(config: &PluginConfig, combination: Combination) -> Box<dyn Plugin> {
    match config.kind {
        PluginKind::Priority => Box::new(priority::Priority),
        PluginKind::Gang => Box::new(gang::Gang::new(config.whole_gangs)),
        PluginKind::Conformance => Box::new(conformance::Conformance),
        PluginKind::Drf => Box::new(drf::Drf::new(config.hierarchical)),
        PluginKind::Proportion => Box::new(proportion::Proportion::default()),
        PluginKind::Capacity => Box::new(capacity::Capacity::new(combination)),
        PluginKind::FairShare => Box::new(fair_share::ByFairShare),
        PluginKind::Overcommit => Box::new(overcommit::Overcommit::new(config.overcommit_percent)),
        PluginKind::Sla => Box::new(sla::Sla::new(config.wait_ns)),
        PluginKind::Usage => Box::new(usage::ByUsage::default()),
    }
}

/// The largest number of queues of one parent, or of jobs of one queue, that an explanation looks at in one go.
const EXPLAINED_MAX: usize = 1024;

/// Returns the queues of one parent that contain two queues, or are these. `None`: one of the two contains the other.
fn siblings(facts: Facts<'_>, a: QueueId, b: QueueId) -> Option<(QueueId, QueueId)> {
    let parent = |queue: QueueId| facts.jobs.queue(queue).spec().parent;
    if parent(a) == parent(b) {
        return Some((a, b));
    }
    let [mine, theirs] = [a, b].map(|queue| facts.jobs.chain(queue).collect::<Vec<_>>());
    let ways = mine.iter().rev().zip(theirs.iter().rev());
    ways.map(|(&a, &b)| (a, b)).find(|(a, b)| a != b)
}

/// Returns what a cap of a queue keeps it from having in addition. A cap that is stricter than the capability is what
/// others are guaranteed.
fn cap_limits(facts: Facts<'_>, queue: QueueId, cap: &Caps, used: &Amounts, asked: &Amounts) -> Vec<Limit> {
    let capability = &facts.jobs.queue(queue).spec().capability;
    let limit = |(dim, asked): (crate::fairness::Dim, i64)| {
        let bound = cap.get(dim)?;
        let is_own = capability.get(dim) == Some(bound);
        let rule = if is_own { QueueRule::Capability } else { QueueRule::Guarantees };
        let of = Capped::Resource(dim);
        let limit = Limit { rule, queue, of, bound, used: used.get(dim), asked };
        (limit.excess() > 0).then_some(limit)
    };
    asked.iter().filter_map(limit).collect()
}

/// Returns what admitted jobs of a queue were promised and do not use yet. Jobs without a stated amount count
/// nothing.
fn inqueue(facts: Facts<'_>, queue: QueueId) -> Amounts {
    let mut sum = Amounts::zero();
    for id in facts.jobs.queue(queue).waiting() {
        let job = facts.jobs.job(id);
        if let (JobPhase::Inqueue, Some(least)) = (job.phase(), &job.spec().min_resources) {
            sum.add(&least.minus_or_zero(&job.usage().planned()));
        }
    }
    sum
}

/// Returns what admitted jobs of queues were promised and do not use now. `None`: there are too many to look at for an
/// explanation.
fn inqueue_now(facts: Facts<'_>, queues: impl Iterator<Item = QueueId>) -> Option<Amounts> {
    let mut sum = Amounts::zero();
    let mut left = EXPLAINED_MAX;
    for queue in queues {
        left = left.checked_sub(facts.jobs.queue(queue).waiting().len())?;
        sum.add(&inqueue(facts, queue));
    }
    Some(sum)
}

/// Returns what the jobs of a queue use beyond their least amounts, which they would give up first.
fn elastic(facts: Facts<'_>, queue: QueueId) -> Amounts {
    let mut sum = Amounts::zero();
    for id in facts.jobs.queue(queue).jobs() {
        let job = facts.jobs.job(id);
        if let Some(least) = &job.spec().min_resources {
            sum.add(&job.usage().held.minus_or_zero(least));
        }
    }
    sum
}
