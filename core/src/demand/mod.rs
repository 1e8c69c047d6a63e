//! Autoscaling demand: which nodes to launch for all that waits, which to remove, and what would start if they came.
//!
//! A plan of nodes works on a copy of the books ([`LocalCluster`](crate::cycle::LocalCluster)), so it changes nothing.
//! It packs what waits on present nodes first, by the index that serves. For the rest it adds nodes of the given types,
//! each time of the one that suits best (Ray's autoscaler v2). Then the cycle that serves runs on the copy, in virtual
//! time, and shows which jobs start and when.
//!
//! | module | content |
//! |---|---|
//! | `items` | what waits, with equal tasks put together |
//! | `waiting` | placement groups and placements of the service that wait |
//! | `caps` | what the caps of queues leave |
//! | `pack`, `score` | packs it on nodes |
//! | `domains` | the domains of the topology, with their room and the types that belong to them |
//! | `marks` | labels that say in which of these domains nodes are |
//! | `idle` | nodes to remove |
//! | `starts` | cycles on the copy |
//! | `copy` | the copy, made of the views of all shards |
//! | `runner` | plans on a thread of its own |

mod caps;
mod copy;
mod domains;
mod idle;
mod items;
mod marks;
mod pack;
mod plan;
mod runner;
mod score;
mod starts;
#[cfg(test)]
mod tests;
mod waiting;

pub use crate::jobs::nodes::{
    Asker, Bundles, NodeType, NodesPlan, NodesRequest, NodesRequestError, PendingGroup, Removal,
    RemovalCause, Spread, Start, TypePlan, Unfit, Unplaced,
};
pub use copy::cluster_of_views;
pub use idle::IdleClock;
pub use plan::plan_nodes;
pub use runner::NodesPlanner;
pub(crate) use runner::{NodesLink, NodesPlannerConfig, NodesTask};
