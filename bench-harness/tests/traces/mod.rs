//! The traces that the tests replay: openb if it is next to the repository, and the embedded sample always.

use std::fs;
use std::path::PathBuf;

use wharf_bench::replay::{Replay, ReplayOptions, write_placements};
use wharf_bench::trace::{Trace, openb, shared};
use wharf_bench::verify::{Refusals, Verified, VerifyOptions, verify};
use wharf_bench::workload::{SAMPLE_NODES, SAMPLE_PODS, sample};

pub(crate) const DEFAULT: &str = "openb_pod_list_default.csv";
pub(crate) const CONSTRAINED: &str = "openb_pod_list_gpuspec20.csv";

pub(crate) struct Files {
    pub(crate) trace: Trace,
    nodes: String,
    pods: String,
}

/// Returns the trace with this pod list; `None` if the data are absent.
pub(crate) fn files(pods: &str) -> Option<Files> {
    let [nodes, pods] = shared::for_test(["openb_node_list_all_node.csv", pods])?;
    let trace = openb::read(&nodes, &pods).unwrap();
    let text = |path: PathBuf| fs::read_to_string(path).unwrap();
    Some(Files { trace, nodes: text(nodes), pods: text(pods) })
}

pub(crate) fn sample_files() -> Files {
    Files { trace: sample().unwrap(), nodes: SAMPLE_NODES.to_owned(), pods: SAMPLE_PODS.to_owned() }
}

/// Writes the placements of a replay to a file and verifies the file with code that is independent of engine,
/// reader and driver.
pub(crate) fn verify_written(
    files: &Files,
    replay: &Replay,
    options: &ReplayOptions,
    refusals: Refusals,
) -> Verified {
    let file = tempfile::NamedTempFile::new().unwrap();
    write_placements(&files.trace, &replay.decisions, &file).unwrap();
    let placements = fs::read_to_string(file.path()).unwrap();
    let checks = VerifyOptions { refusals, departures: options.departures };
    let verified = verify(&files.nodes, &files.pods, &placements, checks)
        .unwrap_or_else(|violation| panic!("{options:?}: {violation}"));
    let report = &replay.report;
    assert!(report.books_checked);
    assert_eq!((verified.pods, verified.placed), (report.pods, report.placed), "{options:?}");
    assert_eq!(verified.gpu_allocated_milli, report.gpu_allocated_milli, "{options:?}");
    assert_eq!(verified.cpu_allocated_milli, report.cpu_allocated_milli, "{options:?}");
    assert_eq!(verified.constrained_placed, report.constrained_placed, "{options:?}");
    assert_eq!(report.unplaced, report.unplaced_infeasible + report.unplaced_no_fit_now);
    verified
}
