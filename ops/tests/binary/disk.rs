//! The data directory of the real service: bounded, full, read-only, of another user, and on a disk whose syncs fail.
//!
//! A test that needs a right or a tool that is not there says so and ends, or fails if `WHARF_REQUIRE_DISK_TESTS` is 1. As
//! root on Linux, all of them run.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use wharf_net::client::{Client, Completions};
use wharf_net::codec::decode_body;
use wharf_net::protocol::{
    DemandBody, DrainRequest, Name, NodeBody, NodesRequest, Pair, PlaceReply, PlaceRequest, StatusRequest,
    kinds,
};

use crate::harness::{Service, Site, runtime, within};

/// The nodes of books that are large.
const NODES: u32 = 200;

/// A user without rights.
const NOBODY: u32 = 65534;

/// Says why a test cannot run here. Fails it if it must run.
#[track_caller]
fn skip(why: std::fmt::Arguments<'_>) {
    let must_run = std::env::var("WHARF_REQUIRE_DISK_TESTS").is_ok_and(|value| value == "1");
    assert!(!must_run, "WHARF_REQUIRE_DISK_TESTS is 1, and this test cannot run: {why}");
    println!("skipped: {why}");
}

/// A file system of limited size, until it is dropped.
struct Mount(PathBuf);

impl Mount {
    /// Mounts a new one. `None`: this process may not.
    fn new(path: PathBuf, mib: u32) -> Option<Self> {
        fs::create_dir_all(&path).expect("the site can be written");
        let size = format!("size={mib}m");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "wharf-test"]).arg(&path).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(path)),
            other => {
                skip(format_args!("a file system of limited size cannot be mounted here: {other:?}"));
                None
            }
        }
    }

    fn make_read_only(&self) {
        let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(&self.0).status();
        assert!(remounted.expect("it was mounted").success());
    }

    /// Takes the room of the file system, except for the last MiB.
    fn fill(&self) -> PathBuf {
        self.fill_to(1 << 20)
    }

    /// Takes the room of the file system, except for the last `rest` bytes.
    fn fill_to(&self, rest: u64) -> PathBuf {
        let ballast = self.0.join("ballast");
        let space = free_bytes(&self.0);
        let file = fs::File::create(&ballast).expect("there is room");
        let mut left = space - rest;
        let block = vec![1; 1 << 20];
        while left > 0 {
            let length = left.min(block.len() as u64) as usize;
            std::io::Write::write_all(&mut &file, &block[..length]).expect("there is room");
            left -= length as u64;
        }
        ballast
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Returns the free bytes of a file system, as `df` says.
fn free_bytes(path: &Path) -> u64 {
    let output = Command::new("df").args(["--output=avail", "-B1"]).arg(path).output().expect("df is there");
    let text = String::from_utf8(output.stdout).expect("a number");
    text.lines().last().and_then(|line| line.trim().parse().ok()).expect("a number")
}

fn metric(service: &Service, name: &str) -> f64 {
    let (_, text) = service.http("/metrics");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no metric {name}: {text}")).parse().expect("a number")
}

fn request() -> PlaceRequest {
    PlaceRequest { demand: DemandBody { cpu: 1, ..DemandBody::default() }, ..PlaceRequest::default() }
}

/// Returns the replies that are there now.
async fn replies(queue: &Completions) -> Vec<PlaceReply> {
    let mut batch = Vec::new();
    // Only what has arrived: a reply that is held does not come.
    let _ = tokio::time::timeout(Duration::ZERO, queue.take(&mut batch)).await;
    let bodies = batch.into_iter().map(|one| one.reply.expect("the connection is there"));
    bodies.map(|body| decode_body(&body).expect("a reply").0).collect()
}

/// Returns the live allocations as the open connection shows them. Every reply that was sent before has arrived then.
async fn allocations(client: &Client) -> u64 {
    let status = within(client.status(&StatusRequest::default())).await.expect("reads are answered");
    status.shards.iter().map(|shard| shard.allocations).sum()
}

async fn until_allocations(client: &Client, least: u64) {
    within(async { while allocations(client).await < least {} }).await;
}

/// Would catch an acknowledgement of what is on no disk, a service that stops or answers no reads on a full disk, and one
/// that does not go on when there is room.
#[test]
fn a_full_disk_stops_acknowledgements_until_there_is_room() {
    let site = Site::new();
    let Some(mount) = Mount::new(site.path("data"), 96) else { return };
    let arguments = ["--shards", "1", "--metrics-listen", "127.0.0.1:0"];
    let service = site.serve(&arguments);
    service.run(&["node", "add", "n", "--cpu", "1000", "--memory", "1TiB"]).with(0);
    let answered = service.json(&["place", "--cpu", "1"])["allocation"].as_str().expect("placed").to_owned();
    assert_eq!(metric(&service, "wharf_journal_full"), 0.0);
    runtime().block_on(async {
        let client = service.client().await;
        let ballast = mount.fill();
        let queue = Arc::new(Completions::default());
        client.submit::<kinds::Place>(&request(), &queue, 0).await.expect("it is sent");
        // The shard has placed it, and nobody is told.
        until_allocations(&client, 2).await;
        service.wait_for_log("the disk of the journal is full", 1);
        assert!(replies(&queue).await.is_empty(), "what is on no disk is acknowledged");
        assert_eq!(metric(&service, "wharf_journal_full"), 1.0);
        // A new connection gets its hello, and reads are answered there too.
        let status = service.json(&["status"]);
        assert_eq!(status["shards"][0]["allocations"], 2);
        let late = service.begin(&["place", "--cpu", "1", "--json"]);
        until_allocations(&client, 3).await;
        assert!(replies(&queue).await.is_empty(), "what is on no disk is acknowledged");
        fs::remove_file(&ballast).expect("it is there");
        let mut batch = Vec::new();
        within(queue.take(&mut batch)).await;
        assert_eq!(batch.len(), 1);
        late.end().with(0);
        service.wait_for_log("the journal has room again", 1);
        // Full once more, and the process is killed with a request under way.
        mount.fill();
        client.submit::<kinds::Place>(&request(), &queue, 1).await.expect("it is sent");
        until_allocations(&client, 4).await;
        service.wait_for_log("the disk of the journal is full", 2);
        assert!(replies(&queue).await.is_empty(), "what is on no disk is acknowledged");
    });
    service.kill();
    fs::remove_file(mount.0.join("ballast")).expect("it is there");
    let service = site.serve(&arguments);
    service.wait_for_log("recovered from the journal", 1);
    // Three were answered. The fourth is on no disk.
    assert_eq!(service.json(&["status", "--audit"])["shards"][0]["allocations"], 3);
    service.run(&["release", &answered]).with(0);
    service.stop();
}

/// Would catch a stop that loses what was acknowledged, keeps a change without its event, or says that all is written.
#[test]
fn a_stop_on_a_full_disk_keeps_what_was_acknowledged_and_says_what_it_lost() {
    let site = Site::new();
    let Some(mount) = Mount::new(site.path("data"), 96) else { return };
    let mut service = site.serve(&["--shards", "1"]);
    service.run(&["node", "add", "n", "--cpu", "1000", "--memory", "1TiB"]).with(0);
    let answered = service.json(&["place", "--cpu", "1"])["allocation"].as_str().expect("placed").to_owned();
    let ballast = runtime().block_on(async {
        let client = service.client().await;
        let ballast = mount.fill();
        let queue = Arc::new(Completions::default());
        client.submit::<kinds::Place>(&request(), &queue, 0).await.expect("it is sent");
        until_allocations(&client, 2).await;
        service.wait_for_log("the disk of the journal is full", 1);
        service.signal("TERM");
        let mut batch = Vec::new();
        within(queue.take(&mut batch)).await;
        assert!(batch[0].reply.is_err(), "what is on no disk is acknowledged");
        ballast
    });
    assert_eq!(service.wait().code(), Some(74), "{:#?}", service.log());
    let said = service.wait_for_log("the changes in `lost` units are not written", 1);
    let lost = said.split("lost=").nth(1).and_then(|rest| rest.split_whitespace().next()).expect("a number");
    // At least the placement.
    assert!(lost.parse::<u64>().expect("a number") > 0, "{said}");
    service.wait_for_log(&format!("the last {lost} units of changes are not written"), 1);
    fs::remove_file(&ballast).expect("it is there");
    site.run(&["journal", "check", "--data-dir", &site.data_dir()])
        .with(0)
        .says(&["1 allocations", "all is sound"]);
    let service = site.serve(&["--shards", "1"]);
    assert_eq!(service.json(&["status", "--audit"])["shards"][0]["allocations"], 1);
    let events = service.run(&["events", "--json"]).with(0).out;
    assert_eq!(events.matches("\"placed\"").count(), 1, "{events}");
    service.run(&["release", &answered]).with(0);
    service.stop();
}

/// Would catch a stop whose books depend on a checkpoint that could not be written.
#[test]
fn a_stop_without_room_for_its_checkpoint_is_continued_from_the_journal() {
    let site = Site::new();
    let Some(mount) = Mount::new(site.path("data"), 96) else { return };
    let mut service = site.serve(&["--shards", "1"]);
    // So many that their checkpoint needs room.
    let labels: Vec<Pair> =
        (0..60).map(|number| Pair { key: format!("label-{number}"), value: "v".repeat(200) }).collect();
    let node = |number: u32| {
        let name = format!("n{number}");
        NodeBody { name, cpu: 10_000, memory: 10_000, labels: labels.clone(), ..NodeBody::default() }
    };
    runtime().block_on(async {
        // Its session is the only one, so nothing is left to write when it has its last answer.
        let client = service.client().await;
        for from in (0..NODES).step_by(25) {
            let request = NodesRequest { nodes: (from..from + 25).map(node).collect() };
            let reply = within(client.add_nodes(&request)).await.expect("it serves");
            assert!(reply.replies.iter().all(|one| one.fault.is_none()), "{reply:?}");
        }
        let placed = within(client.place(&request())).await.expect("it serves");
        assert!(placed.placed.is_some(), "{placed:?}");
    });
    let ballast = mount.fill_to(0);
    service.signal("TERM");
    assert_eq!(service.wait().code(), Some(3), "{:#?}", service.log());
    service.wait_for_log("is not written, so the next start continues from the journal", 1);
    fs::remove_file(&ballast).expect("it is there");
    let service = site.serve(&["--shards", "1"]);
    service.wait_for_log("recovered from the journal", 1);
    let shard = &service.json(&["status", "--audit"])["shards"][0];
    assert_eq!((&shard["nodes_ready"], &shard["allocations"]), (&NODES.into(), &1.into()));
    service.stop();
}

/// Would catch a start that changes a store which it cannot serve, and a message without a remedy.
#[test]
fn a_read_only_file_system_refuses_the_start_and_can_be_checked() {
    let site = Site::new();
    let Some(mount) = Mount::new(site.path("data"), 96) else { return };
    let service = site.serve(&["--shards", "1"]);
    service.run(&["node", "add", "n", "--cpu", "1000", "--memory", "1TiB"]).with(0);
    service.kill();
    mount.make_read_only();
    let says = ["cannot be written", "Read-only file system", "choose another `data_dir`"];
    site.serve_and_fail(&["--shards", "1"]).with(3).says(&says);
    site.run(&["journal", "check", "--data-dir", &site.data_dir()])
        .with(0)
        .says(&["1 nodes", "all is sound"]);
}

/// Makes a command run as a user without rights. Returns false if this process may not, or that user cannot run it.
fn can_drop_rights(site: &Site) -> bool {
    // The directory of the site is for its owner only.
    let directory = site.path("");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("its owner may");
    let ran = site.wharf(&["--version"]).uid(NOBODY).gid(NOBODY).output();
    let can = ran.as_ref().is_ok_and(|output| output.status.success());
    if !can {
        skip(format_args!("a process of another user cannot be started here: {ran:?}"));
    }
    can
}

/// Would catch a start that goes on without its lock or its files, and a message without a remedy.
#[test]
fn a_directory_or_file_of_another_user_refuses_the_start() {
    let site = Site::new();
    if !can_drop_rights(&site) {
        return;
    }
    let data = site.path("data");
    let as_nobody = |command: &mut Command| {
        command.uid(NOBODY).gid(NOBODY);
    };
    let refused =
        |says: &[&str]| site.serve_changed_and_fail(&["--shards", "1"], as_nobody).with(3).says(says);
    // No right to make the directory.
    refused(&["cannot be made", "`data_dir`"]);
    // A directory of another user, and one of its own that is read-only.
    fs::create_dir(&data).expect("the site can be written");
    refused(&["lock: cannot be written: Permission denied", "give this user the right"]);
    chown(&data, Some(NOBODY), Some(NOBODY)).expect("root may");
    fs::set_permissions(&data, fs::Permissions::from_mode(0o555)).expect("root may");
    refused(&["lock: cannot be written: Permission denied", "give this user the right"]);
    // Files that root has written.
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).expect("root may");
    let service = site.serve(&["--shards", "1"]);
    service.run(&["node", "add", "n", "--cpu", "1", "--memory", "1"]).with(0);
    service.stop();
    let take_over = |name: &str| chown(data.join(name), Some(NOBODY), Some(NOBODY)).expect("root may");
    refused(&["lock: cannot be written"]);
    take_over("lock");
    refused(&["store.redb: cannot be opened: Permission denied", "give this user the right"]);
    take_over("store.redb");
    refused(&["journal.redb: cannot be opened: Permission denied", "give this user the right"]);
    take_over("journal.redb");
    take_over("dev-cert.pem");
    take_over("dev-key.pem");
    let service = site.serve_changed(&["--shards", "1"], as_nobody);
    assert_eq!(service.json(&["node", "list"])[0]["name"], "n");
    service.stop();
}

