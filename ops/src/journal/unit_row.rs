//! Units of the journal in a form that can be stored.

use std::sync::Arc;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use wharf_core::ids::PartitionId;
use wharf_core::journal::{BeginCause, Changes, Effect, NodeImage, NodeNews, NodeRemoved, Unit};
use wharf_core::registrar::Catalog;
use wharf_core::resource::ResourceRegistry;
use wharf_core::time::Time;
use wharf_core::view::EndCause;
use wharf_net::protocol::{WireAllocation, WireGroup, WireSession, WireStatement};

use super::group_row::GroupRow;
use super::job_row::JobsChangeRow;
use super::mirror::{Stored, numbers, rows, stored_as};
use super::row::{
    AllocationRow, ClaimRow, GranularityRow, InsideRow, LeaseRow, NodeRow, OfBundleRow, PolicyRow,
    ReleasingRow, ReservationRow,
};
use super::session_row::{DoneRow, SessionChangeRow};

/// A node and what it holds except allocations.
#[derive(Serialize, Deserialize)]
pub(super) struct ImageRow {
    partition: u16,
    node: NodeRow,
    reservation: Option<ReservationRow>,
    claims: Vec<ClaimRow>,
    releasing: Vec<ReleasingRow>,
}

rows! {
    enum EffectRow of Effect {
        Allocated(record: AllocationRow, cause: u8),
        Bundle(record: OfBundleRow),
        Inside(record: InsideRow),
        Ended(id: WireAllocation, cause: u8),
        /// With the sum of what changed.
        Node(image: Box<ImageRow>, news: u8),
        Version { partition: u16, node: u64, version: u64 },
        NodeRemoved(removed: Box<NodeRemovedRow>),
        Leased(record: LeaseRow),
        SessionRenewed { partition: u16, session: WireSession, until: u64 },
    }

    struct NodeRemovedRow of NodeRemoved {
        partition: u16,
        id: u64,
        ordinal: u64,
        name: String,
        identity: Option<String>,
        version: u64,
    }

    enum ChangesRow of Changes {
        Started { incarnation: u32, shards: u16 },
        Shard {
            shard: u16,
            effects: Vec<EffectRow>,
            policy: Option<PolicyRow>,
            granularity: Option<GranularityRow>,
        },
        Kinds(names: Vec<String>, unit_instances: Vec<u16>),
        Groups(groups: Vec<(WireGroup, Option<GroupRow>)>),
        Sessions(changes: Vec<SessionChangeRow>),
        Decided(statement: WireStatement, shards: u16),
        Jobs(changes: Vec<JobsChangeRow>),
    }
}

numbers!(EndCause, "cause of an end": 0 Released, 1 Evicted, 2 NodeRemoved, 3 NodeLost, 4 Expired, 5 TakenBack);
numbers!(BeginCause, "cause of an allocation": 0 Placed, 1 Waited, 2 Committed, 3 Claimed, 4 Adopted);

stored_as! {
    u8, NodeNews:
        |news| u8::from(news.is_new) | u8::from(news.spec) << 1 | u8::from(news.state) << 2,
        |bits| Ok(NodeNews { is_new: bits & 1 != 0, spec: bits & 2 != 0, state: bits & 4 != 0 });
}

impl Stored<NodeImage> for ImageRow {
    fn of(image: &NodeImage, kinds: &ResourceRegistry) -> Self {
        let NodeImage { record, reservation, claims, releasing } = image;
        Self {
            partition: record.registration.partition.0,
            node: NodeRow::new(record, kinds),
            reservation: Stored::of(reservation, kinds),
            claims: Stored::of(claims, kinds),
            releasing: Stored::of(releasing, kinds),
        }
    }

    fn read(self, catalog: &mut Catalog) -> anyhow::Result<NodeImage> {
        Ok(NodeImage {
            record: self.node.record(PartitionId(self.partition), Arc::make_mut(&mut catalog.resources))?,
            reservation: self.reservation.read(catalog)?,
            claims: self.claims.read(catalog)?,
            releasing: self.releasing.read(catalog)?,
        })
    }
}

/// A unit.
#[derive(Serialize, Deserialize)]
pub(super) struct UnitRow {
    now: u64,
    changes: ChangesRow,
    done: Vec<DoneRow>,
}

impl Stored<Unit> for UnitRow {
    fn of(unit: &Unit, kinds: &ResourceRegistry) -> Self {
        let Unit { now, changes, done, finished: _ } = unit;
        Self { now: now.0, changes: Stored::of(changes, kinds), done: Stored::of(done, kinds) }
    }

    fn read(self, catalog: &mut Catalog) -> anyhow::Result<Unit> {
        if let ChangesRow::Kinds(names, unit_instances) = &self.changes {
            let kinds = ResourceRegistry::with_names(names.iter().map(String::as_str), unit_instances);
            catalog.resources = Arc::new(kinds.context("there are too many resource kinds")?);
        }
        let changes = self.changes.read(catalog)?;
        Ok(Unit { done: self.done.read(catalog)?, ..Unit::new(Time(self.now), changes) })
    }
}
