//! The registrar: the global records of a store (names, node ids, ordinals, resource kinds,
//! which partition owns which node), and the catalog of them that I/O threads read.
//!
//! It has one owner, like a shard, and is the only port that sends node commands, so those
//! arrive at a shard in the order in which they were decided. It is off the hot path.

use std::sync::Arc;

use crate::hash::stable_hash;
use crate::ids::{NodeId, Ordinal, PartitionId};
use crate::limits::NODES_MAX;
use crate::map::FixedMap;
use crate::node::{NodeRegistration, NodeSpec};
use crate::resource::ResourceRegistry;

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
}

/// What a port may know of the global records without asking: published as a whole.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// By node id, in chunks that successive catalogs share. Ids may jump from start to start,
    /// so the chunks are found by number and not by position.
    chunks: FixedMap<u64, Arc<Chunk>>,
    /// The resource kinds.
    pub resources: Arc<ResourceRegistry>,
    /// How many nodes are registered.
    pub node_count: u64,
}

/// Label texts that are kept without a sweep.
const TEXTS_UNSWEPT: usize = 1024;

type Chunk = Vec<Option<(Arc<str>, PartitionId)>>;
const CHUNK: u64 = 256;

impl Catalog {
    /// The name of a registered node.
    #[must_use]
    pub fn node_name(&self, id: NodeId) -> Option<&Arc<str>> {
        self.node(id).map(|(name, _)| name)
    }

    /// The partition of a registered node.
    #[must_use]
    pub fn node_partition(&self, id: NodeId) -> Option<PartitionId> {
        self.node(id).map(|&(_, partition)| partition)
    }

    fn node(&self, id: NodeId) -> Option<&(Arc<str>, PartitionId)> {
        self.chunks.get(&(id.0 / CHUNK))?.get((id.0 % CHUNK) as usize)?.as_ref()
    }

    fn set(&mut self, id: NodeId, node: Option<(Arc<str>, PartitionId)>) {
        let number = id.0 / CHUNK;
        let gone = node.is_none();
        let chunk = self.chunks.entry(number).or_insert_with(|| Arc::new(vec![None; CHUNK as usize]));
        Arc::make_mut(chunk)[(id.0 % CHUNK) as usize] = node;
        if gone && chunk.iter().all(Option::is_none) {
            self.chunks.remove(&number);
        }
    }
}

/// The durable part of the registrar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrarState {
    /// The id of the next node; also counts registrations, so ordinals come from it.
    pub next_node: u64,
    /// Resource kinds in the order of their ids.
    pub resources: Vec<String>,
    /// Which of them are unit-instance kinds, by place, ascending.
    pub unit_instances: Vec<u16>,
}

/// The owner of the global records.
pub struct Registrar {
    partition_count: u16,
    topology_label: Arc<str>,
    next_node: u64,
    by_name: FixedMap<Arc<str>, NodeId>,
    nodes: FixedMap<NodeId, Entry>,
    resources: ResourceRegistry,
    catalog: Catalog,
    /// Label texts, shared between nodes.
    texts: FixedMap<Arc<str>, ()>,
    /// How many were left when they were last swept.
    texts_swept: usize,
}

impl Registrar {
    /// The registrar of an empty store.
    #[must_use]
    pub fn new(partition_count: u16, topology_label: &str) -> Self {
        Self {
            partition_count,
            topology_label: topology_label.into(),
            next_node: 1,
            by_name: FixedMap::default(),
            nodes: FixedMap::default(),
            resources: ResourceRegistry::default(),
            catalog: Catalog::default(),
            texts: FixedMap::default(),
            texts_swept: 0,
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
            registrar.enter(node);
        }
        registrar.next_node = state.next_node;
        registrar
    }

    /// The durable part.
    #[must_use]
    pub fn state(&self) -> RegistrarState {
        let resources = self.resources.names().map(str::to_owned).collect();
        let unit_instances = self.resources.unit_instances();
        RegistrarState { next_node: self.next_node, resources, unit_instances }
    }

