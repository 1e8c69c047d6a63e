//! The load: clients that place, release, submit statements, make, grow and remove groups, work with [jobs] and change
//! nodes, until the service is killed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use wharf_core::ids::AllocationId;
use wharf_core::rng::Rng;
use wharf_net::client::{Client, ClientError};
use wharf_net::protocol::{
    BundleBody, BundleTemplate, COMMIT_ALL_OR_NOTHING, CreateGroupRequest, DemandBody, DrainRequest,
    GrowGroupRequest, Name, NodeBody, NodeReply, NodesRequest, OPERATION_ALLOCATE, OperationBody,
    PlaceRequest, Reason, RemoveRequest, RenewRequest, StatementRequest, WireGroup,
};

use super::jobs::{self, GROUPED, PLACED};
use super::oracle::{Asked, Bundle, GroupKey, Oracle, Single, group_key};
use super::told::Told;
use crate::harness::within;

/// One whole unit of a resource on the wire.
pub const WHOLE: i64 = 10_000;

/// The cores of a node: how many allocations it can hold.
const CORES: i64 = 24;

/// Memory is drawn below this, and a node has as much as all of its allocations may ask for.
const MEMORY_MAX: u64 = 1 << 40;

/// The numbers of nodes between which the load keeps the cluster.
const NODES: (usize, usize) = (4, 8);

/// A lease that does not end during the test, in ns.
const LEASE: u64 = 3_600_000_000_000;

/// Leases that are renewed at once.
const RENEWED_MAX: usize = 8;

/// The numbers of groups and of other allocations that the load keeps at most.
const GROUPS_MAX: usize = 12;
const SINGLES_MAX: usize = 60;

/// What all workers share.
pub struct World {
    pub oracle: RefCell<Oracle>,
    pub jobs: RefCell<Told>,
    pub rng: RefCell<Rng>,
    /// The number for the name of the next node.
    pub next_node: Cell<u64>,
    /// The number for the name of the next job.
    pub next_job: Cell<u64>,
    /// Replies until the kill.
    pub left: Cell<u64>,
    /// All replies so far, by what was asked and whether it was done.
    pub replies: Cell<u64>,
}

impl World {
    pub fn below(&self, bound: u64) -> u64 {
        self.rng.borrow_mut().below(bound)
    }

    fn memory(&self) -> i64 {
        1 + self.below(MEMORY_MAX) as i64
    }

    fn ask(&self, asked: Asked) -> u64 {
        self.oracle.borrow_mut().ask(asked)
    }

    fn answer(&self, token: u64) {
        self.oracle.borrow_mut().answer(token);
        self.count();
    }

    /// Counts a reply.
    pub fn count(&self) {
        self.replies.set(self.replies.get() + 1);
        self.left.set(self.left.get().saturating_sub(1));
    }

    fn node_body(&self) -> NodeBody {
        let number = self.next_node.get();
        self.next_node.set(number + 1);
        let memory = MEMORY_MAX as i64 * CORES;
        NodeBody {
            name: format!("node-{number}"),
            cpu: CORES * WHOLE,
            memory,
            gpus: 4,
            ..NodeBody::default()
        }
    }
}

fn demand(memory: i64, gpu: i64) -> DemandBody {
    DemandBody { cpu: WHOLE, memory, gpu, ..DemandBody::default() }
}

/// Works until the connection ends. Only one worker at a time may change nodes.
pub async fn work(world: Rc<World>, client: Client, changes_nodes: bool) -> Result<(), ClientError> {
    loop {
        match world.below(if changes_nodes { 36 } else { 30 }) {
            18 => jobs::cancel(&world, &client).await?,
            19 => jobs::change_queue(&world, &client).await?,
            20..23 => jobs::submit(&world, &client).await?,
            23..30 => jobs::report(&world, &client).await?,
            0..7 => place(&world, &client).await?,
            7..10 => release(&world, &client).await?,
            10..12 => create(&world, &client).await?,
            12..14 => remove(&world, &client).await?,
            14 | 15 => grow(&world, &client).await?,
            16 => submit(&world, &client).await?,
            17 => renew(&world, &client).await?,
            30..32 => drain(&world, &client).await?,
            32..34 => add_node(&world, &client).await?,
            _ => remove_node(&world, &client).await?,
        }
    }
}

