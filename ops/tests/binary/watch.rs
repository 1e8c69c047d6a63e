//! `wharf watch` with the real binary: the current state, changes, continuing from versions, and a restart of
//! the service.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};

use serde_json::{Value, json};

use crate::harness::{PATIENCE, Service, Site};

/// A running watch, whose output lines are read as they arrive.
pub(crate) struct Watch {
    child: Child,
    lines: Receiver<String>,
}

impl Watch {
    pub(crate) fn begin(command: &mut Command) -> Self {
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("the binary runs");
        let out = child.stdout.take().expect("piped");
        let (sender, lines) = sync_channel(4096);
        std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self { child, lines }
    }

    /// Skips lines until one satisfies `wished`, and returns it.
    #[track_caller]
    pub(crate) fn until(&self, wished: impl Fn(&Value) -> bool) -> Value {
        let mut passed = Vec::new();
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|error| panic!("{error}: nothing as wished in {passed:#?}"));
            let value: Value = serde_json::from_str(&line).expect("a line of JSON");
            if wished(&value) {
                return value;
            }
            passed.push(line);
        }
    }

    /// Interrupts the process as ctrl-c does. Returns its exit status.
    pub(crate) fn interrupt(mut self) -> Option<i32> {
        let kill = format!("kill -INT {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().expect("a shell").success());
        // The standard output closes when the process exits.
        while self.lines.recv_timeout(PATIENCE).is_ok() {}
        self.child.wait().expect("a child").code()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Has an effect only if a test failed; a process that has ended is not killed again.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the lines that `watch --once --json` prints.
fn once(service: &Service, more: &[&str]) -> Vec<Value> {
    let ended = service.run(&[&["watch", "--once", "--json"], more].concat()).with(0);
    ended.out.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

fn events<'a>(lines: &'a [Value], event: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["event"] == json!(event)).collect()
}

fn add(service: &Service, name: &str) {
    service
        .run(&["node", "add", name, "--cpu", "4", "--memory", "8GiB", "--gpus", "2", "--label", "zone=z"])
        .with(0);
}

fn place(service: &Service) -> String {
    let placed = service.json(&["place", "--cpu", "1", "--gpu", "1"]);
    placed["allocation"].as_str().expect("placed").to_owned()
}

#[test]
fn what_there_is_is_printed_once_and_gone_on_from() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2", "--metrics-listen", "127.0.0.1:0"]);
    add(&service, "a");
    add(&service, "b");
    let first = place(&service);
    let lines = once(&service, &[]);
    assert_eq!(events(&lines, "resync").len(), 2);
    assert!(events(&lines, "resync").iter().all(|line| line["reason"] == json!("new_follower")));
    let nodes = events(&lines, "node");
    assert_eq!(nodes.len(), 2);
    assert!(
        nodes
            .iter()
            .all(|node| node["state"] == json!("ready") && node["capacity"]["labels"]["zone"] == json!("z"))
    );
    let allocations = events(&lines, "allocation");
    assert_eq!(allocations.len(), 1);
    assert_eq!(
        (&allocations[0]["allocation"], &allocations[0]["holds"]["cpu"]),
        (&json!(first), &json!("1"))
    );
    assert_eq!(allocations[0]["holds"]["gpus"].as_array().expect("a list").len(), 1);

    let metrics = service.http("/metrics").1;
    for said in ["wharf_follow_resyncs_total 2", "wharf_follow_pages_total 2", "wharf_followers "] {
        assert!(metrics.contains(said), "no `{said}` in {metrics}");
    }

    // From the given versions, only later changes are printed.
    let text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let file = site.write("watched", &text);
    let second = place(&service);
    service.run(&["release", &first]).with(0);
    let since = once(&service, &["--from", &file]);
    assert!(events(&since, "resync").is_empty(), "{since:#?}");
    assert_eq!(events(&since, "allocation")[0]["allocation"], json!(second));
    assert_eq!(events(&since, "allocation_ended")[0]["allocation"], json!(first));
    let versions = events(&lines, "at").last().expect("at least one")["versions"].clone();
    let versions = versions.as_str().expect("a text");
    let holds = once(&service, &["--since", versions, "--holds"]);
    assert!(events(&holds, "node").is_empty() && events(&holds, "allocation").is_empty());

    let text = service.run(&["watch", "--once", "--allocations"]).with(0);
    text.says(&["resync (new_follower)", &format!("allocation {second} on "), "1 cpu, 1 of GPU"]);
    service.run(&["watch", "--once", "--nodes"]).with(0).says(&["node a (n", "ready", "free 4 cpu"]);
    service.run(&["watch", "--since", "0:1"]).with(2).says(&["`0:1` is no version"]);
    service.run(&["watch", "--from", "no/such"]).with(2).says(&["--from no/such"]);
    service.run(&["watch", "--once", "--since", "7:1:1"]).with(1).says(&["unknown_shard"]);
    service.stop();
}

