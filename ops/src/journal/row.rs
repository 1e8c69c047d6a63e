//! Rows of a checkpoint and of the journal: the durable state in a form that can be stored.
//!
//! Data that has the same form on the wire is stored as the wire's body. What a node holds has its resource kinds by
//! number; the first row has their names.

use std::iter;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};
use wharf_core::ids::{BundleId, NodeId, Ordinal, PartitionId};
use wharf_core::index::PolicyState;
use wharf_core::node::{NodeRegistration, NodeState};
use wharf_core::registrar::Catalog;
use wharf_core::resource::{
    Demand, GpuAssignment, GpuRequest, ReservedAmounts, ResourceRegistry, UnitAssignment, UnitAssignments,
};
use wharf_core::state::{
    AllocationRecord, BundleRecord, ClaimRecord, GranularityState, InsideRecord, LeaseRecord, NodeRecord,
    PartitionState, RegistrarState, ReleasingRecord, RemovedNode, ReservationRecord, StoreState,
};
use wharf_net::convert::{agent_body, agent_facts, node_body, node_spec, unhealthy_bodies};
use wharf_net::protocol::{AgentBody, NodeBody, UnhealthyBody, WireAllocation, WireGroup, WireSession};

use super::group_row::GroupRow;
use super::job_row::{ClassRow, JobRow, PastRow, QueueRow};
use super::mirror::{Stored, rows};
use super::session_row::SessionRow;

rows! {
    /// Amounts of each resource, in 1/10,000 of its unit.
    struct AmountsRow of ReservedAmounts {
        cpu: i64,
        memory: i64,
        gpu: i64,
        /// By number of the resource kind.
        custom: Vec<(u16, i64)>,
    }

    struct GpusRow of GpuAssignment { mask: u16, part: u16 }

    struct InstancesRow of UnitAssignment { mask: u64, part: u16 }

    /// A bundle: its group, and its index there.
    struct BundleIdRow of BundleId { group: WireGroup, index: u32 }

    /// A reservation.
    struct ReservationRow of ReservationRecord {
        node: u64,
        owner: u64,
        /// 0 if it has no end.
        until: u64,
        left: AmountsRow,
    }

    /// An allocation.
    struct AllocationRow of AllocationRecord {
        id: WireAllocation,
        demand: AmountsRow,
        gpus: GpusRow,
        units: UnitsRow,
        node: u64,
        external_id: Option<String>,
    }

    /// A claim, and the bundle that it will become.
    struct ClaimRow of ClaimRecord {
        id: WireAllocation,
        demand: AmountsRow,
        gpus: GpusRow,
        units: UnitsRow,
        node: u64,
        bundle: Option<BundleIdRow>,
    }

    /// An allocation inside a bundle, and the bundle's allocation.
    struct InsideRow of InsideRecord {
        id: WireAllocation,
        demand: AmountsRow,
        gpus: GpusRow,
        units: UnitsRow,
        bundle: WireAllocation,
    }

    /// The allocation of a bundle.
    struct OfBundleRow of BundleRecord { allocation: WireAllocation, bundle: BundleIdRow }

    /// A releasing allocation, and the time at which it ends at the latest.
    struct ReleasingRow of ReleasingRecord { allocation: WireAllocation, until: u64 }

    /// An allocation with a lease, the session that the lease belongs to, and its deadline.
    struct LeaseRow of LeaseRecord { allocation: WireAllocation, session: Option<WireSession>, until: u64 }

    /// The policy state of a shard.
    struct PolicyRow of PolicyState { next_fit: u64, rng: u64 }

    /// The granularity of a shard: changes, and θ per dimension.
    struct GranularityRow of GranularityState { changes: u64, thetas: Vec<i64> }

    /// A removed machine, which gets its old id again when it returns.
    struct RemovedRow of RemovedNode { name: String, identity: String, id: u64, ordinal: u64, version: u64 }
}

impl Stored<Demand> for AmountsRow {
    fn of(demand: &Demand, kinds: &ResourceRegistry) -> Self {
        Self::of(&ReservedAmounts::from(demand), kinds)
    }

    fn read(self, catalog: &mut Catalog) -> anyhow::Result<Demand> {
        let ReservedAmounts { cpu, memory, gpu, custom } = Stored::read(self, catalog)?;
        let gpu = GpuRequest::from_amount(gpu).map_err(anyhow::Error::msg)?;
        let custom = Demand::canonical_custom(custom);
        let custom = custom.map_err(|id| anyhow!("resource {} is given twice", id.0))?;
        Ok(Demand { cpu, memory, gpu, custom })
    }
}

/// The instances of each unit-instance kind. None: there are no such kinds.
pub(super) type UnitsRow = Vec<(u16, InstancesRow)>;

impl Stored<Option<Arc<UnitAssignments>>> for UnitsRow {
    fn of(units: &Option<Arc<UnitAssignments>>, kinds: &ResourceRegistry) -> Self {
        units.as_deref().map_or_else(Self::new, |units| Self::of(units, kinds))
    }

