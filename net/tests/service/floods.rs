//! Floods: three connections, each with the maximum number of requests in flight, of every kind. Meanwhile
//! another client's placements continue correctly. Each request of a flood gets one correct reply, and the
//! books hold afterwards.

use std::cell::Cell;

use crate::harness::{
    self, Gate, Peer, TestServer, add, ask, audit, frame, granted, header, named, node, pair, place,
    standing, within,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use wharf_core::limits::PORT_IN_FLIGHT_MAX;
use wharf_net::client::Client;
use wharf_net::codec::Header;
use wharf_net::limits::WAITING_GROUPS_MAX;
use wharf_net::protocol::{
    AdoptRequest, BundleTemplate, CancelReply, CancelRequest, CreateGroupRequest, DemandBody, DrainRequest,
    EndReservationRequest, FollowReply, FollowRequest, GroupReply, GroupStatusRequest, GrowGroupRequest,
    HeartbeatReply, HeartbeatRequest, IN_FLIGHT_DEFAULT, Kind, ListGroupsReply, ListGroupsRequest, ListReply,
    ListRequest, MODE_WAIT_UNTIL, Name, NodeBody, NodeBooksReply, NodeBooksRequest, NodesReply, NodesRequest,
    OPERATION_EVICT, OPERATOR_EXISTS, OperationBody, PlaceBatch, PlaceBatchReply, PlaceIntoRequest,
    PlaceReply, PlaceRequest, Reason, ReasonCode, ReleaseBatch, ReleaseBatchReply, ReleaseReply,
    ReleaseRequest, RemoveGroupReply, RemoveGroupRequest, RemoveRequest, ReportReply, ReportRequest,
    ReserveReply, ReserveRequest, SelectorTerm, SetResourcesRequest, ShrinkGroupRequest, StatementReply,
    StatementRequest, StatusReply, StatusRequest, WireAllocation, WireGroup,
};
use wharf_net::server::Settings;

/// Requests of one flood: the maximum that a connection may have in flight.
const IN_FLIGHT: u64 = IN_FLIGHT_DEFAULT as u64;
/// The number of connections that flood at the same time.
const CONNECTIONS: usize = 3;
/// The node that floods change.
const CHANGED: &str = "n7";

/// A flood of one kind of request.
struct Flood {
    /// Builds the frame of a request.
    ask: Box<dyn Fn(Header) -> Vec<u8>>,
    /// Returns whether a reply is correct.
    is_right: Box<dyn Fn(&harness::Frame) -> bool>,
}

/// Creates a flood of one kind of request. `body` builds a request from its sequence, and `is_right` checks a
/// reply.
fn flood<Q: Serialize, R: DeserializeOwned>(
    kind: Kind,
    body: impl Fn(u64) -> Q + 'static,
    is_right: impl Fn(R) -> bool + 'static,
) -> Flood {
    Flood {
        ask: Box::new(move |header| {
            let body = body(header.sequence);
            frame(Header { kind: kind.number(), ..header }, &body)
        }),
        is_right: Box::new(move |reply| is_right(reply.body())),
    }
}

/// Creates a flood of waiting requests, each followed by its cancellation.
fn taken_back<Q: Serialize + 'static, R: DeserializeOwned>(
    kind: Kind,
    body: Q,
    is_right: impl Fn(R) -> bool + 'static,
) -> Flood {
    Flood {
        ask: Box::new(move |header| match header.sequence % 2 {
            1 => frame(Header { kind: kind.number(), ..header }, &body),
            _ => {
                let kind = Kind::CancelWait.number();
                frame(Header { kind, ..header }, &CancelRequest { sequence: header.sequence - 1 })
            }
        }),
        is_right: Box::new(move |reply| match reply.header.sequence % 2 {
            1 => is_right(reply.body()),
            _ => {
                reply.body::<CancelReply>();
                true
            }
        }),
    }
}

fn is(code: ReasonCode, reason: Reason) -> bool {
    code.known() == Some(reason)
}

