//! Views of a shard are states that it was in. They never change, they cost only what changed, and replicas
//! made from them place like the shard. `fuzz/tests/views_against_shard.rs` covers arbitrary commands.

use std::collections::BTreeMap;
use std::sync::Arc;

use wharf_core::ids::{
    AllocationId, Incarnation, NodeId, Ordinal, OwnerId, PartitionId, ResourceId, ShardId, StatementId,
    TenantId,
};
use wharf_core::index::{Dimension, Geometry};
use wharf_core::limits::{VIEW_LOG, VIEW_PLACES};
use wharf_core::link::{Decision, DecisionCell};
use wharf_core::node::{
    Labels, LifeEvent, NodeRegistration, NodeSpec, Operator, Selector, Taint, TaintEffect, Taints, Term,
};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GpuRequest};
use wharf_core::rng::Rng;
use wharf_core::shard::{Command, HybridSettings, Outcome, Released, Reserve, Shard, ShardConfig};
use wharf_core::statement::{Allocate, CommitMode, ConflictDetection, Operation, Part, Prepare};
use wharf_core::time::Time;
use wharf_core::view::{Change, ChangeCursor, ChangeKinds, Fresh, Step, View, ViewReader};

fn config(geometry: Geometry) -> ShardConfig {
    ShardConfig {
        shard: ShardId(0),
        incarnation: Incarnation(1),
        partitions: vec![PartitionId(0)],
        geometry,
        seed: 5,
        hybrid: HybridSettings::default(),
    }
}

fn spec(rng: &mut Rng, id: u64) -> NodeSpec {
    let zone = format!("z{}", rng.below(3));
    let custom = vec![
        (ResourceId::new(0, false), Amount::whole(rng.below(4) as u32)),
        (ResourceId::new(1, true), Amount::whole(rng.below(4) as u32)),
    ];
    let taint = Taint { key: "team".into(), value: "a".into(), effect: TaintEffect::PreferNoSchedule };
    NodeSpec {
        name: format!("n{id}").into(),
        identity: None,
        cpu: Amount::whole(1 + rng.below(32) as u32),
        memory: Amount::whole(1 + rng.below(64) as u32),
        gpus: rng.below(9) as u8,
        custom: Demand::canonical_custom(custom).expect("two kinds"),
        labels: Labels::new(vec![("zone".into(), zone.as_str().into())]).expect("one key"),
        taints: if rng.below(8) == 0 { Taints::new(vec![taint]).expect("one") } else { Taints::default() },
    }
}

fn add(rng: &mut Rng, id: u64) -> Command {
    let spec = spec(rng, id);
    let ordinal = Ordinal(id);
    let id = NodeId(id);
    Command::AddNode(Box::new(NodeRegistration { id, ordinal, partition: PartitionId(0), spec, agent: None }))
}

fn request(rng: &mut Rng) -> PlacementRequest {
    let gpu = match rng.below(3) {
        0 => GpuRequest::None,
        1 => GpuRequest::Fraction(2_500),
        _ => GpuRequest::Whole(1 + rng.below(2) as u8),
    };
    let custom = match rng.below(6) {
        0 => vec![(ResourceId::new(0, false), Amount::whole(1))],
        1 => vec![(ResourceId::new(1, true), Amount::from_milli(500))],
        _ => Vec::new(),
    };
    let demand = Demand {
        cpu: Amount::whole(rng.below(6) as u32),
        memory: Amount::whole(rng.below(6) as u32),
        gpu,
        custom: Demand::canonical_custom(custom).expect("one kind"),
    };
    let policies = Policy::ALL.into_iter().filter(|policy| !policy.is_fragmentation_aware());
    let policies: Vec<Policy> = policies.collect();
    let mut request = PlacementRequest::new(demand, policies[rng.below(policies.len() as u64) as usize]);
    if rng.below(4) == 0 {
        let key = "zone".to_owned();
        let operator = Operator::In;
        let values = vec![format!("z{}", rng.below(4))];
        request.selector = Some(Arc::new(Selector::new(vec![Term { key, operator, values }])));
    }
    if rng.below(4) == 0 {
        request.owner = OwnerId::new(1 + rng.below(2));
    }
    request
}

/// A shard that executes commands drawn from a seed.
struct World {
    rng: Rng,
    shard: Shard,
    live: Vec<AllocationId>,
    last_node: u64,
    now: u64,
}

