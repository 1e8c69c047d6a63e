//! What a cycle does: its actions, and the plugins that decide, in tiers.

use std::fmt;

use crate::jobs::{DomainFault, TiersFault, TopologyDomain, TopologyTier, check_domains, check_tiers};

/// The part of the cluster's largest resource above which jobs starve by default, in 1/10,000 (as in YARN).
const UTILIZATION_DEFAULT: u32 = 8_000;

/// How long after the grace period a job that starved is looked at again by default, in ns. As in YARN: 10 s, and four
/// heartbeats of 1 s.
const RECHECK_NS_DEFAULT: u64 = 14_000_000_000;

/// One step of a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Admits jobs to their queues.
    Enqueue,
    /// Places pending tasks on capacity that is free, or that is being released.
    Allocate,
    /// Places tasks that ask for nothing.
    Backfill,
    /// Evicts tasks for others of the same queue.
    Preempt,
    /// Evicts tasks of queues that use more than they deserve, for others.
    Reclaim,
    /// Evicts tasks for jobs that have been below their fair share, or below their queue's guarantee, for too long.
    Starve,
}

impl Action {
    /// All actions.
    pub const ALL: [Self; 6] =
        [Self::Enqueue, Self::Allocate, Self::Backfill, Self::Preempt, Self::Reclaim, Self::Starve];

    /// The actions of a cycle by default, in order: all that Volcano has.
    pub const DEFAULT: [Self; 5] =
        [Self::Enqueue, Self::Allocate, Self::Backfill, Self::Preempt, Self::Reclaim];

    /// Returns the decision about victims of an action that evicts.
    pub(super) fn decision(self) -> Decision {
        match self {
            Self::Preempt => Decision::Preemptable,
            Self::Reclaim => Decision::Reclaimable,
            Self::Starve => Decision::Evictable,
            other => panic!("`{}` evicts nobody", other.name()),
        }
    }

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Enqueue => "enqueue",
            Self::Allocate => "allocate",
            Self::Backfill => "backfill",
            Self::Preempt => "preempt",
            Self::Reclaim => "reclaim",
            Self::Starve => "starve",
        }
    }

    /// Returns the action of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.name() == name)
    }
}

/// A plugin: one rule that takes part in the decisions of a cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginKind {
    /// Jobs and tasks of a higher priority come first, and may preempt others of their queue.
    Priority,
    /// A job is placed with as many tasks as it needs, or not at all, and keeps them.
    Gang,
    /// Tasks that the cluster itself needs are never victims.
    Conformance,
    /// Jobs with a smaller dominant share come first.
    Drf,
    /// Queues deserve a part of the cluster by weight.
    Proportion,
    /// Queues deserve what they are given, in a hierarchy.
    Capacity,
    /// Queues and jobs are ordered by YARN's fair shares, and jobs that starve take from those above their shares.
    FairShare,
    /// Jobs are admitted for somewhat more than the cluster has.
    Overcommit,
    /// Jobs that have waited for too long come first.
    Sla,
    /// Queues and users that use less and have used less come first.
    Usage,
}

impl PluginKind {
    /// All plugins.
    pub const ALL: [Self; 10] = [
        Self::Priority,
        Self::Gang,
        Self::Conformance,
        Self::Drf,
        Self::Proportion,
        Self::Capacity,
        Self::FairShare,
        Self::Overcommit,
        Self::Sla,
        Self::Usage,
    ];

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Priority => "priority",
            Self::Gang => "gang",
            Self::Conformance => "conformance",
            Self::Drf => "drf",
            Self::Proportion => "proportion",
            Self::Capacity => "capacity",
            Self::FairShare => "fair-share",
            Self::Overcommit => "overcommit",
            Self::Sla => "sla",
            Self::Usage => "usage",
        }
    }

    /// Returns the plugin of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// A kind of decision in which a plugin may take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The order of queues.
    QueueOrder,
    /// The order of jobs in a queue.
    JobOrder,
    /// The order of tasks in a job.
    TaskOrder,
    /// Whether a job may be placed at all.
    JobValid,
    /// Whether a job has what it needs.
    JobReady,
    /// Whether a job will have what it needs.
    JobPipelined,
    /// Whether a job may preempt.
    JobStarving,
    /// Whether a queue admits a job.
    JobEnqueueable,
    /// Whether a queue has enough already.
    Overused,
    /// Whether a queue may have more.
    Allocatable,
    /// Whether a queue may reclaim.
    Preemptive,
    /// Which tasks may be evicted for a task of the same queue.
    Preemptable,
    /// Which tasks may be evicted for a task of another queue.
    Reclaimable,
    /// Which tasks may be evicted for a job that starves.
    Evictable,
}

