//! Settings from embedded defaults, a TOML file, the environment (`WHARF_LISTEN`, …) and flags. Each source
//! overrides the one before. Reading takes two steps: [`Raw`] holds settings as written, [`Config`] holds
//! checked settings.

mod access;
mod index;
mod jobs;
mod place;
mod raw;
pub use access::ClientFiles;
pub use jobs::PluginRaw;
pub use raw::{GranularityRaw, HybridRaw, IdentityRaw, JobsRaw, Overrides, Raw, TenantRaw, WeightsRaw};

use std::ffi::OsString;
use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use wharf_core::engine::EngineConfig;
use wharf_core::fragmentation::TypicalShapes;
use wharf_core::limits::{
    ALLOCATIONS_PER_NODE_MAX, PARTITIONS_MAX, PLANNERS_MAX, PORT_IN_FLIGHT_MAX, PORTS_MAX, SHARDS_MAX,
};
use wharf_core::planted::{PlantedBug, is_planted};
use wharf_core::request::Policy;
use wharf_core::resource::{Amount, shown_number};
use wharf_core::shard::{HYBRID_WHOLE, HybridSettings};

use tracing_subscriber::EnvFilter;

use crate::daemon::certificate;
use crate::file_error::FileError;
use crate::journal::Durability;
use crate::typical_pods;
use wharf_net::access::AccessSettings;
use wharf_net::limits::{Bounds, CONNECTIONS_MAX, HANDSHAKES_PER_SECOND_MAX, WAITING_GROUPS_MAX};
use wharf_net::server::Settings;

/// Checked settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// The address that serves QUIC.
    pub listen: SocketAddr,
    /// The address that serves metrics over HTTP; `None` to disable.
    pub metrics_listen: Option<SocketAddr>,
    /// The directory of the store and the development certificate.
    pub data_dir: PathBuf,
    /// When a reply may leave.
    pub durability: Durability,
    /// The number of bytes of the journal after which a checkpoint is made.
    pub checkpoint_bytes: u64,
    /// The number of newest bytes of the journal that are kept for those who follow events, although no start needs them.
    pub events_bytes: u64,
    /// The number of I/O threads.
    pub io_threads: u16,
    /// True if shard threads are pinned to cores.
    pub pin: bool,
    /// The number of partitions if a store is created.
    pub partitions: u16,
    /// The time that a node's agent may be silent before the node counts as lost, in ns.
    pub node_lost_after: u64,
    /// The settings of the engine.
    pub engine: EngineConfig,
    /// The settings of connections, which can change while the service runs.
    pub connections: Settings,
    /// PEM files of the server's certificate chain and key; `None` for a development certificate. Can change
    /// while the service runs.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The files that say which clients are known; `None` if clients show no certificates. Their content can change while
    /// the service runs.
    pub clients: Option<ClientFiles>,
    /// Who may do what. Can change while the service runs, but not whether clients show certificates.
    pub access: AccessSettings,
    /// The directory of the audit log.
    pub audit_log: Option<PathBuf>,
    /// The settings as written. Numbers that depend on the machine are filled in.
    raw: Raw,
}

/// The largest value of `checkpoint_mib` and `events_mib`: 1 TiB.
const CHECKPOINT_MIB_MAX: u64 = 1 << 20;

