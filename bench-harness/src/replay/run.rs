//! One complete replay: registers the nodes, drives the events, checks the books against the replies,
//! compares with the linear scan, and reports.

use std::sync::Arc;
use std::time::Instant;

use wharf_core::fragmentation::TypicalShapes;
use wharf_core::request::Policy;
use wharf_core::resource::{GPU_UNIT, GpuAssignment};

use super::report::sums;
use super::{
    BaselineRun, Decision, Driven, Findings, Progress, Promised, ReplayError, Report, drive, events,
};
use crate::target::{Books, EngineTarget, EngineTargetConfig, ReplayClock, Target};
use crate::trace::{Trace, TraceNode};

/// The options of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayOptions {
    /// The placement policy.
    pub policy: Policy,
    /// The number of shards of an engine in process.
    pub shards: u16,
    /// The seed of routing and of the Random policy.
    pub seed: u64,
    /// The maximum number of orders in flight.
    pub in_flight: usize,
    /// True if pods leave at their deletion time.
    pub departures: bool,
    /// True if the linear scan is timed, and compared where it must be identical.
    pub baseline: bool,
    /// Typical requests of the fragmentation-aware policies, in process. If `None`, they are learned from
    /// arriving requests.
    pub typical_shapes: Option<Arc<TypicalShapes>>,
    /// Arrived loads at which the allocation is reported, in percent of the cluster's GPUs.
    pub report_at: Vec<u32>,
}

/// The default number of orders in flight: enough to keep a shard busy, and few enough that latency is
/// meaningful. On one shard it does not change the placements.
pub const IN_FLIGHT_DEFAULT: usize = 64;

impl Default for ReplayOptions {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            shards: 1,
            seed: 0,
            in_flight: IN_FLIGHT_DEFAULT,
            departures: false,
            baseline: false,
            typical_shapes: None,
            report_at: Vec::new(),
        }
    }
}

/// The result of a replay.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The decision about each pod, in the order of the trace.
    pub decisions: Vec<Decision>,
    /// The figures.
    pub report: Report,
}

/// Replays a trace on an engine in this process.
///
/// # Errors
/// When the options are invalid, the engine fails, its books differ from its replies, or its placements
/// differ from the scan's where both must be identical.
pub fn replay_in_process(
    trace: &Trace,
    options: &ReplayOptions,
    progress: &mut dyn Progress,
) -> Result<Replay, ReplayError> {
    let clock = if options.departures { ReplayClock::virtual_time() } else { ReplayClock::real() };
    let typical_shapes = options.typical_shapes.clone();
    let config =
        EngineTargetConfig { shards: options.shards, seed: options.seed, clock, typical_shapes, pin: false };
    replay_on(&mut EngineTarget::open(&config)?, trace, options, progress)
}

/// Replays a trace on a target that has no nodes yet.
///
/// # Errors
/// As [`replay_in_process`].
pub fn replay_on<T: Target>(
    target: &mut T,
    trace: &Trace,
    options: &ReplayOptions,
    progress: &mut dyn Progress,
) -> Result<Replay, ReplayError> {
    if options.baseline && options.policy == Policy::Hybrid {
        return Err(ReplayError::NoBaseline(options.policy));
    }
    let events = events(trace, options.departures)?;
    let specs: Vec<_> = trace.nodes.iter().map(TraceNode::spec).collect();
    let registering = Instant::now();
    target.register(&specs)?;
    let registration = registering.elapsed();
    let driven = drive(target, trace, &events, options.policy, options.in_flight, progress)?;
    let books = target.audit()?;
    check_books(trace, &driven.promised, &books)?;
    let baseline = options.baseline.then(|| BaselineRun::replay(trace, &events, options));
    let identical = match &baseline {
        Some(run) if target.shards() == 1 && options.policy != Policy::Random => {
            check_baseline(trace, options.policy, run, &driven)?;
            Some(true)
        }
        _ => None,
    };
    let report = Report::new(&Findings {
        options,
        trace,
        driven: &driven,
        books: &books,
        registration,
        transport: target.transport(),
        shards: target.shards(),
        spilled: target.spilled(),
        resident_bytes: target.resident_bytes(),
        baseline: baseline.as_ref().map(|run| (run, identical)),
    });
    Ok(Replay { decisions: driven.decisions, report })
}

/// Compares the target's audited books with the trace's capacity and with the replies.
///
/// # Errors
/// The first sum that differs.
pub fn check_books(trace: &Trace, promised: &Promised, books: &Books) -> Result<(), ReplayError> {
    let same = |what: &str, promised: i128, counted: i128| {
        let disagree = || ReplayError::Books { what: what.to_owned(), promised, counted };
        (promised == counted).then_some(()).ok_or_else(disagree)
    };
    same("nodes", trace.nodes.len() as i128, books.nodes.into())?;
    same("allocations", promised.allocations.into(), books.allocations.into())?;
    let unit = i128::from(GPU_UNIT);
    let capacity = [
        trace.nodes.iter().map(|node| i128::from(node.cpu.units())).sum(),
        trace.nodes.iter().map(|node| i128::from(node.memory.units())).sum(),
        trace.nodes.iter().map(|node| i128::from(node.gpus) * unit).sum(),
    ];
    let allocated = [promised.cpu, promised.memory, promised.gpu];
    for (((what, sum), capacity), allocated) in sums(books).into_iter().zip(capacity).zip(allocated) {
        same(&format!("{what} capacity"), capacity, sum.capacity)?;
        same(&format!("allocated {what}"), allocated, sum.allocated)?;
    }
    Ok(())
}

fn check_baseline(
    trace: &Trace,
    policy: Policy,
    run: &BaselineRun,
    driven: &Driven,
) -> Result<(), ReplayError> {
    let Some(at) = run.first_difference(driven) else { return Ok(()) };
    let describe = |placed: Option<(usize, GpuAssignment)>| {
        placed.map_or_else(
            || "nowhere".to_owned(),
            |(node, gpus)| {
                let gpus: Vec<_> = gpus.instances().collect();
                format!("on `{}` with GPUs {gpus:?}", trace.nodes[node].name)
            },
        )
    };
    let engine = match driven.decisions[at] {
        Decision::Placed { node, gpus } => Some((node, gpus)),
        Decision::Refused(_) => None,
    };
    Err(ReplayError::BaselineDiffers {
        pod: trace.pods[at].name.to_string(),
        engine: describe(engine),
        scan: describe(run.placements[at]),
        policy,
    })
}
