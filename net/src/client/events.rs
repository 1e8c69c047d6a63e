//! Following events: a follower that receives pages one by one, and books that are rebuilt from them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Client, ClientError};
use crate::protocol::{
    EVENT_BEGUN, EVENT_BUNDLE, EVENT_ENDED, EVENT_GROUP, EVENT_GROUP_REMOVED, EVENT_INSIDE, EVENT_NODE,
    EVENT_NODE_COUNT, EVENT_NODE_REMOVED, EventBody, EventGroup, EventNode, EventsReply, EventsRequest,
    FOLLOW_WAIT_MS_MAX, Holding, WireAllocation, WireGroup,
};

/// Time that one request waits for an event before the follower asks again.
const WAIT: Duration = Duration::from_secs(60);

impl Client {
    /// Follows all events from the position `from` on. 0: from now on. Use one follower of events per client.
    #[must_use]
    pub fn events(&self, from: u64) -> EventFollower {
        EventFollower::new(self.clone(), from)
    }
}

/// Follows the events of a service. It asks for each position once, so no event is missed and none comes twice.
///
/// The client handles lost connections. If the client cannot be used any more, go on with another one.
pub struct EventFollower {
    client: Client,
    limit: u16,
    next: u64,
}

impl EventFollower {
    /// Creates a follower that begins at the position `from`. 0: from now on.
    #[must_use]
    pub fn new(client: Client, from: u64) -> Self {
        Self { client, limit: 0, next: from }
    }

    /// Limits the number of events on a page. 0 means the service's default.
    #[must_use]
    pub fn with_limit(self, limit: u16) -> Self {
        Self { limit, ..self }
    }

    /// Continues with another client.
    pub fn go_on_with(&mut self, client: Client) {
        self.client = client;
    }

    /// Continues at another position, after events were missed.
    pub fn go_on_at(&mut self, position: u64) {
        self.next = position;
    }

    /// Returns the client.
    #[must_use]
    pub fn into_client(self) -> Client {
        self.client
    }

    /// Returns the position after the last event that was received. 0 if there was no answer yet.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.next
    }

    /// Waits for the next page with events, or for one that says why there is none, and returns it.
    ///
    /// # Errors
    /// Same as [`Client::call`]. No event is lost: after an error, the next call continues.
    pub async fn next(&mut self) -> Result<EventsReply, ClientError> {
        loop {
            let page = self.poll(WAIT).await?;
            if !page.events.is_empty() || !page.reason.is_done() {
                return Ok(page);
            }
        }
    }

    /// Returns the next page. It has no events if none comes within `wait`, or if its reason is not `done`. Those that were
    /// asked for are not there then, and the follower stays where it is.
    ///
    /// # Errors
    /// Same as [`next`](Self::next).
    pub async fn poll(&mut self, wait: Duration) -> Result<EventsReply, ClientError> {
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX).min(FOLLOW_WAIT_MS_MAX);
        let request = EventsRequest { from: self.next, limit: self.limit, wait_ms };
        let page = self.client.events_page(&request).await?;
        if page.reason.is_done() {
            self.next = page.next;
        }
        Ok(page)
    }
}

/// A node in [`EventBooks`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookedNode {
    /// The number of its changes.
    pub version: u64,
    /// The node as the last event showed it.
    pub now: EventNode,
}

/// An allocation in [`EventBooks`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookedAllocation {
    /// The node that holds it.
    pub node: u64,
    /// What it holds.
    pub holds: Holding,
    /// The name that another system gave it, or empty.
    pub external_id: String,
    /// Its group and its index there, if it is a bundle.
    pub bundle: Option<(WireGroup, u32)>,
}

/// The books of a service, rebuilt from its events.
///
/// From the first event of a store on, they are whole after each event that [is whole](EventBody::is_whole). Begun from a
/// snapshot that was read at the position `p` or later, they are whole once all events are applied that happened before
/// the snapshot was complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventBooks {
    /// The nodes, by id.
    pub nodes: BTreeMap<u64, BookedNode>,
    /// The allocations.
    pub allocations: BTreeMap<WireAllocation, BookedAllocation>,
    /// What was placed into bundles: the bundle's allocation, and what is taken from it.
    pub inside: BTreeMap<WireAllocation, (WireAllocation, Holding)>,
    /// The groups.
    pub groups: BTreeMap<WireGroup, EventGroup>,
}

impl EventBooks {
    /// Applies an event. Events are applied in their order. Those that the books show already may be applied again, if all
    /// that follow are.
    pub fn apply(&mut self, event: &EventBody) {
        let &EventBody { node, version, bundle, .. } = event;
        match (event.what, event.allocation, event.group) {
            (EVENT_BEGUN, Some(id), _) => {
                let holds = event.holds.as_deref().cloned().unwrap_or_default();
                let external_id = event.external_id.clone();
                self.allocations.insert(id, BookedAllocation { node, holds, external_id, bundle: None });
            }
            (EVENT_BUNDLE, Some(id), Some(group)) => {
                if let Some(allocation) = self.allocations.get_mut(&id) {
                    allocation.bundle = Some((group, bundle));
                }
            }
            (EVENT_INSIDE, Some(id), _) => {
                if let (Some(into), Some(holds)) = (event.into, event.holds.as_deref()) {
                    self.inside.insert(id, (into, holds.clone()));
                }
            }
            (EVENT_ENDED, Some(id), _) => {
                self.allocations.remove(&id);
                self.inside.remove(&id);
            }
            (EVENT_NODE, ..) => {
                if let Some(now) = event.node_now.as_deref().cloned() {
                    self.nodes.insert(node, BookedNode { version, now });
                }
            }
            (EVENT_NODE_COUNT, ..) => {
                if let Some(node) = self.nodes.get_mut(&node) {
                    node.version = version;
                }
            }
            (EVENT_NODE_REMOVED, ..) => drop(self.nodes.remove(&node)),
            (EVENT_GROUP, _, Some(id)) => {
                if let Some(now) = event.group_now.as_deref().cloned() {
                    self.groups.insert(id, now);
                }
            }
            (EVENT_GROUP_REMOVED, _, Some(id)) => drop(self.groups.remove(&id)),
            _ => {}
        }
    }
}
