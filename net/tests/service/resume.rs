//! Sessions that outlive their connection. Each request is executed once, even if connections are lost, and
//! the holder of the token gets the outcomes.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::harness::{self, Peer, TestServer, add, ask, audit, granted, hello, node, request, within};
use wharf_net::client::{Client, ClientError, Completions};
use wharf_net::codec::{Header, decode_body};
use wharf_net::protocol::{
    HelloReply, Kind, ListRequest, NodesRequest, PlaceReply, Reason, Resume, StatusReply, StatusRequest,
    WireAllocation, WireSession, kinds,
};

fn resume_of(hello: &HelloReply) -> Resume {
    Resume { session: hello.session, token: hello.token }
}

fn placed(status: &StatusReply) -> u64 {
    status.shards.iter().map(|shard| shard.placed).sum()
}

#[tokio::test]
async fn a_resumed_session_answers_the_same_and_does_nothing_twice() {
    let server = TestServer::start(2);
    let client = server.client().await;
    add(&client, vec![node("a", 1000, 1000, 0)]).await;
    let (mut peer, opened) = Peer::open(&server).await;
    let mut replies = Vec::new();
    for sequence in 1..=20 {
        replies.push(peer.call(Kind::Place, sequence, &ask(1, 1, 0)).await);
    }
    // Some of these are in progress when the connection is gone, and some may never be read.
    for sequence in 21..=200 {
        peer.send(&request(Kind::Place, sequence, &ask(1, 1, 0))).await;
    }
    peer.leave().await;

    let (mut peer, again) = Peer::resume(&server, Some(resume_of(&opened))).await;
    assert!(again.resumed && !opened.resumed);
    assert_eq!((again.session, again.token), (opened.session, opened.token));
    for (sequence, before) in (1..).zip(&replies) {
        assert_eq!(&peer.call(Kind::Place, sequence, &ask(1, 1, 0)).await, before);
    }
    let mut allocations = BTreeSet::new();
    for sequence in 1..=200 {
        let reply = peer.call(Kind::Place, sequence, &ask(1, 1, 0)).await;
        let WireAllocation { incarnation, partition, sequence, .. } = granted(reply.body()).allocation;
        assert!(allocations.insert((incarnation, partition, sequence)), "one allocation for two requests");
    }
    assert_eq!(placed(&audit(&client).await), 200, "each request was done once");

    // Acknowledgements on the new connection count as on the old one.
    let header = Header { lowest_unacknowledged: 201, ..harness::header(Kind::Status, 201) };
    peer.send(&harness::frame(header, &StatusRequest::default())).await;
    peer.frame().await.body::<StatusReply>();
    peer.call(Kind::Place, 200, &ask(1, 1, 0)).await.assert_fault(Reason::StaleSequence);
    server.stop().await;
}

#[tokio::test]
async fn only_the_token_of_a_known_session_resumes_it() {
    let server = TestServer::start(1);
    let (peer, opened) = Peer::open(&server).await;
    let right = resume_of(&opened);
    let mut token = right.token;
    token[15] ^= 1;
    let session = WireSession { number: right.session.number + 1000, ..right.session };
    let other_start = WireSession { incarnation: right.session.incarnation + 1, ..right.session };
    let wrong =
        [Resume { token, ..right }, Resume { session, ..right }, Resume { session: other_start, ..right }];
    let refused = async |wrong: Resume| {
        let mut peer = Peer::connect(&server).await;
        peer.send(&hello(Some(wrong))).await;
        let fault = peer.frame().await.assert_fault(Reason::UnknownSession);
        assert_eq!(fault.field, "resume");
        assert_eq!(peer.closed().await, u64::from(Reason::UnknownSession.number()));
    };
    // Wrong tokens are refused while the session is in use and while it is detached. Its owner still gets it.
    for wrong in wrong {
        refused(wrong).await;
    }
    let mut peer = peer;
    peer.call(Kind::Status, 1, &StatusRequest::default()).await.body::<StatusReply>();
    peer.leave().await;
    for wrong in wrong {
        refused(wrong).await;
    }
    let (peer, again) = Peer::resume(&server, Some(right)).await;
    assert!(again.resumed);
    peer.leave().await;
    server.stop().await;
}

