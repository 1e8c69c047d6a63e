//! Reads the books of a service over the wire, independently of the load.

use wharf_core::ids::AllocationId;
use wharf_net::client::Client;
use wharf_net::protocol::{
    GROUP_PLACED, GroupStatusRequest, ListGroupsRequest, ListRequest, NodeBooksRequest, StatusRequest,
    WireGroup,
};

use super::oracle::{Bundle, GroupKey, group_key};
use crate::harness::within;

/// A node as the service lists it, with the books of its memory.
#[derive(Clone, Debug)]
pub struct SeenNode {
    pub id: u64,
    pub name: String,
    pub state: u8,
    pub allocations: u32,
    pub memory: i64,
}

/// A group as the service shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenGroup {
    pub key: GroupKey,
    /// All of its bundles are placed.
    pub is_whole: bool,
    pub bundles: Vec<Bundle>,
}

/// The books of a service.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub nodes: Vec<SeenNode>,
    pub groups: Vec<SeenGroup>,
}

/// Reads everything. The service checks its invariants too. A start may place bundles again, so the books are read until
/// nothing changes meanwhile.
pub async fn read(client: &Client) -> Seen {
    let seen = loop {
        let before = groups(client).await;
        let nodes = nodes(client).await;
        if let Some(nodes) = nodes
            && before == groups(client).await
        {
            break Seen { nodes, groups: before };
        }
    };
    let status =
        within(client.status(&StatusRequest { audit: true })).await.expect("the service checks its books");
    assert!(status.books_hash.is_some(), "nothing changed during the check");
    let allocations: u64 = status.shards.iter().map(|shard| shard.allocations).sum();
    let listed: u64 = seen.nodes.iter().map(|node| u64::from(node.allocations)).sum();
    assert_eq!(allocations, listed, "allocations of all shards and of all nodes");
    seen
}

/// Returns nothing if the books of a node changed after the list.
async fn nodes(client: &Client) -> Option<Vec<SeenNode>> {
    let mut nodes = Vec::new();
    let mut request = ListRequest { after: 0, limit: 100 };
    loop {
        let page = within(client.list_nodes(&request)).await.expect("the service lists its nodes");
        for node in page.nodes {
            request.after = node.ordinal;
            let books = NodeBooksRequest { node: node.body.name.clone() };
            let books = within(client.node_books(&books)).await.expect("the service has its books");
            assert_eq!(books.node, node.id, "{books:?}");
            if books.allocations != node.allocations {
                return None;
            }
            let memory = books.resources.iter().find(|book| book.name == "memory").expect("it has memory");
            let in_use = memory.allocated + memory.held + memory.releasing;
            assert_eq!(memory.total, memory.available + in_use, "{memory:?}");
            assert_eq!(memory.held, 0, "nothing is undecided after a start: {memory:?}");
            nodes.push(SeenNode {
                id: node.id,
                name: node.body.name,
                state: node.state,
                allocations: node.allocations,
                memory: in_use,
            });
        }
        if !page.more {
            return Some(nodes);
        }
    }
}

async fn groups(client: &Client) -> Vec<SeenGroup> {
    let mut groups = Vec::new();
    let mut after: Option<WireGroup> = None;
    loop {
        let page = within(client.list_groups(&ListGroupsRequest { after, limit: 0 })).await;
        let page = page.expect("the service lists its groups");
        for summary in page.groups {
            after = Some(summary.id);
            groups.push(group(client, summary.id).await);
        }
        if !page.more {
            return groups;
        }
    }
}

async fn group(client: &Client, id: WireGroup) -> SeenGroup {
    let shown = within(client.group_status(id)).await.expect("the service shows its group");
    let body = shown.group.unwrap_or_else(|| panic!("{:?} is listed", GroupStatusRequest { group: id }));
    let placed = body.bundles.iter().filter_map(|bundle| {
        let placed = bundle.placed.as_ref()?;
        Some((AllocationId::from(placed.allocation), placed.node, bundle.memory))
    });
    let bundles: Vec<Bundle> = placed.collect();
    let is_whole = body.state == GROUP_PLACED && bundles.len() == body.bundles.len();
    SeenGroup { key: group_key(id), is_whole, bundles }
}
