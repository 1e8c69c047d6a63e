//! The work of a served shard outside its step, for the row `served-step`.
//!
//! - After each batch its changes are published. A thread reads the views all the time, as planners and followers
//!   do, and builds them.
//! - One statement of four allocations per hundred placements is prepared in one batch and finished in the
//!   next. It is held in between.
//! - The batch is recorded as the service's observer does: the time of each command in its ring, and the
//!   step.
//! - Each outcome becomes the reply of its request: written as a frame, and kept by the client's session. The
//!   session has admitted the request before, and drops what the client acknowledged. Grants and releases are
//!   written by the functions that the service uses for them, all others by the general encoder.
//!
//! Not included, because other threads do it: reading frames, rings and bells, TLS and UDP, planning (here on
//! a private copy, while the clock is stopped), and the registrar. Nothing is written to disk while the
//! service runs, because there is no journal yet.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use wharf_core::executor::{BatchRecord, Observer};
use wharf_core::ids::{Incarnation, SessionId, ShardId, StatementId, TenantId};
use wharf_core::link::{Clock, Decision, DecisionCell};
use wharf_core::registrar::{Catalog, Registrar, TOPOLOGY_LABEL_DEFAULT};
use wharf_core::request::Placement;
use wharf_core::router::Verdict;
use wharf_core::shard::{Command, Outcome, Refused, Released, Shard, ShardConfig};
use wharf_core::statement::{Allocate, CommitMode, ConflictDetection, Granted, Operation, Part, Prepare};
use wharf_core::time::Time;
use wharf_core::view::ViewReader;
use wharf_net::codec::{FLAG_REPLY, Header, encode_body, encode_frame, write_grant, write_released};
use wharf_net::convert::{placed_reply, plain_grant, refused_reply};
use wharf_net::protocol::{BODY_VERSION, Kind};
use wharf_net::server::{ServerShared, Settings};
use wharf_net::session::{Admission, ReplyBlocks, Session, Weight};
use wharf_ops::metrics::{Metrics, ShardObserver};

use super::scenario::Scenario;
use crate::target::ReplayClock;

/// Placements per statement.
const PLACEMENTS: usize = 100;
/// Allocations of a statement.
pub(super) const ALLOCATIONS: usize = 4;
/// The number of unacknowledged requests of the client.
const WINDOW: u64 = 256;
/// Bytes of the frames of a request for a placement and for a release, about as long as those of `wharf-bench rpc`.
const PLACE_FRAME_BYTES: usize = 64;
const RELEASE_FRAME_BYTES: usize = 40;
/// The hash of a request. Hashing is part of reading frames.
const FINGERPRINT: u32 = 1;
/// Bytes that are written to a connection at once.
const WRITE_BYTES: usize = 64 * 1024;

/// The time between two reads of views.
const READS_EVERY: Duration = Duration::from_micros(200);

/// A thread that reads views until this is dropped.
struct Readers {
    reader: ViewReader,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Readers {
    fn new(reader: ViewReader) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let reads = reader.clone();
        let thread = std::thread::spawn(move || {
            // Relaxed: it only signals the end.
            while !stopped.load(Ordering::Relaxed) {
                black_box(reads.latest());
                std::thread::sleep(READS_EVERY);
            }
        });
        Self { reader, stop, thread: Some(thread) }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        // Relaxed: see above.
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || matches!(ended, Some(Ok(()))), "a reader does not panic");
    }
}

/// The requests of one client, and the replies to them.
struct Replies {
    session: Session,
    blocks: ReplyBlocks,
    /// The sequence of the next request that is answered.
    sequence: u64,
    out: Vec<u8>,
}

impl Replies {
    /// Admits the next `requests` requests: releases and placements in turns, as the service admits them.
    fn admit(&mut self, requests: usize) {
        for sequence in self.sequence..self.sequence + requests as u64 {
            self.session.acknowledge(sequence.saturating_sub(WINDOW), &mut self.blocks);
            let (kind, bytes) = if sequence % 2 == 1 {
                (Kind::Release, RELEASE_FRAME_BYTES)
            } else {
                (Kind::Place, PLACE_FRAME_BYTES)
            };
            let weight = Weight::of(kind.number(), bytes);
            let admitted =
                matches!(self.session.admit_weighed(sequence, FINGERPRINT, weight), Admission::New);
            assert!(admitted, "request {sequence} is new");
        }
    }

    /// Answers the next request with a body that `encode` writes.
    fn reply(&mut self, kind: Kind, encode: impl FnOnce(&mut Vec<u8>)) {
        let kind = kind.number();
        let flags = FLAG_REPLY;
        let sequence = self.sequence;
        let header = Header { kind, flags, version: BODY_VERSION, sequence, ..Header::default() };
        let start = self.out.len();
        encode_frame(header, &[], &mut self.out, encode);
        self.session.answer(sequence, &self.out[start..], &mut self.blocks);
        self.sequence += 1;
    }
}

/// Everything except the shard.
pub(super) struct Served {
    readers: Readers,
    /// The private copy that plans statements.
    copy: Shard,
    catalog: Catalog,
    clock: ReplayClock,
    observer: ShardObserver,
    enqueued: Vec<Time>,
    replies: Replies,
    /// Placements since the last statement.
    placements: usize,
    statements: u64,
    /// The statement that is held since the previous batch.
    held: Option<StatementId>,
    /// The requests of the current statement, by operation.
    requests: Vec<u32>,
}

