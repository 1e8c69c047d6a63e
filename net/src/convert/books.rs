//! Conversion between wire types and engine types: adoptions, single resources, and books.

use wharf_core::ids::{NodeId, ResourceId, TenantId};
use wharf_core::limits::{GPU_INSTANCES_MAX, UNIT_INSTANCES_MAX};
use wharf_core::registrar::Catalog;
use wharf_core::resource::{
    Amount, Demand, GpuAssignment, GpuRequest, ResourceKind, ResourceRegistry, UnitAssignments,
    check_unit_total,
};
use wharf_core::shard::{Adoption, AdoptionRejection, Book, BundleRejection, NodeBooks};
use wharf_core::time::Time;

use super::{
    amount, check_custom_name, check_name, demand, demand_body, invalid, reservation_body, resource_name,
};
use crate::protocol::{
    AdoptRequest, BookBody, DemandBody, Fault, Holding, InstanceBody, Name, NamedAmount, NamedUnits,
    NodeBooksReply, Reason,
};

/// Converts the units of a placement to the wire.
pub(crate) fn named_units(units: &UnitAssignments, resources: &ResourceRegistry) -> Vec<NamedUnits> {
    let named = |&(id, assignment): &(ResourceId, wharf_core::resource::UnitAssignment)| NamedUnits {
        name: resources.name(id).unwrap_or_default().to_owned(),
        instances: assignment.instances().collect(),
        part: assignment.part,
    };
    units.iter().map(named).collect()
}

/// Converts what an allocation or a claim holds to the wire.
pub(super) fn holding(
    demand: &Demand,
    gpus: GpuAssignment,
    units: Option<&UnitAssignments>,
    kinds: &ResourceRegistry,
) -> Holding {
    Holding {
        demand: demand_body(demand, kinds),
        gpus: gpus.instances().collect(),
        gpu_part: gpus.part,
        units: units.map_or_else(Vec::new, |units| named_units(units, kinds)),
    }
}

/// Converts a set of instances below `most`, each named once, to a bit mask.
pub(crate) fn mask(field: &str, instances: &[u8], most: usize) -> Result<u64, Fault> {
    let mut mask = 0u64;
    for &instance in instances {
        if usize::from(instance) >= most {
            return Err(invalid(
                field,
                format!("there is no instance {instance}: they count from 0 to {}", most - 1),
            ));
        }
        if mask >> instance & 1 == 1 {
            return Err(invalid(field, format!("instance {instance} is named twice: name each once")));
        }
        mask |= 1 << instance;
    }
    Ok(mask)
}

/// Converts a demand on one node, for adoptions and reservations. All its custom kinds must be known.
pub(crate) fn demand_on_node(wire: DemandBody, catalog: &Catalog) -> Result<Demand, Fault> {
    for (i, named) in wire.custom.iter().enumerate() {
        let field = format!("custom[{i}].name");
        check_custom_name(&field, &named.name)?;
        known(&field, &named.name, &catalog.resources)?;
    }
    demand(wire, catalog).map_err(|reply| reply.fault.expect("every name is known: what is wrong is a field"))
}

/// Converts an adoption on `node` to the engine's form.
///
/// # Errors
/// Returns a fault that names the field. An empty adoption is rejected.
pub fn adoption(wire: AdoptRequest, node: NodeId, catalog: &Catalog) -> Result<Adoption, Fault> {
    let demand = demand_on_node(wire.demand, catalog)?;
    let gpus = mask("gpus", &wire.gpus, GPU_INSTANCES_MAX)?;
    let mut units = Vec::with_capacity(wire.units.len());
    for (i, named) in wire.units.iter().enumerate() {
        let field = format!("units[{i}].name");
        check_custom_name(&field, &named.name)?;
        let id = known(&field, &named.name, &catalog.resources)?;
        let field = format!("units[{i}].instances");
        if units.iter().any(|&(other, _)| other == id) {
            return Err(invalid(field, format!("resource `{}` is given twice: give each once", named.name)));
        }
        units.push((id, mask(&field, &named.instances, UNIT_INSTANCES_MAX)?));
    }
    let external_id = if wire.external_id.is_empty() {
        None
    } else {
        check_name("external_id", &wire.external_id)?;
        Some(wire.external_id.as_str().into())
    };
    let is_nothing = demand.cpu.is_zero()
        && demand.memory.is_zero()
        && demand.gpu == GpuRequest::None
        && demand.custom.is_none();
    let gpus = (!wire.gpus.is_empty()).then_some(gpus as u16);
    // Instances without an amount are left to the shard, whose rejection says how many were named.
    if is_nothing && gpus.is_none() && units.is_empty() {
        let message = "nothing is adopted: give what the allocation holds, an amount of cpu, memory, gpu or a custom resource";
        return Err(invalid("cpu", message));
    }
    Ok(Adoption { node, demand, gpus, units, external_id, tenant: TenantId(wire.tenant) })
}

/// Returns the id of a known custom kind.
fn known(field: &str, name: &str, resources: &ResourceRegistry) -> Result<ResourceId, Fault> {
    check_name(field, name)?;
    resources.id(name).ok_or_else(|| {
        invalid(field, format!("no node has ever had a resource `{name}`: give one that is known, or add it to a node by an update of the whole node"))
    })
}

