//! Replays the whole openb trace on one shard. Every deterministic policy places each pod as the linear-scan
//! oracle does, including GPU instances.
//!
//! Skips with a printed reason where the trace is absent. The embedded sample is always compared.
#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

use wharf_bench::replay::{Decision, ReplayOptions, Silent, replay_in_process};
use wharf_bench::trace::{Trace, openb, shared};
use wharf_bench::workload::sample;
use wharf_core::ids::{Incarnation, NodeId, Ordinal, PartitionId};
use wharf_core::index::Geometry;
use wharf_core::node::NodeRegistration;
use wharf_core::request::Policy;
use wharf_core::shard::{Command, NodeChange, Outcome};
use wharf_fuzz::oracle::LinearShard;

fn compare(trace: &Trace) {
    for policy in Policy::ALL.into_iter().filter(|&policy| policy != Policy::Random) {
        let options = ReplayOptions { policy, ..ReplayOptions::default() };
        let replay = replay_in_process(trace, &options, &mut Silent).unwrap();
        let mut oracle = LinearShard::new(&Geometry::default(), Incarnation(1));
        for (number, node) in (1..).zip(&trace.nodes) {
            let id = NodeId(number);
            let ordinal = Ordinal(number);
            let partition = PartitionId(0);
            let registration = NodeRegistration { id, ordinal, partition, spec: node.spec(), agent: None };
            oracle
                .compare(&Command::AddNode(Box::new(registration)), &Outcome::Node(Ok(NodeChange::Added(id))))
                .unwrap();
        }
        for (pod, decision) in trace.pods.iter().zip(&replay.decisions) {
            let placed = match *decision {
                Decision::Placed { node, gpus } => Some((node, gpus)),
                Decision::Refused(_) => None,
            };
            // Where a policy draws from several nodes, the oracle takes the drawn node and checks that it is
            // permitted.
            let answer = placed.map(|(node, _)| NodeId(node as u64 + 1));
            let expected = oracle.place(&pod.request(policy), answer);
            let expected = expected.map(|placement| (placement.node.0 as usize - 1, placement.gpus));
            assert_eq!(placed, expected, "{policy}: pod `{}`", pod.name);
        }
    }
}

fn compare_openb(pods: &str) {
    let Some([nodes, pods]) = shared::for_test(["openb_node_list_all_node.csv", pods]) else { return };
    compare(&openb::read(&nodes, &pods).unwrap());
}

#[test]
fn the_sample_is_placed_as_the_oracle_places_it() {
    compare(&sample().unwrap());
}

#[test]
fn the_default_pods_are_placed_as_the_oracle_places_them() {
    compare_openb("openb_pod_list_default.csv");
}

#[test]
fn the_constrained_pods_are_placed_as_the_oracle_places_them() {
    compare_openb("openb_pod_list_gpuspec20.csv");
}
