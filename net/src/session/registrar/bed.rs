//! A registrar and its shards, run by hand in tests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::{ShardRunner, Unobserved};
use wharf_core::link::Clock;
use wharf_core::router::Port;
use wharf_core::state::{RegistrarState, StoreState};
use wharf_core::time::Time;

use super::{Question, RegistrarReply, RegistrarRequest, RegistrarService};

/// A clock that the test moves.
#[derive(Clone)]
pub(super) struct ManualClock(Arc<AtomicU64>);

impl Clock for ManualClock {
    fn now(&self) -> Time {
        // Relaxed: one thread.
        Time(self.0.load(Ordering::Relaxed))
    }
}

/// A question; [`Bed::take`] gives its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Asked(usize);

/// A registrar and its shards. Nothing runs by itself.
pub(super) struct Bed {
    pub(super) service: RegistrarService<Asked>,
    pub(super) runners: Vec<ShardRunner>,
    /// The port of a client.
    pub(super) client: Port,
    pub(super) clock: ManualClock,
    asked: usize,
    answers: BTreeMap<Asked, RegistrarReply>,
}

impl Bed {
    pub(super) fn new(shards: u16, partitions: u16) -> Self {
        let config = EngineConfig { shards, ..EngineConfig::default() };
        let wakers = vec![Waker::noop().clone(); 2];
        let mut engine = Engine::open(StoreState::create(partitions), &config, wakers).unwrap();
        let client = engine.ports.pop().unwrap();
        let port = engine.ports.pop().unwrap();
        Self {
            service: RegistrarService::new(engine.registrar, port, engine.catalog),
            runners: engine.runners,
            client,
            clock: ManualClock(Arc::new(AtomicU64::new(1))),
            asked: 0,
            answers: BTreeMap::new(),
        }
    }

    pub(super) fn pass(&mut self, nanos: u64) {
        self.clock.0.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Asks; nothing runs meanwhile.
    pub(super) fn put(&mut self, request: RegistrarRequest) -> Asked {
        self.put_until(Time::NEVER, request)
    }

    /// Asks for what is not done unless it begins by `due`; nothing runs meanwhile.
    pub(super) fn put_until(&mut self, due: Time, request: RegistrarRequest) -> Asked {
        self.asked += 1;
        let asked = Asked(self.asked);
        self.service.handle(Question { due, ..request.into() }, asked, self.clock.now());
        asked
    }

    /// Returns the answer, if it came.
    pub(super) fn take(&mut self, asked: Asked) -> Option<RegistrarReply> {
        self.answers.extend(self.service.take_answers());
        self.answers.remove(&asked)
    }

    /// Every shard takes the commands in its rings; returns how many these were.
    pub(super) fn run_shards(&mut self) -> usize {
        let clock = &self.clock;
        self.runners.iter_mut().map(|runner| runner.run_batch(clock, &mut Unobserved)).sum()
    }

    /// Takes the replies of the shards, and begins what is due.
    pub(super) fn poll(&mut self) {
        self.service.poll(self.clock.now());
        self.service.proceed(self.clock.now());
    }

    /// Runs shards and registrar until nothing moves.
    pub(super) fn settle(&mut self) {
        self.poll();
        while self.run_shards() > 0 {
            self.poll();
        }
    }

    /// Asks, and waits for the answer.
    pub(super) fn ask(&mut self, request: RegistrarRequest) -> RegistrarReply {
        let asked = self.put(request);
        self.settle();
        self.take(asked).expect("it is answered")
    }

    pub(super) fn state(&self) -> RegistrarState {
        self.service.registrar.state()
    }
}
