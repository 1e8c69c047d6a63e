//! Plans nodes on a thread of its own: a plan may take seconds, and nobody else is to wait for it.
//!
//! The keeper of jobs hands over a copy of all jobs with each request, which it has made step by step, and takes the plan
//! back. The thread reads the views of the shards itself. It remembers since when nodes are idle.

use std::sync::Arc;

use super::{IdleClock, NodesPlan, NodesRequest, cluster_of_views, plan_nodes};
use crate::cycle::{CycleConfig, LocalSettings};
use crate::group::WaitingWork;
use crate::ids::NodeId;
use crate::jobs::JobsCopy;
use crate::link::{Consumer, Doorbell, Producer, StopSignal, ThreadWaker, channel};
use crate::time::Time;
use crate::view::{View, ViewReader};

/// The slots of the rings. One request at a time is under way.
const SLOTS: usize = 2;

/// A request for a plan, with what it is based on.
pub(crate) struct NodesTask {
    /// What is asked for, checked.
    pub(crate) request: NodesRequest,
    /// What waits at planners and shards.
    pub(crate) waiting: WaitingWork,
    /// How long nodes have been idle, in ns, as their agents know.
    pub(crate) idle: Vec<(NodeId, u64)>,
    /// All jobs, copied.
    pub(crate) jobs: JobsCopy,
    pub(crate) now: Time,
}

/// The keeper's end of the rings.
pub(crate) struct NodesLink {
    tasks: Producer<NodesTask>,
    plans: Consumer<NodesPlan>,
    bell: Arc<Doorbell>,
    /// Both ends have it.
    alive: Arc<()>,
}

impl NodesLink {
    /// Returns whether somebody plans.
    pub(crate) fn is_alive(&self) -> bool {
        Arc::strong_count(&self.alive) > 1
    }

    /// Asks for a plan. At most one is under way.
    pub(crate) fn ask(&mut self, task: NodesTask) {
        let pushed = self.tasks.push(task);
        assert!(pushed.is_ok(), "a plan of nodes is asked for while another one is under way");
        self.bell.ring();
    }

    /// Takes the plan that was asked for, if it is made.
    pub(crate) fn take(&mut self) -> Option<NodesPlan> {
        self.plans.pop()
    }

    /// Returns whether there is no plan to take.
    pub(crate) fn is_empty(&mut self) -> bool {
        self.plans.is_empty()
    }
}

/// Plans nodes. A thread runs it, or a caller runs it request by request.
pub struct NodesPlanner {
    tasks: Consumer<NodesTask>,
    plans: Producer<NodesPlan>,
    keeper: Arc<Doorbell>,
    bell: Arc<Doorbell>,
    waker: Arc<ThreadWaker>,
    stop: StopSignal,
    views: Vec<ViewReader>,
    cycle: CycleConfig,
    settings: LocalSettings,
    clock: IdleClock,
    _alive: Arc<()>,
}

/// What a planner of nodes works with.
pub(crate) struct NodesPlannerConfig {
    /// What cycles do.
    pub(crate) cycle: CycleConfig,
    /// The settings of all shards. The number, the partitions and the seed are of no use.
    pub(crate) settings: LocalSettings,
    /// The views of all shards.
    pub(crate) views: Vec<ViewReader>,
    /// The bell of the keeper of jobs.
    pub(crate) keeper: Arc<Doorbell>,
    /// The own bell, and the waker behind it.
    pub(crate) bell: (Arc<Doorbell>, Arc<ThreadWaker>),
}

impl NodesPlanner {
    /// Creates a planner of nodes, and the keeper's end of its rings.
    pub(crate) fn new(config: NodesPlannerConfig) -> (Self, NodesLink) {
        let NodesPlannerConfig { cycle, settings, views, keeper, bell: (bell, waker) } = config;
        let (asked, tasks) = channel(SLOTS);
        let (made, plans) = channel(SLOTS);
        let alive = Arc::new(());
        let stop = StopSignal::default();
        stop.watch(&bell);
        let link = NodesLink { tasks: asked, plans, bell: Arc::clone(&bell), alive: Arc::clone(&alive) };
        let clock = IdleClock::default();
        let plans = made;
        (Self { tasks, plans, keeper, bell, waker, stop, views, cycle, settings, clock, _alive: alive }, link)
    }

    /// Returns the signal that stops it. Nobody may ask for plans afterwards.
    #[must_use]
    pub fn stop_signal(&self) -> StopSignal {
        self.stop.clone()
    }

    /// Runs on the calling thread until it is stopped.
    pub fn run(mut self) {
        self.waker.set_current();
        loop {
            // Read before the ring, so that what was asked for before the stop is still seen.
            let is_stopping = self.stop.is_stopped();
            if self.run_round() {
                continue;
            }
            if is_stopping {
                return;
            }
            let Self { tasks, stop, bell, .. } = &mut self;
            if bell.sleep_if(|| tasks.is_empty() && !stop.is_stopped()) {
                std::thread::park();
            }
        }
    }

    /// Returns whether no plan is asked for.
    pub fn is_idle(&mut self) -> bool {
        self.tasks.is_empty()
    }

    /// Makes the plan that was asked for, if any. Returns whether there was one.
    pub fn run_round(&mut self) -> bool {
        let Some(task) = self.tasks.pop() else { return false };
        let plan = self.plan(task);
        let pushed = self.plans.push(plan);
        assert!(pushed.is_ok(), "one plan of nodes is under way at a time");
        self.keeper.ring();
        true
    }

    fn plan(&mut self, task: NodesTask) -> NodesPlan {
        let NodesTask { request, waiting, idle, jobs, now } = task;
        let views: Vec<Arc<View>> = self.views.iter().map(|view| view.read_until(view.due())).collect();
        self.clock.look(views.iter().map(|view| &**view), now);
        idle.iter().for_each(|&(node, idle_ns)| self.clock.set(node, idle_ns, now));
        let (jobs, run_times) = jobs.into_parts();
        let cluster = cluster_of_views(&views, jobs, self.cycle.clone(), self.settings.clone(), now);
        // Released before anything else: kept views cost memory.
        drop(views);
        let mut cluster = cluster.expect("the settings serve, and the jobs are those that the keeper has");
        cluster.set_run_times(run_times);
        plan_nodes(&request, &waiting, cluster, &self.clock).expect("the keeper has checked the request")
    }
}
