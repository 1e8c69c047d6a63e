//! Scenarios that run, that differ, and that are wrong.

use super::*;

const SMALL: &str = "
name: a gang waits
nodes:
- {name: n, cpu: 2, memory: 4Gi, count: 2}
queues:
- {name: q}
jobs:
- name: gang
  queue: q
  min_member: 3
  tasks:
  - {name: t, cpu: 1.5, memory: 512, count: 3}
steps:
- cycle: 1
  expect: {bound_count: 0, states: {t-0: pending}}
- add:
    nodes: [{name: more, cpu: 2, memory: 4Gi}]
- cycle: 1
  expect:
    bound: {t-0: [n-0, n-1, more], t-1: [n-0, n-1, more], t-2: [n-0, n-1, more]}
    used: {q: {cpu: 4.5}}
";

#[test]
fn files_of_queues_and_jobs_are_checked_with_the_rules_of_a_service() {
    let queues = "priority_classes: {high: 9}\nqueues: [{name: q, tenant: 3}]\n";
    let job = |queue: &str, rest: &str| {
        format!(
            "jobs:\n- {{name: j, queue: {queue}, priority: high, {rest}, tasks: [{{name: t, count: 2}}]}}\n"
        )
    };
    let right = format!("{queues}{}", job("q", "min_member: 2"));
    assert_eq!(check_jobs(&right), Ok(Checked { classes: 1, queues: 1, jobs: 1 }));
    // A tenant that is bound to a queue need not name it. A tenant without a binding is told when it submits the job.
    let unnamed = "jobs:\n- {name: j, tasks: [{name: t}]}\n";
    assert_eq!(check_jobs(unnamed), Ok(Checked { jobs: 1, ..Checked::default() }));
    // The service may have a queue that the file has not. Tasks of two documents may have the same name.
    let other = job("there", "min_member: 0").replace("name: j,", "name: k,");
    let two = format!("{right}---\npriority_classes: {{high: 1}}\n{other}");
    assert_eq!(check_jobs(&two), Ok(Checked { classes: 2, queues: 1, jobs: 2 }));
    // What a queue of the service is guaranteed, the service knows.
    let below = "queues:
- {name: a, parent: team, guarantee: {cpu: 2, resources: {npu: 1}}}
- {name: b, parent: team, guarantee: {cpu: 3}}
- {name: c, parent: b, guarantee: {cpu: 3}}
";
    assert_eq!(check_jobs(below), Ok(Checked { queues: 3, ..Checked::default() }));
    let cases = [
        (
            below.replace("parent: b, guarantee: {cpu: 3}", "parent: b, guarantee: {cpu: 4}"),
            4,
            "lower theirs",
        ),
        (format!("{queues}{}", job("q", "min_member: 3")), 4, "min_member"),
        (job("root", "min_member: 0").replace("high", "1"), 2, "root"),
        ("queues:\n- {name: a, weight: 0}\n".to_owned(), 2, "weight"),
        ("queues:\n- {name: a, parent: a}\n".to_owned(), 2, "`a`"),
        (
            "queues:\n- {name: a, open: false}\n".to_owned()
                + &job("a", "min_member: 0").replace("high", "1"),
            4,
            "open",
        ),
        (
            "queues:\n- {name: a, guarantee: {cpu: 1}}\n- {name: b, parent: a, guarantee: {cpu: 2}}\n"
                .to_owned(),
            3,
            "guarantee",
        ),
    ];
    for (text, line, part) in cases {
        let error = check_jobs(&text).expect_err(&text);
        assert!(error.line == line && error.message.contains(part), "{error} for\n{text}");
    }
}

fn one(text: &str) -> Scenario {
    read(text).unwrap().remove(0)
}

#[test]
fn a_scenario_runs_and_says_what_differs() {
    let outcome = one(SMALL).run().unwrap();
    assert_eq!((outcome.differences, outcome.checks), (Vec::new(), 4));
    let explained = SMALL.replace("states: {t-0: pending}", "reason: {gang: no_node, t-2: gang}");
    let differs = ["step 1: gang waits by reason gang, no_node expected"];
    assert_eq!(one(&explained).run().unwrap().differences, differs);
    let wrong = SMALL.replace("bound_count: 0", "bound_count: 1").replace("cpu: 4.5}", "cpu: 4}");
    assert_eq!(
        one(&wrong).run().unwrap().differences,
        ["step 1: 0 bound, 1 expected", "step 3: queue q uses cpu 4.5, cpu 4 expected"]
    );
}

