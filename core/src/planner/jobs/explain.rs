//! Explains why jobs and tasks wait, a bounded number of nodes and jobs per round.
//!
//! An explanation counts over all nodes, and over the jobs of queues. So it takes several rounds if there are many, and
//! other requests and cycles run between them. Its client pays for what is counted, as for other work of planners.

use std::collections::VecDeque;

use crate::cycle::Explaining;
use crate::group::PlanReply;
use crate::ids::TenantId;
use crate::jobs::{JobId, JobsRejection, JobsReply, TaskId};
use crate::limits::EXPLAIN_UNITS_PER_ROUND;
use crate::planner::queue::PortClient;
use crate::planner::{JobTag, Planner};

/// An explanation that is not answered.
pub(super) struct Asked {
    tag: JobTag,
    client: PortClient,
    explaining: Explaining,
}

/// Explanations, in the order in which they were asked for.
pub(super) type Explanations = VecDeque<Asked>;

impl Planner {
    /// Begins to explain why a job, or a task of it, waits.
    pub(super) fn begin_explaining(
        &mut self,
        tag: JobTag,
        client: PortClient,
        of: (JobId, Option<u32>),
        tenant: Option<TenantId>,
    ) {
        let (job, index) = of;
        let keeper = self.keeper_mut();
        let refused = match keeper.explainable(job, tenant) {
            Err(rejection) => Some(rejection),
            Ok(_) => {
                let task = index.map(|index| TaskId { job, index });
                task.filter(|&task| !keeper.jobs().has_task(task)).map(JobsRejection::UnknownTask)
            }
        };
        if let Some(rejection) = refused {
            return self.reply(tag, PlanReply::Jobs(Err(rejection)));
        }
        let explaining = keeper.scheduler.begin_explaining(job, index, tenant);
        keeper.explanations.push_back(Asked { tag, client, explaining });
    }

    /// Goes on with explanations until as much is counted as a round may. One is ended before the next one begins to count, so
    /// that only one holds what it counted of domains.
    pub(super) fn explain_next(&mut self) {
        let mut left = EXPLAIN_UNITS_PER_ROUND;
        while left > 0 {
            let keeper = self.keeper_mut();
            let Some(mut asked) = keeper.explanations.pop_front() else { break };
            let job = asked.explaining.job();
            // It may have ended and been forgotten between two rounds.
            let visible = keeper.explainable(job, asked.explaining.tenant());
            let (spent, is_done) = match &visible {
                Ok(_) => keeper.scheduler.explain_step(&mut asked.explaining, left),
                Err(_) => (1, true),
            };
            left = left.saturating_sub(spent.max(1));
            self.queue.charge(asked.client, spent);
            if !is_done {
                self.keeper_mut().explanations.push_front(asked);
                continue;
            }
            let scheduler = &self.keeper_mut().scheduler;
            let answer =
                visible.map(|_| JobsReply::Explained(Box::new(scheduler.explained(asked.explaining))));
            self.reply(asked.tag, PlanReply::Jobs(answer));
        }
    }
}
