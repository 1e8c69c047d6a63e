//! What a plan of nodes is asked for: types, limits, and demand beyond that of the jobs.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::limits::{FLOORS_MAX, NODE_TYPES_MAX, PLANNED_NODES_MAX, PLANNED_TASKS_MAX};
use crate::node::{Labels, NodeSpec};
use crate::request::PlacementRequest;

/// A type of nodes that can be launched.
#[derive(Clone, Debug)]
pub struct NodeType {
    /// Its name, which is unique in a request.
    pub name: Arc<str>,
    /// What a node of it has. The name in it is of no use. Nodes get a label with the type in addition.
    pub spec: NodeSpec,
    /// The number of nodes that are there in any case.
    pub min: u32,
    /// The largest number of nodes, at least `min`.
    pub max: u32,
    /// The number of nodes that are being launched and are not registered yet.
    pub launching: u32,
    /// How long a launch takes, in ns.
    pub launch_ns: u64,
    /// How long a node is idle before it is named for removal, in ns. `None`: as the request says.
    pub idle_ns: Option<u64>,
}

/// Equal requests that are wanted in addition to what the jobs ask for.
#[derive(Clone, Debug)]
pub struct Bundles {
    /// Each of them.
    pub request: PlacementRequest,
    /// Their number.
    pub count: u32,
}

/// How the bundles of a group are spread over nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// On any nodes.
    #[default]
    Any,
    /// Each on a node of its own (Ray's `STRICT_SPREAD`).
    Apart,
    /// All on one node (Ray's `STRICT_PACK`).
    Together,
}

/// A placement group that waits: it gets all or nothing.
#[derive(Clone, Debug)]
pub struct PendingGroup {
    /// Its name, for the answer.
    pub name: Arc<str>,
    /// Its bundles. At least one.
    pub bundles: Vec<Bundles>,
    /// Where they go.
    pub spread: Spread,
    /// The label of which all nodes of the group have the same value.
    pub domain: Option<Arc<str>>,
    /// Demand of a higher priority comes first.
    pub priority: i32,
}

/// What a plan of nodes is asked for.
#[derive(Clone, Debug)]
pub struct NodesRequest {
    /// The types, in order of preference among equals. At least one.
    pub types: Vec<NodeType>,
    /// The label of a node with the name of its type. Nodes without it have no type: they are used, and neither counted
    /// nor removed.
    pub type_label: Arc<str>,
    /// The largest number of nodes of all types together.
    pub nodes_max: Option<u32>,
    /// How many nodes of a type are launched at a time, as a part of those that there are, in 1/10,000. At least one is.
    pub upscaling_speed: u32,
    /// The largest number of nodes that are being launched at a time.
    pub launches_max: u32,
    /// How long a node is idle before it is named for removal, in ns. `None`: for ever.
    pub idle_ns: Option<u64>,
    /// What the cluster must be able to hold, whatever runs on it (Ray's `request_resources`).
    pub floors: Vec<Bundles>,
    /// Placement groups that wait, and that the service does not know.
    pub groups: Vec<PendingGroup>,
    /// Whether groups and placements that wait at the service are counted, too.
    pub counts_waiting: bool,
    /// How far into the future it is tried which jobs start, in ns.
    pub horizon_ns: u64,
}

/// An error in what a plan of nodes is asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodesRequestError {
    /// There is no type.
    #[error("no node type is given: give at least one")]
    NoTypes,
    /// There are too many types.
    #[error("{0} node types are given: give at most {NODE_TYPES_MAX}")]
    TooManyTypes(usize),
    /// Two types have one name.
    #[error("node type `{0}` is given twice: rename one")]
    TypeTwice(Arc<str>),
    /// The label that tells the type is one of the type's own, with another value.
    #[error("node type `{name}` has the label `{label}`, which tells the type of a node: leave it out")]
    TypeLabel {
        /// The type.
        name: Arc<str>,
        /// The label.
        label: Arc<str>,
    },
    /// Fewer nodes are allowed than must be there.
    #[error("node type `{name}` has at least {min} nodes and at most {max}: raise `max` or lower `min`")]
    MinAboveMax {
        /// The type.
        name: Arc<str>,
        /// The least number.
        min: u32,
        /// The largest number.
        max: u32,
    },
    /// Fewer nodes are allowed in all than must be there.
    #[error("the types have at least {mins} nodes together, and {max} are allowed in all: allow more")]
    MinsAboveAll {
        /// The sum of the least numbers.
        mins: u64,
        /// The largest number in all.
        max: u32,
    },
    /// More nodes are to be there or are being launched than a plan can have.
    #[error("{0} nodes are to be launched in any case: give at most {PLANNED_NODES_MAX}")]
    TooManyNodes(u64),
    /// There are too many floors or groups.
    #[error("{0} floors or groups are given: give at most {FLOORS_MAX}")]
    TooManyFloors(usize),
    /// There are too many bundles.
    #[error("{0} bundles are given in floors and groups: give at most {PLANNED_TASKS_MAX}")]
    TooManyBundles(u64),
    /// A group has no bundles.
    #[error("group `{0}` has no bundles: give at least one")]
    NoBundles(Arc<str>),
}

