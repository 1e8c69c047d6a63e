//! Tests that every checker fires. Each checker reports an illegal state and accepts the state that really
//! occurred.

use std::collections::{BTreeMap, BTreeSet};

use wharf_core::hash::StateHash;
use wharf_core::ids::{
    AllocationId, Incarnation, NodeId, Ordinal, OwnerId, PartitionId, SessionId, ShardId, TenantId,
};
use wharf_core::index::Geometry;
use wharf_core::node::{Labels, NodeRegistration, NodeSpec, NodeState, Taints};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand, GpuRequest, ResourceKind};
use wharf_core::shard::{Command, HybridSettings, Outcome, Refused, Reserve, Shard, ShardConfig};
use wharf_core::time::Time;

use super::order::{NoRingStarves, replay_gives_the_same};
use super::promises::{Grants, Promise, a_start_keeps_the_books, live, one_node_per_name, promises_are_kept};
use super::waiting::{Offers, nothing_waits_that_would_fit};
use super::{OF_A_STEP, check_step};
use crate::sim::facts::{Facts, Step};

pub(super) const NODE: NodeId = NodeId(1);

/// A real step, to be changed into an illegal one.
pub(super) struct Was {
    pub(super) command: Command,
    pub(super) outcome: Outcome,
    pub(super) before: Facts,
    pub(super) after: Facts,
}

impl Was {
    pub(super) fn step(&self) -> Step<'_> {
        let shard = ShardId(0);
        let now = Time(1);
        let Self { command, outcome, before, after } = self;
        Step { shard, now, command, outcome, before, after }
    }

    /// Checks that the real step is accepted, and that the named checker fires after `tamper` changed it.
    pub(super) fn fires(mut self, name: &str, tamper: impl FnOnce(&mut Self)) {
        assert_eq!(check_step(&self.step()), Ok(()));
        let (_, checker) = OF_A_STEP.iter().find(|(known, _)| *known == name).expect("a checker's name");
        tamper(&mut self);
        assert!(checker(&self.step()).is_err(), "{name} is silent");
    }
}

pub(super) struct Bed(Shard);

impl Bed {
    /// Creates a shard with nodes of 8 cores, 8 MiB and 2 GPUs.
    pub(super) fn new(nodes: u64) -> Self {
        let mut shard = Shard::new(ShardConfig {
            shard: ShardId(0),
            incarnation: Incarnation(1),
            partitions: vec![PartitionId(0)],
            geometry: Geometry::default(),
            seed: 1,
            hybrid: HybridSettings::default(),
        });
        shard.set_reserved_nodes_percent(100);
        let mut bed = Self(shard);
        for number in 1..=nodes {
            let spec = NodeSpec {
                name: format!("n{number}").into(),
                identity: None,
                cpu: Amount::whole(8),
                memory: Amount::whole(8),
                gpus: 2,
                custom: None,
                labels: Labels::default(),
                taints: Taints::default(),
            };
            let id = NodeId(number);
            let ordinal = Ordinal(number);
            let partition = PartitionId(0);
            let node = NodeRegistration { id, ordinal, partition, spec, agent: None };
            bed.step(Command::AddNode(Box::new(node)));
        }
        bed
    }

    pub(super) fn step(&mut self, command: Command) -> Was {
        let before = Facts::of(&self.0);
        let mut outcomes = Vec::new();
        self.0.step([command.clone()], Time(1), &mut outcomes);
        let outcome = outcomes.pop().expect("one command, one outcome");
        Was { command, outcome, before, after: Facts::of(&self.0) }
    }
}

impl Bed {
    /// Returns the content of the newest view.
    pub(super) fn mirror(&mut self) -> super::following::Mirror {
        let reader = self.0.enable_views();
        self.0.publish_view();
        super::following::Mirror::of(&reader.latest())
    }
}

pub(super) fn asks(cpu: u32, gpus: u8) -> PlacementRequest {
    let gpu = if gpus == 0 { GpuRequest::None } else { GpuRequest::Whole(gpus) };
    let demand = Demand { cpu: Amount::whole(cpu), gpu, ..Demand::default() };
    PlacementRequest::new(demand, Policy::BestFit)
}

/// Returns a real placement of 3 cores and a GPU.
fn placed() -> Was {
    Bed::new(1).step(Command::Place(asks(3, 1)))
}

fn refused() -> Was {
    Bed::new(1).step(Command::Place(asks(9, 0)))
}

#[test]
pub(super) fn a_grant_of_more_than_there_was() {
    placed().fires("grants_fit_what_was_available", |was| {
        was.before.books[0].resources[0].1.available = 20_000;
    });
    // Another allocation takes the device.
    placed().fires("grants_fit_what_was_available", |was| {
        was.before.books[0].instances[0].1[0].allocated = 10_000;
    });
    placed().fires("grants_fit_what_was_available", |was| was.after.partitions[0].allocations.clear());
}

#[test]
pub(super) fn a_grant_on_a_node_that_takes_no_work() {
    placed().fires("grants_go_where_they_may", |was| {
        was.before.partitions[0].nodes[0].state = NodeState::Draining;
    });
    placed().fires("grants_go_where_they_may", |was| {
        was.command = Command::Place(PlacementRequest { candidates: Some([NodeId(7)].into()), ..asks(3, 1) });
    });
}

