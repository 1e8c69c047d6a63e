//! The setting `jobs`: whether the service keeps queues and jobs, and what its scheduling cycles do.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use wharf_core::limits::DATE_GAP_NS_MIN;
use wharf_core::planner::JobsConfig;

use super::{ConfigError, JobsRaw, value};
use crate::cycle_file::{ConfigFile, cycle_config, plugin_fault};
use crate::line_error::{LineError, documents};
use crate::units;

/// The time between the beginnings of two cycles that may be set, in ns.
const INTERVAL_NS: RangeInclusive<u64> = 1_000_000..=60_000_000_000;

/// A plugin: its name, or a table with `plugin` and its settings.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(untagged, expecting = "expected the name of a plugin, or a table with `plugin` and its settings")]
pub enum PluginRaw {
    /// The name.
    Name(String),
    /// The name under `plugin`, and settings.
    Settings(BTreeMap<String, Value>),
}

/// Parses a list, or the same as a text in JSON: an environment variable has it so. `expected` says what else is wrong.
fn list_or_text<'de, T, D>(deserializer: D, expected: &str) -> Result<Vec<T>, D::Error>
where
    T: DeserializeOwned,
    D: Deserializer<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given<T> {
        List(Vec<T>),
        Text(String),
    }
    let wrong = |_| D::Error::custom(format_args!("expected {expected}, or the same as a text in JSON"));
    match Given::deserialize(deserializer).map_err(wrong)? {
        Given::List(list) => Ok(list),
        Given::Text(text) if text.trim().is_empty() => Ok(Vec::new()),
        Given::Text(text) => serde_json::from_str(&text).map_err(D::Error::custom),
    }
}

/// Parses tiers of plugins, or the same as a text in JSON.
pub(super) fn tiers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<PluginRaw>>, D::Error> {
    let expected = "tiers of plugins, as in [[\"priority\", \"gang\"], [\"drf\"]]";
    let tiers: Vec<Vec<PluginRaw>> = list_or_text(deserializer, expected)?;
    // Only here, the line is known.
    match tiers.iter().flatten().find_map(|plugin| plugin_fault(&json!(plugin))) {
        Some(message) => Err(D::Error::custom(message)),
        None => Ok(tiers),
    }
}

/// A tier of the topology.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TierRaw {
    /// Its name.
    pub tier: String,
    /// The label whose value says in which domain of the tier a node is. `None`: only `jobs.domains` say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// A domain of the topology. It contains each node that one of its lists names.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DomainRaw {
    /// Its tier.
    pub tier: String,
    /// Its name.
    pub name: String,
    /// Names of nodes, in which a `*` is any run of characters.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// Labels that nodes have all of.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Domains of narrower tiers.
    #[serde(default)]
    pub domains: Vec<String>,
}

/// Parses tiers of the topology, or the same as a text in JSON.
pub(super) fn topology<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<TierRaw>, D::Error> {
    list_or_text(deserializer, "tiers, as in [{ tier = \"rack\", label = \"topology/rack\" }]")
}

/// Parses domains of the topology, or the same as a text in JSON.
pub(super) fn domains<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<DomainRaw>, D::Error> {
    list_or_text(deserializer, "domains, as in [{ tier = \"rack\", name = \"r1\", nodes = [\"gpu-a-*\"] }]")
}