/// Converts new totals of single resources.
///
/// # Errors
/// Returns a fault that names the field.
pub fn resource_totals(
    wire: &[NamedAmount],
    resources: &ResourceRegistry,
) -> Result<Vec<(ResourceKind, Amount)>, Fault> {
    if wire.is_empty() {
        return Err(invalid("resources", "no resource is named: name at least one"));
    }
    let mut totals: Vec<(ResourceKind, Amount)> = Vec::with_capacity(wire.len());
    for (i, named) in wire.iter().enumerate() {
        let field = format!("resources[{i}].amount");
        let total = amount(&field, named.amount)?;
        let kind = match named.name.as_str() {
            "cpu" => ResourceKind::Cpu,
            "memory" => ResourceKind::Memory,
            "gpu" => {
                let most = Amount::whole(GPU_INSTANCES_MAX as u32);
                if check_unit_total(total).is_err() || total > most {
                    return Err(invalid(field, format!("{total} GPUs: give a whole number, at most {most}")));
                }
                ResourceKind::Gpu
            }
            "gpu_part" | "gpus" => {
                let message = format!("`{}` is no total of a node: give `gpu`, in whole ones", named.name);
                return Err(invalid(format!("resources[{i}].name"), message));
            }
            name => ResourceKind::Custom(known(&format!("resources[{i}].name"), name, resources)?),
        };
        if let ResourceKind::Custom(id) = kind
            && id.is_unit_instance()
        {
            check_unit_total(total).map_err(|message| invalid(field, message))?;
        }
        if totals.iter().any(|&(other, _)| other == kind) {
            return Err(invalid(
                "resources",
                format!("resource `{}` is given twice: give each once", named.name),
            ));
        }
        totals.push((kind, total));
    }
    Ok(totals)
}

/// Converts a rejected placement into a bundle to the wire, with the names of custom kinds.
#[must_use]
pub fn bundle_fault(rejection: &BundleRejection, resources: &ResourceRegistry) -> Fault {
    let mut message = rejection.to_string();
    let (reason, field) = match rejection {
        BundleRejection::Unknown(_) => (Reason::UnknownAllocation, "allocation"),
        BundleRejection::NotABundle(_) => (Reason::InvalidField, "bundle"),
        BundleRejection::TooManyAllocations(_) => (Reason::TooManyAllocations, ""),
        BundleRejection::Short { kind, .. } => {
            message = message.replace(&kind.to_string(), &resource_name(*kind, resources));
            (Reason::NoFitNow, "bundle")
        }
        BundleRejection::Pending(_) | BundleRejection::Releasing(_) | BundleRejection::Lost(..) => {
            (Reason::NoFitNow, "bundle")
        }
    };
    Fault::of_field(reason, field, message)
}

/// Converts a rejected adoption to the wire, with the names of custom kinds.
#[must_use]
pub fn adoption_fault(rejection: &AdoptionRejection, resources: &ResourceRegistry) -> Fault {
    let mut message = rejection.to_string();
    let (reason, field) = match rejection {
        AdoptionRejection::UnknownNode(_) => (Reason::UnknownNode, "node"),
        AdoptionRejection::InstanceCount { kind, .. } | AdoptionRejection::NoSuchInstance { kind, .. } => {
            message = quoted(&message, *kind, resources);
            (Reason::InvalidField, if *kind == ResourceKind::Gpu { "gpus" } else { "units" })
        }
        AdoptionRejection::ExternalIdTaken(..) => (Reason::InvalidField, "external_id"),
        AdoptionRejection::ShortfallTooLarge(_) => (Reason::LimitExceeded, "node"),
        AdoptionRejection::TooManyAllocations(_) => (Reason::TooManyAllocations, ""),
    };
    Fault::of_field(reason, field, message)
}

/// Returns a message with the quoted name of a resource.
pub(crate) fn quoted(message: &str, kind: ResourceKind, resources: &ResourceRegistry) -> String {
    message.replace(&kind.to_string(), &format!("`{}`", resource_name(kind, resources)))
}

/// Converts the books of a node at time `now` to the wire.
#[must_use]
pub fn books_reply(books: &NodeBooks, resources: &ResourceRegistry, now: Time) -> NodeBooksReply {
    let book = |&(kind, book): &(ResourceKind, Book)| {
        same!(BookBody from book;
            total, available, allocated, held, releasing, pipelined, reserved, unhealthy, shortfall, load;
            name: resource_name(kind, resources))
    };
    let mut instances = Vec::new();
    for (kind, list) in &books.instances {
        let name = resource_name(*kind, resources);
        instances.extend(list.iter().map(|of| {
            let reason = of.reason.as_deref().unwrap_or_default().to_owned();
            same!(InstanceBody from of; instance, available, allocated, shortfall, unhealthy;
                name: name.clone(), reason: reason)
        }));
    }
    let reservation = books.reservation.as_ref().map(|view| {
        let mut body = reservation_body(view, resources);
        let total = |name: &str| {
            let known = books.resources.iter().find(|&&(kind, _)| resource_name(kind, resources) == name);
            known.map_or(0, |(_, book)| book.total)
        };
        let exceeded = body.left.iter().filter(|left| left.amount > total(&left.name));
        body.exceeded = exceeded.map(|left| Name(left.name.clone())).collect();
        body.lasts = view.until.map_or(0, |until| until.nanos_since(now).max(1));
        body
    });
    NodeBooksReply {
        node: books.node.0,
        allocations: books.allocations,
        resources: books.resources.iter().map(book).collect(),
        instances,
        reservation,
    }
}
