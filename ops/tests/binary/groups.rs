//! Groups and statements with the real binary: creating, showing, waiting, placing inside, refusing and
//! removing groups, and statements from a file. Nothing is left in the books at the end.

use serde_json::{Value, json};

use crate::harness::{Service, Site};

/// Audits the books and returns all nodes. Versions are removed: a hold that was given back changed its node
/// twice.
fn standing(service: &Service) -> Value {
    assert!(service.json(&["status", "--audit"])["books_hash"].is_string());
    let mut nodes = service.json(&["node", "list"]);
    for node in nodes.as_array_mut().expect("a list") {
        node["version"] = Value::Null;
    }
    nodes
}

fn add_nodes(service: &Service, count: usize) {
    for i in 0..count {
        let name = format!("n{i}");
        let zone = format!("zone=z{}", i % 2);
        let add = ["node", "add", &name, "--cpu", "4", "--memory", "8GiB", "--gpus", "1", "--label", &zone];
        service.run(&add).with(0);
    }
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

#[test]
fn a_group_lives_from_its_making_to_its_removal() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    add_nodes(&service, 4);
    let empty = standing(&service);
    let create =
        ["group", "create", "--bundles", "3", "--cpu", "2", "--gpu", "1", "--strategy", "strict-spread"];
    service.run(&create).with(0).says(&["created, placed, 3 of 3 bundles placed", "strict-spread"]);
    let listed = service.json(&["group", "list"]);
    let group = text(&listed[0]["group"]);
    assert_eq!((&listed[0]["state"], &listed[0]["placed"]), (&json!("placed"), &json!(3)));
    service.run(&["group", "list"]).with(0).says(&[&group, "3/3", "strict-spread"]);
    let shown = service.json(&["group", "status", &group]);
    assert_eq!((&shown["reason"], &shown["group"]), (&json!("done"), &json!(group)));
    let bundles = shown["bundles"].as_array().expect("a list");
    assert!(
        bundles.iter().all(|bundle| bundle["gpu"] == json!("1") && bundle["gpus"] == json!([0])),
        "{shown}"
    );
    let bundle = text(&bundles[0]["allocation"]);
    let into = service.json(&["place", "--into", &bundle, "--cpu", "1", "--gpu", "0.5"]);
    assert_eq!((&into["node"], &into["gpus"]), (&bundles[0]["node"], &json!([0])), "{into}");
    service.run(&["place", "--group", &group, "--bundle", "1", "--cpu", "2"]).with(0).says(&["placed on"]);
    service
        .run(&["place", "--group", &group, "--bundle", "1", "--cpu", "1"])
        .with(1)
        .says(&["no_fit_now", "cpu"]);
    service
        .run(&["place", "--group", &group, "--bundle", "9", "--cpu", "1"])
        .with(1)
        .says(&["unknown_bundle"]);
    service.run(&["place", "--into", &bundle, "--policy", "random"]).with(2);
    service.run(&["group", "grow", &group, "--bundle", "cpu=1,count=1"]).with(0).says(&["4 of 4"]);
    service.run(&["group", "grow", &group, "--bundle", "cpu=1"]).with(1).says(&["not placed"]);
    service.run(&["group", "shrink", &group, "0"]).with(0).says(&["shrunk", "3 of 3"]);
    service.run(&["group", "shrink", &group, "1"]).with(1).says(&["below_minimum", "remove it instead"]);
    service.run(&["group", "shrink", &group, "0"]).with(1).says(&["unknown_bundle"]);
    service.run(&["group", "remove", &group]).with(0).says(&["removed, with 3 bundles"]);
    service.run(&["group", "remove", &group]).with(1).says(&["unknown_group"]);
    service.run(&["group", "status", &group]).with(1).says(&["unknown_group"]);
    assert_eq!(standing(&service), empty);
    service.stop();
}

