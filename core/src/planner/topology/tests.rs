//! Values of labels: their nodes, levels and shares.

use super::super::test_bed::{Bed, cores, items_of, node_of, wanted_of};
use super::*;
use crate::node::LifeEvent;
use crate::request::Policy;
use crate::resource::{Amount, GpuRequest};
use crate::rng::Rng;
use crate::shard::Command;

#[test]
fn nodes_of_a_value_are_named_as_far_as_that_is_allowed_and_else_selected() {
    let mut bed = Bed::new(2);
    let spec = node_of(1, &[("zone", "a")]);
    let mut nodes: Vec<NodeId> =
        (0..RULE_NODES_NAMED_MAX).map(|number| bed.add(number % 2, spec.clone(), false)).collect();
    let confined = |bed: &mut Bed| {
        bed.sync();
        let mut values = Values::default();
        values.add("a".into(), &mut bed.replicas.copies, "zone");
        bed.replicas.within(&cores(1), ("zone", &values, 0))
    };
    nodes.sort_unstable();
    let named = confined(&mut bed);
    assert!(named.candidates.as_deref() == Some(&nodes[..]), "each of them is named");
    assert_eq!(named.selector, None);
    bed.add(0, spec, false);
    let selected = confined(&mut bed);
    let terms = selected.selector.as_ref().expect("too many to be named").terms();
    assert!(selected.candidates.is_none(), "none is named");
    assert_eq!(terms.len(), 1);
    assert_eq!((&*terms[0].key, &terms[0].values[..]), ("zone", &["a".to_owned()][..]));
}

/// Levels of so many values, none with bundles.
fn levels_of(count: usize) -> Levels {
    let names = (0..count).map(|number| format!("v{number}").into()).collect();
    Levels {
        key: "zone".into(),
        strategy: Strategy::Pack,
        values: Arc::new(Values { names, ..Values::default() }),
        counts: vec![0; count],
        empty: count,
        begun: BTreeSet::new(),
        used: BTreeMap::new(),
        classes: Vec::new(),
    }
}

#[test]
fn levels_know_the_value_with_the_fewest_and_those_that_may_get_one_more() {
    let mut rng = Rng::new(5);
    for count in 1..6 {
        let mut levels = levels_of(count);
        for _ in 0..40 {
            let fewest = *levels.counts.iter().min().expect("some");
            assert_eq!(levels.least(), fewest);
            assert_eq!(levels.lowest(), levels.counts.iter().position(|&of| of == fewest));
            for max_skew in 1..4 {
                let mut open: Vec<usize> = (0..count).filter(|&at| levels.counts[at] > 0).collect();
                open.retain(|&at| levels.counts[at] < fewest + max_skew);
                open.sort_by_key(|&at| (levels.counts[at], at));
                assert_eq!(levels.open(max_skew).collect::<Vec<_>>(), open, "{:?}", levels.counts);
            }
            let mut expected = levels.counts.clone();
            let at = rng.below(count as u64) as usize;
            expected[at] += 1;
            levels.count(at);
            assert_eq!(levels.counts, expected);
            assert_eq!(levels.empty, expected.iter().filter(|&&of| of == 0).count());
        }
        assert_eq!(levels.find(Some("v0")), Some(0));
        assert_eq!(levels.find(Some("v9")), None);
        assert_eq!(levels.find(None), None);
    }
}

/// Zones with nodes of so many cores. The zones go over both shards.
fn zones(bed: &mut Bed, zones: &[(&str, &[u32])]) -> Vec<NodeId> {
    let mut nodes = Vec::new();
    for (zone, of_zone) in zones {
        for &cpu in *of_zone {
            nodes.push(bed.add(nodes.len() % 2, node_of(cpu, &[("zone", zone)]), false));
        }
    }
    bed.sync();
    nodes
}

fn names(values: &Values) -> Vec<&str> {
    values.names.iter().map(|name| &**name).collect()
}

