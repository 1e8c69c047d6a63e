//! Node types, and what a plan of nodes is asked for, as files describe them: `wharf plan`, and scenarios.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};
use wharf_core::demand::Spread;
use wharf_core::limits::LAUNCHES_DEFAULT;
use wharf_core::node::Taints;
use wharf_net::convert::taints as checked_taints;

use crate::class_file::ClassesFile;
use crate::cycle_file::ConfigFile;
use crate::job_file::{AmountsFile, JobFile, Memory, Name, Nanos, Quantity, QueueFile, TIME_MAX_NS, one};
use crate::line_error::LineError;
use crate::terms::{self, SelectorFile, TolerationFile};

/// The label of a node with the name of its type, unless a file names another one.
pub(crate) const TYPE_LABEL: &str = "node-type";

/// What `wharf plan` reads: types, what is asked for, and without a service also what is there.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlanFile {
    pub(crate) autoscaling: Spanned<AutoscalingFile>,
    #[serde(default)]
    pub(crate) plan: AskFile,
    #[serde(default)]
    pub(crate) config: ConfigFile,
    #[serde(default)]
    pub(crate) priority_classes: ClassesFile,
    #[serde(default)]
    pub(crate) nodes: Vec<NodeFile>,
    #[serde(default)]
    pub(crate) queues: Vec<QueueFile>,
    #[serde(default)]
    pub(crate) jobs: Vec<JobFile>,
}

/// Equal nodes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeFile {
    pub(crate) name: Name,
    #[serde(default = "one")]
    pub(crate) count: u32,
    pub(crate) cpu: Option<Quantity>,
    pub(crate) memory: Option<Memory>,
    pub(crate) gpu: Option<Quantity>,
    #[serde(default)]
    pub(crate) resources: BTreeMap<String, Quantity>,
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    /// `KEY=VALUE:EFFECT` or `KEY:EFFECT`.
    #[serde(default)]
    pub(crate) taints: Vec<Name>,
}

/// Node types and their limits.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AutoscalingFile {
    pub(crate) node_types: Vec<NodeTypeFile>,
    pub(crate) type_label: Option<String>,
    pub(crate) nodes_max: Option<u32>,
    pub(crate) upscaling_speed: Option<Quantity>,
    #[serde(default = "launches")]
    pub(crate) launches_max: u32,
    pub(crate) idle_timeout: Option<Nanos>,
}

fn launches() -> u32 {
    LAUNCHES_DEFAULT
}

/// A type of nodes that can be launched.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeTypeFile {
    pub(crate) name: Name,
    pub(crate) cpu: Option<Quantity>,
    pub(crate) memory: Option<Memory>,
    pub(crate) gpu: Option<Quantity>,
    #[serde(default)]
    pub(crate) resources: BTreeMap<String, Quantity>,
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    /// `KEY=VALUE:EFFECT` or `KEY:EFFECT`.
    #[serde(default)]
    pub(crate) taints: Vec<Name>,
    #[serde(default)]
    pub(crate) min: u32,
    pub(crate) max: u32,
    pub(crate) launch_time: Option<Nanos>,
    pub(crate) idle_timeout: Option<Nanos>,
}

/// What one plan is asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AskFile {
    /// How many nodes of each type are being launched.
    pub(crate) launching: BTreeMap<String, u32>,
    pub(crate) floors: Vec<BundlesFile>,
    pub(crate) groups: Vec<GroupFile>,
    /// Whether groups and placements that wait at the service are counted, too. They are if nothing else is said.
    pub(crate) waiting: Option<bool>,
    /// How far into the future it is tried what starts.
    pub(crate) horizon: Option<Nanos>,
    /// How long nodes have been idle, as their agents know.
    pub(crate) idle: BTreeMap<String, Nanos>,
}

