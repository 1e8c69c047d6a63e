//! Jobs with rules about domains: nodes are launched in one domain, and the cycle that serves starts what is planned.

use super::*;
use crate::jobs::{TopologyDomain, TopologyRule, TopologyTier};
use crate::rng::Rng;

fn bed() -> Bed {
    capped(Caps::none())
}

fn capped(capability: Caps) -> Bed {
    with_domains(capability, Vec::new())
}

fn with_domains(capability: Caps, domains: Vec<TopologyDomain>) -> Bed {
    let tier = |name: &str| TopologyTier::labelled(name, name);
    let topology = vec![tier("rack"), tier("block")];
    let config = CycleConfig { topology, domains, ..CycleConfig::default() };
    let mut cluster = LocalCluster::new(config, 1).unwrap();
    let queue = QueueSpec { capability, ..QueueSpec::new("q") };
    let queue = cluster.scheduler_mut().jobs_mut().add_queue(queue).unwrap();
    Bed { cluster, queue, jobs: 0 }
}

fn in_rack(name: &str, cpu: u32, max: u32, labels: &[(&str, &str)]) -> NodeType {
    NodeType { spec: spec(name, cpu, 0, labels), ..kind(name, cpu, 0, max) }
}

fn submit(bed: &mut Bed, cpu: u32, (count, least): (u32, u32), rule: TopologyRule) -> JobId {
    bed.jobs += 1;
    let spec = JobSpec {
        queue: bed.queue,
        min_member: least,
        phase: JobPhase::Inqueue,
        topology: Some(rule),
        ..JobSpec::new(&format!("j{}", bed.jobs), vec![TaskGroup::new(asks(cpu, 0), count)])
    };
    bed.cluster.scheduler_mut().jobs_mut().submit(spec).unwrap()
}

#[test]
fn a_gang_with_a_hard_rule_gets_nodes_of_one_rack_and_those_without_a_rack_do_not_help() {
    let mut bed = bed();
    bed.cluster.add_node(spec("n", 2, 0, &[("rack", "r2")])).unwrap();
    let job = submit(&mut bed, 1, (4, 4), TopologyRule::hard("rack"));
    let types = vec![
        kind("plain", 4, 0, 9),
        in_rack("r1", 1, 9, &[("rack", "r1")]),
        in_rack("r2", 1, 9, &[("rack", "r2")]),
    ];
    let plan = bed.plan(&NodesRequest::new(types.clone()));
    let needed: Vec<u32> = plan.types.iter().map(|of| of.needed).collect();
    assert_eq!(needed, [0, 0, 2], "two fit on the node of rack r2");
    assert_eq!(plan.starts, [Start { after_ns: 0, job, tasks: 4 }]);
    let plan = bed.plan(&NodesRequest::new(types[..1].to_vec()));
    assert_eq!(plan.types[0].needed, 0);
    assert_eq!((plan.unplaced[0].count, &plan.unplaced[0].reason), (4, &Unfit::Topology));
    let few = vec![in_rack("r1", 1, 3, &[("rack", "r1")]), in_rack("r2", 1, 1, &[("rack", "r2")])];
    let plan = bed.plan(&NodesRequest::new(few));
    assert!(plan.types.iter().all(|of| of.needed == 0) && plan.starts.is_empty());
}