impl Served {
    /// Creates the work around `shard`, which was created with `config`.
    pub(super) fn new(shard: &mut Shard, config: ShardConfig, scenario: &Scenario) -> Self {
        let mut registrar = Registrar::new(1, TOPOLOGY_LABEL_DEFAULT);
        for spec in &scenario.nodes {
            registrar.register(spec.clone()).expect("names of a scenario differ");
        }
        let clock = ReplayClock::real();
        let shared = ServerShared::new(
            [0; 16],
            Incarnation(1),
            Arc::new(clock.clone()),
            Box::new(|| 0),
            Settings::default(),
        );
        let session = SessionId { incarnation: Incarnation(1), number: 1 };
        Self {
            readers: Readers::new(shard.enable_views()),
            copy: Shard::replica(config),
            catalog: registrar.catalog(),
            clock,
            observer: Metrics::new((1, 1, 0), shared).shard_observer(ShardId(0)),
            enqueued: Vec::new(),
            replies: Replies {
                session: Session::new(session, [0; 16]),
                blocks: ReplyBlocks::default(),
                sequence: 1,
                out: Vec::new(),
            },
            placements: 0,
            statements: 0,
            held: None,
            requests: Vec::new(),
        }
    }

    /// Appends the commands of the statement for a batch of `ops` placements. Not timed. `draw` returns the
    /// requests of a new statement.
    pub(super) fn prepare(
        &mut self,
        ops: usize,
        scenario: &Scenario,
        mut draw: impl FnMut() -> u32,
        commands: &mut Vec<Command>,
    ) {
        self.placements += ops;
        if let Some(statement) = self.held.take() {
            commands.push(Command::Finish { statement, decision: Decision::Committed });
        } else if self.placements >= PLACEMENTS {
            self.placements -= PLACEMENTS;
            self.requests = (0..ALLOCATIONS).map(|_| draw()).collect();
            commands.extend(self.plan(scenario));
        }
    }

    /// Plans a statement on the newest view; `None` if not all of it fits.
    fn plan(&mut self, scenario: &Scenario) -> Option<Command> {
        let reader = &self.readers.reader;
        self.copy.sync(&reader.read_until(reader.due()));
        let mut operations = Vec::with_capacity(ALLOCATIONS);
        for (place, &request) in (0u16..).zip(&self.requests) {
            let request = &scenario.requests[request as usize];
            let planned = self.copy.plan(request)?;
            let allocate = Allocate {
                node: planned.node,
                expected: None,
                demand: request.demand.clone(),
                gpus: None,
                owner: None,
                bundle: None,
                tenant: TenantId::OPERATOR,
                lease: None,
            };
            operations.push((place, Operation::Allocate(allocate)));
        }
        self.statements += 1;
        let statement = StatementId { incarnation: Incarnation(1), planner: 0, number: self.statements };
        let conflict_detection = ConflictDetection::Fine;
        let mode = CommitMode::AllOrNothing;
        let part = Part { statement, operations, conflict_detection, mode };
        let deadline = Time(u64::MAX);
        let cell = Arc::new(DecisionCell::default());
        Some(Command::Prepare(Box::new(Prepare { part, deadline, cell })))
    }

    /// Before the step: admits `requests` requests of a client and records the batch.
    pub(super) fn begin(&mut self, requests: usize, commands: &[Command]) {
        self.replies.admit(requests);
        let now = self.clock.now();
        self.enqueued.clear();
        self.enqueued.resize(commands.len(), now);
        let order = [(0, commands.len() as u16)];
        let enqueued = &self.enqueued;
        self.observer.handle_batch(&BatchRecord {
            shard: ShardId(0),
            now,
            order: &order,
            commands,
            enqueued,
        });
    }

    /// After the step: records it, and encodes replies from the outcomes of requests.
    pub(super) fn hand_out(&mut self, outcomes: &[Outcome]) {
        self.observer.handle_stepped(outcomes, self.clock.now());
        let Self { catalog, replies, .. } = self;
        for outcome in outcomes {
            match outcome {
                Outcome::Place(Ok(placement)) => match plain_grant(placement, catalog) {
                    Some(grant) => replies.reply(Kind::Place, |out| write_grant(&grant, out)),
                    None => {
                        let reply = placed_reply(placement, catalog);
                        replies.reply(Kind::Place, |out| encode_body(&reply, out));
                    }
                },
                Outcome::Place(Err(Refused { refusal, .. })) => {
                    let reply = refused_reply(Verdict::NoFitNow, refusal, catalog);
                    replies.reply(Kind::Place, |out| encode_body(&reply, out));
                }
                Outcome::Release(Ok(Released { inside: None, .. })) => {
                    replies.reply(Kind::Release, write_released);
                }
                // Outcomes of a planner's commands.
                _ => {}
            }
        }
        if replies.out.len() >= WRITE_BYTES {
            replies.out.clear();
        }
    }

    /// Returns what a statement was granted, with the request of each. Not timed.
    pub(super) fn conclude(&mut self, outcomes: &[Outcome]) -> Vec<(u32, Placement)> {
        let mut placed = Vec::new();
        for outcome in outcomes {
            match outcome {
                Outcome::Prepared(prepared) => {
                    self.held = Some(prepared.statement).filter(|_| !prepared.held.is_empty());
                }
                Outcome::Applied(Ok(applied)) => {
                    for (place, granted) in &applied.granted {
                        let Granted::Allocated(placement) = granted else {
                            unreachable!("only allocations are asked: {granted:?}")
                        };
                        placed.push((self.requests[usize::from(*place)], placement.clone()));
                    }
                }
                other => unreachable!("no outcome of a statement: {other:?}"),
            }
        }
        placed
    }

    /// Returns the number of prepared statements.
    pub(super) fn statements(&self) -> u64 {
        self.statements
    }
}
