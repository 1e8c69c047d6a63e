//! Somebody who follows changes, shard by shard and portion by portion, as the production task of
//! `net/src/server/follow.rs` has it done: it looks when it is told that there is something, and begins anew
//! where what it had is not kept any more.

use std::collections::BTreeSet;
use std::sync::Arc;

use wharf_core::ids::ShardId;
use wharf_core::router::Port;
use wharf_core::view::{ChangeCursor, ChangeKinds, Step, View, ViewVersion};

use super::checkers::following::{Mirror, followers_are_told, followers_keep_up};
use super::checkers::{Verdict, named};
use super::choices::Choices;

/// Most places that are compared for one portion.
const LOOKS_MAX: u64 = 24;

/// What it has of one shard.
#[derive(Default)]
struct Known {
    /// The view that it has, or had before the step under way.
    base: Option<Arc<View>>,
    /// The step under way: to which view, and where it goes on.
    step: Option<(Arc<View>, ChangeCursor)>,
    mirror: Mirror,
    /// The last version that it had whole.
    version: Option<ViewVersion>,
}

/// Follows all shards of one start.
pub(super) struct Follower {
    port: Port,
    known: Vec<Known>,
    /// Shards to look at: told, or in the middle of a step.
    due: BTreeSet<usize>,
}

impl Follower {
    pub(super) fn new(port: Port) -> Self {
        let shards = usize::from(port.views().shards());
        Self { port, known: (0..shards).map(|_| Known::default()).collect(), due: (0..shards).collect() }
    }

    /// Takes what shards told, and looks at one that has something. Whether there was one.
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
            // In this order: what is published after the look is told.
            views.want_next(shard);
            let latest = views.latest(shard);
            if known.version == Some(latest.version()) {
                self.due.remove(&at);
                return Ok(true);
            }
            if choices.one_in(20) {
                // Too far behind: what it had is not kept.
                (known.base, known.mirror) = (None, Mirror::default());
            }
            known.step = Some((latest, ChangeCursor::default()));
        }
        let limit = if whole { u64::MAX } else { 1 + choices.below(LOOKS_MAX) };
        named("followers_keep_up", known.take_portion(limit)).map(|()| true)
    }

    /// Whether it has what the newest views show, as far as it was told.
    pub(super) fn is_current(&self) -> Verdict {
        let views = self.port.views();
        let latest = (0..views.shards()).map(|shard| views.latest(ShardId(shard)).version());
        let had: Vec<_> = self.known.iter().map(|known| known.version).collect();
        named("followers_are_told", followers_are_told(&latest.collect::<Vec<_>>(), &had))
    }
}

impl Known {
    /// Goes on with the step under way.
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
