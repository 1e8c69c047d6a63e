//! Placements that wait for hours while the same session handles many other requests. Neither blocks the
//! other. The reply to a wait is kept until it is acknowledged, even if the connection is lost.

use std::sync::Arc;

use crate::harness::{
    self, Peer, TestServer, add, ask, extended, frame, granted, header, node, place, request, within,
};
use wharf_net::client::{Client, Completions};
use wharf_net::codec::{Extension, Header, decode_body, encode_body};
use wharf_net::protocol::{
    Acknowledged, CancelRequest, EXTENSION_ACKNOWLEDGED, Hello, HelloReply, Kind, MODE_WAIT_UNTIL,
    PlaceRequest, PlacedBody, Reason, Resume, UNACKNOWLEDGED_MAX, kinds,
};

fn waiting(cpu: i64) -> PlaceRequest {
    PlaceRequest { mode: MODE_WAIT_UNTIL, ..ask(cpu, 0, 0) }
}

/// Creates one node whose four cores are all in use.
async fn full(client: &Client) -> PlacedBody {
    add(client, vec![node("a", 4, 1024, 0)]).await;
    place(client, &ask(4, 0, 0)).await
}

/// Sends `count` requests, each of which is answered.
async fn much_else(client: &Client, count: u64) {
    let queue = Arc::new(Completions::default());
    let sender = {
        let client = client.clone();
        let queue = Arc::clone(&queue);
        tokio::spawn(async move {
            for tag in 0..count {
                let nothing = CancelRequest { sequence: u64::MAX };
                within(client.submit::<kinds::CancelWait>(&nothing, &queue, tag)).await.expect("it is sent");
            }
        })
    };
    let mut completions = Vec::new();
    let mut answered = 0;
    while answered < count {
        within(queue.take(&mut completions)).await;
        answered += completions.len() as u64;
        for completion in completions.drain(..) {
            completion.reply.expect("it is answered");
        }
    }
    within(sender).await.expect("it does not panic");
}

#[tokio::test]
async fn a_hundred_thousand_requests_pass_one_that_waits() {
    let server = TestServer::start(2);
    let client = server.client().await;
    let held = full(&client).await;
    let (_, reply) = within(client.call_waiting::<kinds::Place>(&waiting(2))).await.expect("it is sent");
    much_else(&client, 100_000).await;
    within(client.release(held.allocation)).await.expect("answered");
    granted(within(reply).await.expect("answered"));
    much_else(&client, 10).await;
    server.stop().await;
}

/// The connection is cut in between. The wait continues on the next one.
#[tokio::test]
async fn a_wait_goes_on_after_a_resumption_and_so_does_the_window() {
    let server = TestServer::start(2);
    let watcher = server.client().await;
    let held = full(&watcher).await;
    let client =
        within(Client::connect(server.client_config(harness::PATIENCE))).await.expect("the server is there");
    let (_, first) = within(client.call_waiting::<kinds::Place>(&waiting(2))).await.expect("it is sent");
    let (_, second) = within(client.call_waiting::<kinds::Place>(&waiting(2))).await.expect("it is sent");
    for _ in 0..3 {
        much_else(&client, 20_000).await;
        let resume = Resume { session: client.hello().session, token: client.hello().token };
        let mut thief = Peer::connect(&server).await;
        thief.send(&harness::hello(Some(resume))).await;
        // A reply, or the end of the stream: the client may already have the session back.
        let _ = thief.next().await;
    }
    much_else(&client, 20_000).await;
    within(watcher.release(held.allocation)).await.expect("answered");
    let first = granted(within(first).await.expect("answered"));
    let second = granted(within(second).await.expect("answered"));
    assert_ne!(first.allocation, second.allocation);
    much_else(&client, 10).await;
    server.stop().await;
}

/// A raw peer that acknowledges waits individually.
pub(crate) struct Exact {
    pub(crate) peer: Peer,
    resume: Resume,
    /// The sequence of the next request.
    sequence: u64,
}