async fn place(world: &World, client: &Client) -> Result<(), ClientError> {
    if world.oracle.borrow().singles.len() >= SINGLES_MAX {
        return release(world, client).await;
    }
    let memory = world.memory();
    let gpu = WHOLE / 10 * world.below(3) as i64;
    let is_in_queue = world.below(4) == 0;
    let token = world.ask(Asked::Place { memory, is_in_queue });
    let is_leased = world.below(4) == 0;
    let lease = if is_leased { LEASE } else { 0 };
    let queue = if is_in_queue { PLACED } else { "" }.to_owned();
    let request = PlaceRequest { lease, queue, ..request(memory, gpu) };
    let reply = client.place(&request).await?;
    world.answer(token);
    match reply.placed {
        Some(placed) => {
            let id = AllocationId::from(placed.allocation);
            let mut oracle = world.oracle.borrow_mut();
            oracle.meet(id);
            oracle.singles.insert(id, Single { node: placed.node, memory, is_leased, is_in_queue });
        }
        None => {
            let is_full = matches!(reply.reason.known(), Some(Reason::NoFitNow | Reason::Infeasible));
            let is_over_cap = is_in_queue && reply.reason.known() == Some(Reason::OverCap);
            assert!(is_full || is_over_cap, "{reply:?}");
        }
    }
    Ok(())
}

/// Releases an allocation that no other worker releases. It must be there.
async fn release(world: &World, client: &Client) -> Result<(), ClientError> {
    let chosen = {
        let oracle = world.oracle.borrow();
        let is_free = |id: AllocationId| !oracle.is_busy(|asked| *asked == Asked::Release { allocation: id });
        let ids: Vec<AllocationId> = oracle.singles.keys().copied().filter(|&id| is_free(id)).collect();
        pick(world, &ids)
    };
    let Some(id) = chosen else { return place_one_node(world, client).await };
    let token = world.ask(Asked::Release { allocation: id });
    let reply = client.release(id.into()).await?;
    assert!(reply.reason.is_done(), "allocation {id} is lost: {reply:?}");
    world.answer(token);
    world.oracle.borrow_mut().singles.remove(&id);
    Ok(())
}

/// Makes sure that there is something to do: a cluster without nodes holds nothing.
async fn place_one_node(world: &World, client: &Client) -> Result<(), ClientError> {
    let names: Vec<String> = world.oracle.borrow().nodes.keys().cloned().collect();
    let body = world.node_body();
    if names.is_empty() {
        return add(world, client, body).await;
    }
    tokio::task::yield_now().await;
    Ok(())
}

pub fn pick<T: Clone>(world: &World, of: &[T]) -> Option<T> {
    if of.is_empty() { None } else { Some(of[world.below(of.len() as u64) as usize].clone()) }
}

/// Returns a request for one core.
pub fn request(memory: i64, gpu: i64) -> PlaceRequest {
    PlaceRequest { demand: demand(memory, gpu), ..PlaceRequest::default() }
}

fn template(memory: i64, queue: &str) -> BundleTemplate {
    let request = PlaceRequest { queue: queue.to_owned(), ..request(memory, 0) };
    BundleTemplate { request, count: 1 }
}

/// Returns a bundle that was shown, and for which this amount of memory was asked.
fn bundle((bundle, &memory): (&BundleBody, &i64)) -> Bundle {
    let placed = bundle.placed.as_ref().expect("a group that does not wait is placed");
    (placed.allocation.into(), placed.node, memory)
}

async fn create(world: &World, client: &Client) -> Result<(), ClientError> {
    if world.oracle.borrow().groups.len() >= GROUPS_MAX {
        return remove(world, client).await;
    }
    let memory: Vec<i64> = (0..2 + world.below(3)).map(|_| world.memory()).collect();
    let queue = if world.below(3) == 0 { GROUPED } else { "" };
    let request = CreateGroupRequest {
        bundles: memory.iter().map(|&memory| template(memory, queue)).collect(),
        strategy: world.below(4) as u8,
        ..CreateGroupRequest::default()
    };
    let token = world.ask(Asked::Create { memory: memory.clone() });
    let reply = client.create_group(&request).await?;
    world.answer(token);
    let Some(group) = reply.group else {
        let refused = [Reason::NoFitNow, Reason::Infeasible, Reason::Conflicted, Reason::OverCap];
        assert!(reply.reason.known().is_some_and(|reason| refused.contains(&reason)), "{reply:?}");
        return Ok(());
    };
    let bundles: Vec<Bundle> = group.bundles.iter().zip(&memory).map(bundle).collect();
    let mut oracle = world.oracle.borrow_mut();
    bundles.iter().for_each(|bundle| oracle.meet(bundle.0));
    oracle.groups.insert(group_key(group.id), bundles);
    Ok(())
}

async fn remove(world: &World, client: &Client) -> Result<(), ClientError> {
    let chosen = {
        let oracle = world.oracle.borrow();
        free_group(world, &oracle)
    };
    let Some((incarnation, number)) = chosen else { return place_one_node(world, client).await };
    let token = world.ask(Asked::Remove { group: (incarnation, number) });
    let reply = client.remove_group(WireGroup { incarnation, number, tenant: 0 }).await?;
    assert!(reply.reason.is_done(), "group {incarnation}/{number} is lost: {reply:?}");
    world.answer(token);
    world.oracle.borrow_mut().groups.remove(&(incarnation, number));
    Ok(())
}