/// Settings that a running service applies on SIGHUP. One of a table follows the table's name and a dot.
const RELOADABLE: [&str; 15] = [
    "avoid_gpu_nodes",
    "connections_per_address_max",
    "handshakes_per_second",
    "identities",
    "in_flight_max",
    "jobs.default_queue",
    "log",
    "policy",
    "session_kept_for",
    "tenants",
    "tls_certificate",
    "tls_client_ca",
    "tls_client_crl",
    "tls_key",
    "waiting_groups_max",
];

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A source cannot be read, or has an unknown key or invalid value.
    #[error(transparent)]
    Read(#[from] ::config::ConfigError),
    /// The file cannot be read, or has an unknown key or invalid value.
    #[error(transparent)]
    File(#[from] FileError),
    /// An environment variable names no setting, or its value is not UTF-8.
    #[error("the environment variable {name} {message}")]
    Environment {
        /// The variable.
        name: String,
        /// The fault and the remedy.
        message: String,
    },
    /// A value is out of range.
    #[error("setting `{key}`: {message}")]
    Value {
        /// The setting.
        key: &'static str,
        /// Where it may have been given, the most exact place first: names and, in lists, numbers from 0, with dots between
        /// them (`tenants.1.queue`).
        places: Vec<String>,
        /// The fault and the remedy.
        message: String,
    },
}

impl ConfigError {
    /// Tells the place of the fault more exactly.
    fn at(mut self, place: impl Into<String>) -> Self {
        if let Self::Value { places, .. } = &mut self {
            places.insert(0, place.into());
        }
        self
    }

    /// Names another setting that leads to the fault, in case that this one was not given.
    fn or_at(mut self, place: &str) -> Self {
        if let Self::Value { places, .. } = &mut self {
            places.push(place.to_owned());
        }
        self
    }
}

fn value(key: &'static str, message: impl Into<String>) -> ConfigError {
    ConfigError::Value { key, places: vec![key.to_owned()], message: message.into() }
}

/// Reads a log filter.
///
/// # Errors
/// It has another form.
pub fn log_filter(text: &str) -> Result<EnvFilter, ConfigError> {
    EnvFilter::try_new(text).map_err(|error| {
        value("log", format!("`{text}` is no filter ({error}): give one such as info or wharf_net=debug"))
    })
}

/// Returns the number of a setting if it is in range.
fn in_range<T: PartialOrd + Display>(
    key: &'static str,
    number: T,
    range: RangeInclusive<T>,
) -> Result<T, ConfigError> {
    if range.contains(&number) || is_planted(PlantedBug::SettingRangeUnchecked) {
        return Ok(number);
    }
    Err(value(key, format!("{number} is out of range: give {} to {}", range.start(), range.end())))
}

/// The most I/O threads that a service has by default.
const IO_THREADS_DEFAULT_MAX: u16 = 16;

/// Returns the number of I/O threads on a machine with this number of cores: one per four.
fn io_threads_default(cores: u16) -> u16 {
    (cores / 4).clamp(1, IO_THREADS_DEFAULT_MAX)
}

impl Config {
    /// Reads and checks the settings of all sources.
    ///
    /// # Errors
    /// When a source cannot be read or a setting is invalid. The error names the place and the remedy.
    pub fn load(overrides: &Overrides) -> Result<Self, ConfigError> {
        let variables: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        let raw = raw::read(overrides, variables.iter().cloned())?;
        Self::check(raw).map_err(|error| place::located(error, overrides, &variables))
    }

    /// Opens the files of certificates, keys and authorities that the settings name. `overrides` are those from which the
    /// settings were read.
    ///
    /// # Errors
    /// When a service could not start with one of them. The error names the place of its setting and the remedy.
    pub fn check_files(&self, overrides: &Overrides) -> Result<(), ConfigError> {
        let variables: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        let checked = certificate::check(self.tls.as_ref(), self.clients.as_ref());
        checked
            .map_err(|unusable| value(unusable.setting, unusable.message))
            .map_err(|error| place::located(error, overrides, &variables))
    }

    /// Returns the embedded defaults with the given data directory.
    ///
    /// # Panics
    /// Never: a test checks that the embedded defaults are valid.
    #[must_use]
    pub fn embedded(data_dir: PathBuf) -> Self {
        let raw = Raw { data_dir: Some(data_dir), ..Raw::default() };
        Self::check(raw).expect("the embedded defaults are valid")
    }

    /// Checks settings as written.
    ///
    /// # Errors
    /// The first invalid setting.
    pub fn check(mut raw: Raw) -> Result<Self, ConfigError> {
        let cores =
            u16::try_from(std::thread::available_parallelism().map_or(1, usize::from)).unwrap_or(u16::MAX);
        let partitions = in_range("partitions", raw.partitions, 1..=PARTITIONS_MAX)?;
        // The registrar and the checkpoints of the journal have ports of their own.
        let io_max = PORTS_MAX as u16 - 2;
        let io_threads = raw.io_threads.unwrap_or_else(|| io_threads_default(cores));
        in_range("io_threads", io_threads, 1..=io_max)?;
        in_range("planners", raw.planners, 0..=PLANNERS_MAX.min(io_max - io_threads))?;
        let shards_max = partitions.min(SHARDS_MAX);
        let shards = raw.shards.unwrap_or_else(|| cores.saturating_sub(io_threads).clamp(1, shards_max));
        if !(1..=shards_max).contains(&shards) {
            let message = format!(
                "{shards} is out of range: give 1 to {shards_max} (a shard serves at least one partition)"
            );
            return Err(value("shards", message));
        }
        in_range("in_flight_max", raw.in_flight_max, 1..=PORT_IN_FLIGHT_MAX as u32)?;
        in_range("waiting_groups_max", raw.waiting_groups_max, 1..=WAITING_GROUPS_MAX)?;
        let connections_max = raw.connections_per_address_max;
        in_range("connections_per_address_max", connections_max, 1..=CONNECTIONS_MAX as u32)?;
        in_range("handshakes_per_second", raw.handshakes_per_second, 1..=HANDSHAKES_PER_SECOND_MAX)?;
        if raw.topology_label.is_empty() {
            return Err(value("topology_label", "it is empty: name a label"));
        }
        let missing = |key, other: &str| {
            value(key, format!("it is missing, and {other} is given: give both or neither")).or_at(other)
        };
        let tls = match (&raw.tls_certificate, &raw.tls_key) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) => return Err(missing("tls_key", "tls_certificate")),
            (None, Some(_)) => return Err(missing("tls_certificate", "tls_key")),
        };
        let listen = address("listen", &raw.listen)?;
        let clients = access::clients(&raw, listen)?;
        let jobs = jobs::jobs(&raw.jobs, raw.planners)?;
        let access = access::access(&raw, clients.is_some(), jobs.is_some())?;
        raw.shards = Some(shards);
        raw.io_threads = Some(io_threads);
        log_filter(&raw.log)?;
        let durability = durability(&raw.durability)?;
        let policy = raw.policy.parse::<Policy>().map_err(|error| value("policy", error.to_string()))?;
        Ok(Self {
            listen,
            metrics_listen: match raw.metrics_listen.as_str() {
                "" => None,
                text => Some(address("metrics_listen", text)?),
            },
            data_dir: raw.data_dir.get_or_insert_with(default_data_dir).clone(),
            durability,
            checkpoint_bytes: in_range("checkpoint_mib", raw.checkpoint_mib, 1..=CHECKPOINT_MIB_MAX)? << 20,
            events_bytes: in_range("events_mib", raw.events_mib, 0..=CHECKPOINT_MIB_MAX)? << 20,
            io_threads,
            pin: raw.pin,
            partitions,
            node_lost_after: duration("node_lost_after", &raw.node_lost_after)?,
            engine: EngineConfig {
                shards,
                seed: raw.seed,
                geometry: index::geometry(&raw)?,
                indexed_resources: raw.indexed_resources.clone(),
                topology_label: raw.topology_label.clone(),
                typical_shapes: raw.typical_pods.as_deref().map(typical_shapes).transpose()?,
                hybrid: hybrid(&raw.hybrid)?,
                unit_instances: unit_instances(&raw.unit_instance_resources)?,
                reserved_nodes_percent: in_range(
                    "reserved_nodes_percent",
                    raw.reserved_nodes_percent,
                    0..=100,
                )?,
                allocations_per_node_max: in_range(
                    "allocations_per_node_max",
                    raw.allocations_per_node_max,
                    1..=ALLOCATIONS_PER_NODE_MAX,
                )?,
                planners: raw.planners,
                jobs,
                hold_ns: duration("hold_timeout", &raw.hold_timeout)?,
                views: raw.follow,
                journal: durability != Durability::Memory,
            },
            connections: Settings {
                default_policy: policy,
                in_flight_max: raw.in_flight_max,
                waiting_groups_max: raw.waiting_groups_max,
                connections_per_address_max: raw.connections_per_address_max,
                handshakes_per_second: raw.handshakes_per_second,
                avoid_gpu_nodes: raw.avoid_gpu_nodes,
                session_kept_for: Duration::from_nanos(duration("session_kept_for", &raw.session_kept_for)?),
                bounds: Bounds::default(),
            },
            tls,
            clients,
            access,
            audit_log: raw.audit_log.clone(),
            raw,
        })
    }

    /// Sets when replies leave.
    pub fn set_durability(&mut self, durability: Durability) {
        self.durability = durability;
        self.engine.journal = durability != Durability::Memory;
    }

    /// Returns the log filter, in `tracing` syntax. It can change while the service runs.
    #[must_use]
    pub fn log(&self) -> &str {
        &self.raw.log
    }

    /// Returns the names of settings that differ from `other` and need a restart.
    #[must_use]
    pub fn fixed_differences(&self, other: &Self) -> Vec<String> {
        // The file of typical requests may have other contents than at the start.
        let reads_others = self.engine.typical_shapes != other.engine.typical_shapes;
        let others = other.raw.fixed();
        let mut differences = Vec::new();
        for (key, value) in self.raw.fixed() {
            if others[&key] != value || (key == "typical_pods" && reads_others) {
                differences.push(key);
            }
        }
        let key = "client_certificates";
        if self.clients.is_some() != other.clients.is_some() && !differences.iter().any(|known| known == key)
        {
            differences.push(key.to_owned());
        }
        differences
    }
}