#[test]
fn a_group_that_does_not_fit_says_why_and_holds_nothing() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    add_nodes(&service, 4);
    let empty = standing(&service);
    let create = |more: &[&str]| service.run(&[&["group", "create"], more].concat());
    create(&["--bundles", "2", "--cpu", "5"]).with(1).says(&[
        "infeasible",
        "no_node_for_bundle",
        "insufficient cpu",
    ]);
    create(&["--bundles", "5", "--cpu", "1", "--strategy", "strict-pack"])
        .with(1)
        .says(&["infeasible", "no_single_node"]);
    create(&["--bundles", "5", "--cpu", "1", "--strategy", "strict-spread"])
        .with(1)
        .says(&["infeasible", "too_few_nodes"]);
    create(&["--bundles", "5", "--gpu", "1", "--wait", "1h"]).with(1).says(&[
        "infeasible",
        "cluster_too_small",
        "gpu",
    ]);
    create(&["--bundle", "cpu=1,qpu=1"]).with(1).says(&["infeasible", "bundles[0].custom[0].name", "qpu"]);
    create(&["--bundle", "cpu=x"]).with(2).says(&["--bundle", "'cpu=x'"]);
    create(&[]).with(2).says(&["no bundle is given"]);
    create(&["--bundles", "2", "--cpu", "1", "--strategy", "tight"]).with(2).says(&["strict-pack"]);
    let refused = create(&["--bundles", "2", "--cpu", "5", "--json"]).with(1).json();
    assert_eq!(refused["refusal"]["cause"], json!("no_node_for_bundle"));
    assert_eq!(service.json(&["group", "list"]), json!([]));
    assert_eq!(standing(&service), empty);
    let packed = service.json(&["group", "create", "--bundles", "2", "--cpu", "3", "--pack-by", "zone!"]);
    assert_eq!(packed["topology"], json!("packed by zone!"));
    let spread = service.json(&["group", "create", "--bundles", "2", "--cpu", "1", "--spread-by", "zone"]);
    assert_eq!(spread["reason"], json!("done"), "{spread}");
    service.stop();
}

#[test]
fn a_group_waits_until_there_is_room_or_it_is_told_to_end() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    add_nodes(&service, 2);
    let held = text(&service.json(&["place", "--cpu", "4"])["allocation"]);
    let create = ["group", "create", "--bundles", "2", "--cpu", "4", "--wait", "1h"];
    let waiting = |count: usize| {
        service.until(&["group", "list"], |groups| groups.as_array().map(Vec::len) == Some(count));
    };
    let child = service.begin(&create);
    waiting(1);
    child.signal("INT");
    child.end().with(1).says(&["cancelled"]);
    waiting(0);
    let child = service.begin(&create);
    waiting(1);
    service.run(&["release", &held]).with(0);
    child.end().with(0).says(&["2 of 2 bundles placed"]);
    // New bundles of a group wait as well.
    let group = text(&service.json(&["group", "list"])[0]["group"]);
    let grow = ["group", "grow", &group, "--bundle", "cpu=3", "--wait"];
    let of_three = |shown: &Value| shown["bundles"].as_array().map(Vec::len) == Some(3);
    service.run(&["node", "add", "late", "--cpu", "4", "--memory", "8GiB"]).with(0);
    let held = text(&service.json(&["place", "--cpu", "4"])["allocation"]);
    service.run(&[&grow[..], &["1ms"]].concat()).with(1).says(&["no_fit_now"]);
    let child = service.begin(&[&grow[..], &["1h"]].concat());
    service.until(&["group", "status", &group], of_three);
    child.signal("INT");
    child.end().with(1).says(&["cancelled"]);
    let child = service.begin(&[&grow[..], &["1h"]].concat());
    service.until(&["group", "status", &group], of_three);
    service.run(&["release", &held]).with(0);
    child.end().with(0).says(&["grown", "3 of 3 bundles placed"]);
    service.stop();
}

