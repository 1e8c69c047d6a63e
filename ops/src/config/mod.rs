//! Settings from embedded defaults, a TOML file, the environment (`WHARF_LISTEN`, …) and flags. Each source
//! overrides the one before. Reading takes two steps: [`Raw`] holds settings as written, [`Config`] holds
//! checked settings.

mod index;
pub use index::IndexSettings;
mod raw;
pub use raw::{GranularityRaw, HybridRaw, Overrides, Raw, WeightsRaw};

use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use wharf_core::fragmentation::TypicalShapes;
use wharf_core::index::Geometry;
use wharf_core::limits::{
    ALLOCATIONS_PER_NODE_MAX, PARTITIONS_MAX, PLANNERS_MAX, PORT_IN_FLIGHT_MAX, PORTS_MAX, SHARDS_MAX,
};
use wharf_core::request::Policy;
use wharf_core::resource::{Amount, shown_number};
use wharf_core::shard::{HYBRID_WHOLE, HybridSettings};

use crate::typical_pods;
use wharf_net::limits::{CONNECTIONS_MAX, WAITING_GROUPS_MAX};

/// Checked settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The address that serves QUIC.
    pub listen: SocketAddr,
    /// The address that serves metrics over HTTP; `None` to disable.
    pub metrics_listen: Option<SocketAddr>,
    /// The directory of the store and the development certificate.
    pub data_dir: PathBuf,
    /// The number of shards.
    pub shards: u16,
    /// The number of I/O threads.
    pub io_threads: u16,
    /// True if shard threads are pinned to cores.
    pub pin: bool,
    /// The number of partitions if a store is created.
    pub partitions: u16,
    /// The label whose value keeps nodes together in one partition.
    pub topology_label: String,
    /// The seed of routing and of the Random policy.
    pub seed: u64,
    /// The time that a node's agent may be silent before the node counts as lost, in ns.
    pub node_lost_after: u64,
    /// The dimensions and granularity of the index.
    pub geometry: Geometry,
    /// The settings of the index as written.
    pub index: IndexSettings,
    /// Typical requests of the fragmentation-aware policies. If `None`, they are learned from arriving
    /// requests.
    pub typical_shapes: Option<Arc<TypicalShapes>>,
    /// The settings of the hybrid policy.
    pub hybrid: HybridSettings,
    /// Names of unit-instance resource kinds.
    pub unit_instances: Vec<String>,
    /// The percentage of a shard's nodes that may be reserved at once. Always allows at least one node,
    /// except 0, which disables reservations.
    pub reserved_nodes_percent: u8,
    /// The maximum number of allocations on a node.
    pub allocations_per_node_max: u16,
    /// The number of planner threads. With 0, groups and statements are not served.
    pub planners: u16,
    /// True if changes can be followed without planners. With planners they always can.
    pub follow: bool,
    /// The time that a shard keeps a hold before it asks to abort the statement, in ns.
    pub hold_timeout: u64,
    /// Settings that can change while the service runs.
    pub reloadable: Reloadable,
}

/// Settings that a running service applies on SIGHUP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reloadable {
    /// The policy of requests that name none.
    pub policy: Policy,
    /// True if requests without GPUs prefer nodes without GPUs, unless the request says otherwise.
    pub avoid_gpu_nodes: bool,
    /// The maximum number of unanswered requests of one connection.
    pub in_flight_max: u32,
    /// The maximum number of waiting groups of one connection.
    pub waiting_groups_max: u32,
    /// The maximum number of connections from one address.
    pub connections_per_address_max: u32,
    /// The log filter, in `tracing` syntax.
    pub log: String,
    /// PEM files of the server's certificate chain and key; `None` for a development certificate.
    pub tls: Option<(PathBuf, PathBuf)>,
}

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A source cannot be read, or has an unknown key or invalid value.
    #[error(transparent)]
    Read(#[from] ::config::ConfigError),
    /// The file cannot be read, or has an unknown key or invalid value.
    #[error("{path}: {message}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The fault and its place.
        message: String,
    },
    /// An environment variable does not name a setting.
    #[error("the environment variable {name} names no setting: known are {known}")]
    Environment {
        /// The variable.
        name: String,
        /// All known variables.
        known: String,
    },
    /// The value of an environment variable is not UTF-8.
    #[error("the environment variable {name} is not UTF-8: give it as text")]
    NotText {
        /// The variable.
        name: String,
    },
    /// A value is out of range.
    #[error("setting `{key}`: {message}")]
    Value {
        /// The setting.
        key: &'static str,
        /// The fault and the remedy.
        message: String,
    },
}