impl World {
    fn new(seed: u64, geometry: Geometry, nodes: u64) -> Self {
        let mut shard = Shard::new(config(geometry));
        shard.set_reserved_nodes_percent(50);
        let mut world = Self { rng: Rng::new(seed), shard, live: Vec::new(), last_node: 0, now: 0 };
        for _ in 0..nodes {
            world.last_node += 1;
            let command = add(&mut world.rng, world.last_node);
            world.step(command);
        }
        world
    }

    fn step(&mut self, command: Command) -> Outcome {
        let mut outcomes = Vec::new();
        self.shard.step([command], Time(self.now), &mut outcomes);
        let outcome = outcomes.pop().expect("an outcome per command");
        match &outcome {
            Outcome::Place(Ok(placed)) => self.live.push(placed.allocation),
            Outcome::Release(Ok(Released { allocation: id, inside: None })) => {
                self.live.retain(|live| live != id)
            }
            _ => {}
        }
        outcome
    }

    /// Returns any command except a placement.
    fn command(&mut self) -> Command {
        let rng = &mut self.rng;
        let node = NodeId(1 + rng.below(self.last_node));
        match rng.below(12) {
            0 => {
                self.last_node += 1;
                add(rng, self.last_node)
            }
            1 => Command::UpdateNode(node, Box::new(spec(rng, node.0))),
            2 => Command::Life(node, if rng.below(2) == 0 { LifeEvent::Drain } else { LifeEvent::Undrain }),
            3 if rng.below(3) == 0 => Command::RemoveNode { node, force: true },
            4 => {
                let instances = (0..8u8).filter(|_| rng.below(4) == 0);
                Command::SetHealth(node, instances.map(|instance| (instance, "hot".into())).collect())
            }
            5 => {
                self.now += 1;
                let owner = OwnerId::new(1 + rng.below(2)).expect("not zero");
                let demand = request(rng).demand;
                let until = (rng.below(2) == 0).then(|| Time(self.now + rng.below(20)));
                Command::Reserve(Box::new(Reserve { node, owner, demand, until }))
            }
            _ if self.live.is_empty() => Command::Status,
            _ => Command::Release(self.live[rng.below(self.live.len() as u64) as usize]),
        }
    }

    fn publish(&mut self) -> Arc<View> {
        let view = self.shard.current_view().expect("views are made");
        self.shard.check_view().expect("the view is the state");
        view
    }
}

fn content(view: &View) -> BTreeMap<u32, String> {
    let mut content = BTreeMap::new();
    view.nodes(|slot, hot, cold| {
        let allocations: Vec<_> = view.allocations(slot).collect();
        content.insert(slot, format!("{hot:?} {cold:?} {allocations:?}"));
    });
    content
}

/// Half of the runs have automatic granularity.
fn geometry(seed: u64) -> Geometry {
    if seed.is_multiple_of(2) {
        Geometry::default()
    } else {
        Geometry::default().with_automatic(&[Dimension::Cpu, Dimension::Memory])
    }
}

#[test]
fn replicas_place_as_their_shard_from_whatever_view_they_had() {
    let mut placed = 0;
    let mut refused = 0;
    for seed in 0..12 {
        let mut world = World::new(seed, geometry(seed), 40);
        let _reader = world.shard.enable_views();
        let mut replicas = [0; 3].map(|_| Shard::replica(config(geometry(seed))));
        let mut kept: Vec<(Arc<View>, BTreeMap<u32, String>)> = Vec::new();
        for number in 0..400 {
            let command = world.command();
            world.step(command);
            let asked = request(&mut world.rng);
            if world.rng.below(3) == 0 {
                world.step(Command::Place(asked));
                continue;
            }
            let view = world.publish();
            if number % 20 == 0 {
                kept.push((Arc::clone(&view), content(&view)));
            }
            let replica = &mut replicas[world.rng.below(3) as usize];
            replica.sync(&view);
            replica.check_replica().expect("the replica is the view");
            replica.set_policy_state(world.shard.policy_state().clone());
            let planned = replica.plan(&asked);
            let outcome = world.step(Command::Place(asked));
            match (&outcome, planned) {
                (Outcome::Place(Ok(done)), Some(planned)) => {
                    let same = (done.node, done.gpus, &done.units, done.alternative);
                    assert_eq!(same, (planned.node, planned.gpus, &planned.units, planned.alternative));
                    placed += 1;
                }
                (Outcome::Place(Err(_)), None) => refused += 1,
                (outcome, planned) => panic!("seed {seed}: {planned:?} was planned, {outcome:?} came"),
            }
            assert_eq!(replica.policy_state(), world.shard.policy_state());
        }
        for (view, before) in &kept {
            assert!(content(view) == *before, "the view {:?} has changed", view.version());
        }
    }
    assert!(placed > 1_000 && refused > 100, "{placed} {refused}");
}