/// Returns a group that no request under way changes.
fn free_group(world: &World, oracle: &Oracle) -> Option<GroupKey> {
    let is_of = |asked: &Asked, key: GroupKey| match asked {
        Asked::Remove { group } | Asked::Grow { group, .. } => *group == key,
        _ => false,
    };
    let is_free = |key: GroupKey| !oracle.is_busy(|asked| is_of(asked, key));
    let keys: Vec<GroupKey> = oracle.groups.keys().copied().filter(|&key| is_free(key)).collect();
    pick(world, &keys)
}

async fn grow(world: &World, client: &Client) -> Result<(), ClientError> {
    let chosen = free_group(world, &world.oracle.borrow());
    let Some((incarnation, number)) = chosen else { return create(world, client).await };
    let memory: Vec<i64> = (0..1 + world.below(2)).map(|_| world.memory()).collect();
    let request = GrowGroupRequest {
        group: WireGroup { incarnation, number, tenant: 0 },
        bundles: memory.iter().map(|&memory| template(memory, "")).collect(),
        ..GrowGroupRequest::default()
    };
    let token = world.ask(Asked::Grow { group: (incarnation, number), memory: memory.clone() });
    let reply = client.grow_group(&request).await?;
    world.answer(token);
    let Some(group) = reply.group else {
        let refused =
            [Reason::NoFitNow, Reason::Infeasible, Reason::Conflicted, Reason::GroupBusy, Reason::OverCap];
        assert!(reply.reason.known().is_some_and(|reason| refused.contains(&reason)), "{reply:?}");
        return Ok(());
    };
    let mut oracle = world.oracle.borrow_mut();
    let before = oracle.groups.remove(&(incarnation, number)).expect("nobody else changes it");
    let known: Vec<i64> = before.iter().map(|bundle| bundle.2).chain(memory).collect();
    assert_eq!(group.bundles.len(), known.len(), "it grows by what was asked: {group:?}");
    let bundles: Vec<Bundle> = group.bundles.iter().zip(&known).map(bundle).collect();
    assert!(bundles.starts_with(&before), "{group:?} was {before:?}");
    bundles[before.len()..].iter().for_each(|bundle| oracle.meet(bundle.0));
    oracle.groups.insert((incarnation, number), bundles);
    Ok(())
}

/// Places on two nodes, or on none.
async fn submit(world: &World, client: &Client) -> Result<(), ClientError> {
    let nodes: BTreeSet<u64> = world.oracle.borrow().singles.values().map(|single| single.node).collect();
    let nodes: Vec<u64> = nodes.into_iter().collect();
    if nodes.len() < 2 || world.oracle.borrow().singles.len() >= SINGLES_MAX {
        return release(world, client).await;
    }
    let first = world.below(nodes.len() as u64) as usize;
    let second = (first + 1 + world.below(nodes.len() as u64 - 1) as usize) % nodes.len();
    let parts: Vec<(u64, i64)> = [first, second].map(|at| (nodes[at], world.memory())).to_vec();
    let operation = |&(node, memory): &(u64, i64)| OperationBody {
        operation: OPERATION_ALLOCATE,
        node,
        demand: demand(memory, 0),
        ..OperationBody::default()
    };
    let request = StatementRequest {
        operations: parts.iter().map(operation).collect(),
        mode: COMMIT_ALL_OR_NOTHING,
        ..StatementRequest::default()
    };
    let token = world.ask(Asked::Statement { parts: parts.clone() });
    let reply = client.submit_statement(&request).await?;
    world.answer(token);
    if !reply.reason.is_done() {
        // A node may drain, be full or be gone.
        let refused = [Reason::Conflicted, Reason::Expired, Reason::UnknownNode];
        assert!(reply.reason.known().is_some_and(|reason| refused.contains(&reason)), "{reply:?}");
        return Ok(());
    }
    let mut oracle = world.oracle.borrow_mut();
    for (operation, &(node, memory)) in reply.operations.iter().zip(&parts) {
        let placed = operation.placed.as_ref().expect("all of it was done");
        assert_eq!(placed.node, node, "{reply:?}");
        let id = AllocationId::from(placed.allocation);
        oracle.meet(id);
        oracle.singles.insert(id, Single { node, memory, is_leased: false, is_in_queue: false });
    }
    Ok(())
}

