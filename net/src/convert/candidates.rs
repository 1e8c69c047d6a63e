//! The candidates that a request names: conversion, and the explanation of unregistered ones.

use std::sync::Arc;

use wharf_core::ids::NodeId;
use wharf_core::registrar::Catalog;

use crate::protocol::{Fault, PlaceReply, Reason};

/// Maximum number of ids that a message spells out. A batch has many messages.
const SPELT_OUT: usize = 3;

/// Converts a list of candidates to the engine's form: each once, in order.
pub(super) fn candidates(wire: Vec<u64>) -> Option<Arc<[NodeId]>> {
    if wire.is_empty() {
        return None;
    }
    let mut ids: Vec<NodeId> = wire.into_iter().map(NodeId).collect();
    ids.sort_unstable();
    ids.dedup();
    Some(ids.into())
}

/// Adds a fault to a refusal if some of the request's `named` candidates are not registered. A placed request
/// is not examined, since a node may have been removed a moment ago.
pub(crate) fn explain_candidates(reply: &mut PlaceReply, named: Option<&[NodeId]>, catalog: &Catalog) {
    let Some(named) = named.filter(|_| reply.refusal.is_some() && reply.fault.is_none()) else { return };
    let mut unknown = named.iter().filter(|&&id| catalog.node_name(id).is_none());
    let spelt: Vec<String> = unknown.by_ref().take(SPELT_OUT).map(|id| id.0.to_string()).collect();
    if spelt.is_empty() {
        return;
    }
    let more = match unknown.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let message = format!(
        "not registered of {} named: {}{more}: give ids of nodes as `wharf node list` prints them (an id is never given twice)",
        named.len(),
        spelt.join(", "),
    );
    reply.fault = Some(Fault::of_field(Reason::UnknownNode, "candidates", message));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::RefusalBody;

    #[test]
    fn unknown_candidates_of_a_refusal_are_named_and_counted() {
        let catalog = Catalog::default();
        let named: Vec<NodeId> = (1..=5).map(NodeId).collect();
        let refused = || PlaceReply { refusal: Some(RefusalBody::default()), ..PlaceReply::default() };
        let explained = |mut reply: PlaceReply, named: Option<&[NodeId]>| {
            explain_candidates(&mut reply, named, &catalog);
            reply.fault
        };
        let fault = explained(refused(), Some(&named)).unwrap();
        assert_eq!((fault.field.as_str(), fault.reason), ("candidates", Reason::UnknownNode.into()));
        assert!(fault.message.starts_with("not registered of 5 named: 1, 2, 3 and 2 more: "), "{fault}");
        let fault = explained(refused(), Some(&named[..1])).unwrap();
        assert!(fault.message.starts_with("not registered of 1 named: 1: give "), "{fault}");
        assert_eq!(explained(refused(), None), None);
        assert_eq!(explained(PlaceReply::default(), Some(&named)), None, "it was placed");
    }
}
