//! Tiers of the cluster, and what jobs demand of them (Volcano's `networkTopology`).
//!
//! A node has a value in a tier by a label, such as `topology/rack` for the tier `rack`, or by an
//! [object](super::TopologyDomain). Nodes are in one domain of a tier if they have the same values in it and in all
//! wider tiers.

use std::sync::Arc;

use super::{JobError, JobSpec, Jobs};
use crate::limits::{NAME_BYTES_MAX, TOPOLOGY_TIERS_MAX};

/// A tier of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyTier {
    /// Its name, such as `rack`.
    pub name: Arc<str>,
    /// The key of the label whose value says in which domain of the tier a node is. `None`: only objects say it.
    pub label: Option<Arc<str>>,
}

impl TopologyTier {
    /// Creates a tier of a label.
    #[must_use]
    pub fn labelled(name: &str, label: &str) -> Self {
        Self { name: name.into(), label: Some(label.into()) }
    }
}

/// Whether a rule must be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TopologyMode {
    /// All tasks are in one domain, or wait.
    Hard,
    /// All tasks are in one domain if one has room, and otherwise anywhere.
    Soft,
}

impl TopologyMode {
    /// All modes.
    pub const ALL: [Self; 2] = [Self::Hard, Self::Soft];

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hard => "hard",
            Self::Soft => "soft",
        }
    }

    /// Returns the mode of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// In which domains the tasks of a job or of a task group are to be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopologyRule {
    /// Whether it must be kept.
    pub mode: TopologyMode,
    /// The name of the widest tier of which one domain will do (Volcano's `highestTierAllowed`). `None`: the widest
    /// tier that there is. A hard rule names one.
    pub tier: Option<Arc<str>>,
}

/// What is wrong with a list of tiers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TiersFault {
    /// There are too many tiers.
    #[error("there are {0} tiers of the topology: give at most {TOPOLOGY_TIERS_MAX}")]
    TooMany(usize),
    /// A name or a label is empty or too long.
    #[error(
        "tier {0} of the topology needs a name, and a label unless domains are objects, each of 1 to {NAME_BYTES_MAX} bytes"
    )]
    Name(usize),
    /// Two tiers have the same name.
    #[error("tier `{0}` is named twice: name each once")]
    NameTwice(Arc<str>),
    /// Two tiers have the same label.
    #[error("two tiers have the label `{0}`: give each its own")]
    LabelTwice(Arc<str>),
}

/// Checks tiers, from the narrowest to the widest.
///
/// # Errors
/// The first fault.
pub fn check_tiers(tiers: &[TopologyTier]) -> Result<(), TiersFault> {
    if tiers.len() > TOPOLOGY_TIERS_MAX {
        return Err(TiersFault::TooMany(tiers.len()));
    }
    for (at, tier) in tiers.iter().enumerate() {
        let fits = |text: &str| (1..=NAME_BYTES_MAX).contains(&text.len());
        if !fits(&tier.name) || tier.label.as_ref().is_some_and(|label| !fits(label)) {
            return Err(TiersFault::Name(at));
        }
        if tiers[..at].iter().any(|other| other.name == tier.name) {
            return Err(TiersFault::NameTwice(Arc::clone(&tier.name)));
        }
        let same = tier.label.as_ref().filter(|_| tiers[..at].iter().any(|other| other.label == tier.label));
        if let Some(label) = same {
            return Err(TiersFault::LabelTwice(Arc::clone(label)));
        }
    }
    Ok(())
}

/// What is wrong with a rule of a job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleFault {
    /// A hard rule names no tier.
    #[error("a hard topology needs a `tier`: name one of {0}")]
    NoTier(String),
    /// There is no such tier.
    #[error("there is no tier `{tier}`: name one of {known}")]
    Unknown {
        /// The tier.
        tier: Arc<str>,
        /// The tiers that there are.
        known: String,
    },
    /// There are no tiers at all.
    #[error("the cluster has no tiers: leave `topology` out, or name tiers in the setting `jobs.topology`")]
    NoTiers,
    /// The tier of a task group is wider than that of its job.
    #[error("tier `{tier}` is wider than tier `{of_job}` of the job: name that one, or a narrower one")]
    Wider {
        /// The tier of the task group.
        tier: Arc<str>,
        /// The tier of the job.
        of_job: Arc<str>,
    },
}

