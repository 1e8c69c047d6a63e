//! Replicas that follow shards which tests step themselves.

use crate::ids::{AllocationId, BundleId, GroupId, Incarnation, NodeId, StatementId, TenantId};
use crate::limits::BUNDLES_ENDED_KEPT;
use crate::node::LifeEvent;
use crate::planner::test_bed::{Bed, cores, node_of};
use crate::resource::Amount;
use crate::shard::{Command, Outcome};
use crate::statement::{Allocate, CommitMode, ConflictDetection, Evict, Granted, Operation, Part};
use crate::view::EndCause;

/// Places bundle 0 of group 1 on a node. Returns its allocation and the first view that shows it.
fn place_bundle(bed: &mut Bed, node: NodeId) -> (AllocationId, u64) {
    let bundle = Some(BundleId {
        group: GroupId { incarnation: Incarnation(1), number: 1, tenant: TenantId::OPERATOR },
        index: 0,
    });
    let demand = cores(1).demand;
    let allocate = Allocate {
        node,
        expected: None,
        demand,
        gpus: None,
        owner: None,
        bundle,
        tenant: TenantId::OPERATOR,
        lease: None,
    };
    let Outcome::Applied(Ok(applied)) = bed.step(0, apply(Operation::Allocate(allocate))) else {
        panic!("a statement is applied")
    };
    match &applied.granted[..] {
        [(0, Granted::Allocated(placement))] => (placement.allocation, applied.visible_from),
        other => panic!("{other:?}"),
    }
}

fn apply(operation: Operation) -> Command {
    let statement = StatementId { incarnation: Incarnation(1), planner: 0, number: 1 };
    let operations = vec![(0, operation)];
    let conflict_detection = ConflictDetection::Fine;
    let mode = CommitMode::AllOrNothing;
    Command::Apply(Box::new(Part { statement, operations, conflict_detection, mode }))
}

/// Returns the ended bundles that the copy tells. `None` if it must be compared with the view.
fn told(bed: &mut Bed) -> Option<Vec<(AllocationId, EndCause)>> {
    bed.sync();
    let ended = bed.replicas.copies[0].take_ended()?;
    Some(ended.iter().map(|end| (end.allocation, end.cause)).collect())
}

#[test]
fn each_bundle_that_ends_is_told_once_with_its_cause() {
    let mut bed = Bed::new(1);
    let node = bed.add(0, node_of(4, &[]), true);
    bed.step(0, Command::Life(node, LifeEvent::Beat));
    assert_eq!(told(&mut bed), None, "the first view is compared");
    let (released, _) = place_bundle(&mut bed, node);
    assert_eq!(told(&mut bed), Some(Vec::new()));
    bed.step(0, Command::Release(released));
    assert_eq!(told(&mut bed), Some(vec![(released, EndCause::Released)]));
    let (evicted, _) = place_bundle(&mut bed, node);
    let evict = Evict { allocation: evicted, expected: None, grace_ns: 0 };
    bed.step(0, apply(Operation::Evict(evict)));
    let (lost, _) = place_bundle(&mut bed, node);
    bed.step(0, Command::Life(node, LifeEvent::Drain));
    bed.step(0, Command::Life(node, LifeEvent::Lose));
    // Views in between are skipped, their events are not.
    assert_eq!(told(&mut bed), Some(vec![(evicted, EndCause::Evicted), (lost, EndCause::NodeLost)]));
    bed.step(0, Command::RemoveNode { node, force: true });
    assert_eq!(told(&mut bed), Some(vec![(lost, EndCause::NodeRemoved)]));
    assert_eq!(told(&mut bed), Some(Vec::new()));
}

#[test]
fn an_end_that_is_told_before_the_answer_with_the_grant_is_told_again_after_it() {
    let mut bed = Bed::new(1);
    let node = bed.add(0, node_of(4, &[]), false);
    told(&mut bed);
    let slot = bed.replicas.copies[0].shard().slot_of(node).expect("it is there");
    let (earlier, _) = place_bundle(&mut bed, node);
    bed.step(0, Command::Release(earlier));
    told(&mut bed);
    let (allocation, visible_from) = place_bundle(&mut bed, node);
    told(&mut bed);
    bed.step(0, Command::Release(allocation));
    let ended = Some(vec![(allocation, EndCause::Released)]);
    assert_eq!(told(&mut bed), ended);
    // The key is of no claim: what was taken on a node that is gone is given up.
    bed.replicas.copies[0].granted(slot, 77, visible_from);
    assert!(bed.replicas.copies[0].has_ended());
    assert_eq!(told(&mut bed), ended);
    bed.replicas.copies[0].granted(slot, 77, visible_from + 2);
    assert_eq!(told(&mut bed), Some(Vec::new()), "it ended before that view");
}

