//! Every command, with text and JSON output.

use serde_json::{Value, json};

use crate::harness::{Service, Site};

const NODE: [&str; 16] = [
    "--cpu",
    "64",
    "--memory",
    "256GiB",
    "--gpus",
    "4",
    "--gpu-model",
    "T4",
    "--label",
    "zone=a",
    "--label",
    "rack=r1",
    "--resource",
    "licence=2",
    "--identity",
    "machine-1",
];

#[track_caller]
fn add(service: &Service, name: &str, more: &[&str]) {
    let arguments = [&["node", "add", name][..], more].concat();
    service.run(&arguments).with(0).says(&[name, "added"]);
}

#[track_caller]
fn node(service: &Service, name: &str) -> Value {
    let nodes = service.json(&["node", "list"]);
    let found = nodes.as_array().expect("a list").iter().find(|node| node["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {nodes:#}")).clone()
}

#[test]
fn nodes_are_added_listed_updated_drained_and_removed() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    service.run(&["node", "list"]).with(0).says(&["NAME", "STATE", "CPU FREE"]);
    assert_eq!(service.json(&["node", "list"]), json!([]));

    add(&service, "big", &NODE);
    let added = service.json(&["node", "add", "small", "--cpu", "0.5", "--memory", "512"]);
    assert_eq!(
        (&added[0]["name"], &added[0]["reason"], &added[0]["fault"]),
        (&json!("small"), &json!("done"), &Value::Null)
    );
    assert!(added[0]["id"].as_u64().is_some_and(|id| id > 0), "{added:#}");
    service.run(&["node", "list"]).with(0).says(&[
        "big",
        "64/64",
        "262144/262144",
        "1 1 1 1",
        "gpu-model=T4,rack=r1,zone=a",
    ]);
    let big = node(&service, "big");
    let expected = json!({"gpu-model": "T4", "rack": "r1", "zone": "a"});
    assert_eq!(
        (&big["labels"], &big["custom"], &big["gpus"]),
        (&expected, &json!({"licence": "2"}), &json!(4))
    );
    assert_eq!(
        (&big["state"], &big["cpu_available"], &big["allocations"]),
        (&json!("ready"), &json!("64"), &json!(0))
    );

    service
        .run(&["node", "update", "small", "--cpu", "2.5", "--memory", "1GiB"])
        .with(0)
        .says(&["small: updated"]);
    assert_eq!(
        (&node(&service, "small")["cpu"], &node(&service, "small")["memory"]),
        (&json!("2.5"), &json!("1024"))
    );
    let updated = service.json(&["node", "update", "small", "--cpu", "3", "--memory", "1024"]);
    assert_eq!(updated[0]["reason"], "done");

    service
        .run(&["node", "drain", "big", "small"])
        .with(0)
        .says(&["big: takes no new work", "small: takes no new work"]);
    assert_eq!(node(&service, "big")["state"], "draining");
    let refused = service.run(&["place", "--cpu", "1", "--json"]).with(1).json();
    assert_eq!(
        (&refused["reason"], &refused["checks"][0]["reason"]),
        (&json!("no_fit_now"), &json!("not_ready"))
    );
    let undone = service.json(&["node", "drain", "--undo", "big"]);
    assert_eq!(undone[0]["reason"], "done");
    service.run(&["node", "drain", "--undo", "small"]).with(0).says(&["small: takes work again"]);
    service.run(&["place", "--cpu", "1", "--select", "zone=a"]).with(0).says(&["placed on big as a1-"]);

    service.run(&["node", "remove", "small"]).with(0).says(&["small: removed"]);
    service.run(&["node", "remove", "big"]).with(1).says(&["big: node_in_use", "with force"]);
    service.run(&["node", "remove", "--force", "big"]).with(0).says(&["1 allocations ended with it"]);
    add(&service, "big", &NODE);
    let removed = service.json(&["node", "remove", "--force", "big"]);
    assert_eq!((&removed[0]["reason"], &removed[0]["allocations_ended"]), (&json!("done"), &json!(0)));
    service.stop();
}

