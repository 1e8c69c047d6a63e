//! A placement and a release are one command to one shard and one answer, whatever the number of shards.

use crate::by_hand::{ManualClock, add_node, check_all, cores, node_spec, open};
use wharf_core::engine::Engine;
use wharf_core::executor::Unobserved;
use wharf_core::limits::PARTITIONS_DEFAULT;
use wharf_core::link::Clock;
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::shard::Outcome;
use wharf_core::state::StoreState;

/// What a request took.
#[derive(Debug, Default, PartialEq, Eq)]
struct Messages {
    shards_woken: usize,
    commands: usize,
    answers: usize,
}

const ONE_OF_EACH: Messages = Messages { shards_woken: 1, commands: 1, answers: 1 };

/// Carries out a request at an engine whose shards sleep, until nothing is under way.
fn exchange(engine: &mut Engine, request: PortRequest) -> (PortReply, Messages) {
    let clock = ManualClock::new(engine.now);
    let mut took = Messages::default();
    let mut replies = Vec::new();
    assert!(engine.ports[0].submit(0, request, engine.now).expect("room").is_none());
    while engine.ports[0].pending() > 0 {
        engine.ports[0].flush();
        for runner in engine.runners.iter_mut().filter(|runner| !runner.is_asleep()) {
            took.shards_woken += 1;
            took.commands += runner.run_batch(&clock, &mut Unobserved);
            assert!(runner.fall_asleep(), "shard {} has more to do", runner.id().0);
        }
        took.answers += engine.ports[0].poll(engine.now, |_, reply| replies.push(reply));
    }
    engine.now = clock.now();
    assert_eq!(replies.len(), 1, "{replies:?}");
    (replies.remove(0), took)
}

#[test]
fn a_placement_and_a_release_are_one_command_and_one_answer_over_any_number_of_shards() {
    for shards in [1, 2, 8, 64] {
        let mut engine = open(StoreState::create(PARTITIONS_DEFAULT), shards, 1);
        for number in 0..2 * shards {
            add_node(&mut engine, node_spec(&format!("n{number}"), 256, 0));
        }
        for round in 0..200 {
            let place = PortRequest::Place(cores(1 + round % 4));
            let (reply, took) = exchange(&mut engine, place);
            assert_eq!(took, ONE_OF_EACH, "placement {round} over {shards} shards");
            let PortReply::Place(Ok(placed)) = reply else { panic!("there is room: {reply:?}") };
            if round % 2 == 1 {
                let (reply, took) = exchange(&mut engine, PortRequest::Release(placed.allocation));
                assert_eq!(took, ONE_OF_EACH, "release {round} over {shards} shards");
                assert!(matches!(reply, PortReply::One(Outcome::Release(Ok(_)))), "{reply:?}");
            }
        }
        assert_eq!(engine.ports[0].spillbacks(), 0);
        check_all(&engine);
    }
}
