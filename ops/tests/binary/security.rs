//! Certificates made by `wharf cert`, and what they let clients do: roles, tenants, the audit log.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;

use crate::harness::{Ended, Service, Site};

/// Settings under which two tenants and an observer are known.
fn settings(site: &Site, more: &str) -> String {
    let certs = site.path("certs");
    let path = |name: &str| certs.join(name).display().to_string();
    let text = format!(
        "tls_certificate = {:?}\ntls_key = {:?}\ntls_client_ca = {:?}\naudit_log = {:?}\n\n\
         [[identities]]\nname = \"admin\"\nroles = [\"admin\"]\n\n\
         [[identities]]\nname = \"watcher\"\nroles = [\"observer\"]\n\n\
         [[tenants]]\nname = \"red\"\nnumber = 3\n\n[[tenants]]\nname = \"blue\"\nnumber = 4\n\n\
         [[identities]]\nname = \"red-head\"\ntenant = \"red\"\nroles = [\"submit\"]\n\n{more}",
        path("server.pem"),
        path("server-key.pem"),
        path("ca.pem"),
        site.path("audit").display().to_string(),
    );
    site.write("wharf.toml", &text)
}

const BLUE: &str = "[[identities]]\nname = \"blue-head\"\ntenant = \"blue\"\nroles = [\"submit\"]\n";

/// A directory with certificates of an authority, a service and clients.
fn with_certificates() -> Site {
    let site = Site::new();
    let dir = site.path("certs").display().to_string();
    site.run(&["cert", "init", "--dir", &dir]).with(0).says(&["tls_client_ca", "identities", "--cert"]);
    for name in ["watcher", "red-head", "blue-head", "stranger"] {
        site.run(&["cert", "client", name, "--dir", &dir]).with(0);
    }
    site
}

/// Runs a command as a client with this name.
fn run_as(site: &Site, service: &Service, name: &str, arguments: &[&str]) -> Ended {
    let file = |name: String| site.path("certs").join(name).display().to_string();
    let cert = file(format!("{name}.pem"));
    let key = file(format!("{name}-key.pem"));
    let mut all = arguments.to_vec();
    all.extend(["--cert", &cert, "--key", &key]);
    service.run_trusting(&file("ca.pem".to_owned()), &all)
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("it was written").permissions().mode() & 0o777
}

/// Returns how many lines of the audit log of the day are about these clients and calls. The service must have stopped.
fn refusals<const N: usize>(site: &Site, calls: [(&str, &str); N]) -> [usize; N] {
    let files = std::fs::read_dir(site.path("audit")).expect("it was written");
    let text: String = files
        .map(|file| std::fs::read_to_string(file.expect("a file").path()).expect("it can be read"))
        .collect();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    calls.map(|(name, call)| {
        let is_it = |line: &&Value| line["fields"]["name"] == name && line["fields"]["call"] == call;
        lines.iter().filter(is_it).count()
    })
}

#[test]
fn certificates_are_made_once_and_keys_are_for_their_owner_alone() {
    let site = with_certificates();
    let certs = site.path("certs");
    for key in ["ca-key.pem", "server-key.pem", "admin-key.pem", "red-head-key.pem"] {
        assert_eq!(mode(&certs.join(key)), 0o600, "{key}");
    }
    let dir = certs.display().to_string();
    let before = std::fs::read(certs.join("ca-key.pem")).expect("it was written");
    site.run(&["cert", "init", "--dir", &dir]).with(3).says(&["ca.pem", "exists already"]);
    assert_eq!(std::fs::read(certs.join("ca-key.pem")).expect("it stays"), before);
    site.run(&["cert", "client", "red-head", "--dir", &dir]).with(3).says(&["red-head", "exists already"]);
    for name in ["../up", "", "ca", "a b"] {
        site.run(&["cert", "client", name, "--dir", &dir]).with(2).says(&["no name of a client"]);
    }
    let nowhere = site.path("nowhere").display().to_string();
    site.run(&["cert", "client", "x", "--dir", &nowhere]).with(3).says(&["ca.pem", "wharf cert init"]);
    site.run(&["cert", "server", "--host", "h.example", "--dir", &dir]).with(3).says(&["server.pem"]);
}

#[test]
fn beyond_this_machine_a_service_starts_only_with_certificates_of_clients() {
    let site = Site::new();
    let refused = site.serve_and_fail(&["--listen", "0.0.0.0:0"]);
    refused.with(2).says(&["tls_client_ca", "wharf cert init", "client_certificates"]);
}

