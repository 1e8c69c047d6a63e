//! One start of the service: an engine that is moved by hand, and a second set of shards.

use std::collections::BTreeMap;
use std::task::Waker;

use wharf_core::demand::NodesPlanner;
use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::{BatchRecord, Observer, ShardRunner, Unobserved};
use wharf_core::ids::{Incarnation, NodeId};
use wharf_core::limits::{VIEW_LOG, VIEW_PLACES};
use wharf_core::link::Clock;
use wharf_core::planner::{PlannerBudget, PlannerRunner};
use wharf_core::router::Port;
use wharf_core::shard::{Command, Outcome, Pages, Shard};
use wharf_core::state::{GroupRecord, StoreState};
use wharf_core::time::Time;
use wharf_core::view::ViewReader;
use wharf_net::protocol::IN_FLIGHT_DEFAULT;
use wharf_ops::file_error::FileError;

use crate::sim::JobRules;
use crate::sim::checkers::leases::LEASES_ENDED;
use crate::sim::checkers::order::NoRingStarves;
use crate::sim::checkers::views::{GrantsNameTheirView, Shown, VersionsOnlyGrow};
use crate::sim::choices::Choices;
use crate::sim::facts::Facts;
use crate::sim::journal::{Journal, Opening};
use crate::sim::registrar::RegistrarThread;
use crate::sim::server::{KeptSessions, Server};

use super::jobs::jobs_config;

/// The number of partitions of the store. A shard may have one or several.
pub(super) const PARTITIONS: u16 = 6;

/// The time that shards hold a part of a planner's statement in these runs, in ns of virtual time.
pub(super) const HOLD_NS: u64 = 3_000;

/// Page sizes so small that the nodes here fill several pages.
pub(super) const PAGES: Pages = Pages {
    explain_nodes: 2,
    audit_nodes: 2,
    audit_allocations: 3,
    checkpoint_records: 3,
    leases_ended: LEASES_ENDED,
};

/// A clock that shows a fixed time.
pub(super) struct At(pub(super) Time);

impl Clock for At {
    fn now(&self) -> Time {
        self.0
    }
}

/// Records a batch and its outcomes.
pub(super) struct Recorder {
    views: ViewReader,
    pub(super) ran: bool,
    /// The sequence of the view that was due when the outcomes began to be handed out.
    pub(super) published: Option<u64>,
    pub(super) order: Vec<(u16, u16)>,
    pub(super) commands: Vec<Command>,
    pub(super) enqueued: Vec<Time>,
    pub(super) outcomes: Vec<Outcome>,
}

impl Recorder {
    /// Creates a recorder for the shard with these views.
    pub(super) fn new(views: ViewReader) -> Self {
        Self {
            views,
            ran: false,
            published: None,
            order: Vec::new(),
            commands: Vec::new(),
            enqueued: Vec::new(),
            outcomes: Vec::new(),
        }
    }
}

impl Recorder {
    /// Returns the commands of the first ports, each with the time at which it was put into its ring.
    pub(super) fn of_ports(&self, ports: usize) -> impl Iterator<Item = (&Command, Time)> {
        let port = |&(port, count): &(u16, u16)| std::iter::repeat_n(port, usize::from(count));
        let all =
            self.order.iter().flat_map(port).zip(self.commands.iter().zip(self.enqueued.iter().copied()));
        all.filter(move |&(port, _)| usize::from(port) < ports).map(|(_, sent)| sent)
    }
}

impl Observer for Recorder {
    fn handle_batch(&mut self, batch: &BatchRecord<'_>) {
        self.ran = true;
        self.order.extend_from_slice(batch.order);
        self.commands.extend_from_slice(batch.commands);
        self.enqueued.extend_from_slice(batch.enqueued);
    }

    fn handle_stepped(&mut self, outcomes: &[Outcome], _finished: Time) {
        self.outcomes.extend_from_slice(outcomes);
        self.published = Some(self.views.due());
    }

    fn wants_times(&self) -> bool {
        true
    }
}

/// A second shard that runs the recorded commands one by one. Checkers examine its state between any two
/// commands.
pub(super) struct Twin {
    pub(super) shard: Shard,
    pub(super) starves: NoRingStarves,
    pub(super) versions: VersionsOnlyGrow,
    pub(super) grants: GrantsNameTheirView,
    /// The content of the view that was read last.
    pub(super) shown: BTreeMap<NodeId, Shown>,
    /// The state that each publication shows, by sequence.
    pub(super) published: BTreeMap<u64, Facts>,
}

/// The engine of one start, and a second set of shards.
pub(in crate::sim) struct Opened {
    pub(super) incarnation: Incarnation,
    pub(super) runners: Vec<ShardRunner>,
    pub(super) twins: Vec<Twin>,
    pub(super) facts: Vec<Facts>,
    pub(super) server: Server,
    pub(super) registrar: RegistrarThread,
    pub(super) planners: Vec<PlannerRunner>,
    pub(super) nodes_planner: Option<NodesPlanner>,
    /// Groups that no planner keeps, because there is no planner.
    pub(super) unkept: Vec<GroupRecord>,
    pub(super) views: Vec<ViewReader>,
    /// The ports of the coordinator, of the callers of planners, and of the follower.
    pub(super) ports: (Port, Port, Port),
    pub(in crate::sim) journal: Option<Journal>,
}

