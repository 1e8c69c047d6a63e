//! Scenario files as they are written.
//!
//! Names that refer to something keep their line, so that an error says where it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use serde_saphyr::Spanned;

use crate::class_file::ClassesFile;
use crate::cycle_file::ConfigFile;
use crate::job_file::{AmountsFile, JobFile, Name, Nanos, QueueFile};
use crate::plan_file::{AskFile, AutoscalingFile, NodeFile};

/// What domains lack for a job.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LackFile {
    pub(super) tier: String,
    /// The domain with room for most tasks.
    pub(super) best: Option<String>,
    pub(super) holds: u32,
    pub(super) needed: u32,
}

/// One scenario.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScenarioFile {
    pub(super) name: String,
    /// The public test or document whose case it follows.
    #[serde(default)]
    pub(super) follows: Option<String>,
    /// Where the service differs from what it follows, and why.
    #[serde(default)]
    pub(super) differs: Option<String>,
    #[serde(default)]
    pub(super) config: ConfigFile,
    #[serde(default)]
    pub(super) priority_classes: ClassesFile,
    #[serde(default)]
    pub(super) nodes: Vec<NodeFile>,
    #[serde(default)]
    pub(super) queues: Vec<QueueFile>,
    #[serde(default)]
    pub(super) jobs: Vec<JobFile>,
    /// The types of nodes for the steps that plan.
    #[serde(default)]
    pub(super) autoscaling: Option<Spanned<AutoscalingFile>>,
    pub(super) steps: Vec<StepFile>,
}

/// Nodes, queues and jobs.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Objects {
    #[serde(default)]
    pub(super) nodes: Vec<NodeFile>,
    #[serde(default)]
    pub(super) queues: Vec<QueueFile>,
    #[serde(default)]
    pub(super) jobs: Vec<JobFile>,
}

/// One step. It does one thing, and may expect something of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StepFile {
    /// Runs as many cycles.
    #[serde(default)]
    pub(super) cycle: Option<u32>,
    #[serde(default)]
    pub(super) add: Option<Objects>,
    /// Tasks that end well.
    #[serde(default)]
    pub(super) finish: Option<Vec<Name>>,
    /// Tasks that end with an error.
    #[serde(default)]
    pub(super) fail: Option<Vec<Name>>,
    /// The exit code of the tasks in `fail`.
    #[serde(default)]
    pub(super) exit_code: Option<i32>,
    /// Tasks that are evicted, by somebody else than a cycle.
    #[serde(default)]
    pub(super) evict: Option<Vec<Name>>,
    /// Lets time pass.
    #[serde(default)]
    pub(super) advance: Option<Nanos>,
    /// Plans nodes, after all else.
    #[serde(default)]
    pub(super) plan: Option<Spanned<AskFile>>,
    #[serde(default)]
    pub(super) expect: Option<Spanned<ExpectFile>>,
}