impl Raw {
    /// Returns the settings that need a restart, by their names. Those of a table are together.
    fn fixed(&self) -> serde_json::Map<String, serde_json::Value> {
        let mut settings = serde_json::json!(self);
        for setting in RELOADABLE {
            let (table, key) = match setting.split_once('.') {
                Some((table, key)) => (&mut settings[table], key),
                None => (&mut settings, setting),
            };
            let known = table.as_object_mut().and_then(|table| table.remove(key));
            assert!(known.is_some(), "there is a setting `{setting}`");
        }
        match settings {
            serde_json::Value::Object(settings) => settings,
            _ => unreachable!("settings are a table"),
        }
    }
}

fn durability(text: &str) -> Result<Durability, ConfigError> {
    Ok(match text {
        "sync" => Durability::Sync,
        "os" => Durability::Os,
        "memory" => Durability::Memory,
        _ => return Err(value("durability", format!("`{text}` is none: give sync, os or memory"))),
    })
}

fn address(key: &'static str, text: &str) -> Result<SocketAddr, ConfigError> {
    text.parse().map_err(|_| value(key, format!("`{text}` is no address: give one such as 127.0.0.1:7411")))
}

/// Parses a duration in seconds, with at most four decimals, to ns.
fn duration(key: &'static str, text: &str) -> Result<u64, ConfigError> {
    const NANOS: u64 = 1_000_000_000 / Amount::SCALE as u64;
    let seconds: Amount = text.parse().map_err(|error| value(key, format!("{error}, in seconds")))?;
    if !(Amount::from_milli(100)..=Amount::whole(86_400)).contains(&seconds) {
        return Err(value(key, format!("{seconds} s is out of range: give 0.1 to 86400 seconds")));
    }
    Ok(seconds.units() as u64 * NANOS)
}

