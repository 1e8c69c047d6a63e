//! Faults: each has the exit status of its class and a message that names the remedy.

use std::net::UdpSocket;

use crate::harness::{Ended, Site};

#[test]
fn wrong_usage_ends_with_2_before_anything_is_asked() {
    let site = Site::new();
    let cases: [(&[&str], &[&str]); 15] = [
        (&[], &["Usage"]),
        (&["launch"], &["launch"]),
        (&["status", "--loud"], &["--loud"]),
        (&["place", "--policy", "worst-fit"], &["worst-fit", "best-fit"]),
        (&["place", "--cpu", "-1"], &["--cpu", "negative"]),
        (&["place", "--cpu", "0.00001"], &["--cpu", "four decimals"]),
        (&["place", "--cpu", "900719925475"], &["--cpu", "out of range"]),
        (&["place", "--memory", "1GB"], &["--memory", "1GB"]),
        (&["place", "--select", "=a"], &["--select", "KEY=VALUE"]),
        (&["place", "--resource", "licence"], &["--resource", "KEY=VALUE"]),
        (&["place", "--candidate", "big"], &["--candidate"]),
        (&["node", "add", "n"], &["--cpu", "--memory"]),
        (&["node", "add", "n", "--cpu", "-4", "--memory", "1"], &["--cpu", "negative"]),
        (&["release", "b1-2-3"], &["b1-2-3", "a1-17-42"]),
        (&["status", "--server", "nowhere"], &["--server nowhere", "HOST:PORT"]),
    ];
    for (arguments, says) in cases {
        site.run(arguments).with(2).says(says);
    }
}

#[test]
fn what_the_service_refuses_ends_with_1_and_moves_no_books() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    service.run(&["node", "add", "n", "--cpu", "4", "--memory", "1GiB", "--gpus", "2"]).with(0);
    let before = service.json(&["status", "--audit"])["books_hash"].clone();
    let cases: [(&[&str], &[&str]); 13] = [
        (&["node", "add", "n", "--cpu", "4", "--memory", "1"], &["n: ", "node_exists"]),
        (&["node", "update", "m", "--cpu", "4", "--memory", "1"], &["m: ", "unknown_node"]),
        (&["node", "drain", "m"], &["m: ", "unknown_node"]),
        (&["node", "remove", "m"], &["m: ", "unknown_node"]),
        (&["node", "add", "m", "--cpu", "4", "--memory", "1", "--gpus", "17"], &["gpus", "16"]),
        (&["node", "add", "", "--cpu", "4", "--memory", "1"], &["name", "empty"]),
        (
            &["node", "add", "m", "--cpu", "4", "--memory", "1", "--label", "a=1", "--label", "a=2"],
            &["`a`", "twice"],
        ),
        (&["adopt", "n"], &["`cpu`", "nothing is adopted"]),
        (&["place", "--gpu", "1.5"], &["gpu", "whole number"]),
        (&["place", "--gpu", "17"], &["gpu", "16"]),
        (&["place", "--resource", "licence=1"], &["infeasible", "licence"]),
        (&["place", "--cpu", "5"], &["infeasible", "insufficient cpu"]),
        (&["release", "a1-0-99"], &["a1-0-99", "unknown_allocation"]),
    ];
    for (arguments, says) in cases {
        service.run(arguments).with(1).says(says);
    }
    let one_wrong = service.run(&["node", "drain", "--undo", "n", "m", "--json"]).with(1).json();
    assert_eq!(
        (one_wrong[0]["reason"].as_str(), one_wrong[1]["reason"].as_str()),
        (Some("done"), Some("unknown_node"))
    );
    assert_eq!(one_wrong[1]["fault"]["reason"], "unknown_node");
    assert_eq!(service.json(&["status", "--audit"])["books_hash"], before);
    service.stop();
}

#[test]
fn without_a_connection_commands_end_with_3() {
    let site = Site::new();
    let missing = site.path("missing.pem");
    let missing = missing.to_str().unwrap();
    site.run(&["status"]).with(3).says(&["--ca FILE", "dev-cert.pem"]);
    site.run(&["status", "--ca", missing]).with(3).says(&["missing.pem"]);
    let empty = site.write("empty.pem", "");
    site.run(&["status", "--ca", &empty]).with(3).says(&["empty.pem", "holds no certificate"]);

    let service = site.serve(&["--shards", "1"]);
    let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap().cert.pem();
    let other = site.write("other.pem", &other);
    service.run_trusting(&other, &["status"]).with(3).says(&["cannot connect to 127.0.0.1", "certificate"]);
    service
        .run(&["status", "--server-name", "elsewhere.example"])
        .with(3)
        .says(&["cannot connect", "certificate"]);

    // A peer that never answers.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let ca = site.development_certificate();
    site.run(&["status", "--server", &address, "--ca", &ca])
        .with(3)
        .says(&[&address, "is the server running"]);
}

