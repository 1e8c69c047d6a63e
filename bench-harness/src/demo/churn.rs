//! Steady churn: places until the target utilisation is reached, then releases as much as it places.
//!
//! The loop is closed: `in_flight` requests are always in flight, so latency includes waiting behind the
//! others. This is the latency on a saturated connection, not at a given arrival rate.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use wharf_core::ids::AllocationId;
use wharf_core::request::Policy;
use wharf_core::resource::GPU_UNIT;
use wharf_core::rng::Rng;

use crate::replay::{Progress, Promised, ReplayError};
use crate::target::{Answer, Order, Reply, Target, TargetError};
use crate::trace::Trace;

const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// The load.
#[derive(Clone, Debug)]
pub struct Churn {
    /// The total number of places and releases.
    pub requests: u64,
    /// The number of requests in flight.
    pub in_flight: usize,
    /// The seed of the choice of pods and releases.
    pub seed: u64,
    /// The placement policy.
    pub policy: Policy,
    /// The share of the cluster's scarcest resource that is kept in use, in percent.
    pub utilisation_percent: u8,
    /// The number of requests in flight until that share is in use, if this is not to be measured.
    pub fill_in_flight: Option<usize>,
}

/// The result of a churn.
#[derive(Debug)]
pub struct ChurnReport {
    /// Placements granted.
    pub placed: u64,
    /// Placements refused.
    pub refused: u64,
    /// Allocations released.
    pub released: u64,
    /// The time from the first request to the last reply.
    pub elapsed: Duration,
    /// Latency of places from submission to reply, in ns.
    pub place_latency: Histogram<u64>,
    /// Latency of releases from submission to reply, in ns.
    pub release_latency: Histogram<u64>,
    /// The capacity held at the end, according to the replies.
    pub promised: Promised,
}

#[derive(Clone, Copy)]
enum UnderWay {
    Place { pod: usize },
    Release { pod: usize },
}

struct Load<'a> {
    trace: &'a Trace,
    rng: Rng,
    /// Live allocations, each with its pod.
    live: Vec<(usize, AllocationId)>,
    under_way: Vec<Option<(UnderWay, Instant)>>,
    free: Vec<usize>,
    report: ChurnReport,
    /// Cpu, memory and GPUs, in 1/10,000. If more of any is in use, the next request is a release.
    most: [i128; 3],
}

/// Drives `target`, on which the nodes of `trace` are registered. Calls `begun` when it is filled and the measurement
/// begins.
///
/// # Errors
/// When the target fails or sends an unexpected answer.
pub fn churn<T: Target>(
    target: &mut T,
    trace: &Trace,
    churn: &Churn,
    progress: &mut dyn Progress,
    begun: &mut dyn FnMut(),
) -> Result<ChurnReport, ReplayError> {
    let most = target.in_flight_max();
    for given in [Some(churn.in_flight), churn.fill_in_flight].into_iter().flatten() {
        if given == 0 || given > most {
            return Err(ReplayError::InFlight { given, most });
        }
    }
    let histogram = || Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("the bounds are in order");
    let report = || ChurnReport {
        placed: 0,
        refused: 0,
        released: 0,
        elapsed: Duration::ZERO,
        place_latency: histogram(),
        release_latency: histogram(),
        promised: Promised::default(),
    };
    let mut load = Load {
        trace,
        rng: Rng::new(churn.seed),
        live: Vec::new(),
        under_way: vec![None; churn.in_flight],
        free: (0..churn.in_flight).rev().collect(),
        report: report(),
        most: capacity(trace).map(|capacity| capacity * i128::from(churn.utilisation_percent) / 100),
    };
    let mut replies = Vec::with_capacity(churn.in_flight);
    if let Some(in_flight) = churn.fill_in_flight {
        load.fill(target, in_flight, churn.policy)?;
        let promised = load.report.promised;
        load.report = ChurnReport { promised, ..report() };
        load.under_way = vec![None; churn.in_flight];
        load.free = (0..churn.in_flight).rev().collect();
        begun();
    }
    let started = Instant::now();
    for sent in 0..churn.requests {
        while load.free.is_empty() {
            load.collect(target, &mut replies)?;
            progress.advance(sent);
        }
        load.send(target, churn.policy)?;
    }
    while load.free.len() < churn.in_flight {
        load.collect(target, &mut replies)?;
    }
    progress.advance(churn.requests);
    load.report.elapsed = started.elapsed();
    Ok(load.report)
}

