//! Reads the books of a service over the wire, independently of the load.

use std::collections::BTreeSet;
use std::time::Instant;

use wharf_core::ids::AllocationId;
use wharf_net::client::Client;
use wharf_net::protocol::{
    GROUP_PLACED, GroupStatusRequest, ListGroupsRequest, ListRequest, NodeBooksRequest, StatusRequest,
    WireGroup,
};

use super::job_reader::{self, SeenJobs};
use super::load::WHOLE;
use super::oracle::{Bundle, GroupKey, group_key};
use crate::harness::{PATIENCE, within};

/// A node as the service lists it, with the books of its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub nodes: Vec<SeenNode>,
    pub groups: Vec<SeenGroup>,
    pub jobs: SeenJobs,
}

/// Reads everything. The service checks its invariants too. A start may place bundles again, and cycles place and evict
/// tasks, so the books are read until nothing changes meanwhile. The tasks of jobs that are `over` are left out.
pub async fn read(client: &Client, over: &BTreeSet<u64>) -> Seen {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let before = read_once(client, over).await;
        let status = within(client.status(&StatusRequest { audit: true })).await;
        let status = status.expect("the service checks its books");
        let allocations: u64 = status.shards.iter().map(|shard| shard.allocations).sum();
        let after = read_once(client, over).await;
        if let Ok(seen) = &before
            && before == after
            && status.books_hash.is_some()
        {
            let listed: u64 = seen.nodes.iter().map(|node| u64::from(node.allocations)).sum();
            assert_eq!(allocations, listed, "allocations of all shards and of all nodes");
            return seen.clone();
        }
        assert!(Instant::now() < deadline, "the books do not come to rest: {before:?}, then {after:?}");
    }
}

/// Returns what is under way if something is.
async fn read_once(client: &Client, over: &BTreeSet<u64>) -> Result<Seen, String> {
    let jobs = job_reader::read(client, over).await?;
    let groups = groups(client).await;
    Ok(Seen { nodes: nodes(client).await?, groups, jobs })
}

/// Returns the books of a node if they changed after the list, or something is undecided.
async fn nodes(client: &Client) -> Result<Vec<SeenNode>, String> {
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
                return Err(format!("{books:?}"));
            }
            let book = |name: &str| books.resources.iter().find(|book| book.name == name).expect("it has it");
            let [cpu, memory] = ["cpu", "memory"].map(book);
            let in_use = memory.allocated + memory.held + memory.releasing;
            assert_eq!(memory.total, memory.available + in_use, "{memory:?}");
            // Everything that the load asks for has one core. Statements of cycles may be undecided.
            if cpu.held + cpu.releasing > 0 || memory.held > 0 {
                return Err(format!("{books:?}"));
            }
            assert_eq!(cpu.allocated, i64::from(node.allocations) * WHOLE, "{books:?}");
            nodes.push(SeenNode {
                id: node.id,
                name: node.body.name,
                state: node.state,
                allocations: node.allocations,
                memory: in_use,
            });
        }
        if !page.more {
            return Ok(nodes);
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
