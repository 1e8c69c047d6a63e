//! Rows of a checkpoint and of the journal: the durable state in a form that can be stored.
//!
//! The engine's own types are not serialisable, so a change to them cannot silently change the format on
//! disk. Data that has the same form on the wire is stored as the wire's body. What a node holds has its resource
//! kinds by number; the first row has their names.

use std::iter;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};
use wharf_core::ids::{AllocationId, BundleId, NodeId, Ordinal, OwnerId, PartitionId, ResourceId};
use wharf_core::index::PolicyState;
use wharf_core::node::{NodeRegistration, NodeState};
use wharf_core::registrar::Catalog;
use wharf_core::resource::{
    Amount, Demand, GpuAssignment, GpuRequest, ReservedAmounts, ResourceRegistry, UnitAssignment,
    UnitAssignments,
};
use wharf_core::rng::Rng;
use wharf_core::state::{
    AllocationRecord, BundleRecord, ClaimRecord, GranularityState, InsideRecord, LeaseRecord, NodeRecord,
    PartitionState, RegistrarState, ReleasingRecord, RemovedNode, ReservationRecord, StoreState,
};
use wharf_core::time::Time;
use wharf_net::convert::{agent_body, agent_facts, node_body, node_spec, unhealthy_bodies};
use wharf_net::protocol::{AgentBody, NodeBody, UnhealthyBody, WireAllocation, WireGroup, WireSession};

use super::group_row::GroupRow;
use super::job_row::{JobRow, PastRow, QueueRow};
use super::session_row::SessionRow;

/// Amounts of each resource, in 1/10,000 of its unit.
#[derive(Serialize, Deserialize)]
pub(super) struct AmountsRow {
    cpu: i64,
    memory: i64,
    gpu: i64,
    /// By number of the resource kind.
    custom: Vec<(u16, i64)>,
}

impl AmountsRow {
    fn new(cpu: Amount, memory: Amount, gpu: i64, custom: &[(ResourceId, Amount)]) -> Self {
        let custom = custom.iter().map(|&(id, amount)| (id.0, amount.units())).collect();
        Self { cpu: cpu.units(), memory: memory.units(), gpu, custom }
    }

    fn of_demand(demand: &Demand) -> Self {
        Self::new(demand.cpu, demand.memory, demand.gpu.units(), demand.custom())
    }

    fn amounts(self) -> anyhow::Result<ReservedAmounts> {
        let custom = self.custom.into_iter();
        Ok(ReservedAmounts {
            cpu: Amount::try_from_units(self.cpu)?,
            memory: Amount::try_from_units(self.memory)?,
            gpu: Amount::try_from_units(self.gpu)?,
            custom: custom
                .map(|(id, units)| Ok((ResourceId(id), Amount::try_from_units(units)?)))
                .collect::<anyhow::Result<_>>()?,
        })
    }

    fn demand(self) -> anyhow::Result<Demand> {
        let ReservedAmounts { cpu, memory, gpu, custom } = self.amounts()?;
        let gpu = GpuRequest::from_amount(gpu).map_err(anyhow::Error::msg)?;
        let custom = Demand::canonical_custom(custom);
        let custom = custom.map_err(|id| anyhow!("resource {} is given twice", id.0))?;
        Ok(Demand { cpu, memory, gpu, custom })
    }
}

/// An id, and the amounts and instances that it holds: of an allocation, a claim, or an allocation inside a
/// bundle.
#[derive(Serialize, Deserialize)]
pub(super) struct HeldRow {
    id: WireAllocation,
    demand: AmountsRow,
    gpu_mask: u16,
    gpu_part: u16,
    /// Kind, mask and part of each unit assignment.
    units: Vec<(u16, u64, u16)>,
}

impl HeldRow {
    fn new(
        id: AllocationId,
        demand: &Demand,
        gpus: GpuAssignment,
        units: Option<&Arc<UnitAssignments>>,
    ) -> Self {
        let units = units.map_or(&[][..], |units| units.as_slice());
        Self {
            id: id.into(),
            demand: AmountsRow::of_demand(demand),
            gpu_mask: gpus.mask,
            gpu_part: gpus.part,
            units: units.iter().map(|&(id, units)| (id.0, units.mask, units.part)).collect(),
        }
    }

