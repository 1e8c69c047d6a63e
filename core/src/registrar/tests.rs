//! Tests of the registrar's records: names, identities, ordinals, and the cost of a page of nodes and a
//! catalog.

use super::*;
use crate::node::{Labels, Taints};
use crate::resource::Amount;
use crate::time::Time;

fn spec(name: &str, labels: &[(&str, &str)]) -> NodeSpec {
    NodeSpec {
        name: name.into(),
        identity: None,
        cpu: Amount::whole(4),
        memory: Amount::whole(1024),
        gpus: 0,
        custom: None,
        taints: Taints::default(),
        labels: Labels::new(labels.iter().map(|&(k, v)| (k.into(), v.into())).collect()).unwrap(),
    }
}

#[test]
fn ids_and_ordinals_are_never_used_again() {
    let mut registrar = Registrar::new(256, TOPOLOGY_LABEL_DEFAULT);
    let first = registrar.register(spec("a", &[])).unwrap();
    assert!(
        matches!(registrar.register(spec("a", &[])), Err(RegistrarError::NodeExists { id, .. }) if id == first.id)
    );
    registrar.forget(first.id, 1);
    assert!(registrar.resolve("a").is_err());
    let second = registrar.register(spec("a", &[])).unwrap();
    assert!(second.id > first.id && second.ordinal > first.ordinal);
    assert_eq!(second.partition, first.partition);
    let catalog = registrar.catalog();
    assert_eq!(catalog.node_name(first.id), None);
    assert_eq!(catalog.node_name(second.id).map(AsRef::as_ref), Some("a"));
}

#[test]
fn a_rack_stays_in_one_partition_and_a_node_in_its_rack() {
    let mut registrar = Registrar::new(256, "rack");
    let partitions: Vec<_> = (0..50)
        .map(|i| registrar.register(spec(&format!("n{i}"), &[("rack", "r7")])).unwrap().partition)
        .collect();
    assert!(partitions.windows(2).all(|pair| pair[0] == pair[1]));
    let moved = registrar.update(spec("n1", &[("rack", "r8")]));
    assert!(matches!(moved, Err(RegistrarError::TopologyFixed { .. })));
    assert!(registrar.update(spec("n1", &[("rack", "r7"), ("zone", "a")])).is_ok());
}

#[test]
fn another_machine_under_the_same_name_is_no_update() {
    let mut registrar = Registrar::new(16, "rack");
    let identified =
        |identity: Option<&str>| NodeSpec { identity: identity.map(Into::into), ..spec("n", &[]) };
    let id = registrar.register(identified(None)).unwrap().id;
    assert_eq!(registrar.update(identified(Some("a"))).unwrap().0, id);
    assert_eq!(registrar.update(identified(None)).unwrap().2.identity.as_deref(), Some("a"));
    let other = registrar.update(identified(Some("b")));
    assert!(matches!(other, Err(RegistrarError::IdentityFixed { .. })), "{other:?}");
}

#[test]
fn a_removed_machine_that_comes_back_is_the_same_node_and_another_is_not() {
    let mut registrar = Registrar::new(16, "rack");
    let of = |identity: &str| NodeSpec { identity: Some(identity.into()), ..spec("n", &[]) };
    let first = registrar.register(of("a")).unwrap();
    registrar.forget(first.id, 1);
    let mut registrar = Registrar::restore(16, "rack", &registrar.state(), std::iter::empty());
    let other = registrar.register(of("b")).unwrap();
    assert!(other.id > first.id && other.ordinal > first.ordinal);
    registrar.forget(other.id, 1);
    let back = registrar.register(of("a")).unwrap();
    assert_eq!((back.id, back.ordinal), (first.id, first.ordinal));
    registrar.forget(back.id, 1);
    assert!(registrar.register(spec("n", &[])).unwrap().id > other.id, "without an identity it is new");
}

#[test]
fn the_versions_of_a_machine_that_comes_back_go_on_over_a_restart_and_in_another_partition() {
    let mut registrar = Registrar::new(16, "rack");
    let of = |rack: &str| NodeSpec { identity: Some("a".into()), ..spec("n", &[("rack", rack)]) };
    let version = |registrar: &Registrar, node: NodeRegistration| match registrar.join_command(node) {
        Command::RejoinNode { version, .. } => Some(version),
        _ => None,
    };
    let first = registrar.register(of("r0")).unwrap();
    assert_eq!(version(&registrar, first.clone()), None);
    registrar.forget(first.id, 41);
    let mut registrar = Registrar::restore(16, "rack", &registrar.state(), std::iter::empty());
    let mut racks = (1..).map(|rack| format!("r{rack}"));
    let rack = racks.find(|rack| registrar.partition_of(&of(rack)) != first.partition).expect("some rack");
    let Ok(Reported::New(back)) = registrar.report(of(&rack)) else { panic!("it is back") };
    assert!(back.id == first.id && back.partition != first.partition);
    assert_eq!(version(&registrar, back.clone()), Some(41));
    // After another removal, it continues from the version it had reached.
    registrar.forget(back.id, 50);
    let again = registrar.register(of("r0")).unwrap();
    assert_eq!(version(&registrar, again), Some(50));
}