/// A task is evicted for one that loses its claim when its job restarts.
#[test]
fn wasted_evictions_differ_from_what_is_expected() {
    let text = "
name: somebody is evicted for a gang
config: {actions: [allocate, preempt], tiers: [[priority, gang]], grace: 30s}
nodes: [{name: n, cpu: 2}]
queues: [{name: q}]
jobs:
- {name: low, queue: q, tasks: [{name: l, cpu: 1, state: running, node: n}]}
- name: high
  queue: q
  priority: 5
  min_member: 2
  policies: [{event: task_failed, action: restart_job}]
  tasks: [{name: a, cpu: 1, state: running, node: n}, {name: b, cpu: 1}]
steps:
- {cycle: 1, expect: {evicted: [l], pipelined: {b: n}}}
";
    let ends = |step: &str| one(&format!("{text}{step}")).run().unwrap().differences;
    assert!(ends("").is_empty(), "it ends within the grace period");
    assert!(ends("- {advance: 30s, expect: {bound: {b: n}}}\n").is_empty(), "the eviction was of use");
    let wasted = ["wasted evictions: evicted for tasks that were not placed after all: l"];
    assert_eq!(ends("- {fail: [a]}\n- {advance: 31s, expect: {states: {b: pending}}}\n"), wasted);
    assert_eq!(ends("- {fail: [a], advance: 31s, cycle: 1}\n"), wasted, "the cycle places it again");
}

#[test]
fn taints_of_nodes_keep_out_what_does_not_tolerate_them() {
    let text = SMALL
        .replace("memory: 4Gi, count: 2}", "memory: 4Gi, count: 2, taints: ['gpu=yes:NoSchedule']}")
        .replace("memory: 512, count: 3}", "memory: 512, count: 3, tolerations: ['gpu=yes']}");
    assert!(one(&text).run().unwrap().differences.is_empty());
    let other = text.replace("gpu=yes'", "gpu=no'");
    assert_eq!(one(&other).run().unwrap().differences.len(), 2, "nothing is bound");
    let broken = text.replace("gpu=yes:NoSchedule", "gpu=yes").replace("\n\n", "\n");
    let error = one(&broken).run().unwrap_err().to_string();
    assert!(error.starts_with("line 4: `gpu=yes` is no taint"), "{error}");
}

#[test]
fn json_and_several_documents_are_read() {
    let json = r#"{"name": "j", "nodes": [{"name": "n", "cpu": 1}], "steps": [{"cycle": 1, "expect": {"bound_count": 0}}]}"#;
    assert!(one(json).run().unwrap().differences.is_empty());
    let both = format!("{SMALL}---{SMALL}");
    assert_eq!(read(&both).unwrap().len(), 2);
}

