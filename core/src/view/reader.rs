//! How readers get views, and what they keep alive.
//!
//! A reader that keeps a view keeps the chunks that were replaced since. This is at most what was copied
//! since ([`ViewHead::copied`](super::ViewHead)), and at most the whole view. Beyond a bound
//! ([`VIEW_VERSIONS_MAX`], [`VIEW_BYTES_MAX`]), the reader is told to release its view and to resync.
//!
//! Destructors: usually the shard's thread drops the last reference to a view, when it publishes a later one.
//! If a reader still keeps the view then, the reader's thread drops it. The epoch defers only one reference
//! to an arbitrary thread, not a destructor.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::{Copied, View};
use crate::limits::{VIEW_BYTES_MAX, VIEW_VERSIONS_MAX};
use crate::link::ViewCell;

/// The number of replaced views that the shard keeps while the epoch may still have a reference.
const RETIRED_MAX: usize = 8;

/// Reads the views of one shard, from any thread.
#[derive(Clone)]
pub struct ViewReader(Arc<ViewCell<View>>);

/// The answer to a reader that has a view already.
#[derive(Clone, Debug)]
pub enum Fresh {
    /// Nothing was published since.
    Same,
    /// A later view. Its difference from the reader's view is cheap.
    Later(Arc<View>),
    /// A later view. The reader's view is so old that it must be released: keeping both costs too much
    /// memory.
    MustResync(Arc<View>),
}

impl ViewReader {
    /// Returns the current view.
    #[must_use]
    pub fn latest(&self) -> Arc<View> {
        self.0.load()
    }

    /// Returns the current view for a reader that has `held`.
    ///
    /// # Panics
    /// Panics if `held` is a view of another shard or of another start.
    #[must_use]
    pub fn after(&self, held: &View) -> Fresh {
        let latest = self.latest();
        if latest.version() == held.version() {
            return Fresh::Same;
        }
        if held.is_stale(&latest) { Fresh::MustResync(latest) } else { Fresh::Later(latest) }
    }
}

impl View {
    /// Returns whether this view is so much older than `latest` that no reader may keep it.
    ///
    /// # Panics
    /// Panics if `latest` is a view of another shard or of another start.
    #[must_use]
    pub fn is_stale(&self, latest: &Self) -> bool {
        let mine = self.head();
        let its = latest.head();
        assert!(
            mine.shard == its.shard && mine.version.incarnation == its.version.incarnation,
            "views of two shards or starts have no common order"
        );
        let versions = its.version.sequence.saturating_sub(mine.version.sequence);
        versions > VIEW_VERSIONS_MAX || its.copied.bytes.saturating_sub(mine.copied.bytes) > VIEW_BYTES_MAX
    }
}

/// The past views of a shard that are still alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    /// The number of past views that are still alive.
    pub views: u64,
    /// The size of the chunks that were replaced since the oldest of them. All of them together keep at most
    /// this.
    pub bytes: u64,
}

/// The shard's side of its published views.
pub(crate) struct Published {
    cell: Arc<ViewCell<View>>,
    current: Arc<View>,
    /// The shard's own references to views that were replaced recently.
    retired: VecDeque<Arc<View>>,
    /// Past views that others kept when the shard released them, oldest first.
    kept: VecDeque<Weak<View>>,
    /// The length of `kept` above which dead entries are removed.
    look_at: usize,
}

impl Published {
    pub(crate) fn new(first: Arc<View>) -> Self {
        Self {
            cell: Arc::new(ViewCell::new(Arc::clone(&first))),
            current: first,
            retired: VecDeque::new(),
            kept: VecDeque::new(),
            look_at: 2 * RETIRED_MAX,
        }
    }

    pub(crate) fn reader(&self) -> ViewReader {
        ViewReader(Arc::clone(&self.cell))
    }

    pub(crate) fn current(&self) -> &Arc<View> {
        &self.current
    }

    pub(crate) fn publish(&mut self, next: Arc<View>) {
        self.cell.publish(Arc::clone(&next));
        self.retired.push_back(std::mem::replace(&mut self.current, next));
        while let Some(oldest) = self.retired.front() {
            let alone = Arc::strong_count(oldest) == 1;
            if !alone && self.retired.len() <= RETIRED_MAX {
                break;
            }
            let oldest = self.retired.pop_front().expect("just seen");
            if !alone {
                self.kept.push_back(Arc::downgrade(&oldest));
            }
        }
        if self.kept.len() > self.look_at {
            self.kept.retain(|view| view.strong_count() > 0);
            self.look_at = 2 * self.kept.len().max(RETIRED_MAX);
        }
    }

    /// Returns the past views that readers or the epoch keep alive.
    pub(crate) fn retained(&self) -> Retained {
        let kept = self.kept.iter().filter_map(Weak::upgrade);
        let mut alive = kept.chain(self.retired.iter().cloned()).peekable();
        let oldest = alive.peek().map_or_else(Copied::default, |view| view.head().copied);
        match alive.count() as u64 {
            0 => Retained::default(),
            views => Retained { views, bytes: self.current.head().copied.since(oldest).bytes },
        }
    }
}
