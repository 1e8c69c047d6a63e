//! Resource arguments of `wharf place`, `wharf adopt`, `wharf reserve` and `wharf group create`.

use clap::Args;
use wharf_core::resource::Amount;
use wharf_net::protocol::{DemandBody, NamedAmount};

use super::node;
use crate::units;

#[derive(Debug, Args)]
pub(super) struct DemandArgs {
    /// Cores, such as 2 or 0.25.
    #[arg(long, default_value = "0", allow_hyphen_values = true)]
    pub(super) cpu: Amount,
    /// Memory in MiB, or with a unit: 512, 16GiB.
    #[arg(long, value_parser = units::memory, default_value = "0", allow_hyphen_values = true)]
    pub(super) memory: Amount,
    /// GPUs: a whole number, or a part of one such as 0.5.
    #[arg(long, default_value = "0", allow_hyphen_values = true)]
    pub(super) gpu: Amount,
    /// A custom resource, NAME=AMOUNT; may be given several times.
    #[arg(long = "resource", value_name = "NAME=AMOUNT", value_parser = |text: &str| node::custom("--gpu", text))]
    resources: Vec<NamedAmount>,
}

impl DemandArgs {
    /// Returns the demand as a wire body.
    pub(super) fn body(&self) -> DemandBody {
        DemandBody {
            cpu: self.cpu.units(),
            memory: self.memory.units(),
            gpu: self.gpu.units(),
            custom: self.resources.clone(),
        }
    }
}