    /// Returns the row as an allocation on `node`.
    fn record(self, node: u64) -> anyhow::Result<AllocationRecord> {
        let units = self.units.into_iter();
        let units: UnitAssignments =
            units.map(|(id, mask, part)| (ResourceId(id), UnitAssignment { mask, part })).collect();
        Ok(AllocationRecord {
            id: self.id.into(),
            node: NodeId(node),
            demand: self.demand.demand()?,
            gpus: GpuAssignment { mask: self.gpu_mask, part: self.gpu_part },
            units: (!units.is_empty()).then(|| Arc::new(units)),
            external_id: None,
        })
    }
}

/// A bundle: its group, and its index there.
pub(super) type BundleRow = (WireGroup, u32);

fn bundle_row(BundleId { group, index }: BundleId) -> BundleRow {
    (group.into(), index)
}

fn bundle_id((group, index): BundleRow) -> BundleId {
    BundleId { group: group.into(), index }
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

/// A reservation. `until` is 0 if it has no end.
#[derive(Serialize, Deserialize)]
pub(super) struct ReservationRow {
    node: u64,
    owner: u64,
    until: u64,
    left: AmountsRow,
}

impl ReservationRow {
    pub(super) fn new(own: &ReservationRecord) -> Self {
        let ReservedAmounts { cpu, memory, gpu, custom } = &own.left;
        let left = AmountsRow::new(*cpu, *memory, gpu.units(), custom);
        let until = own.until.map_or(0, |until| until.0);
        Self { node: own.node.0, owner: own.owner.number(), until, left }
    }

    pub(super) fn record(self) -> anyhow::Result<ReservationRecord> {
        Ok(ReservationRecord {
            node: NodeId(self.node),
            owner: OwnerId::new(self.owner).context("it has no owner")?,
            left: self.left.amounts()?,
            until: (self.until > 0).then_some(Time(self.until)),
        })
    }
}

/// An allocation, its node, and its external id.
#[derive(Serialize, Deserialize)]
pub(super) struct AllocationRow(HeldRow, u64, Option<String>);

impl AllocationRow {
    pub(super) fn new(own: &AllocationRecord) -> Self {
        let held = HeldRow::new(own.id, &own.demand, own.gpus, own.units.as_ref());
        Self(held, own.node.0, own.external_id.as_deref().map(str::to_owned))
    }

    pub(super) fn record(self) -> anyhow::Result<AllocationRecord> {
        let Self(held, node, external_id) = self;
        Ok(AllocationRecord { external_id: external_id.map(Into::into), ..held.record(node)? })
    }
}

/// A claim, its node, and the bundle that it will become.
#[derive(Serialize, Deserialize)]
pub(super) struct ClaimRow(HeldRow, u64, Option<BundleRow>);

impl ClaimRow {
    pub(super) fn new(own: &ClaimRecord) -> Self {
        let held = HeldRow::new(own.id, &own.demand, own.gpus, own.units.as_ref());
        Self(held, own.node.0, own.bundle.map(bundle_row))
    }

    pub(super) fn record(self) -> anyhow::Result<ClaimRecord> {
        let Self(held, node, bundle) = self;
        let AllocationRecord { id, node, demand, gpus, units, .. } = held.record(node)?;
        Ok(ClaimRecord { id, node, demand, gpus, units, bundle: bundle.map(bundle_id) })
    }
}

/// An allocation inside a bundle, and the bundle's allocation.
#[derive(Serialize, Deserialize)]
pub(super) struct InsideRow(HeldRow, WireAllocation);

impl InsideRow {
    pub(super) fn new(own: &InsideRecord) -> Self {
        Self(HeldRow::new(own.id, &own.demand, own.gpus, own.units.as_ref()), own.bundle.into())
    }

    pub(super) fn record(self) -> anyhow::Result<InsideRecord> {
        let Self(held, bundle) = self;
        let AllocationRecord { id, demand, gpus, units, .. } = held.record(0)?;
        Ok(InsideRecord { id, bundle: bundle.into(), demand, gpus, units })
    }
}

/// The allocation of a bundle.
#[derive(Serialize, Deserialize)]
pub(super) struct OfBundleRow(WireAllocation, BundleRow);

impl OfBundleRow {
    pub(super) fn new(own: &BundleRecord) -> Self {
        Self(own.allocation.into(), bundle_row(own.bundle))
    }

    pub(super) fn record(self) -> BundleRecord {
        BundleRecord { allocation: self.0.into(), bundle: bundle_id(self.1) }
    }
}

/// A releasing allocation, and the time at which it ends at the latest.
#[derive(Serialize, Deserialize)]
pub(super) struct ReleasingRow(WireAllocation, u64);

impl ReleasingRow {
    pub(super) fn new(own: &ReleasingRecord) -> Self {
        Self(own.allocation.into(), own.until.0)
    }

    pub(super) fn record(self) -> ReleasingRecord {
        ReleasingRecord { allocation: self.0.into(), until: Time(self.1) }
    }
}

/// An allocation with a lease, the session that the lease belongs to, and its deadline.
#[derive(Serialize, Deserialize)]
pub(super) struct LeaseRow(WireAllocation, Option<WireSession>, u64);

impl LeaseRow {
    pub(super) fn new(own: &LeaseRecord) -> Self {
        Self(own.allocation.into(), own.session.map(Into::into), own.until.0)
    }

    pub(super) fn record(self) -> LeaseRecord {
        let Self(allocation, session, until) = self;
        LeaseRecord { allocation: allocation.into(), session: session.map(Into::into), until: Time(until) }
    }
}

/// The policy state of a shard.
#[derive(Serialize, Deserialize)]
pub(super) struct PolicyRow {
    next_fit: u64,
    rng: u64,
}

impl PolicyRow {
    pub(super) fn new(policy: &PolicyState) -> Self {
        Self { next_fit: policy.next_fit.0, rng: policy.rng.state() }
    }

    pub(super) fn state(&self) -> PolicyState {
        PolicyState { next_fit: Ordinal(self.next_fit), rng: Rng::new(self.rng) }
    }
}

/// The granularity of a shard: changes, and θ per dimension.
#[derive(Serialize, Deserialize)]
pub(super) struct GranularityRow(u64, Vec<i64>);

impl GranularityRow {
    pub(super) fn new(state: &GranularityState) -> Self {
        Self(state.changes, state.thetas.clone())
    }

    pub(super) fn state(self) -> GranularityState {
        GranularityState { changes: self.0, thetas: self.1 }
    }
}

/// A row. Rows are read in the order in which they were written.
#[derive(Serialize, Deserialize)]
pub(super) enum Row {
    /// The resource kinds, in order of their ids, and the indexes of the unit-instance kinds. The first row.
    Kinds(Vec<String>, Vec<u16>),
    /// The number of effects in each stream of the journal.
    Streams(Vec<(u16, u64)>),
    /// A removed machine, which gets its old id again when it returns.
    Removed { name: String, identity: String, id: u64, ordinal: u64, version: u64 },
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
    let removed = registrar.removed.iter().map(|node| Row::Removed {
        name: node.name.to_string(),
        identity: node.identity.to_string(),
        id: node.id.0,
        ordinal: node.ordinal.0,
        version: node.version,
    });
    let policies = (0..).zip(state.policies.iter().zip(&state.granularities));
    let shards =
        policies.map(|(shard, (policy, granularity))| shard_row(shard, policy, granularity.as_ref()));
    iter::once(Row::Kinds(registrar.resources.clone(), registrar.unit_instances.clone()))
        .chain(removed)
        .chain(shards)
        .chain(state.groups.iter().map(|group| Row::Group(Box::new(GroupRow::new(group, kinds)))))
        .chain((state.jobs.next_job > 1).then_some(Row::NextJob(state.jobs.next_job)))
        .chain(state.jobs.queues.iter().map(|queue| Row::Queue(Box::new(QueueRow::new(queue, kinds)))))
        .chain(state.jobs.jobs.iter().map(|job| Row::Job(Box::new(JobRow::new(job, kinds)))))
        .chain(state.jobs.past.iter().map(|past| Row::Past(Box::new(PastRow::new(past)))))
        .chain(state.sessions.iter().map(|session| Row::Session(Box::new(SessionRow::new(session)))))
        .chain(state.partitions.iter().flat_map(|partition| rows_of(partition, kinds)))
}

/// Returns the row of the policies of a shard.
pub(super) fn shard_row(shard: u16, policy: &PolicyState, granularity: Option<&GranularityState>) -> Row {
    Row::Shard(shard, PolicyRow::new(policy), granularity.map(GranularityRow::new))
}

/// Returns the rows of a partition.
pub(super) fn rows_of(partition: &PartitionState, kinds: &ResourceRegistry) -> impl Iterator<Item = Row> {
    let nodes = partition.nodes.iter().map(|node| Row::Node(Box::new(NodeRow::new(node, kinds))));
    let allocations = partition.allocations.iter().map(|own| Row::Allocation(AllocationRow::new(own)));
    let reservations = partition.reservations.iter().map(|own| Row::Reservation(ReservationRow::new(own)));
    let claims = partition.claims.iter().map(|own| Row::Claim(ClaimRow::new(own)));
    let releasing = partition.releasing.iter().map(|own| Row::Releasing(ReleasingRow::new(own)));
    let bundles = partition.bundles.iter().map(|own| Row::Bundle(OfBundleRow::new(own)));
    let inside = partition.inside.iter().map(|own| Row::Inside(InsideRow::new(own)));
    let leases = partition.leases.iter().map(|own| Row::Lease(LeaseRow::new(own)));
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
        let partition = &mut partitions[self.partition];
        match row {
            Row::Kinds(resources, unit_instances) => {
                registrar.resources = resources;
                registrar.unit_instances = unit_instances;
                self.catalog.resources = Arc::new(kinds_of(registrar)?);
            }
            Row::Streams(streams) => self.streams = streams,
            Row::Removed { name, identity, id, ordinal, version } => registrar.removed.push(RemovedNode {
                name: name.into(),
                identity: identity.into(),
                id: NodeId(id),
                ordinal: Ordinal(ordinal),
                version,
            }),
            Row::Shard(shard, policy, granularity) => {
                // A page of a checkpoint repeats the policies of its shard, and the last one counts.
                policies.truncate(usize::from(shard));
                granularities.truncate(usize::from(shard));
                (policies.len() == usize::from(shard))
                    .then_some(())
                    .context("a shard before it is missing")?;
                policies.push(policy.state());
                granularities.push(granularity.map(GranularityRow::state));
            }
            Row::Group(group) => groups.push(group.record(&self.catalog)?),
            Row::Partition(id) => {
                self.partition = usize::from(id);
                partitions.get(self.partition).context("its partition is none")?;
            }
            Row::Node(node) => {
                let kinds = Arc::make_mut(&mut self.catalog.resources);
                partition.nodes.push(node.record(partition.id, kinds)?);
            }
            Row::Allocation(row) => partition.allocations.push(row.record()?),
            Row::Reservation(row) => partition.reservations.push(row.record()?),
            Row::Claim(row) => partition.claims.push(row.record()?),
            Row::Releasing(row) => partition.releasing.push(row.record()),
            Row::Bundle(row) => partition.bundles.push(row.record()),
            Row::Inside(row) => partition.inside.push(row.record()?),
            Row::Session(session) => sessions.push(session.record()),
            Row::Lease(row) => partition.leases.push(row.record()),
            Row::NextJob(number) => jobs.next_job = number,
            Row::Queue(queue) => jobs.queues.push(queue.record(&self.catalog.resources)?),
            Row::Job(job) => jobs.jobs.push(job.record(&self.catalog)?),
            Row::Past(past) => jobs.past.push(past.record()?),
        }
        Ok(())
    }
}
