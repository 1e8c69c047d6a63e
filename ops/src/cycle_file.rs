//! The settings of scheduling cycles as files describe them: the `config` of scenarios, and the setting `jobs`.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use serde_json::Value;
use serde_saphyr::{Location, Spanned};
use wharf_core::cycle::{
    Action, Backfill, Combination, CycleConfig, CycleConfigError, Decision, PluginConfig, PluginKind,
};
use wharf_core::jobs::{DomainFault, TopologyDomain, TopologyTier, check_domains, check_tiers};
use wharf_core::node::Labels;

use crate::job_file::{Name, Nanos, Quantity, bounded, part};
use crate::line_error::{LineError, documents};

/// The grace period of evicted tasks if none is given, as in Kubernetes.
pub(crate) const GRACE_NS: u64 = 30_000_000_000;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConfigFile {
    pub(crate) actions: Option<Vec<Name>>,
    pub(crate) tiers: Option<Vec<Vec<PluginFile>>>,
    #[serde(alias = "compat")]
    pub(crate) combination: Option<CombinationFile>,
    pub(crate) grace: Option<Spanned<Nanos>>,
    pub(crate) backfill: Option<Name>,
    pub(crate) min_run_time: Option<Spanned<Nanos>>,
    pub(crate) usage_half_life: Option<Spanned<Nanos>>,
    #[serde(default)]
    pub(crate) topology: Vec<TierFile>,
    #[serde(default)]
    pub(crate) domains: Vec<DomainFile>,
    pub(crate) policy: Option<Name>,
    pub(crate) seed: Option<u64>,
}

/// A tier of the topology.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TierFile {
    pub(crate) tier: Name,
    pub(crate) label: Option<Name>,
}

/// A domain of the topology.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DomainFile {
    pub(crate) tier: Name,
    pub(crate) name: Name,
    #[serde(default)]
    pub(crate) nodes: Vec<String>,
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) domains: Vec<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CombinationFile {
    Strict,
    Volcano,
}

/// A plugin: its name, or an object with its settings.
#[derive(Debug)]
pub(crate) struct PluginFile(pub(crate) Spanned<PluginSettings>);

#[derive(Debug, Default)]
pub(crate) struct PluginSettings {
    pub(crate) plugin: String,
    pub(crate) without: Vec<String>,
    pub(crate) only: Vec<String>,
    pub(crate) overcommit_percent: Option<u32>,
    pub(crate) whole: bool,
    pub(crate) hierarchical: bool,
    pub(crate) wait: Option<Nanos>,
    pub(crate) utilization_above: Option<Quantity>,
    pub(crate) recheck: Option<Nanos>,
    /// The settings that were named.
    named: Vec<String>,
}

/// The settings that all plugins know.
const OF_ALL: [&str; 3] = ["plugin", "without", "only"];

/// Returns the settings that only one plugin knows.
fn own_settings(kind: PluginKind) -> &'static [&'static str] {
    match kind {
        PluginKind::Gang => &["whole"],
        PluginKind::Drf => &["hierarchical"],
        PluginKind::FairShare => &["utilization_above", "recheck"],
        PluginKind::Overcommit => &["overcommit_percent"],
        PluginKind::Sla => &["wait"],
        PluginKind::Priority
        | PluginKind::Conformance
        | PluginKind::Proportion
        | PluginKind::Capacity
        | PluginKind::Usage => &[],
    }
}

/// Returns what is wrong with a setting at a plugin: it has none of this name. A plugin that nobody knows is not its
/// concern.
fn foreign_setting(plugin: &str, setting: &str) -> Option<String> {
    let kind = PluginKind::named(plugin)?;
    let known: Vec<&str> = OF_ALL.iter().chain(own_settings(kind)).copied().collect();
    if known.contains(&setting) {
        return None;
    }
    let owner = PluginKind::ALL.into_iter().find(|&kind| own_settings(kind).contains(&setting));
    let has_it = owner.map_or_else(String::new, |owner| format!(", plugin `{}` has", owner.name()));
    let known = known.join(", ");
    Some(format!("plugin `{plugin}` has no setting `{setting}`{has_it}: `{plugin}` has {known}"))
}

