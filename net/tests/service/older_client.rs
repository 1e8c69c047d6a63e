//! A conversation with a client of version 1, byte for byte.
//!
//! `conversation_of_version_1.txt` was recorded between the client library and the service of commit 3ff3ce4a6d, the last one
//! that knew no version but 1. A relay between them wrote down each frame: `>` from the client, `<` from the service, the
//! header first. The frames of the client are sent to the service of today as they are. It must answer as that service did.
//! Nothing here encodes a request, so a mistake that both sides of today make alike is found.

use wharf_net::codec::{FLAG_ERROR, FLAG_REPLY, Header, decode_body, decode_frame, encode_body};
use wharf_net::protocol::{
    FRAME_BYTES_MAX, Fault, Hello, HelloReply, Kind, NodesReply, PlaceReply, ReleaseReply, SessionToken,
};

use crate::harness::golden::{bytes_of, hex};
use crate::harness::{Peer, TestServer};

const CONVERSATION: &str = include_str!("conversation_of_version_1.txt");

/// Returns the frames: whether the client sent it, and its bytes.
fn conversation() -> Vec<(bool, Vec<u8>)> {
    let lines = CONVERSATION.lines().filter(|line| !line.starts_with('#'));
    let frame = |line: &str| match line.split_at(1) {
        (">", frame) => (true, bytes_of(frame)),
        ("<", frame) => (false, bytes_of(frame)),
        _ => panic!("a line begins with > or <: {line}"),
    };
    lines.map(frame).collect()
}

fn header_and_body(frame: &[u8]) -> (Header, &[u8]) {
    let read = decode_frame(frame, FRAME_BYTES_MAX).expect("a frame").expect("all of it");
    assert_eq!(read.bytes, frame.len());
    (read.header, read.payload)
}

/// Returns a body after a change of what the protocol does not fix.
fn changed<T: serde::Serialize + serde::de::DeserializeOwned>(
    body: &[u8],
    change: impl FnOnce(&mut T),
) -> Vec<u8> {
    let (mut read, taken) = decode_body::<T>(body).expect("a body");
    change(&mut read);
    let mut out = Vec::new();
    encode_body(&read, &mut out);
    out.extend_from_slice(&body[taken..]);
    out
}

/// Returns the reply without what the protocol does not fix: the words of faults for people, the token of the session and
/// the name of the software.
fn fixed(frame: &[u8]) -> (Header, String) {
    let wordless = |fault: &mut Option<Fault>| {
        if let Some(fault) = fault {
            assert!(!std::mem::take(&mut fault.message).is_empty());
        }
    };
    let (header, body) = header_and_body(frame);
    let is = |kind: Kind| header.kind == kind.number();
    let body = if header.flags & FLAG_ERROR != 0 {
        changed(body, |fault: &mut Fault| fault.message.clear())
    } else if is(Kind::Hello) {
        changed(body, |hello: &mut HelloReply| {
            assert_ne!(std::mem::take(&mut hello.token), SessionToken::default());
            hello.server.software.clear();
        })
    } else if is(Kind::AddNodes) {
        changed(body, |reply: &mut NodesReply| {
            reply.replies.iter_mut().for_each(|node| wordless(&mut node.fault));
        })
    } else if is(Kind::Place) {
        changed(body, |reply: &mut PlaceReply| wordless(&mut reply.fault))
    } else if is(Kind::Release) {
        changed(body, |reply: &mut ReleaseReply| wordless(&mut reply.fault))
    } else {
        body.to_vec()
    };
    (header, hex(&body))
}

#[tokio::test]
async fn a_recorded_client_of_version_1_is_answered_as_it_always_was() {
    let server = TestServer::start_planning(1, 1);
    let mut peer = Peer::connect(&server).await;
    let frames = conversation();
    let (header, hello) = header_and_body(&frames[0].1);
    let (hello, _) = decode_body::<Hello>(hello).expect("it begins with a hello");
    assert_eq!((header.kind, hello.version_min, hello.version_max), (Kind::Hello.number(), 1, 1));
    let mut kinds = std::collections::BTreeSet::new();
    for (is_sent, recorded) in &frames {
        if *is_sent {
            peer.send(recorded).await;
            continue;
        }
        let reply = peer.frame().await;
        assert_ne!(reply.header.flags & FLAG_REPLY, 0);
        assert_eq!(fixed(&reply.bytes), fixed(recorded), "recorded: {}", hex(recorded));
        kinds.insert(reply.header.kind);
    }
    assert!(kinds.len() >= 15, "the conversation has few kinds: {kinds:?}");
    peer.send.finish().expect("the stream is open");
    assert_eq!(peer.closed().await, 0);
    server.stop().await;
}
