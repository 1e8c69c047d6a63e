//! Applies changed settings to a running service.

use tracing::warn;
use wharf_net::tls::ServerCertificate;

use super::{Daemon, DaemonError, certificate};
use crate::config::Config;
use crate::file_error::FileError;

impl Daemon {
    /// Applies the settings that can change without a restart, all or nothing. Returns the names of the
    /// others that differ.
    ///
    /// # Errors
    /// When a new certificate cannot be used. Nothing changes then.
    pub fn reload(&mut self, config: Config) -> Result<Vec<String>, DaemonError> {
        let (chain, key) = certificate::load_or_create(&self.config.data_dir, config.tls.as_ref())?;
        // Both are read before either is replaced.
        let clients = self.clients.as_ref().zip(config.clients.as_ref());
        let clients =
            clients.map(|(trust, files)| Ok::<_, FileError>((trust, certificate::load_authorities(files)?)));
        // Whether the key can be used is known before the authorities are replaced.
        ServerCertificate::new(chain.clone(), key.clone_key())?;
        if let Some((trust, (authorities, revoked))) = clients.transpose()? {
            trust.set(&authorities, revoked)?;
        }
        self.certificate.set(chain.clone(), key)?;
        self.certificates = chain;
        let fixed = self.config.fixed_differences(&config);
        for name in &fixed {
            warn!(setting = name, "this setting changes at the next start only");
        }
        self.set_access(&config);
        self.shared.sessions.set_settings(config.connections);
        Ok(fixed)
    }

    /// Replaces who may do what, and the default queue, as far as that can change without a restart.
    fn set_access(&mut self, config: &Config) {
        let access = &mut self.config.access;
        if self.config.clients.is_some() == config.clients.is_some() {
            access.clone_from(&config.access);
        }
        // If queues come with the next start, what names none needs none until then.
        let keeps_queues = self.config.engine.jobs.is_some();
        access.default_queue = config.access.default_queue.clone().filter(|_| keeps_queues);
        self.shared.sessions.set_access(access);
    }
}
