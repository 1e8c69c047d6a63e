//! Checkpoint rows of reservations, in a table keyed by node.

use serde::{Deserialize, Serialize};
use wharf_core::ids::{NodeId, OwnerId};
use wharf_core::resource::ReservedAmounts;
use wharf_core::state::ReservationRecord;
use wharf_core::time::Time;

use super::record::{AmountsRow, amount, custom, custom_row, damaged, decode, encode};

#[derive(Serialize, Deserialize)]
struct ReservationRow {
    owner: u64,
    /// 0 if the reservation has no end time.
    until: u64,
    left: AmountsRow,
}

pub(super) fn encode_reservation(reservation: &ReservationRecord) -> Vec<u8> {
    let ReservedAmounts { cpu, memory, gpu, custom } = &reservation.left;
    encode(&ReservationRow {
        owner: reservation.owner.number(),
        until: reservation.until.map_or(0, |until| until.0),
        left: AmountsRow {
            cpu: cpu.units(),
            memory: memory.units(),
            gpu: gpu.units(),
            custom: custom_row(custom),
        },
    })
}

pub(super) fn decode_reservation(node: u64, bytes: &[u8]) -> Result<ReservationRecord, String> {
    let what = format!("the row of the reservation of node {node}");
    reservation(NodeId(node), decode(&what, bytes)?).map_err(|why| damaged(what, why))
}

fn reservation(node: NodeId, row: ReservationRow) -> Result<ReservationRecord, String> {
    let ReservationRow { owner, until, left } = row;
    let left = ReservedAmounts {
        cpu: amount(left.cpu)?,
        memory: amount(left.memory)?,
        gpu: amount(left.gpu)?,
        custom: custom(left.custom)?,
    };
    if !left.custom.is_sorted_by(|a, b| a.0 < b.0) || left.custom.iter().any(|(_, amount)| amount.is_zero()) {
        return Err("its resources are not in order".to_owned());
    }
    if left.is_empty() {
        return Err("it reserves nothing".to_owned());
    }
    let owner = OwnerId::new(owner).ok_or("it has no owner")?;
    Ok(ReservationRecord { node, owner, left, until: (until > 0).then_some(Time(until)) })
}