impl Decision {
    /// All kinds of decisions.
    pub const ALL: [Self; 14] = [
        Self::QueueOrder,
        Self::JobOrder,
        Self::TaskOrder,
        Self::JobValid,
        Self::JobReady,
        Self::JobPipelined,
        Self::JobStarving,
        Self::JobEnqueueable,
        Self::Overused,
        Self::Allocatable,
        Self::Preemptive,
        Self::Preemptable,
        Self::Reclaimable,
        Self::Evictable,
    ];

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::QueueOrder => "queue-order",
            Self::JobOrder => "job-order",
            Self::TaskOrder => "task-order",
            Self::JobValid => "job-valid",
            Self::JobReady => "job-ready",
            Self::JobPipelined => "job-pipelined",
            Self::JobStarving => "job-starving",
            Self::JobEnqueueable => "job-enqueueable",
            Self::Overused => "overused",
            Self::Allocatable => "allocatable",
            Self::Preemptive => "preemptive",
            Self::Preemptable => "preemptable",
            Self::Reclaimable => "reclaimable",
            Self::Evictable => "evictable",
        }
    }

    /// Returns the decision of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|decision| decision.name() == name)
    }

    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// A plugin with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginConfig {
    /// The plugin.
    pub kind: PluginKind,
    disabled: u16,
    /// `overcommit`: the part of the cluster for which jobs are admitted, in percent.
    pub overcommit_percent: u32,
    /// `gang`: whether a running job may also be evicted as a whole, where nothing less makes room.
    pub whole_gangs: bool,
    /// `drf`: whether queues are ordered by their shares in the tree, too, and reclaim by these.
    pub hierarchical: bool,
    /// `sla`: how long a job may wait, in ns. `None`: as long as it must.
    pub wait_ns: Option<u64>,
    /// `fair-share`: nobody starves unless more than this part of some resource of the cluster is in use, in 1/10,000.
    pub utilization_above: u32,
    /// `fair-share`: how long after the grace period a job that starved is looked at again, in ns.
    pub recheck_ns: u64,
}

impl PluginConfig {
    /// Returns the plugin as it is by default.
    #[must_use]
    pub const fn new(kind: PluginKind) -> Self {
        Self {
            kind,
            disabled: 0,
            overcommit_percent: 120,
            whole_gangs: false,
            hierarchical: false,
            wait_ns: None,
            utilization_above: UTILIZATION_DEFAULT,
            recheck_ns: RECHECK_NS_DEFAULT,
        }
    }

    /// Takes the plugin out of a kind of decisions.
    #[must_use]
    pub const fn without(mut self, decision: Decision) -> Self {
        self.disabled |= decision.bit();
        self
    }

    /// Returns whether the plugin takes part in a kind of decisions.
    #[must_use]
    pub const fn takes_part(&self, decision: Decision) -> bool {
        self.disabled & decision.bit() == 0
    }
}

/// Which jobs that do not fit get dated reservations, so that jobs behind them do not delay them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backfill {
    /// None. What fits is placed (Volcano).
    #[default]
    None,
    /// The first one of each queue that has a date (EASY).
    Easy,
    /// All that have a date.
    Conservative,
}

impl Backfill {
    /// All settings.
    pub const ALL: [Self; 3] = [Self::None, Self::Easy, Self::Conservative];

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Easy => "easy",
            Self::Conservative => "conservative",
        }
    }

    /// Returns the setting of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|backfill| backfill.name() == name)
    }
}

/// How the answers of tiers about victims are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Combination {
    /// The first tier that answers decides. An empty answer is a veto.
    #[default]
    Strict,
    /// As in Volcano: an empty answer falls through to the next tier, and an empty intersection is forgotten.
    Volcano,
}

/// The settings of cycles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CycleConfig {
    /// The actions, in order.
    pub actions: Vec<Action>,
    /// The plugins in tiers. The first tier that decides counts.
    pub tiers: Vec<Vec<PluginConfig>>,
    /// How tiers combine what they say about victims.
    pub combination: Combination,
    /// The grace period of evicted tasks, in ns.
    pub grace_ns: u64,
    /// Which jobs that do not fit get dated reservations.
    pub backfill: Backfill,
    /// How long after a reserved job has ended the next one is to start there, in ns. So dates that follow others stay the same
    /// if something is bound that much later than its cycle has counted.
    pub date_gap_ns: u64,
    /// How long a task runs before it may be evicted, in ns. Queues may say otherwise.
    pub min_run_time_ns: u64,
    /// The time in which what queues and users have held comes to count half as much, in ns. 0: only what runs now counts.
    /// Queues may say otherwise.
    pub usage_half_life_ns: u64,
    /// How many nodes are compared at most to find the cheapest victims for a task.
    pub victim_nodes_max: usize,
    /// The tiers of the topology, from the narrowest to the widest, at most
    /// [`TOPOLOGY_TIERS_MAX`](crate::limits::TOPOLOGY_TIERS_MAX).
    pub topology: Vec<TopologyTier>,
    /// The domains of these tiers that are objects, at most
    /// [`TOPOLOGY_DOMAINS_MAX`](crate::limits::TOPOLOGY_DOMAINS_MAX). The first one of a tier that contains a node counts.
    pub domains: Vec<TopologyDomain>,
}