#[test]
fn a_difference_names_what_changed_and_nothing_else() {
    for seed in 20..26 {
        let mut world = World::new(seed, geometry(seed), 60);
        let _reader = world.shard.enable_views();
        let mut views = vec![world.publish()];
        for _ in 0..200 {
            let command = world.command();
            world.step(command);
            let asked = request(&mut world.rng);
            world.step(Command::Place(asked));
            views.push(world.publish());
            let newest = views.last().expect("just pushed");
            let older = &views[world.rng.below(views.len() as u64) as usize];
            let mut named = Vec::new();
            newest.diff(older, |slot| named.push(slot));
            let shown = |view: &View, slot| {
                view.hot(slot).map(|hot| format!("{hot:?} {:?}", view.cold(slot).expect("a node")))
            };
            for slot in 0..100 {
                let changed = shown(newest, slot) != shown(older, slot);
                // A cold image is compared by address, so a slot replaced by an equal image is named too.
                assert!(!changed || named.contains(&slot), "slot {slot} is not named");
            }
            assert!(named.is_sorted() && named.len() <= 2 + 3 * views.len());
        }
    }
}

#[test]
fn nothing_is_published_where_nothing_changed() {
    let mut world = World::new(1, Geometry::default(), 10);
    let reader = world.shard.enable_views();
    let first = reader.latest();
    assert_eq!(first.version().sequence, 1);
    world.step(Command::Status);
    assert!(world.shard.publish_view().is_none());
    assert!(matches!(reader.after(&first), Fresh::Same));
    let asked = PlacementRequest::new(Demand { cpu: Amount::whole(1), ..Demand::default() }, Policy::BestFit);
    world.step(Command::Place(asked));
    assert_eq!(world.shard.publish_view(), Some(2));
    let Fresh::Later(second) = reader.after(&first) else { panic!("a node changed") };
    assert!(Arc::ptr_eq(&reader.latest(), &second));
    assert_eq!((first.version().sequence, second.version().sequence), (1, 2));
    assert_eq!((first.head().allocation_count, second.head().allocation_count), (0, 1));
}

/// Counts the distinct chunks of these views by address.
fn live_chunks<'a>(views: impl IntoIterator<Item = &'a View>) -> usize {
    let mut addresses = std::collections::BTreeSet::new();
    views.into_iter().for_each(|view| view.chunks(|address, _| _ = addresses.insert(address)));
    addresses.len()
}

/// Changes a node twice. Each change is published, and read.
fn place_and_release(world: &mut World, reader: &ViewReader) {
    let asked = PlacementRequest::new(Demand { cpu: Amount::whole(1), ..Demand::default() }, Policy::Random);
    if let Outcome::Place(Ok(placed)) = world.step(Command::Place(asked)) {
        world.shard.publish_view().expect("a node changed");
        assert_eq!(reader.latest().version().sequence + 1, world.shard.visible_from());
        world.step(Command::Release(placed.allocation));
    }
    world.shard.publish_view();
    assert_eq!(reader.latest().version().sequence + 1, world.shard.visible_from());
}