/// Returns cpu, memory and GPUs of the cluster, in 1/10,000.
fn capacity(trace: &Trace) -> [i128; 3] {
    trace.nodes.iter().fold([0; 3], |[cpu, memory, gpu], node| {
        let gpus = i128::from(node.gpus) * i128::from(GPU_UNIT);
        [cpu + i128::from(node.cpu.units()), memory + i128::from(node.memory.units()), gpu + gpus]
    })
}

impl Load<'_> {
    /// Places until the target utilisation is reached.
    fn fill<T: Target>(
        &mut self,
        target: &mut T,
        in_flight: usize,
        policy: Policy,
    ) -> Result<(), ReplayError> {
        self.under_way = vec![None; in_flight];
        self.free = (0..in_flight).rev().collect();
        let mut replies = Vec::with_capacity(in_flight);
        while !self.is_full() {
            while self.free.is_empty() {
                self.collect(target, &mut replies)?;
            }
            self.send(target, policy)?;
        }
        while self.free.len() < in_flight {
            self.collect(target, &mut replies)?;
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        let promised = &self.report.promised;
        let used = [promised.cpu, promised.memory, promised.gpu];
        used.iter().zip(&self.most).any(|(used, most)| used > most)
    }

    fn send<T: Target>(&mut self, target: &mut T, policy: Policy) -> Result<(), TargetError> {
        let is_full = self.is_full();
        let tag = self.free.pop().expect("the caller waited for a free tag");
        let (under_way, order) = if is_full && !self.live.is_empty() {
            let at = self.rng.below(self.live.len() as u64) as usize;
            let (pod, allocation) = self.live.swap_remove(at);
            (UnderWay::Release { pod }, Order::Release(allocation))
        } else {
            let pod = self.rng.below(self.trace.pods.len() as u64) as usize;
            (UnderWay::Place { pod }, Order::Place(self.trace.pods[pod].request(policy)))
        };
        self.under_way[tag] = Some((under_way, Instant::now()));
        target.submit(tag as u64, order)
    }

    fn collect<T: Target>(&mut self, target: &mut T, replies: &mut Vec<Reply>) -> Result<(), ReplayError> {
        target.wait(replies)?;
        if replies.is_empty() {
            return Err(ReplayError::Unanswered);
        }
        let now = Instant::now();
        for Reply { tag, answer } in replies.drain(..) {
            let known = self.under_way.get_mut(tag as usize).and_then(Option::take);
            let (under_way, since) = known.ok_or(ReplayError::UnknownTag(tag))?;
            self.free.push(tag as usize);
            let nanos = now.duration_since(since).as_nanos() as u64;
            match (under_way, answer) {
                (UnderWay::Place { pod }, Answer::Placed(granted)) => {
                    self.report.placed += 1;
                    self.report.place_latency.saturating_record(nanos);
                    self.live.push((pod, granted.allocation));
                    self.report.promised.change(&self.trace.pods[pod].demand, 1);
                }
                (UnderWay::Place { .. }, Answer::Refused(_)) => {
                    self.report.refused += 1;
                    self.report.place_latency.saturating_record(nanos);
                }
                (UnderWay::Release { pod }, Answer::Released) => {
                    self.report.released += 1;
                    self.report.release_latency.saturating_record(nanos);
                    self.report.promised.change(&self.trace.pods[pod].demand, -1);
                }
                (_, _) => return Err(ReplayError::UnknownTag(tag)),
            }
        }
        Ok(())
    }
}
