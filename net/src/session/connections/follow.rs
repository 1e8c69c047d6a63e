//! Connections that follow changes.
//!
//! Each request is answered with one page. For each connection and shard, the service keeps at most two views:
//! the one that the client named last, and the target of the current step. The client's cursor holds all
//! other state of the step. The views are dropped with the connection. They are also dropped when the shard
//! has published more than a reader may fall behind since the client's last request; the client then begins
//! again. Views of ended connections are kept for a while, so that a returning client can continue.
//!
//! A request without any change waits. The service asks the shards to announce their next views and looks once
//! more. The bell of its port wakes it when there are any.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use wharf_core::ids::ShardId;
use wharf_core::limits::VIEW_BYTES_MAX;
use wharf_core::link::lock;
use wharf_core::registrar::Catalog;
use wharf_core::router::{Port, PortViews};
use wharf_core::time::Time;
use wharf_core::view::{ChangeCursor, ChangeKinds, View, ViewVersion};

use super::{Asker, ConnectionKey, ConnectionService, Stalled};
use crate::convert::{follow_kinds, follow_limit, follow_page};
use crate::limits::{DEPARTED_MAX, FOLLOWERS_MAX};
use crate::protocol::{
    FOLLOW_WAIT_MS_MAX, Fault, FollowCursor, FollowPage, FollowReply, FollowRequest, Reason, ShardVersion,
};
use crate::session::shared::{Counters, SessionShared};

/// Time for which the views of an ended connection are kept.
const DEPARTED_FOR: Duration = Duration::from_secs(30);

/// The longest time for which a request waits for views that are about to be published.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(1);

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

/// The follower state of a connection.
pub(super) struct Follow {
    kinds: ChangeKinds,
    /// The kept views, by shard.
    kept: Vec<Kept>,
    /// The shard to look at first, so that all shards take turns.
    turn: u16,
    /// The request that waits for a change. It ends when a later one arrives.
    waiting: Option<Followed>,
}

/// A follow request that was checked.
pub(super) struct Followed {
    asker: Asker,
    /// When it is answered if nothing has changed by then.
    until: Time,
    asked: Asked,
}

/// The content of a request.
struct Asked {
    /// The client's versions, by shard.
    from: Vec<Option<ViewVersion>>,
    /// The sequence of the first view that shows all that had changed when the request came, by shard. A step leads
    /// to no older view.
    due: Vec<u64>,
    at: Option<(ShardId, ViewVersion, ChangeCursor)>,
    kinds: ChangeKinds,
    limit: usize,
    wait: Duration,
}

/// The views of connections that ended.
#[derive(Default)]
pub(in crate::session) struct Departed(Mutex<VecDeque<Left>>);

struct Left {
    until: Time,
    shard: ShardId,
    kinds: ChangeKinds,
    known: Known,
}

impl Departed {
    fn put(&self, left: impl IntoIterator<Item = Left>) {
        let mut views = lock(&self.0);
        views.extend(left);
        let beyond = views.len().saturating_sub(DEPARTED_MAX);
        views.drain(..beyond);
    }

    fn find(&self, shard: ShardId, kinds: ChangeKinds, version: ViewVersion) -> Option<Known> {
        let views = lock(&self.0);
        let is_it = |left: &&Left| (left.shard, left.kinds, left.known.version) == (shard, kinds, version);
        views.iter().rev().find(is_it).map(|left| left.known.clone())
    }

