//! `wharf-bench rpc`: requests to the service over QUIC, next to a bare QUIC echo.
//!
//! The service, the echo and the load are one process each. The service holds a cluster that is 85 % full, and is driven
//! through the client library, as users drive it:
//!
//! - *closed loop*: a fixed number of frames in flight per connection;
//! - *open loop*: requests at a set rate, whose latency counts from when they were due;
//! - *mixed*: a closed loop with groups and updates of nodes among places and releases.
//!
//! Each row alternates between service and echo, with the same connections, window and frame sizes, so that other work on
//! the machine affects both. After each row the books are audited. A secure service, with certificates and a tenant, also
//! alternates with the same service without them.
//!
//! | module | contents |
//! |---|---|
//! | `plan` | the rows |
//! | `work`, `drive` | what is asked of the service, and by whom |
//! | `arrivals` | the times of an open loop |
//! | `floor` | the echo |
//! | `recorder` | what is measured |
//! | `threads` | which thread limits a load |
//! | `access` | certificates, roles and a tenant, as in production |
//! | `serving` | the service with its full cluster |
//! | `helper`, `peer` | the processes that are started: service and echo |
//! | `filled` | a service with a full cluster, for the commands below |
//! | `offer` | requests at a rate, and what became of them |
//! | `row`, `html` | the results |
//! | `in_memory` | the same requests without a network, for counting what a request takes |
//! | `cold` | how the cache lines of a request are counted |
//! | `overload` | `wharf-bench overload`: more requests than the engine can do |
//! | `idle` | `wharf-bench idle`: clients that ask for nothing |
//! | `hostile` | `wharf-bench hostile`: a client next to crowds of hostile peers |

mod access;
mod arrivals;
mod cold;
mod drive;
mod filled;
mod floor;
mod helper;
mod hostile;
mod html;
mod idle;
mod in_memory;
mod offer;
mod overload;
mod peer;
mod plan;
mod recorder;
mod row;
mod serving;
mod threads;
mod work;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use tokio::task::LocalSet;
use wharf_core::link::lock;
use wharf_core::request::Policy;

use crate::engine::rows::Selection;
use crate::engine::shapes::Shapes;
use crate::engine::{Budget, measure_all};
use drive::ServiceLoad;
use floor::{EchoClient, EchoLoad, FrameSizes};
use peer::Peer;
use recorder::{Segment, Times};
use row::Measured;
use serving::{Service, ServicePlan};
use work::Mix;

pub use arrivals::Arrivals;
pub use hostile::{
    CrowdKind, CrowdPlan, HostileHeading, HostileOptions, HostileRow, crowd_here, run_hostile,
};
pub use html::write_report;
pub use idle::{IdleHeading, IdleOptions, IdleRow, run_idle};
pub use in_memory::{Cluster, InMemory};
pub use overload::{OverloadHeading, OverloadOptions, OverloadRow, run_overload};
pub use peer::{Serve, serve_here};
pub use plan::{Callers, Load, ROWS, Rate, RowPlan, Target};
pub use row::{CurvePoint, Heading, RpcRow};
pub use threads::{Busy, Limits, ServiceThreads};

/// From this number of connections on, their memory is measured.
const IDLE_CONNECTIONS_MIN: usize = 32;
/// What a connection adds to the time before a measurement: it searches for the length of packets, for instance.
const WARM_UP_PER_CONNECTION: Duration = Duration::from_millis(1);
/// Connections that are no part of a load.
const OTHER_CONNECTIONS: u32 = 16;

/// The measurements.
#[derive(Clone, Debug)]
pub struct RpcOptions {
    /// The rows.
    pub rows: Vec<RowPlan>,
    /// Clients show certificates and act for a tenant with limits. Each row alternates with the same row without that.
    pub secure: bool,
    /// The numbers of shards. All rows are measured with each.
    pub shards: Vec<u16>,
    /// The I/O threads of the service. `None`: as a service has by default.
    pub io_threads: Option<u16>,
    /// The threads of the load, each with a socket of its own. The echo has one.
    pub load_threads: u16,
    /// The number of nodes.
    pub nodes: u32,
    /// The policy of all places.
    pub policy: Policy,
    /// The time for which each of service and echo is measured per row.
    pub seconds: Duration,
    /// The time before each measurement.
    pub warm_up: Duration,
    /// The number of turns of echo and service that a row consists of.
    pub rounds: u32,
    /// The requests of a burst.
    pub burst: u32,
    /// The seed of nodes, requests and arrivals.
    pub seed: u64,
    /// The shapes of requests.
    pub shapes: Shapes,
    /// The directory under which data directories are made.
    pub directory: PathBuf,
}

