//! SIGHUP: reloadable settings change without closing connections, and an invalid configuration changes
//! nothing.

use wharf_net::client::Client;
use wharf_net::protocol::{DemandBody, PlaceRequest};

use crate::harness::{Service, Site, runtime, within};

/// Returns the name of the node that the default policy chooses for a small request.
async fn chosen(client: &Client) -> String {
    let request = PlaceRequest {
        demand: DemandBody { cpu: 10_000, ..DemandBody::default() },
        ..PlaceRequest::default()
    };
    let reply = within(client.place(&request)).await.expect("the connection is open");
    let placed = reply.placed.expect("there is room");
    within(client.release(placed.allocation)).await.expect("the connection is open");
    placed.node_name
}

#[track_caller]
fn add(service: &Service, name: &str, cpu: &str) {
    service.run(&["node", "add", name, "--cpu", cpu, "--memory", "1GiB"]).with(0);
}

#[test]
fn settings_are_reloaded_under_an_open_connection() {
    let site = Site::new();
    let settings =
        |policy: &str, more: &str| site.write("wharf.toml", &format!("policy = \"{policy}\"\n{more}"));
    let file = settings("best-fit", "log = \"warn\"\nin_flight_max = 100\n");
    let service = site.serve(&["--shards", "1", "--config", &file]);
    add(&service, "first-and-large", "64");
    add(&service, "second-and-small", "4");
    runtime().block_on(async {
        let old = service.client().await;
        assert_eq!(old.hello().limits.in_flight_max, 100);
        assert_eq!(chosen(&old).await, "second-and-small");
        assert_eq!(service.log(), Vec::<String>::new(), "only warnings are logged");

        settings("first-fit", "log = \"info\"\nin_flight_max = 200\nshards = 2\nseed = 9\n");
        service.signal("HUP");
        service.wait_for_log("settings reloaded", 1);
        // Settings that need a restart are logged. `shards` is not, because the flag overrides the file.
        service.wait_for_log("setting=\"seed\"", 1);
        assert!(service.log().iter().all(|line| !line.contains("setting=\"shards\"")));
        assert_eq!(chosen(&old).await, "first-and-large");
        assert_eq!(old.hello().limits.in_flight_max, 100);
        let new = service.client().await;
        assert_eq!(new.hello().limits.in_flight_max, 200);
        within(new.close()).await;

        for (count, (broken, named)) in (1..).zip([
            ("in_flight_max = 0\n", "in_flight_max"),
            ("log = \"a=b=c\"\n", "`log`"),
            ("in_flight = 7\n", "in_flight"),
            ("= 7\n", "wharf.toml"),
            ("tls_certificate = \"no.pem\"\ntls_key = \"no.pem\"\n", "no.pem"),
        ]) {
            settings("best-fit", broken);
            service.signal("HUP");
            let line = service.wait_for_log("settings not reloaded", count);
            assert!(line.contains(named), "expected {named}: {line}");
            assert_eq!(chosen(&old).await, "first-and-large");
        }
        settings("best-fit", "");
        service.signal("HUP");
        service.wait_for_log("settings reloaded", 2);
        assert_eq!(chosen(&old).await, "second-and-small");
        within(old.close()).await;
    });
    service.stop();
}

#[test]
fn configured_certificates_are_served_and_reloaded_for_new_connections() {
    let site = Site::new();
    let make = |ca: &str| {
        let made =
            rcgen::generate_simple_self_signed(["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
        site.write("key.pem", &made.signing_key.serialize_pem());
        site.write(ca, &made.cert.pem());
        (site.write("chain.pem", &made.cert.pem()), site.path(ca).to_str().unwrap().to_owned())
    };
    let (chain, first) = make("first.pem");
    let key = site.path("key.pem");
    let file = site.write("wharf.toml", &format!("tls_certificate = {chain:?}\ntls_key = {key:?}\n"));
    let service = site.serve(&["--shards", "1", "--config", &file]);
    assert!(!site.path("data").join("dev-cert.pem").exists(), "no development certificate is made");
    service.run_trusting(&first, &["status"]).with(0);
    runtime().block_on(async {
        let old = service.client_trusting(&first).await;
        let (_, second) = make("second.pem");
        service.run_trusting(&first, &["status"]).with(0);
        service.signal("HUP");
        service.wait_for_log("settings reloaded", 1);
        service.run_trusting(&second, &["status"]).with(0);
        service.run_trusting(&first, &["status"]).with(3).says(&["certificate"]);
        // A key that does not match the certificate changes nothing.
        let alien = rcgen::KeyPair::generate().unwrap().serialize_pem();
        site.write("key.pem", &alien);
        service.signal("HUP");
        service.wait_for_log("settings not reloaded", 1);
        service.run_trusting(&second, &["status"]).with(0);
        within(old.place(&PlaceRequest::default())).await.expect("the old connection is open");
        within(old.close()).await;
    });
    service.stop();
}
