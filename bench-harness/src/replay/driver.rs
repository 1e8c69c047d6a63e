//! Drives a target through the events of a trace.
//!
//! Up to `in_flight` orders are under way; replies are matched by tag. Before a departure is
//! sent, every placement that was sent has been answered: a release must know its allocation,
//! and what it frees must not help a pod that arrived before. So on one shard the placements are
//! the same whatever `in_flight` is.
//!
//! Latency is what the driver sees: from the call that submits a placement to the return of the
//! wait that brought its reply. With many in flight that includes the wait behind the others: it
//! is a closed loop, and says nothing about latency at a given rate of arrivals.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use wharf_core::ids::AllocationId;
use wharf_core::request::Policy;
use wharf_core::resource::GpuAssignment;
use wharf_core::router::Verdict;

use super::{Event, Progress, ReplayError};
use crate::target::{Answer, Granted, Order, Reply, Target, TargetError};
use crate::trace::Trace;

/// Decisions between two reports of progress.
const PROGRESS_EVERY: u64 = 256;
/// A latency beyond a minute is counted as one.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// What became of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It stands, or stood until it left, on a node (an index into the trace's nodes).
    Placed {
        /// The node.
        node: usize,
        /// The GPU instances, and how much of each.
        gpus: GpuAssignment,
    },
    /// No node could hold it.
    Refused(Verdict),
}

/// What a run gave and cost.
#[derive(Clone, Debug)]
pub struct Driven {
    /// Per pod of the trace, in its order.
    pub decisions: Vec<Decision>,
    /// From the first order to the last reply.
    pub elapsed: Duration,
    /// Nanoseconds from submission to reply, of placements.
    pub latency: Histogram<u64>,
    /// What live allocations hold at the end, as the driver was promised.
    pub promised: Promised,
    /// The most that they held at any time.
    pub peak: Promised,
}

/// Sums over the allocations that were granted and not released, in 1/10 000 units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promised {
    /// How many.
    pub allocations: u64,
    /// Cores.
    pub cpu: i128,
    /// MiB.
    pub memory: i128,
    /// GPU devices.
    pub gpu: i128,
}

impl Promised {
    fn peak(self, other: Self) -> Self {
        Self {
            allocations: self.allocations.max(other.allocations),
            cpu: self.cpu.max(other.cpu),
            memory: self.memory.max(other.memory),
            gpu: self.gpu.max(other.gpu),
        }
    }
}

/// An order under way.
#[derive(Clone, Copy)]
struct UnderWay {
    pod: usize,
    is_placement: bool,
    submitted: Instant,
}

/// What is known of a pod while the replay runs.
#[derive(Clone, Copy)]
enum PodState {
    /// It has not come, or its placement is under way.
    Undecided,
    Decided(Decision, Option<AllocationId>),
}

/// One run over one target.
struct Driver<'a, T> {
    target: &'a mut T,
    trace: &'a Trace,
    policy: Policy,
    /// Orders under way by tag; the free tags beside them. Bounded by `in_flight`.
    under_way: Vec<Option<UnderWay>>,
    free: Vec<usize>,
    placements_under_way: usize,
    replies: Vec<Reply>,
    pods: Vec<PodState>,
    latency: Histogram<u64>,
    promised: Promised,
    peak: Promised,
    decided: u64,
    progress: &'a mut dyn Progress,
}

/// Sends the events of a trace to a target on which its nodes are registered.
///
/// # Errors
/// When `in_flight` is out of range, the target fails, or it answers what was not asked.
pub fn drive<T: Target>(
    target: &mut T,
    trace: &Trace,
    events: &[Event],
    policy: Policy,
    in_flight: usize,
    progress: &mut dyn Progress,
) -> Result<Driven, ReplayError> {
    let most = target.in_flight_max();
    if in_flight == 0 || in_flight > most {
        return Err(ReplayError::InFlight { given: in_flight, most });
    }
    let mut driver = Driver {
        target,
        trace,
        policy,
        under_way: vec![None; in_flight],
        free: (0..in_flight).rev().collect(),
        placements_under_way: 0,
        replies: Vec::with_capacity(in_flight),
        pods: vec![PodState::Undecided; trace.pods.len()],
        latency: Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("the bounds are in order"),
        promised: Promised::default(),
        peak: Promised::default(),
        decided: 0,
        progress,
    };
    let started = Instant::now();
    for event in events {
        driver.handle_event(event)?;
    }
    while driver.free.len() < in_flight {
        driver.collect()?;
    }
    let elapsed = started.elapsed();
    driver.progress.advance(driver.decided);
    let decision = |state: PodState| match state {
        PodState::Decided(decision, _) => Some(decision),
        PodState::Undecided => None,
    };
    let decisions: Option<Vec<_>> = driver.pods.into_iter().map(decision).collect();
    Ok(Driven {
        decisions: decisions.ok_or(ReplayError::Unanswered)?,
        elapsed,
        latency: driver.latency,
        promised: driver.promised,
        peak: driver.peak,
    })
}