/// Checks the reply about one node.
fn of_node(reason: Reason) -> impl Fn(NodesReply) -> bool {
    move |reply| reply.replies.len() == 1 && is(reply.replies[0].reason, reason)
}

/// The state that floods ask about.
struct Known {
    shards: u16,
    group: WireGroup,
    agent: ReportRequest,
    agent_node: u64,
}

/// Asks for the whole of the one full node.
fn on_full_node() -> PlaceRequest {
    let selectors =
        vec![SelectorTerm { key: "full".to_owned(), operator: OPERATOR_EXISTS, values: Vec::new() }];
    PlaceRequest { selectors, ..ask(4, 4, 0) }
}

fn unknown_allocation(sequence: u64) -> WireAllocation {
    WireAllocation { incarnation: 1, partition: 3, sequence: 1_000_000 + sequence, tenant: 0 }
}

/// Requests that every shard answers.
fn questions_to_every_shard(known: &Known) -> [Flood; CONNECTIONS] {
    let shards = usize::from(known.shards);
    [
        flood(
            Kind::ListNodes,
            |_| ListRequest { after: 0, limit: 4 },
            |page: ListReply| page.nodes.len() == 4,
        ),
        flood(
            Kind::Status,
            |_| StatusRequest { audit: false },
            move |s: StatusReply| s.shards.len() == shards,
        ),
        flood(
            Kind::Status,
            |sequence| StatusRequest { audit: sequence.is_multiple_of(16) },
            move |status: StatusReply| status.shards.len() == shards,
        ),
    ]
}

/// All other requests that the registrar answers.
fn node_questions(known: &Known) -> Vec<Flood> {
    let report = known.agent.clone();
    let node_id = known.agent_node;
    let named_node = |name: &str| NodesRequest { nodes: vec![node(name, 1000, 1000, 0)] };
    let reserved = |reply: ReserveReply| reply.reason.is_done() == reply.fault.is_none();
    let names = |name: &str| vec![Name(name.to_owned())];
    let owner = 1;
    vec![
        flood(
            Kind::NodeBooks,
            |_| NodeBooksRequest { node: CHANGED.to_owned() },
            |books: NodeBooksReply| !books.resources.is_empty(),
        ),
        flood(Kind::AddNodes, move |_| named_node("n0"), of_node(Reason::NodeExists)),
        flood(Kind::UpdateNodes, move |_| named_node(CHANGED), of_node(Reason::Done)),
        flood(
            Kind::DrainNodes,
            move |sequence| DrainRequest { names: names(CHANGED), undo: sequence.is_multiple_of(2) },
            of_node(Reason::Done),
        ),
        flood(
            Kind::RemoveNodes,
            move |_| RemoveRequest { names: names("nowhere"), force: true },
            of_node(Reason::UnknownNode),
        ),
        flood(
            Kind::SetResources,
            |_| SetResourcesRequest { node: CHANGED.to_owned(), resources: vec![named("cpu", 1000)] },
            of_node(Reason::Done),
        ),
        flood(Kind::Report, move |_| report.clone(), |reply: ReportReply| reply.reason.is_done()),
        flood(
            Kind::Heartbeat,
            move |_| HeartbeatRequest { node: node_id, version: 1 },
            |reply: HeartbeatReply| reply.reason.is_done() && !reply.report_again,
        ),
        flood(
            Kind::Adopt,
            |_| AdoptRequest {
                node: "nowhere".to_owned(),
                demand: DemandBody { cpu: 1, ..DemandBody::default() },
                ..AdoptRequest::default()
            },
            |reply: PlaceReply| is(reply.reason, Reason::UnknownNode),
        ),
        flood(
            Kind::Reserve,
            move |_| ReserveRequest {
                node: CHANGED.to_owned(),
                owner,
                demand: DemandBody { cpu: 10_000, ..DemandBody::default() },
                ..ReserveRequest::default()
            },
            reserved,
        ),
        flood(
            Kind::EndReservation,
            move |_| EndReservationRequest { node: CHANGED.to_owned(), owner },
            reserved,
        ),
        flood(
            Kind::Follow,
            |_| FollowRequest { kinds: 1, limit: 8, ..FollowRequest::default() },
            |reply: FollowReply| reply.shards > 0,
        ),
    ]
}