/// Renews leases of some allocations. Other workers may release them meanwhile.
async fn renew(world: &World, client: &Client) -> Result<(), ClientError> {
    let ids: Vec<AllocationId> = {
        let oracle = world.oracle.borrow();
        let leased = oracle.singles.iter().filter(|(_, single)| single.is_leased);
        leased.map(|(&id, _)| id).take(RENEWED_MAX).collect()
    };
    if ids.is_empty() {
        return place(world, client).await;
    }
    let allocations = ids.iter().map(|&id| id.into()).collect();
    let reply = client.renew(&RenewRequest { lease: LEASE, allocations, session: None }).await?;
    for (id, renewed) in ids.iter().zip(&reply.replies) {
        let oracle = world.oracle.borrow();
        let is_leaving = !oracle.singles.contains_key(id)
            || oracle.is_busy(|asked| *asked == Asked::Release { allocation: *id });
        assert!(renewed.reason.is_done() || is_leaving, "the lease of {id} is lost: {renewed:?}");
    }
    Ok(())
}

/// Checks that the allocations that have a lease are those that were placed with one.
pub async fn check_leases(world: &World, client: &Client) {
    let singles: Vec<(AllocationId, Single)> =
        world.oracle.borrow().singles.iter().map(|(&id, &single)| (id, single)).collect();
    if singles.is_empty() {
        return;
    }
    let allocations = singles.iter().map(|&(id, _)| id.into()).collect();
    let renew = RenewRequest { lease: LEASE, allocations, session: None };
    let reply = within(client.renew(&renew)).await.expect("the service renews leases");
    for ((id, single), renewed) in singles.iter().zip(&reply.replies) {
        let expected = if single.is_leased { Reason::Done } else { Reason::NoLease };
        assert_eq!(renewed.reason, expected.into(), "{id} {single:?}: {renewed:?}");
    }
}

/// Returns the reply of the one node that a request named.
fn only(replies: Vec<NodeReply>) -> NodeReply {
    <[NodeReply; 1]>::try_from(replies).expect("one node was named")[0].clone()
}

async fn add_node(world: &World, client: &Client) -> Result<(), ClientError> {
    if world.oracle.borrow().nodes.len() >= NODES.1 {
        return remove_node(world, client).await;
    }
    let body = world.node_body();
    add(world, client, body).await
}

/// Adds a node.
pub async fn add(world: &World, client: &Client, body: NodeBody) -> Result<(), ClientError> {
    let name = body.name.clone();
    let token = world.ask(Asked::AddNode { name: name.clone() });
    let reply = only(client.add_nodes(&NodesRequest { nodes: vec![body] }).await?.replies);
    assert!(reply.reason.is_done(), "{reply:?}");
    world.answer(token);
    world.oracle.borrow_mut().nodes.insert(name, false);
    Ok(())
}

/// Returns a new node for [`add`].
pub fn new_node(world: &World) -> NodeBody {
    world.node_body()
}

async fn drain(world: &World, client: &Client) -> Result<(), ClientError> {
    let nodes: Vec<(String, bool)> =
        world.oracle.borrow().nodes.iter().map(|(name, &drains)| (name.clone(), drains)).collect();
    let all = nodes.len();
    // Most nodes take work.
    let draining: Vec<_> = nodes.iter().filter(|(_, drains)| *drains).cloned().collect();
    let chosen = if draining.len() * 2 < all { pick(world, &nodes) } else { pick(world, &draining) };
    let Some((name, drains)) = chosen else {
        tokio::task::yield_now().await;
        return Ok(());
    };
    let token = world.ask(Asked::Drain { name: name.clone(), is_draining: !drains });
    let request = DrainRequest { names: vec![Name(name.clone())], undo: drains };
    let reply = only(client.drain_nodes(&request).await?.replies);
    assert!(reply.reason.is_done(), "node {name} is lost: {reply:?}");
    world.answer(token);
    world.oracle.borrow_mut().nodes.insert(name, !drains);
    Ok(())
}

/// Removes a node if it has nothing. A node in use stays.
async fn remove_node(world: &World, client: &Client) -> Result<(), ClientError> {
    let names: Vec<String> = world.oracle.borrow().nodes.keys().cloned().collect();
    let chosen = if names.len() > NODES.0 { pick(world, &names) } else { None };
    let Some(name) = chosen else { return add_if_few(world, client, names.len()).await };
    let token = world.ask(Asked::RemoveNode { name: name.clone() });
    let request = RemoveRequest { names: vec![Name(name.clone())], force: false };
    let reply = only(client.remove_nodes(&request).await?.replies);
    world.answer(token);
    match reply.reason.known() {
        Some(Reason::Done) => drop(world.oracle.borrow_mut().nodes.remove(&name)),
        Some(Reason::NodeInUse) => {}
        _ => panic!("node {name} is lost: {reply:?}"),
    }
    Ok(())
}

async fn add_if_few(world: &World, client: &Client, count: usize) -> Result<(), ClientError> {
    if count < NODES.1 {
        let body = world.node_body();
        return add(world, client, body).await;
    }
    tokio::task::yield_now().await;
    Ok(())
}
