//! Statements at a shard's runner: deadlines, stops and exports.

use super::running::Running;
use super::*;
use crate::ids::{AllocationId, Incarnation, NodeId, Ordinal, PartitionId, SessionId, TenantId};
use crate::index::Geometry;
use crate::journal::JournalFeed;
use crate::link::{DecisionCell, Lending, channel};
use crate::node::{Labels, NodeRegistration, NodeSpec, Taints};
use crate::resource::{Amount, Demand};
use crate::shard::{HybridSettings, ShardConfig};
use crate::statement::{Allocate, CommitMode, ConflictDetection, Granted, Operation, Part, Prepare};

struct Still(u64);

impl Clock for Still {
    fn now(&self) -> Time {
        Time(self.0)
    }
}

/// Records the order of ports in each batch.
#[derive(Default)]
struct Orders(Vec<(u16, u16)>);

impl Observer for Orders {
    fn handle_batch(&mut self, batch: &BatchRecord<'_>) {
        assert_eq!(batch.enqueued.len(), batch.commands.len());
        self.0.extend_from_slice(batch.order);
    }
}

struct Bed {
    runner: ShardRunner,
    submissions: Producer<Submission>,
    answers: Consumer<Answer>,
    stop: StopSignal,
    orders: Orders,
}

fn bed() -> Bed {
    bed_over(Shard::new(config()))
}

fn config() -> ShardConfig {
    ShardConfig {
        shard: ShardId(0),
        incarnation: Incarnation(1),
        partitions: vec![PartitionId(0)],
        geometry: Geometry::default(),
        seed: 1,
        hybrid: HybridSettings::default(),
    }
}

fn bed_over(shard: Shard) -> Bed {
    let (submissions, from_port) = channel(16);
    let (to_port, answers) = channel(16);
    let bell = Arc::new(Doorbell::new(Waker::noop().clone()));
    let link = ShardLink {
        submissions: from_port,
        answers: to_port,
        bell,
        woken: Arc::new(WokenBox::new(ShardId(0), Arc::default())),
        news: Arc::default(),
    };
    let (bell, waker) = ShardRunner::doorbell();
    let table = crate::router::RoutingTable::even(1, 1);
    let summary = Arc::clone(table.summary(ShardId(0)));
    let stop = StopSignal::default();
    let runner = ShardRunner::new(ShardId(0), shard, vec![link], summary, bell, waker, stop.clone());
    let mut bed = Bed { runner, submissions, answers, stop, orders: Orders::default() };
    let spec = NodeSpec {
        name: "n".into(),
        identity: None,
        cpu: Amount::whole(8),
        memory: Amount::whole(8),
        gpus: 0,
        custom: None,
        labels: Labels::default(),
        taints: Taints::default(),
    };
    let id = NodeId(1);
    let ordinal = Ordinal(1);
    let partition = PartitionId(0);
    let node = NodeRegistration { id, ordinal, partition, spec, agent: None };
    bed.ask(0, Command::AddNode(Box::new(node)));
    bed
}

impl Bed {
    fn batch(&mut self, now: u64) -> usize {
        self.runner.run_batch(&Still(now), &mut self.orders)
    }

    fn ask(&mut self, now: u64, command: Command) -> Outcome {
        let submission = Submission { token: 7, enqueued: Time(now), origin: None, command };
        assert!(self.submissions.push(submission).is_ok());
        self.batch(now);
        self.answers.pop().expect("an answer").outcome
    }

    fn ask_for(&mut self, origin: Origin, now: u64, command: Command) {
        let submission = Submission { token: 7, enqueued: Time(now), origin: Some(origin), command };
        assert!(self.submissions.push(submission).is_ok());
        self.batch(now);
        self.answers.pop().expect("an answer");
    }

    fn prepare(&mut self, number: u64, deadline: u64) -> Arc<DecisionCell> {
        let cell = Arc::new(DecisionCell::default());
        let command = self.prepare_command(number, deadline, &cell);
        let outcome = self.ask(1, command);
        assert!(matches!(outcome, Outcome::Prepared(prepared) if prepared.held == [0]));
        cell
    }

    fn prepare_command(&self, number: u64, deadline: u64, cell: &Arc<DecisionCell>) -> Command {
        let demand = Demand { cpu: Amount::whole(1), ..Demand::default() };
        let node = NodeId(1);
        let one = Allocate {
            node,
            expected: None,
            demand,
            gpus: None,
            owner: None,
            bundle: None,
            tenant: TenantId::OPERATOR,
            lease: None,
        };
        let part = Part {
            statement: statement(number),
            operations: vec![(0, Operation::Allocate(one))],
            conflict_detection: ConflictDetection::Fine,
            mode: CommitMode::AllOrNothing,
        };
        let prepare = Prepare { part, deadline: Time(deadline), cell: Arc::clone(cell) };
        Command::Prepare(Box::new(prepare))
    }

