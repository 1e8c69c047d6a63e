//! Domains of the topology: tasks of jobs and task groups that must be in one of them.

use std::collections::BTreeMap;

use wharf_core::ids::NodeId;
use wharf_core::jobs::{Job, JobId, JobSpec, TaskState, TopologyRule};
use wharf_core::state::NodeRecord;

use super::jobs::allocated;
use super::{Verdict, ensure};
use crate::sim::facts::Facts;

/// The tiers of the simulation, from the narrowest to the widest, each with its label of nodes. No node changes these
/// labels, and nodes of agents have no row.
pub const TIERS: [&str; 2] = ["rack", "row"];

/// Where the tasks of a job must be.
#[derive(Clone, Debug, Default)]
pub struct Hard {
    /// The index of the tier of which they must be in one domain.
    of_job: Option<usize>,
    /// The same for each task group.
    of_groups: Vec<Option<usize>>,
    /// The task group of each task.
    groups: Vec<u32>,
}

fn tier(rule: Option<&TopologyRule>) -> Option<usize> {
    let rule = rule.filter(|rule| rule.is_hard())?;
    TIERS.iter().position(|tier| rule.tier.as_deref() == Some(*tier))
}

impl Hard {
    /// Returns what a job asks for.
    #[must_use]
    pub fn of(spec: &JobSpec) -> Self {
        let groups = (0..).zip(&spec.tasks);
        Self {
            of_job: tier(spec.topology.as_ref()),
            of_groups: spec.tasks.iter().map(|group| tier(group.topology.as_ref())).collect(),
            groups: groups.flat_map(|(at, group)| std::iter::repeat_n(at, group.count as usize)).collect(),
        }
    }
}

/// Returns the domain of a tier in which a node is: its labels of this tier and of all wider ones.
fn domain(node: &NodeRecord, tier: usize) -> Option<Vec<&str>> {
    TIERS[tier..].iter().map(|tier| node.registration.spec.labels.get(tier)).collect()
}

/// Checks that the tasks of a job with a hard rule, and those of a task group with one, are in one domain of its tier, at
/// this moment in the books of the shards. Tasks in their grace period do not count. `hard_of` says where the tasks of a job
/// must be.
///
/// # Errors
/// Returns the job and the nodes of its tasks.
pub fn jobs_stay_in_domains<'a>(facts: &[Facts], hard_of: impl Fn(JobId) -> Option<&'a Hard>) -> Verdict {
    let partitions = || facts.iter().flat_map(|facts| &facts.partitions);
    let is_releasing = |id| {
        let mut releasing = partitions().flat_map(|partition| &partition.releasing);
        releasing.any(|record| record.allocation == id)
    };
    let nodes: BTreeMap<_, NodeId> =
        facts.iter().flat_map(Facts::allocations).map(|record| (record.id, record.node)).collect();
    let held = allocated(facts).filter(|(id, _)| !is_releasing(*id));
    let held = held.filter_map(|(id, bundle)| Some((bundle, *nodes.get(&id)?)));
    let claims = partitions().flat_map(|partition| &partition.claims);
    let claimed = claims.filter_map(|claim| Some((claim.bundle?, claim.node)));
    // By job and task group. `None`: the whole job.
    let mut found: BTreeMap<(JobId, Option<u32>), (NodeId, Option<Vec<&str>>)> = BTreeMap::new();
    for (bundle, on) in held.chain(claimed) {
        let Some(job) = JobId::of_group(bundle.group) else { continue };
        let Some(hard) = hard_of(job) else { continue };
        let Some(&group) = hard.groups.get(bundle.index as usize) else { continue };
        let rules = [(None, hard.of_job), (Some(group), hard.of_groups[group as usize])];
        for (of, tier) in rules {
            let Some(tier) = tier else { continue };
            let node = facts.iter().find_map(|facts| facts.node(on)).expect("allocations are on nodes");
            let here = domain(node, tier);
            ensure(here.is_some(), || format!("{bundle} is on {on}, which has no {}", TIERS[tier]))?;
            let (other, there) = found.entry((job, of)).or_insert_with(|| (on, here.clone()));
            ensure(*there == here, || {
                format!(
                    "task group {of:?} of job {job} is on {other} and {on}, in two of tier {}: {there:?}, {here:?}",
                    TIERS[tier]
                )
            })?;
        }
    }
    Ok(())
}

/// Returns whether a node is one where a job with hard rules must find room for a task of a group, if the node has room.
/// Of jobs and task groups without a task that has a node, this is not known.
pub(super) fn may_join(job: &Job, group: u32, node: &NodeRecord, facts: &[Facts]) -> bool {
    let hard = Hard::of(job.spec());
    let rules = [(None, hard.of_job), (Some(group), hard.of_groups[group as usize])];
    rules.into_iter().all(|(of, tier)| {
        let Some(tier) = tier else { return true };
        let here = domain(node, tier);
        let tasks = job.tasks().iter().filter(|task| of.is_none_or(|of| task.group == of));
        let keeps = |state: TaskState| state.holds() || state == TaskState::Pipelined;
        let mut others = tasks.filter(|task| keeps(task.state)).filter_map(|task| task.node).peekable();
        others.peek().is_some()
            && here.is_some()
            && others.all(|other| {
                let other = facts.iter().find_map(|facts| facts.node(other));
                other.is_some_and(|other| domain(other, tier) == here)
            })
    })
}