#[test]
fn a_reader_that_never_lets_go_keeps_one_view_and_is_told_to() {
    let mut world = World::new(2, Geometry::default(), 500);
    let reader = world.shard.enable_views();
    let held = reader.latest();
    let before = content(&held);
    let alone = live_chunks([&*held]);
    let mut told = None;
    for round in 0..40_000 {
        place_and_release(&mut world, &reader);
        if told.is_none() && matches!(reader.after(&held), Fresh::MustResync(_)) {
            told = Some(round);
        }
        if round % 5_000 == 0 {
            let current = reader.latest();
            let live = live_chunks([&*held, &*current]);
            // At most twice the view, and the ledger that has grown since.
            assert!(live <= 2 * alone + live_chunks([&*current]), "{live} chunks live, {alone} in the view");
            assert_eq!(reader.retained().views, 1, "only the view that is held");
        }
    }
    let versions = reader.latest().version().sequence - held.version().sequence;
    assert!(versions > wharf_core::limits::VIEW_VERSIONS_MAX && told.is_some(), "{versions}: {told:?}");
    assert!(content(&held) == before, "a view that is kept has changed");
    let weak = Arc::downgrade(&held);
    drop(held);
    assert!(weak.upgrade().is_none(), "nobody keeps it");
    assert_eq!(reader.retained().views, 0);
}

/// A shard goes on for as long as nobody reads, and hands over no more than the log holds. A reader then gets an old
/// state, learns which view is due, and gets that as soon as the shard publishes.
#[test]
fn a_shard_that_nobody_reads_hands_over_little_and_who_returns_gets_the_newest_state() {
    let mut world = World::new(6, Geometry::default(), 300);
    let reader = world.shard.enable_views();
    let first = reader.latest();
    let ahead = VIEW_LOG as u64;
    let place = |world: &mut World| {
        let demand = Demand { cpu: Amount::from_milli(1), ..Demand::default() };
        world.step(Command::Place(PlacementRequest::new(demand, Policy::Random)));
        let visible = world.shard.visible_from();
        (visible, world.shard.publish_view())
    };
    for number in 0..400 {
        let (visible, published) = place(&mut world);
        assert_eq!(
            visible,
            (first.version().sequence + ahead + 1).min(first.version().sequence + 1 + number)
        );
        assert_eq!(published, (number < ahead).then_some(visible), "publication {number}");
        assert!(!world.shard.has_view_to_publish());
    }
    let due = reader.due();
    assert_eq!(due, first.version().sequence + ahead + 1);
    let old = reader.latest();
    assert_eq!(old.version().sequence + 1, due);
    assert_eq!(
        old.head().allocation_count,
        first.head().allocation_count + ahead,
        "a state that the shard was in"
    );
    assert!(world.shard.has_view_to_publish() && world.shard.check_view().is_err());
    assert_eq!(world.shard.publish_view(), Some(due));
    assert_eq!(reader.due(), due, "nothing else is due");
    let newest = reader.latest();
    assert_eq!(
        (newest.version().sequence, newest.head().allocation_count),
        (due, first.head().allocation_count + 400)
    );
    world.shard.check_view().expect("the view is the state");
}

/// What changed while nobody read is handed over in parts. No view shows a part, and changes in between are shown
/// too.
#[test]
fn many_changes_are_published_in_parts_and_shown_together() {
    let mut world = World::new(7, Geometry::default(), 10);
    let reader = world.shard.enable_views();
    let behind = 3 * VIEW_PLACES as u64;
    for number in 0..VIEW_LOG as u64 + behind {
        world.last_node += 1;
        let command = add(&mut world.rng, world.last_node);
        world.step(command);
        assert_eq!(world.shard.publish_view().is_some(), number < VIEW_LOG as u64);
    }
    let old = reader.latest();
    let due = reader.due();
    assert_eq!(due, old.version().sequence + 1);
    let mut parts = 0;
    loop {
        world.step(Command::RemoveNode { node: NodeId(11 + parts), force: true });
        assert_eq!(world.shard.visible_from(), due);
        parts += 1;
        match world.shard.publish_view() {
            Some(sequence) => break assert_eq!(sequence, due),
            None => assert_eq!((reader.latest().version(), reader.due()), (old.version(), due)),
        }
    }
    assert_eq!(parts, 4);
    // A read takes over a bounded part, too.
    let (view, has_more) = reader.read();
    assert!(has_more && view.version() == old.version());
    let newest = reader.read_until(due);
    assert_eq!(u64::from(newest.head().node_count), world.last_node - parts);
    world.shard.check_view().expect("the view is the state");
}

