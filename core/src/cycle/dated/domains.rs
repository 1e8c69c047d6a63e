//! Where the tasks of a job must be: in one domain of the topology, or anywhere.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cycle::topology::DomainId;
use crate::cycle::trial::{Cycle, Place};
use crate::ids::NodeId;
use crate::jobs::{JobId, TaskClass, TopologyRule};

/// Where the tasks of a job must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Within {
    /// Anywhere.
    Cluster,
    /// In one domain of the tier with this index, or of a narrower one.
    Tier(usize),
    /// In this domain: others of its tasks are there.
    Domain(DomainId),
}

impl Cycle<'_> {
    /// Returns where the tasks of a job must be. `None`: no date is known for such a job.
    ///
    /// If task groups have hard rules of their own, a date is looked for in domains that keep all of them at once. None is known if
    /// tasks of such a job have nodes already. It is also so if the job needs tasks that ask for nothing: whether they find nodes
    /// in a domain is not known before.
    pub(super) fn within(&mut self, job: JobId) -> Option<Within> {
        let of = self.jobs.job(job);
        let spec = of.spec();
        if !spec.has_hard_topology() {
            return Some(Within::Cluster);
        }
        let lacks_others = of.pending_best_effort() > 0 && !self.is_ready(job);
        if lacks_others {
            return None;
        }
        let is_hard = |rule: &&TopologyRule| rule.is_hard();
        let of_groups = spec.tasks.iter().filter_map(|group| group.topology.as_ref()).filter(is_hard);
        let of_groups: Vec<&TopologyRule> = of_groups.collect();
        if !of_groups.is_empty() {
            let begun = of.tasks().iter().any(|task| task.state.has_node());
            let all = of_groups.into_iter().chain(spec.topology.as_ref().filter(is_hard));
            // One domain of the narrowest tier is inside of one of each wider tier.
            let widest: Option<Vec<usize>> = all.map(|rule| self.rule(Some(rule))?.widest).collect();
            return widest?.into_iter().min().filter(|_| !begun).map(Within::Tier);
        }
        let (widest, home) = self.widest_domain_of(job)?;
        Some(home.map_or(Within::Tier(widest), Within::Domain))
    }

    /// Returns the domain in which a node counts for such a job: the widest one that may hold it. `None`: none does.
    pub(super) fn domain_within(&self, within: Within, place: Place) -> Option<DomainId> {
        match within {
            Within::Cluster => Some(DomainId::ROOT),
            Within::Tier(widest) => self.topology.widest_around(place, widest),
            Within::Domain(domain) => self.topology.contains(domain, place).then_some(domain),
        }
    }

    /// Returns whether such a job may be on these nodes.
    pub(super) fn are_within(&self, within: Within, nodes: impl Iterator<Item = NodeId>) -> bool {
        let domain_of = |node: NodeId| self.domain_within(within, self.locate(node)?);
        let domains: BTreeSet<Option<DomainId>> = nodes.map(domain_of).collect();
        domains.len() < 2 && !domains.contains(&None)
    }

    /// Returns the nodes that may hold tasks of such a job which have room now for one of these classes, by what is free there.
    pub(super) fn places_with_room(&mut self, within: Within, classes: &[Arc<TaskClass>]) -> BTreeSet<Place> {
        let mut places = self.places_in_domains(classes);
        places.retain(|&place| self.domain_within(within, place).is_some());
        places
    }
}
