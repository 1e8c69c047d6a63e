//! Resource arguments of `wharf place`, `wharf adopt`, `wharf reserve` and `wharf group create`.

use clap::Args;
use wharf_core::resource::Amount;
use wharf_net::protocol::DemandBody;

use super::connect::Usage;
use super::node;

#[derive(Debug, Args)]
pub(super) struct DemandArgs {
    /// Cores, such as 2 or 0.25.
    #[arg(long, default_value = "0", allow_hyphen_values = true)]
    pub(super) cpu: Amount,
    /// Memory in MiB, or with a unit: 512, 16GiB.
    #[arg(long, value_parser = node::memory, default_value = "0", allow_hyphen_values = true)]
    pub(super) memory: Amount,
    /// GPUs: a whole number, or a part of one such as 0.5.
    #[arg(long, default_value = "0", allow_hyphen_values = true)]
    pub(super) gpu: Amount,
    /// A custom resource, NAME=AMOUNT; may be given several times.
    #[arg(long = "resource", value_name = "NAME=AMOUNT")]
    resources: Vec<String>,
}

impl DemandArgs {
    /// Returns the demand as a wire body.
    ///
    /// # Errors
    /// When a custom resource is not NAME=AMOUNT, or names a resource that has its own flag.
    pub(super) fn body(&self) -> Result<DemandBody, Usage> {
        Ok(DemandBody {
            cpu: self.cpu.units(),
            memory: self.memory.units(),
            gpu: self.gpu.units(),
            custom: node::custom_amounts("--gpu", &self.resources)?,
        })
    }
}
