//! The load: clients that place, release, make and remove groups, and change nodes, until the service is killed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use wharf_core::ids::AllocationId;
use wharf_core::rng::Rng;
use wharf_net::client::{Client, ClientError};
use wharf_net::protocol::{
    BundleTemplate, CreateGroupRequest, DemandBody, DrainRequest, Name, NodeBody, NodeReply, NodesRequest,
    PlaceRequest, Reason, RemoveRequest, WireGroup,
};

use super::oracle::{Asked, Bundle, GroupKey, Oracle, Single, group_key};

/// One whole unit of a resource on the wire.
const WHOLE: i64 = 10_000;

/// The cores of a node: how many allocations it can hold.
const CORES: i64 = 24;

/// Memory is drawn below this, and a node has as much as all of its allocations may ask for.
const MEMORY_MAX: u64 = 1 << 40;

/// The numbers of nodes between which the load keeps the cluster.
const NODES: (usize, usize) = (4, 8);

/// The numbers of groups and of other allocations that the load keeps at most.
const GROUPS_MAX: usize = 12;
const SINGLES_MAX: usize = 60;

/// What all workers share.
pub struct World {
    pub oracle: RefCell<Oracle>,
    pub rng: RefCell<Rng>,
    /// The number for the name of the next node.
    pub next_node: Cell<u64>,
    /// Replies until the kill.
    pub left: Cell<u64>,
    /// All replies so far, by what was asked and whether it was done.
    pub replies: Cell<u64>,
}

impl World {
    fn below(&self, bound: u64) -> u64 {
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
        match world.below(if changes_nodes { 20 } else { 14 }) {
            0..7 => place(&world, &client).await?,
            7..10 => release(&world, &client).await?,
            10..12 => create(&world, &client).await?,
            12..14 => remove(&world, &client).await?,
            14..16 => drain(&world, &client).await?,
            16..18 => add_node(&world, &client).await?,
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
    let token = world.ask(Asked::Place { memory });
    let request = PlaceRequest { demand: demand(memory, gpu), ..PlaceRequest::default() };
    let reply = client.place(&request).await?;
    world.answer(token);
    match reply.placed {
        Some(placed) => {
            let id = AllocationId::from(placed.allocation);
            let mut oracle = world.oracle.borrow_mut();
            oracle.meet(id);
            oracle.singles.insert(id, Single { node: placed.node, memory });
        }
        None => {
            assert!(matches!(reply.reason.known(), Some(Reason::NoFitNow | Reason::Infeasible)), "{reply:?}")
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

fn pick<T: Clone>(world: &World, of: &[T]) -> Option<T> {
    if of.is_empty() { None } else { Some(of[world.below(of.len() as u64) as usize].clone()) }
}

async fn create(world: &World, client: &Client) -> Result<(), ClientError> {
    if world.oracle.borrow().groups.len() >= GROUPS_MAX {
        return remove(world, client).await;
    }
    let memory: Vec<i64> = (0..2 + world.below(3)).map(|_| world.memory()).collect();
    let template = |&memory: &i64| BundleTemplate {
        request: PlaceRequest { demand: demand(memory, 0), ..PlaceRequest::default() },
        count: 1,
    };
    let request = CreateGroupRequest {
        bundles: memory.iter().map(template).collect(),
        strategy: world.below(4) as u8,
        ..CreateGroupRequest::default()
    };
    let token = world.ask(Asked::Create { memory: memory.clone() });
    let reply = client.create_group(&request).await?;
    world.answer(token);
    let Some(group) = reply.group else {
        let refused = [Reason::NoFitNow, Reason::Infeasible, Reason::Conflicted];
        assert!(reply.reason.known().is_some_and(|reason| refused.contains(&reason)), "{reply:?}");
        return Ok(());
    };
    let bundle = |(bundle, &memory): (&wharf_net::protocol::BundleBody, &i64)| -> Bundle {
        let placed = bundle.placed.as_ref().expect("a group that does not wait is placed");
        (placed.allocation.into(), placed.node, memory)
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
        let is_free = |key: GroupKey| !oracle.is_busy(|asked| *asked == Asked::Remove { group: key });
        let keys: Vec<GroupKey> = oracle.groups.keys().copied().filter(|&key| is_free(key)).collect();
        pick(world, &keys)
    };
    let Some((incarnation, number)) = chosen else { return place_one_node(world, client).await };
    let token = world.ask(Asked::Remove { group: (incarnation, number) });
    let reply = client.remove_group(WireGroup { incarnation, number }).await?;
    assert!(reply.reason.is_done(), "group {incarnation}/{number} is lost: {reply:?}");
    world.answer(token);
    world.oracle.borrow_mut().groups.remove(&(incarnation, number));
    Ok(())
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