/// The client is back before the server knows that it was gone. The old connection is closed.
#[tokio::test]
async fn a_session_is_taken_away_from_a_connection_that_still_exists() {
    let server = TestServer::start(2);
    let client = server.client().await;
    add(&client, vec![node("a", 1000, 1000, 0)]).await;
    let (mut old, opened) = Peer::open(&server).await;
    let first = old.call(Kind::Place, 1, &ask(1, 1, 0)).await;
    for sequence in 2..=300 {
        old.send(&request(Kind::Place, sequence, &ask(1, 1, 0))).await;
    }
    let (mut new, again) = Peer::resume(&server, Some(resume_of(&opened))).await;
    assert!(again.resumed);
    let closed = within(old.connection.closed()).await;
    let quinn::ConnectionError::ApplicationClosed(close) = closed else { panic!("{closed}") };
    assert_eq!(close.error_code.into_inner(), u64::from(Reason::SessionResumed.number()));
    assert_eq!(new.call(Kind::Place, 1, &ask(1, 1, 0)).await, first);
    for sequence in 2..=300 {
        granted(new.call(Kind::Place, sequence, &ask(1, 1, 0)).await.body());
    }
    assert_eq!(placed(&audit(&client).await), 300);
    server.stop().await;
}

/// Same as above, but the old connection has more to send than its peer acknowledges. It is still told about
/// the close, and learns it when it runs again.
#[test]
fn a_connection_that_gives_way_is_told_over_what_it_did_not_take() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    // Tasks in a runtime receive, send and acknowledge only while it runs.
    let frozen = runtime();
    let awake = runtime();
    let server = TestServer::start(2);
    let client = awake.block_on(async {
        let client = server.client().await;
        let nodes = (0..1000).map(|i| node(&format!("{:0>200}", i), 10, 10, 0)).collect();
        add(&client, nodes).await;
        client
    });
    let (old, opened) = frozen.block_on(async {
        let (mut old, opened) = Peer::open(&server).await;
        // Sent in one packet: lists that are each far larger than a fresh congestion window.
        let list = ListRequest { after: 0, limit: 1000 };
        let asked: Vec<u8> = (2..6).flat_map(|sequence| request(Kind::ListNodes, sequence, &list)).collect();
        old.send(&[request(Kind::Place, 1, &ask(1, 1, 0)), asked].concat()).await;
        old.frame().await;
        (old, opened)
    });
    let mut new = awake.block_on(async {
        // The registrar answers in order, so the lists were sent before these answers.
        for _ in 0..3 {
            audit(&client).await;
        }
        let (new, again) = Peer::resume(&server, Some(resume_of(&opened))).await;
        assert!(again.resumed);
        new
    });
    let closed = frozen.block_on(within(old.connection.closed()));
    let quinn::ConnectionError::ApplicationClosed(close) = closed else { panic!("{closed}") };
    assert_eq!(close.error_code.into_inner(), u64::from(Reason::SessionResumed.number()));
    awake.block_on(async {
        granted(new.call(Kind::Place, 1, &ask(1, 1, 0)).await.body());
        assert_eq!(placed(&audit(&client).await), 1);
        server.stop().await;
    });
}

/// The client's connection is cut again and again, by another connection that takes its session and leaves.
/// Thousands of its requests are in progress meanwhile. Each is answered, and executed once.
#[tokio::test]
async fn the_client_survives_the_loss_of_its_connection() {
    const REQUESTS: u64 = 5000;
    let server = TestServer::start(2);
    let watcher = server.client().await;
    add(&watcher, vec![node("a", 10_000, 10_000, 0)]).await;
    let client =
        within(Client::connect(server.client_config(harness::PATIENCE))).await.expect("the server is there");
    let queue = Arc::new(Completions::default());
    let sender = {
        let client = client.clone();
        let queue = Arc::clone(&queue);
        tokio::spawn(async move {
            for tag in 0..REQUESTS {
                within(client.submit::<kinds::Place>(&ask(1, 1, 0), &queue, tag)).await.expect("it survives");
            }
        })
    };
    let mut answered = BTreeSet::new();
    let mut allocations = BTreeSet::new();
    let mut completions = Vec::new();
    let mut cuts = 0;
    while answered.len() < REQUESTS as usize {
        within(queue.take(&mut completions)).await;
        for completion in completions.drain(..) {
            assert!(answered.insert(completion.tag), "answered twice");
            let (reply, _) = decode_body::<PlaceReply>(&completion.reply.expect("it survives")).unwrap();
            let WireAllocation { partition, sequence, .. } = granted(reply).allocation;
            assert!(allocations.insert((partition, sequence)), "one allocation for two requests");
        }
        if answered.len() as u64 > cuts * (REQUESTS / 5) {
            cuts += 1;
            let mut thief = Peer::connect(&server).await;
            thief.send(&hello(Some(resume_of(client.hello())))).await;
            // A reply, or the end of the stream: the client may already have the session back.
            let _ = thief.next().await;
            drop(thief);
        }
    }
    assert!(cuts >= 5);
    within(sender).await.unwrap();
    assert_eq!(placed(&audit(&watcher).await), REQUESTS, "each request was done once");
    within(client.close()).await;
    server.stop().await;
}