#[test]
fn a_service_that_cannot_start_says_why() {
    let site = Site::new();
    let service = site.serve(&["--shards", "1"]);
    site.serve_and_fail(&["--shards", "1"]).with(3).says(&["another service uses this data directory"]);
    let elsewhere = Site::new();
    let address = service.address.to_string();
    elsewhere.serve_and_fail(&["--listen", &address]).with(3).says(&[
        &address,
        "another service",
        "`listen`",
    ]);
    // Several I/O threads of one service share an address, but not with another service.
    let several = Site::new();
    let shared = several.serve(&["--io-threads", "2"]);
    let address = shared.address.to_string();
    for threads in ["1", "2"] {
        let arguments = ["--io-threads", threads, "--listen", &address];
        elsewhere.serve_and_fail(&arguments).with(3).says(&[&address, "another service"]);
    }
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = busy.local_addr().unwrap().to_string();
    elsewhere.serve_and_fail(&["--metrics-listen", &busy]).with(3);
    let file = elsewhere.write("file", "");
    elsewhere.serve_and_fail(&["--data-dir", &file]).with(3).says(&["`data_dir`"]);
    let lost = elsewhere.path("no-cert.pem");
    let settings = format!("tls_certificate = {lost:?}\ntls_key = {lost:?}\n");
    let settings = elsewhere.write("tls.toml", &settings);
    elsewhere.serve_and_fail(&["--config", &settings]).with(3).says(&["no-cert.pem"]);
}

#[test]
fn wrong_settings_end_with_2_and_name_the_source() {
    let site = Site::new();
    for (text, says) in [
        ("listen = \"127.0.0.1:0\"\nshard = 3\n", &["broken.toml", "shard"][..]),
        ("seed = 1\n\nshards = = 3\n", &["broken.toml", "line 3"]),
        ("shards = \"many\"\n", &["shards", "many"]),
        ("shards = 0\n", &["`shards`", "1 to 256"]),
        ("policy = \"worst-fit\"\n", &["`policy`", "worst-fit", "best-fit"]),
        ("listen = \"nowhere\"\n", &["`listen`", "nowhere", "127.0.0.1:7411"]),
        ("[granularity]\ngpu = \"1\"\n", &["gpu"]),
        ("log = \"a=b=c\"\n", &["`log`", "a=b=c"]),
        ("attribute_orders = [[\"cpu\", \"disk\"]]\n", &["`attribute_orders`", "order 1, place 2", "disk"]),
        ("indexed_resources = [\"a\", \"b\", \"c\", \"d\", \"e\"]\n", &["`indexed_resources`", "too many"]),
        ("coordinates = \"weighted\"\n[weights]\ncpu = \"-1\"\n", &["`weights.cpu`", "hidden"]),
        ("[granularity]\ncpu = \"0\"\n", &["`granularity.cpu`", "`auto`"]),
        ("tls_key = \"k.pem\"\n", &["`tls_certificate`", "both or neither"]),
    ] {
        let file = site.write("broken.toml", text);
        // Without flags, which would override the file.
        site.run(&["serve", "--config", &file]).with(2).says(says);
    }
    site.run(&["serve", "--config", "no/such.toml"]).with(2).says(&["no/such.toml"]);
    site.serve_and_fail(&["--shards", "many"]).with(2).says(&["shards", "many"]);
    site.serve_and_fail(&["--policy", "worst-fit"]).with(2).says(&["`policy`"]);
    let with = |name: &str, value: &str| Ended::of(site.wharf(&["serve"]).env(name, value));
    with("WHARF_SHARD", "3").with(2).says(&["WHARF_SHARD", "WHARF_SHARDS", "WHARF_GRANULARITY__GPU_PART"]);
    with("WHARF_SHARDS", "no").with(2).says(&["shards"]);
    // None of these created the data directory.
    assert!(!site.path("data").exists());
}
