//! Scenario files as they are written.
//!
//! Names that refer to something keep their line, so that an error says where it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use serde_saphyr::Spanned;
use wharf_core::resource::Amount;

use crate::units;

/// A name with its line.
pub(super) type Name = Spanned<String>;

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
    pub(super) priority_classes: BTreeMap<String, i32>,
    #[serde(default)]
    pub(super) nodes: Vec<NodeFile>,
    #[serde(default)]
    pub(super) queues: Vec<QueueFile>,
    #[serde(default)]
    pub(super) jobs: Vec<JobFile>,
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

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConfigFile {
    pub(super) actions: Option<Vec<Name>>,
    pub(super) tiers: Option<Vec<Vec<PluginFile>>>,
    pub(super) combination: Option<CombinationFile>,
    pub(super) grace: Option<Nanos>,
    pub(super) backfill: Option<Name>,
    pub(super) min_run_time: Option<Nanos>,
    pub(super) policy: Option<Name>,
    pub(super) seed: Option<u64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum CombinationFile {
    Strict,
    Volcano,
}

/// A plugin: its name, or an object with its settings.
#[derive(Debug)]
pub(super) struct PluginFile(pub(super) Spanned<PluginSettings>);

#[derive(Debug, Default)]
pub(super) struct PluginSettings {
    pub(super) plugin: String,
    pub(super) without: Vec<String>,
    pub(super) only: Vec<String>,
    pub(super) overcommit_percent: Option<u32>,
    pub(super) wait: Option<Nanos>,
    pub(super) utilization_above: Option<Quantity>,
    pub(super) recheck: Option<Nanos>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeFile {
    pub(super) name: Name,
    #[serde(default = "one")]
    pub(super) count: u32,
    #[serde(default)]
    pub(super) cpu: Option<Quantity>,
    #[serde(default)]
    pub(super) memory: Option<Memory>,
    #[serde(default)]
    pub(super) gpu: Option<Quantity>,
    #[serde(default)]
    pub(super) resources: BTreeMap<String, Quantity>,
    #[serde(default)]
    pub(super) labels: BTreeMap<String, String>,
}

fn one() -> u32 {
    1
}

/// Amounts by resource.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AmountsFile {
    #[serde(default)]
    pub(super) cpu: Option<Quantity>,
    #[serde(default)]
    pub(super) memory: Option<Memory>,
    #[serde(default)]
    pub(super) gpu: Option<Quantity>,
    #[serde(default)]
    pub(super) resources: BTreeMap<String, Quantity>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QueueFile {
    pub(super) name: Name,
    #[serde(default)]
    pub(super) parent: Option<Name>,
    #[serde(default = "one")]
    pub(super) weight: u32,
    #[serde(default)]
    pub(super) guarantee: AmountsFile,
    #[serde(default)]
    pub(super) deserved: Option<AmountsFile>,
    #[serde(default)]
    pub(super) capability: AmountsFile,
    #[serde(default)]
    pub(super) priority: i32,
    #[serde(default = "yes")]
    pub(super) reclaimable: bool,
    #[serde(default = "yes")]
    pub(super) open: bool,
    #[serde(default)]
    pub(super) ordering: OrderingFile,
    #[serde(default)]
    pub(super) starves_below: Option<Quantity>,
    #[serde(default)]
    pub(super) fair_share_patience: Option<Nanos>,
    #[serde(default)]
    pub(super) guarantee_patience: Option<Nanos>,
    #[serde(default)]
    pub(super) min_run_time: Option<Nanos>,
}

fn yes() -> bool {
    true
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum OrderingFile {
    Fifo,
    Fair,
    #[default]
    Drf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JobFile {
    pub(super) name: Name,
    pub(super) queue: Name,
    #[serde(default)]
    pub(super) min_member: u32,
    #[serde(default)]
    pub(super) min_resources: Option<AmountsFile>,
    #[serde(default)]
    pub(super) roles: BTreeMap<String, u32>,
    #[serde(default)]
    pub(super) priority: Option<PriorityFile>,
    #[serde(default = "yes")]
    pub(super) preempts: bool,
    #[serde(default = "yes")]
    pub(super) preemptable: bool,
    #[serde(default)]
    pub(super) phase: PhaseFile,
    #[serde(default)]
    pub(super) run_time: Option<Nanos>,
    pub(super) tasks: Vec<TaskFile>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum PhaseFile {
    Pending,
    #[default]
    Inqueue,
}

/// A priority: the name of a class, or a number.
#[derive(Clone, Debug)]
pub(super) enum PriorityFile {
    Class(String),
    Number(i32),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskFile {
    pub(super) name: Name,
    #[serde(default = "one")]
    pub(super) count: u32,
    #[serde(default)]
    pub(super) cpu: Option<Quantity>,
    #[serde(default)]
    pub(super) memory: Option<Memory>,
    #[serde(default)]
    pub(super) gpu: Option<Quantity>,
    #[serde(default)]
    pub(super) resources: BTreeMap<String, Quantity>,
    #[serde(default)]
    pub(super) role: Option<String>,
    #[serde(default)]
    pub(super) priority: Option<PriorityFile>,
    #[serde(default)]
    pub(super) preemptable: Option<bool>,
    #[serde(default)]
    pub(super) master: bool,
    #[serde(default)]
    pub(super) selector: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) policy: Option<String>,
    #[serde(default)]
    pub(super) run_time: Option<Nanos>,
    #[serde(default)]
    pub(super) state: StateFile,
    #[serde(default)]
    pub(super) node: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum StateFile {
    #[default]
    Pending,
    Bound,
    Running,
    Releasing,
    Succeeded,
    Failed,
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
    /// Lets time pass.
    #[serde(default)]
    pub(super) advance: Option<Nanos>,
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
    /// By which rules these jobs starved in the last cycle.
    #[serde(default)]
    pub(super) starving_by: BTreeMap<String, StarvingFile>,
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

/// An amount.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quantity(pub(super) Amount);

/// An amount of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory(pub(super) Amount);

/// A time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nanos(pub(super) u64);

/// Reads a number or a text as a text.
struct Scalar;

impl Visitor<'_> for Scalar {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or a text")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<String, E> {
        Ok(number.to_string())
    }
}

fn scalar<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    deserializer.deserialize_any(Scalar)
}

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        scalar(deserializer)?.parse().map(Self).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Memory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        units::memory(&scalar(deserializer)?).map(Self).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Nanos {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        units::duration(&scalar(deserializer)?).map(units::nanos).map(Self).map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for PriorityFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = scalar(deserializer)?;
        Ok(text.parse().map_or(Self::Class(text), Self::Number))
    }
}

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

impl<'de> Deserialize<'de> for PluginFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Spanned::deserialize(deserializer).map(Self)
    }
}

impl<'de> Deserialize<'de> for PluginSettings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrObject;
        impl<'de> Visitor<'de> for NameOrObject {
            type Value = PluginSettings;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a plugin, or an object with `plugin` and its settings")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<PluginSettings, E> {
                Ok(PluginSettings { plugin: text.to_owned(), ..PluginSettings::default() })
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<PluginSettings, A::Error> {
                const FIELDS: &[&str] = &[
                    "plugin",
                    "without",
                    "only",
                    "overcommit_percent",
                    "wait",
                    "utilization_above",
                    "recheck",
                ];
                let mut settings = PluginSettings::default();
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "plugin" => settings.plugin = map.next_value()?,
                        "without" => settings.without = map.next_value()?,
                        "only" => settings.only = map.next_value()?,
                        "overcommit_percent" => settings.overcommit_percent = Some(map.next_value()?),
                        "wait" => settings.wait = Some(map.next_value()?),
                        "utilization_above" => settings.utilization_above = Some(map.next_value()?),
                        "recheck" => settings.recheck = Some(map.next_value()?),
                        other => return Err(de::Error::unknown_field(other, FIELDS)),
                    }
                }
                if settings.plugin.is_empty() {
                    return Err(de::Error::missing_field("plugin"));
                }
                Ok(settings)
            }
        }
        deserializer.deserialize_any(NameOrObject)
    }
}

impl NodeFile {
    pub(super) fn amounts(&self) -> AmountsFile {
        AmountsFile { cpu: self.cpu, memory: self.memory, gpu: self.gpu, resources: self.resources.clone() }
    }
}

impl TaskFile {
    pub(super) fn amounts(&self) -> AmountsFile {
        AmountsFile { cpu: self.cpu, memory: self.memory, gpu: self.gpu, resources: self.resources.clone() }
    }
}
