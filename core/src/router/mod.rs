//! Which shard a request goes to, and what the shards together answer.

pub(crate) mod port;
pub use port::{NoRoom, Port, PortLink, PortReply, PortRequest, Tag, Verdict};
mod placing;
pub(crate) mod plans;
pub(crate) use plans::PlanLink;
pub(crate) mod wait;
pub use wait::{WaitEnd, WaitRequest};
mod watching;
pub use watching::PortViews;
mod woken;
pub use woken::WokenBox;
mod summary;
pub use summary::{Facts, ShardSummary};
mod table;
pub use table::RoutingTable;