/// Each fault is told with its line and what to do.
#[test]
fn faults_are_told_with_their_line() {
    let fault = |from: &str, to: &str| {
        let text = SMALL.replace(from, to);
        assert_ne!(text, SMALL, "{from} is there");
        match read(&text) {
            Ok(mut scenarios) => scenarios.remove(0).run().unwrap_err().to_string(),
            Err(error) => error.to_string(),
        }
    };
    assert!(fault("queue: q", "queue: r").starts_with("line 9: there is no queue `r`"));
    assert!(fault("  queue: q\n", "").contains("it has no queue: give `queue`"));
    assert!(
        fault("states: {t-0: pending}", "states: {t-9: pending}").contains("line 15: there is no task `t-9`")
    );
    let reason = |of: &str| fault("states: {t-0: pending}", &format!("reason: {of}"));
    assert!(reason("{t-9: gang}").contains("line 15: there is no job and no task `t-9`"));
    assert!(
        reason("{t-0: luck}").contains("line 15: there is no reason `luck`: name one of none, not_tried")
    );
    assert!(fault("cpu: 1.5,", "cpu: 1.5, node: n-0,").contains("line 12: a pending task has no node yet"));
    assert!(
        fault("cpu: 1.5,", "cpu: 9, state: running, node: n-0,").contains("`t` does not fit on node `n-0`")
    );
    assert!(fault("steps:", "config: {grace: 9999999h}\nsteps:").contains("more than 100,000 hours"));
    assert!(
        fault("min_member: 3", "min_member: 4").starts_with("line 8: job `gang` needs 4 tasks and has 3")
    );
    assert!(fault("{name: q}", "{name: q, weight: 0}").contains("line 6: queue `q` has weight 0"));
    assert!(fault("{name: q}", "{name: q, parent: q}").contains("queue `q` is its own parent"));
    let cycle = fault("{name: q}", "{name: q, parent: r}\n- {name: r, parent: q}");
    assert!(cycle.contains("there is no queue `r` yet"), "{cycle}");
    assert!(fault("{name: q}", "{name: q, wieght: 1}").contains("wieght"));
    assert!(fault("cpu: 1.5", "cpu: many").contains("line 12"));
    assert!(fault("steps:", "config: {actions: [fly]}\nsteps:").contains("there is no action `fly`"));
    assert!(fault("steps:", "config: {tiers: [[gang, luck]]}\nsteps:").contains("there is no plugin `luck`"));
    let of_volcano = fault("steps:", "config: {tiers: [[predicates, gang]]}\nsteps:");
    assert!(of_volcano.contains("`predicates`: leave it out, since what a task asks for"), "{of_volcano}");
    let foreign = "config: {tiers: [[gang,\n  {plugin: proportion, hierarchical: true}]]}\nsteps:";
    let foreign = fault("steps:", foreign);
    assert!(foreign.contains("plugin `drf` has: `proportion` has plugin, without, only"), "{foreign}");
    assert!(foreign.starts_with("line 1") && !foreign.starts_with("line 1:"), "{foreign}");
    assert!(fault("steps:", "config: {backfill: lazy}\nsteps:").contains("there is no backfill `lazy`"));
    assert!(
        fault("cpu: 1.5,", "cpu: 1.5, run_time: 0s,")
            .starts_with("line 8: tasks of job `gang` may run for 0")
    );
    assert!(fault("cpu: 1.5,", "cpu: 1.5, run_time: 999999h,").contains("line 12: `run_time` is more than"));
    let policies =
        |policy: &str| fault("min_member: 3", &format!("min_member: 3\n  policies: [{{{policy}}}]"));
    assert!(policies("event: fire, action: abort_job").contains("line 11: there is no event `fire`"));
    assert!(policies("event: any, action: resume").contains("line 11: there is no action `resume`"));
    let of_job = |message: String| message.starts_with("line 8: policy 0 of job `gang`: ");
    assert!(of_job(policies("action: abort_job")));
    assert!(of_job(policies("event: task_failed, exit_code: 0, action: abort_job")));
    assert!(of_job(policies("event: task_evicted, exit_code: 1, action: abort_job")));
    assert!(of_job(policies("event: task_completed, action: restart_task")));
    assert!(fault("min_member: 3", "min_member: 3\n  max_retry: 1000001").contains("`max_retry` of at most"));
    let code = fault("cycle: 1\n  expect: {bound_count: 0", "exit_code: 1\n  expect: {bound_count: 0");
    assert!(code.contains("give `fail` too"), "{code}");
    let topology = |rule: &str| {
        fault("min_member: 3", &format!("min_member: 3\n  topology: {{mode: hard, tier: {rule}}}"))
    };
    let unknown = topology("rack");
    assert!(unknown.starts_with("line 8: topology of job `gang`: the cluster has no tiers"), "{unknown}");
    let twice = "config: {topology: [{tier: a, label: l}, {tier: a, label: m}]}\nsteps:";
    assert!(fault("steps:", twice).contains("tier `a` is named twice"));
    let domains = |domains: &str| {
        let tiers = "topology: [{tier: rack, label: l}, {tier: block}]";
        fault("steps:", &format!("config:\n  {tiers}\n  domains:\n  - {domains}\nsteps:"))
    };
    let rack = domains("{tier: rack, name: r, nodes: [n]}");
    assert!(rack.starts_with("line 14: tier `block` has neither a label nor domains: give it"), "{rack}");
    let block = "{tier: block, name: b, nodes: [n]}\n  - {tier: rack, name: r, domains: [x]}";
    let narrowest = domains(block);
    assert!(
        narrowest.starts_with("line 17: domain `r` has `domains`, and no tier is narrower"),
        "{narrowest}"
    );
    let field = domains("{tier: block, name: b, node: [n]}");
    assert!(field.contains("unknown field `node`"), "{field}");
    let starve = fault("steps:", "config: {actions: [allocate, starve]}\nsteps:");
    assert!(starve.contains("name plugin `fair-share`"), "{starve}");
    let above = fault("{name: q}", "{name: q, starves_below: 1.5}");
    assert!(
        above.contains("line 6: jobs of queue `q` would starve below 1.5 of their fair share"),
        "{above}"
    );
    let part = fault("{name: q}", "{name: q, starves_below: 900000}");
    assert!(part.contains("line 6: `starves_below` is 900000: give a part of the whole"), "{part}");
    let late = fault("{name: q}", "{name: q, fair_share_patience: 9999999h}");
    assert!(late.contains("line 6: `fair_share_patience` is more than 100,000 hours"), "{late}");
    let fault = fault("cycle: 1\n  expect: {bound_count: 0", "finish: [t-0]\n  expect: {bound_count: 0");
    assert!(fault.contains("line 14: task `t-0` is pending and cannot end"), "{fault}");
    assert_eq!(read("").unwrap_err().line, 1);
    // Nothing that is written makes a scenario run out of memory or time, or panic.
    let too_many = SMALL.replace("memory: 4Gi, count: 2", "memory: 4Gi, count: 4000000000");
    assert!(one(&too_many).run().unwrap_err().to_string().contains("more than 100000 nodes"));
    let too_long = SMALL.replace("cycle: 1\n  expect: {bound_count", "cycle: 99999\n  expect: {bound_count");
    assert!(one(&too_long).run().unwrap_err().to_string().contains("99999 cycles: give at most 10000"));
    let too_much = SMALL.replace("memory: 512, count: 3", "memory: 900000000000, count: 90000");
    assert!(one(&too_much).run().unwrap_err().to_string().contains("asks for so much memory"));
}