/// Placements that do not fit, and cancellations of those that wait.
fn placements() -> Vec<Flood> {
    let hopeless = || ask(1_000_000, 1, 0);
    vec![
        flood(
            Kind::Place,
            move |_| hopeless(),
            |reply: PlaceReply| is(reply.reason, Reason::Infeasible) && reply.placed.is_none(),
        ),
        taken_back(Kind::Place, PlaceRequest { mode: MODE_WAIT_UNTIL, ..hopeless() }, |reply: PlaceReply| {
            is(reply.reason, Reason::Cancelled)
        }),
        flood(
            Kind::Release,
            |sequence| ReleaseRequest { allocation: unknown_allocation(sequence) },
            |reply: ReleaseReply| is(reply.reason, Reason::UnknownAllocation),
        ),
    ]
}

/// All requests that planners answer.
fn plans(known: &Known) -> Vec<Flood> {
    let unknown = WireGroup { incarnation: 1, number: 1 << 40, tenant: 0 };
    let group = known.group;
    let bundles = |cpu| vec![BundleTemplate { request: ask(cpu, 0, 0), count: 2 }];
    let is_unknown = |reply: GroupReply| is(reply.reason, Reason::UnknownGroup);
    vec![
        flood(
            Kind::CreateGroup,
            move |_| CreateGroupRequest { bundles: bundles(1_000_000), ..CreateGroupRequest::default() },
            |reply: GroupReply| is(reply.reason, Reason::Infeasible),
        ),
        // More groups than may wait at once, unless they are cancelled in time.
        taken_back(
            Kind::CreateGroup,
            CreateGroupRequest {
                bundles: vec![BundleTemplate { request: on_full_node(), count: 1 }],
                mode: MODE_WAIT_UNTIL,
                ..CreateGroupRequest::default()
            },
            |reply: GroupReply| {
                is(reply.reason, Reason::Cancelled) || is(reply.reason, Reason::LimitExceeded)
            },
        ),
        flood(
            Kind::GrowGroup,
            move |_| GrowGroupRequest { group: unknown, bundles: bundles(1), ..Default::default() },
            is_unknown,
        ),
        flood(
            Kind::ShrinkGroup,
            move |_| ShrinkGroupRequest { group: unknown, bundles: vec![0] },
            is_unknown,
        ),
        flood(
            Kind::RemoveGroup,
            move |_| RemoveGroupRequest { group: unknown },
            |reply: RemoveGroupReply| is(reply.reason, Reason::UnknownGroup),
        ),
        flood(
            Kind::GroupStatus,
            move |_| GroupStatusRequest { group },
            |reply: GroupReply| reply.reason.is_done(),
        ),
        flood(
            Kind::ListGroups,
            |_| ListGroupsRequest { after: None, limit: 1 },
            |page: ListGroupsReply| page.groups.len() == 1,
        ),
        flood(
            Kind::PlaceInto,
            |sequence| PlaceIntoRequest {
                allocation: Some(unknown_allocation(sequence)),
                demand: DemandBody { cpu: 1, ..DemandBody::default() },
                ..PlaceIntoRequest::default()
            },
            |reply: PlaceReply| reply.fault.is_some(),
        ),
        flood(
            Kind::SubmitStatement,
            |sequence| {
                let evict = OperationBody {
                    operation: OPERATION_EVICT,
                    allocation: Some(unknown_allocation(sequence)),
                    ..OperationBody::default()
                };
                StatementRequest { operations: vec![evict], ..StatementRequest::default() }
            },
            |reply: StatementReply| !reply.reason.is_done(),
        ),
    ]
}

/// A connection that floods.
struct Flooder {
    peer: Peer,
    /// The sequence of its next request. It is odd at the beginning of each flood.
    next: u64,
}

