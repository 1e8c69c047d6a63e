//! Conversion of plain placements and their grants, which make up most of the load.

use std::sync::Arc;

use wharf_core::node::Selector;
use wharf_core::registrar::Catalog;
use wharf_core::request::{Placement, PlacementRequest};
use wharf_core::resource::{Amount, Demand};

use super::preferences::{avoids_gpu, only_avoid_gpu};
use super::{PlacementDefaults, amount, gpu_request, order, policy};
use crate::codec::{PlainGrant, PlainPlace};
use crate::protocol::Fault;

/// Converts a plain placement with this selector, as [`placement_request`](super::placement_request) converts a request with
/// the same fields.
///
/// # Errors
/// Returns a fault that names the field.
#[inline]
pub(crate) fn plain_placement(
    wire: &PlainPlace<'_>,
    selector: Option<Arc<Selector>>,
    defaults: PlacementDefaults,
) -> Result<PlacementRequest, Fault> {
    let gpu = gpu_request(wire.gpu)?;
    // Both are in range nearly always: one look, without room for a fault.
    let (cpu, memory) = match (Amount::try_from_units(wire.cpu), Amount::try_from_units(wire.memory)) {
        (Ok(cpu), Ok(memory)) => (cpu, memory),
        _ => (amount("cpu", wire.cpu)?, amount("memory", wire.memory)?),
    };
    let policy = policy(wire.policy, defaults.policy)?;
    let order = order(wire.attribute_order, defaults.orders)?;
    let preferences = only_avoid_gpu(avoids_gpu(wire.avoid_gpu, defaults.avoid_gpu, gpu)?);
    let demand = Demand { cpu, memory, gpu, custom: None };
    let tenant = defaults.tenant;
    Ok(PlacementRequest { order, selector, preferences, tenant, ..PlacementRequest::new(demand, policy) })
}

/// Returns the grant of a placement if it is plain.
#[inline]
#[must_use]
pub fn plain_grant<'a>(placement: &Placement, catalog: &'a Catalog) -> Option<PlainGrant<'a>> {
    let Placement { node, allocation, gpus, alternative, units: None } = placement else { return None };
    Some(PlainGrant {
        node: node.0,
        node_name: catalog.node_name(*node).map_or("", AsRef::as_ref),
        allocation: (*allocation).into(),
        gpus: gpus.mask,
        gpu_part: gpus.part,
        alternative: *alternative,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wharf_core::ids::TenantId;
    use wharf_core::request::Policy;

    use super::*;
    use crate::convert::placement_request;
    use crate::protocol::{PlaceReply, PlaceRequest};

    proptest! {
        /// A plain request is the same request on both ways, and so is its fault.
        #[test]
        fn plain_requests_are_converted_as_all_others(
            cpu in -2i64..1 << 50, memory in -2i64..1 << 50, gpu in -2i64..200_000, policy in 0u8..20,
            attribute_order in prop_oneof![0u8..4, Just(255)], avoid_gpu in 0u8..4, default: bool,
        ) {
            let wire = PlainPlace { cpu, memory, gpu, policy, attribute_order, avoid_gpu, selectors: &[] };
            let tenant = TenantId(3);
            let defaults =
                PlacementDefaults { policy: Policy::BestFit, avoid_gpu: default, orders: 2, session: None, tenant };
            let general = placement_request(PlaceRequest::from(wire), &Catalog::default(), defaults);
            let plain = plain_placement(&wire, None, defaults).map_err(|fault| Box::new(PlaceReply::from(fault)));
            prop_assert_eq!(plain, general);
        }
    }
}