/// What a step must have led to. What is not named is not checked.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpectFile {
    /// All tasks that the step bound, each with its node or the nodes that would do.
    #[serde(default)]
    pub(super) bound: Option<BTreeMap<String, Choice>>,
    #[serde(default)]
    pub(super) bound_count: Option<usize>,
    /// How many tasks of each of these jobs the step bound.
    #[serde(default)]
    pub(super) bound_of: BTreeMap<String, usize>,
    /// All tasks that got a claim.
    #[serde(default)]
    pub(super) pipelined: Option<BTreeMap<String, Choice>>,
    #[serde(default)]
    pub(super) pipelined_count: Option<usize>,
    #[serde(default)]
    pub(super) pipelined_of: BTreeMap<String, usize>,
    /// How often job policies have restarted these jobs, or tasks of them.
    #[serde(default)]
    pub(super) restarts: BTreeMap<String, u32>,
    /// All tasks that the step evicted.
    #[serde(default)]
    pub(super) evicted: Option<Vec<String>>,
    #[serde(default)]
    pub(super) evicted_count: Option<usize>,
    #[serde(default)]
    pub(super) evicted_of: BTreeMap<String, usize>,
    /// The state of tasks after the step.
    #[serde(default)]
    pub(super) states: BTreeMap<String, String>,
    /// How many tasks of each of these jobs have a node that they keep, after the step.
    #[serde(default)]
    pub(super) placed: BTreeMap<String, u32>,
    /// All jobs with dated reservations after the step, each with the date.
    #[serde(default)]
    pub(super) reserved: Option<BTreeMap<String, Nanos>>,
    /// The nodes of the reservations of these jobs.
    #[serde(default)]
    pub(super) reserved_nodes: BTreeMap<String, BTreeSet<String>>,
    /// The phase of jobs after the step.
    #[serde(default)]
    pub(super) jobs: BTreeMap<String, String>,
    /// What queues deserve, as of the last cycle.
    #[serde(default)]
    pub(super) deserved: BTreeMap<String, AmountsFile>,
    /// What queues use, after the step: held or claimed.
    #[serde(default)]
    pub(super) used: BTreeMap<String, AmountsFile>,
    /// What queues have held on average, after the step.
    #[serde(default)]
    pub(super) past: BTreeMap<String, AmountsFile>,
    /// What users of these queues have held on average, after the step. `-` are the jobs that name no user.
    #[serde(default)]
    pub(super) past_of_users: BTreeMap<String, BTreeMap<String, AmountsFile>>,
    /// The fair shares of queues by YARN's computation, over the queues that ask for something.
    #[serde(default)]
    pub(super) fair_share: BTreeMap<String, AmountsFile>,
    /// The same over all queues.
    #[serde(default)]
    pub(super) steady_fair_share: BTreeMap<String, AmountsFile>,
    /// The fair shares of jobs in those of their queues.
    #[serde(default)]
    pub(super) job_fair_share: BTreeMap<String, AmountsFile>,
    /// All jobs that starved in the last cycle, with how much.
    #[serde(default)]
    pub(super) starving: Option<BTreeMap<String, AmountsFile>>,
    /// Why these jobs or tasks wait, as of the last cycle.
    #[serde(default)]
    pub(super) reason: BTreeMap<String, String>,
    /// The domains of the nodes of these tasks after the step: their values in all tiers, the widest first.
    #[serde(default)]
    pub(super) domains: BTreeMap<String, String>,
    /// What domains lack for these jobs, as of the last cycle.
    #[serde(default)]
    pub(super) lacks: BTreeMap<String, LackFile>,
    /// By which rules these jobs starved in the last cycle.
    #[serde(default)]
    pub(super) starving_by: BTreeMap<String, StarvingFile>,
    /// The nodes of each type to launch now. Types of which there are none are not named.
    #[serde(default)]
    pub(super) launch: Option<BTreeMap<String, u32>>,
    /// The nodes of each type that are needed.
    #[serde(default)]
    pub(super) needed: Option<BTreeMap<String, u32>>,
    /// The launches of each type to cancel.
    #[serde(default)]
    pub(super) cancel: Option<BTreeMap<String, u32>>,
    /// All nodes to remove, in order.
    #[serde(default)]
    pub(super) remove: Option<Vec<String>>,
    /// All jobs, groups and floors that get no node or not enough, each with the last reason.
    #[serde(default)]
    pub(super) unplaced: Option<BTreeMap<String, String>>,
    /// All jobs that would start if the needed nodes came, each with how long from now.
    #[serde(default)]
    pub(super) starts: Option<BTreeMap<String, Nanos>>,
    /// All jobs that would not start.
    #[serde(default)]
    pub(super) waiting: Option<Vec<String>>,
}

/// The rule by which a job starves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum StarvingFile {
    FairShare,
    Guarantee,
    Both,
}

/// One node, or several of which any will do.
#[derive(Clone, Debug)]
pub(super) struct Choice(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for Choice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany;
        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Choice;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a node, or a list of names")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Choice, E> {
                Ok(Choice(vec![text.to_owned()]))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut names: A) -> Result<Choice, A::Error> {
                let mut choice = Vec::new();
                while let Some(name) = names.next_element()? {
                    choice.push(name);
                }
                Ok(Choice(choice))
            }
        }
        deserializer.deserialize_any(OneOrMany)
    }
}
