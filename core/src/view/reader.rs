//! How views are given to readers, and what readers keep alive.
//!
//! A reader that keeps a view keeps the chunks that were replaced since: at most what has been
//! copied since ([`ViewHead::copied`](super::ViewHead)), and at most the whole view. Beyond a bound of
//! either ([`VIEW_VERSIONS_MAX`], [`VIEW_BYTES_MAX`]) it is told to let go and begin anew.
//!
//! Destructors: the shard's thread lets go of a view last, when it publishes a later one, unless a
//! reader keeps the view then; then the reader's thread does, when it lets go. What the epoch defers to
//! any thread is one reference, not a destructor.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::{Copied, View};
use crate::limits::{VIEW_BYTES_MAX, VIEW_VERSIONS_MAX};
use crate::link::ViewCell;

/// Replaced views that the shard keeps while the epoch may still have a reference.
const RETIRED_MAX: usize = 8;

/// Takes the views of one shard, from any thread.
#[derive(Clone)]
pub struct ViewReader(Arc<ViewCell<View>>);

/// What a reader gets that has a view already.
#[derive(Clone, Debug)]
pub enum Fresh {
    /// Nothing was published since.
    Same,
    /// A later view: its difference from the reader's is cheap.
    Later(Arc<View>),
    /// A later view, and the reader's is so old that it must be let go of: keeping it beside the
    /// later one, to follow the difference, costs too much memory.
    MustResync(Arc<View>),
}

impl ViewReader {
    /// The current view.
    #[must_use]
    pub fn latest(&self) -> Arc<View> {
        self.0.load()
    }

    /// The current view, for a reader that has `held`.
    ///
    /// # Panics
    /// When `held` is another shard's.
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
    /// Whether this view is so much older than `latest` that no reader may keep it.
    ///
    /// # Panics
    /// When `latest` is another shard's or of another start.
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

/// What readers keep alive of a shard's past views.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    /// Past views that are still alive.
    pub views: u64,
    /// The chunks that were replaced since the oldest of them: all of them together keep no more.
    pub bytes: u64,
}

/// The shard's side of the views that were published.
pub(crate) struct Published {
    cell: Arc<ViewCell<View>>,
    current: Arc<View>,
    /// The shard's own references to views that were replaced just now.
    retired: VecDeque<Arc<View>>,
    /// Past views that somebody else kept when the shard let go, oldest first.
    kept: VecDeque<Weak<View>>,
    /// How many of `kept` make it look which are still alive.
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

    /// What is kept of past views, by readers or for want of an epoch.
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
