//! Rounds of planners: the time that passes in them, and the views that they use.

use std::cell::Cell;
use std::sync::Arc;

use crate::by_hand::{ManualClock, add_node, check_all, cores, node_spec, settle};
use crate::group_bed::{add_agent_node, engine, group_of, places, status};
use wharf_core::engine::Engine;
use wharf_core::executor::Unobserved;
use wharf_core::group::{GroupState, GroupView, PlanJob, PlanReply, Strategy};
use wharf_core::ids::NodeId;
use wharf_core::limits::HOLD_NS_DEFAULT;
use wharf_core::link::Clock;
use wharf_core::node::LifeEvent;
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::shard::Command;
use wharf_core::time::Time;

/// A clock for rounds that take longer than shards hold. The first look of a round returns its beginning,
/// every later one its end.
struct LongRound {
    begins: Time,
    looked: Cell<bool>,
}

impl LongRound {
    const NS: u64 = HOLD_NS_DEFAULT + HOLD_NS_DEFAULT / 10;

    fn ends(&self) -> Time {
        self.begins.plus_nanos(Self::NS)
    }
}

impl Clock for LongRound {
    fn now(&self) -> Time {
        if self.looked.replace(true) { self.ends() } else { self.begins }
    }
}

/// Runs everything for this number of rounds. Each planner round takes [`LongRound::NS`]. Returns the
/// replies.
fn run_long_rounds(engine: &mut Engine, rounds: usize) -> Vec<PortReply> {
    let mut replies = Vec::new();
    for _ in 0..rounds {
        let clock = LongRound { begins: engine.now, looked: Cell::new(false) };
        engine.planners[0].run_round(&clock);
        engine.now = clock.ends();
        let clock = ManualClock::new(engine.now);
        for runner in &mut engine.runners {
            runner.run_batch(&clock, &mut Unobserved);
        }
        engine.ports[0].poll(engine.now, |_, reply| replies.push(reply));
    }
    replies
}

fn created(replies: &[PortReply]) -> &GroupView {
    let [PortReply::Plan(reply)] = replies else { panic!("one answer: {replies:?}") };
    let PlanReply::Group(Ok(view)) = &**reply else { panic!("the group is placed: {reply:?}") };
    view
}

#[test]
fn a_statement_over_several_shards_commits_where_rounds_take_longer_than_holds() {
    let mut engine = engine(2, 1);
    for number in 0..8 {
        add_node(&mut engine, node_spec(&format!("n{number}"), 4, 0));
    }
    let job = PlanJob::CreateGroup(Arc::new(group_of(cores(4), 8, Strategy::StrictSpread)));
    engine.ports[0].submit(1, PortRequest::Plan(job), engine.now).expect("room for one");
    engine.ports[0].flush();
    let replies = run_long_rounds(&mut engine, 8);
    let view = created(&replies);
    assert_eq!(places(view).len(), 8, "{view:?}");
    let metrics = engine.planners[0].planner().metrics();
    assert_eq!((metrics.statements, metrics.expired), (1, 0), "{metrics:?}");
    check_all(&engine);
}

fn run_shards(engine: &mut Engine) {
    let clock = ManualClock::new(engine.now);
    for runner in &mut engine.runners {
        runner.run_batch(&clock, &mut Unobserved);
    }
}

fn tell(engine: &mut Engine, node: NodeId, event: LifeEvent) {
    let partition = engine.catalog.load().node_partition(node).expect("a registered node");
    let request = PortRequest::Partition(partition, Command::Life(node, event));
    engine.ports[0].submit(9, request, engine.now).expect("room for one");
    engine.ports[0].flush();
}

/// A node is lost after a part of a statement is held there, and returns in the batch that commits the
/// statement. The views before that batch show the node as lost, and do not contain the bundle.
#[test]
fn a_bundle_is_not_judged_by_a_view_older_than_its_grant() {
    let mut engine = engine(2, 1);
    let node = |number| {
        let mut spec = node_spec(&format!("n{number}"), 4, 0);
        spec.identity = Some(format!("m{number}").into());
        spec
    };
    let nodes: Vec<NodeId> = (0..8).map(|number| add_agent_node(&mut engine, node(number))).collect();
    let job = PlanJob::CreateGroup(Arc::new(group_of(cores(4), 8, Strategy::StrictSpread)));
    engine.ports[0].submit(1, PortRequest::Plan(job), engine.now).expect("room for one");
    engine.ports[0].flush();
    let clock = ManualClock::new(engine.now);
    engine.planners[0].run_round(&clock);
    run_shards(&mut engine);
    tell(&mut engine, nodes[0], LifeEvent::Lose);
    run_shards(&mut engine);
    // Takes the prepared parts, decides, and follows the view in which the node is lost.
    engine.planners[0].run_round(&clock);
    tell(&mut engine, nodes[0], LifeEvent::Beat);
    let replies = settle(&mut engine);
    let group = replies.into_iter().filter(|(tag, _)| *tag == 1).map(|(_, reply)| reply);
    let group = created(&group.collect::<Vec<_>>()).clone();
    let after = status(&mut engine, group.id);
    assert_eq!(after.state, GroupState::Placed, "{after:?}");
    assert_eq!(places(&group), places(&after), "what was told as placed is placed");
    assert_eq!(engine.planners[0].planner().metrics().statements, 1);
    check_all(&engine);
}
