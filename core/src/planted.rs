//! Deliberate bugs that show that tests and fuzz targets can find them.
//!
//! In builds with debug assertions, a test switches one bug on for its own thread (`fuzz/tests/planted_bugs.rs`). Nothing
//! else does. In other builds, so in all releases, no bug can be switched on and `is_planted` is constant.

/// A bug that can be switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// A bucket's maximum does not rise when a node joins it, so the node may be hidden.
    IndexStaleMaximum,
    /// NextFit starts after the last chosen node instead of at it.
    NextFitOneLate,
    /// A waiting request is marked as woken, but its port is not notified.
    WakeUpForgotten,
    /// A release on an unhealthy GPU instance makes its part available again.
    ReleaseRevivesUnhealthy,
    /// A node whose labels change keeps its ranks.
    RankStaleAfterUpdate,
    /// Capacity freed by a release on a reserved node is not withheld for the reservation.
    ReservationForgottenByReleases,
    /// Free capacity of a node is not withheld for its claims.
    ClaimNotWithheld,
    /// An abort does not return a held GPU instance.
    AbortForgetsGpu,
    /// A hold ends at its deadline, even if the statement is not decided or is committed.
    ClockEndsHold,
    /// A refusal by one shard is treated as a refusal by all shards.
    SpillForgotten,
    /// A hold past its deadline is aborted, even if the statement was committed.
    DeadlineOverrulesDecision,
    /// The result of a statement that is past its deadline is not kept for its coordinator.
    LateResultForgotten,
    /// A changed chunk of a view is shared with the previous view.
    ViewSharesChangedChunk,
    /// Bundles that another statement holds are treated as ended.
    HeldBundleTakenForEnded,
    /// The views and facts of a batch are published after its outcomes are delivered.
    PublishedAfterAnswers,
    /// Views do not show the change made by a granted claim.
    GrantedClaimUnseen,
    /// The owner of a port is not woken for its own waiting request.
    WokenPortNotRung,
    /// A wake-up that arrives while a request is being tried at a shard is lost.
    WakeWhileBusyForgotten,
    /// A planner does not try a group when a shard reports room for one of its bundles.
    RoomForGroupForgotten,
    /// A request is woken although bundles before it are under way for the same node.
    RequestPassesBundle,
    /// An aborted bundle is still counted as placed.
    AbortKeepsBundle,
    /// An abort does not return what the statement used of a reservation.
    AbortKeepsReservationUsed,
    /// A reader that makes room in the log of a shard's changes does not tell the shard.
    RoomForViewUntold,
    /// A portion that ends between nodes skips the next node.
    PortionSkipsNode,
    /// A planner's replica still counts what a failed statement would have taken.
    ClaimKeptByLoser,
    /// A lost bundle is placed again, but its allocation on the lost node is not ended.
    LostBundleNotEnded,
    /// Removing a group forgets its last bundle.
    RemovalForgetsBundle,
    /// Placed bundles are not counted when the next ones are spread.
    SpreadForgetsPlaced,
    /// A caller that would wait for a group is refused at once.
    GroupNeverWaits,
    /// A renewal of a lease is answered, and the lease ends when it would have without it.
    RenewalForgotten,
    /// A renewal of a session's leases does not reach the journal.
    RenewalNotJournaled,
    /// A session forgets one more outcome than was acknowledged (checked in wharf-net).
    OutcomeForgottenEarly,
    /// A resumed session knows no outcome (checked in wharf-net).
    ResumedSessionEmpty,
    /// A connection executes requests without waiting for replies to be taken (checked in wharf-net).
    CreditsIgnored,
    /// The registrar's answer to a lost connection is dropped (checked in wharf-net).
    AnswerToLostConnectionDropped,
    /// The waits of a lost connection go on there although another connection wants its session (checked in wharf-net).
    RecalledWaitGoesOn,
    /// The outcome of a request is not kept if the peer takes no more replies (checked in wharf-net).
    OutcomeOfBrokenConnectionDropped,
    /// A connection whose replies cannot be written is still read (checked in wharf-net).
    FailedWriteIgnored,
    /// A connection that waits for a session may get it although a newer one waits (checked in wharf-net).
    OlderConnectionResumes,
    /// A thread that sleeps is not told of a new deadline (checked in wharf-net).
    NewDeadlineUntold,
    /// A request whose deadline has passed is done when it is taken out of a queue.
    LateIsDone,
    /// A sync of a file of the store is left out, and said to be done (checked in wharf-ops).
    SyncSkipped,
    /// A connection does not wait for the journal before it replies (checked in wharf-net).
    ReplyBeforeDurable,
    /// A shard hands its outcomes out before it records their effects.
    RecordedAfterAnswers,
    /// A release is left out of the unit of its batch.
    EffectForgotten,
    /// What a request of a client has done is left out of the unit of its effect.
    OutcomeNotJournaled,
    /// A creation of a group that was done before a crash is done again when its client asks again (checked in wharf-net).
    GroupCreatedAgain,
    /// A cap does not count what is being released.
    CapForgetsReleasing,
    /// The end of a task's allocation is not noticed.
    TaskEndMissed,
    /// A policy restarts a job that was restarted as often as it may be.
    RetriesUnbounded,
    /// The caps of the queues that contain the queue of a direct placement are not asked.
    OuterCapForgotten,
    /// The end of a direct placement is not noticed, so its queue stays charged.
    DirectStaysCharged,
    /// A start keeps the job of a placement that waited in its queue, although its session asks again.
    QueueWaitKept,
    /// Tasks that have nodes do not decide in which domain the next ones of their job must be.
    DomainForgotten,
    /// A gang starts although tasks that ask for nothing, and that it needs, have no node.
    GangStartsInPart,
    /// A gang that lost a claim holds the rest of what it got, although nothing more is promised to it.
    StartHeldForEver,
    /// A class of tasks that no node has room for is never searched for again.
    ParkedForGood,
    /// What changes on nodes between two cycles is not counted again for jobs with rules about domains.
    RoomKept,
    /// A task whose run time is over goes on if it may not be evicted for others.
    OverrunSpared,
    /// A task that was evicted because its run time was over is pending again.
    OverrunRunsAgain,
    /// A task is placed where another job has a dated reservation, whether it ends before that date or not.
    DateForgotten,
    /// Others reclaim from a queue that has no more than it deserves by the plugin `capacity`.
    DeservedReclaimed,
    /// A queue reclaims more than it deserves by the plugin `capacity`.
    ReclaimBeyondDeserved,
    /// A job from which others take by the action `starve` does not keep its fair share.
    FairShareNotKept,
    /// A job starves as soon as it is below its fair share, and a queue below its guarantee.
    PatienceForgotten,
    /// The codec trusts the length that an extension declares (checked in wharf-net).
    ExtensionLengthUnchecked,
    /// The room of a request at the port is not given back if its connection is lost (checked in wharf-net).
    RoomOfLostConnectionKept,
    /// The mark of a client passes a request in progress (checked in wharf-net).
    MarkPassesRequest,
    /// The hash of a value of the journal is not compared (checked in wharf-ops).
    ValueHashUnchecked,
    /// A number among the settings may be out of its range (checked in wharf-ops).
    SettingRangeUnchecked,
    /// An amount in a trace may be larger than the engine can have (checked in wharf-bench).
    TraceAmountUnchecked,
}

#[cfg(debug_assertions)]
mod switch {
    use super::PlantedBug;
    use std::cell::Cell;

    std::thread_local! {
        static PLANTED: Cell<Option<PlantedBug>> = const { Cell::new(None) };
    }

    /// Restores the previous bug on drop, because the bug may make the test panic.
    struct Restore(Option<PlantedBug>);

    impl Drop for Restore {
        fn drop(&mut self) {
            PLANTED.set(self.0);
        }
    }

    /// Runs `body` with `bug` switched on for this thread.
    pub fn with_planted<R>(bug: PlantedBug, body: impl FnOnce() -> R) -> R {
        let _restore = Restore(PLANTED.replace(Some(bug)));
        body()
    }

    /// Returns whether `bug` is switched on for this thread.
    #[must_use]
    pub fn is_planted(bug: PlantedBug) -> bool {
        PLANTED.get() == Some(bug)
    }
}
#[cfg(debug_assertions)]
pub use switch::{is_planted, with_planted};

/// Returns whether `bug` is switched on. Always `false` in this build.
#[cfg(not(debug_assertions))]
#[inline(always)]
#[must_use]
pub const fn is_planted(_bug: PlantedBug) -> bool {
    false
}
