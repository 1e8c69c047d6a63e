//! Unit-instance resources, adoption, changes of single resources, the books of a node, and waiting
//! placements.

use serde_json::json;

use crate::harness::Site;

const SETTINGS: &str = "unit_instance_resources = [\"npu\"]\n";

#[test]
fn units_and_adoptions_survive_a_restart_and_kinds_keep_their_nature() {
    let site = Site::new();
    let config = site.write("wharf.toml", SETTINGS);
    let service = site.serve(&["--shards", "2", "--config", &config]);
    let add = ["node", "add", "a", "--cpu", "4", "--memory", "1GiB", "--gpus", "2", "--resource", "npu=2"];
    service.run(&add).with(0);
    service.run(&["place", "--resource", "npu=0.5"]).with(0).says(&["placed on a", "0.5 of npu 0"]);
    service.run(&["place", "--resource", "npu=1.5"]).with(1).says(&["custom[0].amount", "whole number"]);
    let adopt = ["adopt", "a", "--cpu", "6", "--gpu", "1", "--gpu-instances", "1", "--external-id", "pod-7"];
    let first = service.json(&adopt);
    assert_eq!((&first["reason"], &first["gpus"]), (&json!("done"), &json!([1])));
    service.run(&["adopt", "a", "--gpu", "1", "--gpu-instances", "5"]).with(1).says(&["gpus"]);
    service.run(&["node", "show", "a"]).with(0).says(&["SHORTFALL", "npu", "INSTANCE"]);
    let before = service.json(&["node", "show", "a"]);
    assert_eq!((&before["resources"][0]["shortfall"], &before["allocations"]), (&json!("2"), &json!(2)));
    service.run(&["node", "show", "b"]).with(1).says(&["list the nodes"]);
    let hash = service.json(&["status", "--audit"])["books_hash"].clone();
    service.stop();

    // Without the setting, the kind would become a plain resource.
    let refused = site.serve_and_fail(&[]);
    refused.says(&["`npu`", "unit_instance_resources"]);
    let service = site.serve(&["--shards", "1", "--config", &config]);
    assert_eq!(service.json(&["status", "--audit"])["books_hash"], hash);
    assert_eq!(service.json(&["node", "show", "a"]), before);
    assert_eq!(service.json(&adopt)["allocation"], first["allocation"], "it is not adopted twice");

    service
        .run(&["node", "set-resource", "a", "cpu=8", "npu=0", "memory=2GiB"])
        .with(0)
        .says(&["a: updated"]);
    let shown = service.json(&["node", "show", "a"]);
    assert_eq!(
        (&shown["resources"][0]["available"], &shown["resources"][1]["total"]),
        (&json!("2"), &json!("2048"))
    );
    service.run(&["node", "set-resource", "a", "fpga=1"]).with(1).says(&["resources[0].name", "fpga"]);
    service.run(&["node", "set-resource", "a", "cpu"]).with(2);
    service.stop();
}

#[test]
fn a_placement_waits_until_a_release_or_its_deadline() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    service.run(&["node", "add", "a", "--cpu", "4", "--memory", "1GiB"]).with(0);
    let held = service.json(&["place", "--cpu", "4"])["allocation"].as_str().expect("placed").to_owned();
    service.run(&["place", "--cpu", "1", "--wait", "1ms"]).with(1).says(&["no_fit_now", "insufficient cpu"]);
    service.run(&["place", "--cpu", "1", "--wait", "soon"]).with(2).says(&["30s"]);
    let waiting = service.begin(&["place", "--cpu", "3", "--wait", "1h", "--json"]);
    service.until(&["status"], |status| status["waiting"] == json!(1));
    let books = service.json(&["node", "show", "a"]);
    assert_eq!(books["resources"][0]["load"], json!("3"));
    service.run(&["release", &held]).with(0);
    assert_eq!(waiting.end().with(0).json()["node"], json!("a"));
    service.run(&["status"]).with(0).says(&["0 requests waiting"]);
    service.stop();
}
