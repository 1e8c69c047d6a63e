//! A port's way to the views of all shards.

use std::sync::Arc;

use super::port::PortLink;
use crate::ids::ShardId;
use crate::link::{ViewInterest, ViewNews};
use crate::view::{View, ViewReader};

/// Takes views of the shards, and is told of the next ones by the port's bell.
pub struct PortViews {
    port: u16,
    /// In order of shard; empty where no views are made.
    readers: Vec<ViewReader>,
    interests: Vec<Arc<ViewInterest>>,
    news: Arc<ViewNews>,
}

impl PortViews {
    pub(super) fn new(port: u16, links: &[PortLink]) -> Self {
        let news = links.first().map_or_else(Arc::default, |link| Arc::clone(&link.news));
        let interests = links.iter().map(|link| Arc::clone(&link.interest)).collect();
        Self { port, readers: Vec::new(), interests, news }
    }

    pub(crate) fn set_readers(&mut self, readers: Vec<ViewReader>) {
        self.readers = readers;
    }

    /// How many shards have views: all, or none where no views are made.
    #[must_use]
    pub fn shards(&self) -> u16 {
        u16::try_from(self.readers.len()).expect("SHARDS_MAX fits u16")
    }

    /// The current view of a shard.
    ///
    /// # Panics
    /// When it is not below [`shards`](Self::shards).
    #[must_use]
    pub fn latest(&self, shard: ShardId) -> Arc<View> {
        self.readers[shard.index()].latest()
    }

    /// The port's bell is to be rung at the shard's next view, once. To be said before the last look at
    /// the current one.
    ///
    /// # Panics
    /// As [`latest`](Self::latest).
    pub fn want_next(&self, shard: ShardId) {
        self.interests[shard.index()].want_next(self.port);
    }

    /// The port's bell is to be rung, once, some views later.
    ///
    /// # Panics
    /// As [`latest`](Self::latest).
    pub fn want_later(&self, shard: ShardId) {
        self.interests[shard.index()].want_later(self.port);
    }

    /// Whether a shard has told of something that was wanted.
    #[must_use]
    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Takes what was told: calls `visit` with each shard.
    pub fn take_news(&self, visit: impl FnMut(ShardId)) {
        self.news.take(visit);
    }
}