impl<T: Target> Driver<'_, T> {
    fn handle_event(&mut self, event: &Event) -> Result<(), ReplayError> {
        if event.is_arrival() {
            self.target.set_now(event.at);
            let request = self.trace.pods[event.pod].request(self.policy);
            return self.submit(event.pod, Order::Place(request));
        }
        while self.placements_under_way > 0 {
            self.collect()?;
        }
        // The departure of a pod that was not placed is nothing.
        if let PodState::Decided(_, Some(allocation)) = self.pods[event.pod] {
            self.target.set_now(event.at);
            self.submit(event.pod, Order::Release(allocation))?;
        }
        Ok(())
    }

    fn submit(&mut self, pod: usize, order: Order) -> Result<(), ReplayError> {
        while self.free.is_empty() {
            self.collect()?;
        }
        let tag = self.free.pop().expect("there was just a free tag");
        let is_placement = matches!(order, Order::Place(_));
        self.under_way[tag] = Some(UnderWay { pod, is_placement, submitted: Instant::now() });
        self.placements_under_way += usize::from(is_placement);
        Ok(self.target.submit(tag as u64, order)?)
    }

    fn collect(&mut self) -> Result<(), ReplayError> {
        let mut replies = std::mem::take(&mut self.replies);
        self.target.wait(&mut replies)?;
        if replies.is_empty() {
            return Err(ReplayError::Unanswered);
        }
        let now = Instant::now();
        for reply in replies.drain(..) {
            self.handle_reply(reply, now)?;
        }
        self.replies = replies;
        Ok(())
    }

    fn handle_reply(&mut self, reply: Reply, now: Instant) -> Result<(), ReplayError> {
        let tag = usize::try_from(reply.tag).unwrap_or(usize::MAX);
        let order = self.under_way.get_mut(tag).and_then(Option::take);
        let order = order.ok_or(ReplayError::UnknownTag(reply.tag))?;
        self.free.push(tag);
        if !order.is_placement {
            return self.handle_released(order.pod, reply.answer);
        }
        let nanos = u64::try_from((now - order.submitted).as_nanos()).unwrap_or(LATENCY_NS_MAX);
        self.latency.saturating_record(nanos.max(1));
        self.placements_under_way -= 1;
        self.pods[order.pod] = match reply.answer {
            Answer::Placed(Granted { node, allocation, gpus }) => {
                self.promise(order.pod, 1);
                PodState::Decided(Decision::Placed { node, gpus }, Some(allocation))
            }
            Answer::Refused(verdict) => PodState::Decided(Decision::Refused(verdict), None),
            Answer::Released => return Err(wrong("a placement was answered by a release")),
        };
        self.decided += 1;
        if self.decided.is_multiple_of(PROGRESS_EVERY) {
            self.progress.advance(self.decided);
        }
        Ok(())
    }

    fn handle_released(&mut self, pod: usize, answer: Answer) -> Result<(), ReplayError> {
        if answer != Answer::Released {
            return Err(wrong("a release was answered by a placement"));
        }
        let PodState::Decided(decision, Some(_)) = self.pods[pod] else {
            unreachable!("only a placed pod is released, and once");
        };
        // The decision stays: it is the placement that the pod had.
        self.pods[pod] = PodState::Decided(decision, None);
        self.promise(pod, -1);
        Ok(())
    }

    fn promise(&mut self, pod: usize, sign: i128) {
        let demand = &self.trace.pods[pod].demand;
        let promised = &mut self.promised;
        promised.allocations = promised.allocations.checked_add_signed(sign as i64).expect("released once");
        promised.cpu += sign * i128::from(demand.cpu.units());
        promised.memory += sign * i128::from(demand.memory.units());
        promised.gpu += sign * i128::from(demand.gpu.amount().units());
        self.peak = self.peak.peak(*promised);
    }
}

fn wrong(what: &str) -> ReplayError {
    ReplayError::Target(TargetError::Rejected(what.to_owned()))
}
