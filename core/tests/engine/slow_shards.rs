//! Placements at shards that take long for each.

use wharf_core::limits::{QUEUE_NS, SHARD_WINDOW_MIN};
use wharf_core::link::Clock;
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::state::StoreState;

use crate::by_hand::{ManualClock, Recorder, add_node, ask, cores, node_spec, open, settle};

/// Of a window of placements, each shard gets its part, so that none is idle while commands queue at another.
#[test]
fn no_slow_shard_is_idle_while_commands_queue_at_another() {
    let mut engine = open(StoreState::default(), 3, 1);
    for number in 0..30 {
        add_node(&mut engine, node_spec(&format!("n{number}"), 64, 0));
    }
    engine.runners.iter_mut().for_each(|runner| runner.set_pace(QUEUE_NS));
    // The port learns of the times with the answers.
    for _ in 0..20 {
        let reply = ask(&mut engine, PortRequest::Place(cores(1)));
        assert!(matches!(reply, PortReply::Place(Ok(_))), "{reply:?}");
    }
    assert_eq!(engine.ports[0].window(), 3 * SHARD_WINDOW_MIN);
    for round in 0..20 {
        for tag in 0..engine.ports[0].window() as u64 {
            let answered = engine.ports[0].submit(tag, PortRequest::Place(cores(1)), engine.now);
            assert!(answered.expect("room for a window").is_none());
        }
        engine.ports[0].flush();
        let clock = ManualClock::new(engine.now);
        for runner in &mut engine.runners {
            let mut seen = Recorder::default();
            while runner.run_batch(&clock, &mut seen) > 0 {}
            assert_eq!(seen.commands.len(), SHARD_WINDOW_MIN, "shard {} in round {round}", runner.id().0);
        }
        engine.now = clock.now();
        assert_eq!(settle(&mut engine).len(), 3 * SHARD_WINDOW_MIN);
    }
}