#[test]
fn a_report_finds_its_node_or_takes_the_place_of_a_machine_that_is_gone() {
    let mut registrar = Registrar::new(16, "rack");
    let of = |identity: &str| NodeSpec { identity: Some(identity.into()), ..spec("n", &[]) };
    let by_hand = registrar.register(spec("n", &[])).unwrap().id;
    assert!(matches!(registrar.report(of("a")), Ok(Reported::Known(id, ..)) if id == by_hand));
    registrar.heartbeats().reported(by_hand, 1, Time(0));
    assert!(matches!(registrar.report(of("a")), Ok(Reported::Known(id, ..)) if id == by_hand));
    let refused = registrar.report(of("b")).unwrap_err();
    assert!(matches!(refused, RegistrarError::NameInUse { id, .. } if id == by_hand), "{refused}");
    let lost_after = registrar.heartbeats().lost_after();
    assert_eq!(registrar.heartbeats().take_lost(Time(lost_after), 9), [by_hand]);
    // Repeated reports change nothing: the old node keeps its name until its shard has released it.
    for _ in 0..2 {
        assert!(matches!(registrar.report(of("b")), Ok(Reported::Occupied(id, _)) if id == by_hand));
        assert_eq!((registrar.resolve("n").unwrap().0, registrar.node_count()), (by_hand, 1));
    }
    // If its agent is heard of again in the meantime, the node stays.
    registrar.heartbeats().reported(by_hand, 2, Time(lost_after));
    assert!(matches!(registrar.report(of("b")), Err(RegistrarError::NameInUse { .. })));
    assert_eq!(registrar.heartbeats().take_lost(Time(2 * lost_after), 9), [by_hand]);
    registrar.forget(by_hand, 1);
    let Ok(Reported::New(new)) = registrar.report(of("b")) else { panic!("no new machine") };
    assert!(new.id > by_hand && new.agent.is_some());
    assert_eq!(registrar.resolve("n").unwrap().0, new.id);
    assert_eq!(registrar.catalog().node_name(by_hand), None);
}

#[test]
fn texts_that_no_node_bears_are_not_kept() {
    let mut registrar = Registrar::new(16, "rack");
    let mut id = registrar.register(spec("n", &[("job", "0")])).unwrap().id;
    for round in 1..10_000 {
        registrar.forget(id, 1);
        id = registrar.register(spec("n", &[("job", &round.to_string())])).unwrap().id;
    }
    assert!(registrar.texts.len() < 8, "{} texts", registrar.texts.len());
}

/// A catalog is published after each node, and none of them copies all nodes.
#[test]
fn a_catalog_costs_the_same_however_many_nodes_there_are() {
    let mut registrar = Registrar::new(256, "rack");
    let mut copied = Vec::new();
    let mut published = registrar.catalog();
    for number in 0..20_000 {
        let before = registrar.catalog_copied();
        let id = registrar.register(spec(&format!("n{number}"), &[])).unwrap().id;
        published = registrar.catalog();
        copied.push(registrar.catalog_copied() - before);
        assert_eq!(published.node_name(id).map(AsRef::as_ref), Some(format!("n{number}").as_str()));
    }
    let most = |range: std::ops::Range<usize>| copied[range].iter().max().copied();
    assert_eq!(most(1000..2000), Some(64 + 2 * 16));
    assert_eq!(most(18_000..20_000), Some(64 + 3 * 16), "one more level");
    assert_eq!(published.node_count, 20_000);
}

#[test]
fn nodes_are_listed_in_order_of_registration_from_anywhere() {
    let mut registrar = Registrar::new(16, "rack");
    let nodes: Vec<_> = (0..50).map(|i| registrar.register(spec(&format!("n{i}"), &[])).unwrap()).collect();
    registrar.forget(nodes[20].id, 1);
    let listed: Vec<_> = registrar.nodes_after(nodes[18].ordinal).take(3).collect();
    let expected = [19, 21, 22].map(|at: usize| (nodes[at].ordinal, nodes[at].partition));
    assert_eq!(listed, expected);
    assert_eq!(registrar.nodes_after(nodes[49].ordinal).count(), 0);
}

#[test]
fn a_restored_registrar_goes_on_where_it_stopped() {
    let mut registrar = Registrar::new(16, "rack");
    registrar.resources_mut().learn("fpga").unwrap();
    let nodes: Vec<_> = (0..5).map(|i| registrar.register(spec(&format!("n{i}"), &[])).unwrap()).collect();
    registrar.forget(nodes[4].id, 1);
    let restored = Registrar::restore(16, "rack", &registrar.state(), nodes[..4].iter());
    assert_eq!(restored.state(), registrar.state());
    let mut restored = restored;
    assert_eq!(restored.register(spec("n4", &[])).unwrap().id, NodeId(6));
}
