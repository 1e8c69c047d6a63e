//! Hostile peers of every kind at once, next to a client that is served. After them the books are as before, and nothing of
//! them is left.

use std::sync::atomic::Ordering;

use quinn::Connection;
use wharf_net::access::{AccessSettings, Role};
use wharf_net::codec::{HEADER_BYTES, Header, encode_frame};
use wharf_net::protocol::{
    ALPN, FRAME_BYTES_MAX, Kind, ListRequest, PlaceReply, Reason, ReleaseRequest, Resume, StatusRequest,
    WireSession,
};

use crate::harness::bed::{Bed, NOW};
use crate::harness::{
    self, Peer, TestServer, add, ask, books, connect, granted, header, hello, identity, node, request,
    standing, tenant, within,
};

/// The peers of each kind.
const EACH: usize = 4;
/// The requests that the client makes meanwhile, each a place and a release.
const MEANWHILE: usize = 100;

/// A peer, and what it holds open.
enum Hostile {
    Peer(Peer),
    Bare(quinn::Endpoint, Connection),
}

/// Returns the header of a frame, with a length that is not that of the frame.
fn lying_header(kind: Kind, length: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_frame(header(kind, 1), &[], &mut bytes, |_| {});
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    assert_eq!(bytes.len(), HEADER_BYTES);
    bytes
}

/// Returns a frame with these bytes as its body.
fn raw_body(kind: Kind, sequence: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_frame(header(kind, sequence), &[], &mut bytes, |out| out.extend_from_slice(body));
    bytes
}

/// Nothing at all after the handshake.
async fn silent(server: &TestServer) -> Hostile {
    let (endpoint, connection) = connect(server, ALPN).await.expect("the handshake succeeds");
    Hostile::Bare(endpoint, connection)
}

/// A stream with half of a hello.
async fn half_hello(server: &TestServer) -> Hostile {
    let mut peer = Peer::connect(server).await;
    peer.send(&hello(None)[..12]).await;
    Hostile::Peer(peer)
}

/// A frame that claims 4 GiB, instead of a hello and after one.
async fn length_bomb(server: &TestServer) -> Hostile {
    let mut first = Peer::connect(server).await;
    first.send(&lying_header(Kind::Hello, u32::MAX)).await;
    first.frame().await.assert_fault(Reason::FrameTooLong);
    first.leave().await;
    let (mut peer, _) = Peer::open(server).await;
    peer.send(&lying_header(Kind::Place, u32::MAX)).await;
    peer.frame().await.assert_fault(Reason::FrameTooLong);
    Hostile::Peer(peer)
}

/// A frame of the greatest length that never ends.
async fn endless_frame(server: &TestServer) -> Hostile {
    let (mut peer, _) = Peer::open(server).await;
    peer.send(&lying_header(Kind::PlaceBatch, FRAME_BYTES_MAX)).await;
    peer.send(&vec![0; FRAME_BYTES_MAX as usize - 1000]).await;
    Hostile::Peer(peer)
}

/// Lists and texts that claim to be endless, in bodies of every kind. The connection goes on.
async fn body_bomb(server: &TestServer) -> Hostile {
    let (mut peer, _) = Peer::open(server).await;
    let claims = [[253, 255, 255, 255, 255, 255, 255, 255, 127], [253, 0, 0, 0, 0, 0, 0, 0, 16]];
    let mut sequence = 0;
    for &kind in Kind::ALL.iter().filter(|&&kind| kind != Kind::Hello) {
        for before in 0..4 {
            for claim in claims {
                sequence += 1;
                let body = [&[0; 4][..before], &claim[..], &[255; 8]].concat();
                peer.send(&raw_body(kind, sequence, &body)).await;
                peer.frame().await.fault().expect("it cannot be read");
            }
        }
    }
    Hostile::Peer(peer)
}

/// Asks for much and reads nothing.
async fn never_reads(server: &TestServer) -> Hostile {
    let (mut peer, _) = Peer::open(server).await;
    let list = ListRequest { after: 0, limit: 1024 };
    let bytes: Vec<u8> = (1..=500).flat_map(|at| request(Kind::ListNodes, at, &list)).collect();
    peer.send(&bytes).await;
    Hostile::Peer(peer)
}

