//! Plans of nodes: the keeper copies its jobs in bounded steps, one per round, and collects what waits at planners and
//! shards. It hands all to the thread that makes plans, and answers when the plan is made.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::waiting::{Collecting, Pages};
use crate::demand::{Asker, NodesLink, NodesPlan, NodesRequest, NodesTask};
use crate::group::PlanReply;
use crate::ids::{NodeId, TenantId};
use crate::jobs::{JobId, Jobs, JobsCopy, JobsRejection, JobsReply, NodesView};
use crate::limits::JOBS_COPIED_PER_ROUND;
use crate::planner::queue::PortClient;
use crate::planner::{JobTag, Planner};
use crate::time::Time;

/// The thread that plans nodes, and who waits for it.
#[derive(Default)]
pub(super) struct NodesPlans {
    link: Option<NodesLink>,
    asked: Option<Asked>,
    copying: Option<Copying>,
}

/// A plan that is being made.
struct Asked {
    tag: JobTag,
    client: PortClient,
    tenant: Option<TenantId>,
}

/// What the thread is to get when all jobs are copied.
struct Copying {
    request: NodesRequest,
    idle: Vec<(NodeId, u64)>,
    jobs: JobsCopy,
    waiting: Collecting,
}

impl NodesPlans {
    /// Returns whether a plan is being made that will be answered.
    pub(super) fn is_planning(&self) -> bool {
        let is_begun = self.asked.is_some() && self.copying.is_none();
        is_begun && self.link.as_ref().is_some_and(NodesLink::is_alive)
    }

    /// Returns whether a round can go on with what a plan is based on. While others are to answer, it cannot.
    pub(super) fn is_copying(&self) -> bool {
        self.copying.as_ref().is_some_and(|copying| !copying.waiting.is_awaiting())
    }

    /// Returns the pages of what waits that are being collected.
    pub(super) fn pages_mut(&mut self) -> &mut Pages {
        match self.copying.as_mut().map(|copying| &mut copying.waiting) {
            Some(Collecting::Pages(pages)) => pages,
            _ => panic!("a page of what waits comes, and nobody asked for it"),
        }
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
        (tag, client): (JobTag, PortClient),
        request: NodesRequest,
        tenant: Option<TenantId>,
        idle: Vec<(NodeId, u64)>,
    ) -> Result<(), JobsRejection> {
        request.check()?;
        let keeper = self.keeper_mut();
        if !keeper.nodes.link.as_ref().is_some_and(NodesLink::is_alive) {
            return Err(JobsRejection::NoNodesPlanner);
        }
        if keeper.nodes.asked.is_some() {
            return Err(JobsRejection::NodesPlannerBusy);
        }
        let jobs = keeper.jobs_mut().begin_copy();
        let waiting = if request.counts_waiting { Collecting::Later } else { Collecting::Unwanted };
        keeper.nodes.copying = Some(Copying { request, idle, jobs, waiting });
        keeper.nodes.asked = Some(Asked { tag, client, tenant });
        Ok(())
    }

    /// Copies as much for a plan of nodes as a round may. When all is copied, planners and shards are asked for what waits
    /// there. The round in which all have answered hands it over: so the jobs are of one moment, at which shards have agreed
    /// to the states of all tasks, and the rest is of a moment just before.
    pub(super) fn copy_jobs_next(&mut self, now: Time) {
        let keeper = self.keeper_mut();
        let Some(mut copying) = keeper.nodes.copying.take() else { return };
        let spent = keeper.jobs_mut().copy_step(&mut copying.jobs, JOBS_COPIED_PER_ROUND);
        let client = keeper.nodes.asked.as_ref().expect("jobs are copied for who asked").client;
        self.queue.charge(client, spent);
        let is_copied = copying.jobs.is_complete();
        if is_copied && matches!(copying.waiting, Collecting::Later) {
            copying.waiting = Collecting::Pages(self.collect_waiting());
        }
        self.list_own_groups(&mut copying.waiting);
        let keeper = self.keeper_mut();
        if !is_copied || !copying.waiting.is_complete() {
            keeper.nodes.copying = Some(copying);
            return;
        }
        keeper.jobs_mut().end_copy(&mut copying.jobs);
        let Copying { request, idle, jobs, waiting } = copying;
        let waiting = waiting.into_work();
        let nodes = &mut keeper.nodes;
        if let Some(link) = nodes.link.as_mut().filter(|link| link.is_alive()) {
            return link.ask(NodesTask { request, waiting, idle, jobs, now });
        }
        let Asked { tag, .. } = nodes.asked.take().expect("jobs are copied for who asked");
        self.reply(tag, PlanReply::Jobs(Err(JobsRejection::NoNodesPlanner)));
    }

    /// Answers with the plan that was made, if any.
    pub(super) fn take_nodes_plan(&mut self) {
        let nodes = &mut self.keeper_mut().nodes;
        let Some(plan) = nodes.link.as_mut().and_then(NodesLink::take) else { return };
        let Asked { tag, tenant, .. } = nodes.asked.take().expect("a plan is made for who asked");
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
    plan.unplaced.retain(|left| match left.asker {
        Asker::Job(job) => is_seen(job),
        Asker::Waiting(group) => tenant.is_none_or(|tenant| group.tenant == tenant),
        // It is not known whose they are.
        Asker::Placements => tenant.is_none(),
        Asker::Floor(_) | Asker::Group(_) => true,
    });
    plan.starts.retain(|start| is_seen(start.job));
    plan.waiting.retain(|&job| is_seen(job));
    NodesView { plan, names }
}
