//! Leases with the real binary: they are renewed, outlast a stop and a crash, and run out.

use crate::harness::{Service, Site, sum};

fn add(service: &Service) {
    service.run(&["node", "add", "a", "--cpu", "4", "--memory", "8GiB"]).with(0);
}

fn place(service: &Service, more: &[&str]) -> String {
    let placed = service.json(&[&["place", "--cpu", "1"], more].concat());
    placed["allocation"].as_str().unwrap_or_else(|| panic!("not placed: {placed}")).to_owned()
}

/// Returns the end of a lease, in ns of service time. A renewal that asks for less shortens nothing.
fn end_of(service: &Service, id: &str) -> u64 {
    let renewed = service.json(&["renew", id, "--lease", "1ms"]);
    renewed[0]["until"].as_u64().unwrap_or_else(|| panic!("not renewed: {renewed}"))
}

/// Would fail if a start forgot a lease or a renewal, or if the time of a stop counted.
#[test]
fn leases_outlast_a_stop_and_a_crash_with_any_number_of_shards() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    add(&service);
    let leased = place(&service, &["--lease", "1h"]);
    let plain = place(&service, &[]);
    let first = end_of(&service, &leased);
    service.run(&["renew", &plain, "--lease", "1h"]).with(1).says(&["no_lease"]);
    service.run(&["renew", "--session", "s1-99", "--lease", "1h"]).with(1).says(&["has no leases"]);
    service.stop();

    let service = site.serve(&["--shards", "1"]);
    assert_eq!(end_of(&service, &leased), first);
    let renewed = service.json(&["renew", &leased, "--lease", "2h"])[0]["until"].as_u64().expect("renewed");
    assert!(renewed > first, "{renewed} after {first}");
    service.kill();

    let service = site.serve(&["--shards", "4"]);
    assert_eq!(end_of(&service, &leased), renewed);
    assert_eq!(sum(&service.json(&["status", "--audit"]), "allocations"), 2);
    service.run(&["release", &leased, &plain]).with(0);
    service.run(&["renew", &leased, "--lease", "1h"]).with(1).says(&["unknown_allocation"]);
    service.stop();
}

/// Would fail if a lease did not run out while nothing else happens, or came back with a start.
#[test]
fn a_lease_runs_out_and_stays_so() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    add(&service);
    let kept = place(&service, &[]);
    for _ in 0..3 {
        place(&service, &["--lease", "1ms"]);
    }
    service.until(&["status"], |status| sum(status, "allocations") == 1);
    service.kill();
    let service = site.serve(&["--shards", "2"]);
    assert_eq!(sum(&service.json(&["status", "--audit"]), "allocations"), 1);
    service.run(&["release", &kept]).with(0);
    service.stop();
}
