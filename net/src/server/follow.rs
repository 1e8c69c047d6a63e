//! Connections that follow changes.
//!
//! Each request is answered with one page. For each connection and shard, the server keeps at most two views:
//! the one that the client named last, and the target of the current step. The client's cursor holds all
//! other state of the step. The views are dropped with the connection. They are also dropped when the shard
//! has published more than a reader may fall behind since the client's last request; the client then begins
//! again. Views of ended connections are kept for a while, so that a returning client can continue.
//!
//! A request without any change waits. Its I/O thread asks the shards to announce their next views, looks
//! once more, and sleeps until its port's bell wakes it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use wharf_core::ids::ShardId;
use wharf_core::limits::VIEW_BYTES_MAX;
use wharf_core::registrar::Catalog;
use wharf_core::router::PortViews;
use wharf_core::time::Time;
use wharf_core::view::{ChangeCursor, ChangeKinds, View, ViewVersion};

use super::ServerShared;
use super::connection::ConnectionState;
use super::io_thread::Io;
use crate::convert::{follow_kinds, follow_limit, follow_page};
use crate::protocol::{
    FOLLOW_WAIT_MS_MAX, Fault, FollowCursor, FollowPage, FollowReply, FollowRequest, Kind, Reason,
    ReasonCode, ShardVersion,
};

/// Maximum number of connections of a service that may follow changes.
const FOLLOWERS_MAX: u64 = 256;
/// Time for which the views of an ended connection are kept.
const DEPARTED_FOR: Duration = Duration::from_secs(30);
/// Maximum number of views kept of ended connections. Beyond that, the oldest are dropped.
const DEPARTED_MAX: usize = 512;

/// A view and the version under which a client knows it. The view shows the same as that version, for the
/// kinds that are followed.
#[derive(Clone)]
struct Known {
    version: ViewVersion,
    view: Arc<View>,
}

impl Known {
    fn new(view: Arc<View>) -> Self {
        Self { version: view.version(), view }
    }
}

/// The views of one shard kept for one client.
#[derive(Default)]
struct Kept {
    /// The view that the client has.
    base: Option<Known>,
    /// The target of the step that the client was given last.
    to: Option<Known>,
    /// The shard's position at the client's last request: versions, and bytes replaced.
    asked: (u64, u64),
}

/// A connection that follows changes.
pub(super) struct Follow {
    kinds: Cell<ChangeKinds>,
    kept: RefCell<Vec<Kept>>,
    /// The shard to look at first, so that all shards take turns.
    turn: Cell<u16>,
    /// Counts requests. A waiting request ends when a later one arrives.
    requests: Cell<u64>,
    /// True while a request waits.
    waits: Cell<bool>,
    wake: Notify,
}

/// A checked request.
struct Asked {
    /// The client's versions, by shard.
    from: Vec<Option<ViewVersion>>,
    at: Option<(ShardId, ViewVersion, ChangeCursor)>,
    kinds: ChangeKinds,
    limit: usize,
    wait: Duration,
}

/// The views of connections that ended.
#[derive(Default)]
pub(super) struct Departed(Mutex<VecDeque<Left>>);

struct Left {
    until: Instant,
    shard: ShardId,
    kinds: ChangeKinds,
    known: Known,
}

impl Departed {
    fn put(&self, left: impl IntoIterator<Item = Left>) {
        let mut views = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        views.extend(left);
        let beyond = views.len().saturating_sub(DEPARTED_MAX);
        views.drain(..beyond);
    }

    fn find(&self, shard: ShardId, kinds: ChangeKinds, version: ViewVersion) -> Option<Known> {
        let views = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |left: &&Left| (left.shard, left.kinds, left.known.version) == (shard, kinds, version);
        views.iter().rev().find(is_it).map(|left| left.known.clone())
    }

    fn let_go(&self, now: Instant) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|left| left.until > now);
    }
}

/// Returns the position of a shard: its version and the bytes replaced so far.
fn position(view: &View) -> (u64, u64) {
    (view.version().sequence, view.head().copied.bytes)
}

impl Kept {
    fn known(&self) -> impl Iterator<Item = &Known> {
        self.base.iter().chain(&self.to)
    }

    fn find(&self, version: ViewVersion) -> Option<&Known> {
        self.known().find(|known| known.version == version)
    }

    /// Drops the views if the client has been silent for too long. Returns whether any view is kept.
    fn keeps(&mut self, latest: &View, versions_max: u64) -> bool {
        let (sequence, bytes) = position(latest);
        let behind = (sequence.saturating_sub(self.asked.0), bytes.saturating_sub(self.asked.1));
        if behind.0 > versions_max || behind.1 > VIEW_BYTES_MAX {
            (self.base, self.to) = (None, None);
        }
        self.known().next().is_some()
    }

