//! The index geometry, as chosen by settings and requests.

use serde_json::json;

use crate::harness::Site;

const SETTINGS: &str = r#"
policy = "least-fit"
attribute_orders = [["cpu", "memory", "gpu", "gpu_part", "nic"], ["memory", "cpu", "nic", "gpu", "gpu_part"]]
indexed_resources = ["nic"]
[granularity]
memory = "auto"
cpu = "2"
[granularity.resources]
nic = "auto"
"#;

#[test]
fn a_request_chooses_among_the_configured_orders() {
    let site = Site::new();
    let config = site.write("wharf.toml", SETTINGS);
    let service = site.serve(&["--shards", "1", "--config", &config]);
    service.run(&["node", "add", "broad", "--cpu", "64", "--memory", "64GiB", "--resource", "nic=2"]).with(0);
    service.run(&["node", "add", "deep", "--cpu", "16", "--memory", "640GiB"]).with(0);
    let place = |service: &crate::harness::Service, order: &[&str], memory: &str| {
        let request = [&["place", "--cpu", "1", "--memory", memory], order].concat();
        service.json(&request)["node"].clone()
    };
    for (order, memory, expected) in [
        (&[][..], "1GiB", "broad"),
        (&["--attribute-order", "1"], "1GiB", "broad"),
        (&["--attribute-order", "2"], "1GiB", "deep"),
        (&["--attribute-order", "dominant"], "1GiB", "broad"),
        (&["--attribute-order", "dominant"], "64GiB", "deep"),
        (&["--attribute-order", "2", "--wait", "5s"], "1GiB", "deep"),
    ] {
        assert_eq!(place(&service, order, memory), json!(expected), "{order:?}");
    }
    service.run(&["place", "--resource", "nic=1.5"]).with(0).says(&["placed on broad"]);
    service.run(&["place", "--attribute-order", "3"]).with(1).says(&["attribute_order", "configured: 2"]);
    service.run(&["place", "--attribute-order", "memory"]).with(2).says(&["dominant"]);
    let audit =
        |service: &crate::harness::Service| service.json(&["status", "--audit"])["books_hash"].clone();
    let hash = audit(&service);
    service.stop();
    let service = site.serve(&["--shards", "1", "--config", &config]);
    assert_eq!(audit(&service), hash);
    assert_eq!(place(&service, &["--attribute-order", "2"], "1GiB"), json!("deep"));
    service.stop();
}
