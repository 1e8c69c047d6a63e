//! Queues and jobs as files describe them: those of `wharf queue set` and `wharf job submit`, and scenarios.
//!
//! Names that refer to something keep their line, so that an error says where it is.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use serde_saphyr::{Location, Spanned};
use wharf_core::jobs::{JobPolicy, ParseTaskEventError, PolicyAction, TaskEvent, TopologyMode, TopologyRule};
use wharf_core::limits::{JOB_MAX_RETRY_DEFAULT, USER_BYTES_MAX};
use wharf_core::resource::Amount;

use crate::class_file::ClassesFile;
use crate::line_error::LineError;
use crate::terms::{SelectorFile, TolerationFile};
use crate::units;

/// The largest time in a file, in ns.
pub(crate) const TIME_MAX_NS: u64 = 100_000 * 3_600 * 1_000_000_000;

/// A name with its line.
pub(crate) type Name = Spanned<String>;

pub(crate) fn one() -> u32 {
    1
}

/// Amounts by resource.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AmountsFile {
    #[serde(default)]
    pub(crate) cpu: Option<Quantity>,
    #[serde(default)]
    pub(crate) memory: Option<Memory>,
    #[serde(default)]
    pub(crate) gpu: Option<Quantity>,
    #[serde(default)]
    pub(crate) resources: BTreeMap<String, Quantity>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QueueFile {
    pub(crate) name: Name,
    #[serde(default)]
    pub(crate) parent: Option<Name>,
    /// The number of the tenant that may submit jobs to it. Not in scenarios.
    #[serde(default, deserialize_with = "whole::tenant")]
    pub(crate) tenant: Option<u16>,
    #[serde(default = "one", deserialize_with = "whole::weight")]
    pub(crate) weight: u32,
    #[serde(default)]
    pub(crate) guarantee: AmountsFile,
    #[serde(default)]
    pub(crate) deserved: Option<AmountsFile>,
    #[serde(default)]
    pub(crate) capability: AmountsFile,
    #[serde(default, deserialize_with = "whole::priority")]
    pub(crate) priority: i32,
    #[serde(default = "yes")]
    pub(crate) reclaimable: bool,
    #[serde(default = "yes")]
    pub(crate) open: bool,
    #[serde(default)]
    pub(crate) ordering: Option<OrderingFile>,
    #[serde(default)]
    pub(crate) starves_below: Option<Quantity>,
    #[serde(default)]
    pub(crate) fair_share_patience: Option<Nanos>,
    #[serde(default)]
    pub(crate) guarantee_patience: Option<Nanos>,
    #[serde(default)]
    pub(crate) min_run_time: Option<Nanos>,
    #[serde(default)]
    pub(crate) usage_half_life: Option<Nanos>,
    #[serde(default, deserialize_with = "whole::allocations_max")]
    pub(crate) allocations_max: Option<u32>,
}

