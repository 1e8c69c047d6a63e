//! Plans of nodes: the keeper hands them to the thread that makes them, and answers when they are made.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::demand::{Asker, NodesLink, NodesPlan, NodesRequest, NodesTask};
use crate::group::PlanReply;
use crate::ids::{NodeId, TenantId};
use crate::jobs::{JobId, Jobs, JobsRejection, JobsReply, NodesView};
use crate::planner::{JobTag, Planner};
use crate::time::Time;

/// The thread that plans nodes, and who waits for it.
#[derive(Default)]
pub(super) struct NodesPlans {
    link: Option<NodesLink>,
    asked: Option<Asked>,
}

/// A plan that is being made.
struct Asked {
    tag: JobTag,
    tenant: Option<TenantId>,
}

impl NodesPlans {
    /// Returns whether a plan is being made that will be answered.
    pub(super) fn is_planning(&self) -> bool {
        self.asked.is_some() && self.link.as_ref().is_some_and(NodesLink::is_alive)
    }

    /// Returns whether a plan is made and not taken.
    pub(super) fn has_plan(&mut self) -> bool {
        self.link.as_mut().is_some_and(|link| !link.is_empty())
    }
}

impl Planner {
    /// Sets the thread that plans nodes.
    pub(crate) fn set_nodes_link(&mut self, link: NodesLink) {
        self.keeper_mut().nodes.link = Some(link);
    }

    /// Begins to plan nodes. Returns why not, if it does not.
    pub(super) fn plan_nodes(
        &mut self,
        tag: JobTag,
        request: NodesRequest,
        (tenant, idle): (Option<TenantId>, Vec<(NodeId, u64)>),
        now: Time,
    ) -> Result<(), JobsRejection> {
        request.check()?;
        let keeper = self.keeper_mut();
        let Some(link) = keeper.nodes.link.as_mut().filter(|link| link.is_alive()) else {
            return Err(JobsRejection::NoNodesPlanner);
        };
        if keeper.nodes.asked.is_some() {
            return Err(JobsRejection::NodesPlannerBusy);
        }
        let jobs = keeper.scheduler.jobs().record();
        link.ask(NodesTask { request, idle, jobs, now });
        keeper.nodes.asked = Some(Asked { tag, tenant });
        Ok(())
    }

    /// Answers with the plan that was made, if any.
    pub(super) fn take_nodes_plan(&mut self) {
        let nodes = &mut self.keeper_mut().nodes;
        let Some(plan) = nodes.link.as_mut().and_then(NodesLink::take) else { return };
        let Asked { tag, tenant } = nodes.asked.take().expect("a plan is made for who asked");
        let view = view(self.keeper_mut().jobs(), plan, tenant);
        self.reply(tag, PlanReply::Jobs(Ok(JobsReply::Nodes(Box::new(view)))));
    }
}

/// Returns a plan with the names of its jobs, as far as the tenant may see them. Jobs that are gone by now are left out.
fn view(jobs: &Jobs, mut plan: NodesPlan, tenant: Option<TenantId>) -> NodesView {
    let mut names: BTreeMap<JobId, Arc<str>> = BTreeMap::new();
    let mut is_seen = |job: JobId| {
        let of = jobs.has_job(job).then(|| jobs.job(job).spec());
        let of = of.filter(|spec| tenant.is_none_or(|tenant| spec.tenant == tenant));
        names.extend(of.map(|spec| (job, Arc::clone(&spec.name))));
        of.is_some()
    };
    plan.unplaced.retain(|left| if let Asker::Job(job) = left.asker { is_seen(job) } else { true });
    plan.starts.retain(|start| is_seen(start.job));
    plan.waiting.retain(|&job| is_seen(job));
    NodesView { plan, names }
}
