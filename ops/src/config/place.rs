//! The place of a setting that cannot be used: the line of the file, or the environment variable.

use std::ffi::OsString;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::raw::{Overrides, variable};
use super::{ConfigError, FileError};

/// Adds to an error of a value where it was given: the file and its line, or the environment variable. A flag has the name of
/// its setting.
pub(super) fn located(
    error: ConfigError,
    overrides: &Overrides,
    variables: &[(OsString, OsString)],
) -> ConfigError {
    let ConfigError::Value { key, places, message } = error else { return error };
    let fault = format!("setting `{key}`: {message}");
    let text = overrides.file.as_ref().and_then(|file| Some((file, std::fs::read_to_string(file).ok()?)));
    for place in &places {
        if overrides.settings.iter().any(|(flag, _)| flag == place) {
            return ConfigError::Value { key, places, message };
        }
        let mut names = variables.iter().filter_map(|(name, _)| name.to_str());
        if let Some(name) = names.find(|name| gives(name, place)) {
            return ConfigError::Environment {
                name: name.to_owned(),
                message: format!("has a value that cannot be used: {fault}"),
            };
        }
        if let Some((file, line)) = text.as_ref().and_then(|(file, text)| Some((file, line_of(text, place)?)))
        {
            return FileError::new(file, format!("line {line}: {fault}")).into();
        }
    }
    // Something is missing, and nothing that is there asks for it.
    match &overrides.file {
        Some(file) => FileError::new(file, fault).into(),
        None => ConfigError::Value { key, places, message },
    }
}

/// Returns whether an environment variable gives a setting, or the list in which a place is.
fn gives(name: &str, place: &str) -> bool {
    let mut steps = place.split('.');
    let table = steps.next().unwrap_or_default();
    let in_table = steps.next().map(|step| format!("{table}.{step}"));
    name == variable(table) || in_table.is_some_and(|key| name == variable(&key))
}