    fn finish(&mut self, now: u64, number: u64, decision: Decision) -> Outcome {
        self.ask(now, Command::Finish { statement: statement(number), decision })
    }
}

fn statement(number: u64) -> StatementId {
    StatementId { incarnation: Incarnation(1), planner: 0, number }
}

#[test]
fn a_hold_past_its_deadline_is_aborted_in_a_batch_of_the_runners_own() {
    let mut bed = bed();
    let cell = bed.prepare(1, 100);
    bed.orders.0.clear();
    assert_eq!((bed.batch(99), cell.decision()), (0, None));
    assert_eq!((bed.batch(100), cell.decision()), (0, Some(Decision::Aborted)), "the deadline is a step");
    assert_eq!(bed.batch(100), 1);
    assert_eq!(bed.orders.0, [(OWN_PORT, 1)], "recorded as a port's would be");
    assert!(bed.runner.shard().undecided().is_empty());
    assert!(bed.answers.is_empty());
    assert!(matches!(bed.finish(101, 1, Decision::Aborted), Outcome::Applied(Err(_))));
}

#[test]
fn what_was_committed_in_time_is_committed_whatever_the_clock_says() {
    let mut bed = bed();
    let cell = bed.prepare(1, 100);
    assert_eq!(cell.decide(Decision::Committed), Decision::Committed);
    bed.batch(100);
    bed.batch(101);
    let Outcome::Applied(Ok(applied)) = bed.finish(102, 1, Decision::Committed) else { panic!("applied") };
    assert!(matches!(applied.granted[..], [(0, Granted::Allocated(_))]));
}

/// Finds a unit with the effects of a statement and without its request: after a crash, it would be done twice.
#[test]
fn what_the_runner_commits_itself_is_recorded_with_its_request() {
    let mut shard = Shard::new(config());
    shard.enable_journal();
    let mut bed = bed_over(shard);
    let queue = Arc::<JournalQueue<Unit>>::default();
    let (bell, waker) = ShardRunner::doorbell();
    queue.set_bells(Vec::new(), Arc::clone(&bell));
    let feed = JournalFeed::new(Arc::clone(&queue), bell, waker);
    bed.runner.set_journal(queue);
    let origin = Origin {
        session: SessionId { incarnation: Incarnation(1), number: 1 },
        sequence: 3,
        mark: 1,
        fingerprint: 0,
        part: 0,
        is_wait: false,
        alternative: None,
    };
    let mut done_of = |decision: Decision, number: u64, begin: u64| {
        let cell = Arc::new(DecisionCell::default());
        let command = bed.prepare_command(number, begin + 99, &cell);
        bed.ask_for(origin, begin, command);
        cell.decide(decision);
        bed.batch(begin + 99);
        let mut units = Vec::new();
        feed.take(&mut units);
        let before: usize = units.drain(..).map(|unit| unit.done.len()).sum();
        assert_eq!(before, 0, "nothing is done before it is committed");
        bed.batch(begin + 100);
        feed.take(&mut units);
        assert!(bed.runner.prepared.is_empty(), "what is decided is forgotten");
        units.into_iter().flat_map(|unit| unit.done).collect::<Vec<_>>()
    };
    let done = done_of(Decision::Committed, 1, 1);
    let [Done { origin: of, deed: Deed::Statement(id, granted, _) }] = &done[..] else { panic!("{done:?}") };
    assert_eq!((*of, *id, granted.len()), (origin, statement(1), 1));
    assert_eq!(done_of(Decision::Aborted, 2, 201), [], "it did nothing");
}

#[test]
fn an_export_has_nothing_undecided_and_all_that_is_committed() {
    let mut bed = bed();
    let committed = bed.prepare(1, 1_000);
    let open = bed.prepare(2, 5);
    committed.decide(Decision::Committed);
    // The second statement reaches its deadline in the batch before. The third comes in the batch of the
    // export.
    assert_eq!(bed.batch(5), 0);
    let third = Arc::new(DecisionCell::default());
    let prepare = bed.prepare_command(3, 1_000, &third);
    for command in [prepare, Command::Export, Command::Status] {
        assert!(
            bed.submissions.push(Submission { token: 7, enqueued: Time(6), origin: None, command }).is_ok()
        );
    }
    while bed.batch(6) > 0 {}
    assert_eq!((open.decision(), third.decision()), (Some(Decision::Aborted), Some(Decision::Aborted)));
    let mut answers = std::iter::from_fn(|| bed.answers.pop().map(|answer| answer.outcome));
    assert!(matches!(answers.next(), Some(Outcome::Prepared(_))));
    let Some(Outcome::Exported(state)) = answers.next() else { panic!("the export is answered next") };
    assert_eq!(state.partitions[0].allocations.len(), 1, "what is committed is there");
    assert!(matches!(answers.next(), Some(Outcome::Status(_))));
    assert!(bed.runner.shard().undecided().is_empty());
}

