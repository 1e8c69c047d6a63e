//! Resource kinds that no node has ever had, but that a request waits for. A node that joins may have them.

use wharf_core::limits::RESOURCE_KINDS_WAITED_MAX;
use wharf_core::registrar::Catalog;
use wharf_core::resource::{ResourceRegistry, check_unit_request};

use super::{PlacementDefaults, amount, check_custom_name, invalid, placement_request};
use crate::protocol::{Fault, NamedAmount, PlaceReply, PlaceRequest, Reason};

/// Returns the custom kinds that the registry must learn before `request` can wait for them. Usually there
/// are none. If there are any, the rest of the request has been checked, so that a refused request does not
/// change the registry.
///
/// # Errors
/// Returns the reply to an invalid request.
pub fn kinds_to_learn(
    request: &PlaceRequest,
    catalog: &Catalog,
    defaults: PlacementDefaults,
) -> Result<Vec<String>, Box<PlaceReply>> {
    let resources = &*catalog.resources;
    let asked = &request.demand.custom;
    let unknown = |named: &NamedAmount| named.amount != 0 && resources.id(&named.name).is_none();
    if !asked.iter().any(unknown) {
        return Ok(Vec::new());
    }
    let names = unknown_names(asked, resources)?;
    // Whether it may name a queue is another question.
    let mut known = PlaceRequest { queue: String::new(), ..request.clone() };
    known.demand.custom.retain(|named| !unknown(named));
    placement_request(known, catalog, defaults)?;
    Ok(names)
}

fn unknown_names(custom: &[NamedAmount], resources: &ResourceRegistry) -> Result<Vec<String>, Fault> {
    let mut names = Vec::new();
    for (i, NamedAmount { name, amount: units }) in custom.iter().enumerate() {
        if *units == 0 || resources.id(name).is_some() {
            continue;
        }
        check_room(&format!("custom[{i}].name"), resources)?;
        check_custom_name(&format!("custom[{i}].name"), name)?;
        let asked = amount(&format!("custom[{i}].amount"), *units)?;
        if resources.id_to_be(name).is_unit_instance() {
            check_unit_request(asked).map_err(|message| invalid(format!("custom[{i}].amount"), message))?;
        }
        if names.contains(name) {
            return Err(invalid("custom", format!("resource `{name}` is given twice: give each once")));
        }
        names.push(name.clone());
    }
    Ok(names)
}

pub(super) fn check_room(field: &str, resources: &ResourceRegistry) -> Result<(), Fault> {
    if resources.len() < RESOURCE_KINDS_WAITED_MAX { Ok(()) } else { Err(no_room(field)) }
}

fn no_room(field: &str) -> Fault {
    let message = format!(
        "no node ever had this resource, and with {RESOURCE_KINDS_WAITED_MAX} kinds known none is learnt for a request that waits: register a node that has it first"
    );
    Fault::of_field(Reason::LimitExceeded, field, message)
}

/// Learns names that [`kinds_to_learn`] returned, all of them or none. Names that were learned meanwhile stay
/// as they are.
///
/// # Errors
/// Fails if the registry has no room for all of them.
pub fn learn_kinds(names: &[String], resources: &mut ResourceRegistry) -> Result<(), Fault> {
    let unknown: Vec<&String> = names.iter().filter(|name| resources.id(name).is_none()).collect();
    if resources.len() + unknown.len() > RESOURCE_KINDS_WAITED_MAX && !unknown.is_empty() {
        return Err(no_room("custom"));
    }
    for name in unknown {
        resources.learn(name).expect("there is room for all of them");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::DemandBody;

    fn asks(custom: Vec<(&str, i64)>, policy: u8) -> PlaceRequest {
        let named = |(name, amount): (&str, i64)| NamedAmount { name: name.to_owned(), amount };
        let custom = custom.into_iter().map(named).collect();
        PlaceRequest {
            demand: DemandBody { custom, ..DemandBody::default() },
            policy,
            ..PlaceRequest::default()
        }
    }

    #[test]
    fn only_what_a_sound_request_asks_for_is_learnt() {
        let mut catalog = Catalog::default();
        let mut resources = ResourceRegistry::with_names(["fpga"], &[]).unwrap();
        resources.declare(&["npu".to_owned()], |_| false).unwrap();
        catalog.resources = std::sync::Arc::new(resources.clone());
        let learn = |request| kinds_to_learn(&request, &catalog, PlacementDefaults::default());
        assert_eq!(learn(asks(vec![("fpga", 1), ("qpu", 0)], 0)), Ok(vec![]));
        assert_eq!(learn(asks(vec![("qpu", 1), ("fpga", 1), ("npu", 5000)], 0)).unwrap(), ["qpu", "npu"]);
        let fault = |request| learn(request).unwrap_err().fault.unwrap().field;
        assert_eq!(fault(asks(vec![("qpu", 1)], 200)), "policy");
        assert_eq!(fault(asks(vec![("qpu", -1)], 0)), "custom[0].amount");
        assert_eq!(fault(asks(vec![("npu", 15_000)], 0)), "custom[0].amount");
        assert_eq!(fault(asks(vec![("gpu", 1)], 0)), "custom[0].name");
        assert_eq!(fault(asks(vec![("qpu", 1), ("qpu", 1)], 0)), "custom");
        learn_kinds(&["qpu".to_owned(), "fpga".to_owned()], &mut resources).unwrap();
        assert_eq!(resources.names().collect::<Vec<_>>(), ["fpga", "qpu"]);
        let many: Vec<String> = (0..RESOURCE_KINDS_WAITED_MAX).map(|i| format!("r{i}")).collect();
        assert_eq!(learn_kinds(&many, &mut resources).unwrap_err().reason, Reason::LimitExceeded.into());
        assert_eq!(resources.len(), 2, "a request that is refused teaches nothing");
        learn_kinds(&many[2..], &mut resources).unwrap();
        assert_eq!(resources.len(), RESOURCE_KINDS_WAITED_MAX);
        assert_eq!(learn_kinds(&many[2..], &mut resources), Ok(()), "these are known");
        assert!(learn_kinds(&many[..1], &mut resources).is_err());
        resources.learn("for a node").unwrap();
    }
}