pub(crate) fn yes() -> bool {
    true
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OrderingFile {
    Fifo,
    Fair,
    #[default]
    Drf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JobFile {
    pub(crate) name: Name,
    /// It may be left out if the settings of the service say to which queue the job goes then, and not in scenarios.
    #[serde(default)]
    pub(crate) queue: Option<Name>,
    /// The user in the queue for whom it counts.
    #[serde(default)]
    pub(crate) user: Option<Name>,
    #[serde(default, deserialize_with = "whole::min_member")]
    pub(crate) min_member: u32,
    #[serde(default)]
    pub(crate) min_resources: Option<AmountsFile>,
    #[serde(default)]
    pub(crate) roles: BTreeMap<String, u32>,
    #[serde(default)]
    pub(crate) priority: Option<PriorityFile>,
    #[serde(default = "yes")]
    pub(crate) preempts: bool,
    #[serde(default = "yes")]
    pub(crate) preemptable: bool,
    /// Only in scenarios.
    #[serde(default)]
    pub(crate) phase: Option<PhaseFile>,
    /// How long each of its tasks may run.
    #[serde(default)]
    pub(crate) run_time: Option<Nanos>,
    #[serde(default)]
    pub(crate) policies: Vec<PolicyFile>,
    #[serde(default, deserialize_with = "whole::min_success")]
    pub(crate) min_success: Option<u32>,
    #[serde(default = "max_retry", deserialize_with = "whole::max_retry")]
    pub(crate) max_retry: u32,
    /// How long it waits before it comes first by the plugin `sla`.
    #[serde(default)]
    pub(crate) wait: Option<Nanos>,
    #[serde(default)]
    pub(crate) topology: Option<TopologyFile>,
    pub(crate) tasks: Vec<TaskFile>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PhaseFile {
    Pending,
    Inqueue,
}

/// A priority: the name of a class, or a number.
#[derive(Clone, Debug)]
pub(crate) enum PriorityFile {
    Class(String),
    Number(i32),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TaskFile {
    pub(crate) name: Name,
    #[serde(default = "one", deserialize_with = "whole::count")]
    pub(crate) count: u32,
    #[serde(default)]
    pub(crate) cpu: Option<Quantity>,
    #[serde(default)]
    pub(crate) memory: Option<Memory>,
    #[serde(default)]
    pub(crate) gpu: Option<Quantity>,
    #[serde(default)]
    pub(crate) resources: BTreeMap<String, Quantity>,
    #[serde(default)]
    pub(crate) role: Option<String>,
    #[serde(default)]
    pub(crate) priority: Option<PriorityFile>,
    #[serde(default)]
    pub(crate) preemptable: Option<bool>,
    #[serde(default)]
    pub(crate) master: bool,
    #[serde(default)]
    pub(crate) selector: SelectorFile,
    #[serde(default)]
    pub(crate) tolerations: Vec<TolerationFile>,
    #[serde(default)]
    pub(crate) policy: Option<String>,
    /// How long each of them may run, if not as the job says.
    #[serde(default)]
    pub(crate) run_time: Option<Nanos>,
    /// They come before those of the job.
    #[serde(default)]
    pub(crate) policies: Vec<PolicyFile>,
    /// Within that of the job.
    #[serde(default)]
    pub(crate) topology: Option<TopologyFile>,
    /// Only in scenarios.
    #[serde(default)]
    pub(crate) state: Option<StateFile>,
    /// Only in scenarios.
    #[serde(default)]
    pub(crate) node: Option<String>,
}

fn max_retry() -> u32 {
    JOB_MAX_RETRY_DEFAULT
}

/// In which domains tasks are to be.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopologyFile {
    pub(crate) mode: Name,
    #[serde(default)]
    pub(crate) tier: Option<Name>,
}

/// Returns a rule about domains as the engine takes it. Whether there is such a tier is known when the job is submitted.
pub(crate) fn topology(file: Option<&TopologyFile>) -> Result<Option<TopologyRule>, LineError> {
    let Some(TopologyFile { mode, tier }) = file else { return Ok(None) };
    let known = TopologyMode::named(&mode.value).ok_or_else(|| {
        let message = format!("there is no mode `{}` of a topology: give hard or soft", mode.value);
        LineError::at(mode.referenced, message)
    })?;
    if let Some(empty) = tier.as_ref().filter(|tier| tier.value.is_empty()) {
        return Err(LineError::at(empty.referenced, "`tier` is empty: name a tier, or leave it out"));
    }
    if known == TopologyMode::Hard && tier.is_none() {
        let message = "a hard topology needs a `tier`: name the widest tier of which one domain will do";
        return Err(LineError::at(mode.referenced, message));
    }
    Ok(Some(TopologyRule { mode: known, tier: tier.as_ref().map(|tier| tier.value.as_str().into()) }))
}

/// A job policy. As in Volcano, `event` names one event and `events` several.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PolicyFile {
    #[serde(default)]
    pub(crate) event: Option<Name>,
    #[serde(default)]
    pub(crate) events: Vec<Name>,
    pub(crate) action: Name,
    #[serde(default)]
    pub(crate) exit_code: Option<i32>,
    /// How long the event must have lasted.
    #[serde(default)]
    pub(crate) timeout: Option<Nanos>,
}

/// Returns job policies as the engine takes them.
pub(crate) fn policies(file: &[PolicyFile]) -> Result<Vec<JobPolicy>, LineError> {
    let policy = |file: &PolicyFile| {
        let names = file.event.iter().chain(&file.events);
        let event = |name: &Name| {
            let event: Result<TaskEvent, ParseTaskEventError> = name.value.parse();
            event.map_err(|error| LineError::at(name.referenced, error.to_string()))
        };
        let events: Vec<TaskEvent> = names.map(event).collect::<Result<_, _>>()?;
        let name = &file.action;
        let action: Result<PolicyAction, _> = name.value.parse();
        let action = action.map_err(|error| LineError::at(name.referenced, error.to_string()))?;
        let timeout_ns = bounded(file.timeout, "timeout", name.referenced)?;
        Ok(JobPolicy { events, action, exit_code: file.exit_code, timeout_ns })
    };
    file.iter().map(policy).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StateFile {
    Pending,
    Bound,
    Running,
    Releasing,
    Succeeded,
    Failed,
}

/// An amount.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quantity(pub(crate) Amount);

/// An amount of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory(pub(crate) Amount);

/// A time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nanos(pub(crate) u64);

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

/// Whole numbers by field, so that a wrong one is told with its field and its range.
mod whole {
    use std::fmt;
    use std::ops::RangeInclusive;
    use std::str::FromStr;

    use serde::Deserialize;
    use serde::de::{self, Deserializer};

    use super::scalar;

    /// A number or a text.
    struct Written(String);

    impl<'de> Deserialize<'de> for Written {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            scalar(deserializer).map(Self)
        }
    }

    /// Returns the number of a text, or a fault with the field and its range.
    fn number<N: FromStr + fmt::Display, E: de::Error>(
        field: &str,
        Written(text): &Written,
        range: RangeInclusive<N>,
    ) -> Result<N, E> {
        text.parse().map_err(|_| {
            let least = range.start();
            let most = range.end();
            E::custom(format!(
                "`{field}` is {text}: give a whole number from {least} to {most}, or leave it out"
            ))
        })
    }

    macro_rules! numbers {
        ($($field:ident: $number:ty = $least:expr),*) => {$(
            pub(super) fn $field<'de, D: Deserializer<'de>>(from: D) -> Result<$number, D::Error> {
                number(stringify!($field), &Written::deserialize(from)?, $least..=<$number>::MAX)
            }
        )*};
    }

    macro_rules! given_numbers {
        ($($field:ident: $number:ty),*) => {$(
            pub(super) fn $field<'de, D: Deserializer<'de>>(from: D) -> Result<Option<$number>, D::Error> {
                let given = Option::<Written>::deserialize(from)?;
                let range = <$number>::MIN..=<$number>::MAX;
                given.map(|given| number(stringify!($field), &given, range)).transpose()
            }
        )*};
    }

    // A weight of 0 is a number, and told with its queue by the rules for queues.
    numbers!(weight: u32 = 1, priority: i32 = i32::MIN, min_member: u32 = 0, max_retry: u32 = 0, count: u32 = 0);
    given_numbers!(tenant: u16, allocations_max: u32, min_success: u32);
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

impl TaskFile {
    pub(crate) fn amounts(&self) -> AmountsFile {
        AmountsFile { cpu: self.cpu, memory: self.memory, gpu: self.gpu, resources: self.resources.clone() }
    }
}

/// Returns a time in ns that is not longer than a scenario may take.
pub(crate) fn bounded(time: Option<Nanos>, field: &str, place: Location) -> Result<Option<u64>, LineError> {
    let Some(time) = time else { return Ok(None) };
    if time.0 > TIME_MAX_NS {
        let message = format!("`{field}` is more than 100,000 hours: give a shorter time");
        return Err(LineError::at(place, message));
    }
    Ok(Some(time.0))
}

/// Returns a part of a whole, in 1/10,000.
pub(crate) fn part(
    quantity: Option<Quantity>,
    field: &str,
    place: Location,
) -> Result<Option<u32>, LineError> {
    let Some(quantity) = quantity else { return Ok(None) };
    let units = u32::try_from(quantity.0.units()).map_err(|_| {
        let message = format!("`{field}` is {}: give a part of the whole, such as 0.5", quantity.0);
        LineError::at(place, message)
    })?;
    Ok(Some(units))
}

impl JobFile {
    /// Returns the user in the queue for whom the job counts.
    pub(crate) fn user(&self) -> Result<Option<&str>, LineError> {
        let Some(user) = &self.user else { return Ok(None) };
        let bytes = user.value.len();
        if bytes == 0 || bytes > USER_BYTES_MAX || user.value.chars().any(char::is_control) {
            let message = format!(
                "`user` has {bytes} bytes: give 1 to {USER_BYTES_MAX} without control characters, or leave it out"
            );
            return Err(LineError::at(user.referenced, message));
        }
        Ok(Some(&user.value))
    }
}

/// The role of tasks that name none.
const ROLE_DEFAULT: &str = "task";

impl JobFile {
    /// Returns the roles with their least numbers of tasks, and the index of the role of each of `tasks`.
    pub(crate) fn roles(&self) -> (Vec<(String, u32)>, Vec<u32>) {
        let mut roles: Vec<(String, u32)> =
            self.roles.iter().map(|(name, &least)| (name.clone(), least)).collect();
        let mut number = |task: &TaskFile| {
            let role = task.role.as_deref().unwrap_or(ROLE_DEFAULT);
            let known = roles.iter().position(|(name, _)| name == role);
            let number = known.unwrap_or_else(|| {
                roles.push((role.to_owned(), 0));
                roles.len() - 1
            });
            u32::try_from(number).expect("a file has few roles")
        };
        let numbers = self.tasks.iter().map(&mut number).collect();
        (roles, numbers)
    }
}

/// Priority classes, queues and jobs to be submitted.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JobsFile {
    #[serde(default)]
    pub(crate) priority_classes: ClassesFile,
    #[serde(default)]
    pub(crate) queues: Vec<QueueFile>,
    #[serde(default)]
    pub(crate) jobs: Vec<JobFile>,
}