/// Present nodes are in an object by their names and labels, types by their labels alone.
#[test]
fn types_are_in_objects_by_their_labels_and_not_by_their_names() {
    let texts = |all: &[&str]| all.iter().map(|&text| text.into()).collect();
    let switch = Labels::new(vec![("switch".into(), "s7".into())]).unwrap();
    let domains = vec![
        TopologyDomain { nodes: texts(&["gpu-a-*", "n9"]), ..TopologyDomain::new("rack", "r1") },
        TopologyDomain { labels: switch, nodes: texts(&["n1"]), ..TopologyDomain::new("rack", "r2") },
        TopologyDomain { domains: texts(&["r2", "r3"]), ..TopologyDomain::new("block", "b1") },
    ];
    let bed = || with_domains(Caps::none(), domains.clone());
    // Types whose names are those of nodes in the objects, with the label of the tier, and with that of an object.
    let types = || {
        vec![
            kind("gpu-a-1", 4, 0, 9),
            kind("n1", 4, 0, 9),
            in_rack("labelled", 1, 9, &[("rack", "r1")]),
            in_rack("switched", 1, 9, &[("switch", "s7")]),
        ]
    };
    let nodes = |bed: &mut Bed, nodes: &[(&str, &[(&str, &str)])]| {
        for &(name, labels) in nodes {
            bed.cluster.add_node(spec(name, 1, 0, labels)).unwrap();
        }
    };
    // Of the rack with a present node, fewer are launched.
    let mut named = bed();
    nodes(&mut named, &[("n1", &[]), ("other", &[])]);
    let job = submit(&mut named, 1, (4, 4), TopologyRule::hard("rack"));
    let plan = named.plan(&NodesRequest::new(types()));
    assert_eq!(plan.types.iter().map(|of| of.needed).collect::<Vec<_>>(), [0, 0, 0, 3]);
    assert_eq!(plan.starts, [Start { after_ns: 0, job, tasks: 4 }]);
    let mut matched = bed();
    nodes(&mut matched, &[("gpu-a-7", &[]), ("n9", &[]), ("x", &[("switch", "s7")])]);
    let job = submit(&mut matched, 1, (4, 4), TopologyRule::hard("rack"));
    let plan = matched.plan(&NodesRequest::new(types()));
    assert_eq!(plan.types.iter().map(|of| of.needed).collect::<Vec<_>>(), [0, 0, 2, 0]);
    assert_eq!(plan.starts, [Start { after_ns: 0, job, tasks: 4 }]);
    // Nothing is launched if present nodes suffice, in a block of two racks.
    let mut block = bed();
    nodes(&mut block, &[("n1", &[]), ("y", &[("switch", "s7")]), ("z", &[("rack", "r3")])]);
    let job = submit(&mut block, 1, (3, 3), TopologyRule::hard("block"));
    let plan = block.plan(&NodesRequest::new(types()[..2].to_vec()));
    assert_eq!((plan.types[0].needed, plan.types[1].needed, plan.fit_present), (0, 0, 3));
    assert_eq!(plan.starts, [Start { after_ns: 0, job, tasks: 3 }]);
    // Types that are in no domain do not help.
    submit(&mut block, 1, (1, 1), TopologyRule::hard("block"));
    let plan = block.plan(&NodesRequest::new(types()[..2].to_vec()));
    assert_eq!(plan.types.iter().map(|of| of.needed).sum::<u32>(), 0);
    assert_eq!((plan.unplaced[0].count, &plan.unplaced[0].reason), (1, &Unfit::Topology));
    let mut helpful = types();
    helpful.remove(2);
    let plan = block.plan(&NodesRequest::new(helpful));
    assert_eq!(plan.types.iter().map(|of| of.needed).collect::<Vec<_>>(), [0, 0, 1]);
}

#[test]
fn what_follows_later_stays_where_the_others_run_and_soft_rules_cost_no_node() {
    let mut bed = bed();
    let node = bed.cluster.add_node(spec("n", 1, 0, &[("rack", "r2")])).unwrap();
    let job = submit(&mut bed, 1, (2, 1), TopologyRule::hard("rack"));
    bed.cluster.run_on(TaskId { job, index: 0 }, node, TaskState::Running).unwrap();
    let types = || vec![in_rack("r1", 1, 9, &[("rack", "r1")]), in_rack("r2", 1, 9, &[("rack", "r2")])];
    assert_eq!(bed.needed(&NodesRequest::new(types())), [0, 1]);
    let mut soft = super::topology::bed();
    submit(&mut soft, 1, (4, 4), TopologyRule::soft(Some("rack")));
    let few = |max| vec![in_rack("r1", 1, max, &[("rack", "r1")]), in_rack("r2", 1, 2, &[("rack", "r2")])];
    assert_eq!(soft.needed(&NodesRequest::new(few(9))), [4, 0]);
    assert_eq!(soft.needed(&NodesRequest::new(few(2))), [2, 2]);
}