#[test]
fn a_statement_out_of_a_file_is_done_or_refused_with_the_facts() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    add_nodes(&service, 2);
    let empty = standing(&service);
    let version = |node: usize| service.json(&["node", "list"])[node]["version"].as_u64().expect("a number");
    let write = |operations: Value, conflict_detection: &str| {
        site.write(
            "plan.json",
            &json!({"operations": operations, "conflict_detection": conflict_detection}).to_string(),
        )
    };
    let take = |version: u64| {
        json!([
            {"allocate": {"node": "n0", "cpu": 3, "gpu": 1, "expected_version": version}},
            {"allocate": {"node": "n1", "cpu": "0.5", "memory": "1GiB"}},
        ])
    };
    let plan = write(take(version(0)), "fine");
    let done = service.json(&["statement", "submit", &plan]);
    assert_eq!(done["versions_compared"], json!(false), "{done}");
    assert_eq!((&done["reason"], &done["operations"][0]["gpus"]), (&json!("done"), &json!([0])), "{done}");
    let after = standing(&service);
    service.run(&["statement", "submit", &plan]).with(1).says(&[
        "conflicted, 0 of 2 operations done; fine: expected versions were not compared",
        "insufficient on n0",
        "aborted",
    ]);
    let stale = write(json!([{"allocate": {"node": "n0", "cpu": 1, "expected_version": 0}}]), "coarse");
    service
        .run(&["statement", "submit", &stale])
        .with(1)
        .says(&["version_changed on n0", "0 of 1 operations done\n"]);
    let compared = service.run(&["statement", "submit", &stale, "--json"]).with(1).json();
    assert_eq!(compared["versions_compared"], json!(true));
    let blind = write(json!([{"allocate": {"node": "n0", "cpu": 1}}]), "coarse");
    let blind = service.run(&["statement", "submit", &blind, "--json"]).with(1).json();
    assert_eq!(
        (&blind["versions_compared"], &blind["operations"][0]["reason"]),
        (&Value::Null, &json!("no_version"))
    );
    let unknown = write(json!([{"allocate": {"node": "nowhere", "cpu": 1}}]), "fine");
    service.run(&["statement", "submit", &unknown]).with(1).says(&["unknown_node", "nowhere"]);
    let unknown = write(json!([{"allocate": {"node": "n999", "cpu": 1}}]), "fine");
    service.run(&["statement", "submit", &unknown]).with(1).says(&["operations[0].node"]);
    let allocate = json!({"allocate": {"node": "n0", "cpu": 1}});
    for (file, says) in [
        (
            json!({"operations": [{"move": {}}]}),
            ["operations[0].move: unknown field", "`allocate`, `pipeline`, `evict`"],
        ),
        (json!([]), ["expected an object with the list `operations`", "--help"]),
        (
            json!({"operations": [allocate, {"evict": []}]}),
            ["operations[1].evict: invalid length 0", "expected an object such as"],
        ),
        (
            json!({"operations": [allocate, {"evict": {"allocation": 7}}]}),
            ["operations[1].evict.allocation: give a text", "such as \"a1-83-1\""],
        ),
        (
            json!({"operations": [allocate], "mode": "some"}),
            ["mode: unknown variant `some`", "`incremental`"],
        ),
        (json!({"operations": [allocate], "conflict_detection": []}), ["conflict_detection: ", "--help"]),
    ] {
        let plan = site.write("plan.json", &file.to_string());
        service.run(&["statement", "submit", &plan]).with(2).says(&["plan.json: "]).says(&says);
    }
    assert_eq!(standing(&service), after);
    let ids: Vec<String> = (0..2).map(|at| text(&done["operations"][at]["allocation"])).collect();
    let evict = write(json!([{"evict": {"allocation": ids[0]}}, {"evict": {"allocation": ids[1]}}]), "fine");
    service.run(&["statement", "submit", &evict]).with(0).says(&["2 of 2 operations done", "has ended"]);
    assert_eq!(standing(&service), empty);
    service.stop();
}

#[test]
fn a_node_that_is_not_there_ends_its_operation_or_the_whole_statement() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    add_nodes(&service, 2);
    let empty = standing(&service);
    let operations = json!([
        {"allocate": {"node": "n0", "cpu": 1}},
        {"allocate": {"node": "nowhere", "cpu": 1}},
        {"pipeline": {"node": 4711, "cpu": 1}},
        {"allocate": {"node": "n1", "cpu": 1}},
    ]);
    let write =
        |mode: &str| site.write("plan.json", &json!({"operations": operations, "mode": mode}).to_string());
    let whole = write("all-or-nothing");
    service.run(&["statement", "submit", &whole]).with(1).says(&["unknown_node", "operations[1].node"]);
    let refused = service.run(&["statement", "submit", &whole, "--json"]).with(1).json();
    assert_eq!(
        (&refused["reason"], &refused["fault"]["field"]),
        (&json!("unknown_node"), &json!("operations[1].node")),
        "{refused}"
    );
    assert_eq!(standing(&service), empty);
    let partly = write("incremental");
    let done = service.run(&["statement", "submit", &partly, "--json"]).with(1).json();
    let of = |at: usize| &done["operations"][at];
    let reasons: Vec<&Value> = (0..4).map(|at| &of(at)["reason"]).collect();
    assert_eq!(reasons, ["done", "unknown_node", "unknown_node", "done"], "{done}");
    assert_eq!(of(1)["conflict"]["node"], json!("nowhere"));
    assert_eq!(of(2)["conflict"]["node_id"], json!(4711));
    for at in [0, 3] {
        service.run(&["release", &text(&of(at)["allocation"])]).with(0);
    }
    assert_eq!(standing(&service), empty);
    service.stop();
}

