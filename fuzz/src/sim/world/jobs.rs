//! Queues and jobs: their keeper, and the checks of what it does.

use std::collections::BTreeMap;

use wharf_core::cycle::{Action, Backfill, CycleConfig, PluginConfig, PluginKind};
use wharf_core::group::Strategy;
use wharf_core::jobs::{JobId, Jobs, JobsRecord, TopologyDomain, TopologyTier};
use wharf_core::node::Labels;
use wharf_core::planner::{JobsConfig, Planner};
use wharf_core::time::Time;

use super::World;
use crate::sim::checkers::domains::{Hard, TIERS, jobs_stay_in_domains};
use crate::sim::checkers::evictions::evictions_end;
use crate::sim::checkers::gangs::{Starts, no_start_is_held};
use crate::sim::checkers::jobs::{
    Dated, classes_are_as_told, jobs_are_as_told, no_task_waits_that_would_fit, plans_change_nothing,
    queues_are_as_told, tasks_are_in_the_books, tasks_run_once,
};
use crate::sim::checkers::queues::{QUEUES, caps_hold};
use crate::sim::checkers::run_times::{Overruns, overruns_are_ended};
use crate::sim::checkers::{Verdict, named};
use crate::sim::client::jobs::set_queue;
use crate::sim::facts::Facts;
use crate::sim::network::Towards;
use crate::sim::script::{RACKS, ROWS};
use crate::sim::{JobRules, Sharing};

/// The time between the beginnings of two cycles in these runs, in ns of virtual time.
pub(super) const INTERVAL_NS: u64 = 400;

/// How long after a job with a date the next one is to start there, in ns: more than the time until something is bound.
const DATE_GAP_NS: u64 = 2_000;

/// How long a task that was evicted may go on, in ns.
const GRACE_NS: u64 = 2_500;

/// The half-life of what queues have held, in ns.
const HALF_LIFE_NS: u64 = 20_000;

/// The part of some resource of the cluster that is in use if anybody starves, in 1/10,000.
const UTILIZATION_ABOVE: u32 = 1_000;

/// How long after the grace period a job that starved is looked at again, in ns.
const RECHECK_NS: u64 = 1_000;

/// The most cycles, each with everything that follows from it, until jobs must have come to rest.
const CYCLES_MAX: usize = 64;

/// Returns objects that contain the same nodes as the labels of the tiers say. So checkers may go by labels.
fn domains() -> Vec<TopologyDomain> {
    let of_labels = |(tier, value): (&str, String)| {
        let labels = Labels::new(vec![(tier.into(), value.as_str().into())]).expect("one label");
        TopologyDomain { labels, ..TopologyDomain::new(tier, &value) }
    };
    let racks = (0..RACKS).map(|rack| (TIERS[0], format!("r{rack}")));
    let rows = (0..ROWS).map(|row| (TIERS[1], format!("w{row}")));
    racks.chain(rows).map(of_labels).collect()
}

/// Returns the settings of the keeper of jobs.
pub(super) fn jobs_config(JobRules { sharing, backfill, objects, .. }: JobRules) -> JobsConfig {
    let tier = |kinds: &[PluginKind]| kinds.iter().copied().map(PluginConfig::new).collect();
    let mut shares = PluginConfig::new(match sharing {
        Sharing::Jobs | Sharing::Queues => PluginKind::Drf,
        Sharing::Deserved => PluginKind::Proportion,
        Sharing::Given => PluginKind::Capacity,
        Sharing::Starved => PluginKind::FairShare,
    });
    (shares.utilization_above, shares.recheck_ns) = (UTILIZATION_ABOVE, RECHECK_NS);
    shares.hierarchical = sharing == Sharing::Queues;
    let tiers = TIERS.map(|tier| match objects {
        true => TopologyTier { name: tier.into(), label: None },
        false => TopologyTier::labelled(tier, tier),
    });
    let cycle = CycleConfig {
        actions: match sharing {
            Sharing::Starved => {
                vec![Action::Enqueue, Action::Allocate, Action::Backfill, Action::Starve]
            }
            _ => Action::DEFAULT.to_vec(),
        },
        tiers: vec![
            tier(&[PluginKind::Priority, PluginKind::Usage, PluginKind::Gang, PluginKind::Conformance]),
            vec![shares],
        ],
        grace_ns: GRACE_NS,
        backfill,
        date_gap_ns: DATE_GAP_NS,
        usage_half_life_ns: HALF_LIFE_NS,
        topology: tiers.into(),
        domains: if objects { domains() } else { Vec::new() },
        ..CycleConfig::default()
    };
    JobsConfig { cycle, interval_ns: INTERVAL_NS, ..JobsConfig::default() }
}

