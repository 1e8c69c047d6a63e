//! Jobs that have waited for too long come first (Volcano's plugin `sla`).

use std::cmp::Ordering;

use super::{Facts, Plugin};
use crate::cycle::plugin::Vote;
use crate::jobs::JobId;
use crate::time::Time;

pub(super) struct Sla {
    wait_ns: Option<u64>,
}

impl Sla {
    pub(super) fn new(wait_ns: Option<u64>) -> Self {
        Self { wait_ns }
    }

    /// Returns how long a job waits before it comes first.
    fn wait_ns(&self, facts: Facts<'_>, job: JobId) -> Option<u64> {
        facts.jobs.job(job).spec().wait_ns.or(self.wait_ns)
    }

    fn is_late(&self, facts: Facts<'_>, job: JobId) -> bool {
        let created = facts.jobs.job(job).spec().created;
        self.wait_ns(facts, job).is_some_and(|wait| facts.now.nanos_since(created) > wait)
    }
}

impl Plugin for Sla {
    fn has_due(&self) -> bool {
        // A job may say how long it waits where the plugin does not.
        true
    }

    /// The first moment at which the job has waited for too long.
    fn due(&self, facts: Facts<'_>, job: JobId) -> Option<Time> {
        let created = facts.jobs.job(job).spec().created;
        self.wait_ns(facts, job).map(|wait| created.plus_nanos(wait.saturating_add(1)))
    }

    fn job_order(&self, facts: Facts<'_>, a: JobId, b: JobId) -> Ordering {
        self.is_late(facts, b).cmp(&self.is_late(facts, a))
    }

    fn enqueueable(&self, facts: Facts<'_>, job: JobId) -> Vote {
        if self.is_late(facts, job) { Vote::Permit } else { Vote::Abstain }
    }
}
