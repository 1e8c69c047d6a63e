//! What is lacking and what would help, by counts that tests make up.

use super::*;
use crate::fairness::Dim;
use crate::group::{GroupSpec, GroupState, GroupView, WaitPlace};
use crate::ids::{GroupId, Incarnation, TenantId};
use crate::jobs::Change;
use crate::planner::test_bed::cores;
use crate::request::{Nearest, NodeRoom, Sample};
use crate::resource::ResourceKind;
use crate::time::Time;

const LARGEST: NodeId = NodeId(9);

/// Bundles of some cores each. So many nodes have room, for so many bundles in all, and an empty node holds `holds`.
fn class(cpu: u32, count: u32, (fits, places): (u64, u64), holds: u64) -> Class {
    let nearest = Nearest::new(NodeId(4), 0, &[(ResourceKind::Cpu, 5_000, 10_000)], holds > 0);
    let sample = (holds > 0).then_some(Sample { node: LARGEST, holds });
    let room = NodeRoom { fits, places, nearest: Some(nearest), sample, ..NodeRoom::default() };
    let counts = NodeCounts { room, ..NodeCounts::default() };
    Class { count, counts, ..Class::new(cpu, Arc::new(cores(cpu))) }
}

fn group() -> WaitExplanation {
    let id = GroupId { tenant: TenantId::OPERATOR, incarnation: Incarnation(1), number: 4 };
    let spec = Arc::new(GroupSpec::new(vec![Arc::new(cores(1))], Strategy::Pack));
    let view = GroupView {
        id,
        state: GroupState::Waiting,
        spec,
        bundles: Vec::new(),
        requests: Vec::new(),
        attempts: 1,
        releasing: Vec::new(),
    };
    WaitExplanation {
        group: Some(Box::new(view)),
        job: None,
        bundle: None,
        waits_for: WaitsFor::Nothing,
        priority: 0,
        since: Time(1),
        until: None,
        fit: 0,
        needed: 0,
        found: None,
        place: WaitPlace::default(),
        nodes: None,
        changes: Vec::new(),
    }
}

fn judge(lack: &Lack, classes: Vec<Class>) -> WaitExplanation {
    lack.judge(classes, None, true, group())
}

fn of(least: u64) -> Lack {
    Lack { least, ..Lack::default() }
}

fn free(units: i64) -> Remedy {
    let amounts = [(Dim::CPU, units)].into_iter().collect();
    Remedy::FreeOnNode { node: Some(NodeId(4)), amounts, of: None }
}

fn more(count: u64) -> Remedy {
    Remedy::MoreNodes { count, like: Some(LARGEST) }
}

fn remedies(of: &WaitExplanation) -> Vec<(bool, Remedy)> {
    of.changes.iter().map(|Change { instead, remedy }| (*instead, remedy.clone())).collect()
}

#[test]
fn one_bundle_fits_if_a_node_has_more_free_or_there_is_one_more() {
    let told = judge(&of(1), vec![class(1, 1, (0, 0), 4)]);
    assert_eq!((told.waits_for, told.fit, told.bundle), (WaitsFor::Node, 0, Some(1)));
    assert_eq!(remedies(&told), [(false, free(5_000)), (true, more(1))]);
    // No node is large enough.
    let told = judge(&of(1), vec![class(7, 1, (0, 0), 0)]);
    let amounts = [(Dim::CPU, 70_000)].into_iter().collect();
    assert_eq!(remedies(&told), [(false, Remedy::LargerNodes { count: 1, amounts })]);
}

#[test]
fn who_sees_no_nodes_is_told_no_names() {
    let told = of(1).judge(vec![class(1, 1, (0, 0), 4)], None, false, group());
    let hidden = |change: &Change| match &change.remedy {
        Remedy::FreeOnNode { node, .. } | Remedy::MoreNodes { like: node, .. } => node.is_none(),
        _ => false,
    };
    assert!(told.changes.len() == 2 && told.changes.iter().all(hidden), "{:?}", told.changes);
}