/// What is known of a job or of a direct placement.
#[derive(Debug)]
struct Followed {
    queue: &'static str,
    is_direct: bool,
    hard: Hard,
}

/// The jobs and direct placements, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct JobsWatch {
    followed: BTreeMap<JobId, Followed>,
    starts: Starts,
    overruns: Overruns,
    /// When this start of the service began.
    pub(super) started: Time,
    /// The number of tasks that cycles have evicted for others in this start.
    pub(super) evicted: u64,
}

impl JobsWatch {
    /// Notes the jobs and direct placements that are new.
    fn follow(&mut self, jobs: &Jobs) {
        for (id, job) in jobs.jobs() {
            self.followed.entry(id).or_insert_with(|| {
                let spec = job.spec();
                let name = &jobs.queue(spec.queue).spec().name;
                let queue = QUEUES.iter().find(|queue| *queue.name == **name);
                let queue = queue.expect("a queue of the simulation").name;
                Followed { queue, is_direct: spec.is_direct, hard: Hard::of(spec) }
            });
        }
    }

    /// Returns the name of the queue of a job or of a direct placement.
    pub(super) fn queue_of(&self, job: JobId) -> Option<&'static str> {
        Some(self.followed.get(&job)?.queue)
    }

    /// Returns whether it is a direct placement.
    pub(super) fn is_direct(&self, job: JobId) -> bool {
        self.followed.get(&job).is_some_and(|followed| followed.is_direct)
    }
}

