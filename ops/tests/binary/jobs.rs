//! Queues and jobs with the real binary: from files to placed tasks, over a stop and over a kill.

use serde_json::{Value, json};
use wharf_core::ids::SessionId;
use wharf_net::client::Client;
use wharf_net::protocol::{DemandBody, MODE_WAIT_UNTIL, PlaceRequest, kinds};

use crate::harness::{PATIENCE, Service, Site, runtime, within};

const WORK: &str = "
queues:
- {name: research, weight: 2, capability: {cpu: 6}}
- {name: batch, usage_half_life: 1h}
jobs:
- name: train
  queue: research
  min_member: 3
  tasks:
  - {name: learner, role: learner, cpu: 2, memory: 2GiB}
  - {name: actor, role: actor, count: 2, cpu: 1, memory: 1GiB}
- name: report
  queue: batch
  user: ann
  priority: 5
  tasks:
  - {name: page, count: 4, cpu: 1}
";

/// Returns the states of the tasks of a job, once `is` says that they are as wanted.
fn until(service: &Service, job: &str, is: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        let status = service.json(&["job", "status", job]);
        let tasks = status["tasks"].as_array().expect("a list").clone();
        let states: Vec<Value> = tasks.iter().map(|task| task["state"].clone()).collect();
        if is(&states) {
            return tasks;
        }
        assert!(std::time::Instant::now() < end, "{status}");
    }
}

fn all(state: &str) -> impl Fn(&[Value]) -> bool {
    let state = json!(state);
    move |states| states.iter().all(|of| *of == state)
}

fn start(site: &Site) -> (Service, String) {
    let service = site.serve(&["--shards", "2"]);
    service.run(&["node", "add", "n1", "--cpu", "8", "--memory", "16GiB"]).with(0);
    let work = site.write("work.yaml", WORK);
    service.run(&["queue", "set", &work]).with(0).says(&["queue research: set", "queue batch: set"]);
    let submitted = ["job j1: train submitted to queue research", "job j2: report submitted to queue batch"];
    service.run(&["job", "submit", &work]).with(0).says(&submitted);
    (service, work)
}

#[test]
fn jobs_are_placed_and_end_as_they_are_reported() {
    let site = Site::new();
    let (service, work) = start(&site);
    until(&service, "j1", all("bound"));
    until(&service, "j2", all("bound"));
    service.run(&["queue", "list"]).with(0).says(&["research", "cpu 4, memory 4096"]);
    service.run(&["job", "submit", &work]).with(1).says(&["line 6", "job `train` exists already"]);
    service.run(&["job", "report", "j1/0", "--state", "succeeded"]).with(0).says(&["reported as succeeded"]);
    service.run(&["job", "report", "j1/0", "--state", "failed"]).with(1);
    service.run(&["job", "cancel", "j2"]).with(0).says(&["cancelled"]);
    let ended = until(&service, "j2", all("failed"));
    assert!(ended.iter().all(|task| task["allocation"] == Value::Null), "{ended:?}");
    service.run(&["queue", "remove", "research"]).with(1).says(&["has 1 job:"]);
    service.run(&["queue", "remove", "batch"]).with(0).says(&["removed"]);
    service.run(&["job", "status", "j2"]).with(1).says(&["unknown_job"]);
    assert!(service.json(&["status", "--audit"])["books_hash"].is_string());
    service.stop();
}

/// Returns the half-life of the queue `batch`, its first user, and how much of cpu that user holds and has held.
fn first_user(service: &Service) -> (Value, Value, Value, f64) {
    let queues = service.json(&["queue", "list"]);
    let queues = queues.as_array().expect("a list");
    let batch = queues.iter().find(|queue| queue["queue"] == "batch").expect("it is there");
    let user = &batch["users"][0];
    let past = user["past"]["cpu"].as_str().map_or(0.0, |cpu| cpu.parse().expect("an amount"));
    (batch["usage_half_life"].clone(), user["user"].clone(), user["planned"]["cpu"].clone(), past)
}

