//! A client that follows changes, shard by shard and portion by portion, as the production task in
//! `net/src/session/connections/follow.rs` does. It looks when it is told of news, and starts over when its base is no
//! longer kept.

use std::collections::BTreeSet;
use std::sync::Arc;

use wharf_core::ids::ShardId;
use wharf_core::router::Port;
use wharf_core::view::{ChangeCursor, ChangeKinds, Step, View, ViewVersion};

use super::checkers::following::{Mirror, followers_are_told, followers_keep_up};
use super::checkers::{Verdict, named};
use super::choices::Choices;

/// The highest number of places that one portion compares.
const LOOKS_MAX: u64 = 24;

/// The follower's state of one shard.
#[derive(Default)]
struct Known {
    /// The view that the follower has, or had before the current step.
    base: Option<Arc<View>>,
    /// The current step: the target view and the position in it.
    step: Option<(Arc<View>, ChangeCursor)>,
    mirror: Mirror,
    /// The last version that was received completely.
    version: Option<ViewVersion>,
}

/// Follows all shards of one start.
pub(super) struct Follower {
    port: Port,
    known: Vec<Known>,
    /// The shards to look at: they have news, or a step is in progress.
    due: BTreeSet<usize>,
}

impl Follower {
    pub(super) fn new(port: Port) -> Self {
        let shards = usize::from(port.views().shards());
        Self { port, known: (0..shards).map(|_| Known::default()).collect(), due: (0..shards).collect() }
    }

    /// Takes news from shards and looks at one that has some. Returns whether there was one.
    pub(super) fn act(&mut self, choices: &mut Choices<'_>, whole: bool) -> Result<bool, String> {
        let views = self.port.views();
        views.take_news(|shard| {
            self.due.insert(shard.index());
        });
        let due: Vec<usize> = self.due.iter().copied().collect();
        if due.is_empty() {
            return Ok(false);
        }
        let at = *choices.pick(&due);
        let known = &mut self.known[at];
        if known.step.is_none() {
            let shard = ShardId(u16::try_from(at).expect("few shards"));
            // The order matters: anything published after this look is reported again.
            views.want_next(shard);
            let latest = views.latest(shard);
            if known.version == Some(latest.version()) {
                self.due.remove(&at);
                return Ok(true);
            }
            if choices.one_in(20) {
                // Simulates a follower that is too far behind: its base is no longer kept.
                (known.base, known.mirror) = (None, Mirror::default());
            }
            known.step = Some((latest, ChangeCursor::default()));
        }
        let limit = if whole { u64::MAX } else { 1 + choices.below(LOOKS_MAX) };
        named("followers_keep_up", known.take_portion(limit)).map(|()| true)
    }

    /// Checks that the follower has the newest view of every shard.
    pub(super) fn is_current(&self) -> Verdict {
        let views = self.port.views();
        let latest = (0..views.shards()).map(|shard| views.latest(ShardId(shard)).version());
        let had: Vec<_> = self.known.iter().map(|known| known.version).collect();
        named("followers_are_told", followers_are_told(&latest.collect::<Vec<_>>(), &had))
    }
}

impl Known {
    /// Continues the current step.
    fn take_portion(&mut self, limit: u64) -> Verdict {
        let Some((to, at)) = self.step.take() else { return Ok(()) };
        let mut broken = Ok(());
        let mut left = limit;
        let step = Step::new(self.base.as_deref(), &to, ChangeKinds::ALL);
        let looks = usize::try_from(limit.saturating_mul(4)).unwrap_or(usize::MAX);
        let next = step.portion(at, looks, &mut |change| {
            if broken.is_ok() {
                broken = self.mirror.apply(change);
            }
            left -= 1;
            left > 0
        });
        broken?;
        if let Some(next) = next {
            self.step = Some((to, next));
            return Ok(());
        }
        followers_keep_up(self.version, &self.mirror, to.version(), &Mirror::of(&to))?;
        self.version = Some(to.version());
        self.base = Some(to);
        Ok(())
    }
}
