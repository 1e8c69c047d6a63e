//! Units of the journal in a form that can be stored.

use std::sync::Arc;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use wharf_core::ids::{GroupId, Incarnation, NodeId, Ordinal, PartitionId, ShardId};
use wharf_core::journal::{BeginCause, Changes, Effect, NodeImage, NodeNews, NodeRemoved, Unit};
use wharf_core::registrar::Catalog;
use wharf_core::resource::ResourceRegistry;
use wharf_core::state::GroupRecord;
use wharf_core::time::Time;
use wharf_core::view::EndCause;
use wharf_net::protocol::{WireAllocation, WireGroup, WireSession, WireStatement};

use super::group_row::GroupRow;
use super::job_row::JobsChangeRow;
use super::row::{
    AllocationRow, ClaimRow, GranularityRow, InsideRow, LeaseRow, NodeRow, OfBundleRow, PolicyRow,
    ReleasingRow, ReservationRow,
};
use super::session_row::{DoneRow, SessionChangeRow};

/// A node and what it holds except allocations.
#[derive(Serialize, Deserialize)]
struct ImageRow {
    partition: u16,
    node: NodeRow,
    reservation: Option<ReservationRow>,
    claims: Vec<ClaimRow>,
    releasing: Vec<ReleasingRow>,
}

#[derive(Serialize, Deserialize)]
enum EffectRow {
    /// With the number of its cause.
    Allocated(AllocationRow, u8),
    Bundle(OfBundleRow),
    Inside(InsideRow),
    Ended(WireAllocation, u8),
    /// With the sum of what changed.
    Node(Box<ImageRow>, u8),
    Version {
        partition: u16,
        node: u64,
        version: u64,
    },
    NodeRemoved {
        partition: u16,
        id: u64,
        ordinal: u64,
        name: String,
        identity: Option<String>,
        version: u64,
    },
    Leased(LeaseRow),
    SessionRenewed {
        partition: u16,
        session: WireSession,
        until: u64,
    },
}

#[derive(Serialize, Deserialize)]
enum ChangesRow {
    Started {
        incarnation: u32,
        shards: u16,
    },
    Shard {
        shard: u16,
        effects: Vec<EffectRow>,
        policy: Option<PolicyRow>,
        granularity: Option<GranularityRow>,
    },
    Kinds(Vec<String>, Vec<u16>),
    Groups(Vec<(WireGroup, Option<Box<GroupRow>>)>),
    Sessions(Vec<SessionChangeRow>),
    Decided(WireStatement, u16),
    Jobs(Vec<JobsChangeRow>),
}

/// A unit.
#[derive(Serialize, Deserialize)]
pub(super) struct UnitRow {
    now: u64,
    changes: ChangesRow,
    done: Vec<DoneRow>,
}

fn cause_number(cause: EndCause) -> u8 {
    match cause {
        EndCause::Released => 0,
        EndCause::Evicted => 1,
        EndCause::NodeRemoved => 2,
        EndCause::NodeLost => 3,
        EndCause::Expired => 4,
        EndCause::TakenBack => 5,
    }
}

fn cause(number: u8) -> anyhow::Result<EndCause> {
    Ok(match number {
        0 => EndCause::Released,
        1 => EndCause::Evicted,
        2 => EndCause::NodeRemoved,
        3 => EndCause::NodeLost,
        4 => EndCause::Expired,
        5 => EndCause::TakenBack,
        _ => anyhow::bail!("{number} is no cause of an end"),
    })
}

fn begin_number(cause: BeginCause) -> u8 {
    match cause {
        BeginCause::Placed => 0,
        BeginCause::Waited => 1,
        BeginCause::Committed => 2,
        BeginCause::Claimed => 3,
        BeginCause::Adopted => 4,
    }
}

