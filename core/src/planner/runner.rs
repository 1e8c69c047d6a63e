//! Planners on threads: a thin loop around [`Planner`], like `ShardRunner` around a shard.

use std::sync::Arc;
use std::time::Duration;

use super::{JobTag, Planner, PlannerBudget, QueuedJob};
use crate::broken::Broken;
use crate::demand::NodesLink;
use crate::jobs::JobsRecord;
use crate::journal::Unit;
use crate::limits::RING_SLOTS;
use crate::link::{
    Clock, Consumer, Doorbell, JournalQueue, PlannerBell, Producer, StopSignal, ThreadWaker, channel,
};
use crate::router::{PlanAnswer, PlanLink, PlanSubmission, Port};
use crate::state::GroupRecord;
use crate::time::Time;

/// The rings between a planner and one port, and the bell of the port.
pub(crate) struct PlannerLink {
    pub(crate) jobs: Consumer<PlanSubmission>,
    pub(crate) replies: Producer<PlanAnswer>,
    pub(crate) bell: Arc<Doorbell>,
}

/// A planner with its rings. A thread runs it, or a caller runs it round by round.
pub struct PlannerRunner {
    planner: Planner,
    links: Vec<PlannerLink>,
    bell: Arc<Doorbell>,
    interest: Arc<PlannerBell>,
    waker: Arc<ThreadWaker>,
    stop: StopSignal,
    spin: u32,
    /// Set if the last thing that the runner did was to fall asleep. The bell alone does not show this: a
    /// runner that a deadline woke continues with a bell that nobody rang.
    rested: bool,
}

const TOKEN_BITS: u32 = 32;

fn tag(link: usize, token: u32) -> JobTag {
    (link as u64) << TOKEN_BITS | u64::from(token)
}

