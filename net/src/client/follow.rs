//! Following changes: pages one after the other, and a copy of what they tell.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Client, ClientError};
use crate::protocol::{
    AllocationBegun, FOLLOW_ALL, FOLLOW_WAIT_MS_MAX, FollowCursor, FollowPage, FollowReply, FollowRequest,
    HoldBegun, NodeChange, ShardVersion, WireAllocation, WireStatement,
};

/// How long one request of a follower waits for a change before it asks again.
const WAIT: Duration = Duration::from_secs(60);

impl Client {
    /// Follows all changes from the versions `from` on, or from nothing. One follower per client.
    #[must_use]
    pub fn follow(&self, from: &[ShardVersion]) -> Follower {
        Follower::new(self.clone(), FOLLOW_ALL, from)
    }
}

/// What a follower was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    /// How many shards the service has: what was known of others is gone.
    pub shards: u16,
    /// The changes of one shard.
    pub page: FollowPage,
}

/// Follows the changes of a service. It keeps no copy: a [`Mirror`] does.
///
/// A lost connection is its client's matter; a client that cannot be had any more is replaced by a
/// follower on another, from [`versions`](Self::versions).
pub struct Follower {
    client: Client,
    kinds: u8,
    limit: u16,
    versions: BTreeMap<u16, ShardVersion>,
    /// The step under way.
    at: Option<FollowCursor>,
}

impl Follower {
    /// A follower of these `FOLLOW_*` kinds, added up.
    #[must_use]
    pub fn new(client: Client, kinds: u8, from: &[ShardVersion]) -> Self {
        let versions = from.iter().map(|&version| (version.shard, version)).collect();
        Self { client, kinds, limit: 0, versions, at: None }
    }

    /// At most so many changes on a page; 0: as many as the service thinks fit.
    #[must_use]
    pub fn with_limit(self, limit: u16) -> Self {
        Self { limit, ..self }
    }

    /// Goes on with another client, also inside a step.
    pub fn go_on_with(&mut self, client: Client) {
        self.client = client;
    }

    /// The client.
    #[must_use]
    pub fn into_client(self) -> Client {
        self.client
    }

    /// Of what shards everything was told, and up to which version, in order of shard: from here another
    /// follower goes on. A shard in the middle of a step is not among them.
    #[must_use]
    pub fn versions(&self) -> Vec<ShardVersion> {
        let under_way = self.at.map(|at| at.to.shard);
        self.versions.values().filter(|version| Some(version.shard) != under_way).copied().collect()
    }

    /// Whether no step is under way: what was told is a state of each shard.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.at.is_none()
    }

    /// The next page, for which it waits.
    ///
    /// # Errors
    /// As [`Client::call`]. Nothing is lost by an error: asked again, it goes on.
    pub async fn next(&mut self) -> Result<Followed, ClientError> {
        loop {
            if let Some(followed) = self.poll(WAIT).await? {
                return Ok(followed);
            }
        }
    }

    /// The next page, if one comes within `wait`.
    ///
    /// # Errors
    /// As [`next`](Self::next).
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

/// A copy of what a follower was told of one shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirroredShard {
    /// Of which version it is; none while a step is under way.
    pub version: Option<ShardVersion>,
    /// By id, with all of what is known.
    pub nodes: BTreeMap<u64, NodeChange>,
    /// By id.
    pub allocations: BTreeMap<WireAllocation, AllocationBegun>,
    /// By statement and operation.
    pub holds: BTreeMap<(WireStatement, u16), HoldBegun>,
}

/// A copy of what a follower was told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mirror {
    /// By shard.
    pub shards: BTreeMap<u16, MirroredShard>,
}

impl Mirror {
    /// Takes over what was told. The pages are to be given in their order, none left out.
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

    /// All nodes, by id.
    #[must_use]
    pub fn nodes(&self) -> BTreeMap<u64, &NodeChange> {
        self.shards.values().flat_map(|shard| &shard.nodes).map(|(&id, node)| (id, node)).collect()
    }
}