#[test]
pub(super) fn an_allocation_that_nobody_asked_for() {
    placed().fires("allocations_are_what_was_granted", |was| {
        let mut other = was.after.partitions[0].allocations[0].clone();
        other.id.sequence += 1;
        was.after.partitions[0].allocations.push(other);
    });
    let mut bed = Bed::new(1);
    let Outcome::Place(Ok(first)) = bed.step(Command::Place(asks(1, 0))).outcome else { panic!("room") };
    bed.step(Command::Place(asks(1, 0)));
    // The release of one allocation also ends the other.
    bed.step(Command::Release(first.allocation)).fires("allocations_are_what_was_granted", |was| {
        was.after.partitions[0].allocations.clear();
    });
}

#[test]
pub(super) fn a_rejection_that_leaves_a_trace() {
    let nothing = AllocationId {
        incarnation: Incarnation(1),
        partition: PartitionId(0),
        sequence: 99,
        tenant: TenantId::OPERATOR,
    };
    let was = Bed::new(1).step(Command::Release(nothing));
    assert!(matches!(was.outcome, Outcome::Release(Err(_))));
    was.fires("rejections_move_nothing", |was| was.after.partitions[0].nodes[0].version += 1);
    refused().fires("rejections_move_nothing", |was| {
        was.after.books[0].resources[0].1.available -= 1;
    });
}

#[test]
pub(super) fn a_refusal_of_what_a_node_offers() {
    refused().fires("refusals_are_true", |was| {
        was.before.books[0].resources[0].1.available = 90_000;
    });
    placed().fires("refusals_are_true", |was| {
        was.outcome = Outcome::Place(Err(Refused { refusal: Box::default(), parked: false }));
    });
}

#[test]
pub(super) fn a_placement_out_of_what_is_reserved_for_another() {
    let mut bed = Bed::new(2);
    let owner = OwnerId::new(1).expect("not 0");
    let demand = Demand { cpu: Amount::whole(6), ..Demand::default() };
    bed.step(Command::Reserve(Box::new(Reserve { node: NODE, owner, demand, until: None })));
    let own = PlacementRequest { owner: Some(owner), ..asks(4, 0) };
    let was = bed.step(Command::Place(own));
    assert!(matches!(&was.outcome, Outcome::Place(Ok(placement)) if placement.node == NODE));
    was.fires("nobody_takes_what_is_reserved", |was| was.command = Command::Place(asks(4, 0)));
}

#[test]
pub(super) fn books_that_do_not_balance() {
    for tamper in [
        |book: &mut wharf_core::shard::Book| book.available += 1,
        |book: &mut wharf_core::shard::Book| book.allocated = -1,
        |book: &mut wharf_core::shard::Book| book.held += 1,
        |book: &mut wharf_core::shard::Book| book.shortfall += 1,
    ] {
        placed().fires("books_balance", |was| tamper(&mut was.after.books[0].resources[1].1));
    }
    placed().fires("books_balance", |was| {
        let instance = &mut was.after.books[0].instances[0].1[1];
        (instance.shortfall, instance.allocated) = (10_000, 10_000);
    });
}

#[test]
pub(super) fn books_that_are_not_the_sum_of_allocations() {
    placed().fires("books_are_the_sum_of_allocations", |was| {
        was.after.partitions[0].allocations[0].demand.cpu = Amount::whole(4);
    });
    placed().fires("books_are_the_sum_of_allocations", |was| was.after.books[0].allocations = 2);
    placed().fires("books_are_the_sum_of_allocations", |was| {
        was.after.partitions[0].allocations[0].gpus.mask = 2;
    });
}

#[test]
pub(super) fn an_unhealthy_instance_that_offers() {
    placed().fires("unhealthy_offers_nothing", |was| {
        was.after.partitions[0].nodes[0].unhealthy = vec![(1, "Xid 79".into())];
    });
}

#[test]
pub(super) fn a_replay_that_comes_to_something_else() {
    let outcome = [placed().outcome];
    let one = StateHash(1);
    let two = StateHash(2);
    assert_eq!(replay_gives_the_same((&outcome, &outcome), (one, one)), Ok(()));
    assert!(replay_gives_the_same((&outcome, &outcome), (one, two)).is_err());
    assert!(replay_gives_the_same((&outcome, &[]), (one, one)).is_err());
    assert!(replay_gives_the_same((&outcome, &[refused().outcome]), (one, one)).is_err());
}

#[test]
pub(super) fn a_ring_that_is_passed_over() {
    let mut starves = NoRingStarves::default();
    assert_eq!(starves.check(Time(10), &[Time(3), Time(9)]), Ok(()));
    assert_eq!(starves.check(Time(20), &[Time(12)]), Ok(()));
    assert!(starves.check(Time(30), &[Time(21), Time(19)]).is_err());
    // After a full batch, something may be left.
    let mut starves = NoRingStarves::default();
    let full = vec![Time(1); wharf_core::limits::BATCH_MAX];
    assert_eq!(starves.check(Time(10), &full), Ok(()));
    assert_eq!(starves.check(Time(20), &[Time(9)]), Ok(()));
}