#[test]
fn jobs_are_there_after_a_stop_and_after_a_kill() {
    let site = Site::new();
    let (service, _) = start(&site);
    let placed = until(&service, "j1", all("bound"));
    until(&service, "j2", all("bound"));
    service.run(&["job", "report", "j2/1", "--state", "succeeded"]).with(0);
    let before = service.json(&["job", "status", "j2"]);
    assert_eq!(before["user"], "ann");
    // It holds what it held for some time, so what it has held only grows.
    let (_, _, planned, past) = first_user(&service);
    service.kill();
    let service = site.serve(&["--shards", "1"]);
    let after = first_user(&service);
    assert_eq!((after.0, after.1, after.2), (json!("3600.0"), json!("ann"), planned));
    assert!(after.3 >= past, "{past} before, {} after", after.3);
    assert_eq!(until(&service, "j1", all("bound")), placed);
    assert_eq!(service.json(&["job", "status", "j2"]), before);
    assert!(service.json(&["status", "--audit"])["books_hash"].is_string());
    let queues = service.json(&["queue", "list"]);
    service.stop();
    let service = site.serve(&["--shards", "3"]);
    assert_eq!(service.json(&["job", "status", "j2"]), before);
    let held = |queues: &Value| -> Vec<Value> {
        queues.as_array().expect("a list").iter().map(|queue| queue["held"].clone()).collect()
    };
    assert_eq!(held(&service.json(&["queue", "list"])), held(&queues));
    service.run(&["job", "report", "j1/0", "--state", "succeeded"]).with(0);
    assert!(service.json(&["status", "--audit"])["books_hash"].is_string());
    service.stop();
}

/// The service has no action that admits jobs, so cycles admit all. Only one node suits both jobs.
#[test]
fn tasks_of_files_choose_nodes_by_terms_and_tolerations() {
    let site = Site::new();
    let settings = site.write("wharf.toml", "[jobs]\nactions = [\"allocate\"]\n");
    let service = site.serve(&["--shards", "1", "--config", &settings]);
    let taint = ["--taint", "gpu=yes:NoSchedule"];
    let add = |name: &str, more: &[&str]| {
        service.run(&[&["node", "add", name, "--cpu", "4", "--memory", "4GiB"], more].concat()).with(0);
    };
    add("tainted", &[&taint[..], &["--label", "zone=a"]].concat());
    add("other", &[&taint[..], &["--label", "zone=b"]].concat());
    let work = site.write(
        "work.yaml",
        "queues: [{name: q}]
jobs:
- {name: plain, queue: q, tasks: [{name: t, cpu: 1}]}
- {name: suits, queue: q, tasks: [{name: t, cpu: 1, selector: ['zone notin (b,c)'], tolerations: ['gpu=yes']}]}
",
    );
    service.run(&["queue", "set", &work]).with(0);
    service.run(&["job", "submit", &work]).with(0);
    let placed = until(&service, "j2", all("bound"));
    assert_eq!(placed[0]["node"], "tainted", "{placed:?}");
    assert_eq!(service.json(&["job", "status", "j1"])["phase"], "inqueue");
    service.run(&["explain", "j1"]).with(0).says(&["untolerated_taint"]);
    service.stop();
}