/// An error in the settings of cycles.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CycleConfigError {
    /// No actions are named.
    #[error("no action is named: name some of {}", names(&Action::ALL.map(Action::name)))]
    NoActions,
    /// An action is named twice.
    #[error("action `{0}` is named twice: name each once")]
    ActionTwice(&'static str),
    /// A plugin is named twice.
    #[error("plugin `{0}` is named twice: name each once")]
    PluginTwice(&'static str),
    /// Two actions evict by different rules, so one could undo what the other did.
    #[error("actions `{0}` and `{1}` evict by different rules: name one of them")]
    TwoEvictors(&'static str, &'static str),
    /// Jobs starve by their fair shares, and no plugin bounds evictions by these.
    #[error("action `starve` evicts by fair shares: name plugin `fair-share`, with its decision `evictable`")]
    NoFairShare,
    /// Two plugins both say what queues deserve.
    #[error(
        "plugins `{0}` and `{1}` both say what queues deserve: name one of them (`drf` does if it is `hierarchical`)"
    )]
    Contradiction(&'static str, &'static str),
    /// Past use has a half-life, and no plugin looks at it.
    #[error(
        "past use has a half-life, and no plugin decides by it: name plugin `usage`, or leave `usage_half_life` out"
    )]
    NoUsage,
    /// No nodes are compared.
    #[error("no nodes are compared for victims: give `victim_nodes_max` of at least 1")]
    NoVictimNodes,
    /// The tiers of the topology are wrong.
    #[error(transparent)]
    Topology(#[from] TiersFault),
    /// The domains of the topology are wrong.
    #[error(transparent)]
    Domains(#[from] DomainFault),
}

fn names(names: &[&str]) -> String {
    names.join(", ")
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Default for CycleConfig {
    /// The default: a task is evicted only if all of gang, conformance and the share of its queue agree.
    fn default() -> Self {
        use PluginKind as Kind;
        let tier = |kinds: &[PluginKind]| kinds.iter().copied().map(PluginConfig::new).collect();
        Self {
            actions: Action::DEFAULT.to_vec(),
            tiers: vec![
                tier(&[Kind::Priority, Kind::Gang, Kind::Conformance, Kind::Proportion]),
                tier(&[Kind::Overcommit, Kind::Drf]),
            ],
            combination: Combination::Strict,
            grace_ns: 0,
            backfill: Backfill::None,
            date_gap_ns: 0,
            min_run_time_ns: 0,
            usage_half_life_ns: 0,
            victim_nodes_max: 100,
            topology: Vec::new(),
            domains: Vec::new(),
        }
    }
}

impl CycleConfig {
    /// Returns the settings of a plugin, if it is in a tier.
    #[must_use]
    pub fn plugin(&self, kind: PluginKind) -> Option<&PluginConfig> {
        self.tiers.iter().flatten().find(|plugin| plugin.kind == kind)
    }

    /// Checks what the action `starve` needs, and what it excludes.
    fn check_starve(&self) -> Result<(), CycleConfigError> {
        if !self.actions.contains(&Action::Starve) {
            return Ok(());
        }
        let others = [Action::Preempt, Action::Reclaim];
        if let Some(other) = others.into_iter().find(|other| self.actions.contains(other)) {
            return Err(CycleConfigError::TwoEvictors(Action::Starve.name(), other.name()));
        }
        let bounds = |plugin: &PluginConfig| plugin.takes_part(Decision::Evictable);
        if self.plugin(PluginKind::FairShare).is_some_and(bounds) {
            Ok(())
        } else {
            Err(CycleConfigError::NoFairShare)
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self) -> Result<(), CycleConfigError> {
        if self.actions.is_empty() {
            return Err(CycleConfigError::NoActions);
        }
        if self.victim_nodes_max == 0 {
            return Err(CycleConfigError::NoVictimNodes);
        }
        for (at, action) in self.actions.iter().enumerate() {
            if self.actions[..at].contains(action) {
                return Err(CycleConfigError::ActionTwice(action.name()));
            }
        }
        self.check_starve()?;
        check_tiers(&self.topology)?;
        check_domains(&self.topology, &self.domains).map_err(|(_, fault)| fault)?;
        let mut kinds = Vec::new();
        for plugin in self.tiers.iter().flatten() {
            if kinds.contains(&plugin.kind) {
                return Err(CycleConfigError::PluginTwice(plugin.kind.name()));
            }
            kinds.push(plugin.kind);
        }
        if self.usage_half_life_ns > 0 && !kinds.contains(&PluginKind::Usage) {
            return Err(CycleConfigError::NoUsage);
        }
        let says_deserved = |plugin: &&PluginConfig| match plugin.kind {
            PluginKind::Drf => plugin.hierarchical,
            kind => [PluginKind::Proportion, PluginKind::Capacity].contains(&kind),
        };
        let mut deserving = self.tiers.iter().flatten().filter(says_deserved).map(|plugin| plugin.kind);
        match (deserving.next(), deserving.next()) {
            (Some(one), Some(other)) => Err(CycleConfigError::Contradiction(one.name(), other.name())),
            _ => Ok(()),
        }
    }
}