#[test]
fn where_nodes_are_named_no_other_one_helps() {
    let mut named = class(1, 1, (0, 0), 4);
    let request = PlacementRequest { candidates: Some(Arc::from([NodeId(4)])), ..cores(1) };
    named.request = Arc::new(request);
    assert_eq!(remedies(&judge(&of(1), vec![named])), [(false, free(5_000))]);
}

#[test]
fn a_group_waits_for_those_that_have_no_room() {
    let told = judge(&of(5), vec![class(1, 2, (3, 3), 4), class(2, 3, (1, 1), 1)]);
    assert_eq!((told.waits_for, told.fit, told.bundle), (WaitsFor::Bundles, 3, Some(2)));
    assert_eq!(remedies(&told), [(false, more(2))], "two lack room, and a node holds one");
    // Its minimum is less than all of them.
    let told = judge(&of(4), vec![class(1, 2, (3, 3), 4), class(2, 3, (1, 1), 1)]);
    assert_eq!(remedies(&told), [(false, free(5_000)), (true, more(1))]);
    // A bundle that is asked for has its own counts.
    let classes = vec![class(1, 2, (0, 0), 4), class(2, 3, (1, 1), 1)];
    let told = of(5).judge(classes, Some((1, 7)), true, group());
    assert_eq!((told.waits_for, told.bundle), (WaitsFor::Bundles, Some(7)));
}

#[test]
fn a_node_of_its_own_for_each_is_one_node_more_for_each() {
    let lack = Lack { strategy: Strategy::StrictSpread, own: vec![NodeId(1)], ..of(3) };
    let told = judge(&lack, vec![class(1, 3, (2, 8), 4)]);
    assert_eq!((told.waits_for, told.fit), (WaitsFor::Bundles, 1), "one of the two nodes is its own");
    assert_eq!(remedies(&told), [(false, more(2))]);
}

#[test]
fn all_on_one_node_needs_a_node_for_all() {
    let lack = Lack { strategy: Strategy::StrictPack, ..of(3) };
    let told = judge(&lack, vec![class(1, 3, (2, 2), 4)]);
    assert_eq!(told.waits_for, WaitsFor::Together);
    assert_eq!(remedies(&told), [(false, more(1))]);
    let told = judge(&lack, vec![class(2, 3, (2, 2), 2)]);
    let amounts = [(Dim::CPU, 60_000)].into_iter().collect();
    assert_eq!(remedies(&told), [(false, Remedy::LargerNodes { count: 1, amounts })]);
    // Where some are placed, the others must follow.
    let lack = Lack { own: vec![NodeId(1)], ..lack };
    assert!(judge(&lack, vec![class(2, 3, (2, 2), 2)]).changes.is_empty());
}

#[test]
fn nodes_like_one_have_its_value_of_a_label() {
    let rule = Some(Spreading::Pack { strict: true });
    let told = judge(&Lack { rule, ..of(5) }, vec![class(1, 5, (9, 9), 2)]);
    assert_eq!((told.waits_for, remedies(&told)), (WaitsFor::Together, vec![(false, more(3))]));
    let told = judge(&Lack { rule, is_labelled: false, ..of(5) }, vec![class(1, 5, (9, 9), 2)]);
    assert!(told.changes.is_empty(), "the largest node has no such label");
    let rule = Some(Spreading::Spread { max_skew: 1 });
    let told = judge(&Lack { rule, ..of(5) }, vec![class(1, 5, (9, 9), 2)]);
    assert!(told.changes.is_empty(), "it depends on all values");
}

#[test]
fn what_has_room_waits_for_its_turn_or_for_a_ticket() {
    let told = judge(&of(2), vec![class(1, 2, (2, 2), 4)]);
    assert_eq!((told.waits_for, told.fit, told.changes.len()), (WaitsFor::Turn, 2, 0));
    let told = judge(&Lack { has_ticket: true, ..of(2) }, vec![class(1, 2, (0, 0), 4)]);
    assert_eq!((told.waits_for, remedies(&told)), (WaitsFor::Ticket, vec![(false, more(1))]));
    // Two kinds may have the same room.
    let told = judge(&of(2), vec![class(1, 1, (1, 1), 4), class(2, 1, (1, 1), 2)]);
    assert_eq!((told.waits_for, remedies(&told)), (WaitsFor::Together, vec![(false, more(1)); 2]));
}