#[test]
fn a_bundles_release_says_what_ended_inside() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    add_nodes(&service, 2);
    let group = service.json(&["group", "create", "--bundles", "3", "--cpu", "2"]);
    let bundle = |at: usize| text(&group["bundles"][at]["allocation"]);
    for _ in 0..2 {
        service.run(&["place", "--into", &bundle(0), "--cpu", "1"]).with(0);
    }
    let alone = text(&service.json(&["place", "--cpu", "1"])["allocation"]);
    let inside = text(&service.json(&["place", "--into", &bundle(2), "--cpu", "1"])["allocation"]);
    let released = service.json(&["release", &bundle(0), &alone, &bundle(1)]);
    let ended: Vec<&Value> = (0..3).map(|at| &released[at]["inside_ended"]).collect();
    assert_eq!(ended, [&json!(2), &Value::Null, &json!(0)], "{released}");
    service.run(&["release", &bundle(2)]).with(0).says(&["released, a bundle, and 1 placement inside it"]);
    // It ended with its bundle.
    service.run(&["release", &inside]).with(1).says(&["unknown_allocation"]);
    service.stop();
}

#[test]
fn a_bundle_that_is_evicted_with_grace_is_shown_with_its_end() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    add_nodes(&service, 2);
    let made = service.json(&["group", "create", "--bundles", "2", "--cpu", "2"]);
    let group = text(&made["group"]);
    let bundle = text(&made["bundles"][1]["allocation"]);
    let shown = service.json(&["group", "status", &group]);
    assert!((0..2).all(|at| shown["bundles"][at]["releasing_until"].is_null()), "{shown}");
    let evict = json!({"operations": [{"evict": {"allocation": bundle, "grace": "1h"}}]});
    let plan = site.write("plan.json", &evict.to_string());
    let evicted = service.json(&["statement", "submit", &plan]);
    let until = &evicted["operations"][0]["until"];
    let second = until.as_u64().expect("a time") / 1_000_000_000;
    let shown = service.json(&["group", "status", &group]);
    assert_eq!(
        (&shown["bundles"][1]["releasing_until"], &shown["state"]),
        (until, &json!("placed")),
        "{shown}"
    );
    assert!(shown["bundles"][0]["releasing_until"].is_null(), "{shown}");
    let second = format!("second {second}.");
    service.run(&["group", "status", &group]).with(0).says(&["RELEASING UNTIL", &second]);
    // After its release, the bundle is placed again.
    service.run(&["release", &bundle]).with(0);
    service.until(&["group", "status", &group], |shown| {
        let again = &shown["bundles"][1];
        again["releasing_until"].is_null() && again["allocation"].as_str().is_some_and(|id| id != bundle)
    });
    service.stop();
}

#[test]
fn a_text_is_a_nodes_name_and_a_number_its_id() {
    let site = Site::new();
    let service = site.serve(&["--shards", "1"]);
    // The names look like ids: n1 is the name of the second node, and no node is named n2.
    for name in ["first", "n1"] {
        service.run(&["node", "add", name, "--cpu", "4", "--memory", "8GiB"]).with(0);
    }
    let listed = service.json(&["node", "list"]);
    let ids: Vec<u64> = (0..2).map(|at| listed[at]["id"].as_u64().expect("a number")).collect();
    assert_eq!(ids, [1, 2], "{listed}");
    let submit = |node: Value| {
        let operations = json!([{"allocate": {"node": node, "cpu": 1}}]);
        let plan = site.write("plan.json", &json!({"operations": operations}).to_string());
        service.run(&["statement", "submit", &plan, "--json"])
    };
    assert_eq!(submit(json!("n1")).with(0).json()["operations"][0]["node_id"], json!(2));
    assert_eq!(submit(json!(1)).with(0).json()["operations"][0]["node"], json!("first"));
    assert_eq!(submit(json!("n2")).with(1).json()["reason"], json!("unknown_node"));
    assert_eq!(submit(json!("2")).with(1).json()["reason"], json!("unknown_node"));
    // Other commands follow the same rule: NODE is a name, ID is an id.
    assert_eq!(service.json(&["node", "show", "n1"])["id"], json!(2));
    service.run(&["node", "show", "n2"]).with(1).says(&["unknown_node"]);
    for id in ["1", "n1"] {
        let placed = service.json(&["place", "--cpu", "1", "--node", id]);
        assert_eq!(placed["node"], json!("first"), "{placed}");
    }
    service.run(&["place", "--cpu", "1", "--node", "first"]).with(2).says(&["first", "node list"]);
    service.stop();
}

#[test]
fn a_service_without_planners_names_the_setting() {
    let site = Site::new();
    let config = site.write("wharf.toml", "planners = 0\n");
    let service = site.serve(&["--config", &config]);
    service.run(&["group", "list"]).with(1).says(&["not_served", "`planners`"]);
    service.stop();
    let config = site.write("wharf.toml", "planners = 33\n");
    site.serve_and_fail(&["--config", &config]).says(&["planners", "0 to 32"]);
}