    fn read(self, catalog: &mut Catalog) -> anyhow::Result<Option<Arc<UnitAssignments>>> {
        let units: UnitAssignments = Stored::read(self, catalog)?;
        Ok((!units.is_empty()).then(|| Arc::new(units)))
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct NodeRow {
    id: u64,
    ordinal: u64,
    version: u64,
    state: u8,
    body: NodeBody,
    agent: Option<AgentBody>,
    unhealthy: Vec<UnhealthyBody>,
}

impl NodeRow {
    pub(super) fn new(node: &NodeRecord, kinds: &ResourceRegistry) -> Self {
        let NodeRegistration { id, ordinal, spec, agent, .. } = &node.registration;
        Self {
            id: id.0,
            ordinal: ordinal.0,
            version: node.version,
            state: node.state.number(),
            body: node_body(spec, kinds),
            agent: agent.as_deref().map(agent_body),
            unhealthy: unhealthy_bodies(&node.unhealthy),
        }
    }

    pub(super) fn record(
        self,
        partition: PartitionId,
        kinds: &mut ResourceRegistry,
    ) -> anyhow::Result<NodeRecord> {
        let registration = NodeRegistration {
            id: NodeId(self.id),
            ordinal: Ordinal(self.ordinal),
            partition,
            spec: node_spec(self.body, kinds)?,
            agent: self.agent.map(|agent| agent_facts(agent).into()),
        };
        let state = NodeState::from_number(self.state).context("its state is none")?;
        let unhealthy = self.unhealthy.into_iter().map(|body| (body.instance, body.reason.into())).collect();
        Ok(NodeRecord { registration, state, version: self.version, unhealthy })
    }
}

/// A row. Rows are read in the order in which they were written.
#[derive(Serialize, Deserialize)]
pub(super) enum Row {
    /// The resource kinds, in order of their ids, and the indexes of the unit-instance kinds. The first row.
    Kinds(Vec<String>, Vec<u16>),
    /// The number of effects in each stream of the journal.
    Streams(Vec<(u16, u64)>),
    /// A removed machine.
    Removed(RemovedRow),
    /// The policy state of a shard, and its granularity if that adapts to the nodes.
    Shard(u16, PolicyRow, Option<GranularityRow>),
    /// A placement group.
    Group(Box<GroupRow>),
    /// The number of the partition that has the rows after this one.
    Partition(u16),
    /// A node.
    Node(Box<NodeRow>),
    /// An allocation.
    Allocation(AllocationRow),
    /// A reservation.
    Reservation(ReservationRow),
    /// A claim. The claims of a node are in serving order.
    Claim(ClaimRow),
    /// A releasing allocation.
    Releasing(ReleasingRow),
    /// The allocation of a bundle.
    Bundle(OfBundleRow),
    /// An allocation inside a bundle.
    Inside(InsideRow),
    /// A client session.
    Session(Box<SessionRow>),
    /// The lease of an allocation.
    Lease(LeaseRow),
    /// The number of the next job.
    NextJob(u64),
    /// A queue. Its parent comes before it.
    Queue(Box<QueueRow>),
    /// A job with its tasks.
    Job(Box<JobRow>),
    /// What a queue or a user in it has held.
    Past(Box<PastRow>),
    /// A priority class.
    Class(Box<ClassRow>),
}

/// Returns the resource kinds of a registrar.
///
/// # Errors
/// When there are more than a registrar learns.
pub(super) fn kinds_of(registrar: &RegistrarState) -> anyhow::Result<ResourceRegistry> {
    let names = registrar.resources.iter().map(String::as_str);
    Ok(ResourceRegistry::with_names(names, &registrar.unit_instances)?)
}

/// Returns a catalog of the resource kinds of a registrar.
pub(super) fn catalog_of(registrar: &RegistrarState) -> Catalog {
    let kinds = kinds_of(registrar).expect("the kinds of a checkpoint were read");
    let mut catalog = Catalog::default();
    catalog.resources = Arc::new(kinds);
    catalog
}

/// Returns the rows of a state. `kinds` are its resource kinds.
pub(super) fn rows<'a>(state: &'a StoreState, kinds: &'a ResourceRegistry) -> impl Iterator<Item = Row> + 'a {
    let registrar = &state.registrar;
    let removed = registrar.removed.iter().map(|node| Row::Removed(Stored::of(node, kinds)));
    let policies = (0..).zip(state.policies.iter().zip(&state.granularities));
    let shards =
        policies.map(|(shard, (policy, granularity))| shard_row(shard, policy, granularity.as_ref(), kinds));
    iter::once(Row::Kinds(registrar.resources.clone(), registrar.unit_instances.clone()))
        .chain(removed)
        .chain(shards)
        .chain(state.groups.iter().map(|group| Row::Group(Box::new(Stored::of(group, kinds)))))
        .chain((state.jobs.next_job > 1).then_some(Row::NextJob(state.jobs.next_job)))
        .chain(state.jobs.queues.iter().map(|queue| Row::Queue(Box::new(Stored::of(queue, kinds)))))
        .chain(state.jobs.classes.iter().map(|class| Row::Class(Box::new(Stored::of(class, kinds)))))
        .chain(state.jobs.jobs.iter().map(|job| Row::Job(Box::new(Stored::of(job, kinds)))))
        .chain(state.jobs.past.iter().map(|past| Row::Past(Box::new(Stored::of(past, kinds)))))
        .chain(state.sessions.iter().map(|session| Row::Session(Box::new(Stored::of(session, kinds)))))
        .chain(state.partitions.iter().flat_map(|partition| rows_of(partition, kinds)))
}

/// Returns the row of the policies of a shard.
pub(super) fn shard_row(
    shard: u16,
    policy: &PolicyState,
    granularity: Option<&GranularityState>,
    kinds: &ResourceRegistry,
) -> Row {
    Row::Shard(shard, Stored::of(policy, kinds), granularity.map(|state| Stored::of(state, kinds)))
}

/// Returns the rows of a partition.
pub(super) fn rows_of(partition: &PartitionState, kinds: &ResourceRegistry) -> impl Iterator<Item = Row> {
    let nodes = partition.nodes.iter().map(|node| Row::Node(Box::new(NodeRow::new(node, kinds))));
    let allocations = partition.allocations.iter().map(|own| Row::Allocation(Stored::of(own, kinds)));
    let reservations = partition.reservations.iter().map(|own| Row::Reservation(Stored::of(own, kinds)));
    let claims = partition.claims.iter().map(|own| Row::Claim(Stored::of(own, kinds)));
    let releasing = partition.releasing.iter().map(|own| Row::Releasing(Stored::of(own, kinds)));
    let bundles = partition.bundles.iter().map(|own| Row::Bundle(Stored::of(own, kinds)));
    let inside = partition.inside.iter().map(|own| Row::Inside(Stored::of(own, kinds)));
    let leases = partition.leases.iter().map(|own| Row::Lease(Stored::of(own, kinds)));
    let rest = reservations.chain(claims).chain(releasing).chain(bundles).chain(inside).chain(leases);
    iter::once(Row::Partition(partition.id.0)).chain(nodes).chain(allocations).chain(rest)
}

/// Adds the records of rows to a new state.
pub(super) struct Reader<'a> {
    state: &'a mut StoreState,
    /// Has the resource kinds.
    catalog: Catalog,
    /// The index of the partition that has the next rows.
    partition: usize,
    streams: Vec<(u16, u64)>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(state: &'a mut StoreState) -> Self {
        Self { state, catalog: Catalog::default(), partition: 0, streams: Vec::new() }
    }

    /// Returns the number of effects in each stream.
    pub(super) fn streams(self) -> Vec<(u16, u64)> {
        self.streams
    }

    /// Adds the next row.
    ///
    /// # Errors
    /// When the row has a form that this version does not write.
    pub(super) fn add(&mut self, row: Row) -> anyhow::Result<()> {
        let StoreState { registrar, partitions, policies, granularities, groups, jobs, sessions, .. } =
            &mut *self.state;
        let catalog = &mut self.catalog;
        let partition = &mut partitions[self.partition];
        match row {
            Row::Kinds(resources, unit_instances) => {
                registrar.resources = resources;
                registrar.unit_instances = unit_instances;
                catalog.resources = Arc::new(kinds_of(registrar)?);
            }
            Row::Streams(streams) => self.streams = streams,
            Row::Removed(row) => registrar.removed.push(row.read(catalog)?),
            Row::Shard(shard, policy, granularity) => {
                // A page of a checkpoint repeats the policies of its shard, and the last one counts.
                policies.truncate(usize::from(shard));
                granularities.truncate(usize::from(shard));
                (policies.len() == usize::from(shard))
                    .then_some(())
                    .context("a shard before it is missing")?;
                policies.push(policy.read(catalog)?);
                granularities.push(granularity.read(catalog)?);
            }
            Row::Group(group) => groups.push(*group.read(catalog)?),
            Row::Partition(id) => {
                self.partition = usize::from(id);
                partitions.get(self.partition).context("its partition is none")?;
            }
            Row::Node(node) => {
                let kinds = Arc::make_mut(&mut catalog.resources);
                partition.nodes.push(node.record(partition.id, kinds)?);
            }
            Row::Allocation(row) => partition.allocations.push(row.read(catalog)?),
            Row::Reservation(row) => partition.reservations.push(row.read(catalog)?),
            Row::Claim(row) => partition.claims.push(row.read(catalog)?),
            Row::Releasing(row) => partition.releasing.push(row.read(catalog)?),
            Row::Bundle(row) => partition.bundles.push(row.read(catalog)?),
            Row::Inside(row) => partition.inside.push(row.read(catalog)?),
            Row::Session(session) => sessions.push(*session.read(catalog)?),
            Row::Lease(row) => partition.leases.push(row.read(catalog)?),
            Row::NextJob(number) => jobs.next_job = number,
            Row::Queue(queue) => jobs.queues.push(*queue.read(catalog)?),
            Row::Job(job) => jobs.jobs.push(*job.read(catalog)?),
            Row::Class(class) => jobs.classes.push(*class.read(catalog)?),
            Row::Past(past) => jobs.past.push(*past.read(catalog)?),
        }
        Ok(())
    }
}