impl TopologyRule {
    /// Creates a rule that must be kept.
    #[must_use]
    pub fn hard(tier: &str) -> Self {
        Self { mode: TopologyMode::Hard, tier: Some(tier.into()) }
    }

    /// Creates a rule that is kept if possible.
    #[must_use]
    pub fn soft(tier: Option<&str>) -> Self {
        Self { mode: TopologyMode::Soft, tier: tier.map(Arc::from) }
    }

    /// Returns whether it must be kept.
    #[must_use]
    pub fn is_hard(&self) -> bool {
        self.mode == TopologyMode::Hard
    }

    /// Returns the index of the widest tier that is allowed. `None`: there is no such tier.
    #[must_use]
    pub fn widest(&self, tiers: &[TopologyTier]) -> Option<usize> {
        match &self.tier {
            None => tiers.len().checked_sub(1),
            Some(name) => tiers.iter().position(|tier| tier.name == *name),
        }
    }

    fn check(&self, tiers: &[TopologyTier]) -> Result<(), RuleFault> {
        let known = || tiers.iter().map(|tier| &*tier.name).collect::<Vec<_>>().join(", ");
        if tiers.is_empty() {
            return Err(RuleFault::NoTiers);
        }
        match &self.tier {
            None if self.is_hard() => Err(RuleFault::NoTier(known())),
            Some(tier) if self.widest(tiers).is_none() => {
                Err(RuleFault::Unknown { tier: Arc::clone(tier), known: known() })
            }
            _ => Ok(()),
        }
    }
}

/// Checks the rules of a job. Returns the fault with the index of the task group, or `None` for the rule of the job.
fn check_rules(spec: &JobSpec, tiers: &[TopologyTier]) -> Result<(), (Option<u32>, RuleFault)> {
    if let Some(rule) = &spec.topology {
        rule.check(tiers).map_err(|fault| (None, fault))?;
    }
    let hard = spec.topology.as_ref().filter(|rule| rule.is_hard());
    let of_job = hard.and_then(|rule| Some((rule.widest(tiers)?, rule.tier.as_ref()?)));
    for (group, tasks) in (0..).zip(&spec.tasks) {
        let Some(rule) = &tasks.topology else { continue };
        rule.check(tiers).map_err(|fault| (Some(group), fault))?;
        if let (Some((widest, of_job)), Some(tier)) = (of_job, &rule.tier)
            && rule.widest(tiers) > Some(widest)
        {
            let fault = RuleFault::Wider { tier: Arc::clone(tier), of_job: Arc::clone(of_job) };
            return Err((Some(group), fault));
        }
    }
    Ok(())
}

impl Jobs {
    /// Sets the tiers that jobs may name from now on, from the narrowest to the widest.
    pub(crate) fn set_tiers(&mut self, tiers: Vec<TopologyTier>) {
        self.tiers = tiers;
    }

    /// Checks the rules of a job about domains.
    pub(super) fn check_topology(&self, spec: &JobSpec) -> Result<(), JobError> {
        let job = || Arc::clone(&spec.name);
        check_rules(spec, &self.tiers).map_err(|(group, fault)| JobError::Topology {
            job: job(),
            group,
            fault,
        })
    }
}

impl JobSpec {
    /// Returns whether it, or a task group of it, says in which domains its tasks are to be.
    #[must_use]
    pub fn has_topology(&self) -> bool {
        self.topology.is_some() || self.tasks.iter().any(|group| group.topology.is_some())
    }