/// Returns the line of a place in a text, from 1: names of settings and, in lists, numbers from 0, with dots between them. If
/// the text has only the beginning of the place, it is that one's line. `None`: it has nothing of it.
fn line_of(text: &str, place: &str) -> Option<usize> {
    let document = DeTable::parse(text).ok()?;
    let mut at: Option<usize> = None;
    let mut value: Option<&Spanned<DeValue<'_>>> = None;
    // The name of a custom resource may have dots, and comes last.
    for step in place.splitn(3, '.') {
        let table = match value.map(Spanned::get_ref) {
            None => Some(document.get_ref()),
            Some(DeValue::Table(table)) => Some(table),
            Some(_) => None,
        };
        let next = match (table, value.map(Spanned::get_ref)) {
            (Some(table), _) => {
                let entry = table.iter().find(|(key, _)| key.get_ref() == step);
                entry.map(|(key, value)| (key.span().start, value))
            }
            (None, Some(DeValue::Array(list))) => {
                let item = step.parse().ok().and_then(|number: usize| list.get(number));
                item.map(|item| (item.span().start, item))
            }
            _ => None,
        };
        let Some((start, found)) = next else { break };
        at = Some(start);
        value = Some(found);
    }
    Some(text.as_bytes()[..at?].iter().filter(|&&byte| byte == b'\n').count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Raw, raw, value};

    const TEXT: &str = "policy = \"best-fit\"
indexed_resources = [
  \"nic\",
  \"a.b/c\",
]
jobs.grace = \"5s\"
[granularity]
cpu = \"1\"
resources = { nic = \"2\" }
[[tenants]]
name = \"a\"
number = 1
[[tenants]]
name = \"b\"
number = 2
[weights.resources]
\"a.b/c\" = \"1\"
";

    #[test]
    fn lines_of_places_are_found() {
        for (place, line) in [
            ("policy", Some(1)),
            ("indexed_resources", Some(2)),
            ("indexed_resources.1", Some(4)),
            ("indexed_resources.7", Some(2)),
            ("jobs.grace", Some(6)),
            ("jobs.interval", Some(6)),
            ("granularity.cpu", Some(8)),
            ("granularity.resources.nic", Some(9)),
            ("granularity.memory", Some(7)),
            ("tenants.1", Some(13)),
            ("tenants.1.number", Some(15)),
            ("tenants.0.queue", Some(10)),
            ("weights.resources.a.b/c", Some(17)),
            ("policy.x", Some(1)),
            ("seed", None),
        ] {
            assert_eq!(line_of(TEXT, place), line, "{place}");
        }
        assert_eq!(line_of("no toml", "policy"), None);
    }

    fn load(text: Option<&str>, flags: &[(&'static str, &str)], variables: &[(&str, &str)]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let file = text.map(|text| {
            let file = folder.path().join("wharf.toml");
            std::fs::write(&file, text).unwrap();
            file
        });
        let settings = flags.iter().map(|&(key, value)| (key, value.to_owned())).collect();
        let overrides = Overrides { file, settings };
        let variables: Vec<(OsString, OsString)> =
            variables.iter().map(|&(name, value)| (name.into(), value.into())).collect();
        let read = raw::read(&overrides, variables.iter().cloned());
        let error = read.and_then(Config::check).expect_err("it cannot be used");
        located(error, &overrides, &variables).to_string()
    }

    /// Each kind of value, with the line and a part of the remedy.
    #[test]
    fn faults_in_values_are_told_with_their_line() {
        let client_ca = "tls_client_ca = \"ca.pem\"\n";
        let admin = "[[identities]]\nname = \"a\"\nroles = [\"admin\"]\n";
        let with_tenant = |tenant: &str| format!("{client_ca}{admin}[[tenants]]\nname = \"t\"\n{tenant}\n");
        let cases: Vec<(String, &str, &str)> = vec![
            ("seed = 1\npartitions = 0".into(), "line 2: setting `partitions`", "give 1 to"),
            ("\n\nshards = 0".into(), "line 3: setting `shards`", "give 1 to"),
            ("io_threads = 0".into(), "line 1: setting `io_threads`", "give 1 to"),
            ("planners = 99".into(), "line 1: setting `planners`", "give 0 to"),
            ("\nin_flight_max = 0".into(), "line 2: setting `in_flight_max`", "give 1 to"),
            ("\nwaiting_groups_max = 0".into(), "line 2: setting `waiting_groups_max`", "give 1 to"),
            ("topology_label = \"\"".into(), "line 1: setting `topology_label`", "name a label"),
            ("\nlisten = \"here\"".into(), "line 2: setting `listen`", "127.0.0.1:7411"),
            ("\nmetrics_listen = \"x\"".into(), "line 2: setting `metrics_listen`", "127.0.0.1:7411"),
            ("\ndurability = \"x\"".into(), "line 2: setting `durability`", "give sync, os or memory"),
            ("\npolicy = \"worst\"".into(), "line 2: setting `policy`", "worst"),
            ("\ncheckpoint_mib = 0".into(), "line 2: setting `checkpoint_mib`", "give 1 to"),
            ("\nnode_lost_after = \"0\"".into(), "line 2: setting `node_lost_after`", "give 0.1 to"),
            ("\nlog = \"wharf=loud\"".into(), "line 2: setting `log`", "give one such as info"),
            ("\ntypical_pods = \"no.csv\"".into(), "line 2: setting `typical_pods`", "no.csv"),
            ("[hybrid]\n\ntop_k = \"2\"".into(), "line 3: setting `hybrid.top_k`", "give 0 to 1"),
            ("tls_key = \"k\"".into(), "line 1: setting `tls_certificate`", "give both or neither"),
            ("\ncoordinates = \"x\"".into(), "line 2: setting `coordinates`", "give granular or weighted"),
            ("[weights]\n\ncpu = \"-1\"".into(), "line 3: setting `weights`", "give at least 0"),
            ("[granularity]\ncpu = \"0\"".into(), "line 2: setting `granularity`", "give at least"),
            (
                "unit_instance_resources = [\n\"npu\",\n\"a**\"]".into(),
                "line 3: setting `unit_instance_resources`",
                "leave it at the end",
            ),
            ("indexed_resources = [\n\"gpu\"]".into(), "line 2: setting `indexed_resources`", "gpu"),
            (
                "attribute_orders = [\n[\"cpu\", \"disk\"]]".into(),
                "line 2: setting `attribute_orders`",
                "give each of",
            ),
            (
                "[granularity.resources]\n\"a.b\" = \"1\"".into(),
                "line 2: setting `granularity`",
                "name it in `indexed_resources`",
            ),
            ("client_certificates = \"on\"".into(), "line 1: setting `client_certificates`", "give auto"),
            (
                "listen = \"0.0.0.0:7411\"".into(),
                "line 1: setting `tls_client_ca`",
                "`wharf cert init` makes all that is needed",
            ),
            (client_ca.into(), "line 1: setting `identities`", "give each client a name and roles"),
            (with_tenant("number = 0"), "line 7: setting `tenants`", "give 1 to 65535"),
            (with_tenant("number = 1\nqueue = \"root\""), "line 8: setting `tenants`", "name another one"),
            (
                format!("{client_ca}{admin}{}", admin.replace("admin", "adm")),
                "line 7: setting `identities`",
                "adm",
            ),
            (format!("{client_ca}{admin}{admin}"), "line 6: setting `identities`", "give each name once"),
            ("[jobs]\ninterval = \"0ms\"".into(), "line 2: setting `jobs.interval`", "give 1ms to 60s"),
            ("[jobs]\n\nactions = [\"x\"]".into(), "line 3: setting `jobs.actions`", "name one of"),
            ("[jobs]\ncombination = \"x\"".into(), "line 2: setting `jobs.combination`", "volcano"),
            ("[jobs]\n\ngrace = \"x\"".into(), "line 3: setting `jobs.grace`", "x"),
            ("[jobs]\ngrace = \"200000h\"".into(), "line 2: setting `jobs.grace`", "give a shorter time"),
            ("[jobs]\n\nmin_run_time = \"x\"".into(), "line 3: setting `jobs.min_run_time`", "x"),
            ("[jobs]\nbackfill = \"x\"".into(), "line 2: setting `jobs.backfill`", "name one of"),
            (
                "[jobs]\nactions = [\"allocate\"]\nusage_half_life = \"1h\"".into(),
                "line 3: setting `jobs.usage_half_life`",
                "name plugin `usage`",
            ),
            (
                "[jobs]\nactions = [\"allocate\", \"allocate\"]\ntiers = [[\"gang\"]]".into(),
                "line 2: setting `jobs.actions`",
                "name each once",
            ),
            (
                "[jobs]\nactions = [\"allocate\"]\ntiers = [[\"proportion\", \"capacity\"]]".into(),
                "line 3: setting `jobs.tiers`",
                "name one of them",
            ),
            (
                "[jobs]\ntopology = [{ tier = \"a\", label = \"l\" }, { tier = \"a\", label = \"m\" }]"
                    .into(),
                "line 2: setting `jobs.topology`",
                "tier `a` is named twice",
            ),
            (
                "[jobs]\ntopology = [{ tier = \"a\" }]\ndomains = [\n{ tier = \"b\", name = \"x\", nodes = [\"n\"] }]"
                    .into(),
                "line 3: setting `jobs.domains`",
                "name one of a, or add the tier",
            ),
        ];
        for (text, place, part) in cases {
            let error = load(Some(&text), &[], &[]);
            let is_told = error.contains("wharf.toml: ") && error.contains(place) && error.contains(part);
            assert!(is_told, "{text}\n{error}");
        }
    }

    #[test]
    fn a_value_is_told_where_it_was_given_last() {
        let file = Some("shards = 0\n[jobs]\ngrace = \"x\"\n");
        assert!(load(file, &[], &[]).contains("wharf.toml: line 1: setting `shards`"));
        assert!(load(file, &[("shards", "0")], &[]).starts_with("setting `shards`: "));
        let error = load(file, &[], &[("WHARF_SHARDS", "0")]);
        assert!(
            error.starts_with("the environment variable WHARF_SHARDS") && error.contains("give 1"),
            "{error}"
        );
        let error = load(Some("[jobs]\ngrace = \"1s\"\n"), &[], &[("WHARF_JOBS__GRACE", "x")]);
        assert!(error.starts_with("the environment variable WHARF_JOBS__GRACE"), "{error}");
        let error = load(None, &[], &[("WHARF_INDEXED_RESOURCES", "nic,nic")]);
        assert!(error.starts_with("the environment variable WHARF_INDEXED_RESOURCES"), "{error}");
        // Nothing in the file asks for what is missing.
        let error = load(Some("seed = 1\n"), &[("listen", "0.0.0.0:7411")], &[]);
        assert!(error.starts_with("setting `tls_client_ca`"), "{error}");
        assert!(matches!(
            located(value("shards", "x"), &Overrides::default(), &[]),
            ConfigError::Value { key: "shards", .. }
        ));
        assert!(Config::check(Raw::default()).is_ok());
    }
}