fn begin_cause(number: u8) -> anyhow::Result<BeginCause> {
    Ok(match number {
        0 => BeginCause::Placed,
        1 => BeginCause::Waited,
        2 => BeginCause::Committed,
        3 => BeginCause::Claimed,
        4 => BeginCause::Adopted,
        _ => anyhow::bail!("{number} is no cause of an allocation"),
    })
}

fn news_number(news: NodeNews) -> u8 {
    let NodeNews { is_new, spec, state } = news;
    u8::from(is_new) | u8::from(spec) << 1 | u8::from(state) << 2
}

fn news(number: u8) -> NodeNews {
    let has = |bit: u8| number & bit != 0;
    NodeNews { is_new: has(1), spec: has(2), state: has(4) }
}

impl EffectRow {
    fn new(effect: &Effect, kinds: &ResourceRegistry) -> Self {
        match effect {
            Effect::Allocated(record, cause) => {
                Self::Allocated(AllocationRow::new(record), begin_number(*cause))
            }
            Effect::Bundle(record) => Self::Bundle(OfBundleRow::new(record)),
            Effect::Inside(record) => Self::Inside(InsideRow::new(record)),
            &Effect::Ended(id, cause) => Self::Ended(id.into(), cause_number(cause)),
            Effect::Node(image, changed) => {
                let NodeImage { record, reservation, claims, releasing } = &**image;
                let row = ImageRow {
                    partition: record.registration.partition.0,
                    node: NodeRow::new(record, kinds),
                    reservation: reservation.as_ref().map(ReservationRow::new),
                    claims: claims.iter().map(ClaimRow::new).collect(),
                    releasing: releasing.iter().map(ReleasingRow::new).collect(),
                };
                Self::Node(Box::new(row), news_number(*changed))
            }
            &Effect::Version { partition, node, version } => {
                Self::Version { partition: partition.0, node: node.0, version }
            }
            Effect::NodeRemoved(removed) => {
                let NodeRemoved { partition, id, ordinal, name, identity, version } = &**removed;
                Self::NodeRemoved {
                    partition: partition.0,
                    id: id.0,
                    ordinal: ordinal.0,
                    name: name.to_string(),
                    identity: identity.as_deref().map(str::to_owned),
                    version: *version,
                }
            }
            Effect::Leased(record) => Self::Leased(LeaseRow::new(record)),
            &Effect::SessionRenewed { partition, session, until } => {
                Self::SessionRenewed { partition: partition.0, session: session.into(), until: until.0 }
            }
        }
    }

    fn effect(self, catalog: &mut Catalog) -> anyhow::Result<Effect> {
        Ok(match self {
            Self::Allocated(row, number) => Effect::Allocated(row.record()?, begin_cause(number)?),
            Self::Bundle(row) => Effect::Bundle(row.record()),
            Self::Inside(row) => Effect::Inside(row.record()?),
            Self::Ended(id, number) => Effect::Ended(id.into(), cause(number)?),
            Self::Node(image, number) => {
                let ImageRow { partition, node, reservation, claims, releasing } = *image;
                let kinds = Arc::make_mut(&mut catalog.resources);
                let image = NodeImage {
                    record: node.record(PartitionId(partition), kinds)?,
                    reservation: reservation.map(ReservationRow::record).transpose()?,
                    claims: claims.into_iter().map(ClaimRow::record).collect::<anyhow::Result<_>>()?,
                    releasing: releasing.into_iter().map(ReleasingRow::record).collect(),
                };
                Effect::Node(Box::new(image), news(number))
            }
            Self::Version { partition, node, version } => {
                Effect::Version { partition: PartitionId(partition), node: NodeId(node), version }
            }
            Self::NodeRemoved { partition, id, ordinal, name, identity, version } => {
                Effect::NodeRemoved(Box::new(NodeRemoved {
                    partition: PartitionId(partition),
                    id: NodeId(id),
                    ordinal: Ordinal(ordinal),
                    name: name.into(),
                    identity: identity.map(Into::into),
                    version,
                }))
            }
            Self::Leased(row) => Effect::Leased(row.record()),
            Self::SessionRenewed { partition, session, until } => Effect::SessionRenewed {
                partition: PartitionId(partition),
                session: session.into(),
                until: Time(until),
            },
        })
    }
}

