//! Accelerators from a JSON file, for tests and trials on machines without any. The file is read again on
//! each call, so a device failure is simulated by rewriting the file.

use std::path::PathBuf;

use anyhow::Context;

use super::inventory::{Accelerators, Inventory};

/// An inventory that is read from a file.
pub struct Fake {
    /// The file: `{"gpus": [{"uuid": "GPU-1", "model": "T4", "fault": "Xid 79"}]}`.
    pub path: PathBuf,
}

impl Inventory for Fake {
    fn read(&mut self) -> anyhow::Result<Accelerators> {
        let path = self.path.display();
        let text = std::fs::read_to_string(&self.path).with_context(|| format!("{path} cannot be read"))?;
        let mut found: Accelerators =
            serde_json::from_str(&text).with_context(|| format!("{path} is no inventory"))?;
        if found.source.is_empty() {
            found.source = format!("{path} (a fake inventory)");
        }
        Ok(found)
    }
}
