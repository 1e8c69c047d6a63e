//! SIGHUP: reloadable settings change without closing connections, and an invalid configuration changes
//! nothing.

use tokio::task::JoinSet;
use wharf_net::client::Client;
use wharf_net::protocol::{
    BundleTemplate, CreateGroupRequest, DemandBody, GroupReply, MODE_WAIT_UNTIL, NodeBody, NodesRequest,
    PlaceRequest, Reason, kinds,
};

use crate::harness::{Ended, Service, Site, leave_session, patient_endpoint, runtime, within};

/// Peers that connect at once. One handshake per second for each of them takes longer than a test waits for anything.
const CROWD: usize = 100;

fn of_one_core() -> PlaceRequest {
    PlaceRequest { demand: DemandBody { cpu: 10_000, ..DemandBody::default() }, ..PlaceRequest::default() }
}

/// Returns the name of the node that the default policy chooses for a small request.
async fn chosen(client: &Client) -> String {
    let reply = within(client.place(&of_one_core())).await.expect("the connection is open");
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

/// Lets a service read its settings again. `count` is how often it did so with this one.
fn reload(service: &Service, count: usize) {
    service.signal("HUP");
    service.wait_for_log("settings reloaded", count);
}

/// Returns the number of connections that wait for their handshakes.
fn handshakes_waiting(service: &Service) -> f64 {
    let (_, page) = service.http("/metrics");
    let value = page.lines().find_map(|line| line.strip_prefix("wharf_handshakes_waiting "));
    value.expect("the metric is there").parse().expect("a number")
}

/// Would fail if the handshakes that wait kept their old rate: those of the crowd would take longer than the test waits.
#[test]
fn the_rate_of_handshakes_is_reloaded() {
    let site = Site::new();
    let settings = |rate: u32| site.write("wharf.toml", &format!("handshakes_per_second = {rate}\n"));
    let file = settings(1);
    let more = ["--shards", "1", "--io-threads", "1", "--metrics-listen", "127.0.0.1:0", "--config", &file];
    let service = site.serve(&more);
    let config = service.client_config(&site.development_certificate());
    runtime().block_on(async {
        let endpoint = patient_endpoint(&config);
        let mut crowd = JoinSet::new();
        for _ in 0..CROWD {
            crowd.spawn(endpoint.connect(config.server, &config.server_name).expect("an address"));
        }
        // By the old rate, nearly all of them wait.
        within(async {
            while handshakes_waiting(&service) < CROWD as f64 / 2.0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        settings(1_000_000);
        reload(&service, 1);
        let all = async {
            while let Some(connected) = crowd.join_next().await {
                connected.expect("no task panics").expect("the service accepts");
            }
        };
        within(all).await;
    });
    service.stop();
}

fn group_that_waits() -> CreateGroupRequest {
    let bundles = vec![BundleTemplate { request: of_one_core(), count: 1 }];
    CreateGroupRequest { bundles, mode: MODE_WAIT_UNTIL, ..CreateGroupRequest::default() }
}

/// Asks for a group that waits. The bound on these is looked at before the next request of the connection.
async fn wait(client: &Client) -> (u64, impl Future<Output = GroupReply> + use<>) {
    let asked = within(client.call_waiting::<kinds::CreateGroup>(&group_that_waits())).await;
    let (sequence, reply) = asked.expect("the connection is open");
    (sequence, async move { within(reply).await.expect("answered") })
}

#[test]
fn bounds_of_connections_and_groups_are_reloaded() {
    let site = Site::new();
    let settings = |groups: u32, connections: u32| {
        let text = format!("waiting_groups_max = {groups}\nconnections_per_address_max = {connections}\n");
        site.write("wharf.toml", &text)
    };
    let file = settings(1, 2);
    let service = site.serve(&["--shards", "1", "--config", &file]);
    runtime().block_on(async {
        let client = service.client().await;
        let other = service.client().await;
        // A full node: what waits could fit there.
        let node = NodeBody { name: "full".to_owned(), cpu: 10_000, memory: 10_000, ..NodeBody::default() };
        within(client.add_nodes(&NodesRequest { nodes: vec![node] })).await.expect("answered");
        assert!(within(client.place(&of_one_core())).await.expect("answered").placed.is_some());
        service.run(&["status"]).with(3).says(&["connections_per_address_max"]);
        let first = wait(&client).await;
        let refused = wait(&client).await.1.await;
        assert_eq!(refused.reason, Reason::LimitExceeded.into(), "{refused:?}");
        settings(2, 3);
        reload(&service, 1);
        // Connections that are open follow the new bound on groups.
        let second = wait(&client).await;
        let refused = wait(&client).await.1.await;
        assert_eq!(refused.reason, Reason::LimitExceeded.into(), "{refused:?}");
        service.run(&["status"]).with(0);
        for (sequence, reply) in [first, second] {
            let cancelled = within(client.cancel_wait(sequence)).await.expect("answered");
            assert!(cancelled.waited, "it waited until now");
            assert_eq!(reply.await.reason, Reason::Cancelled.into());
        }
        within(client.close()).await;
        within(other.close()).await;
    });
    service.stop();
}

#[test]
fn whether_nodes_with_gpus_are_avoided_is_reloaded() {
    let site = Site::new();
    let settings = |avoids: bool| {
        site.write("wharf.toml", &format!("policy = \"best-fit\"\navoid_gpu_nodes = {avoids}\n"))
    };
    let file = settings(true);
    let service = site.serve(&["--shards", "1", "--config", &file]);
    add(&service, "large", "64");
    service.run(&["node", "add", "gpu", "--cpu", "4", "--memory", "1GiB", "--gpus", "2"]).with(0);
    runtime().block_on(async {
        let client = service.client().await;
        assert_eq!(chosen(&client).await, "large");
        settings(false);
        reload(&service, 1);
        assert_eq!(chosen(&client).await, "gpu");
        within(client.close()).await;
    });
    service.stop();
}

/// What names no queue goes to the default queue, from a reload on. One that takes nothing is told at the start and by
/// `wharf check`.
#[test]
fn the_default_queue_is_reloaded() {
    let site = Site::new();
    let settings = |jobs: &str| site.write("wharf.toml", &format!("[jobs]\n{jobs}\n"));
    let queues = site.write("q.yaml", "queues:\n- {name: all, capability: {cpu: 2}}\n- {name: later}\n");
    let file = settings("default_queue = \"nobody\"");
    site.run(&["check", &file, &queues]).with(0).says(&["wharf.toml: warning", "`nobody`", "no such queue"]);
    let checked = site.run(&["check", &settings("default_queue = \"all\""), &queues]).with(0);
    assert!(!checked.out.contains("warning"), "{checked:#?}");
    let service = site.serve(&["--shards", "1", "--config", &file]);
    service.wait_for_log("what names no queue is refused for now: queue `all` is the default queue", 1);
    add(&service, "n", "8");
    let place = || service.run(&["place", "--cpu", "2"]);
    place().with(1).says(&["unknown_queue", "`jobs.default_queue`", "let an administrator make it"]);
    service.run(&["queue", "set", &queues]).with(0);
    place().with(0);
    place().with(1).says(&["over_cap", "queue `all`", "of cpu 2, 2 are"]);
    let job = site.write("job.yaml", "jobs:\n- {name: j, tasks: [{name: t, cpu: 1}]}\n");
    service.run(&["job", "submit", &job]).with(0).says(&["the queue that the settings of the service name"]);
    // Settings that cannot be meant change nothing.
    for (count, wrong) in (1..).zip(["default_queue = \"root\"", "default_queue = \"\""]) {
        settings(wrong);
        service.signal("HUP");
        let line = service.wait_for_log("settings not reloaded", count);
        assert!(line.contains("jobs.default_queue"), "{line}");
    }
    place().with(1).says(&["over_cap", "queue `all`"]);
    settings("default_queue = \"later\"");
    reload(&service, 1);
    place().with(0);
    settings("");
    reload(&service, 2);
    place().with(0);
    let listed = service.json(&["queue", "list"]);
    let direct = |name: &str| {
        let queue = listed.as_array().expect("a list").iter().find(|queue| queue["queue"] == name);
        queue.expect("it is there")["direct"].as_u64()
    };
    assert_eq!((direct("all"), direct("later")), (Some(1), Some(1)), "{listed}");
    assert!(service.log().iter().all(|line| !line.contains("setting=\"jobs\"")), "it needs no restart");
    service.stop();
}

/// A service without queues gets none by a reload, so what names none stays without one.
#[test]
fn a_default_queue_that_comes_with_queues_waits_for_the_next_start() {
    let site = Site::new();
    let file = site.write("wharf.toml", "[jobs]\nenabled = false\n");
    let service = site.serve(&["--shards", "1", "--config", &file]);
    add(&service, "n", "8");
    site.write("wharf.toml", "[jobs]\ndefault_queue = \"all\"\n");
    reload(&service, 1);
    service.wait_for_log("setting=\"jobs\"", 1);
    service.run(&["place", "--cpu", "1"]).with(0);
    service.stop();
}

/// By the time of the start, the session would be kept for an hour.
#[test]
fn the_time_that_sessions_are_kept_is_reloaded() {
    let site = Site::new();
    let file = site.write("wharf.toml", "");
    let service = site.serve(&["--shards", "1", "--config", &file]);
    site.write("wharf.toml", "session_kept_for = \"0.1\"\n");
    reload(&service, 1);
    let config = service.client_config(&site.development_certificate());
    runtime().block_on(leave_session(&config));
    service.wait_for_log("sessions ended because their clients stayed away", 1);
    service.stop();
}

/// An authority that signs certificates of clients.
struct Authority(rcgen::CertifiedIssuer<'static, rcgen::KeyPair>);

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().expect("a key");
        Self(rcgen::CertifiedIssuer::self_signed(params, key).expect("an authority"))
    }

    /// Writes the certificate and the key of an administrator. The certificate has this serial number.
    fn sign(&self, site: &Site, name: &str, serial: u64) -> [String; 2] {
        let mut params = rcgen::CertificateParams::default();
        params.serial_number = Some(serial.into());
        params.distinguished_name.push(rcgen::DnType::CommonName, "admin");
        let key = rcgen::KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.0).expect("it is signed");
        [
            site.write(&format!("{name}.pem"), &signed.pem()),
            site.write(&format!("{name}-key.pem"), &key.serialize_pem()),
        ]
    }

    /// Returns a list in which the certificate with this serial number is revoked.
    fn revoke(&self, serial: u64) -> String {
        let at = rcgen::date_time_ymd(2024, 1, 1);
        let revoked = rcgen::RevokedCertParams {
            serial_number: serial.into(),
            revocation_time: at,
            reason_code: None,
            invalidity_date: None,
        };
        let list = rcgen::CertificateRevocationListParams {
            this_update: at,
            next_update: rcgen::date_time_ymd(4000, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        list.signed_by(&self.0).expect("it is signed").pem().expect("it has a text")
    }
}

#[test]
fn authorities_and_revoked_certificates_of_clients_are_reloaded() {
    let site = Site::new();
    let authorities = ["first", "second"].map(Authority::new);
    let clients = [authorities[0].sign(&site, "one", 1), authorities[0].sign(&site, "two", 2)];
    let later = authorities[1].sign(&site, "later", 1);
    let trusted = |both: bool| {
        let [first, second] = authorities.each_ref().map(|authority| authority.0.pem());
        site.write("clients.pem", &if both { format!("{first}{second}") } else { first })
    };
    let file = trusted(false);
    let admin = "[[identities]]\nname = \"admin\"\nroles = [\"admin\"]\n";
    let settings =
        |more: &str| site.write("wharf.toml", &format!("tls_client_ca = {file:?}\n{more}\n{admin}"));
    let service = site.serve(&["--shards", "1", "--config", &settings("")]);
    let ca = site.development_certificate();
    let status = |[certificate, key]: &[String; 2]| -> Ended {
        service.run_trusting(&ca, &["status", "--cert", certificate, "--key", key])
    };
    clients.iter().for_each(|client| drop(status(client).with(0)));
    status(&later).with(3).says(&["tls_client_ca"]);
    // One more authority.
    trusted(true);
    reload(&service, 1);
    status(&later).with(0);
    // A list of revoked certificates. That of the other authority has the same number.
    let revoked = site.write("revoked.pem", &authorities[0].revoke(1));
    settings(&format!("tls_client_crl = {revoked:?}"));
    reload(&service, 2);
    status(&clients[0]).with(3).says(&["revoked"]);
    status(&clients[1]).with(0);
    status(&later).with(0);
    service.stop();
}
