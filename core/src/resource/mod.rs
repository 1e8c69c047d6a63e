//! Resources: fixed-point amounts, GPU instances, custom kinds, and demands.

mod amount;
pub use amount::{Amount, AmountError, shown_number};
mod gpu;
pub use gpu::{GPU_UNIT, GpuAssignment, GpuBooks, GpuRequest};
mod kind;
pub use kind::ResourceKind;
mod registry;
pub use registry::{NatureFixed, RegistryFull, ResourceRegistry};
mod reserved;
pub use reserved::ReservedAmounts;
pub(crate) use reserved::parts_withheld;
mod units;
pub(crate) use units::{SHORTFALL_MAX, least_overcommitted};
pub use units::{UnitAssignment, UnitAssignments, UnitBooks, check_unit_request, check_unit_total};
mod demand;
pub use demand::{CustomAmounts, Demand};
