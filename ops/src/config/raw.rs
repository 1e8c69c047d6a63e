//! Settings as written, and the sources they are read from.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use ::config::{Config as Layers, Environment, File, FileFormat, FileSourceString, Map};
use serde::{Deserialize, Deserializer, Serialize};

use super::ConfigError;
use super::jobs::{DomainRaw, PluginRaw, TierRaw, domains, tiers, topology};
use crate::file_error::FileError;

/// Defines tables of settings. A setting whose default is not that of its type has it after the type.
macro_rules! settings {
    ($(
        $(#[$attribute:meta])*
        pub struct $table:ident {
            $($(#[$of_setting:meta])* pub $setting:ident: $type:ty $(= $default:expr)?,)*
        }
    )*) => {$(
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $table {
            $($(#[$of_setting])* pub $setting: $type,)*
        }

        impl Default for $table {
            fn default() -> Self {
                Self { $($setting: settings!(@default $($default)?),)* }
            }
        }
    )*};
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
}

settings! {
    /// Settings as written in a file. Every key is optional.
    pub struct Raw {
        /// The address of the QUIC service.
        pub listen: String = format!("127.0.0.1:{}", wharf_net::protocol::PORT_DEFAULT),
        /// The address of the metrics over HTTP; empty to disable.
        pub metrics_listen: String = "127.0.0.1:7412".to_owned(),
        /// The directory of the store and the development certificate.
        pub data_dir: Option<PathBuf>,
        /// When a reply may leave: `sync`, once it survives power loss; `os`, once it survives the process; `memory`, at
        /// once.
        pub durability: String = "sync".to_owned(),
        /// The number of MiB of the journal after which a checkpoint is made.
        pub checkpoint_mib: u64 = 32,
        /// The number of newest MiB of the journal that are kept for those who follow events, although no start needs them.
        pub events_mib: u64 = 64,
        /// The number of shards; by default one per core that is not used by an I/O thread.
        pub shards: Option<u16>,
        /// The number of I/O threads; by default one per four cores, at most 16.
        pub io_threads: Option<u16>,
        /// True if shard threads are pinned to cores.
        pub pin: bool = true,
        /// The number of partitions if a store is created.
        pub partitions: u16 = wharf_core::limits::PARTITIONS_DEFAULT,
        /// The label whose value keeps nodes together in one partition.
        pub topology_label: String = wharf_core::registrar::TOPOLOGY_LABEL_DEFAULT.to_owned(),
        /// The seed of routing and of the Random policy.
        pub seed: u64,
        /// The number of seconds that a node's agent may be silent before the node counts as lost.
        pub node_lost_after: String = "30".to_owned(),
        /// The number of seconds after which a client session without a connection ends.
        pub session_kept_for: String = "3600".to_owned(),
        /// The policy of requests that name none.
        pub policy: String = wharf_core::request::Policy::default().name().to_owned(),
        /// The maximum number of unanswered requests of one connection.
        pub in_flight_max: u32 = wharf_net::protocol::IN_FLIGHT_DEFAULT,
        /// The maximum number of waiting groups, and placements that wait in queues, of one connection.
        pub waiting_groups_max: u32 = wharf_net::limits::WAITING_GROUPS_DEFAULT,
        /// The maximum number of connections from one address.
        pub connections_per_address_max: u32 = wharf_net::limits::CONNECTIONS_PER_ADDRESS_DEFAULT,
        /// The number of handshakes that an I/O thread begins per second.
        pub handshakes_per_second: u32 = wharf_net::limits::HANDSHAKES_PER_SECOND_DEFAULT,
        /// The file of typical requests of the fragmentation-aware policies. If absent, they are learned from
        /// arriving requests.
        pub typical_pods: Option<PathBuf>,
        /// The log filter.
        pub log: String = "info".to_owned(),
        /// The PEM file of the certificate chain.
        pub tls_certificate: Option<PathBuf>,
        /// The PEM file of the key.
        pub tls_key: Option<PathBuf>,
        /// The PEM file of the authorities that sign the certificates of clients.
        pub tls_client_ca: Option<PathBuf>,
        /// The PEM file of the lists of revoked certificates.
        pub tls_client_crl: Option<PathBuf>,
        /// Whether clients must show certificates: `required`, `off`, or `auto`: if other machines can reach the service,
        /// or an authority is given.
        pub client_certificates: String = "auto".to_owned(),
        /// The directory of the audit log; `None` to write it to the log of the service only.
        pub audit_log: Option<PathBuf>,
        /// The tenants.
        pub tenants: Vec<TenantRaw>,
        /// What clients may do, by the names in their certificates.
        pub identities: Vec<IdentityRaw>,
        /// Resource kinds whose units are instances: each unit has an id and can be shared in parts. A name that
        /// ends in `*` matches every kind with that prefix. In the environment, names are separated by commas.
        #[serde(deserialize_with = "names")]
        pub unit_instance_resources: Vec<String>,
        /// True if requests without GPUs prefer nodes without GPUs, unless the request says otherwise.
        pub avoid_gpu_nodes: bool = true,
        /// The percentage of a shard's nodes that may be reserved at once.
        pub reserved_nodes_percent: u8 = wharf_core::limits::RESERVED_NODES_PERCENT_DEFAULT,
        /// The maximum number of allocations on a node.
        pub allocations_per_node_max: u16 = wharf_core::limits::ALLOCATIONS_PER_NODE_DEFAULT,
        /// The number of planner threads, which place groups and commit statements. With 0, neither is served.
        pub planners: u16 = 1,
        /// The settings of queues and jobs.
        pub jobs: JobsRaw,
        /// True if changes can be followed without planners. With planners they always can.
        pub follow: bool,
        /// The number of seconds that a shard keeps a hold before it asks to abort the statement; at most four decimals.
        pub hold_timeout: String = "1".to_owned(),
        /// The settings of the hybrid policy.
        pub hybrid: HybridRaw,
        /// The orders in which least-fit and best-fit compare dimensions. The first applies to requests that name
        /// none. In the environment, names are separated by commas and orders by semicolons.
        #[serde(deserialize_with = "lists")]
        pub attribute_orders: Vec<Vec<String>>,
        /// Custom resource kinds that are dimensions of the index.
        #[serde(deserialize_with = "names")]
        pub indexed_resources: Vec<String>,
        /// The coordinate function.
        pub coordinates: String = "granular".to_owned(),
        /// The weights of the dimensions in a weighted sum.
        pub weights: WeightsRaw,
        /// The granularity of the index.
        pub granularity: GranularityRaw,
    }

    /// A tenant.
    pub struct TenantRaw {
        /// The name.
        pub name: String,
        /// The number, 1 to 65,535. It is part of the ids of what belongs to the tenant.
        pub number: u16,
        /// The requests per second; by default any number.
        pub requests_per_second: Option<u32>,
        /// The maximum number of unanswered requests, over all connections; by default any number.
        pub in_flight_max: Option<u32>,
        /// The owners whose reservations it may use.
        pub owners: Vec<u64>,
        /// The queue to which all that it gets is charged; by default, it is as anybody's.
        pub queue: Option<String>,
    }

    /// What a client may do.
    pub struct IdentityRaw {
        /// The name in its certificate: the common name, or a URI among the alternative names.
        pub name: String,
        /// The roles.
        pub roles: Vec<String>,
        /// The tenant for which it submits work; by default the operator.
        pub tenant: Option<String>,
        /// The nodes that it may report: names, or beginnings of names with a star. By default all.
        pub nodes: Option<Vec<String>>,
    }

    /// The settings of queues and jobs, which need planners.
    pub struct JobsRaw {
        /// True if the service keeps queues and jobs.
        pub enabled: bool = true,
        /// The queue of what names none, and whose tenant is bound to none; by default, there is no such queue.
        pub default_queue: Option<String>,
        /// The time between the beginnings of two scheduling cycles.
        pub interval: String = "100ms".to_owned(),
        /// The actions of a cycle, in order; by default all but `starve`.
        #[serde(deserialize_with = "names")]
        pub actions: Vec<String>,
        /// The plugins in tiers.
        #[serde(deserialize_with = "tiers")]
        pub tiers: Vec<Vec<PluginRaw>>,
        /// How tiers combine what they say about victims: `strict` or `volcano`.
        pub combination: String = "strict".to_owned(),
        /// Which jobs that do not fit get a dated reservation: `none`, `easy` (the first one of a queue) or
        /// `conservative` (all).
        pub backfill: String = "none".to_owned(),
        /// The grace period of evicted tasks.
        pub grace: String = "30s".to_owned(),
        /// How long a task runs before it may be evicted. Queues may say otherwise.
        pub min_run_time: String = "0s".to_owned(),
        /// The time in which what queues and users have held comes to count half as much. `0s`: only what runs now counts.
        /// Queues may say otherwise.
        pub usage_half_life: String = "0s".to_owned(),
        /// The tiers of the topology, from the narrowest to the widest, each with the label that nodes have.
        #[serde(deserialize_with = "topology")]
        pub topology: Vec<TierRaw>,
        /// The domains of these tiers that are not only labels, each with the nodes that it contains.
        #[serde(deserialize_with = "domains")]
        pub domains: Vec<DomainRaw>,
    }

    /// The settings of the hybrid policy, as fractions of 1.
    pub struct HybridRaw {
        /// The utilisation below which a node counts as unused.
        pub threshold: String = "0.5".to_owned(),
        /// The share of all nodes, best first, from which one is drawn.
        pub top_k: String = "0.2".to_owned(),
    }

    /// The weight of one unit of each dimension in the weighted sum.
    pub struct WeightsRaw {
        /// Per core.
        pub cpu: String = "0".to_owned(),
        /// Per MiB.
        pub memory: String = "0".to_owned(),
        /// Per wholly free GPU.
        pub gpu: String = "0".to_owned(),
        /// Per whole GPU of the largest free part.
        pub gpu_part: String = "0".to_owned(),
        /// Per unit of an indexed custom kind, by name.
        pub resources: BTreeMap<String, String>,
    }

    /// θ per dimension, in the dimension's unit, or `auto`.
    pub struct GranularityRaw {
        /// Cores.
        pub cpu: String = "1".to_owned(),
        /// MiB.
        pub memory: String = "4096".to_owned(),
        /// Parts of a GPU.
        pub gpu_part: String = "0.01".to_owned(),
        /// Units of the weighted sum.
        pub weighted: String = "1".to_owned(),
        /// Units of indexed custom kinds, by name; default 1.
        pub resources: BTreeMap<String, String>,
    }
}

/// Parses a list of names, or a text of names separated by commas.
fn names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a list of names, or a text with commas between them")]
    enum Names {
        List(Vec<String>),
        Text(String),
    }
    Ok(match Names::deserialize(deserializer)? {
        Names::List(names) => names,
        Names::Text(text) => {
            text.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
        }
    })
}

/// Parses lists of names, or a text with semicolons between lists and commas between names.
fn lists<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<String>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "expected a list of lists of names, or a text as in `cpu,memory;memory,cpu`"
    )]
    enum Lists {
        Lists(Vec<Vec<String>>),
        Text(String),
    }
    let list = |text: &str| text.split(',').map(|name| name.trim().to_owned()).collect();
    Ok(match Lists::deserialize(deserializer)? {
        Lists::Lists(lists) => lists,
        Lists::Text(text) if text.trim().is_empty() => Vec::new(),
        Lists::Text(text) => text.split(';').map(list).collect(),
    })
}

/// Settings from flags: a file to read, and settings that override all other sources.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// The TOML file.
    pub file: Option<PathBuf>,
    /// Settings by key.
    pub settings: Vec<(&'static str, String)>,
}

/// Variables of the commands that connect to a service. They are not settings of the service.
const CLIENT_VARIABLES: [&str; 7] = [
    "WHARF_SERVER",
    "WHARF_SERVER_NAME",
    "WHARF_CA",
    "WHARF_CERT",
    "WHARF_KEY",
    "WHARF_JSON",
    "WHARF_CONFIG",
];

/// Settings that only a file can have: lists of tables.
const OF_FILES: [&str; 2] = ["tenants", "identities"];

/// Returns the names of all settings. The settings of a table follow its name and a dot.
fn keys() -> Vec<String> {
    let mut keys = Vec::new();
    for (key, value) in serde_json::json!(Raw::default()).as_object().into_iter().flatten() {
        match value.as_object() {
            None if OF_FILES.contains(&key.as_str()) => {}
            None => keys.push(key.clone()),
            // A table inside of a table has names of resource kinds, which are no settings.
            Some(table) => keys.extend(
                table.iter().filter(|(_, value)| !value.is_object()).map(|(name, _)| format!("{key}.{name}")),
            ),
        }
    }
    keys
}

pub(super) fn read(
    overrides: &Overrides,
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Raw, ConfigError> {
    let mut layers = Layers::builder().add_source(Layers::try_from(&Raw::default())?);
    if let Some(file) = &overrides.file {
        layers = layers.add_source(checked_file(file)?);
    }
    layers = layers.add_source(Environment::default().separator("__").source(Some(environment(variables)?)));
    for (key, value) in &overrides.settings {
        layers = layers.set_override(*key, value.as_str())?;
    }
    Ok(layers.build()?.try_deserialize()?)
}

impl Raw {
    /// Reads the text of a file alone, without the environment. `path` is the name in error messages.
    ///
    /// # Errors
    /// When the text is no TOML, or has an unknown key or a value of another type.
    pub fn of_text(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let layers = Layers::builder().add_source(Layers::try_from(&Self::default())?);
        Ok(layers.add_source(checked_text(path, text)?).build()?.try_deserialize()?)
    }
}

fn checked_file(path: &Path) -> Result<File<FileSourceString, FileFormat>, ConfigError> {
    let text = std::fs::read_to_string(path);
    checked_text(path, &text.map_err(|error| FileError::new(path, format!("cannot be read: {error}")))?)
}

/// Reads the text of a file as a layer. It is also parsed alone, because only this step can report the line of an
/// error.
fn checked_text(path: &Path, text: &str) -> Result<File<FileSourceString, FileFormat>, ConfigError> {
    let wrong = |message: String| FileError::new(path, message);
    let file = File::from_str(text, FileFormat::Toml);
    let layers = Layers::builder().add_source(Layers::try_from(&Raw::default())?).add_source(file.clone());
    match layers.build().and_then(Layers::try_deserialize::<Raw>) {
        Ok(_) => Ok(file),
        // The layers do not know line numbers; the TOML parser does.
        Err(error) => {
            let message = toml::from_str::<Raw>(text).map_or_else(|at| at.to_string(), |_| error.to_string());
            Err(wrong(message).into())
        }
    }
}

/// Returns the name of the environment variable of a setting.
pub(super) fn variable(key: &str) -> String {
    format!("WHARF_{}", key.replace('.', "__").to_ascii_uppercase())
}

fn environment(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Map<String, String>, ConfigError> {
    let keys = keys();
    let mut settings = Map::new();
    for (name, value) in variables {
        // A name that is not UTF-8 is not one of our settings.
        let Ok(name) = name.into_string() else { continue };
        let Some(rest) = name.strip_prefix("WHARF_") else { continue };
        if CLIENT_VARIABLES.contains(&name.as_str()) {
            continue;
        }
        let key = rest.to_ascii_lowercase();
        if !keys.contains(&key.replace("__", ".")) {
            let known: Vec<String> = keys.iter().map(|key| variable(key)).collect();
            let message = format!("names no setting: known are {}", known.join(", "));
            return Err(ConfigError::Environment { name, message });
        }
        let message = "is not UTF-8: give it as text".to_owned();
        let value = value.into_string().map_err(|_| ConfigError::Environment { name, message })?;
        settings.insert(key, value);
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs.iter().map(|&(k, v)| (k.into(), v.into())).collect()
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn later_layers_override_earlier_ones() {
        let toml = file("shards = 3\nseed = 7\npolicy = \"random\"\n[granularity]\ncpu = \"2\"\n");
        let overrides =
            Overrides { file: Some(toml.path().into()), settings: vec![("policy", "first-fit".into())] };
        let environment = variables(&[
            ("WHARF_SEED", "8"),
            ("WHARF_GRANULARITY__MEMORY", "1024"),
            ("HOME", "/"),
            ("WHARF_CA", "x"),
        ]);
        let raw = read(&overrides, environment.into_iter()).unwrap();
        assert_eq!((raw.shards, raw.seed, raw.policy.as_str()), (Some(3), 8, "first-fit"));
        assert_eq!((raw.granularity.cpu.as_str(), raw.granularity.memory.as_str()), ("2", "1024"));
    }

    #[test]
    fn the_environment_is_read_exactly() {
        let pairs = [
            ("WHARF_SEED", "18446744073709551615"),
            ("WHARF_DATA_DIR", "007"),
            ("WHARF_PIN", "false"),
            ("WHARF_METRICS_LISTEN", ""),
            ("WHARF_UNIT_INSTANCE_RESOURCES", "npu, nvidia.com/mig-*"),
            ("WHARF_ATTRIBUTE_ORDERS", "cpu, memory; memory,cpu"),
            (
                "WHARF_JOBS__DOMAINS",
                r#"[{"tier": "rack", "name": "R1", "labels": {"Example.com/switch": "s7"}}]"#,
            ),
        ];
        let raw = read(&Overrides::default(), variables(&pairs).into_iter()).unwrap();
        assert_eq!((raw.seed, raw.data_dir, raw.pin), (u64::MAX, Some("007".into()), false));
        assert_eq!(raw.metrics_listen, "");
        assert_eq!(raw.unit_instance_resources, ["npu", "nvidia.com/mig-*"]);
        assert_eq!(raw.attribute_orders, [["cpu", "memory"], ["memory", "cpu"]]);
        let domain = DomainRaw {
            tier: "rack".into(),
            name: "R1".into(),
            nodes: Vec::new(),
            labels: BTreeMap::from([("Example.com/switch".into(), "s7".into())]),
            domains: Vec::new(),
        };
        assert_eq!(raw.jobs.domains, [domain]);
    }

    #[cfg(unix)]
    #[test]
    fn variables_that_are_no_text_are_named_if_they_are_ours() {
        use std::os::unix::ffi::OsStringExt;
        let broken = || OsString::from_vec(vec![b'/', 0xff]);
        let read = |name: &str| read(&Overrides::default(), std::iter::once((name.into(), broken())));
        assert!(read("OTHER").is_ok());
        assert!(read("WHARF_LOG").unwrap_err().to_string().contains("WHARF_LOG"));
    }

    #[test]
    fn unknown_keys_and_wrong_types_are_refused_by_name() {
        for (text, named) in [
            ("shard = 3", "shard"),
            ("shards = \"many\"", "shards"),
            ("[granularity]\ngpu = \"1\"", "gpu"),
            ("shards = ", ""),
        ] {
            let toml = file(text);
            let overrides = Overrides { file: Some(toml.path().into()), settings: Vec::new() };
            let error = read(&overrides, std::iter::empty()).unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
        let error = read(&Overrides::default(), variables(&[("WHARF_SHARD", "3")]).into_iter()).unwrap_err();
        assert!(error.to_string().contains("WHARF_SHARDS"), "{error}");
        let missing = Overrides { file: Some("no/such/file.toml".into()), settings: Vec::new() };
        assert!(read(&missing, std::iter::empty()).unwrap_err().to_string().contains("no/such/file.toml"));
    }
}
