//! When the requests of an open loop are to be sent.
//!
//! The times do not depend on the answers. A request whose time has come while the sender was held up is sent late, and
//! its latency still counts from its time: so a stall is seen by all requests that it delayed (Gil Tene calls its loss
//! *coordinated omission*).

use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use serde::Serialize;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use wharf_core::rng::Rng;

/// Requests that are due are handed out in runs of this length, so that a sender that is late still lets others run.
const RUN: u32 = 64;

/// A rule for arrivals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// Each request arrives on its own: the gaps are exponential.
    Poisson,
    /// Requests arrive in bursts, all of a burst at once. The gaps between bursts are exponential.
    Bursty,
}

impl Arrivals {
    /// All rules.
    pub const ALL: [Self; 2] = [Self::Poisson, Self::Bursty];

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Poisson => "poisson",
            Self::Bursty => "bursty",
        }
    }
}

/// The times of arrivals, as distances from the begin.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    rng: Rng,
    /// The mean gap between bursts, in ns.
    gap_ns: f64,
    /// The requests of a burst.
    burst: u32,
    /// The requests of the current burst that are left.
    left: u32,
    at_ns: f64,
}

impl Schedule {
    pub(super) fn new(arrivals: Arrivals, per_second: f64, burst: u32, seed: u64) -> Self {
        let burst = if arrivals == Arrivals::Poisson { 1 } else { burst.max(1) };
        Self { rng: Rng::new(seed), gap_ns: f64::from(burst) * 1e9 / per_second, burst, left: 0, at_ns: 0.0 }
    }

    /// Returns the share of one of several connections.
    pub(super) fn part(&self, number: usize, connections: usize) -> Self {
        let mut rng = self.rng.clone();
        let seed = (0..=number).map(|_| rng.next_u64()).last().unwrap_or_default();
        Self { rng: Rng::new(seed), gap_ns: self.gap_ns * connections as f64, ..self.clone() }
    }

    fn next(&mut self) -> Duration {
        if self.left == 0 {
            self.left = self.burst;
            // In (0, 1]: the logarithm of 0 is no number.
            let share = (self.rng.below(1 << 53) + 1) as f64 / (1u64 << 53) as f64;
            self.at_ns -= share.ln() * self.gap_ns;
        }
        self.left -= 1;
        Duration::from_nanos(self.at_ns as u64)
    }
}

/// Waits for one arrival after the other.
pub(super) struct Pacer {
    schedule: Schedule,
    begun: Instant,
    /// The time up to which arrivals are known to be due.
    now: Instant,
    run: u32,
    timer: AsyncFd<std::os::fd::OwnedFd>,
}

impl Pacer {
    /// Begins now. Needs a runtime.
    pub(super) fn new(schedule: Schedule) -> anyhow::Result<Self> {
        // The timers of tokio are those of epoll, in milliseconds.
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).context("the system has no timer")?;
        #[allow(deprecated, reason = "an owned descriptor is the same, and open, as long as it is owned")]
        let timer = AsyncFd::with_interest(timer, Interest::READABLE);
        let timer = timer.context("a timer cannot be waited for")?;
        let begun = Instant::now();
        Ok(Self { schedule, begun, now: begun, run: 0, timer })
    }

    /// Waits until the next request is to be sent, and returns that time. The time may be over already.
    pub(super) async fn arrival(&mut self) -> anyhow::Result<Instant> {
        let at = self.begun + self.schedule.next();
        self.run += 1;
        if at > self.now {
            self.now = Instant::now();
        }
        if at > self.now {
            self.sleep(at - self.now).await?;
            self.now = Instant::now();
            self.run = 0;
        } else if self.run >= RUN {
            tokio::task::yield_now().await;
            self.run = 0;
        }
        Ok(at)
    }

    async fn sleep(&self, time: Duration) -> anyhow::Result<()> {
        let it_value = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::empty(), &once)
            .context("a timer cannot be set")?;
        let mut expired = self.timer.readable().await.context("a timer cannot be waited for")?;
        rustix::io::read(self.timer.get_ref(), &mut [0; 8]).context("a timer cannot be read")?;
        expired.clear_ready();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(arrivals: Arrivals, count: usize) -> Vec<Duration> {
        let mut schedule = Schedule::new(arrivals, 100_000.0, 32, 7);
        (0..count).map(|_| schedule.next()).collect()
    }

    #[test]
    fn arrivals_have_the_rate_that_is_asked_for() {
        for arrivals in Arrivals::ALL {
            let times = times(arrivals, 64_000);
            let last = times.last().unwrap().as_secs_f64();
            assert!((0.6..0.68).contains(&last), "{arrivals:?}: 64,000 in {last} s");
            assert!(times.is_sorted(), "{arrivals:?}");
        }
    }

    #[test]
    fn the_requests_of_a_burst_arrive_at_once() {
        let times = times(Arrivals::Bursty, 320);
        for burst in times.chunks(32) {
            assert!(burst.iter().all(|at| *at == burst[0]));
        }
        assert!(times[31] < times[32]);
    }

    #[test]
    fn arrivals_come_in_their_order_and_not_before_their_time() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut pacer = Pacer::new(Schedule::new(Arrivals::Poisson, 1e6, 1, 3)).unwrap();
            let mut last = pacer.begun;
            for _ in 0..500 {
                let at = pacer.arrival().await.unwrap();
                assert!(at >= last && Instant::now() >= at);
                last = at;
            }
        });
    }
}
