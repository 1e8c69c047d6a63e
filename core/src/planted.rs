//! Bugs put in on purpose, to show that tests and fuzz targets can find them.
//!
//! Without the feature `planted-bugs` none can be switched on and the questions below are
//! constant; with it, a test switches one on for its own thread. No default feature turns it on,
//! and only wharf-fuzz asks for it (`fuzz/tests/planted_bugs.rs`).

/// A bug that can be switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// A bucket's maximum does not rise when a node joins it: the node may be hidden.
    IndexStaleMaximum,
    /// NextFit starts behind the node of its last choice instead of at it.
    NextFitOneLate,
    /// A waiting request is taken for woken, and its port is not told.
    WakeUpForgotten,
    /// A release on an unhealthy GPU instance makes its part available again.
    ReleaseRevivesUnhealthy,
    /// A node whose labels change keeps its ranks.
    RankStaleAfterUpdate,
    /// What a release gives back on a reserved node is not set aside.
    ReservationForgottenByReleases,
    /// What is free on a node is not set aside for its claims.
    ClaimNotSetAside,
    /// An abort forgets a GPU instance that was held.
    AbortForgetsGpu,
    /// The clock ends a hold, whatever was decided.
    ClockEndsHold,
    /// A refusal of one shard is taken for that of all.
    SpillForgotten,
    /// A hold that is past its deadline is aborted, whatever was decided.
    DeadlineOverrulesDecision,
    /// What was done of a statement past its deadline is not kept for its coordinator.
    LateResultForgotten,
    /// A chunk of a view that changed is shared with the view before it.
    ViewSharesChangedChunk,
    /// Bundles that a statement of others holds are taken for ended.
    HeldBundleTakenForEnded,
    /// The views and facts of a batch are published after its outcomes were handed out.
    PublishedAfterAnswers,
    /// Views do not show what a granted claim changed.
    GrantedClaimUnseen,
    /// The owner of a port is not woken for a waiting request of its own.
    WokenPortNotRung,
    /// A wake-up that comes while a request is asked at a shard is forgotten.
    WakeWhileBusyForgotten,
    /// An abort leaves a bundle counted as placed.
    AbortKeepsBundle,
    /// An abort leaves used what it had used of a reservation.
    AbortKeepsReservationUsed,
    /// A view that is replaced is destroyed at once, although a reader may be about to take it.
    ViewDestroyedAtOnce,
    /// A portion that ends among nodes leaves out the next one.
    PortionSkipsNode,
    /// What a lost statement of a planner had taken stays taken on its copy.
    ClaimKeptByLoser,
    /// A bundle that was lost is placed again, and what it was on the lost node is not ended.
    LostBundleNotEnded,
    /// The removal of a group forgets its last bundle.
    RemovalForgetsBundle,
    /// Bundles that stand are not counted where the next are spread.
    SpreadForgetsStanding,
    /// Who waits for a group is refused at once.
    GroupNeverWaits,
    /// A session forgets one outcome more than was acknowledged (asked in wharf-net).
    OutcomeForgottenEarly,
    /// The codec believes the length that an extension states (asked in wharf-net).
    ExtensionLengthUnchecked,
}

#[cfg(feature = "planted-bugs")]
mod switch {
    use super::PlantedBug;
    use std::cell::Cell;

    std::thread_local! {
        static PLANTED: Cell<Option<PlantedBug>> = const { Cell::new(None) };
    }

    /// Switches back also when the bug made a test panic, which is one way to be found.
    struct Restore(Option<PlantedBug>);

    impl Drop for Restore {
        fn drop(&mut self) {
            PLANTED.set(self.0);
        }
    }

    /// Runs `body` with `bug` switched on, on this thread.
    pub fn with_planted<R>(bug: PlantedBug, body: impl FnOnce() -> R) -> R {
        let _restore = Restore(PLANTED.replace(Some(bug)));
        body()
    }

    /// Whether `bug` is switched on, on this thread.
    #[must_use]
    pub fn is_planted(bug: PlantedBug) -> bool {
        PLANTED.get() == Some(bug)
    }
}
#[cfg(feature = "planted-bugs")]
pub use switch::{is_planted, with_planted};

/// Whether `bug` is switched on: never, in this build.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
#[must_use]
pub const fn is_planted(_bug: PlantedBug) -> bool {
    false
}
