//! Resources: fixed-point amounts, GPU instances, custom kinds, and what a request asks for.

mod amount;
pub use amount::{Amount, AmountError};
mod gpu;
pub use gpu::{GPU_UNIT, GpuAssignment, GpuBooks, GpuRequest};
mod registry;
pub use registry::{RegistryFull, ResourceRegistry};
mod demand;
pub use demand::{CustomAmounts, Demand};