    fn let_go(&self, now: Time) {
        lock(&self.0).retain(|left| left.until > now);
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
    shared: &'a SessionShared,
    catalog: &'a Catalog,
    asked: &'a Asked,
    shard: ShardId,
    latest: Arc<View>,
}

impl Look<'_> {
    fn find(&self, kept: &Kept, version: ViewVersion) -> Option<Known> {
        let departed = || self.shared.departed.find(self.shard, self.asked.kinds, version);
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
        Counters::count(&self.shared.counters.follow_resyncs);
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
            (from @ (None | Some(Some(_))), Some(to)) => {
                let from = from.flatten();
                let page = self.fill(from.as_ref(), &to, at);
                (kept.base, kept.to) = (from, Some(to));
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
        let kept = (0..shards).map(|_| Kept::default()).collect();
        Self { kinds, kept, turn: 0, waiting: None }
    }

    /// Returns the page that answers a request, if anything changed.
    fn page(&mut self, port: &mut Port, shared: &SessionShared, asked: &Asked) -> Option<FollowPage> {
        let catalog = Arc::clone(port.catalog());
        let views = port.views();
        if std::mem::replace(&mut self.kinds, asked.kinds) != asked.kinds {
            // Kept views may be paired with versions in which other kinds differ.
            self.kept.iter_mut().for_each(|kept| *kept = Kept::default());
        }
        let look =
            |shard: ShardId| Look { shared, catalog: &catalog, asked, shard, latest: views.latest(shard) };
        let versions_max = shared.follow_versions_max();
        let mut page = None;
        if let Some((shard, to, at)) = asked.at {
            let look = look(shard);
            let kept = &mut self.kept[shard.index()];
            kept.touch(&look.latest, versions_max);
            page = Some(look.go_on(kept, to, at));
            views.want_later(shard);
        } else {
            let count = views.shards();
            let first = self.turn;
            for shard in (first..count).chain(0..first).map(ShardId) {
                let look = look(shard);
                let kept = &mut self.kept[shard.index()];
                kept.touch(&look.latest, versions_max);
                if look.latest.version().sequence >= asked.due[shard.index()] {
                    page = look.begin(kept, asked.from[shard.index()]);
                }
                views.want_later(shard);
                if page.is_some() {
                    self.turn = (shard.0 + 1) % count;
                    break;
                }
            }
        }
        if page.is_some() {
            Counters::count(&shared.counters.follow_pages);
        }
        page
    }

    /// Returns whether a view that the request needs is still to be published or built.
    fn is_early(views: &PortViews, asked: &Asked) -> bool {
        let newest = |shard| views.latest(shard).version().sequence;
        (0..).map(ShardId).zip(&asked.due).any(|(shard, &due)| newest(shard) < due)
    }

    /// Drops views of `shards` that are too old.
    fn drop_old(&mut self, views: &PortViews, shards: &[ShardId], versions_max: u64) {
        for &shard in shards {
            if self.kept[shard.index()].keeps(&views.latest(shard), versions_max) {
                views.want_later(shard);
            }
        }
    }
}

/// Checks a request.
fn check(request: &FollowRequest, views: &PortViews) -> Result<Asked, Fault> {
    let shards = views.shards();
    let now = views.latest(ShardId(0)).version();
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
    let due = (0..shards).map(|shard| views.due(ShardId(shard))).collect();
    Ok(Asked { from, due, at, kinds, limit, wait })
}

impl ConnectionService {
    /// Executes a new follow request.
    pub(super) fn handle_follow(&mut self, asker: Asker, request: &FollowRequest) -> Result<(), Fault> {
        let views = self.port.views();
        if views.shards() == 0 {
            let message = "this service makes no views (`planners` is 0 and `follow` is false), so changes cannot \
                           be followed: set `follow` to true";
            return Err(Fault::new(Reason::NotServed, message));
        }
        let asked = check(request, views)?;
        // Who does not wait for changes waits for the views of what has changed already.
        let wait = asked.wait.max(PUBLISHED_WITHIN);
        let wait = u64::try_from(wait.as_nanos()).expect("the longest wait is an hour");
        let until = Time(asker.started.0.saturating_add(wait));
        let followed = Followed { asker, until, asked };
        if self.connections[asker.connection].has_unwritten() {
            self.stall(asker.connection, Stalled::Follow(followed));
            return Ok(());
        }
        self.follow(followed, asker.started)
    }

    /// Goes on with a follow request once the peer has taken its replies.
    pub(super) fn resume_follow(&mut self, key: ConnectionKey, now: Time) {
        self.resume_events(key, now);
        let connection = &mut self.connections[key];
        if !matches!(connection.stalled, Some(Stalled::Follow(_))) || connection.has_unwritten() {
            return;
        }
        let Some(Stalled::Follow(followed)) = connection.stalled.take() else {
            unreachable!("it was looked at")
        };
        let asker = followed.asker;
        if self.sheds(asker, now) {
            return;
        }
        if let Err(fault) = self.follow(followed, now) {
            Counters::count(&self.shared.counters.frames_refused);
            self.answer_fault(asker, &fault, now);
        }
    }

    fn follow(&mut self, followed: Followed, now: Time) -> Result<(), Fault> {
        let key = followed.asker.connection;
        let earlier = self.begin_follow(key, followed.asked.kinds)?.waiting.take();
        let page = self.look(key, &followed.asked);
        let waits = !followed.asked.wait.is_zero() || Follow::is_early(self.port.views(), &followed.asked);
        let may_wait = waits && self.connections[key].input_end.is_none();
        if page.is_some() || !may_wait {
            self.answer_follow(&followed, page, now);
        } else {
            self.connections[key].follow.as_mut().expect("it has begun").waiting = Some(followed);
            self.has_new_deadline = true;
            self.look_again(key, now);
        }
        if let Some(earlier) = earlier {
            self.answer_follow(&earlier, None, now);
        }
        Ok(())
    }

    /// Returns the follower state of a connection, which its first request creates.
    fn begin_follow(&mut self, key: ConnectionKey, kinds: ChangeKinds) -> Result<&mut Follow, Fault> {
        let follow = &mut self.connections[key].follow;
        if follow.is_some() {
            return Ok(follow.as_mut().expect("it was looked at"));
        }
        let followers = &self.shared.counters.followers;
        // Relaxed: a bound and a statistic; nothing depends on its order.
        if followers.fetch_add(1, Ordering::Relaxed) >= FOLLOWERS_MAX {
            // Relaxed: see above.
            followers.fetch_sub(1, Ordering::Relaxed);
            let message = format!("{FOLLOWERS_MAX} connections follow changes already: ask again later");
            return Err(Fault::new(Reason::LimitExceeded, message));
        }
        self.followers.push(key);
        Ok(follow.insert(Follow::new(self.port.views().shards(), kinds)))
    }