    /// Records that the client asks now.
    fn touch(&mut self, latest: &View, versions_max: u64) {
        self.keeps(latest, versions_max);
        self.asked = position(latest);
    }
}

/// The inputs of a look for changes of one shard.
struct Look<'a> {
    io: &'a Io,
    catalog: &'a Catalog,
    asked: &'a Asked,
    shard: ShardId,
    latest: Arc<View>,
}

impl Look<'_> {
    fn find(&self, kept: &Kept, version: ViewVersion) -> Option<Known> {
        let departed = || self.io.shared.departed.find(self.shard, self.asked.kinds, version);
        kept.find(version).cloned().or_else(departed)
    }

    fn fill(&self, from: Option<&Known>, to: &Known, at: ChangeCursor) -> FollowPage {
        let views = (from.map(|known| &*known.view), &*to.view);
        let mut page = follow_page(views, self.asked.kinds, at, self.asked.limit, &self.catalog.resources);
        page.to = ShardVersion::new(self.shard.0, to.version);
        if let Some(next) = &mut page.next {
            next.to = page.to;
        }
        page
    }

    /// Begins a step from the empty state to the current view.
    fn resync(&self, kept: &mut Kept, why: Reason) -> FollowPage {
        ServerShared::count(&self.io.shared.counters.follow_resyncs);
        let to = Known::new(Arc::clone(&self.latest));
        let page = self.fill(None, &to, ChangeCursor::default());
        (kept.base, kept.to) = (None, Some(to));
        FollowPage { begins: true, resync: why.into(), ..page }
    }

    /// Begins a step from the client's version and returns its first page. Returns `None` if nothing changed.
    fn begin(&self, kept: &mut Kept, version: Option<ViewVersion>) -> Option<FollowPage> {
        let newest = self.latest.version();
        let why = match version {
            None => Reason::NewFollower,
            Some(version) if version.incarnation != newest.incarnation => Reason::OtherIncarnation,
            Some(version) if version.sequence > newest.sequence => Reason::FutureVersion,
            Some(version) => match self.find(kept, version) {
                Some(base) => return self.step(kept, base),
                None if version == newest => {
                    (kept.base, kept.to) = (Some(Known::new(Arc::clone(&self.latest))), None);
                    return None;
                }
                None => Reason::TooFarBehind,
            },
        };
        Some(self.resync(kept, why))
    }

    fn step(&self, kept: &mut Kept, mut base: Known) -> Option<FollowPage> {
        let to = Known::new(Arc::clone(&self.latest));
        let page = if base.view.version() == to.version {
            None
        } else {
            let page = self.fill(Some(&base), &to, ChangeCursor::default());
            Some(page).filter(|page| page.changes() > 0 || page.next.is_some())
        };
        match page {
            Some(page) => {
                (kept.base, kept.to) = (Some(base), Some(to));
                Some(FollowPage { begins: true, ..page })
            }
            None => {
                // Nothing that is followed differs, so the newer view can replace the one of the client's
                // version.
                base.view = to.view;
                (kept.base, kept.to) = (Some(base), None);
                None
            }
        }
    }

    /// Returns the next page of the step that the client names.
    fn go_on(&self, kept: &mut Kept, to: ViewVersion, at: ChangeCursor) -> FollowPage {
        let from = self.asked.from[self.shard.index()].map(|version| self.find(kept, version));
        match (from, self.find(kept, to)) {
            (None, Some(to)) => {
                let page = self.fill(None, &to, at);
                (kept.base, kept.to) = (None, Some(to));
                page
            }
            (Some(Some(from)), Some(to)) => {
                let page = self.fill(Some(&from), &to, at);
                (kept.base, kept.to) = (Some(from), Some(to));
                page
            }
            // The views of the unfinished step are no longer kept.
            _ if to.incarnation != self.latest.version().incarnation => {
                self.resync(kept, Reason::OtherIncarnation)
            }
            _ => self.resync(kept, Reason::TooFarBehind),
        }
    }
}

impl Follow {
    fn new(shards: u16, kinds: ChangeKinds) -> Self {
        Self {
            kinds: Cell::new(kinds),
            kept: RefCell::new((0..shards).map(|_| Kept::default()).collect()),
            turn: Cell::new(0),
            requests: Cell::new(0),
            waits: Cell::new(false),
            wake: Notify::new(),
        }
    }