#[test]
fn a_watch_goes_on_over_a_restart_and_ends_when_told() {
    let site = Site::new();
    let service = site.serve(&["--shards", "2"]);
    add(&service, "a");
    let address = service.address.to_string();
    let certificate = site.development_certificate();
    let arguments = ["watch", "--json", "--server", &address, "--ca", &certificate];
    let watch = Watch::begin(&mut site.wharf(&arguments));
    watch.until(|line| line["event"] == json!("node"));
    // The watch keeps running; each change arrives without another command.
    let first = place(&service);
    watch.until(|line| line["event"] == json!("allocation") && line["allocation"] == json!(first));
    service.run(&["release", &first]).with(0);
    watch.until(|line| line["event"] == json!("allocation_ended") && line["allocation"] == json!(first));
    let kept = place(&service);
    service.stop();
    watch.until(|line| line["event"] == json!("lost"));
    let service = site.serve(&["--shards", "2", "--listen", &address]);
    watch.until(|line| line["event"] == json!("connected"));
    watch.until(|line| line["event"] == json!("resync") && line["reason"] == json!("other_incarnation"));
    watch.until(|line| line["event"] == json!("allocation") && line["allocation"] == json!(kept));
    assert_eq!(watch.interrupt(), Some(0));
    service.stop();
}

/// Would fail if the cause of an end did not reach a follower, or came with a release.
#[test]
fn a_watch_says_that_a_lease_ran_out() {
    let site = Site::new();
    let service = site.serve(&["--shards", "1"]);
    add(&service, "a");
    let released = place(&service);
    // On a slow machine a lease may be over before it is seen.
    let (expires, file) = loop {
        let placed = service.json(&["place", "--cpu", "1", "--lease", "2s"]);
        let lines = once(&service, &[]);
        if events(&lines, "allocation").iter().any(|line| line["allocation"] == placed["allocation"]) {
            let text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
            break (placed["allocation"].clone(), site.write("watched", &text));
        }
    };
    service.run(&["release", &released]).with(0);
    service.until(&["status"], |status| status["shards"][0]["allocations"] == json!(0));
    let since = once(&service, &["--from", &file]);
    let ended = events(&since, "allocation_ended");
    let reason_of = |id: &Value| {
        let line = ended.iter().find(|line| line["allocation"] == *id);
        line.unwrap_or_else(|| panic!("{id} has not ended in {since:#?}"))["reason"].clone()
    };
    assert_eq!([reason_of(&expires), reason_of(&json!(released))], [json!("lease_expired"), Value::Null]);
    service.stop();
}

#[test]
fn changes_can_be_followed_without_planners_if_that_is_set() {
    let site = Site::new();
    let service = site.serve(&["--shards", "1", "--config", &site.write("off", "planners = 0\n")]);
    service.run(&["watch", "--once"]).with(1).says(&["not_served", "`follow`"]);
    service.stop();
    let settings = site.write("on", "planners = 0\nfollow = true\n");
    let service = site.serve(&["--shards", "1", "--config", &settings]);
    add(&service, "a");
    service.run(&["watch", "--once"]).with(0).says(&["node a (n"]);
    service.stop();
}