#[test]
fn a_value_with_less_than_the_minimum_is_told_by_its_share() {
    let mut bed = Bed::new(2);
    zones(&mut bed, &[("a", &[4, 4]), ("b", &[8]), ("c", &[1, 1, 8])]);
    let key: Arc<str> = "zone".into();
    // Of four bundles, the smallest two are the minimum: two and three cores.
    let items = items_of([cores(6), cores(3), cores(5), cores(2)]);
    let wanted = Wanted { least: 2, ..wanted_of(Strategy::Pack, items) };
    let floor = Floor::of(&wanted).expect("nobody owns them");
    assert_eq!(floor.needed, [Amount::whole(5).units().into(), 0, 0]);
    assert_eq!(floor.demands.len(), 4);
    let values = bed.replicas.values_of(&wanted, &key).expect("few");
    assert_eq!(names(&values), ["a", "b", "c"]);
    let spent = bed.replicas.meter.spent();
    let shares: Vec<i128> = (0..3).map(|at| bed.replicas.share_of(values.nodes(at), &floor)).collect();
    // Nodes of one core hold none of them.
    assert_eq!(shares, [1_600, 1_600, 1_600]);
    assert_eq!(bed.replicas.meter.spent() - spent, 6, "each node is looked at once");
    let shares = |bed: &Bed, requests: Vec<PlacementRequest>| -> Vec<i128> {
        let wanted = wanted_of(Strategy::Pack, items_of(requests));
        let floor = Floor::of(&wanted).expect("nobody owns them");
        (0..3).map(|at| bed.replicas.share_of(values.nodes(at), &floor)).collect()
    };
    assert_eq!(shares(&bed, vec![cores(5), cores(5)]), [0, 800, 800]);
    assert_eq!(shares(&bed, vec![cores(1); 10]), [800, 800, 1_000]);
    // What is not asked for is not needed. Where nothing is needed, there is always enough.
    assert_eq!(shares(&bed, vec![cores(0); 2]), [1_000; 3]);
    let device = Demand { gpu: GpuRequest::Whole(1), ..Demand::default() };
    assert_eq!(shares(&bed, vec![PlacementRequest::new(device, Policy::BestFit)]), [0; 3]);
    // Beyond a few demands, nodes are not looked at one by one: any free capacity counts.
    let many: Vec<PlacementRequest> = (5..=5 + DEMANDS_LOOKED_AT_MAX as u32).map(cores).collect();
    let needed: u32 = (5..=5 + DEMANDS_LOOKED_AT_MAX as u32).sum();
    let share = |free: u32| i128::from(free) * 1_000 / i128::from(needed);
    assert_eq!(shares(&bed, many), [share(8), share(8), share(10)]);
    let owned = PlacementRequest { owner: crate::ids::OwnerId::new(1), ..cores(1) };
    assert!(Floor::of(&wanted_of(Strategy::Pack, items_of([owned]))).is_none());
}

#[test]
fn values_are_known_for_requests_that_suit_the_same_nodes_until_these_change() {
    let mut bed = Bed::new(2);
    let nodes = zones(&mut bed, &[("a", &[4]), ("b", &[4]), ("c", &[4])]);
    let key: Arc<str> = "zone".into();
    let of = |bed: &mut Bed, request: PlacementRequest| {
        let wanted = wanted_of(Strategy::Pack, items_of([request]));
        bed.replicas.values_of(&wanted, &key).expect("few")
    };
    let naming = |ids: &[NodeId]| PlacementRequest { candidates: Some(ids.into()), ..cores(1) };
    let all = of(&mut bed, cores(1));
    assert_eq!(names(&all), ["a", "b", "c"]);
    assert!(Arc::ptr_eq(&all, &of(&mut bed, cores(3))), "how much is asked does not matter");
    assert_eq!(names(&of(&mut bed, naming(&nodes[1..]))), ["b", "c"]);
    assert_eq!(names(&of(&mut bed, naming(&nodes[..1]))), ["a"]);
    bed.step(0, Command::Place(cores(1)));
    bed.sync();
    assert!(Arc::ptr_eq(&all, &of(&mut bed, cores(1))), "what runs there does not matter");
    bed.step(0, Command::Life(nodes[0], LifeEvent::Drain));
    bed.sync();
    assert_eq!(names(&of(&mut bed, cores(1))), ["b", "c"]);
    // The settled bundles count as those to be placed do.
    let items = items_of([naming(&nodes[1..2])]);
    let settled = vec![Arc::new(naming(&nodes[2..]))];
    let wanted = Wanted { settled, ..wanted_of(Strategy::Pack, items) };
    assert_eq!(names(&bed.replicas.values_of(&wanted, &key).expect("few")), ["b", "c"]);
    let other: Arc<str> = "rack".into();
    assert_eq!(names(&bed.replicas.values_of(&wanted, &other).expect("few")), [""; 0]);
}

