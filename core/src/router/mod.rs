//! Routes requests to shards and combines the shards' answers.

pub(crate) mod port;
pub use port::{NoRoom, NotPlaced, Port, PortLink, PortReply, PortRequest, Tag, Verdict};
mod placing;
pub(crate) mod plans;
pub(crate) use plans::{PlanAnswer, PlanLink, PlanSubmission};
pub(crate) mod wait;
pub(crate) use wait::WATCH_BIT;
pub use wait::{WaitEnd, WaitRequest};
mod watching;
pub use watching::PortViews;
mod table;
pub use table::RoutingTable;