impl NodesRequest {
    /// Creates a request without limits but those of the types. Nothing is idle, and no time passes.
    #[must_use]
    pub fn new(types: Vec<NodeType>) -> Self {
        Self {
            types,
            type_label: "node-type".into(),
            nodes_max: None,
            upscaling_speed: 10_000,
            launches_max: crate::limits::LAUNCHES_DEFAULT,
            idle_ns: None,
            floors: Vec::new(),
            groups: Vec::new(),
            counts_waiting: true,
            horizon_ns: 0,
        }
    }

    /// Checks the request.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self) -> Result<(), NodesRequestError> {
        use NodesRequestError as Error;
        let count = self.types.len();
        match count {
            0 => return Err(Error::NoTypes),
            1..=NODE_TYPES_MAX => {}
            _ => return Err(Error::TooManyTypes(count)),
        }
        let mut names = BTreeSet::new();
        let mut fixed = 0;
        for of in &self.types {
            let NodeType { min, max, .. } = *of;
            let name = Arc::clone(&of.name);
            if !names.insert(&of.name) {
                return Err(Error::TypeTwice(name));
            }
            if self.labels(of).is_none() {
                return Err(Error::TypeLabel { name, label: Arc::clone(&self.type_label) });
            }
            if min > max {
                return Err(Error::MinAboveMax { name, min, max });
            }
            fixed += u64::from(min) + u64::from(of.launching);
        }
        if fixed > u64::from(PLANNED_NODES_MAX) {
            return Err(Error::TooManyNodes(fixed));
        }
        let mins = self.types.iter().map(|of| u64::from(of.min)).sum();
        if let Some(max) = self.nodes_max.filter(|&max| u64::from(max) < mins) {
            return Err(Error::MinsAboveAll { mins, max });
        }
        self.check_bundles()
    }

    fn check_bundles(&self) -> Result<(), NodesRequestError> {
        use NodesRequestError as Error;
        let kinds = self.groups.iter().map(|group| group.bundles.len()).sum::<usize>();
        let count = (self.floors.len() + kinds).max(self.groups.len());
        if count > FLOORS_MAX {
            return Err(Error::TooManyFloors(count));
        }
        let is_empty = |group: &&PendingGroup| group.bundles.iter().all(|bundles| bundles.count == 0);
        if let Some(group) = self.groups.iter().find(is_empty) {
            return Err(Error::NoBundles(Arc::clone(&group.name)));
        }
        let of_groups = self.groups.iter().flat_map(|group| &group.bundles);
        let bundles = self.floors.iter().chain(of_groups).map(|bundles| u64::from(bundles.count)).sum();
        if bundles > PLANNED_TASKS_MAX { Err(Error::TooManyBundles(bundles)) } else { Ok(()) }
    }

    /// Returns the labels of the nodes of a type. `None`: it says itself that it is of another type.
    fn labels(&self, of: &NodeType) -> Option<Labels> {
        match of.spec.labels.get(&self.type_label) {
            Some(name) if *name == *of.name => Some(of.spec.labels.clone()),
            Some(_) => None,
            None => {
                let mut pairs = of.spec.labels.pairs().to_vec();
                pairs.push((Arc::clone(&self.type_label), Arc::clone(&of.name)));
                Some(Labels::new(pairs).expect("the label was not there"))
            }
        }
    }

    /// Returns what each node of a type has, in a request that was checked. Its name is not known, so it is empty.
    pub(crate) fn spec(&self, of_type: usize) -> NodeSpec {
        let of = &self.types[of_type];
        let labels = self.labels(of).expect("a request that was checked");
        NodeSpec { name: Arc::from(""), identity: None, labels, ..of.spec.clone() }
    }

    /// Returns the type of a node with these labels.
    pub(crate) fn type_of(&self, labels: &Labels) -> Option<usize> {
        let name = labels.get(&self.type_label)?;
        self.types.iter().position(|of| *of.name == *name)
    }
}
