//! The rules that a cycle can use.

mod capacity;
mod conformance;
mod drf;
mod fair_share;
mod gang;
mod overcommit;
mod priority;
mod proportion;
mod sla;
mod usage;

use super::config::{PluginConfig, PluginKind};
use super::plugin::{Facts, Plugin};
use crate::fairness::Amounts;
use crate::jobs::{JobPhase, QueueId};

/// Makes a rule with its settings.
pub(super) fn make(config: &PluginConfig) -> Box<dyn Plugin> {
    match config.kind {
        PluginKind::Priority => Box::new(priority::Priority),
        PluginKind::Gang => Box::new(gang::Gang::new(config.whole_gangs)),
        PluginKind::Conformance => Box::new(conformance::Conformance),
        PluginKind::Drf => Box::new(drf::Drf),
        PluginKind::Proportion => Box::new(proportion::Proportion::default()),
        PluginKind::Capacity => Box::new(capacity::Capacity::default()),
        PluginKind::FairShare => Box::new(fair_share::ByFairShare),
        PluginKind::Overcommit => Box::new(overcommit::Overcommit::new(config.overcommit_percent)),
        PluginKind::Sla => Box::new(sla::Sla::new(config.wait_ns)),
        PluginKind::Usage => Box::new(usage::ByUsage::default()),
    }
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