#[test]
pub(super) fn a_request_with_two_effects() {
    let session = SessionId { incarnation: Incarnation(1), number: 1 };
    let id = |sequence| AllocationId {
        incarnation: Incarnation(1),
        partition: PartitionId(0),
        sequence,
        tenant: TenantId::OPERATOR,
    };
    let mut grants = Grants::default();
    assert_eq!(grants.one_effect_per_request((session, 1), id(1)), Ok(()));
    assert_eq!(grants.one_effect_per_request((session, 2), id(2)), Ok(()));
    assert!(grants.one_effect_per_request((session, 1), id(3)).is_err());
    assert!(grants.one_effect_per_request((session, 3), id(2)).is_err());
}

#[test]
pub(super) fn a_promise_that_is_broken() {
    let was = placed();
    let Outcome::Place(Ok(placement)) = &was.outcome else { panic!("room") };
    let id = placement.allocation;
    let promise = Promise { node: placement.node, gpus: placement.gpus.mask };
    let promised = BTreeMap::from([(id, promise)]);
    let none = BTreeMap::new();
    let nothing = BTreeSet::new();
    let ended = BTreeSet::from([id]);
    let there = [was.after];
    let mut grants = Grants::default();
    let there = live(&there);
    assert_eq!(promises_are_kept(&promised, &nothing, &there, &grants), Ok(()));
    let moved = BTreeMap::from([(id, Promise { node: NodeId(2), ..promise })]);
    assert!(promises_are_kept(&moved, &nothing, &there, &grants).is_err());
    assert!(promises_are_kept(&promised, &nothing, &BTreeMap::new(), &grants).is_err());
    assert!(promises_are_kept(&none, &ended, &there, &grants).is_err());
    // It may end with its node.
    grants.node_removed(NODE, &placed().after);
    assert_eq!(promises_are_kept(&promised, &nothing, &BTreeMap::new(), &grants), Ok(()));
}

#[test]
pub(super) fn an_allocation_that_is_nobodys() {
    let was = placed();
    let mut grants = Grants::default();
    assert!(grants.everything_is_somebodys(std::slice::from_ref(&was.after), |_, _| false).is_err());
    assert_eq!(grants.everything_is_somebodys(std::slice::from_ref(&was.after), |_, _| true), Ok(()));
    grants.adopted(was.after.partitions[0].allocations[0].id);
    assert_eq!(grants.everything_is_somebodys(std::slice::from_ref(&was.after), |_, _| false), Ok(()));
    let mut grants = Grants::default();
    let Command::Place(asked) = &was.command else { panic!("{:?}", was.command) };
    let other = PlacementRequest::new(Demand::default(), asked.policy);
    assert!(grants.stopped(std::slice::from_ref(&was.after), std::iter::once(&other)).is_err());
    assert_eq!(grants.stopped(std::slice::from_ref(&was.after), std::iter::once(asked)), Ok(()));
    assert_eq!(grants.everything_is_somebodys(&[was.after], |_, _| false), Ok(()));
}

#[test]
pub(super) fn a_start_that_forgets() {
    let was = placed();
    let before = [was.after.clone()];
    let after = [was.after];
    assert_eq!(a_start_keeps_the_books(&before, &after), Ok(()));
    assert!(a_start_keeps_the_books(&before, &[was.before]).is_err());
}

#[test]
pub(super) fn a_refusal_while_a_node_offers_all_the_time() {
    let was = placed();
    let small = asks(5, 0);
    let mut offers = Offers::new(&small, [&was.before].into_iter());
    offers.shard_changed(&small, &was.before, &was.after);
    assert!(offers.check_refused(&small).is_err());
    // A larger request was offered only before the step.
    let large = asks(6, 0);
    let mut offers = Offers::new(&large, [&was.before].into_iter());
    assert!(offers.check_refused(&large).is_err());
    offers.shard_changed(&large, &was.before, &was.after);
    assert_eq!(offers.check_refused(&large), Ok(()));
}

#[test]
pub(super) fn a_wait_that_would_fit() {
    let facts = [placed().after];
    assert!(nothing_waits_that_would_fit([&asks(5, 1)].into_iter(), &facts).is_err());
    assert_eq!(nothing_waits_that_would_fit([&asks(6, 0), &asks(1, 2)].into_iter(), &facts), Ok(()));
}

/// The facts match what callers see.
#[test]
fn facts_are_of_the_shard() {
    let was = placed();
    assert_eq!(crate::sim::facts::available(&was.after.books[0], ResourceKind::Cpu), 50_000);
    assert_eq!((was.before.allocations().count(), was.after.allocations().count()), (0, 1));
}

#[test]
pub(super) fn two_nodes_of_one_name() {
    let facts = [Facts::of(&Bed::new(1).0), Facts::of(&Bed::new(2).0)];
    assert_eq!(one_node_per_name(&facts[1..]), Ok(()));
    assert!(one_node_per_name(&facts).is_err(), "n1 is on two shards");
}
