//! The clients of a store that is built: they speak to the service's own connections, without a network.
//!
//! A journal has what clients leave there: the origins of effects, marks up to which outcomes are acknowledged, and the
//! replies that effects do not tell. So requests go through the same state machine as in the service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use wharf_core::ids::AllocationId;
use wharf_core::router::Port;
use wharf_core::time::Time;
use wharf_net::access::Peer;
use wharf_net::codec::{FLAG_ERROR, FrameRef, Header, decode_body, decode_frame, encode_body, encode_frame};
use wharf_net::protocol::{
    BODY_VERSION, FRAME_BYTES_MAX, Hello, Kind, PlaceReply, PlaceRequest, ReleaseReply, ReleaseRequest,
    SessionToken, UNACKNOWLEDGED_MAX, VERSION_MAX, VERSION_MIN,
};
use wharf_net::session::connections::{ConnectionKey, ConnectionService, Unobserved};
use wharf_net::session::shared::{Hangup, MakeToken, SessionShared};

/// A request of a client.
pub(super) enum Ask {
    Place(Box<PlaceRequest>),
    Release(AllocationId),
}

/// The reply to a request.
pub(super) enum Told {
    Placed(AllocationId),
    Released,
    Refused,
}

/// A client: its session and its connection.
struct Client {
    key: ConnectionKey,
    /// The sequence of its next request.
    next: u64,
    /// It has acknowledged all sequences below this one.
    mark: u64,
    /// Frames that are not sent yet.
    frames: Vec<u8>,
}

/// No connection is closed here.
pub(crate) struct NoHangup;

impl Hangup for NoHangup {
    fn hang_up(&self, _code: u32, _reason: &'static [u8]) {}
}

/// All clients, and the connections of one I/O thread.
pub(super) struct Clients {
    connections: ConnectionService,
    clients: Vec<Client>,
    /// The client that has the next turn.
    turn: usize,
    /// The outcomes that each client leaves unacknowledged.
    unacknowledged: u64,
    unanswered: usize,
    told: Vec<Told>,
}

impl Clients {
    /// Opens `count` sessions. Together they leave `unacknowledged` outcomes without an acknowledgement.
    ///
    /// # Errors
    /// When a session cannot have so many outcomes.
    pub(super) fn open(
        port: Port,
        shared: SessionShared,
        count: u32,
        unacknowledged: u64,
    ) -> anyhow::Result<Self> {
        let unacknowledged = unacknowledged.div_ceil(u64::from(count.max(1)));
        ensure!(
            unacknowledged <= u64::from(UNACKNOWLEDGED_MAX) / 2,
            "a session cannot have {unacknowledged} outcomes without an acknowledgement: give more sessions"
        );
        let waker = Waker::noop().clone();
        let mut connections = ConnectionService::new(port, Arc::new(shared), Box::new(Unobserved), waker);
        let clients: Vec<Client> =
            (0..count).map(|_| Client::new(connections.open(Arc::new(NoHangup), Peer::default()))).collect();
        let unanswered = clients.len();
        Ok(Self { connections, clients, turn: 0, unacknowledged, unanswered, told: Vec::new() })
    }

    /// Returns whether replies are on their way.
    pub(super) fn are_waiting(&self) -> bool {
        self.unanswered > 0
    }

    /// Returns the number of outcomes that are not acknowledged.
    pub(super) fn outcomes(&self) -> u64 {
        self.clients.iter().map(|client| client.next - client.mark).sum()
    }

    /// Sends requests, each by the client whose turn it is. All requests before are answered.
    pub(super) fn send(&mut self, asks: impl IntoIterator<Item = Ask>, now: Time) {
        for client in &mut self.clients {
            client.mark = client.next.saturating_sub(self.unacknowledged).max(1);
        }
        for ask in asks {
            let turn = self.turn;
            self.turn = (turn + 1) % self.clients.len();
            let client = &mut self.clients[turn];
            let sequence = client.next;
            client.next += 1;
            self.unanswered += 1;
            match ask {
                Ask::Place(request) => client.add(Kind::Place, sequence, &*request),
                Ask::Release(allocation) => {
                    client.add(Kind::Release, sequence, &ReleaseRequest { allocation: allocation.into() });
                }
            }
        }
        for client in &mut self.clients {
            if !client.frames.is_empty() {
                self.connections.receive(client.key, &client.frames, now);
                client.frames.clear();
            }
        }
    }

    /// Lets the connections work, and takes the replies that leave.
    ///
    /// # Errors
    /// When a reply is none that the request may have.
    pub(super) fn poll(&mut self, now: Time) -> anyhow::Result<()> {
        self.connections.poll(now);
        while let Some(key) = self.connections.take_touched() {
            if !self.connections.has_output(key) {
                continue;
            }
            let output = self.connections.take_output(key);
            self.connections.written(key, output.replies, output.bytes.len(), false, now);
            let mut rest = &output.bytes[..];
            while let Some(frame) = decode_frame(rest, FRAME_BYTES_MAX)? {
                rest = &rest[frame.bytes..];
                self.handle_reply(&frame)?;
            }
        }
        Ok(())
    }

    /// Takes the replies so far.
    pub(super) fn take_told(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.told)
    }

    fn handle_reply(&mut self, frame: &FrameRef<'_>) -> anyhow::Result<()> {
        let Header { kind, flags, sequence, .. } = frame.header;
        ensure!(flags & FLAG_ERROR == 0, "request {sequence} of kind {kind} was answered by a fault");
        self.unanswered = self.unanswered.checked_sub(1).context("a reply without its request")?;
        match Kind::from_number(kind) {
            Some(Kind::Hello) => {}
            Some(Kind::Place) => {
                let (reply, _) = decode_body::<PlaceReply>(frame.payload)?;
                let placed = reply.placed.map(|placed| Told::Placed(placed.allocation.into()));
                self.told.push(placed.unwrap_or(Told::Refused));
            }
            Some(Kind::Release) => {
                let (reply, _) = decode_body::<ReleaseReply>(frame.payload)?;
                self.told.push(if reply.reason.is_done() { Told::Released } else { Told::Refused });
            }
            _ => bail!("a reply of kind {kind}"),
        }
        Ok(())
    }
}

impl Client {
    /// Creates a client that says hello.
    fn new(key: ConnectionKey) -> Self {
        let mut client = Self { key, next: 1, mark: 1, frames: Vec::new() };
        let hello = Hello {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            client: "wharf-bench recovery".to_owned(),
            resume: None,
        };
        client.add(Kind::Hello, 0, &hello);
        client
    }

    fn add(&mut self, kind: Kind, sequence: u64, body: &impl Serialize) {
        let lowest_unacknowledged = if kind == Kind::Hello { 0 } else { self.mark };
        let header =
            Header { kind: kind.number(), flags: 0, version: BODY_VERSION, sequence, lowest_unacknowledged };
        encode_frame(header, &[], &mut self.frames, |out| encode_body(body, out));
    }
}

/// Makes tokens that are the same in every run.
pub(crate) fn counted_tokens() -> MakeToken {
    let last = AtomicU64::new(0);
    Box::new(move || {
        let mut token = SessionToken::default();
        // Relaxed: a number that nobody else gets; nothing depends on its order.
        token[..8].copy_from_slice(&last.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        token
    })
}
