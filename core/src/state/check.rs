//! Checks of a durable state as plain data, before an engine is opened over it.
//!
//! An engine asserts what is checked here. A start that checks first can refuse a state that contradicts itself, and say
//! why, where the engine could only stop the process. [`Engine::check`](crate::engine::Engine::check) checks the rest.

use std::collections::BTreeSet;

use super::{PartitionState, StoreState};
use crate::broken::{Broken, broken};
use crate::hash::stable_hash;
use crate::ids::{AllocationId, NodeId, Ordinal};
use crate::limits::{CLAIMS_PER_NODE_MAX, GPU_INSTANCES_MAX};
use crate::map::FixedMap;
use crate::node::NodeRegistration;

/// What is unique over all partitions.
#[derive(Default)]
struct Seen<'a> {
    nodes: Vec<NodeId>,
    ordinals: Vec<Ordinal>,
    /// With their hashes, by which they are sorted: most comparisons are those of numbers. Equal hashes do no harm.
    names: Vec<(u64, &'a str)>,
}

impl Seen<'_> {
    /// Sorts everything, and finds out whether something was there twice.
    fn has_duplicates(&mut self) -> bool {
        self.nodes.sort_unstable();
        self.ordinals.sort_unstable();
        self.names.sort_unstable();
        has_pair(&self.nodes) || has_pair(&self.ordinals) || has_pair(&self.names)
    }
}

/// Returns whether two neighbours are equal.
fn has_pair<T: PartialEq>(sorted: &[T]) -> bool {
    sorted.windows(2).any(|pair| pair[0] == pair[1])
}

impl StoreState {
    /// Checks that the records refer to each other as an engine writes them. O(state).
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), Broken> {
        let mut seen = Seen::default();
        for (at, partition) in self.partitions.iter().enumerate() {
            if usize::from(partition.id.0) != at {
                return Err(broken!("partition {} is at the place of partition {at}", partition.id.0));
            }
            self.check_nodes(partition, &mut seen)?;
            self.check_allocations(partition)?;
            check_rest(partition)?;
        }
        if seen.has_duplicates() {
            return Err(self.find_duplicate());
        }
        for removed in &self.registrar.removed {
            if removed.id.0 >= self.registrar.next_node || seen.nodes.binary_search(&removed.id).is_ok() {
                return Err(broken!("node {} is recorded as removed, and it is not", removed.id));
            }
        }
        if let Some(group) =
            self.groups.iter().find(|group| group.id.is_in_queue() != group.spec.queue.is_some())
        {
            return Err(broken!("group {} is in queue {:?}", group.id, group.spec.queue));
        }
        let ascend = self.groups.windows(2).all(|pair| pair[0].id < pair[1].id);
        ascend.then_some(()).ok_or_else(|| broken!("a group is recorded twice"))
    }

    fn check_nodes<'a>(&self, partition: &'a PartitionState, seen: &mut Seen<'a>) -> Result<(), Broken> {
        for node in &partition.nodes {
            let registration = &node.registration;
            let id = registration.id;
            if registration.partition != partition.id {
                return Err(broken!(
                    "node {id} of partition {} is in partition {}",
                    registration.partition.0,
                    partition.id.0
                ));
            }
            if id.0 >= self.registrar.next_node {
                return Err(broken!("node {id} has an id that was never issued"));
            }
            seen.nodes.push(id);
            seen.ordinals.push(registration.ordinal);
            let name = &*registration.spec.name;
            seen.names.push((stable_hash(name.as_bytes()), name));
            if usize::from(registration.spec.gpus) > GPU_INSTANCES_MAX {
                return Err(broken!("node {id} has {} GPUs", registration.spec.gpus));
            }
        }
        Ok(())
    }

    /// Returns the first node that has the id, the ordinal or the name of one before it.
    fn find_duplicate(&self) -> Broken {
        let mut ids = BTreeSet::new();
        let mut ordinals = BTreeSet::new();
        let mut names = BTreeSet::new();
        let nodes = self.partitions.iter().flat_map(|partition| &partition.nodes);
        let mut nodes = nodes.map(|node| &node.registration);
        let twice = nodes.find(|node| {
            !(ids.insert(node.id) && ordinals.insert(node.ordinal) && names.insert(&node.spec.name))
        });
        let NodeRegistration { id, spec, .. } = twice.expect("something is there twice");
        broken!("node {id} (`{}`) has the id, the ordinal or the name of another", spec.name)
    }

    fn check_allocations(&self, partition: &PartitionState) -> Result<(), Broken> {
        let nodes = partition.nodes.iter().map(|node| (node.registration.id, ()));
        let nodes: FixedMap<NodeId, ()> = nodes.collect();
        let granted = partition.allocations.iter().map(|one| (one.id, one.node));
        let claimed = partition.claims.iter().map(|claim| (claim.id, claim.node));
        for (id, node) in granted.chain(claimed) {
            if id.partition != partition.id || id.incarnation > self.incarnation {
                return Err(broken!("allocation {id} of partition {} was never granted", partition.id.0));
            }
            if !nodes.contains_key(&node) {
                return Err(broken!("allocation {id} is on node {node}, which is not recorded"));
            }
        }
        let granted = partition.allocations.iter().map(|one| (one.id, &one.demand, one.gpus));
        let claimed = partition.claims.iter().map(|claim| (claim.id, &claim.demand, claim.gpus));
        let mut all = granted.chain(claimed);
        if let Some((id, ..)) = all.find(|(_, demand, gpus)| gpus.units() != demand.gpu.units()) {
            return Err(broken!("allocation {id} has other GPUs than it asks"));
        }
        // Ids that differ in their tenant alone would name one record.
        let place = |id: AllocationId| (id.incarnation, id.partition, id.sequence);
        if !partition.allocations.windows(2).all(|pair| place(pair[0].id) < place(pair[1].id)) {
            return Err(broken!("partition {} has an allocation twice", partition.id.0));
        }
        let reserved = partition.reservations.iter().map(|own| own.node);
        match reserved.into_iter().find(|node| !nodes.contains_key(node)) {
            Some(node) => Err(broken!("node {node} is reserved, and it is not recorded")),
            None => Ok(()),
        }
    }
}