impl Flooder {
    async fn open(server: &TestServer) -> Self {
        let (peer, hello) = Peer::open(server).await;
        assert_eq!(u64::from(hello.limits.in_flight_max), IN_FLIGHT);
        Self { peer, next: 1 }
    }

    /// Sends the maximum number of requests before it reads a reply. Returns the replies in order of request.
    async fn flood(&mut self, flood: &Flood) -> Vec<harness::Frame> {
        let first = self.next;
        self.next += IN_FLIGHT;
        let mut bytes = Vec::new();
        for sequence in first..self.next {
            bytes.extend((flood.ask)(Header {
                lowest_unacknowledged: first,
                ..header(Kind::Place, sequence)
            }));
        }
        self.peer.send(&bytes).await;
        let mut replies = Vec::new();
        for _ in first..self.next {
            replies.push(self.peer.frame().await);
        }
        replies.sort_unstable_by_key(|reply| reply.header.sequence);
        assert!(replies.iter().map(|reply| reply.header.sequence).eq(first..self.next), "each answered once");
        for reply in &replies {
            assert!((flood.is_right)(reply), "kind {}: {:?}", reply.header.kind, reply.payload);
        }
        replies
    }
}

/// Runs floods at the same time, one per connection, while `client` places and releases.
async fn flood_together(flooders: &mut [Flooder], client: &Client, floods: &[Flood]) {
    let flooding = Cell::new(true);
    let all = async {
        let mut flooders = flooders.iter_mut();
        let mut next = |flood| {
            let flooder = flooders.next().expect("a connection per flood");
            async move { drop(flooder.flood(flood).await) }
        };
        match floods {
            [a, b, c] => drop(tokio::join!(next(a), next(b), next(c))),
            [a, b] => drop(tokio::join!(next(a), next(b))),
            [a] => next(a).await,
            _ => unreachable!("no more than there are connections"),
        }
        flooding.set(false);
    };
    let meanwhile = async {
        while flooding.get() {
            let allocation = place(client, &ask(1, 1, 0)).await.allocation;
            let released = within(client.release(allocation)).await.expect("answered");
            assert!(released.reason.is_done(), "{released:?}");
        }
    };
    tokio::join!(all, meanwhile);
}

/// Floods with placements that are granted and with their releases, then with batches of both.
async fn flood_grants(flooder: &mut Flooder) {
    let granting = flood(Kind::Place, |_| ask(1, 1, 0), |reply: PlaceReply| reply.reason.is_done());
    let replies = flooder.flood(&granting).await;
    let mut allocations: Vec<_> = replies.iter().map(|reply| granted(reply.body()).allocation).collect();
    allocations.sort_unstable_by_key(|id| (id.partition, id.sequence));
    allocations.dedup();
    assert_eq!(allocations.len() as u64, IN_FLIGHT);
    let first = flooder.next;
    let releasing = flood(
        Kind::Release,
        move |sequence| ReleaseRequest { allocation: allocations[(sequence - first) as usize] },
        |reply: ReleaseReply| reply.reason.is_done(),
    );
    flooder.flood(&releasing).await;
    let granting = flood(
        Kind::PlaceBatch,
        |_| PlaceBatch { requests: vec![ask(1, 1, 0); 2] },
        |reply: PlaceBatchReply| reply.replies.iter().all(|reply| reply.reason.is_done()),
    );
    let replies = flooder.flood(&granting).await;
    let batch = |reply: PlaceBatchReply| {
        let requests = reply.replies.into_iter();
        let requests = requests.map(|reply| ReleaseRequest { allocation: granted(reply).allocation });
        ReleaseBatch { requests: requests.collect() }
    };
    let batches: Vec<_> = replies.iter().map(|reply| batch(reply.body())).collect();
    let first = flooder.next;
    let releasing = flood(
        Kind::ReleaseBatch,
        move |sequence| batches[(sequence - first) as usize].clone(),
        |reply: ReleaseBatchReply| reply.replies.iter().all(|reply| reply.reason.is_done()),
    );
    flooder.flood(&releasing).await;
}

