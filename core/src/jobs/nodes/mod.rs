//! What a plan of nodes is asked for, and the plan. [`demand`](crate::demand) makes it.

mod answer;
mod request;

pub use answer::{Asker, NodesPlan, Removal, RemovalCause, Start, TypePlan, Unfit, Unplaced};
pub use request::{Bundles, NodeType, NodesRequest, NodesRequestError, PendingGroup, Spread};