#[test]
fn each_client_does_what_its_certificate_lets_it_do() {
    let site = with_certificates();
    let file = settings(&site, BLUE);
    let service = site.serve(&["--config", &file]);
    let run = |name: &str, arguments: &[&str]| run_as(&site, &service, name, arguments);
    run("admin", &["node", "add", "n", "--cpu", "8", "--memory", "8GiB"]).with(0);
    let ca = site.path("certs").join("ca.pem").display().to_string();
    service.run_trusting(&ca, &["status"]).with(3).says(&["wants a certificate", "--cert"]);
    run("stranger", &["status"]).with(1).says(&["forbidden", "`stranger`"]);
    run("watcher", &["status"]).with(0);
    run("watcher", &["place", "--cpu", "1"]).with(1).says(&["`place` needs one of the roles submit, admin"]);

    let placed = run("red-head", &["place", "--cpu", "1", "--json"]).with(0).json();
    let id = placed["allocation"].as_str().expect("an id").to_owned();
    assert!(id.ends_with("-3"), "the id has the number of its tenant: {id}");
    let group =
        run("red-head", &["group", "create", "--bundles", "2", "--cpu", "1", "--json"]).with(0).json();
    let group = group["id"].as_str().or_else(|| group["group"].as_str()).expect("an id").to_owned();
    assert!(group.ends_with("-3"), "{group}");
    run("blue-head", &["release", &id]).with(1).says(&["another tenant", "blue"]);
    run("blue-head", &["group", "remove", &group]).with(1).says(&["another tenant"]);
    let listed = run("blue-head", &["group", "list", "--json"]).with(0).json();
    assert_eq!(listed, Value::Array(Vec::new()));
    service.stop();

    let calls = [
        ("watcher", "place"),
        ("blue-head", "release_batch"),
        ("blue-head", "remove_group"),
        ("stranger", "hello"),
    ];
    assert_eq!(refusals(&site, calls), [1; 4]);
    assert_eq!(mode(&site.path("audit")), 0o700);
    for file in std::fs::read_dir(site.path("audit")).expect("it was written") {
        assert_eq!(mode(&file.expect("a file").path()), 0o600);
    }

    // What belongs to a tenant still does after a restart.
    let service = site.serve(&["--config", &file]);
    let run = |name: &str, arguments: &[&str]| run_as(&site, &service, name, arguments);
    run("blue-head", &["release", &id]).with(1).says(&["another tenant"]);
    run("blue-head", &["group", "status", &group]).with(1).says(&["another tenant"]);
    run("red-head", &["group", "status", &group]).with(0);
    // A group that grows after a restart has the same tenant in all bundles.
    let grown =
        run("red-head", &["group", "grow", &group, "--bundles", "1", "--cpu", "1", "--json"]).with(0).json();
    assert_eq!(grown.to_string().matches("-3\"").count() - 1, 3, "{grown}");
    run("red-head", &["release", &id]).with(0);

    // Rights that are taken away are gone with the next request.
    settings(&site, "");
    service.signal("HUP");
    service.wait_for_log("settings reloaded", 1);
    run("blue-head", &["place", "--cpu", "1"]).with(1).says(&["forbidden"]);
    run("admin", &["status", "--audit"]).with(0);
    service.stop();
}

/// A file of certificates with which no service can start is told with the line of the setting that names it.
#[test]
fn a_check_of_settings_opens_the_files_of_certificates_and_keys() {
    let site = with_certificates();
    let file = settings(&site, BLUE);
    let as_before = std::fs::read_to_string(&file).expect("it was written");
    site.run(&["check", &file]).with(0).says(&["settings are right"]);
    let certs = site.path("certs");
    let names = |name: &str| certs.join(name).display().to_string();
    let garbage = site.write("garbage.pem", "no certificate\n");
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let broken = site.write("broken.pem", broken);
    let missing = names("missing.pem");
    let refused = |line: usize, setting: &str, name: &str, told: &[&str]| {
        let mut lines: Vec<String> = as_before.lines().map(str::to_owned).collect();
        assert!(lines[line - 1].starts_with(&format!("{setting} = ")) || setting == "tls_client_crl");
        lines[line - 1] = format!("{setting} = {name:?}");
        let file = site.write("other.toml", &lines.join("\n"));
        let place = format!("other.toml: line {line}: setting `{setting}`: {name}");
        let checked = site.run(&["check", &file]);
        checked.with(2).says(&[place.as_str()]).says(told);
    };
    for name in [&missing, &garbage, &broken] {
        refused(1, "tls_certificate", name, &[]);
        refused(3, "tls_client_ca", name, &[]);
    }
    refused(1, "tls_certificate", &missing, &["No such file"]);
    refused(1, "tls_certificate", &garbage, &["holds no certificate", "give a PEM file"]);
    refused(2, "tls_key", &missing, &["No such file"]);
    refused(2, "tls_key", &names("server.pem"), &["holds no key", "give a PEM file"]);
    let other = ["is not the key of the certificate in", "server.pem", "give the key that was made with it"];
    refused(2, "tls_key", &names("admin-key.pem"), &other);
    // A line that is empty in the settings.
    refused(5, "tls_client_crl", &names("ca.pem"), &["holds no list of revoked certificates"]);
}

