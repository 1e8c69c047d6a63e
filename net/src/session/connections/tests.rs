//! Connections and their engine, run by hand: what a reply must wait for.

use std::cell::Cell;
use std::sync::Arc;
use std::task::Waker;

use wharf_core::engine::{Engine, EngineConfig};
use wharf_core::executor::{ShardRunner, Unobserved as NoObserver};
use wharf_core::ids::ShardId;
use wharf_core::link::Clock;
use wharf_core::node::{Labels, NodeSpec, Taints};
use wharf_core::request::{PlacementRequest, Policy};
use wharf_core::resource::{Amount, Demand};
use wharf_core::state::StoreState;

use super::*;
use crate::codec::{Header, decode_body, decode_frame, encode_body, encode_frame};
use crate::protocol::{
    BODY_VERSION, FOLLOW_ALL, FRAME_BYTES_MAX, FollowReply, FollowRequest, Hello, Kind, VERSION_MAX,
    VERSION_MIN,
};
use crate::session::shared::Settings;

/// A clock that advances by one at each look.
struct ManualClock(Cell<u64>);

impl Clock for ManualClock {
    fn now(&self) -> Time {
        self.0.set(self.0.get() + 1);
        Time(self.0.get())
    }
}

struct NoHangup;

impl Hangup for NoHangup {
    fn hang_up(&self, code: u32, _reason: &'static [u8]) {
        panic!("the connection is closed with {code}")
    }
}

/// One connection with a session, and a shard with one node. Nothing runs by itself.
struct Bed {
    service: ConnectionService,
    runner: ShardRunner,
    clock: ManualClock,
    /// The port of other clients.
    other: Port,
    key: ConnectionKey,
    sequence: u64,
}

impl Bed {
    fn new() -> Self {
        let config = EngineConfig { views: true, ..EngineConfig::default() };
        let wakers = vec![Waker::noop().clone(); 2];
        let mut engine = Engine::open(StoreState::create(1), &config, wakers).unwrap();
        let spec = NodeSpec {
            name: "n".into(),
            identity: None,
            cpu: Amount::whole(4),
            memory: Amount::ZERO,
            gpus: 0,
            custom: None,
            labels: Labels::default(),
            taints: Taints::default(),
        };
        let registration = engine.registrar.register(spec).unwrap();
        let command = engine.registrar.join_command(registration.clone());
        let port = engine.ports.pop().unwrap();
        let other = engine.ports.pop().unwrap();
        let make_token = Box::new(|| [1; 16]);
        let shared = SessionShared::new([7; 16], engine.incarnation, Settings::default(), make_token);
        let waker = Waker::noop().clone();
        let mut service = ConnectionService::new(port, Arc::new(shared), Box::new(Unobserved), waker);
        let key = service.open(Arc::new(NoHangup), Peer::default());
        let runner = engine.runners.pop().unwrap();
        let clock = ManualClock(Cell::new(engine.now.0));
        let mut bed = Self { service, runner, clock, other, key, sequence: 0 };
        bed.change(PortRequest::Partition(registration.partition, command));
        let hello = Hello {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            client: "test".to_owned(),
            resume: None,
        };
        bed.send(Kind::Hello, |out| encode_body(&hello, out));
        assert!(!bed.take_output().is_empty(), "hello is answered");
        bed
    }

    fn send(&mut self, kind: Kind, body: impl FnOnce(&mut Vec<u8>)) {
        let sequence = self.sequence;
        let header = Header { kind: kind.number(), version: BODY_VERSION, sequence, ..Header::default() };
        self.sequence += 1;
        let mut frame = Vec::new();
        encode_frame(header, &[], &mut frame, body);
        self.service.receive(self.key, &frame, self.clock.now());
    }

    fn take_output(&mut self) -> Vec<u8> {
        let output = self.service.take_output(self.key);
        self.service.written(self.key, output.replies, output.bytes.len(), false, self.clock.now());
        output.bytes
    }

    fn run_shard(&mut self) {
        self.runner.run_batch(&self.clock, &mut NoObserver);
    }

    /// Has the shard carry out a request of another client, in a batch of its own.
    fn change(&mut self, request: PortRequest) -> PortReply {
        self.other.submit(0, request, self.clock.now()).expect("room");
        self.other.flush();
        self.run_shard();
        let mut answer = None;
        self.other.poll(self.clock.now(), |_, reply| answer = Some(reply));
        answer.expect("one batch")
    }
}

#[test]
fn who_does_not_wait_for_changes_waits_for_views_of_earlier_ones() {
    let mut bed = Bed::new();
    // Nobody reads the views, so the shard runs out of buffers and publishes the last changes later.
    for _ in 0..100 {
        let demand = Demand { cpu: Amount::whole(1), ..Demand::default() };
        let request = PlacementRequest::new(demand, Policy::default());
        let PortReply::Place(Ok(placed)) = bed.change(PortRequest::Place(request)) else { panic!("it fits") };
        bed.change(PortRequest::Release(placed.allocation));
    }
    let follow = FollowRequest { kinds: FOLLOW_ALL, ..FollowRequest::default() };
    bed.send(Kind::Follow, |out| encode_body(&follow, out));
    assert!(bed.take_output().is_empty(), "the last changes are not published yet");
    bed.run_shard();
    bed.service.poll(bed.clock.now());
    let bytes = bed.take_output();
    let frame = decode_frame(&bytes, FRAME_BYTES_MAX).unwrap().expect("an answer");
    let (reply, _) = decode_body::<FollowReply>(frame.payload).unwrap();
    let page = reply.page.expect("the changes");
    assert_eq!(page.to.sequence, bed.service.port.views().due(ShardId(0)));
}