#[test]
fn a_job_with_a_hard_rule_is_planned_if_some_domain_could_hold_it_and_starts_in_it() {
    let mut rng = Rng::new(4);
    let mut outcomes = [0; 2];
    for round in 0..400 {
        let racks = ["a", "b", "c"];
        // In every second round, racks are objects. Present nodes are then in them by name, and types by a label.
        let are_objects = round % 2 == 0;
        let domain = |rack: &str| TopologyDomain {
            nodes: vec![format!("in-{rack}-*").into()],
            labels: Labels::new(vec![("by".into(), rack.into())]).unwrap(),
            ..TopologyDomain::new("rack", rack)
        };
        let domains = if are_objects { racks.map(domain).to_vec() } else { Vec::new() };
        let mut bed = with_domains(Caps::none(), domains);
        let mut room = [0_u32; 3];
        for number in 0..rng.below(5) {
            let rack = rng.below(4) as usize;
            let cpu = 1 + rng.below(3) as u32;
            let labels: &[(&str, &str)] =
                if rack < 3 && !are_objects { &[("rack", racks[rack])] } else { &[] };
            let name = format!("in-{}-{number}", racks.get(rack).unwrap_or(&"none"));
            bed.cluster.add_node(spec(&name, cpu, 0, labels)).unwrap();
            if rack < 3 {
                room[rack] += cpu;
            }
        }
        let mut types = vec![kind("plain", 4, 0, 9)];
        for (at, rack) in racks.iter().enumerate() {
            let cpu = 1 + rng.below(3) as u32;
            let max = rng.below(4) as u32;
            let key = if are_objects { "by" } else { "rack" };
            types.push(in_rack(rack, cpu, max, &[(key, rack)]));
            room[at] += cpu * max;
        }
        let count = 2 + rng.below(9) as u32;
        let job = submit(&mut bed, 1, (count, count), TopologyRule::hard("rack"));
        let plan = bed.plan(&NodesRequest::new(types));
        let fits = room.iter().any(|&room| room >= count);
        assert_eq!(plan.unplaced.is_empty(), fits, "round {round}: {room:?} for {count}: {plan:?}");
        // The cycle that serves keeps the rule: it starts only in one domain.
        let started = plan.starts.first().map(|start| (start.job, start.tasks));
        assert_eq!(started, fits.then_some((job, count)), "round {round}");
        assert_eq!(plan.types[0].needed, 0);
        outcomes[usize::from(fits)] += 1;
    }
    assert!(outcomes.iter().all(|&count| count > 50), "{outcomes:?}");
}

#[test]
fn the_rest_of_a_job_gets_no_nodes_if_a_cap_forbids_its_gang() {
    let mut bed = capped([(Dim::CPU, 30_000)].into_iter().collect());
    let job = submit(&mut bed, 1, (6, 4), TopologyRule::hard("rack"));
    let request = NodesRequest::new(vec![in_rack("r1", 1, 9, &[("rack", "r1")])]);
    let plan = bed.plan(&request);
    assert_eq!(
        (plan.types[0].needed, &plan.waiting[..]),
        (0, &[job][..]),
        "the rest would fit below the cap"
    );
    let cap = Unfit::Cap { queue: "q".into(), of: Capped::Resource(Dim::CPU) };
    let left: Vec<_> = plan.unplaced.iter().map(|left| (left.count, &left.reason)).collect();
    assert_eq!(left, [(4, &cap), (2, &cap)]);
    // A job without a gang gets what the cap leaves.
    submit(&mut bed, 1, (6, 1), TopologyRule::hard("rack"));
    assert_eq!(bed.needed(&request), [3]);
}

/// Adds nodes, each in a rack of its own.
fn racks(bed: &mut Bed, count: u32, nodes: u32, cpu: u32) {
    for rack in 0..count {
        let rack = format!("r{rack:03}");
        for _ in 0..nodes {
            bed.cluster.add_node(spec("n", cpu, 0, &[("rack", &rack)])).unwrap();
        }
    }
}