/// Checks the settings of jobs. Returns `None` if the service keeps none: they are off, or there are no planners.
pub(super) fn jobs(raw: &JobsRaw, planners: u16) -> Result<Option<JobsConfig>, ConfigError> {
    let interval =
        units::duration(&raw.interval).map_err(|error| value("jobs.interval", error.to_string()))?;
    let interval_ns = units::nanos(interval);
    if !INTERVAL_NS.contains(&interval_ns) {
        return Err(value("jobs.interval", format!("{} is out of range: give 1ms to 60s", raw.interval)));
    }
    let mut settings = vec![
        ("jobs.combination", json!(raw.combination)),
        ("jobs.backfill", json!(raw.backfill)),
        ("jobs.grace", json!(raw.grace)),
        ("jobs.min_run_time", json!(raw.min_run_time)),
        ("jobs.usage_half_life", json!(raw.usage_half_life)),
        ("jobs.topology", json!(raw.topology)),
        ("jobs.domains", json!(raw.domains)),
    ];
    if !raw.actions.is_empty() {
        settings.push(("jobs.actions", json!(raw.actions)));
    }
    if !raw.tiers.is_empty() {
        settings.push(("jobs.tiers", json!(raw.tiers)));
    }
    // A scenario's `config` has the same form, and one reader serves both. Each setting is on a line of its own, so the line of
    // a fault tells the setting.
    let line = |(key, given): &(&str, Value)| format!("{}: {given}", json!(key.trim_start_matches("jobs.")));
    let lines: Vec<String> = settings.iter().map(line).collect();
    let wrong = |error: LineError| {
        let number = usize::try_from(error.line).ok().and_then(|line| line.checked_sub(1));
        let named = number.and_then(|number| settings.get(number));
        value(named.map_or("jobs", |&(key, _)| key), error.message)
    };
    let read: Vec<ConfigFile> = documents(&format!("{{{}}}", lines.join(",\n"))).map_err(wrong)?;
    let file = read.first().ok_or_else(|| value("jobs", "it is empty: leave it out"))?;
    let mut cycle = cycle_config(file).map_err(wrong)?;
    // A job with a date starts in the first cycle after it, and is bound somewhat later.
    cycle.date_gap_ns = DATE_GAP_NS_MIN.max(interval_ns.saturating_mul(2));
    Ok((raw.enabled && planners > 0).then_some(JobsConfig { cycle, interval_ns, ..JobsConfig::default() }))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use wharf_core::cycle::{Action, Combination, CycleConfig};
    use wharf_core::jobs::{TopologyDomain, TopologyTier};
    use wharf_core::node::Labels;

    use super::*;
    use crate::config::Raw;

    fn read(text: &str) -> Result<Option<JobsConfig>, ConfigError> {
        let raw = Raw::of_text(Path::new("wharf.toml"), text)?;
        jobs(&raw.jobs, raw.planners)
    }

    #[test]
    fn jobs_are_kept_by_default() {
        let config = read("").unwrap().expect("there is a planner by default");
        let default = CycleConfig::default();
        assert_eq!(config.interval_ns, 100_000_000);
        assert_eq!(config.cycle.date_gap_ns, 1_000_000_000);
        let seldom = read("[jobs]\ninterval = \"3s\"").unwrap().expect("there is a planner by default");
        assert_eq!(seldom.cycle.date_gap_ns, 6_000_000_000);
        assert_eq!((config.cycle.actions, config.cycle.combination), (default.actions, default.combination));
        assert_eq!((config.cycle.grace_ns, config.cycle.min_run_time_ns), (30_000_000_000, 0));
        assert_eq!(config.cycle.usage_half_life_ns, 0);
        assert!(read("planners = 0").unwrap().is_none());
        assert!(read("[jobs]\nenabled = false").unwrap().is_none());
    }

    #[test]
    fn cycles_are_set_as_in_a_scenario() {
        let text = "
[jobs]
interval = \"50ms\"
actions = [\"enqueue\", \"allocate\"]
tiers = [[\"priority\", { plugin = \"gang\", without = [\"preemptable\"] }], [\"drf\", \"usage\"]]
combination = \"volcano\"
grace = \"5s\"
min_run_time = \"1m\"
usage_half_life = \"168h\"
topology = [{ tier = \"rack\", label = \"topology/rack\" }, { tier = \"zone\", label = \"zone\" }]
";
        let config = match read(text) {
            Ok(config) => config.expect("they are kept"),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(config.interval_ns, 50_000_000);
        assert_eq!(config.cycle.actions, [Action::Enqueue, Action::Allocate]);
        assert_eq!(config.cycle.tiers.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
        assert_eq!(config.cycle.combination, Combination::Volcano);
        assert_eq!((config.cycle.grace_ns, config.cycle.min_run_time_ns), (5_000_000_000, 60_000_000_000));
        assert_eq!(config.cycle.usage_half_life_ns, 168 * 3_600_000_000_000);
        let tiers = [TopologyTier::labelled("rack", "topology/rack"), TopologyTier::labelled("zone", "zone")];
        assert_eq!((&config.cycle.topology[..], &config.cycle.domains[..]), (&tiers[..], &[][..]));
    }

    /// As a list, and as a text in JSON, as an environment variable has it.
    #[test]
    fn domains_are_read_as_a_list_or_a_text() {
        let list = "
[jobs]
topology = [{ tier = \"rack\", label = \"topology/rack\" }, { tier = \"block\" }]
domains = [
  { tier = \"rack\", name = \"r1\", nodes = [\"gpu-a-*\", \"gpu-b-07\"] },
  { tier = \"rack\", name = \"R2\", labels = { \"Example.com/switch\" = \"s7\", b = \"\" } },
  { tier = \"block\", name = \"b1\", domains = [\"r1\", \"R2\"] },
]
";
        let text = "
[jobs]
topology = '[{\"tier\": \"rack\", \"label\": \"topology/rack\"}, {\"tier\": \"block\"}]'
domains = '''[
  {\"tier\": \"rack\", \"name\": \"r1\", \"nodes\": [\"gpu-a-*\", \"gpu-b-07\"]},
  {\"tier\": \"rack\", \"name\": \"R2\", \"labels\": {\"Example.com/switch\": \"s7\", \"b\": \"\"}},
  {\"tier\": \"block\", \"name\": \"b1\", \"domains\": [\"r1\", \"R2\"]}
]'''
";
        let texts = |all: &[&str]| all.iter().map(|&text| text.into()).collect();
        let pairs = vec![("Example.com/switch".into(), "s7".into()), ("b".into(), "".into())];
        let labels = Labels::new(pairs).unwrap();
        let expected = [
            TopologyDomain { nodes: texts(&["gpu-a-*", "gpu-b-07"]), ..TopologyDomain::new("rack", "r1") },
            TopologyDomain { labels, ..TopologyDomain::new("rack", "R2") },
            TopologyDomain { domains: texts(&["r1", "R2"]), ..TopologyDomain::new("block", "b1") },
        ];
        for given in [list, text] {
            let cycle = read(given).unwrap_or_else(|error| panic!("{error}")).expect("they are kept").cycle;
            assert_eq!(cycle.domains, expected);
            let block = TopologyTier { name: "block".into(), label: None };
            assert_eq!(cycle.topology, [TopologyTier::labelled("rack", "topology/rack"), block]);
        }
        let none = read("[jobs]\ntopology = \"\"\ndomains = \" \"\n").unwrap().expect("they are kept");
        assert!(none.cycle.topology.is_empty() && none.cycle.domains.is_empty());
    }

    /// With the line, the plugin that has the setting, and what this one has.
    #[test]
    fn a_setting_of_another_plugin_is_refused_with_its_line() {
        for (plugin, setting, parts) in [
            (
                "proportion",
                "hierarchical = true",
                ["plugin `drf` has", "`proportion` has plugin, without, only"],
            ),
            ("drf", "wait = \"3s\"", ["plugin `sla` has", "`drf` has plugin, without, only, hierarchical"]),
            (
                "gang",
                "recheck = \"3s\"",
                ["plugin `fair-share` has", "`gang` has plugin, without, only, whole"],
            ),
        ] {
            let table = format!("{{ plugin = \"{plugin}\", {setting} }}");
            let text = format!("[jobs]\ninterval = \"1s\"\ntiers = [[\"priority\", {table}]]\n");
            let error = read(&text).expect_err(&text).to_string();
            assert!(error.contains("line 3"), "{error}");
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
        for own in ["\"gang\", whole = true", "\"drf\", hierarchical = true", "\"sla\", wait = \"3s\""] {
            assert!(read(&format!("[jobs]\ntiers = [[{{ plugin = {own} }}]]\n")).is_ok(), "{own}");
        }
    }

    #[test]
    fn wrong_settings_of_jobs_are_named_with_a_remedy() {
        for (text, setting, part) in [
            ("interval = \"0ms\"", "jobs.interval", "give 1ms to 60s"),
            ("interval = \"soon\"", "jobs.interval", "soon"),
            ("actions = [\"alocate\"]", "`jobs.actions`", "there is no action `alocate`: name one of"),
            ("tiers = [[\"gangs\"]]", "line 2", "there is no plugin `gangs`: name one of"),
            ("tiers = [[\"predicates\"]]", "line 2", "there is no plugin `predicates`: leave it out, since"),
            ("tiers = [[\"gang\", \"nodeorder\"]]", "line 2", "by the `policy` of each task"),
            ("tiers = [[{ plugin = \"binpack\" }]]", "line 2", "whether nodes are packed (`best-fit`)"),
            (
                "tiers = [[{ plugin = \"gang\", weight = 3 }]]",
                "line 2",
                "plugin `gang` has no setting `weight`: `gang` has plugin, without, only, whole",
            ),
            ("tiers = [[{ plugin = \"sla\", wait = \"soon\" }]]", "line 2", "soon"),
            (
                "tiers = [[{ plugin = \"drf\", only = [\"order\"] }]]",
                "line 2",
                "there is no decision `order`",
            ),
            ("tiers = [[{ whole = true }]]", "line 2", "plugin"),
            ("combination = \"loose\"", "`jobs.combination`", "loose"),
            ("usage_half_life = \"168h\"", "`jobs.usage_half_life`", "name plugin `usage`"),
            ("grace = \"x\"", "`jobs.grace`", "x"),
            (
                "topology = [{ tier = \"rack\" }]",
                "`jobs.topology`",
                "tier `rack` has neither a label nor domains",
            ),
            ("topology = [{ label = \"rack\" }]", "topology", "tier"),
            (
                "domains = [{ tier = \"rack\", name = \"r\", nodes = [\"n\"] }]",
                "`jobs.domains`",
                "domain `r` is of tier `rack`, which is not in `topology`",
            ),
            (
                "topology = [{ tier = \"rack\" }]\ndomains = [{ tier = \"rack\", name = \"r\" }]",
                "`jobs.domains`",
                "domain `r` has no members",
            ),
            ("domains = [{ tier = \"rack\", name = \"r\", node = [\"n\"] }]", "domains", "line 2"),
            ("domains = \"[{\"", "domains", "EOF"),
            (
                "topology = [{ tier = \"a\", label = \"l\" }, { tier = \"a\", label = \"m\" }]",
                "`jobs.topology`",
                "tier `a` is named twice",
            ),
            ("unknown = 1", "", "unknown"),
        ] {
            let error = read(&format!("[jobs]\n{text}\n")).expect_err(text).to_string();
            assert!(error.contains(setting) && error.contains(part), "{error}");
        }
    }
}