fn value(key: &'static str, message: impl Into<String>) -> ConfigError {
    ConfigError::Value { key, message: message.into() }
}

/// Returns the number of a setting if it is in range.
fn in_range<T: PartialOrd + Display>(
    key: &'static str,
    number: T,
    range: RangeInclusive<T>,
) -> Result<T, ConfigError> {
    if range.contains(&number) {
        return Ok(number);
    }
    Err(value(key, format!("{number} is out of range: give {} to {}", range.start(), range.end())))
}

impl Config {
    /// Reads and checks the settings of all sources.
    ///
    /// # Errors
    /// When a source cannot be read or a setting is invalid. The error names the place and the remedy.
    pub fn load(overrides: &Overrides) -> Result<Self, ConfigError> {
        Self::check(raw::read(overrides, std::env::vars_os())?)
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
    pub fn check(raw: Raw) -> Result<Self, ConfigError> {
        let cores =
            u16::try_from(std::thread::available_parallelism().map_or(1, usize::from)).unwrap_or(u16::MAX);
        let partitions = in_range("partitions", raw.partitions, 1..=PARTITIONS_MAX)?;
        let io_max = PORTS_MAX as u16 - 1;
        let io_threads = raw.io_threads.unwrap_or_else(|| (cores / 8).max(1));
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
        if raw.topology_label.is_empty() {
            return Err(value("topology_label", "it is empty: name a label"));
        }
        let missing = |key, other: &str| {
            value(key, format!("it is missing, and {other} is given: give both or neither"))
        };
        let tls = match (raw.tls_certificate, raw.tls_key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => return Err(missing("tls_key", "tls_certificate")),
            (None, Some(_)) => return Err(missing("tls_certificate", "tls_key")),
        };
        let index = IndexSettings {
            attribute_orders: raw.attribute_orders,
            indexed_resources: raw.indexed_resources,
            coordinates: raw.coordinates,
            weights: raw.weights,
            granularity: raw.granularity,
        };
        let policy = raw.policy.parse::<Policy>().map_err(|error| value("policy", error.to_string()))?;
        Ok(Self {
            listen: address("listen", &raw.listen)?,
            metrics_listen: match raw.metrics_listen.as_str() {
                "" => None,
                text => Some(address("metrics_listen", text)?),
            },
            data_dir: raw.data_dir.unwrap_or_else(default_data_dir),
            shards,
            io_threads,
            pin: raw.pin,
            partitions,
            topology_label: raw.topology_label,
            seed: raw.seed,
            node_lost_after: duration("node_lost_after", &raw.node_lost_after)?,
            geometry: index.geometry()?,
            index,
            typical_shapes: raw.typical_pods.as_deref().map(typical_shapes).transpose()?,
            hybrid: hybrid(&raw.hybrid)?,
            unit_instances: unit_instances(raw.unit_instance_resources)?,
            reserved_nodes_percent: in_range("reserved_nodes_percent", raw.reserved_nodes_percent, 0..=100)?,
            allocations_per_node_max: in_range(
                "allocations_per_node_max",
                raw.allocations_per_node_max,
                1..=ALLOCATIONS_PER_NODE_MAX,
            )?,
            planners: raw.planners,
            follow: raw.follow,
            hold_timeout: duration("hold_timeout", &raw.hold_timeout)?,
            reloadable: Reloadable {
                policy,
                avoid_gpu_nodes: raw.avoid_gpu_nodes,
                in_flight_max: raw.in_flight_max,
                waiting_groups_max: raw.waiting_groups_max,
                connections_per_address_max: raw.connections_per_address_max,
                log: raw.log,
                tls,
            },
        })
    }

    /// Returns the names of settings that differ from `other` and need a restart.
    #[must_use]
    pub fn fixed_differences(&self, other: &Self) -> Vec<&'static str> {
        let differences = [
            ("listen", self.listen != other.listen),
            ("metrics_listen", self.metrics_listen != other.metrics_listen),
            ("data_dir", self.data_dir != other.data_dir),
            ("shards", self.shards != other.shards),
            ("io_threads", self.io_threads != other.io_threads),
            ("pin", self.pin != other.pin),
            ("partitions", self.partitions != other.partitions),
            ("topology_label", self.topology_label != other.topology_label),
            ("seed", self.seed != other.seed),
            ("node_lost_after", self.node_lost_after != other.node_lost_after),
            ("attribute_orders", self.index.attribute_orders != other.index.attribute_orders),
            ("indexed_resources", self.index.indexed_resources != other.index.indexed_resources),
            ("coordinates", self.index.coordinates != other.index.coordinates),
            ("weights", self.index.weights != other.index.weights),
            ("granularity", self.index.granularity != other.index.granularity),
            ("typical_pods", self.typical_shapes != other.typical_shapes),
            ("hybrid", self.hybrid != other.hybrid),
            ("unit_instance_resources", self.unit_instances != other.unit_instances),
            ("reserved_nodes_percent", self.reserved_nodes_percent != other.reserved_nodes_percent),
            ("allocations_per_node_max", self.allocations_per_node_max != other.allocations_per_node_max),
            ("planners", self.planners != other.planners),
            ("follow", self.follow != other.follow),
            ("hold_timeout", self.hold_timeout != other.hold_timeout),
        ];
        differences.into_iter().filter(|&(_, differs)| differs).map(|(name, _)| name).collect()
    }
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

fn unit_instances(names: Vec<String>) -> Result<Vec<String>, ConfigError> {
    for name in &names {
        wharf_net::convert::check_custom_name("unit_instance_resources", name)
            .map_err(|fault| value("unit_instance_resources", format!("`{name}`: {}", fault.message)))?;
        if name.strip_suffix('*').unwrap_or(name).contains('*') {
            let message = "a star matches the rest of a name: leave it at the end alone, or give each name";
            return Err(value("unit_instance_resources", format!("`{name}`: {message}")));
        }
    }
    Ok(names)
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

    fn check(change: impl FnOnce(&mut Raw)) -> Result<Config, String> {
        let mut raw = Raw::default();
        change(&mut raw);
        Config::check(raw).map_err(|error| error.to_string())
    }

    #[test]
    fn the_embedded_defaults_are_valid() {
        let config = Config::embedded("x".into());
        assert_eq!(config.listen, "127.0.0.1:7411".parse().unwrap());
        assert!(config.listen.ip().is_loopback());
        assert!(config.shards >= 1 && config.io_threads >= 1);
        assert_eq!(config.geometry, Geometry::default());
        assert_eq!(config.node_lost_after, wharf_core::limits::NODE_LOST_AFTER_DEFAULT);
    }

    #[test]
    fn values_out_of_range_are_named() {
        type Change = fn(&mut Raw);
        let cases: [(Change, &str); 29] = [
            (|raw| raw.reserved_nodes_percent = 101, "`reserved_nodes_percent`"),
            (|raw| raw.allocations_per_node_max = 0, "`allocations_per_node_max`"),
            (|raw| raw.allocations_per_node_max = 32_768, "`allocations_per_node_max`"),
            (|raw| raw.node_lost_after = "0.05".into(), "`node_lost_after`"),
            (|raw| raw.node_lost_after = "soon".into(), "`node_lost_after`"),
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
        let config = Config::embedded("x".into());
        let mut other = config.clone();
        other.reloadable.policy = Policy::Random;
        assert!(config.fixed_differences(&other).is_empty());
        other.shards += 1;
        assert_eq!(config.fixed_differences(&other), ["shards"]);
    }
}
