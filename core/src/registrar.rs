//! The registrar: a store's global records and the catalog of them that I/O threads read.
//!
//! The records are names, node ids, ordinals, resource kinds, and the partition of each node.
//!
//! The registrar has one owner, like a shard. It is the only port that sends node commands, so a shard
//! receives them in the order in which they were decided. It is not on the hot path.

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
use crate::journal::Changes;
use crate::limits::NODES_MAX;
use crate::map::FixedMap;
use crate::node::{AgentFacts, NodeRegistration, NodeSpec};
use crate::resource::ResourceRegistry;
use crate::shard::Command;
use crate::state::{RegistrarState, RemovedNode};
use directory::Directory;
pub(crate) use removed::RemovedNodes;
use texts::Texts;

/// The default label that keeps the nodes of one rack in one partition.
pub const TOPOLOGY_LABEL_DEFAULT: &str = "rack";

/// The reason why a registration or update is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistrarError {
    /// A node with that name is already registered.
    #[error("node `{name}` is registered already, as {id}: update it, or remove it first")]
    NodeExists {
        /// The name.
        name: Arc<str>,
        /// The id of the registered node.
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
    /// Another machine reported under a registered name.
    #[error(
        "node `{name}` is registered with identity `{known}`, not `{given}`: a new machine is a new node; remove the old one and add it"
    )]
    IdentityFixed {
        /// The node.
        name: Arc<str>,
        /// The registered identity.
        known: Arc<str>,
        /// The other identity.
        given: Arc<str>,
    },
    /// Two live machines claim one name.
    #[error(
        "node `{name}` ({id}) is kept by the agent of another machine, which is alive: give this machine a name of its own, or stop the other agent and wait until its node is lost"
    )]
    NameInUse {
        /// The name.
        name: Arc<str>,
        /// The node.
        id: NodeId,
    },
    /// The service cannot hold more nodes.
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
    /// The last version of the node before it was removed, if this start gave it its old id again.
    former_version: Option<u64>,
}

/// The effect of an agent's report.
#[derive(Clone, Debug)]
pub enum Reported {
    /// The node is registered. Contains the updated spec.
    Known(NodeId, PartitionId, NodeSpec),
    /// The node is new, or has returned after a removal.
    New(NodeRegistration),
    /// The name belongs to a lost machine, and another machine claims it. Nothing is recorded.
    ///
    /// The lost node and its allocations must be removed first, and a statement that holds it may delay that.
    /// Once the node is [forgotten](Registrar::forget), the agent must report again. Two nodes therefore
    /// never have the same name.
    Occupied(NodeId, PartitionId),
}

/// A snapshot of the global records that a port can read without asking the registrar.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// Entries by node id. Successive catalogs share equal parts.
    nodes: Directory,
    /// The resource kinds.
    pub resources: Arc<ResourceRegistry>,
    /// The number of registered nodes.
    pub node_count: u64,
}

impl Catalog {
    /// Returns the name of a registered node.
    #[must_use]
    pub fn node_name(&self, id: NodeId) -> Option<&Arc<str>> {
        self.nodes.get(id).map(|(name, _)| name)
    }

    /// Returns the partition of a registered node.
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
    /// An ordered map, like every map with text keys. Clients choose the names, and could attack a hash of
    /// them.
    by_name: BTreeMap<Arc<str>, NodeId>,
    nodes: FixedMap<NodeId, Entry>,
    resources: ResourceRegistry,
    catalog: Catalog,
    removed: RemovedNodes,
    heartbeats: Heartbeats,
    texts: Texts,
    /// Every node in order of registration, for listing.
    by_ordinal: BTreeMap<Ordinal, NodeId>,
}

impl Registrar {
    /// Creates the registrar of an empty store.
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

