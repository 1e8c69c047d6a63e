//! `wharf place --wait`, told to end: what nobody waits for any more is taken back.

use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::json;

use crate::harness::{PATIENCE, Site};

#[test]
fn a_wait_that_is_told_to_end_is_taken_back() {
    let site = Site::new();
    let service = site.serve(&["--shards", "1"]);
    service.run(&["node", "add", "a", "--cpu", "4", "--memory", "4GiB"]).with(0);
    let waiting = |count: u64| {
        let deadline = Instant::now() + PATIENCE;
        while service.json(&["status"])["waiting"] != json!(count) {
            assert!(Instant::now() < deadline, "not {count} wait");
        }
    };
    let held = service.json(&["place", "--cpu", "4"])["allocation"].as_str().unwrap().to_owned();
    let (address, ca) = (service.address.to_string(), site.development_certificate());
    for name in ["INT", "TERM", "HUP"] {
        let mut command =
            site.wharf(&["place", "--cpu", "1", "--wait", "1h", "--server", &address, "--ca", &ca]);
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        waiting(1);
        let kill = format!("kill -{name} {}", child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("cancelled"), "{name}: {output:?}");
        waiting(0);
    }
    service.run(&["release", &held]).with(0);
    assert_eq!(service.json(&["node", "show", "a"])["allocations"], json!(0));
    service.stop();
}