/// Measures all rows. `each` is called with every finished row.
///
/// # Errors
/// When a process cannot start, an answer is wrong, or the books are not what was promised.
pub fn run(options: &RpcOptions, each: impl FnMut(&RpcRow)) -> anyhow::Result<Vec<RpcRow>> {
    let runtime = match usize::from(options.load_threads) {
        0 | 1 => tokio::runtime::Builder::new_current_thread().enable_all().build()?,
        threads => {
            tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?
        }
    };
    let echo = Peer::start(&Serve::Echo)?;
    let certificate = echo.certificates.first().context("the echo has a certificate")?.clone();
    let mut run = Run {
        options,
        echo: {
            let _runtime = runtime.enter();
            EchoClient::new(echo.address, certificate, echo.process())?
        },
        rows: Vec::new(),
        each,
    };
    let measured = LocalSet::new().block_on(&runtime, run.measure_all());
    let rows = run.rows;
    measured?;
    echo.stop()?;
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}

struct Run<'a, F> {
    options: &'a RpcOptions,
    echo: EchoClient,
    rows: Vec<(RowPlan, RpcRow)>,
    each: F,
}

/// The services of a run.
struct Services {
    /// The one that rows are about.
    own: Service,
    /// If that one is secure: the same without certificates.
    plain: Option<Service>,
}