    /// Returns the page that answers a request, if anything changed.
    fn page(&self, io: &Io, asked: &Asked) -> Option<FollowPage> {
        let mut port = io.port.borrow_mut();
        let catalog = Arc::clone(port.catalog());
        let views = port.views();
        let mut kept = self.kept.borrow_mut();
        if self.kinds.replace(asked.kinds) != asked.kinds {
            // Kept views may be paired with versions in which other kinds differ.
            kept.iter_mut().for_each(|kept| *kept = Kept::default());
        }
        let look = |shard: ShardId| Look { io, catalog: &catalog, asked, shard, latest: views.latest(shard) };
        let versions_max = io.shared.follow_versions_max();
        let mut page = None;
        if let Some((shard, to, at)) = asked.at {
            let look = look(shard);
            let kept = &mut kept[shard.index()];
            kept.touch(&look.latest, versions_max);
            page = Some(look.go_on(kept, to, at));
            views.want_later(shard);
        } else {
            let count = views.shards();
            let first = self.turn.get();
            for shard in (first..count).chain(0..first).map(ShardId) {
                let look = look(shard);
                let kept = &mut kept[shard.index()];
                kept.touch(&look.latest, versions_max);
                page = look.begin(kept, asked.from[shard.index()]);
                views.want_later(shard);
                if page.is_some() {
                    self.turn.set((shard.0 + 1) % count);
                    break;
                }
            }
        }
        if page.is_some() {
            ServerShared::count(&io.shared.counters.follow_pages);
        }
        page
    }

    /// Handles new publications of `shards`: drops views that are too old, and wakes the waiting request.
    fn handle_news(&self, views: &PortViews, shards: &[ShardId], versions_max: u64) {
        let mut all = self.kept.borrow_mut();
        for &shard in shards {
            if all[shard.index()].keeps(&views.latest(shard), versions_max) {
                views.want_later(shard);
            }
        }
        if self.waits.get() {
            self.wake.notify_one();
        }
    }
}

/// Handles the shards' announcements of new views. Returns whether there were any.
pub(super) fn handle_news(io: &Io) -> bool {
    let port = io.port.borrow();
    let views = port.views();
    if !views.has_news() {
        return false;
    }
    let mut shards = Vec::new();
    views.take_news(|shard| shards.push(shard));
    let versions_max = io.shared.follow_versions_max();
    io.followers.borrow().iter().for_each(|follow| follow.handle_news(views, &shards, versions_max));
    true
}

/// Checks a request. `shards` is the number of shards of this start of the service.
fn check(request: &FollowRequest, shards: u16, now: ViewVersion) -> Result<Asked, Fault> {
    let kinds = follow_kinds(request.kinds)?;
    let limit = follow_limit(request.limit)?;
    if request.wait_ms > FOLLOW_WAIT_MS_MAX {
        let message = format!(
            "{} ms is longer than anybody may wait: give at most {FOLLOW_WAIT_MS_MAX}, and ask again",
            request.wait_ms
        );
        return Err(Fault::of_field(Reason::InvalidField, "wait_ms", message));
    }
    let unknown = |field: &str, shard: u16| {
        let message = format!(
            "there is no shard {shard}: this start of the service has {shards}; name versions that it has given"
        );
        Fault::of_field(Reason::UnknownShard, field, message)
    };
    let mut from = vec![None; usize::from(shards)];
    for (place, version) in request.from.iter().enumerate() {
        let field = format!("from[{place}]");
        match from.get_mut(usize::from(version.shard)) {
            Some(there @ None) => *there = Some(version.view()),
            Some(_) => {
                let message = format!("shard {} is named twice: name each once", version.shard);
                return Err(Fault::of_field(Reason::InvalidField, field, message));
            }
            // An earlier start may have had more shards. There is nothing to tell about them.
            None if version.incarnation != now.incarnation.0 => {}
            None => return Err(unknown(&field, version.shard)),
        }
    }
    let at = request.at.map(|FollowCursor { to, stage, place, within }| {
        if to.shard >= shards && to.incarnation == now.incarnation.0 {
            return Err(unknown("at", to.shard));
        }
        if stage >= ChangeCursor::STAGES {
            let message = format!("stage {stage} is none: give the cursor as the page before gave it");
            return Err(Fault::of_field(Reason::InvalidField, "at.stage", message));
        }
        Ok((ShardId(to.shard), to.view(), ChangeCursor { stage, place, within }))
    });
    // A step of an earlier start is over, even if its shard no longer exists.
    let at = at.transpose()?.filter(|(shard, ..)| shard.0 < shards);
    let wait = Duration::from_millis(u64::from(request.wait_ms));
    Ok(Asked { from, at, kinds, limit, wait })
}