/// Readers on their own threads see complete views in order. Each view is at least as new as what was
/// published before they looked.
#[test]
fn readers_during_publication_see_whole_views_in_order() {
    let mut world = World::new(3, Geometry::default(), 200);
    let reader = world.shard.enable_views();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        let looks: Vec<_> = (0..2)
            .map(|_| {
                let reader = reader.clone();
                let stop = &stop;
                threads.spawn(move || {
                    let mut last = reader.latest();
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        let view = reader.latest();
                        assert!(view.version() >= last.version(), "views go back");
                        let mut nodes = 0;
                        let mut allocations = 0;
                        view.nodes(|_, hot, _| {
                            nodes += 1;
                            allocations += u64::from(hot.allocations);
                        });
                        let head = view.head();
                        assert_eq!((nodes, allocations), (head.node_count, head.allocation_count));
                        last = view;
                    }
                })
            })
            .collect();
        for _ in 0..2_000 {
            place_and_release(&mut world, &reader);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        for look in looks {
            look.join().expect("what a reader saw was whole");
        }
    });
}

/// Returns the holds that began (true) or ended between two views, reported one by one.
fn holds_told(from: &View, to: &View) -> Vec<(bool, NodeId, StatementId, u16)> {
    let kinds = ChangeKinds { nodes: false, allocations: false, holds: true };
    let step = Step::new(Some(from), to, kinds);
    let mut told = Vec::new();
    let mut at = ChangeCursor::default();
    let mut tell = |change: Change<'_>| {
        let (began, node, hold) = match change {
            Change::Hold(node, hold) => (true, node, hold),
            Change::HoldEnded(node, hold) => (false, node, hold),
            other => panic!("{other:?} is no hold"),
        };
        told.push((began, node.id, hold.statement, hold.operation));
        false
    };
    while let Some(next) = step.portion(at, 100, &mut tell) {
        assert!(next > at);
        at = next;
    }
    told
}

#[test]
fn a_view_shows_what_a_statement_holds_until_it_is_decided() {
    let mut world = World::new(4, Geometry::default(), 3);
    let _reader = world.shard.enable_views();
    let free = world.publish();
    let node = NodeId(2);
    let slot = free.slot_of(node).expect("registered");
    let demand = Demand { cpu: Amount::from_milli(500), ..Demand::default() };
    let allocate = Allocate {
        node,
        expected: None,
        demand: demand.clone(),
        gpus: None,
        owner: None,
        bundle: None,
        tenant: TenantId::OPERATOR,
        lease: None,
    };
    let statement = StatementId { incarnation: Incarnation(1), planner: 0, number: 9 };
    for decision in [Decision::Aborted, Decision::Committed] {
        let part = Part {
            statement,
            operations: vec![5, 7]
                .into_iter()
                .map(|at| (at, Operation::Allocate(allocate.clone())))
                .collect(),
            conflict_detection: ConflictDetection::Fine,
            mode: CommitMode::AllOrNothing,
        };
        let deadline = Time(1_000);
        let cell = Arc::new(DecisionCell::default());
        let prepare = Prepare { part, deadline, cell: Arc::clone(&cell) };
        let outcome = world.step(Command::Prepare(Box::new(prepare)));
        assert!(matches!(outcome, Outcome::Prepared(prepared) if prepared.held == [5, 7]));
        let held = world.publish();
        let shown = &held.cold(slot).expect("a node").holds;
        assert_eq!((shown.len(), shown[0].statement, shown[0].operation), (2, statement, 5));
        assert_eq!(holds_told(&free, &held), [(true, node, statement, 5), (true, node, statement, 7)]);
        assert_eq!(shown[0].taken.as_ref().map(|(taken, _)| taken), Some(&demand));
        let cpu = |view: &View| view.hot(slot).expect("a node").cpu;
        assert_eq!(cpu(&held), cpu(&free).minus(Amount::whole(1)));
        assert_eq!(held.hot(slot).expect("a node").allocations, 0);
        cell.decide(decision);
        let outcome = world.step(Command::Finish { statement, decision });
        let Outcome::Applied(Ok(applied)) = outcome else { panic!("{outcome:?}") };
        let after = world.publish();
        assert_eq!(applied.visible_from, after.version().sequence);
        assert!(after.cold(slot).expect("a node").holds.is_empty());
        assert_eq!(holds_told(&held, &after), [(false, node, statement, 5), (false, node, statement, 7)]);
        let committed = decision == Decision::Committed;
        assert_eq!(after.allocations(slot).count(), 2 * usize::from(committed));
        assert_eq!(cpu(&after) == cpu(&free), !committed);
    }
}