#[test]
fn a_copy_that_fell_behind_the_ring_is_compared_once() {
    let mut bed = Bed::new(1);
    let node = bed.add(0, node_of(4, &[]), false);
    told(&mut bed);
    let slot = bed.replicas.copies[0].shard().slot_of(node).expect("it is there");
    for ends in [BUNDLES_ENDED_KEPT, BUNDLES_ENDED_KEPT + 1] {
        let (first, visible_from) = place_bundle(&mut bed, node);
        bed.step(0, Command::Release(first));
        for _ in 1..ends {
            let (allocation, _) = place_bundle(&mut bed, node);
            bed.step(0, Command::Release(allocation));
        }
        let told_all = told(&mut bed).map(|told| (told.len() as u64, told[0].0));
        assert_eq!(told_all, (ends == BUNDLES_ENDED_KEPT).then_some((ends, first)));
        assert_eq!(told(&mut bed), Some(Vec::new()));
        // A grant of that time may have ended with an event that the ring has lost.
        bed.replicas.copies[0].granted(slot, 77, visible_from);
        assert_eq!(told(&mut bed).is_none(), ends > BUNDLES_ENDED_KEPT);
    }
}

#[test]
fn what_is_granted_stays_taken_until_the_view_that_shows_it_and_no_longer() {
    let mut bed = Bed::new(1);
    let node = bed.add(0, node_of(8, &[]), false);
    bed.sync();
    let copy = &mut bed.replicas.copies[0];
    let slot = copy.shard().slot_of(node).expect("it is there");
    let (_, key) = copy.take_on(slot, &cores(2).demand).expect("it is free");
    copy.granted(slot, key, copy.sequence() + 2);
    // The next view shows a placement of others there. The one after it shows the grant.
    for (cpu, left) in [(1, 8 - 1 - 2), (2, 8 - 1 - 2), (3, 8 - 1 - 2 - 3)] {
        bed.step(0, Command::Place(cores(cpu)));
        bed.sync();
        let [free, ..] = bed.replicas.copies[0].shard().free_on(slot);
        assert_eq!(free, Amount::whole(left).units(), "after {cpu} cores were placed");
    }
}

#[test]
fn it_is_uncertain_while_a_node_with_a_claim_has_changed_and_the_claim_is_not_answered() {
    let mut bed = Bed::new(1);
    let node = bed.add(0, node_of(8, &[]), false);
    let other = bed.add(0, node_of(2, &[]), false);
    bed.sync();
    let slot = bed.replicas.copies[0].shard().slot_of(node).expect("it is there");
    let small = bed.replicas.copies[0].shard().slot_of(other).expect("it is there");
    let (_, key) = bed.replicas.copies[0].take_on(slot, &cores(2).demand).expect("it is free");
    assert!(!bed.replicas.copies[0].is_uncertain());
    // Two cores go on the smaller node, which has no claim.
    bed.step(0, Command::Place(cores(2)));
    bed.sync();
    assert!(!bed.replicas.copies[0].is_uncertain(), "another node changed");
    bed.step(0, Command::Place(cores(3)));
    bed.sync();
    let copy = &mut bed.replicas.copies[0];
    assert!(copy.is_uncertain(), "what was placed there may be what is claimed");
    copy.give_up(small, &[key]);
    copy.give_up(slot, &[key + 1]);
    assert!(copy.is_uncertain(), "neither node nor key are those of the claim");
    copy.granted(slot, key, copy.sequence());
    assert!(!copy.is_uncertain());
    let [free, ..] = copy.shard().free_on(slot);
    assert_eq!(free, Amount::whole(3).units());
    // The next update looks at the node, although no newer view is there.
    bed.sync();
    let copy = &bed.replicas.copies[0];
    let [free, ..] = copy.shard().free_on(slot);
    assert_eq!(free, Amount::whole(5).units(), "the view shows the grant already");
}

#[test]
fn hidden_nodes_are_found_by_no_search_until_they_are_shown() {
    let mut bed = Bed::new(1);
    let nodes = [1, 2, 3].map(|_| bed.add(0, node_of(4, &[]), false));
    let idle = bed.add(0, node_of(4, &[]), true);
    bed.sync();
    let slots = nodes.map(|node| bed.replicas.copies[0].shard().slot_of(node).expect("it is there"));
    let waits = bed.replicas.copies[0].shard().slot_of(idle).expect("it is there");
    let found = |bed: &mut Bed| {
        let copy = &mut bed.replicas.copies[0];
        let hidden = copy.hidden_count();
        while let Some(slot) = copy.shard_mut().find_tentatively(&cores(3)) {
            copy.hide(slot);
        }
        let count = copy.hidden_count() - hidden;
        copy.unhide_from(hidden);
        count
    };
    assert_eq!(found(&mut bed), 3, "a node that takes no work is found by none");
    let copy = &mut bed.replicas.copies[0];
    let (_, key) = copy.take_on(slots[0], &cores(1).demand).expect("it is free");
    for slot in [slots[0], slots[0], waits, slots[1]] {
        copy.hide(slot);
    }
    assert_eq!(copy.hidden_count(), 3, "each is hidden once");
    assert_eq!(found(&mut bed), 1);
    let copy = &mut bed.replicas.copies[0];
    copy.give_up(slots[0], &[key]);
    assert_eq!(found(&mut bed), 1, "a node that is rebuilt stays hidden");
    bed.replicas.copies[0].unhide_from(1);
    assert_eq!((bed.replicas.copies[0].hidden_count(), found(&mut bed)), (1, 2));
    bed.replicas.copies[0].show(slots[0]);
    bed.replicas.copies[0].show(slots[0]);
    assert_eq!((bed.replicas.copies[0].hidden_count(), found(&mut bed)), (0, 3));
}