impl UnitRow {
    /// Returns the row of a unit. `kinds` are all resource kinds that it uses.
    pub(super) fn new(unit: &Unit, kinds: &ResourceRegistry) -> Self {
        let changes = match &unit.changes {
            &Changes::Started { incarnation, shards } => {
                ChangesRow::Started { incarnation: incarnation.0, shards }
            }
            Changes::Shard { shard, effects, policy, granularity } => ChangesRow::Shard {
                shard: shard.0,
                effects: effects.iter().map(|effect| EffectRow::new(effect, kinds)).collect(),
                policy: policy.as_ref().map(PolicyRow::new),
                granularity: granularity.as_ref().map(GranularityRow::new),
            },
            Changes::Kinds(names, unit_instances) => ChangesRow::Kinds(names.clone(), unit_instances.clone()),
            Changes::Groups(groups) => {
                let row = |(id, group): &(GroupId, Option<GroupRecord>)| {
                    let id: WireGroup = (*id).into();
                    (id, group.as_ref().map(|group| Box::new(GroupRow::new(group, kinds))))
                };
                ChangesRow::Groups(groups.iter().map(row).collect())
            }
            Changes::Sessions(changes) => {
                ChangesRow::Sessions(changes.iter().map(SessionChangeRow::new).collect())
            }
            Changes::Jobs(changes) => {
                ChangesRow::Jobs(changes.iter().map(|change| JobsChangeRow::new(change, kinds)).collect())
            }
            &Changes::Decided(statement, shards) => ChangesRow::Decided(statement.into(), shards),
        };
        let done = unit.done.iter().map(DoneRow::new).collect();
        Self { now: unit.now.0, changes, done }
    }

    /// Returns the unit. `catalog` has the resource kinds so far.
    ///
    /// # Errors
    /// When the row has a form that this version does not write.
    pub(super) fn unit(self, catalog: &mut Catalog) -> anyhow::Result<Unit> {
        let changes = match self.changes {
            ChangesRow::Started { incarnation, shards } => {
                Changes::Started { incarnation: Incarnation(incarnation), shards }
            }
            ChangesRow::Shard { shard, effects, policy, granularity } => Changes::Shard {
                shard: ShardId(shard),
                effects: effects.into_iter().map(|row| row.effect(catalog)).collect::<anyhow::Result<_>>()?,
                policy: policy.map(|row| row.state()),
                granularity: granularity.map(GranularityRow::state),
            },
            ChangesRow::Kinds(names, unit_instances) => {
                let kinds = ResourceRegistry::with_names(names.iter().map(String::as_str), &unit_instances);
                catalog.resources = Arc::new(kinds.context("there are too many resource kinds")?);
                Changes::Kinds(names, unit_instances)
            }
            ChangesRow::Groups(rows) => {
                let group = |(id, row): (WireGroup, Option<Box<GroupRow>>)| {
                    Ok((id.into(), row.map(|row| row.record(catalog)).transpose()?))
                };
                Changes::Groups(rows.into_iter().map(group).collect::<anyhow::Result<_>>()?)
            }
            ChangesRow::Sessions(rows) => {
                let changes = rows.into_iter().map(SessionChangeRow::change);
                Changes::Sessions(changes.collect::<anyhow::Result<_>>()?)
            }
            ChangesRow::Jobs(rows) => {
                let changes = rows.into_iter().map(|row| row.change(catalog));
                Changes::Jobs(changes.collect::<anyhow::Result<_>>()?)
            }
            ChangesRow::Decided(statement, shards) => Changes::Decided(statement.into(), shards),
        };
        let done = self.done.into_iter().map(DoneRow::done).collect();
        Ok(Unit { done, ..Unit::new(Time(self.now), changes) })
    }
}