/// Fails `fdatasync` while a file is there.
const FAILING_SYNC: &str = r#"
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
int fdatasync(int fd) {
    if (access(getenv("FAIL_SYNC"), F_OK) == 0) { errno = EIO; return -1; }
    return syscall(SYS_fdatasync, fd);
}
"#;

/// Would catch an acknowledgement after a failed sync, a second try, and an end with another status.
#[test]
fn a_failed_sync_ends_the_process_with_its_status_and_acknowledges_nothing() {
    let site = Site::new();
    let source = site.write("failing_sync.c", FAILING_SYNC);
    let library = site.path("failing_sync.so");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).output();
    if !built.as_ref().is_ok_and(|output| output.status.success()) {
        return skip(format_args!("there is no C compiler here, so no sync can be made to fail: {built:?}"));
    }
    let failing = site.path("syncs-fail");
    let mut service = site.serve_changed(&["--shards", "1"], |command| {
        command.env("LD_PRELOAD", &library).env("FAIL_SYNC", &failing);
    });
    service.run(&["node", "add", "n", "--cpu", "1000", "--memory", "1TiB"]).with(0);
    let answered = service.json(&["place", "--cpu", "1"])["allocation"].as_str().expect("placed").to_owned();
    fs::write(&failing, "").expect("the site can be written");
    let under_way = service.begin(&["place", "--cpu", "1", "--json"]);
    assert_eq!(service.wait().code(), Some(74), "{:#?}", service.log());
    let log = service.log();
    assert!(
        log.iter().any(|line| line.contains("the journal failed") && line.contains("a sync failed")),
        "{log:#?}"
    );
    under_way.signal("KILL");
    assert!(!under_way.end().out.contains("allocation\""), "what may be on no disk is acknowledged");
    drop(service);
    let service = site.serve(&["--shards", "1"]);
    let live = service.json(&["status", "--audit"])["shards"][0]["allocations"].as_u64();
    assert!(matches!(live, Some(1 | 2)), "what was answered, and perhaps what was not: {live:?}");
    service.run(&["release", &answered]).with(0);
    service.stop();
}