/// Without permission to reconnect, the caller learns of the loss. The error says that it is unknown whether
/// the requests in progress were executed.
#[tokio::test]
async fn a_client_that_must_not_reconnect_says_that_the_outcome_is_unknown() {
    let server = TestServer::start(1);
    let client = server.client().await;
    let (thief, _) = Peer::resume(&server, Some(resume_of(client.hello()))).await;
    let error = within(client.place(&ask(1, 1, 0))).await.expect_err("the connection is gone");
    assert!(matches!(error, ClientError::ConnectionLost(_)), "{error:?}");
    assert!(error.to_string().contains("unknown"), "{error}");
    assert!(error.to_string().contains("resumed on another connection"), "{error}");
    let again = within(client.status(&StatusRequest::default())).await.expect_err("it stays gone");
    assert_eq!(again.to_string(), error.to_string());
    thief.leave().await;
    server.stop().await;
}

/// A peer that ends its stream and takes every reply is done with its session. The session is forgotten at
/// once, for our client and for others. A peer that is lost may return.
#[tokio::test]
async fn a_session_that_was_ended_cleanly_is_forgotten() {
    let server = TestServer::start(1);
    let client = server.client().await;
    let of_client = resume_of(client.hello());
    add(&client, vec![node("a", 10, 10, 0)]).await;
    within(client.close()).await;
    let (mut peer, opened) = Peer::open(&server).await;
    granted(peer.call(Kind::Place, 1, &ask(1, 1, 0)).await.body());
    peer.send.finish().expect("the stream is open");
    assert_eq!(peer.closed().await, 0);
    for ended in [of_client, resume_of(&opened)] {
        let mut peer = Peer::connect(&server).await;
        peer.send(&hello(Some(ended))).await;
        peer.frame().await.assert_fault(Reason::UnknownSession);
    }
    server.stop().await;
}

/// A repeated read-only request is executed again, since its outcome is not kept.
#[tokio::test]
async fn a_repeated_status_is_looked_up_again() {
    let server = TestServer::start(1);
    let (mut peer, _) = Peer::open(&server).await;
    let first: StatusReply = peer.call(Kind::Status, 1, &StatusRequest::default()).await.body();
    let again: StatusReply = peer.call(Kind::Status, 1, &StatusRequest::default()).await.body();
    assert!(again.now > first.now, "the first outcome was said again");
    server.stop().await;
}

/// A client that counts wrong would get the answer to another request.
#[tokio::test]
async fn a_sequence_that_belongs_to_another_request_is_refused() {
    let server = TestServer::start(1);
    let client = server.client().await;
    add(&client, vec![node("a", 1000, 1000, 0)]).await;
    let (mut peer, opened) = Peer::open(&server).await;
    let first = peer.call(Kind::Place, 1, &ask(1, 1, 0)).await;
    let other_amount = peer.call(Kind::Place, 1, &ask(2, 1, 0)).await;
    assert!(other_amount.assert_fault(Reason::SequenceReused).message.contains("sequence 1"));
    let other_kind = peer.call(Kind::AddNodes, 1, &NodesRequest { nodes: vec![node("b", 1, 1, 0)] }).await;
    other_kind.assert_fault(Reason::SequenceReused);
    assert_eq!(peer.call(Kind::Place, 1, &ask(1, 1, 0)).await, first, "the request itself is answered");
    peer.leave().await;
    let (mut peer, _) = Peer::resume(&server, Some(resume_of(&opened))).await;
    peer.call(Kind::Place, 1, &ask(2, 1, 0)).await.assert_fault(Reason::SequenceReused);
    assert_eq!(peer.call(Kind::Place, 1, &ask(1, 1, 0)).await, first);
    assert_eq!(placed(&audit(&client).await), 1, "nothing else was done");
    server.stop().await;
}
