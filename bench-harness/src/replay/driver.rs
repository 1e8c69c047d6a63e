//! Drives a target through the events of a trace.
//!
//! Up to `in_flight` orders are in flight. Replies are matched by tag. Before a departure is sent, all
//! earlier placements have been answered, for two reasons: a release needs its allocation id, and the
//! capacity that it frees must not help a pod that arrived before. So on one shard the placements do not
//! depend on `in_flight`.
//!
//! Latency is measured by the driver: from the call that submits a placement to the return of the wait that
//! brought its reply. With many orders in flight this includes waiting behind others. The loop is closed, so
//! this is not the latency at a given arrival rate.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use wharf_core::ids::AllocationId;
use wharf_core::request::Policy;
use wharf_core::resource::{Demand, GpuAssignment};
use wharf_core::router::Verdict;

use super::{Event, Progress, ReplayError};
use crate::target::{Answer, Granted, Order, Reply, Target, TargetError};
use crate::trace::Trace;

/// Decisions between two progress reports.
const PROGRESS_EVERY: u64 = 256;
/// Latencies above one minute are recorded as one minute.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// The decision about a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The pod was placed. It may have left since.
    Placed {
        /// The index of the node in the trace.
        node: usize,
        /// The GPU instances, and the part of each.
        gpus: GpuAssignment,
    },
    /// No node could hold the pod.
    Refused(Verdict),
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Driven {
    /// The decision about each pod, in the order of the trace.
    pub decisions: Vec<Decision>,
    /// The time from the first order to the last reply.
    pub elapsed: Duration,
    /// Latency of placements from submission to reply, in ns.
    pub latency: Histogram<u64>,
    /// The capacity held at the end, according to the replies.
    pub promised: Promised,
    /// The maximum held at any time.
    pub peak: Promised,
}

/// Sums over the granted allocations that are not released, in 1/10,000 units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promised {
    /// The number of allocations.
    pub allocations: u64,
    /// Cores.
    pub cpu: i128,
    /// MiB.
    pub memory: i128,
    /// GPU devices.
    pub gpu: i128,
}

impl Promised {
    /// Adds what was granted (`sign` 1), or takes away what was released (`sign` -1).
    pub(crate) fn change(&mut self, demand: &Demand, sign: i128) {
        self.allocations = self.allocations.checked_add_signed(sign as i64).expect("released once");
        self.cpu += sign * i128::from(demand.cpu.units());
        self.memory += sign * i128::from(demand.memory.units());
        self.gpu += sign * i128::from(demand.gpu.amount().units());
    }

    fn peak(self, other: Self) -> Self {
        Self {
            allocations: self.allocations.max(other.allocations),
            cpu: self.cpu.max(other.cpu),
            memory: self.memory.max(other.memory),
            gpu: self.gpu.max(other.gpu),
        }
    }
}

/// An order in flight.
#[derive(Clone, Copy)]
struct UnderWay {
    pod: usize,
    is_placement: bool,
    submitted: Instant,
}

/// The state of a pod during the replay.
#[derive(Clone, Copy)]
enum PodState {
    /// The pod has not arrived, or its placement is in flight.
    Undecided,
    Decided(Decision, Option<AllocationId>),
}

/// One run on one target.
struct Driver<'a, T> {
    target: &'a mut T,
    trace: &'a Trace,
    policy: Policy,
    /// Orders in flight by tag, at most `in_flight`; `free` has the free tags.
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
/// When `in_flight` is out of range, the target fails, or it sends an unexpected answer.
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
        // The departure of a pod that was not placed has no effect.
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
        // The decision is kept, because it records where the pod was placed.
        self.pods[pod] = PodState::Decided(decision, None);
        self.promise(pod, -1);
        Ok(())
    }

    fn promise(&mut self, pod: usize, sign: i128) {
        self.promised.change(&self.trace.pods[pod].demand, sign);
        self.peak = self.peak.peak(self.promised);
    }
}

fn wrong(what: &str) -> ReplayError {
    ReplayError::Target(TargetError::Rejected(what.to_owned()))
}