    /// Restores the registrar from the state that an earlier start of the store left.
    ///
    /// # Panics
    /// When the state is inconsistent.
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
        let nodes: Vec<&NodeRegistration> = nodes.collect();
        registrar.nodes.reserve(nodes.len());
        for node in &nodes {
            assert!(node.id.0 < state.next_node, "node {} was never registered", node.id);
            registrar.enter_entry(node, None);
        }
        // At once, because a map that is made of all entries costs much less than one that grows.
        registrar.by_ordinal = nodes.iter().map(|node| (node.ordinal, node.id)).collect();
        assert!(
            registrar.by_ordinal.len() == nodes.len(),
            "two nodes have one place in order of registration"
        );
        registrar.by_name = nodes.iter().map(|node| (Arc::clone(&node.spec.name), node.id)).collect();
        assert!(registrar.by_name.len() == nodes.len(), "two nodes have one name");
        for node in &state.removed {
            assert!(node.id.0 < state.next_node, "removed node {} was never registered", node.id);
            registrar.removed.keep(node.clone());
        }
        registrar.next_node = state.next_node;
        registrar
    }

    /// Returns the durable state.
    #[must_use]
    pub fn state(&self) -> RegistrarState {
        let resources = self.resources.names().map(str::to_owned).collect();
        let unit_instances = self.resources.unit_instances();
        let removed = self.removed.iter().collect();
        RegistrarState { next_node: self.next_node, resources, removed, unit_instances }
    }

    /// Returns the resource kinds as the journal records them.
    #[must_use]
    pub fn kinds(&self) -> Changes {
        let names = self.resources.names().map(str::to_owned).collect();
        Changes::Kinds(names, self.resources.unit_instances())
    }

    /// Returns the heartbeats of the agents.
    pub fn heartbeats(&mut self) -> &mut Heartbeats {
        &mut self.heartbeats
    }

    /// Returns the resource kinds, for learning new ones.
    pub fn resources_mut(&mut self) -> &mut ResourceRegistry {
        &mut self.resources
    }

    /// Returns the current catalog for publication. Costs O(1), or O(resource kinds) after a new kind.
    #[must_use]
    pub fn catalog(&mut self) -> Catalog {
        if self.catalog.resources.len() != self.resources.len() {
            self.catalog.resources = Arc::new(self.resources.clone());
        }
        self.catalog.node_count = self.nodes.len() as u64;
        self.catalog.clone()
    }

    /// Returns the number of references copied so far to keep published catalogs unchanged.
    #[must_use]
    pub fn catalog_copied(&self) -> u64 {
        self.catalog.nodes.copied()
    }

    /// Returns the ordinal and partition of each node after `after`, in order of registration.
    pub fn nodes_after(&self, after: Ordinal) -> impl Iterator<Item = (Ordinal, PartitionId)> {
        let later = self.by_ordinal.range((Bound::Excluded(after), Bound::Unbounded));
        later.map(|(&ordinal, id)| (ordinal, self.nodes[id].partition))
    }

    /// Returns the number of registered nodes.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the id and partition of a node.
    ///
    /// # Errors
    /// When no node has that name.
    pub fn resolve(&self, name: &str) -> Result<(NodeId, PartitionId), RegistrarError> {
        let id = self.by_name.get(name).ok_or_else(|| RegistrarError::UnknownNode(name.to_owned()))?;
        Ok((*id, self.nodes[id].partition))
    }

    /// Returns the partition of a registered node.
    #[must_use]
    pub fn partition(&self, id: NodeId) -> Option<PartitionId> {
        self.nodes.get(&id).map(|entry| entry.partition)
    }

    /// Returns the name of a registered node.
    #[must_use]
    pub fn name(&self, id: NodeId) -> Option<&str> {
        self.nodes.get(&id).map(|entry| entry.name.as_ref())
    }

    /// Registers a node with a new id and the next ordinal.
    ///
    /// A machine that was removed and returns under the same name gets its old id and ordinal. The partition
    /// is chosen by topology label, so that a rack stays together, or by name if the node has no such label.
    ///
    /// # Errors
    /// When the name is taken, or the service cannot hold more nodes.
    pub fn register(&mut self, spec: NodeSpec) -> Result<NodeRegistration, RegistrarError> {
        self.check_register(&spec.name)?;
        Ok(self.enter_new(spec, None))
    }

    /// Checks whether [`register`](Self::register) would accept a node of this name.
    ///
    /// # Errors
    /// The same as for `register`.
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
        let (id, ordinal) = former.as_ref().map_or_else(
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

    /// Returns the command that adds a newly registered node to its shard.
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

    /// Checks whether [`report`](Self::report) would accept `spec`, without recording anything.
    ///
    /// Returns the lost node that must be removed first, as [`Reported::Occupied`] does.
    ///
    /// # Errors
    /// The same as for `report`.
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

    /// Records an agent's report of its machine, which has an identity.
    ///
    /// # Errors
    /// When the label that decides the partition would change, another live machine has that name, or the
    /// service cannot hold more nodes.
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
        let before = self.by_ordinal.insert(node.ordinal, node.id);
        assert!(before.is_none(), "two nodes were registered as number {}", node.ordinal.0);
        let before = self.by_name.insert(Arc::clone(&node.spec.name), node.id);
        assert!(before.is_none(), "two nodes are called `{}`", node.spec.name);
        self.enter_entry(node, former_version);
    }

    /// Enters what is found by the node's id.
    fn enter_entry(&mut self, node: &NodeRegistration, former_version: Option<u64>) {
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
        self.nodes.insert(node.id, entry);
    }

    /// Checks whether [`update`](Self::update) would accept `spec`, without recording anything. Returns the
    /// node and its partition.
    ///
    /// # Errors
    /// When no node has that name, or its topology label or identity would change.
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

    /// Records an update of the node that `spec` names, and interns its texts. If no identity is given, the
    /// node keeps its identity.
    ///
    /// # Errors
    /// The same as for [`check_update`](Self::check_update). Nothing is recorded then.
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

    /// Forgets a node that left its shard with this last version.
    ///
    /// Its name becomes free. Its id can only be used again by the same machine.
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
