//! Planners on threads: a thin loop around [`Planner`], as `ShardRunner` is around a shard.

use std::sync::Arc;
use std::time::Duration;

use super::{JobTag, Planner, PlannerBudget};
use crate::group::PlanJob;
use crate::limits::RING_SLOTS;
use crate::link::{Clock, Consumer, Doorbell, PlannerBell, Producer, StopSignal, ThreadWaker, channel};
use crate::router::{PlanAnswer, PlanLink, PlanSubmission, Port};
use crate::state::GroupRecord;

/// The rings between a planner and one port, and the bell of the port.
pub(crate) struct PlannerLink {
    pub(crate) jobs: Consumer<PlanSubmission>,
    pub(crate) replies: Producer<PlanAnswer>,
    pub(crate) bell: Arc<Doorbell>,
}

/// A planner with its rings, ready to be run by a thread (or by hand, round by round).
pub struct PlannerRunner {
    planner: Planner,
    links: Vec<PlannerLink>,
    bell: Arc<Doorbell>,
    interest: Arc<PlannerBell>,
    waker: Arc<ThreadWaker>,
    stop: StopSignal,
    spin: u32,
    /// The last thing it did was to fall asleep. Its bell alone does not say so: who is woken by a deadline
    /// goes on with a bell that nobody rang.
    rested: bool,
}

const TOKEN_BITS: u32 = 32;

fn tag(link: usize, token: u32) -> JobTag {
    (link as u64) << TOKEN_BITS | u64::from(token)
}

impl PlannerRunner {
    /// A planner behind all of `ports`.
    pub(crate) fn new(
        planner: Planner,
        ports: &mut [Port],
        interest: Arc<PlannerBell>,
        waker: Arc<ThreadWaker>,
        stop: StopSignal,
    ) -> Self {
        let bell = Arc::clone(&interest.bell);
        stop.watch(&bell);
        let links = ports.iter_mut().map(|port| {
            let (submissions, jobs) = channel(RING_SLOTS);
            let (replies, answers) = channel(RING_SLOTS);
            port.add_planner(PlanLink { jobs: submissions, replies: answers, bell: Arc::clone(&bell) });
            PlannerLink { jobs, replies, bell: Arc::clone(port.bell()) }
        });
        let links = links.collect();
        Self { planner, links, bell, interest, waker, stop, spin: 200, rested: false }
    }

    /// How often it looks for work before it sleeps.
    pub fn set_spin(&mut self, looks: u32) {
        self.spin = looks;
    }

    /// Bounds its work otherwise than by default.
    pub fn set_budget(&mut self, budget: PlannerBudget) {
        self.planner.set_budget(budget);
    }

    /// The planner, to be looked at between rounds.
    #[must_use]
    pub fn planner(&self) -> &Planner {
        &self.planner
    }

    /// Takes over a group that an earlier start left.
    pub(crate) fn adopt(&mut self, group: GroupRecord) {
        self.planner.adopt(group);
    }

    /// Runs on the calling thread until stopped and nothing is under way; gives the planner back.
    /// `observe` is called after each round that did something.
    pub fn run(mut self, clock: &impl Clock, mut observe: impl FnMut(&Planner)) -> Planner {
        self.waker.set_current();
        let mut idle_looks = 0;
        loop {
            // Read before the rings: what was submitted before the stop is then still seen.
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

    /// Looks a last time: `true` says that nothing is to be done before the bell is rung or the planner's next
    /// deadline comes. [`run`](Self::run) parks its thread then; one that is run by hand may be left alone.
    pub fn fall_asleep(&mut self) -> bool {
        let Self { planner, links, bell, interest, stop, .. } = self;
        let idle = || {
            interest.set_wanted(planner.wants_growth(), planner.wants_losses());
            let stopped = stop.is_stopped() && !planner.is_committing();
            !stopped && links.iter_mut().all(|link| link.jobs.is_empty()) && planner.is_idle()
        };
        self.rested = bell.sleep_if(idle);
        self.rested
    }

    /// Whether it fell asleep and its bell was not rung since.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        self.bell.is_asleep()
    }

    /// Whether it sleeps although something is there for it: a wake-up was lost. What only a deadline brings
    /// is left out.
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

    /// One round: jobs in, answers in, replies out; how much there was of it, and whether some is left over.
    pub fn run_round(&mut self, clock: &impl Clock) -> usize {
        self.rested = false;
        let now = clock.now();
        let mut count = self.planner.take_answers(now);
        // What is decided leaves before anything is planned.
        self.planner.flush(clock.now());
        let mut rung = 0u64;
        for (at, link) in self.links.iter_mut().enumerate() {
            // All of them, so that no client's jobs wait behind another's in the ring: they are begun in turn.
            for _ in 0..RING_SLOTS {
                let Some(PlanSubmission { token, client, job }) = link.jobs.pop() else { break };
                if matches!(job, PlanJob::Cancel) {
                    let pushed = link.replies.push(PlanAnswer::CancelTaken);
                    assert!(pushed.is_ok(), "a ring holds all cancels that a port may have in flight");
                    rung |= 1 << at;
                }
                self.planner.submit(tag(at, token), (at, client), job, now);
                count += 1;
            }
        }
        count += self.planner.advance(now);
        self.planner.flush(clock.now());
        count + self.hand_out(rung) + usize::from(self.planner.has_left_over())
    }

    /// Hands out the replies, and rings the ports that get some, and those of `rung`; how many replies.
    fn hand_out(&mut self, mut rung: u64) -> usize {
        let mut count = 0;
        for (tag, reply) in self.planner.take_replies() {
            let at = (tag >> TOKEN_BITS) as usize;
            let pushed = self.links[at].replies.push(PlanAnswer::Reply { token: tag as u32, reply });
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
