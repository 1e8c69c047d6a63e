//! Following changes: a follower that receives pages one by one, and a mirror that applies them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Client, ClientError};
use crate::protocol::{
    AllocationBegun, FOLLOW_ALL, FOLLOW_WAIT_MS_MAX, FollowCursor, FollowPage, FollowReply, FollowRequest,
    HoldBegun, NodeChange, ShardVersion, WireAllocation, WireStatement,
};

/// Time that one request waits for a change before the follower asks again.
const WAIT: Duration = Duration::from_secs(60);

impl Client {
    /// Follows all changes since the versions `from`. Shards without a version begin from nothing. Use one
    /// follower per client.
    #[must_use]
    pub fn follow(&self, from: &[ShardVersion]) -> Follower {
        Follower::new(self.clone(), FOLLOW_ALL, from)
    }
}

/// A page that a follower received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    /// The number of shards of the service. Copies of other shards are obsolete.
    pub shards: u16,
    /// The changes of one shard.
    pub page: FollowPage,
}

/// Follows the changes of a service. It keeps no copy of the state; a [`Mirror`] does.
///
/// The client handles lost connections. If the client cannot be used any more, create a follower on another
/// client with [`versions`](Self::versions).
pub struct Follower {
    client: Client,
    kinds: u8,
    limit: u16,
    versions: BTreeMap<u16, ShardVersion>,
    /// The position in the current step.
    at: Option<FollowCursor>,
}

impl Follower {
    /// Creates a follower. `kinds` is the sum of `FOLLOW_*` kinds.
    #[must_use]
    pub fn new(client: Client, kinds: u8, from: &[ShardVersion]) -> Self {
        let versions = from.iter().map(|&version| (version.shard, version)).collect();
        Self { client, kinds, limit: 0, versions, at: None }
    }

    /// Limits the number of changes on a page. 0 means the service's default.
    #[must_use]
    pub fn with_limit(self, limit: u16) -> Self {
        Self { limit, ..self }
    }

    /// Continues with another client, even inside a step.
    pub fn go_on_with(&mut self, client: Client) {
        self.client = client;
    }

    /// Returns the client.
    #[must_use]
    pub fn into_client(self) -> Client {
        self.client
    }

    /// Returns the versions of all shards that are complete, in order of shard. Another follower can continue
    /// from them. A shard in the middle of a step is left out.
    #[must_use]
    pub fn versions(&self) -> Vec<ShardVersion> {
        let under_way = self.at.map(|at| at.to.shard);
        self.versions.values().filter(|version| Some(version.shard) != under_way).copied().collect()
    }

    /// Returns whether no step is in progress: the pages so far amount to a state of each shard.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.at.is_none()
    }

    /// Waits for the next page and returns it.
    ///
    /// # Errors
    /// Same as [`Client::call`]. No page is lost: after an error, the next call continues.
    pub async fn next(&mut self) -> Result<Followed, ClientError> {
        loop {
            if let Some(followed) = self.poll(WAIT).await? {
                return Ok(followed);
            }
        }
    }

    /// Returns the next page if one comes within `wait`.
    ///
    /// # Errors
    /// Same as [`next`](Self::next).
    pub async fn poll(&mut self, wait: Duration) -> Result<Option<Followed>, ClientError> {
        let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX).min(FOLLOW_WAIT_MS_MAX);
        let from = self.versions.values().copied().collect();
        let at = self.at;
        let request = FollowRequest { from, at, kinds: self.kinds, limit: self.limit, wait_ms };
        let FollowReply { shards, page } = self.client.follow_page(&request).await?;
        self.versions.retain(|&shard, _| shard < shards);
        let Some(page) = page else { return Ok(None) };
        if page.is_resync() {
            self.versions.remove(&page.to.shard);
        }
        self.at = page.next;
        if self.at.is_none() {
            self.versions.insert(page.to.shard, page.to);
        }
        Ok(Some(Followed { shards, page }))
    }
}

/// A copy of one shard, as far as its follower received it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirroredShard {
    /// The version of the copy. `None` while a step is in progress.
    pub version: Option<ShardVersion>,
    /// Nodes by id, with everything known about them.
    pub nodes: BTreeMap<u64, NodeChange>,
    /// Allocations by id.
    pub allocations: BTreeMap<WireAllocation, AllocationBegun>,
    /// Holds by statement and operation.
    pub holds: BTreeMap<(WireStatement, u16), HoldBegun>,
}

/// A copy of everything that a follower received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mirror {
    /// The copies by shard.
    pub shards: BTreeMap<u16, MirroredShard>,
}

impl Mirror {
    /// Applies a received page. Pages must be given in order, without gaps.
    pub fn apply(&mut self, followed: &Followed) {
        let Followed { shards, page } = followed;
        self.shards.retain(|shard, _| shard < shards);
        let shard = self.shards.entry(page.to.shard).or_default();
        if page.is_resync() {
            *shard = MirroredShard::default();
        }
        for ended in &page.holds_ended {
            shard.holds.remove(&(ended.statement, ended.operation));
        }
        for ended in &page.allocations_ended {
            shard.allocations.remove(&ended.allocation);
        }
        for gone in &page.nodes_gone {
            shard.nodes.remove(&gone.node);
        }
        for node in &page.nodes {
            let before = shard.nodes.remove(&node.node).unwrap_or_default();
            let (details, body) =
                (node.details.clone().or(before.details), node.body.clone().or(before.body));
            shard.nodes.insert(node.node, NodeChange { details, body, ..node.clone() });
        }
        for begun in &page.allocations {
            shard.allocations.insert(begun.allocation, begun.clone());
        }
        for begun in &page.holds {
            shard.holds.insert((begun.statement, begun.operation), begun.clone());
        }
        shard.version = page.next.is_none().then_some(page.to);
    }

    /// Returns all nodes by id.
    #[must_use]
    pub fn nodes(&self) -> BTreeMap<u64, &NodeChange> {
        self.shards.values().flat_map(|shard| &shard.nodes).map(|(&id, node)| (id, node)).collect()
    }
}
