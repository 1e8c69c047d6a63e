//! Connections that follow changes.
//!
//! A request is answered with one page. Of each shard the server keeps, per connection, at most the view
//! that the client named last and the one to which the step under way leads; everything else about the
//! step stands in the client's cursor. What is kept goes with the connection, or when the shard has
//! published more than a reader may fall behind since the client asked last: then it begins anew. What a
//! connection had when it ended is kept for a while besides, so that a client that comes back goes on.
//!
//! A request for which there is nothing waits: its I/O thread says to the shards that it wants to hear
//! of their next views, looks once more, and is woken by its port's bell.

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

/// Connections of a service that may follow changes at a time.
const FOLLOWERS_MAX: u64 = 256;
/// How long what an ended connection had is kept.
const DEPARTED_FOR: Duration = Duration::from_secs(30);
/// Most views that are kept of ended connections: beyond, the oldest go.
const DEPARTED_MAX: usize = 512;

/// A view, and the version by which a client knows it: what it shows of the kinds that are followed is
/// the same as in that version.
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

/// What is kept of one shard for one client.
#[derive(Default)]
struct Kept {
    /// What it has.
    base: Option<Known>,
    /// Where the step leads that it was given last.
    to: Option<Known>,
    /// How far the shard was when it asked last: versions, and bytes replaced.
    asked: (u64, u64),
}

/// A connection that follows changes.
pub(super) struct Follow {
    kinds: Cell<ChangeKinds>,
    kept: RefCell<Vec<Kept>>,
    /// The shard that is looked at first, so that all have their turn.
    turn: Cell<u16>,
    /// Counts requests: one that waits ends when there is a later one.
    requests: Cell<u64>,
    /// Whether a request waits.
    waits: Cell<bool>,
    wake: Notify,
}

/// What a request asks, once it was checked.
struct Asked {
    /// By shard.
    from: Vec<Option<ViewVersion>>,
    at: Option<(ShardId, ViewVersion, ChangeCursor)>,
    kinds: ChangeKinds,
    limit: usize,
    wait: Duration,
}

/// What connections that ended had.
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

/// How far a shard is.
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

    /// Lets go of everything, if the client has asked for nothing for too long; whether anything is kept.
    fn keeps(&mut self, latest: &View, versions_max: u64) -> bool {
        let (sequence, bytes) = position(latest);
        let behind = (sequence.saturating_sub(self.asked.0), bytes.saturating_sub(self.asked.1));
        if behind.0 > versions_max || behind.1 > VIEW_BYTES_MAX {
            (self.base, self.to) = (None, None);
        }
        self.known().next().is_some()
    }

    /// The client asks.
    fn touch(&mut self, latest: &View, versions_max: u64) {
        self.keeps(latest, versions_max);
        self.asked = position(latest);
    }
}

/// What looks for changes of one shard need.
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

    /// A step from nothing to the current view.
    fn resync(&self, kept: &mut Kept, why: Reason) -> FollowPage {
        ServerShared::count(&self.io.shared.counters.follow_resyncs);
        let to = Known::new(Arc::clone(&self.latest));
        let page = self.fill(None, &to, ChangeCursor::default());
        (kept.base, kept.to) = (None, Some(to));
        FollowPage { begins: true, resync: why.into(), ..page }
    }

    /// The first page of a step from what the client has; none: there is nothing new in it.
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
                // Nothing that is followed differs: the client's version stands for the newer view.
                base.view = to.view;
                (kept.base, kept.to) = (Some(base), None);
                None
            }
        }
    }

    /// The next page of the step that the client names.
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
            // In the middle of a step there is nothing to go on from.
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

    /// The page that answers a request, if there is anything.
    fn page(&self, io: &Io, asked: &Asked) -> Option<FollowPage> {
        let mut port = io.port.borrow_mut();
        let catalog = Arc::clone(port.catalog());
        let views = port.views();
        let mut kept = self.kept.borrow_mut();
        if self.kinds.replace(asked.kinds) != asked.kinds {
            // What is kept may stand for versions in which other kinds differ.
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

    /// A shard told that it has published: what is too old is let go of, what waits looks again.
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

/// Takes what shards told of their views; whether there was anything.
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

/// Checks a request to a service of so many shards, of this start.
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
            // An earlier start may have had more shards: nothing is to be told of them.
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
    // A step of an earlier start is over, also where its shard is no more.
    let at = at.transpose()?.filter(|(shard, ..)| shard.0 < shards);
    let wait = Duration::from_millis(u64::from(request.wait_ms));
    Ok(Asked { from, at, kinds, limit, wait })
}

/// The connection as a follower: made with its first request.
fn follower(io: &Io, state: &ConnectionState, shards: u16, kinds: ChangeKinds) -> Result<Rc<Follow>, Fault> {
    if let Some(follow) = &*state.follow.borrow() {
        return Ok(Rc::clone(follow));
    }
    let followers = &io.shared.counters.followers;
    // Relaxed: a bound and a statistic; nothing else rests on it.
    if followers.fetch_add(1, Ordering::Relaxed) >= FOLLOWERS_MAX {
        // Relaxed: as above.
        followers.fetch_sub(1, Ordering::Relaxed);
        let message = format!("{FOLLOWERS_MAX} connections follow changes already: ask again later");
        return Err(Fault::new(Reason::LimitExceeded, message));
    }
    let follow = Rc::new(Follow::new(shards, kinds));
    io.followers.borrow_mut().push(Rc::clone(&follow));
    state.follow.replace(Some(Rc::clone(&follow)));
    Ok(follow)
}

/// Carries out a new request.
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

/// Waits for a change, until the wait is over, the service stops, or the client asks something else.
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
        // Of two that wait the later one counts; the other ends.
        follow.waits.set(follow.requests.get() != number);
        if is_over {
            return None;
        }
    }
}

/// Ends what waits on a connection that is read no more.
pub(super) fn end(state: &ConnectionState) {
    if let Some(follow) = &*state.follow.borrow() {
        follow.requests.set(follow.requests.get() + 1);
        follow.wake.notify_one();
    }
}

/// The connection is gone. What its client had is kept for a while.
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
    // Relaxed: a bound and a statistic; nothing else rests on it.
    io.shared.counters.followers.fetch_sub(1, Ordering::Relaxed);
    let io = Rc::clone(io);
    tokio::task::spawn_local(async move {
        tokio::time::sleep_until(until).await;
        io.shared.departed.let_go(until);
    });
}