/// What is no frame.
async fn noise(server: &TestServer) -> Hostile {
    let (mut peer, _) = Peer::open(server).await;
    let bytes: Vec<u8> = (0..4096u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    peer.send(&bytes).await;
    peer.frame().await.fault().expect("it is no frame");
    Hostile::Peer(peer)
}

/// Resumes a session that it does not have, by its number.
async fn thief(server: &TestServer) -> Hostile {
    let (victim, opened) = Peer::open(server).await;
    let guesses =
        [opened.session, WireSession { number: opened.session.number + 1, ..opened.session }].into_iter();
    for session in guesses.chain([WireSession::default()]) {
        for token in [[0; 16], [255; 16]] {
            let mut peer = Peer::connect(server).await;
            peer.send(&hello(Some(Resume { session, token }))).await;
            peer.frame().await.assert_fault(Reason::UnknownSession);
            peer.leave().await;
        }
    }
    Hostile::Peer(victim)
}

/// More streams than are granted.
async fn streams(server: &TestServer) -> Hostile {
    let (mut peer, _) = Peer::open(server).await;
    for _ in 0..100 {
        let connection = peer.connection.clone();
        drop(tokio::spawn(async move { drop(connection.open_bi().await) }));
        let connection = peer.connection.clone();
        drop(tokio::spawn(async move { drop(connection.open_uni().await) }));
    }
    peer.call(Kind::Status, 1, &StatusRequest::default()).await;
    Hostile::Peer(peer)
}

#[tokio::test]
async fn a_crowd_of_hostile_peers_leaves_nothing_behind() {
    let server = TestServer::start_planning(2, 1);
    let client = server.client().await;
    add(&client, vec![node("a", 1000, 1000, 0)]).await;
    let before = standing(&client).await;
    let empty = books(&client).await;
    let mut crowd = Vec::new();
    for _ in 0..EACH {
        crowd.push(silent(&server).await);
        crowd.push(half_hello(&server).await);
        crowd.push(length_bomb(&server).await);
        crowd.push(endless_frame(&server).await);
        crowd.push(body_bomb(&server).await);
        crowd.push(never_reads(&server).await);
        crowd.push(noise(&server).await);
        crowd.push(thief(&server).await);
        crowd.push(streams(&server).await);
    }
    assert_eq!(books(&client).await, empty, "the books moved");
    for _ in 0..MEANWHILE {
        let allocation = harness::place(&client, &ask(1, 1, 0)).await.allocation;
        assert!(within(client.release(allocation)).await.expect("answered").reason.is_done());
    }
    // The requests of the client changed versions, and nothing else.
    assert_eq!(standing(&client).await, before, "the books moved");
    let after = books(&client).await;
    for hostile in crowd {
        match hostile {
            Hostile::Peer(peer) => peer.leave().await,
            Hostile::Bare(endpoint, connection) => {
                connection.close(0u32.into(), b"");
                within(endpoint.wait_idle()).await;
            }
        }
    }
    let connections = || server.shared.sessions.counters.connections.load(Ordering::Relaxed);
    within(async {
        while connections() > 1 {
            client.status(&StatusRequest::default()).await.expect("answered");
        }
    })
    .await;
    assert_eq!(books(&client).await, after, "the books moved");
    within(client.close()).await;
    server.stop().await;
}

/// A peer of another tenant sends the very bytes that a client has sent. They are its own requests: it gets what is its
/// own, and reaches nothing of the client.
#[test]
fn replayed_bytes_of_another_tenant_reach_nothing_of_it() {
    let mut bed = Bed::with_full_node(Vec::new(), NOW);
    bed.shared.set_access(&AccessSettings {
        tenants: vec![tenant(1), tenant(2)],
        identities: [1, 2]
            .map(|number| identity(&format!("user-{number}"), &[Role::Submit], Some(number)))
            .into(),
        by_certificate: true,
        ..AccessSettings::default()
    });
    let (victim, _) = bed.greet_as(&["user-1"], false, None);
    let (thief, _) = bed.greet_as(&["user-2"], false, None);
    let ask_both = |bytes: &[u8], bed: &mut Bed| {
        [victim, thief].map(|key| {
            bed.service.receive(key, bytes, bed.now);
            bed.run_shard();
            bed.write();
            bed.replies(key).remove(0)
        })
    };
    let [own, copied] = ask_both(&request(Kind::Place, 1, &ask(0, 0, 0)), &mut bed);
    let own = granted(own.body::<PlaceReply>()).allocation;
    let copied = granted(copied.body::<PlaceReply>()).allocation;
    assert_eq!((own.tenant, copied.tenant), (1, 2));
    assert_ne!(own.sequence, copied.sequence);
    // The thief comes first.
    let release = request(Kind::Release, 2, &ReleaseRequest { allocation: own });
    bed.service.receive(thief, &release, bed.now);
    bed.run_shard();
    bed.write();
    bed.replies(thief).remove(0).assert_fault(Reason::Forbidden);
    let release = Header { sequence: 2, ..header(Kind::Release, 2) };
    bed.service.receive(victim, &harness::frame(release, &ReleaseRequest { allocation: own }), bed.now);
    bed.run_shard();
    bed.write();
    let released: wharf_net::protocol::ReleaseReply = bed.replies(victim).remove(0).body();
    assert!(released.reason.is_done(), "it was there until its tenant released it");
}