#[test]
fn lists_longer_than_a_page_are_whole_and_a_reader_may_stop_reading() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    let runtime = crate::harness::runtime();
    runtime.block_on(async {
        let client = service.client().await;
        let body = |i: u32| wharf_net::protocol::NodeBody {
            name: format!("node-{i}"),
            cpu: 10_000,
            memory: 10_000,
            // Long labels, so that a page of nodes exceeds a frame and is cut short of its limit.
            labels: (0..40)
                .map(|key| wharf_net::protocol::Pair { key: format!("key-{key}"), value: "v".repeat(250) })
                .collect(),
            ..wharf_net::protocol::NodeBody::default()
        };
        for first in (0..600).step_by(50) {
            let nodes = (first..first + 50).map(body).collect();
            let request = wharf_net::protocol::NodesRequest { nodes };
            let reply = crate::harness::within(client.add_nodes(&request)).await.unwrap();
            assert!(reply.replies.iter().all(|reply| reply.reason.is_done()));
        }
    });
    let nodes = service.json(&["node", "list"]);
    let names: Vec<_> = nodes.as_array().unwrap().iter().map(|node| node["name"].as_str().unwrap()).collect();
    assert_eq!(names, (0..600).map(|i| format!("node-{i}")).collect::<Vec<_>>());

    let address = service.address.to_string();
    let ca = site.development_certificate();
    let mut command = site.wharf(&["node", "list", "--server", &address, "--ca", &ca]);
    let mut child =
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