fn unit_instances(names: &[String]) -> Result<Vec<String>, ConfigError> {
    for (at, name) in names.iter().enumerate() {
        let key = "unit_instance_resources";
        let refused = |message: &str| value(key, format!("`{name}`: {message}")).at(format!("{key}.{at}"));
        wharf_net::convert::check_custom_name(key, name).map_err(|fault| refused(&fault.message))?;
        if name.strip_suffix('*').unwrap_or(name).contains('*') {
            let message = "a star matches the rest of a name: leave it at the end alone, or give each name";
            return Err(refused(message));
        }
    }
    Ok(names.to_vec())
}

fn typical_shapes(path: &Path) -> Result<Arc<TypicalShapes>, ConfigError> {
    typical_pods::read(path).map(Arc::new).map_err(|error| value("typical_pods", error.to_string()))
}

fn hybrid(raw: &HybridRaw) -> Result<HybridSettings, ConfigError> {
    let part = |key, text: &str| {
        let part = text.parse::<Amount>().map_err(|error| value(key, error.to_string()))?.units();
        u16::try_from(part).ok().filter(|&part| part <= HYBRID_WHOLE).ok_or_else(|| {
            value(key, format!("{} is out of range: give 0 to 1, such as 0.5", shown_number(text)))
        })
    };
    let threshold = part("hybrid.threshold", &raw.threshold)?;
    Ok(HybridSettings { threshold, top_k: part("hybrid.top_k", &raw.top_k)? })
}

