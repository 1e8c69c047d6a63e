//! Interrupting `wharf place --wait` cancels the request.

use serde_json::json;

use crate::harness::Site;

#[test]
fn a_wait_that_is_told_to_end_is_taken_back() {
    let site = Site::new();
    let service = site.serve(&["--shards", "1"]);
    service.run(&["node", "add", "a", "--cpu", "4", "--memory", "4GiB"]).with(0);
    let waiting = |count: u64| service.until(&["status"], |status| status["waiting"] == json!(count));
    let held = service.json(&["place", "--cpu", "4"])["allocation"].as_str().unwrap().to_owned();
    for name in ["INT", "TERM", "HUP"] {
        let child = service.begin(&["place", "--cpu", "1", "--wait", "1h"]);
        waiting(1);
        child.signal(name);
        child.end().with(1).says(&["cancelled"]);
        waiting(0);
    }
    service.run(&["release", &held]).with(0);
    assert_eq!(service.json(&["node", "show", "a"])["allocations"], json!(0));
    service.stop();
}
