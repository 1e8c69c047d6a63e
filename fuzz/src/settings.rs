//! Settings from any text: a text is refused with a reason, or an engine starts with it.
//!
//! The first byte of an input selects how the rest is used: as the text of a file, or as choices of which known settings
//! and values make one.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::OnceLock;
use std::task::Waker;

use wharf_core::engine::Engine;
use wharf_core::state::StoreState;
use wharf_ops::config::{Config, Raw};

use crate::finding::{Finding, found};
use crate::sim::choices::Choices;

/// Engines with more shards or partitions take too long for a fuzzer.
const SHARDS_MAX: u16 = 4;
const PARTITIONS_MAX: u16 = 64;
/// The most settings of a text that is made from choices.
const SETTINGS_MAX: u64 = 5;

/// Values of any setting, as TOML.
const VALUES: [&str; 40] = [
    "0",
    "1",
    "2",
    "3",
    "64",
    "65",
    "100",
    "101",
    "256",
    "65535",
    "65536",
    "-1",
    "1.5",
    "true",
    "false",
    "18446744073709551615",
    "\"\"",
    "\"0\"",
    "\"1\"",
    "\"0.5\"",
    "\"auto\"",
    "\"-1\"",
    "\"1e9\"",
    "\"86400\"",
    "\"memory\"",
    "\"os\"",
    "\"off\"",
    "\"required\"",
    "\"weighted\"",
    "\"granular\"",
    "\"first-fit\"",
    "\"127.0.0.1:0\"",
    "\"0.0.0.0:7411\"",
    "\"a.pem\"",
    "[]",
    "[\"nic\"]",
    "[\"nic\", \"x/y\", \"mig-*\"]",
    "[[\"cpu\", \"memory\", \"gpu\", \"gpu_part\"]]",
    "\"cpu,memory,gpu,gpu_part;gpu,gpu_part,cpu,memory\"",
    "{ nic = \"2\" }",
];

/// Lists of tables, which have settings of their own.
const TABLES: [&str; 4] = [
    "[[tenants]]\nname = \"ray\"\nnumber = 7\nowners = [3]\n",
    "[[tenants]]\nname = \"ray\"\nnumber = 0\nrequests_per_second = 0\n",
    "[[identities]]\nname = \"head\"\ntenant = \"ray\"\nroles = [\"submit\"]\n",
    "[[identities]]\nname = \"agents\"\nroles = [\"node-agent\", \"root\"]\nnodes = [\"gpu-*\"]\n",
];

/// Reads settings from `data`, and starts an engine with those that are valid. Returns whether they are.
///
/// # Errors
/// When a refusal has no reason, settings differ after they are written and read again, or no engine starts.
pub fn run_config(data: &[u8]) -> Result<bool, Finding> {
    let Some((&choice, rest)) = data.split_first() else { return Ok(false) };
    if choice.is_multiple_of(2) {
        return read(&String::from_utf8_lossy(rest));
    }
    read(&text(&mut Choices::Given(rest)))
}

/// Returns the names of all settings of the whole service and of tables, each with its table.
fn keys() -> &'static [(String, String)] {
    static KEYS: OnceLock<Vec<(String, String)>> = OnceLock::new();
    KEYS.get_or_init(|| {
        // A setting without a default value is not in the table, so those are named here.
        let without = ["shards", "io_threads", "data_dir", "tls_certificate", "tls_key", "tls_client_ca"];
        let mut keys: Vec<_> = without.map(|key| (String::new(), key.to_owned())).into();
        let table = toml::Table::try_from(Raw::default()).expect("settings are a table");
        for (key, value) in table {
            match value {
                toml::Value::Table(settings) => {
                    keys.extend(settings.into_iter().map(|(name, _)| (key.clone(), name)));
                }
                _ => keys.push((String::new(), key)),
            }
        }
        keys
    })
}

/// Makes a text of known settings.
fn text(choices: &mut Choices<'_>) -> String {
    let mut chosen: Vec<(&(String, String), &str)> =
        (0..choices.below(SETTINGS_MAX)).map(|_| (choices.pick(keys()), *choices.pick(&VALUES))).collect();
    // The settings of a table follow its name, and each comes once.
    chosen.sort_unstable();
    chosen.dedup_by_key(|(key, _)| *key);
    let mut text = String::new();
    let mut table = "";
    for ((of, name), value) in chosen {
        if of != table {
            table = of;
            writeln!(text, "[{table}]").expect("a text takes all");
        }
        writeln!(text, "{name} = {value}").expect("a text takes all");
    }
    let tables = if choices.one_in(3) { choices.below(4) } else { 0 };
    for _ in 0..tables {
        text.push_str(TABLES[choices.place(TABLES.len())]);
    }
    text
}

fn read(text: &str) -> Result<bool, Finding> {
    let path = Path::new("settings.toml");
    let raw = match Raw::of_text(path, text) {
        Ok(raw) => raw,
        Err(error) => return refused(&error),
    };
    let written = toml::to_string(&raw).map_err(|error| format!("{raw:?} cannot be written: {error}"))?;
    match Raw::of_text(path, &written) {
        Ok(again) if again == raw => {}
        again => return found(format!("{raw:?} was written, and read again as {again:?}")),
    }
    // An input must not name a file of this machine to be read.
    let config = match Config::check(Raw { typical_pods: None, ..raw }) {
        Ok(config) => config,
        Err(error) => return refused(&error),
    };
    if config.engine.shards <= SHARDS_MAX && config.partitions <= PARTITIONS_MAX {
        let wakers = vec![Waker::noop().clone(); usize::from(config.io_threads)];
        let engine = Engine::open(StoreState::create(config.partitions), &config.engine, wakers);
        engine.map_err(|error| format!("settings are valid, and no engine starts: {error}"))?;
    }
    Ok(true)
}

fn refused(error: &dyn std::error::Error) -> Result<bool, Finding> {
    if error.to_string().len() < 10 {
        return found(format!("settings are refused without a reason: {error:?}"));
    }
    Ok(false)
}
