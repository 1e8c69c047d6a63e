//! Nodes: what is registered, its labels, and the selectors over them.

mod label;
pub use label::{GPU_MODEL_LABEL, Labels, LabelsError};
mod selector;
pub use selector::{Operator, Selector, Term};
mod spec;
pub use spec::{NodeRegistration, NodeSpec, NodeState};
mod taint;
pub use taint::{Taint, TaintEffect, TaintTwice, Taints, Toleration, TolerationOperator};