#[test]
fn a_runner_that_stops_leaves_nothing_undecided() {
    let mut bed = bed();
    let first = bed.prepare(1, 1_000);
    let second = bed.prepare(2, 1_000);
    first.decide(Decision::Committed);
    bed.stop.stop();
    let mut shard = bed.runner.run(&Still(5), &mut Unobserved);
    assert_eq!(second.decision(), Some(Decision::Aborted));
    assert!(shard.undecided().is_empty());
    assert_eq!(shard.facts().load[0].1, i128::from(Amount::whole(1).units()));
}

#[test]
fn a_runner_with_something_to_feed_back_does_not_sleep() {
    let mut bed = bed();
    let cell = bed.prepare(1, 100);
    assert_eq!((bed.batch(100), cell.decision()), (0, Some(Decision::Aborted)));
    assert!(!bed.runner.fall_asleep(), "nobody rings for what it gives itself");
    assert_eq!(bed.batch(100), 1);
    assert!(bed.runner.fall_asleep() && !bed.runner.oversleeps());
    // A command in a ring is overslept if the bell was not rung for it.
    let command = Command::Status;
    assert!(
        bed.submissions.push(Submission { token: 7, enqueued: Time(100), origin: None, command }).is_ok()
    );
    assert!(bed.runner.oversleeps());
    assert!(!bed.runner.fall_asleep() && !bed.runner.oversleeps());
}

/// A port has its commands done at once. The shard's thread sleeps on, unless it has to wake earlier than it knows.
#[test]
fn a_shard_that_sleeps_is_run_in_the_place_of_its_thread() {
    let mut bed = bed();
    let cell = Arc::new(DecisionCell::default());
    let prepare = bed.prepare_command(1, 100, &cell);
    assert!(bed.runner.fall_asleep());
    let bell = Arc::clone(&bed.runner.bell);
    let running = Running { runner: Some(bed.runner), clock: Still(1), observer: Unobserved };
    let lending = Lending::new(running, Arc::clone(&bell));
    let mut ask = |command| {
        let submission = Submission { token: 7, enqueued: Time(1), origin: None, command };
        assert!(bed.submissions.push(submission).is_ok());
        let ran = lending.try_run();
        (ran, std::iter::from_fn(|| bed.answers.pop()).count())
    };
    let unknown = AllocationId {
        incarnation: Incarnation(9),
        partition: PartitionId(0),
        sequence: 1,
        tenant: TenantId::OPERATOR,
    };
    assert_eq!(ask(Command::Release(unknown)), (true, 1));
    assert!(bell.is_asleep(), "its thread need not wake");
    let held = lending.hold();
    assert_eq!(ask(Command::Release(unknown)), (false, 0), "another thread has it");
    drop(held);
    assert_eq!(ask(prepare), (true, 2));
    assert!(!bell.is_asleep(), "the deadline of the hold is new to its thread");
    assert_eq!(ask(Command::Release(unknown)), (false, 0), "its thread is awake");
}

/// A batch of slow commands is short, so that the first is answered before the last is decided. What the runner feeds back
/// does not take their place.
#[test]
fn a_batch_has_as_many_commands_as_can_be_done_in_a_short_time() {
    let mut bed = bed();
    bed.runner.set_pace(crate::limits::BATCH_NS / 3);
    for token in 0..8 {
        let submission = Submission { token, enqueued: Time(1), origin: None, command: Command::Status };
        assert!(bed.submissions.push(submission).is_ok());
    }
    assert_eq!(bed.runner.run_batch(&Still(1), &mut Unobserved), 3);
    bed.runner.own.push(Command::GoOn);
    assert_eq!(bed.runner.run_batch(&Still(1), &mut Unobserved), 4);
    bed.runner.set_pace(u64::MAX);
    assert_eq!(bed.runner.run_batch(&Still(1), &mut Unobserved), 1, "one is always taken");
    assert_eq!(bed.runner.summary.pace(), u64::MAX);
}

/// A clock on which each look takes a while.
struct Slow(std::cell::Cell<u64>);

impl Clock for Slow {
    fn now(&self) -> Time {
        self.0.set(self.0.get() + 1_000);
        Time(self.0.get())
    }
}

#[test]
fn the_time_per_command_is_measured_and_published() {
    let mut bed = bed();
    let clock = Slow(std::cell::Cell::new(0));
    for token in 0..4 {
        let submission = Submission { token, enqueued: Time(1), origin: None, command: Command::Status };
        assert!(bed.submissions.push(submission).is_ok());
    }
    bed.runner.pace = Pace::default();
    assert_eq!(bed.runner.run_batch(&clock, &mut Unobserved), 4);
    assert_eq!(bed.runner.summary.pace(), 250);
    // A look at empty rings measures nothing.
    assert_eq!(bed.runner.run_batch(&clock, &mut Unobserved), 0);
    assert_eq!(bed.runner.summary.pace(), 250);
}