/// Returns a planner budget that depends on `seed`. Half of the starts use the budget of the service.
fn budget(seed: u64) -> PlannerBudget {
    let whole = PlannerBudget::default();
    match seed % 8 {
        0 => PlannerBudget { round: 4, search: 64, proof: 4 },
        1 => PlannerBudget { round: 16, proof: 4, ..whole },
        2 => PlannerBudget { round: 64, proof: 8, ..whole },
        3 => PlannerBudget { proof: 8, ..whole },
        _ => whole,
    }
}

/// Opens an engine over `state`, and begins its journal if there is one.
///
/// # Errors
/// When the disk fails.
pub(in crate::sim) fn open(
    state: &StoreState,
    opening: Option<Opening>,
    choices: &mut Choices<'_>,
    last_connection: u64,
    (small_budgets, job_rules): (bool, Option<JobRules>),
) -> Result<Opened, FileError> {
    let config = EngineConfig {
        shards: choices.below(3) as u16 + 1,
        seed: choices.below(1 << 16),
        reserved_nodes_percent: 60,
        views: true,
        planners: choices.below(3) as u16,
        jobs: job_rules.map(jobs_config),
        hold_ns: HOLD_NS,
        journal: opening.is_some(),
        ..EngineConfig::default()
    };
    let fronts = choices.place(2) + 1;
    let in_flight_max = *choices.pick(&[1, 2, 4, IN_FLIGHT_DEFAULT]);
    let wakers = vec![Waker::noop().clone(); fronts + 4 + usize::from(config.journal)];
    let mut engine = Engine::open(state.clone(), &config, wakers).expect("numbers in range");
    if small_budgets {
        engine.planners.iter_mut().for_each(|planner| planner.set_budget(budget(config.seed)));
    }
    engine.runners.iter_mut().for_each(|runner| runner.set_pages(PAGES));
    let ahead = *choices.pick(&[1, 2, VIEW_LOG]);
    let places = *choices.pick(&[1, 3, VIEW_PLACES]);
    engine.runners.iter_mut().for_each(|runner| runner.set_view_bounds(ahead, places));
    // Few requests are at the shards, and the others wait for their turns.
    if let Some(&window) = WINDOWS.get(config.seed as usize % (2 * WINDOWS.len())) {
        engine.ports.iter_mut().for_each(|port| port.set_window_max(window));
    }
    let twins = twins(state, config);
    let mut port = || engine.ports.pop().expect("four more than fronts, and one for the checkpoints");
    let of_journal = engine.journal.take().map(|feed| (feed, port()));
    let of_registrar = port();
    let ports = (port(), port(), port());
    let begin = |opening| {
        let (feed, port) = of_journal.expect("the engine has a journal");
        Journal::begin(opening, feed, port, engine.incarnation, state)
    };
    let mut journal = opening.map(begin).transpose()?;
    for runner in &mut engine.runners {
        runner.record_start();
        journal.iter_mut().for_each(|journal| journal.follow_start(runner.shard()));
    }
    Ok(Opened {
        journal,
        incarnation: engine.incarnation,
        runners: engine.runners,
        facts: twins.iter().map(|twin| Facts::of(&twin.shard)).collect(),
        twins,
        server: Server::new(
            engine.ports,
            engine.incarnation,
            last_connection,
            in_flight_max,
            KeptSessions { sessions: state.sessions.clone(), now: engine.now },
        ),
        registrar: RegistrarThread::new(engine.registrar, of_registrar, engine.catalog, engine.now),
        planners: engine.planners,
        nodes_planner: engine.nodes_planner,
        unkept: engine.groups,
        views: engine.views,
        ports,
    })
}

/// Small windows of ports.
const WINDOWS: [usize; 2] = [1, 4];

/// Opens the second set of shards.
fn twins(state: &StoreState, config: EngineConfig) -> Vec<Twin> {
    let config = EngineConfig { planners: 0, jobs: None, journal: false, ..config };
    let again = Engine::open(state.clone(), &config, vec![Waker::noop().clone()]).expect("numbers in range");
    again.stop.stop();
    let shards = again.runners.into_iter().map(|runner| runner.run(&At(Time(0)), &mut Unobserved));
    shards
        .map(|mut shard| {
            shard.set_pages(PAGES);
            shard
        })
        .map(|shard| Twin {
            starves: NoRingStarves::default(),
            versions: VersionsOnlyGrow::default(),
            grants: GrantsNameTheirView::default(),
            shown: BTreeMap::new(),
            published: BTreeMap::from([(1, Facts::of(&shard))]),
            shard,
        })
        .collect()
}