/// Equal requests.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BundlesFile {
    #[serde(default = "one")]
    pub(crate) count: u32,
    pub(crate) cpu: Option<Quantity>,
    pub(crate) memory: Option<Memory>,
    pub(crate) gpu: Option<Quantity>,
    #[serde(default)]
    pub(crate) resources: BTreeMap<String, Quantity>,
    #[serde(default)]
    pub(crate) selector: SelectorFile,
    #[serde(default)]
    pub(crate) tolerations: Vec<TolerationFile>,
}

/// A placement group that waits.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GroupFile {
    pub(crate) name: Name,
    pub(crate) bundles: Vec<BundlesFile>,
    #[serde(default)]
    pub(crate) spread: SpreadFile,
    /// The label of which all nodes of the group have the same value.
    pub(crate) domain: Option<String>,
    #[serde(default)]
    pub(crate) priority: i32,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SpreadFile {
    #[default]
    Any,
    Apart,
    Together,
}

impl SpreadFile {
    pub(crate) fn spread(self) -> Spread {
        match self {
            Self::Any => Spread::Any,
            Self::Apart => Spread::Apart,
            Self::Together => Spread::Together,
        }
    }
}

/// Returns the taints of what has them.
macro_rules! taints_of {
    ($($file:ident)*) => {$(
        impl $file {
            /// Returns the taints that its nodes have.
            pub(crate) fn taints(&self) -> Result<Taints, LineError> {
                taints(&self.taints, &self.name)
            }
        }
    )*};
}
taints_of! { NodeTypeFile NodeFile }

/// Returns the taints of nodes that are described under a name. They are read and checked as those of command lines.
fn taints(texts: &[Name], name: &Name) -> Result<Taints, LineError> {
    let read = |text: &Name| {
        let misspelt =
            |error| LineError::at(text.referenced, format!("`{}` is no taint: {error}", text.value));
        terms::taint(&text.value).map_err(misspelt)
    };
    let written = texts.iter().map(read).collect::<Result<_, _>>()?;
    checked_taints(written)
        .map_err(|fault| LineError::at(name.referenced, format!("{}: {}", fault.field, fault.message)))
}

/// Returns the amounts of what has a field for each.
macro_rules! amounts_of {
    ($($file:ident)*) => {$(
        impl $file {
            pub(crate) fn amounts(&self) -> AmountsFile {
                let Self { cpu, memory, gpu, ref resources, .. } = *self;
                AmountsFile { cpu, memory, gpu, resources: resources.clone() }
            }
        }
    )*};
}
amounts_of! { NodeTypeFile NodeFile BundlesFile }

impl AutoscalingFile {
    /// Returns the label of a node with the name of its type.
    pub(crate) fn type_label(&self) -> &str {
        self.type_label.as_deref().unwrap_or(TYPE_LABEL)
    }

    /// Returns the upscaling speed in 1/10,000.
    pub(crate) fn speed(&self) -> Result<u32, LineError> {
        let Some(speed) = self.upscaling_speed else { return Ok(10_000) };
        u32::try_from(speed.0.units()).map_err(|_| {
            let message = format!("`upscaling_speed` is {}: give a number from 0 to 100,000", speed.0);
            LineError::at(Location::UNKNOWN, message)
        })
    }

    /// Returns the number of a type.
    pub(crate) fn type_named(&self, name: &str) -> Result<usize, LineError> {
        let at = self.node_types.iter().position(|of| of.name.value == name);
        at.ok_or_else(|| {
            let message = format!("there is no node type `{name}`: add it to `node_types`");
            LineError::at(Location::UNKNOWN, message)
        })
    }
}

impl AskFile {
    /// Returns how far into the future it is tried what starts, in ns.
    pub(crate) fn horizon_ns(&self) -> Result<u64, LineError> {
        let horizon = self.horizon.map_or(0, |horizon| horizon.0);
        if horizon > TIME_MAX_NS {
            let message = "`horizon` is more than 100,000 hours: give a shorter time";
            return Err(LineError::at(Location::UNKNOWN, message));
        }
        Ok(horizon)
    }
}
