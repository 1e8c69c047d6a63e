//! `wharf-bench overload`: more requests than the engine can do.
//!
//! The service is a process of its own and is driven over QUIC. Every request is of a shape of its own, and the policy
//! weighs all nodes for each, so that the engine is the limit and not the load generator. All requests but those of the
//! closed loop have a deadline. What is counted are requests that were answered with a result within it, from when they
//! were due.
//!
//! | load | what is sent |
//! |---|---|
//! | `closed` | a closed loop, which shows the maximum |
//! | `open` | an open loop at a multiple of the maximum |
//! | `half` | a modest client and another one, together at half of the maximum |
//! | `greedy` | the same modest client, and another one that offers ten times the maximum |
//!
//! The loads take turns, so that other work on the machine affects all of them. At the end the books are audited.

mod load;
mod row;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use wharf_core::link::lock;
use wharf_core::request::Policy;
use wharf_net::client::{Client, ClientConfig};

use super::drive::{Driver, ServiceLoad, close, connect};
use super::peer::{Peer, Serve};
use super::plan::Callers;
use super::recorder::Times;
use super::work::{Mix, work_of};
use crate::engine::scenario::Kind;
use crate::engine::shapes::Shapes;
use load::{Offer, Outcomes, offer};
pub use row::{OverloadHeading, OverloadRow};

/// Multiples of the maximum that open loops offer.
const MULTIPLES: [f64; 3] = [1.0, 2.0, 10.0];
/// What a greedy client offers, as a multiple of the maximum.
const GREEDY: f64 = 10.0;
/// What the modest client offers, as a part of the maximum.
const MODEST: f64 = 0.1;
/// What the modest client and another one offer together, as a part of the maximum.
const HALF: f64 = 0.5;
/// The requests in flight of the closed loop, over all connections.
const CLOSED_IN_FLIGHT: usize = 256;
/// Connections that are no part of a load.
const OTHER_CONNECTIONS: u32 = 16;

/// The measurements.
#[derive(Clone, Debug)]
pub struct OverloadOptions {
    /// The number of shards.
    pub shards: u16,
    /// The number of nodes.
    pub nodes: u32,
    /// The policy of all places.
    pub policy: Policy,
    /// The connections of a client that offers much. The modest one has one.
    pub connections: usize,
    /// The time within which a request must be done.
    pub deadline: Duration,
    /// The time for which each load is measured.
    pub seconds: Duration,
    /// The time before each measurement.
    pub warm_up: Duration,
    /// The number of turns of all loads.
    pub rounds: u32,
    /// The seed of nodes, requests and arrivals.
    pub seed: u64,
    /// The directory under which data directories are made.
    pub directory: PathBuf,
}

/// Measures all loads.
///
/// # Errors
/// When a process cannot start, an answer is wrong, or the books are not what was promised.
pub fn run_overload(options: &OverloadOptions) -> anyhow::Result<Vec<OverloadRow>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, measure(options))
}

/// What was measured of each load.
#[derive(Debug)]
struct Measured {
    maximum: Outcomes,
    open: Vec<Outcomes>,
    half: Pair,
    greedy: Pair,
}

/// The outcomes of a modest client and of another one.
#[derive(Debug)]
struct Pair {
    modest: Outcomes,
    other: Outcomes,
}

impl Pair {
    fn new() -> Self {
        Self { modest: Outcomes::new(), other: Outcomes::new() }
    }
}