impl World<'_> {
    /// Returns the number of tasks that cycles have evicted for others in this start.
    fn evicted(&self) -> u64 {
        self.jobs_watch.as_ref().map_or(0, |watch| watch.evicted)
    }

    /// Returns the queues and jobs of this start, if it keeps any.
    pub(super) fn jobs(&self) -> Option<&Jobs> {
        self.planners.iter().find_map(|planner| planner.planner().jobs())
    }

    /// Makes the queues.
    pub(super) fn populate_queues(&mut self) {
        for queue in self.jobs_watch.iter().flat_map(|_| &QUEUES) {
            let frame = set_queue(&mut self.clients[0], queue);
            if let Some(connection) = self.clients[0].connection {
                self.network.send(connection, Towards::Server, frame);
            }
        }
    }

    /// Follows what a start has of jobs. A crash gives the number of a job of which nobody was told to another one.
    pub(super) fn begin_jobs(&mut self) {
        self.jobs_watch.iter_mut().for_each(|watch| *watch = JobsWatch::default());
        (0..self.planners.len()).for_each(|at| self.follow_keeper(at));
        let jobs = self.planners.iter().find_map(|planner| planner.planner().jobs());
        if let (Some(watch), Some(jobs)) = (&mut self.jobs_watch, jobs) {
            watch.starts = Starts::of(jobs, self.now);
            watch.started = self.now;
        }
    }

    /// Follows the keeper of jobs after a round.
    pub(super) fn follow_keeper(&mut self, at: usize) {
        if let (Some(watch), Some(jobs)) = (&mut self.jobs_watch, self.planners[at].planner().jobs()) {
            watch.follow(jobs);
        }
    }

    /// Checks what the keeper of jobs has started since the shards agreed to the states of tasks last.
    pub(super) fn check_starts(&mut self, at: usize) -> Verdict {
        let planner = self.planners[at].planner();
        match (&mut self.jobs_watch, planner.jobs()) {
            (Some(watch), Some(jobs)) if planner.has_agreed_jobs() => {
                named("what_overruns_fails", watch.overruns.what_overruns_fails(jobs))?;
                named("gangs_start_whole", watch.starts.gangs_start_whole(jobs, self.now))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether a plan of nodes was asked for and is not made.
    pub(super) fn wants_plan(&mut self) -> bool {
        self.nodes_planner.as_mut().is_some_and(|planner| !planner.is_idle())
    }

    /// Lets the planner of nodes make the plan that was asked for.
    pub(super) fn plan_nodes(&mut self) -> Verdict {
        let before = self.jobs_at_start();
        let facts: Vec<Facts> = self.runners.iter().map(|runner| Facts::of(runner.shard())).collect();
        self.nodes_planner.iter_mut().for_each(|planner| {
            planner.run_round();
        });
        let after = self.jobs_at_start();
        let facts_after: Vec<Facts> = self.runners.iter().map(|runner| Facts::of(runner.shard())).collect();
        named("plans_change_nothing", plans_change_nothing((&before, &facts), (&after, &facts_after)))?;
        self.trace.line(format_args!("a plan of nodes is made"));
        Ok(())
    }

    /// Checks the books of the shards after a command: what tasks have at this moment.
    pub(super) fn check_tasks(&self) -> Verdict {
        let Some(watch) = &self.jobs_watch else { return Ok(()) };
        named("caps_hold", caps_hold(&self.facts, |job| watch.queue_of(job)))?;
        let stay = jobs_stay_in_domains(&self.facts, |job| Some(&watch.followed.get(&job)?.hard));
        named("jobs_stay_in_domains", stay)?;
        named("tasks_run_once", tasks_run_once(&self.facts))
    }

    /// Returns the durable record of the queues and jobs, at a clean stop.
    pub(super) fn jobs_record(&self) -> JobsRecord {
        let mut planners = self.planners.iter().map(|planner| planner.planner());
        planners.find_map(Planner::export_jobs).unwrap_or_default()
    }

    /// Returns the queues and jobs as a start has them. Some may be about to end.
    pub(super) fn jobs_at_start(&self) -> JobsRecord {
        self.jobs().map(Jobs::record).unwrap_or_default()
    }

    /// Checks that the jobs are as clients were told.
    pub(super) fn check_told_jobs(&self, at_rest: bool) -> Verdict {
        let Some(jobs) = self.jobs() else { return Ok(()) };
        let queues = self.clients.iter().flat_map(|client| client.queues.iter().copied());
        named("queues_are_as_told", queues_are_as_told(jobs, queues))?;
        for client in &self.clients {
            named("classes_are_as_told", classes_are_as_told(jobs, &client.classes))?;
        }
        for (&number, job) in self.clients.iter().flat_map(|client| &client.jobs) {
            named("jobs_are_as_told", jobs_are_as_told(jobs, number, &job.told, at_rest))?;
        }
        Ok(())
    }

    /// Lets cycles run until they change nothing, with `answer_all` after each. Then checks the jobs at rest.
    pub(in crate::sim) fn settle_jobs(
        &mut self,
        mut answer_all: impl FnMut(&mut Self) -> Verdict,
    ) -> Verdict {
        if self.jobs_watch.is_none() {
            return Ok(());
        }
        let mut quiet = 0;
        // The number of evictions when three quarters of the cycles have run.
        let mut evicted = None;
        for cycle in 0..CYCLES_MAX {
            if cycle == CYCLES_MAX * 3 / 4 {
                evicted = Some(self.evicted());
            }
            let before = (self.statements_made(), self.facts.clone());
            // Longer than an interval and than any grace period.
            self.pass(2 * GRACE_NS);
            answer_all(self)?;
            // A lease may end after the last cycle.
            let is_quiet = self.statements_made() == before.0 && self.facts == before.1;
            quiet = if is_quiet { quiet + 1 } else { 0 };
            if quiet == 2 {
                break;
            }
        }
        let rules = self.job_rules.expect("a run with jobs has rules for them");
        // Run times change the demand.
        if let Some(before) = evicted.filter(|_| rules.backfill == Backfill::None) {
            named("evictions_end", evictions_end(before, self.evicted()))?;
        }
        self.check_told_jobs(true)?;
        let jobs = self.jobs().expect("a run with jobs has a keeper");
        named("tasks_are_in_the_books", tasks_are_in_the_books(jobs, &self.facts))?;
        named("no_start_is_held", no_start_is_held(jobs, |id| self.has_date(id)))?;
        let late = Time(self.now.0.saturating_sub(GRACE_NS));
        named("overruns_are_ended", overruns_are_ended(jobs, late))?;
        // A queue that has what it deserves, or what others' guarantees leave, waits although there is room.
        if !matches!(rules.sharing, Sharing::Deserved | Sharing::Given) {
            let dated = self.first_date().map(|date| Dated { now: self.now, date });
            let may_wait = |id: JobId| id.is_placeholder() && !self.is_placed_bundle_by_bundle(id);
            let waits = no_task_waits_that_would_fit(jobs, &self.facts, dated, may_wait);
            named("no_task_waits_that_would_fit", waits)?;
        }
        self.check_charges()
    }

    /// Returns whether each bundle of a group that waits in a queue may be placed on any node: neither its strategy nor a rule
    /// forbids it, and no search was given up.
    fn is_placed_bundle_by_bundle(&self, placeholder: JobId) -> bool {
        let mut planners = self.planners.iter().map(|planner| planner.planner());
        let keeper = planners.find(|planner| planner.keeps_jobs()).expect("a run with jobs has a keeper");
        let group = keeper.group_of_placeholder(placeholder).expect("a job holds the place of a group");
        let is_free = matches!(group.strategy, Strategy::Pack | Strategy::Spread) && group.topology.is_none();
        is_free && keeper.work().given_up == 0
    }
}