/// Direct placements are charged to a queue, bounded by its caps, and there after a kill.
#[test]
fn placements_that_name_a_queue_are_charged_to_it() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    service.run(&["node", "add", "n1", "--cpu", "8", "--memory", "16GiB"]).with(0);
    let file = site.write("q.yaml", "queues:\n- {name: small, capability: {cpu: 3}, allocations_max: 2}\n");
    service.run(&["queue", "set", &file]).with(0);
    let of_small = |service: &Service| {
        let queues = service.json(&["queue", "list"]);
        let [direct, held] = ["direct", "held"].map(|field| queues[0][field].clone());
        (direct, held["cpu"].clone())
    };
    let place = ["place", "--queue", "small", "--cpu", "2"];
    let allocation = service.json(&place)["allocation"].as_str().expect("it is placed").to_owned();
    assert_eq!(of_small(&service), (json!(1), json!("2")));
    service.run(&place).with(1).says(&["over_cap", "queue `small`", "of cpu 3, 2 are in use"]);
    service.run(&["place", "--queue", "other", "--cpu", "1"]).with(1).says(&["unknown_queue"]);
    let waits = ["place", "--queue", "small", "--cpu", "2", "--wait", "1ms"];
    service.run(&waits).with(1).says(&["over_cap", "of cpu 3, 2 are in use"]);
    // A variable of a shell that is not set must not leave the placement uncharged.
    service.run(&["place", "--queue", "", "--cpu", "1"]).with(2).says(&["--queue"]);
    service.kill();
    let service = site.serve(&["--shards", "1"]);
    assert_eq!(of_small(&service), (json!(1), json!("2")));
    service.run(&place).with(1).says(&["over_cap"]);
    service.run(&["place", "--queue", "small", "--cpu", "1"]).with(0).says(&["placed on n1"]);
    service.run(&["place", "--queue", "small"]).with(1).says(&["over_cap", "of allocations 2, 2 are in use"]);
    service.run(&["release", &allocation]).with(0).says(&["released"]);
    let end = std::time::Instant::now() + PATIENCE;
    while of_small(&service) != (json!(1), json!("1")) {
        assert!(std::time::Instant::now() < end, "the release gives back");
    }
    service.run(&place).with(0).says(&["placed on n1"]);
    assert!(service.json(&["status", "--audit"])["books_hash"].is_string());
    service.stop();
}

/// A placement waits in its queue, also without its client, and after a kill.
#[test]
fn a_placement_that_waits_in_a_queue_goes_on_after_a_kill() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    service.run(&["node", "add", "n1", "--cpu", "8", "--memory", "16GiB"]).with(0);
    let file = site.write("q.yaml", "queues:\n- {name: small, capability: {cpu: 3}}\n");
    service.run(&["queue", "set", &file]).with(0);
    let held = service.json(&["place", "--queue", "small", "--cpu", "2"])["allocation"].clone();
    let held = held.as_str().expect("it is placed").to_owned();
    let config = service.client_config(&site.development_certificate());
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let asks = async move {
        let client = within(Client::connect(config)).await.expect("the service is there");
        let demand = DemandBody { cpu: 20_000, ..DemandBody::default() };
        let queue = "small".to_owned();
        let request = PlaceRequest { demand, queue, mode: MODE_WAIT_UNTIL, ..PlaceRequest::default() };
        let (sequence, _) = within(client.call_waiting::<kinds::Place>(&request)).await.expect("it is sent");
        let session = SessionId::from(client.hello().session);
        tell.send(format!("{session}/{sequence}")).expect("somebody asks");
        // Until then, the connection is served.
        let _ = stopped.await;
    };
    let client = std::thread::spawn(move || runtime().block_on(asks));
    let id = told.recv_timeout(PATIENCE).expect("it is sent");
    let waits = |told: &Value| told["job"]["pending"] == json!("cap");
    service.until(&["explain", &id], waits);
    let first = format!("placement {id}: it waits in its queue (queue)");
    let words = [first.as_str(), "waits since second", "queue small may use at most 3 cpu: 2 are in use"];
    service.run(&["explain", &id]).with(0).says(&words);
    service.kill();
    let service = site.serve(&["--shards", "1"]);
    service.until(&["explain", &id], waits);
    let small = |queues: &Value, held: &str, direct: u32, waiting: u32| {
        let of = &queues[0];
        (&of["held"]["cpu"], &of["direct"], &of["waiting"]) == (&json!(held), &json!(direct), &json!(waiting))
    };
    assert!(small(&service.json(&["queue", "list"]), "2", 2, 1), "one is held, and one waits");
    service.run(&["release", &held]).with(0);
    service.until(&["queue", "list"], |queues| small(queues, "2", 1, 0));
    service.run(&["explain", &id]).with(1).says(&["unknown_wait"]);
    assert!(service.json(&["status", "--audit"])["books_hash"].is_string());
    service.stop();
    drop(stop);
    client.join().expect("it has asked");
}

