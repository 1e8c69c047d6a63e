//! Nodes: specs, labels, and selectors over them.

mod agent;
pub use agent::{AgentFacts, AgentReport, DEVICE_GONE, GpuDevice, Unhealthy, align_devices};
mod label;
pub use label::{GPU_MODEL_LABEL, Labels, LabelsError};
mod life;
pub use life::{IllegalChange, LifeEvent, NodeState};
mod selector;
pub use selector::{Operator, Selector, Term};
mod spec;
pub use spec::{NodeRegistration, NodeSpec};
mod taint;
pub use taint::{Taint, TaintEffect, TaintTwice, Taints, Toleration, TolerationOperator};
