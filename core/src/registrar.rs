//! The registrar: the global records of a store (names, node ids, ordinals, resource kinds,
//! which partition owns which node), and the catalog of them that I/O threads read.
//!
//! It has one owner, like a shard, and is the only port that sends node commands, so those
//! arrive at a shard in the order in which they were decided. It is off the hot path.

mod directory;
mod heartbeat;
pub use heartbeat::{Heard, Heartbeats};
mod removed;
mod texts;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::hash::stable_hash;
use crate::ids::{NodeId, Ordinal, PartitionId};
use crate::limits::NODES_MAX;
use crate::map::FixedMap;
use crate::node::{AgentFacts, NodeRegistration, NodeSpec};
use crate::resource::ResourceRegistry;
use crate::shard::Command;
use crate::state::{RegistrarState, RemovedNode};
use directory::Directory;
use removed::RemovedNodes;
use texts::Texts;

/// The label that keeps nodes of one rack in one partition, unless configured otherwise.
pub const TOPOLOGY_LABEL_DEFAULT: &str = "rack";

/// What is wrong with a registration or update.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistrarError {
    /// A registered node has that name.
    #[error("node `{name}` is registered already, as {id}: update it, or remove it first")]
    NodeExists {
        /// The name.
        name: Arc<str>,
        /// Its id.
        id: NodeId,
    },
    /// No node has that name or id.
    #[error("node `{0}` is not registered: list the nodes to see which are")]
    UnknownNode(String),
    /// The label that decides the partition cannot change.
    #[error(
        "node `{name}` cannot change its label `{label}`, which decides its partition: remove it and add it again"
    )]
    TopologyFixed {
        /// The node.
        name: Arc<str>,
        /// The label.
        label: Arc<str>,
    },
    /// Another machine came under a registered name.
    #[error(
        "node `{name}` is registered with identity `{known}`, not `{given}`: a new machine is a new node; remove the old one and add it"
    )]
    IdentityFixed {
        /// The node.
        name: Arc<str>,
        /// The identity that it was registered with.
        known: Arc<str>,
        /// The other one.
        given: Arc<str>,
    },
    /// Two machines that both live claim one name.
    #[error(
        "node `{name}` ({id}) is kept by the agent of another machine, which is alive: give this machine a name of its own, or stop the other agent and wait until its node is lost"
    )]
    NameInUse {
        /// The name.
        name: Arc<str>,
        /// The node.
        id: NodeId,
    },
    /// No more nodes.
    #[error("this service holds {NODES_MAX} nodes, which is all it can: remove some first")]
    Full,
}

#[derive(Clone, Debug)]
struct Entry {
    name: Arc<str>,
    partition: PartitionId,
    topology: Option<Arc<str>>,
    identity: Option<Arc<str>>,
    ordinal: Ordinal,
    /// The last version of its former life, where this start gave it its id again.
    former_version: Option<u64>,
}

/// What an agent's report makes of a node.
#[derive(Clone, Debug)]
pub enum Reported {
    /// The node is registered, and this is what is new of it.
    Known(NodeId, PartitionId, NodeSpec),
    /// It is new, or back.
    New(NodeRegistration),
    /// The name is that of a machine that is lost, and another one claims it. Nothing is entered: the old
    /// node has to go first, with its allocations, and a statement that holds it may delay that. Once it is
    /// [forgotten](Registrar::forget), the report is to be made again. So no two nodes ever have one name.
    Occupied(NodeId, PartitionId),
}

/// What a port may know of the global records without asking: published as a whole.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// By node id. Successive catalogs share what is equal.
    nodes: Directory,
    /// The resource kinds.
    pub resources: Arc<ResourceRegistry>,
    /// How many nodes are registered.
    pub node_count: u64,
}

impl Catalog {
    /// The name of a registered node.
    #[must_use]
    pub fn node_name(&self, id: NodeId) -> Option<&Arc<str>> {
        self.nodes.get(id).map(|(name, _)| name)
    }

    /// The partition of a registered node.
    #[must_use]
    pub fn node_partition(&self, id: NodeId) -> Option<PartitionId> {
        self.nodes.get(id).map(|&(_, partition)| partition)
    }
}