impl PlannerRunner {
    /// Creates a runner for a planner that serves all of `ports`.
    pub(crate) fn new<'p>(
        planner: Planner,
        ports: impl Iterator<Item = &'p mut Port>,
        interest: Arc<PlannerBell>,
        waker: Arc<ThreadWaker>,
        stop: StopSignal,
    ) -> Self {
        let bell = Arc::clone(&interest.bell);
        stop.watch(&bell);
        let links = ports.map(|port| {
            let (submissions, jobs) = channel(RING_SLOTS);
            let (replies, answers) = channel(RING_SLOTS);
            let link = PlanLink { jobs: submissions, replies: answers, bell: Arc::clone(&bell) };
            if planner.keeps_jobs() {
                port.add_keeper(link);
            } else {
                port.add_planner(link);
            }
            PlannerLink { jobs, replies, bell: Arc::clone(port.bell()) }
        });
        let links = links.collect();
        Self { planner, links, bell, interest, waker, stop, spin: 200, rested: false }
    }

    /// Sets how many times the runner polls for work before it sleeps.
    pub fn set_spin(&mut self, looks: u32) {
        self.spin = looks;
    }

    /// Sets the bounds of the planner's work.
    pub fn set_budget(&mut self, budget: PlannerBudget) {
        self.planner.set_budget(budget);
    }

    /// Returns the planner, for inspection between rounds.
    #[must_use]
    pub fn planner(&self) -> &Planner {
        &self.planner
    }

    /// Sets where the records of changed groups go.
    pub(crate) fn set_journal(&mut self, journal: Arc<JournalQueue<Unit>>) {
        self.planner.enable_journal(journal);
    }

    /// Takes over a group that an earlier start left.
    pub(crate) fn adopt(&mut self, group: GroupRecord) {
        self.planner.adopt(group);
    }

    /// Sets the thread that plans nodes.
    pub(crate) fn set_nodes_link(&mut self, link: NodesLink) {
        self.planner.set_nodes_link(link);
    }

    /// Returns the bell that wakes it.
    pub(crate) fn bell(&self) -> &Arc<Doorbell> {
        &self.bell
    }

    /// Takes over the jobs that an earlier start left, at the time of this one.
    ///
    /// # Errors
    /// The first record that contradicts the others.
    pub(crate) fn adopt_jobs(&mut self, jobs: JobsRecord, now: Time) -> Result<(), Broken> {
        self.planner.adopt_jobs(jobs, now)
    }

    /// Runs on the calling thread until it is stopped and nothing is in flight. Returns the planner.
    /// `observe` is called after each round that did something.
    pub fn run(mut self, clock: &impl Clock, mut observe: impl FnMut(&Planner)) -> Planner {
        self.waker.set_current();
        let mut idle_looks = 0;
        loop {
            // Read before the rings, so that jobs submitted before the stop are still seen.
            let stopping = self.stop.is_stopped();
            if self.run_round(clock) > 0 {
                idle_looks = 0;
                observe(&self.planner);
            } else if stopping && !self.planner.is_committing() {
                return self.planner;
            } else if idle_looks < self.spin {
                idle_looks += 1;
                std::hint::spin_loop();
            } else {
                idle_looks = 0;
                self.sleep(clock);
            }
        }
    }

    /// Polls a last time and returns `true` if the runner may sleep until its bell rings or the planner's
    /// next deadline. [`run`](Self::run) then parks its thread. A caller that runs it by hand may leave it
    /// alone.
    pub fn fall_asleep(&mut self) -> bool {
        let Self { planner, links, bell, interest, stop, .. } = self;
        let idle = || {
            interest.set_wanted(planner.wants_growth(), planner.wants_ends());
            let stopped = stop.is_stopped() && !planner.is_committing();
            !stopped && links.iter_mut().all(|link| link.jobs.is_empty()) && planner.is_idle()
        };
        self.rested = bell.sleep_if(idle);
        self.rested
    }

    /// Returns whether the runner fell asleep and its bell has not been rung since.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        self.bell.is_asleep()
    }

    /// Returns whether the runner sleeps although there is work for it. If so, a wake-up was lost. Work that
    /// only a deadline triggers does not count.
    pub fn oversleeps(&mut self) -> bool {
        let full = self.links.iter_mut().any(|link| !link.jobs.is_empty());
        self.rested && self.is_asleep() && (full || !self.planner.is_idle())
    }

    fn sleep(&mut self, clock: &impl Clock) {
        let due = self.planner.next_deadline();
        if self.fall_asleep() {
            match due {
                None => std::thread::park(),
                Some(due) => {
                    std::thread::park_timeout(Duration::from_nanos(due.nanos_since(clock.now())));
                }
            }
        }
    }

    /// Runs one round: takes answers and jobs, and hands out replies. Returns the number of these, plus one
    /// if work is left for the next round.
    pub fn run_round(&mut self, clock: &impl Clock) -> usize {
        self.rested = false;
        let now = clock.now();
        let mut count = self.planner.take_answers(now);
        // Decisions leave before anything is planned.
        self.planner.flush(clock.now());
        let mut rung = 0u64;
        for (at, link) in self.links.iter_mut().enumerate() {
            // Take all of them, so that no client's jobs wait behind another's in the ring. They begin in
            // turn.
            for _ in 0..RING_SLOTS {
                let Some(PlanSubmission { token, client, origin, due, job }) = link.jobs.pop() else { break };
                if let Some(job) = job {
                    let tag = tag(at, token);
                    self.planner.note_origin(tag, origin);
                    self.planner.submit((at, client), QueuedJob { tag, job, due }, now);
                } else {
                    let pushed = link.replies.push(PlanAnswer { token, reply: None });
                    assert!(pushed.is_ok(), "a ring holds all cancels that a port may have in flight");
                    rung |= 1 << at;
                    self.planner.cancel(tag(at, token), (at, client), now);
                }
                count += 1;
            }
        }
        count += self.planner.advance(now);
        // Before the replies: anyone who has seen one finds the records of its groups before it in the journal.
        self.planner.record();
        let end = clock.now();
        self.planner.end_round(end);
        self.planner.flush(end);
        count + self.hand_out(rung) + usize::from(self.planner.has_left_over())
    }

    /// Hands out the replies and rings their ports and those in `rung`. Returns the number of replies.
    fn hand_out(&mut self, mut rung: u64) -> usize {
        let mut count = 0;
        for (tag, reply) in self.planner.take_replies() {
            let at = (tag >> TOKEN_BITS) as usize;
            let answer = PlanAnswer { token: tag as u32, reply: Some(reply) };
            let pushed = self.links[at].replies.push(answer);
            assert!(pushed.is_ok(), "a ring holds all that a port may have in flight");
            rung |= 1 << at;
            count += 1;
        }
        for (at, link) in self.links.iter().enumerate() {
            if rung >> at & 1 == 1 {
                link.bell.ring();
            }
        }
        count
    }
}