impl<F: FnMut(&RpcRow)> Run<'_, F> {
    async fn measure_all(&mut self) -> anyhow::Result<()> {
        for &shards in &self.options.shards {
            for mode in crate::durability::MODES {
                let of_mode = |row: &&RowPlan| row.mode == mode;
                let plans: Vec<RowPlan> = self.options.rows.iter().filter(of_mode).copied().collect();
                if plans.is_empty() {
                    continue;
                }
                let connections = plans.iter().map(|plan| plan.connections as u32).max().unwrap_or(0);
                let plan = ServicePlan { options: self.options, shards, mode, connections };
                let mut services = Services {
                    own: Service::start(&plan, self.options.secure).await?,
                    plain: match self.options.secure {
                        true => Some(Service::start(&plan, false).await?),
                        false => None,
                    },
                };
                for plan in plans {
                    self.measure(&mut services, plan).await?;
                }
                services.own.stop().await?;
                if let Some(plain) = services.plain {
                    plain.stop().await?;
                }
            }
        }
        Ok(())
    }

    async fn measure(&mut self, services: &mut Services, plan: RowPlan) -> anyhow::Result<()> {
        let Services { own: service, plain } = services;
        let mix = if plan.load == Load::Mixed { Mix::Mixed } else { Mix::Pairs(plan.batch) };
        let sizes = service.driver.probe(&service.client, mix).await?;
        // Many connections are made once: the service is still at work for those of a round that ended before.
        let rounds = if plan.connections >= IDLE_CONNECTIONS_MIN { 1 } else { self.options.rounds.max(1) };
        let times = Times {
            warm_up: self.options.warm_up + WARM_UP_PER_CONNECTION * plan.connections as u32,
            measured: self.options.seconds / rounds,
        };
        let offered_per_second = match plan.load {
            Load::Open { rate, .. } => Some(self.rate(service, rate, times).await?),
            Load::Closed | Load::Mixed => None,
        };
        lock(&service.driver.work).refused = 0;
        let mut turn = Turn { plan, mix, sizes, times, offered_per_second, seed: self.options.seed };
        let mut floor = Segment::empty();
        let mut own = Segment::empty();
        let mut of_plain = Segment::empty();
        let mut bytes_per_idle_connection = None;
        for round in 0..rounds {
            turn.seed = self.options.seed.wrapping_add(u64::from(round));
            floor.add(&self.echo.drive(&turn.echo_load(self.options.burst)).await?);
            // The first of both changes, so that none always follows the other.
            let plain_is_first = round % 2 == 0;
            if let Some(plain) = plain.as_ref().filter(|_| plain_is_first) {
                of_plain.add(&self.drive(plain, &turn).await?.0);
            }
            let (segment, bytes) = self.drive(service, &turn).await?;
            own.add(&segment);
            bytes_per_idle_connection = bytes_per_idle_connection.or(bytes);
            if let Some(plain) = plain.as_ref().filter(|_| !plain_is_first) {
                of_plain.add(&self.drive(plain, &turn).await?.0);
            }
        }
        for service in [Some(&*service), plain.as_ref()].into_iter().flatten() {
            service.audit().await.with_context(|| format!("after the row `{}`", plan.name))?;
        }
        let measured = service.measured(turn, own, floor, self.options);
        let measured = Measured {
            bytes_per_idle_connection,
            served_step_per_second: (plan.batch > 1).then(|| self.served_step()).transpose()?,
            plain: plain.is_some().then_some(of_plain),
            ..measured
        };
        let row = RpcRow::new(measured, &self.rows);
        if plan.load == Load::Closed && plan.batch == 1 && plan.connections == 1 {
            service.closed_per_second = service.closed_per_second.max(row.requests_per_second);
        }
        (self.each)(&row);
        self.rows.push((plan, row));
        Ok(())
    }

    /// Drives one segment over new connections. With many, it also returns the memory that each takes.
    async fn drive(&self, service: &Service, turn: &Turn) -> anyhow::Result<(Segment, Option<u64>)> {
        let load = turn.service_load(self.options.burst);
        service.drive(&load, turn.plan.connections, self.sockets()).await
    }

    fn sockets(&self) -> usize {
        usize::from(self.options.load_threads.max(1))
    }

    /// Returns the rate of an open loop. If no closed loop was measured, one is.
    async fn rate(&self, service: &mut Service, rate: Rate, times: Times) -> anyhow::Result<f64> {
        match rate {
            Rate::PerSecond(per_second) => Ok(per_second),
            Rate::PercentOfClosed(percent) => {
                if service.closed_per_second == 0.0 {
                    let load = ServiceLoad {
                        in_flight: wharf_net::protocol::IN_FLIGHT_DEFAULT as usize,
                        mix: Mix::Pairs(1),
                        callers: Callers::Lockstep,
                        schedule: None,
                        times,
                    };
                    let (closed, _) = service.drive(&load, 1, 1).await?;
                    service.closed_per_second = crate::replay::rate(closed.requests, closed.elapsed);
                }
                Ok(service.closed_per_second * percent / 100.0)
            }
        }
    }

    /// Returns the requests per second of the row `served-step` of `wharf-bench engine`.
    fn served_step(&self) -> anyhow::Result<f64> {
        let &RpcOptions { nodes, policy, seed, seconds, .. } = self.options;
        let selection =
            Selection { rows: vec!["served-step".to_owned()], nodes: vec![nodes], policy: Some(policy) };
        let plan = selection.plan().map_err(anyhow::Error::msg)?;
        let rows = measure_all(&plan, &self.options.shapes, Budget::Time(seconds / 4), seed, |_| {});
        let row = rows.first().context("the row was measured")?;
        // An operation is a place and a release.
        Ok(2e9 / row.ns_per_op())
    }
}

/// What both sides of one turn have in common.
struct Turn {
    plan: RowPlan,
    mix: Mix,
    sizes: FrameSizes,
    times: Times,
    offered_per_second: Option<f64>,
    seed: u64,
}

impl Turn {
    fn schedule(&self, burst: u32) -> Option<arrivals::Schedule> {
        let Load::Open { arrivals, .. } = self.plan.load else { return None };
        let frames_per_second = self.offered_per_second? / self.plan.batch as f64;
        Some(arrivals::Schedule::new(arrivals, frames_per_second, burst, self.seed))
    }

    fn echo_load(&self, burst: u32) -> EchoLoad {
        EchoLoad {
            connections: self.plan.connections,
            in_flight: self.plan.in_flight,
            callers: self.plan.callers,
            schedule: self.schedule(burst),
            batch: self.plan.batch as u64,
            sizes: self.sizes,
            times: self.times,
        }
    }

    fn service_load(&self, burst: u32) -> ServiceLoad {
        ServiceLoad {
            in_flight: self.plan.in_flight,
            mix: self.mix,
            callers: self.plan.callers,
            schedule: self.schedule(burst),
            times: self.times,
        }
    }
}
