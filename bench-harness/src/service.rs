//! A whole service in this process, on loopback, for measurements.

use std::path::Path;
use std::time::Duration;

use wharf_net::client::ClientConfig;
use wharf_ops::config::Config;
use wharf_ops::daemon::Daemon;

/// Returns the settings of a service with this data directory, on any free port.
pub(crate) fn config(directory: &Path, seed: u64, shards: Option<u16>) -> Config {
    of_any_port(Config::embedded(directory.to_owned()), seed, shards)
}

/// Changes settings to those of a service on any free port.
pub(crate) fn of_any_port(mut config: Config, seed: u64, shards: Option<u16>) -> Config {
    config.listen.set_port(0);
    config.metrics_listen = None;
    config.engine.seed = seed;
    if let Some(shards) = shards {
        config.engine.shards = shards;
    }
    config
}

/// Returns the settings of a client that does not try again, with the name of its command.
pub(crate) fn client(daemon: &Daemon, command: &str) -> ClientConfig {
    ClientConfig {
        server: daemon.address,
        server_name: "localhost".to_owned(),
        roots: daemon.certificates.clone(),
        certificate: None,
        name: format!("wharf-bench {command}"),
        retry_for: Duration::ZERO,
    }
}