#[test]
fn wrong_files_are_refused_with_their_line_and_nothing_is_sent() {
    let site = Site::new();
    let service = site.serve(&[]);
    let wrong =
        site.write("wrong.yaml", "jobs:\n- name: a\n  queue: q\n  phase: inqueue\n  tasks: [{name: t}]\n");
    service.run(&["job", "submit", &wrong]).with(3).says(&["wrong.yaml", "line 2", "phase"]);
    let unknown = site.write("unknown.yaml", "jobs:\n- {name: a, queue: q, tasks: [{name: t, cpu: 1}]}\n");
    service.run(&["job", "submit", &unknown]).with(1).says(&["line 2", "queue `q`, which does not exist"]);
    assert_eq!(service.json(&["job", "list"]), json!([]));
    service.stop();
    let none = site.serve_changed(&[], |command| {
        command.env("WHARF_PLANNERS", "0");
    });
    none.run(&["job", "list"]).with(1).says(&["not_served", "`planners`"]);
    none.stop();
}

/// `wharf check` needs no service. It tells what is wrong with files of jobs, and with settings.
#[test]
fn files_are_checked_before_anything_is_sent() {
    let site = Site::new();
    let work = site.write("work.yaml", WORK);
    site.run(&["check", &work]).with(0).says(&["2 queues and 2 jobs are right"]);
    let wrong = site.write("wrong.yaml", &WORK.replace("min_member: 3", "min_member: 4"));
    site.run(&["check", &work, &wrong]).with(3).says(&["wrong.yaml", "line 6", "min_member"]);
    let scenario = site.write("scenario.yaml", &WORK.replace("page, count", "page, state: running, count"));
    site.run(&["check", &scenario]).with(3).says(&["`state` is for scenarios"]);
    let settings = site.write("wharf.toml", "[jobs]\nactions = [\"allocate\"]\n");
    site.run(&["check", &settings]).with(0).says(&["settings are right"]);
    let broken = site.write("broken.toml", "[jobs]\nactions = [\"alocate\"]\n");
    site.run(&["check", &broken]).with(2).says(&["broken.toml", "line 2", "alocate", "name one of"]);
    let unknown = "[jobs]\ninterval = \"1s\"\ntiers = [[{ plugin = \"gang\", weight = 3 }]]\n";
    let unknown = site.write("unknown.toml", unknown);
    let parts = ["unknown.toml", "line 3", "no setting `weight`", "`gang` has plugin, without, only, whole"];
    site.run(&["check", &unknown]).with(2).says(&parts);
}

/// Events tell a control plane what to start and what to stop, and a repetition of it after a restart.
#[test]
fn events_tell_of_queues_jobs_and_tasks() {
    let site = Site::new();
    let (service, _) = start(&site);
    until(&service, "j1", all("bound"));
    let placed = until(&service, "j2", all("bound"));
    service.run(&["job", "report", "j2/0", "--state", "succeeded"]).with(0);
    service.run(&["job", "cancel", "j1"]).with(0);
    let lines = |service: &Service| -> Vec<Value> {
        let text = service.run(&["events", "--json"]).with(0).out;
        let events = text.lines().map(|line| serde_json::from_str(line).expect("an object"));
        events.filter(|event: &Value| event["job"].is_string() || event["queue"].is_string()).collect()
    };
    let told = lines(&service);
    let of = |what: &str| told.iter().filter(|event| event["event"] == what).collect::<Vec<_>>();
    let names: Vec<&Value> = of("queue").iter().map(|event| &event["queue"]).collect();
    assert_eq!(names, ["research", "batch"]);
    let job = of("job")[1];
    assert_eq!((&job["job"], &job["name"], &job["tasks"]), (&json!("j2"), &json!("report"), &json!(4)));
    let page = |state: &str| {
        let is_it = |event: &&&Value| event["job"] == "j2" && event["task"] == 0 && event["state"] == state;
        of("task").iter().find(is_it).map(|event| (**event).clone())
    };
    let bound = page("bound").expect("it was bound");
    assert_eq!(bound["allocation"], placed[0]["allocation"]);
    assert!(page("succeeded").expect("it ended")["position"].as_u64() > bound["position"].as_u64());
    let phases = of("job_phase");
    assert_eq!(phases.last().map(|event| &event["state"]), Some(&json!("cancelled")));
    service.kill();
    let service = site.serve(&[]);
    assert_eq!(lines(&service)[..told.len()], told);
}