impl Exact {
    pub(crate) async fn open(server: &TestServer, resume: Option<Resume>, sequence: u64) -> Self {
        let mut peer = Peer::connect(server).await;
        let mut none = Vec::new();
        encode_body(&Acknowledged::default(), &mut none);
        let body = Hello { version_min: 1, version_max: 1, client: "exact".to_owned(), resume };
        let exactly = Extension { tag: EXTENSION_ACKNOWLEDGED, bytes: &none };
        peer.send(&extended(header(Kind::Hello, 0), &[exactly], &body)).await;
        let reply = peer.frame().await;
        let (hello, taken) = decode_body::<HelloReply>(&reply.payload).expect("a hello");
        assert!(taken < reply.payload.len(), "the server says that it understands");
        Self { peer, resume: Resume { session: hello.session, token: hello.token }, sequence }
    }

    pub(crate) async fn lose(self, server: &TestServer) -> Self {
        let Self { peer, resume, sequence } = self;
        peer.leave().await;
        Self::open(server, Some(resume), sequence).await
    }

    /// Asks for a placement that waits.
    pub(crate) async fn ask_to_wait(&mut self, sequence: u64, cpu: i64) {
        self.peer.send(&request(Kind::Place, sequence, &waiting(cpu))).await;
    }

    /// Returns the next reply.
    pub(crate) async fn reply(&mut self) -> harness::Frame {
        self.peer.frame().await
    }

    /// Sends requests one by one. Each acknowledges all before it except the waits.
    async fn much_else(&mut self, count: u64) {
        for _ in 0..count {
            let header =
                Header { lowest_unacknowledged: self.sequence, ..header(Kind::CancelWait, self.sequence) };
            self.peer.send(&frame(header, &CancelRequest { sequence: u64::MAX })).await;
            assert_eq!(self.peer.frame().await.header.sequence, self.sequence);
            self.sequence += 1;
        }
    }

    /// Sends a request that acknowledges one wait.
    async fn acknowledge(&mut self, wait: u64) {
        let mut bytes = Vec::new();
        encode_body(&Acknowledged { sequences: vec![wait] }, &mut bytes);
        let header =
            Header { lowest_unacknowledged: self.sequence, ..header(Kind::CancelWait, self.sequence) };
        let extension = Extension { tag: EXTENSION_ACKNOWLEDGED, bytes: &bytes };
        self.peer.send(&extended(header, &[extension], &CancelRequest { sequence: u64::MAX })).await;
        self.peer.frame().await;
        self.sequence += 1;
    }
}

#[tokio::test]
async fn a_wait_is_answered_the_same_until_it_is_acknowledged_by_name() {
    let server = TestServer::start(1);
    let client = server.client().await;
    let held = full(&client).await;
    let mut exact = Exact::open(&server, None, 2).await;
    exact.peer.send(&request(Kind::Place, 1, &waiting(2))).await;
    exact.much_else(u64::from(UNACKNOWLEDGED_MAX) + 10).await;
    // The interrupted wait is sent again, far below the mark.
    let mut exact = exact.lose(&server).await;
    exact.peer.send(&request(Kind::Place, 1, &waiting(2))).await;
    exact.much_else(2).await;
    within(client.release(held.allocation)).await.expect("answered");
    let first = exact.peer.frame().await;
    assert_eq!(first.header.sequence, 1);
    granted(first.body());
    exact.much_else(2).await;
    let mut exact = exact.lose(&server).await;
    assert_eq!(exact.peer.call(Kind::Place, 1, &waiting(2)).await, first, "answered the same");
    exact.acknowledge(1).await;
    exact.peer.call(Kind::Place, 1, &waiting(2)).await.assert_fault(Reason::StaleSequence);
    let status = harness::audit(&client).await;
    assert_eq!(status.shards.iter().map(|shard| shard.placed).sum::<u64>(), 2, "done once");
    server.stop().await;
}