/// Returns the default directory of the store and the development certificate.
#[must_use]
pub fn default_data_dir() -> PathBuf {
    directories::ProjectDirs::from("", "", "wharfinger")
        .map_or_else(|| PathBuf::from("wharf-data"), |dirs| dirs.data_dir().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use wharf_core::index::Geometry;

    fn check(change: impl FnOnce(&mut Raw)) -> Result<Config, String> {
        let mut raw = Raw::default();
        change(&mut raw);
        Config::check(raw).map_err(|error| error.to_string())
    }

    #[test]
    fn there_is_one_io_thread_per_four_cores() {
        assert_eq!([1, 2, 7, 8, 16, 64, 256].map(io_threads_default), [1, 1, 1, 2, 4, 16, 16]);
    }

    #[test]
    fn the_embedded_defaults_are_valid() {
        let config = Config::embedded("x".into());
        assert_eq!(config.listen, "127.0.0.1:7411".parse().unwrap());
        assert!(config.listen.ip().is_loopback());
        assert!(config.engine.shards >= 1 && config.io_threads >= 1);
        assert_eq!(config.engine.geometry, Geometry::default());
        assert_eq!(config.node_lost_after, wharf_core::limits::NODE_LOST_AFTER_DEFAULT);
    }

    #[test]
    fn values_out_of_range_are_named() {
        type Change = fn(&mut Raw);
        let cases: [(Change, &str); 32] = [
            (|raw| raw.reserved_nodes_percent = 101, "`reserved_nodes_percent`"),
            (|raw| raw.allocations_per_node_max = 0, "`allocations_per_node_max`"),
            (|raw| raw.allocations_per_node_max = 32_768, "`allocations_per_node_max`"),
            (|raw| raw.node_lost_after = "0.05".into(), "`node_lost_after`"),
            (|raw| raw.node_lost_after = "soon".into(), "`node_lost_after`"),
            (|raw| raw.session_kept_for = "0".into(), "`session_kept_for`"),
            (|raw| raw.unit_instance_resources = vec!["gpu".into()], "`unit_instance_resources`"),
            (|raw| raw.unit_instance_resources = vec!["mig-*.5gb".into()], "`mig-*.5gb`: a star"),
            (|raw| raw.unit_instance_resources = vec!["mig-**".into()], "`mig-**`: a star"),
            (
                |raw| raw.granularity.cpu = format!("1{}", "0".repeat(300)),
                "`granularity.cpu`: 1.0e300 is out",
            ),
            (|raw| raw.shards = Some(0), "`shards`"),
            (|raw| raw.shards = Some(257), "`shards`"),
            (|raw| raw.io_threads = Some(0), "`io_threads`"),
            (|raw| raw.planners = 33, "`planners`"),
            (|raw| raw.hold_timeout = "0".into(), "`hold_timeout`"),
            (|raw| raw.partitions = 0, "`partitions`"),
            (|raw| raw.in_flight_max = 0, "`in_flight_max`"),
            (|raw| raw.waiting_groups_max = 0, "`waiting_groups_max`"),
            (|raw| raw.connections_per_address_max = 0, "`connections_per_address_max`"),
            (|raw| raw.connections_per_address_max = 4097, "`connections_per_address_max`"),
            (|raw| raw.handshakes_per_second = 0, "`handshakes_per_second`"),
            (|raw| raw.handshakes_per_second = 1_000_001, "`handshakes_per_second`"),
            (|raw| raw.waiting_groups_max = WAITING_GROUPS_MAX + 1, "`waiting_groups_max`"),
            (|raw| raw.listen = "nowhere".into(), "`listen`"),
            (|raw| raw.policy = "worst-fit".into(), "`policy`"),
            (|raw| raw.hybrid.threshold = "1.1".into(), "`hybrid.threshold`"),
            (|raw| raw.hybrid.top_k = "-1".into(), "`hybrid.top_k`"),
            (|raw| raw.granularity.cpu = "0".into(), "`granularity.cpu`"),
            (|raw| raw.granularity.memory = "-1".into(), "`granularity.memory`"),
            (|raw| raw.tls_key = Some("key.pem".into()), "`tls_certificate`"),
            (|raw| raw.topology_label = String::new(), "`topology_label`"),
            (|raw| raw.typical_pods = Some("no/such.csv".into()), "`typical_pods`: no/such.csv"),
        ];
        for (change, named) in cases {
            let error = check(change).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
        assert_eq!(check(|raw| raw.metrics_listen = String::new()).unwrap().metrics_listen, None);
    }

    #[test]
    fn what_needs_a_restart_is_told_apart() {
        let config = check(|_| ()).unwrap();
        let policy = Policy::Random.name().to_owned();
        let other = check(|raw| raw.policy.clone_from(&policy)).unwrap();
        assert!(config.fixed_differences(&other).is_empty());
        let shards = config.engine.shards;
        let same = check(|raw| raw.shards = Some(shards)).unwrap();
        assert!(config.fixed_differences(&same).is_empty(), "it was the number by default");
        let other = check(|raw| (raw.policy, raw.shards) = (policy, Some(shards + 1))).unwrap();
        assert_eq!(config.fixed_differences(&other), ["shards"]);
        let other = check(|raw| raw.jobs.default_queue = Some("q".to_owned())).unwrap();
        assert!(config.fixed_differences(&other).is_empty());
        let other = check(|raw| raw.jobs.grace = "1s".to_owned()).unwrap();
        assert_eq!(config.fixed_differences(&other), ["jobs"], "the others of its table");
    }
}
