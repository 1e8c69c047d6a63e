//! The process of a crowd: how it begins and ends, and what it did.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};

use super::super::helper::{Helper, tell, wait_for_end};
use super::peers;
use crate::process::Process;

/// The time within which the first peer of a crowd must do something.
const BEGIN_PATIENCE: Duration = Duration::from_secs(10);

/// What the peers of a crowd do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CrowdKind {
    /// None: as many threads compute. They show what it costs to share the machine.
    Busy,
    /// They connect and vanish.
    Connections,
    /// They open streams and reset them.
    Streams,
    /// They send bytes that are no hello.
    Malformed,
    /// They send frames and lists that claim to be endless, and frames that never end.
    Bombs,
    /// They ask for many lists and read nothing.
    SlowReaders,
}

impl CrowdKind {
    /// All kinds.
    pub const ALL: [Self; 6] =
        [Self::Busy, Self::Connections, Self::Streams, Self::Malformed, Self::Bombs, Self::SlowReaders];

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Connections => "connections",
            Self::Streams => "streams",
            Self::Malformed => "malformed",
            Self::Bombs => "bombs",
            Self::SlowReaders => "slow-readers",
        }
    }

    /// Returns what is counted as one act of a peer.
    #[must_use]
    pub fn act(self) -> &'static str {
        match self {
            Self::Busy => "rounds",
            Self::Connections => "connects",
            Self::Streams => "streams",
            Self::Malformed => "hellos",
            Self::Bombs => "frames",
            Self::SlowReaders => "lists",
        }
    }
}

/// A crowd, and whom it is hostile to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CrowdPlan {
    /// What its peers do.
    pub kind: CrowdKind,
    /// The service.
    pub server: SocketAddr,
    /// The certificates that the service has, in DER.
    pub certificates: Vec<Vec<u8>>,
    /// The peers that are there at a time.
    pub peers: u32,
    /// The most connections per second that all of them begin.
    pub connects_per_second: u32,
    /// The threads of the process.
    pub threads: u16,
}

/// What the process prints when its first peer has done something.
#[derive(Serialize, Deserialize)]
struct Begun {}

/// What the process prints at its end.
#[derive(Serialize, Deserialize)]
struct Did {
    acts: u64,
    seconds: f64,
}

/// A process with a crowd. It is killed when this is dropped.
pub(super) struct Crowd(Helper);

impl Crowd {
    /// Starts the process, and waits until the crowd is there.
    pub(super) fn start(plan: &CrowdPlan) -> anyhow::Result<Self> {
        let mut helper = Helper::start(&["hostile", "--crowd", &serde_json::to_string(plan)?])?;
        let Begun {} = helper.read()?;
        Ok(Self(helper))
    }

    pub(super) fn process(&self) -> Process {
        self.0.process()
    }

    /// Ends the crowd. Returns what it did per second.
    ///
    /// # Errors
    /// When it did nothing after its begin, or the process did not end as it should.
    pub(super) fn end(self) -> anyhow::Result<f64> {
        let Self(mut helper) = self;
        helper.tell_end();
        let Did { acts, seconds } = helper.read()?;
        helper.wait()?;
        ensure!(acts > 0, "the crowd did nothing after its begin");
        Ok(acts as f64 / seconds)
    }
}

/// What all peers of a crowd share.
pub(super) struct Shared {
    pub(super) plan: CrowdPlan,
    pub(super) pace: Pace,
    acts: AtomicU64,
    acted: Notify,
    is_over: AtomicBool,
}

impl Shared {
    fn new(plan: CrowdPlan) -> Self {
        let pace = Pace::new(Instant::now(), plan.connects_per_second);
        Self { plan, pace, acts: AtomicU64::new(0), acted: Notify::new(), is_over: AtomicBool::new(false) }
    }

    /// Counts what a peer did.
    pub(super) fn acted(&self, acts: u64) {
        // Relaxed: a statistic; nothing depends on its order.
        if self.acts.fetch_add(acts, Ordering::Relaxed) == 0 {
            self.acted.notify_one();
        }
    }

    /// Returns whether the crowd is to leave.
    pub(super) fn is_over(&self) -> bool {
        // Relaxed: it only signals the end.
        self.is_over.load(Ordering::Relaxed)
    }
}

/// Keeps peers from connecting faster than they shall.
pub(super) struct Pace {
    begun: Instant,
    per_second: u32,
    taken: AtomicU64,
}

impl Pace {
    fn new(begun: Instant, per_second: u32) -> Self {
        Self { begun, per_second, taken: AtomicU64::new(0) }
    }

    /// Waits until this many more connections may be made.
    pub(super) async fn turn(&self, connections: u32) {
        tokio::time::sleep_until(self.take(connections).into()).await;
    }

    /// Returns when this many more connections may be made.
    fn take(&self, connections: u32) -> Instant {
        // Relaxed: each caller gets numbers of its own, in whatever order.
        let before = self.taken.fetch_add(u64::from(connections), Ordering::Relaxed);
        self.begun + Duration::from_secs_f64(before as f64 / f64::from(self.per_second))
    }
}

/// Runs a crowd in this process until its standard input ends.
///
/// # Errors
/// When no peer can do anything.
pub fn crowd_here(plan: CrowdPlan) -> anyhow::Result<()> {
    let threads = usize::from(plan.threads.max(1));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    let shared = Arc::new(Shared::new(plan));
    let (leave, leaving) = watch::channel(false);
    let peers = {
        let _runtime = runtime.enter();
        peers::begin(&shared, &leaving)?
    };
    let begun =
        runtime.block_on(async { tokio::time::timeout(BEGIN_PATIENCE, shared.acted.notified()).await });
    begun.context("no peer of the crowd could do anything")?;
    let since = Instant::now();
    // Relaxed: see where it is counted.
    let before = shared.acts.load(Ordering::Relaxed);
    tell(&Begun {})?;
    wait_for_end();
    let seconds = since.elapsed().as_secs_f64();
    let acts = shared.acts.load(Ordering::Relaxed) - before;
    // Relaxed: it only signals the end.
    shared.is_over.store(true, Ordering::Relaxed);
    leave.send_replace(true);
    peers.leave(&runtime)?;
    tell(&Did { acts, seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_made_at_their_pace() {
        let begun = Instant::now();
        let pace = Pace::new(begun, 1000);
        let due = [1, 10, 5].map(|count| pace.take(count) - begun);
        assert_eq!(due, [0, 1, 11].map(Duration::from_millis));
    }

    #[test]
    fn the_first_act_is_told_and_all_are_counted() {
        let plan = CrowdPlan {
            kind: CrowdKind::Streams,
            server: ([127, 0, 0, 1], 1).into(),
            certificates: Vec::new(),
            peers: 1,
            connects_per_second: 1,
            threads: 1,
        };
        let shared = Shared::new(plan);
        shared.acted(3);
        shared.acted(4);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(shared.acted.notified());
        assert_eq!(shared.acts.load(Ordering::Relaxed), 7);
    }

    #[test]
    fn kinds_have_names_of_their_own() {
        for (at, kind) in CrowdKind::ALL.iter().enumerate() {
            assert!(CrowdKind::ALL[..at].iter().all(|other| other.name() != kind.name()), "{kind:?}");
        }
    }
}