#[test]
fn placements_take_every_flag() {
    let site = Site::new();
    let service = site.serve(&["--shards", "1"]);
    add(&service, "big", &NODE);
    add(&service, "other", &["--cpu", "8", "--memory", "16GiB", "--label", "zone=b", "--label", "ssd=yes"]);
    let other = node(&service, "other")["id"].to_string();

    let placed =
        service.json(&["place", "--cpu", "2", "--memory", "1GiB", "--gpu", "2", "--resource", "licence=1"]);
    assert_eq!(
        (&placed["reason"], &placed["node"], &placed["gpus"]),
        (&json!("done"), &json!("big"), &json!([0, 1]))
    );
    assert_eq!(
        (&placed["gpu_part"], &placed["fault"], &placed["checks"]),
        (&json!("1"), &Value::Null, &json!([]))
    );
    assert_eq!(placed["node_id"], node(&service, "big")["id"]);
    service.run(&["place", "--gpu", "0.25"]).with(0).says(&["placed on big as a1-", ", 0.25 of GPU 2"]);
    service.run(&["place", "--gpu", "0.75"]).with(0).says(&[", 0.75 of GPU 2"]);
    for (select, name) in [
        ("zone=b", "other"),
        ("zone=b|c", "other"),
        ("zone!=a", "other"),
        ("ssd", "other"),
        ("!ssd", "big"),
        ("gpu-model=P100|T4", "big"),
    ] {
        service
            .run(&["place", "--cpu", "0.1", "--select", select])
            .with(0)
            .says(&[&format!("placed on {name} ")]);
    }
    service
        .run(&["place", "--cpu", "0.1", "--select", "zone=a", "--select", "ssd"])
        .with(1)
        .says(&["infeasible", "selector_mismatch"]);
    service.run(&["place", "--cpu", "1", "--candidate", &other]).with(0).says(&["placed on other "]);
    for policy in ["least-fit", "best-fit", "first-fit", "next-fit", "random"] {
        service.run(&["place", "--cpu", "0.1", "--policy", policy]).with(0).says(&["placed on "]);
    }
    service.run(&["place", "--cpu", "65"]).with(1).says(&[
        "not placed: infeasible",
        "of 2 nodes:",
        "insufficient cpu",
    ]);
    let refused = service.run(&["place", "--gpu", "4", "--explain-all", "--json"]).with(1).json();
    assert_eq!(
        (&refused["reason"], &refused["nodes"], &refused["examined"]),
        (&json!("no_fit_now"), &json!(2), &json!(2))
    );
    assert!(refused["checks"].as_array().is_some_and(|checks| !checks.is_empty()), "{refused:#}");
    assert_eq!(
        (&refused["node"], &refused["allocation"], &refused["gpu_part"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    let wrong = service.run(&["place", "--gpu", "1.5", "--json"]).with(1).json();
    assert_eq!((&wrong["reason"], &wrong["fault"]["field"]), (&json!("invalid_field"), &json!("gpu")));
    service.stop();
}

#[test]
fn what_has_another_place_or_does_not_exist_is_refused_with_the_remedy() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    add(&service, "big", &NODE);
    let big = node(&service, "big")["id"].to_string();
    let unknown = ["place", "--cpu", "1", "--candidate", "77", "--candidate", "78"];
    service.run(&unknown).with(1).says(&[
        "not placed: infeasible",
        "not_a_candidate",
        "candidates",
        "not registered of 2 named: 77, 78: give ids",
        "wharf node list",
    ]);
    // One registered candidate is enough. If it has no room, the refusal names the unknown candidate.
    let mixed = ["place", "--candidate", &big, "--candidate", "77", "--cpu"];
    service.run(&[&mixed[..], &["1"]].concat()).with(0).says(&["placed on big"]);
    let refused = service.run(&[&mixed[..], &["64", "--json"]].concat()).with(1).json();
    assert_eq!(
        (&refused["reason"], &refused["fault"]["reason"]),
        (&json!("no_fit_now"), &json!("unknown_node"))
    );
    assert!(refused["fault"]["message"].as_str().unwrap().contains("of 2 named: 77: give"), "{refused:#}");
    let known = service.run(&["place", "--candidate", &big, "--cpu", "64", "--json"]).with(1).json();
    assert_eq!(known["fault"], Value::Null);
    service
        .run(&[&unknown[..], &["--wait", "1ms"]].concat())
        .with(1)
        .says(&["not registered of 2 named: 77"]);

    for (command, remedy) in [
        (&["place", "--resource", "cpu=1"][..], "give --cpu 1"),
        (&["reserve", "big", "--owner", "1", "--resource", "memory=1"], "give --memory 1"),
        (&["adopt", "big", "--resource", "gpu=1"], "give --gpu 1"),
        (&["node", "add", "b", "--cpu", "1", "--memory", "1", "--resource", "gpus=1"], "give --gpus 1"),
        (&["node", "set-resource", "big", "gpus=1"], "give gpu=N"),
    ] {
        service.run(command).with(2).says(&[remedy]);
    }
    service.run(&["adopt", "big"]).with(1).says(&["nothing is adopted", "an amount of cpu"]);
    service.run(&["adopt", "big", "--external-id", "pod-1"]).with(1).says(&["nothing is adopted"]);
    service.run(&["reserve", "big", "--owner", "1"]).with(1).says(&["nothing", "reserve"]);
    service.stop();
}

#[test]
fn allocations_are_released_and_the_status_balances() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    add(&service, "big", &NODE);
    let place = || {
        let placed = service.json(&[
            "place",
            "--cpu",
            "1.5",
            "--memory",
            "100",
            "--gpu",
            "0.5",
            "--resource",
            "licence=0.5",
        ]);
        placed["allocation"].as_str().unwrap().to_owned()
    };
    let first = place();
    let second = place();
    let third = place();
    let status = service.json(&["status"]);
    let resource = |status: &Value, name: &str| {
        let found =
            status["resources"].as_array().unwrap().iter().find(|resource| resource["name"] == name).cloned();
        found.unwrap_or_else(|| panic!("no {name}: {status:#}"))
    };
    assert_eq!(
        resource(&status, "cpu"),
        json!({"name": "cpu", "total": "64", "allocated": "4.5", "available": "59.5", "shortfall": "0", "unhealthy": "0", "reserved": "0"})
    );
    assert_eq!(resource(&status, "gpu")["available"], "2.5");
    assert_eq!(resource(&status, "licence")["allocated"], "1.5");
    assert_eq!((&status["books_hash"], &status["shards"][0]["state_hash"]), (&Value::Null, &Value::Null));
    assert_eq!((&status["incarnation"], status["shards"].as_array().unwrap().len()), (&json!(1), 2));
    assert_eq!(status["store"].as_str().unwrap().len(), 32);
    assert!(status["software"].as_str().unwrap().starts_with("wharfinger "));

    service.run(&["release", &first]).with(0).says(&[&format!("{first}: released")]);
    service.run(&["release", &first]).with(1).says(&[&first, "unknown_allocation"]);
    let released = service.run(&["release", &second, &first, &third, "--json"]).with(1).json();
    let reasons: Vec<_> =
        released.as_array().unwrap().iter().map(|reply| reply["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons, ["done", "unknown_allocation", "done"]);
    assert_eq!(
        (&released[1]["allocation"], &released[1]["fault"]["reason"]),
        (&json!(first), &json!("unknown_allocation"))
    );

    service.run(&["status", "--audit"]).with(0).says(&[
        "RESOURCE",
        "SHARD",
        "RELEASED",
        "audit: the books are right; hash ",
    ]);
    let audited = service.json(&["status", "--audit"]);
    assert_eq!(resource(&audited, "cpu")["allocated"], "0");
    assert_eq!(audited["books_hash"].as_str().unwrap().len(), 32);
    assert_eq!(audited["shards"][1]["state_hash"].as_str().unwrap().len(), 32);
    let sum = |key: &str| {
        audited["shards"].as_array().unwrap().iter().map(|shard| shard[key].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!((sum("placed"), sum("released"), sum("allocations"), sum("nodes_ready")), (3, 3, 0, 1));
    service.stop();
}

#[test]
fn help_names_every_command_and_the_exit_statuses() {
    let site = Site::new();
    site.run(&["--help"]).with(0).says(&["serve", "node", "place", "release", "status", "Exit status"]);
    site.run(&["--version"]).with(0).says(&[env!("CARGO_PKG_VERSION")]);
    for (command, flags) in [
        (
            &["serve"][..],
            &["--config", "--listen", "--metrics-listen", "--data-dir", "--shards", "--policy"][..],
        ),
        (
            &["place"],
            &[
                "--cpu",
                "--memory",
                "--gpu",
                "--resource",
                "--policy",
                "--select",
                "--candidate",
                "--explain-all",
                "--deadline",
                "--json",
            ],
        ),
        (&["release"], &["--deadline", "--server", "--ca", "--json"]),
        (&["node", "add"], &["--gpu-model", "--label", "--resource", "--identity"]),
        (&["node", "remove"], &["--force"]),
        (&["node", "drain"], &["--undo"]),
        (&["status"], &["--audit"]),
    ] {
        site.run(&[command, &["--help"]].concat()).with(0).says(flags);
    }
}

#[test]
fn preferences_are_asked_for_on_the_command_line() {
    let site = Site::new();
    let service = site.serve(&["--shards", "1"]);
    let sized = |more: &[&'static str]| [&["--cpu", "8", "--memory", "1GiB"][..], more].concat();
    add(&service, "gpu", &sized(&["--gpus", "2", "--label", "zone=a", "--label", "disk=900"]));
    add(&service, "kept", &sized(&["--label", "zone=a", "--taint", "team=ml:NoSchedule"]));
    add(&service, "plain", &sized(&["--label", "zone=b", "--label", "disk=100"]));
    assert_eq!(node(&service, "kept")["taints"], json!(["team=ml:NoSchedule"]));
    let place = |arguments: &[&str]| service.json(&[&["place", "--cpu", "1"][..], arguments].concat());
    let chosen = |arguments: &[&str]| place(arguments)["node"].as_str().expect("placed").to_owned();
    assert_eq!(chosen(&["--prefer", "zone in (b):10", "--prefer", "disk>500:3"]), "plain");
    let weights = ["--prefer", "zone in (b):2", "--prefer", "disk>500:3", "--avoid-gpu=false"];
    assert_eq!(chosen(&weights), "gpu");
    assert_eq!(
        chosen(&weights[..4]),
        "plain",
        "nodes with GPUs are avoided by default, before weights count"
    );
    assert_eq!(chosen(&["--avoid-gpu"]), "plain");
    assert_eq!(chosen(&["--avoid-gpu", "--tolerate", "team=ml", "--select", "zone=in(a,c)"]), "kept");
    let id = format!("n{}", node(&service, "plain")["id"]);
    assert_eq!(chosen(&["--prefer-node", &id]), "plain");
    assert_eq!(chosen(&["--node", &id, "--policy", "hybrid"]), "plain");
    let by_fallback = place(&["--select", "zone=z", "--fallback", "disk<50", "--fallback", "zone!=a"]);
    assert_eq!((&by_fallback["node"], &by_fallback["alternative"]), (&json!("plain"), &json!(2)));
    service.run(&["place", "--cpu", "9", "--node", &id]).with(1).says(&["node_affinity: not plain"]);
    service
        .run(&["place", "--cpu", "1", "--select", "zone=a", "--gpu", "3"])
        .with(1)
        .says(&["untolerated_taint"]);
    for (arguments, said) in [
        (["--prefer", "zone=b:200"], "preferred_selectors[0].weight"),
        (["--node", "n777"], "not registered"),
    ] {
        service.run(&[&["place", "--cpu", "1"][..], &arguments].concat()).with(1).says(&[said]);
    }
    for arguments in [["--tolerate", "team:Never"], ["--prefer", ":3"], ["--select", "cores>many"]] {
        service.run(&[&["place", "--cpu", "1"][..], &arguments].concat()).with(2);
    }
    service.run(&["node", "add", "x", "--cpu", "1", "--memory", "1", "--taint", "team"]).with(2);
}
