//! Tests that the checkers of queues, of direct placements and of domains fire.

use std::collections::BTreeMap;

use wharf_core::ids::NodeId;
use wharf_core::jobs::{JobId, JobSpec, TaskGroup, TaskId, TaskState, TopologyRule};
use wharf_core::node::Labels;
use wharf_core::time::Time;
use wharf_net::protocol::Reason;

use super::domains::{Hard, jobs_stay_in_domains};
use super::fires::{Bed, NODE, asks};
use super::fires_jobs::{jobs, placed_on};
use super::queues::{
    Charged, QUEUES, RefusedAtRest, Sum, a_start_keeps_the_charges, caps_hold, charges_are_in_the_books,
    kept, placements_are_charged, refusals_of_queues_are_true,
};
use crate::sim::facts::Facts;

/// Places tasks with a core each, on a node after the other, each of its own job. Returns the books afterwards.
fn with_tasks(count: u64) -> [Facts; 1] {
    let mut bed = Bed::new(8);
    let place = |number| placed_on(&mut bed, NodeId(1 + number / 8), number + 1, JobId(number + 1), 0).0;
    [(0..count).map(place).last().unwrap_or_default()]
}

#[test]
pub(super) fn a_queue_that_uses_more_than_its_cap() {
    let capped = QUEUES.iter().find(|queue| queue.name == "capped").expect("one of them");
    let (_, most) = capped.capability.iter().find(|(name, _)| *name == "cpu").expect("it has a cap");
    let most = *most as u64 / 10_000;
    for count in 1..=most + 1 {
        let facts = with_tasks(count);
        assert_eq!(caps_hold(&facts, |_| Some("free")), Ok(()));
        assert_eq!(caps_hold(&facts, |_| Some("capped")).is_ok(), count <= most);
        assert!(caps_hold(&facts, |_| None).is_err(), "a job of no queue");
        // The queue above counts what is below it.
        let other = |job: JobId| Some(if job.0 == 1 { "capped" } else { "other" });
        assert_eq!(caps_hold(&facts, other), Ok(()));
    }
    assert_eq!(caps_hold(&with_tasks(6), |_| Some("other")), Ok(()));
    assert!(caps_hold(&with_tasks(7), |_| Some("other")).is_err(), "seven cores below a queue of six");
    assert_eq!(caps_hold(&with_tasks(3), |_| Some("few")), Ok(()));
    assert!(caps_hold(&with_tasks(4), |_| Some("few")).is_err(), "four allocations of three");
}

#[test]
pub(super) fn a_charge_that_is_not_in_the_books() {
    let (mut jobs, job) = jobs();
    let (facts, allocation) = placed_on(&mut Bed::new(4), NODE, 1, job, 0);
    let check = |jobs: &_, facts: Facts| charges_are_in_the_books(jobs, &[facts], |_| Some("free")).is_ok();
    assert!(check(&jobs, Facts::default()) && !check(&jobs, facts.clone()), "only the books have it");
    let nothing = kept(&jobs);
    let task = TaskId { job, index: 0 };
    jobs.set(task, TaskState::Bound, Some(NODE), Time(2));
    jobs.set_allocation(task, allocation);
    assert!(check(&jobs, facts) && !check(&jobs, Facts::default()), "only the queue has it");
    assert_eq!(a_start_keeps_the_charges(&kept(&jobs), &kept(&jobs)), Ok(()));
    assert!(a_start_keeps_the_charges(&kept(&jobs), &nothing).is_err());
}

#[test]
pub(super) fn a_placement_that_is_charged_to_another_queue() {
    let (facts, id) = placed_on(&mut Bed::new(4), NODE, 1, JobId(1), 0);
    let facts = [facts];
    let core = Sum { cpu: 10_000, allocations: 1, ..Sum::default() };
    let check = |facts: &[Facts], queue, asked, queue_of: Option<&'static str>| {
        let told = BTreeMap::from([(id, Charged { queue, asked })]);
        placements_are_charged(told.iter(), facts, |_| queue_of).is_ok()
    };
    assert!(check(&facts, "few", core, Some("few")));
    assert!(!check(&facts, "few", core, Some("free")) && !check(&facts, "few", core, None));
    assert!(!check(&facts, "few", Sum { cpu: 5_000, ..core }, Some("few")), "less was asked for");
    assert!(check(&[], "few", core, Some("free")), "it has ended");
}

#[test]
pub(super) fn a_placement_that_is_refused_without_a_reason() {
    let demand = asks(1, 0).demand;
    let check = |reason, is_offered, count| {
        let refused = RefusedAtRest { queue: "few", demand: &demand, reason, is_offered };
        refusals_of_queues_are_true(refused, &with_tasks(count), |_| Some("few")).is_ok()
    };
    assert!(check(Reason::OverCap, true, 3) && !check(Reason::OverCap, true, 2));
    assert!(check(Reason::NoFitNow, false, 2) && !check(Reason::NoFitNow, true, 2));
    assert!(!check(Reason::NoFitNow, false, 3), "the cap was in the way");
    assert!(!check(Reason::Conflicted, false, 3), "nothing else moves");
}

/// Returns the books with the nodes in these racks, all in one row.
fn in_racks(facts: &Facts, racks: &[(u64, &str)]) -> [Facts; 1] {
    let mut facts = facts.clone();
    for node in facts.partitions.iter_mut().flat_map(|partition| &mut partition.nodes) {
        let rack = racks.iter().find(|(number, _)| NodeId(*number) == node.registration.id);
        let labels = rack.map(|(_, rack)| vec![("rack".into(), (*rack).into()), ("row".into(), "w".into())]);
        node.registration.spec.labels = Labels::new(labels.unwrap_or_default()).expect("each key once");
    }
    [facts]
}

#[test]
pub(super) fn a_task_that_leaves_its_domain() {
    let hard = |of_job: Option<&str>, of_second: Option<&str>| {
        let group = |tier: Option<&str>, count| TaskGroup {
            topology: tier.map(TopologyRule::hard),
            ..TaskGroup::new(asks(1, 0), count)
        };
        let tasks = vec![group(None, 1), group(of_second, 2)];
        Hard::of(&JobSpec { topology: of_job.map(TopologyRule::hard), ..JobSpec::new("j", tasks) })
    };
    // Tasks 0 and 1 are on the first two nodes, and task 2 on the third one.
    let mut bed = Bed::new(4);
    let tasks = [0, 1, 2].map(|index| {
        let node = NodeId(u64::from(index) + 1);
        placed_on(&mut bed, node, u64::from(index) + 1, JobId(1), index).0
    });
    let check = |hard: Hard, racks: &[(u64, &str)]| {
        jobs_stay_in_domains(&in_racks(&tasks[2], racks), |_| Some(&hard)).is_ok()
    };
    let two = [(1, "a"), (2, "b"), (3, "b")];
    assert!(check(hard(None, None), &two) && check(hard(Some("row"), Some("rack")), &two));
    assert!(!check(hard(Some("rack"), None), &two));
    assert!(!check(hard(Some("row"), Some("rack")), &[(1, "a"), (2, "a"), (3, "b")]));
    assert!(!check(hard(Some("row"), None), &[(1, "a"), (2, "b")]), "a node in no row");
    assert!(check(hard(Some("rack"), None), &[(1, "a"), (2, "a"), (3, "a")]));
}