/// The owner of the global records.
pub struct Registrar {
    partition_count: u16,
    topology_label: Arc<str>,
    next_node: u64,
    /// In order, as all that is found by texts: names are others' choice, and no hash of them can be attacked then.
    by_name: BTreeMap<Arc<str>, NodeId>,
    nodes: FixedMap<NodeId, Entry>,
    resources: ResourceRegistry,
    catalog: Catalog,
    removed: RemovedNodes,
    heartbeats: Heartbeats,
    texts: Texts,
    /// Every node in order of registration, to be listed.
    by_ordinal: BTreeMap<Ordinal, NodeId>,
}

impl Registrar {
    /// The registrar of an empty store.
    #[must_use]
    pub fn new(partition_count: u16, topology_label: &str) -> Self {
        Self {
            partition_count,
            topology_label: topology_label.into(),
            next_node: 1,
            by_name: BTreeMap::new(),
            nodes: FixedMap::default(),
            resources: ResourceRegistry::default(),
            catalog: Catalog::default(),
            removed: RemovedNodes::default(),
            heartbeats: Heartbeats::default(),
            texts: Texts::default(),
            by_ordinal: BTreeMap::new(),
        }
    }

    /// The registrar as an earlier start of the store left it.
    ///
    /// # Panics
    /// When the state contradicts itself.
    #[must_use]
    pub fn restore<'a>(
        partition_count: u16,
        topology_label: &str,
        state: &RegistrarState,
        nodes: impl Iterator<Item = &'a NodeRegistration>,
    ) -> Self {
        let mut registrar = Self::new(partition_count, topology_label);
        registrar.resources =
            ResourceRegistry::with_names(state.resources.iter().map(String::as_str), &state.unit_instances)
                .expect("a store holds no more kinds than it could learn");
        for node in nodes {
            assert!(node.id.0 < state.next_node, "node {} was never registered", node.id);
            registrar.enter(node, None);
        }
        for node in &state.removed {
            assert!(node.id.0 < state.next_node, "removed node {} was never registered", node.id);
            registrar.removed.keep(node.clone());
        }
        registrar.next_node = state.next_node;
        registrar
    }

    /// The durable part.
    #[must_use]
    pub fn state(&self) -> RegistrarState {
        let resources = self.resources.names().map(str::to_owned).collect();
        let unit_instances = self.resources.unit_instances();
        let removed = self.removed.iter().collect();
        RegistrarState { next_node: self.next_node, resources, removed, unit_instances }
    }

    /// Which agents were heard of in time.
    pub fn heartbeats(&mut self) -> &mut Heartbeats {
        &mut self.heartbeats
    }

    /// The resource kinds, to learn new ones.
    pub fn resources_mut(&mut self) -> &mut ResourceRegistry {
        &mut self.resources
    }

    /// The catalog as it is now, to be published: O(1), and O(resource kinds) after a new one.
    #[must_use]
    pub fn catalog(&mut self) -> Catalog {
        if self.catalog.resources.len() != self.resources.len() {
            self.catalog.resources = Arc::new(self.resources.clone());
        }
        self.catalog.node_count = self.nodes.len() as u64;
        self.catalog.clone()
    }

    /// References that were copied so far to keep published catalogs as they are.
    #[must_use]
    pub fn catalog_copied(&self) -> u64 {
        self.catalog.nodes.copied()
    }

    /// The nodes after `after` in order of registration: of each its ordinal and its partition.
    pub fn nodes_after(&self, after: Ordinal) -> impl Iterator<Item = (Ordinal, PartitionId)> {
        let later = self.by_ordinal.range((Bound::Excluded(after), Bound::Unbounded));
        later.map(|(&ordinal, id)| (ordinal, self.nodes[id].partition))
    }

    /// How many nodes are registered.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The id and partition of a node.
    ///
    /// # Errors
    /// When no node has that name.
    pub fn resolve(&self, name: &str) -> Result<(NodeId, PartitionId), RegistrarError> {
        let id = self.by_name.get(name).ok_or_else(|| RegistrarError::UnknownNode(name.to_owned()))?;
        Ok((*id, self.nodes[id].partition))
    }

    /// The partition of a registered node.
    #[must_use]
    pub fn partition(&self, id: NodeId) -> Option<PartitionId> {
        self.nodes.get(&id).map(|entry| entry.partition)
    }

    /// The name of a registered node.
    #[must_use]
    pub fn name(&self, id: NodeId) -> Option<&str> {
        self.nodes.get(&id).map(|entry| entry.name.as_ref())
    }

    /// Registers a node: a new id and the next ordinal, or those that the same machine had under
    /// the same name before it was removed; its partition by topology label first (a rack stays
    /// together), then by its name.
    ///
    /// # Errors
    /// When the name is taken, or no more nodes fit.
    pub fn register(&mut self, spec: NodeSpec) -> Result<NodeRegistration, RegistrarError> {
        self.check_register(&spec.name)?;
        Ok(self.enter_new(spec, None))
    }

    /// Checks whether [`register`](Self::register) would take a node of this name.
    ///
    /// # Errors
    /// As there.
    pub fn check_register(&self, name: &str) -> Result<(), RegistrarError> {
        match self.by_name.get(name) {
            Some(&id) => Err(RegistrarError::NodeExists { name: name.into(), id }),
            None => self.check_room(),
        }
    }

    fn check_room(&self) -> Result<(), RegistrarError> {
        if self.nodes.len() >= NODES_MAX { Err(RegistrarError::Full) } else { Ok(()) }
    }

    fn enter_new(&mut self, spec: NodeSpec, agent: Option<Arc<AgentFacts>>) -> NodeRegistration {
        let former = spec.identity.as_ref().and_then(|identity| self.removed.take(&spec.name, identity));
        let (id, ordinal) = former.map_or_else(
            || {
                self.next_node += 1;
                (NodeId(self.next_node - 1), Ordinal(self.next_node - 1))
            },
            |life| (life.id, life.ordinal),
        );
        let partition = self.partition_of(&spec);
        let registration = NodeRegistration { id, ordinal, partition, spec: self.intern(spec), agent };
        self.enter(&registration, former.map(|life| life.version));
        registration
    }

    /// The command by which the shard of a node that was just registered takes it.
    ///
    /// # Panics
    /// When the node is not registered.
    #[must_use]
    pub fn join_command(&self, registration: NodeRegistration) -> Command {
        let former_version = self.nodes[&registration.id].former_version;
        let registration = Box::new(registration);
        match former_version {
            Some(version) => Command::RejoinNode { registration, version },
            None => Command::AddNode(registration),
        }
    }

    /// Checks what [`report`](Self::report) would take `spec` for, and enters nothing. Returns the lost
    /// node that has to go first, as [`Reported::Occupied`] does.
    ///
    /// # Errors
    /// As there.
    pub fn check_report(&self, spec: &NodeSpec) -> Result<Option<(NodeId, PartitionId)>, RegistrarError> {
        let Ok((id, partition)) = self.resolve(&spec.name) else { return self.check_room().map(|()| None) };
        let known = &self.nodes[&id];
        if known.identity.is_none() || known.identity == spec.identity {
            return self.check_topology(known, spec).map(|()| None);
        }
        if self.heartbeats.is_alive(id) {
            return Err(RegistrarError::NameInUse { name: Arc::clone(&spec.name), id });
        }
        self.check_room().map(|()| Some((id, partition)))
    }

    /// Takes an agent's report of its machine, which has an identity.
    ///
    /// # Errors
    /// When the label that decides the partition would change, another machine of that name
    /// lives, or no more nodes fit.
    pub fn report(&mut self, spec: NodeSpec) -> Result<Reported, RegistrarError> {
        if let Some((id, partition)) = self.check_report(&spec)? {
            return Ok(Reported::Occupied(id, partition));
        }
        if self.resolve(&spec.name).is_err() {
            return Ok(Reported::New(self.enter_new(spec, Some(Arc::new(AgentFacts::default())))));
        }
        self.update(spec).map(|(id, partition, spec)| Reported::Known(id, partition, spec))
    }

    fn partition_of(&self, spec: &NodeSpec) -> PartitionId {
        let key = spec.labels.get(&self.topology_label).unwrap_or(&spec.name);
        PartitionId((stable_hash(key.as_bytes()) % u64::from(self.partition_count)) as u16)
    }

    fn intern(&mut self, mut spec: NodeSpec) -> NodeSpec {
        let mut share = |text: &Arc<str>| self.texts.share(text);
        spec.labels = spec.labels.shared(&mut share);
        spec.taints = spec.taints.shared(&mut share);
        spec
    }

    fn enter(&mut self, node: &NodeRegistration, former_version: Option<u64>) {
        let topology = node.spec.labels.get(&self.topology_label).map(Arc::from);
        let identity = node.spec.identity.clone();
        let entry = Entry {
            name: Arc::clone(&node.spec.name),
            partition: node.partition,
            topology,
            identity,
            ordinal: node.ordinal,
            former_version,
        };
        self.catalog.nodes.set(node.id, Some((Arc::clone(&node.spec.name), node.partition)));
        let before = self.by_ordinal.insert(node.ordinal, node.id);
        assert!(before.is_none(), "two nodes were registered as number {}", node.ordinal.0);
        let before = self.by_name.insert(Arc::clone(&node.spec.name), node.id);
        assert!(before.is_none(), "two nodes are called `{}`", node.spec.name);
        self.nodes.insert(node.id, entry);
    }

    /// Checks whether [`update`](Self::update) would take `spec`, and enters nothing; the node and its
    /// partition.
    ///
    /// # Errors
    /// When no node has that name, or its topology label or its identity would change.
    pub fn check_update(&self, spec: &NodeSpec) -> Result<(NodeId, PartitionId), RegistrarError> {
        let (id, partition) = self.resolve(&spec.name)?;
        let known = &self.nodes[&id];
        if let (Some(known), Some(given)) = (&known.identity, &spec.identity)
            && known != given
        {
            let name = Arc::clone(&spec.name);
            return Err(RegistrarError::IdentityFixed { name, known: known.clone(), given: given.clone() });
        }
        self.check_topology(known, spec)?;
        Ok((id, partition))
    }

    /// Takes an update of the node that `spec` names: enters its identity, and interns it. An identity
    /// that is not given stays.
    ///
    /// # Errors
    /// As [`check_update`](Self::check_update). Nothing is entered then.
    pub fn update(&mut self, mut spec: NodeSpec) -> Result<(NodeId, PartitionId, NodeSpec), RegistrarError> {
        let (id, partition) = self.check_update(&spec)?;
        let entry = self.nodes.get_mut(&id).expect("a name is that of a registered node");
        if spec.identity.is_none() {
            spec.identity.clone_from(&entry.identity);
        } else {
            entry.identity.clone_from(&spec.identity);
        }
        Ok((id, partition, self.intern(spec)))
    }

    fn check_topology(&self, known: &Entry, spec: &NodeSpec) -> Result<(), RegistrarError> {
        if known.topology.as_deref() == spec.labels.get(&self.topology_label) {
            return Ok(());
        }
        let name = Arc::clone(&spec.name);
        let label = Arc::clone(&self.topology_label);
        Err(RegistrarError::TopologyFixed { name, label })
    }

    /// A node is gone from its shard, and had this version last: its name is free again. Its id is not, but
    /// for the machine that had it.
    pub fn forget(&mut self, id: NodeId, version: u64) {
        let Some(Entry { name, identity, ordinal, .. }) = self.nodes.remove(&id) else { return };
        if self.by_name.get(&name) == Some(&id) {
            self.by_name.remove(&name);
        }
        self.catalog.nodes.set(id, None);
        self.by_ordinal.remove(&ordinal);
        self.heartbeats.forget(id);
        if let Some(identity) = identity {
            self.removed.keep(RemovedNode { name, identity, id, ordinal, version });
        }
    }
}

#[cfg(test)]
mod tests;
