//! A shard with nothing to do sleeps, and wakes for work: it does not burn a core.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use wharf_core::executor::{BatchRecord, Clock, Observer, ThreadWaker};
use wharf_core::router::{PortReply, PortRequest};
use wharf_core::shard::Command;
use wharf_core::store::{Engine, EngineConfig, StoreState};
use wharf_core::time::Time;

struct Still;

impl Clock for Still {
    fn now(&self) -> Time {
        Time(0)
    }
}

/// Tells of each sleep and each batch.
struct Told(SyncSender<&'static str>);

impl Observer for Told {
    fn handle_sleep(&mut self) {
        self.0.send("sleep").expect("the test listens");
    }

    fn handle_batch(&mut self, _batch: &BatchRecord<'_>) {
        self.0.send("batch").expect("the test listens");
    }
}

fn next(told: &Receiver<&'static str>) -> &'static str {
    told.recv_timeout(Duration::from_secs(60)).expect("the shard sleeps or works")
}

#[test]
fn an_idle_shard_sleeps_until_its_bell_is_rung() {
    let waker = Arc::new(ThreadWaker::default());
    waker.set_current();
    let mut engine =
        Engine::open(StoreState::default(), &EngineConfig::default(), vec![Arc::clone(&waker).into()])
            .unwrap();
    let runner = engine.runners.pop().expect("one shard");
    let (tell, told) = sync_channel(1024);
    std::thread::scope(|scope| {
        scope.spawn(move || runner.run(&Still, &mut Told(tell)));
        let port = &mut engine.ports[0];
        for _ in 0..3 {
            // A wake-up that was left over may make it look once more before it sleeps again.
            assert_eq!(next(&told), "sleep");
            port.submit(0, PortRequest::Every(Command::Status { audit: false }), Time(0)).expect("room");
            port.flush();
            while next(&told) != "batch" {}
            let mut replies = 0;
            let bell = Arc::clone(port.bell());
            while replies == 0 {
                port.poll(Time(0), |_, reply| {
                    assert!(matches!(reply, PortReply::Every(_)));
                    replies += 1;
                });
                if replies == 0 && bell.sleep_if(|| port.is_idle()) {
                    std::thread::park();
                }
            }
        }
        assert_eq!(next(&told), "sleep");
        engine.stop.stop();
    });
}