async fn served(shards: u16) -> (TestServer, Client, Known) {
    let server = TestServer::start_planning(shards, 1);
    let client = server.client().await;
    add(&client, (0..8).map(|i| node(&format!("n{i}"), 1000, 1000, 0)).collect()).await;
    add(&client, vec![NodeBody { labels: vec![pair("full", "")], ..node("full", 4, 4, 0) }]).await;
    place(&client, &on_full_node()).await;
    let agent = ReportRequest {
        node: NodeBody { identity: "m".to_owned(), ..node("agent", 1, 1, 0) },
        boot: "1".to_owned(),
        version: 1,
        gpus: Vec::new(),
    };
    let reported = within(client.report(&agent)).await.expect("answered");
    assert!(reported.reason.is_done(), "{reported:?}");
    let beat = HeartbeatRequest { node: reported.node, version: 1 };
    within(client.heartbeat(&beat)).await.expect("answered");
    let bundle = BundleTemplate { request: ask(1, 1, 0), count: 1 };
    let group = CreateGroupRequest { bundles: vec![bundle], ..CreateGroupRequest::default() };
    let group = within(client.create_group(&group)).await.expect("answered").group.expect("it fits").id;
    let known = Known { shards, group, agent, agent_node: reported.node };
    (server, client, known)
}

async fn flood_with_everything(shards: u16) {
    let (server, client, known) = served(shards).await;
    let before = standing(&client).await;
    let mut flooders = Vec::new();
    for _ in 0..CONNECTIONS {
        flooders.push(Flooder::open(&server).await);
    }
    flood_together(&mut flooders, &client, &questions_to_every_shard(&known)).await;
    for floods in [node_questions(&known), placements(), plans(&known)] {
        for floods in floods.chunks(CONNECTIONS) {
            flood_together(&mut flooders, &client, floods).await;
        }
    }
    let [a, b, c] = &mut flooders[..] else { unreachable!("as many as connections") };
    tokio::join!(flood_grants(a), flood_grants(b), flood_grants(c));
    let end = EndReservationRequest { node: CHANGED.to_owned(), owner: 1 };
    within(client.end_reservation(&end)).await.expect("answered");
    assert_eq!(standing(&client).await, before);
    let allocations: u64 = audit(&client).await.shards.iter().map(|shard| shard.allocations).sum();
    assert_eq!(allocations, 2, "that of the full node and the bundle");
    for flooder in flooders {
        flooder.peer.leave().await;
    }
    within(client.close()).await;
    server.stop().await;
}

#[tokio::test]
async fn one_shard_is_flooded() {
    flood_with_everything(1).await;
}

#[tokio::test]
async fn four_shards_are_flooded() {
    flood_with_everything(4).await;
}

#[tokio::test]
async fn eight_shards_are_flooded() {
    flood_with_everything(8).await;
}

#[tokio::test]
async fn sixty_four_shards_are_flooded() {
    flood_with_everything(64).await;
}

/// A connection whose waiting groups are cancelled, and the replies that it received.
struct Taker {
    peer: Peer,
    next: u64,
    /// The lowest unacknowledged sequence.
    lowest: u64,
    /// The number of answered cancellations.
    cancels: u64,
    /// The reasons of the answered groups.
    groups: Vec<ReasonCode>,
    /// The number of answered lookups.
    looks: u64,
}

impl Taker {
    async fn send<Q: Serialize>(&mut self, kind: Kind, body: &Q) -> u64 {
        let sequence = self.next;
        self.next += 1;
        let header = Header { lowest_unacknowledged: self.lowest, ..header(kind, sequence) };
        self.peer.send(&frame(header, body)).await;
        sequence
    }

    /// Asks for a group that does not exist.
    async fn look(&mut self) {
        let group = WireGroup { incarnation: 1, number: 1 << 40, tenant: 0 };
        // Its reply is short, so that thousands may be in progress.
        self.send(Kind::RemoveGroup, &RemoveGroupRequest { group }).await;
    }