/// Returns the connection's follower state, which the first request creates.
fn follower(io: &Io, state: &ConnectionState, shards: u16, kinds: ChangeKinds) -> Result<Rc<Follow>, Fault> {
    if let Some(follow) = &*state.follow.borrow() {
        return Ok(Rc::clone(follow));
    }
    let followers = &io.shared.counters.followers;
    // Relaxed: a bound and a statistic; nothing depends on its order.
    if followers.fetch_add(1, Ordering::Relaxed) >= FOLLOWERS_MAX {
        // Relaxed: see above.
        followers.fetch_sub(1, Ordering::Relaxed);
        let message = format!("{FOLLOWERS_MAX} connections follow changes already: ask again later");
        return Err(Fault::new(Reason::LimitExceeded, message));
    }
    let follow = Rc::new(Follow::new(shards, kinds));
    io.followers.borrow_mut().push(Rc::clone(&follow));
    state.follow.replace(Some(Rc::clone(&follow)));
    Ok(follow)
}

/// Executes a new follow request.
pub(super) async fn handle_follow(
    io: &Rc<Io>,
    state: &Rc<ConnectionState>,
    sequence: u64,
    request: FollowRequest,
    now: Time,
) -> Result<(), Fault> {
    let shards = io.port.borrow().views().shards();
    if shards == 0 {
        let message = "this service makes no views (`planners` is 0 and `follow` is false), so changes cannot \
                       be followed: set `follow` to true";
        return Err(Fault::new(Reason::NotServed, message));
    }
    let newest = io.port.borrow().views().latest(ShardId(0)).version();
    let asked = check(&request, shards, newest)?;
    state.has_written(io).await;
    let follow = follower(io, state, shards, asked.kinds)?;
    let number = follow.requests.get() + 1;
    follow.requests.set(number);
    if follow.waits.get() {
        follow.wake.notify_one();
    }
    let page = follow.page(io, &asked);
    if page.is_some() || asked.wait.is_zero() {
        reply(io, state, sequence, FollowReply { shards, page }, now);
        return Ok(());
    }
    let io = Rc::clone(io);
    let state = Rc::clone(state);
    tokio::task::spawn_local(async move {
        let page = wait(&io, &follow, &asked, number).await;
        reply(&io, &state, sequence, FollowReply { shards, page }, now);
    });
    Ok(())
}

fn reply(io: &Io, state: &ConnectionState, sequence: u64, reply: FollowReply, started: Time) {
    state.reply(Kind::Follow, sequence, &reply);
    io.observe(Kind::Follow, ReasonCode::default(), io.shared.now().nanos_since(started));
}

/// Waits for a change until the deadline, the shutdown of the service, or the client's next request.
async fn wait(io: &Io, follow: &Follow, asked: &Asked, number: u64) -> Option<FollowPage> {
    let deadline = Instant::now() + asked.wait;
    let mut shutdown = io.shutdown.clone();
    loop {
        if follow.requests.get() != number || *shutdown.borrow() {
            return None;
        }
        {
            let port = io.port.borrow();
            (0..port.views().shards()).for_each(|shard| port.views().want_next(ShardId(shard)));
        }
        if let Some(page) = follow.page(io, asked) {
            return Some(page);
        }
        follow.waits.set(true);
        let is_over = tokio::select! {
            () = follow.wake.notified() => false,
            () = tokio::time::sleep_until(deadline) => true,
            _ = shutdown.wait_for(|&stop| stop) => true,
        };
        // If a later request waits too, the flag stays set for it; this one ends.
        follow.waits.set(follow.requests.get() != number);
        if is_over {
            return None;
        }
    }
}

/// Ends the waiting request of a connection that is no longer read.
pub(super) fn end(state: &ConnectionState) {
    if let Some(follow) = &*state.follow.borrow() {
        follow.requests.set(follow.requests.get() + 1);
        follow.wake.notify_one();
    }
}

/// Handles the end of a connection. Its client's views are kept for a while.
pub(super) fn depart(io: &Rc<Io>, state: &ConnectionState) {
    let Some(follow) = state.follow.take() else { return };
    io.followers.borrow_mut().retain(|other| !Rc::ptr_eq(other, &follow));
    let until = Instant::now() + DEPARTED_FOR;
    let kinds = follow.kinds.get();
    let all = follow.kept.take();
    let left = (0..).map(ShardId).zip(&all).flat_map(|(shard, kept)| {
        kept.known().map(move |known| Left { until, shard, kinds, known: known.clone() })
    });
    io.shared.departed.put(left);
    // Relaxed: a bound and a statistic; nothing depends on its order.
    io.shared.counters.followers.fetch_sub(1, Ordering::Relaxed);
    let io = Rc::clone(io);
    tokio::task::spawn_local(async move {
        tokio::time::sleep_until(until).await;
        io.shared.departed.let_go(until);
    });
}