    fn look(&mut self, key: ConnectionKey, asked: &Asked) -> Option<FollowPage> {
        let follow = self.connections[key].follow.as_mut().expect("it follows");
        follow.page(&mut self.port, &self.shared, asked)
    }

    /// Looks for a change for the waiting request of a connection.
    fn look_again(&mut self, key: ConnectionKey, now: Time) {
        let follow = self.connections[key].follow.as_mut().expect("it follows");
        let Some(followed) = follow.waiting.take() else { return };
        // The shards are asked first, so that no view is missed between the look and the sleep.
        let views = self.port.views();
        (0..views.shards()).for_each(|shard| views.want_next(ShardId(shard)));
        let page = self.look(key, &followed.asked);
        let waits = !followed.asked.wait.is_zero() || Follow::is_early(self.port.views(), &followed.asked);
        if page.is_some() || !waits {
            self.answer_follow(&followed, page, now);
        } else {
            self.connections[key].follow.as_mut().expect("it follows").waiting = Some(followed);
        }
    }

    fn answer_follow(&mut self, followed: &Followed, page: Option<FollowPage>, now: Time) {
        let reply = FollowReply { shards: self.port.views().shards(), page };
        self.answer(followed.asker, &reply, now);
    }

    /// Answers the waiting requests of a connection without a change, and without events.
    pub(super) fn end_follow(&mut self, key: ConnectionKey, now: Time) {
        self.end_wait_for_changes(key, now);
        self.end_events(key, now);
    }

    fn end_wait_for_changes(&mut self, key: ConnectionKey, now: Time) {
        let waiting = self.connections[key].follow.as_mut().and_then(|follow| follow.waiting.take());
        if let Some(followed) = waiting {
            self.answer_follow(&followed, None, now);
        }
    }

    /// Handles the shards' announcements of new views, and pages of events. Returns whether there were any.
    pub(super) fn handle_news(&mut self, now: Time) -> bool {
        let has_pages = self.handle_event_pages(now);
        let views = self.port.views();
        if !views.has_news() {
            return has_pages;
        }
        let mut shards = Vec::new();
        views.take_news(|shard| shards.push(shard));
        let versions_max = self.shared.follow_versions_max();
        for at in 0..self.followers.len() {
            let key = self.followers[at];
            let follow = self.connections[key].follow.as_mut().expect("followers follow");
            follow.drop_old(self.port.views(), &shards, versions_max);
            self.look_again(key, now);
        }
        true
    }

    /// Returns when the first request that waits for changes or events must be answered.
    pub(super) fn next_follow_deadline(&self) -> Option<Time> {
        let follows = self.followers.iter().filter_map(|&key| self.connections[key].follow.as_ref());
        let follows = follows.filter_map(|follow| follow.waiting.as_ref()).map(|followed| followed.until);
        follows.chain(self.next_events_deadline()).min()
    }

    /// Answers the requests for changes and events whose deadline has passed.
    pub(super) fn expire_follows(&mut self, now: Time) {
        self.expire_events(now);
        for at in 0..self.followers.len() {
            let key = self.followers[at];
            let waiting = self.connections[key].follow.as_ref().and_then(|follow| follow.waiting.as_ref());
            if waiting.is_some_and(|followed| followed.until <= now) {
                self.end_wait_for_changes(key, now);
            }
        }
    }

    /// Handles the end of a connection. Its client's views are kept for a while.
    pub(super) fn depart(&mut self, key: ConnectionKey, now: Time) {
        self.leave_events(key);
        let Some(follow) = self.connections[key].follow.take() else { return };
        self.followers.retain(|&other| other != key);
        let nanos = u64::try_from(DEPARTED_FOR.as_nanos()).expect("half a minute");
        let until = Time(now.0 + nanos);
        let kinds = follow.kinds;
        let left = (0..).map(ShardId).zip(&follow.kept).flat_map(|(shard, kept)| {
            kept.known().map(move |known| Left { until, shard, kinds, known: known.clone() })
        });
        self.shared.departed.put(left);
        self.departures.push_back(until);
        self.has_new_deadline = true;
        // Relaxed: a bound and a statistic; nothing depends on its order.
        self.shared.counters.followers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Drops the views of connections that ended long ago.
    pub(super) fn expire_departures(&mut self, now: Time) {
        if self.departures.front().is_some_and(|&until| until <= now) {
            self.departures.retain(|&until| until > now);
            self.shared.departed.let_go(now);
        }
    }
}
