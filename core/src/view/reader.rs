//! How readers get views, and what they keep alive.
//!
//! A shard hands over images of what changed. A read brings the persistent arrays up to them, at most a
//! portion per read, and makes a view of the last complete state. Readers share a lock for that. The shard never
//! takes it. If a portion is not enough, the reader gets the newest complete view, and reads on later.
//!
//! A reader that keeps a view keeps the chunks that were replaced since. This is at most what was copied
//! since ([`ViewHead::copied`](super::ViewHead)), and at most the whole view. Beyond a bound
//! ([`VIEW_VERSIONS_MAX`], [`VIEW_BYTES_MAX`]), the reader is told to release its view and to resync.
//!
//! Destructors run on the threads of readers: of the one that builds the next view, or of the one that keeps the
//! view longest.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};

use super::changed::{Changed, Order, Taken};
use super::{Copied, Mirror, View, ViewHead};
use crate::limits::{VIEW_BYTES_MAX, VIEW_PORTION, VIEW_VERSIONS_MAX};
use crate::link::{ViewProgress, ViewSource, lock};

/// The number of kept views up to which dead entries are not looked for.
const KEPT_MIN: usize = 16;

/// Reads the views of one shard, from any thread.
#[derive(Clone)]
pub struct ViewReader(Arc<Reading>);

struct Reading {
    builder: Mutex<Builder>,
    progress: ViewProgress,
}

/// Builds views from what the shard hands over, on the threads of readers.
struct Builder {
    source: ViewSource<Changed>,
    /// What is taken over in part, and how much of it.
    begun: Option<(Box<Changed>, Taken)>,
    order: Order,
    mirror: Mirror,
    copied: Copied,
    /// `None` only until the first view is built.
    current: Option<Arc<View>>,
    /// Past views that readers kept when they were replaced, oldest first.
    kept: VecDeque<Weak<View>>,
    /// The length of `kept` above which dead entries are removed.
    look_at: usize,
}

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
    /// Creates a reader. Its first read builds the first view, at any cost, so something must have been handed over by
    /// then.
    pub(crate) fn new(source: ViewSource<Changed>, progress: ViewProgress) -> Self {
        let builder = Mutex::new(Builder {
            source,
            begun: None,
            order: Order::default(),
            mirror: Mirror::default(),
            copied: Copied::default(),
            current: None,
            kept: VecDeque::new(),
            look_at: KEPT_MIN,
        });
        Self(Arc::new(Reading { builder, progress }))
    }

    /// Returns the newest view that can be built with a bounded amount of work. It shows at least all that had
    /// changed when a reader last read, or [`due`](Self::due) tells what is still to be published.
    #[must_use]
    pub fn latest(&self) -> Arc<View> {
        self.read().0
    }

    /// Like [`latest`](Self::latest). Also returns whether the shard has handed over more than was built.
    #[must_use]
    pub fn read(&self) -> (Arc<View>, bool) {
        let mut builder = lock(&self.0.builder);
        let has_more = builder.go_on();
        let view = builder.current.clone().expect("a shard hands over its first view before it has readers");
        drop(builder);
        // Buffers may be free again. A shard that waits for one is rung.
        let _ = self.due();
        (view, has_more)
    }

    /// Reads until the view with the sequence `due` is built or nothing is left to build. The work is proportional
    /// to what changed: not for a thread that others wait for.
    #[must_use]
    pub fn read_until(&self, due: u64) -> Arc<View> {
        loop {
            let (view, has_more) = self.read();
            if !has_more || view.version().sequence >= due {
                return view;
            }
        }
    }

    /// Returns the sequence of the first view that shows all that has changed until now. The shard publishes it soon,
    /// if [`latest`](Self::latest) does not return it.
    #[must_use]
    pub fn due(&self) -> u64 {
        self.0.progress.due()
    }

    /// Returns the number of bundles that have ended, whether or not a view tells it.
    pub(crate) fn bundles_ended(&self) -> u64 {
        self.0.progress.bundles_ended()
    }

    /// Returns what is retained of past views.
    #[must_use]
    pub fn retained(&self) -> Retained {
        lock(&self.0.builder).retained()
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

impl Builder {
    /// Takes over the next images, at most a portion, and makes a view of the last complete state. Returns whether
    /// more was handed over.
    fn go_on(&mut self) -> bool {
        let mut room = if self.current.is_some() { VIEW_PORTION } else { usize::MAX };
        let mut head = None;
        while room > 0 {
            let next = self.begun.take().or_else(|| Some((self.source.pop()?, Taken::default())));
            let Some((mut changed, mut taken)) = next else { break };
            // Once the mirror has a part of later changes, it is too late for a view of the state before.
            if changed.len() > room {
                self.publish(head.take());
            }
            let parts = (&mut self.mirror, &mut self.order);
            if !changed.apply(&mut taken, &mut room, parts, &mut self.copied) {
                self.begun = Some((changed, taken));
                break;
            }
            head = changed.head.take();
            let shown = head.as_ref().expect("what is handed over completes a view");
            self.mirror.tell(shown.bundles_ended, &changed.ended, &mut self.copied);
            self.mirror.expire(shown.leases_expired, &changed.expired, &mut self.copied);
            changed.clear();
            self.source.give_back(changed);
        }
        self.publish(head);
        self.begun.is_some() || !self.source.is_empty()
    }

    /// Makes the view with this head the current one.
    fn publish(&mut self, head: Option<ViewHead>) {
        let Some(head) = head else { return };
        let head = ViewHead { copied: self.copied, ..head };
        let next = Arc::new(View::new(head, self.mirror.clone()));
        let Some(before) = self.current.replace(next) else { return };
        if Arc::strong_count(&before) > 1 {
            self.kept.push_back(Arc::downgrade(&before));
        }
        if self.kept.len() > self.look_at {
            self.kept.retain(|view| view.strong_count() > 0);
            self.look_at = 2 * self.kept.len().max(KEPT_MIN);
        }
    }

    /// Returns the past views that readers keep alive.
    fn retained(&self) -> Retained {
        let mut alive = self.kept.iter().filter_map(Weak::upgrade).peekable();
        let oldest = alive.peek().map_or_else(Copied::default, |view| view.head().copied);
        match alive.count() as u64 {
            0 => Retained::default(),
            views => Retained { views, bytes: self.copied.since(oldest).bytes },
        }
    }
}
