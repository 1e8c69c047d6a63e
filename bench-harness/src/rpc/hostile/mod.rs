//! `wharf-bench hostile`: a well-behaved client, alone and next to crowds of hostile peers.
//!
//! The service, the crowd and the client are one process each. The client has one connection, on which it places and
//! releases at a set rate, as Poisson arrivals. Its latency counts from when requests were due.
//!
//! | crowd | what each peer does again and again |
//! |---|---|
//! | `alone` | nothing: there is no crowd |
//! | `busy` | computes, and sends nothing |
//! | `connections` | begins to connect, or connects, and vanishes without a word |
//! | `streams` | opens a stream, sends half a hello and resets the stream |
//! | `malformed` | connects and sends bytes that are no hello |
//! | `bombs` | sends frames and lists that claim to be endless, and frames that never end |
//! | `slow-readers` | asks for many lists of nodes and reads nothing |
//!
//! Each row has a service of its own, whose memory is that of the row alone. A crowd goes on for the whole row. After it the
//! books are audited over a connection that was made before the crowd came.
//!
//! | module | contents |
//! |---|---|
//! | `crowd` | the process of a crowd: how it begins and ends, and what it did |
//! | `peers` | what its peers do |
//! | `bytes` | what they send |
//! | `row` | the results |

mod bytes;
mod crowd;
mod peers;
mod row;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::task::LocalSet;
use wharf_core::request::Policy;
use wharf_net::limits::CONNECTIONS_PER_ADDRESS_DEFAULT;

use super::filled::{Filled, FilledOptions};
use super::offer::{Offer, Outcomes, Window, offer};
use crate::durability::Mode;
use crate::engine::scenario::Kind;
use crate::engine::shapes::Shapes;
use crowd::Crowd;
pub use crowd::{CrowdKind, CrowdPlan, crowd_here};
pub use row::{HostileHeading, HostileRow};

/// The time for which the client may try to resume its session, if a crowd costs it its connection. Such a loss is then seen
/// as latency.
const RETRY_FOR: Duration = Duration::from_secs(10);

/// The measurements.
#[derive(Clone, Debug)]
pub struct HostileOptions {
    /// The crowds, one row each, after the row without a crowd.
    pub crowds: Vec<CrowdKind>,
    /// The requests per second of the client.
    pub per_second: f64,
    /// The time within which its requests should be done. The service is not told.
    pub deadline: Duration,
    /// The peers of a crowd that are there at a time.
    pub peers: u32,
    /// The most connections per second that a crowd begins.
    pub connects_per_second: u32,
    /// The threads of a crowd.
    pub threads: u16,
    /// The number of shards.
    pub shards: u16,
    /// The I/O threads of the service. `None`: as a service has by default.
    pub io_threads: Option<u16>,
    /// The handshakes that an I/O thread begins per second. `None`: as a service does by default.
    pub handshakes_per_second: Option<u32>,
    /// The number of nodes.
    pub nodes: u32,
    /// The time for which each row is measured.
    pub seconds: Duration,
    /// The time before each measurement, from when the crowd is there.
    pub warm_up: Duration,
    /// The seed of nodes, requests and arrivals.
    pub seed: u64,
    /// The directory under which data directories are made.
    pub directory: PathBuf,
}

/// What was measured next to a crowd.
struct Measured {
    outcomes: Outcomes,
    server_cpu_seconds: f64,
    /// Of the crowd; `None` without one.
    crowd_cpu_seconds: Option<f64>,
    peak_bytes: u64,
    /// What the crowd did per second; `None` without one.
    acts_per_second: Option<f64>,
}

/// Measures all rows. `each` is called with every finished row.
///
/// # Errors
/// When a process cannot start, a crowd does nothing, an answer is wrong, or the books are not what was promised.
pub fn run_hostile(
    options: &HostileOptions,
    mut each: impl FnMut(&HostileRow),
) -> anyhow::Result<Vec<HostileRow>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut rows: Vec<HostileRow> = Vec::new();
    for crowd in std::iter::once(None).chain(options.crowds.iter().copied().map(Some)) {
        let name = crowd.map_or(row::ALONE, CrowdKind::name);
        let measured = LocalSet::new().block_on(&runtime, measure(options, crowd));
        let measured = measured.with_context(|| format!("in the row `{name}`"))?;
        let row = HostileRow::new(options, name, &measured, rows.first());
        each(&row);
        rows.push(row);
    }
    Ok(rows)
}

async fn measure(options: &HostileOptions, kind: Option<CrowdKind>) -> anyhow::Result<Measured> {
    let mut filled = Filled::start(&FilledOptions {
        kind: Kind::Steady,
        shapes: &Shapes::synthetic(options.seed),
        policy: Policy::LeastFit,
        nodes: options.nodes,
        shards: options.shards,
        io_threads: options.io_threads,
        handshakes_per_second: options.handshakes_per_second,
        mode: Mode::MEMORY,
        connections: CONNECTIONS_PER_ADDRESS_DEFAULT,
        seed: options.seed,
        directory: &options.directory,
        command: "hostile",
    })
    .await?;
    filled.config.retry_for = RETRY_FOR;
    let process = filled.process();
    // Both are connected before the crowd comes, which may take all the room that there is for connections.
    let auditor = filled.connect().await?;
    let load = Offer {
        per_second: options.per_second,
        deadline: options.deadline,
        is_told: false,
        seed: options.seed,
    };
    let window = Arc::<Window>::default();
    let mut offered = offer(&filled.config, &filled.driver, load, 1, &window);
    offered.connected().await;
    let crowd = kind.map(|kind| Crowd::start(&plan(options, &filled, kind))).transpose()?;

    let begin = Instant::now() + options.warm_up;
    window.set(begin, options.seconds);
    // Not by blocking the thread: the auditor's connection is kept meanwhile.
    tokio::time::sleep_until(begin.into()).await;
    let of_crowd = || crowd.as_ref().map(|crowd| crowd.process().cpu_seconds()).transpose();
    let cpu_before = process.cpu_seconds()?;
    let crowd_before = of_crowd()?;
    tokio::time::sleep_until((begin + options.seconds).into()).await;
    let server_cpu_seconds = process.cpu_seconds()? - cpu_before;
    let crowd_cpu_seconds = of_crowd()?.zip(crowd_before).map(|(now, before)| now - before);
    let peak_bytes = process.peak_bytes()?;

    // The crowd goes on until the last request is answered.
    let outcomes = offered.join()?;
    let acts_per_second = crowd.map(Crowd::end).transpose()?;
    filled.audit(&auditor).await.context("after the crowd has left")?;
    // It is not stopped but killed: it would wait for peers that have vanished.
    drop(filled);
    Ok(Measured { outcomes, server_cpu_seconds, crowd_cpu_seconds, peak_bytes, acts_per_second })
}

fn plan(options: &HostileOptions, filled: &Filled, kind: CrowdKind) -> CrowdPlan {
    CrowdPlan {
        kind,
        server: filled.config.server,
        certificates: filled.config.roots.iter().map(|certificate| certificate.to_vec()).collect(),
        peers: options.peers,
        connects_per_second: options.connects_per_second,
        threads: options.threads,
    }
}