    /// Creates groups that wait until `deadline`.
    async fn begin(&mut self, deadline: u64) -> Vec<u64> {
        let bundles = vec![BundleTemplate { request: ask(4, 0, 0), count: 1 }];
        let mode = MODE_WAIT_UNTIL;
        let group = CreateGroupRequest { bundles, mode, deadline, ..CreateGroupRequest::default() };
        let mut sequences = Vec::new();
        for _ in 0..WAITING_GROUPS_MAX {
            sequences.push(self.send(Kind::CreateGroup, &group).await);
        }
        sequences
    }

    async fn take_back(&mut self, groups: &[u64]) {
        for &sequence in groups {
            self.send(Kind::CancelWait, &CancelRequest { sequence }).await;
        }
    }

    /// Waits until the server has taken everything that was sent. It takes requests in order.
    async fn settle(&mut self) {
        let sequence = self.send(Kind::Status, &StatusRequest::default()).await;
        while self.receive().await != sequence {}
    }

    /// Reads until this many replies of each type have arrived.
    async fn read(&mut self, cancels: u64, groups: usize, looks: u64) {
        while self.cancels < cancels || self.groups.len() < groups || self.looks < looks {
            self.receive().await;
        }
    }

    /// Takes the next reply. Returns its sequence.
    async fn receive(&mut self) -> u64 {
        let reply = self.peer.frame().await;
        match Kind::from_number(reply.header.kind) {
            Some(Kind::CancelWait) => {
                assert!(reply.body::<CancelReply>().waited);
                self.cancels += 1;
            }
            Some(Kind::CreateGroup) => self.groups.push(reply.body::<GroupReply>().reason),
            Some(Kind::Status) => drop(reply.body::<StatusReply>()),
            _ => {
                assert!(is(reply.body::<RemoveGroupReply>().reason, Reason::UnknownGroup));
                self.looks += 1;
            }
        }
        reply.header.sequence
    }
}

/// Groups end at their deadline before the planner has handled their cancellations. Then the maximum number
/// of requests follows. The ring to the planner has room for all of them.
#[tokio::test]
async fn groups_that_end_while_they_are_taken_back_leave_room_for_others() {
    const GROUPS: usize = WAITING_GROUPS_MAX as usize;
    const LOOKS: u64 = 1000;
    const HOUR: u64 = 3_600_000_000_000;
    let settings = Settings {
        waiting_groups_max: WAITING_GROUPS_MAX,
        in_flight_max: PORT_IN_FLIGHT_MAX as u32,
        ..Settings::default()
    };
    let gate = Gate::open();
    let server = TestServer::start_gated(1, settings, &gate);
    let client = server.client().await;
    add(&client, vec![node("n", 4, 4, 0)]).await;
    let held = place(&client, &ask(4, 4, 0)).await;
    let peer = Peer::open(&server).await.0;
    let mut taker = Taker { peer, next: 1, lowest: 1, cancels: 0, groups: Vec::new(), looks: 0 };
    let groups = taker.begin(audit(&client).await.now + HOUR).await;
    // The planner takes jobs in order: after this answer, it has the groups.
    taker.look().await;
    taker.read(0, 0, 1).await;
    gate.set(0);
    taker.take_back(&groups).await;
    taker.settle().await;
    server.pass(HOUR);
    // In one round, the planner takes the cancellations and answers all groups.
    gate.set(1);
    taker.read(GROUPS as u64, GROUPS, 1).await;
    taker.lowest = taker.next;
    for _ in 0..LOOKS {
        taker.look().await;
    }
    let groups = taker.begin(0).await;
    taker.take_back(&groups).await;
    taker.settle().await;
    gate.set(u64::MAX);
    taker.read(2 * GROUPS as u64, 2 * GROUPS, LOOKS + 1).await;
    assert!(taker.groups[GROUPS..].iter().all(|&reason| is(reason, Reason::Cancelled)));
    assert!(within(client.release(held.allocation)).await.expect("answered").reason.is_done());
    place(&client, &ask(4, 4, 0)).await;
    audit(&client).await;
    taker.peer.leave().await;
    within(client.close()).await;
    server.stop().await;
}