/// Returns what is wrong with a plugin, given as JSON: the name, a setting or its value.
pub(crate) fn plugin_fault(given: &Value) -> Option<String> {
    let named = given.get("plugin").and_then(Value::as_str).zip(given.as_object());
    let foreign =
        named.and_then(|(name, settings)| settings.keys().find_map(|key| foreign_setting(name, key)));
    foreign.or_else(|| {
        let read = documents::<PluginFile>(&given.to_string());
        let checked = read.and_then(|all| all.iter().try_for_each(|file| plugin(file).map(drop)));
        checked.err().map(|error| error.message)
    })
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
                    "whole",
                    "hierarchical",
                    "wait",
                    "utilization_above",
                    "recheck",
                ];
                let mut settings = PluginSettings::default();
                while let Some(key) = map.next_key::<String>()? {
                    settings.named.push(key.clone());
                    match key.as_str() {
                        "plugin" => settings.plugin = map.next_value()?,
                        "without" => settings.without = map.next_value()?,
                        "only" => settings.only = map.next_value()?,
                        "overcommit_percent" => settings.overcommit_percent = Some(map.next_value()?),
                        "whole" => settings.whole = map.next_value()?,
                        "hierarchical" => settings.hierarchical = map.next_value()?,
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

/// Returns the settings of cycles.
pub(crate) fn cycle_config(file: &ConfigFile) -> Result<CycleConfig, LineError> {
    let mut config = CycleConfig { grace_ns: GRACE_NS, ..CycleConfig::default() };
    let mut of_actions = Location::UNKNOWN;
    if let Some(actions) = &file.actions {
        config.actions.clear();
        for name in actions {
            let place = name.referenced;
            of_actions = place;
            let action = Action::named(&name.value).ok_or_else(|| {
                let known = Action::ALL.map(Action::name).join(", ");
                LineError::at(place, format!("there is no action `{}`: name one of {known}", name.value))
            })?;
            config.actions.push(action);
        }
    }
    let mut of_tiers = of_actions;
    if let Some(tiers) = &file.tiers {
        of_tiers = tiers.iter().flatten().next().map_or(of_tiers, |plugin| plugin.0.referenced);
        config.tiers =
            tiers.iter().map(|tier| tier.iter().map(plugin).collect()).collect::<Result<_, _>>()?;
    }
    config.combination = match file.combination {
        Some(CombinationFile::Volcano) => Combination::Volcano,
        Some(CombinationFile::Strict) | None => Combination::Strict,
    };
    config.grace_ns = time(file.grace.as_ref(), "grace")?.unwrap_or(config.grace_ns);
    config.min_run_time_ns = time(file.min_run_time.as_ref(), "min_run_time")?.unwrap_or_default();
    let half_life = file.usage_half_life.as_ref();
    config.usage_half_life_ns = time(half_life, "usage_half_life")?.unwrap_or_default();
    if let Some(name) = &file.backfill {
        config.backfill = Backfill::named(&name.value).ok_or_else(|| {
            let known = Backfill::ALL.map(Backfill::name).join(", ");
            let message = format!("there is no backfill `{}`: name one of {known}", name.value);
            LineError::at(name.referenced, message)
        })?;
    }
    config.topology = tiers(&file.topology)?;
    config.domains = domains(&file.domains, &file.topology, &config.topology)?;
    config.check().map_err(|error| {
        let place = match &error {
            CycleConfigError::NoActions
            | CycleConfigError::ActionTwice(_)
            | CycleConfigError::TwoEvictors(..)
            | CycleConfigError::NoFairShare => of_actions,
            CycleConfigError::NoUsage => half_life.map_or(of_tiers, |of| of.referenced),
            CycleConfigError::PluginTwice(_)
            | CycleConfigError::Contradiction(..)
            | CycleConfigError::NoVictimNodes
            | CycleConfigError::Topology(_)
            | CycleConfigError::Domains(_) => of_tiers,
        };
        LineError::at(place, error.to_string())
    })?;
    Ok(config)
}

/// Returns a time in ns. A fault is told with its line.
fn time(given: Option<&Spanned<Nanos>>, field: &str) -> Result<Option<u64>, LineError> {
    let Some(given) = given else { return Ok(None) };
    bounded(Some(given.value), field, given.referenced)
}

/// Returns the tiers of the topology. A fault is told with the line of the tier.
fn tiers(file: &[TierFile]) -> Result<Vec<TopologyTier>, LineError> {
    let mut tiers: Vec<TopologyTier> = Vec::new();
    for TierFile { tier, label } in file {
        let label = label.as_ref().map(|label| label.value.as_str().into());
        tiers.push(TopologyTier { name: tier.value.as_str().into(), label });
        check_tiers(&tiers).map_err(|fault| LineError::at(tier.referenced, fault.to_string()))?;
    }
    Ok(tiers)
}

/// Returns the domains of the topology. A fault is told with the line of the domain, or of the tier that has none.
fn domains(
    file: &[DomainFile],
    of_tiers: &[TierFile],
    tiers: &[TopologyTier],
) -> Result<Vec<TopologyDomain>, LineError> {
    let texts = |all: &[String]| all.iter().map(|text| text.as_str().into()).collect();
    let domain = |of: &DomainFile| {
        let pairs = of.labels.iter().map(|(key, value)| (key.as_str().into(), value.as_str().into()));
        let labels = Labels::new(pairs.collect());
        TopologyDomain {
            nodes: texts(&of.nodes),
            labels: labels.expect("a map has each key once"),
            domains: texts(&of.domains),
            ..TopologyDomain::new(&of.tier.value, &of.name.value)
        }
    };
    let domains: Vec<TopologyDomain> = file.iter().map(domain).collect();
    check_domains(tiers, &domains).map_err(|(at, fault)| {
        let place = match (&fault, at) {
            (DomainFault::Undefined(name), _) => {
                of_tiers.iter().map(|tier| &tier.tier).find(|tier| tier.value == **name)
            }
            (_, at) => at.map(|at| &file[at].name),
        };
        LineError::at(place.map_or(Location::UNKNOWN, |place| place.referenced), fault.to_string())
    })?;
    Ok(domains)
}

/// Plugins of Volcano that there are not, each with what takes its place.
const REPLACED: [(&str, &str); 5] = [
    ("predicates", "what a task asks for, selectors and taints are always checked"),
    ("nodeorder", "nodes are ordered by the `policy` of each task, such as `least-fit` or `best-fit`"),
    ("binpack", "the `policy` of each task says whether nodes are packed (`best-fit`) or not (`least-fit`)"),
    ("network-topology-aware", "jobs with a `topology` are always placed by it"),
    ("deviceshare", "parts of GPUs are always counted"),
];

fn plugin(file: &PluginFile) -> Result<PluginConfig, LineError> {
    let place = file.0.referenced;
    let settings = &file.0.value;
    let kind = PluginKind::named(&settings.plugin).ok_or_else(|| {
        let name = &settings.plugin;
        let replaced = REPLACED.iter().find(|(plugin, _)| plugin == name);
        let remedy = replaced.map_or_else(
            || format!("name one of {}", PluginKind::ALL.map(PluginKind::name).join(", ")),
            |(_, instead)| format!("leave it out, since {instead}"),
        );
        LineError::at(place, format!("there is no plugin `{name}`: {remedy}"))
    })?;
    if let Some(message) = settings.named.iter().find_map(|name| foreign_setting(kind.name(), name)) {
        return Err(LineError::at(place, message));
    }
    let decision = |name: &String| {
        Decision::named(name).ok_or_else(|| {
            let known = Decision::ALL.map(Decision::name).join(", ");
            LineError::at(place, format!("there is no decision `{name}`: name one of {known}"))
        })
    };
    let mut config = PluginConfig::new(kind);
    for name in &settings.without {
        config = config.without(decision(name)?);
    }
    if !settings.only.is_empty() {
        let only: Vec<Decision> = settings.only.iter().map(decision).collect::<Result<_, _>>()?;
        for other in Decision::ALL.into_iter().filter(|decision| !only.contains(decision)) {
            config = config.without(other);
        }
    }
    config.overcommit_percent = settings.overcommit_percent.unwrap_or(config.overcommit_percent);
    config.whole_gangs = settings.whole;
    config.hierarchical = settings.hierarchical;
    config.wait_ns = bounded(settings.wait, "wait", place)?;
    let above = part(settings.utilization_above, "utilization_above", place)?;
    config.utilization_above = above.unwrap_or(config.utilization_above);
    config.recheck_ns = bounded(settings.recheck, "recheck", place)?.unwrap_or(config.recheck_ns);
    Ok(config)
}
