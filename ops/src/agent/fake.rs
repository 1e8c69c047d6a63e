//! Accelerators out of a JSON file: for tests and trials on machines that have none. The file is
//! read anew each time, so that rewriting it is how a device fails.

use std::path::PathBuf;

use anyhow::Context;

use super::inventory::{Accelerators, Inventory};

/// A file that says which devices there are.
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