#[test]
fn single_tasks_reach_the_cluster_and_the_racks_of_types_past_many_racks() {
    let request = NodesRequest::new(vec![in_rack("r999", 4, 9, &[("rack", "r999")])]);
    // All of 600 racks are too small for a task.
    let mut full = bed();
    racks(&mut full, 600, 1, 1);
    full.cluster.add_node(spec("n", 4, 0, &[])).unwrap();
    submit(&mut full, 2, (3, 1), TopologyRule::soft(Some("rack")));
    let plan = full.plan(&request);
    assert_eq!((plan.fit_present, plan.fit_needed, plan.types[0].needed), (2, 1, 1));
    submit(&mut full, 2, (3, 1), TopologyRule::hard("rack"));
    let plan = full.plan(&request);
    assert_eq!((plan.fit_present, plan.fit_needed, plan.types[0].needed), (2, 4, 2));
    assert_eq!((&plan.unplaced[..], plan.is_partial), (&[][..], false));

    // Each of 600 racks has room for one task.
    let mut open = bed();
    racks(&mut open, 600, 1, 2);
    submit(&mut open, 2, (601, 1), TopologyRule::soft(Some("rack")));
    let plan = open.plan(&request);
    assert_eq!((plan.fit_present, plan.types[0].needed, plan.is_partial), (600, 1, false));
    let mut open = bed();
    racks(&mut open, 600, 1, 2);
    submit(&mut open, 2, (5, 1), TopologyRule::hard("rack"));
    let plan = open.plan(&request);
    assert_eq!((plan.fit_needed, plan.types[0].needed, plan.is_partial), (5, 3, false));
    // Without new nodes, one of the racks that are not tried might hold more.
    let plan = open.plan(&NodesRequest::new(vec![in_rack("r999", 4, 0, &[("rack", "r999")])]));
    assert_eq!((plan.fit_present, plan.is_partial), (1, true));
    assert_eq!((plan.unplaced[0].count, &plan.unplaced[0].reason), (4, &Unfit::Undecided));
}

#[test]
fn what_might_fit_in_a_rack_that_was_not_tried_is_undecided() {
    let reason = |count| {
        let mut bed = bed();
        // The racks have room in sum, and no node of them has.
        racks(&mut bed, count, 4, 1);
        bed.cluster.add_node(spec("n", 9, 0, &[])).unwrap();
        submit(&mut bed, 2, (2, 2), TopologyRule::hard("rack"));
        let plan = bed.plan(&NodesRequest::new(vec![kind("small", 1, 0, 9)]));
        (plan.unplaced[0].reason.clone(), plan.is_partial)
    };
    assert_eq!(reason(65), (Unfit::OnlyPresent, false));
    assert_eq!(reason(66), (Unfit::Undecided, true));
}

#[test]
fn a_hundred_gangs_fill_a_hundred_racks_and_cost_no_node() {
    for is_plain in [false, true] {
        let mut bed = bed();
        racks(&mut bed, 100, 1, 2);
        // What has no rule takes room of racks as well: 65 of them, because it comes first.
        if is_plain {
            let spec = JobSpec {
                queue: bed.queue,
                priority: 1,
                min_member: 130,
                phase: JobPhase::Inqueue,
                ..JobSpec::new("plain", vec![TaskGroup::new(asks(1, 0), 130)])
            };
            bed.cluster.scheduler_mut().jobs_mut().submit(spec).unwrap();
        }
        let gangs = if is_plain { 35 } else { 100 };
        for _ in 0..gangs {
            submit(&mut bed, 1, (2, 2), TopologyRule::hard("rack"));
        }
        let request = NodesRequest::new(vec![in_rack("r999", 2, 2, &[("rack", "r999")])]);
        let plan = bed.plan(&request);
        assert_eq!((plan.fit_present, plan.types[0].needed), (200, 0), "{is_plain}");
        assert_eq!((&plan.unplaced[..], plan.is_partial), (&[][..], false), "{is_plain}");
        // Two more fit on new nodes, and the next one nowhere.
        for _ in 0..3 {
            submit(&mut bed, 1, (2, 2), TopologyRule::hard("rack"));
        }
        let plan = bed.plan(&request);
        assert_eq!((plan.fit_present, plan.fit_needed, plan.types[0].needed), (200, 4, 2), "{is_plain}");
        assert_eq!((plan.unplaced.len(), &plan.unplaced[0].reason), (1, &Unfit::TypeLimit), "{is_plain}");
    }
}