/// Checks what belongs to the allocations of a partition.
fn check_rest(partition: &PartitionState) -> Result<(), Broken> {
    let allocations = &partition.allocations;
    let is_live = |id: AllocationId| allocations.binary_search_by_key(&id, |one| one.id).is_ok();
    if let Some(claim) = partition.claims.iter().find(|claim| is_live(claim.id)) {
        return Err(broken!("allocation {} is granted, and it is a claim", claim.id));
    }
    let mut claims = FixedMap::default();
    let mut claimed: FixedMap<NodeId, usize> = FixedMap::default();
    for claim in &partition.claims {
        let of_node = claimed.entry(claim.node).or_default();
        *of_node += 1;
        if claims.insert(claim.id, ()).is_some() || *of_node > CLAIMS_PER_NODE_MAX {
            return Err(broken!(
                "allocation {} is claimed twice, or node {} too often",
                claim.id,
                claim.node
            ));
        }
    }
    if let Some(releasing) = partition.releasing.iter().find(|one| !is_live(one.allocation)) {
        return Err(broken!("allocation {} is being released, and it is not live", releasing.allocation));
    }
    let mut bundles = FixedMap::default();
    for record in &partition.bundles {
        let before = bundles.insert(record.allocation, record.bundle);
        if !is_live(record.allocation) || before.is_some() {
            return Err(broken!("allocation {} is recorded as a bundle, and it is none", record.allocation));
        }
        if record.allocation.tenant != record.bundle.group.tenant {
            return Err(broken!("bundle {} is on {}, of another tenant", record.bundle, record.allocation));
        }
    }
    if let Some(one) = partition.inside.iter().find(|one| one.id.tenant != one.bundle.tenant) {
        return Err(broken!("allocation {} is inside {}, of another tenant", one.id, one.bundle));
    }
    let mut inside = FixedMap::default();
    if let Some(one) = partition.inside.iter().find(|one| inside.insert(one.id, ()).is_some()) {
        return Err(broken!("allocation {} is inside bundles twice", one.id));
    }
    match partition.inside.iter().find(|one| !bundles.contains_key(&one.bundle)) {
        Some(one) => Err(broken!("allocation {} is inside {}, which is no bundle", one.id, one.bundle)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::group::{GroupSpec, Strategy};
    use crate::ids::{BundleId, GroupId, Incarnation, PartitionId, TenantId};
    use crate::node::{Labels, NodeRegistration, NodeSpec, NodeState, Taints};
    use crate::request::{PlacementRequest, Policy};
    use crate::resource::{Amount, Demand, GpuAssignment};
    use crate::state::{
        AllocationRecord, BundleRecord, ClaimRecord, GroupRecord, InsideRecord, NodeRecord, ReleasingRecord,
    };
    use crate::time::Time;

    fn node(number: u64) -> NodeRecord {
        let spec = NodeSpec {
            name: format!("n{number}").into(),
            identity: None,
            cpu: Amount::whole(8),
            memory: Amount::whole(64),
            gpus: 2,
            custom: None,
            labels: Labels::default(),
            taints: Taints::default(),
        };
        let partition = PartitionId(1);
        let id = NodeId(number);
        let ordinal = Ordinal(number);
        let registration = NodeRegistration { id, ordinal, partition, spec, agent: None };
        NodeRecord { registration, state: NodeState::Ready, version: 1, unhealthy: Vec::new() }
    }

    fn id(sequence: u64) -> AllocationId {
        AllocationId {
            incarnation: Incarnation(2),
            partition: PartitionId(1),
            sequence,
            tenant: TenantId::OPERATOR,
        }
    }

    fn state() -> StoreState {
        let mut state = StoreState::create(2);
        state.incarnation = Incarnation(2);
        state.registrar.next_node = 5;
        let of_node = |sequence| AllocationRecord {
            id: id(sequence),
            node: NodeId(3),
            demand: Demand::default(),
            gpus: GpuAssignment::NONE,
            units: None,
            external_id: None,
        };
        let demand = Demand::default();
        let gpus = GpuAssignment::NONE;
        let group = GroupId { incarnation: Incarnation(1), number: 1, tenant: TenantId::OPERATOR };
        let bundle = BundleId { group, index: 0 };
        let partition = &mut state.partitions[1];
        partition.nodes = vec![node(3), node(4)];
        partition.allocations = vec![of_node(1), of_node(2)];
        partition.bundles = vec![BundleRecord { allocation: id(1), bundle }];
        partition.inside =
            vec![InsideRecord { id: id(7), bundle: id(1), demand: demand.clone(), gpus, units: None }];
        partition.releasing = vec![ReleasingRecord { allocation: id(2), until: Time(9) }];
        partition.claims =
            vec![ClaimRecord { id: id(8), node: NodeId(3), demand, gpus, units: None, bundle: None }];
        state
    }

    /// Each case plants one contradiction; a check that is left out lets its case pass.
    #[test]
    fn each_contradiction_is_found() {
        assert_eq!(state().check(), Ok(()));
        type Plant = fn(&mut StoreState);
        let claimed_again = |s: &mut StoreState| {
            let claim = s.partitions[1].claims[0].clone();
            s.partitions[1].claims.push(claim);
        };
        let inside_again = |s: &mut StoreState| {
            let inside = s.partitions[1].inside[0].clone();
            s.partitions[1].inside.push(inside);
        };
        let cases: [(Plant, &str); 19] = [
            (|s| s.partitions.swap(0, 1), "is at the place"),
            (|s| s.partitions[1].nodes[0].registration.partition = PartitionId(0), "is in partition"),
            (|s| s.registrar.next_node = 4, "never issued"),
            (|s| s.partitions[1].nodes[1].registration.ordinal = Ordinal(3), "of another"),
            (|s| s.partitions[1].nodes[1].registration.spec.name = "n3".into(), "of another"),
            (|s| s.partitions[1].nodes[0].registration.spec.gpus = 17, "17 GPUs"),
            (|s| s.incarnation = Incarnation(1), "never granted"),
            (|s| s.partitions[1].allocations[0].node = NodeId(2), "not recorded"),
            (|s| s.partitions[1].allocations[1].id = id(1), "twice"),
            (|s| s.partitions[1].allocations[1].id = AllocationId { tenant: TenantId(1), ..id(1) }, "twice"),
            (|s| s.partitions[1].bundles[0].bundle.group.tenant = TenantId(1), "of another tenant"),
            (|s| s.partitions[1].inside[0].id.tenant = TenantId(1), "of another tenant"),
            (|s| s.partitions[1].claims[0].id = id(2), "is a claim"),
            (|s| s.partitions[1].releasing[0].allocation = id(8), "not live"),
            (|s| s.partitions[1].bundles[0].allocation = id(8), "it is none"),
            (|s| s.partitions[1].inside[0].bundle = id(2), "no bundle"),
            (|s| s.partitions[1].allocations[0].gpus = GpuAssignment { mask: 1, part: 5 }, "other GPUs"),
            (claimed_again, "is claimed twice"),
            (inside_again, "inside bundles twice"),
        ];
        for (plant, says) in cases {
            let mut state = state();
            plant(&mut state);
            let found = state.check().expect_err(says);
            assert!(found.what().contains(says), "{found} does not say `{says}`");
        }
    }

    #[test]
    fn the_id_of_a_group_tells_whether_it_is_in_a_queue() {
        let request = Arc::new(PlacementRequest::new(Demand::default(), Policy::BestFit));
        let group = |number: u64, queue: Option<&str>| {
            let id = GroupId { incarnation: Incarnation(1), number, tenant: TenantId::OPERATOR };
            let queue = queue.map(Into::into);
            let spec = GroupSpec { queue, ..GroupSpec::new(vec![Arc::clone(&request)], Strategy::Pack) };
            GroupRecord { id, spec: Arc::new(spec), bundles: Vec::new(), next_index: 1 }
        };
        let check = |group| StoreState { groups: vec![group], ..state() }.check();
        assert_eq!((check(group(4, None)), check(group(GroupId::IN_QUEUE, Some("q")))), (Ok(()), Ok(())));
        for wrong in [group(4, Some("q")), group(GroupId::IN_QUEUE | 4, None)] {
            assert!(check(wrong).is_err_and(|broken| broken.what().contains("is in queue")));
        }
    }
}
