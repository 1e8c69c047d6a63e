//! Waiting groups that are cancelled while their deadlines pass. Each is answered once, and the service keeps
//! running.

use std::sync::Arc;

use serde_json::json;
use wharf_net::client::{Client, Completions};
use wharf_net::protocol::{
    BundleTemplate, CancelRequest, CreateGroupRequest, DemandBody, GroupReply, GroupStatusRequest,
    MODE_WAIT_UNTIL, NodeBody, NodesRequest, PlaceRequest, Reason, StatusRequest, WireGroup, kinds,
};

use crate::harness::{Site, runtime, within};

/// The number of groups that each client has waiting: the default of `waiting_groups_max`.
const GROUPS: u64 = wharf_net::limits::WAITING_GROUPS_DEFAULT as u64;
/// The number of rounds in which some groups end by their deadline and others by their cancel.
const ROUNDS: usize = 6;
/// Rounds after which the deadlines should long have met the cancels.
const ROUNDS_MAX: usize = 60;
/// The time from the start of the first round to the first deadline, in ns.
const FIRST_LEAD_NS: u64 = 300_000_000;
/// The time between the deadlines of two groups of a client, in ns.
const DEADLINES_APART_NS: u64 = 200_000;

fn whole_node() -> PlaceRequest {
    let demand = DemandBody { cpu: 10_000, ..DemandBody::default() };
    PlaceRequest { demand, ..PlaceRequest::default() }
}

/// Creates waiting groups that cannot be placed, and cancels each. Returns how many ended by their deadline
/// and how many by their cancel.
async fn waits(client: &Client, lead_ns: u64) -> (usize, usize) {
    let now = within(client.status(&StatusRequest::default())).await.expect("answered").now;
    let mut asked = Vec::new();
    for at in 0..GROUPS {
        let request = CreateGroupRequest {
            bundles: vec![BundleTemplate { request: whole_node(), ..BundleTemplate::default() }],
            mode: MODE_WAIT_UNTIL,
            deadline: now + lead_ns + at * DEADLINES_APART_NS,
            ..CreateGroupRequest::default()
        };
        asked.push(within(client.call_waiting::<kinds::CreateGroup>(&request)).await.expect("sent"));
    }
    let (sequences, replies): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
    let cancels = async {
        // All cancels are in flight at once, together with as many other jobs as the client may have.
        let queue = Arc::new(Completions::default());
        for sequence in sequences {
            let request = CancelRequest { sequence };
            client.submit::<kinds::CancelWait>(&request, &queue, sequence).await.expect("sent");
        }
        let looks = u64::from(client.hello().limits.in_flight_max) - GROUPS;
        for look in 0..looks {
            let request = GroupStatusRequest { group: WireGroup::default() };
            client.submit::<kinds::GroupStatus>(&request, &queue, look).await.expect("sent");
        }
        let mut answered = 0;
        let mut taken = Vec::new();
        while answered < GROUPS + looks {
            within(queue.take(&mut taken)).await;
            answered += taken.drain(..).filter(|completion| completion.reply.is_ok()).count() as u64;
        }
    };
    let ends = async {
        let mut reasons = Vec::new();
        for reply in replies {
            let reply: GroupReply = within(reply).await.expect("answered");
            reasons.push(reply.reason);
        }
        reasons
    };
    let ((), reasons) = tokio::join!(cancels, ends);
    let count = |wanted: Reason| reasons.iter().filter(|reason| **reason == wanted.into()).count();
    let ended = (count(Reason::NoFitNow), count(Reason::Cancelled));
    assert_eq!(ended.0 + ended.1, reasons.len(), "{reasons:?}");
    ended
}

#[test]
fn groups_taken_back_at_their_deadlines_are_answered_once() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2", "--io-threads", "1"]);
    runtime().block_on(async {
        let clients =
            [service.client().await, service.client().await, service.client().await, service.client().await];
        let node = NodeBody { name: "n".to_owned(), cpu: 10_000, memory: 10_000, ..NodeBody::default() };
        let added = within(clients[0].add_nodes(&NodesRequest { nodes: vec![node] })).await;
        assert!(added.expect("answered").replies.iter().all(|reply| reply.reason.is_done()));
        let placed =
            within(clients[0].place(&whole_node())).await.expect("answered").placed.expect("it fits");
        // The duration of a round depends on the machine. The deadlines are adjusted until they pass among
        // the cancels.
        let mut mixed = 0;
        let mut rounds = 0;
        let mut lead_ns = FIRST_LEAD_NS;
        while mixed < ROUNDS {
            rounds += 1;
            assert!(rounds < ROUNDS_MAX, "{mixed} of {rounds} rounds had both ends");
            let [a, b, c, d] = &clients;
            let all =
                tokio::join!(waits(a, lead_ns), waits(b, lead_ns), waits(c, lead_ns), waits(d, lead_ns));
            let all = [all.0, all.1, all.2, all.3];
            let by_deadline: usize = all.iter().map(|ended| ended.0).sum();
            let by_cancel: usize = all.iter().map(|ended| ended.1).sum();
            mixed += usize::from(by_deadline > 0 && by_cancel > 0);
            lead_ns = if by_deadline > by_cancel { lead_ns * 5 / 4 } else { lead_ns * 9 / 10 };
        }
        within(clients[0].release(placed.allocation)).await.expect("answered");
    });
    let status = service.json(&["status", "--audit"]);
    assert_ne!(status["books_hash"], json!(null));
    assert_eq!(service.json(&["group", "list"]), json!([]));
    service.stop();
}