#[test]
fn the_values_that_were_used_last_are_kept() {
    let mut bed = Bed::new(2);
    let nodes = zones(&mut bed, &[("a", &[1; 20])]);
    let key: Arc<str> = "zone".into();
    let of = |bed: &mut Bed, at: usize| {
        let named = PlacementRequest { candidates: Some([nodes[at]].into()), ..cores(1) };
        bed.replicas.values_of(&wanted_of(Strategy::Pack, items_of([named])), &key).expect("few")
    };
    let first: Vec<Arc<Values>> = (0..OPEN_VALUES_KEPT_MAX).map(|at| of(&mut bed, at)).collect();
    assert!(Arc::ptr_eq(&first[0], &of(&mut bed, 0)));
    of(&mut bed, OPEN_VALUES_KEPT_MAX);
    assert!(Arc::ptr_eq(&first[0], &of(&mut bed, 0)), "it was used after the second");
    assert!(Arc::ptr_eq(&first[2], &of(&mut bed, 2)));
    assert!(!Arc::ptr_eq(&first[1], &of(&mut bed, 1)), "it was used before all others");
    assert_eq!(bed.replicas.open_values.kept.len(), OPEN_VALUES_KEPT_MAX);
}

#[test]
fn requests_suit_the_same_nodes_unless_labels_names_preferences_or_devices_differ() {
    let term = Term { key: "zone".to_owned(), operator: Operator::Exists, values: Vec::new() };
    let device = Demand { gpu: GpuRequest::Fraction(1), ..cores(1).demand };
    let devices = Demand { gpu: GpuRequest::Whole(2), ..cores(1).demand };
    let others = [
        PlacementRequest { selector: Some(Arc::new(Selector::new(vec![term]))), ..cores(1) },
        PlacementRequest { candidates: Some([NodeId(1)].into()), ..cores(1) },
        PlacementRequest { preferences: Some(Arc::default()), ..cores(1) },
        PlacementRequest { demand: device, ..cores(1) },
    ];
    for (at, other) in others.iter().enumerate() {
        assert!(same_nodes(other, &other.clone()) && !same_nodes(&cores(1), other), "{other:?}");
        assert!(others[..at].iter().all(|before| !same_nodes(before, other)), "{other:?}");
    }
    assert!(same_nodes(&cores(1), &cores(5)));
    assert!(same_nodes(&others[3], &PlacementRequest { demand: devices, ..cores(1) }));
}

#[test]
fn values_that_are_not_known_cost_a_unit_for_each_search_and_each_node_looked_at() {
    let mut bed = Bed::new(2);
    let nodes = zones(&mut bed, &[("a", &[4, 4]), ("b", &[4, 4]), ("c", &[4, 4])]);
    let key: Arc<str> = "zone".into();
    let mut cost = |request: PlacementRequest| {
        let before = bed.replicas.meter.spent();
        let wanted = wanted_of(Strategy::Pack, items_of([request]));
        bed.replicas.values_of(&wanted, &key).expect("few");
        bed.replicas.meter.spent() - before
    };
    // Two searches collect the labels of three nodes each. Then one node of each value and shard suits.
    assert_eq!(cost(cores(1)), 2 + 6 + 6);
    assert_eq!(cost(cores(2)), 0, "they are known");
    let named = PlacementRequest { candidates: Some(nodes[..4].into()), ..cores(1) };
    assert_eq!(cost(named.clone()), 2 + 4, "only the named nodes are looked at");
    assert_eq!(cost(named), 0);
}
