//! A port's access to the views of all shards.

use std::sync::Arc;

use super::port::PortLink;
use crate::ids::ShardId;
use crate::link::{ShardNews, ViewInterest};
use crate::view::{View, ViewReader};

/// Reads views of the shards. The port's bell announces new ones.
pub struct PortViews {
    port: u16,
    /// In order of shard. Empty if views are disabled.
    readers: Vec<ViewReader>,
    interests: Vec<Arc<ViewInterest>>,
    news: Arc<ShardNews>,
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

    /// Returns the number of shards with views: all, or none if views are disabled.
    #[must_use]
    pub fn shards(&self) -> u16 {
        u16::try_from(self.readers.len()).expect("SHARDS_MAX fits u16")
    }

    /// Returns the newest view of a shard that can be built at once. If there is more to build, the shard has news.
    ///
    /// # Panics
    /// Panics if `shard` is not below [`shards`](Self::shards).
    #[must_use]
    pub fn latest(&self, shard: ShardId) -> Arc<View> {
        let (view, has_more) = self.readers[shard.index()].read();
        if has_more {
            self.news.put(shard);
        }
        view
    }

    /// Returns the sequence of the first view of a shard that shows all that has changed until now.
    ///
    /// # Panics
    /// Panics as [`latest`](Self::latest) does.
    #[must_use]
    pub fn due(&self, shard: ShardId) -> u64 {
        self.readers[shard.index()].due()
    }

    /// Asks to ring the port's bell at the shard's next view, once. Call it before the last read of the
    /// current view.
    ///
    /// # Panics
    /// Panics as [`latest`](Self::latest) does.
    pub fn want_next(&self, shard: ShardId) {
        self.interests[shard.index()].want_next(self.port);
    }

    /// Asks to ring the port's bell, once, some views later.
    ///
    /// # Panics
    /// Panics as [`latest`](Self::latest) does.
    pub fn want_later(&self, shard: ShardId) {
        self.interests[shard.index()].want_later(self.port);
    }

    /// Returns whether a shard has news that was asked for.
    #[must_use]
    pub fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// Takes all news and calls `visit` with each shard.
    pub fn take_news(&self, visit: impl FnMut(ShardId)) {
        self.news.take(visit);
    }
}