async fn measure(options: &OverloadOptions) -> anyhow::Result<Vec<OverloadRow>> {
    let &OverloadOptions { shards, nodes, policy, seed, rounds, .. } = options;
    let directory = tempfile::tempdir_in(&options.directory)
        .context("a temporary directory for the service's data cannot be made")?;
    let peer = Peer::start(&Serve::Service {
        directory: directory.path().to_owned(),
        shards,
        mode: crate::durability::Mode::MEMORY.name.to_owned(),
        connections: 2 * options.connections as u32 + OTHER_CONNECTIONS,
        seed,
        io_threads: None,
    })?;
    let config = ClientConfig {
        server: peer.address,
        server_name: "localhost".to_owned(),
        roots: peer.certificates.clone(),
        certificate: None,
        name: "wharf-bench overload".to_owned(),
        retry_for: Duration::ZERO,
    };
    let client = Client::connect(config.clone()).await?;
    // Filled by a policy that costs little.
    let shapes = Shapes::synthetic(seed);
    let scenario = |policy| Kind::AllDifferent.scenario(nodes, policy, &shapes, seed);
    let (cheap, mut work) = work_of(&scenario(Policy::LeastFit), seed);
    work.fill(&cheap, &client).await?;
    // While loads run in other threads, nobody would keep its connection.
    client.close().await;
    let (bodies, _) = work_of(&scenario(policy), seed);
    let driver = Driver { bodies: Arc::new(bodies), work: Arc::new(Mutex::new(work)), splits: false };
    let run = Run { options, config, peer: &peer, driver: &driver };

    let mut measured = Measured {
        maximum: Outcomes::new(),
        open: MULTIPLES.iter().map(|_| Outcomes::new()).collect(),
        half: Pair::new(),
        greedy: Pair::new(),
    };
    for round in 0..rounds {
        measured.maximum.add(&run.closed().await?);
        let maximum = measured.maximum.good_per_second();
        let offers = |multiple: f64| Offer::new(options, maximum * multiple, u64::from(round));
        for (outcomes, multiple) in measured.open.iter_mut().zip(MULTIPLES) {
            outcomes.add(&run.open(offers(multiple))?);
        }
        run.together(&mut measured.half, offers(MODEST), offers(HALF - MODEST))?;
        run.together(&mut measured.greedy, offers(MODEST), offers(GREEDY))?;
    }
    let client = Client::connect(run.config.clone()).await?;
    let checked = lock(&driver.work).promises();
    checked.audit(&client).await.context("after the last load")?;
    client.close().await;
    peer.stop()?;
    Ok(row::rows(options, &measured))
}

/// A service with a full cluster, and what is asked of it.
struct Run<'a> {
    options: &'a OverloadOptions,
    config: ClientConfig,
    peer: &'a Peer,
    driver: &'a Driver,
}

impl Run<'_> {
    /// Measures the maximum: a closed loop without deadlines.
    async fn closed(&self) -> anyhow::Result<Outcomes> {
        let connections = self.options.connections;
        let clients = connect(&self.config, connections, 1).await?;
        let load = ServiceLoad {
            in_flight: (CLOSED_IN_FLIGHT / connections).max(1),
            mix: Mix::Pairs(1),
            callers: Callers::Lockstep,
            schedule: None,
            times: Times { warm_up: self.options.warm_up, measured: self.turn() },
        };
        let segment = self.driver.drive(&clients, &load, self.peer.process()).await?;
        close(clients).await?;
        Ok(Outcomes::of_segment(&segment))
    }

    /// Returns the time for which a load is measured in each of its turns.
    fn turn(&self) -> Duration {
        self.options.seconds / self.options.rounds
    }

    fn open(&self, load: Offer) -> anyhow::Result<Outcomes> {
        let begin = Instant::now() + self.options.warm_up;
        let offered = offer(&self.config, self.driver, load, self.options.connections, begin, self.turn());
        offered.join().map_err(|_| anyhow::anyhow!("a thread of the load panicked"))?
    }

    /// Measures a modest client together with another one. Each has a thread, so that neither waits for the other here.
    fn together(&self, pair: &mut Pair, modest: Offer, other: Offer) -> anyhow::Result<()> {
        let begin = Instant::now() + self.options.warm_up;
        let modest = offer(&self.config, self.driver, modest, 1, begin, self.turn());
        let other = offer(&self.config, self.driver, other, self.options.connections, begin, self.turn());
        for (outcomes, offered) in [(&mut pair.modest, modest), (&mut pair.other, other)] {
            let offered = offered.join().map_err(|_| anyhow::anyhow!("a thread of the load panicked"))?;
            outcomes.add(&offered?);
        }
        Ok(())
    }
}
