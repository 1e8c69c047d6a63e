//! The frames that peers send: well-formed requests of every kind, and what a broken or hostile client might send.

use wharf_net::codec::{Extension, FLAG_REPLY, Header, encode_body, encode_frame};
use wharf_net::protocol::{
    Acknowledged, BODY_VERSION, EXTENSION_ACKNOWLEDGED, Hello, Kind, Message, MessageVisitor, Resume,
    VERSION_MAX, VERSION_MIN,
};

use super::peers::{Peer, Ticket};
use crate::bodies::{Known, draw};
use crate::sim::choices::Choices;

/// Kinds that most requests have, because they lead furthest.
const OFTEN: [Kind; 12] = [
    Kind::Place,
    Kind::Place,
    Kind::Release,
    Kind::PlaceBatch,
    Kind::CancelWait,
    Kind::CreateGroup,
    Kind::GrowGroup,
    Kind::PlaceInto,
    Kind::RemoveGroup,
    Kind::SubmitStatement,
    Kind::AddNodes,
    Kind::Follow,
];

/// Kinds that many requests of a run with jobs have in addition.
const OFTEN_WITH_JOBS: [Kind; 6] =
    [Kind::SubmitJob, Kind::SubmitJob, Kind::ReportTasks, Kind::JobStatus, Kind::CancelJob, Kind::SetQueue];

/// Returns a hello with a new session, or with one that is resumed.
pub(super) fn hello(is_exact: bool, resume: Option<Ticket>) -> Vec<u8> {
    let resume = resume.map(|(session, token)| Resume { session, token });
    let hello =
        Hello { version_min: VERSION_MIN, version_max: VERSION_MAX, client: "peer".to_owned(), resume };
    let header = Header { kind: Kind::Hello.number(), version: BODY_VERSION, ..Header::default() };
    let none = acknowledged(&[]);
    let exactly = Extension { tag: EXTENSION_ACKNOWLEDGED, bytes: &none };
    let extensions = if is_exact { std::slice::from_ref(&exactly) } else { &[] };
    let mut frame = Vec::new();
    encode_frame(header, extensions, &mut frame, |out| encode_body(&hello, out));
    frame
}

/// Returns the kinds that requests choose among by number: those that stored inputs know, and those of queues and jobs if a
/// run has them.
pub(super) fn kinds(jobs: bool) -> &'static [Kind] {
    let of_jobs = Kind::ALL.iter().position(|&kind| kind == Kind::SetQueue);
    if jobs { Kind::ALL } else { &Kind::ALL[..of_jobs.expect("it is a kind")] }
}

fn acknowledged(sequences: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode_body(&Acknowledged { sequences: sequences.to_vec() }, &mut bytes);
    bytes
}

/// Returns the frame of a new request, whose body is drawn.
pub(super) fn request(peer: &mut Peer, choices: &mut Choices<'_>, known: &Known, kinds: &[Kind]) -> Vec<u8> {
    let kinds = match () {
        () if choices.one_in(3) => kinds,
        () if known.has_jobs && choices.one_in(2) => &OFTEN_WITH_JOBS,
        () => &OFTEN,
    };
    let kind = *choices.pick(kinds);
    peer.next = peer.next.max(1);
    // A client counts from one. Now and then it is wrong.
    let sequence = if choices.one_in(16) { choices.below(peer.next + 3) } else { peer.next };
    peer.next += u64::from(sequence == peer.next);
    let mark = if choices.one_in(16) { choices.below(peer.next + 2) } else { peer.mark().min(sequence) };
    let version = if choices.one_in(64) { BODY_VERSION + 1 } else { BODY_VERSION };
    let header = Header {
        kind: if choices.one_in(64) { choices.below(300) as u16 } else { kind.number() },
        version,
        sequence,
        lowest_unacknowledged: mark,
        ..Header::default()
    };
    let known = Known { next: peer.next, ..known.clone() };
    let frame = kind.visit(Encode { choices, known: &known, header, is_exact: peer.is_exact });
    peer.last.clone_from(&frame);
    frame
}

/// Returns a frame with any header and any payload. The length field is right.
pub(super) fn any_frame(choices: &mut Choices<'_>) -> Vec<u8> {
    let header = Header {
        kind: choices.below(48) as u16,
        // Few are marked as replies, because this ends the connection.
        flags: if choices.below(256) == 255 { FLAG_REPLY } else { 0 },
        version: choices.below(3) as u8,
        sequence: choices.below(256),
        // What a high mark passes is not answered any more.
        lowest_unacknowledged: if choices.one_in(32) { choices.below(256) } else { choices.below(3) },
    };
    let payload = any_bytes(choices);
    let mut frame = Vec::new();
    encode_frame(header, &[], &mut frame, |out| out.extend_from_slice(&payload));
    frame
}

/// Returns a few bytes of any kind.
pub(super) fn any_bytes(choices: &mut Choices<'_>) -> Vec<u8> {
    (0..choices.below(48)).map(|_| choices.below(256) as u8).collect()
}

/// Encodes a request whose body is drawn.
struct Encode<'c, 'a> {
    choices: &'c mut Choices<'a>,
    known: &'c Known,
    header: Header,
    is_exact: bool,
}

impl MessageVisitor for Encode<'_, '_> {
    type Output = Vec<u8>;

    fn visit<M: Message>(self) -> Vec<u8> {
        let Self { choices, known, header, is_exact } = self;
        let body: Option<M::Request> = draw(choices, known);
        let waits: Vec<u64> = if is_exact { (1..known.next).rev().take(4).collect() } else { Vec::new() };
        let bytes = acknowledged(&waits);
        let tag = if choices.one_in(64) { 0x8000 | EXTENSION_ACKNOWLEDGED } else { EXTENSION_ACKNOWLEDGED };
        let extension = Extension { tag, bytes: &bytes };
        let extensions = if is_exact { std::slice::from_ref(&extension) } else { &[] };
        let mut frame = Vec::new();
        let encode = |out: &mut Vec<u8>| {
            if let Some(body) = &body {
                encode_body(body, out);
            }
        };
        encode_frame(header, extensions, &mut frame, encode);
        frame
    }
}
