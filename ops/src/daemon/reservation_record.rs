//! Rows of a checkpoint about reservations, by node, in a table of their own: a store that was
//! written before them has none.

use serde::{Deserialize, Serialize};
use wharf_core::ids::{NodeId, OwnerId, ResourceId};
use wharf_core::resource::{Amount, ReservedAmounts};
use wharf_core::state::ReservationRecord;
use wharf_core::time::Time;
use wharf_net::codec::{decode_body, encode_body};

#[derive(Serialize, Deserialize)]
struct ReservationRow {
    owner: u64,
    /// 0: it does not end by itself.
    until: u64,
    cpu: i64,
    memory: i64,
    gpu: i64,
    custom: Vec<(u16, i64)>,
}

pub(super) fn encode_reservation(reservation: &ReservationRecord) -> Vec<u8> {
    let ReservedAmounts { cpu, memory, gpu, custom } = &reservation.left;
    let mut bytes = Vec::new();
    let row = ReservationRow {
        owner: reservation.owner.number(),
        until: reservation.until.map_or(0, |until| until.0),
        cpu: cpu.units(),
        memory: memory.units(),
        gpu: gpu.units(),
        custom: custom.iter().map(|&(id, amount)| (id.0, amount.units())).collect(),
    };
    encode_body(&row, &mut bytes);
    bytes
}

pub(super) fn decode_reservation(node: u64, bytes: &[u8]) -> Result<ReservationRecord, String> {
    let damaged = |what: String| format!("the row of the reservation of node {node} is damaged: {what}");
    let (row, _) = decode_body::<ReservationRow>(bytes).map_err(|error| damaged(error.to_string()))?;
    let amount = |units: i64| Amount::try_from_units(units).map_err(|error| damaged(error.to_string()));
    let custom: Result<Vec<_>, String> =
        row.custom.into_iter().map(|(id, units)| Ok((ResourceId(id), amount(units)?))).collect();
    let custom = custom?;
    if !custom.is_sorted_by(|a, b| a.0 < b.0) || custom.iter().any(|(_, amount)| amount.is_zero()) {
        return Err(damaged("its resources are not in order".to_owned()));
    }
    Ok(ReservationRecord {
        node: NodeId(node),
        owner: OwnerId::new(row.owner).ok_or_else(|| damaged("it has no owner".to_owned()))?,
        left: ReservedAmounts {
            cpu: amount(row.cpu)?,
            memory: amount(row.memory)?,
            gpu: amount(row.gpu)?,
            custom,
        },
        until: (row.until > 0).then_some(Time(row.until)),
    })
}