    /// Returns whether it, or a task group of it, has a rule that must be kept.
    #[must_use]
    pub fn has_hard_topology(&self) -> bool {
        let rules = self.tasks.iter().map(|group| &group.topology);
        std::iter::once(&self.topology).chain(rules).flatten().any(TopologyRule::is_hard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::TaskGroup;
    use crate::request::{PlacementRequest, Policy};
    use crate::resource::Demand;

    fn tiers(names: &[&str]) -> Vec<TopologyTier> {
        names.iter().map(|name| TopologyTier::labelled(name, &format!("l/{name}"))).collect()
    }

    fn job(of_job: Option<TopologyRule>, of_group: Option<TopologyRule>) -> JobSpec {
        let request = PlacementRequest::new(Demand::default(), Policy::BestFit);
        let group = TaskGroup { topology: of_group, ..TaskGroup::new(request, 2) };
        JobSpec { topology: of_job, ..JobSpec::new("j", vec![group]) }
    }

    #[test]
    fn tiers_have_names_and_labels_of_their_own() {
        assert_eq!(check_tiers(&tiers(&["host", "rack", "zone"])), Ok(()));
        assert_eq!(check_tiers(&tiers(&["rack", "rack"])), Err(TiersFault::NameTwice("rack".into())));
        let mut same = tiers(&["rack", "zone"]);
        same[1].label = Some("l/rack".into());
        assert_eq!(check_tiers(&same), Err(TiersFault::LabelTwice("l/rack".into())));
        assert_eq!(check_tiers(&tiers(&["rack", ""])), Err(TiersFault::Name(1)));
        same[1].label = Some("".into());
        assert_eq!(check_tiers(&same), Err(TiersFault::Name(1)));
        // Two tiers without labels have not the same one.
        same.iter_mut().for_each(|tier| tier.label = None);
        assert_eq!(check_tiers(&same), Ok(()));
        let names: Vec<String> = (0..=TOPOLOGY_TIERS_MAX).map(|number| format!("t{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(check_tiers(&tiers(&names)), Err(TiersFault::TooMany(TOPOLOGY_TIERS_MAX + 1)));
        assert_eq!(check_tiers(&tiers(&names[1..])), Ok(()));
    }

    #[test]
    fn rules_name_tiers_that_there_are_and_nest() {
        let there = tiers(&["host", "rack", "zone"]);
        let fault = |of_job, of_group| check_rules(&job(of_job, of_group), &there).unwrap_err();
        let hard = |tier: &str| Some(TopologyRule::hard(tier));
        assert_eq!(check_rules(&job(hard("rack"), hard("host")), &there), Ok(()));
        assert_eq!(check_rules(&job(hard("rack"), hard("rack")), &there), Ok(()));
        assert_eq!(check_rules(&job(None, hard("zone")), &there), Ok(()));
        assert_eq!(check_rules(&job(Some(TopologyRule::soft(None)), hard("zone")), &there), Ok(()));
        let (group, of_row) = fault(hard("row"), None);
        assert!(group.is_none() && of_row.to_string().contains("name one of host, rack, zone"), "{of_row}");
        let (group, wider) = fault(hard("rack"), hard("zone"));
        assert!(group == Some(0) && wider.to_string().contains("wider than tier `rack`"), "{wider}");
        let nameless = TopologyRule { mode: TopologyMode::Hard, tier: None };
        assert!(matches!(fault(Some(nameless), None), (None, RuleFault::NoTier(_))));
        assert_eq!(check_rules(&job(hard("rack"), None), &[]), Err((None, RuleFault::NoTiers)));
        assert_eq!(check_rules(&job(None, None), &[]), Ok(()));
    }

    #[test]
    fn a_rule_of_a_task_group_counts_as_one_of_the_job() {
        let soft = Some(TopologyRule::soft(None));
        for (of_job, of_group, has, is_hard) in [
            (None, None, false, false),
            (soft.clone(), None, true, false),
            (None, soft.clone(), true, false),
            (soft, Some(TopologyRule::hard("rack")), true, true),
        ] {
            let spec = job(of_job, of_group);
            assert_eq!((spec.has_topology(), spec.has_hard_topology()), (has, is_hard));
        }
    }
}
