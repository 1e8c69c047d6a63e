//! `--deadline`: what is too late is refused and changes nothing, and what is in time is done.

use crate::harness::{Service, Site, sum};

/// A time that is over when the service has read the request.
const OVER: [&str; 2] = ["--deadline", "0s"];
/// Far more time than any request takes here.
const PLENTY: [&str; 2] = ["--deadline", "1h"];

fn books_hash(service: &Service) -> String {
    service.json(&["status", "--audit"])["books_hash"].as_str().expect("an audit was asked for").to_owned()
}

#[test]
fn what_is_too_late_is_not_done() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    service.run(&["node", "add", "a", "--cpu", "4", "--memory", "4GiB"]).with(0);
    let place = ["place", "--cpu", "1", "--lease", "1h"];
    let placed = service.json(&[&place[..], &PLENTY].concat());
    let placed = placed["allocation"].as_str().unwrap_or_else(|| panic!("not placed: {placed}")).to_owned();
    let before = books_hash(&service);
    let requests: [&[&str]; 5] = [
        &place,
        &["place", "--cpu", "1", "--into", &placed],
        &["release", &placed],
        &["renew", &placed, "--lease", "2h"],
        &["renew", "--session", "s1-1", "--lease", "2h"],
    ];
    for request in requests {
        let late = service.run(&[request, &OVER].concat()).with(1).says(&["deadline_exceeded", "more time"]);
        assert_eq!(late.out, "", "nothing is reported as done");
    }
    assert_eq!(books_hash(&service), before, "the books moved");
    service.run(&[&["renew", &placed, "--lease", "2h"], &PLENTY[..]].concat()).with(0).says(&["lasts until"]);
    service.run(&[&["release", &placed], &PLENTY[..]].concat()).with(0).says(&["released"]);
    assert_eq!(sum(&service.json(&["status"]), "allocations"), 0);
    service.stop();
}

#[test]
fn a_deadline_is_a_time_and_does_not_go_with_a_wait() {
    let site = Site::new();
    for broken in ["soon", "5", "-1s"] {
        site.run(&["place", "--cpu", "1", &format!("--deadline={broken}")]).with(2).says(&["is no time"]);
    }
    let both = ["place", "--cpu", "1", "--wait", "1s", "--deadline", "1s"];
    site.run(&both).with(2).says(&["--wait", "--deadline"]);
}
