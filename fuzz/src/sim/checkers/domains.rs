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

/// Returns the domain of a tier in which a node is: its labels of this tier and of all wider ones, as far as it has these.
/// `None`: it has no label of this tier.
fn domain(node: &NodeRecord, tier: usize) -> Option<Vec<Option<&str>>> {
    let label = |tier: &&'static str| node.registration.spec.labels.get(tier);
    label(&TIERS[tier])?;
    Some(TIERS[tier..].iter().map(label).collect())
}

/// Returns whether nodes are in one domain of a tier up to this one.
fn are_together(nodes: &[&NodeRecord], widest: usize) -> bool {
    let is_one = |tier: usize| {
        let mut domains = nodes.iter().map(|node| domain(node, tier));
        let first = domains.next().flatten();
        first.is_some() && domains.all(|domain| domain == first)
    };
    nodes.is_empty() || (0..=widest).any(is_one)
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
    // By job, task group and tier. Without a task group: the whole job.
    let mut found: BTreeMap<(JobId, Option<u32>, usize), Vec<&NodeRecord>> = BTreeMap::new();
    for (bundle, on) in held.chain(claimed) {
        let Some(job) = JobId::of_group(bundle.group) else { continue };
        let Some(hard) = hard_of(job) else { continue };
        let Some(&group) = hard.groups.get(bundle.index as usize) else { continue };
        let node = facts.iter().find_map(|facts| facts.node(on)).expect("allocations are on nodes");
        for (of, tier) in [(None, hard.of_job), (Some(group), hard.of_groups[group as usize])] {
            if let Some(tier) = tier {
                found.entry((job, of, tier)).or_default().push(node);
            }
        }
    }
    for ((job, group, tier), nodes) in found {
        ensure(are_together(&nodes, tier), || {
            let nodes = nodes.iter().map(|node| (node.registration.id, domain(node, tier)));
            let nodes: Vec<_> = nodes.collect();
            format!("task group {group:?} of job {job} must be in one {}, and is on {nodes:?}", TIERS[tier])
        })?;
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
        let tasks = job.tasks().iter().filter(|task| of.is_none_or(|of| task.group == of));
        let keeps = |state: TaskState| state.holds() || state == TaskState::Pipelined;
        let others = tasks.filter(|task| keeps(task.state)).filter_map(|task| task.node);
        let find = |other: NodeId| facts.iter().find_map(|facts| facts.node(other));
        let others: Option<Vec<&NodeRecord>> = others.map(find).collect();
        let mut nodes = others.unwrap_or_default();
        let is_known = !nodes.is_empty();
        nodes.push(node);
        is_known && are_together(&nodes, tier)
    })
}