    /// The resource kinds, to learn new ones.
    pub fn resources_mut(&mut self) -> &mut ResourceRegistry {
        &mut self.resources
    }

    /// The catalog as it stands now, to be published.
    #[must_use]
    pub fn catalog(&mut self) -> Catalog {
        if self.catalog.resources.len() != self.resources.len() {
            self.catalog.resources = Arc::new(self.resources.clone());
        }
        self.catalog.node_count = self.nodes.len() as u64;
        self.catalog.clone()
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

    /// Registers a node: a new id, the next ordinal, its partition by topology label first
    /// (a rack stays together), then by its name.
    ///
    /// # Errors
    /// When the name is taken, or no more nodes fit.
    pub fn register(&mut self, spec: NodeSpec) -> Result<NodeRegistration, RegistrarError> {
        if let Some(&id) = self.by_name.get(&spec.name) {
            return Err(RegistrarError::NodeExists { name: spec.name, id });
        }
        if self.nodes.len() >= NODES_MAX {
            return Err(RegistrarError::Full);
        }
        let (id, ordinal) = (NodeId(self.next_node), Ordinal(self.next_node));
        self.next_node += 1;
        let partition = self.partition_of(&spec);
        let spec = self.intern(spec);
        let registration = NodeRegistration { id, ordinal, partition, spec };
        self.enter(&registration);
        Ok(registration)
    }

    fn partition_of(&self, spec: &NodeSpec) -> PartitionId {
        let key = spec.labels.get(&self.topology_label).unwrap_or(&spec.name);
        PartitionId((stable_hash(key.as_bytes()) % u64::from(self.partition_count)) as u16)
    }

    fn intern(&mut self, mut spec: NodeSpec) -> NodeSpec {
        // Texts that no node bears any more go when the map has doubled: each costs O(1) in all.
        if self.texts.len() > 2 * self.texts_swept + TEXTS_UNSWEPT {
            self.texts.retain(|text, ()| Arc::strong_count(text) > 1);
            self.texts_swept = self.texts.len();
        }
        let texts = &mut self.texts;
        spec.labels = spec.labels.shared(|text| {
            if let Some((known, ())) = texts.get_key_value(text) {
                return Arc::clone(known);
            }
            texts.insert(Arc::clone(text), ());
            Arc::clone(text)
        });
        spec
    }

    fn enter(&mut self, node: &NodeRegistration) {
        let topology = node.spec.labels.get(&self.topology_label).map(Arc::from);
        let identity = node.spec.identity.clone();
        let entry =
            Entry { name: Arc::clone(&node.spec.name), partition: node.partition, topology, identity };
        self.catalog.set(node.id, Some((Arc::clone(&node.spec.name), node.partition)));
        let before = self.by_name.insert(Arc::clone(&node.spec.name), node.id);
        assert!(before.is_none(), "two nodes are called `{}`", node.spec.name);
        self.nodes.insert(node.id, entry);
    }

    /// Checks an update of the node that `spec` names, and interns it.
    ///
    /// # Errors
    /// When no node has that name, or its topology label or its identity would change. An
    /// identity that is not given stays.
    pub fn update(&mut self, mut spec: NodeSpec) -> Result<(NodeId, PartitionId, NodeSpec), RegistrarError> {
        let (id, partition) = self.resolve(&spec.name)?;
        let known = &self.nodes[&id];
        match (&known.identity, &spec.identity) {
            (Some(known), Some(given)) if known != given => {
                let (name, known, given) = (spec.name, Arc::clone(known), Arc::clone(given));
                return Err(RegistrarError::IdentityFixed { name, known, given });
            }
            (Some(known), None) => spec.identity = Some(Arc::clone(known)),
            _ => {}
        }
        if known.topology.as_deref() != spec.labels.get(&self.topology_label) {
            let label = Arc::clone(&self.topology_label);
            return Err(RegistrarError::TopologyFixed { name: spec.name, label });
        }
        let identity = spec.identity.clone();
        if let Some(entry) = self.nodes.get_mut(&id) {
            entry.identity = identity;
        }
        Ok((id, partition, self.intern(spec)))
    }

    /// A node is gone from its shard: its name is free again, its id never is.
    pub fn forget(&mut self, id: NodeId) {
        if let Some(entry) = self.nodes.remove(&id) {
            self.by_name.remove(&entry.name);
            self.catalog.set(id, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Labels;
    use crate::resource::Amount;

    fn spec(name: &str, labels: &[(&str, &str)]) -> NodeSpec {
        NodeSpec {
            name: name.into(),
            identity: None,
            cpu: Amount::whole(4),
            memory: Amount::whole(1024),
            gpus: 0,
            custom: None,
            labels: Labels::new(labels.iter().map(|&(k, v)| (k.into(), v.into())).collect()).unwrap(),
        }
    }

    #[test]
    fn ids_and_ordinals_are_never_used_again() {
        let mut registrar = Registrar::new(256, TOPOLOGY_LABEL_DEFAULT);
        let first = registrar.register(spec("a", &[])).unwrap();
        assert!(
            matches!(registrar.register(spec("a", &[])), Err(RegistrarError::NodeExists { id, .. }) if id == first.id)
        );
        registrar.forget(first.id);
        assert!(registrar.resolve("a").is_err());
        let second = registrar.register(spec("a", &[])).unwrap();
        assert!(second.id > first.id && second.ordinal > first.ordinal);
        assert_eq!(second.partition, first.partition);
        let catalog = registrar.catalog();
        assert_eq!(catalog.node_name(first.id), None);
        assert_eq!(catalog.node_name(second.id).map(AsRef::as_ref), Some("a"));
    }

    #[test]
    fn a_rack_stays_in_one_partition_and_a_node_in_its_rack() {
        let mut registrar = Registrar::new(256, "rack");
        let partitions: Vec<_> = (0..50)
            .map(|i| registrar.register(spec(&format!("n{i}"), &[("rack", "r7")])).unwrap().partition)
            .collect();
        assert!(partitions.windows(2).all(|pair| pair[0] == pair[1]));
        let moved = registrar.update(spec("n1", &[("rack", "r8")]));
        assert!(matches!(moved, Err(RegistrarError::TopologyFixed { .. })));
        assert!(registrar.update(spec("n1", &[("rack", "r7"), ("zone", "a")])).is_ok());
    }

    #[test]
    fn another_machine_under_the_same_name_is_no_update() {
        let mut registrar = Registrar::new(16, "rack");
        let identified =
            |identity: Option<&str>| NodeSpec { identity: identity.map(Into::into), ..spec("n", &[]) };
        let id = registrar.register(identified(None)).unwrap().id;
        assert_eq!(registrar.update(identified(Some("a"))).unwrap().0, id);
        assert_eq!(registrar.update(identified(None)).unwrap().2.identity.as_deref(), Some("a"));
        let other = registrar.update(identified(Some("b")));
        assert!(matches!(other, Err(RegistrarError::IdentityFixed { .. })), "{other:?}");
    }

    #[test]
    fn texts_that_no_node_bears_are_not_kept() {
        let mut registrar = Registrar::new(16, "rack");
        let mut id = registrar.register(spec("n", &[("job", "0")])).unwrap().id;
        for round in 1..10_000 {
            registrar.forget(id);
            id = registrar.register(spec("n", &[("job", &round.to_string())])).unwrap().id;
        }
        assert!(registrar.texts.len() < 2 * TEXTS_UNSWEPT, "{} texts", registrar.texts.len());
    }

    #[test]
    fn a_restored_registrar_goes_on_where_it_stopped() {
        let mut registrar = Registrar::new(16, "rack");
        registrar.resources_mut().learn("fpga").unwrap();
        let nodes: Vec<_> =
            (0..5).map(|i| registrar.register(spec(&format!("n{i}"), &[])).unwrap()).collect();
        registrar.forget(nodes[4].id);
        let restored = Registrar::restore(16, "rack", &registrar.state(), nodes[..4].iter());
        assert_eq!(restored.state(), registrar.state());
        let mut restored = restored;
        assert_eq!(restored.register(spec("n4", &[])).unwrap().id, NodeId(6));
    }
}
