//! Short functions that build messages.

use wharf_core::ids::{OwnerId, TenantId};
use wharf_core::resource::Amount;
use wharf_net::access::{Identity, Role, Roles, TenantLimits};
use wharf_net::client::Client;
use wharf_net::protocol::{
    DemandBody, NamedAmount, NodeBody, NodesReply, NodesRequest, Pair, PlaceReply, PlaceRequest, PlacedBody,
    Reason,
};

use super::within;

/// Returns a whole number in units of 1/10,000.
pub fn units(whole: i64) -> i64 {
    whole * Amount::SCALE
}

/// Builds a node with these cores, MiB and GPUs.
pub fn node(name: &str, cpu: i64, memory: i64, gpus: u32) -> NodeBody {
    NodeBody { name: name.to_owned(), cpu: units(cpu), memory: units(memory), gpus, ..NodeBody::default() }
}

pub fn named(name: &str, whole: i64) -> NamedAmount {
    NamedAmount { name: name.to_owned(), amount: units(whole) }
}

pub fn pair(key: &str, value: &str) -> Pair {
    Pair { key: key.to_owned(), value: value.to_owned() }
}

/// Builds a tenant without limits, which may reserve nodes for the owner of the same number.
pub fn tenant(number: u16) -> TenantLimits {
    TenantLimits {
        name: format!("tenant-{number}"),
        id: TenantId(number),
        requests_per_second: None,
        in_flight_max: None,
        owners: vec![OwnerId::new(u64::from(number)).expect("not 0")],
        queue: None,
    }
}

pub fn identity(name: &str, roles: &[Role], tenant: Option<u16>) -> Identity {
    let tenant = tenant.map(TenantId);
    Identity { name: name.to_owned(), roles: Roles::of(roles), tenant, nodes: None }
}

/// Builds a request for these cores, MiB and GPUs.
pub fn ask(cpu: i64, memory: i64, gpus: i64) -> PlaceRequest {
    PlaceRequest {
        demand: DemandBody {
            cpu: units(cpu),
            memory: units(memory),
            gpu: units(gpus),
            ..DemandBody::default()
        },
        ..PlaceRequest::default()
    }
}

/// Registers nodes, all of which must be accepted, and returns their ids.
pub async fn add(client: &Client, nodes: Vec<NodeBody>) -> Vec<u64> {
    let reply = within(client.add_nodes(&NodesRequest { nodes })).await.expect("answered");
    assert!(reply.replies.iter().all(|node| node.reason.is_done()), "{reply:?}");
    reply.replies.iter().map(|node| node.node).collect()
}

/// Places a request, which must be granted.
pub async fn place(client: &Client, request: &PlaceRequest) -> PlacedBody {
    granted(within(client.place(request)).await.expect("answered"))
}

/// Returns the placement of a granted reply.
#[track_caller]
pub fn granted(reply: PlaceReply) -> PlacedBody {
    assert!(reply.reason.is_done() && reply.refusal.is_none() && reply.fault.is_none(), "{reply:?}");
    reply.placed.expect("what is done says where")
}

/// Returns the reason and the field of the one reply.
#[track_caller]
pub fn only(reply: &NodesReply) -> (Reason, &str) {
    assert_eq!(reply.replies.len(), 1, "{reply:?}");
    let one = &reply.replies[0];
    let field = one.fault.as_ref().map_or("", |fault| {
        assert_eq!(fault.reason, one.reason);
        assert!(!fault.message.is_empty());
        &fault.field
    });
    (one.reason.known().expect("a reason of this version"), field)
}

/// Returns `request` with these custom resources.
pub fn with_custom(custom: Vec<NamedAmount>, mut request: PlaceRequest) -> PlaceRequest {
    request.demand.custom = custom;
    request
}