/// A tenant that is bound to a queue by the settings is charged to it, whatever it asks for, from a reload on.
#[test]
fn a_tenant_that_is_bound_to_a_queue_is_charged_to_it() {
    let site = with_certificates();
    let file = settings(&site, BLUE);
    let unbound = std::fs::read_to_string(&file).expect("it was written");
    let bound = |queue: &str| {
        let text = unbound.replace("number = 3\n", &format!("number = 3\nqueue = {queue:?}\n"));
        site.write("wharf.toml", &text)
    };
    let service = site.serve(&["--config", &file]);
    let run = |name: &str, arguments: &[&str]| run_as(&site, &service, name, arguments);
    run("admin", &["node", "add", "n", "--cpu", "8", "--memory", "8GiB"]).with(0);
    run("red-head", &["place", "--cpu", "1"]).with(0);
    bound("red");
    service.signal("HUP");
    service.wait_for_log("settings reloaded", 1);
    run("red-head", &["place", "--cpu", "1"]).with(1).says(&[
        "unknown_queue",
        "`red`",
        "let an administrator",
    ]);
    let queues = site.write("q.yaml", "queues:\n- {name: red, capability: {cpu: 3}}\n- {name: blue}\n");
    run("admin", &["queue", "set", &queues]).with(0);
    run("red-head", &["place", "--cpu", "2"]).with(0);
    run("red-head", &["place", "--cpu", "2"]).with(1).says(&["over_cap", "queue `red`", "of cpu 3, 2 are"]);
    run("red-head", &["place", "--cpu", "1", "--queue", "blue"]).with(1).says(&[
        "forbidden",
        "`red`",
        "`blue`",
    ]);
    run("red-head", &["group", "create", "--bundles", "2", "--cpu", "1"]).with(1).says(&[
        "over_cap",
        "of cpu 3, 2 are",
        "2 more are asked for",
    ]);
    let job = site.write("job.yaml", "jobs:\n- {name: j, tasks: [{name: t, cpu: 1}]}\n");
    let submitted = "submitted to the queue that the settings of the service name";
    run("red-head", &["job", "submit", &job]).with(0).says(&[submitted]);
    run("blue-head", &["job", "submit", &job]).with(1).says(&["line 2", "names no queue"]);
    let outside = site.write("outside.yaml", "jobs:\n- {name: o, queue: blue, tasks: [{name: t, cpu: 1}]}\n");
    run("red-head", &["job", "submit", &outside]).with(1).says(&["forbidden", "`blue`"]);
    run("blue-head", &["place", "--cpu", "1"]).with(0);
    let listed = run("admin", &["queue", "list", "--json"]).with(0).json();
    let red = listed.as_array().expect("a list").iter().find(|queue| queue["queue"] == "red");
    let red = red.expect("it is there");
    assert_eq!((&red["direct"], &red["jobs"]), (&Value::from(1), &Value::from(1)), "{listed}");
    // Settings that cannot be meant change nothing.
    bound("root");
    service.signal("HUP");
    let line = service.wait_for_log("settings not reloaded", 1);
    assert!(line.contains("contains all"), "{line}");
    run("red-head", &["place", "--cpu", "2"]).with(1).says(&["over_cap"]);
    service.stop();
    // What the engine finds to be forbidden is in the audit log too. A cap is no right.
    let calls = [("red-head", "place"), ("red-head", "submit_job"), ("blue-head", "submit_job")];
    assert_eq!(refusals(&site, calls), [1, 1, 0]);
}