/// The journal drops what checkpoints cover, and its file stays bounded. Would catch a journal that only grows.
#[test]
fn checkpoints_bound_the_journal() {
    const DRAINS: usize = 2500;
    /// Values that are dropped at once.
    const STEP: f64 = 256.0;
    let site = Site::new();
    let settings = site.write("settings.toml", "checkpoint_mib = 1\nevents_mib = 0\n");
    let service = site.serve(&["--shards", "1", "--config", &settings, "--metrics-listen", "127.0.0.1:0"]);
    // Each change of this node is a long value.
    let labels: Vec<String> = (0..60).map(|number| format!("label-{number}={number:0200}")).collect();
    let mut add = vec!["node", "add", "n", "--cpu", "8", "--memory", "1GiB"];
    labels.iter().for_each(|label| add.extend(["--label", label]));
    service.run(&add).with(0);
    let samples = runtime().block_on(async {
        let client = service.client().await;
        let mut samples = Vec::new();
        for number in 0..DRAINS {
            let request = DrainRequest { names: vec![Name("n".to_owned())], undo: number % 2 == 1 };
            let reply = within(client.drain_nodes(&request)).await.expect("it serves");
            assert!(reply.replies[0].reason.is_done(), "{reply:?}");
            if number % 250 == 249 {
                let sample =
                    ["wharf_journal_kept_appends", "wharf_checkpoints_total", "wharf_journal_bytes_total"];
                samples.push(sample.map(|name| metric(&service, name)));
            }
        }
        client.close().await;
        samples
    });
    let [_, checkpoints, bytes] = *samples.last().expect("sampled");
    assert!(checkpoints >= 8.0 && bytes > 24.0 * 1048576.0, "{samples:?}");
    // The appends of two checkpoints, and what is dropped at once.
    let per_mib = DRAINS as f64 * 1048576.0 / bytes;
    let most = samples.iter().map(|[kept, ..]| *kept).fold(0.0, f64::max);
    assert!(most < 3.0 * per_mib + STEP, "{most} appends are kept, {per_mib} per MiB: {samples:?}");
    let kept = metric(&service, "wharf_journal_kept_bytes");
    assert!(
        kept > 0.0 && kept < (3.0 * per_mib + STEP) * 1048576.0 / per_mib,
        "{kept} bytes are kept: {samples:?}"
    );
    let journal = metric(&service, "wharf_file_bytes{file=\"journal.redb\"}");
    let on_disk = fs::metadata(site.path("data").join("journal.redb")).expect("it is there").len();
    assert_eq!(journal, on_disk as f64);
    assert!(journal < bytes / 2.0, "{journal} bytes for {bytes} bytes of values");
    let store = metric(&service, "wharf_file_bytes{file=\"store.redb\"}");
    assert!(store > 0.0 && store < 8.0 * 1048576.0, "{store}");
    assert!(metric(&service, "wharf_checkpoint_position") > DRAINS as f64 / 2.0);
    assert!(metric(&service, "wharf_journal_tail_bytes") < 3.0 * 1048576.0);
    service.kill();
    let service = site.serve(&["--shards", "1"]);
    let recovered = service.wait_for_log("recovered from the journal", 1);
    let appends = recovered.split("appends=").nth(1).and_then(|rest| rest.split_whitespace().next());
    let appends: f64 = appends.and_then(|appends| appends.parse().ok()).expect("a number");
    assert!(appends < 3.0 * per_mib, "{recovered}");
    assert_eq!(service.json(&["node", "list"])[0]["state"], "ready");
    service.stop();
}
